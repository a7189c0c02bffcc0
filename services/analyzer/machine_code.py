"""Machine code of compiled functions, kept on disk and called without the compiler: to load that takes longer than most answers.

A function is called as numba calls it from its own code, https://numba.readthedocs.io/en/stable/developer/architecture.html:
a place for the result, one for an exception, then the arguments, of an array the fields of its structure one by one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]

SCALARS: Final[Mapping[str, type[Any]]] = {
    "bool": ctypes.c_bool,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
}
"""By the names that numba has for them."""

RETURNED: Final = (0, -2)
"""Status of a function that came to its end, with a value and without."""

DESTRUCTOR: Final = "NRT_MemInfo_call_dtor"
"""Called for memory of numba's that nobody refers to any more. Arrays passed from here have none: it is never reached."""

PROVIDED: Final = frozenset({"memcpy", "memmove", "memset", DESTRUCTOR})
"""What kept code may refer to: all that it needs besides is missing where numba was not loaded."""


@dataclass(frozen=True, slots=True)
class Code:
    """One function for arguments of certain kinds. returned: kinds of its values; is_tuple: False for a single one or none."""

    symbol: str
    returned: tuple[str, ...]
    is_tuple: bool
    machine_code: bytes

    def load(self) -> Callable[..., Any]:
        """Ready to be called, on as many threads as one likes: it runs without the interpreter's lock."""
        binary = binding.ObjectFileRef.from_data(self.machine_code)
        engine = _engine()
        engine.add_object_file(binary)
        engine.finalize_object()
        address = engine.get_function_address(self.symbol)
        names = [f"value_{place}" for place in range(len(self.returned))]

        class Values(ctypes.Structure):
            _fields_ = tuple((name, SCALARS[kind]) for name, kind in zip(names, self.returned, strict=True))

        def call(*arguments: Any) -> Any:
            found, exception = Values(), ctypes.c_void_p()
            flat = _flat(arguments)
            # A type of its own for each call: an array's fields are as many as it has dimensions.
            native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *map(type, flat))(address)
            status = native(ctypes.addressof(found), ctypes.addressof(exception), *flat)
            if status not in RETURNED:
                raise RuntimeError(f"compiled function {self.symbol}: status {status}")
            result = tuple(getattr(found, name) for name in names)
            return result if self.is_tuple else result[0] if result else None

        return call


def _flat(arguments: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            flat += [ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64(argument.size), ctypes.c_int64(argument.itemsize)]
            flat.append(ctypes.c_void_p(argument.ctypes.data))
            flat += [ctypes.c_int64(number) for number in (*argument.shape, *argument.strides)]
        else:
            flat.append(SCALARS[_scalar_kind(argument) or ""](argument))
    return flat


def kinds_of(arguments: Sequence[Any]) -> tuple[str, ...] | None:
    """What makes the code of a function another one; None: arguments that are only numba's to pass."""
    kinds = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            if argument.dtype.hasobject or argument.dtype.names or not argument.dtype.isnative or not argument.flags.aligned:
                return None
            order = "C" if argument.flags.c_contiguous else "F" if argument.flags.f_contiguous else "A"
            kinds.append(f"{argument.dtype.name}{argument.ndim}{order}{'' if argument.flags.writeable else 'r'}")
        elif (kind := _scalar_kind(argument)) is not None:
            kinds.append(kind)
        else:
            return None
    return tuple(kinds)


def _scalar_kind(value: Any) -> str | None:
    if isinstance(value, np.generic):
        return str(value.dtype.name) if value.dtype.name in SCALARS else None
    return {bool: "bool", int: "int64", float: "float64"}.get(type(value))


@cache
def _engine() -> Any:
    """Holds all code that was loaded."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if binding.address_of_symbol(DESTRUCTOR) is None:
        binding.add_symbol(DESTRUCTOR, ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), binding.Target.from_default_triple().create_target_machine())


def kept(name: str, digest: str, kinds: tuple[str, ...]) -> Code | None:
    """Code that was kept earlier on this machine, made from the same sources; None: there is none that is whole."""
    try:
        header, _, machine_code = _place(name, digest, kinds).read_bytes().partition(b"\n")
        stated = json.loads(header)
        if stated["sha256"] != hashlib.sha256(machine_code).hexdigest():
            return None
        return Code(stated["symbol"], tuple(stated["returned"]), stated["is_tuple"], machine_code)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(code: Code, name: str, digest: str, kinds: tuple[str, ...]) -> None:
    """For later processes. A folder that cannot be written to costs them time, no more."""
    place = _place(name, digest, kinds)
    stated = {"symbol": code.symbol, "returned": code.returned, "is_tuple": code.is_tuple}
    header = json.dumps(stated | {"sha256": hashlib.sha256(code.machine_code).hexdigest()}).encode()
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:  # others may read or write the same now
            file.write(header + b"\n" + code.machine_code)
        Path(file.name).replace(place)


def code_of(compilation: Any) -> Code | None:
    """Of what numba compiled; None when it needs more of numba than itself: memory, exceptions, objects of Python.

    Args:
        compilation: a numba.core.compiler.CompileResult.
    """
    from numba.core import types

    returned: Any = compilation.signature.return_type
    is_tuple = isinstance(returned, types.BaseTuple)
    values = tuple(returned.types) if is_tuple else () if returned == types.none else (returned,)
    names = tuple(str(value) for value in values)
    library = compilation.library
    module = library.optimized()
    needed = {part.name for part in (*module.functions, *module.global_variables) if part.is_declaration}
    if not set(names) <= set(SCALARS) or {name for name in needed if not name.startswith("llvm.")} - PROVIDED:
        return None
    return Code(compilation.fndesc.llvm_func_name, names, is_tuple, library.machine_code(module))


def _place(name: str, digest: str, kinds: tuple[str, ...]) -> Path:
    key = hashlib.sha256("\n".join((digest, *kinds, *_machine())).encode()).hexdigest()[:32]
    return _folder() / f"{name}-{key}"


def _folder() -> Path:
    """NUMBA_CACHE_DIR, where somebody says where compiled code goes; else in the user's cache."""
    stated = os.environ.get("NUMBA_CACHE_DIR")
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernalyse"
    return (Path(stated) if stated else cache_folder) / "machine_code"


@cache
def _machine() -> tuple[str, ...]:
    features = binding.get_host_cpu_features().flatten()
    return version("numba"), version("llvmlite"), binding.get_process_triple(), binding.get_host_cpu_name(), features
