"""`kernalyse export`: a run as a file, for scripts, spreadsheets and NVBench's own tools, or as a document with charts."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from services.cli.documents import (
    AgainstOption,
    AllowOption,
    HtmlOption,
    PdfOption,
    PngOption,
    PptxOption,
    SvgOption,
    write_documents,
)
from services.cli.options import RunArgument, Server, takes_server
from services.cli.table_files import write_tables, write_text

if TYPE_CHECKING:
    from services.analyzer.writers.results import RunResults
    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run


class ExportFormat(StrEnum):
    """Formats of a run's tables."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    NVBENCH = "nvbench"


MORE_TABLES: Final = ("kernels", "counted_roofline", "artifacts")
"""Exported as CSV and Parquet besides those that the results document is made of."""


@takes_server
def export(
    run_id: RunArgument,
    export_format: Annotated[
        ExportFormat,
        typer.Option("--format", "-f", help="JSON is what bench --json writes; CSV and Parquet are a file for each table."),
    ] = ExportFormat.JSON,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, for csv and parquet a folder. NVBench's samples go into folders beside it."),
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
    from services.cli.session import analyzer_session
    from services.core.words.usage import UsageError

    named = {"html": html, "pdf": pdf, "pptx": pptx, "png": png, "svg": svg}
    documents = {name: path for name, path in named.items() if path is not None}
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
        raise UsageError(f"option --format {export_format}", found="no --output", expected="a folder to write", remedy="Add -o FOLDER.")
    with analyzer_session(server, with_profiler=False) as client:
        results = run_results(client, client.run(run_id), MORE_TABLES if is_table else ())
    if export_format is ExportFormat.NVBENCH:
        _write_nvbench(results, output)
    elif export_format is ExportFormat.JSON:
        from services.analyzer.writers.results import results_document

        write_text(results_document(results), output)
    elif output is not None:
        write_tables(results.frames, "csv" if export_format is ExportFormat.CSV else "parquet", output)


def run_results(client: AnalyzerClient, run: Run, more_tables: tuple[str, ...] = ()) -> RunResults:
    """Return the run's tables and devices. more_tables: besides those of the results document."""
    from services.analyzer.writers.results import TABLE_NAMES, RunResults
    from services.core.errors import DeviceNotFoundError

    frames = {name: client.table(name, [run.run_id]) for name in (*TABLE_NAMES, *more_tables)}
    devices = []
    for device_id in dict.fromkeys((run.device_id, *frames["measurements"]["device_id"])):
        if device_id is not None:
            with suppress(DeviceNotFoundError):  # of another tool's results, or a node that an older version has forgotten
                devices.append(client.device(run.node_id, device_id))
    return RunResults(frames, tuple(devices))


def _write_nvbench(results: RunResults, output: Path | None) -> None:
    from services.analyzer.writers.nvbench import nvbench_document

    written = nvbench_document(results, None if output is None else output.name)
    write_text(written.text, output)
    for name, content in written.files.items():
        path = (output or Path()).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for notice in written.notices:
        typer.echo(notice, err=True)
