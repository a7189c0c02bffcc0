"""`kernalyse show`: tables of a run, to read or to take elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from services.cli.given_paths import is_trace_path
from services.cli.options import CountersOption, OpRegistryOption, Server, takes_server
from services.cli.table_files import checked_output, write_table, write_tables, write_text
from services.cli.tree_order import in_tree_order

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from services.analyzer.querying import QueryResult
    from services.cli.row_choice import RowChoice

MAX_SHOWN_ROWS: Final = 200
"""A terminal is no place for a million samples; the other formats have them all."""

CUT_COLUMNS: Final = ("kernel_name", "layer", "name", "label", "subject", "layer_path", "kernel_before", "kernel_after", "call")
"""Of names that may be long; see terminal.MAX_NAME_LENGTH."""

OVERVIEW_COLUMNS: Final = {
    "measurements": (
        "label", "sample_count", "duration_median_ns", "duration_median_low_ns", "duration_median_high_ns", "noise_ratio", "stop_reason",
        "cache_mode", "verification_state", "disturbance", "model_name", "batch_size", "tokens_per_s", "stated_flop_per_s",
    ),
    "roofline": (
        "label", "model_name", "batch_size", "duration_median_ns", "launch_count", "duration_sum_ns", "intensity_flop_per_byte",
        "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s", "efficiency_ratio", "bound", "efficiency_category",
        "ceiling_source", "work_source", "is_implausible", "disturbance", "symbol",
    ),
    "counted_roofline": (
        "label", "memory_level", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "kernels": (
        "kernel_name", "launch_count", "duration_sum_ns", "share_ratio", "duration_min_ns", "duration_median_ns", "duration_max_ns",
        "configuration_count", "failed_configuration_count", "duration_median_min_ns", "achieved_flop_per_s_max",
        "achieved_bytes_per_s_max", "efficiency_ratio_max", "best_label", "bound", "implausible_count", "disturbed_count",
    ),
    "layers": (
        "layer", "variant", "call_count", "launch_count", "duration_sum_ns", "pass_duration_median_ns", "share_ratio", "source", "flop",
        "bytes",
        "achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio", "bound", "work_source", "worked_share_ratio", "disturbance",
    ),
    "layer_roofline": (
        "label", "duration_sum_ns", "share_ratio", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "attainable_flop_per_s", "efficiency_ratio", "bound", "ceiling_source", "work_source", "disturbance",
    ),
    "layer_tree": (
        "layer", "variant", "call_count", "launch_count", "duration_sum_ns", "own_duration_sum_ns", "share_ratio", "achieved_flop_per_s",
        "achieved_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "layer_kernels": (
        "layer_path", "variant", "kernel_name", "launch_count", "own_launch_count", "duration_sum_ns", "share_ratio",
        "achieved_flop_per_s", "efficiency_ratio", "bound",
    ),
    "counted_layer_roofline": (
        "label", "memory_level", "launch_count", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "opportunities": (
        "subject_kind", "subject", "variant", "duration_sum_ns", "share_ratio", "efficiency_ratio", "lost_ns", "bound", "reason",
    ),
    "ceilings": ("device_id", "ceiling_name", "unit", "value", "path", "source", "confidence", "clock_hz", "host_busy_ratio"),
    "breakdown": (
        "process_id", "device_index", "device_name", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "overlap_ns",
        "memory_ns", "memory_only_ns",
    ),
    "gaps": ("device_index", "start_ns", "duration_ns", "reason", "kernel_before", "kernel_after", "call", "layer"),
    "launches": (
        "kernel_name", "launch_count", "call_duration_median_ns", "queue_delay_median_ns", "queue_delay_p95_ns", "short_share_ratio",
        "launches_per_graph_count",
    ),
    "memory": (
        "process_id", "device_index", "kind", "direction", "op_count", "bytes_sum", "duration_sum_ns", "achieved_bytes_per_s",
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
        "model_name", "variant", "batch_size", "sequence_length", "duration_median_ns", "duration_mean_ns",
        "duration_standard_deviation_ns",
        "duration_p95_ns", "duration_p99_ns", "tokens_per_s", "launch_count", "efficiency_ratio", "bound", "verification_state",
        "disturbance",
    ),
    "layer_variants": (
        "layer", "occurrence", "variant", "baseline_variant", "duration_sum_ns", "baseline_duration_sum_ns", "duration_delta_ns",
        "duration_ratio", "verdict", "efficiency_ratio", "baseline_efficiency_ratio",
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
"""What of the widest tables fits a terminal; tables not named here are shown whole."""


RARE_COLUMNS: Final = (
    "model_name",
    "batch_size",
    "tokens_per_s",
    "stated_flop_per_s",
    "symbol",
    "launch_count",
    "duration_sum_ns",
    "variant",
    "disturbance",
    "host_busy_ratio",
    "pass_duration_median_ns",
)
"""Shown where a row has a value: only traces, models or results of other tools have them."""

WORK_OF_LAYERS: Final = (
    *("flop", "bytes", "achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio", "bound", "work_source", "worked_share_ratio"),
)
"""Of table layers: left out where the work of no layer is known."""

MIN_NAME_WIDTH: Final = 40
"""Characters that a column of names gets, however many figures stand beside it: less, and a name takes a line a word."""

STAND_INS: Final = {"duration_median_ns": "duration_mean_ns"}
"""Shown after a column that some rows lack: results of other tools may have means only."""


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    app.command()(show)


@takes_server
def show(
    run_or_file: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="A run id, the beginning of one, or last; or a trace, file or folder, which is read and not stored."
        ),
    ],
    table_names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Of runs: measurements (the default), samples, kernels, best, roofline, configurations, failures, counters, …. "
            "Of traces: kernels (the default), layers, breakdown, roofline, opportunities, gaps, gap_reasons, launches, memory, occupancy, "
            "collectives, ranks, kernel_launches, api_calls, ranges, memory_ops, …",
        ),
    ] = None,
    output_format: Annotated[OutputFormat, typer.Option("--format", "-f", help="JSON is one object keyed by table.")] = OutputFormat.TABLE,
    counters: CountersOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; with several tables as csv or parquet, the folder.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Rows to show, e.g. 'kernel_name~gemm' or 'duration_sum_ns>10us': = != < <= > >= ~ (contains). Several must all hold.",
        ),
    ] = None,
    order_by: Annotated[
        list[str] | None, typer.Option("--sort", metavar="COLUMN[:desc]", help="Order of the rows; repeated, of those that are equal.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", metavar="N", help="The first N rows only.")] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="START..END", help="Of timeline and window_summary: e.g. 1.2s..1.3s of the session; else all."),
    ] = None,
    pixels: Annotated[
        int | None, typer.Option("--pixels", metavar="N", help="Of timeline: pixels that the window is drawn on; else 1000.")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option("--depth", metavar="N", help="Layers summed at this depth of ranges, 0 for the outermost; else the innermost."),
    ] = None,
    op_registry: OpRegistryOption = None,
    *,
    server: Server,
) -> None:
    """Print tables of a run or a file, or write them to files.

    A condition or an order counts for every table that has its column.
    """
    from services.cli.row_choice import parse_rows, parse_window
    from services.core.words.usage import UsageError

    if output_format is OutputFormat.PARQUET and output is None:
        raise UsageError("option --format parquet", found="no --output", expected="a file to write", remedy="Add -o FILE.parquet.")
    choice = parse_rows(filters or [], order_by or [], top, depth, parse_window(window, pixels))
    if is_trace_path(run_or_file):
        from services.cli.shown_file import FileQuestion, tables_of_file

        asked = FileQuestion(table_names or [], choice, counters or [], op_registry)
        of_file, notes = tables_of_file(Path(run_or_file), asked)
        results = {name: replace(result, frame=of_its_kind(result.frame)) for name, result in of_file.items()}
    elif counters:
        raise UsageError(
            "option --counters", found=f"run {run_or_file}", expected="a file", remedy="Import the trace anew, with --counters there."
        )
    elif op_registry is not None:
        raise UsageError("option --op-registry", found=f"run {run_or_file}", expected="a file of operations to read")
    else:
        results, notes = _tables_of_run(run_or_file, table_names or [], choice, server)
    frames = {name: result.frame for name, result in results.items()}
    if output_format is OutputFormat.JSON:
        write_text(frames_as_json(frames), output)
    elif output_format is OutputFormat.TABLE:
        max_row_count = max(MAX_SHOWN_ROWS, top or 0)
        if "layer_tree" in results and not order_by:
            tree = results["layer_tree"]
            results["layer_tree"] = replace(tree, frame=in_tree_order(tree.frame, max_row_count))
        _show_tables(results, max_row_count, output)
    else:
        _write_frames(frames, output_format, output)
    for note in notes:
        typer.echo(note, err=True)


def _tables_of_run(
    text: str,
    table_names: Sequence[str],
    choice: RowChoice,
    server: Server,
) -> tuple[dict[str, QueryResult], list[str]]:
    """The tables of a run and what to say of it. Without names its measurements, of a trace its kernels."""
    from services.analyzer.querying import QueryResult
    from services.cli.session import analyzer_session
    from services.core.model import ModelRun

    queries = choice.queries(table_names)  # before anything is started: a slip of the finger is answered at once
    with analyzer_session(server, with_profiler=False) as client:
        run = client.run(text)
        results = {}
        usual = ["models", "layers"] if isinstance(run.spec.work, ModelRun) else ["kernels" if run.is_trace else "measurements"]
        for query in queries or choice.queries(usual):
            frame, total_row_count = client.rows(replace(query, run_ids=(run.run_id,)))
            results[query.table_name] = QueryResult(of_its_kind(frame), total_row_count)
    earlier = run.spec.continues_run_id
    notes = [f"run {run.run_id} continues run {earlier}: what both have measured is shown"] if earlier else []
    return results, notes + (run.notes.splitlines() if run.is_trace else [])


def of_its_kind(frame: pl.DataFrame) -> pl.DataFrame:
    """Kernels of sweeps and of traces share a table: without the columns of the other kind."""
    from services.analyzer.answer_tables import KERNEL_FIGURES

    figures = [column.name for column in KERNEL_FIGURES]
    if "configuration_count" not in frame.columns or "launch_count" not in frame.columns:
        return frame
    if frame["launch_count"].null_count() == frame.height:
        return frame.drop(figures)
    if frame["configuration_count"].null_count() == frame.height:
        return frame.select("run_id", "event_index", "kernel_name", *figures)
    return frame


def frames_as_json(frames: Mapping[str, pl.DataFrame]) -> str:
    """One object: an array of row objects for every table."""
    import json

    from services.analyzer.writers.results import table_document

    return "{" + ",\n".join(f"{json.dumps(name)}: {table_document(frame)}" for name, frame in frames.items()) + "}\n"


def _write_frames(frames: Mapping[str, pl.DataFrame], output_format: OutputFormat, output: Path | None) -> None:
    table_format: Literal["csv", "parquet"] = "parquet" if output_format is OutputFormat.PARQUET else "csv"
    if output is not None and len(frames) > 1:
        write_tables(frames, table_format, output)
    elif output is not None:
        write_table(next(iter(frames.values())), table_format, output)
    else:
        for name, frame in frames.items():
            typer.echo((f"# {name}\n" if len(frames) > 1 else "") + frame.write_csv(), nl=False)


def _show_tables(results: Mapping[str, QueryResult], max_row_count: int, output: Path | None) -> None:
    from rich.console import Console

    from services.cli.terminal import FILE_WIDTH
    from services.cli.terminal import console as make_console

    if output is None:
        console = make_console()
        for name, result in results.items():
            print_result(console, name, result, max_row_count)
        return
    checked_output(output)
    with output.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=FILE_WIDTH)
        for name, result in results.items():
            print_result(console, name, result, max_row_count)


def print_result(console: Console, name: str, result: QueryResult, max_row_count: int) -> None:
    from rich.text import Text

    from services.cli.best_display import best_lines
    from services.cli.terminal import MAX_NAME_LENGTH, cut_name, plain_table

    frame, total_row_count = result.frame, result.total_row_count
    columns = _shown_columns(name, frame)
    count = f"{frame.height}" if frame.height == total_row_count else f"{frame.height} of {total_row_count}"
    console.print(f"{name}: {count} rows", highlight=False)
    table = plain_table()
    for column in columns:
        is_number = frame[column].dtype.is_numeric()
        width = max((len(name) for name in frame.head(max_row_count)[column] if name), default=0) if column in CUT_COLUMNS else 0
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", min_width=min(width, MIN_NAME_WIDTH))
    rows = frame.select(columns).head(max_row_count).rows()
    for row in rows:
        table.add_row(
            *(Text(cut_name(_cell(value)) if column in CUT_COLUMNS else _cell(value)) for column, value in zip(columns, row, strict=True))
        )
    console.print(table)
    if any(len(str(row[columns.index(column)])) > MAX_NAME_LENGTH for column in CUT_COLUMNS if column in columns for row in rows):
        console.print("Long names are cut. Whole ones: --format json, csv or parquet.")
    if name == "best":
        for line in best_lines(frame):
            console.print(line, markup=False, highlight=False)
    if frame.height > max_row_count:
        console.print(f"The first {max_row_count} rows. All of them: --format json, csv or parquet.")


def _is_empty(frame: pl.DataFrame, column: str) -> bool:
    """Of a table with rows: none has a value."""
    return column in frame.columns and frame.height > 0 and frame[column].null_count() == frame.height


def _shown_columns(name: str, frame: pl.DataFrame) -> list[str]:
    columns = []
    needless = set(WORK_OF_LAYERS if name == "layers" and _is_empty(frame, "work_source") else ())
    needless |= {column for column in RARE_COLUMNS if _is_empty(frame, column)}
    for column in OVERVIEW_COLUMNS.get(name, frame.columns):
        if column in frame.columns and column not in needless:
            columns.append(column)
            stand_in = STAND_INS.get(column)
            if stand_in in frame.columns and stand_in not in columns and frame[column].null_count() > 0:
                columns.append(stand_in)
    return columns


def _cell(value: object) -> str:
    from services.core.quantities import UNKNOWN

    if value is None:
        return UNKNOWN
    return f"{value:.6g}" if isinstance(value, float) else str(value)
