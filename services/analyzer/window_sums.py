"""What a device did in a window of time: its lanes merged by start, in one pass over what lies in the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.correlation import Flags, Indexes, Integers
from services.analyzer.numeric import jit
from services.analyzer.tiles import Intervals, Window

UNION_COUNT: Final = 5
_NEVER: Final = 2**62


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
        lane, begin, following = -1, _NEVER, _NEVER
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
