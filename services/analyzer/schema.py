"""The canonical tables: every column once, with its type and meaning.

Column names equal the field names of `services.core.model` and of the contract, with units in them. Unknown is null. The
order of columns here is the order everywhere: in GetTable, in WatchRun, in the Parquet files.
"""

from __future__ import annotations

from typing import Final

from services.analyzer.answer_tables import ANSWERED_TABLES, KERNEL_FIGURES, LAYER, LAYER_SOURCE
from services.analyzer.comparison_table import COMPARISON, PAIRED_COMPARISONS, TRACE_COMPARISON_TABLES
from services.analyzer.counter_tables import COUNTED_WORK, COUNTER_REPORTS, COUNTERS
from services.analyzer.history_tables import HISTORY_TABLES
from services.analyzer.model_tables import MODEL_TABLES
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

PARAMETERS: Final = Column("parameters", TEXT, "JSON object of integers.")
CATEGORY: Final = Column("category", TEXT, "Kind of kernel, e.g. matmul.")
DTYPE: Final = Column("dtype", TEXT, "Data type of the arithmetic.")
PATH: Final = Column("path", TEXT, "fma or tensor: picks the compute ceiling.")
MACROS: Final = Column("macros", TEXT, "JSON object of compile-time constants.")
PROCESS_INDEX: Final = Column("process_index", COUNT, "Process of the run that measured it, from 0.")
VARIANT: Final = Column("variant", TEXT, "What tells it from others of the same kernel and parameters, e.g. TILE=16.")
FLOP: Final = Column("flop", NUMBER, "Floating-point operations of one launch.")
BYTES: Final = Column("bytes", NUMBER, "Bytes one launch must move to and from device memory.")
VERIFICATION_STATE: Final = Column("verification_state", TEXT, "Result against the reference.")
DURATION_MEDIAN_NS: Final = Column("duration_median_ns", NUMBER, "Median device time of one launch.")
REASON: Final = Column("reason", TEXT, "Name of the error, e.g. COMPILE_FAILED.")
MESSAGE: Final = Column("message", TEXT, "Subject, found, expected, remedy.")
MODEL_NAME: Final = Column("model_name", TEXT, "Model that it belongs to; null: to none, or not known.")
BATCH_SIZE: Final = Column("batch_size", COUNT, "Of the model's input; null: not known.")
SYMBOL: Final = Column("symbol", TEXT, "Shape to draw it in, by Plotly's names, e.g. square; star: its work is not known; null: any.")
LAYER_PATH: Final = Column("layer_path", TEXT, "Layer of the model that it belongs to, e.g. blocks.3.attn.qkv; null: to none.")
THROTTLE_REASONS: Final = Column("throttle_reasons", TEXT, "Comma-separated; null: not known.")


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
    Column("launches_per_sample", COUNT, "Launches between the two events of a sample."),
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
)

_POINT: Final = (
    CONFIGURATION_INDEX,
    KERNEL_NAME,
    LABEL,
    PARAMETERS,
    CATEGORY,
    DTYPE,
    PATH,
    DEVICE_ID,
    Column(
        "memory_level",
        TEXT,
        "Memory whose ceiling counts: dram, or l2 or l1 for hot bytes that came faster than the one before can, and of counted ones.",
    ),
    DURATION_MEDIAN_NS,
    Column("duration_mean_ns", NUMBER, "Mean of the samples; rates are over it where there is no median."),
    FLOP,
    BYTES,
    Column("intensity_flop_per_byte", NUMBER, "Arithmetic intensity; null without flop or bytes."),
    Column("achieved_flop_per_s", NUMBER, "Measured."),
    Column("achieved_bytes_per_s", NUMBER, "Measured."),
    Column("attainable_flop_per_s", NUMBER, "The roof at this intensity."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable."),
    Column("bound", TEXT, "memory or compute."),
    Column("compute_ceiling_flop_per_s", NUMBER, "Of the kernel's data type."),
    Column("memory_ceiling_bytes_per_s", NUMBER, "Of the memory level."),
    Column("ridge_flop_per_byte", NUMBER, "Intensity at which both ceilings meet."),
    Column("ceiling_source", TEXT, "Source of the ceiling that binds: user, measured, datasheet or clock."),
    VERIFICATION_STATE,
    Column("sm_clock_hz", COUNT, "Mean while sampling."),
    Column("efficiency_datasheet_ratio", NUMBER, "Achieved over attainable by the datasheet's ceilings alone."),
    Column(
        "efficiency_clock_ratio", NUMBER, "By those at the measured clock, else at the maximum; memory by the datasheet, else as measured."
    ),
    Column("efficiency_measured_ratio", NUMBER, "By the measured ceilings alone."),
    Column("bound_datasheet", TEXT, "memory or compute, by the datasheet's ceilings."),
    Column("bound_clock", TEXT, "By those at the measured clock."),
    Column("bound_measured", TEXT, "By the measured ones."),
    Column("is_implausible", FLAG, "More than 5 % over what the device can do at all; null: no ceiling that could tell."),
    Column("implausible_reason", TEXT, "Why, one sentence."),
    Column(
        "work_source",
        TEXT,
        "What flop and bytes stand on: formula, of the kernel's definition, or counters; of traces recorded and op model; null: unknown.",
    ),
    Column("counted_flop", NUMBER, "Of one launch, by hardware counters, whatever the source; null: not counted."),
    Column("counted_dram_bytes", NUMBER, "To and from device memory, by hardware counters."),
    MODEL_NAME,
    BATCH_SIZE,
    SYMBOL,
    Column(
        "efficiency_category",
        TEXT,
        "compute bound or memory bound (over 0.7 of what is attainable), compute inefficient or memory inefficient (below the threshold "
        "of that side), normal (between them); null: efficiency or bound are not known.",
    ),
    Column("efficiency_category_datasheet", TEXT, "The same by the datasheet's ceilings alone."),
    Column("efficiency_category_clock", TEXT, "By those at the measured clock."),
    Column("efficiency_category_measured", TEXT, "By the measured ones."),
    VARIANT,
    LAYER_PATH,
)

_OF_LAUNCHES: Final = (
    Column("launch_count", COUNT, "Of a trace: launches whose work is known; flop and bytes are those of the mean one."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
)

ROOFLINE: Final = _table(
    "roofline",
    "One row per measured configuration, of a trace per kernel, data type and device: achieved against possible. "
    "New ceilings and counters emit rows anew.",
    *_POINT,
    *_OF_LAUNCHES,
)

LAYER_ROOFLINE: Final = _table(
    "layer_roofline",
    "One row per layer of a trace or of a model's run whose work is known: the same of all its launches together.",
    *(LAYER, LAYER_SOURCE, *_POINT, *_OF_LAUNCHES),
)

COUNTED_ROOFLINE: Final = _table(
    "counted_roofline",
    "One row per measured configuration, of a trace per kernel, data type and device, and memory level: the same with work by hardware "
    "counters alone.",
    *_POINT,
    *_OF_LAUNCHES,
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
    *(THRESHOLDS, COUNTER_REPORTS, COUNTERS, COUNTED_WORK, COUNTED_ROOFLINE, LAYER_ROOFLINE, BEST, COMPARISON, RUNS),
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
