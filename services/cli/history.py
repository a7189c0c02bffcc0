"""The command `kernalyse history`, which shows a metric over all runs and where its level changed, with an exit status for CI."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kernalyse.services.cli.options import ReadableFormat, Server, with_server_options
from kernalyse.services.core.formatting import UNKNOWN, change, duration, percentage, rate

if TYPE_CHECKING:
    import polars as pl

    from kernalyse.services.cli.output import Rendering

REGRESSION_STATUS: Final = 1
NOTHING_STATUS: Final = 2


@with_server_options
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
    from kernalyse.services.cli.output import print_rendering
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.errors import InvalidRequestError
    from kernalyse.services.core.model import Filter, FilterOperator, TableQuery
    from kernalyse.services.core.request_syntax import parse_ratio

    conditions = [("label", label, FilterOperator.CONTAINS), ("kernel_name", kernel, FilterOperator.CONTAINS)]
    conditions += [("device_id", device, FilterOperator.EQUAL), ("backend", backend.upper(), FilterOperator.EQUAL)]
    filters = tuple(Filter(name, value, operator) for name, value, operator in conditions if value)
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


# ---------------------------------------------------------------- tables and notes

VERSION: Final = "kernalyse-history/1"
HEADINGS: Final = ("configuration", "device", "runs", "newest", "level", "last change", "since", "verdict", "because")
NUMERIC_HEADINGS: Final = ("runs", "newest", "level", "last change")
COMMIT_LENGTH: Final = 10


def latest(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per series, its newest run with the last change: regressions first, then improvements. Input: table history."""
    import polars as pl

    ordered = rows.sort("series", "measured_unix_ns", "run_id")
    changes = ordered.with_columns(runs_since=pl.len().over("series") - pl.int_range(pl.len()).over("series")).filter(
        pl.col("verdict").is_not_null()
    )
    of_change = ["change_ratio", "change_ratio_low", "change_ratio_high", "verdict", "is_confirmed", "baseline_run_id", "reason"]
    last = changes.group_by("series").agg(
        pl.col("runs_since", *of_change).last(),
        since_run_id=pl.col("run_id").last(),
        since_unix_ns=pl.col("measured_unix_ns").last(),
        since_commit=pl.col("git_commit").last(),
    )
    newest = ordered.drop(of_change).group_by("series").agg(pl.len().alias("run_count"), pl.exclude("series").last())
    rank = pl.col("verdict").replace_strict({"REGRESSION": 0, "IMPROVEMENT": 1}, default=2, return_dtype=pl.Int8)
    return newest.join(last, on="series", how="left").sort(
        rank, pl.col("change_ratio").log().abs(), descending=[False, True], nulls_last=True
    )


def regressions(found: pl.DataFrame, threshold_ratio: float, recent_run_count: int) -> pl.DataFrame:
    """Return the rows of `latest` whose last change is a regression over the threshold that began within the newest runs."""
    import polars as pl

    size = pl.max_horizontal("change_ratio", 1 / pl.col("change_ratio"))
    return found.filter(pl.col("verdict") == "REGRESSION", size > 1 + threshold_ratio, pl.col("runs_since") <= recent_run_count)


def history_rendering(rows: pl.DataFrame, found: pl.DataFrame, worse: pl.DataFrame, metric: str, threshold_ratio: float) -> Rendering:
    """Return a history for printing.

    Args:
        rows: table history, which the document has.
        found: the result of `latest` for these rows.
        worse: the result of `regressions` for those.
        metric: the column that the history is of.
        threshold_ratio: smallest change that counts, as a fraction.
    """
    from kernalyse.services.cli.output import Rendering, TextTable

    document = {
        "schema": VERSION,
        "metric": metric,
        "threshold_ratio": threshold_ratio,
        "regressions": worse.select("series", "label", "device_id", "change_ratio", "since_run_id", "since_commit").to_dicts(),
        "history": rows.to_dicts(),
    }
    cells = tuple(_cells(row, metric) for row in found.iter_rows(named=True))
    return Rendering((TextTable(HEADINGS, cells, NUMERIC_HEADINGS),), tuple(summary_lines(found, worse, threshold_ratio)), document)


def summary_lines(found: pl.DataFrame, worse: pl.DataFrame, threshold_ratio: float) -> Iterator[str]:
    """Yield how many histories changed, and the labels of the regressions."""
    changed = found["verdict"].is_not_null().sum()
    yield f"{found.height} {'history' if found.height == 1 else 'histories'}, {changed} with a change."
    known = f"Worse by more than {percentage(threshold_ratio)} of late"
    yield f"{known}: {', '.join(worse['label'])}." if worse.height else f"{known}: none."


def format_value(value: float | None, metric: str) -> str:
    """Return a value of a metric with its unit."""
    if metric.endswith("_ns"):
        return duration(value)
    if metric.endswith("_ratio"):
        return percentage(value)
    return rate(value, {"achieved_flop_per_s": "flop/s", "achieved_bytes_per_s": "B/s", "tokens_per_s": "tokens/s"}.get(metric, ""))


def _cells(row: dict[str, Any], metric: str) -> tuple[str, ...]:
    commit = f", {row['since_commit'][:COMMIT_LENGTH]}" if row["since_commit"] else ""
    since = "" if row["since_unix_ns"] is None else f"{_day(row['since_unix_ns'])}{commit}"
    verdict = (row["verdict"] or "steady").lower() + (" (unconfirmed)" if row["is_confirmed"] is False else "")
    return (
        row["label"],
        row["device_name"] or row["device_id"] or UNKNOWN,
        str(row["run_count"]),
        format_value(row["value"], metric),
        format_value(row["level_value"], metric),
        change(row["change_ratio"]),
        since,
        verdict,
        row["reason"] or "",
    )


def _day(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
