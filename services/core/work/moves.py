"""Operators that move elements and compute nothing: copies, fills, lookups. Their flop are none, which is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Tensor, moved_bytes


def _moves(*tensors: Tensor | None, flop: float = 0.0) -> Work | None:
    total = moved_bytes(tensors)
    dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
    return None if total is None else Work(Weight.MOVE, flop, total, dtype)


def _copy(call: OperatorCall) -> Work | None:
    """copy_(target, source): the source may be broadcast, and of another type."""
    target, source = call.tensor(0), call.tensor(1)
    return None if target is None or source is None else _moves(source, target)


def _clone(call: OperatorCall) -> Work | None:
    values = call.tensor(0)
    return None if values is None else _moves(values, values)


def _fill(call: OperatorCall) -> Work | None:
    target = call.tensor(0)
    return None if target is None else _moves(target)


def _embedding(call: OperatorCall) -> Work | None:
    """embedding(table, places): a row of the table read and written for each place."""
    table, places = call.tensor(0), call.tensor(1)
    if table is None or places is None or len(table.shape) != 2:
        return None
    rows = table.shaped((*places.shape, table.shape[1]))
    return _moves(rows, rows, places)


def _embedding_backward(call: OperatorCall) -> Work | None:
    """embedding_dense_backward(gradient, places, row count, …): every row of the result written, each gradient added to one."""
    gradient, places, row_count = call.tensor(0), call.tensor(1), call.integer(2)
    if gradient is None or places is None or row_count is None or not gradient.shape:
        return None
    return _moves(gradient, places, gradient.shaped((row_count, gradient.shape[-1])), flop=float(gradient.count))


def _index_select(call: OperatorCall) -> Work | None:
    """index_select(input, dimension, places)"""
    values, dimension, places = call.tensor(0), call.integer(1), call.tensor(2)
    if values is None or dimension is None or places is None or not -len(values.shape) <= dimension < len(values.shape):
        return None
    sizes = list(values.shape)
    sizes[dimension] = places.count
    chosen = values.shaped(tuple(sizes))
    return _moves(chosen, chosen, places)


def _gather(call: OperatorCall) -> Work | None:
    """gather(input, dimension, places): as many elements as places."""
    values, places = call.tensor(0), call.tensor(2)
    if values is None or places is None:
        return None
    chosen = values.shaped(places.shape)
    return _moves(chosen, chosen, places)


MOVES: Final[Mapping[str, Model]] = {
    "aten::copy_": _copy,
    "aten::clone": _clone,
    "aten::contiguous": _clone,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
}
