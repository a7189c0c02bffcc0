"""The attribution of kernels to the module or optimizer that launched them, or to the module whose gradient they compute.

In a trace of a program that ran on the CPU alone, operators take the place of kernels.
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
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Indexes, Integers, factorize, find_nesting
from kernalyse.services.analyzer.readers.kineto.clock import KinetoTrace
from kernalyse.services.analyzer.readers.kineto.events import EventKind, Field
from kernalyse.services.core.costs.operator import CostClass
from kernalyse.services.core.costs.registry import recorded_call_cost

NO_SOURCE: Final = 0
MODULE: Final = 1
FORWARD: Final = 2
RANGE: Final = 3
GRAPH: Final = 4
SOURCES: Final = (None, "module", "forward", "range", "graph")

HOST_INDEX: Final = 0
"""device_index of HOST_DEVICE."""

OF_DEVICES: Final = (EventKind.KERNEL, EventKind.CALL, EventKind.COPY, EventKind.SET)
OTHER_RUNTIMES: Final = ("_runtime", "_driver")
"""Endings of the categories of runtime calls on other kinds of devices, which no table holds."""

DISPATCHED: Final = re.compile(r"(?!autograd::engine::)\w+::")
"""Names of dispatched operators, such as "aten::addmm". The autograd nodes that call them have no such prefix."""

CALL_FIELDS: Final = (Field.NAME, Field.INPUT_SHAPES, Field.INPUT_DTYPES, Field.INPUT_VALUES, Field.FLOP)
NEVER: Final = -1
"""Weight of ranges that are no dispatched operators."""

NO_MOMENTS: Final = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class HostRanges:
    """The ranges of host threads, in the order of their table.

    thread: codes from 0. kind: values of EventKind. is_optimizer: whether the range is PyTorch's own around a call of an
    optimizer. sequence_number, forward_thread: NULL where not recorded.
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
        """Whether each range is a call of a module."""
        found: NDArray[np.bool_] = self.kind == int(EventKind.MODULE)
        return found

    @cached_property
    def is_operator(self) -> NDArray[np.bool_]:
        """Whether each range is an operator."""
        found: NDArray[np.bool_] = self.kind == int(EventKind.OPERATOR)
        return found

    @property
    def is_backward(self) -> NDArray[np.bool_]:
        """Whether each range is an operator that computes a gradient. Those name the forward operator's thread; forward ones have 0."""
        found: NDArray[np.bool_] = (self.sequence_number >= 0) & (self.forward_thread > 0)
        return found

    @property
    def is_forward(self) -> NDArray[np.bool_]:
        """Whether each range is an operator of the forward pass that has a gradient."""
        found: NDArray[np.bool_] = (self.sequence_number >= 0) & (self.forward_thread == 0)
        return found


@dataclass(frozen=True, slots=True)
class ForwardLinks:
    """Flow events from forward to backward operators, one row per end. key: equal for both ends of a link."""

    key: Integers
    is_start: NDArray[np.bool_]
    thread: Indexes
    time_ns: Integers


@dataclass(frozen=True, slots=True)
class Attribution:
    """The nesting of ranges and the attribution of launches.

    parent, depth, is_backward (1, 0, NONE for unknown): of each range. range_index, source (index in SOURCES), operator_index: of
    each launch.
    """

    parent: Indexes
    depth: Indexes
    is_backward: NDArray[np.int8]
    range_index: Indexes
    source: NDArray[np.int8]
    operator_index: Indexes


def attribute_launches(ranges: HostRanges, links: ForwardLinks, launch_thread: Indexes, launch_ns: Integers) -> Attribution:
    """Attribute each launch to the innermost module or optimizer, else to the forward operator's module, else to the innermost range.

    Args:
        ranges: the ranges of host threads.
        links: flow events from forward to backward operators.
        launch_thread: code of the thread that launched, NONE where no call was recorded.
        launch_ns: time of the launches, in any order.
    """
    everything = np.ones(ranges.start_ns.size, dtype=np.bool_)
    is_called = np.flatnonzero(launch_thread != NULL_INDEX)
    moments = is_called[np.argsort(launch_ns[is_called], kind="stable")]
    around, innermost = _nested(ranges, everything, launch_thread[moments], launch_ns[moments])
    _, owner = _nested(ranges, ranges.is_module | ranges.is_optimizer, launch_thread[moments], launch_ns[moments])
    _, operator = _nested(ranges, ranges.is_operator, launch_thread[moments], launch_ns[moments])
    forward = _forward_modules(ranges, links, around)
    backward_module = np.where(innermost >= 0, forward[innermost], NULL_INDEX) if forward.size > 0 else innermost
    range_index = np.full(launch_ns.size, NULL_INDEX, dtype=np.int32)
    source = np.zeros(launch_ns.size, dtype=np.int8)
    operator_index = np.full(launch_ns.size, NULL_INDEX, dtype=np.int32)
    operator_index[moments] = operator
    range_index[moments] = np.select([owner >= 0, backward_module >= 0], [owner, backward_module], innermost)
    is_of_module = (owner >= 0) & np.append(ranges.is_module, False)[owner]
    is_of_gradient = (owner == NULL_INDEX) & (backward_module >= 0)
    source[moments] = np.select([is_of_module, is_of_gradient, range_index[moments] >= 0], [MODULE, FORWARD, RANGE], NO_SOURCE)
    parent, depth = around
    backward = np.where(ranges.is_backward, 1, NULL_INDEX)
    _inherit(backward, parent)
    is_backward = np.where((backward == NULL_INDEX) & ranges.is_forward, 0, backward).astype(np.int8)
    return Attribution(parent, depth, is_backward, range_index, source, operator_index)


def _nested(
    ranges: HostRanges, selected: NDArray[np.bool_], thread: Indexes, moment_ns: Integers
) -> tuple[tuple[Indexes, Indexes], Indexes]:
    """Return parent and depth of the selected ranges, and the innermost one around each moment."""
    found = find_nesting(ranges.thread, ranges.start_ns, ranges.end_ns, selected, thread, moment_ns)
    return (found.parent, found.depth), found.innermost


def _forward_modules(ranges: HostRanges, links: ForwardLinks, around: tuple[Indexes, Indexes]) -> Indexes:
    """Return for each range the module of the forward operator whose gradient it helps to compute; NONE for others."""
    forward = np.full(ranges.start_ns.size, NULL_INDEX, dtype=np.int64)
    _by_sequence_number(ranges, forward)
    _by_links(ranges, links, forward)
    _inherit(forward, around[0])
    # The module of an operator is the innermost one at its start.
    linked = np.flatnonzero(forward != NULL_INDEX)
    targets = np.unique(forward[linked])
    _, module = _nested(ranges, ranges.is_module, ranges.thread[targets], ranges.start_ns[targets])
    module_of = np.full(ranges.start_ns.size + 1, NULL_INDEX, dtype=np.int32)
    module_of[targets] = module
    return module_of[forward]


def _by_sequence_number(ranges: HostRanges, forward: Integers) -> None:
    """Pair each backward operator with the last forward operator before it that has its sequence number.

    Earlier operators with the same number created no autograd node.
    """
    origins, ends = np.flatnonzero(ranges.is_forward), np.flatnonzero(ranges.is_backward)
    if origins.size == 0 or ends.size == 0:
        return
    order = origins[np.lexsort((origins, ranges.sequence_number[origins]))]
    _last_before(ranges.sequence_number, order, ends, forward)


@jit
def _last_before(number: Integers, origins: Integers, ends: Integers, forward: Integers) -> None:
    """Find by binary search the last origin before each end. origins: sorted by number, then by row."""
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


def _by_links(ranges: HostRanges, links: ForwardLinks, forward: Integers) -> None:
    """Pair operators by links, from the start of the forward one to the start of the backward one; they override sequence numbers."""
    order = np.argsort(links.time_ns, kind="stable")
    is_operator = ~ranges.is_module
    _, innermost = _nested(ranges, is_operator, links.thread[order], links.time_ns[order])
    found = np.full(order.size, NULL_INDEX, dtype=np.int64)
    found[order] = innermost
    starts = {key: row for key, row in zip(links.key[links.is_start].tolist(), found[links.is_start].tolist(), strict=True) if row >= 0}
    for key, row in zip(links.key[~links.is_start].tolist(), found[~links.is_start].tolist(), strict=True):
        if row >= 0 and key in starts:
            forward[row] = starts[key]


@jit
def _inherit(values: Integers, parent: Indexes) -> None:
    """Give each range without a value the one of its parent. Parents precede their children."""
    for row in range(values.size):
        if values[row] == NULL_INDEX and parent[row] >= 0:
            values[row] = values[parent[row]]


# ------------------------------------------------------------ traces of the CPU alone


def ran_on_host_only(trace: KinetoTrace) -> bool:
    """Return whether the trace has operators, but no device and no device events: otherwise operators may only launch device work."""
    events = trace.events
    has_other = any(category is not None and category.endswith(OTHER_RUNTIMES) for category, _ in events.dropped_counts)
    has_device = bool(events.document.get("deviceProperties")) or has_other or trace.find_rows(*OF_DEVICES).size > 0
    return not has_device and trace.find_rows(EventKind.OPERATOR).size > 0


def select_working_operators(ranges: KinetoTrace) -> Integers:
    """Return the rows of the operators that count as kernels, none of them within another.

    They call no other operator, or only lighter ones: an addmm that copies its bias still counts as that addmm.

    Args:
        ranges: the ranges of the trace, in the order of their table.
    """
    column = ranges.events.column
    is_operator = column(Field.KIND) == EventKind.OPERATOR
    (thread,) = factorize(ranges.thread_code)
    end_ns = ranges.start_ns + ranges.duration_ns
    parent = find_nesting(thread.codes, ranges.start_ns, end_ns, is_operator, *NO_MOMENTS).parent
    weight = np.where(is_operator, _weights(ranges), np.int8(NEVER))
    is_working = np.zeros(parent.size, dtype=np.bool_)
    _select(parent, weight, np.zeros(parent.size, dtype=np.int8), np.zeros(parent.size, dtype=np.bool_), is_working)
    return np.flatnonzero(is_working)


def _weights(ranges: KinetoTrace) -> NDArray[np.int8]:
    """Return the weight of each range as an operator, 0 without a cost model. Equal calls are computed once."""
    texts = ranges.events.texts
    all_calls = pl.DataFrame({field.name: ranges.events.column(field) for field in CALL_FIELDS})
    calls = all_calls.unique(maintain_order=True)
    weights = [_weight(*(None if token < 0 else texts[token] for token in call)) for call in calls.iter_rows()]
    known = calls.with_columns(weight=pl.Series(weights, dtype=pl.Int8))
    found: NDArray[np.int8] = all_calls.join(known, on=all_calls.columns, how="left", maintain_order="left")["weight"].to_numpy()
    return found


def _weight(name: str | None, shapes: str | None, dtypes: str | None, values: str | None, flop: str | None) -> int:
    if name is None or not DISPATCHED.match(name):
        return NEVER
    cost = recorded_call_cost(name, shapes, dtypes, values)
    if cost is None:
        return 0 if flop is None else CostClass.PRODUCT
    return cost.weight


@jit
def _select(
    parent: Indexes,
    weight: NDArray[np.int8],
    heaviest_inside: NDArray[np.int8],
    is_within: NDArray[np.bool_],
    is_working: NDArray[np.bool_],
) -> None:
    """Select the working operators from the outside in. Parents precede their children."""
    for row in range(parent.size - 1, -1, -1):
        above = parent[row]
        if above >= 0:
            heaviest_inside[above] = max(heaviest_inside[above], heaviest_inside[row], weight[row])
    for row in range(parent.size):
        above = parent[row]
        is_within[row] = above >= 0 and (is_within[above] or is_working[above])
        if weight[row] >= 0 and not is_within[row]:
            is_working[row] = heaviest_inside[row] == 0 or weight[row] > heaviest_inside[row]
