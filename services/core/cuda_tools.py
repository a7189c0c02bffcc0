"""Tools that come with the CUDA toolkit or beside it: where they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from services.core.outside_program import find_program

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
