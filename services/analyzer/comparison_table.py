"""The table that two runs are compared in."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import CONFIGURATION_INDEX, COUNT, KERNEL_NAME, LABEL, NUMBER, TEXT, Column, keyed_table

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
)
