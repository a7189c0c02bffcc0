"""The page History: configurations, models and layers over time, what changed of late, and one of them run by run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit
from kernalyse.services.ui.components.history import Histories, HistoryChart, HistoryFilters, HistoryTable
from kernalyse.services.ui.view import HistoryView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class HistoryPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: HistoryView) -> None:
        super().__init__(context)
        histories = Histories(context, view)
        shown = (HistoryFilters(context, histories), HistoryChart(context, view, histories), HistoryTable(context, histories))
        self._first = FirstVisit(context, "history", lambda: histories.has_none)
        self.parts = (histories, *shown, self._first)
        self._always = [part.layout for part in shown]
        self.layout: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        lay_out(self.context, self.layout, [self._first.layout] if self._first.is_shown else self._always)
