"""The page Nodes: machines that are collected from, their devices and peaks, what they run, and their last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from kernalyse.services.ui.charts.node_telemetry import METRICS
from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.node_cards import AddNode, NodeFacts, NodeList, NodeRuns, shown_node
from kernalyse.services.ui.components.node_devices import Devices
from kernalyse.services.ui.components.node_hour import MetricChart, NodeReadings
from kernalyse.services.ui.view import NodesView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class NodesPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context)
        self._view = view
        add = AddNode(context, view)
        nodes, facts = NodeList(context, view), NodeFacts(context, view, add.tell)
        self._readings = readings = NodeReadings(context, view)
        self._charts: dict[str, MetricChart] = {}  # of figures that some reading has: few machines have all
        runs, devices = NodeRuns(context, view), Devices(context, view)
        self.parts = (nodes, add, facts, runs, devices, readings)
        self._grid = pn.Column(css_classes=["charts"], sizing_mode="stretch_width")
        self._of_node = pn.Column(runs, devices, readings, self._grid, css_classes=["stage"], sizing_mode="stretch_width")
        aside = pn.Column(nodes, add, css_classes=["aside"], sizing_mode="stretch_width")
        stage = pn.Column(facts, self._of_node, css_classes=["stage"], sizing_mode="stretch_width")
        self._stage = stage
        self._facts = facts
        self.layout = pn.Column(aside, stage, css_classes=["two"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        for metric in METRICS:
            if metric.name not in self._charts and any(len(line["time"]) for line in self._readings.lines[metric.name]):
                chart = self._charts[metric.name] = MetricChart(self.context, self._view, metric.name, self._readings)
                chart.update()
                self.parts = (*self.parts, chart)
        lay_out(self.context, self._grid, [self._charts[metric.name].layout for metric in METRICS if metric.name in self._charts])
        is_any = shown_node(self.context, self._view) is not None
        shown = [self._facts.layout, self._of_node] if is_any else [self._facts.layout]
        lay_out(self.context, self._stage, shown)
