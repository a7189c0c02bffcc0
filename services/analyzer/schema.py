"""The canonical tables: every column once, with its type and meaning.

Column names equal the field names of `services.core.model` and of the contract, with units in them. Unknown is null. The
order of columns here is the order everywhere: in GetTable, in WatchRun, in the Parquet files.
"""

from __future__ import annotations

from typing import Final

from services.analyzer.answer_tables import ANSWERED_TABLES, KERNEL_FIGURES
from services.analyzer.columns import (
    BATCH_SIZE,
    BYTES,
    CATEGORY,
    DISTURBANCE,
    DTYPE,
    DURATION_MEDIAN_NS,
    FLOP,
    LAYER_PATH,
    MACROS,
    MESSAGE,
    MODEL_NAME,
    PARAMETERS,
    PATH,
    PROCESS_INDEX,
    REASON,
    SYMBOL,
    THROTTLE_REASONS,
    VARIANT,
    VERIFICATION_STATE,
)
from services.analyzer.comparison_table import COMPARISON, PAIRED_COMPARISONS, TRACE_COMPARISON_TABLES
from services.analyzer.counter_tables import COUNTED_WORK, COUNTER_REPORTS, COUNTERS
from services.analyzer.history_tables import HISTORY_TABLES
from services.analyzer.model_tables import MODEL_TABLES
from services.analyzer.roofline_tables import COUNTED_LAYER_ROOFLINE, COUNTED_ROOFLINE, LAYER_ROOFLINE, ROOFLINE
from services.analyzer.runs_table import RUNS
from services.analyzer.table import (
    CONFIGURATION_INDEX,
    COUNT,
    DEVICE_ID,
    FLAG,
    KERNEL_NAME,
    LABEL,
    MEASURED_UNIX_NS,
    NUMBER,
    TEXT,
    Column,
    Table,
)
from services.analyzer.table import keyed_table as _table
from services.analyzer.threshold_table import THRESHOLDS
from services.analyzer.trace_tables import TRACE_TABLES
from services.analyzer.tree_tables import TREE_TABLES
from services.core.errors import TableNotFoundError

CONFIGURATIONS: Final = _table(
    "configurations",
    "One row per kernel with one set of parameters, announced before its first sample.",
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
    Column("measured_unix_ns", COUNT, "When the last sample of its batch had been taken."),
    Column("sm_clock_hz", COUNT, "SM clock during the sample; null: not known."),
    Column("is_discarded", FLAG, "Taken while the clock was throttled: it does not count."),
)

_STATISTICS: Final = (
    Column("sample_count", COUNT, "Samples that the statistics stand on."),
    Column("discarded_sample_count", COUNT, "Taken but left out, e.g. while throttled."),
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
    Column("is_blocked", FLAG, "The stream was held while a batch was enqueued."),
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
    Column("backend", TEXT, "What ran the kernel: PYCUDA, NVCC or OPENCL."),
    FLOP,
    BYTES,
    *_STATISTICS,
    VERIFICATION_STATE,
    Column("verification_max_absolute_error", NUMBER, "Of the worst output."),
    Column("verification_max_relative_error", NUMBER, "max|output - reference| / max|reference|."),
    Column("verification_message", TEXT, "What the verification says."),
    MEASURED_UNIX_NS,
    Column("elapsed_ns", COUNT, "Wall clock of the whole configuration."),
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
    Column("stated_flop_per_s", NUMBER, "Rate as another tool states it; the roofline takes it where flop or duration are not known."),
    Column("stated_flop_per_byte", NUMBER, "Intensity as another tool states it; taken where flop or bytes are not known."),
    Column("tokens_per_s", NUMBER, "Of a language model, as another tool states it."),
    LAYER_PATH,
    Column("device_memory_bytes", COUNT, "Of the buffers that a launch uses, or of all those of a model's whole pass; null: not told."),
    DISTURBANCE,
)

KERNELS: Final = _table(
    "kernels",
    "One row per run and kernel, of traces with figures of its launches; event_index is that of the last row that contributed.",
    KERNEL_NAME,
    *KERNEL_FIGURES,
    CATEGORY,
    DTYPE,
    DEVICE_ID,
    Column("configuration_count", COUNT, "Announced configurations."),
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
    Column("implausible_count", COUNT, "Measurements faster than the device can be."),
    Column("disturbed_count", COUNT, "Measurements that something disturbed, or the measuring of their ceilings."),
)

BEST: Final = _table(
    "best",
    "One row per problem (one work with its parameters, cache mode and device): the configuration with the shortest median.",
    *(CONFIGURATION_INDEX, KERNEL_NAME, LABEL, PARAMETERS, CATEGORY, MACROS, DEVICE_ID, DURATION_MEDIAN_NS),
    Column("block", TEXT, "Threads per block, e.g. 16x16x1."),
    Column("cache_mode", TEXT, "COLD or HOT."),
    Column("process_count", COUNT, "Processes that measured it; its duration is the median of their medians."),
    Column("candidate_count", COUNT, "Configurations of the problem, apart from those with wrong results."),
    Column("runner_up_configuration_index", COUNT, "The next one; null: there is none."),
    Column("runner_up_label", TEXT, "Kernel and parameters of that one."),
    Column("runner_up_duration_median_ns", NUMBER, "Median device time of one launch."),
    Column("margin_ratio", NUMBER, "Duration of the runner-up over that of the best, less 1."),
    Column("margin_ratio_low", NUMBER, "Lower end of its interval."),
    Column("margin_ratio_high", NUMBER, "Upper end of it."),
    Column("is_real", FLAG, "The margin is more than noise and drift: alternating blocks or separate processes say so."),
    Column("reason", TEXT, "Why it is real, or is not known to be, one sentence."),
)

CEILINGS: Final = _table(
    "ceilings",
    "What the run's device can do at most, from every source.",
    DEVICE_ID,
    Column("ceiling_name", TEXT, "dram, l2, l1, shared, or a data type; float16_accumulate16 for sums in half precision."),
    Column("unit", TEXT, "flop_per_s or bytes_per_s."),
    Column("value", NUMBER, "In that unit."),
    Column("path", TEXT, "fma or tensor for compute, copy for memory."),
    Column("source", TEXT, "user, measured, datasheet or clock."),
    Column("confidence", TEXT, "Of a datasheet figure: high, medium, low."),
    Column("note", TEXT, "Where the figure comes from."),
    Column("clock_hz", COUNT, "SM clock at which it holds."),
    Column("measured_unix_ns", COUNT, "When it was measured, or set by hand."),
    Column("host_busy_ratio", NUMBER, "Of the host's cores, by other programs while it was measured; over 0.25 it may be too low."),
)

TELEMETRY: Final = _table(
    "telemetry",
    "One row per reading of one device or, without device_id, of the host.",
    MEASURED_UNIX_NS,
    DEVICE_ID,
    Column("utilization_ratio", NUMBER, "Since the reading before."),
    Column("memory_used_bytes", COUNT, "In use."),
    Column("memory_total_bytes", COUNT, "There is."),
    Column("clock_hz", COUNT, "SM clock, or the CPU's frequency."),
    Column("memory_clock_hz", COUNT, "Memory clock."),
    Column("temperature_celsius", NUMBER, "Of the device."),
    Column("power_watts", NUMBER, "Of the device."),
    THROTTLE_REASONS,
    Column("load_average", NUMBER, "Of the host, over a minute."),
)

LOG_LINES: Final = _table(
    "log_lines",
    "One row per line.",
    Column("event_unix_ns", COUNT, "When the profiler journalled it."),
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

WATCHED_TABLES: Final = (
    *(CONFIGURATIONS, MEASUREMENTS, PAIRED_COMPARISONS, CEILINGS, TELEMETRY, LOG_LINES, FAILURES, ARTIFACTS),
    COUNTER_REPORTS,
)
"""Stored row by row as events bring them, and shown to those who watch the run; samples are stored batch by batch."""

EVENT_TABLES: Final = (*WATCHED_TABLES, COUNTERS)
"""Counters are not shown as they arrive: hundreds a configuration, which a page that wants them asks for."""

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
    *(*TRACE_TABLES, *ANSWERED_TABLES, *TRACE_COMPARISON_TABLES, *MODEL_TABLES, *TREE_TABLES, *HISTORY_TABLES),
)


def table_named(table_name: str) -> Table:
    """Raises TableNotFoundError that names the tables there are."""
    for table in TABLES:
        if table.table_name == table_name:
            return table
    raise TableNotFoundError(
        f"table {table_name!r}",
        found="no such table",
        expected=f"one of {', '.join(table.table_name for table in TABLES)}",
        remedy="Choose one of these.",
    )
