"""Programs of others that stand on a machine: where they are, and runs of them that come to an end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


def find_program(
    name: str,
    named_paths: Sequence[str],
    usual_paths: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    is_named_first: bool = False,
) -> str | None:
    """That of PATH, of the named paths, or of the usual ones.

    Args:
        named_paths: what other variables of the environment come to.
        usual_paths: patterns (*, ?); of several versions side by side the newest counts.
        is_named_first: named paths come before PATH.
    """
    on_path = shutil.which(name, path=environment.get("PATH"))
    first = [*named_paths, on_path] if is_named_first else [on_path, *named_paths]
    usual = [str(path) for pattern in usual_paths for path in sorted(Path("/").glob(pattern[1:]), key=_version, reverse=True)]
    return next((path for path in (*first, *usual) if path and Path(path).is_file() and os.access(path, os.X_OK)), None)


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


def _version(path: Path) -> tuple[int, ...]:
    """By the numbers in it: nsight-systems/2025.1.1, cuda-12.8."""
    return tuple(int(number) for number in re.findall(r"\d+", str(path)))
