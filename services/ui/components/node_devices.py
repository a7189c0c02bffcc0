"""Devices of a node: what they are, and what they can do at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
from markupsafe import Markup

from kernalyse.services.core.file_formats import SOURCES, known_ceiling
from kernalyse.services.core.model import Ceiling, Device, Hardware, HardwareKey, Telemetry
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import card
from kernalyse.services.ui.components.node_cards import NodePart, fact_list
from kernalyse.services.ui.components.text import Text, html, joined
from kernalyse.services.ui.question import Question
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
