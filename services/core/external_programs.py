"""Find and run the programs of the CUDA toolkit and others."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

# ---------------------------------------------------------------- outside program
# Programs of others that stand on a machine: where they are, and runs of them that come to an end.


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


# ---------------------------------------------------------------- cuda tools
# Tools that come with the CUDA toolkit or beside it: where they are.

NVCC_PATHS: Final = ("/usr/local/cuda/bin/nvcc",)
NCU_PATHS: Final = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu", "/opt/nvidia/nsight-compute/*/ncu")
NSYS_PATHS: Final = tuple(
    f"{folder}/{path}"
    for folder in ("/opt/nvidia", "/usr/local", "/usr/lib")
    for path in ("nsight-systems*/bin/nsys", "nsight-systems*/*/bin/nsys", "nsight-systems*/*/target-linux-*/nsys", "cuda*/bin/nsys")
)


def find_nvcc() -> str | None:
    """nvcc of CUDA_HOME, of PATH, or of the usual place."""
    return find_program("nvcc", _of_toolkit("nvcc"), NVCC_PATHS, is_named_first=True)


def find_ncu() -> str | None:
    """ncu of CUDA_HOME, of PATH, or of the usual places: with CUDA_HOME one is chosen that goes with the driver."""
    return find_program("ncu", _of_toolkit("ncu"), NCU_PATHS, is_named_first=True)


def find_nsys(environment: Mapping[str, str] = os.environ) -> str | None:
    """nsys of PATH, of CUDA_HOME, or of the usual places: a toolkit's own only starts one that is installed apart from it."""
    return find_program("nsys", _of_toolkit("nsys", environment), NSYS_PATHS, environment)


def _of_toolkit(name: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    return tuple(f"{environment[variable]}/bin/{name}" for variable in ("CUDA_HOME", "CUDA_PATH") if environment.get(variable))
