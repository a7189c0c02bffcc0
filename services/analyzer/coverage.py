"""How long something of each kind went on: lengths of unions of intervals, in one pass over millions of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.correlation import Indexes, Integers
from services.analyzer.numeric import jit

_NEVER: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class Intervals:
    """In ascending order of start. What ends before it starts covers nothing.

    group: of each, from 0; kinds: bits of the unions that it belongs to.
    """

    group: Indexes
    kinds: npt.NDArray[np.uint8]
    start_ns: Integers
    duration_ns: Integers


@dataclass(frozen=True, slots=True)
class Coverage:
    """A row for each group.

    covered_ns: nanoseconds of the unions, a column for each of the eight bits of a kind. counts: of one and of the other.
    """

    covered_ns: Integers
    span_ns: Integers  # from the first start to the last end
    counts: Integers


def coverage(one: Intervals, other: Intervals, group_count: int) -> Coverage:
    """Of both together. Every group has some of them."""
    found = np.zeros((group_count, 8), dtype=np.int64)
    reach = np.full((group_count, 8), _NEVER, dtype=np.int64)
    first, last = np.full(group_count, -_NEVER, dtype=np.int64), np.full(group_count, _NEVER, dtype=np.int64)
    counts = np.zeros((group_count, 2), dtype=np.int64)
    _cover(
        *(one.group, one.kinds, one.start_ns, one.duration_ns),
        *(other.group, other.kinds, other.start_ns, other.duration_ns),
        *(found, reach, first, last, counts),
    )
    return Coverage(found, last - first, counts)


@jit
def _cover(
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
    """reach: the furthest end so far; an interval adds what is past it."""
    row = other = 0
    while row < start_ns.size or other < other_start_ns.size:
        if other == other_start_ns.size or (row < start_ns.size and start_ns[row] <= other_start_ns[other]):
            place, bits, start, end = group[row], kinds[row], start_ns[row], start_ns[row] + duration_ns[row]
            row += 1
            counts[place, 0] += 1
        else:
            place, bits, start = other_group[other], other_kinds[other], other_start_ns[other]
            end = start + other_duration_ns[other]
            other += 1
            counts[place, 1] += 1
        first[place], last[place] = min(first[place], start), max(last[place], start, end)
        for bit in range(8):
            if bits >> bit & 1 and end > reach[place, bit]:
                found[place, bit] += max(end - max(start, reach[place, bit]), 0)
                reach[place, bit] = end
