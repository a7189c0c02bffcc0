"""`kernalyse history`: a figure over time and commits, where it changed for good, and an exit status for CI."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from services.cli.options import ReadableFormat, Server, takes_server

REGRESSION_STATUS: Final = 1
NOTHING_STATUS: Final = 2


@takes_server
def history(
    kernel: Annotated[str, typer.Argument(metavar="[KERNEL]", help="Part of a kernel's, model's or layer's name. None: all.")] = "",
    metric: Annotated[
        str, typer.Option("--metric", help="duration_median_ns, duration_p95_ns, achieved_flop_per_s, efficiency_ratio, tokens_per_s, …")
    ] = "duration_median_ns",
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help='Part of a configuration: "N=4096".')] = "",
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="Only this device, e.g. cuda:0.")] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="BACKEND", help="Only this backend: pycuda, nvcc or opencl.")] = "",
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Status 1 when the newest change of a configuration is for the worse.")
    ] = False,
    threshold: Annotated[str, typer.Option("--threshold", metavar="3%", help="Of these, changes of more than this count.")] = "3%",
    recent: Annotated[
        int, typer.Option("--recent", metavar="N", min=1, help="And those that began in the newest N runs: older ones were accepted.")
    ] = 10,
    output_format: Annotated[ReadableFormat, typer.Option("--format", "-f", help="How to print it.")] = ReadableFormat.TABLE,
    *,
    server: Server,
) -> None:
    """Show a figure of kernels, models and layers over all runs: its level now, and where it changed for good.

    A change is a step from one level of runs to the next that noise does not explain (docs/history.md). The newest run alone can
    be one; it is not confirmed then.

    Status 0: shown; 1: a regression, with --fail-on-regression; 2: refused, or nothing was found.
    """
    from services.cli.history_display import history_rendering, latest, regressions
    from services.cli.session import analyzer_session
    from services.cli.terminal import print_rendering
    from services.core.errors import InvalidRequestError
    from services.core.model import Filter, FilterOperator, TableQuery
    from services.core.words.measuring_words import parse_ratio

    wanted = [("label", label, FilterOperator.CONTAINS), ("kernel_name", kernel, FilterOperator.CONTAINS)]
    wanted += [("device_id", device, FilterOperator.EQUAL), ("backend", backend.upper(), FilterOperator.EQUAL)]
    filters = tuple(Filter(name, value, operator) for name, value, operator in wanted if value)
    try:
        threshold_ratio = parse_ratio("--threshold", threshold)
        with analyzer_session(server, with_profiler=False) as client:
            rows, _ = client.rows(TableQuery("history", filters=(Filter("metric", metric), *filters)))
    except InvalidRequestError as error:  # status 1 would say that something has become worse
        typer.echo(f"kernalyse: {error.message}", err=True)
        raise typer.Exit(NOTHING_STATUS) from error
    if rows.is_empty():
        typer.echo("No run has measured that. List what there is with: kernalyse history", err=True)
        raise typer.Exit(NOTHING_STATUS)
    found = latest(rows)
    worse = regressions(found, threshold_ratio, recent)
    print_rendering(history_rendering(rows, found, worse, metric, threshold_ratio), output_format)
    if fail_on_regression and not worse.is_empty():
        raise typer.Exit(REGRESSION_STATUS)
