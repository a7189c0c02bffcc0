"""A dashboard as one HTML file: charts, tables and the library that draws them inside, nothing asked of any server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import holoviews as hv
from bokeh.embed import components
from bokeh.themes import Theme
from bokeh.util.paths import bokehjs_path
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from services import ui
from services.ui.charts.elements import bokeh_theme
from services.ui.charts.models import figure_of
from services.ui.theme import LIGHT

LIBRARY: Final = Path(bokehjs_path()) / "js" / "bokeh.min.js"
"""Not bokeh.resources: Panel, once loaded, adds scripts of a server of its own there."""

SHEET: Final = Path(ui.__path__[0]) / "assets" / "shell.css"
TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=False, auto_reload=False
)

Width = Literal["wide", "half", "third"]


@dataclass(frozen=True, slots=True)
class Chart:
    """One card. key: names and colours, where colours need one."""

    title: str
    element: hv.Overlay
    width: Width = "half"
    note: str = ""
    key: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class FigureTable:
    """rows: a cell for each heading. A heading "verdict" colours its cells, "why" wraps them."""

    title: str
    headings: tuple[str, ...]
    numeric: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""


def write_page(path: Path, title: str, facts: Sequence[tuple[str, str]], tables: Sequence[FigureTable], charts: Sequence[Chart]) -> None:
    """facts: of the system panel, name and value."""
    script, places = components([figure_of(chart.element) for chart in charts], theme=Theme(json=bokeh_theme(LIGHT)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        TEMPLATES.get_template("page.html").render(
            title=title,
            sheet=Markup(SHEET.read_text()),
            library=Markup(LIBRARY.read_text()),
            facts=facts,
            tables=[_shown(table) for table in tables],
            charts=[_placed(chart, place) for chart, place in zip(charts, places, strict=True)],
            script=Markup(script),
        )
    )


def _shown(table: FigureTable) -> Mapping[str, Any]:
    rows = [list(zip(table.headings, row, strict=True)) for row in table.rows]
    return {"title": table.title, "headings": table.headings, "numeric": table.numeric, "rows": rows, "note": table.note}


def _placed(chart: Chart, place: str) -> Mapping[str, Any]:
    return {"title": chart.title, "width": chart.width, "note": chart.note, "key": chart.key, "place": Markup(place)}
