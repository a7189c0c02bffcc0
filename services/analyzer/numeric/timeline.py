"""Sums of intervals per pixel of a timeline and per window of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Flags, Indexes, Integers

# ---------------------------------------------------------------- pixels
# A lane of a timeline reduces millions of intervals to a few thousand pixels: how busy each is, and with which name.

BLOCK: Final = 32
"""Number of intervals in a block, of which sums are kept. Smaller blocks take more memory; larger ones take longer, since the
intervals of up to two blocks per pixel are visited one by one."""

_BEFORE_ALL: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of all lanes, sorted by lane and start. Where several overlap, the time counts for the one that began first.

    bounds: (lanes + 1) first row of each lane. name: codes from 0. name_count: highest code plus one.
    block_*: for each block of BLOCK intervals of a lane, the furthest end up to there, the time that the block covers, the name
    with most of that time, and this name's time.
    """

    bounds: Integers
    start_ns: Integers
    end_ns: Integers
    name: Indexes
    block_bounds: Integers
    block_reach_ns: Integers
    block_busy_ns: Integers
    block_name: Indexes
    block_name_ns: Integers
    name_count: int

    @classmethod
    def of(cls, bounds: Integers, start_ns: Integers, end_ns: Integers, name: Indexes) -> Self:
        """Return the intervals with the sums of their blocks. Ends must be no earlier than starts."""
        block_bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(-(-np.diff(bounds) // BLOCK))))
        count = int(block_bounds[-1])
        reach, busy, name_ns = (np.zeros(count, dtype=np.int64) for _ in range(3))
        top = np.full(count, NULL_INDEX, dtype=np.int32)
        name_count = int(name.max(initial=NULL_INDEX)) + 1
        _sum_blocks(bounds, start_ns, end_ns, name, block_bounds, reach, busy, top, name_ns, np.zeros(name_count, dtype=np.int64))
        return cls(bounds, start_ns, end_ns, name, block_bounds, reach, busy, top, name_ns, name_count)

    @property
    def first_ns(self) -> int:
        """The first start of all. Each lane must have an interval."""
        return int(self.start_ns[self.bounds[:-1]].min())

    @property
    def last_ns(self) -> int:
        """The last end of all."""
        return int(self.block_reach_ns.max())

    @property
    def size_bytes(self) -> int:
        """Memory that the arrays take."""
        return sum(getattr(self, name).nbytes for name in self.__slots__ if name != "name_count")


@jit
def _sum_blocks(
    bounds: Integers,
    start_ns: Integers,
    end_ns: Integers,
    name: Indexes,
    block_bounds: Integers,
    reach_ns: Integers,
    busy_ns: Integers,
    top: Indexes,
    top_ns: Integers,
    spent: Integers,
) -> None:
    for lane in range(bounds.size - 1):
        reach = _BEFORE_ALL
        for block in range(block_bounds[lane], block_bounds[lane + 1]):
            first = bounds[lane] + (block - block_bounds[lane]) * BLOCK
            last = min(first + BLOCK, bounds[lane + 1])
            for row in range(first, last):
                length = max(end_ns[row] - max(start_ns[row], reach), 0)
                reach = max(reach, end_ns[row])
                busy_ns[block] += length
                spent[name[row]] += length
            reach_ns[block] = reach
            for row in range(first, last):
                if spent[name[row]] > top_ns[block] or top[block] == NULL_INDEX:
                    top[block], top_ns[block] = name[row], spent[name[row]]
            for row in range(first, last):
                spent[name[row]] = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time, cut into pixels: pixel n begins n * length // pixel_count after the start."""

    start_ns: int
    end_ns: int
    pixel_count: int

    def edges(self) -> Integers:
        """Return the start of each pixel, and the end of the last."""
        pixels = np.arange(self.pixel_count + 1, dtype=np.int64)
        pixel_ns, rest_ns = divmod(self.end_ns - self.start_ns, self.pixel_count)
        # In two terms: a pixel's index times a window of months would overflow 64 bits.
        edges: Integers = self.start_ns + pixels * pixel_ns + pixels * rest_ns // self.pixel_count
        return edges


@dataclass(frozen=True, slots=True)
class Pixels:
    """The pixels that are not empty, one row each.

    busy_ns: covered time. begun_count: number of intervals that begin in the pixel. name: the name with most of the time,
    estimated by blocks where a pixel has many intervals.
    """

    lane: Indexes
    pixel: Indexes
    busy_ns: Integers
    begun_count: Integers
    name: Indexes


def within(intervals: Intervals, window: Window) -> Integers:
    """Return (lanes, 2) rows: the first interval that may reach into the window, and the first that begins after it."""
    found = np.empty((intervals.bounds.size - 1, 2), dtype=np.int64)
    _find(intervals.bounds, intervals.start_ns, intervals.block_bounds, intervals.block_reach_ns, window.start_ns, window.end_ns, found)
    return found


@jit
def _find(
    bounds: Integers, start_ns: Integers, block_bounds: Integers, reach_ns: Integers, window_start: int, window_end: int, found: Integers
) -> None:
    for lane in range(bounds.size - 1):
        first, last = block_bounds[lane], block_bounds[lane + 1]
        block = first + np.searchsorted(reach_ns[first:last], window_start, side="left")
        found[lane, 0] = min(bounds[lane] + (block - first) * BLOCK, bounds[lane + 1])
        found[lane, 1] = bounds[lane] + np.searchsorted(start_ns[bounds[lane] : bounds[lane + 1]], window_end, side="left")


def draw_pixels(intervals: Intervals, window: Window, lanes: Indexes, ranges: Integers) -> Pixels:
    """Return the pixels of some lanes, each of which must have intervals in the window. ranges: see `within`."""
    room = lanes.size * window.pixel_count
    lane, pixel, name = (np.empty(room, dtype=np.int32) for _ in range(3))
    busy, begun = (np.empty(room, dtype=np.int64) for _ in range(2))
    count = _draw(
        intervals.bounds,
        intervals.start_ns,
        intervals.end_ns,
        intervals.name,
        intervals.block_bounds,
        intervals.block_reach_ns,
        intervals.block_busy_ns,
        intervals.block_name,
        intervals.block_name_ns,
        window.edges(),
        lanes,
        ranges,
        np.empty(window.pixel_count, dtype=np.int64),
        np.empty(window.pixel_count, dtype=np.int64),
        np.empty(window.pixel_count, dtype=np.int32),
        np.zeros(intervals.name_count, dtype=np.int64),
        np.empty(intervals.name_count, dtype=np.int32),
        lane,
        pixel,
        busy,
        begun,
        name,
    )
    return Pixels(lane[:count], pixel[:count], busy[:count], begun[:count], name[:count])


@jit
def _draw(
    bounds: Integers,
    start_ns: Integers,
    end_ns: Integers,
    name: Indexes,
    block_bounds: Integers,
    block_reach: Integers,
    block_busy: Integers,
    block_name: Indexes,
    block_name_ns: Integers,
    edges: Integers,
    lanes: Indexes,
    ranges: Integers,
    busy: Integers,
    begun: Integers,
    tops: Indexes,
    spent: Integers,
    touched: Indexes,
    out_lane: Indexes,
    out_pixel: Indexes,
    out_busy: Integers,
    out_begun: Integers,
    out_name: Indexes,
) -> int:
    """Write the pixels and return their number.

    busy, begun, tops: buffers for the pixels of one lane. spent: time of each name in the current pixel, initially 0; touched:
    the names in it. Nothing is allocated here: else the first drawing would wait for numba's runtime to load.
    """
    pixel_count = edges.size - 1
    count = 0
    for lane in lanes:
        busy[:], begun[:], tops[:] = 0, 0, NULL_INDEX
        touched_count, pixel, begun_pixel = 0, 0, 0
        row, last = ranges[lane, 0], ranges[lane, 1]
        first_block = block_bounds[lane]
        block = first_block + (row - bounds[lane]) // BLOCK
        reach = block_reach[block - 1] if block > first_block else _BEFORE_ALL
        reach = max(reach, edges[0])
        while row < last:
            position = row - bounds[lane]
            if position % BLOCK == 0:
                block = first_block + position // BLOCK
                begin = start_ns[row]
                is_complete = row + BLOCK <= last and begin >= edges[0]
                if is_complete:
                    while pixel < pixel_count - 1 and max(begin, reach) >= edges[pixel + 1]:
                        _finish_pixel(pixel, spent, touched, touched_count, tops)
                        touched_count = 0
                        pixel += 1
                    if begin >= edges[pixel] and block_reach[block] <= edges[pixel + 1]:
                        busy[pixel] += block_busy[block]
                        begun[pixel] += BLOCK
                        touched_count = _add_time(block_name[block], block_name_ns[block], spent, touched, touched_count)
                        reach = max(reach, block_reach[block])
                        row += BLOCK
                        continue
            begin = start_ns[row]
            if begin >= edges[0]:
                while begin >= edges[begun_pixel + 1]:
                    begun_pixel += 1
                begun[begun_pixel] += 1
            begin, end = max(begin, reach), min(end_ns[row], edges[pixel_count])
            while begin < end:
                while begin >= edges[pixel + 1]:
                    _finish_pixel(pixel, spent, touched, touched_count, tops)
                    touched_count = 0
                    pixel += 1
                length = min(end, edges[pixel + 1]) - begin
                busy[pixel] += length
                touched_count = _add_time(name[row], length, spent, touched, touched_count)
                begin += length
            reach = max(reach, end_ns[row])
            row += 1
        _finish_pixel(pixel, spent, touched, touched_count, tops)
        for position in range(pixel_count):
            if busy[position] > 0 or begun[position] > 0:
                out_lane[count], out_pixel[count], out_busy[count] = lane, position, busy[position]
                out_begun[count], out_name[count] = begun[position], tops[position]
                count += 1
    return count


@jit
def _add_time(name_code: int, length: int, spent: Integers, touched: Indexes, touched_count: int) -> int:
    if length > 0 and spent[name_code] == 0:
        touched[touched_count] = name_code
        touched_count += 1
    spent[name_code] += length
    return touched_count


@jit
def _finish_pixel(pixel: int, spent: Integers, touched: Indexes, touched_count: int, tops: Indexes) -> None:
    """Set the name with most of the time in the pixel, of equal times the one that came first, and reset the sums."""
    most = 0
    for position in range(touched_count):
        name_code = touched[position]
        if spent[name_code] > most:
            most, tops[pixel] = spent[name_code], name_code
        spent[name_code] = 0


# ---------------------------------------------------------------- window sums
# What a device did in a window of time: its lanes merged by start, in one pass over the intervals in the window.

UNION_COUNT: Final = 5
_AFTER_ALL: Final = 2**62


@dataclass(frozen=True, slots=True)
class WindowSums:
    """Sums over one window of time.

    covered_ns: (UNION_COUNT) length of each union, by its bit. duration_ns, counts: (2, names) sums by kind (0: kernels,
    1: memory operations) and name.
    """

    covered_ns: Integers
    duration_ns: Integers
    counts: Integers


def sum_window(
    intervals: Intervals,
    window: Window,
    ranges: Integers,
    lanes: Integers,
    is_memory: Flags,
    kinds_of_name: npt.NDArray[np.uint8],
    memory_kinds: int,
) -> WindowSums:
    """Return the sums over the lanes of one device. An interval that crosses an edge of the window counts with its part inside.

    Args:
        intervals: the intervals of all lanes.
        window: the window of time.
        ranges: rows of each lane that lie in the window, see `within`.
        lanes: the lanes of the device.
        is_memory: for each of these lanes, whether it has memory operations.
        kinds_of_name: bit mask of the unions that a kernel belongs to, by its name.
        memory_kinds: the same of copies and fills.
    """
    name_count = max(intervals.name_count, 1)
    found = WindowSums(
        np.zeros(UNION_COUNT, dtype=np.int64), np.zeros((2, name_count), dtype=np.int64), np.zeros((2, name_count), dtype=np.int64)
    )
    _sum(
        intervals.start_ns,
        intervals.end_ns,
        intervals.name,
        ranges[lanes, 0],
        ranges[lanes, 1],
        is_memory,
        kinds_of_name,
        memory_kinds,
        window.start_ns,
        window.end_ns,
        np.full(UNION_COUNT, window.start_ns, dtype=np.int64),
        found.covered_ns,
        found.duration_ns,
        found.counts,
    )
    return found


@jit
def _sum(
    start_ns: Integers,
    end_ns: Integers,
    name: Indexes,
    positions: Integers,
    lasts: Integers,
    is_memory: Flags,
    kinds_of_name: npt.NDArray[np.uint8],
    memory_kinds: int,
    window_start: int,
    window_end: int,
    reach: Integers,
    covered: Integers,
    duration: Integers,
    counts: Integers,
) -> None:
    """Merge the lanes by start. positions: next row of each lane; reach: the furthest end of each union so far."""
    while True:
        lane, begin, following = -1, _AFTER_ALL, _AFTER_ALL
        for candidate in range(positions.size):
            if positions[candidate] < lasts[candidate]:
                start = start_ns[positions[candidate]]
                if lane == -1 or start < begin:
                    following = begin
                    lane, begin = candidate, start
                elif start < following:
                    following = start
        if lane == -1:
            return
        row, last = positions[lane], lasts[lane]
        kind = 1 if is_memory[lane] else 0
        while row < last and start_ns[row] <= following:  # no other lane has an earlier interval
            start, end = max(start_ns[row], window_start), min(end_ns[row], window_end)
            if end > start or start_ns[row] >= window_start:
                duration[kind, name[row]] += max(end - start, 0)
                counts[kind, name[row]] += 1
                bits = memory_kinds if kind == 1 else kinds_of_name[name[row]]
                for bit in range(UNION_COUNT):
                    if bits >> bit & 1 and end > reach[bit]:
                        covered[bit] += max(end - max(start, reach[bit]), 0)
                        reach[bit] = end
            row += 1
        positions[lane] = row
