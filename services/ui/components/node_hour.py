"""The last hour of a node: a chart for each kind of figure, a line for its host and each of its devices."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.model import NodeHealth, Telemetry
from kernalyse.services.ui.charts import node_telemetry
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.charts.node_telemetry import LAYERS, METRICS, Series
from kernalyse.services.ui.components.base import card
from kernalyse.services.ui.components.chart import ChartCard
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.legend import LegendEntry, hideable, series_key
from kernalyse.services.ui.components.node_cards import NodePart, shown_node
from kernalyse.services.ui.components.text import Text, html
from kernalyse.services.ui.made_once import MadeOnce
from kernalyse.services.ui.view import NodesView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

REDRAW_INTERVAL_S: Final = 2.0
"""An hour over a few hundred pixels: more often nothing would move."""

SHORTEST_SPAN_MS: Final = 60_000
EMPTY_CHARTS: Final = {metric.name: RenderedChart(node_telemetry.empty_metric_chart, metric.name) for metric in METRICS}
METRIC_BY_NAME: Final = {metric.name: metric for metric in METRICS}
_lines = MadeOnce(8)  # each of some megabytes


class NodeReadings(NodePart):
    """Lines of the node's readings. It says why there are none."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self.node_id = ""
        self.series: tuple[Series, ...] = ()
        self.lines: dict[str, list[Columns]] = {metric.name: [node_telemetry.no_line()] * len(LAYERS) for metric in METRICS}
        self.version = 0  # another one with each change of the lines
        self._read: tuple[str, int] | None = None  # node, newest reading
        self._read_time = 0.0  # monotonic
        self._count = -1  # of the update that was done
        self._note = Text()
        self.layout = card(Text(html("<h2>The last hour</h2>")), self._note)

    def update(self) -> None:
        if self._count == self.context.update_count:
            return
        self._count = self.context.update_count
        node_id = self.node.node_id if self.node else ""
        newest = max((reading.measured_unix_ns for reading in self.context.client.nodes.newest_telemetry(node_id)), default=0)
        is_other = self._read is None or node_id != self._read[0]
        if not is_other and ((node_id, newest) == self._read or time.monotonic() - self._read_time < REDRAW_INTERVAL_S):
            return
        self._read, self._read_time, self.node_id = (node_id, newest), time.monotonic(), node_id
        self.series, self.lines = _lines.get((node_id, newest, self.context.palette), partial(self._columns, node_id))
        self.version += 1
        status = shown_node(self.context, self.view)
        is_serving = status is not None and status.health is NodeHealth.SERVING
        none = "No reading has arrived yet." if is_serving else "No readings: the node does not answer."
        self._note.show("" if self.series else html('<p class="note">{}</p>', none))
        if self.layout.visible != (not self.series):
            self.layout.visible = not self.series

    def _columns(self, node_id: str) -> tuple[tuple[Series, ...], dict[str, list[Columns]]]:
        """Lines of every chart; the device of each is that of the series at its place."""
        of_device: dict[str | None, list[Telemetry]] = {}
        for reading in self.context.client.nodes.telemetry(node_id):
            of_device.setdefault(reading.device_id, []).append(reading)
        series = node_telemetry.series_of(list(of_device), self.context.palette)
        empty = [node_telemetry.no_line()] * (len(LAYERS) - len(series))
        return series, {
            metric.name: [*(node_telemetry.line_columns(of_device[one.device_id], metric, one.title) for one in series), *empty]
            for metric in METRICS
        }


class MetricChart(NodePart):
    """One kind of figure over the last hour; not shown where no reading has it.

    Args:
        metric: its name, as of `node_telemetry.METRICS`.
    """

    def __init__(self, context: Context, view: NodesView, metric: str, readings: NodeReadings | None = None) -> None:
        super().__init__(context, view)
        self._metric = METRIC_BY_NAME[metric]
        self._readings = readings or NodeReadings(context, view)
        self.figure = Figure(f"node_{metric}", EMPTY_CHARTS[metric], context.palette, LAYERS)
        self._card = ChartCard(self._metric.title, self.figure, view)
        self._drawn: object = None
        self._node_id = ""
        self.layout = self._card.layout

    def update(self) -> None:
        readings = self._readings
        readings.update()
        drawn = (readings.version, tuple(self.view.hidden))
        if drawn == self._drawn:
            return
        self._drawn = drawn
        if readings.node_id != self._node_id:
            self._node_id = readings.node_id
            self.figure.forget_moves()
        lines = readings.lines[self._metric.name]
        hidden = [layer for layer, one in zip(LAYERS, readings.series, strict=False) if series_key(one.title) in self.view.hidden]
        for layer, line in zip(LAYERS, lines, strict=True):
            if len(line["time"]) or self.figure.row_count(layer):
                self.figure.replace(layer, line)
        self.figure.hide(hidden)
        start, end = node_telemetry.time_range(lines)
        self.figure.follow("x", start, max(end, start + SHORTEST_SPAN_MS))
        shown = [line for layer, line in zip(LAYERS, lines, strict=True) if layer not in hidden and len(line["time"])]
        self.figure.follow("y", *node_telemetry.value_range(shown or lines, self._metric))
        entries = [
            LegendEntry(one.title, one.color, node_telemetry.DASH_SYMBOLS[one.dash])
            for one, line in zip(readings.series, lines, strict=False)
            if len(line["time"])
        ]
        self._card.show_legend(hideable(entries, self.view.hidden))
        if self.layout.visible != bool(entries):
            self.layout.visible = bool(entries)
