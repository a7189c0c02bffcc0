"""`kernalyse profile`: a command under a collector, or a model by a prompt, on any node."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.bundle import passed_by
from kernalyse.services.cli.bundles import ProgramBundle, files_of_command, files_of_folder, files_of_model, pack_files, refuse_other_file
from kernalyse.services.cli.options import Server, takes_server
from kernalyse.services.core.errors import BackendUnavailableError, UsageError
from kernalyse.services.core.model import (
    CommandProfile,
    EnvironmentVariable,
    Filter,
    LogLevel,
    MeasuringOptions,
    ModelRun,
    RunState,
    TableQuery,
)
from kernalyse.services.core.request_syntax import MAX_SECONDS

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import Run


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
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.session import analyzer_session, revision_of
    from kernalyse.services.core.model import RunSpec

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
    from kernalyse.services.core.errors import UsageError
    from kernalyse.services.core.settings import AnalyzerSettings, find_service

    if server.address is None and find_service(AnalyzerSettings.load().announcement_path()) is None:
        raise UsageError(
            "option --detach",
            found="no running analyzer",
            expected="services that go on when this command ends",
            remedy="Start kernalyse up.",
        )


# ---------------------------------------------------------------- profile words
# From the words of `kernalyse profile` to a run that any node can carry out.

BUILT_IN_MODEL: Final = "bert-tiny"
PROMPT_MAX_DURATION_NS: Final = 5_000_000_000  # of whole passes; as long again goes into those under the profile, and somebody waits
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_]\w*")
PYTHON: Final = "python3"
MAX_PASSED_BY: Final = 8  # named; a folder may have thousands


@dataclass(frozen=True, slots=True)
class ProfileWords:
    """The options as they were written. None: not given; collector: empty for the node's choice.

    has_files_there: the node has the files that the command names.
    """

    command: tuple[str, ...] = ()
    target: Path | None = None
    prompt: str | None = None
    model: Path | None = None
    tokenizer: Path | None = None
    collector: str = ""
    environment: tuple[str, ...] = ()
    bundle: Path | None = None
    has_files_there: bool = False
    duration_s: float | None = None
    capture_range: str = ""
    with_cpu_sampling: bool = False
    kernel_filter: str = ""
    launch_skip_count: int | None = None
    max_launch_count: int | None = None
    step_count: int | None = None


@dataclass(frozen=True, slots=True)
class BuiltProfile:
    """What a command line asks for. bundle: to upload before the run, whose digest goes into the work; or None. notices: for the user."""

    work: CommandProfile | ModelRun
    bundle: ProgramBundle | None = None
    notices: tuple[str, ...] = ()


def build_profile(words: ProfileWords, environment: Mapping[str, str] = os.environ) -> BuiltProfile:
    """Return the run, and what goes with it.

    Args:
        environment: of this process, for variables that are named without a value.

    Raises:
        UsageError: an option cannot be read, a file is not there, or options do not go together.
        BackendUnavailableError, CompileError: the target is a .cu file, and there is no nvcc or it refuses it.
    """
    given = [
        name
        for name, is_given in (
            ("COMMAND", bool(words.command) and words.target is None),
            ("--target", words.target),
            ("--prompt", words.prompt),
        )
        if is_given or is_given == ""
    ]
    if len(given) != 1:
        raise UsageError(
            "kernalyse profile",
            found=" and ".join(given) or "nothing to profile",
            expected="a command, --target PATH or --prompt TEXT",
            remedy="For example: kernalyse profile -- python train.py",
        )
    if words.prompt is not None:
        return _model_run(words, words.prompt)
    if words.model is not None or words.tokenizer is not None:
        raise UsageError(
            "option --model or --tokenizer", found="no --prompt", expected="the text that becomes its tokens", remedy="Add --prompt."
        )
    return _target(words, words.target, environment) if words.target is not None else _command(words, environment)


# ---------------------------------------------------------------- commands


def _command(words: ProfileWords, environment: Mapping[str, str]) -> BuiltProfile:
    work = _profile(words, words.command, environment)
    if words.bundle is not None:
        return BuiltProfile(work, _folder_bundle(words.bundle), _passed_by(words.bundle))
    files = {} if words.has_files_there else files_of_command(words.command, Path.cwd())
    if not files:
        return BuiltProfile(work)
    notice = f"Goes to the node with the command: {', '.join(files)}. For more: --bundle FOLDER."
    return BuiltProfile(work, pack_files(files), (notice,))


def _target(words: ProfileWords, target: Path, environment: Mapping[str, str]) -> BuiltProfile:
    """Return the command with a program of this machine in the place of its first word; what follows are its arguments."""
    if not target.is_file():
        raise UsageError(f"option --target {target}", found="no such file", expected="a program or a .cu file", remedy="Correct the path.")
    name = target.stem if target.suffix == ".cu" else target.name
    files = {} if words.bundle is None else files_of_folder(_checked_folder(words.bundle))
    with tempfile.TemporaryDirectory(prefix="kernalyse-target-") as folder:
        files[name] = _compiled(target, Path(folder) / name) if target.suffix == ".cu" else target
        bundle = pack_files(files)
    if target.suffix == ".py":
        return BuiltProfile(_profile(words, (PYTHON, name, *words.command), environment), bundle, _passed_by(words.bundle))
    if target.suffix != ".cu" and not os.access(target, os.X_OK):
        raise UsageError(
            f"option --target {target}",
            found="a file that cannot be executed",
            expected="a program",
            remedy=f"If it is one: chmod +x {target}",
        )
    return BuiltProfile(_profile(words, (f"./{name}", *words.command), environment), bundle, _passed_by(words.bundle))


def _compiled(source: Path, program: Path) -> Path:
    """Return the program that nvcc makes of a complete .cu file."""
    from kernalyse.services.core.external_programs import find_nvcc
    from kernalyse.services.profiler.backends.cuda.compiler import TOOLKIT, run_nvcc

    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendUnavailableError(
            f"option --target {source}",
            found="no nvcc to compile it with",
            remedy=f"{TOOLKIT} Or compile it elsewhere, and name the program.",
        )
    # Names of kernels and lines stay in the program for the collector to tell.
    run_nvcc(nvcc, ("-O3", "-lineinfo", "-o", str(program), str(source.absolute())), source.absolute().parent, f"program {source}")
    return program


def _profile(words: ProfileWords, arguments: tuple[str, ...], environment: Mapping[str, str]) -> CommandProfile:
    defaults = CommandProfile(arguments, words.collector)
    return CommandProfile(
        arguments=arguments,
        collector=words.collector,
        environment=tuple(_variable(text, environment) for text in words.environment),
        max_duration_ns=_duration_ns(words.duration_s),
        capture_range=words.capture_range,
        with_cpu_sampling=words.with_cpu_sampling,
        kernel_filter=words.kernel_filter,
        launch_skip_count=words.launch_skip_count or 0,
        max_launch_count=defaults.max_launch_count if words.max_launch_count is None else words.max_launch_count,
        step_count=words.step_count,
    )


def _variable(text: str, environment: Mapping[str, str]) -> EnvironmentVariable:
    """Return name and value of NAME=VALUE, or of NAME the value that it has here."""
    name, separator, value = text.partition("=")
    if VARIABLE_NAME.fullmatch(name) is None:
        raise UsageError(
            f"option --env {text}", found=repr(name), expected="NAME=VALUE, or NAME for its value here", remedy="Correct the name."
        )
    if not separator and name not in environment:
        raise UsageError(
            f"option --env {text}", found="no such variable here", expected="one that is set", remedy=f"Say --env {name}=VALUE."
        )
    return EnvironmentVariable(name, value if separator else environment[name])


def _duration_ns(duration_s: float | None) -> int | None:
    if duration_s is None:
        return None
    if not (math.isfinite(duration_s) and 0 < duration_s < MAX_SECONDS):
        raise UsageError(
            f"option --duration {duration_s:g}", found=f"{duration_s:g}", expected="seconds, more than 0", remedy="Say --duration 30."
        )
    return max(1, int(duration_s * 1e9))


def _folder_bundle(folder: Path) -> ProgramBundle:
    return pack_files(files_of_folder(_checked_folder(folder)))


def _passed_by(folder: Path | None) -> tuple[str, ...]:
    """Return what is left out: a program that misses its data fails on the node with words that do not tell why."""
    names = [] if folder is None else passed_by(folder)
    if not names:
        return ()
    shown = ", ".join(map(repr, names[:MAX_PASSED_BY])) + (f" and {len(names) - MAX_PASSED_BY} more" if len(names) > MAX_PASSED_BY else "")
    return (f"Does not go to the node, being links to folders or to nothing, or no files: {shown}.",)


def _checked_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(
            f"option --bundle {folder}", found="no such folder", expected="the folder of the program", remedy="Correct the path."
        )
    return folder


# ---------------------------------------------------------------- models


def _model_run(words: ProfileWords, prompt: str) -> BuiltProfile:
    if not prompt.strip():
        raise UsageError(
            "option --prompt",
            found="no text",
            expected="words that become the model's tokens",
            remedy='Say --prompt "The quick brown fox".',
        )
    _refuse_command_options(words)
    files = {} if words.bundle is None else files_of_folder(_checked_folder(words.bundle))
    for option, path in (("--model", words.model), ("--tokenizer", words.tokenizer)):
        if path is not None and not path.is_file():
            raise UsageError(f"option {option} {path}", found="no such file", expected="a file", remedy="Correct the path.")
    if words.model is not None:
        refuse_other_file(words.model)
        files |= files_of_model(words.model)
    if words.tokenizer is not None:
        files[words.tokenizer.name] = words.tokenizer
    work = ModelRun(
        model_name=BUILT_IN_MODEL if words.model is None else words.model.name,
        prompt=prompt,
        measuring=MeasuringOptions(max_duration_ns=PROMPT_MAX_DURATION_NS),
        tokenizer_file_name="" if words.tokenizer is None else words.tokenizer.name,
    )
    return BuiltProfile(work, pack_files(files) if files else None, _passed_by(words.bundle))


def _refuse_command_options(words: ProfileWords) -> None:
    plain = ProfileWords()
    for option, name in (
        ("--collector", "collector"),
        ("--env", "environment"),
        ("--duration", "duration_s"),
        ("--capture-range", "capture_range"),
        ("--cpu-sampling", "with_cpu_sampling"),
        ("--kernel-filter", "kernel_filter"),
        ("--launch-skip", "launch_skip_count"),
        ("--launch-count", "max_launch_count"),
        ("--steps", "step_count"),
    ):
        if getattr(words, name) != getattr(plain, name):
            raise UsageError(f"option {option}", found="a model by --prompt", expected="a command", remedy="Leave it out.")


# ---------------------------------------------------------------- profile results
# A profile that was just submitted: its output and progress while it runs, then its kernels and layers.

SHOWN_ROW_COUNT: Final = 10


def follow_profile(client: AnalyzerClient, run: Run, console: Console) -> bool:
    """Follow the run until its trace has been read, show what it came to, and return whether there is something to show."""
    from kernalyse.services.cli.model import follow_and_show_model
    from kernalyse.services.cli.run_output import follow, outcome_line

    console.print(f"run {run.run_id}", markup=False, highlight=False)
    if isinstance(run.spec.work, ModelRun):
        is_good = follow_and_show_model(client, run, None, console)
        console.print(_where(run), markup=False, highlight=False, soft_wrap=True)
        return is_good
    run = follow(client, run, console, shows_program=True)
    shown_count = _show_tables(client, run)
    for line in (*run.notes.splitlines()[1:], *_missing_ceilings(client, run)):  # the first one came with the log
        console.print(line, markup=False, highlight=False, style="dim")
    console.print(outcome_line(run), markup=False, highlight=False)
    if shown_count:
        console.print(_where(run), markup=False, highlight=False, soft_wrap=True)
    return run.state is RunState.SUCCEEDED and _is_readable(client, run)


def _show_tables(client: AnalyzerClient, run: Run) -> int:
    """Print the longest kernels and layers, and return how many tables have rows."""
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import kernel_table, layer_table

    console, shown_count = make_console(), 0
    for name, table_of in (("kernels", kernel_table), ("layers", layer_table)):
        frame, total_row_count = client.rows(TableQuery(name, (run.run_id,), limit=SHOWN_ROW_COUNT))
        if total_row_count:
            shown_count += 1
            of_all = f", the {frame.height} longest of {total_row_count}" if frame.height < total_row_count else ""
            console.print(f"\n{name}{of_all}:", markup=False, highlight=False)
            console.print(table_of(frame))
    return shown_count


def _missing_ceilings(client: AnalyzerClient, run: Run) -> tuple[str, ...]:
    """Return a note on a device whose kernels' work is known, but not what it can do: no data sheet is known of it."""
    points = client.rows(TableQuery("roofline", (run.run_id,), columns=("device_id", "efficiency_ratio")))[0]
    if points.is_empty() or points["efficiency_ratio"].count():
        return ()
    return (f"Efficiencies are not known, for no ceilings of {points['device_id'][0]} are: `kernalyse ceilings` measures those of a node.",)


def _is_readable(client: AnalyzerClient, run: Run) -> bool:
    """Return whether the analyzer has nothing to complain of. A program may have launched nothing: then there is nothing to show."""
    from kernalyse.services.cli.run_output import ANALYZER

    complaints = (Filter("source", ANALYZER), Filter("level", LogLevel.WARNING.value))
    return client.rows(TableQuery("log_lines", (run.run_id,), filters=complaints, limit=1))[1] == 0


def _where(run: Run) -> str:
    """Return where the rest of it is: on the run's page, where a dashboard runs here."""
    from kernalyse.services.cli.local_services import running_page_url

    url = running_page_url(f"/live?runs={run.run_id}")
    return f"All of it: {url or f'kernalyse show {run.run_id} kernels layers gaps launches memory'}"
