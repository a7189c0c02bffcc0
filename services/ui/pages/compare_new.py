"""The page Compare: a candidate run judged by a baseline, configuration by configuration, or kernel by kernel of two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.components.compare import NO_PAIR, ComparedTable, CompareFilters, Difference, Pair, SideChoice, Sources, Tiles
from kernalyse.services.ui.components.compare_charts import ChangeChart, ComparedRoofline, SpeedupChart
from kernalyse.services.ui.components.first_visit import FirstVisit
from kernalyse.services.ui.view import CompareView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class ComparePage(Component):
    """Lays out what the page shows; what two runs do not have, or must not be compared by, is left out."""

    def __init__(self, context: Context, view: CompareView) -> None:
        super().__init__(context)
        pair = self._pair = Pair(context, view)
        sides, difference = SideChoice(context, pair), Difference(context, pair)
        self._tiles = Tiles(context, pair)
        self._filters = CompareFilters(context, pair)
        self._charts = (SpeedupChart(context, view, pair), ChangeChart(context, view, pair), ComparedRoofline(context, view, pair))
        self._table = ComparedTable(context, pair)
        self._first = FirstVisit(context, "compare", lambda: pair.problem == NO_PAIR)
        self._sources = Sources(context, pair)
        self.parts = (pair, sides, difference, self._tiles, self._filters, *self._charts, self._table, self._sources, self._first)
        self._grid = pn.Column(*self._charts, css_classes=["charts"], sizing_mode="stretch_width")
        self.layout = pn.Column(
            card(sides, difference), self._tiles, self._first, self._filters, self._grid, self._table, self._sources,
            css_classes=["stage"], sizing_mode="stretch_width",
        )  # fmt: skip

    def update(self) -> None:
        super().update()
        is_shown = self._pair.shown is not None
        drawn = [chart for chart in self._charts if chart.has_rows]
        shown = {part.layout: is_shown for part in (self._tiles, self._sources)}
        shown |= {
            self._filters.layout: self._pair.answer is not None,
            self._grid: bool(drawn),
            self._table.layout: not self._first.is_shown,
        }
        shown |= {chart.layout: chart in drawn for chart in self._charts}
        for layout, is_visible in shown.items():
            if layout.visible != is_visible:
                layout.visible = is_visible
        classes = ["charts"] if len(drawn) > 1 else ["charts", "of-one"]
        if self._grid.css_classes != classes:
            self._grid.css_classes = classes
