"""The tables of figures over time, run by run."""

from __future__ import annotations

from typing import Final

from services.analyzer.columns import DISTURBANCE
from services.analyzer.table import COUNT, DEVICE_ID, FLAG, KERNEL_NAME, MEASURED_UNIX_NS, NUMBER, TEXT, Column, keyed_table

SUBJECT: Final = Column("subject", TEXT, "What it is of: configuration; model (a whole pass); kernel or layer (of a trace, or of a model).")
SERIES: Final = Column(
    "series", TEXT, "Key of all that makes runs comparable: subject, label, model, batch size, data type, cache mode, backend, device."
)
LABEL: Final = Column("label", TEXT, "Kernel and parameters, model and variant, or layer; without the process that measured it.")

IDENTITY: Final = (
    SUBJECT,
    SERIES,
    KERNEL_NAME,
    LABEL,
    Column("category", TEXT, "Kind of kernel, e.g. matmul."),
    Column("dtype", TEXT, "Data type of the arithmetic."),
    Column("model_name", TEXT, "Model that it belongs to; null: to none, or not known."),
    Column("batch_size", COUNT, "Of the model's input; null: not known."),
    Column("cache_mode", TEXT, "COLD or HOT."),
    Column("backend", TEXT, "What ran the kernel: PYCUDA, NVCC or OPENCL."),
    DEVICE_ID,
    Column("device_name", TEXT, "Of the device; null: not known."),
    Column("node_id", TEXT, "Node that it ran on; null: imported."),
)
"""What all rows of a series have in common, as far as they tell it."""

CIRCUMSTANCES: Final = (
    MEASURED_UNIX_NS,
    Column("git_commit", TEXT, "Of the checkout that the run was submitted from."),
    Column("git_is_dirty", FLAG, "Tracked files differed from the commit."),
    Column("driver_version", TEXT, "Of the device's driver."),
    Column("toolkit_version", TEXT, "Of the CUDA toolkit."),
    Column("compiler_options", TEXT, "Given to the kernel's compiler."),
    Column("timing_method", TEXT, "SINGLE, BATCHED or GRAPH."),
    DISTURBANCE,
)

FIGURES: Final = (
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

METRICS: Final = tuple(column.name for column in FIGURES if not column.name.endswith(("_low_ns", "_high_ns")))
"""What a history can be of."""

LARGER_IS_BETTER: Final = frozenset({"achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio", "tokens_per_s"})

HISTORY_ROWS: Final = keyed_table("history_rows", "One row per run and series: every figure of it.", *IDENTITY, *CIRCUMSTANCES, *FIGURES)

HISTORY: Final = keyed_table(
    "history",
    "One row per run and series, oldest first: one figure over time, its levels and changes. Choose the figure by a filter metric=…, "
    "else it is duration_median_ns; filters by what identifies a series are cheap, and one of them should be given.",
    *IDENTITY,
    *CIRCUMSTANCES,
    Column("metric", TEXT, f"Name of the figure: {', '.join(METRICS)}."),
    Column("value", NUMBER, "The figure."),
    Column("value_low", NUMBER, "Lower end of its 95 % interval; null: not known."),
    Column("value_high", NUMBER, "Upper end of it."),
    Column(
        "level_index", COUNT, "Level that the run belongs to, from 0; each begins where the figure changed. Null: too old to be judged."
    ),
    Column("level_value", NUMBER, "Mean of the level (geometric)."),
    Column("level_low", NUMBER, "Lower end of the band that 95 % of such runs lie in."),
    Column("level_high", NUMBER, "Upper end of it."),
    Column("change_ratio", NUMBER, "In the first run of a level: its value over that of the level before; else null."),
    Column("change_ratio_low", NUMBER, "Lower end of its 99 % interval."),
    Column("change_ratio_high", NUMBER, "Upper end of it."),
    Column("verdict", TEXT, "In the first run of a level: REGRESSION or IMPROVEMENT; else null."),
    Column("is_confirmed", FLAG, "In the first run of a level: enough runs agree; false: it may yet be the affair of one run."),
    Column("baseline_run_id", TEXT, "In the first run of a level: the last run of the level before."),
    Column("reason", TEXT, "In the first run of a level: what changed, what else is different since the run before, one sentence each."),
)

HISTORY_SERIES: Final = keyed_table(
    "history_series",
    "One row per series of the history, the latest measured first; run_id is its newest run.",
    *IDENTITY,
    MEASURED_UNIX_NS,
    Column("run_count", COUNT, "Runs that have it."),
    *FIGURES,
)

HISTORY_TABLES: Final = (HISTORY, HISTORY_SERIES)
