"""The page Roofline: one or several runs under the ceilings of their devices, filtered, and what limits the point that is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit
from kernalyse.services.ui.components.hardware import HardwarePanel
from kernalyse.services.ui.components.point import PointPanel
from kernalyse.services.ui.components.roofline import PointTable, RooflineChart, RooflineFilters, RooflineRows
from kernalyse.services.ui.components.runs import RunList
from kernalyse.services.ui.view import RooflineView, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class RooflinePage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: RooflineView) -> None:
        super().__init__(context)
        rows = RooflineRows(context, view)

        def href(run_id: str) -> str:
            # The newest run is shown without being named; choosing another adds to it.
            runs = (
                context.view.runs_with(run_id)
                if context.view.runs
                else [run for run in context.shown_run_ids() if run != run_id] + [run_id]
            )
            return f"/roofline?{to_query(context.view, view, runs=runs)}"

        runs = RunList(context, href, context.shown_run_ids, "Choose one or several to lay over each other.")
        choices = RooflineFilters(context, rows)
        chart = RooflineChart(context, view, rows)
        point = PointPanel(context, chart)
        points = PointTable(context, chart)
        hardware = HardwarePanel(context, rows)
        self._first = FirstVisit(context, "roofline")
        self.parts = (runs, choices, chart, point, hardware, points, self._first)
        self._point = point
        self._diagnosed = pn.Column(chart, point, css_classes=["diagnosed"], sizing_mode="stretch_width")
        self._always = [choices.layout, self._diagnosed, hardware.layout, points.layout]
        self._stage = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")
        self.layout = pn.Column(runs, self._stage, css_classes=["two"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        lay_out(self.context, self._stage, [self._first.layout] if self._first.is_shown else self._always)
        classes = ["diagnosed", "with-point"] if self._point.layout.visible else ["diagnosed"]
        if self._diagnosed.css_classes != classes:
            self._diagnosed.css_classes = classes
