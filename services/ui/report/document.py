"""What a document of a run consists of, whatever it is written as; and all of it in one HTML file that asks nothing of any server."""

from __future__ import annotations

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
from kernalyse.services.ui.charts.elements import bokeh_theme
from kernalyse.services.ui.charts.models import figure_of
from kernalyse.services.ui.theme import LIGHT

Width = Literal["wide", "half", "third"]


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
