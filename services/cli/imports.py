"""`kernalyse import`: results and traces of elsewhere become runs of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import (
    CaFileOption,
    CountersOption,
    InsecureOption,
    OpRegistryOption,
    ServerOption,
    TokenFileOption,
    TokenOption,
)

if TYPE_CHECKING:
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run


def register(app: typer.Typer) -> None:
    app.command("import")(import_files)


def import_files(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|FOLDER...",
            exists=True,
            readable=True,
            help="Traces of Nsight Systems (SQLite, parquetdir, arrowdir, .nsys-rep), PyTorch, Triton's Proton and ONNX Runtime, "
            "reports of ncu, NVBench JSON, kernalyse's own; of a folder that is no trace itself every one in it and below.",
        ),
    ],
    counters: CountersOption = None,
    op_registry: OpRegistryOption = None,
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Read files of results into runs and print their ids. Samples that NVBench's --jsonbin wrote beside a file go with it, and a
    roofline_config.json beside a list of operations.

    Status 1: a file could not be read; the others are imported all the same.
    """
    from services.cli.session import Server, analyzer_session
    from services.cli.terminal import console as make_console

    console = make_console(stderr=True)
    files = [file for path in paths for file in _traces(path)]
    reports = _reports(counters or [], files)
    own_settings = {} if op_registry is None else {"op-registry-folder": str(op_registry.resolve())}
    server_given = Server(server, token, token_file, ca_file, insecure)
    with analyzer_session(server_given, with_profiler=False, own_settings=own_settings) as client:
        done = [_import(client, file, reports, _place(number, len(files)), console) for number, file in enumerate(files)]
    if not all(done):
        raise typer.Exit(1)


def _traces(path: Path) -> list[Path]:
    """The file, the folder that is one trace, or what a reader takes of a folder. Raises UsageError when there is nothing."""
    from services.analyzer.readers.registry import formats
    from services.analyzer.readers.trace_paths import traces_at
    from services.cli.usage import UsageError

    found = traces_at(path)
    if not found:
        raise UsageError(f"folder {path}", found="no file that could be imported", expected=formats())
    return found


def _place(number: int, count: int) -> str:
    return f"{number + 1}/{count} " if count > 1 else ""


def _reports(reports: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """Raises UsageError: one is no report, or there are several traces that they could be of."""
    from services.cli.shown_file import report_files
    from services.cli.usage import UsageError

    if reports and len(files) > 1:
        raise UsageError(
            "option --counters", found=f"{len(files)} files to import", expected="the one trace that it is of", remedy="Import them apart."
        )
    return list(report_files(reports).values())


def _import(client: AnalyzerClient, path: Path, reports: Sequence[Path], place: str, console: Console) -> bool:
    """Sends one file and says what it has become; answers whether it could be read."""
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

    from kernalyse.trace_upload import TraceUpload
    from services.core.errors import InvalidTraceError, LimitReachedError, TimeLimitError, UnmetConditionError

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(f"{place}{path.name}", total=None)

            def advance(sent_bytes: int) -> None:
                progress.advance(task, sent_bytes)
                if progress.finished:  # what follows has no measure
                    progress.update(task, description=f"{place}{path.name}, being read")

            upload = TraceUpload(path, advance, reports)
            progress.update(task, total=upload.size_bytes)
            run, is_known = client.import_trace(upload)
    except (InvalidTraceError, LimitReachedError, TimeLimitError, UnmetConditionError) as error:
        console.print(error.message, markup=False, highlight=False)
        return False
    except OSError as error:
        console.print(f"file {path}: {error.strerror}", markup=False, highlight=False)
        return False
    _say(run, is_known, console)
    return True


def _say(run: Run, is_known: bool, console: Console) -> None:
    is_trace = not run.total_configuration_count
    counts = f"{run.total_configuration_count} configurations, {run.failed_configuration_count} without a measurement"
    known = "; imported before: delete that run to read the file anew" if is_known else ""
    typer.echo(f"{run.run_id} {run.spec.title}: {'trace' if is_trace else counts}{known}")
    if not is_known:
        console.print(run.notes, markup=False, highlight=False, style="dim")
