"""A document as PDF, on sheets of A4 across: what the run is, its charts, small ones together, then its tables."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from kernalyse.services.ui.charts.elements import elided
from kernalyse.services.ui.charts.printing import FONT_PT, SMALL_FONT_PT
from kernalyse.services.ui.report.chart_figures import Sheet, chart_height, draw_chart, words_of
from kernalyse.services.ui.report.document import Chart, Document, FigureTable, Width, cell_lines, column_characters
from kernalyse.services.ui.theme import LIGHT

A4: Final = Sheet(width=11.69, left=0.7, right=0.7, top=0.6, bottom=0.7, growth=1.35)
HEIGHT: Final = 8.27
ROOM: Final = HEIGHT - A4.top - A4.bottom
CHART_GAP: Final = 0.3  # inches between two charts of a sheet
COLUMN_GAP: Final = 0.45  # inches between two charts of a row
CHARTS_PER_ROW: Final[dict[Width, int]] = {"wide": 1, "half": 2, "third": 3}
MIN_GROWTH: Final = 0.85
"""Of charts that share a sheet. Smaller ones have no room between their labels; larger ones leave half of most sheets empty."""

LINE: Final = 0.2  # inches from one line to the next
CHARACTER: Final = 0.068  # inches of one, on average, in the small font
MAX_CELL_LINES: Final = 4
GAP: Final = 0.16  # inches between columns
SENTENCE_CHARACTERS: Final = 150

Row = list[tuple[Chart, Sheet]]
"""Charts beside each other, each with the part of the sheet that it has."""


def write_pdf(path: Path, document: Document) -> None:
    with PdfPages(path, metadata={"Title": document.title, "Creator": "kernalyse", "CreationDate": None}) as pages:
        writing = _Writing(pages, document.title)
        writing.write_facts(document)
        for table in document.tables:
            writing.write_table(table)
        writing.end_sheet()
        for rows in _sheets(side_by_side(document.charts)):
            writing.save(_chart_sheet(rows))
        for table in document.details:
            writing.write_table(table)
        writing.end_sheet()


class _Writing:
    """Lines down a sheet, and the next sheet where one is full."""

    def __init__(self, pages: PdfPages, title: str) -> None:
        self._pages = pages
        self._title = elided(title, 100)
        self._figure: Figure | None = None
        self._y = 0.0  # inches from the top of what comes next
        self._count = 0

    def save(self, figure: Figure) -> None:
        """With the document's name and the sheet's number at its foot."""
        self._count += 1
        style: dict[str, Any] = {"fontsize": SMALL_FONT_PT, "color": LIGHT.muted}
        figure.text(A4.left / A4.width, 0.35 / HEIGHT, self._title, **style)
        figure.text(1 - A4.right / A4.width, 0.35 / HEIGHT, str(self._count), ha="right", **style)
        self._pages.savefig(figure)

    def end_sheet(self) -> None:
        if self._figure is not None:
            self.save(self._figure)
            self._figure = None

    def write_facts(self, document: Document) -> None:
        for line in textwrap.wrap(document.title, 60, max_lines=3, placeholder=" …"):
            self._write(line, size=18, weight="bold", height=0.36)
        self._y += 0.15
        for name, value in document.facts:
            lines = textwrap.wrap(value, 120, max_lines=4, placeholder=" …") or [""]
            for number, line in enumerate(lines):
                if number == 0:
                    self._write(name, color=LIGHT.muted, height=0)
                self._write(line, x=1.7, size=FONT_PT + 0.5, height=0.22)

    def write_table(self, table: FigureTable) -> None:
        self._need(0.36 + LINE * (len(table.lead) + min(6, len(table.rows) + 1)))
        self._y += 0.18
        self._write(table.title, size=12, weight="bold", height=0.3)
        for sentence in table.lead:
            self._write_sentence(sentence)
        if table.rows:
            self._write_rows(table)
        if table.note:
            self._write_sentence(table.note)

    def _write_sentence(self, sentence: str) -> None:
        for line in textwrap.wrap(sentence, SENTENCE_CHARACTERS, max_lines=8, placeholder=" …"):
            self._write(line, color=LIGHT.muted, height=LINE)

    def _write_rows(self, table: FigureTable) -> None:
        columns = _columns(table)
        self._write_row(table.headings, columns, is_heading=True)
        for row in table.rows:
            if self._need(LINE * max(map(len, _wrapped(row, columns)))):
                self._write_row(table.headings, columns, is_heading=True)
            self._write_row(row, columns, is_heading=False)

    def _write_row(self, cells: Sequence[str], columns: Sequence[_Column], *, is_heading: bool) -> None:
        for line in itertools.zip_longest(*_wrapped(cells, columns), fillvalue=""):
            for text, column in zip(line, columns, strict=True):
                self._write(
                    text,
                    x=column.x + (column.width if column.is_numeric else 0),
                    color=LIGHT.muted if is_heading else LIGHT.text,
                    weight="bold" if is_heading else "normal",
                    align="right" if column.is_numeric else "left",
                    height=0,
                )
            self._y += LINE * 0.8
        self._y += LINE * 0.2

    def _need(self, height: float) -> bool:
        """Begins a new sheet where there is less room than that; answers whether it has."""
        if self._figure is not None and self._y + height <= HEIGHT - A4.bottom:
            return False
        self.end_sheet()
        self._figure = Figure(figsize=(A4.width, HEIGHT))
        self._y = A4.top
        return True

    def _write(
        self,
        text: str,
        *,
        x: float = 0.0,
        size: float = SMALL_FONT_PT,
        color: str = LIGHT.text,
        weight: str = "normal",
        align: str = "left",
        height: float = LINE,
    ) -> None:
        """x: inches from the margin. height: that the line takes; 0: the next one stands beside it."""
        self._need(max(height, LINE))
        assert self._figure is not None
        place = ((A4.left + x) / A4.width, 1 - (self._y + 0.1) / HEIGHT)
        self._figure.text(*place, text, fontsize=size, color=color, fontweight=weight, ha=align, va="center")
        self._y += height


@dataclass(frozen=True, slots=True)
class _Column:
    """Inches from the margin."""

    x: float
    width: float
    character_count: int
    is_numeric: bool


def _wrapped(cells: Sequence[str], columns: Sequence[_Column]) -> list[list[str]]:
    return [cell_lines(cell, column.character_count, MAX_CELL_LINES) for cell, column in zip(cells, columns, strict=True)]


def _columns(table: FigureTable) -> list[_Column]:
    room = A4.inner_width - GAP * (len(table.headings) - 1)
    columns, x = [], 0.0
    for heading, count in zip(table.headings, column_characters(table, int(room / CHARACTER)), strict=True):
        columns.append(_Column(x, count * CHARACTER, count, heading in table.numeric))
        x += count * CHARACTER + GAP
    return columns


def side_by_side(charts: Sequence[Chart]) -> list[Row]:
    """Narrow charts that follow each other stand side by side, as on the page, each with its part of the sheet; others alone."""
    rows: list[Row] = []
    for width, group in itertools.groupby(charts, key=lambda chart: chart.width):
        of_width = list(group)
        per_row = CHARTS_PER_ROW[width]
        for start in range(0, len(of_width), per_row):
            beside = of_width[start : start + per_row]
            rows.append([(chart, _part_of_sheet(place, len(beside))) for place, chart in enumerate(beside)])
    return rows


def _part_of_sheet(place: int, count: int) -> Sheet:
    part = (A4.inner_width + COLUMN_GAP) / count
    left = A4.left + place * part
    return replace(A4, left=left, right=A4.width - left - part + COLUMN_GAP)


def _sheets(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """As many on a sheet as fit when they are drawn small, in their order."""
    sheet: list[Row] = []
    for row in rows:
        if sheet and _height([*sheet, row], MIN_GROWTH) > ROOM:
            yield sheet
            sheet = []
        sheet.append(row)
    if sheet:
        yield sheet


def _height(rows: Sequence[Row], growth: float) -> float:
    """Inches that they take with their words, one below the other."""
    of_rows = (max(words_of(chart, part).height + chart_height(chart) * growth for chart, part in row) for row in rows)
    return sum(of_rows) + CHART_GAP * (len(rows) - 1)


def _chart_sheet(rows: Sequence[Row]) -> Figure:
    """As large as there is room, and no larger than is sensible."""
    figure = Figure(figsize=(A4.width, HEIGHT), facecolor=LIGHT.surface)
    words_height = _height(rows, 0)
    growth = min(A4.growth, (ROOM - words_height) / (_height(rows, 1) - words_height))
    top = A4.top
    for row in rows:
        height = _height([row], growth)
        for chart, part in row:
            draw_chart(figure, chart, part, words_of(chart, part), (top, height))
        top += height + CHART_GAP
    return figure
