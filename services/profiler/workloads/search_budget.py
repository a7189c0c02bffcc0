"""The time that a search may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

ClockNs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Time that a search may take. end_ns: of the clock; infinity: no end."""

    end_ns: float
    clock_ns: ClockNs = time.monotonic_ns

    @classmethod
    def of(cls, budget_ns: int | None, clock_ns: ClockNs) -> Self:
        """Return a budget from now on. None: without end."""
        return cls(math.inf if budget_ns is None else clock_ns() + budget_ns, clock_ns)

    def left_ns(self) -> float:
        return self.end_ns - self.clock_ns()

    def is_spent(self) -> bool:
        return self.left_ns() <= 0

    def part(self, ratio: float, least_ns: float = 0) -> Self:
        """Return the first part of what is left; where that is less than `least_ns`, so much of it as there is."""
        left_ns = self.left_ns()
        return replace(self, end_ns=self.clock_ns() + max(left_ns * ratio, min(left_ns, least_ns)))
