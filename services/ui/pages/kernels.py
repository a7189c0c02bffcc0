"""The page Kernels: how configurations did over their parameters, kernel by kernel, row by row, and sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit
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
        choices, heatmap = KernelFilters(context, view, charted), HeatmapChart(context, view, charted)
        table = KernelTable(context, view, charted)
        self._intensity, self._performance = IntensityChart(context, view, charted), PerformanceChart(context, view, charted)
        self._detail: KernelDetail | None = None  # made with the first choice: three figures that many visitors never see
        self._first = FirstVisit(context, "kernels")
        self.parts = (charted, choices, heatmap, self._intensity, self._performance, table, chosen, self._first)
        self._split = pn.Column(self._intensity, self._performance, css_classes=["charts"], sizing_mode="stretch_width")
        self._always = (choices.layout, heatmap.layout, self._split, table.layout)
        self.layout: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        if self._view.configuration and self._detail is None:
            self._detail = KernelDetail(self.context, self._view, self._chosen)
            self.parts = (*self.parts, self._detail)
        super().update()
        if self._intensity.layout.visible != self._intensity.has_rows:
            self._intensity.layout.visible = self._intensity.has_rows
        classes = ["charts"] if self._intensity.has_rows else ["charts", "of-one"]
        if self._split.css_classes != classes:
            self._split.css_classes = classes
        detail = [self._detail.layout] if self._detail is not None and self._view.configuration else []
        lay_out(self.context, self.layout, [self._first.layout] if self._first.is_shown else [*self._always, *detail])


class KernelDetail(Component):
    """Lays out what is known of the chosen row; parts that it does not have are left out."""

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen) -> None:
        super().__init__(context)
        self._head, self._listings = RowHead(context, chosen), Listings(context, chosen)
        self._samples = (OrderChart(context, view, chosen), DistributionChart(context, view, chosen), ClockChart(context, view, chosen))
        self.parts = (self._head, *self._samples, self._listings)
        self._grid = pn.Column(*self._samples, css_classes=["charts"], sizing_mode="stretch_width")
        self.layout: Any = pn.Column(self._head, css_classes=["stage", "detail"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        for chart in self._samples:
            if chart.layout.visible != chart.has_rows:
                chart.layout.visible = chart.has_rows
        samples = [self._grid] if any(chart.has_rows for chart in self._samples) else []
        listings = [self._listings.layout] if self._listings.has_rows else []
        lay_out(self.context, self.layout, [self._head.layout, *samples, *listings])
