"""Loops over arrays that no column operation can express, compiled to machine code by numba.

Numba recompiles a function only when the file that defines it has changed. A jitted function must therefore use only constants
and jitted functions of its own module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, update_wrapper
from pickle import UnpicklingError
from threading import Lock
from typing import Any, Final, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

CACHE_ERRORS: Final = (OSError, EOFError, UnpicklingError)
"""Errors that numba raises when its cache is damaged or the disk is full. Jitted functions themselves raise none of these."""

logger = logging.getLogger(__name__)


def jit(function: Function) -> Function:
    """Return a function that numba.njit compiles at its first call, using numba's cache of compiled code.

    Numba itself is imported by that call: it takes longer to load than most commands take to run.
    """
    return cast(Function, _Jitted(function))


class _Jitted:
    """A function that is handed to numba when it is first called, from Python or by another jitted function."""

    uses_cache = True  # shared by all instances: functions that call each other must use the cache together or not at all

    def __init__(self, function: Callable[..., object]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatchers: dict[bool, Any] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.dispatcher(*arguments)
        except CACHE_ERRORS as error:
            logger.warning("Compiled code is not cached: %s", error or type(error).__name__)
            _Jitted.uses_cache = False
            return self.dispatcher(*arguments)

    @property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function. Threads share it, since each of them would compile its own."""
        uses_cache = self.uses_cache
        if uses_cache not in self._dispatchers:
            numba = _numba()
            with self._lock:
                if uses_cache not in self._dispatchers:
                    self._dispatchers[uses_cache] = _compile(numba, self._function, uses_cache=uses_cache)
        return self._dispatchers[uses_cache]


def _compile(numba: Any, function: Callable[..., object], *, uses_cache: bool) -> Any:
    try:
        return numba.njit(cache=uses_cache, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # there is no directory that numba may write its cache to
        return numba.njit(nogil=True, error_model="numpy")(function)


@cache
def _numba() -> Any:
    """Import numba and register the type of jitted functions, so that one can call another."""
    import numba
    from numba.extending import typeof_impl

    @typeof_impl.register(_Jitted)
    def _type_of(function: _Jitted, _context: Any) -> Any:
        return numba.typeof(function.dispatcher)  # type: ignore[no-untyped-call]

    return numba
