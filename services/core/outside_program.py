"""Programs of others that stand on a machine: where they are, and runs of them that come to an end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


def find_program(name: str, usual_places: Sequence[str], inner_folders: Sequence[str] = (".",)) -> str | None:
    """That of the path, of CUDA_HOME, or of the usual places; of several versions side by side the newest.

    Args:
        usual_places: folders with the program or with folders of its versions.
        inner_folders: where in the folder of a version it may be.
    """
    on_path = shutil.which(name)
    candidates = [Path(on_path)] if on_path else []
    candidates += [Path(os.environ[variable]) / "bin" / name for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    for place in map(Path, usual_places):
        versions = sorted(place.glob("*/"), key=_version, reverse=True)
        candidates += [place / name, *(folder / inner / name for folder in versions for inner in inner_folders)]
    return next((str(path) for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def run_limited(
    command: Sequence[str], *, folder: Path, output: IO[bytes] | int, errors: IO[bytes] | int, limit_s: float, given: bytes | None = None
) -> int:
    """Its exit status. All that it started ends with it: tools are scripts around programs, and leave helpers behind.

    Args:
        given: what it reads from its input; None: nothing.

    Raises:
        subprocess.TimeoutExpired: it had not ended in time; now it has.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=output,
        stderr=errors,
        cwd=folder,
        start_new_session=True,
    )
    try:
        process.communicate(given, timeout=limit_s)
        return process.returncode
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdecimal())
