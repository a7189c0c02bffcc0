"""Functions over arrays that are compiled to machine code: loops over millions of rows that no column operation can express."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from services.analyzer import machine_code

Function = TypeVar("Function", bound=Callable[..., object])

IMPORTED: Final = re.compile(r"^from (services\.[\w.]+) import", re.MULTILINE)


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk for later processes; runs without the interpreter's lock.

    A function that neither allocates nor raises starts without numba when its code was kept. Constants and functions of
    other modules become part of the code: a change to any of their sources makes it another one.
    """
    return cast(Function, CompiledFunction(function, is_inlined=False))


def inlined(function: Function) -> Function:
    """As `compiled`, with the code put into whatever calls it: for short functions that are called for each byte or token.

    A call passes each array as seven numbers. Long functions with many callers would make the first run wait for the compiler.
    """
    return cast(Function, CompiledFunction(function, is_inlined=True))


def generated(function: Callable[..., Any]) -> Any:
    """An operation that writes its own code, as numba.extending.intrinsic; only within compiled functions."""
    return GeneratedOperation(function)


class CompiledFunction:
    """Stands for the function, in Python and in other compiled functions."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[..., object], *, is_inlined: bool) -> None:
        update_wrapper(self, function)
        self._function = function
        self._is_inlined = is_inlined
        self._entries: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        kinds = machine_code.kinds_of(arguments)
        if kinds is None:
            return self._with_numba(*arguments)
        entry = self._entries.get(kinds)
        if entry is None:
            with self._lock:  # threads that come at once wait for the first of them
                entry = self._entries.get(kinds) or self._entry(kinds, arguments)
                self._entries[kinds] = entry
        return entry(*arguments)

    def _entry(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        name, digest = f"{self.__module__}.{self.__name__}", sources_digest(self.__module__)
        code = machine_code.kept(name, digest, kinds)
        if code is None:
            types = tuple(_numba().typeof(argument) for argument in arguments)
            self.dispatcher.compile(types)
            code = machine_code.code_of(self.dispatcher.overloads[types])
            if code is None:
                return cast(Callable[..., Any], self._with_numba)
            machine_code.keep(code, name, digest, kinds)
        return code.load()

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's form of the function, for calls from other compiled functions."""
        _numba()
        from services.analyzer.linking_compiler import LinkingCompiler

        return self._dispatcher("", pipeline_class=LinkingCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    @cached_property
    def _with_numba(self) -> Any:
        """The same for calls from Python that only numba can make."""
        return self._dispatcher("_called", cache=True)

    def _dispatcher(self, suffix: str, **options: Any) -> Any:
        # Numba asks only whether the function's own file has changed; with all the sources in its name, old code is not found.
        self._function.__qualname__ = f"{self.__qualname__}_{sources_digest(self.__module__)}{suffix}"
        return _numba().njit(nogil=True, error_model="numpy", forceinline=self._is_inlined, **options)(self._function)

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for where another compiled function calls this one."""
        return self.dispatcher._numba_type_


class GeneratedOperation:
    """Its name in compiled functions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__ = function.__doc__
        self._function = function

    @cached_property
    def _numba_type_(self) -> Any:
        _numba()
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        operation = intrinsic(self._function)
        cpu_target.typing_context.refresh()  # now it knows the operation
        return cpu_target.typing_context.resolve_value_type(operation)


@cache
def _numba() -> Any:
    """Loaded when something is to be compiled: it takes longer than most traces take to read."""
    # Numba looks for SciPy's linear algebra, a third of the time until the first call. No function here multiplies matrices.
    is_there = "scipy.linalg" in sys.modules
    if not is_there:
        sys.modules["scipy.linalg"] = cast(Any, None)  # what Python takes for a module that is not there
    try:
        import_module("numba.np.arraymath")
    finally:
        if not is_there:
            del sys.modules["scipy.linalg"]
    numba = import_module("numba")
    # No loop here can be vectorized, for each step needs the one before: to look for such takes the compiler a tenth of its time.
    numba.config.LOOP_VECTORIZE = 0
    return numba


@cache
def sources_digest(*module_names: str) -> str:
    """Of these modules and, of this project, all that they import: other for other code."""
    folder = Path(machine_code.__file__).parent
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("machine_code.py", "linking_compiler.py")))
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


def _loaded(builder: Any, context: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]

    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    found = builder.load(builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer()))
    found.align = 1
    return found


def _word(_context: Any, data: Any, offset: Any) -> Any:
    from numba.core import types

    return types.uint64(data, offset), lambda context, builder, *call: _loaded(builder, context, *call)


def _big_endian_word(_context: Any, data: Any, offset: Any) -> Any:
    from numba.core import types

    return types.int64(data, offset), lambda context, builder, *call: builder.bswap(_loaded(builder, context, *call))


word = cast(Callable[[npt.NDArray[np.uint8], int], np.uint64], generated(_word))
"""Eight bytes at any offset as one number, in the machine's order. Only within compiled functions; nothing is checked."""

big_endian_word = cast(Callable[[npt.NDArray[np.uint8], int], np.int64], generated(_big_endian_word))
"""The same with the first byte as the highest."""
