"""The command `kernalyse ceilings`, which measures what a device can do at most, and tables of ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from kernalyse.services.cli import options
from kernalyse.services.cli.options import JsonFlag, Server, with_server_options
from kernalyse.services.core.disturbance import DISTURBED_SYMBOL, is_busy
from kernalyse.services.core.formatting import UNKNOWN, ceiling_rate, percentage

if TYPE_CHECKING:
    import polars as pl

    from kernalyse.services.cli.output import TerminalTable
    from kernalyse.services.core.model import Run


@with_server_options
def ceilings(
    backend: options.BackendOption = options.BackendChoice.AUTO,
    device: options.DeviceOption = None,
    node: options.NodeOption = "",
    json_output: JsonFlag = False,
    *,
    server: Server,
) -> None:
    """Measure what a device can do at most: memory levels, multiply-adds, tensor cores. Rooflines use it from then on.

    Shares are of the datasheet, and of what the clock that the device ran at allows. Status 1: nothing could be measured.
    """
    from kernalyse.services.analyzer.analysis.roofline import ceiling_shares
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import follow
    from kernalyse.services.cli.session import analyzer_session, checkout_revision
    from kernalyse.services.core.model import BackendName, CeilingMeasurement, RunSpec

    console = make_console(stderr=True)
    spec = RunSpec(CeilingMeasurement(BackendName[backend.name], device), revision=checkout_revision(Path.cwd()))
    with analyzer_session(server) as client:
        run = follow(client, client.start_run(spec, node_id=client.node_id_of(node)), console)
        shares = ceiling_shares(client.table("ceilings", [run.run_id]).lazy()).collect()
        log_lines = client.table("log_lines", [run.run_id])
    if json_output:
        typer.echo(_as_json(run, shares, log_lines))
    else:
        _print(shares)
    console.print(f"run {run.run_id}: {run.state.lower()}", markup=False, highlight=False)
    if run.error is not None:
        console.print(run.error.message, markup=False, highlight=False)
    if run.state != "SUCCEEDED":
        raise typer.Exit(1)


def _print(shares: pl.DataFrame) -> None:
    from kernalyse.services.cli.output import console as make_console

    console = make_console()
    if shares["measured"].is_not_null().any():
        console.print(ceilings_table(shares))
        for line in (*busy_lines(shares), *missing_lines(shares)):
            console.print(line, markup=False, highlight=False)


def _as_json(run: Run, shares: pl.DataFrame, log_lines: pl.DataFrame) -> str:
    import json

    document = {
        "run_id": run.run_id,
        "state": str(run.state),
        "device_id": run.device_id,
        "ceilings": shares.to_dicts(),
        "problems": problem_lines(log_lines),
    }
    return json.dumps(document, indent=2)


# ---------------------------------------------------------------- tables and notes

PROBLEM_PREFIX: Final = "Not measured: "
"""Begins each line of the profiler's log on a ceiling, or a kernel variant for it, that could not be measured."""


def ceilings_table(shares: pl.DataFrame) -> TerminalTable:
    """Return one row per ceiling: what was measured, and its fractions of the data sheet and of what the clock allows.

    Args:
        shares: ceiling_shares of one run.
    """
    from kernalyse.services.cli.output import TerminalTable

    numeric = ("measured", "datasheet", "of datasheet", "at clock", "of clock")
    rows = ((*_cells(row), row["note"] or "") for row in shares.iter_rows(named=True))
    return TerminalTable(("ceiling", "path", *numeric, "note"), rows, numeric=numeric)


def problem_lines(log_lines: pl.DataFrame) -> list[str]:
    """Return the reasons why ceilings, or kernel variants for them, were not measured. Input: table log_lines of one run."""
    return [line.removeprefix(PROBLEM_PREFIX) for line in log_lines["line"].to_list() if line.startswith(PROBLEM_PREFIX)]


def busy_lines(shares: pl.DataFrame) -> Iterator[str]:
    """Yield a warning when the host was busy while ceilings were measured, with the remedy."""
    ratios = [ratio for ratio in shares["host_busy_ratio"] if is_busy(ratio)]
    if ratios:
        busy = f"other programs kept the host {max(ratios) * 100:.0f} % busy while this was measured: it may be too low"
        yield f"{DISTURBED_SYMBOL} {busy}. Measure again when it is quiet: kernalyse ceilings"


def missing_lines(shares: pl.DataFrame) -> Iterator[str]:
    """Yield a note with the names of ceilings of such a device that were not measured."""
    names = [f"{row['ceiling_name']} {row['path']}" for row in shares.iter_rows(named=True) if row["measured"] is None]
    if names:
        yield f"not measured on this device: {', '.join(names)}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    unit, name = row["unit"], row["ceiling_name"]
    return (
        name,
        row["path"] or UNKNOWN,
        ceiling_rate(row["measured"], unit, name) + (f" {DISTURBED_SYMBOL}" if is_busy(row["host_busy_ratio"]) else ""),
        ceiling_rate(row["datasheet"], unit, name),
        percentage(row["datasheet_ratio"]),
        ceiling_rate(row["at_clock"], unit, name),
        percentage(row["clock_ratio"]),
    )
