"""Numba's compiler for functions that are called by others of them: optimized once, with all that they call.

By itself numba optimizes each function and makes machine code of it before the next one takes it in, and there does the same
again with all of it: that is a good part of what the first run waits for. Only `compiled` loads this, for it loads numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock

NO_ADDRESS: Final = 0
"""Of machine code that is not made."""


class LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code of one function and all that it calls, to be linked into that of others."""

    def _optimize_final_module(self) -> None:
        """Not here: where this is called from, all is optimized together."""

    def _finalize_final_module(self) -> None:
        """Machine code is made by `machine_code` alone."""
        self._finalized = True

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def optimized(self) -> Any:
        """An LLVM module: the function, and of what it calls that which has not become part of it."""
        self._ensure_finalized()
        whole = LinkedLibrary(self._codegen, self.name)
        whole._final_module = self._final_module.clone()
        JITCodeLibrary._optimize_final_module(whole)
        return whole._final_module

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def machine_code(self, module: Any) -> bytes:
        """An object file."""
        return bytes(self._codegen._tm.emit_object(module))


class LinkingCompiler(Compiler):  # type: ignore[misc]
    """For the `pipeline_class` of numba.njit."""

    def __init__(self, typing_context: Any, target: Any, library: Any, arguments: Any, returned: Any, flags: Any, names: Any) -> None:
        flags.no_compile = True
        super().__init__(typing_context, target, library or LinkedLibrary(target.codegen(), "linked"), arguments, returned, flags, names)

    def compile_extra(self, func: Callable[..., object]) -> Any:
        """A numba.core.compiler.CompileResult, known to the callers that are compiled later."""
        result = super().compile_extra(func)
        # What calls it finds its code by this object; nobody calls the object.
        entry = _dynfunc.make_function(result.fndesc.lookup_module(), func.__name__, "", NO_ADDRESS, result.environment, (result.library,))
        self.state.targetctx.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)
