"""Functions over arrays that are compiled to machine code: loops over millions of rows that no column operation can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk for later processes; runs without the interpreter's lock."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
