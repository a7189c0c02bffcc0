"""The command `kernalyse compare`, which judges one run or trace by another, for people and for CI."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.services.cli.options import ReadableFormat, Server, with_server_options
from kernalyse.services.core.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand
    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.cli.compare_output import TraceChange
    from kernalyse.services.core.model import Run


SLOWER_STATUS: Final = 1
REFUSED_STATUS: Final = 2


@with_server_options
def compare(
    baseline: Annotated[
        str, typer.Argument(metavar="A", help="The baseline: a run id, the beginning of one, last, a JSON file, or several: X,Y,…")
    ],
    candidate: Annotated[str, typer.Argument(metavar="B", help="The candidate, named in the same way.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="device,…", help="What may differ: device, method, cache, inputs. Refused otherwise."),
    ] = None,
    fail_if_slower: Annotated[
        str | None,
        typer.Option("--fail-if-slower", metavar="2%", help="Status 1 when a configuration is slower, and its ratio by more than this."),
    ] = None,
    output_format: Annotated[ReadableFormat, typer.Option("--format", "-f", help="Markdown suits a pull request.")] = ReadableFormat.TABLE,
    depth: Annotated[
        int | None,
        typer.Option("--depth", metavar="N", min=0, help="Of traces: layers summed at this depth of ranges, 0 for the outermost."),
    ] = None,
    *,
    server: Server,
) -> None:
    """Judge run B by run A: ratios of medians with their intervals, and a verdict on each configuration.

    Separate runs are decided with five processes a side: of one run each (bench --processes 5), or of five runs that repeat each other,
    which models need (A1,A2,A3,A4,A5 B1,B2,B3,B4,B5). bench --paired, and variants of one model run, decide in one.

    Two traces are compared kernel by kernel and layer by layer, with what each contributes to the change;
    --fail-if-slower then applies to all kernels together.

    Status 0: compared; 1: slower by more than --fail-if-slower; 2: refused, or there was nothing to compare.
    """
    from kernalyse.services.cli import compare_output
    from kernalyse.services.core.errors import KernalyseError

    try:
        threshold_ratio = None if fail_if_slower is None else _threshold(fail_if_slower)
        compared = _compare_operands(baseline, candidate, allow or [], depth, server)
    except KernalyseError as error:  # status 1 would say that something is slower
        typer.echo(f"kernalyse: {error.message}", err=True)
        raise typer.Exit(REFUSED_STATUS) from error
    if isinstance(compared, compare_output.TraceChange):
        raise typer.Exit(_show_change(compared, threshold_ratio, output_format))
    raise typer.Exit(_show_verdicts(compared, threshold_ratio, output_format))


def _show_verdicts(rows: pl.DataFrame, threshold_ratio: float | None, output_format: ReadableFormat) -> int:
    """Print table comparison and return the exit status."""
    from kernalyse.services.cli.compare_output import comparison_rendering, slower_rows
    from kernalyse.services.cli.output import print_rendering

    print_rendering(comparison_rendering(rows, threshold_ratio), output_format)
    if rows["verdict"].null_count() == rows.height:
        return REFUSED_STATUS
    return SLOWER_STATUS if threshold_ratio is not None and not slower_rows(rows, threshold_ratio).is_empty() else 0


def _show_change(change: TraceChange, threshold_ratio: float | None, output_format: ReadableFormat) -> int:
    """Print the comparison of two traces and return the exit status."""
    from kernalyse.services.cli.compare_output import change_rendering
    from kernalyse.services.cli.output import print_rendering

    print_rendering(change_rendering(change, threshold_ratio), output_format)
    if change.duration_ratio is None:
        return REFUSED_STATUS
    return SLOWER_STATUS if change.is_slower(threshold_ratio) else 0


def _threshold(text: str) -> float:
    from kernalyse.services.core.request_syntax import parse_ratio

    return parse_ratio("--fail-if-slower", text)


def _compare_operands(baseline: str, candidate: str, allow: list[str], depth: int | None, server: Server) -> pl.DataFrame | TraceChange:
    from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, compare_runs, parse_differences

    allowed = parse_differences([name.strip() for part in allow for name in part.split(",")])
    first, second = load_operands((baseline, candidate), server, depth)
    if set(first.run_ids) & set(second.run_ids):
        raise UsageError(
            f"runs {baseline} and {candidate}", found="one run on both sides", expected="two", remedy="Name the run to judge it by."
        )
    if isinstance(first, TraceOperand) and isinstance(second, TraceOperand):
        if allowed:
            raise UsageError("option --allow", found="two traces", expected="runs of measurements", remedy="Leave it out.")
        return _compare_traces(first, second)
    if isinstance(first, ComparisonOperand) and isinstance(second, ComparisonOperand):
        if depth is not None:
            raise UsageError("option --depth", found="runs of measurements", expected="two traces", remedy="Leave it out.")
        return compare_runs(first, second, allowed)
    trace, other = (first, second) if isinstance(first, TraceOperand) else (second, first)
    raise UsageError(
        f"runs {baseline} and {candidate}",
        found=f"a trace ({trace.run_id}) and measurements ({other.run_id})",
        expected="two traces, or two runs of measurements",
        remedy="Compare like with like.",
    )


def _compare_traces(baseline: TraceOperand, candidate: TraceOperand) -> TraceChange:
    from kernalyse.services.analyzer.queries.registry import TRACE_COMPARISONS
    from kernalyse.services.cli.compare_output import TraceChange

    return TraceChange(
        {
            name: comparison.compare(
                candidate.tables[comparison.table_name].lazy(), baseline.tables[comparison.table_name].lazy()
            ).collect()
            for name, comparison in TRACE_COMPARISONS.items()
        }
    )


# ---------------------------------------------------------------- operands
# Both operands of a comparison are runs of the store, or files that `bench --json`, `export` or another tool wrote.

FILE_SUFFIXES = (".json", ".gz", ".sqlite")


@dataclass(frozen=True, slots=True)
class TraceOperand:
    """A trace as one operand of a comparison.

    Attributes:
        run_id: of the run, or the path of the file.
        tables: its tables kernels and layers, by name.
    """

    run_id: str
    tables: Mapping[str, pl.DataFrame]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the ids of the runs of this operand, of which a trace is one."""
        return (self.run_id,)


def load_operands(sides: Sequence[str], server: Server, depth: int | None) -> list[ComparisonOperand | TraceOperand]:
    """Return the operands that names stand for. An analyzer is contacted only where a name stands for a run.

    Args:
        sides: for each operand a run id, the beginning of one, "last" or a file; or several that repeat each other, joined by commas.
        server: the analyzer to ask.
        depth: depth of ranges at which layers of traces are summed; None: the innermost ranges.

    Raises:
        UsageError: a file does not exist, one run is named twice, or one operand has several traces.
        InvalidTraceError: no reader accepts a file.
        RunNotFoundError: there is no such run.
    """
    from kernalyse.services.cli.session import analyzer_session

    is_file = {name: _is_file(name) for side in sides for name in _split_names(side)}
    if all(is_file.values()):
        found = {name: _operand_of_file(Path(name), depth) for name in is_file}
    else:
        with analyzer_session(server, with_profiler=False) as client:
            found = {
                name: _operand_of_file(Path(name), depth) if file else _operand_of_run(client, name, depth)
                for name, file in is_file.items()
            }
    return [_join_runs(side, [found[name] for name in _split_names(side)]) for side in sides]


def _split_names(side: str) -> list[str]:
    return [side] if Path(side).is_file() else [name for part in side.split(",") if (name := part.strip())] or [side]


def _join_runs(side: str, operands: Sequence[ComparisonOperand | TraceOperand]) -> ComparisonOperand | TraceOperand:
    from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, join_runs

    if len(operands) == 1:
        return operands[0]
    repeated = [run_id for run_id, count in Counter(part.run_id for part in operands).items() if count > 1]
    if repeated:
        raise UsageError(f"runs {side}", found=f"{repeated[0]} more than once", expected="each run once", remedy="Leave the others out.")
    runs = [part for part in operands if isinstance(part, ComparisonOperand)]
    if len(runs) < len(operands):
        raise UsageError(
            f"runs {side}", found="a trace among several", expected="runs of measurements, or one trace", remedy="Name one trace a side."
        )
    return join_runs(runs)


def _is_file(name: str) -> bool:
    path = Path(name)
    if path.is_file():
        return True
    if path.suffix in FILE_SUFFIXES or len(path.parts) > 1:
        raise UsageError(
            f"file {name}", found="no such file", expected="a run id, last, or a file of results or of a trace", remedy="Correct it."
        )
    return False


def _operand_of_run(client: AnalyzerClient, name: str, depth: int | None) -> ComparisonOperand | TraceOperand:
    from kernalyse.services.core.model import TableQuery

    run = client.run(name)
    if run.is_trace:
        queries = (TableQuery("kernels", (run.run_id,)), TableQuery("layers", (run.run_id,), depth=depth))
        return TraceOperand(run.run_id, {query.table_name: client.rows(query)[0] for query in queries})
    return load_run_operand(client, run)


def load_run_operand(client: AnalyzerClient, run: Run) -> ComparisonOperand:
    """Return a run of measurements as one operand of a comparison."""
    from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand
    from kernalyse.services.cli.export import run_results

    results = run_results(client, run)
    return ComparisonOperand(
        run_id=run.run_id,
        measurements=results.frames["measurements"],
        samples=results.frames["samples"],
        node_id=run.node_id or None,
        devices={device.device_id: device for device in results.devices},
        paired_comparisons=results.frames["paired_comparisons"],
    )


def _operand_of_file(path: Path, depth: int | None) -> ComparisonOperand | TraceOperand:
    from kernalyse.companions import COMPANION_DIRECTORIES
    from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand
    from kernalyse.services.analyzer.queries.registry import FileSource, QueryParameters, resolve_table, trace_inputs
    from kernalyse.services.analyzer.readers.base import Selection, SelectiveReader, TraceFiles
    from kernalyse.services.analyzer.readers.registry import select_reader
    from kernalyse.services.analyzer.tables.derived import LAYERS
    from kernalyse.services.analyzer.tables.runs import KERNELS, MEASUREMENTS, SAMPLES
    from kernalyse.services.analyzer.tables.traces import TRACE_NAMES

    directories = (path.with_name(path.name + ending) for ending in COMPANION_DIRECTORIES)
    companions = {
        str(file.relative_to(path.parent)): file for directory in directories if directory.is_dir() for file in directory.iterdir()
    }
    files, parameters = TraceFiles(path.name, path, time.time_ns(), companions), QueryParameters(depth)
    reader = select_reader(files)
    needed = Selection.of(trace_inputs(("kernels", "layers"), parameters))
    tables = reader.read_columns(files, needed) if isinstance(reader, SelectiveReader) else reader.read(files)
    if TRACE_NAMES.table_name in tables.frames:
        source = FileSource(tables.frames)
        rows = {table.table_name: resolve_table(table, source, parameters) for table in (KERNELS, LAYERS)}
        return TraceOperand(str(path), {name: frame.collect() for name, frame in rows.items()})
    return ComparisonOperand(
        run_id=str(path),
        measurements=tables.frames[MEASUREMENTS.table_name],
        samples=tables.frames.get(SAMPLES.table_name, SAMPLES.empty()),
        node_id=tables.node_id,
        devices={device.device_id: device for device in tables.devices},
    )
