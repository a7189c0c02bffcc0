"""The last hour of a node: a chart for each kind of figure, a line for its host and each of its devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import panel as pn

from kernalyse.services.core.model import Telemetry
from kernalyse.services.ui.charts import node_telemetry
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.charts.node_telemetry import LAYERS, METRICS, Series
from kernalyse.services.ui.components.base import card
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.legend import Legend, LegendEntry, hideable, series_key
from kernalyse.services.ui.components.node_cards import NodePart
from kernalyse.services.ui.components.text import Text, html
from kernalyse.services.ui.made_once import MadeOnce
from kernalyse.services.ui.view import NodesView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

CHARTS: Final = {metric.name: RenderedChart(node_telemetry.empty_metric_chart, metric.name) for metric in METRICS}
_lines = MadeOnce(8)  # each of some megabytes


class NodeHour(NodePart):
    """Charts of what the node's readings have; the others are left out."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self.figures = {name: Figure(name, chart, context.palette, LAYERS) for name, chart in CHARTS.items()}
        self._drawn: object = None
        self._node_id = ""
        self._legend, self._note = Legend(view), Text(classes=("note",))
        head = pn.FlexBox(Text(html("<h2>The last hour</h2>"), sizing_mode=None), self._legend, css_classes=["card-head"])
        self._charts = {m.name: pn.Column(Text(html("<h3>{}</h3>", m.title)), self.figures[m.name].pane) for m in METRICS}
        self._grid = pn.Column(css_classes=["charts"], sizing_mode="stretch_width")
        self.layout = card(head, self._note, self._grid)

    def update(self) -> None:
        node_id = self.node.node_id if self.node else ""
        newest = max((reading.measured_unix_ns for reading in self.context.client.nodes.newest_telemetry(node_id)), default=0)
        drawn = (node_id, newest, tuple(self.view.hidden))
        if drawn == self._drawn:
            return
        self._drawn, is_other, self._node_id = drawn, node_id != self._node_id, node_id
        series, lines = _lines.get((node_id, newest, self.context.palette), partial(self._columns, node_id))
        hidden = [layer for layer, one in zip(LAYERS, series, strict=False) if series_key(one.title) in self.view.hidden]
        for metric in METRICS:
            figure, columns = self.figures[metric.name], lines[metric.name]
            if is_other:
                figure.forget_moves()
            for layer, line in zip(LAYERS, columns, strict=True):
                figure.replace(layer, line)
            figure.hide(hidden)
            start, end = node_telemetry.time_range(columns)
            figure.follow("x", start, max(end, start + 60_000))
            shown = [line for layer, line in zip(LAYERS, columns, strict=True) if layer not in hidden and len(line["time"])]
            figure.follow("y", *node_telemetry.value_range(shown or columns, metric))
        known = [self._charts[m.name] for m in METRICS if any(len(line["time"]) for line in lines[m.name])]
        if list(self._grid) != known:
            self._grid[:] = known
        self._note.show("" if series else "No reading has arrived yet.")
        entries = [LegendEntry(one.title, one.color, node_telemetry.DASH_SYMBOLS[one.dash]) for one in series]
        self._legend.show(hideable(entries, self.view.hidden))

    def _columns(self, node_id: str) -> tuple[tuple[Series, ...], dict[str, list[Columns]]]:
        of_device: dict[str | None, list[Telemetry]] = {}
        for reading in self.context.client.nodes.telemetry(node_id):
            of_device.setdefault(reading.device_id, []).append(reading)
        series = node_telemetry.series_of(list(of_device), self.context.palette)
        empty = [node_telemetry.no_line()] * (len(LAYERS) - len(series))
        return series, {
            m.name: [*(node_telemetry.line_columns(of_device[one.device_id], m, one.title) for one in series), *empty] for m in METRICS
        }
