"""Rows of the canonical tables on the terminal: the columns that matter most first, values with units, headings in words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from services.cli.best_display import best_lines
from services.cli.terminal import MAX_NAME_LENGTH, FittedTable, cut_name
from services.core.quantities import UNKNOWN, ceiling_rate, duration, median_with_interval, percentage, rate, size

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from services.analyzer.querying import QueryResult

CUT_COLUMNS: Final = ("kernel_name", "layer", "name", "label", "subject", "layer_path", "kernel_before", "kernel_after", "call")
"""Of names that may be long; see terminal.MAX_NAME_LENGTH."""

OVERVIEW_COLUMNS: Final = {
    "measurements": (
        "label", "duration_median_ns", "verification_state", "noise_ratio", "sample_count", "stop_reason", "cache_mode", "model_name",
        "batch_size", "tokens_per_s", "stated_flop_per_s",
    ),
    "roofline": (
        "label", "duration_median_ns", "launch_count", "duration_sum_ns", "efficiency_ratio", "bound", "is_implausible",
        "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s", "intensity_flop_per_byte", "efficiency_category",
        "model_name", "batch_size", "ceiling_source", "work_source", "symbol",
    ),
    "counted_roofline": (
        "label", "memory_level", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "kernels": (
        "kernel_name", "launch_count", "duration_sum_ns", "share_ratio", "duration_median_ns", "duration_min_ns", "duration_max_ns",
        "duration_median_min_ns", "efficiency_ratio_max", "bound", "achieved_flop_per_s_max", "achieved_bytes_per_s_max",
        "configuration_count", "failed_configuration_count", "implausible_count", "best_label", "category",
    ),
    "layers": (
        "layer", "variant", "duration_sum_ns", "share_ratio", "launch_count", "call_count", "efficiency_ratio", "bound",
        "achieved_flop_per_s", "achieved_bytes_per_s", "source", "flop", "bytes", "work_source", "worked_share_ratio",
    ),
    "layer_roofline": (
        "label", "duration_sum_ns", "share_ratio", "efficiency_ratio", "bound", "achieved_flop_per_s", "achieved_bytes_per_s",
        "attainable_flop_per_s", "intensity_flop_per_byte", "ceiling_source", "work_source",
    ),
    "layer_tree": (
        "layer", "variant", "duration_sum_ns", "own_duration_sum_ns", "share_ratio", "launch_count", "call_count", "efficiency_ratio",
        "bound", "achieved_flop_per_s", "achieved_bytes_per_s",
    ),
    "layer_kernels": (
        "layer_path", "variant", "kernel_name", "duration_sum_ns", "share_ratio", "launch_count", "own_launch_count", "efficiency_ratio",
        "bound", "achieved_flop_per_s",
    ),
    "counted_layer_roofline": (
        "label", "memory_level", "launch_count", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "opportunities": (
        "subject", "subject_kind", "variant", "lost_ns", "duration_sum_ns", "share_ratio", "efficiency_ratio", "bound", "reason",
    ),
    "ceilings": ("ceiling_name", "path", "value", "source", "clock_hz", "confidence", "device_id"),
    "breakdown": (
        "device_index", "device_name", "process_id", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "overlap_ns",
        "memory_ns", "memory_only_ns",
    ),
    "gaps": ("start_ns", "duration_ns", "reason", "device_index", "kernel_before", "kernel_after", "call", "layer"),
    "launches": (
        "kernel_name", "launch_count", "call_duration_median_ns", "queue_delay_median_ns", "queue_delay_p95_ns", "short_share_ratio",
        "launches_per_graph_count",
    ),
    "memory": (
        "kind", "direction", "device_index", "process_id", "op_count", "bytes_sum", "duration_sum_ns", "achieved_bytes_per_s",
        "bandwidth_ratio", "small_op_count",
    ),
    "occupancy": (
        "kernel_name", "grid_block_count", "block_thread_count", "registers_per_thread", "shared_bytes", "launch_count", "duration_sum_ns",
        "theoretical_occupancy_ratio", "wave_count", "limiting_resource",
    ),
    "collectives": (
        "collective_index", "kernel_name", "rank_count", "rank_index", "process_id", "start_ns", "duration_ns", "late_ns", "wait_ns",
        "is_straggler",
    ),
    "ranks": (
        "rank_index", "process_id", "device_index", "span_ns", "busy_ns", "compute_ns", "communication_ns", "collective_count", "wait_ns",
        "straggler_count", "clock_source", "clock_residual_ns",
    ),
    "models": (
        "model_name", "variant", "duration_median_ns", "tokens_per_s", "efficiency_ratio", "bound", "verification_state",
        "batch_size", "sequence_length", "duration_mean_ns", "duration_standard_deviation_ns", "duration_p95_ns", "duration_p99_ns",
        "launch_count",
    ),
    "layer_variants": (
        "layer", "variant", "baseline_variant", "duration_sum_ns", "baseline_duration_sum_ns", "duration_ratio", "verdict",
        "duration_delta_ns", "efficiency_ratio", "baseline_efficiency_ratio", "occurrence",
    ),
    "best": (
        "label", "duration_median_ns", "candidate_count", "runner_up_label", "margin_ratio", "is_real",
    ),
    "samples": ("configuration_index", "sample_index", "duration_ns"),
    "counters": ("configuration_index", "kernel_name", "metric_name", "value", "unit", "text"),
    "counted_work": (
        "label", "duration_ns", "sm_clock_hz", "flop", "dtype", "path", "dram_bytes", "l2_bytes", "l1_bytes", "achieved_occupancy_ratio",
        "sm_throughput_ratio", "memory_throughput_ratio",
    ),
}  # fmt: skip
"""What a terminal shows of the widest tables, what matters most first: as many of them as there is room for. Tables not named here are
shown whole."""

KEYS: Final = ("run_id", "event_index")
"""Left out of tables that are shown whole: the run was asked for, and the entry of its journal is for programs."""

STAND_INS: Final = {"duration_median_ns": "duration_mean_ns"}
"""Shown after a column that some rows lack: results of other tools may have means only."""

FACTORS: Final = ("duration_ratio", "duration_median_ratio", "cycle_ratio", "launch_ratio", "paired_ratio", "change_ratio")
"""Ratios of one thing to another, which are shown as numbers: 1.05. The others are parts of a whole, or of what could be: 5 %."""

ENUMERATIONS: Final = ("stop_reason", "verification_state", "recheck_state", "cache_mode", "state", "verdict", "occurrence", "backend")
UNITS: Final = (("_flop_per_s", " flop rate"), ("_bytes_per_s", " byte rate"), ("_flop_per_byte", ""), ("_per_s", "/s"))
PLAIN_UNITS: Final = ("_unix_ns", "_ns", "_hz", "_watts", "_celsius")


def print_result(console: Console, name: str, result: QueryResult, max_row_count: int) -> None:
    """Print the first rows of a table, and what to say of those and of names that do not fit."""
    frame, total_row_count = result.frame, result.total_row_count
    columns = shown_columns(name, frame)
    count = f"{frame.height}" if frame.height == total_row_count else f"{frame.height} of {total_row_count}"
    console.print(f"{name}: {count} rows", highlight=False)
    rows = frame.head(max_row_count).rows(named=True)
    numeric = [place for place, column in enumerate(columns) if frame[column].dtype.is_numeric()]
    cells = ([cell(column, row[column], row) for column in columns] for row in rows)
    console.print(FittedTable([heading(column) for column in columns], cells, numeric=numeric))
    if any(len(row[column] or "") > MAX_NAME_LENGTH for column in CUT_COLUMNS if column in columns for row in rows):
        console.print("Long names are cut. Whole ones: --format json, csv or parquet.")
    if name == "best":
        for line in best_lines(frame):
            console.print(line, markup=False, highlight=False)
    if frame.height > max_row_count:
        console.print(f"The first {max_row_count} rows. All of them: --format json, csv or parquet.")


def shown_columns(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the columns to show, without flags that no row has."""
    import polars as pl

    if frame.is_empty():
        return [column for column in OVERVIEW_COLUMNS.get(name, frame.columns) if column in frame.columns]
    columns = []
    for column in OVERVIEW_COLUMNS.get(name, [column for column in frame.columns if column not in KEYS]):
        if column not in frame.columns or (frame.schema[column] == pl.Boolean and not frame[column].any()):
            continue
        columns.append(column)
        stand_in = STAND_INS.get(column)
        if stand_in in frame.columns and stand_in not in columns and frame[column].null_count() > 0:
            columns.append(stand_in)
    if "work_source" in columns and frame["work_source"].null_count() == frame.height:
        columns = [column for column in columns if column != "worked_share_ratio"]  # a column of zeros
    return columns or list(frame.columns)


def heading(column: str) -> str:
    """Return the words of a column's name, without the unit that its values are shown with."""
    for unit, words in UNITS:
        column = column.replace(unit, words)
    for unit in PLAIN_UNITS:
        column = column.removesuffix(unit)
    if not column.startswith(FACTORS):
        column = column.replace("_ratio", "")
    if column not in ("bytes", "bytes_sum"):
        column = column.removesuffix("_bytes")
    return column.removeprefix("is_").replace("_", " ")


def cell(column: str, value: Any, row: dict[str, Any]) -> str:
    """Return a value as people read it. row: by column, for what stands in several of them."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        if column in CUT_COLUMNS:
            return cut_name(value)
        return value.lower().replace("_", " ") if column in ENUMERATIONS else value
    if not isinstance(value, int | float):
        return str(value)
    if column == "duration_median_ns" and row.get("duration_median_low_ns") is not None:
        return median_with_interval(value, row["duration_median_low_ns"], row["duration_median_high_ns"])
    if column == "value" and row.get("unit") in ("flop_per_s", "bytes_per_s"):
        return ceiling_rate(value, row["unit"])
    return number(column, value)


def number(column: str, value: float) -> str:
    """Return a number with the unit that its column's name ends with, whatever extreme of it the column holds."""
    for extreme in ("_min", "_max", "_low", "_high", "_sum"):
        column = column.removesuffix(extreme)
    if column.endswith("_unix_ns"):
        return datetime.fromtimestamp(value / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if column in ("start_ns", "end_ns"):  # of hours, to the microsecond: what a timeline is searched by
        return f"{value / 1e9:.6f} s"
    units: dict[str, Callable[[float], str]] = {
        "_ns": duration,
        "_flop_per_s": lambda value: rate(value, "flop/s"),
        "_bytes_per_s": lambda value: rate(value, "B/s"),
        "_flop_per_byte": lambda value: f"{value:.4g} flop/B",
        "_hz": lambda value: rate(value, "Hz"),
        "_watts": lambda value: f"{value:.4g} W",
        "_celsius": lambda value: f"{value:.4g} °C",
        "_bytes": size,
        "_flop": lambda value: rate(value, "flop"),
        "_ratio": _factor if column.startswith(FACTORS) else percentage,
    }
    shown = next((shown for suffix, shown in units.items() if f"_{column}".endswith(suffix)), None)
    if shown is not None:
        return shown(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _factor(value: float) -> str:
    return f"{value:.4g}"
