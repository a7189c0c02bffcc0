"""The roofline by hand: a device of 100 GB/s and 1 Tflop/s has its ridge at 10 flop per byte."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from services.analyzer.analyses.roofline import roofline
from services.analyzer.analyses.summary import kernel_summary
from services.analyzer.event_rows import frame_of
from services.analyzer.schema import CEILINGS, CONFIGURATIONS, FAILURES, KERNELS, MEASUREMENTS, ROOFLINE

MEMORY = {"ceiling_name": "dram", "unit": "bytes_per_s", "value": 100e9, "path": "copy", "source": "datasheet"}
COMPUTE = {"ceiling_name": "float32", "unit": "flop_per_s", "value": 1e12, "path": "fma", "source": "datasheet"}


def measured(**values: Any) -> dict[str, Any]:
    row = {"run_id": "r", "event_index": 5, "configuration_index": 0, "kernel_name": "k", "label": "k N=1", "dtype": "float32"}
    return row | {"device_id": "d", "duration_median_ns": 1e6, "sample_count": 10, "verification_state": "PASSED"} | values


def rows(measurements: list[dict[str, Any]], ceilings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with_keys = [{"run_id": "r", "event_index": 1, "device_id": "d"} | ceiling for ceiling in ceilings]
    frame = roofline(frame_of(MEASUREMENTS, measurements).lazy(), frame_of(CEILINGS, with_keys).lazy()).collect()
    assert frame.schema == pl.Schema(ROOFLINE.schema)
    return frame.rows(named=True)


def test_left_of_the_ridge_memory_binds() -> None:
    (row,) = rows([measured(flop=100e6, bytes=50e6)], [MEMORY, COMPUTE])
    assert row["intensity_flop_per_byte"] == 2.0
    assert row["achieved_flop_per_s"] == pytest.approx(100e9)
    assert row["attainable_flop_per_s"] == pytest.approx(200e9)
    assert row["efficiency_ratio"] == pytest.approx(0.5)
    assert row["ridge_flop_per_byte"] == pytest.approx(10.0)
    assert row["bound"] == "memory"


def test_right_of_the_ridge_compute_binds() -> None:
    (row,) = rows([measured(flop=400e6, bytes=10e6)], [MEMORY, COMPUTE | {"source": "measured"}])
    assert row["attainable_flop_per_s"] == 1e12
    assert row["efficiency_ratio"] == pytest.approx(0.4)
    assert (row["bound"], row["ceiling_source"]) == ("compute", "measured")


@pytest.mark.parametrize("flop", [0.0, None])
def test_a_kernel_without_flop_is_held_against_bandwidth(flop: float | None) -> None:
    (row,) = rows([measured(flop=flop, bytes=25e6)], [MEMORY])
    assert row["intensity_flop_per_byte"] is None
    assert row["achieved_flop_per_s"] is None
    assert row["efficiency_ratio"] == pytest.approx(0.25)
    assert row["bound"] == "memory"


CACHE = MEMORY | {"ceiling_name": "l2", "value": 500e9, "source": "measured"}


def test_hot_bytes_faster_than_dram_are_held_against_the_cache() -> None:
    found = rows(
        [
            measured(flop=20e6, bytes=200e6, cache_mode="HOT"),
            measured(flop=20e6, bytes=99e6, cache_mode="HOT"),
            measured(flop=20e6, bytes=200e6, cache_mode="COLD"),  # cold bytes come from DRAM: above it something is wrong
        ],
        [MEMORY, CACHE, COMPUTE],
    )
    assert [row["memory_level"] for row in found] == ["l2", "dram", "dram"]
    assert [row["efficiency_ratio"] for row in found] == pytest.approx([0.4, 0.99, 2.0])
    assert [row["ceiling_source"] for row in found] == ["measured", "datasheet", "datasheet"]
    (row,) = rows([measured(flop=20e6, bytes=200e6, cache_mode="HOT")], [MEMORY, COMPUTE])
    assert (row["memory_level"], row["efficiency_ratio"]) == ("dram", pytest.approx(2.0))


@pytest.mark.parametrize("ceilings", [[], [MEMORY], [COMPUTE]])
def test_what_a_missing_ceiling_would_tell_stays_unknown(ceilings: list[dict[str, Any]]) -> None:
    (row,) = rows([measured(flop=100e6, bytes=50e6)], ceilings)
    assert row["achieved_flop_per_s"] == pytest.approx(100e9)
    assert [row[name] for name in ("attainable_flop_per_s", "efficiency_ratio", "bound", "ceiling_source")] == [None] * 4


def test_another_data_type_or_device_has_no_ceiling_here() -> None:
    found = rows([measured(flop=1.0, bytes=1.0, dtype="float64"), measured(flop=1.0, bytes=1.0, device_id=None)], [MEMORY, COMPUTE])
    assert [row["compute_ceiling_flop_per_s"] for row in found] == [None, None]
    assert [row["memory_ceiling_bytes_per_s"] for row in found] == [100e9, None]


def test_the_users_ceiling_wins_then_the_measured_one_and_tensor_units_only_where_alone() -> None:
    measured_memory = MEMORY | {"source": "measured", "value": 90e9, "event_index": 9}
    (row,) = rows([measured(flop=100e6, bytes=50e6)], [MEMORY, measured_memory, COMPUTE, COMPUTE | {"path": "tensor", "value": 9e12}])
    assert (row["memory_ceiling_bytes_per_s"], row["compute_ceiling_flop_per_s"]) == (90e9, 1e12)
    assert (row["ceiling_source"], row["event_index"]) == ("measured", 9)
    (row,) = rows([measured(flop=100e6, bytes=50e6)], [measured_memory, MEMORY | {"source": "user", "value": 80e9}, COMPUTE])
    assert row["memory_ceiling_bytes_per_s"] == 80e9
    (row,) = rows([measured(flop=1.0, bytes=1.0, dtype="float16")], [COMPUTE | {"path": "tensor", "ceiling_name": "float16"}])
    assert row["compute_ceiling_flop_per_s"] == 1e12


def test_kernels_are_summed_up_with_failures_and_the_best_configuration() -> None:
    measurements = [
        measured(flop=100e6, bytes=50e6, label="k N=1", event_index=5),
        measured(flop=100e6, bytes=50e6, label="k N=2", configuration_index=1, duration_median_ns=2e6, verification_state="FAILED"),
    ]
    lines = rows(measurements, [MEMORY, COMPUTE])
    announced = [{"run_id": "r", "event_index": 2, "configuration_index": n, "kernel_name": "k"} for n in range(3)]
    summary = kernel_summary(
        frame_of(CONFIGURATIONS, announced).lazy(),
        frame_of(MEASUREMENTS, measurements).lazy(),
        frame_of(FAILURES, [{"run_id": "r", "event_index": 8, "configuration_index": 2}]).lazy(),
        frame_of(ROOFLINE, lines).lazy(),
    ).collect()
    assert summary.schema == pl.Schema(KERNELS.schema)
    (row,) = summary.rows(named=True)
    assert (row["configuration_count"], row["failed_configuration_count"], row["sample_count"]) == (3, 1, 20)
    assert (row["best_label"], row["bound"], row["verification_failed_count"], row["event_index"]) == ("k N=1", "memory", 1, 8)
    assert (row["duration_median_min_ns"], row["duration_median_max_ns"]) == (1e6, 2e6)
