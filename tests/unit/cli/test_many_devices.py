"""Which devices --on means, and what differs between those of one name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from kernalyse.services.cli.many_devices import compare_devices, difference_lines, left_out_lines, targets_of, use_lines
from kernalyse.services.core.errors import DeviceNotFoundError, InvalidRequestError, UnmetConditionError
from kernalyse.services.core.model import (
    BackendName,
    Device,
    DeviceKind,
    Node,
    NodeHealth,
    NodePolicy,
    NodeStatus,
    NodeTelemetry,
    Telemetry,
)
from kernalyse.services.profiler.backends.cuda.driver import device_settings

H100 = Device(
    *("cuda:0", "NVIDIA H100", DeviceKind.GPU, (BackendName.PYCUDA, BackendName.NVCC)),
    driver_version="580.82",
    settings=(("power limit", "700 W"), ("ECC", "on")),
)
CPU = Device("opencl:intel:0", "Xeon", DeviceKind.CPU, (BackendName.OPENCL,))


def node(name: str, *devices: Device, health: NodeHealth = NodeHealth.SERVING) -> NodeStatus:
    return NodeStatus(f"{name}:7001", health, Node(f"id-{name}", name, "1", "j", datetime.now(UTC), devices))


NODES = [node("a", H100, CPU), node("b", H100, replace(H100, device_id="cuda:1")), node("c", CPU)]


@pytest.mark.parametrize(
    ("which", "labels"),
    [
        ("all", ["a cuda:0", "b cuda:0", "b cuda:1", "c"]),
        ("b,a", ["b cuda:0", "b cuda:1", "a cuda:0"]),
        ("id-c", ["c"]),
        ("h100", ["a cuda:0", "b cuda:0", "b cuda:1"]),
        ("xeon", ["a opencl:intel:0", "c opencl:intel:0"]),
    ],
)
def test_gpus_and_of_nodes_without_one_their_choice(which: str, labels: list[str]) -> None:
    assert [target.label for target in targets_of(NODES, which, None)] == labels


@pytest.mark.parametrize("which", ["A100", "zz", "a,e", " "])
def test_what_means_no_device_is_refused(which: str) -> None:
    with pytest.raises(DeviceNotFoundError, match="kernalyse devices lists them"):
        targets_of([*NODES, node("e", H100, health=NodeHealth.UNREACHABLE)], which, None)


def test_nodes_that_only_observe_are_left_out_and_named() -> None:
    watching = node("w", H100)
    assert watching.node is not None
    watching = replace(watching, node=replace(watching.node, policy=NodePolicy(observe_only=True)))
    nodes = [*NODES, watching]
    assert targets_of(nodes, "all", None) == targets_of(NODES, "all", None)
    assert targets_of(nodes, "h100", None) == targets_of(NODES, "h100", None)
    assert left_out_lines(nodes, "all") == ["Left out, as nothing is run there: w (observe_only)."]
    assert left_out_lines(NODES, "all") == left_out_lines(nodes, "a,b") == []
    with pytest.raises(UnmetConditionError, match="node w: found a node that only observes"):
        targets_of(nodes, "a,w", None)
    with pytest.raises(DeviceNotFoundError, match=r"w \(only observes\)"):
        targets_of([watching], "all", None)


def test_what_differs_between_devices_of_one_name_is_told_and_what_is_unknown_is_not_taken_for_equal() -> None:
    weaker = replace(H100, driver_version="575.1", settings=(("power limit", "500 W"),))
    lines = difference_lines(targets_of([node("a", H100), node("b", weaker), node("c", CPU)], "all", None))
    assert "NVIDIA H100 differ in driver: 580.82 on a cuda:0; 575.1 on b cuda:0" in lines
    assert "NVIDIA H100 differ in power limit: 700 W on a cuda:0; 500 W on b cuda:0" in lines
    assert "NVIDIA H100 differ in ECC: on on a cuda:0; unknown on b cuda:0" in lines
    assert any(line.startswith("NVIDIA H100: unknown of all of them: ") and "VBIOS" in line for line in lines)
    assert not any("Xeon" in line for line in lines)


def test_who_else_uses_a_gpu_is_told_and_what_nobody_knows_is_not_free() -> None:
    def reading(name: str, device_id: str | None, others: tuple[str, ...] | None) -> NodeTelemetry:
        return NodeTelemetry(f"id-{name}", Telemetry(1, device_id, other_processes=others))

    used = ("python 7", "train 8", "train 9", "train 10")
    telemetry = [reading("a", "cuda:0", used), reading("a", None, None), reading("b", "cuda:0", ()), reading("d", "cuda:0", None)]
    told = use_lines(targets_of([*NODES, node("d", H100)], "all", None), telemetry)
    assert told == [
        "a cuda:0: used by 4 other processes (python 7, train 8, train 9, …)",
        "b cuda:0: free",
        "b cuda:1, d cuda:0: unknown",
    ]


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    class NotSupportedError(Exception):
        pass

    def refuses(*_: Any) -> Any:
        raise NotSupportedError

    stand_in_nvml = SimpleNamespace(
        NVMLError=NotSupportedError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
        nvmlDeviceGetEccMode=lambda _: (1, 1),
        nvmlDeviceGetMigMode=refuses,
        nvmlDeviceGetPersistenceMode=lambda _: 0,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _: 5,
        nvmlDeviceGetCurrPcieLinkWidth=lambda _: 16,
        nvmlDeviceGetVbiosVersion=refuses,
        nvmlDeviceGetMaxClockInfo=lambda _, kind: {1: 1980, 2: 2619}[kind],
    )
    assert device_settings(stand_in_nvml, "handle") == (
        ("power limit", "700 W"),
        ("ECC", "on"),
        ("persistence mode", "off"),
        ("PCIe", "generation 5 x16"),
        ("clock limits", "1980 MHz SM and 2619 MHz memory"),
    )


def test_devices_that_chose_other_methods_are_shown_uncompared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise InvalidRequestError("comparison", found="another method (timing_method SINGLE and BATCHED)")

    operand = SimpleNamespace(measurements=pl.DataFrame({"x": [1]}))
    monkeypatch.setattr("kernalyse.services.cli.compare.load_run_operand", lambda *_: operand)
    monkeypatch.setattr("kernalyse.services.analyzer.analysis.comparison.compare_runs", refused)
    nothing: Any = None
    assert compare_devices(nothing, nothing, nothing) == (
        "another method (timing_method SINGLE and BATCHED); a method for all devices is set with --timing"
    )
