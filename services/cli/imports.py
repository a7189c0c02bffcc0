"""The commands `kernalyse import` and `kernalyse follow`, which read files of other tools into runs of the store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernalyse.services.cli.options import CountersOption, OpRegistryOption, Server, with_server_options

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import ImportProgress, Run
    from kernalyse.trace_upload import OutgoingTrace


@with_server_options
def import_files(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIRECTORY...",
            exists=True,
            readable=True,
            help="Traces of Nsight Systems (SQLite, parquetdir, arrowdir, .nsys-rep), PyTorch, Triton's Proton and ONNX Runtime, "
            "reports of ncu, NVBench JSON, kernalyse's own; of a directory that is no trace itself every one in it and below.",
        ),
    ],
    counters: CountersOption = None,
    op_registry: OpRegistryOption = None,
    is_one_run: Annotated[
        bool, typer.Option("--one-run", help="All files are traces of one job's processes, whatever they say: read them into one run.")
    ] = False,
    is_separate: Annotated[bool, typer.Option("--separate", help="A run for each file, of one job or not.")] = False,
    *,
    server: Server,
) -> None:
    """Read files of results and traces into runs and print their ids.

    Traces of the ranks of one job, recorded at the same time, become one run. Samples that NVBench's --jsonbin wrote beside a
    file go with it, and a roofline_config.json beside a list of operations. Ctrl-C ends an import and leaves nothing of it.

    Status 1: a file could not be read; the others are imported all the same.
    """
    from kernalyse.services.cli.follow import with_registry
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.errors import UsageError
    from kernalyse.trace_upload import OutgoingTrace

    if is_one_run and is_separate:
        raise UsageError("options --one-run and --separate", found="both", expected="one of them", remedy="Leave one out.")
    console = make_console(stderr=True)
    files = list(dict.fromkeys(file for path in paths for file in _traces(path)))
    runs = [files] if is_one_run else [[file] for file in files] if is_separate else _by_job(files)
    reports = _reports(counters or [], files)
    done = []
    with analyzer_session(server, with_profiler=False) as client:
        for number, paths_of_run in enumerate(runs):
            with ExitStack() as stack:
                traces = [stack.enter_context(with_registry(OutgoingTrace(path, reports), op_registry)) for path in paths_of_run]
                done.append(_import(client, traces, _position(number, len(runs)), console))
    if not all(done):
        raise typer.Exit(1)


def _traces(path: Path) -> list[Path]:
    """Return the traces at a path: the file, the directory if it is one trace itself, or every trace below it.

    Raises:
        UsageError: there is none.
    """
    from kernalyse.services.analyzer.readers.registry import find_traces, formats
    from kernalyse.services.core.errors import UsageError

    found = find_traces(path)
    if not found:
        raise UsageError(f"directory {path}", found="no file that could be imported", expected=formats())
    return found


def _position(number: int, count: int) -> str:
    return f"{number + 1}/{count} " if count > 1 else ""


def _reports(reports: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """Check reports of ncu and return them.

    Raises:
        UsageError: one is no report, or there are several traces that they could belong to.
    """
    if not reports:
        return []
    from kernalyse.services.cli.file_tables import report_files
    from kernalyse.services.core.errors import UsageError

    if len(files) > 1:
        raise UsageError(
            "option --counters", found=f"{len(files)} files to import", expected="the one trace that it is of", remedy="Import them apart."
        )
    return list(report_files(reports).values())


def _by_job(files: list[Path]) -> list[list[Path]]:
    from kernalyse.services.analyzer.ingest.ranks import group_by_job

    return group_by_job(files) if len(files) > 1 else [files]


def _import(client: AnalyzerClient, traces: Sequence[OutgoingTrace], position: str, console: Console) -> bool:
    """Upload the traces of one run, print what was imported, and return whether they could be read."""
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    from kernalyse.services.core import model, protobuf
    from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError, TimeLimitError, UnmetConditionError
    from kernalyse.trace_upload import TraceUpload

    name = f"{position}{traces[0].path.name}" + (f" and {len(traces) - 1} more" if len(traces) > 1 else "")
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()),
        *(DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn()),
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(name, total=None)

            def show_stage(message: Message) -> None:
                progress.update(task, description=f"{name}{_stage(protobuf.decode(message, model.ImportProgress))}")

            upload = TraceUpload(traces, lambda sent_bytes: progress.advance(task, sent_bytes), show_stage)
            progress.update(task, total=upload.size_bytes)
            run, is_known = client.import_trace(upload)
    except (InvalidTraceError, LimitReachedError, TimeLimitError, UnmetConditionError) as error:
        console.print(error.message, markup=False, highlight=False)
        return False
    except OSError as error:
        console.print(f"file {error.filename or traces[0].path}: {error.strerror}", markup=False, highlight=False)
        return False
    _print_import(run, is_known, console)
    return True


def _stage(state: ImportProgress) -> str:
    """Return the stage of an import after the upload, in words."""
    match state.stage:
        case "READING":
            return ", being read" + (f" ({state.read_trace_count} of {state.trace_count})" if state.trace_count > 1 else "")
        case "STORING":
            return ", being stored"
        case _:
            return ""


def _print_import(run: Run, is_known: bool, console: Console) -> None:
    is_trace = not run.total_configuration_count
    counts = f"{run.total_configuration_count} configurations, {run.failed_configuration_count} without a measurement"
    known = "; imported before: delete that run to read the file anew" if is_known else ""
    typer.echo(f"{run.run_id} {run.spec.title}: {'trace' if is_trace else counts}{known}")
    if not is_known:
        console.print(run.notes, markup=False, highlight=False, style="dim")


@with_server_options
def follow(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A list of operations or kernels: JSON or CSV.")
    ] = Path("commands.json"),
    op_registry: OpRegistryOption = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the Roofline page in a browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Serve the page on this port where it is free, else on that of the dashboard that runs; 0 takes any free one.",
        ),
    ] = None,
    *,
    server: Server,
) -> None:
    """Show a list of operations or kernels on the Roofline page until Ctrl-C, and read it again whenever it changes.

    Pages that are open follow by themselves. A roofline_config.json beside it is watched too, and written when peaks or
    thresholds are set on the page; so is the op_registry.py of --op-registry. Operations that cannot be placed on the roofline are
    listed with the reason. Where no kernalyse runs, an analyzer and a dashboard are started until then.
    """
    import threading
    import webbrowser

    from kernalyse.services.cli.follow import OperationListFollower, dashboard_session
    from kernalyse.services.cli.local_services import dashboard_url

    with dashboard_session(server, port) as (client, dashboard):
        followed = OperationListFollower(client, path, op_registry, typer.echo)
        run = followed.read()
        page = f"/roofline?runs={run.run_id}"
        if dashboard is None:
            typer.echo(f"Roofline: {page} of that analyzer's dashboard")
        else:
            url = dashboard_url(dashboard, page)
            if port and dashboard.address.rpartition(":")[2] != str(port):
                typer.echo(f"Port {port} is in use by another program; the page is on {dashboard.address}.")
            typer.echo(f"Roofline: {url}")
            if open_browser:
                webbrowser.open(url)
        typer.echo(f"Following {path}; Ctrl-C ends it.")
        try:
            followed.follow(threading.Event())
        except KeyboardInterrupt:
            typer.echo("Stopped; what was read last stays.")
