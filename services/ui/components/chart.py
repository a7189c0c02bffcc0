"""The card around a chart: title, legend, notes, and the menu that writes it to a file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import panel as pn
import param
from bokeh.core.property.vectorization import Field
from markupsafe import Markup

from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Text, card, html, joined, locked
from kernalyse.services.ui.components.figure import Figure

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


def ended(entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> list[LegendEntry]:
    """Return the entries that are shown; what has failed or cannot be is explained at their end."""
    listed = list(entries)
    left_out = len(listed) - MAX_ENTRIES
    shown = listed[:MAX_ENTRIES]
    if left_out > 0:
        shown.append(LegendEntry(f"and {theme.count(left_out)} more", "inherit", ""))
    if has_failed:
        shown.append(LegendEntry("wrong result", "inherit", "○", meaning=FAILED_MEANING))
    if has_implausible:
        shown.append(LegendEntry("implausible", "var(--bad)", theme.IMPLAUSIBLE_SYMBOL, meaning=IMPLAUSIBLE_MEANING))
    return shown


def legend_html(entries: Iterable[LegendEntry]) -> Markup:
    """Return a line of the entries; those of a series are buttons, which `ChartTools` hears of."""
    shown = [_entry_html(entry) for entry in entries]
    return html('<div class="series">{}</div>', joined(shown)) if shown else Markup()


def _entry_html(entry: LegendEntry) -> Markup:
    name = html('<span class="swatch" style="color:{}" aria-hidden="true">{}</span>{}', entry.color, entry.symbol, entry.name)
    if not entry.series:
        return html('<span title="{}">{}</span>', entry.meaning, name)
    meaning = entry.meaning or f"{'Show' if entry.is_hidden else 'Hide'} this series"
    pressed = "false" if entry.is_hidden else "true"
    return html('<button data-series="{}" aria-pressed="{}" title="{}">{}</button>', entry.series, pressed, meaning, name)


def download_html(title: str, figure: Figure, entries: Iterable[LegendEntry]) -> Markup:
    """Return a menu that writes the figure to a file. entries: of its legend, which pictures have above the figure."""
    legend = [{"name": entry.name, "color": entry.color, "symbol": entry.symbol} for entry in entries if not entry.is_hidden]
    menu = (
        '<details class="download" data-title="{0}" data-chart="{1}" data-figure="{2}" data-legend="{3}">'
        '<summary aria-label="Download chart {0}">Download</summary><div class="pop">{4}</div></details>'
    )
    ways = joined(html('<button data-way="{}">{}</button>', way, words) for way, words in DOWNLOADS.items())
    return html(menu, title, figure.name, figure.figure.id, json.dumps(legend), ways)


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


DOWNLOADS: Final = {
    "alone": "Open alone",
    "embed": "Embed, by a link of 7 days",
    "png": "PNG, a picture",
    "svg": "SVG, a drawing",
    "csv": "CSV, its figures",
}


class ChartTools(pn.custom.JSComponent):
    """What the legends and download menus of all charts of a tab do. Bokeh's own tool saves a figure without title and legend.

    Args:
        toggle: hides the series of a key, or shows it again.
        figure_of: returns the figure of an id; None: there is none.
    """

    table = param.List(default=["", 0], doc="The figures of a chart as CSV, once they have been asked for, and how often they were.")

    _esm = Path(__file__).with_name("chart.js")

    def __init__(self, toggle: Callable[[str], None], figure_of: Callable[[str], Any]) -> None:
        super().__init__()
        self._toggle, self._figure_of = toggle, figure_of
        self.on_msg(locked(self._asked))

    def _asked(self, event: Any) -> None:
        if "series" in event.data:
            self._toggle(str(event.data["series"]))
        figure = self._figure_of(str(event.data.get("csv", "")))
        if figure is not None:
            self.table = [figure_csv(figure), self.table[1] + 1]


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

    def __init__(self, title: str, figure: Figure, *further: Any) -> None:
        self._title, self._figure = title, figure
        self._has_download = True
        self._entries: list[LegendEntry] = []
        self._head = Text()
        self._show_head()
        self.note = Text(classes=("note", "chart-note"))
        self.layout = card(self._head, figure.pane, self.note, *further, classes=("chart",))

    def show_title(self, title: str) -> None:
        """Show another title: something else is drawn."""
        if title != self._title:
            self._title = title
            self._show_head()

    def show_figure(self, *, is_shown: bool) -> None:
        """Show the figure and the menu that writes it to a file, or neither: without rows there is nothing to write."""
        self._figure.pane.visible = is_shown
        if is_shown != self._has_download:
            self._has_download = is_shown
            self._show_head()

    def show_legend(self, entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> None:
        """Show these entries; what has failed or cannot be is explained at their end."""
        shown = ended(entries, has_failed=has_failed, has_implausible=has_implausible)
        if shown != self._entries:
            self._entries = shown
            self._show_head()

    def _show_head(self) -> None:
        """In one piece: each part of its own would be laid out by itself."""
        download = download_html(self._title, self._figure, self._entries) if self._has_download else Markup()
        head = (html("<h2>{}</h2>", self._title), legend_html(self._entries), download)
        self._head.show(html('<div class="chart-head">{}</div>', joined(head)))
