"""Ceilings and thresholds by hand: of devices of nodes, of imported runs and of traces; two edits at once; later states of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.ingest.reading import with_event_indexes
from kernalyse.services.analyzer.queries.hardware_settings import HardwareSettings
from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.derived import ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, MEASUREMENTS, THRESHOLDS
from kernalyse.services.core.errors import DeviceNotFoundError, HardwareChangedError, InvalidRequestError, RunNotFoundError
from kernalyse.services.core.model import (
    Ceiling,
    CeilingMeasurement,
    CeilingsMeasured,
    CommandProfile,
    Device,
    DeviceKind,
    HardwareKey,
    ImportedTrace,
    Run,
    RunEvent,
    RunSpec,
    RunState,
    Thresholds,
    Work,
)
from tests.unit.analyzer.analysis.test_trace_roofline import model_trace

LIST_ID, TRACE_ID = "imported-list", "imported-trace"
NPU = HardwareKey("", "npu", LIST_ID)
LIMITS = Thresholds(0.4, 0.6)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def missing(node_id: str, device_id: str) -> Device:
    raise DeviceNotFoundError(f"device {device_id}", found="no such device")


@pytest.fixture
def settings(store: Store) -> HardwareSettings:
    return HardwareSettings(store, missing)


def add(
    store: Store,
    run_id: str,
    frames: Mapping[str, pl.DataFrame],
    *,
    device_id: str | None = None,
    digest: str = "sha256:0",
    work: Work | None = None,
    node_id: str = "",
) -> bool:
    stored, next_event_index = with_event_indexes(run_id, frames)
    directory = store.reserve_rows(run_id)
    directory.mkdir()
    write_frames(directory, stored)
    count = None if device_id is None else 1
    spec = RunSpec(work or ImportedTrace("a.json", digest, "commands"))
    run = Run(run_id, node_id, spec, RunState.SUCCEEDED, MOMENT, device_id=device_id, total_configuration_count=count)
    return store.add_imported(run, directory, next_event_index)


def add_list(store: Store, *, bytes_per_s: float = 50e9, digest: str = "sha256:0") -> bool:
    """One operation of 10 flop/B and 5 GB/s, and a file that states the memory's bandwidth."""
    operation = {"configuration_index": 0, "device_id": "npu", "label": "mm", "dtype": "float32", "path": "fma", "flop": 50.0, "bytes": 5.0}
    stated = [ceiling_row("dram", "bytes_per_s", bytes_per_s), ceiling_row("float32", "flop_per_s", 1e15)]
    limits = {"device_id": "npu", "memory_inefficient_ratio": 0.4, "compute_inefficient_ratio": 0.6}
    frames = {
        MEASUREMENTS.table_name: frame_from_rows(MEASUREMENTS, [operation | {"duration_mean_ns": 1.0}]),
        CEILINGS.table_name: frame_from_rows(CEILINGS, stated),
        THRESHOLDS.table_name: frame_from_rows(THRESHOLDS, [limits]),
    }
    return add(store, LIST_ID, frames, device_id="npu", digest=digest)


def ceiling_row(name: str, unit: str, value: float) -> dict[str, Any]:
    path = "copy" if unit == "bytes_per_s" else "fma"
    return {"device_id": "npu", "ceiling_name": name, "unit": unit, "value": value, "path": path, "source": "user"}


def bandwidth(value: float, device_id: str = "npu") -> Ceiling:
    return Ceiling(device_id, "dram", "bytes_per_s", value, "copy", "user")


def efficiency(store: Store, run_id: str = LIST_ID) -> float:
    found: float = resolve_table(ROOFLINE, StoreSource(store, [run_id])).collect()["efficiency_ratio"][0]
    return found


def test_what_a_file_states_counts_until_something_else_is_set(store: Store, settings: HardwareSettings) -> None:
    add_list(store)
    before = settings.get(NPU)
    assert (before.device, before.thresholds) == (None, LIMITS)
    assert {ceiling.value for ceiling in before.ceilings} == {50e9, 1e15}
    assert efficiency(store) == pytest.approx(0.1)

    after = settings.update(NPU, [bandwidth(10e9)], Thresholds(0.9, 0.6), before.etag)
    assert [(ceiling.ceiling_name, ceiling.value, ceiling.source) for ceiling in after.ceilings] == [("dram", 10e9, "user")]
    assert after.ceilings[0].measured_unix_ns is not None
    assert after.etag != before.etag
    row = resolve_table(ROOFLINE, StoreSource(store, [LIST_ID])).collect().row(0, named=True)
    assert row["compute_ceiling_flop_per_s"] is None  # it was left out, and the file does not bring it back
    assert settings.update(NPU, [bandwidth(10e9), Ceiling("npu", "float32", "flop_per_s", 1e15, "fma", "user")], None, "").thresholds == (
        Thresholds(0.9, 0.6)
    )
    row = resolve_table(ROOFLINE, StoreSource(store, [LIST_ID])).collect().row(0, named=True)
    assert (row["efficiency_ratio"], row["efficiency_category"]) == (pytest.approx(0.5), "memory inefficient")


@pytest.mark.parametrize("clock_hz", [0, 2**64 - 1])
def test_a_clock_that_no_device_has_is_refused(store: Store, settings: HardwareSettings, clock_hz: int) -> None:
    add_list(store)
    with pytest.raises(InvalidRequestError, match=f"clock_hz.*{clock_hz}"):
        settings.update(NPU, [replace(bandwidth(10e9), clock_hz=clock_hz)], None, "")


def test_an_edit_of_an_outdated_state_is_refused_and_names_both_values(store: Store, settings: HardwareSettings) -> None:
    add_list(store)
    begun = settings.get(NPU).etag
    settings.update(NPU, [bandwidth(80e9)], LIMITS, begun)
    with pytest.raises(HardwareChangedError) as refused:
        settings.update(NPU, [bandwidth(70e9)], LIMITS, begun)
    assert "dram bandwidth 80 GB/s, where this edit has 70 GB/s" in refused.value.message
    assert "threshold" not in refused.value.message  # of these both have the same
    assert settings.get(NPU).ceilings[0].value == 80e9
    settings.update(NPU, [bandwidth(80e9)], LIMITS, begun)  # says what holds already
    settings.update(NPU, [bandwidth(70e9)], LIMITS, settings.get(NPU).etag)


def test_a_later_state_of_a_file_keeps_what_was_set_unless_it_states_something_else(store: Store, settings: HardwareSettings) -> None:
    add_list(store)
    settings.update(NPU, [bandwidth(25e9), Ceiling("npu", "float32", "flop_per_s", 1e15, "fma", "user")], None, "")
    assert not add_list(store)  # the same state
    assert add_list(store, digest="sha256:1")
    assert efficiency(store) == pytest.approx(0.2)
    assert add_list(store, bytes_per_s=100e9, digest="sha256:2")
    assert efficiency(store) == pytest.approx(0.05)


def test_a_query_that_began_before_a_later_state_ends_with_what_it_began_with(store: Store) -> None:
    add_list(store)
    begun = resolve_table(ROOFLINE, StoreSource(store, [LIST_ID]))
    add_list(store, bytes_per_s=100e9, digest="sha256:1")
    assert begun.collect()["efficiency_ratio"][0] == pytest.approx(0.1)
    assert efficiency(store) == pytest.approx(0.05)


def test_kernels_and_layers_of_a_trace_are_held_against_what_is_set_for_it(store: Store, settings: HardwareSettings) -> None:
    add(store, TRACE_ID, {name: frame.collect() for name, frame in model_trace().items()})
    before = of_add(store)
    key = HardwareKey("", before["device_id"], TRACE_ID)
    settings.update(key, [bandwidth(before["achieved_bytes_per_s"] * 4, key.device_id)], Thresholds(0.3, 0.3), "")
    row = of_add(store)
    assert row["efficiency_ratio"] == pytest.approx(0.25)
    assert (row["ceiling_source"], row["efficiency_category"]) == ("user", "memory inefficient")
    settings.update(key, [], None, "")
    assert of_add(store)["ceiling_source"] == "datasheet"


@pytest.mark.parametrize(("device_name", "factor"), [("CPU", 4), ("Unheard Of 9000", 100)])
def test_programs_of_a_node_are_held_against_what_was_measured_of_its_devices(store: Store, device_name: str, factor: int) -> None:
    """A processor on whichever of its devices; other devices of the node do not count, nor does what another node has."""
    trace = {name: frame.collect() for name, frame in model_trace({"device_name": device_name}).items()}
    add(store, TRACE_ID, trace, work=CommandProfile(("python", "train.py"), "kineto"), node_id="node-1")
    assert of_add(store)["efficiency_ratio"] is None
    bytes_per_s = of_add(store)["achieved_bytes_per_s"]
    for node_id, device, times in (
        ("node-1", Device("opencl:pocl:0", "cpu", DeviceKind.CPU, ()), 2),
        ("node-1", Device("opencl:intel:0", "Some Core", DeviceKind.CPU, ()), 4),
        ("node-1", Device("cuda:0", "Unheard Of 9000", DeviceKind.GPU, ()), 100),
        ("node-2", Device("opencl:intel:0", "Some Core", DeviceKind.CPU, ()), 8),
    ):
        measure(store, node_id, device, times * bytes_per_s)
    row = of_add(store)
    assert (row["efficiency_ratio"], row["ceiling_source"]) == (pytest.approx(1 / factor), "measured")
    known = (
        resolve_table(CEILINGS, StoreSource(store, [TRACE_ID])).select("device_id", "ceiling_name", "value").sort("ceiling_name").collect()
    )
    assert known.rows() == [(device_name, "bfloat16", 1e18), (device_name, "dram", factor * bytes_per_s)]


def measure(store: Store, node_id: str, device: Device, bytes_per_s: float, host_busy_ratio: float | None = None) -> None:
    """A run of its own on the node measures the device's memory, and arithmetic that nothing is bound by."""
    store.hardware.publish(node_id, device, [])
    run_id = f"ceilings-{node_id}-{device.device_id}-{bytes_per_s}"
    run = Run(run_id, node_id, RunSpec(CeilingMeasurement()), RunState.RUNNING, MOMENT)
    memory = Ceiling(device.device_id, "dram", "bytes_per_s", bytes_per_s, "copy", "measured", host_busy_ratio=host_busy_ratio)
    measured = CeilingsMeasured((memory, Ceiling(device.device_id, "bfloat16", "flop_per_s", 1e18, "tensor", "measured")))
    store.commit_events(node_id, run_id, [RunEvent(0, run_id, run_id, 1, measured)], [run])


CPU = Device("opencl:intel:0", "Some Core", DeviceKind.CPU, ())
SWEPT_ID = "run-1"


def add_sweep(store: Store, bytes_per_s: float, host_busy_ratio: float) -> None:
    """A run of node-1 that measured its device's memory itself, and then a kernel of 8 GB/s."""
    saxpy = {"configuration_index": 0, "device_id": CPU.device_id, "label": "saxpy", "dtype": "float32", "flop": 2.0, "bytes": 8.0}
    memory = {"device_id": CPU.device_id, "ceiling_name": "dram", "unit": "bytes_per_s", "value": bytes_per_s, "path": "copy"}
    compute = memory | {"ceiling_name": "float32", "unit": "flop_per_s", "value": 1e15, "path": "fma"}
    told = [ceiling | {"source": "measured", "host_busy_ratio": host_busy_ratio} for ceiling in (memory, compute)]
    frames = {
        MEASUREMENTS.table_name: frame_from_rows(MEASUREMENTS, [saxpy | {"duration_median_ns": 1.0}]),
        CEILINGS.table_name: frame_from_rows(CEILINGS, told),
    }
    add(store, SWEPT_ID, frames, device_id=CPU.device_id, node_id="node-1")


def test_a_run_follows_better_ceilings_of_its_device_until_it_has_some_set_by_hand(store: Store, settings: HardwareSettings) -> None:
    add_sweep(store, 10e9, host_busy_ratio=0.98)
    assert efficiency(store, SWEPT_ID) == pytest.approx(0.8)
    measure(store, "node-1", CPU, 40e9, host_busy_ratio=0.02)
    assert efficiency(store, SWEPT_ID) == pytest.approx(0.2)
    measure(store, "node-1", CPU, 20e9, host_busy_ratio=0.9)  # on a busy host again: that says nothing of the device
    assert efficiency(store, SWEPT_ID) == pytest.approx(0.2)
    settings.update(HardwareKey("", CPU.device_id, SWEPT_ID), [bandwidth(16e9, CPU.device_id)], None, "")
    assert efficiency(store, SWEPT_ID) == pytest.approx(0.5)
    measure(store, "node-1", CPU, 80e9, host_busy_ratio=0.01)
    assert efficiency(store, SWEPT_ID) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("own_busy_ratio", "later_bytes_per_s", "later_busy_ratio", "expected"),
    [(0.0, 20e9, 0.0, 0.2), (0.0, 80e9, 0.9, 0.1), (0.9, 20e9, 0.0, 0.4), (0.9, 20e9, 0.8, 0.2)],
    ids=["its own are higher", "a maximum counts wherever it was reached", "a quiet host's count before a busy one's", "both were busy"],
)
def test_which_of_two_measurements_of_a_device_a_run_is_held_against(
    store: Store, own_busy_ratio: float, later_bytes_per_s: float, later_busy_ratio: float, expected: float
) -> None:
    add_sweep(store, 40e9, own_busy_ratio)
    measure(store, "node-1", CPU, later_bytes_per_s, host_busy_ratio=later_busy_ratio)
    assert efficiency(store, SWEPT_ID) == pytest.approx(expected)


def of_add(store: Store) -> dict[str, Any]:
    return resolve_table(ROOFLINE, StoreSource(store, [TRACE_ID])).filter(pl.col("kernel_name") == "add").collect().row(0, named=True)


def test_what_is_not_there_and_what_cannot_be_is_refused(store: Store, settings: HardwareSettings) -> None:
    add_list(store)
    with pytest.raises(RunNotFoundError):
        settings.get(HardwareKey("", "npu", "imported-none"))
    with pytest.raises(DeviceNotFoundError, match="one of npu"):
        settings.get(HardwareKey("", "tpu", LIST_ID))
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidRequestError, match="ceiling dram of npu: value"):
            settings.update(NPU, [bandwidth(value)], None, "")
    with pytest.raises(InvalidRequestError, match="several values"):
        settings.update(NPU, [bandwidth(1.0), bandwidth(2.0)], None, "")


def test_what_was_set_for_a_run_goes_with_it(store: Store, settings: HardwareSettings) -> None:
    add_list(store)
    settings.update(NPU, [bandwidth(80e9)], None, "")
    store.delete_run(LIST_ID)
    add_list(store)
    assert efficiency(store) == pytest.approx(0.1)
