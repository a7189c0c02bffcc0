"""The menu of a chart that writes it to a file."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, Final

import panel as pn
import param
from bokeh.core.property.vectorization import Field

from kernalyse.services.ui.components.figure import Figure

LOOKS: Final = frozenset(
    {
        "color",
        "line_color",
        "marker",
        "fill_alpha",
        "line_alpha",
        "size",
        "line_width",
        "line_dash",
        "text_align",
        "text_baseline",
        "text_color",
    }
)
"""Columns that say how rows look, and tell nothing."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


class Download(pn.custom.JSComponent):
    """A figure as PNG, SVG or CSV. Panel has no part for it: Bokeh's own tool saves a figure without title and legend.

    Args:
        title: of the chart.
    """

    title = param.String()
    chart = param.String(doc="Its name, which its own page has in its path.")
    legend = param.List(default=[], item_type=dict, doc="Entries of the chart's legend that are not hidden: name, color, symbol.")
    figure_id = param.String()
    table = param.List(default=["", 0], doc="The figures as CSV, once they have been asked for, and how often they were.")

    _esm = Path(__file__).with_suffix(".js")

    def __init__(self, title: str, figure: Figure) -> None:
        super().__init__(title=title, chart=figure.name, figure_id=figure.figure.id, margin=0, css_classes=["menu"])
        self._figure = figure.figure
        self.on_msg(self._asked)

    def _asked(self, _event: Any) -> None:
        self.table = [figure_csv(self._figure), self.table[1] + 1]


def figure_csv(figure: Any) -> str:
    """Return what is drawn: a block for each layer that has rows, with names, axes and units in its head."""
    blocks, seen = [], set()
    for renderer in figure.renderers:
        source = renderer.data_source
        if not renderer.visible or source.id in seen:
            continue
        seen.add(source.id)
        columns = {name: values for name, values in source.data.items() if name not in LOOKS and len(values)}
        if columns:
            text = io.StringIO()
            writer = csv.writer(text)
            writer.writerow(["layer", *(_head(figure, renderer.glyph, name) for name in columns)])
            layer = (source.name or "").rpartition(":")[2]
            writer.writerows([layer, *(_cell(value) for value in row)] for row in zip(*columns.values(), strict=True))
            blocks.append(text.getvalue())
    return "\r\n".join(blocks)


def _head(figure: Any, glyph: Any, name: str) -> str:
    """A column that lies along an axis tells what the axis tells."""

    def lies_along(*places: str) -> bool:
        found = (getattr(glyph, place, None) for place in places)
        return any(isinstance(value, Field) and value.field == name for value in found)

    axes = (
        figure.xaxis
        if lies_along("x", "x0", "x1", "left", "right", "xs")
        else figure.yaxis
        if lies_along("y", "y0", "y1", "top", "bottom", "ys")
        else []
    )
    words = [word for axis in list(axes)[:1] for word in (axis.axis_label, *axis.formatter.tags[:1]) if isinstance(word, str) and word]
    return f"{name} ({', '.join(words)})" if words else name


def _cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula gets an apostrophe: names come from users."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return "" if isinstance(value, float) and math.isnan(value) else value
