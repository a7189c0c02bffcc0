"""Rows of the page Fleet: what each device's state is, and which come first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kernalyse.services.core.model import (
    Device,
    DeviceCheck,
    DeviceKind,
    ErrorCount,
    Node,
    NodeHealth,
    NodeStatus,
    Run,
    RunSpec,
    RunState,
    Telemetry,
)
from kernalyse.services.ui.components.fleet import FleetDevice, Judgements, fleet_devices, ordered
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.view import FleetView

MOMENT = datetime(2026, 5, 4, tzinfo=UTC)


def status(name: str, *device_ids: str, health: NodeHealth = NodeHealth.SERVING, kind: DeviceKind = DeviceKind.GPU) -> NodeStatus:
    devices = tuple(Device(device_id, "H100", kind, ()) for device_id in device_ids)
    return NodeStatus(f"{name}:7001", health, Node(f"id of {name}", name, "1.0", "j", MOMENT, devices))


def judgement(verdict: str, **further: Any) -> dict[str, Any]:
    row = {"check": "copy", "verdict": verdict, "baseline": "31 equal devices", "reason": None, "measured_unix_ns": 5}
    return row | {"rate_ratio": 0.94, "rate_ratio_low": 0.93, "rate_ratio_high": 0.95} | further


def devices(
    nodes: list[NodeStatus], readings: dict[str, list[Telemetry]] | None = None, judgements: Judgements | None = None, *runs: Run
) -> list[FleetDevice]:
    return fleet_devices(Overview(tuple(nodes), runs, "", True, 0), lambda node_id: (readings or {}).get(node_id, []), judgements or {})


def names(rows: list[FleetDevice]) -> list[str]:
    return [f"{row.node_name} {row.device.device_id}" for row in rows]


def test_what_somebody_has_to_look_at_comes_first_then_by_name() -> None:
    nodes = [status("node10", "cuda:0"), status("node9", "cuda:0", "cuda:1"), status("node2", "cuda:0", health=NodeHealth.UNREACHABLE)]
    fine, slow = [judgement("FINE")], [judgement("FINE"), judgement("SLOWER")]
    found = devices(nodes, {}, {("id of node10", "cuda:0"): slow, ("id of node9", "cuda:1"): fine})
    rows = ordered(found, FleetView())
    assert names(rows) == ["node10 cuda:0", "node2 cuda:0", "node9 cuda:0", "node9 cuda:1"]
    assert [row.state for row in rows] == ["finding", "gone", "unchecked", "fine"]
    assert rows[0].findings == ("copy 6.0 % slower (5.0 to 7.0 %) than 31 equal devices",)
    assert names(ordered(found, FleetView(sort="node"))) == ["node2 cuda:0", "node9 cuda:0", "node9 cuda:1", "node10 cuda:0"]


def test_counters_of_errors_are_a_finding_without_any_check() -> None:
    reading = Telemetry(1, "cuda:0", error_counts=(ErrorCount("ECC uncorrected", 2), ErrorCount("ECC corrected", 9)))
    (row,) = devices([status("node1", "cuda:0")], {"id of node1": [reading]})
    assert row.findings == ("ECC uncorrected: 2; reset the device, and have it replaced when they come back",)


def test_devices_are_searched_filtered_and_sorted_and_unknown_values_come_last() -> None:
    readings = {"id of node1": [Telemetry(1, "cuda:0", power_watts=300.0), Telemetry(1, "cuda:1", power_watts=700.0)]}
    found = devices([status("node1", "cuda:0", "cuda:1"), status("node2", "cuda:0")], readings)
    assert names(ordered(found, FleetView(sort="power"))) == ["node1 cuda:0", "node1 cuda:1", "node2 cuda:0"]
    assert names(ordered(found, FleetView(sort="power", descending=True))) == ["node1 cuda:1", "node1 cuda:0", "node2 cuda:0"]
    assert names(ordered(found, FleetView(search="NODE2"))) == ["node2 cuda:0"]
    assert names(ordered(found, FleetView(search="cuda:1"))) == ["node1 cuda:1"]
    assert ordered(found, FleetView(state="fine")) == []


def test_a_device_has_the_run_that_goes_on_there_and_a_cpu_device_its_hosts_reading() -> None:
    run = Run("r1", "id of node1", RunSpec(DeviceCheck()), RunState.RUNNING, MOMENT, device_id="opencl:0")
    ended = replace(run, run_id="r2", state=RunState.SUCCEEDED)
    host = Telemetry(1, utilization_ratio=0.5)
    (row,) = devices([status("node1", "opencl:0", kind=DeviceKind.CPU)], {"id of node1": [host]}, {}, ended, run)
    assert row.run is run
    assert row.reading is host


@pytest.mark.parametrize("text", ["state=finding", "search=gpu1", "sort=power&descending=1"])
def test_the_view_stands_in_the_url(text: str) -> None:
    view = FleetView()
    query = dict(part.split("=") for part in text.split("&"))
    view.read(query)
    assert view.written() == query
