"""`kernalyse ceilings`: measures what a device can do at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from services.cli import bench_options as options
from services.cli.options import JsonFlag, Server, takes_server

if TYPE_CHECKING:
    import polars as pl

    from services.core.model import Run


@takes_server
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
    from services.analyzer.analyses.ceiling_shares import ceiling_shares
    from services.cli.revision import revision_of
    from services.cli.run_results import follow
    from services.cli.session import analyzer_session
    from services.cli.terminal import console as make_console
    from services.core.model import BackendName, CeilingMeasurement, RunSpec

    console = make_console(stderr=True)
    spec = RunSpec(CeilingMeasurement(BackendName[backend.name], device), revision=revision_of(Path.cwd()))
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
    from services.cli.ceiling_display import busy_lines, ceilings_table, missing_lines
    from services.cli.terminal import console as make_console

    console = make_console()
    if shares["measured"].is_not_null().any():
        console.print(ceilings_table(shares))
        for line in (*busy_lines(shares), *missing_lines(shares)):
            console.print(line, markup=False, highlight=False)


def _as_json(run: Run, shares: pl.DataFrame, log_lines: pl.DataFrame) -> str:
    import json

    from services.cli.ceiling_display import problem_lines

    document = {
        "run_id": run.run_id,
        "state": str(run.state),
        "device_id": run.device_id,
        "ceilings": shares.to_dicts(),
        "problems": problem_lines(log_lines),
    }
    return json.dumps(document, indent=2)
