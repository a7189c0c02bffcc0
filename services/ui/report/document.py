"""What a document of a run consists of, whatever it is written as; and all of it in one HTML file that asks nothing of any server."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import holoviews as hv
from bokeh.embed import components
from bokeh.util.paths import bokehjs_path
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernalyse.services import ui
from kernalyse.services.ui.charts.elements import bokeh_theme, elided
from kernalyse.services.ui.charts.models import figure_of
from kernalyse.services.ui.theme import LIGHT

Width = Literal["wide", "half", "third"]
MIN_CHARACTERS: Final = 5
MAX_CHARACTERS: Final = 70


@dataclass(frozen=True, slots=True)
class Key:
    """What a colour of a chart stands for. symbol: a character of the shape that the colour has."""

    name: str
    color: str
    symbol: str = "■"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart under its title. width: on a page. key: names and colours, where colours need one."""

    title: str
    element: hv.Overlay
    width: Width = "half"
    note: str = ""
    key: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class FigureTable:
    """rows: a cell for each heading. A heading "verdict" colours its cells, "why" wraps them. lead: above, note: below."""

    title: str
    headings: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    lead: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """facts: name and value. tables: before the charts; details: after them."""

    title: str
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    tables: Sequence[FigureTable] = ()
    details: Sequence[FigureTable] = field(default=())


LIBRARY: Final = Path(bokehjs_path()) / "js" / "bokeh.min.js"
"""Not bokeh.resources: Panel, once loaded, adds scripts of a server of its own there."""

SHEET: Final = Path(ui.__path__[0]) / "assets" / "tokens.css"
"""Colours and type, as the dashboard has them."""
TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=False, auto_reload=False
)


def write_page(path: Path, document: Document) -> None:
    charts = document.charts
    figures = [figure_of(chart.element) for chart in charts]
    script, places = components(figures, theme=bokeh_theme(LIGHT)) if figures else ("", ())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        TEMPLATES.get_template("page.html").render(
            title=document.title,
            sheet=Markup(SHEET.read_text()),
            library=Markup(LIBRARY.read_text() if figures else ""),
            facts=document.facts,
            tables=[_shown(table) for table in document.tables],
            charts=[_placed(chart, place) for chart, place in zip(charts, places, strict=True)],
            details=[_shown(table) for table in document.details],
            script=Markup(script),
        )
    )


def _shown(table: FigureTable) -> Mapping[str, Any]:
    rows = [list(zip(table.headings, row, strict=True)) for row in table.rows]
    return {
        "title": table.title,
        "headings": table.headings,
        "numeric": table.numeric,
        "rows": rows,
        "note": table.note,
        "lead": table.lead,
    }


def _placed(chart: Chart, place: str) -> Mapping[str, Any]:
    return {"title": chart.title, "width": chart.width, "note": chart.note, "key": chart.key, "place": Markup(place)}


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
