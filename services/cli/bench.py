"""`kernalyse bench`: measures kernels over a sweep of parameters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import CaFileOption, InsecureOption, ServerOption, TokenFileOption, TokenOption

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run, RunSpec


class BackendChoice(StrEnum):
    AUTO = "auto"
    PYCUDA = "pycuda"
    NVCC = "nvcc"
    OPENCL = "opencl"


class CacheChoice(StrEnum):
    DEFAULT = "default"
    COLD = "cold"
    HOT = "hot"


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    kernels: Annotated[list[str], typer.Argument(metavar="KERNEL...", help="Catalogue names, or FILE.cu:KERNEL.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUES", help="N=128,256 or N=2**7..2**10 or N=32..128:32. May be repeated."),
    ] = None,
    ties: Annotated[list[str] | None, typer.Option("--tie", metavar="M=N", help="M always has the value of N. May be repeated.")] = None,
    where: Annotated[str, typer.Option("--where", metavar="EXPR", help="Leave out configurations for which this is false.")] = "",
    buffers: Annotated[
        list[str] | None, typer.Option("--buffer", metavar="a=N*K", help="Elements behind a pointer of a FILE.cu kernel. May be repeated.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", metavar="alpha=2.0", help="Value of a scalar argument. May be repeated.")
    ] = None,
    flop: Annotated[
        str | None, typer.Option("--flop", metavar="EXPR", help="Floating-point operations of a launch; an FMA is two.")
    ] = None,
    bytes_formula: Annotated[
        str | None, typer.Option("--bytes", metavar="EXPR", help="Bytes a launch must move to and from device memory.")
    ] = None,
    definition: Annotated[
        Path | None, typer.Option("--definition", metavar="FILE.toml", help="Definitions in the catalogue's format.")
    ] = None,
    backend: Annotated[BackendChoice, typer.Option("--backend", help="What runs the kernels.")] = BackendChoice.AUTO,
    block: Annotated[str | None, typer.Option("--block", metavar="16x16", help="Threads per block.")] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="DEVICE_ID", help="As kernalyse devices names it.")] = None,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Node id, host name or address.")] = "",
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results there; - for standard output.")
    ] = None,
    cache: Annotated[CacheChoice, typer.Option("--cache", help="Cold: the cache is flushed before each sample.")] = CacheChoice.DEFAULT,
    samples: Annotated[int | None, typer.Option("--samples", min=2, help="At most this many samples a configuration.")] = None,
    max_time: Annotated[float | None, typer.Option("--max-time", metavar="SECONDS", help="Longest sampling of a configuration.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random input data.")] = 0,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not compare results with the reference.")] = False,
    counters: Annotated[
        bool, typer.Option("--counters", help="Count what each kernel does with ncu, after timing. Without permission: timing alone.")
    ] = False,
    title: Annotated[str, typer.Option("--title", help="What lists call the run.")] = "",
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Measure kernels: live progress, then a table. Status 1: the run, a configuration or a verification failed."""
    from services.cli.revision import revision_of
    from services.cli.session import Server, analyzer_session
    from services.cli.sweep_request import DefinitionOptions, SweepRequest, build_sweep
    from services.cli.terminal import console as make_console
    from services.core.model import BackendName, CacheMode, RunSpec

    request = SweepRequest(
        kernels=tuple(kernels),
        parameters=tuple(parameters or ()),
        ties=tuple(ties or ()),
        where=where,
        arguments=tuple(arguments or ()),
        definition=DefinitionOptions(tuple(buffers or ()), flop, bytes_formula, definition),
        backend=BackendName[backend.name],
        block=block,
        device_id=device,
        cache_mode=CacheMode[cache.name],
        max_sample_count=samples,
        max_duration_s=max_time,
        seed=seed,
        skip_verification=no_verify,
        with_counters=counters,
    )
    console = make_console(stderr=True)
    sweep, notices = build_sweep(request)
    for notice in notices:
        console.print(notice, markup=False, highlight=False)
    spec = RunSpec(sweep, title=title, revision=revision_of(Path.cwd()))
    with analyzer_session(Server(server, token, token_file, ca_file, insecure)) as client:
        is_good = _measure(client, spec, node, json_path, console)
    if not is_good:
        raise typer.Exit(1)


def _measure(client: AnalyzerClient, spec: RunSpec, node: str, json_path: Path | None, console: Console) -> bool:
    """Submits, follows and shows the run; answers whether everything was measured and right. Ctrl-C cancels the run."""
    from services.cli.run_display import RunDisplay, outcome_line

    run = client.start_run(spec, node_id=_node_id(client, node))
    display = RunDisplay(run, console)
    try:
        run = display.follow(client)
    except KeyboardInterrupt:
        console.print(f"Cancelling run {run.run_id}; what it has measured is kept…")
        client.cancel_run(run.run_id)
        run = display.follow(client)
    frames = {name: client.table(name, [run.run_id]) for name in ("measurements", "roofline", "failures")}
    writes_to_standard_output = json_path is not None and str(json_path) == "-"
    _print_results(frames, quiet=writes_to_standard_output)
    console.print(outcome_line(run), markup=False, highlight=False)
    if json_path is not None:
        _write_json(client, run, frames, None if writes_to_standard_output else json_path)
    return run.state == "SUCCEEDED" and run.failed_configuration_count == 0 and _is_verified(frames["measurements"])


def _node_id(client: AnalyzerClient, node: str) -> str:
    """The id for what the user calls a node; empty stays empty: the analyzer chooses."""
    if not node:
        return ""
    known = [status.node for status in client.nodes() if status.node is not None and node in (status.address, status.node.hostname)]
    return known[0].node_id if known else node


def _print_results(frames: dict[str, pl.DataFrame], *, quiet: bool) -> None:
    from services.cli.run_display import failure_lines, result_table
    from services.cli.terminal import console as make_console

    console = make_console(stderr=quiet)
    if not frames["measurements"].is_empty():
        console.print(result_table(frames["measurements"], frames["roofline"]))
    for line in failure_lines(frames["failures"]):
        console.print(line, markup=False, highlight=False)


def _is_verified(measurements: pl.DataFrame) -> bool:
    return "FAILED" not in measurements["verification_state"].to_list() if measurements.height else True


def _write_json(client: AnalyzerClient, run: Run, frames: dict[str, pl.DataFrame], path: Path | None) -> None:
    import json

    from services.cli.runs import run_row
    from services.cli.show import frames_as_json

    text = frames_as_json(frames | {"samples": client.table("samples", [run.run_id])}, {"run": json.dumps(run_row(run))})
    if path is None:
        typer.echo(text, nl=False)
    else:
        path.write_text(text)
