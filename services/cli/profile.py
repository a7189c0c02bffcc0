"""`kernalyse profile`: a command under a collector, or a model by a prompt, on any node."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli.options import Server, takes_server

OF_NCU: Final = "Nsight Compute"
OF_MODELS: Final = "A model instead of a command"

CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
"""What follows the command's first word belongs to that command, options too."""


class CollectorChoice(StrEnum):
    """Collectors by the names that the command line has."""

    NSYS = "nsys"
    NCU = "ncu"
    KINETO = "kineto"
    PROTON = "proton"


@takes_server
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
            metavar="FOLDER",
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
    title: Annotated[str, typer.Option("--title", help="What lists call the run.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Submit the run and print its id.")] = False,
    *,
    server: Server,
) -> None:
    """Record what a program does on the GPU: its output while it runs, then its kernels and layers.

    Ctrl-C ends the run; what was recorded is kept. Status 1: the run failed, or its trace could not be read.
    """
    from services.cli.profile_results import follow_profile
    from services.cli.profile_words import ProfileWords, build_profile
    from services.cli.revision import revision_of
    from services.cli.session import analyzer_session
    from services.cli.terminal import console as make_console
    from services.core.model import RunSpec

    words = ProfileWords(
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
    )
    console = make_console(stderr=True)
    if detach:
        _refuse_own_services(server)
    built = build_profile(words)
    for notice in built.notices:
        console.print(notice, markup=False, highlight=False)
    with analyzer_session(server) as client:
        node_id = client.node_id_of(node)
        work = built.work
        if built.bundle is not None:
            work = replace(work, bundle_digest=client.upload_bundle(built.bundle.data, node_id))
        run = client.start_run(RunSpec(work, title=title, revision=revision_of(Path.cwd())), node_id=node_id)
        if detach:
            typer.echo(run.run_id)
            return
        is_good = follow_profile(client, run, console)
    if not is_good:
        raise typer.Exit(1)


def _refuse_own_services(server: Server) -> None:
    """Refuse services that this command would start: they end with it, and the run with them."""
    from services.core.discovery import find_service
    from services.core.settings import AnalyzerSettings
    from services.core.words.usage import UsageError

    if server.address is None and find_service(AnalyzerSettings.load().announcement_path()) is None:
        raise UsageError(
            "option --detach",
            found="no running analyzer",
            expected="services that go on when this command ends",
            remedy="Start kernalyse up.",
        )
