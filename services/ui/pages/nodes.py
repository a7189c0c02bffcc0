"""The Nodes page: machines that are collected from, their devices and peaks, what they run, their last hour; added and removed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.file_formats import SOURCES, known_ceiling
from kernalyse.services.core.model import Ceiling, Device, Hardware, HardwareKey, NodeHealth, NodeStatus, RunState, Telemetry
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import node_telemetry
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.charts.node_telemetry import METRICS, Series
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hideable, legend_fragment, series_key
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.made_once import MadeOnce
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.shell import PageBase, fragment, run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import Page, ViewState, to_query

REDRAW_INTERVAL_S: Final = 2.0
"""An hour over a few hundred pixels: more often nothing would move."""

SOURCE_TITLES: Final = {"user": "Set by hand", "measured": "Measured", "datasheet": "Datasheet", "clock": "At max. clock"}
LEVELS: Final = ("dram", "l2", "l1", "shared")
HEALTH_WORDS: Final = {NodeHealth.SERVING: "serving", NodeHealth.CONNECTING: "connecting", NodeHealth.UNREACHABLE: "unreachable"}

_lines = MadeOnce(8)  # each of some megabytes
"""Of the chart, shared by all pages of the process."""


_charts = {metric.name: EmptyChart(node_telemetry.empty_metric_chart, metric.name) for metric in METRICS}


class NodesPage(PageBase):
    page: Page = "nodes"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.charts = {name: LiveFigure(name, chart, self.palette, node_telemetry.LAYERS) for name, chart in _charts.items()}
        self._hardware: Question[dict[str, Hardware]] = Question(self.wake)
        self._drawn: tuple[str, int, tuple[str, ...]] | None = None  # node, newest reading, and what is hidden
        self._drawn_time = 0.0  # monotonic
        self._series: tuple[Series, ...] = ()
        self._without: tuple[str, ...] = ()  # charts that have nothing to show
        self._form_number = 0  # another one makes the browser forget what was typed
        self._add_problem = ""
        self._add_note = ""
        self._is_adding = False

    def roots(self) -> dict[str, Any]:
        return {name: chart.figure for name, chart in self.charts.items()}

    def close(self) -> None:
        self._hardware.stop()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "add-node":
                return self._add({str(field): str(text) for field, text in dict(json.loads(value)).items()})
            case "remove-node":
                return self._remove(value)
            case _:
                return super().handle(name, value)

    async def _add(self, typed: dict[str, str]) -> None:
        self._add_problem = self._add_note = ""
        self._is_adding = True
        try:
            certificate = typed.get("ca_certificate", "").strip()
            added = await self.client.add_node(
                typed.get("address", "").strip(), typed.get("token", "").strip(), f"{certificate}\n".encode() if certificate else b""
            )
        except KernalyseError as error:
            self._add_problem = error.message
        else:
            self._form_number += 1
            self._add_note = f"Added {added.node.hostname if added.node else added.address}."
            self.state = replace(self.state, node=added.address)
        finally:
            self._is_adding = False

    async def _remove(self, address: str) -> None:
        await self.client.remove_node(address)
        self.state = replace(self.state, node="")
        self._add_note = f"Removed {address}. Its runs stay."

    # ------------------------------------------------------------ one update

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        status = self._shown(overview)
        self._draw(status)
        return {
            "node_list": self._list(overview, status),
            "add_node": fragment(
                "add_node.html",
                problem=self._add_problem,
                note=self._add_note,
                is_adding=self._is_adding,
                form_number=self._form_number,
                is_first=overview.is_known and not overview.nodes,
            ),
            "node": self._facts(status, overview),
            "devices": self._devices(status, overview),
            "node_runs": self._runs(status, overview),
            "node_legend": self._legend(),
            "node_charts": fragment("node_charts.html", without=self._without, has_any=bool(self._series), status=status),
        }

    def _shown(self, overview: Overview) -> NodeStatus | None:
        """The node that the state names, else the first that serves, else the first."""
        named = next((status for status in overview.nodes if status.address == self.state.node), None)
        serving = next((status for status in overview.nodes if status.health is NodeHealth.SERVING), None)
        return named or serving or next(iter(overview.nodes), None)

    def _list(self, overview: Overview, shown: NodeStatus | None) -> str:
        cards = [
            {
                "address": status.address,
                "name": status.node.hostname if status.node else status.address,
                "health": HEALTH_WORDS[status.health],
                "is_serving": status.health is NodeHealth.SERVING,
                "device_count": len(status.node.devices) if status.node else None,
                "active_count": sum(not run.state.is_final for run in overview.runs if status.node and run.node_id == status.node.node_id),
                "href": f"/nodes?{to_query(replace(self.state, node=status.address))}",
            }
            for status in overview.nodes
        ]
        return fragment(
            "node_list.html", cards=cards, shown=shown.address if shown else "", is_known=overview.is_known, named=self._missing(overview)
        )

    def _missing(self, overview: Overview) -> str:
        """The node that a link names and that is not there."""
        return self.state.node if overview.is_known and self.state.node not in ("", *(s.address for s in overview.nodes)) else ""

    def _facts(self, status: NodeStatus | None, overview: Overview) -> str:
        if status is None:
            return fragment("no_node.html", is_known=overview.is_known)
        node = status.node
        return fragment(
            "node_facts.html",
            status=status,
            node=node,
            health=HEALTH_WORDS[status.health],
            is_serving=status.health is NodeHealth.SERVING,
            up_s=time.time() - node.start_time.timestamp() if node and status.health is NodeHealth.SERVING else None,
            backends=sorted({str(backend).lower() for device in node.devices for backend in device.backends}) if node else [],
            forbidden=_forbidden(status),
        )

    def _runs(self, status: NodeStatus | None, overview: Overview) -> str:
        node_id = status.node.node_id if status and status.node else ""
        active = [run for run in overview.runs if node_id and run.node_id == node_id and not run.state.is_final]
        ordered = sorted(active, key=lambda run: (run.state is not RunState.RUNNING, run.create_time))
        return fragment("node_runs.html", cards=[run_card(run, overview, time.time()) for run in ordered])

    # ------------------------------------------------------------ devices and what they can do

    def _devices(self, status: NodeStatus | None, overview: Overview) -> str:
        node = status.node if status else None
        if node is None:
            return ""
        ended_count = sum(run.state.is_final for run in overview.runs if run.node_id == node.node_id)  # each may have measured ceilings
        device_ids = tuple(device.device_id for device in node.devices)
        self._hardware.ask(
            (node.node_id, device_ids),
            partial(self._ask_hardware, node.node_id, device_ids),
            (overview.revision, ended_count),
            REDRAW_INTERVAL_S,
        )
        known = self._hardware.answer_to((node.node_id, device_ids)) or {}
        newest = {reading.device_id: reading for reading in self.client.nodes.newest_telemetry(node.node_id)}
        devices = [self._device(device, known.get(device.device_id), newest.get(device.device_id)) for device in node.devices]
        return fragment("devices.html", devices=devices, problem=self._hardware.problem, sources=SOURCE_TITLES)

    async def _ask_hardware(self, node_id: str, device_ids: Sequence[str]) -> dict[str, Hardware]:
        found = await asyncio.gather(*(self.client.hardware(HardwareKey(node_id, device_id)) for device_id in device_ids))
        return dict(zip(device_ids, found, strict=True))

    def _device(self, device: Device, hardware: Hardware | None, reading: Telemetry | None) -> dict[str, Any]:
        measured_ns = max((c.measured_unix_ns or 0 for c in hardware.ceilings if c.source == "measured"), default=0) if hardware else 0
        return {
            "device": device,
            "reading": reading,
            "is_known": hardware is not None,
            "rows": [] if hardware is None else _ceiling_rows(hardware),
            "summary": "" if hardware is None else _peaks_in_short(hardware),
            "measured_age_s": time.time() - measured_ns / 1e9 if measured_ns else None,
            "thresholds": None if hardware is None else hardware.thresholds,
        }

    # ------------------------------------------------------------ the last hour

    def _draw(self, status: NodeStatus | None) -> None:
        node_id = status.node.node_id if status and status.node else ""
        newest = max((reading.measured_unix_ns for reading in self.client.nodes.newest_telemetry(node_id)), default=0)
        wanted = (node_id, newest, self.state.hidden)
        is_other = self._drawn is None or self._drawn[0] != node_id
        is_asked_for = self._drawn is None or self._drawn[::2] != wanted[::2]  # another node, or a click in the legend
        if wanted == self._drawn or (not is_asked_for and time.monotonic() - self._drawn_time < REDRAW_INTERVAL_S):
            return
        self._drawn, self._drawn_time = wanted, time.monotonic()
        self._series, lines = _lines.get((node_id, newest, self.palette), partial(self._columns, node_id))
        self._without = tuple(metric.name for metric in METRICS if not any(len(line["time"]) for line in lines[metric.name]))
        titles = dict(zip(node_telemetry.LAYERS, (one.title for one in self._series), strict=False))
        hidden = [layer for layer, title in titles.items() if series_key(title) in self.state.hidden]
        for metric in METRICS:
            chart, of_metric = self.charts[metric.name], lines[metric.name]
            if is_other:
                chart.forget_moves()
            for layer, columns in zip(node_telemetry.LAYERS, of_metric, strict=True):
                if len(columns["time"]) or chart.row_count(layer):
                    chart.replace(layer, columns)
            chart.hide(hidden)
            shown = [columns for layer, columns in zip(node_telemetry.LAYERS, of_metric, strict=True) if layer not in hidden]
            is_any_shown = any(len(columns["time"]) for columns in shown)
            start, end = node_telemetry.time_range(of_metric)
            chart.follow("x", start, max(end, start + 60_000))
            chart.follow("y", *node_telemetry.value_range(shown if is_any_shown else of_metric, metric))

    def _columns(self, node_id: str) -> tuple[tuple[Series, ...], dict[str, list[Columns]]]:
        """Lines of every chart; the device of each is that of the series at its place."""
        of_device: dict[str | None, list[Telemetry]] = {}
        for reading in self.client.nodes.telemetry(node_id):
            of_device.setdefault(reading.device_id, []).append(reading)
        series = node_telemetry.series_of(list(of_device), self.palette)
        empty = [node_telemetry.no_line()] * (node_telemetry.MAX_SERIES - len(series))
        return series, {
            metric.name: [*(node_telemetry.line_columns(of_device[one.device_id], metric, one.title) for one in series), *empty]
            for metric in METRICS
        }

    def _legend(self) -> str:
        entries = [LegendEntry(one.title, one.color, node_telemetry.DASH_SYMBOLS[one.dash]) for one in self._series]
        return legend_fragment(hideable(entries, self.state.hidden))


def _ceiling_rows(hardware: Hardware) -> list[dict[str, Any]]:
    """One for each memory level and for each data type and path, with the value of every source."""
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


def _peaks_in_short(hardware: Hardware) -> str:
    """Memory and single precision as they count, and where from."""
    memory, compute = known_ceiling(hardware, "bytes_per_s", "dram"), known_ceiling(hardware, "flop_per_s", "float32")
    parts = [] if memory is None else [f"memory {theme.byte_rate(memory.value)}, {_source(memory.source)}"]
    parts += [] if compute is None else [f"float32 {theme.flop_rate(compute.value)}, {_source(compute.source)}"]
    return " · ".join(parts) or "no ceiling is known: kernalyse ceilings measures them"


def _source(source: str) -> str:
    assert source in SOURCES
    return SOURCE_TITLES[source].lower()


def _forbidden(status: NodeStatus) -> list[str]:
    """What the node does not let its clients do."""
    if status.node is None:
        return []
    policy = status.node.policy
    rules = (
        (policy.allow_catalog_only, "kernels of its own catalogue only"),
        (not policy.allow_inline_source, "no kernel sources with a request"),
        (not policy.allow_commands, "no free commands"),
    )
    return [words for holds, words in rules if holds]
