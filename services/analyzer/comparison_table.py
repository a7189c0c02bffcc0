"""The tables that runs, or configurations of one, are compared in."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import CONFIGURATION_INDEX, COUNT, KERNEL_NAME, LABEL, MEASURED_UNIX_NS, NUMBER, TEXT, Column, keyed_table

PAIRED_COMPARISONS: Final = keyed_table(
    "paired_comparisons",
    "One row per two configurations measured in alternating blocks of one process.",
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
    Column("reason", TEXT, "Why, one sentence."),
    MEASURED_UNIX_NS,
)

COMPARISON: Final = keyed_table(
    "comparison",
    "One row per configuration of two runs, the second judged by the first. Asked for with exactly two run_ids.",
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
    Column("duration_ratio", NUMBER, "The second run's over the first's."),
    Column("duration_ratio_low", NUMBER, "Lower end of its interval, by bootstrap over processes and samples."),
    Column("duration_ratio_high", NUMBER, "Upper end of it."),
    Column("cycle_ratio", NUMBER, "The same in clock cycles; null: the device tells no clock."),
    Column("cycle_ratio_low", NUMBER, "Lower end of its interval."),
    Column("cycle_ratio_high", NUMBER, "Upper end of it."),
    Column("confidence_ratio", NUMBER, "Of the intervals."),
    Column("verdict", TEXT, "FASTER, SLOWER, SAME or UNDECIDED; null: it is not in both."),
    Column("reason", TEXT, "Why, one sentence."),
    Column("allowed_differences", TEXT, "What differs and was allowed to: device, method, cache, inputs; comma-separated."),
    Column("disturbance", TEXT, "What disturbed the measuring, second run; null: nothing known."),
    Column("baseline_disturbance", TEXT, "Of the first run."),
)

_CHANGE: Final = (
    Column("duration_sum_ns", COUNT, "Device time of its launches, second trace."),
    Column("baseline_duration_sum_ns", COUNT, "Of the first."),
    Column(
        "duration_delta_ns", COUNT, "The second less the first; what only one has counts whole. Of all rows it is the change of the total."
    ),
    Column("delta_share_ratio", NUMBER, "Of that change; negative: it went the other way. Null: the total did not change."),
    Column("duration_ratio", NUMBER, "The second's device time over the first's; null: it is not in both."),
    Column(
        "duration_per_launch_ratio", NUMBER, "The same of one launch: apart from 1, launches became slower or faster, not more or fewer."
    ),
)
_LAUNCHES: Final = (
    Column("launch_count", COUNT, "Launches, second trace; null: it has none."),
    Column("baseline_launch_count", COUNT, "Of the first."),
)
_NAME_COUNTS: Final = (
    Column("name_count", COUNT, "Names of the second trace in this row: over 1, its form stands for them."),
    Column("baseline_name_count", COUNT, "Of the first."),
)
_OCCURRENCE: Final = (
    Column("baseline_run_id", TEXT, "The first run."),
    Column("occurrence", TEXT, "MATCHED, NEW (only the second trace has it) or GONE (only the first has)."),
    Column(
        "matched_by",
        TEXT,
        "name: it is the same; form: it is without template arguments, parameters, addresses, counters. Null: unmatched.",
    ),
)

KERNEL_COMPARISON: Final = keyed_table(
    "kernel_comparison",
    "One row per kernel of two traces, largest change first. Asked for with exactly two run_ids: the baseline, then the other.",
    *_OCCURRENCE,
    KERNEL_NAME,
    Column("baseline_kernel_name", TEXT, "In the first trace."),
    *(*_NAME_COUNTS, *_LAUNCHES, *_CHANGE),
    Column("duration_median_ns", NUMBER, "Median launch of the second trace; null: of several names."),
    Column("baseline_duration_median_ns", NUMBER, "Of the first."),
    Column(
        "duration_median_ratio",
        NUMBER,
        "The second's median launch over the first's: unlike the mean, a few launches that something held up do not move it.",
    ),
)

LAYER_COMPARISON: Final = keyed_table(
    "layer_comparison",
    "One row per layer of two traces, largest change first. Asked for as kernel_comparison; a depth counts as of layers.",
    *_OCCURRENCE,
    Column("layer", TEXT, "Name of the range or module; null: outside of every one."),
    Column("baseline_layer", TEXT, "In the first trace."),
    *_NAME_COUNTS,
    Column("call_count", COUNT, "Ranges that launched a kernel, second trace."),
    Column("baseline_call_count", COUNT, "Of the first."),
    *(*_LAUNCHES, *_CHANGE),
)

TRACE_COMPARISON_TABLES: Final = (KERNEL_COMPARISON, LAYER_COMPARISON)
