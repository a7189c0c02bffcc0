"""External programs: where those of the CUDA toolkit and others are installed, and how to run them with a time limit."""

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


def find_program(
    name: str,
    named_paths: Sequence[str],
    usual_paths: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    is_named_first: bool = False,
) -> str | None:
    """Return the path of a program from PATH, from the named paths, or from the usual ones; None if it is in none of them.

    Args:
        name: the program's name, as PATH has it.
        named_paths: paths derived from other environment variables, such as CUDA_HOME.
        usual_paths: patterns (*, ?); among several installed versions the newest counts.
        environment: where PATH is read from.
        is_named_first: named paths come before PATH.
    """
    on_path = shutil.which(name, path=environment.get("PATH"))
    first = [*named_paths, on_path] if is_named_first else [on_path, *named_paths]
    usual = [str(path) for pattern in usual_paths for path in sorted(Path("/").glob(pattern[1:]), key=_version, reverse=True)]
    return next((path for path in (*first, *usual) if path and Path(path).is_file() and os.access(path, os.X_OK)), None)


def run_limited(
    command: Sequence[str],
    *,
    directory: Path,
    output: IO[bytes] | int,
    errors: IO[bytes] | int,
    limit_s: float,
    input_bytes: bytes | None = None,
) -> int:
    """Run a program and return its exit status; every process that it started ends with it.

    Tools are often scripts around programs, and leave helper processes behind.

    Args:
        command: the program and its arguments.
        directory: the working directory.
        output, errors: where its standard output and standard error go.
        limit_s: after this time the program is killed.
        input_bytes: bytes for its standard input; None: nothing.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if input_bytes is None else subprocess.PIPE,
        stdout=output,
        stderr=errors,
        cwd=directory,
        start_new_session=True,
    )
    try:
        process.communicate(input_bytes, timeout=limit_s)
        return process.returncode
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _version(path: Path) -> tuple[int, ...]:
    """Return the numbers in a path as a sort key: nsight-systems/2025.1.1, cuda-12.8."""
    return tuple(int(number) for number in re.findall(r"\d+", str(path)))


# ---------------------------------------------------------------- tools of the CUDA toolkit

NVCC_PATHS: Final = ("/usr/local/cuda/bin/nvcc",)
NCU_PATHS: Final = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu", "/opt/nvidia/nsight-compute/*/ncu")
NSYS_PATHS: Final = tuple(
    f"{directory}/{path}"
    for directory in ("/opt/nvidia", "/usr/local", "/usr/lib")
    for path in ("nsight-systems*/bin/nsys", "nsight-systems*/*/bin/nsys", "nsight-systems*/*/target-linux-*/nsys", "cuda*/bin/nsys")
)


def find_nvcc() -> str | None:
    """Return the path of nvcc from CUDA_HOME, from PATH, or from the usual directory."""
    return find_program("nvcc", _of_toolkit("nvcc"), NVCC_PATHS, is_named_first=True)


def find_ncu() -> str | None:
    """Return the path of ncu from CUDA_HOME, from PATH, or from the usual directories; CUDA_HOME selects one that fits the driver."""
    return find_program("ncu", _of_toolkit("ncu"), NCU_PATHS, is_named_first=True)


def find_nsys(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of nsys from PATH, from CUDA_HOME, or from the usual directories.

    CUDA_HOME comes second: a toolkit's own nsys only starts one that is installed separately.
    """
    return find_program("nsys", _of_toolkit("nsys", environment), NSYS_PATHS, environment)


def _of_toolkit(name: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    return tuple(f"{environment[variable]}/bin/{name}" for variable in ("CUDA_HOME", "CUDA_PATH") if environment.get(variable))
