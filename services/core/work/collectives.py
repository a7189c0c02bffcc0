"""Collectives: bytes that a rank has to send and receive over its links, whatever the algorithm.

doc/PERFORMANCE.md of nccl-tests, "Bus bandwidth": of an array of S bytes among n ranks, all-reduce 2 (n - 1) / n S, reduce-scatter,
all-gather and all-to-all (n - 1) / n S, broadcast, reduce, send and receive S; S is the whole array, the larger of what goes in
and what comes out. Divided by their time these bytes are that document's bus bandwidth. Additions that a rank makes are not
known: the operation is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Tensor

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
