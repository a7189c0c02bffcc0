"""`kernalyse compare`: what became faster or slower from one run to another, for people and for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from services.cli.options import ReadableFormat, Server, takes_server

if TYPE_CHECKING:
    import polars as pl

    from services.cli.compared_runs import ComparedTrace
    from services.cli.trace_comparison_display import TraceChange

SLOWER_STATUS: Final = 1
REFUSED_STATUS: Final = 2


@takes_server
def compare(
    baseline: Annotated[
        str, typer.Argument(metavar="A", help="The baseline: a run id, the beginning of one, last, a JSON file, or several: X,Y,…")
    ],
    judged: Annotated[str, typer.Argument(metavar="B", help="What is judged by it: likewise.")],
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

    Two traces are held against each other kernel by kernel and layer by layer, with what each contributes to the change;
    --fail-if-slower is of all kernels together then.

    Status 0: compared; 1: slower by more than --fail-if-slower; 2: refused, or there was nothing to compare.
    """
    from services.cli import trace_comparison_display
    from services.core.errors import KernalyseError

    try:
        threshold_ratio = None if fail_if_slower is None else _threshold(fail_if_slower)
        compared = _compared(baseline, judged, allow or [], depth, server)
    except KernalyseError as error:  # status 1 would say that something is slower
        typer.echo(f"kernalyse: {error.message}", err=True)
        raise typer.Exit(REFUSED_STATUS) from error
    if isinstance(compared, trace_comparison_display.TraceChange):
        raise typer.Exit(_show_change(compared, threshold_ratio, output_format))
    raise typer.Exit(_show_verdicts(compared, threshold_ratio, output_format))


def _show_verdicts(rows: pl.DataFrame, threshold_ratio: float | None, output_format: ReadableFormat) -> int:
    """Print table comparison and return the exit status."""
    from services.cli.comparison_display import comparison_rendering, too_slow
    from services.cli.terminal import print_rendering

    print_rendering(comparison_rendering(rows, threshold_ratio), output_format)
    if rows["verdict"].null_count() == rows.height:
        return REFUSED_STATUS
    return SLOWER_STATUS if threshold_ratio is not None and not too_slow(rows, threshold_ratio).is_empty() else 0


def _show_change(change: TraceChange, threshold_ratio: float | None, output_format: ReadableFormat) -> int:
    """Print what changed between two traces and return the exit status."""
    from services.cli.terminal import print_rendering
    from services.cli.trace_comparison_display import change_rendering

    print_rendering(change_rendering(change, threshold_ratio), output_format)
    if change.duration_ratio is None:
        return REFUSED_STATUS
    return SLOWER_STATUS if change.is_slower(threshold_ratio) else 0


def _threshold(text: str) -> float:
    from services.core.words.measuring_words import parse_ratio

    return parse_ratio("--fail-if-slower", text)


def _compared(baseline: str, judged: str, allow: list[str], depth: int | None, server: Server) -> pl.DataFrame | TraceChange:
    from services.analyzer.analyses.compare import ComparedRun, compare_runs, parse_differences
    from services.cli.compared_runs import ComparedTrace, compared_sides
    from services.core.words.usage import UsageError

    allowed = parse_differences([name.strip() for part in allow for name in part.split(",")])
    first, second = compared_sides((baseline, judged), server, depth)
    if set(first.run_ids) & set(second.run_ids):
        raise UsageError(
            f"runs {baseline} and {judged}", found="one run on both sides", expected="two", remedy="Name the run to judge it by."
        )
    if isinstance(first, ComparedTrace) and isinstance(second, ComparedTrace):
        if allowed:
            raise UsageError("option --allow", found="two traces", expected="runs of measurements", remedy="Leave it out.")
        return _changed(first, second)
    if isinstance(first, ComparedRun) and isinstance(second, ComparedRun):
        if depth is not None:
            raise UsageError("option --depth", found="runs of measurements", expected="two traces", remedy="Leave it out.")
        return compare_runs(first, second, allowed)
    trace, other = (first, second) if isinstance(first, ComparedTrace) else (second, first)
    raise UsageError(
        f"runs {baseline} and {judged}",
        found=f"a trace ({trace.run_id}) and measurements ({other.run_id})",
        expected="two traces, or two runs of measurements",
        remedy="Compare like with like.",
    )


def _changed(baseline: ComparedTrace, judged: ComparedTrace) -> TraceChange:
    from services.analyzer.trace_answers import TRACE_COMPARISONS
    from services.cli.trace_comparison_display import TraceChange

    return TraceChange(
        {
            name: comparison.compare(judged.tables[comparison.table_name].lazy(), baseline.tables[comparison.table_name].lazy()).collect()
            for name, comparison in TRACE_COMPARISONS.items()
        }
    )
