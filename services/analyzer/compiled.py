"""Functions over arrays that are compiled to machine code: loops over millions of rows that no column operation can express."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic


def _load_without_linear_algebra() -> None:
    """Numba looks for SciPy's, a third of the time until the first call. No function here multiplies matrices."""
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = cast(Any, None)  # what Python takes for a module that is not there
    try:
        import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


_load_without_linear_algebra()

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk for later processes; runs without the interpreter's lock."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def _word(_context: Any, data: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        word = builder.load(pointer)
        word.align = 1
        return word

    return types.uint64(data, offset), generate


word = cast(Callable[[npt.NDArray[np.uint8], int], np.uint64], intrinsic(_word))
"""Eight bytes at any offset as one number, in the machine's order. Only within compiled functions; nothing is checked."""
