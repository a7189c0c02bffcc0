"""Stretches of a trace's time: what a page shows of it, and what it asks for to show that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

TEXT: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
MARGIN_RATIO: Final = 0.25
"""Of the view, on both sides of it: what a tile has beyond it, so that a drag shows something before the next one is there."""

MIN_LENGTH_NS: Final = 20
SHARPNESS_RATIO: Final = 0.7
"""A tile with fewer pixels than that for those of the screen looks coarse."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Nanoseconds since the start of the session; the end is after the start."""

    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From "start..end"; None: it is no window."""
        found = TEXT.fullmatch(text)
        if found is None or int(found[2]) <= int(found[1]):
            return None
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.start_ns}..{self.end_ns}"

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    def within(self, other: TimeWindow) -> bool:
        return other.start_ns <= self.start_ns and self.end_ns <= other.end_ns

    def clipped(self, other: TimeWindow) -> TimeWindow:
        """The part in the other; where there is none, the other."""
        start, end = max(self.start_ns, other.start_ns), min(self.end_ns, other.end_ns)
        return TimeWindow(start, end) if end > start else other

    def widened(self, ratio: float) -> TimeWindow:
        """By that part of its length on both sides."""
        margin = max(int(self.length_ns * ratio), 1)
        return TimeWindow(self.start_ns - margin, self.end_ns + margin)

    def around(self, start_ns: int, end_ns: int) -> TimeWindow:
        """As long as this one, with that in its middle; longer where it would not fit."""
        length = max(self.length_ns, (end_ns - start_ns) * 2, MIN_LENGTH_NS)
        start = (start_ns + end_ns - length) // 2
        return TimeWindow(start, start + length)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A window and the pixels that its length is drawn with."""

    window: TimeWindow
    pixel_count: int

    @classmethod
    def for_view(cls, view: TimeWindow, whole: TimeWindow, pixel_count: int) -> Self:
        """pixel_count: of the view."""
        window = view.widened(MARGIN_RATIO).clipped(whole)
        return cls(window, max(1, round(pixel_count * window.length_ns / view.length_ns)))

    @property
    def pixel_ns(self) -> float:
        return self.window.length_ns / self.pixel_count

    def serves(self, view: TimeWindow, whole: TimeWindow, pixel_ns: float) -> bool:
        """Whether the view needs no other tile."""
        return view.clipped(whole).within(self.window) and self.pixel_ns * SHARPNESS_RATIO <= max(pixel_ns, 1.0)
