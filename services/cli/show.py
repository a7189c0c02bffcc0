"""The command `kernalyse show`, which prints tables of a run or a file, or writes them to files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from kernalyse.services.cli.options import CountersOption, OpRegistryOption, Server, with_server_options
from kernalyse.services.cli.table_files import check_output_path, is_trace_path, write_table, write_tables, write_text
from kernalyse.services.core.formatting import relative_layer_name

if TYPE_CHECKING:
    import polars as pl

    from kernalyse.services.analyzer.queries.filters import QueryResult
    from kernalyse.services.cli.file_tables import RowSelection


MAX_SHOWN_ROWS: Final = 200
"""Rows of a table on the terminal: more scroll out of view; the other formats have all of them."""


class OutputFormat(StrEnum):
    """Formats in which tables are printed or written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


@with_server_options
def show(
    run_or_file: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="A run id, the beginning of one, or last; or a trace, file or directory, which is read and not stored."
        ),
    ],
    table_names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Of runs: measurements (the default), samples, kernels, best, roofline, configurations, failures, counters, …. "
            "Of traces: kernels (the default), layers, breakdown, roofline, opportunities, gaps, gap_reasons, launches, memory, occupancy, "
            "collectives, ranks, rank_clocks, kernel_launches, api_calls, ranges, memory_ops, …",
        ),
    ] = None,
    output_format: Annotated[OutputFormat, typer.Option("--format", "-f", help="JSON is one object keyed by table.")] = OutputFormat.TABLE,
    counters: CountersOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; with several tables as csv or parquet, the directory.")
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
    from kernalyse.services.cli.file_tables import parse_rows, parse_window
    from kernalyse.services.core.errors import UsageError

    if output_format is OutputFormat.PARQUET and output is None:
        raise UsageError("option --format parquet", found="no --output", expected="a file to write", remedy="Add -o FILE.parquet.")
    choice = parse_rows(filters or [], order_by or [], top, depth, parse_window(window, pixels))
    if is_trace_path(run_or_file):
        from kernalyse.services.cli.file_tables import FileQuery, tables_of_file

        query = FileQuery(table_names or [], choice, counters or [], op_registry)
        file_results, notes = tables_of_file(Path(run_or_file), query)
        results = {name: replace(result, frame=drop_unused_columns(result.frame)) for name, result in file_results.items()}
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
            results["layer_tree"] = replace(tree, frame=order_as_tree(tree.frame, max_row_count))
        _show_tables(results, max_row_count, output)
    else:
        _write_frames(frames, output_format, output)
    for note in notes:
        typer.echo(note, err=True)


def _tables_of_run(
    text: str,
    table_names: Sequence[str],
    choice: RowSelection,
    server: Server,
) -> tuple[dict[str, QueryResult], list[str]]:
    """Return the tables of a run, and notes on it. Without names: measurements; of a model models and layers; of a trace kernels."""
    from kernalyse.services.analyzer.queries.filters import QueryResult
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.model import ModelRun

    queries = choice.queries(table_names)  # first, so that a typing error is reported before anything is started
    with analyzer_session(server, with_profiler=False) as client:
        run = client.run(text)
        results = {}
        default_names = ["models", "layers"] if isinstance(run.spec.work, ModelRun) else ["kernels" if run.is_trace else "measurements"]
        for query in queries or choice.queries(default_names):
            frame, total_row_count = client.rows(replace(query, run_ids=(run.run_id,)))
            results[query.table_name] = QueryResult(drop_unused_columns(frame), total_row_count)
    earlier = run.spec.continues_run_id
    notes = [f"run {run.run_id} continues run {earlier}: what both have measured is shown"] if earlier else []
    return results, notes + (run.notes.splitlines() if run.is_trace else [])


def drop_unused_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return table kernels without the columns of the other kind of run, which sweeps and traces share; other tables unchanged."""
    from kernalyse.services.analyzer.tables.derived import KERNEL_METRICS

    figures = [column.name for column in KERNEL_METRICS]
    if "configuration_count" not in frame.columns or "launch_count" not in frame.columns:
        return frame
    if frame["launch_count"].null_count() == frame.height:
        return frame.drop(figures)
    if frame["configuration_count"].null_count() == frame.height:
        return frame.select("run_id", "event_index", "kernel_name", "category", *figures)
    return frame


def frames_as_json(frames: Mapping[str, pl.DataFrame]) -> str:
    """Return a JSON object with an array of row objects for each table."""
    import json

    from kernalyse.services.analyzer.export.results import table_document

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

    from kernalyse.services.cli.output import UNLIMITED_WIDTH, print_result
    from kernalyse.services.cli.output import console as make_console

    if output is None:
        console = make_console()
        for name, result in results.items():
            print_result(console, name, result, max_row_count)
        return
    check_output_path(output)
    with output.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=UNLIMITED_WIDTH)
        for name, result in results.items():
            print_result(console, name, result, max_row_count)


# ---------------------------------------------------------------- order of a tree

INDENT: Final = "  "
KEYS: Final = ("variant", "layer_path", "parent_path", "layer")


def order_as_tree(tree: pl.DataFrame, max_row_count: int) -> pl.DataFrame:
    """Return table layer_tree in depth-first order: each layer follows its parent, with an indented name.

    Args:
        tree: rows of one run.
        max_row_count: number of rows to order; the others follow unchanged.

    Returns:
        The table unchanged where a column is missing, or a parent is not among the first rows.
    """
    if not set(KEYS) <= set(tree.columns):
        return tree
    first = tree.head(max_row_count)
    children: defaultdict[tuple[object, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for index, row in enumerate(first.select(KEYS).to_dicts()):
        children[row["variant"], row["parent_path"]].append((index, row))
    order: list[int] = []
    names: list[str] = []
    stack = [(0, child) for key, some in children.items() if key[-1] is None for child in some][::-1]
    while stack:
        depth, (index, row) = stack.pop()
        order.append(index)
        names.append(INDENT * depth + relative_layer_name(row["layer"], row["parent_path"]))
        stack += [(depth + 1, child) for child in children[row["variant"], row["layer_path"]][::-1]]
    if len(order) < first.height:
        return tree
    import polars as pl

    return pl.concat([first[order].with_columns(pl.Series("layer", names, dtype=pl.String)), tree[max_row_count:]])
