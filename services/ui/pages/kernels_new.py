"""The page Kernels: how configurations did over their parameters, kernel by kernel, row by row, and sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component
from kernalyse.services.ui.components.kernel_charts import ChartedRows, HeatmapChart, IntensityChart, PerformanceChart
from kernalyse.services.ui.components.kernel_detail import Chosen, ClockChart, DistributionChart, Listings, OrderChart, RowHead
from kernalyse.services.ui.components.kernels import KernelFilters, KernelTable
from kernalyse.services.ui.view import KernelsView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class KernelsPage(Component):
    """Lays out what the page shows; charts without anything to draw, and parts that the chosen row does not have, are left out."""

    def __init__(self, context: Context, view: KernelsView) -> None:
        super().__init__(context)
        charted, chosen = ChartedRows(context, view), Chosen(context, view)
        self._view = view
        self._chosen = chosen
        choices, heatmap, table = (
            KernelFilters(context, view, charted),
            HeatmapChart(context, view, charted),
            KernelTable(context, view, charted),
        )
        self._intensity, self._performance = IntensityChart(context, view, charted), PerformanceChart(context, view, charted)
        self._head, self._listings = RowHead(context, chosen), Listings(context, chosen)
        self._samples = (OrderChart(context, view, chosen), DistributionChart(context, view, chosen), ClockChart(context, view, chosen))
        self.parts = (
            charted, choices, heatmap, self._intensity, self._performance, table, chosen, self._head, *self._samples, self._listings,
        )  # fmt: skip
        self._split = pn.Column(self._performance, css_classes=["charts"], sizing_mode="stretch_width")
        self._sample_grid = pn.Column(css_classes=["charts"], sizing_mode="stretch_width")
        self._detail = pn.Column(self._head, css_classes=["stage", "detail"], sizing_mode="stretch_width")
        self._always = (choices.layout, heatmap.layout, self._split, table.layout)
        self.layout = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        split = [part.layout for part in (self._intensity, self._performance) if part is self._performance or part.has_rows]
        _lay_out(self._split, split, ["charts"] if len(split) > 1 else ["charts", "of-one"])
        samples = [chart.layout for chart in self._samples if chart.has_rows]
        _lay_out(self._sample_grid, samples, ["charts"])
        detail = [
            self._head.layout,
            *([self._sample_grid] if samples else []),
            *([self._listings.layout] if self._listings.has_rows else []),
        ]
        _lay_out(self._detail, detail, ["stage", "detail"])
        _lay_out(self.layout, [*self._always, *([self._detail] if self._view.configuration else [])], ["stage"])


def _lay_out(column: Any, parts: list[Any], classes: list[str]) -> None:
    """Show these parts, unless they are shown already."""
    if list(column) != parts:
        column[:] = parts
    if column.css_classes != classes:
        column.css_classes = classes
