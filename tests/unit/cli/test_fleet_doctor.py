"""What `kernalyse doctor --fleet` says of nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernalyse.services.cli.doctor import CheckState, check_fleet, is_fleet_whole
from kernalyse.services.cli.nodes import known_nodes
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Node, NodeHealth, NodePolicy, NodeStatus

H100 = Device("cuda:0", "NVIDIA H100", DeviceKind.GPU, (BackendName.NVCC,))
NODE = Node("id", "gpu1", "1.0", "j", datetime.now(UTC), (H100, replace(H100, device_id="cuda:1")))
SERVING = NodeStatus("gpu1:7001", NodeHealth.SERVING, NODE)


def test_a_whole_fleet() -> None:
    checks = check_fleet([SERVING])
    assert [(check.name, check.state, check.found, check.remedy) for check in checks] == [("gpu1", CheckState.OK, "2 x NVIDIA H100", "")]
    assert is_fleet_whole(checks)


def test_nodes_that_are_just_being_connected_to_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class StandInClient:
        asked = 0

        def nodes(self) -> list[NodeStatus]:
            self.asked += 1
            return [SERVING if self.asked > 2 else replace(SERVING, health=NodeHealth.CONNECTING)]

    monkeypatch.setattr("kernalyse.services.cli.nodes.CONNECTING_POLL_S", 0.01)
    assert is_fleet_whole(check_fleet(known_nodes(StandInClient())))  # type: ignore[arg-type]


def test_what_is_wrong_with_which_node() -> None:
    since = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    gone = replace(SERVING, health=NodeHealth.UNREACHABLE, problem="no route", unreachable_since_time=since)
    full = replace(SERVING, node=replace(NODE, storage_problem="the disk is full"))
    empty = replace(SERVING, node=replace(NODE, devices=()))
    for status, found in ((gone, "gone since 2026-01-02 03:04 UTC: no route"), (full, "the disk is full"), (empty, "no device")):
        [check] = checks = check_fleet([status])
        assert (check.state, check.found) == (CheckState.MISSING, found)
        assert check.remedy
        assert not is_fleet_whole(checks)
    assert not is_fleet_whole(check_fleet([]))


def test_another_version_is_told_and_no_fault() -> None:
    checks = check_fleet([replace(SERVING, version_note="gpu1 has kernalyse 1.0: install the same version on both.")])
    assert checks[0].found == "2 x NVIDIA H100; kernalyse 1.0"
    assert "install the same version" in checks[0].remedy
    assert is_fleet_whole(checks)


def test_a_node_that_only_observes_is_told_and_no_fault() -> None:
    [check] = checks = check_fleet([replace(SERVING, node=replace(NODE, policy=NodePolicy(observe_only=True)))])
    assert check.found == "2 x NVIDIA H100; only observes"
    assert "measure on another node" in check.remedy
    assert is_fleet_whole(checks)
