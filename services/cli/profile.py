"""The command `kernalyse profile`, which runs a program under a collector, or an ML model on a prompt, on any node."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.services.cli.options import Server, with_server_options
from kernalyse.services.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import Run


OF_NCU: Final = "Nsight Compute"
OF_MODELS: Final = "A model instead of a command"

CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
"""All words after the first of the profiled command belong to it, options too."""


class CollectorChoice(StrEnum):
    """Collectors by their names on the command line."""

    NSYS = "nsys"
    NCU = "ncu"
    KINETO = "kineto"
    PROTON = "proton"


@with_server_options
def profile(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="Program and its arguments; after --target the arguments alone.")
    ] = None,
    collector: Annotated[
        CollectorChoice | None,
        typer.Option("--collector", help="What records it. By default nsys where the node has it, else kineto for a Python program."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="PATH", help="Program of this machine, which goes to the node; a .cu file is compiled with nvcc."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="DIRECTORY",
            help="Goes to the node, where the command runs in a copy of it. By default the files that the command names.",
        ),
    ] = None,
    no_upload: Annotated[
        bool, typer.Option("--no-upload", help="Send no file that the command names: the node has them, where the command says.")
    ] = False,
    environment: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", help="Variable of the command; without a value, as it is here.")
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", help="Ends the command after that; what was recorded is kept."),
    ] = None,
    capture_range: Annotated[
        str,
        typer.Option(
            "--capture-range",
            metavar="RANGE",
            help="What to record: cudaProfilerApi, or nvtx:RANGE or nvtx:RANGE@DOMAIN; else all. nsys and ncu.",
        ),
    ] = "",
    cpu_sampling: Annotated[bool, typer.Option("--cpu-sampling", help="Sample the CPU's stacks too. nsys.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Leave the network on, where the node sandboxes runs.")] = False,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Optimizer steps to record after the first. kineto.")
    ] = None,
    kernel_filter: Annotated[
        str, typer.Option("--kernel-filter", metavar="REGEX", help="Kernels to profile, by name.", rich_help_panel=OF_NCU)
    ] = "",
    launch_skip: Annotated[
        int | None, typer.Option("--launch-skip", metavar="N", min=0, help="Launches left out at the start.", rich_help_panel=OF_NCU)
    ] = None,
    launch_count: Annotated[
        int | None, typer.Option("--launch-count", metavar="N", min=1, help="Launches to profile; else 100.", rich_help_panel=OF_NCU)
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Runs a BERT on this text under ONNX Runtime's profiler.", rich_help_panel=OF_MODELS),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE.onnx", help="Model; else a small BERT.", rich_help_panel=OF_MODELS)
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json of the model.", rich_help_panel=OF_MODELS)
    ] = None,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Node id, host name or address.")] = "",
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="NODES",
            help="all, or names of nodes: the command runs on all at once, {node_rank}, {node_count} and {first_host} filled in.",
        ),
    ] = "",
    title: Annotated[str, typer.Option("--title", help="What lists call the run.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Submit the run and print its id.")] = False,
    *,
    server: Server,
) -> None:
    """Record what a program does on the GPU: its output while it runs, then its kernels and layers.

    With --on it runs on several nodes at the same time, and what each did is shown side by side.

    Ctrl-C ends the run; what was recorded is kept. Status 1: the run failed, or its trace could not be read.
    """
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.profile_request import ProfileOptions, build_profile
    from kernalyse.services.cli.session import analyzer_session, checkout_revision
    from kernalyse.services.core.model import RunSpec

    request = ProfileOptions(
        command=tuple(command or ()),
        target=target,
        prompt=prompt,
        model=model,
        tokenizer=tokenizer,
        collector="" if collector is None else collector.value,
        environment=tuple(environment or ()),
        bundle=bundle,
        has_files_there=no_upload,
        duration_s=duration,
        capture_range=capture_range,
        with_cpu_sampling=cpu_sampling,
        kernel_filter=kernel_filter,
        launch_skip_count=launch_skip,
        max_launch_count=launch_count,
        step_count=steps,
        has_network=network,
    )
    console = make_console(stderr=True)
    if on and (node or detach):
        raise UsageError("options --on and --node or --detach", found="both", expected="one of them", remedy="Leave one out.")
    if detach:
        _require_running_services(server)
    built = build_profile(request)
    for notice in built.notices:
        console.print(notice, markup=False, highlight=False)
    with analyzer_session(server) as client:
        if on:
            from kernalyse.services.cli.many_devices import left_out_lines, targets_of
            from kernalyse.services.cli.many_nodes import one_target_per_node, profile_on

            nodes = client.nodes()
            for line in left_out_lines(nodes, on):
                console.print(line, markup=False, highlight=False)
            targets = one_target_per_node(targets_of(nodes, on, None))
            spec = RunSpec(built.work, title=title, revision=checkout_revision(Path.cwd()))
            if not profile_on(client, targets, built, spec, console):
                raise typer.Exit(1)
            return
        node_id = client.node_id_of(node)
        work = built.work
        if built.bundle is not None:
            work = replace(work, bundle_digest=client.upload_bundle(built.bundle.data, node_id))
        run = client.start_run(RunSpec(work, title=title, revision=checkout_revision(Path.cwd())), node_id=node_id)
        if detach:
            typer.echo(run.run_id)
            return
        is_good = follow_profile(client, run, console)
    if not is_good:
        raise typer.Exit(1)


def _require_running_services(server: Server) -> None:
    """Raise UsageError where this command would start the services itself: they would end with it, and so would the run."""
    from kernalyse.services.core.settings import AnalyzerSettings, find_service

    if server.address is None and find_service(AnalyzerSettings.load().announcement_path()) is None:
        raise UsageError(
            "option --detach",
            found="no running analyzer",
            expected="services that go on when this command ends",
            remedy="Start kernalyse up.",
        )


# ---------------------------------------------------------------- results of a run

SHOWN_ROW_COUNT: Final = 10


def follow_profile(client: AnalyzerClient, run: Run, console: Console) -> bool:
    """Follow a run until its trace is read, show its kernels and layers, and return whether it succeeded and could be read."""
    from kernalyse.services.cli.model import follow_and_show_model
    from kernalyse.services.cli.run_output import follow, outcome_line
    from kernalyse.services.core.model import ModelRun, RunState

    console.print(f"run {run.run_id}", markup=False, highlight=False)
    if isinstance(run.spec.work, ModelRun):
        is_good = follow_and_show_model(client, run, None, console)
        console.print(_results_line(run), markup=False, highlight=False, soft_wrap=True)
        return is_good
    run = follow(client, run, console, shows_program=True)
    shown_count = _show_tables(client, run)
    for line in (*run.notes.splitlines()[1:], *_missing_ceilings(client, run)):  # the log has shown the first one
        console.print(line, markup=False, highlight=False, style="dim")
    console.print(outcome_line(run), markup=False, highlight=False)
    if shown_count:
        console.print(_results_line(run), markup=False, highlight=False, soft_wrap=True)
    return run.state is RunState.SUCCEEDED and _is_readable(client, run)


def _show_tables(client: AnalyzerClient, run: Run) -> int:
    """Print the kernels and layers that took longest, and return how many of the tables have rows."""
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import kernel_table, layer_table
    from kernalyse.services.core.model import TableQuery

    console, shown_count = make_console(), 0
    for name, table_of in (("kernels", kernel_table), ("layers", layer_table)):
        frame, total_row_count = client.rows(TableQuery(name, (run.run_id,), limit=SHOWN_ROW_COUNT))
        if total_row_count:
            shown_count += 1
            total = f", the {frame.height} longest of {total_row_count}" if frame.height < total_row_count else ""
            console.print(f"\n{name}{total}:", markup=False, highlight=False)
            console.print(table_of(frame))
    return shown_count


def _missing_ceilings(client: AnalyzerClient, run: Run) -> tuple[str, ...]:
    """Return a note where the cost of kernels is known but no ceiling of their device, which has no known data sheet."""
    from kernalyse.services.core.model import TableQuery

    points = client.rows(TableQuery("roofline", (run.run_id,), columns=("device_id", "efficiency_ratio")))[0]
    if points.is_empty() or points["efficiency_ratio"].count():
        return ()
    return (f"Efficiencies are not known, for no ceilings of {points['device_id'][0]} are: `kernalyse ceilings` measures those of a node.",)


def _is_readable(client: AnalyzerClient, run: Run) -> bool:
    """Return whether the analyzer logged no warning. An empty trace is none: a program may launch nothing."""
    from kernalyse.services.cli.run_output import ANALYZER
    from kernalyse.services.core.model import Filter, LogLevel, TableQuery

    warnings = (Filter("source", ANALYZER), Filter("level", LogLevel.WARNING.value))
    return client.rows(TableQuery("log_lines", (run.run_id,), filters=warnings, limit=1))[1] == 0


def _results_line(run: Run) -> str:
    """Return a line on where all results are: on the run's page where a dashboard runs here, else in `kernalyse show`."""
    from kernalyse.services.cli.local_services import running_page_url

    url = running_page_url(f"/live?runs={run.run_id}")
    return f"All of it: {url or f'kernalyse show {run.run_id} kernels layers gaps launches memory'}"
