"""Devices of a node: what they are, what they can do at most, and what they and their host did in the last hour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
from markupsafe import Markup

from kernalyse.services.core.file_formats import SOURCES, known_ceiling
from kernalyse.services.core.formatting import device_use
from kernalyse.services.core.model import Ceiling, Device, DeviceKind, Hardware, HardwareKey, NodeHealth, Telemetry
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import node_telemetry
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.charts.node_telemetry import LAYERS, METRICS, Series
from kernalyse.services.ui.components.base import Text, card, html, joined
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hideable, series_key
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.nodes import NodePart, fact_list, shown_node
from kernalyse.services.ui.data.memory import MadeOnce
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.view import NodesView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


MIN_INTERVAL_S: Final = 2.0
"""Between two questions for peaks."""

SOURCE_TITLES: Final = {"user": "Set by hand", "measured": "Measured", "datasheet": "Datasheet", "clock": "At max. clock"}
LEVELS: Final = ("dram", "l2", "l1", "shared")
NO_DEVICE: Final = html(
    '<p class="empty">No device that a backend can drive. <code>kernalyse doctor</code> on that machine says what it lacks.</p>'
)


class Devices(NodePart):
    """Each device with its peaks, which open."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self._known: Question[dict[str, Hardware]] = Question(context.wake)
        self._shown: tuple[str, ...] = ()
        self._entries: list[DeviceEntry] = []
        self._said = Text()
        self._list = pn.Column(css_classes=["devices"], sizing_mode="stretch_width")
        self.layout = card(Text(html("<h2>Devices</h2>")), self._said, self._list)

    def close(self) -> None:
        self._known.stop()

    def update(self) -> None:
        node, overview = self.node, self.context.overview
        devices = node.devices if node else ()
        node_id = node.node_id if node else ""
        shown = (node_id, *(device.device_id for device in devices))
        if shown != self._shown:
            self._shown = shown
            self._entries = [DeviceEntry(device) for device in devices]
        known: dict[str, Hardware] = {}
        if devices:
            ended_count = sum(run.state.is_final for run in overview.runs if run.node_id == node_id)  # each may have measured ceilings
            subject = (node_id, shown[1:])
            self._known.ask(subject, partial(self._ask, *subject), (overview.revision, ended_count), MIN_INTERVAL_S)
            known = self._known.answer_to(subject) or {}
        newest = {reading.device_id: reading for reading in self.context.client.nodes.newest_telemetry(node_id)}
        for entry, device in zip(self._entries, devices, strict=True):
            entry.show(device, known.get(device.device_id), newest.get(device.device_id))
        problem = html('<p class="problem block" role="alert">{}</p>', self._known.problem) if devices and self._known.problem else ""
        self._said.show(problem or (NO_DEVICE if node and not devices else ""))
        layouts = [entry.layout for entry in self._entries]
        if list(self._list) != layouts:
            self._list[:] = layouts

    async def _ask(self, node_id: str, device_ids: Sequence[str]) -> dict[str, Hardware]:
        found = await asyncio.gather(*(self.context.client.hardware(HardwareKey(node_id, device_id)) for device_id in device_ids))
        return dict(zip(device_ids, found, strict=True))


class DeviceEntry:
    """One device: what it is, and a table of its peaks that opens."""

    def __init__(self, device: Device) -> None:
        self._facts, self._said, self._table = Text(), Text(), Text(classes=("peaks",))
        self._device_id = device.device_id
        self._peaks = pn.Card(self._table, title="Peaks", collapsed=True, css_classes=["fold"], visible=False, sizing_mode="stretch_width")
        self.layout = pn.Column(self._facts, self._said, self._peaks, css_classes=["device-entry"], sizing_mode="stretch_width")

    def show(self, device: Device, hardware: Hardware | None, reading: Telemetry | None) -> None:
        """Show what is known of it. hardware: None: not yet known."""
        head = html('<h3>{} <span class="note">{} · {}</span></h3>', device.name, device.device_id, str(device.kind).lower())
        facts: list[tuple[str, object]] = [
            ("Backends", ", ".join(device.backends).lower()),
            ("Runtime", device.runtime),
            ("Driver", device.driver_version),
            ("CUDA toolkit", device.toolkit_version),
            ("Compute capability", device.compute_capability),
            ("Multiprocessors" if device.kind == "GPU" else "Cores", device.compute_unit_count),
            ("Memory", theme.memory(device.memory_bytes) if device.memory_bytes else None),
            ("Max. clock", theme.frequency(device.max_clock_hz) if device.max_clock_hz else None),
        ]
        if reading is not None and device.kind is DeviceKind.GPU:
            facts.append(("Use", device_use(reading.other_processes)))
        if reading is not None and reading.throttle_reasons:
            facts.append(("Throttled by", html('<span class="problem">{}</span>', ", ".join(reading.throttle_reasons))))
        self._facts.show(head + fact_list(facts))
        rows = [] if hardware is None else ceiling_rows(hardware)
        if hardware is None:
            self._said.show(html('<p class="empty">Asking the analyzer for its peaks.</p>'))
        else:
            self._said.show("" if rows else html('<p class="note">{}</p>', peaks_in_short(hardware)))
        if hardware is not None and rows:
            self._table.show(self._told(hardware, rows))
            measured_ns = max((c.measured_unix_ns or 0 for c in hardware.ceilings if c.source == "measured"), default=0)
            age = f" · measured {theme.span(time.time() - measured_ns / 1e9)} ago" if measured_ns else ""
            title = f"Peaks: {peaks_in_short(hardware)}{age}"
            if self._peaks.title != title:
                self._peaks.title = title
        if self._peaks.visible != bool(rows):
            self._peaks.visible = bool(rows)

    def _told(self, hardware: Hardware, rows: Sequence[dict[str, Any]]) -> Markup:
        titles = joined(html('<th class="n">{}</th>', title) for title in SOURCE_TITLES.values())
        cell = '<td class="n" title="{note}">{text}</td>'
        lines = joined(
            html('<tr><td class="name">{}</td>{}</tr>', row["title"], joined(html(cell, **value) for value in row["values"]))
            for row in rows
        )
        table = (
            '<div class="wide-table" tabindex="0" role="region" aria-label="Peaks of {}"><table><thead><tr><th>Ceiling</th>{}</tr></thead>'
            "<tbody>{}</tbody></table></div>"
        )
        thresholds = hardware.thresholds
        note = html(
            '<p class="note">Inefficient below {} of what memory allows, {} of what computing allows. '
            "Both, and peaks by hand, are set on the Roofline page.</p>",
            theme.percent(thresholds.memory_inefficient_ratio),
            theme.percent(thresholds.compute_inefficient_ratio),
        )
        return html(table, self._device_id, titles, lines) + note


def ceiling_rows(hardware: Hardware) -> list[dict[str, Any]]:
    """Return a row for each memory level and for each data type and path, with the value of every source."""
    keys = dict.fromkeys((c.unit, c.ceiling_name, c.path) for c in hardware.ceilings)
    ordered = sorted(keys, key=lambda key: (key[0] != "bytes_per_s", LEVELS.index(key[1]) if key[1] in LEVELS else len(LEVELS), key[1:]))
    rows = []
    for unit, name, path in ordered:
        found = [known_ceiling(hardware, unit, name, path, (source,)) for source in SOURCE_TITLES]
        values = [{"text": _ceiling_rate(c) if c else theme.UNKNOWN, "note": c.note if c else ""} for c in found]
        title = name.upper() if unit == "bytes_per_s" and name in LEVELS[:3] else name
        rows.append({"title": f"{title} on tensor cores" if path == "tensor" else title, "values": values})
    return rows


def _ceiling_rate(ceiling: Ceiling) -> str:
    is_memory = ceiling.unit == "bytes_per_s"
    return theme.byte_rate(ceiling.value) if is_memory else theme.flop_rate(ceiling.value, ceiling.ceiling_name)


def peaks_in_short(hardware: Hardware) -> str:
    """Return memory and single precision as they count, and where from."""
    memory, compute = known_ceiling(hardware, "bytes_per_s", "dram"), known_ceiling(hardware, "flop_per_s", "float32")
    parts = [] if memory is None else [f"memory {theme.byte_rate(memory.value)}, {_source(memory.source)}"]
    parts += [] if compute is None else [f"float32 {theme.flop_rate(compute.value)}, {_source(compute.source)}"]
    return " · ".join(parts) or "no ceiling is known: kernalyse ceilings measures them"


def _source(source: str) -> str:
    assert source in SOURCES
    return SOURCE_TITLES[source].lower()


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
        self._card = ChartCard(self._metric.title, self.figure)
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
