"""What counters come to: tables counted_work and the rooflines that stand on it, from rows written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.counters import counted_work
from kernalyse.services.analyzer.analysis.roofline import counted_roofline, roofline
from kernalyse.services.analyzer.tables.derived import COUNTED_ROOFLINE, ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import (
    CEILINGS,
    CONFIGURATIONS,
    COUNTED_WORK,
    COUNTER_REPORTS,
    COUNTERS,
    MEASUREMENTS,
    THRESHOLDS,
)

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_{}.sum"
NO_FLOP = {SASS.format(letter + operation): 0.0 for letter in "dfh" for operation in ("add", "mul", "fma")}
NO_TENSOR = {TENSOR.format(name): 0.0 for name in ("src_fp64", "src_bf16_dst_fp32", "src_fp16", "src_int8", "src_tf32_dst_fp32")}
NO_WORK = NO_FLOP | NO_TENSOR


def counter_rows(
    metrics: Mapping[str, float | tuple[float, str]], *, capability: str = "9.0", index: int | None = 0
) -> list[dict[str, Any]]:
    """Of one launch; a metric is its value, or value and unit."""
    launch = {"run_id": "r", "event_index": 20, "configuration_index": index, "launch_index": index or 0}
    launch |= {"kernel_name": "saxpy(int, float)", "compute_capability": capability}
    pairs = {name: found if isinstance(found, tuple) else (found, None) for name, found in metrics.items()}
    return [launch | {"metric_name": name, "value": value, "unit": unit} for name, (value, unit) in pairs.items()]


def work_of(*launches: list[dict[str, Any]]) -> pl.DataFrame:
    counters = frame_from_rows(COUNTERS, [row for rows in launches for row in rows])
    report = {"run_id": "r", "event_index": 20, "artifact_name": "counters.csv", "cache_control": "all", "clock_control": "none"}
    configuration = {"run_id": "r", "event_index": 3, "configuration_index": 0, "kernel_name": "saxpy", "label": "saxpy N=8"}
    reports, configurations = frame_from_rows(COUNTER_REPORTS, [report]), frame_from_rows(CONFIGURATIONS, [configuration])
    frame = counted_work(counters.lazy(), reports.lazy(), configurations.lazy()).collect()
    assert frame.schema == pl.Schema(COUNTED_WORK.schema)
    return frame


def work(metrics: Mapping[str, float | tuple[float, str]], capability: str = "9.0") -> dict[str, Any]:
    return work_of(counter_rows(metrics, capability=capability)).row(0, named=True)


# ---------------------------------------------------------------- flop


def test_a_fused_multiply_add_counts_two_and_a_half_instruction_two_elements() -> None:
    counts = {"dadd": 1.0, "dmul": 2.0, "dfma": 4.0, "fadd": 10.0, "fmul": 20.0, "ffma": 40.0, "hadd": 100.0, "hmul": 200.0, "hfma": 400.0}
    found = work(NO_WORK | {SASS.format(name): count for name, count in counts.items()})
    assert found["float64_fma_flop"] == 1 + 2 + 2 * 4
    assert found["float32_fma_flop"] == 10 + 20 + 2 * 40
    assert found["float16_fma_flop"] == 2 * 100 + 2 * 200 + 4 * 400
    assert found["flop"] == 11 + 110 + 2200
    assert (found["dtype"], found["path"]) == ("float16", "fma")


def test_packed_float32_counts_on_the_chips_that_have_it_and_is_missed_there_alone() -> None:
    packed = {SASS.format("fadd2"): 1.0, SASS.format("fmul2"): 10.0, SASS.format("ffma2"): 100.0}
    assert work(NO_WORK | packed, "10.0")["flop"] == 2 * 1 + 2 * 10 + 4 * 100
    assert work(NO_WORK, "9.0")["flop"] == 0
    assert work(NO_WORK, "12.0")["flop"] == 0
    assert work(NO_WORK, "10.0")["flop"] is None


@pytest.mark.parametrize(
    ("path", "capability", "dtype"),
    [
        ("src_fp64", "9.0", "float64"),
        ("src_tf32_dst_fp32", "9.0", "tfloat32"),
        ("src_bf16_dst_fp32", "9.0", "bfloat16"),
        ("src_fp16", "9.0", "float16"),
        ("src_fp16_dst_fp16_sparsity_on", "8.0", "float16"),
        ("src_fp16_bf16_tf32_dst_fp32", "7.5", "float16"),
        ("src_fp8_sparsity_off", "9.0", "float8"),
        ("src_fp4_fp6_fp8_dst_fp32", "10.0", "float8"),
        ("src_fp4_dst_fp32_sparsity_off", "12.0", "float4"),
        ("src_int8", "9.0", "int8"),
    ],
)
def test_tensor_operations_count_as_they_are_by_the_type_of_their_inputs(path: str, capability: str, dtype: str) -> None:
    found = work(NO_FLOP | {SASS.format(name): 0.0 for name in ("fadd2", "fmul2", "ffma2")} | {TENSOR.format(path): 4096.0}, capability)
    assert found[f"{dtype}_tensor_flop"] == 4096
    assert (found["flop"], found["dtype"], found["path"]) == (4096, dtype, "tensor")


def test_sparse_and_dense_paths_add_up_and_splits_by_instruction_do_not_count_twice() -> None:
    whole = {TENSOR.format("src_fp8_sparsity_off"): 100.0, TENSOR.format("src_fp8_sparsity_on"): 20.0}
    split = {TENSOR.format("op_hgmma_src_bf16_dst_fp32_sparsity_off"): 7.0, TENSOR.format("op_hmma_src_bf16_dst_fp32_sparsity_off"): 3.0}
    assert work(NO_WORK | whole)["float8_tensor_flop"] == 120
    assert work(NO_WORK | split | {TENSOR.format("src_bf16_dst_fp32"): 10.0})["bfloat16_tensor_flop"] == 10
    assert work(NO_FLOP | split)["bfloat16_tensor_flop"] == 10  # a report that has nothing else


def test_volta_counts_instructions_of_512() -> None:
    assert work(NO_FLOP | {"sm__inst_executed_pipe_tensor.sum": 3.0}, "7.0")["float16_tensor_flop"] == 3 * 512
    assert work(NO_FLOP | {"sm__inst_executed_pipe_tensor.sum": 3.0}, "8.0")["flop"] is None  # there it is no measure of work


def test_a_part_does_not_pass_for_the_whole() -> None:
    without_one = {name: value for name, value in NO_WORK.items() if name != SASS.format("ffma")} | {SASS.format("fadd"): 5.0}
    assert (work(without_one)["float32_fma_flop"], work(without_one)["flop"]) == (None, None)
    assert work(NO_FLOP)["flop"] is None


# ---------------------------------------------------------------- bytes and use


@pytest.mark.parametrize(
    ("capability", "metrics", "expected"),
    [
        ("9.0", {"dram__bytes.sum": (3.0, "Kbyte"), "dram__bytes_read.sum": (1.0, "byte")}, {"dram_bytes": 3000}),
        ("9.0", {"dram__bytes_read.sum": (2.0, "Mbyte"), "dram__bytes_write.sum": (5.0, "byte")}, {"dram_bytes": 2_000_005}),
        ("12.0", {"dram__bytes_op_read.sum": (7.0, "byte"), "dram__bytes_op_write.sum": (1.0, "byte")}, {"dram_bytes": 8}),
        ("8.7", {"lts__t_bytes.sum": (9.0, "byte")}, {"dram_bytes": None, "l2_bytes": 9, "l2_metric_name": "lts__t_bytes.sum"}),
        ("9.0", {"lts__lts2xbar_cycles_active.sum": 4.0, "lts__t_bytes.sum": 999.0}, {"l2_bytes": 32 * 4}),
        ("9.0", {"l1tex__lsu_writeback_active_mem_lgds.sum": 2.0, "l1tex__lsu_writeback_active_mem_lg.sum": 1.0}, {"l1_bytes": 256}),
        ("8.6", {"l1tex__lsu_writeback_active_mem_lgds.sum": 2.0, "l1tex__lsu_writeback_active_mem_lg.sum": 1.0}, {"l1_bytes": 128}),
        ("7.0", {"l1tex__lsu_writeback_active.sum": 3.0}, {"l1_bytes": 384}),
        ("9.0", {"l1tex__t_bytes.sum": (11.0, "byte")}, {"l1_bytes": 11, "l1_metric_name": "l1tex__t_bytes.sum"}),
        ("9.0", {"dram__bytes.sum.per_second": (2.0, "Gbyte/second"), "gpu__time_duration.sum": (1.5, "us")}, {"dram_bytes": 3000}),
    ],
)
def test_bytes_of_each_level_by_the_metric_that_the_chip_has(
    capability: str, metrics: Mapping[str, float | tuple[float, str]], expected: dict[str, Any]
) -> None:
    found = work(metrics, capability)
    assert {name: found[name] for name in expected} == expected


def test_time_clock_and_use_of_the_device_in_units_of_this_project() -> None:
    found = work(
        {
            "gpu__time_duration.sum": (12.5, "us"),
            "sm__cycles_elapsed.avg.per_second": (1.98, "cycle/nsecond"),
            "sm__warps_active.avg.pct_of_peak_sustained_active": (75.0, "%"),
            "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed": (50.0, "%"),
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": (25.0, "%"),
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 12.5,  # without a unit its name says so
        }
    )
    assert (found["duration_ns"], found["sm_clock_hz"]) == (12_500, 1.98e9)
    ratios = ("achieved_occupancy_ratio", "sm_active_ratio", "sm_throughput_ratio", "memory_throughput_ratio")
    assert [found[name] for name in ratios] == [0.75, 0.5, 0.25, 0.125]
    assert (found["label"], found["kernel_name"], found["cache_control"], found["clock_control"]) == ("saxpy N=8", "saxpy", "all", "none")


# ---------------------------------------------------------------- the roofline

MEMORY = {"ceiling_name": "dram", "unit": "bytes_per_s", "value": 100e9, "path": "copy", "source": "measured"}
CACHE = MEMORY | {"ceiling_name": "l2", "value": 400e9}
COMPUTE = {"ceiling_name": "float32", "unit": "flop_per_s", "value": 1e12, "path": "fma", "source": "measured"}
COUNTED = NO_WORK | {SASS.format("ffma"): 100e6, "dram__bytes.sum": 50e6, "lts__lts2xbar_cycles_active.sum": 5e6}


def measured(**values: Any) -> dict[str, Any]:
    row = {"run_id": "r", "event_index": 5, "configuration_index": 0, "kernel_name": "saxpy", "label": "saxpy N=8", "device_id": "d"}
    row |= {"parameters": '{"N":8}', "block": "256x1x1", "cache_mode": "COLD", "dtype": None, "verification_state": "NO_REFERENCE"}
    return row | {"duration_median_ns": 1e6, "sample_count": 10} | values


def points(measurements: list[dict[str, Any]], counted: pl.DataFrame, *, by_level: bool = False) -> list[dict[str, Any]]:
    ceilings = [{"run_id": "r", "event_index": 1, "device_id": "d"} | ceiling for ceiling in (MEMORY, CACHE, COMPUTE)]
    tables = (frame_from_rows(MEASUREMENTS, measurements), frame_from_rows(CEILINGS, ceilings), counted, THRESHOLDS.empty())
    analysis, table = (counted_roofline, COUNTED_ROOFLINE) if by_level else (roofline, ROOFLINE)
    frame = analysis(*(table.lazy() for table in tables)).collect()
    assert frame.schema == pl.Schema(table.schema)
    return frame.rows(named=True)


def test_a_kernel_without_formulas_has_its_point_from_counters() -> None:
    (row,) = points([measured()], work_of(counter_rows(COUNTED)))
    assert row["work_source"] == "counters"
    assert (row["flop"], row["bytes"], row["dtype"], row["memory_level"]) == (200e6, 50e6, "float32", "dram")
    assert row["intensity_flop_per_byte"] == 4.0
    assert row["achieved_flop_per_s"] == pytest.approx(200e9)  # by the measured time, not that of counting
    assert row["efficiency_ratio"] == pytest.approx(0.5)
    assert (row["bound"], row["is_implausible"]) == ("memory", False)
    assert row["event_index"] == 20  # of the counters, so that those who watch get it anew


def test_a_formula_comes_before_counters_which_stand_beside_it() -> None:
    (row,) = points([measured(flop=10e6, bytes=10e6, dtype="float32")], work_of(counter_rows(COUNTED)))
    assert (row["work_source"], row["flop"], row["bytes"], row["intensity_flop_per_byte"]) == ("formula", 10e6, 10e6, 1.0)
    assert (row["counted_flop"], row["counted_dram_bytes"]) == (200e6, 50e6)


def test_without_both_there_is_no_point() -> None:
    (row,) = points([measured()], COUNTED_WORK.empty())
    assert [row[name] for name in ("work_source", "flop", "bytes", "intensity_flop_per_byte", "efficiency_ratio")] == [None] * 5
    assert row["event_index"] == 5


def test_a_kernel_that_never_reached_device_memory_is_held_against_the_cache() -> None:
    (row,) = points([measured(cache_mode="HOT")], work_of(counter_rows(COUNTED | {"dram__bytes.sum": 0.0})))
    assert (row["memory_level"], row["bytes"], row["counted_dram_bytes"]) == ("l2", 160e6, 0.0)
    assert row["memory_ceiling_bytes_per_s"] == 400e9


def test_counters_hold_for_the_same_launch_of_other_processes_and_for_no_other_launch() -> None:
    again = measured(configuration_index=7, process_index=1)
    other_block, hot = measured(configuration_index=8, block="64x1x1"), measured(configuration_index=9, cache_mode="HOT")
    found = points([measured(), again, other_block, hot], work_of(counter_rows(COUNTED)))
    assert [row["work_source"] for row in found] == ["counters", "counters", None, None]


def test_launches_that_belong_to_no_configuration_count_for_none() -> None:
    (row,) = points([measured()], work_of(counter_rows(COUNTED, index=None)))
    assert row["work_source"] is None


def test_each_counted_level_has_a_point_of_its_own() -> None:
    found = points([measured(flop=10e6, bytes=10e6)], work_of(counter_rows(COUNTED)), by_level=True)
    columns = ("memory_level", "bytes", "intensity_flop_per_byte", "memory_ceiling_bytes_per_s", "work_source")
    assert [tuple(row[name] for name in columns) for row in found] == [
        ("dram", 50e6, 4.0, 100e9, "counters"),
        ("l2", 160e6, 1.25, 400e9, "counters"),
    ]


def test_more_than_the_device_can_do_is_implausible_by_counters_too() -> None:
    (row,) = points([measured(duration_median_ns=1e5)], work_of(counter_rows(COUNTED)))
    assert row["is_implausible"] is True
    assert "fewer flop than counted, or a cached result" in row["implausible_reason"]
