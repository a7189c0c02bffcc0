"""The page History: configurations, models and layers over time, what changed of late, and one of them run by run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from kernalyse.services.ui.components.base import Component
from kernalyse.services.ui.components.history import Histories, HistoryChart, HistoryFilters, HistoryTable
from kernalyse.services.ui.view import HistoryView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class HistoryPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: HistoryView) -> None:
        super().__init__(context)
        histories = Histories(context, view)
        self.parts = (
            histories,
            HistoryFilters(context, histories),
            HistoryChart(context, view, histories),
            HistoryTable(context, histories),
        )
        self.layout = pn.Column(*self.parts[1:], css_classes=["stage"], sizing_mode="stretch_width")
