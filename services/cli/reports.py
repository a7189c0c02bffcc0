"""`kernalyse report`: what a run says, in words and short tables, or with charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.given_paths import is_trace_path
from services.cli.options import Server, takes_server
from services.cli.table_files import checked_output
from services.core.report import ReportFormat
from services.core.words.usage import UsageError


@takes_server
def report(
    run_or_file: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run id, the beginning of one, or last; or a trace or results, file or folder, which is not stored.",
        ),
    ],
    report_format: Annotated[
        ReportFormat,
        typer.Option("--format", "-f", help="Markdown is for pull requests; those with charts need -o, png and svg are a zip."),
    ] = ReportFormat.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=checked_output, help="File to write.")] = None,
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
    from services.cli.shown_file import report_of_file

    return report_of_file(path, report_format.value)


def _report_of_run(text: str, report_format: ReportFormat, server: Server) -> bytes:
    from services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        return client.report(text, report_format.value)
