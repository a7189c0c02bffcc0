"""How far a call of benchmark is, told once it has become a long one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from services.compat.benchmarking.notices import tell

FIRST_TOLD_S: Final = 3.0
"""Shorter calls need no word: whoever reads it has the result by then."""

TOLD_EVERY_S: Final = 10.0
"""Seldom enough that hours of a sweep can be scrolled through, often enough that nobody takes it for hung."""


class CallProgress:
    """Of all kernels of a call.

    Args:
        total_count: configurations of all of them.
        clock_s, say: stand-ins of tests.
    """

    def __init__(self, total_count: int, clock_s: Callable[[], float] = time.monotonic, say: Callable[[str], None] = tell) -> None:
        self.total_count = total_count
        self._clock_s = clock_s
        self._say = say
        self._start_s = clock_s()
        self._next_told_s = self._start_s + FIRST_TOLD_S
        self._earlier_count = 0  # of kernels before
        self._done_count = 0
        self._activity = ""

    def end_kernel(self, configuration_count: int) -> None:
        """Count all configurations of a kernel as done, measured or not."""
        self._earlier_count += configuration_count
        self._done_count = self._earlier_count

    def update(self, done_count: int, activity: str) -> None:
        """Take in what a kernel's sweep tells. activity: empty between two configurations."""
        self._done_count = self._earlier_count + done_count
        self._activity = activity or self._activity
        self.tick()

    def tick(self) -> None:
        """Tell how far the call is where it is time for that."""
        now_s = self._clock_s()
        if now_s < self._next_told_s:
            return
        self._next_told_s = now_s + TOLD_EVERY_S
        elapsed_s = now_s - self._start_s
        left = ""
        if self._done_count:
            left = f", about {_clock_text(elapsed_s / self._done_count * (self.total_count - self._done_count))} left"
        told = f"{self._done_count} of {self.total_count} configurations after {_clock_text(elapsed_s)}{left}"
        self._say(f"{told}: {self._activity}" if self._activity else f"{told}.")


def _clock_text(duration_s: float) -> str:
    """0:01:15"""
    return str(timedelta(seconds=round(duration_s)))
