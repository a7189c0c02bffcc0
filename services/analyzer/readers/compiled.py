"""Functions that numba compiles to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as machine code, made at its first call and kept on disk from then on. It runs without the GIL."""
    result: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    return result
