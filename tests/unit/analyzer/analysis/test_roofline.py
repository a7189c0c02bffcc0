"""The roofline by hand: a device of 100 GB/s and 1 Tflop/s has its ridge at 10 flop per byte."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.roofline import roofline
from kernalyse.services.analyzer.analysis.sweeps import kernel_summary
from kernalyse.services.analyzer.tables.derived import ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, CONFIGURATIONS, COUNTED_WORK, FAILURES, KERNELS, MEASUREMENTS, THRESHOLDS

MEMORY = {"ceiling_name": "dram", "unit": "bytes_per_s", "value": 100e9, "path": "copy", "source": "datasheet"}
COMPUTE = {"ceiling_name": "float32", "unit": "flop_per_s", "value": 1e12, "path": "fma", "source": "datasheet"}


def measured(**values: Any) -> dict[str, Any]:
    row = {"run_id": "r", "event_index": 5, "configuration_index": 0, "kernel_name": "k", "label": "k N=1", "dtype": "float32"}
    return row | {"device_id": "d", "duration_median_ns": 1e6, "sample_count": 10, "verification_state": "PASSED"} | values


def rows(
    measurements: list[dict[str, Any]], ceilings: list[dict[str, Any]], thresholds: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    with_keys = [{"run_id": "r", "event_index": 1, "device_id": "d"} | ceiling for ceiling in ceilings]
    of_device = [] if thresholds is None else [{"run_id": "r", "event_index": 1, "device_id": "d"} | thresholds]
    tables = (
        frame_from_rows(MEASUREMENTS, measurements),
        frame_from_rows(CEILINGS, with_keys),
        COUNTED_WORK.empty(),
        frame_from_rows(THRESHOLDS, of_device),
    )
    frame = roofline(*(table.lazy() for table in tables)).collect()
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


@pytest.mark.parametrize(
    ("work", "thresholds", "category"),
    [
        ({"flop": 100e6, "bytes": 71e6}, None, "memory bound"),  # 71 GB/s of 100
        ({"flop": 100e6, "bytes": 69e6}, None, "normal"),
        ({"flop": 100e6, "bytes": 49e6}, None, "memory inefficient"),  # below a half, the default
        ({"flop": 100e6, "bytes": 49e6}, {"memory_inefficient_ratio": 0.4, "compute_inefficient_ratio": 0.9}, "normal"),
        ({"flop": 100e6, "bytes": 80e6}, {"memory_inefficient_ratio": 0.9, "compute_inefficient_ratio": 0.9}, "memory bound"),
        ({"flop": 710e6, "bytes": 1e6}, None, "compute bound"),
        ({"flop": 690e6, "bytes": 1e6}, None, "normal"),
        ({"flop": 490e6, "bytes": 1e6}, None, "compute inefficient"),
        ({"flop": 490e6, "bytes": 1e6}, {"memory_inefficient_ratio": 0.9, "compute_inefficient_ratio": 0.4}, "normal"),
        ({"flop": 0.0, "bytes": 20e6}, None, "memory inefficient"),
        ({"flop": None, "bytes": None}, None, None),
    ],
)
def test_two_thresholds_make_five_categories(work: dict[str, float], thresholds: dict[str, float] | None, category: str | None) -> None:
    (row,) = rows([measured(**work)], [MEMORY, COMPUTE], thresholds)
    assert row["efficiency_category"] == category


def test_without_work_the_rate_and_intensity_that_a_tool_states_make_the_point() -> None:
    stated = {"flop": None, "bytes": None, "duration_median_ns": None, "stated_flop_per_s": 150e9, "stated_flop_per_byte": 2.0}
    (row,) = rows([measured(**stated)], [MEMORY, COMPUTE])
    assert (row["intensity_flop_per_byte"], row["achieved_flop_per_s"], row["achieved_bytes_per_s"]) == (2.0, 150e9, 75e9)
    assert (row["bound"], row["efficiency_ratio"], row["efficiency_category"]) == ("memory", pytest.approx(0.75), "memory bound")


def test_work_that_is_known_counts_before_what_a_tool_states() -> None:
    (row,) = rows([measured(flop=100e6, bytes=50e6, stated_flop_per_s=1.0, stated_flop_per_byte=7.0)], [MEMORY, COMPUTE])
    assert (row["intensity_flop_per_byte"], row["achieved_flop_per_s"]) == (2.0, pytest.approx(100e9))


BUSY = "ceilings of a host 98 % busy"


@pytest.mark.parametrize(
    ("memory", "compute", "expected"),
    [
        ({"source": "measured", "host_busy_ratio": 0.98}, {}, BUSY),
        ({}, {"source": "measured", "host_busy_ratio": 0.98}, BUSY),
        ({"source": "measured", "host_busy_ratio": 0.2}, {}, None),
        ({"source": "measured"}, {}, None),
    ],
    ids=["memory", "compute", "a quiet host", "not known"],
)
def test_a_row_under_a_ceiling_of_a_busy_host_says_so(memory: dict[str, Any], compute: dict[str, Any], expected: str | None) -> None:
    (row,) = rows([measured(flop=100e6, bytes=50e6)], [MEMORY | memory, COMPUTE | compute])
    assert row["disturbance"] == expected
    (row,) = rows(
        [measured(flop=100e6, bytes=50e6, disturbance="device shared with 1 other process")], [MEMORY | memory, COMPUTE | compute]
    )
    assert row["disturbance"] == "; ".join(part for part in ("device shared with 1 other process", expected) if part)


def test_what_a_busy_host_reached_makes_nothing_implausible() -> None:
    """Half of it went to other programs: 1.9 times its ceilings is what the device can do, 2.2 times is not."""
    busy = {"source": "measured", "host_busy_ratio": 0.5}
    ceilings = [MEMORY | busy, MEMORY | busy | {"ceiling_name": "l2"}, COMPUTE | busy]
    found = rows([measured(flop=times * 1e9) for times in (0.9, 1.9, 2.2)], ceilings)
    assert [row["is_implausible"] for row in found] == [False, False, True]
    found = rows([measured(flop=None, bytes=times * 100e6, cache_mode="HOT") for times in (0.9, 1.9, 2.2)], ceilings)
    assert [row["is_implausible"] for row in found] == [False, False, True]


def test_a_busy_hosts_ceiling_that_does_not_count_is_not_told() -> None:
    cache = {"ceiling_name": "l2", "source": "measured", "host_busy_ratio": 0.9}
    by_hand = MEMORY | {"source": "user"}
    (row,) = rows(
        [measured(flop=100e6, bytes=50e6)], [by_hand, MEMORY | {"source": "measured", "host_busy_ratio": 0.9}, MEMORY | cache, COMPUTE]
    )
    assert row["disturbance"] is None


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


# ---------------------------------------------------------------- paths and sources

TENSOR = COMPUTE | {"path": "tensor", "value": 8e12}


def test_the_kernels_path_picks_the_compute_ceiling() -> None:
    found = rows([measured(flop=1e9, bytes=1e6, path=path) for path in ("tensor", "fma", "", None)], [MEMORY, COMPUTE, TENSOR])
    assert [row["compute_ceiling_flop_per_s"] for row in found] == [8e12, 1e12, 1e12, 1e12]
    assert [row["path"] for row in found] == ["tensor", "fma", "", None]
    (row,) = rows([measured(flop=1e9, bytes=1e6, path="tensor")], [MEMORY, COMPUTE])
    assert row["compute_ceiling_flop_per_s"] == 1e12


def test_efficiency_is_told_against_each_source_and_null_where_one_says_nothing() -> None:
    ceilings = [
        MEMORY | {"value": 200e9},
        MEMORY | {"source": "measured", "value": 100e9},
        COMPUTE | {"value": 4e12},
        COMPUTE | {"source": "measured", "value": 1e12},
    ]
    (row,) = rows([measured(flop=500e6, bytes=1e6)], ceilings)  # 500 Gflop/s, right of every ridge
    assert row["efficiency_ratio"] == row["efficiency_measured_ratio"] == pytest.approx(0.5)
    assert row["efficiency_datasheet_ratio"] == pytest.approx(0.125)
    assert row["efficiency_clock_ratio"] is None
    (row,) = rows([measured(flop=0.0, bytes=50e6)], ceilings)
    assert (row["efficiency_measured_ratio"], row["efficiency_datasheet_ratio"]) == pytest.approx((0.5, 0.25))
    assert (row["bound_measured"], row["bound_datasheet"], row["bound_clock"]) == ("memory", "memory", None)


def test_sources_may_differ_in_what_binds() -> None:
    """8 flop per byte: memory-bound under the datasheet's ridge of 10, compute-bound under the measured one of 5."""
    measured_compute = COMPUTE | {"source": "measured", "value": 500e9}
    (row,) = rows([measured(flop=80e6, bytes=10e6)], [MEMORY, MEMORY | {"source": "measured"}, COMPUTE, measured_compute])
    assert (row["bound"], row["bound_measured"], row["bound_datasheet"]) == ("compute", "compute", "memory")


CLOCK = COMPUTE | {"source": "clock", "value": 2e12, "clock_hz": 2_000_000_000}


def test_ceilings_at_the_clock_follow_the_clock_of_the_measurement() -> None:
    slow, unknown = measured(flop=400e6, bytes=1e6, sm_clock_hz=1_000_000_000), measured(flop=400e6, bytes=1e6)
    found = rows([slow, unknown], [MEMORY, CLOCK])
    assert [row["compute_ceiling_flop_per_s"] for row in found] == [1e12, 2e12]
    assert [row["efficiency_clock_ratio"] for row in found] == pytest.approx([0.4, 0.2])
    assert [row["sm_clock_hz"] for row in found] == [1_000_000_000, None]


def test_device_memory_does_not_follow_the_sm_clock() -> None:
    (row,) = rows([measured(flop=0.0, bytes=50e6, sm_clock_hz=1_000_000_000)], [MEMORY, CLOCK])
    assert row["efficiency_clock_ratio"] == pytest.approx(0.5)
    (row,) = rows([measured(flop=0.0, bytes=50e6)], [MEMORY | {"source": "measured"}, CLOCK])
    assert row["efficiency_clock_ratio"] == pytest.approx(0.5)


def test_a_kernel_without_bytes_is_held_against_the_compute_ceiling() -> None:
    (row,) = rows([measured(flop=250e6, bytes=None)], [MEMORY, COMPUTE])
    assert (row["efficiency_ratio"], row["bound"], row["ceiling_source"]) == (pytest.approx(0.25), "compute", "datasheet")
    assert row["intensity_flop_per_byte"] is None


# ---------------------------------------------------------------- what cannot be

L1 = CACHE | {"ceiling_name": "l1", "value": 900e9}


def test_hot_bytes_faster_than_the_cache_are_held_against_l1() -> None:
    found = rows([measured(bytes=bytes, cache_mode="HOT") for bytes in (90e6, 450e6, 800e6)], [MEMORY, CACHE, L1])
    assert [row["memory_level"] for row in found] == ["dram", "l2", "l1"]
    assert [row["efficiency_ratio"] for row in found] == pytest.approx([0.9, 0.9, 800 / 900])


@pytest.mark.parametrize(
    ("cache_mode", "bytes", "is_implausible"),
    [
        ("HOT", 900e6, False),
        ("HOT", 940e6, False),  # within 5 %
        ("HOT", 960e6, True),
        ("COLD", 510e6, False),  # what was written may still be on its way through L2
        ("COLD", 530e6, True),
        (None, 530e6, False),  # not known to be cold
    ],
)
def test_bytes_faster_than_any_memory_they_can_come_from_are_implausible(
    cache_mode: str | None, bytes: float, is_implausible: bool
) -> None:
    (row,) = rows([measured(bytes=bytes, cache_mode=cache_mode)], [MEMORY, CACHE, L1])
    assert row["is_implausible"] is is_implausible
    assert (row["implausible_reason"] is not None) is is_implausible


def test_the_reason_is_a_sentence_with_the_excess_and_the_ceiling() -> None:
    (row,) = rows([measured(bytes=1800e6, cache_mode="HOT")], [MEMORY, CACHE, L1])
    assert row["implausible_reason"] == (
        "It moves 2.0 times what the fastest memory that counts can (l1, 900.0 GB/s): fewer bytes than claimed, or a cached result."
    )
    (row,) = rows([measured(flop=3e9)], [COMPUTE])
    assert row["implausible_reason"] == (
        "It computes 3.0 times the highest float32 ceiling of the device (1000.0 Gflop/s): fewer flop than claimed, or a cached result."
    )


def test_flop_are_held_against_the_highest_ceiling_of_the_data_type_whatever_path_source_and_sums() -> None:
    half = {"dtype": "float16", "bytes": 1e3, "path": "fma"}
    fma = COMPUTE | {"ceiling_name": "float16"}
    tensor = fma | {"path": "tensor", "value": 2e12, "source": "measured"}
    accumulate16 = fma | {"path": "tensor", "value": 4e12, "ceiling_name": "float16_accumulate16"}
    assert [row["is_implausible"] for row in rows([measured(flop=1.9e9, **half), measured(flop=2.2e9, **half)], [fma, tensor])] == [
        False,
        True,
    ]
    assert [row["is_implausible"] for row in rows([measured(flop=3.9e9, **half)], [fma, tensor, accumulate16])] == [False]


def test_without_a_ceiling_that_could_tell_nothing_is_said() -> None:
    found = rows(
        [measured(bytes=1e9, cache_mode="HOT"), measured(bytes=1e9, flop=1.0, dtype="int32", cache_mode="COLD")], [MEMORY, COMPUTE]
    )
    assert [row["is_implausible"] for row in found] == [None, None]
    (row,) = rows([measured(flop=1e6, bytes=1e9, cache_mode="HOT")], [MEMORY, COMPUTE])
    assert row["is_implausible"] is False  # its flop are possible, and of the cache nothing is known


def test_new_ceilings_of_the_device_are_news_for_its_measurements() -> None:
    (row,) = rows([measured(flop=1e6, bytes=1e6, event_index=5)], [MEMORY, COMPUTE, L1 | {"event_index": 9}])
    assert row["event_index"] == 9


def test_kernels_are_summed_up_with_failures_and_the_best_configuration() -> None:
    measurements = [
        measured(flop=100e6, bytes=50e6, label="k N=1", event_index=5),
        measured(flop=100e6, bytes=50e6, label="k N=2", configuration_index=1, duration_median_ns=2e6, verification_state="FAILED"),
    ]
    lines = rows(measurements, [MEMORY, COMPUTE])
    announced = [{"run_id": "r", "event_index": 2, "configuration_index": n, "kernel_name": "k"} for n in range(3)]
    summary = kernel_summary(
        frame_from_rows(CONFIGURATIONS, announced).lazy(),
        frame_from_rows(MEASUREMENTS, measurements).lazy(),
        frame_from_rows(FAILURES, [{"run_id": "r", "event_index": 8, "configuration_index": 2}]).lazy(),
        frame_from_rows(ROOFLINE, lines).lazy(),
    ).collect()
    assert summary.schema == pl.Schema(KERNELS.schema)
    (row,) = summary.rows(named=True)
    assert (row["configuration_count"], row["failed_configuration_count"], row["sample_count"]) == (3, 1, 20)
    assert (row["best_label"], row["bound"], row["verification_failed_count"], row["event_index"]) == ("k N=1", "memory", 1, 8)
    assert (row["duration_median_min_ns"], row["duration_median_max_ns"]) == (1e6, 2e6)
    assert row["implausible_count"] == 0


def test_the_best_configuration_is_a_plausible_one() -> None:
    lies, honest = measured(bytes=2000e6, cache_mode="HOT"), measured(bytes=50e6, cache_mode="HOT", configuration_index=1, label="k N=2")
    ceilings = [MEMORY, CACHE, L1]

    def summary(*measurements: dict[str, Any]) -> dict[str, Any]:
        announced = [{"run_id": "r", "event_index": 2, "configuration_index": n, "kernel_name": "k"} for n in range(2)]
        return (
            kernel_summary(
                frame_from_rows(CONFIGURATIONS, announced).lazy(),
                frame_from_rows(MEASUREMENTS, [*measurements]).lazy(),
                frame_from_rows(FAILURES, []).lazy(),
                frame_from_rows(ROOFLINE, rows([*measurements], ceilings)).lazy(),
            )
            .collect()
            .row(0, named=True)
        )

    found = summary(lies, honest)
    assert (found["best_label"], found["efficiency_ratio_max"], found["implausible_count"]) == ("k N=2", pytest.approx(0.5), 1)
    assert found["achieved_bytes_per_s_max"] == pytest.approx(50e9)
    assert summary(lies)["achieved_bytes_per_s_max"] == pytest.approx(2000e9)  # it has no other
