"""The page Compare: a candidate run judged by a baseline, configuration by configuration, or kernel by kernel of two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, card, lay_out
from kernalyse.services.ui.components.compare import NO_PAIR, ComparedTable, CompareFilters, Difference, Pair, SideChoice, Sources, Tiles
from kernalyse.services.ui.components.compare_charts import ChangeChart, ComparedRoofline, SpeedupChart
from kernalyse.services.ui.components.first_visit import FirstVisit, has_no_runs
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
        table = ComparedTable(context, pair)
        self._first = FirstVisit(context, "compare", lambda: pair.problem == NO_PAIR)
        self._sources = Sources(context, pair)
        self.parts = (pair, sides, difference, self._tiles, self._filters, *self._charts, table, self._sources, self._first)
        self._grid = pn.Column(*self._charts, css_classes=["charts"], sizing_mode="stretch_width")
        self._sides = card(sides, difference)
        self._always = [self._tiles.layout, self._filters.layout, self._grid, table.layout, self._sources.layout]
        self.layout: Any = pn.Column(self._sides, *self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        is_shown = self._pair.shown is not None
        drawn = [chart for chart in self._charts if chart.has_rows]
        shown = {part.layout: is_shown for part in (self._tiles, self._sources)}
        shown |= {self._filters.layout: self._pair.answer is not None, self._grid: bool(drawn)}
        shown |= {chart.layout: chart in drawn for chart in self._charts}
        for layout, is_visible in shown.items():
            if layout.visible != is_visible:
                layout.visible = is_visible
        classes = ["charts"] if len(drawn) > 1 else ["charts", "of-one"]
        if self._grid.css_classes != classes:
            self._grid.css_classes = classes
        sides = [] if has_no_runs(self.context) else [self._sides]
        lay_out(self.context, self.layout, [*sides, *([self._first.layout] if self._first.is_shown else self._always)])
