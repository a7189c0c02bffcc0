"""Functions over arrays that are compiled to machine code: loops over millions of rows that no column operation can express."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar, cast

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


IMPORTED: Final = re.compile(r"^from (services\.[\w.]+) import", re.MULTILINE)


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk for later processes; runs without the interpreter's lock.

    Constants and functions of other modules become part of the code. Numba asks only whether the function's own file has
    changed; with the sources of those modules in its name, code that was made from others is not found.
    """
    return _compiled(function, is_inlined=False)


def inlined(function: Function) -> Function:
    """As `compiled`, with the code put into whatever calls it: for short functions that are called for each byte or token.

    A call passes each array as seven numbers. Long functions with many callers would make the first run wait for the compiler.
    """
    return _compiled(function, is_inlined=True)


def _compiled(function: Function, *, is_inlined: bool) -> Function:
    function.__qualname__ = f"{function.__qualname__}_{sources_digest(function.__module__)}"
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=is_inlined)(function))


@cache
def sources_digest(*module_names: str) -> str:
    """Of these modules and, of this project, all that they import: other for other code."""
    digest = hashlib.sha256()
    for name in sorted(set().union(*(_imported(name, set()) for name in module_names))):
        digest.update(_source(name))
    return digest.hexdigest()[:16]


def _imported(module_name: str, seen: set[str]) -> set[str]:
    """The module and, of this project, all that it imports."""
    if module_name not in seen and module_name in sys.modules:
        seen.add(module_name)
        for name in IMPORTED.findall(_source(module_name).decode()):
            _imported(name, seen)
    return seen


@cache
def _source(module_name: str) -> bytes:
    file = getattr(sys.modules[module_name], "__file__", None)
    return b"" if file is None else Path(file).read_bytes()


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
