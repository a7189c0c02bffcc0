"""`kernalyse compare`: what became faster or slower from one run to another, for people and for CI."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from services.cli.options import CaFileOption, InsecureOption, ServerOption, TokenFileOption, TokenOption

if TYPE_CHECKING:
    import polars as pl

    from services.cli.session import Server

SLOWER_STATUS: Final = 1
REFUSED_STATUS: Final = 2


class ComparisonFormat(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    baseline: Annotated[str, typer.Argument(metavar="A", help="The baseline: a run id, the beginning of one, last, or a JSON file.")],
    judged: Annotated[str, typer.Argument(metavar="B", help="What is judged by it: likewise.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="device,…", help="What may differ: device, method, cache, inputs. Refused otherwise."),
    ] = None,
    fail_if_slower: Annotated[
        str | None,
        typer.Option("--fail-if-slower", metavar="2%", help="Status 1 when a configuration is slower, and its ratio by more than this."),
    ] = None,
    output_format: Annotated[
        ComparisonFormat, typer.Option("--format", "-f", help="Markdown suits a pull request.")
    ] = ComparisonFormat.TABLE,
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Judge run B by run A: ratios of medians with their intervals, and a verdict on each configuration.

    Separate runs are decided with five processes a side (bench --processes 5); bench --paired decides in one.

    Status 0: compared; 1: slower by more than --fail-if-slower; 2: refused, or there was nothing to compare.
    """
    from services.cli.comparison_display import as_json, as_markdown, summary_lines, too_slow, verdict_table
    from services.cli.session import Server
    from services.cli.terminal import console as make_console
    from services.core.errors import KernalyseError

    try:
        threshold_ratio = None if fail_if_slower is None else _threshold(fail_if_slower)
        rows = _compared(baseline, judged, allow or [], Server(server, token, token_file, ca_file, insecure))
    except KernalyseError as error:  # status 1 would say that something is slower
        typer.echo(f"kernalyse: {error.message}", err=True)
        raise typer.Exit(REFUSED_STATUS) from error
    if output_format is ComparisonFormat.JSON:
        typer.echo(as_json(rows, threshold_ratio), nl=False)
    elif output_format is ComparisonFormat.MARKDOWN:
        typer.echo(as_markdown(rows, threshold_ratio), nl=False)
    else:
        make_console().print(verdict_table(rows))
    for line in summary_lines(rows, threshold_ratio):
        typer.echo(line, err=output_format is not ComparisonFormat.TABLE)
    if rows["verdict"].null_count() == rows.height:
        raise typer.Exit(REFUSED_STATUS)
    if threshold_ratio is not None and not too_slow(rows, threshold_ratio).is_empty():
        raise typer.Exit(SLOWER_STATUS)


def _threshold(text: str) -> float:
    from services.cli.measuring_words import parse_ratio

    return parse_ratio("--fail-if-slower", text)


def _compared(baseline: str, judged: str, allow: list[str], server: Server) -> pl.DataFrame:
    from services.analyzer.analyses.compare import compare_runs, parse_differences
    from services.cli.compared_runs import compared_runs
    from services.cli.usage import UsageError

    allowed = parse_differences([name.strip() for part in allow for name in part.split(",")])
    first, second = compared_runs((baseline, judged), server)
    if first.run_id == second.run_id:
        raise UsageError(f"runs {baseline} and {judged}", found="one and the same", expected="two", remedy="Name the run to judge it by.")
    return compare_runs(first, second, allowed)
