"""Costs of copies, gathers and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kernalyse.services.core.costs.operator import CostClass, CostModel, OperatorCall, OperatorCost, Tensor, moved_bytes

# ---------------------------------------------------------------- moves
# Operators that move elements and compute nothing, or add them to their target: copies, fills, lookups, scatters.
#
# Lookups with several index tensors (index) are not covered: nothing is recorded of these tensors, not even their sizes.


def _moves(*tensors: Tensor | None, flop: float = 0.0) -> OperatorCost | None:
    total = moved_bytes(tensors)
    dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
    return None if total is None else OperatorCost(CostClass.MOVE, flop, total, dtype)


def _copy(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of copy_(target, source); the source may be broadcast, and of another type."""
    target, source = call.tensor(0), call.tensor(1)
    return None if target is None or source is None else _moves(source, target)


def _clone(call: OperatorCall) -> OperatorCost | None:
    values = call.tensor(0)
    return None if values is None else _moves(values, values)


def _fill(call: OperatorCall) -> OperatorCost | None:
    target = call.tensor(0)
    return None if target is None else _moves(target)


def _embedding(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of embedding(table, indices): a row of the table is read and written for each index."""
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    rows = table.shaped((*indices.shape, table.shape[1]))
    return _moves(rows, rows, indices)


def _embedding_backward(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of embedding_dense_backward(gradient, indices, row count, …).

    Each gradient is added to one row of the result, which an inner operator has filled with zeros, at a cost of its own.
    """
    gradient, indices, row_count = call.tensor(0), call.tensor(1), call.integer(2)
    if gradient is None or indices is None or row_count is None or not gradient.shape:
        return None
    rows = gradient.shaped((min(indices.count, row_count), gradient.shape[-1]))
    moved = _moves(gradient, indices, rows, rows, flop=float(gradient.count))
    return None if moved is None else replace(moved, weight=CostClass.PASS)  # or the filling would replace it


def _index_select(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of index_select(input, dimension, indices)."""
    values, dimension, indices = call.tensor(0), call.integer(1), call.tensor(2)
    if values is None or dimension is None or indices is None or not -len(values.shape) <= dimension < len(values.shape):
        return None
    sizes = list(values.shape)
    sizes[dimension] = indices.count
    selected = values.shaped(tuple(sizes))
    return _moves(selected, selected, indices)


def _gather(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of gather(input, dimension, indices): as many elements as indices."""
    values, indices = call.tensor(0), call.tensor(2)
    if values is None or indices is None:
        return None
    selected = values.shaped(indices.shape)
    return _moves(selected, selected, indices)


def _concatenation(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of cat(tensors, dimension) and stack: every element is read and written."""
    parts = call.tensors(0)
    if not parts:
        return None
    total = moved_bytes((*parts, *parts))
    return OperatorCost(CostClass.MOVE, 0.0, total, parts[0].dtype)


def _scatter(call: OperatorCall, *, is_added: bool) -> OperatorCost | None:
    """Return the cost of scatter_(target, dimension, indices, source), index_copy_, scatter_add_ and index_add_.

    Source and indices are read, and as many elements of the target written; with an addition these are read as well, and one
    addition counts for each. In place only: other variants first copy the target, which is recorded on its own.
    """
    target, indices = call.tensor(0), call.tensor(2)
    if target is None or indices is None:
        return None
    source = call.tensor(3)
    if call.name in PUT_ROWS:
        if source is None:
            return None
        put = target.shaped(source.shape)
    else:
        put = target.shaped(indices.shape)
        source = None if source is None or not source.shape else source.shaped(indices.shape)
    flop = float(put.count) if is_added and "float" in (target.dtype or "") else 0.0
    return _moves(put, indices, source, put if is_added else None, flop=flop)


PUT_ROWS: Final = ("aten::index_add_", "aten::index_copy_")
"""Operators whose indices have one dimension and select rows of the target."""


def _index_put(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of index_put_(target, indices, values, accumulate): each value is read and written, or added to what is there.

    Nothing is recorded of the indices, so a value that is broadcast, such as a single one, leaves the cost unknown.
    """
    target, values, is_added = call.tensor(0), call.tensor(2), call.flag(3)
    if target is None or values is None or not values.shape or is_added is None:
        return None
    put = target.shaped(values.shape)
    flop = float(put.count) if is_added and "float" in (target.dtype or "") else 0.0
    return _moves(put, values, put if is_added else None, flop=flop)


def _embedding_bag(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of an embedding bag: rows are summed, bag by bag.

    Inputs: table, indices, offsets, …, 4: mode, 6: weights, 7: whether the last offset is included.
    By the documentation of torch.nn.EmbeddingBag: a row of the table is read for each index and added to its bag (modes 0
    and 1), scaled before where there are weights; a mean (1) takes a division for each element of the result, a maximum (2)
    nothing. The bag of each index and the size of each bag are also written.
    """
    table, indices, offsets, mode, scales, has_last = (
        *(call.tensor(index) for index in range(3)),
        call.integer(4),
        call.tensor(6),
        call.flag(7),
    )
    if table is None or indices is None or offsets is None or len(table.shape) != 2 or mode not in (0, 1, 2) or has_last is None:
        return None
    bag_count = offsets.count - has_last
    if bag_count < 0:
        return None
    rows, result = table.shaped((indices.count, table.shape[1])), table.shaped((bag_count, table.shape[1]))
    flop = rows.count * ((mode < 2) + (scales is not None)) + result.count * (mode == 1)
    return _moves(rows, indices, offsets, scales, result, indices, offsets, flop=float(flop))


MOVES: Final[Mapping[str, CostModel]] = {
    "aten::copy_": _copy,
    "aten::clone": _clone,
    "aten::contiguous": _clone,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    **dict.fromkeys(("aten::cat", "aten::_cat", "aten::stack"), _concatenation),
    **dict.fromkeys(("aten::scatter_", "aten::index_copy_"), lambda call: _scatter(call, is_added=False)),
    **dict.fromkeys(("aten::scatter_add_", "aten::index_add_"), lambda call: _scatter(call, is_added=True)),
    **dict.fromkeys(("aten::index_put_", "aten::_index_put_impl_"), _index_put),
    "aten::_embedding_bag": _embedding_bag,
    "aten::_embedding_bag_forward_only": _embedding_bag,
}


# ---------------------------------------------------------------- collectives
# Bytes that a rank has to send and receive over its links, whatever the algorithm.
#
# doc/PERFORMANCE.md of nccl-tests, "Bus bandwidth": for an array of S bytes and n ranks, all-reduce moves 2 (n - 1) / n S, reduce-scatter,
# all-gather and all-to-all (n - 1) / n S, broadcast, reduce, send and receive S; S is the complete array, the larger of input and
# output. Divided by their time these bytes are that document's bus bandwidth. The additions that a rank makes are unknown: the
# operation is not recorded.

ALL_REDUCE: Final = ("allreduce", "all_reduce", "allreduce_coalesced")
SPREAD: Final = (
    *("allgather", "_allgather_base", "all_gather", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("all_to_all", "all_to_allv", "alltoall", "alltoall_base"),
)
WHOLE: Final = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "send", "recv")
NAME_INDEX: Final = 4
RANK_COUNT_INDEX: Final = 9
"""Indices of two inputs of record_param_comms: the collective's name and the number of ranks."""

REDUCING: Final = ("reduce",)
"""Collectives with such a name make additions that are not known; others compute nothing."""


def bus_fraction(name: str, rank_count: int) -> float | None:
    """Return the fraction of the complete array that one rank moves over its links, or None for an unknown collective."""
    if name in WHOLE:
        return 1.0
    if rank_count < 1:
        return None
    return 2.0 * (rank_count - 1) / rank_count if name in ALL_REDUCE else (rank_count - 1) / rank_count if name in SPREAD else None


def _collective(name: str, rank_count: int, *arrays: Tensor) -> OperatorCost | None:
    """Return the cost of a collective; `arrays` are its inputs and outputs."""
    fraction = bus_fraction(name, rank_count)
    array = max(arrays, key=lambda tensor: tensor.count)
    if fraction is None or array.bytes is None:
        return None
    flop = None if any(part in name for part in REDUCING) else 0.0
    return OperatorCost(CostClass.MOVE, flop, fraction * array.bytes, array.dtype)


def _recorded_collective(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of record_param_comms(input or inputs, …, name, …, number of ranks); a gather multiplies its input."""
    single, name, rank_count = call.tensor(0), call.text(NAME_INDEX), call.integer(RANK_COUNT_INDEX)
    values = call.tensors(0) if single is None else [single]
    if not values or rank_count is None or rank_count < 1:
        return None
    copies = rank_count if "gather" in name else 1
    return _collective(name, rank_count, values[0].shaped((copies * sum(tensor.count for tensor in values),)))


def _base_collective(name: str) -> CostModel:
    """Return the model of c10d::_allgather_base_ or _reduce_scatter_base_(result, input, …).

    The quotient of the two sizes is the number of ranks.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        result, values = call.tensor(0), call.tensor(1)
        if result is None or values is None or not result.count or not values.count:
            return None
        rank_count, rest = divmod(max(result.count, values.count), min(result.count, values.count))
        return None if rest else _collective(name, rank_count, result, values)

    return model


def _functional_collective(name: str, ranks: int, *, grows: bool = False) -> CostModel:
    """Return the model of an operator (input, …) whose number of ranks is input `ranks`; grows: the result is as many times the input."""

    def model(call: OperatorCall) -> OperatorCost | None:
        values, rank_count = call.tensor(0), call.integer(ranks)
        if values is None or rank_count is None or rank_count < 1:
            return None
        return _collective(name, rank_count, values.shaped((rank_count, *values.shape)) if grows else values)

    return model


def _broadcast(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _c10d_functional::broadcast(input, source, group)."""
    values = call.tensor(0)
    return None if values is None else _collective("broadcast", 1, values)


COLLECTIVES: Final[Mapping[str, CostModel]] = {
    "record_param_comms": _recorded_collective,
    "c10d::_allgather_base_": _base_collective("_allgather_base"),
    "c10d::_reduce_scatter_base_": _base_collective("_reduce_scatter_base"),
    "_c10d_functional::all_gather_into_tensor": _functional_collective("all_gather", 1, grows=True),
    "_c10d_functional::reduce_scatter_tensor": _functional_collective("reduce_scatter", 2),
    "_c10d_functional::broadcast": _broadcast,
    "_c10d_functional::broadcast_": _broadcast,
    "vllm::all_gather": _functional_collective("all_gather", 2, grows=True),
    "vllm::reduce_scatter": _functional_collective("reduce_scatter", 2),
}
