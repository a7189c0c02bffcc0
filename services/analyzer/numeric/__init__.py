"""Loops over arrays that no column operation can express, compiled to machine code by numba.

Numba compiles a function anew when the file that it is written in has changed, and looks at no other file. So a jitted function
uses only constants and jitted functions of its own module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from threading import Lock
from typing import Any, Final, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}


def jit(function: Function) -> Function:
    """Return the function as numba.njit compiles it at its first call, from or into numba's cache of compiled code.

    Numba itself is imported by that call: it takes longer to load than most commands take to run.
    """
    return cast(Function, _Jitted(function))


class _Jitted:
    """A function that is handed to numba when it is first called, from Python or by another jitted function."""

    def __init__(self, function: Callable[..., object]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatcher: Any = None
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    @property
    def dispatcher(self) -> Any:
        """The function in numba's form. Threads share one: each of them would compile its own."""
        if self._dispatcher is None:
            numba = _numba()
            with self._lock:
                self._dispatcher = self._dispatcher or _compiled(numba, self._function)
        return self._dispatcher


def _compiled(numba: Any, function: Callable[..., object]) -> Any:
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # there is no directory that numba may write its cache to
        return numba.njit(**_OPTIONS)(function)


@cache
def _numba() -> Any:
    """Import numba and tell it what a jitted function is that another one calls."""
    import numba
    from numba.extending import typeof_impl

    @typeof_impl.register(_Jitted)  # type: ignore[untyped-decorator]
    def _type_of(function: _Jitted, _context: Any) -> Any:
        return numba.typeof(function.dispatcher)

    return numba
