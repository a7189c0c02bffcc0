"""The page Live: a run while it goes on, its samples, its place under the roofline, its machine and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit
from kernalyse.services.ui.components.live import LiveResults, LiveRoofline, LiveRun, Log, SamplesChart, TelemetryChart
from kernalyse.services.ui.components.nodes import NodeCards
from kernalyse.services.ui.components.run_header import RunHeader
from kernalyse.services.ui.components.runs import RunList
from kernalyse.services.ui.view import LiveView, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class LivePage(Component):
    """Lays out what the page shows; what a run does not have is left out."""

    def __init__(self, context: Context, view: LiveView) -> None:
        super().__init__(context)
        run = LiveRun(context, view)
        runs = RunList(
            context,
            lambda run_id: f"/live?{to_query(context.view, view, runs=[run_id])}",
            lambda: () if run.memory is None else (run.memory.run_id,),
        )
        nodes = NodeCards(context)
        self._samples = SamplesChart(context, view, run)
        self._roofline = LiveRoofline(context, view, run)
        self._telemetry = TelemetryChart(context, view, run)
        self._log = Log(context, view, run)
        self._results = LiveResults(context, self._roofline)
        header = RunHeader(context, view, run, self._roofline)
        self._first = FirstVisit(context, "live")
        self._run = run
        charts = (self._samples, self._roofline, self._telemetry, self._log)
        self.parts = (run, *charts, self._results, header, self._first, runs, nodes)
        grid = pn.Column(*charts, css_classes=["charts"], sizing_mode="stretch_width")
        self._always = [header.layout, grid, self._results.layout]
        self._stage: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")
        aside = pn.Column(runs, nodes, css_classes=["aside"], sizing_mode="stretch_width")
        self.layout = pn.Column(aside, self._stage, css_classes=["two"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        run = self._run.run
        has_points = run is not None and (not run.is_trace or self._roofline.points.count > 0)
        shown = {
            self._samples: run is not None and not run.is_trace,
            self._roofline: has_points,
            self._results: has_points,
            self._telemetry: run is not None and not (run.is_trace and run.is_imported),
            self._log: run is not None and not (run.is_trace and run.is_imported),
        }
        for part, is_shown in shown.items():
            if part.layout.visible != is_shown:
                part.layout.visible = is_shown
        lay_out(self.context, self._stage, [self._first.layout] if self._first.is_shown else self._always)
