"""The card around a chart: title, legend, notes, and the menu that writes it to a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import panel as pn

from kernalyse.services.ui.components.base import card
from kernalyse.services.ui.components.download import Download
from kernalyse.services.ui.components.figure import Figure
from kernalyse.services.ui.components.legend import Legend, LegendEntry
from kernalyse.services.ui.components.text import Text, html
from kernalyse.services.ui.view import PageView


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
