"""The four percentages that scripts read, out of what ncu counts by its own names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

MEMORY_THROUGHPUT: Final = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
COMPUTE_THROUGHPUT: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
SM_EFFICIENCY: Final = "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"  # what nvprof called sm_efficiency

UNKNOWN_TEXT: Final = "n/a"
SPEC: Final = re.compile(r"(?:.?([<>^=]))?[-+ ]?z?#?0?(\d*)")
"""Of a number: alignment and width; what follows is precision and type."""


class UnknownPercentage(float):
    """NaN that is printed as n/a, whatever format a script gives it: reports read "n/a" where they would read "nan"."""

    def __format__(self, spec: str) -> str:
        found = SPEC.match(spec)
        assert found is not None  # it matches nothing too
        align, width = found.groups()
        return format(UNKNOWN_TEXT, f"{align if align in ('<', '^') else '>'}{width}")  # to the right, as numbers stand

    def __str__(self) -> str:
        return UNKNOWN_TEXT

    __repr__ = __str__


UNKNOWN_PERCENTAGE: Final = UnknownPercentage("nan")


@dataclass(frozen=True, slots=True)
class Percentages:
    """0 to 100. None: not counted."""

    memory_throughput_pct: float | None = None
    compute_throughput_pct: float | None = None
    achieved_occupancy_pct: float | None = None
    sm_efficiency_pct: float | None = None

    @classmethod
    def of(cls, counters: Mapping[str, float]) -> Self:
        """counters: of one launch, by ncu's names."""
        return cls(
            memory_throughput_pct=counters.get(MEMORY_THROUGHPUT),
            compute_throughput_pct=counters.get(COMPUTE_THROUGHPUT),
            achieved_occupancy_pct=counters.get(ACHIEVED_OCCUPANCY),
            sm_efficiency_pct=counters.get(SM_EFFICIENCY),
        )
