"""Lengths of unions of intervals, and the idle gaps between them with their causes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Flags, Indexes, Integers

# ---------------------------------------------------------------- coverage
# The time that is covered by intervals of each kind: lengths of unions, in one pass over millions of intervals.

_NEVER: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals, those of each group in ascending order of start. One that ends before it starts covers nothing.

    group: number of each interval's group, from 0. kinds: bit mask of the unions that each interval belongs to.
    """

    group: Indexes
    kinds: npt.NDArray[np.uint8]
    start_ns: Integers
    duration_ns: Integers

    @property
    def is_by_start(self) -> bool:
        """Whether the intervals of all groups together are in order of start, as in a trace of one file."""
        return bool(np.all(self.start_ns[1:] >= self.start_ns[:-1]))

    def parts(self, group_count: int) -> list[Intervals]:
        """Return the intervals of each group."""
        order = np.argsort(self.group, kind="stable")
        bounds = np.searchsorted(self.group[order], np.arange(group_count + 1))
        of_groups = [order[begin:end] for begin, end in pairwise(bounds)]
        return [Intervals(self.group[rows], self.kinds[rows], self.start_ns[rows], self.duration_ns[rows]) for rows in of_groups]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of each group, one row per group.

    covered_ns: (groups, 8) lengths of the unions, a column for each bit of a kind. counts: (groups, 2) numbers of intervals
    from the first and from the second operand.
    """

    covered_ns: Integers
    span_ns: Integers  # from the first start to the last end
    counts: Integers


def coverage(one: Intervals, other: Intervals, group_count: int) -> Coverage:
    """Return the coverage of both operands together. Every group must have at least one interval."""
    found = np.zeros((group_count, 8), dtype=np.int64)
    reach = np.full((group_count, 8), _NEVER, dtype=np.int64)
    first, last = np.full(group_count, -_NEVER, dtype=np.int64), np.full(group_count, _NEVER, dtype=np.int64)
    counts = np.zeros((group_count, 2), dtype=np.int64)
    is_whole = one.is_by_start and other.is_by_start
    operands = [(one, other)] if is_whole else zip(one.parts(group_count), other.parts(group_count), strict=True)
    for left, right in operands:
        _cover_kinds(
            *(left.group, left.kinds, left.start_ns, left.duration_ns),
            *(right.group, right.kinds, right.start_ns, right.duration_ns),
            *(found, reach, first, last, counts),
        )
    return Coverage(found, last - first, counts)


@jit
def _cover_kinds(
    group: Indexes,
    kinds: npt.NDArray[np.uint8],
    start_ns: Integers,
    duration_ns: Integers,
    other_group: Indexes,
    other_kinds: npt.NDArray[np.uint8],
    other_start_ns: Integers,
    other_duration_ns: Integers,
    found: Integers,
    reach: Integers,
    first: Integers,
    last: Integers,
    counts: Integers,
) -> None:
    """Merge both operands by start. reach: the furthest end so far; an interval adds what is past it."""
    row = other = 0
    while row < start_ns.size or other < other_start_ns.size:
        if other == other_start_ns.size or (row < start_ns.size and start_ns[row] <= other_start_ns[other]):
            index, bits, start, end = group[row], kinds[row], start_ns[row], start_ns[row] + duration_ns[row]
            row += 1
            counts[index, 0] += 1
        else:
            index, bits, start = other_group[other], other_kinds[other], other_start_ns[other]
            end = start + other_duration_ns[other]
            other += 1
            counts[index, 1] += 1
        first[index], last[index] = min(first[index], start), max(last[index], start, end)
        for bit in range(8):
            if bits >> bit & 1 and end > reach[index, bit]:
                found[index, bit] += max(end - max(start, reach[index, bit]), 0)
                reach[index, bit] = end


# ---------------------------------------------------------------- idle gaps
# When devices ran no kernel, and what the host did meanwhile: one pass over the kernels, one over the calls and memory operations.

HOST_BUSY: Final = 0
SYNC: Final = 1
API_CALL: Final = 2
LAUNCH_LATENCY: Final = 3
MEMORY: Final = 4
UNKNOWN: Final = 5
REASONS: Final = ("host_busy", "sync", "api_call", "launch_latency", "memory", "unknown")
"""The names of the reasons, indexed by the numbers above."""


class DeviceOperations(NamedTuple):
    """Kernels, or copies and fills, those of each device in order of start; one that ends before it starts takes no time.

    device: codes from 0.
    """

    device: Indexes
    start_ns: Integers
    duration_ns: Integers


class ApiCalls(NamedTuple):
    """Calls of the runtime or the driver, those of each thread in order of start. thread: codes from 0."""

    thread: Indexes
    start_ns: Integers
    duration_ns: Integers
    is_sync: Flags


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """Gaps without a kernel, in order of start within each device. before, after: rows of kernels, NONE where there is none."""

    device: Indexes
    start_ns: Integers
    duration_ns: Integers
    before: Indexes
    after: Indexes


@dataclass(frozen=True, slots=True)
class GapCauses:
    """The cause of each gap. reason: index in REASONS. call: row of the call to blame, NONE where there is none.

    host_ns: the host's part of the gap; sync_ns, api_ns: time of it in calls that wait and in other calls.
    """

    reason: npt.NDArray[np.int8]
    call: Indexes
    host_ns: Integers
    sync_ns: Integers
    api_ns: Integers


def find_idle_gaps(kernels: DeviceOperations, memory: DeviceOperations, device_count: int) -> IdleGaps:
    """Return the gaps in which no kernel ran, between the first start and the last end of a device's kernels and memory operations."""
    first, last = np.full(device_count, -_NEVER, dtype=np.int64), np.full(device_count, _NEVER, dtype=np.int64)
    for work in (kernels, memory):
        _extend(work.device, work.start_ns, work.duration_ns, first, last)
    room = kernels.start_ns.size + device_count
    device, before, after = (np.empty(room, dtype=np.int32) for _ in range(3))
    start_ns, end_ns = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    reached_by = np.full(device_count, NULL_INDEX, dtype=np.int32)
    count = _find(kernels.device, kernels.start_ns, kernels.duration_ns, first, reached_by, last, device, start_ns, end_ns, before, after)
    return IdleGaps(device[:count], start_ns[:count], end_ns[:count] - start_ns[:count], before[:count], after[:count])


@jit
def _extend(device: Indexes, start_ns: Integers, duration_ns: Integers, first: Integers, last: Integers) -> None:
    for row in range(start_ns.size):
        index, start = device[row], start_ns[row]
        first[index] = min(first[index], start)
        last[index] = max(last[index], start + max(duration_ns[row], 0))


@jit
def _find(
    kernel_device: Indexes,
    kernel_start: Integers,
    kernel_duration: Integers,
    reach: Integers,
    reached_by: Indexes,
    last: Integers,
    device: Indexes,
    start_ns: Integers,
    end_ns: Integers,
    before: Indexes,
    after: Indexes,
) -> int:
    """Write the gaps and return their number.

    reach: the furthest end of a device's kernels so far, initially the device's first start; reached_by: the first kernel that
    reached that end.
    """
    count = 0
    for row in range(kernel_start.size):
        index, start = kernel_device[row], kernel_start[row]
        if start > reach[index]:
            device[count], start_ns[count], end_ns[count] = index, reach[index], start
            before[count], after[count] = reached_by[index], row
            count += 1
        end = start + max(kernel_duration[row], 0)
        if end > reach[index] or reached_by[index] == NULL_INDEX:
            reach[index], reached_by[index] = end, row
    for index in range(reach.size):
        if last[index] > reach[index]:
            device[count], start_ns[count], end_ns[count] = index, reach[index], last[index]
            before[count], after[count] = reached_by[index], NULL_INDEX
            count += 1
    return count


def measure_overlap(gaps: IdleGaps, work: DeviceOperations, device_count: int) -> Integers:
    """Return the nanoseconds of each gap that the given operations of its device cover."""
    order = np.argsort(work.device, kind="stable")
    bounds = np.searchsorted(work.device[order], np.arange(device_count + 1))
    found = np.zeros(gaps.start_ns.size, dtype=np.int64)
    start_ns, end_ns = _without_overlaps(work.device[order], work.start_ns[order], work.duration_ns[order])
    _cover_gaps(gaps.device, gaps.start_ns, gaps.duration_ns, bounds[:-1].copy(), bounds, start_ns, end_ns, found)
    return found


def _without_overlaps(group: Indexes, start_ns: Integers, duration_ns: Integers) -> tuple[Integers, Integers]:
    """Return the part of each interval that the earlier ones of its group do not cover, as starts and ends. Rows are sorted by group."""
    starts, ends = np.empty(start_ns.size, dtype=np.int64), np.empty(start_ns.size, dtype=np.int64)
    _remove_overlaps(group, start_ns, duration_ns, starts, ends)
    return starts, ends


@jit
def _remove_overlaps(group: Indexes, start_ns: Integers, duration_ns: Integers, starts: Integers, ends: Integers) -> None:
    reach = _NEVER
    for row in range(start_ns.size):
        if row > 0 and group[row] != group[row - 1]:
            reach = _NEVER
        starts[row] = max(start_ns[row], reach)
        ends[row] = reach = max(start_ns[row] + max(duration_ns[row], 0), reach)


@jit
def _cover_gaps(
    device: Indexes,
    start_ns: Integers,
    duration_ns: Integers,
    positions: Integers,
    bounds: Integers,
    work_start: Integers,
    work_end: Integers,
    found: Integers,
) -> None:
    """Sum up what covers each gap. positions: the next operation of each device, initially its first."""
    for row in range(start_ns.size):
        start, end, bound = start_ns[row], start_ns[row] + duration_ns[row], bounds[device[row] + 1]
        index = positions[device[row]]
        while index < bound and work_end[index] <= start:
            index += 1
        positions[device[row]] = index  # an operation that outlasts the gap may cover part of the next one as well
        while index < bound and work_start[index] < end:
            found[row] += min(work_end[index], end) - max(work_start[index], start)
            index += 1


def explain_gaps(gaps: IdleGaps, memory_ns: Integers, kernel_call: Indexes, calls: ApiCalls) -> GapCauses:
    """Return the cause of each gap.

    The host's part of a gap is the time until the call began that launched the next kernel; the rest is launch latency. The
    first of these rules that holds gives the reason:
    1. memory: a copy or fill ran for at least half of the gap.
    2. unknown: no kernel comes after, or no call that launched it was recorded.
    3. launch_latency: the host's part is no longer than the rest, as when the call began before the gap did.
    4. sync, api_call, host_busy: what the thread of that call did for most of the host's part: it was in a call that waits,
       in another call, or in none. Of equal times, the reason named first.

    Args:
        gaps: the gaps.
        memory_ns: the part of each gap that memory operations cover, see covered_within.
        kernel_call: row of the call that launched each kernel, NONE where it is not known.
        calls: the calls of the runtime and the driver.
    """
    count = gaps.start_ns.size
    reason, call = np.full(count, UNKNOWN, dtype=np.int8), np.full(count, NULL_INDEX, dtype=np.int32)
    host_ns, sync_ns, api_ns = (np.zeros(count, dtype=np.int64) for _ in range(3))
    order = np.argsort(calls.thread, kind="stable")
    bounds = np.searchsorted(calls.thread[order], np.arange(int(calls.thread.max(initial=NULL_INDEX)) + 2))
    _starts, reach = _without_overlaps(calls.thread[order], calls.start_ns[order], calls.duration_ns[order])
    _explain(
        gaps.start_ns,
        gaps.duration_ns,
        gaps.after,
        memory_ns,
        kernel_call,
        calls.thread,
        calls.start_ns,
        calls.duration_ns,
        calls.is_sync,
        order,
        bounds,
        reach,
        reason,
        call,
        host_ns,
        sync_ns,
        api_ns,
    )
    return GapCauses(reason, call, host_ns, sync_ns, api_ns)


@jit
def _explain(
    start_ns: Integers,
    duration_ns: Integers,
    after: Indexes,
    memory_ns: Integers,
    kernel_call: Indexes,
    thread: Indexes,
    call_start: Integers,
    call_duration: Integers,
    is_sync: Flags,
    order: Integers,
    bounds: Integers,
    reach: Integers,
    reason: npt.NDArray[np.int8],
    call: Indexes,
    host_ns: Integers,
    sync_ns: Integers,
    api_ns: Integers,
) -> None:
    """Write the cause of each gap.

    order: calls sorted by thread, then by start; bounds: of each thread in it; reach: the furthest end of the thread's calls so far.
    """
    for row in range(start_ns.size):
        start, duration = start_ns[row], duration_ns[row]
        launch = kernel_call[after[row]] if after[row] != NULL_INDEX else NULL_INDEX
        longest_sync, longest_api = NULL_INDEX, NULL_INDEX
        if launch != NULL_INDEX:
            limit = min(max(call_start[launch], start), start + duration)
            host_ns[row] = limit - start
            low, high = bounds[thread[launch]], bounds[thread[launch] + 1]
            stop = high
            while low < high:  # binary search: the first call at which the thread's calls reach into the gap
                middle = (low + high) // 2
                if reach[middle] <= start:
                    low = middle + 1
                else:
                    high = middle
            in_calls, in_sync = start, start  # the furthest end of all calls so far, and of those that wait
            called_ns, sync_longest_ns, api_longest_ns = 0, 0, 0
            while low < stop and call_start[order[low]] < limit:
                one = order[low]
                end = min(call_start[one] + call_duration[one], limit)
                length = end - max(call_start[one], start)
                if end > in_calls:
                    called_ns += end - max(call_start[one], in_calls)
                    in_calls = end
                if is_sync[one]:
                    if end > in_sync:
                        sync_ns[row] += end - max(call_start[one], in_sync)
                        in_sync = end
                    if length > sync_longest_ns:
                        sync_longest_ns, longest_sync = length, one
                elif length > api_longest_ns:
                    api_longest_ns, longest_api = length, one
                low += 1
            api_ns[row] = called_ns - sync_ns[row]
        if 2 * memory_ns[row] >= duration:
            reason[row] = MEMORY
            call[row] = launch
        elif launch == NULL_INDEX:
            reason[row] = UNKNOWN
        elif 2 * host_ns[row] <= duration:
            reason[row] = LAUNCH_LATENCY
            call[row] = launch
        elif sync_ns[row] >= max(api_ns[row], host_ns[row] - sync_ns[row] - api_ns[row]):
            reason[row] = SYNC
            call[row] = longest_sync
        elif api_ns[row] >= host_ns[row] - sync_ns[row] - api_ns[row]:
            reason[row] = API_CALL
            call[row] = longest_api
        else:
            reason[row] = HOST_BUSY
            call[row] = launch
