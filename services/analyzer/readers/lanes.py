"""Many bytes of a text looked at in one step of the machine, within compiled functions. Nothing is checked.

A mask has a bit for each of LANE_COUNT bytes from a position on, the first one lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from services.analyzer.compiled import generated

Bytes = npt.NDArray[np.uint8]

LANE_COUNT: Final = 32
"""Half of it takes twice the steps for names of kernels; twice of it no processor here has registers for."""


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _byte(_context: Any, data: Any, position: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(_pointer(context, builder, signature, arguments)), ir.IntType(64))

    return types.int64(data, types.int64), generate


def _mask_of(*letters: str) -> Callable[..., Any]:
    """An operation: which of the bytes are one of the letters."""

    def mask(_context: Any, data: Any, position: Any) -> Any:
        from llvmlite import ir
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = ir.VectorType(ir.IntType(8), LANE_COUNT)
            lanes = builder.load(builder.bitcast(_pointer(context, builder, signature, arguments), vector.as_pointer()))
            lanes.align = 1
            found = None
            for letter in letters:
                same = builder.icmp_unsigned("==", lanes, ir.Constant(vector, [ord(letter)] * LANE_COUNT))
                found = same if found is None else builder.or_(found, same)
            return builder.zext(builder.bitcast(found, ir.IntType(LANE_COUNT)), ir.IntType(64))

        return types.int64(data, types.int64), generate

    return mask


def _first_lane(_context: Any, mask: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


byte = cast(Callable[[Bytes, int], int], generated(_byte))
"""The byte at a position that is not negative: indexing would ask that first, at each byte."""

string_ends = cast(Callable[[Bytes, int], int], generated(_mask_of('"', "\\")))
"""Mask of quotes and backslashes."""

spaces = cast(Callable[[Bytes, int], int], generated(_mask_of(" ", "\n", "\r", "\t")))
"""Mask of what JSON takes for white space."""

first_lane = cast(Callable[[int], int], generated(_first_lane))
"""Of a mask that is not empty its first byte that is set."""
