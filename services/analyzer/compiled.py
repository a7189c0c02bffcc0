"""Names that the scanner of Kineto traces still uses for `numeric.jit`; goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from services.analyzer.numeric import jit

compiled = inlined = jit


class GeneratedOperation:
    """An operation that writes its own code: numba.extending.intrinsic, loaded when it is compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__ = function.__doc__
        self._function = function

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        operation = intrinsic(self._function)
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(operation)


def generated(function: Callable[..., Any]) -> Any:
    return GeneratedOperation(function)


def _word(_context: Any, data: Any, offset: Any) -> Any:
    from numba.core import types

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from llvmlite import ir  # type: ignore[import-untyped]

        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        found = builder.load(builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer()))
        found.align = 1
        return found

    return types.uint64(data, offset), load


word = cast(Callable[[npt.NDArray[np.uint8], int], np.uint64], generated(_word))
