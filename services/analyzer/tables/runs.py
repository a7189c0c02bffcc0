"""Tables of runs: configurations, samples, measurements, counters, thresholds, logs and the runs themselves.

Column names equal the field names of core.model and of the contract, and contain units. Unknown is null. The order of columns
here is their order everywhere: in GetTable, in WatchRun, in the Parquet files.
"""

from __future__ import annotations

from typing import Final

from kernalyse.services.analyzer.tables.base import (
    BATCH_SIZE,
    BYTES,
    CATEGORY,
    CONFIGURATION_INDEX,
    COUNT,
    DEVICE_ID,
    DISTURBANCE,
    DTYPE,
    DURATION_MEDIAN_NS,
    FLAG,
    FLOP,
    KERNEL_NAME,
    LABEL,
    LAYER_PATH,
    MACROS,
    MEASURED_UNIX_NS,
    MESSAGE,
    MODEL_NAME,
    NUMBER,
    PARAMETERS,
    PATH,
    PROCESS_INDEX,
    REASON,
    SYMBOL,
    TEXT,
    THROTTLE_REASONS,
    VARIANT,
    VERIFICATION_STATE,
    Column,
    Table,
    keyed_table,
)
from kernalyse.services.analyzer.tables.base import keyed_table as _table
from kernalyse.services.analyzer.tables.derived import (
    COMPARISON,
    COMPUTED_TRACE_TABLES,
    COUNTED_LAYER_ROOFLINE,
    COUNTED_ROOFLINE,
    HISTORY_TABLES,
    KERNEL_METRICS,
    LAYER_ROOFLINE,
    MODEL_TABLES,
    PAIRED_COMPARISONS,
    ROOFLINE,
    TRACE_COMPARISON_TABLES,
    TREE_TABLES,
)
from kernalyse.services.analyzer.tables.traces import TRACE_TABLES
from kernalyse.services.core.errors import TableNotFoundError

# ---------------------------------------------------------------- runs

RUNS: Final = keyed_table(
    "runs",
    "One row per run; event_index is that of its last row.",
    Column("node_id", TEXT, "Node that it ran on; null: imported."),
    Column("host_name", TEXT, "Machine of that node; null: imported, or not known."),
    Column("title", TEXT, "Given by the user, or made from the workload."),
    Column("continues_run_id", TEXT, "The stopped run whose sweep this one continues; null: none."),
    Column("state", TEXT, "QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED or LOST."),
    Column("create_unix_ns", COUNT, "Submitted."),
    Column("start_unix_ns", COUNT, "Null: not started."),
    Column("end_unix_ns", COUNT, "Null: not ended."),
    DEVICE_ID,
    Column("completed_configuration_count", COUNT, "Measured or failed."),
    Column("failed_configuration_count", COUNT, "Of these, failed."),
    Column("total_configuration_count", COUNT, "Null until the sweep is expanded."),
    Column("error_reason", TEXT, "Why it failed or was lost."),
    Column("error_message", TEXT, "The error message."),
    Column("git_commit", TEXT, "Of the checkout it was submitted from."),
    Column("git_is_dirty", FLAG, "Tracked files differed from the commit."),
    Column("tags", TEXT, "Comma-separated."),
    Column("notes", TEXT, "Free text."),
)


# ---------------------------------------------------------------- thresholds

THRESHOLDS: Final = keyed_table(
    "thresholds",
    "One row per run and device: efficiencies below which its kernels count as inefficient.",
    DEVICE_ID,
    Column("memory_inefficient_ratio", NUMBER, "For memory-bound kernels."),
    Column("compute_inefficient_ratio", NUMBER, "For compute-bound kernels."),
)


# ---------------------------------------------------------------- hardware counters
# Reports that runs left, their counters, and the costs computed from them.

LAUNCH_INDEX: Final = Column("launch_index", COUNT, "Profiled launch within its report, from 0.")
COMPUTE_CAPABILITY: Final = Column("compute_capability", TEXT, "Of the device, e.g. 9.0.")
CACHE_CONTROL: Final = Column("cache_control", TEXT, "all: the caches were flushed before each replay; none: they were not.")
CLOCK_CONTROL: Final = Column("clock_control", TEXT, "base: the clock was locked to its base; none: it was not.")

COUNTER_REPORTS: Final = keyed_table(
    "counter_reports",
    "One row per report of ncu that the run left.",
    Column("artifact_name", TEXT, "File on the node."),
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
    Column("text", TEXT, "The value as text where it is no plain number."),
)

FMA_DTYPES: Final = ("float64", "float32", "float16")
TENSOR_DTYPES: Final = ("float64", "tfloat32", "bfloat16", "float16", "float8", "float4", "int8")


def flop_column(dtype: str, path: str) -> str:
    """Return the name of the column that counts operations of this data type and path."""
    return f"{dtype}_{path}_flop"


COUNTED_WORK: Final = keyed_table(
    "counted_work",
    "One row per profiled launch: its costs, its bytes at each memory level and its use of the device, by counters.",
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
    Column("l2_metric_name", TEXT, "Metric that l2_bytes was computed from, as definitions differ."),
    Column("l1_metric_name", TEXT, "Metric that l1_bytes was computed from, as definitions differ."),
    Column("achieved_occupancy_ratio", NUMBER, "Active warps over the most that a multiprocessor holds."),
    Column("sm_active_ratio", NUMBER, "Fraction of the time in which multiprocessors were busy."),
    Column("sm_throughput_ratio", NUMBER, "Fraction of the peak of the multiprocessors' busiest unit."),
    Column("memory_throughput_ratio", NUMBER, "Fraction of the peak of the memory system's busiest unit."),
)


# ---------------------------------------------------------------- events
# Filled by the events of runs.

CONFIGURATIONS: Final = _table(
    "configurations",
    "One row per kernel with one set of parameters, registered before its first sample.",
    CONFIGURATION_INDEX,
    KERNEL_NAME,
    LABEL,
    PARAMETERS,
    Column("block", TEXT, "Threads per block, e.g. 16x16x1."),
    Column("grid", TEXT, "Blocks per grid, e.g. 8x8x1."),
    Column("dynamic_shared_memory_bytes", COUNT, "Dynamic shared memory of a block."),
    CATEGORY,
    DTYPE,
    PATH,
    FLOP,
    BYTES,
    MACROS,
    Column("cache_mode", TEXT, "COLD or HOT."),
    PROCESS_INDEX,
    VARIANT,
    MODEL_NAME,
    BATCH_SIZE,
    SYMBOL,
    LAYER_PATH,
)

SAMPLES: Final = _table(
    "samples",
    "One row per timed launch.",
    CONFIGURATION_INDEX,
    Column("sample_index", COUNT, "Within the configuration, from 0."),
    Column("duration_ns", NUMBER, "Device time of one launch."),
    Column("measured_unix_ns", COUNT, "Time when the last sample of its batch was complete."),
    Column("sm_clock_hz", COUNT, "SM clock during the sample; null: not known."),
    Column("is_discarded", FLAG, "Taken while the clock was throttled: it does not count."),
)

_STATISTICS: Final = (
    Column("sample_count", COUNT, "Samples that the statistics are computed from."),
    Column("discarded_sample_count", COUNT, "Samples that were excluded, e.g. while throttled."),
    Column("warm_up_count", COUNT, "Launches before the first sample."),
    DURATION_MEDIAN_NS,
    Column("duration_median_low_ns", NUMBER, "Lower end of the median's 95 % confidence interval."),
    Column("duration_median_high_ns", NUMBER, "Upper end of it."),
    Column("duration_min_ns", NUMBER, "Shortest sample."),
    Column("duration_max_ns", NUMBER, "Longest sample."),
    Column("duration_mean_ns", NUMBER, "Mean of the samples."),
    Column("duration_lower_quartile_ns", NUMBER, "25th percentile."),
    Column("duration_upper_quartile_ns", NUMBER, "75th percentile."),
    Column("duration_p95_ns", NUMBER, "95th percentile."),
    Column("duration_p99_ns", NUMBER, "99th percentile."),
    Column("duration_standard_deviation_ns", NUMBER, "Standard deviation of the samples."),
    Column("duration_median_absolute_deviation_ns", NUMBER, "Median of the distances from the median."),
    Column("noise_ratio", NUMBER, "Standard deviation over mean."),
    Column("timing_method", TEXT, "SINGLE, BATCHED or GRAPH."),
    Column("launches_per_sample", COUNT, "Launches that a sample is the mean of."),
    Column("is_blocked", FLAG, "The stream was blocked while a batch was enqueued."),
    Column("stopping_criterion", TEXT, "CONFIDENCE, NOISE, ENTROPY or SAMPLE_COUNT."),
    Column("stop_reason", TEXT, "Why sampling ended."),
    Column("cache_mode", TEXT, "COLD or HOT."),
)

MEASUREMENTS: Final = _table(
    "measurements",
    "One row per measured configuration: statistics over its samples and the circumstances.",
    CONFIGURATION_INDEX,
    KERNEL_NAME,
    LABEL,
    PARAMETERS,
    CATEGORY,
    DTYPE,
    PATH,
    Column("block", TEXT, "Threads per block, e.g. 16x16x1."),
    Column("grid", TEXT, "Blocks per grid, e.g. 8x8x1."),
    Column("dynamic_shared_memory_bytes", COUNT, "Dynamic shared memory of a block."),
    MACROS,
    PROCESS_INDEX,
    VARIANT,
    DEVICE_ID,
    Column("backend", TEXT, "Backend that ran the kernel: PYCUDA, NVCC or OPENCL."),
    FLOP,
    BYTES,
    *_STATISTICS,
    VERIFICATION_STATE,
    Column("verification_max_absolute_error", NUMBER, "Of the worst output."),
    Column("verification_max_relative_error", NUMBER, "max|output - reference| / max|reference|."),
    Column("verification_message", TEXT, "Message of the verification."),
    MEASURED_UNIX_NS,
    Column("elapsed_ns", COUNT, "Wall-clock time of the configuration."),
    Column("compile_ns", COUNT, "Of which compiling."),
    Column("input_distribution", TEXT, "Of the random input data."),
    Column("seed", COUNT, "Of the random input data."),
    Column("compiler_options", TEXT, "Given to the kernel's compiler."),
    Column("driver_version", TEXT, "Of the device's driver."),
    Column("toolkit_version", TEXT, "Of the CUDA toolkit."),
    Column("device_uuid", TEXT, "Of the device."),
    Column("sm_clock_hz", COUNT, "Mean while sampling."),
    Column("memory_clock_hz", COUNT, "Mean while sampling."),
    Column("temperature_celsius", NUMBER, "Of the device, while sampling."),
    Column("power_watts", NUMBER, "Of the device, while sampling."),
    THROTTLE_REASONS,
    Column("register_count", COUNT, "Per thread."),
    Column("static_shared_memory_bytes", COUNT, "Per block."),
    Column("local_memory_bytes", COUNT, "Per thread, spills included."),
    Column("spill_store_bytes", COUNT, "Per thread, of spilled registers."),
    Column("spill_load_bytes", COUNT, "Per thread, of spilled registers."),
    Column("constant_memory_bytes", COUNT, "Of the kernel."),
    Column("max_threads_per_block", COUNT, "Of this kernel, by its registers."),
    Column("active_block_count", COUNT, "Blocks of this launch that a multiprocessor holds at once."),
    Column("theoretical_occupancy_ratio", NUMBER, "Their warps over the most that a multiprocessor holds."),
    Column("other_process_count", COUNT, "Other processes with a context on the device."),
    Column("host_busy_ratio", NUMBER, "Of the host's cores, by other programs meanwhile; CPU devices only."),
    Column("recheck_state", TEXT, "Result with fresh inputs after timing, against the reference."),
    MODEL_NAME,
    BATCH_SIZE,
    SYMBOL,
    Column("stated_flop_per_s", NUMBER, "Rate as another tool states it; the roofline uses it where flop or duration are not known."),
    Column("stated_flop_per_byte", NUMBER, "Intensity as another tool states it; used where flop or bytes are not known."),
    Column("tokens_per_s", NUMBER, "Of a language model, as another tool states it."),
    LAYER_PATH,
    Column("device_memory_bytes", COUNT, "Device memory of the buffers that a launch uses, or a model's complete pass; null: not known."),
    Column("clocks", TEXT, "What the run made of the device's clocks: to what it locked them, or as it is, and why; null: not known."),
    DISTURBANCE,
)

KERNELS: Final = _table(
    "kernels",
    "One row per run and kernel, of traces with metrics of its launches; event_index is that of the last row that contributed.",
    KERNEL_NAME,
    *KERNEL_METRICS,
    CATEGORY,
    DTYPE,
    DEVICE_ID,
    Column("configuration_count", COUNT, "Registered configurations."),
    Column("failed_configuration_count", COUNT, "Of these, without a measurement because of an error."),
    Column("sample_count", COUNT, "Samples of all measured configurations."),
    Column("duration_median_min_ns", NUMBER, "Shortest median of its configurations."),
    Column("duration_median_max_ns", NUMBER, "Longest median of its configurations."),
    Column("achieved_flop_per_s_max", NUMBER, "Of its configurations."),
    Column("achieved_bytes_per_s_max", NUMBER, "Of its configurations."),
    Column("efficiency_ratio_max", NUMBER, "Of its configurations."),
    Column("best_label", TEXT, "Plausible configuration of the highest efficiency; without ceilings, of the highest rate."),
    Column("bound", TEXT, "Of the best configuration."),
    Column("verification_failed_count", COUNT, "Measurements whose results are wrong."),
    Column("implausible_count", COUNT, "Measurements faster than the device allows."),
    Column("disturbed_count", COUNT, "Measurements that were disturbed, or whose ceilings were."),
)

BEST: Final = _table(
    "best",
    "One row per problem (the same computation, parameters, cache mode and device): the configuration with the shortest median.",
    *(CONFIGURATION_INDEX, KERNEL_NAME, LABEL, PARAMETERS, CATEGORY, MACROS, DEVICE_ID, DURATION_MEDIAN_NS),
    Column("block", TEXT, "Threads per block, e.g. 16x16x1."),
    Column("cache_mode", TEXT, "COLD or HOT."),
    Column("process_count", COUNT, "Processes that measured it; its duration is the median of their medians."),
    Column("candidate_count", COUNT, "Configurations of the problem, except those with wrong results."),
    Column("runner_up_configuration_index", COUNT, "The next one; null: there is none."),
    Column("runner_up_label", TEXT, "Kernel and parameters of that one."),
    Column("runner_up_duration_median_ns", NUMBER, "Median device time of one launch."),
    Column("margin_ratio", NUMBER, "Duration of the runner-up over that of the best, less 1."),
    Column("margin_ratio_low", NUMBER, "Lower end of its interval."),
    Column("margin_ratio_high", NUMBER, "Upper end of it."),
    Column("is_real", FLAG, "The margin is more than noise and drift, as interleaved blocks or separate processes show."),
    Column("reason", TEXT, "Why the margin is real, or is not known to be, one sentence."),
)

CEILINGS: Final = _table(
    "ceilings",
    "Peak rates of the run's device, from every source.",
    DEVICE_ID,
    Column("ceiling_name", TEXT, "dram, l2, l1, shared, or a data type; float16_accumulate16 for sums in half precision."),
    Column("unit", TEXT, "flop_per_s or bytes_per_s."),
    Column("value", NUMBER, "In that unit."),
    Column("path", TEXT, "fma or tensor for compute, copy for memory."),
    Column("source", TEXT, "user, measured, datasheet or clock."),
    Column("confidence", TEXT, "Of a datasheet value: high, medium, low."),
    Column("note", TEXT, "Origin of the value."),
    Column("clock_hz", COUNT, "SM clock at which it holds."),
    Column("measured_unix_ns", COUNT, "Time when it was measured, or set by the user."),
    Column("host_busy_ratio", NUMBER, "Of the host's cores, by other programs while it was measured; over 0.25 it may be too low."),
)

TELEMETRY: Final = _table(
    "telemetry",
    "One row per reading of one device or, without device_id, of the host.",
    MEASURED_UNIX_NS,
    DEVICE_ID,
    Column("utilization_ratio", NUMBER, "Since the reading before."),
    Column("memory_used_bytes", COUNT, "In use."),
    Column("memory_total_bytes", COUNT, "Installed."),
    Column("clock_hz", COUNT, "SM clock, or the CPU's frequency."),
    Column("memory_clock_hz", COUNT, "Memory clock."),
    Column("temperature_celsius", NUMBER, "Of the device."),
    Column("power_watts", NUMBER, "Of the device."),
    THROTTLE_REASONS,
    Column("load_average", NUMBER, "Of the host, over a minute."),
    Column("other_processes", TEXT, "Other processes on the device, comma-separated; null: not known."),
    Column("error_counts", TEXT, "Of the device, NAME=COUNT, comma-separated; empty: it tells none."),
)

LOG_LINES: Final = _table(
    "log_lines",
    "One row per line.",
    Column("event_unix_ns", COUNT, "Time when the profiler wrote it to its journal."),
    Column("level", TEXT, "DEBUG, INFO, WARNING or ERROR."),
    Column("source", TEXT, "service, worker, compiler, program or analyzer."),
    Column("line", TEXT, "Without its line break."),
)

FAILURES: Final = _table(
    "failures",
    "One row per configuration that has no measurement, and why.",
    CONFIGURATION_INDEX,
    LABEL,
    Column("code", TEXT, "Name of a gRPC status code."),
    REASON,
    MESSAGE,
)

ARTIFACTS: Final = _table(
    "artifacts",
    "One row per file that the run left.",
    Column("artifact_name", TEXT, "Unique within the run."),
    Column("digest", TEXT, "sha256: and 64 hexadecimal digits."),
    Column("size_bytes", COUNT, "Of the file."),
    Column("media_type", TEXT, "Of the file."),
)


# ---------------------------------------------------------------- fleet
# Checks of devices, judged.

FLEET: Final = keyed_table(
    "fleet",
    "One row per device and measurement of its newest check, and how it compares with equal devices or with its own earlier checks.",
    Column("node_id", TEXT, "Node of the device."),
    DEVICE_ID,
    Column("device_name", TEXT, "Devices of one name are equal devices."),
    Column("check", TEXT, "What was measured: copy, host to device, device to host, small launches, multiply-adds or tensor cores."),
    Column("verdict", TEXT, "SLOWER, FINE or NOT_JUDGED: there is too little to compare with."),
    Column("rate_ratio", NUMBER, "Its rate over that of the baseline; null: not judged."),
    Column("rate_ratio_low", NUMBER, "Lower end of its 95 % interval."),
    Column("rate_ratio_high", NUMBER, "Upper end of it."),
    Column("baseline", TEXT, "What it was compared with."),
    Column("reason", TEXT, "Of a slower one, what else differs from the baseline: clocks, driver, disturbances; null: nothing known."),
    Column("duration_median_ns", NUMBER, "Median over the blocks of the check."),
    Column("sm_clock_hz", COUNT, "Mean SM clock while it was measured; null: not known."),
    Column("memory_clock_hz", COUNT, "The same of the memory clock."),
    Column("driver_version", TEXT, "Of the device's driver."),
    DISTURBANCE,
    MEASURED_UNIX_NS,
)


# ---------------------------------------------------------------- all tables

WATCHED_TABLES: Final = (
    *(CONFIGURATIONS, MEASUREMENTS, PAIRED_COMPARISONS, CEILINGS, TELEMETRY, LOG_LINES, FAILURES, ARTIFACTS),
    COUNTER_REPORTS,
)
"""Stored row by row as events bring them, and sent to subscribers of the run; samples are stored batch by batch."""

EVENT_TABLES: Final = (*WATCHED_TABLES, COUNTERS)
"""Counters are not sent to subscribers: there are hundreds per configuration, which a page requests when it shows them."""

STORED_TABLES: Final = (*EVENT_TABLES, SAMPLES)
IMPORTED_TABLES: Final = (THRESHOLDS, *TRACE_TABLES)
"""Stored with runs that were imported, and only there: no events bring them."""

TABLES: Final = (
    *(CONFIGURATIONS, SAMPLES, MEASUREMENTS, ROOFLINE, KERNELS, PAIRED_COMPARISONS, CEILINGS, TELEMETRY, LOG_LINES, FAILURES, ARTIFACTS),
    *(
        THRESHOLDS,
        COUNTER_REPORTS,
        COUNTERS,
        COUNTED_WORK,
        COUNTED_ROOFLINE,
        LAYER_ROOFLINE,
        COUNTED_LAYER_ROOFLINE,
        BEST,
        COMPARISON,
        RUNS,
    ),
    *(*TRACE_TABLES, *COMPUTED_TRACE_TABLES, *TRACE_COMPARISON_TABLES, *MODEL_TABLES, *TREE_TABLES, *HISTORY_TABLES, FLEET),
)


def find_table(table_name: str) -> Table:
    """Return a table by name. Raises TableNotFoundError, which lists the tables."""
    for table in TABLES:
        if table.table_name == table_name:
            return table
    raise TableNotFoundError(
        f"table {table_name!r}",
        found="no such table",
        expected=f"one of {', '.join(table.table_name for table in TABLES)}",
        remedy="Choose one of these.",
    )
