"""Numbers as ncu prints them: with separators of thousands, by the rules of whatever locale it ran in.

One report is in one style. Which one, its unambiguous numbers say: "54,207,744" and "97.32" are of one, "54.207.744" and
"97,32" of the other, and without any such evidence "1.234" is read as ncu writes it by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

SPACES_IN_NUMBERS: Final = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
"""Separators of thousands that cannot be anything else: blanks of several widths (French), apostrophes (Swiss)."""

HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
ANNOTATION: Final = re.compile(r"^\(!\)\s*")  # ncu's mark of a value that something is to be said about
INSTANCES: Final = re.compile(r"\s*\(.*\)$", re.DOTALL)  # "5.2 (1; 2; 3)": the values of single instances behind their sum


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    # Groups of two are India's; the last one has three everywhere, and no grouped number begins with 0.
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{2,3}})*{thousands}\d{{3}}"
    return re.compile(rf"[+-]?(?:{grouped}|\d+)(?:{decimal}\d*)?(?:[eE][+-]?\d+)?|[+-]?{decimal}\d+(?:[eE][+-]?\d+)?")


class NumberStyle(Enum):
    """What stands before the fraction."""

    POINT = "."
    COMMA = ","


PATTERNS: Final = {NumberStyle.POINT: _pattern(",", r"\."), NumberStyle.COMMA: _pattern(r"\.", ",")}


@dataclass(frozen=True, slots=True)
class NumberReader:
    """Reads the cells of one report. is_mixed: its numbers are evidence for both styles."""

    style: NumberStyle
    is_mixed: bool = False

    @classmethod
    def of(cls, cells: Iterable[str]) -> NumberReader:
        """The reader for a report with these cells."""
        votes = {NumberStyle.POINT: 0, NumberStyle.COMMA: 0}
        for cell in cells:
            evidence = _evidence(cell)
            if evidence is not None:
                votes[evidence] += 1
        style = NumberStyle.COMMA if votes[NumberStyle.COMMA] > votes[NumberStyle.POINT] else NumberStyle.POINT
        return cls(style, min(votes.values()) > 0)

    def read(self, cell: str) -> tuple[float | None, str | None]:
        """Value and text of a cell: of a plain number the value alone, of "n/a" the text alone, of an annotated number both."""
        body = INSTANCES.sub("", ANNOTATION.sub("", cell.strip()))
        value = self._number(body)
        return value, None if value is not None and body == cell.strip() and not HEXADECIMAL.fullmatch(body) else cell.strip() or None

    def _number(self, body: str) -> float | None:
        plain = SPACES_IN_NUMBERS.sub("", body)
        if HEXADECIMAL.fullmatch(plain):
            return float(int(plain, 16))
        if not PATTERNS[self.style].fullmatch(plain):
            return None
        thousands = "," if self.style is NumberStyle.POINT else "."
        value = float(plain.replace(thousands, "").replace(",", "."))
        return value if abs(value) != float("inf") else None


def _evidence(cell: str) -> NumberStyle | None:
    """The style that this cell alone proves."""
    points, commas = cell.count("."), cell.count(",")
    if points + commas == 0 or not cell.strip()[-1:].isdigit():
        return None
    fits = [style for style, pattern in PATTERNS.items() if pattern.fullmatch(SPACES_IN_NUMBERS.sub("", cell.strip()))]
    if len(fits) != 1:
        return None  # "1.234" is a number in both, "1.2.3" in none
    return fits[0]
