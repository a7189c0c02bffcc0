"""A chart as a Matplotlib figure: title, key, chart and note on a sheet of any size; and all of a document as pictures in one zip."""

from __future__ import annotations

import io
import math
import re
import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import holoviews as hv
import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from kernalyse.services.ui.charts.elements import elided
from kernalyse.services.ui.charts.printing import FONT_PT, HATCH_DENSITY, MARKERS, SMALL_FONT_PT, draw
from kernalyse.services.ui.charts.timeline_rows import PATTERN_SYMBOLS, PATTERNS
from kernalyse.services.ui.report.document import Chart, Document, Key
from kernalyse.services.ui.theme import LIGHT, SYMBOLS

PictureFormat = Literal["png", "svg", "pdf"]

PX_PER_INCH: Final = 105
"""Of a chart's height on the page: there it is twelve to thirteen hundred pixels wide, here 9 to 12 inches."""

TITLE_PT: Final = 12.0
CHARACTERS_PER_INCH: Final = 15.5  # of the small font, in sentences
LINE_INCHES: Final = 0.165
TITLE_INCHES: Final = 0.3
KEY_INCHES: Final = 0.22
SWATCH_INCHES: Final = 0.12
KEY_CHARACTERS_PER_INCH: Final = 15.0
MAX_KEY_COUNT: Final = 20
MAX_KEY_ROWS: Final = 4  # more would leave no room for the chart
MAX_NOTE_LINES: Final = 5
SYMBOL_HATCHES: Final = {symbol: pattern for symbol, pattern in zip(PATTERN_SYMBOLS, PATTERNS, strict=True) if pattern is not None}
SYMBOL_MARKERS: Final = {symbol: MARKERS.get(name, "o") for name, symbol in SYMBOLS.items()} | {"▬": "_", "○": "o"}
"""By the characters of a key: the font of a document need not have these."""

mpl.rcParams["svg.fonttype"] = "none"  # text stays text: it can be searched, and read aloud
mpl.rcParams["svg.hashsalt"] = "kernalyse"  # the same chart is the same file
mpl.rcParams["pdf.fonttype"] = 42  # whole fonts, so that text can be searched


@dataclass(frozen=True, slots=True)
class Sheet:
    """Inches. growth: of charts, where there is room. dpi: of pictures."""

    width: float = 9.0
    left: float = 0.15
    right: float = 0.15
    top: float = 0.12
    bottom: float = 0.1
    growth: float = 1.0
    dpi: int = 200

    @property
    def inner_width(self) -> float:
        return self.width - self.left - self.right


PICTURE: Final = Sheet()


def picture(
    chart: Chart, picture_format: PictureFormat, sheet: Sheet = PICTURE, *, with_words: bool = True, max_height: float = math.inf
) -> bytes:
    """A file.

    Args:
        with_words: with title and note, which slides have as text of their own.
        max_height: inches that it may have; a chart that is higher is drawn lower.
    """
    words = words_of(chart, sheet, with_words=with_words)
    height = min(max_height, sheet.top + words.height + chart_height(chart) * sheet.growth + sheet.bottom)
    figure = Figure(figsize=(sheet.width, height), facecolor=LIGHT.surface)
    draw_chart(figure, chart, sheet, words, (sheet.top, height - sheet.top - sheet.bottom))
    buffer = io.BytesIO()
    figure.savefig(buffer, format=picture_format, dpi=sheet.dpi, metadata={"Date": None} if picture_format == "svg" else None)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Words:
    """Beside a chart: title and key above it, its note below. key_rows: entries with their place from the left in inches, as shown."""

    title: str
    key_rows: Sequence[Sequence[tuple[float, Key, str]]]
    note: Sequence[str]

    @property
    def above(self) -> float:
        """Inches."""
        return TITLE_INCHES * bool(self.title) + KEY_INCHES * len(self.key_rows)

    @property
    def height(self) -> float:
        return self.above + LINE_INCHES * len(self.note)


def words_of(chart: Chart, sheet: Sheet, *, with_words: bool = True) -> Words:
    note = textwrap.wrap(chart.note, int(sheet.inner_width * CHARACTERS_PER_INCH), max_lines=MAX_NOTE_LINES, placeholder=" …")
    return Words(chart.title if with_words else "", _key_rows(chart.key, sheet.inner_width), note if with_words else [])


def draw_chart(figure: Figure, chart: Chart, sheet: Sheet, words: Words, place: tuple[float, float]) -> None:
    """With its words. place: top and height of all of it, inches from the figure's top."""
    width, height = figure.get_size_inches()
    top, room = place
    chart_top, chart_bottom = top + words.above, top + room - words.height + words.above
    draw(figure, chart.element, (sheet.left / width, 1 - chart_bottom / height, 1 - sheet.right / width, 1 - chart_top / height))
    x = sheet.left / width
    figure.text(x, 1 - (top + 0.17) / height, words.title, fontsize=TITLE_PT, fontweight="bold", color=LIGHT.text, va="center")
    for row, entries in enumerate(words.key_rows):
        _draw_key(figure, entries, sheet, 1 - (chart_top - KEY_INCHES * (len(words.key_rows) - row - 0.5)) / height)
    for row, line in enumerate(words.note):
        y = 1 - (chart_bottom + LINE_INCHES * (row + 0.7)) / height
        figure.text(x, y, line, fontsize=SMALL_FONT_PT, color=LIGHT.muted, va="center")


def chart_height(chart: Chart) -> float:
    """Inches of the chart alone, in proportion to the browser's."""
    height_px = hv.Store.lookup_options("bokeh", chart.element, "plot").kwargs.get("height", 300)
    return float(max(1.3, height_px / PX_PER_INCH))


def _key_rows(key: Sequence[Key], width: float) -> list[list[tuple[float, Key, str]]]:
    """Row by row, each as Words has it."""
    rows: list[list[tuple[float, Key, str]]] = []
    x = width
    for entry in key[:MAX_KEY_COUNT]:
        name = elided(entry.name)
        needed = 0.35 + len(name) / KEY_CHARACTERS_PER_INCH
        if x + needed > width:
            rows.append([])
            x = 0.0
        rows[-1].append((x, entry, name))
        x += needed
    return rows[:MAX_KEY_ROWS]


def _draw_key(figure: Figure, entries: Sequence[tuple[float, Key, str]], sheet: Sheet, y: float) -> None:
    for x, entry, name in entries:
        left = (sheet.left + x) / sheet.width
        figure.add_artist(_swatch(figure, entry, left, y))
        figure.text(left + 0.18 / sheet.width, y, name, fontsize=FONT_PT, color=LIGHT.muted, va="center")


def _swatch(figure: Figure, entry: Key, left: float, middle: float) -> Artist:
    """Left and middle are shares of the figure."""
    width, height = figure.get_size_inches()
    if entry.symbol not in SYMBOL_HATCHES:
        marker = SYMBOL_MARKERS.get(entry.symbol, "s")
        return Line2D([left + 0.07 / width], [middle], marker=marker, color=entry.color, markersize=6, linestyle="none")
    hatch = SYMBOL_HATCHES[entry.symbol] * HATCH_DENSITY
    place = (left, middle - SWATCH_INCHES / 2 / height)
    size = (SWATCH_INCHES / width, SWATCH_INCHES / height)
    return Rectangle(place, *size, facecolor=entry.color, edgecolor=LIGHT.surface, linewidth=0, hatch=hatch, transform=figure.transFigure)


MAX_STEM_LENGTH = 60


def write_pictures(path: Path, document: Document, picture_format: PictureFormat) -> None:
    """Files are named after their charts, numbered in their order."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, chart in enumerate(document.charts, start=1):
            archive.writestr(f"{number:02d}-{file_stem(chart.title)}.{picture_format}", picture(chart, picture_format))


def file_stem(title: str) -> str:
    """For a file's name: letters, digits and dashes alone."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MAX_STEM_LENGTH] or "chart"
