"""Tables that analyses compute: rooflines, layers, models, trees, comparisons and history."""

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
    INDEX,
    KERNEL_NAME,
    LABEL,
    LAYER_PATH,
    MEASURED_UNIX_NS,
    MODEL_NAME,
    NUMBER,
    PARAMETERS,
    PATH,
    SYMBOL,
    TEXT,
    VARIANT,
    VERIFICATION_STATE,
    Column,
    keyed_table,
)
from kernalyse.services.analyzer.tables.base import keyed_table as _table
from kernalyse.services.analyzer.tables.traces import ACTIVITY_TABLES, BUSY_COLUMNS, DEVICE_INDEX, DEVICE_NAME, PROCESS_ID
from kernalyse.services.core.formatting import PATH_SEPARATOR

# ---------------------------------------------------------------- traces
# Computed from a trace on request.

KERNEL_METRICS: Final = (
    Column("launch_count", COUNT, "Of a trace: executions. Null for other runs, as the next five."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
    Column("duration_min_ns", COUNT, "Of a trace: shortest launch."),
    Column("duration_median_ns", NUMBER, "Of a trace: median launch."),
    Column("duration_max_ns", COUNT, "Of a trace: longest launch."),
)
"""Columns of table kernels that only traces fill."""

LAYER: Final = Column("layer", TEXT, "Range or module, or inferred from kernel names (source guessed); null: not known.")
LAYER_SOURCE: Final = Column(
    "source",
    TEXT,
    "How the layer was found: annotation of the workload, module, range, forward, graph or guessed (inferred from names); null: unknown.",
)
PASS_DURATION_NS: Final = Column(
    "pass_duration_median_ns",
    NUMBER,
    "Of a model's run: median of a complete pass. Layers are timed one by one, so their sum differs; null: of a trace, or not timed.",
)
LAYER_VARIANT: Final = Column("variant", TEXT, "Of a model's run: variant of the model; null: of a trace.")

RATE_COLUMNS: Final = (
    Column("flop", NUMBER, "Of its launches with known costs; null: not known for all of these."),
    Column("bytes", NUMBER, "The same: the least that has to be moved; by counters, what was moved."),
    Column("intensity_flop_per_byte", NUMBER, "flop over bytes."),
    Column("achieved_flop_per_s", NUMBER, "flop over the time of the same launches."),
    Column("achieved_bytes_per_s", NUMBER, "bytes over that time."),
    Column("attainable_flop_per_s", NUMBER, "The roofline at this intensity."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable; without flop over the memory's ceiling."),
    Column("bound", TEXT, "memory or compute."),
    Column("work_source", TEXT, "Source of flop and bytes: formula, counters, recorded or op model; null: not known."),
    Column("worked_share_ratio", NUMBER, "Fraction of its device time in launches whose costs are known."),
    DISTURBANCE,
)
"""Costs of a layer's launches, and their efficiency on the roofline."""

LAYERS: Final = _table(
    "layers",
    "One row per layer of a trace: kernels summed by the innermost range or module that launched them, or by those at one depth. "
    "Of a model's run one per layer and variant: one pass through it, each launch taken at its median.",
    LAYER,
    Column("call_count", COUNT, "Ranges of that name that launched a kernel; of a model's run innermost layers in it."),
    Column("launch_count", COUNT, "Kernels."),
    Column("duration_sum_ns", COUNT, "Device time of these."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a model's run of the sum of the variant's layers, not of a pass."),
    LAYER_SOURCE,
    *RATE_COLUMNS,
    LAYER_VARIANT,
    Column(
        "memory_bytes", COUNT, "Of a model's run: device memory of the buffers that one of its launches uses, at most; null: not known."
    ),
    PASS_DURATION_NS,
)

BREAKDOWN: Final = _table(
    "breakdown",
    "One row per process and device: activity of the device between the first start and the last end of its work.",
    PROCESS_ID,
    DEVICE_INDEX,
    DEVICE_NAME,
    Column("span_ns", COUNT, "From the first start to the last end of its kernels and memory operations; busy_ns and idle_ns together."),
    *BUSY_COLUMNS,
    Column("overlap_ns", COUNT, "Both at once: communication hidden behind computing."),
    Column("memory_ns", COUNT, "At least one copy or fill ran."),
    Column("memory_only_ns", COUNT, "Part of idle_ns while a copy or fill ran."),
    Column("launch_count", COUNT, "Kernels."),
    Column("memory_op_count", COUNT, "Copies and fills."),
)

COUNTER_COVERAGE: Final = _table(
    "counter_coverage",
    "One row per source of counted costs: how many kernels of a trace have counters of a report of ncu.",
    Column("work_source", TEXT, "counters, counters of the same launch configuration; null: kernels without counters."),
    Column("launch_count", COUNT, "Kernels."),
    Column("launch_ratio", NUMBER, "Of all kernels."),
    Column("duration_sum_ns", COUNT, "Device time of these."),
    Column("duration_ratio", NUMBER, "Of the device time of all kernels."),
)

OPPORTUNITIES: Final = _table(
    "opportunities",
    "One row per kernel, layer and idle device: possible savings, largest first; where they are not known, longest first. "
    "Kernels and layers divide the same time: only rows of one subject_kind add up.",
    Column("subject_kind", TEXT, "kernel, layer or device."),
    Column("subject", TEXT, "Name of the subject; null: the kernels outside every layer."),
    Column("launch_count", COUNT, "Kernels; null: of a device."),
    Column("duration_sum_ns", COUNT, "Device time of these; of a device its idle time."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a device of its span."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable in that time; null: not known. Of a device busy time over span."),
    Column("lost_ns", NUMBER, "Time x (1 - efficiency), which reaching the roofline would save; null: not known."),
    Column("bound", TEXT, "memory or compute; null: not known."),
    Column("reason", TEXT, "Explanation, one sentence."),
    LAYER_VARIANT,
)

COMPUTED_TRACE_TABLES: Final = (LAYERS, BREAKDOWN, OPPORTUNITIES, COUNTER_COVERAGE, *ACTIVITY_TABLES)


# ---------------------------------------------------------------- rooflines
# Points under a roofline: configurations, kernels and layers, with costs by formula or by hardware counters.

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
        "Memory whose ceiling applies: dram; l2 or l1 for hot bytes faster than the level before allows, and for counted bytes.",
    ),
    DURATION_MEDIAN_NS,
    Column("duration_mean_ns", NUMBER, "Mean of the samples; rates are over it where there is no median."),
    FLOP,
    BYTES,
    Column("intensity_flop_per_byte", NUMBER, "Arithmetic intensity; null without flop or bytes."),
    Column("achieved_flop_per_s", NUMBER, "Measured."),
    Column("achieved_bytes_per_s", NUMBER, "Measured."),
    Column("attainable_flop_per_s", NUMBER, "The roofline at this intensity."),
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
    Column("is_implausible", FLAG, "More than 5 % above what the device can do at all; null: no ceiling is known."),
    Column("implausible_reason", TEXT, "Explanation, one sentence."),
    Column(
        "work_source",
        TEXT,
        "Source of flop and bytes: formula of the kernel's definition, or counters; of traces also recorded and op model; null: unknown.",
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
    DISTURBANCE,
)

_OF_LAUNCHES: Final = (
    Column("launch_count", COUNT, "Of a trace: launches with known costs; flop and bytes are their means."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
)

ROOFLINE: Final = _table(
    "roofline",
    "One row per measured configuration, of a trace per kernel, data type and device: achieved against attainable. "
    "New ceilings and counters emit its rows again.",
    *_POINT,
    *_OF_LAUNCHES,
)

LAYER_ROOFLINE: Final = _table(
    "layer_roofline",
    "One row per layer of a trace or of a model's run with known costs: the same for all its launches together.",
    *(LAYER, LAYER_SOURCE, *_POINT, *_OF_LAUNCHES),
)

COUNTED_ROOFLINE: Final = _table(
    "counted_roofline",
    "One row per measured configuration, of a trace per kernel, data type and device, and memory level: the same with costs by "
    "hardware counters alone.",
    *_POINT,
    *_OF_LAUNCHES,
)

COUNTED_LAYER_ROOFLINE: Final = _table(
    "counted_layer_roofline",
    "One row per layer of a trace and memory level: the same for all its launches whose bytes at that level were counted.",
    *(LAYER, LAYER_SOURCE, *_POINT, *_OF_LAUNCHES),
)


# ---------------------------------------------------------------- comparisons
# Of runs, and of configurations of one run.

PAIRED_COMPARISONS: Final = keyed_table(
    "paired_comparisons",
    "One row per two configurations measured in interleaved blocks of one process.",
    CONFIGURATION_INDEX,
    LABEL,
    Column("baseline_configuration_index", COUNT, "Configuration that it is compared with."),
    Column("baseline_label", TEXT, "Kernel and parameters of that one."),
    Column("block_count", COUNT, "Of each side."),
    Column("duration_ratio", NUMBER, "Duration over the baseline's: median over the pairs of blocks."),
    Column("duration_ratio_low", NUMBER, "Lower end of its interval, by bootstrap."),
    Column("duration_ratio_high", NUMBER, "Upper end of it."),
    Column("cycle_ratio", NUMBER, "The same in clock cycles."),
    Column("cycle_ratio_low", NUMBER, "Lower end of its interval."),
    Column("cycle_ratio_high", NUMBER, "Upper end of it."),
    Column("confidence_ratio", NUMBER, "Of the intervals."),
    Column("verdict", TEXT, "FASTER, SLOWER, SAME or UNDECIDED."),
    Column("reason", TEXT, "Explanation, one sentence."),
    MEASURED_UNIX_NS,
)

COMPARISON: Final = keyed_table(
    "comparison",
    "One row per configuration of two runs: the second, the candidate, against the first, the baseline. Requires exactly two run_ids.",
    Column("baseline_run_id", TEXT, "The first run."),
    Column("occurrence", TEXT, "MATCHED, NEW (only the second run has it) or GONE (only the first has)."),
    CONFIGURATION_INDEX,
    Column("baseline_configuration_index", COUNT, "Configuration of the first run; null: it has none."),
    KERNEL_NAME,
    LABEL,
    Column("cache_mode", TEXT, "COLD or HOT."),
    Column("process_count", COUNT, "Processes of the second run that measured it."),
    Column("baseline_process_count", COUNT, "Of the first run."),
    Column("duration_median_ns", NUMBER, "Median of the processes' medians, second run."),
    Column("baseline_duration_median_ns", NUMBER, "The same of the first run."),
    Column("duration_ratio", NUMBER, "Duration of the second run over that of the first."),
    Column("duration_ratio_low", NUMBER, "Lower end of its interval, by bootstrap over processes and samples."),
    Column("duration_ratio_high", NUMBER, "Upper end of it."),
    Column("cycle_ratio", NUMBER, "The same in clock cycles; null: the device reports no clock."),
    Column("cycle_ratio_low", NUMBER, "Lower end of its interval."),
    Column("cycle_ratio_high", NUMBER, "Upper end of it."),
    Column("confidence_ratio", NUMBER, "Of the intervals."),
    Column("verdict", TEXT, "FASTER, SLOWER, SAME or UNDECIDED; null: it is not in both."),
    Column("reason", TEXT, "Explanation, one sentence."),
    Column("allowed_differences", TEXT, "Differences that were allowed: device, method, cache, inputs; comma-separated."),
    Column("disturbance", TEXT, "Disturbance of the measurement, second run; null: none known."),
    Column("baseline_disturbance", TEXT, "Of the first run."),
)

_CHANGE: Final = (
    Column("duration_sum_ns", COUNT, "Device time of its launches, second trace."),
    Column("baseline_duration_sum_ns", COUNT, "Of the first."),
    Column(
        "duration_delta_ns",
        COUNT,
        "The second less the first; launches of only one trace count completely. The sum of all rows is the change of the total.",
    ),
    Column("delta_share_ratio", NUMBER, "Fraction of the total change; negative: in the other direction. Null: the total did not change."),
    Column("duration_ratio", NUMBER, "The second's device time over the first's; null: it is not in both."),
    Column(
        "duration_per_launch_ratio", NUMBER, "The same for one launch: if it is not 1, launches became slower or faster, not more or fewer."
    ),
)
_LAUNCHES: Final = (
    Column("launch_count", COUNT, "Launches, second trace; null: it has none."),
    Column("baseline_launch_count", COUNT, "Of the first."),
)
_NAME_COUNTS: Final = (
    Column("name_count", COUNT, "Names of the second trace in this row; if over 1, kernel_name is the form that they share."),
    Column("baseline_name_count", COUNT, "Of the first."),
)
_OCCURRENCE: Final = (
    Column("baseline_run_id", TEXT, "The first run."),
    Column("occurrence", TEXT, "MATCHED, NEW (only the second trace has it) or GONE (only the first has)."),
    Column(
        "matched_by",
        TEXT,
        "name: equal names; form: names equal without template arguments, parameters, addresses and counters. Null: unmatched.",
    ),
)

KERNEL_COMPARISON: Final = keyed_table(
    "kernel_comparison",
    "One row per kernel of two traces, largest change first. Requires exactly two run_ids: the baseline, then the candidate.",
    *_OCCURRENCE,
    KERNEL_NAME,
    Column("baseline_kernel_name", TEXT, "In the first trace."),
    *(*_NAME_COUNTS, *_LAUNCHES, *_CHANGE),
    Column("duration_median_ns", NUMBER, "Median launch of the second trace; null: of several names."),
    Column("baseline_duration_median_ns", NUMBER, "Of the first."),
    Column(
        "duration_median_ratio",
        NUMBER,
        "The second's median launch over the first's: unlike the mean, it is not affected by a few delayed launches.",
    ),
)

LAYER_COMPARISON: Final = keyed_table(
    "layer_comparison",
    "One row per layer of two traces, largest change first. Requires run_ids as kernel_comparison does; depth as for layers.",
    *_OCCURRENCE,
    Column("layer", TEXT, "Name of the range or module; null: outside every one."),
    Column("baseline_layer", TEXT, "In the first trace."),
    *_NAME_COUNTS,
    Column("call_count", COUNT, "Ranges that launched a kernel, second trace."),
    Column("baseline_call_count", COUNT, "Of the first."),
    *(*_LAUNCHES, *_CHANGE),
)

TRACE_COMPARISON_TABLES: Final = (KERNEL_COMPARISON, LAYER_COMPARISON)


# ---------------------------------------------------------------- ML models
# Runs that time a model launch by launch.

MODEL: Final = Column("model_name", TEXT, "Name of the model.")
MODEL_VARIANT: Final = Column("variant", TEXT, "Implementation of the model, e.g. baseline or fused; null: it has only one.")

MODELS: Final = _table(
    "models",
    "One row per model, variant and device of a run: complete passes.",
    MODEL,
    MODEL_VARIANT,
    Column("batch_size", COUNT, "Sequences of one pass."),
    Column("sequence_length", COUNT, "Tokens of each."),
    Column("layer_count", COUNT, "Transformer blocks."),
    Column("head_count", COUNT, "Attention heads of a block."),
    Column("width", COUNT, "Of the embedding."),
    Column("vocabulary_size", COUNT, "Tokens in the vocabulary."),
    DEVICE_ID,
    Column("sample_count", COUNT, "Passes timed."),
    Column("duration_median_ns", NUMBER, "Median device time of a pass; while the run is running, of the passes so far."),
    Column("duration_median_low_ns", NUMBER, "Lower end of its 95 % confidence interval."),
    Column("duration_median_high_ns", NUMBER, "Upper end of it."),
    Column("duration_mean_ns", NUMBER, "Mean of the passes."),
    Column("duration_standard_deviation_ns", NUMBER, "Of the passes."),
    Column("duration_min_ns", NUMBER, "Shortest pass."),
    Column("duration_max_ns", NUMBER, "Longest pass."),
    Column("duration_p95_ns", NUMBER, "95th percentile."),
    Column("duration_p99_ns", NUMBER, "99th percentile."),
    Column(
        "tokens_per_s",
        NUMBER,
        "Batch size times sequence length over the median, without one over the mean; else as stated by another tool.",
    ),
    Column("launch_count", COUNT, "Launches of a pass."),
    Column("launches_duration_sum_ns", NUMBER, "Sum of the medians of these, timed one by one: not the time of a pass."),
    Column("memory_bytes", COUNT, "Most device memory that its buffers take; null: not known."),
    Column("flop", NUMBER, "Of a pass."),
    Column("bytes", NUMBER, "Of a pass."),
    Column("achieved_flop_per_s", NUMBER, "flop over the median."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable, treating the pass as one kernel."),
    Column("bound", TEXT, "memory or compute."),
    Column("verification_state", TEXT, "Result against the reference."),
    Column("verification_max_relative_error", NUMBER, "max|output - reference| / max|reference|."),
    DISTURBANCE,
)

LAYER_VARIANTS: Final = _table(
    "layer_variants",
    "One row per layer of a model's run in two variants: the later variant compared with the first, largest change first.",
    Column("layer", TEXT, "Layer, cut to the requested depth."),
    Column("occurrence", TEXT, "MATCHED, NEW (only the later variant has it) or GONE (only the first has)."),
    MODEL_VARIANT,
    Column("baseline_variant", TEXT, "The first one."),
    Column("launch_count", COUNT, "Launches of the layer in a pass."),
    Column("baseline_launch_count", COUNT, "Of the first variant."),
    Column("duration_sum_ns", COUNT, "Sum of their medians."),
    Column("baseline_duration_sum_ns", COUNT, "Of the first variant."),
    Column("duration_delta_ns", COUNT, "The later less the first; a layer of only one counts completely."),
    Column("duration_ratio", NUMBER, "The later over the first; null: it is not in both."),
    Column("paired_ratio", NUMBER, "The same by interleaved batches of passes: median over their pairs; null: samples are not known."),
    Column("paired_ratio_low", NUMBER, "Lower end of its interval, by bootstrap."),
    Column("paired_ratio_high", NUMBER, "Upper end of it."),
    Column("verdict", TEXT, "FASTER, SLOWER, SAME or UNDECIDED, by that interval."),
    Column("reason", TEXT, "Explanation, one sentence."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable."),
    Column("baseline_efficiency_ratio", NUMBER, "Of the first variant."),
)

MODEL_TABLES: Final = (MODELS, LAYER_VARIANTS)
"""Computed from the configurations of a model's run, even while it is running."""


# ---------------------------------------------------------------- layer tree
# Of traces and of models' runs.

TREE_LAYER_PATH: Final = Column(
    "layer_path",
    TEXT,
    f"Names from the outermost layer down: of a model joined by dots, of a trace by {PATH_SEPARATOR.strip()!r} between spaces.",
)
DURATION_SUM_NS: Final = Column("duration_sum_ns", COUNT, "Device time of these.")

LAYER_TREE: Final = _table(
    "layer_tree",
    "One row per layer with all layers inside of it: ranges of one name in the same layer are one, whatever their call or step. "
    "Of a model's run one per layer and variant: one pass, each launch taken at its median.",
    TREE_LAYER_PATH,
    Column("parent_path", TEXT, "Enclosing layer; null: none."),
    Column("layer", TEXT, "Its own name, the last of the path."),
    Column("depth", INDEX, "Number of enclosing layers."),
    Column("order_index", COUNT, "Orders the layers inside one layer: by their first start."),
    Column("call_count", COUNT, "Ranges that launched a kernel; of a model innermost layers in it."),
    Column("launch_count", COUNT, "Kernels launched by it or by a layer inside it."),
    DURATION_SUM_NS,
    Column("own_duration_sum_ns", COUNT, "Part launched by the layer itself, not by a layer inside it."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a model's run of the sum of the variant's layers, not of a pass."),
    LAYER_SOURCE,
    Column("category", TEXT, "Kind of the kernels that take most of its time; of a trace inferred from their names; null: not known."),
    *RATE_COLUMNS,
    LAYER_VARIANT,
    Column(
        "memory_bytes", COUNT, "Of a model's run: device memory of the buffers that one of its launches uses, at most; null: not known."
    ),
    PASS_DURATION_NS,
)

LAYER_KERNELS: Final = _table(
    "layer_kernels",
    "One row per layer of table layer_tree and name of a kernel launched by it or by a layer inside it.",
    TREE_LAYER_PATH,
    Column("layer", TEXT, "Its own name, the last of the path."),
    Column("depth", INDEX, "Number of enclosing layers."),
    KERNEL_NAME,
    Column("category", TEXT, "Kind of kernel; of a trace inferred from its name."),
    Column("dtype", TEXT, "Data type of most of its operations; null: not known."),
    Column("launch_count", COUNT, "Launches of the kernel."),
    Column("own_launch_count", COUNT, "Of these, launched by the layer itself, not by a layer inside it."),
    DURATION_SUM_NS,
    Column("share_ratio", NUMBER, "Of the layer's device time."),
    *RATE_COLUMNS,
    LAYER_VARIANT,
)

TREE_TABLES: Final = (LAYER_TREE, LAYER_KERNELS)


# ---------------------------------------------------------------- history
# Metrics run by run.

SUBJECT: Final = Column("subject", TEXT, "configuration; model (a complete pass); kernel or layer (of a trace, or of a model).")
SERIES: Final = Column(
    "series",
    TEXT,
    "Key of everything that has to be equal for a comparison: subject, label, model, batch size, data type, cache mode, backend, device.",
)
SERIES_LABEL: Final = Column("label", TEXT, "Kernel and parameters, model and variant, or layer; without the process that measured it.")

IDENTITY_COLUMNS: Final = (
    SUBJECT,
    SERIES,
    KERNEL_NAME,
    SERIES_LABEL,
    Column("category", TEXT, "Kind of kernel, e.g. matmul."),
    Column("dtype", TEXT, "Data type of the arithmetic."),
    Column("model_name", TEXT, "ML model that it belongs to; null: none, or not known."),
    Column("batch_size", COUNT, "Batch size of the model's input; null: not known."),
    Column("cache_mode", TEXT, "COLD or HOT."),
    Column("backend", TEXT, "Backend that ran the kernel: PYCUDA, NVCC or OPENCL."),
    DEVICE_ID,
    Column("device_name", TEXT, "Of the device; null: not known."),
    Column("node_id", TEXT, "Node that it ran on; null: imported."),
)
"""Columns with one value for all rows of a series, where it is known."""

CIRCUMSTANCE_COLUMNS: Final = (
    MEASURED_UNIX_NS,
    Column("git_commit", TEXT, "Of the checkout that the run was submitted from."),
    Column("git_is_dirty", FLAG, "Tracked files differed from the commit."),
    Column("driver_version", TEXT, "Of the device's driver."),
    Column("toolkit_version", TEXT, "Of the CUDA toolkit."),
    Column("compiler_options", TEXT, "Given to the kernel's compiler."),
    Column("timing_method", TEXT, "SINGLE, BATCHED or GRAPH."),
    Column("sm_clock_hz", COUNT, "Mean SM clock while it was measured; null: not known."),
    Column("memory_clock_hz", COUNT, "The same of the memory clock."),
    DISTURBANCE,
)

METRIC_COLUMNS: Final = (
    Column("duration_median_ns", NUMBER, "Median device time: of a launch, or of a pass; of a kernel of a trace, of its launches."),
    Column("duration_median_low_ns", NUMBER, "Lower end of its interval; of several processes, the least of theirs."),
    Column("duration_median_high_ns", NUMBER, "Upper end of it."),
    Column("duration_mean_ns", NUMBER, "Mean of the samples."),
    Column("duration_min_ns", NUMBER, "Shortest sample."),
    Column("duration_p95_ns", NUMBER, "95th percentile."),
    Column("duration_p99_ns", NUMBER, "99th percentile."),
    Column("duration_sum_ns", NUMBER, "Of a kernel or layer of a trace: device time of all its launches."),
    Column("noise_ratio", NUMBER, "Standard deviation over mean."),
    Column("achieved_flop_per_s", NUMBER, "Flop over the median."),
    Column("achieved_bytes_per_s", NUMBER, "Bytes over the median."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable, by the ceilings that were known when the run ended."),
    Column("tokens_per_s", NUMBER, "Of a model."),
)

METRICS: Final = tuple(column.name for column in METRIC_COLUMNS if not column.name.endswith(("_low_ns", "_high_ns")))
"""Metrics that a history can show."""

LARGER_IS_BETTER: Final = frozenset({"achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio", "tokens_per_s"})

HISTORY_ROWS: Final = keyed_table(
    "history_rows", "One row per run and series, with every metric.", *IDENTITY_COLUMNS, *CIRCUMSTANCE_COLUMNS, *METRIC_COLUMNS
)

HISTORY: Final = keyed_table(
    "history",
    "One row per run and series, oldest first: one metric over time, its levels and changes. A filter metric=… selects the metric, "
    "else it is duration_median_ns; filters on columns that identify a series are cheap, and one of them should be given.",
    *IDENTITY_COLUMNS,
    *CIRCUMSTANCE_COLUMNS,
    Column("metric", TEXT, f"Name of the metric: {', '.join(METRICS)}."),
    Column("value", NUMBER, "Value of the metric."),
    Column("value_low", NUMBER, "Lower end of its 95 % interval; null: not known."),
    Column("value_high", NUMBER, "Upper end of it."),
    Column(
        "level_index",
        COUNT,
        "Level that the run belongs to, from 0; a level begins where the metric changed. Null: too old to be analyzed.",
    ),
    Column("level_value", NUMBER, "Mean of the level (geometric)."),
    Column("level_low", NUMBER, "Lower end of the band that contains 95 % of such runs."),
    Column("level_high", NUMBER, "Upper end of it."),
    Column("change_ratio", NUMBER, "In the first run of a level: its value over that of the level before; else null."),
    Column("change_ratio_low", NUMBER, "Lower end of its 99 % interval."),
    Column("change_ratio_high", NUMBER, "Upper end of it."),
    Column("verdict", TEXT, "In the first run of a level: REGRESSION or IMPROVEMENT; else null."),
    Column("is_confirmed", FLAG, "In the first run of a level: enough runs agree; false: it may be a single outlier."),
    Column("baseline_run_id", TEXT, "In the first run of a level: the last run of the level before."),
    Column("reason", TEXT, "In the first run of a level: the change, and what else differs from the run before, one sentence each."),
)

HISTORY_SERIES: Final = keyed_table(
    "history_series",
    "One row per series of the history, the latest measured first; run_id is its newest run.",
    *IDENTITY_COLUMNS,
    MEASURED_UNIX_NS,
    Column("run_count", COUNT, "Runs that have it."),
    *METRIC_COLUMNS,
)

HISTORY_TABLES: Final = (HISTORY, HISTORY_SERIES)
