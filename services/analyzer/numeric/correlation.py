"""What belongs together in a trace: a kernel and the call that launched it, that call and the range around it.

One pass over what is sorted already: ten million kernels take seconds. Every reader uses it, whatever the file calls things.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.tables.base import COUNT, DataType

Integers = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

NONE: Final = -1
"""Index of nothing, in arrays. In tables it is null."""

NO_ID: Final = -(2**63)
"""Correlation id of what has none."""

MAX_BUCKET_CALLS: Final = 64
"""Recorders count correlation ids up, so that as many buckets as calls hold one or two each. With more of them in one, to
look through it takes longer than to sort all calls; with fewer allowed, gaps between ids would send many traces that way."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Of ranges and of moments.

    parent: innermost range of the same thread that holds all of the range; depth: ranges around it, by parent.
    innermost: range around each moment. NONE where there is none.
    """

    parent: Indexes
    depth: Indexes
    innermost: Indexes


def nested(
    range_thread: Indexes, start_ns: Integers, end_ns: Integers, counts: Flags, moment_thread: Indexes, moment_ns: Integers
) -> Nesting:
    """Places moments within ranges of their thread, and ranges within each other.

    A range holds a moment when start <= moment < end. Of several the innermost is the one that starts last, of equal starts
    the one that ends first, of equal ends the one that comes last. Ranges that overlap without nesting are no exception.

    Args:
        range_thread, moment_thread: codes of threads, from 0.
        start_ns, end_ns: of the ranges, in order of start, of equal starts the later end first. See range_order.
        counts: False for ranges that hold nothing, as those whose end is not known.
        moment_ns: in ascending order.
    """
    thread_count = 1 + max(int(range_thread.max(initial=NONE)), int(moment_thread.max(initial=NONE)))
    parent, depth = np.full(start_ns.size, NONE, dtype=np.int32), np.zeros(start_ns.size, dtype=np.int32)
    innermost = np.empty(moment_ns.size, dtype=np.int32)
    below = np.full(start_ns.size, NONE, dtype=np.int32)
    tops = np.full(thread_count, NONE, dtype=np.int32)
    _sweep(range_thread, start_ns, end_ns, counts, moment_thread, moment_ns, parent, depth, innermost, below, tops)
    return Nesting(parent, depth, innermost)


@jit
def _sweep(
    range_thread: Indexes,
    start_ns: Integers,
    end_ns: Integers,
    counts: Flags,
    moment_thread: Indexes,
    moment_ns: Integers,
    parent: Indexes,
    depth: Indexes,
    innermost: Indexes,
    below: Indexes,
    tops: Indexes,
) -> None:
    """Each thread has a stack of ranges: tops[thread] is its last one, below[range] the one under it."""
    row = 0
    for moment in range(moment_ns.size + 1):
        # After the last moment the rest of the ranges still nest.
        while row < start_ns.size and (moment == moment_ns.size or start_ns[row] <= moment_ns[moment]):
            start, end = start_ns[row], end_ns[row]
            if counts[row] and end >= start:
                thread = range_thread[row]
                top = tops[thread]
                while top >= 0 and end_ns[top] <= start:
                    top = below[top]
                below[row] = top
                tops[thread] = row
                # What lies between a range and its parent ends before the range does: it holds no later one either.
                while top >= 0 and end_ns[top] < end:
                    top = parent[top]
                parent[row] = top
                if top >= 0:
                    depth[row] = depth[top] + 1
            row += 1
        if moment < moment_ns.size:
            thread = moment_thread[moment]
            top = tops[thread]
            while top >= 0 and end_ns[top] <= moment_ns[moment]:
                top = below[top]
            tops[thread] = top
            innermost[moment] = top


def range_order(start_ns: Integers, end_ns: Integers) -> npt.NDArray[np.int64] | None:
    """Order in which `nested` wants ranges; None when they have it."""
    if _are_ordered(start_ns, end_ns):
        return None
    order = np.argsort(start_ns, kind="stable")
    if not _are_ordered(start_ns[order], end_ns[order]):
        order = np.lexsort((-end_ns, start_ns))
    return order.astype(np.int64, copy=False)


@jit
def _are_ordered(start_ns: Integers, end_ns: Integers) -> bool:
    for row in range(1, start_ns.size):
        if start_ns[row] < start_ns[row - 1] or (start_ns[row] == start_ns[row - 1] and end_ns[row] > end_ns[row - 1]):
            return False
    return True


def start_order(start_ns: Integers) -> npt.NDArray[np.int64] | None:
    """Order by start, of equal starts as they come; None when they have it."""
    if bool(np.all(start_ns[1:] >= start_ns[:-1])):
        return None
    return np.argsort(start_ns, kind="stable").astype(np.int64, copy=False)


def causes(process: Indexes, correlation_id: Integers, call_process: Indexes, call_correlation_id: Integers) -> Indexes:
    """For each piece of device work the call of its process with its correlation id, the last one of several; NONE without.

    Args:
        process, call_process: codes of processes, from 0.
        correlation_id, call_correlation_id: NO_ID for none.
    """
    process_count = 1 + max(int(process.max(initial=NONE)), int(call_process.max(initial=NONE)))
    lowest, highest = np.full(process_count, 2**62, dtype=np.int64), np.full(process_count, -(2**62), dtype=np.int64)
    _extents(call_process, call_correlation_id, lowest, highest)
    spans = [max(high - low, 0) for low, high in zip(lowest.tolist(), highest.tolist(), strict=True)]
    most, shift = max(call_process.size, 1024), 0
    while shift < 63 and sum((span >> shift) + 1 for span in spans) > most:
        shift += 1
    first_buckets = np.cumsum([0, *((span >> shift) + 1 for span in spans)])
    ends = np.zeros(int(first_buckets[-1]), dtype=np.int32)
    calls = np.empty(call_process.size, dtype=np.int32)
    found = np.full(process.size, NONE, dtype=np.int32)
    works = process, correlation_id
    if _fill_buckets(call_process, call_correlation_id, lowest, shift, first_buckets, ends, calls):
        _look_up(*works, call_correlation_id, lowest, highest, shift, first_buckets, ends, calls, found)
    elif call_process.size > 0:
        order = np.lexsort((np.arange(call_process.size), call_correlation_id, call_process))
        _search(*works, call_process[order], call_correlation_id[order], order, found)
    return found


@jit
def _extents(process: Indexes, correlation_id: Integers, lowest: Integers, highest: Integers) -> None:
    for row in range(process.size):
        value, code = correlation_id[row], process[row]
        if value != NO_ID:
            lowest[code], highest[code] = min(lowest[code], value), max(highest[code], value)


@jit
def _bucket(correlation_id: int, lowest: int, shift: int) -> int:
    return int(np.uint64(correlation_id - lowest) >> np.uint64(shift))


@jit
def _fill_buckets(
    call_process: Indexes,
    call_correlation_id: Integers,
    lowest: Integers,
    shift: int,
    first_buckets: Integers,
    ends: Indexes,
    calls: Indexes,
) -> bool:
    """Puts calls in order of bucket, within one in their own order; False: one of them would hold too many.

    Args:
        first_buckets: of each process. ends: zeros; becomes the place in `calls` after the last of each bucket.
    """
    for call in range(call_process.size):
        code, value = call_process[call], call_correlation_id[call]
        if value != NO_ID:
            bucket = first_buckets[code] + _bucket(value, lowest[code], shift)
            ends[bucket] += 1
            if ends[bucket] > MAX_BUCKET_CALLS:
                return False
    place = 0
    for bucket in range(ends.size):
        count = ends[bucket]
        ends[bucket] = place
        place += count
    for call in range(call_process.size):
        code, value = call_process[call], call_correlation_id[call]
        if value != NO_ID:
            bucket = first_buckets[code] + _bucket(value, lowest[code], shift)
            calls[ends[bucket]] = call
            ends[bucket] += 1
    return True


@jit
def _look_up(
    process: Indexes,
    correlation_id: Integers,
    call_correlation_id: Integers,
    lowest: Integers,
    highest: Integers,
    shift: int,
    first_buckets: Integers,
    ends: Indexes,
    calls: Indexes,
    found: Indexes,
) -> None:
    for row in range(process.size):
        code, value = process[row], correlation_id[row]
        if value != NO_ID and lowest[code] <= value <= highest[code]:
            bucket = first_buckets[code] + _bucket(value, lowest[code], shift)
            place = ends[bucket] - 1
            first = ends[bucket - 1] if bucket > 0 else 0
            while place >= first and call_correlation_id[calls[place]] != value:
                place -= 1
            if place >= first:
                found[row] = calls[place]


@jit
def _search(
    process: Indexes,
    correlation_id: Integers,
    sorted_process: Indexes,
    sorted_id: Integers,
    order: Integers,
    found: Indexes,
) -> None:
    for row in range(process.size):
        code, value = process[row], correlation_id[row]
        if value == NO_ID:
            continue
        low, high = 0, sorted_id.size  # the first place after all that are not greater
        while low < high:
            middle = (low + high) // 2
            if sorted_process[middle] < code or (sorted_process[middle] == code and sorted_id[middle] <= value):
                low = middle + 1
            else:
                high = middle
        if low > 0 and sorted_process[low - 1] == code and sorted_id[low - 1] == value:
            found[row] = order[low - 1]


@dataclass(frozen=True, slots=True)
class Coded:
    """Keys by code: equal keys have equal codes, from 0 in order of first appearance."""

    codes: Indexes
    keys: Integers

    @property
    def values(self) -> Integers:
        """The keys as a column."""
        return self.keys[self.codes]

    def used(self) -> Self:
        """Without keys that no code stands for any more."""
        is_used = np.zeros(self.keys.size, dtype=np.bool_)
        is_used[self.codes] = True
        if bool(is_used.all()):
            return self
        return type(self)((np.cumsum(is_used, dtype=np.int32) - np.int32(1))[self.codes], self.keys[is_used])


def coded(*columns: Integers) -> tuple[Coded, ...]:
    """The columns with codes in common; made for few keys in many rows, as those of threads. The keys are those of all columns."""
    slots, keys, count = np.full(64, NONE, dtype=np.int32), np.empty(64, dtype=np.int64), 0
    all_codes = []
    for column in columns:
        codes = np.empty(column.size, dtype=np.int32)
        row = 0
        while True:
            row, count = _code(column, row, codes, slots, keys, count)
            if row == column.size:
                break
            old_keys = keys[:count]
            slots, keys = np.full(4 * slots.size, NONE, dtype=np.int32), np.empty(4 * keys.size, dtype=np.int64)
            _code(old_keys, 0, np.empty(count, dtype=np.int32), slots, keys, 0)
        all_codes.append(codes)
    return tuple(Coded(codes, keys[:count].copy()) for codes in all_codes)


@jit
def _code(column: Integers, first_row: int, codes: Indexes, slots: Indexes, keys: Integers, count: int) -> tuple[int, int]:
    mask = slots.size - 1
    for row in range(first_row, column.size):
        key = column[row]
        if row > first_row and key == column[row - 1]:  # one thread does many things in a row
            codes[row] = codes[row - 1]
            continue
        slot = (key ^ (key >> 29) ^ (key >> 47)) & mask
        while slots[slot] >= 0 and keys[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            if 2 * count >= slots.size:
                return row, count
            slots[slot], keys[count] = count, key
            count += 1
        codes[row] = slots[slot]
    return column.size, count


def ancestors(parent: Indexes, depth: Indexes, limit: int) -> Indexes:
    """For each range the one around it, or itself, that is no deeper than the limit. Parents come before what they hold."""
    found = np.empty(parent.size, dtype=np.int32)
    _rise(parent, depth, limit, found)
    return found


@jit
def _rise(parent: Indexes, depth: Indexes, limit: int, found: Indexes) -> None:
    for row in range(parent.size):
        found[row] = row if depth[row] <= limit else found[parent[row]]


# ---------------------------------------------------------------- pairs
# Rows by two columns at once, as process and device, or process and thread: one code for each pair.

UNKNOWN: Final = -(2**63)
"""Stands for null: no process, device, stream or thread has this number."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """codes: of the rows, from 0 in order of first appearance; first, second: the values of each code, UNKNOWN for null."""

    codes: Indexes
    first: Integers
    second: Integers

    @property
    def count(self) -> int:
        return self.first.size

    def series(self, codes: Indexes) -> tuple[pl.Series, pl.Series]:
        """The values of some codes."""
        return _nulled(self.first[codes]), _nulled(self.second[codes])


def coded_pairs(first: str, second: str, *frames: pl.DataFrame) -> tuple[Pairs, ...]:
    """For each frame the pairs of its two columns of whole numbers; codes and values are those of all frames together."""
    firsts = coded(*(_numbers(frame, first) for frame in frames))
    seconds = coded(*(_numbers(frame, second) for frame in frames))
    step = max((part.keys.size for part in seconds), default=0)
    keys = [part.codes.astype(np.int64) * step + other.codes for part, other in zip(firsts, seconds, strict=True)]
    pairs = coded(*keys)
    all_firsts, all_seconds, found = firsts[-1].keys, seconds[-1].keys, pairs[-1].keys
    step = max(step, 1)
    return tuple(Pairs(part.codes, all_firsts[found // step], all_seconds[found % step]) for part in pairs)


def _numbers(frame: pl.DataFrame, column: str) -> Integers:
    values: Integers = frame[column].cast(COUNT).fill_null(UNKNOWN).to_numpy()
    return values


def _nulled(values: Integers, dtype: DataType = COUNT) -> pl.Series:
    series = pl.Series(values, dtype=dtype)
    return series.set(series == UNKNOWN, None)
