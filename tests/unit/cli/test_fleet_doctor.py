"""What `kernalyse doctor --fleet` says of nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from kernalyse.services.cli.doctor import CheckState, check_fleet, is_fleet_whole
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Node, NodeHealth, NodeStatus

H100 = Device("cuda:0", "NVIDIA H100", DeviceKind.GPU, (BackendName.NVCC,))
NODE = Node("id", "gpu1", "1.0", "j", datetime.now(UTC), (H100, replace(H100, device_id="cuda:1")))
SERVING = NodeStatus("gpu1:7001", NodeHealth.SERVING, NODE)


def test_a_whole_fleet() -> None:
    checks = check_fleet([SERVING])
    assert [(check.name, check.state, check.found, check.remedy) for check in checks] == [("gpu1", CheckState.OK, "2 x NVIDIA H100", "")]
    assert is_fleet_whole(checks)


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
