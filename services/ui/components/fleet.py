"""The fleet: every device of every node in one table, what its last check and its counters of errors say, and what it does."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.device_health import SLOWER, health_problems, slower_sentence
from kernalyse.services.core.model import Device, DeviceCheck, DeviceKind, NodeHealth, NodeStatus, Run, TableQuery, Telemetry
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, card, field, flow, html, joined
from kernalyse.services.ui.components.nodes import health_words
from kernalyse.services.ui.components.table import Column, Heading, PagedRows, extent_of
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.view import FleetView, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

REFRESH_S: Final = 2.0
"""Between two looks at all devices, and between two questions for their checks: a thousand of them cost some milliseconds."""

HOW: Final = html(
    "<p>A check measures copies, multiply-adds, tensor cores and small launches of every device, and compares equal devices: "
    "<code>kernalyse fleet check</code></p>"
)
WORDS: Final = {"finding": "findings", "gone": "gone", "unchecked": "not checked", "fine": "nothing found"}
LOOKS: Final = {"finding": "failed", "gone": "failed", "unchecked": "queued", "fine": "succeeded"}
ORDER: Final = tuple(WORDS)
"""Of states: what somebody has to look at comes first."""

Judgements = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""Rows of table fleet by node_id and device_id."""


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of the fleet.

    Args:
        findings: a sentence for everything that is wrong with it.
        run: that goes on or waits there; None: none.
        checked_unix_ns: its last check; None: there was none.
    """

    status: NodeStatus
    device: Device
    reading: Telemetry | None
    findings: tuple[str, ...]
    run: Run | None
    checked_unix_ns: int | None

    @property
    def state(self) -> str:
        """Return one of ORDER."""
        if self.findings:
            return "finding"
        if self.status.health is NodeHealth.UNREACHABLE:
            return "gone"
        return "unchecked" if self.checked_unix_ns is None else "fine"

    @property
    def node_name(self) -> str:
        """Return what people call its node."""
        return self.status.node.hostname if self.status.node else self.status.address


def fleet_devices(overview: Overview, readings_of: Callable[[str], Iterable[Telemetry]], judgements: Judgements) -> list[FleetDevice]:
    """Return all devices of all nodes, those of a node together.

    Args:
        readings_of: returns the newest reading of each device of a node.
        judgements: of the last check of each device.
    """
    going_on = {(run.node_id, run.device_id): run for run in reversed(overview.runs) if not run.state.is_final}
    found = []
    for status in overview.nodes:
        if status.node is None:
            continue
        node_id = status.node.node_id
        readings = {reading.device_id: reading for reading in readings_of(node_id)}
        for device in status.node.devices:
            reading, rows = readings.get(device.device_id), judgements.get((node_id, device.device_id), ())
            if device.kind is DeviceKind.CPU:
                reading = readings.get(None)  # its host's
            slower = (slower_sentence(row) for row in rows if row["verdict"] == SLOWER)
            counted = () if reading is None else health_problems(reading.error_counts)
            checked_unix_ns = max((row["measured_unix_ns"] for row in rows), default=None)
            run = going_on.get((node_id, device.device_id))
            found.append(FleetDevice(status, device, reading, (*counted, *slower), run, checked_unix_ns))
    return found


SORT_KEYS: Final[dict[str, Callable[[FleetDevice], Any]]] = {
    "state": lambda row: ORDER.index(row.state),
    "node": lambda row: natural(row.node_name),
    "device": lambda row: (row.device.name, natural(row.device.device_id)),
    "use": lambda row: row.reading and row.reading.utilization_ratio,
    "memory": lambda row: row.reading and row.reading.memory_used_bytes,
    "temperature": lambda row: row.reading and row.reading.temperature_celsius,
    "power": lambda row: row.reading and row.reading.power_watts,
    "checked": lambda row: row.checked_unix_ns,
}


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key by which node10 comes after node9."""
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text))


def ordered(devices: Iterable[FleetDevice], view: FleetView) -> list[FleetDevice]:
    """Return the devices that the view asks for in its order; those without a value come last."""
    word = view.search.strip().lower()
    wanted = [
        row
        for row in devices
        if (not view.state or row.state == view.state)
        and (not word or word in row.node_name.lower() or word in f"{row.device.device_id} {row.device.name}".lower())
    ]
    wanted.sort(key=lambda row: (ORDER.index(row.state), natural(row.node_name), natural(row.device.device_id)))
    key = SORT_KEYS.get(view.sort)
    if key is None:
        return wanted
    known = [row for row in wanted if key(row) is not None]
    return sorted(known, key=key, reverse=view.descending) + [row for row in wanted if key(row) is None]


class Fleet(Component):
    """What the page's components stand on: all devices, looked at every two seconds.

    Attributes:
        devices: all of them.
        version: another when they may have changed.
    """

    def __init__(self, context: Context, view: FleetView) -> None:
        super().__init__(context)
        self.view = view
        self.devices: list[FleetDevice] = []
        self.version = 0
        self._checks: Question[pl.DataFrame] = Question(context.wake)
        self._judgements: Judgements = {}
        self._answer: pl.DataFrame | None = None
        self._overview: Overview | None = None
        self._next_s = 0.0

    @property
    def problem(self) -> str:
        """Why nothing is known of checks; empty: it is."""
        return self._checks.problem

    def close(self) -> None:
        self._checks.stop()

    def update(self) -> None:
        overview = self.context.overview
        ended_count = sum(run.is_settled and isinstance(run.spec.work, DeviceCheck) for run in overview.runs)
        self._checks.ask("fleet", self._ask, (ended_count, overview.revision, overview.is_known), REFRESH_S)
        answer = self._checks.answer
        if answer is not None and answer is not self._answer:
            self._answer, self._next_s = answer, 0.0
            parts = answer.partition_by("node_id", "device_id", as_dict=True)
            self._judgements = {(str(node_id), str(device_id)): part.to_dicts() for (node_id, device_id), part in parts.items()}
        now = time.monotonic()
        if now < self._next_s and (self._overview is None or overview.nodes is self._overview.nodes):
            return
        self._overview, self._next_s = overview, now + REFRESH_S
        self.devices = fleet_devices(overview, self.context.client.nodes.newest_telemetry, self._judgements)
        self.version += 1

    async def _ask(self) -> pl.DataFrame:
        return (await self.context.client.table(TableQuery("fleet"))).rows


class FleetSummary(Component):
    """How many devices there are, and how many of them have what."""

    def __init__(self, context: Context, fleet: Fleet) -> None:
        super().__init__(context)
        self._fleet = fleet
        self._tiles = Text(classes=("tiles",))
        self._note = Text(classes=("note",))
        self.layout = card(self._tiles, self._note, classes=("summary",))

    def update(self) -> None:
        devices = self._fleet.devices
        counts = Counter(row.state for row in devices)
        node_count = len({row.status.address for row in devices})
        busy_count = sum(row.run is not None for row in devices)
        told = [
            ("Devices", theme.count(len(devices))),
            ("Nodes", theme.count(node_count)),
            ("Busy", theme.count(busy_count)),
            *((WORDS[state].capitalize(), theme.count(counts[state])) for state in ORDER),
        ]
        self._tiles.show(joined(html('<div class="tile"><span>{}</span><strong>{}</strong></div>', *tile) for tile in told))
        self._note.show(html("<p>{}</p>", self._fleet.problem) if self._fleet.problem else HOW)


class FleetTable(PagedRows):
    """A row for each device; findings come first."""

    HEADINGS: Final = (
        Heading(Column("State", 135), "state"),
        Heading(Column("Node", 110), "node"),
        Heading(Column("Device", 170), "device"),
        Heading(Column("Findings")),
        Heading(Column("Runs", 120)),
        Heading(Column("Use", 90, is_number=True), "use"),
        Heading(Column("Memory", 100, is_number=True), "memory"),
        Heading(Column("Temp.", 90, is_number=True), "temperature"),
        Heading(Column("Power", 90, is_number=True), "power"),
        Heading(Column("Checked", 110, is_number=True), "checked"),
    )

    def __init__(self, context: Context, fleet: Fleet) -> None:
        view = fleet.view
        search = field(pn.widgets.TextInput, view.param.search, placeholder="Part of a name", onkeyup=True)
        state = field(pn.widgets.Select, view.param.state)
        super().__init__(context, view, "fleet", "Devices", below=(flow(search, state, classes=("filters",)),))
        self._fleet = fleet
        self._made: object = None

    def update(self) -> None:
        made = (self._fleet.version, self._fleet.view.written(), self.context.view.written())
        if made == self._made:
            return
        self._made = made
        wanted = ordered(self._fleet.devices, self._fleet.view)
        extent = extent_of(self._fleet.view, len(wanted))
        rows = [self._cells(row) for row in wanted[extent.first : extent.end]]
        self.show_rows(self.HEADINGS, rows, extent, "" if wanted else html('<div class="empty">{}</div>', self._empty()))

    def _empty(self) -> str:
        if self._fleet.devices:
            return "No device matches these filters."
        return "No node has told of a device yet." if self.context.overview.is_known else "Waiting for the analyzer's list."

    def _cells(self, row: FleetDevice) -> tuple[Any, ...]:
        reading, findings = row.reading, "; ".join(row.findings)
        word = health_words(row.status) if row.state == "gone" else WORDS[row.state]
        age_s = None if row.checked_unix_ns is None else time.time() - row.checked_unix_ns / 1e9
        return (
            html('<span class="state {}">{}</span>', LOOKS[row.state], word),
            html('<a href="/nodes?{}">{}</a>', to_query(self.context.view, node=row.status.address), row.node_name),
            html('{} <span class="note">{}</span>', row.device.device_id, row.device.name),
            html('<span title="{0}">{0}</span>', findings),
            self._run(row),
            theme.percent(reading.utilization_ratio) if reading else theme.UNKNOWN,
            theme.memory(reading.memory_used_bytes) if reading else theme.UNKNOWN,
            theme.temperature(reading.temperature_celsius) if reading else theme.UNKNOWN,
            theme.power(reading.power_watts) if reading else theme.UNKNOWN,
            "never" if age_s is None else f"{_age(age_s)} ago",
        )

    def _run(self, row: FleetDevice) -> Markup:
        run = row.run
        if run is None:
            return html('<span class="note">{}</span>', "only observes") if row.status.observes_only else Markup()
        return html('<a href="/live?{}" title="{}">{}</a>', to_query(self.context.view, runs=[run.run_id]), run.title, run.title)


def _age(seconds: float) -> str:
    """Return an age that does not change every second: rows would be sent anew."""
    if seconds < 60:
        return "less than 1 min"
    return f"{seconds // 86400:.0f} days" if seconds >= 2 * 86400 else theme.span(seconds // 60 * 60).replace(" 00 s", "")
