"""How long something of each kind went on: lengths of unions of intervals, in one pass over millions of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.compiled import compiled

Integers = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.int32]

_NEVER: Final = -(2**62)


def covered_ns(group: Indexes, kinds: npt.NDArray[np.uint8], start_ns: Integers, duration_ns: Integers, group_count: int) -> Integers:
    """Nanoseconds that the union of intervals covers: a row for each group, a column for each of the eight bits of a kind.

    What ends before it starts covers nothing.

    Args:
        group: of each interval, from 0.
        kinds: bits of the unions that an interval belongs to.
        start_ns: in ascending order.
    """
    found = np.zeros((group_count, 8), dtype=np.int64)
    reach = np.full((group_count, 8), _NEVER, dtype=np.int64)
    _cover(group, kinds, start_ns, duration_ns, found, reach)
    return found


@compiled
def _cover(
    group: Indexes, kinds: npt.NDArray[np.uint8], start_ns: Integers, duration_ns: Integers, found: Integers, reach: Integers
) -> None:
    """reach: the furthest end so far; an interval adds what is past it."""
    for row in range(start_ns.size):
        start, place, bits = start_ns[row], group[row], kinds[row]
        end = start + duration_ns[row]
        for bit in range(8):
            if bits >> bit & 1 and end > reach[place, bit]:
                found[place, bit] += max(end - max(start, reach[place, bit]), 0)
                reach[place, bit] = end
