"""Sums of launches per pixel and per window of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import NONE, Flags, Indexes, Integers

# ---------------------------------------------------------------- tiles
# What a row of a timeline shows of millions of intervals in a few thousand pixels: how busy each is, and what with.

BLOCK: Final = 32
"""Intervals that are also kept as a sum. Fewer take more memory; more take longer, for up to two blocks a pixel are looked
through one by one."""

_BEFORE_ALL: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Of all lanes, lane after lane, within one by start. Where several overlap, the time is that of the one that began first.

    bounds: of the intervals of each lane, one more than lanes; name: codes from 0. block_*: of each BLOCK intervals of a lane:
    the furthest end up to there, the time that they cover, the name with most of it and its share. name_count: highest code and one.
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
        """Ends are no earlier than starts."""
        block_bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(-(-np.diff(bounds) // BLOCK))))
        count = int(block_bounds[-1])
        reach, busy, name_ns = (np.zeros(count, dtype=np.int64) for _ in range(3))
        top = np.full(count, NONE, dtype=np.int32)
        name_count = int(name.max(initial=NONE)) + 1
        _sum_blocks(bounds, start_ns, end_ns, name, block_bounds, reach, busy, top, name_ns, np.zeros(name_count, dtype=np.int64))
        return cls(bounds, start_ns, end_ns, name, block_bounds, reach, busy, top, name_ns, name_count)

    @property
    def first_ns(self) -> int:
        """The first start of all. There are some, and each lane has one."""
        return int(self.start_ns[self.bounds[:-1]].min())

    @property
    def last_ns(self) -> int:
        """The last end of all."""
        return int(self.block_reach_ns.max())

    @property
    def size_bytes(self) -> int:
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
                if spent[name[row]] > top_ns[block] or top[block] == NONE:
                    top[block], top_ns[block] = name[row], spent[name[row]]
            for row in range(first, last):
                spent[name[row]] = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Of time, cut into pixels: the first is at the start, the n-th begins at n * length // pixel_count after it."""

    start_ns: int
    end_ns: int
    pixel_count: int

    def edges(self) -> Integers:
        places = np.arange(self.pixel_count + 1, dtype=np.int64)
        whole_ns, rest_ns = divmod(self.end_ns - self.start_ns, self.pixel_count)
        # In two parts: a pixel's place times the length of months is more than 64 bits hold.
        edges: Integers = self.start_ns + places * whole_ns + places * rest_ns // self.pixel_count
        return edges


@dataclass(frozen=True, slots=True)
class Pixels:
    """Those in which there is something. name: with most of the time, by blocks where a pixel has many intervals."""

    lane: Indexes
    pixel: Indexes
    busy_ns: Integers
    begun_count: Integers
    name: Indexes


def within(intervals: Intervals, window: Window) -> Integers:
    """For each lane the first interval that may reach into the window, and the first that begins after it: a row each."""
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


def pixels_of(intervals: Intervals, window: Window, lanes: Indexes, ranges: Integers) -> Pixels:
    """Of some lanes, which have intervals within the window. ranges: see within."""
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
    """busy, begun, tops: room for what is found of each pixel of a lane. spent: time of each name in the pixel at hand, 0 where
    none was; touched: the names of it. Allocates nothing: else the first drawing would wait for numba to load."""
    pixel_count = edges.size - 1
    count = 0
    for lane in lanes:
        busy[:], begun[:], tops[:] = 0, 0, NONE
        touched_count, pixel, begun_pixel = 0, 0, 0
        row, last = ranges[lane, 0], ranges[lane, 1]
        first_block = block_bounds[lane]
        block = first_block + (row - bounds[lane]) // BLOCK
        reach = block_reach[block - 1] if block > first_block else _BEFORE_ALL
        reach = max(reach, edges[0])
        while row < last:
            place = row - bounds[lane]
            if place % BLOCK == 0:
                block = first_block + place // BLOCK
                begin = start_ns[row]
                whole = row + BLOCK <= last and begin >= edges[0]
                if whole:
                    while pixel < pixel_count - 1 and max(begin, reach) >= edges[pixel + 1]:
                        _settle(pixel, spent, touched, touched_count, tops)
                        touched_count = 0
                        pixel += 1
                    if begin >= edges[pixel] and block_reach[block] <= edges[pixel + 1]:
                        busy[pixel] += block_busy[block]
                        begun[pixel] += BLOCK
                        touched_count = _spend(block_name[block], block_name_ns[block], spent, touched, touched_count)
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
                    _settle(pixel, spent, touched, touched_count, tops)
                    touched_count = 0
                    pixel += 1
                length = min(end, edges[pixel + 1]) - begin
                busy[pixel] += length
                touched_count = _spend(name[row], length, spent, touched, touched_count)
                begin += length
            reach = max(reach, end_ns[row])
            row += 1
        _settle(pixel, spent, touched, touched_count, tops)
        for place in range(pixel_count):
            if busy[place] > 0 or begun[place] > 0:
                out_lane[count], out_pixel[count], out_busy[count] = lane, place, busy[place]
                out_begun[count], out_name[count] = begun[place], tops[place]
                count += 1
    return count


@jit
def _spend(one: int, length: int, spent: Integers, touched: Indexes, touched_count: int) -> int:
    if length > 0 and spent[one] == 0:
        touched[touched_count] = one
        touched_count += 1
    spent[one] += length
    return touched_count


@jit
def _settle(pixel: int, spent: Integers, touched: Indexes, touched_count: int, tops: Indexes) -> None:
    """The name with most of the time in the pixel, of equal times the one that came first."""
    most = 0
    for place in range(touched_count):
        one = touched[place]
        if spent[one] > most:
            most, tops[pixel] = spent[one], one
        spent[one] = 0


# ---------------------------------------------------------------- window sums
# What a device did in a window of time: its lanes merged by start, in one pass over what lies in the window.

UNION_COUNT: Final = 5
_AFTER_ALL: Final = 2**62


@dataclass(frozen=True, slots=True)
class WindowSums:
    """covered_ns: of each union, by its bit. duration_ns, counts: by kind (0: of kinds_of_name, 1: of memory) and name."""

    covered_ns: Integers
    duration_ns: Integers
    counts: Integers


def window_sums(
    intervals: Intervals,
    window: Window,
    ranges: Integers,
    lanes: Integers,
    is_memory: Flags,
    kinds_of_name: npt.NDArray[np.uint8],
    memory_kinds: int,
) -> WindowSums:
    """Of the lanes of one device; what reaches over an edge of the window counts for its part in it.

    Args:
        ranges: see tiles.within.
        lanes: of the device. is_memory: of each of these.
        kinds_of_name: bits of the unions that a kernel belongs to, by its name. memory_kinds: those of copies and fills.
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
    places: Integers,
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
    """places: next row of each lane. reach: the furthest end of each union so far; an interval adds what is past it."""
    while True:
        lane, begin, following = -1, _AFTER_ALL, _AFTER_ALL
        for one in range(places.size):
            if places[one] < lasts[one]:
                start = start_ns[places[one]]
                if lane == -1 or start < begin:
                    following = begin
                    lane, begin = one, start
                elif start < following:
                    following = start
        if lane == -1:
            return
        row, last = places[lane], lasts[lane]
        kind = 1 if is_memory[lane] else 0
        while row < last and start_ns[row] <= following:  # no other lane has anything before
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
        places[lane] = row
