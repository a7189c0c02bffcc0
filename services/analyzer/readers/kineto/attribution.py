"""Where the kernels of a Kineto trace belong: the module or optimizer that launched them, or the module whose gradient they compute.

In a trace of a program whose work the CPU did itself, operators stand where kernels would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import NONE, Indexes, Integers, coded, nested
from kernalyse.services.analyzer.readers.kineto.clock import Program
from kernalyse.services.analyzer.readers.kineto.events import EventKind, Field
from kernalyse.services.core.costs.operator import Weight
from kernalyse.services.core.costs.registry import work_of_call

NO_SOURCE: Final = 0
MODULE: Final = 1
FORWARD: Final = 2
RANGE: Final = 3
SOURCES: Final = (None, "module", "forward", "range")

HOST_INDEX: Final = 0
"""device_index of HOST_DEVICE."""

OF_DEVICES: Final = (EventKind.KERNEL, EventKind.CALL, EventKind.COPY, EventKind.SET)
OTHER_RUNTIMES: Final = ("_runtime", "_driver")
"""Endings of categories that no table holds, of devices that kernels are not recorded of."""

DISPATCHED: Final = re.compile(r"(?!autograd::engine::)\w+::")
"""Names of operators as PyTorch dispatches them: "aten::addmm". Nodes of the gradient's graph, which call them, have none of that."""

CALL_FIELDS: Final = (Field.NAME, Field.INPUT_SHAPES, Field.INPUT_DTYPES, Field.INPUT_VALUES, Field.FLOP)
NEVER: Final = -1
"""Weight of what is no operator that could do work."""

NO_MOMENTS: Final = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class HostRanges:
    """Ranges in the order of their table.

    thread: its code; kind: EventKind; is_optimizer: PyTorch's own ranges around the calls of an optimizer. sequence_number,
    forward_thread: NULL where not recorded.
    """

    thread: Indexes
    start_ns: Integers
    end_ns: Integers
    kind: Integers
    is_optimizer: NDArray[np.bool_]
    sequence_number: Integers
    forward_thread: Integers

    @cached_property
    def is_module(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.kind == int(EventKind.MODULE)
        return found

    @cached_property
    def is_operator(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.kind == int(EventKind.OPERATOR)
        return found

    @property
    def is_backward(self) -> NDArray[np.bool_]:
        """Operators that compute a gradient: they name the thread that ran the forward one, which has itself the thread 0."""
        found: NDArray[np.bool_] = (self.sequence_number >= 0) & (self.forward_thread > 0)
        return found

    @property
    def is_forward(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self.sequence_number >= 0) & (self.forward_thread == 0)
        return found


@dataclass(frozen=True, slots=True)
class Links:
    """Flow events from forward to backward operators, both ends in one list. key: same in both ends."""

    key: Integers
    is_start: NDArray[np.bool_]
    thread: Indexes
    time_ns: Integers


@dataclass(frozen=True, slots=True)
class Placing:
    """parent, depth, is_backward (1, 0, NONE: not known): of ranges. range_index, source (of SOURCES), operator_index: of launches."""

    parent: Indexes
    depth: Indexes
    is_backward: NDArray[np.int8]
    range_index: Indexes
    source: NDArray[np.int8]
    operator_index: Indexes


def placed(ranges: HostRanges, links: Links, launch_thread: Indexes, launch_ns: Integers) -> Placing:
    """Finds for each launch the innermost module or optimizer, else the module of the forward operator, else the innermost range.

    Args:
        launch_thread: code, NONE where no call was recorded. launch_ns: any order.
    """
    everything = np.ones(ranges.start_ns.size, dtype=np.bool_)
    is_called = np.flatnonzero(launch_thread != NONE)
    moments = is_called[np.argsort(launch_ns[is_called], kind="stable")]
    around, innermost = _nested(ranges, everything, launch_thread[moments], launch_ns[moments])
    _, owner = _nested(ranges, ranges.is_module | ranges.is_optimizer, launch_thread[moments], launch_ns[moments])
    _, operator = _nested(ranges, ranges.is_operator, launch_thread[moments], launch_ns[moments])
    forward = _forward_modules(ranges, links, around)
    backward_module = np.where(innermost >= 0, forward[innermost], NONE) if forward.size > 0 else innermost
    range_index = np.full(launch_ns.size, NONE, dtype=np.int32)
    source = np.zeros(launch_ns.size, dtype=np.int8)
    operator_index = np.full(launch_ns.size, NONE, dtype=np.int32)
    operator_index[moments] = operator
    range_index[moments] = np.select([owner >= 0, backward_module >= 0], [owner, backward_module], innermost)
    is_of_module = (owner >= 0) & np.append(ranges.is_module, False)[owner]
    is_of_gradient = (owner == NONE) & (backward_module >= 0)
    source[moments] = np.select([is_of_module, is_of_gradient, range_index[moments] >= 0], [MODULE, FORWARD, RANGE], NO_SOURCE)
    parent, depth = around
    backward = np.where(ranges.is_backward, 1, NONE)
    _inherit(backward, parent)
    is_backward = np.where((backward == NONE) & ranges.is_forward, 0, backward).astype(np.int8)
    return Placing(parent, depth, is_backward, range_index, source, operator_index)


def _nested(ranges: HostRanges, chosen: NDArray[np.bool_], thread: Indexes, moment_ns: Integers) -> tuple[tuple[Indexes, Indexes], Indexes]:
    found = nested(ranges.thread, ranges.start_ns, ranges.end_ns, chosen, thread, moment_ns)
    return (found.parent, found.depth), found.innermost


def _forward_modules(ranges: HostRanges, links: Links, around: tuple[Indexes, Indexes]) -> Indexes:
    """Of each range the module of the forward operator whose gradient it computes or helps to compute; NONE for others."""
    forward = np.full(ranges.start_ns.size, NONE, dtype=np.int64)
    _by_sequence_number(ranges, forward)
    _by_links(ranges, links, forward)
    _inherit(forward, around[0])
    # The module of an operator is the innermost one at its start.
    linked = np.flatnonzero(forward != NONE)
    targets = np.unique(forward[linked])
    _, module = _nested(ranges, ranges.is_module, ranges.thread[targets], ranges.start_ns[targets])
    module_of = np.full(ranges.start_ns.size + 1, NONE, dtype=np.int32)
    module_of[targets] = module
    return module_of[forward]


def _by_sequence_number(ranges: HostRanges, forward: Integers) -> None:
    """The last forward operator of the number before the backward one: earlier ones made no node and left it to the next."""
    origins, ends = np.flatnonzero(ranges.is_forward), np.flatnonzero(ranges.is_backward)
    if origins.size == 0 or ends.size == 0:
        return
    order = origins[np.lexsort((origins, ranges.sequence_number[origins]))]
    _last_before(ranges.sequence_number, order, ends, forward)


@jit
def _last_before(number: Integers, origins: Integers, ends: Integers, forward: Integers) -> None:
    """origins: ordered by number and place."""
    for end in ends:
        low, high = 0, origins.size
        while low < high:
            middle = (low + high) // 2
            row = origins[middle]
            if number[row] > number[end] or (number[row] == number[end] and row > end):
                high = middle
            else:
                low = middle + 1
        if low > 0:
            row = origins[low - 1]
            if number[row] == number[end]:
                forward[end] = row


def _by_links(ranges: HostRanges, links: Links, forward: Integers) -> None:
    """A link starts at the start of the forward operator and ends at that of the backward one; it is surer than a number."""
    order = np.argsort(links.time_ns, kind="stable")
    is_operator = ~ranges.is_module
    _, innermost = _nested(ranges, is_operator, links.thread[order], links.time_ns[order])
    found = np.full(order.size, NONE, dtype=np.int64)
    found[order] = innermost
    starts = {key: row for key, row in zip(links.key[links.is_start].tolist(), found[links.is_start].tolist(), strict=True) if row >= 0}
    for key, row in zip(links.key[~links.is_start].tolist(), found[~links.is_start].tolist(), strict=True):
        if row >= 0 and key in starts:
            forward[row] = starts[key]


@jit
def _inherit(values: Integers, parent: Indexes) -> None:
    """Gives each range without a value that of the range around it: parents come before what they hold."""
    for row in range(values.size):
        if values[row] == NONE and parent[row] >= 0:
            values[row] = values[parent[row]]


# ------------------------------------------------------------ programs of the CPU alone


def is_of_host_alone(trace: Program) -> bool:
    """Whether there are operators, nothing of a device, and no device: where one is, operators may only start what it does."""
    events = trace.events
    has_other = any(category is not None and category.endswith(OTHER_RUNTIMES) for category, _ in events.dropped_counts)
    has_device = bool(events.document.get("deviceProperties")) or has_other or trace.rows_of(*OF_DEVICES).size > 0
    return not has_device and trace.rows_of(EventKind.OPERATOR).size > 0


def working_operators(ranges: Program) -> Integers:
    """Rows of the operators that did the work, none of them within another.

    They call no other operator, or only such of lighter work: an addmm that copies what it adds to is still that addmm.

    Args:
        ranges: in the order of their table.
    """
    column = ranges.events.column
    is_operator = column(Field.KIND) == EventKind.OPERATOR
    (thread,) = coded(ranges.thread_code)
    end_ns = ranges.start_ns + ranges.duration_ns
    parent = nested(thread.codes, ranges.start_ns, end_ns, is_operator, *NO_MOMENTS).parent
    weight = np.where(is_operator, _weights(ranges), np.int8(NEVER))
    is_working = np.zeros(parent.size, dtype=np.bool_)
    _choose(parent, weight, np.zeros(parent.size, dtype=np.int8), np.zeros(parent.size, dtype=np.bool_), is_working)
    return np.flatnonzero(is_working)


def _weights(ranges: Program) -> NDArray[np.int8]:
    """Of each range as an operator; 0 where no model tells its work. A model is asked once for all calls that are alike."""
    texts = ranges.events.texts
    asked = pl.DataFrame({field.name: ranges.events.column(field) for field in CALL_FIELDS})
    calls = asked.unique(maintain_order=True)
    weights = [_weight(*(None if token < 0 else texts[token] for token in call)) for call in calls.iter_rows()]
    known = calls.with_columns(weight=pl.Series(weights, dtype=pl.Int8))
    found: NDArray[np.int8] = asked.join(known, on=asked.columns, how="left", maintain_order="left")["weight"].to_numpy()
    return found


def _weight(name: str | None, shapes: str | None, dtypes: str | None, values: str | None, flop: str | None) -> int:
    if name is None or not DISPATCHED.match(name):
        return NEVER
    work = work_of_call(name, shapes, dtypes, values)
    if work is None:
        return 0 if flop is None else Weight.PRODUCT
    return work.weight


@jit
def _choose(
    parent: Indexes,
    weight: NDArray[np.int8],
    heaviest_inside: NDArray[np.int8],
    is_within: NDArray[np.bool_],
    is_working: NDArray[np.bool_],
) -> None:
    """From the outside in: parents come before what they hold."""
    for place in range(parent.size):
        row = parent.size - 1 - place
        above = parent[row]
        if above >= 0:
            heaviest_inside[above] = max(heaviest_inside[above], heaviest_inside[row], weight[row])
    for row in range(parent.size):
        above = parent[row]
        is_within[row] = above >= 0 and (is_within[above] or is_working[above])
        if weight[row] >= 0 and not is_within[row]:
            is_working[row] = heaviest_inside[row] == 0 or weight[row] > heaviest_inside[row]
