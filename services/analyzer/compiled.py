"""Functions over arrays that are compiled to machine code: loops over millions of rows that no column operation can express."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

IMPORTED: Final = re.compile(r"^from (services\.[\w.]+) import", re.MULTILINE)


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk for later processes; runs without the interpreter's lock.

    Constants and functions of other modules become part of the code. Numba asks only whether the function's own file has
    changed; with the sources of those modules in its name, code that was made from others is not found.
    """
    function.__qualname__ = f"{function.__qualname__}_{_sources_digest(function.__module__)}"
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@cache
def _sources_digest(module_name: str) -> str:
    digest = hashlib.sha256()
    for name in sorted(_imported(module_name, set())):
        digest.update(_source(name))
    return digest.hexdigest()[:16]


def _imported(module_name: str, seen: set[str]) -> set[str]:
    """The module and, of this project, all that it imports."""
    if module_name not in seen and module_name in sys.modules:
        seen.add(module_name)
        for name in _names_in(_source(module_name)):
            _imported(name, seen)
    return seen


def _names_in(source: bytes) -> Iterator[str]:
    return iter(IMPORTED.findall(source.decode()))


@cache
def _source(module_name: str) -> bytes:
    file = getattr(sys.modules[module_name], "__file__", None)
    return b"" if file is None else Path(file).read_bytes()
