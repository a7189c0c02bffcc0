"""The calls that captured the kernels of CUDA graphs.

A graph is launched by one call, whose range says only where the graph ran. Kineto records no nodes of graphs, but where a graph was
captured while it recorded, the captured calls are in the trace, without an operation on the device. A launch of that graph runs one
operation for each of them, on one stream in the same order: the first operation belongs to the first call, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Indexes, Integers

CAPTURE_BEGINS: Final = "StreamBeginCapture"
CAPTURE_ENDS: Final = "StreamEndCapture"
GRAPH_LAUNCH: Final = "GraphLaunch"
NOTHING, KERNEL, SET, COPY = range(4)


def operation_kind(call_name: str) -> int:
    """Return what a call of the runtime or the driver has the device do: KERNEL, SET, COPY, or NOTHING that a trace has."""
    if "Memset" in call_name:
        return SET
    if "Memcpy" in call_name:
        return COPY
    return KERNEL if "LaunchKernel" in call_name or "LaunchCooperative" in call_name else NOTHING


@dataclass(frozen=True, slots=True)
class GraphCalls:
    """The calls of a trace in order of start.

    names: a number for each. name_of: the name that a number stands for. thread: a number for each.
    """

    names: Indexes
    name_of: Callable[[int], str]
    thread: Integers

    def where(self, part: str) -> Indexes:
        """Return the rows of calls whose name has this part."""
        numbers = [number for number in np.unique(self.names).tolist() if part in self.name_of(number)]
        return np.flatnonzero(np.isin(self.names, numbers)).astype(np.int32)

    @property
    def kinds(self) -> Indexes:
        """What each call has the device do."""
        numbers, of_calls = np.unique(self.names, return_inverse=True)
        kinds: Indexes = np.array([operation_kind(self.name_of(number)) for number in numbers.tolist()], dtype=np.int32)[of_calls]
        return kinds


@dataclass(frozen=True, slots=True)
class DeviceOperations:
    """Kernels, sets and copies in order of start. call: that launched each, NONE where it is not known."""

    call: Indexes
    kind: Indexes
    stream: Integers


def captured_calls(calls: GraphCalls, operations: DeviceOperations) -> Indexes:
    """Return for each operation of a graph the call that captured it; NONE for other operations, and where the capture is not known.

    Of several captures that launched the same kinds of operations in the same order, the last one before the launch counts: captures of one
    model differ in their sizes, not in their layers.
    """
    found = np.full(operations.call.size, NULL_INDEX, dtype=np.int32)
    launches = np.intersect1d(calls.where(GRAPH_LAUNCH), operations.call)
    if launches.size == 0:
        return found
    captures = list(_captures(calls, operations))
    order = np.argsort(operations.call, kind="stable")
    sorted_calls = operations.call[order]
    for launch in launches.tolist():
        rows = order[np.searchsorted(sorted_calls, launch) : np.searchsorted(sorted_calls, launch, "right")]
        if np.unique(operations.stream[rows]).size > 1:
            continue  # branches that run side by side start in any order
        kinds = operations.kind[rows].tobytes()
        for capture in reversed(captures):
            if capture.end < launch and capture.kinds == kinds:
                found[rows] = capture.rows
                break
    return found


@dataclass(frozen=True, slots=True)
class _Capture:
    """The calls of one capture. end: the call that ended it. kinds: what each has the device do, as bytes."""

    rows: Indexes
    end: int
    kinds: bytes


def _captures(calls: GraphCalls, operations: DeviceOperations) -> Iterator[_Capture]:
    """Yield the captures by their ends. The calls of other threads belong to it too: backward passes have a thread of their own."""
    begins, ends = calls.where(CAPTURE_BEGINS), calls.where(CAPTURE_ENDS)
    kinds = calls.kinds
    has_operation = np.zeros(kinds.size, dtype=np.bool_)
    has_operation[operations.call[operations.call != NULL_INDEX]] = True
    is_captured = (kinds != NOTHING) & ~has_operation
    for end in ends.tolist():
        before = begins[(begins < end) & (calls.thread[begins] == calls.thread[end])]
        if before.size:
            rows = np.flatnonzero(is_captured[before[-1] : end]).astype(np.int32) + before[-1]
            yield _Capture(rows, end, kinds[rows].tobytes())
