"""Operators of ONNX that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Weight, Work
from services.core.work.onnx_call import OnnxCall
from services.core.work.onnx_products import OnnxModel
from services.core.work.tensors import Tensor, moved_bytes


def _moves(values: Tensor, *moved: Tensor) -> Work | None:
    total = moved_bytes(moved)
    return None if total is None else Work(Weight.MOVE, 0.0, total, values.dtype)


def _copy(call: OnnxCall) -> Work | None:
    """All of what goes in comes out: Transpose, Cast, Concat, Split, Expand, Tile, Pad."""
    return None if call.first is None else _moves(call.first, *call.inputs, *call.outputs)


def _taken(call: OnnxCall) -> Work | None:
    """Gather and Slice: of the values what is taken, and the places (or limits) that say what."""
    values, result = call.first, call.result
    return None if values is None or result is None else _moves(values, result, *call.inputs[1:], result)


def _scattered(call: OnnxCall) -> Work | None:
    """ScatterND(values, places, updates): in place at the least."""
    if len(call.inputs) < 3:
        return None
    values, places, updates = call.inputs[:3]
    return _moves(values, places, updates, updates)


def _filled(call: OnnxCall) -> Work | None:
    """What comes out is written: Shape, Range, ConstantOfShape."""
    return None if call.result is None else _moves(call.result, *call.outputs)


def _seen_otherwise(call: OnnxCall) -> Work | None:
    """Another shape of the same elements: nothing has to move."""
    return None if call.result is None else Work(Weight.MOVE, 0.0, 0.0, call.result.dtype)


MOVES: Final[Mapping[str, OnnxModel]] = {
    **dict.fromkeys(("Transpose", "Cast", "Concat", "Split", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth"), _copy),
    **dict.fromkeys(("ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"), _copy),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice"), _taken),
    **dict.fromkeys(("ScatterND", "ScatterElements"), _scattered),
    **dict.fromkeys(("Shape", "Size", "Range", "ConstantOfShape"), _filled),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"), _seen_otherwise),
}
