"""The tables of hardware counters: reports that runs left, what they say, and what it comes to."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import CONFIGURATION_INDEX, COUNT, KERNEL_NAME, LABEL, NUMBER, TEXT, Column, keyed_table

LAUNCH_INDEX: Final = Column("launch_index", COUNT, "Profiled launch within its report, from 0.")
COMPUTE_CAPABILITY: Final = Column("compute_capability", TEXT, "Of the device, e.g. 9.0.")
CACHE_CONTROL: Final = Column("cache_control", TEXT, "all: the caches were flushed before each replay; none: they were not.")
CLOCK_CONTROL: Final = Column("clock_control", TEXT, "base: the clock was locked to its base; none: it was not.")

COUNTER_REPORTS: Final = keyed_table(
    "counter_reports",
    "One row per report of ncu that the run left.",
    Column("artifact_name", TEXT, "The file, which the node keeps."),
    Column("launch_count", COUNT, "Launches that were profiled for it."),
    CACHE_CONTROL,
    CLOCK_CONTROL,
)

COUNTERS: Final = keyed_table(
    "counters",
    "One row per profiled launch and metric, as ncu reports it; a metric that several sections show has a row for each.",
    Column("configuration_index", COUNT, "Configuration within the run, from 0; null: imported, or the report does not fit the run."),
    LAUNCH_INDEX,
    Column("kernel_name", TEXT, "As ncu writes it."),
    Column("block", TEXT, "Threads per block, e.g. 16x16x1."),
    Column("grid", TEXT, "Blocks per grid, e.g. 8x8x1."),
    COMPUTE_CAPABILITY,
    Column("section_name", TEXT, "Of ncu's report; null: the report has none."),
    Column("metric_name", TEXT, "ncu's own."),
    Column("unit", TEXT, "ncu's own; null: none."),
    Column("value", NUMBER, "In that unit; null: no number."),
    Column("text", TEXT, "What stood there where it is no plain number."),
)

FMA_DTYPES: Final = ("float64", "float32", "float16")
TENSOR_DTYPES: Final = ("float64", "tfloat32", "bfloat16", "float16", "float8", "float4", "int8")


def flop_column(dtype: str, path: str) -> str:
    return f"{dtype}_{path}_flop"


COUNTED_WORK: Final = keyed_table(
    "counted_work",
    "One row per profiled launch: its work, its bytes at each memory level and its use of the device, by counters.",
    CONFIGURATION_INDEX,
    LABEL,
    LAUNCH_INDEX,
    KERNEL_NAME,
    COMPUTE_CAPABILITY,
    CACHE_CONTROL,
    CLOCK_CONTROL,
    Column("duration_ns", NUMBER, "Device time while counting: with other clocks and caches than while measuring."),
    Column("sm_clock_hz", NUMBER, "SM clock while counting."),
    Column("flop", NUMBER, "Of all data types and paths together; null: some of it is not known."),
    Column("dtype", TEXT, "Data type of most of it; null: there is none."),
    Column("path", TEXT, "fma or tensor: path of most of it."),
    *(Column(flop_column(dtype, "fma"), NUMBER, f"Of CUDA cores in {dtype}.") for dtype in FMA_DTYPES),
    *(Column(flop_column(dtype, "tensor"), NUMBER, f"Of tensor cores with inputs of {dtype}.") for dtype in TENSOR_DTYPES),
    Column("dram_bytes", NUMBER, "To and from device memory; null on devices without such counters."),
    Column("l2_bytes", NUMBER, "Out of the L2 cache."),
    Column("l1_bytes", NUMBER, "Out of the L1 cache; from compute capability 9.0 on with those of shared memory."),
    Column("l2_metric_name", TEXT, "What l2_bytes stands on: definitions differ."),
    Column("l1_metric_name", TEXT, "What l1_bytes stands on: definitions differ."),
    Column("achieved_occupancy_ratio", NUMBER, "Active warps over the most that a multiprocessor holds."),
    Column("sm_active_ratio", NUMBER, "Share of the time in which multiprocessors had work."),
    Column("sm_throughput_ratio", NUMBER, "Of the multiprocessors' most, by the busiest of their parts."),
    Column("memory_throughput_ratio", NUMBER, "Of the memory system's most, by the busiest of its parts."),
)
