"""Costs of copies, gathers and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernalyse.services.core.costs.operator import Model, OperatorCall, Tensor, Weight, Work, moved_bytes

# ---------------------------------------------------------------- moves
# Operators that move elements and compute nothing, or add them where they go: copies, fills, lookups, scatters.
#
# Lookups with several indexes (index) are not among them: of the places that they name nothing is recorded, not even how many.


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


def _joined(call: OperatorCall) -> Work | None:
    """cat(tensors, dimension) and stack: every element read and written."""
    parts = call.tensors(0)
    if not parts:
        return None
    total = moved_bytes((*parts, *parts))
    return Work(Weight.MOVE, 0.0, total, parts[0].dtype)


def _put(call: OperatorCall, *, is_added: bool) -> Work | None:
    """scatter_(target, dimension, places, source) and index_copy_; scatter_add_ and index_add_.

    Source and places are read, as many elements of the target written; where they are added, these are read as well and one
    addition is made for each. In place only: others copy the target before, which is recorded on its own.
    """
    target, places = call.tensor(0), call.tensor(2)
    if target is None or places is None:
        return None
    source = call.tensor(3)
    if call.name in PUT_ROWS:
        if source is None:
            return None
        put = target.shaped(source.shape)
    else:
        put = target.shaped(places.shape)
        source = None if source is None or not source.shape else source.shaped(places.shape)
    flop = float(put.count) if is_added and "float" in (target.dtype or "") else 0.0
    return _moves(put, places, source, put if is_added else None, flop=flop)


PUT_ROWS: Final = ("aten::index_add_", "aten::index_copy_")
"""Whose places are of one dimension, and name rows of the target."""


def _index_put(call: OperatorCall) -> Work | None:
    """index_put_(target, places, values, accumulate): each value is read and put; where it is added, what is there is read before.

    Of the places nothing is recorded: a value that stands for many, as a single one does, leaves the work unknown.
    """
    target, values, is_added = call.tensor(0), call.tensor(2), call.flag(3)
    if target is None or values is None or not values.shape or is_added is None:
        return None
    put = target.shaped(values.shape)
    flop = float(put.count) if is_added and "float" in (target.dtype or "") else 0.0
    return _moves(put, values, put if is_added else None, flop=flop)


def _embedding_bag(call: OperatorCall) -> Work | None:
    """_embedding_bag(table, places, offsets, …, mode, …, weights, with last offset, …): rows summed up, bag by bag.

    After the documentation of torch.nn.EmbeddingBag: a row of the table is read for each place and added to its bag (mode 0
    and 1), scaled before where there are weights; a mean (1) takes a division for each element of the result, a maximum (2)
    nothing. The bag of each place and the size of each bag are written beside the result.
    """
    table, places, offsets, mode, scales, has_last = (
        *(call.tensor(index) for index in range(3)),
        call.integer(4),
        call.tensor(6),
        call.flag(7),
    )
    if table is None or places is None or offsets is None or len(table.shape) != 2 or mode not in (0, 1, 2) or has_last is None:
        return None
    bag_count = offsets.count - has_last
    if bag_count < 0:
        return None
    rows, result = table.shaped((places.count, table.shape[1])), table.shaped((bag_count, table.shape[1]))
    flop = rows.count * ((mode < 2) + (scales is not None)) + result.count * (mode == 1)
    return _moves(rows, places, offsets, scales, result, places, offsets, flop=float(flop))


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
    **dict.fromkeys(("aten::cat", "aten::_cat", "aten::stack"), _joined),
    **dict.fromkeys(("aten::scatter_", "aten::index_copy_"), lambda call: _put(call, is_added=False)),
    **dict.fromkeys(("aten::scatter_add_", "aten::index_add_"), lambda call: _put(call, is_added=True)),
    **dict.fromkeys(("aten::index_put_", "aten::_index_put_impl_"), _index_put),
    "aten::_embedding_bag": _embedding_bag,
    "aten::_embedding_bag_forward_only": _embedding_bag,
}


# ---------------------------------------------------------------- collectives
# Collectives: bytes that a rank has to send and receive over its links, whatever the algorithm.
#
# doc/PERFORMANCE.md of nccl-tests, "Bus bandwidth": of an array of S bytes among n ranks, all-reduce 2 (n - 1) / n S, reduce-scatter,
# all-gather and all-to-all (n - 1) / n S, broadcast, reduce, send and receive S; S is the whole array, the larger of what goes in and
# what comes out. Divided by their time these bytes are that document's bus bandwidth. Additions that a rank makes are not known: the
# operation is not recorded.

ALL_REDUCE: Final = ("allreduce", "all_reduce", "allreduce_coalesced")
SPREAD: Final = (
    *("allgather", "_allgather_base", "all_gather", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("all_to_all", "all_to_allv", "alltoall", "alltoall_base"),
)
WHOLE: Final = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "send", "recv")
NAME_PLACE: Final = 4
RANKS_PLACE: Final = 9
"""Among the inputs of record_param_comms."""

REDUCING: Final = ("reduce",)
"""Of what has this in its name the additions are not known; others compute nothing."""


def bus_share(name: str, rank_count: int) -> float | None:
    """Of the whole array, what one rank moves over its links. None: the collective is not known."""
    if name in WHOLE:
        return 1.0
    if rank_count < 1:
        return None
    return 2.0 * (rank_count - 1) / rank_count if name in ALL_REDUCE else (rank_count - 1) / rank_count if name in SPREAD else None


def _collective(name: str, rank_count: int, *arrays: Tensor) -> Work | None:
    """arrays: what goes in and what comes out."""
    share = bus_share(name, rank_count)
    array = max(arrays, key=lambda tensor: tensor.count)
    if share is None or array.bytes is None:
        return None
    flop = None if any(part in name for part in REDUCING) else 0.0
    return Work(Weight.MOVE, flop, share * array.bytes, array.dtype)


def _recorded(call: OperatorCall) -> Work | None:
    """record_param_comms(input or inputs, …, name, …, number of ranks): gathers give as many times what went in."""
    single, name, rank_count = call.tensor(0), call.text(NAME_PLACE), call.integer(RANKS_PLACE)
    values = call.tensors(0) if single is None else [single]
    if not values or rank_count is None or rank_count < 1:
        return None
    copies = rank_count if "gather" in name else 1
    return _collective(name, rank_count, values[0].shaped((copies * sum(tensor.count for tensor in values),)))


def _base(name: str) -> Model:
    """c10d::_allgather_base_ and _reduce_scatter_base_(result, input, …): the larger one is as many times the other as there are ranks."""

    def model(call: OperatorCall) -> Work | None:
        result, values = call.tensor(0), call.tensor(1)
        if result is None or values is None or not result.count or not values.count:
            return None
        rank_count, rest = divmod(max(result.count, values.count), min(result.count, values.count))
        return None if rest else _collective(name, rank_count, result, values)

    return model


def _functional(name: str, ranks: int, *, grows: bool = False) -> Model:
    """(input, …), with the number of ranks at this place. grows: the result is as many times the input."""

    def model(call: OperatorCall) -> Work | None:
        values, rank_count = call.tensor(0), call.integer(ranks)
        if values is None or rank_count is None or rank_count < 1:
            return None
        return _collective(name, rank_count, values.shaped((rank_count, *values.shape)) if grows else values)

    return model


def _broadcast(call: OperatorCall) -> Work | None:
    """_c10d_functional::broadcast(input, source, group)"""
    values = call.tensor(0)
    return None if values is None else _collective("broadcast", 1, values)


COLLECTIVES: Final[Mapping[str, Model]] = {
    "record_param_comms": _recorded,
    "c10d::_allgather_base_": _base("_allgather_base"),
    "c10d::_reduce_scatter_base_": _base("_reduce_scatter_base"),
    "_c10d_functional::all_gather_into_tensor": _functional("all_gather", 1, grows=True),
    "_c10d_functional::reduce_scatter_tensor": _functional("reduce_scatter", 2),
    "_c10d_functional::broadcast": _broadcast,
    "_c10d_functional::broadcast_": _broadcast,
    "vllm::all_gather": _functional("all_gather", 2, grows=True),
    "vllm::reduce_scatter": _functional("reduce_scatter", 2),
}
