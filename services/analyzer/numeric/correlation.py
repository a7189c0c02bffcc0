"""Correlation of the events of a trace: kernels with the calls that launched them, calls with the ranges around them.

Every reader uses these functions. They make one pass over sorted arrays: ten million kernels take seconds.
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

NULL_INDEX: Final = -1
"""The null index in arrays. In tables it is null."""

NO_ID: Final = -(2**63)
"""Stands for a missing correlation id."""

MAX_BUCKET_CALLS: Final = 64
"""Profilers count correlation ids up, so with as many buckets as calls a bucket holds one or two. With a higher limit, scanning
a bucket would take longer than sorting all calls; with a lower one, gaps between ids would make many traces take the slow path."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """The nesting of ranges within each other, and of moments within ranges.

    parent: for each range, the innermost range of the same thread that contains it. depth: for each range, the number of its
    ancestors. innermost: for each moment, the innermost range around it. NONE where there is none.
    """

    parent: Indexes
    depth: Indexes
    innermost: Indexes


def find_nesting(
    range_thread: Indexes, start_ns: Integers, end_ns: Integers, counts: Flags, moment_thread: Indexes, moment_ns: Integers
) -> Nesting:
    """Return the innermost range of its thread around each moment, and the parent of each range.

    A range contains a moment when start <= moment < end. Of several, the innermost is the one that starts last; of equal starts
    the one that ends first; of equal ends the one that comes last. The same holds for ranges that overlap without nesting.

    Args:
        range_thread, moment_thread: codes of threads, from 0.
        start_ns, end_ns: times of the ranges, ordered by start, of equal starts the later end first. See range_order.
        counts: False for ranges that contain nothing, such as those whose end is not known.
        moment_ns: times of the moments, in ascending order.
    """
    thread_count = 1 + max(int(range_thread.max(initial=NULL_INDEX)), int(moment_thread.max(initial=NULL_INDEX)))
    parent, depth = np.full(start_ns.size, NULL_INDEX, dtype=np.int32), np.zeros(start_ns.size, dtype=np.int32)
    innermost = np.empty(moment_ns.size, dtype=np.int32)
    below = np.full(start_ns.size, NULL_INDEX, dtype=np.int32)
    tops = np.full(thread_count, NULL_INDEX, dtype=np.int32)
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
    """Sweep over ranges and moments with a stack per thread: tops[thread] is its last range, below[range] the one under it."""
    row = 0
    for moment in range(moment_ns.size + 1):
        # The ranges after the last moment still need their parents.
        while row < start_ns.size and (moment == moment_ns.size or start_ns[row] <= moment_ns[moment]):
            start, end = start_ns[row], end_ns[row]
            if counts[row] and end >= start:
                thread = range_thread[row]
                top = tops[thread]
                while top >= 0 and end_ns[top] <= start:
                    top = below[top]
                below[row] = top
                tops[thread] = row
                # A range that ends before this one does cannot be its parent, nor that of any later one.
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
    """Return the order of rows that `find_nesting` requires of ranges; None when they have it already."""
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
    """Return the stable order of rows by start; None when they have it already."""
    if bool(np.all(start_ns[1:] >= start_ns[:-1])):
        return None
    return np.argsort(start_ns, kind="stable").astype(np.int64, copy=False)


def match_calls(process: Indexes, correlation_id: Integers, call_process: Indexes, call_correlation_id: Integers) -> Indexes:
    """Return for each device operation the call of its process with its correlation id, the last of several; NONE without one.

    Args:
        process, call_process: codes of the processes of operations and of calls, from 0.
        correlation_id, call_correlation_id: correlation ids of operations and of calls; NO_ID where there is none.
    """
    process_count = 1 + max(int(process.max(initial=NULL_INDEX)), int(call_process.max(initial=NULL_INDEX)))
    lowest, highest = np.full(process_count, 2**62, dtype=np.int64), np.full(process_count, -(2**62), dtype=np.int64)
    _find_extremes(call_process, call_correlation_id, lowest, highest)
    spans = [max(high - low, 0) for low, high in zip(lowest.tolist(), highest.tolist(), strict=True)]
    most, shift = max(call_process.size, 1024), 0
    while shift < 63 and sum((span >> shift) + 1 for span in spans) > most:
        shift += 1
    first_buckets = np.cumsum([0, *((span >> shift) + 1 for span in spans)])
    ends = np.zeros(int(first_buckets[-1]), dtype=np.int32)
    calls = np.empty(call_process.size, dtype=np.int32)
    found = np.full(process.size, NULL_INDEX, dtype=np.int32)
    operations = process, correlation_id
    if _fill_buckets(call_process, call_correlation_id, lowest, shift, first_buckets, ends, calls):
        _look_up(*operations, call_correlation_id, lowest, highest, shift, first_buckets, ends, calls, found)
    elif call_process.size > 0:
        order = np.lexsort((np.arange(call_process.size), call_correlation_id, call_process))
        _search(*operations, call_process[order], call_correlation_id[order], order, found)
    return found


@jit
def _find_extremes(process: Indexes, correlation_id: Integers, lowest: Integers, highest: Integers) -> None:
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
    """Write the calls in order of bucket, stable within each; return False when a bucket would hold too many.

    Args:
        first_buckets: first bucket of each process.
        ends: zeros; becomes the position in `calls` after the last call of each bucket.
    """
    for call in range(call_process.size):
        code, value = call_process[call], call_correlation_id[call]
        if value != NO_ID:
            bucket = first_buckets[code] + _bucket(value, lowest[code], shift)
            ends[bucket] += 1
            if ends[bucket] > MAX_BUCKET_CALLS:
                return False
    position = 0
    for bucket in range(ends.size):
        count = ends[bucket]
        ends[bucket] = position
        position += count
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
            position = ends[bucket] - 1
            first = ends[bucket - 1] if bucket > 0 else 0
            while position >= first and call_correlation_id[calls[position]] != value:
                position -= 1
            if position >= first:
                found[row] = calls[position]


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
        low, high = 0, sorted_id.size  # binary search: the first position whose key is greater
        while low < high:
            middle = (low + high) // 2
            if sorted_process[middle] < code or (sorted_process[middle] == code and sorted_id[middle] <= value):
                low = middle + 1
            else:
                high = middle
        if low > 0 and sorted_process[low - 1] == code and sorted_id[low - 1] == value:
            found[row] = order[low - 1]


@dataclass(frozen=True, slots=True)
class Factorization:
    """A factorized column: equal keys have equal codes, from 0 in order of first appearance."""

    codes: Indexes
    keys: Integers

    @property
    def values(self) -> Integers:
        """The column itself: the key of each row."""
        return self.keys[self.codes]

    def used(self) -> Self:
        """Return the same column without keys that no row has any more."""
        is_used = np.zeros(self.keys.size, dtype=np.bool_)
        is_used[self.codes] = True
        if bool(is_used.all()):
            return self
        return type(self)((np.cumsum(is_used, dtype=np.int32) - np.int32(1))[self.codes], self.keys[is_used])


def factorize(*columns: Integers) -> tuple[Factorization, ...]:
    """Factorize columns with one common dictionary: the keys of each result are those of all columns.

    It is made for few keys in many rows, as those of threads.
    """
    slots, keys, count = np.full(64, NULL_INDEX, dtype=np.int32), np.empty(64, dtype=np.int64), 0
    all_codes = []
    for column in columns:
        codes = np.empty(column.size, dtype=np.int32)
        row = 0
        while True:
            row, count = _code(column, row, codes, slots, keys, count)
            if row == column.size:
                break
            old_keys = keys[:count]
            slots, keys = np.full(4 * slots.size, NULL_INDEX, dtype=np.int32), np.empty(4 * keys.size, dtype=np.int64)
            _code(old_keys, 0, np.empty(count, dtype=np.int32), slots, keys, 0)
        all_codes.append(codes)
    return tuple(Factorization(codes, keys[:count].copy()) for codes in all_codes)


@jit
def _code(column: Integers, first_row: int, codes: Indexes, slots: Indexes, keys: Integers, count: int) -> tuple[int, int]:
    mask = slots.size - 1
    for row in range(first_row, column.size):
        key = column[row]
        if row > first_row and key == column[row - 1]:  # neighbouring rows are often of the same thread
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
    """Return for each range itself or its nearest ancestor that is no deeper than the limit. Parents must precede their children."""
    found = np.empty(parent.size, dtype=np.int32)
    _rise(parent, depth, limit, found)
    return found


@jit
def _rise(parent: Indexes, depth: Indexes, limit: int, found: Indexes) -> None:
    for row in range(parent.size):
        found[row] = row if depth[row] <= limit else found[parent[row]]


# ---------------------------------------------------------------- pairs of columns
# Rows factorized by two columns at once, such as process and device, or process and thread: one code for each pair.

UNKNOWN: Final = -(2**63)
"""Stands for null: no process, device, stream or thread has this number."""


@dataclass(frozen=True, slots=True)
class PairFactorization:
    """Two factorized columns with one code for each pair of values.

    codes: code of each row, from 0 in order of first appearance. first, second: the values of each code, UNKNOWN for null.
    """

    codes: Indexes
    first: Integers
    second: Integers

    @property
    def count(self) -> int:
        """Number of distinct pairs."""
        return self.first.size

    def series(self, codes: Indexes) -> tuple[pl.Series, pl.Series]:
        """Return the first and the second value of each of these codes, as two columns with nulls."""
        return _nulled(self.first[codes]), _nulled(self.second[codes])


def factorize_pairs(first: str, second: str, *frames: pl.DataFrame) -> tuple[PairFactorization, ...]:
    """Factorize two integer columns of each frame as pairs, with one common dictionary for all frames."""
    firsts = factorize(*(_numbers(frame, first) for frame in frames))
    seconds = factorize(*(_numbers(frame, second) for frame in frames))
    step = max((part.keys.size for part in seconds), default=0)
    keys = [part.codes.astype(np.int64) * step + other.codes for part, other in zip(firsts, seconds, strict=True)]
    pairs = factorize(*keys)
    all_firsts, all_seconds, found = firsts[-1].keys, seconds[-1].keys, pairs[-1].keys
    step = max(step, 1)
    return tuple(PairFactorization(part.codes, all_firsts[found // step], all_seconds[found % step]) for part in pairs)


def _numbers(frame: pl.DataFrame, column: str) -> Integers:
    values: Integers = frame[column].cast(COUNT).fill_null(UNKNOWN).to_numpy()
    return values


def _nulled(values: Integers, dtype: DataType = COUNT) -> pl.Series:
    series = pl.Series(values, dtype=dtype)
    return series.set(series == UNKNOWN, None)
