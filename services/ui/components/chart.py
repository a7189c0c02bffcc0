"""The card around a chart: title, legend, notes, and the menu that writes it to a file."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import panel as pn
import param
from bokeh.core.property.vectorization import Field

from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Text, card, html, locked
from kernalyse.services.ui.components.figure import Figure
from kernalyse.services.ui.view import PageView

MAX_KEY_LENGTH: Final = 40
"""Of a series in the URL: longer names are told apart by a digest, for eight of them have to fit."""

MAX_ENTRIES: Final = 24
"""More would push the chart off the screen; those beyond share colours anyway."""

FAILED_MEANING: Final = "Results that do not match the reference are drawn hollow or crossed"
IMPLAUSIBLE_MEANING: Final = "Faster than the device can be: fewer flop or bytes than claimed, or a cached result"


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A name with its colour and symbol.

    Args:
        series: key of the series that it hides; empty: it explains a shape and cannot be hidden.
        meaning: shown when the pointer rests on it.
    """

    name: str
    color: str
    symbol: str
    series: str = ""
    is_hidden: bool = False
    meaning: str = ""


def series_key(name: str) -> str:
    """Return what stands for a series of this name in the URL."""
    if len(name) <= MAX_KEY_LENGTH:
        return name or "-"
    return f"{name[:24]}~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def hidden_names(names: Iterable[str], hidden: Collection[str]) -> set[str]:
    """Return those of these series whose keys are among the hidden."""
    return {name for name in names if series_key(name) in hidden} if hidden else set()


def hideable(entries: Iterable[LegendEntry], hidden: Collection[str], names: Iterable[str] | None = None) -> list[LegendEntry]:
    """Return the entries as buttons. names: of their series, where these differ from what is shown of them."""
    listed = list(entries)
    keys = [series_key(name) for name in (names or (entry.name for entry in listed))]
    return [replace(entry, series=key, is_hidden=key in hidden) for entry, key in zip(listed, keys, strict=True)]


class Legend(pn.custom.JSComponent):
    """A line of entries. Panel has no part for it: colours and symbols of buttons.

    Args:
        view: of the page; a click on an entry hides its series there, or shows it again.
        label: what is told of it to those who do not see it.
    """

    entries = param.List(default=[], item_type=dict)

    _esm = Path(__file__).with_name("legend.js")

    def __init__(self, view: PageView, **params: Any) -> None:
        super().__init__(**{"sizing_mode": "stretch_width", "margin": 0, **params})
        self._view = view
        self.on_msg(lambda event: self._view.toggle_series(str(event.data)))

    def show(self, entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> None:  # type: ignore[override]  # Panel's own starts a server
        """Show these entries; what has failed or cannot be is explained at their end."""
        listed = list(entries)
        left_out = len(listed) - MAX_ENTRIES
        shown = listed[:MAX_ENTRIES]
        if left_out > 0:
            shown.append(LegendEntry(f"and {theme.count(left_out)} more", "inherit", ""))
        if has_failed:
            shown.append(LegendEntry("wrong result", "inherit", "○", meaning=FAILED_MEANING))
        if has_implausible:
            shown.append(LegendEntry("implausible", "var(--bad)", theme.IMPLAUSIBLE_SYMBOL, meaning=IMPLAUSIBLE_MEANING))
        self.entries = [
            {
                "name": entry.name,
                "color": entry.color,
                "symbol": entry.symbol,
                "series": entry.series,
                "hidden": entry.is_hidden,
                "meaning": entry.meaning or ("" if not entry.series else "Show this series" if entry.is_hidden else "Hide this series"),
            }
            for entry in shown
        ]


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

    _esm = Path(__file__).with_name("download.js")

    def __init__(self, title: str, figure: Figure) -> None:
        super().__init__(title=title, chart=figure.name, figure_id=figure.figure.id, margin=0, css_classes=["menu"])
        self._figure = figure.figure
        self.on_msg(locked(self._asked))

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


class ChartCard:
    """A figure with its title and legend above and its note below.

    Args:
        further: below the note.
    """

    def __init__(self, title: str, figure: Figure, view: PageView, *further: Any) -> None:
        self._legend = Legend(view, sizing_mode=None, min_width=0, styles={"flex": "1 1 120px", "width": "auto"})
        self._title = Text(html("<h2>{}</h2>", title), sizing_mode=None)
        self._download = Download(title, figure)
        self.note = Text(classes=("note", "chart-note"))
        parts = (self._title, self._legend, self._download)
        head = pn.FlexBox(*parts, gap="4px 14px", align_items="baseline", css_classes=["card-head"], sizing_mode="stretch_width")
        self.layout = card(head, figure.pane, self.note, *further, classes=("chart",))

    def show_title(self, title: str) -> None:
        """Show another title: something else is drawn."""
        if title != self._download.title:
            self._title.show(html("<h2>{}</h2>", title))
            self._download.title = title

    def show_legend(self, entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> None:
        """Show these entries; what has failed or cannot be is explained at their end."""
        self._legend.show(entries, has_failed=has_failed, has_implausible=has_implausible)
        shown = [{name: entry[name] for name in ("name", "color", "symbol")} for entry in self._legend.entries if not entry["hidden"]]
        self._download.legend = shown
