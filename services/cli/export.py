"""The commands `kernalyse export` and `kernalyse report`, which write runs as files, documents with charts and reports."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kernalyse.services.cli.options import RunArgument, Server, with_server_options
from kernalyse.services.cli.table_files import check_output_path, is_trace_path, write_tables, write_text
from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.report import ReportFormat

if TYPE_CHECKING:
    from kernalyse.services.analyzer.export.results import RunResults
    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import Run


# ---------------------------------------------------------------- documents with charts
# HTML, PDF and PowerPoint files, and directories of PNG and SVG pictures.

PANEL: Final = "With charts, no browser needed"


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, rich_help_panel=PANEL, help=text)


HtmlOption = Annotated[Path | None, _option("--html", "FILE", "One file with interactive charts; needs no network.")]
PdfOption = Annotated[Path | None, _option("--pdf", "FILE", "A report on sheets of A4.")]
PptxOption = Annotated[Path | None, _option("--pptx", "FILE", "PowerPoint, a slide for each chart.")]
PngOption = Annotated[Path | None, _option("--png", "DIR", "A picture of each chart.")]
SvgOption = Annotated[Path | None, _option("--svg", "DIR", "The same as drawings.")]
AgainstOption = Annotated[str | None, _option("--against", "RUN", "Baseline: the document compares both runs.")]
AllowOption = Annotated[str, _option("--allow", "device,…", "With --against, what may differ: device, method, cache, inputs.")]
PICTURES: Final = ("png", "svg")


def write_documents(client: AnalyzerClient, run_id: str, baseline: str, allowed: str, requested: Mapping[str, Path]) -> None:
    """Ask the analyzer for the requested documents and write them.

    Args:
        client: the analyzer.
        run_id: of the run.
        baseline: id of the run to compare with; empty: none.
        allowed: names of allowed differences, separated by commas.
        requested: paths by format: of files, and of directories for pictures.
    """
    differences = [name.strip() for name in allowed.split(",") if name.strip()]
    contents = client.documents(run_id, [*requested], baseline, differences)
    for name, path in requested.items():
        content = contents[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in PICTURES:
            unpack(content, path)
        else:
            path.write_bytes(content)
        typer.echo(f"{name}: {path}", err=True)


def unpack(content: bytes, directory: Path) -> None:
    """Write the files of a zip archive to a directory, without the directories that their names contain."""
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            (directory / Path(entry.filename).name).write_bytes(archive.read(entry))


# ---------------------------------------------------------------- export


class ExportFormat(StrEnum):
    """Formats of a run's tables."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    NVBENCH = "nvbench"


MORE_TABLES: Final = ("kernels", "counted_roofline", "artifacts")
"""Exported as CSV and Parquet in addition to the tables of the results document."""


@with_server_options
def export(
    run_id: RunArgument,
    export_format: Annotated[
        ExportFormat,
        typer.Option("--format", "-f", help="JSON is what bench --json writes; CSV and Parquet are a file for each table."),
    ] = ExportFormat.JSON,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write, for csv and parquet a directory. NVBench's samples go into directories beside it."
        ),
    ] = None,
    html: HtmlOption = None,
    pdf: PdfOption = None,
    pptx: PptxOption = None,
    png: PngOption = None,
    svg: SvgOption = None,
    against: AgainstOption = None,
    allow: AllowOption = "",
    *,
    server: Server,
) -> None:
    """Write a run with all its samples to a file, JSON without -o to standard output; or as documents with charts."""
    from kernalyse.services.cli.session import analyzer_session

    document_paths = {"html": html, "pdf": pdf, "pptx": pptx, "png": png, "svg": svg}
    documents = {name: path for name, path in document_paths.items() if path is not None}
    if documents:
        with analyzer_session(server, with_profiler=False) as client:
            write_documents(client, run_id, against or "", allow, documents)
        if output is None:
            return
    elif against is not None:
        raise UsageError(
            "option --against", found="no document", expected="--html, --pdf, --pptx, --png or --svg", remedy="Add one, or use compare."
        )
    is_table = export_format in (ExportFormat.CSV, ExportFormat.PARQUET)
    if is_table and output is None:
        raise UsageError(
            f"option --format {export_format}", found="no --output", expected="a directory to write", remedy="Add -o DIRECTORY."
        )
    with analyzer_session(server, with_profiler=False) as client:
        results = run_results(client, client.run(run_id), MORE_TABLES if is_table else ())
    if export_format is ExportFormat.NVBENCH:
        _write_nvbench(results, output)
    elif export_format is ExportFormat.JSON:
        from kernalyse.services.analyzer.export.results import results_document

        write_text(results_document(results), output)
    elif output is not None:
        write_tables(results.frames, "csv" if export_format is ExportFormat.CSV else "parquet", output)


def run_results(client: AnalyzerClient, run: Run, more_tables: tuple[str, ...] = ()) -> RunResults:
    """Return the tables and devices of a run. more_tables: tables in addition to those of the results document."""
    from kernalyse.services.analyzer.export.results import TABLE_NAMES, RunResults
    from kernalyse.services.core.errors import DeviceNotFoundError

    frames = {name: client.table(name, [run.run_id]) for name in (*TABLE_NAMES, *more_tables)}
    devices = []
    for device_id in dict.fromkeys((run.device_id, *frames["measurements"]["device_id"])):
        if device_id is not None:
            with suppress(DeviceNotFoundError):  # results of another tool, or of a node that was removed
                devices.append(client.device(run.node_id, device_id))
    return RunResults(frames, tuple(devices))


def _write_nvbench(results: RunResults, output: Path | None) -> None:
    from kernalyse.services.analyzer.export.nvbench import nvbench_document

    written = nvbench_document(results, None if output is None else output.name)
    write_text(written.text, output)
    for name, content in written.files.items():
        path = (output or Path()).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for notice in written.notices:
        typer.echo(notice, err=True)


# ---------------------------------------------------------------- report


@with_server_options
def report(
    run_or_file: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run id, the beginning of one, or last; or a trace or results, file or directory, which is not stored.",
        ),
    ],
    report_format: Annotated[
        ReportFormat,
        typer.Option("--format", "-f", help="Markdown is for pull requests; those with charts need -o, png and svg are a zip."),
    ] = ReportFormat.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=check_output_path, help="File to write.")] = None,
    *,
    server: Server,
) -> None:
    """Write a report of a run or a file: of a trace its devices, kernels and layers, of a sweep the best, the roofline and what failed."""
    if output is None and report_format.is_drawn:
        raise UsageError(f"option --format {report_format}", found="no --output", expected="a file to write", remedy="Add -o FILE.")
    if is_trace_path(run_or_file):
        content = _report_of_file(Path(run_or_file), report_format)
    else:
        content = _report_of_run(run_or_file, report_format, server)
    if output is None:
        typer.echo(content.decode(), nl=False)
    else:
        output.write_bytes(content)


def _report_of_file(path: Path, report_format: ReportFormat) -> bytes:
    from kernalyse.services.cli.file_tables import report_of_file

    return report_of_file(path, report_format.value)


def _report_of_run(text: str, report_format: ReportFormat, server: Server) -> bytes:
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        return client.report(text, report_format.value)
