"""How wide the columns of a printed table are, in characters."""

from __future__ import annotations

import textwrap
from typing import Final

from kernalyse.services.ui.charts.names import elided
from kernalyse.services.ui.report.document import FigureTable

MIN_CHARACTERS: Final = 5
MAX_CHARACTERS: Final = 70


def column_characters(table: FigureTable, room: int) -> list[int]:
    """As wide as their cells and headings. Where that is too wide together, headings are wrapped, then the widest columns give way.

    Args:
        room: characters of all columns together.
    """
    cells = [max((len(" ".join(row[place].split())) for row in table.rows), default=0) for place in range(len(table.headings))]
    words = [max(map(len, heading.split()), default=0) for heading in table.headings]
    counts = [_bounded(max(cell, len(heading))) for cell, heading in zip(cells, table.headings, strict=True)]
    if sum(counts) > room:
        counts = [_bounded(max(cell, word)) for cell, word in zip(cells, words, strict=True)]
    while sum(counts) > room and max(counts) > MIN_CHARACTERS:
        counts[counts.index(max(counts))] -= 1
    return counts


def _bounded(count: int) -> int:
    return min(MAX_CHARACTERS, max(MIN_CHARACTERS, count))


def cell_text(cell: str, character_count: int, max_line_count: int) -> str:
    """What there is room for in so many lines: a long cell loses its middle."""
    text = elided(cell, character_count * max_line_count)
    if len(textwrap.wrap(text, character_count)) <= max_line_count:
        return text
    return elided(cell, character_count * max_line_count * 3 // 4)  # words that are not broken leave room at the ends of lines


def cell_lines(cell: str, character_count: int, max_line_count: int) -> list[str]:
    return textwrap.wrap(cell_text(cell, character_count, max_line_count), character_count) or [""]
