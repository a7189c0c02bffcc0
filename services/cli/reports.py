"""`kernalyse report`: what a run says, in words and short tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import CaFileOption, InsecureOption, ServerOption, TokenFileOption, TokenOption


class ReportChoice(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run id, the beginning of one, or last.")],
    report_format: Annotated[
        ReportChoice, typer.Option("--format", "-f", help="Markdown is for pull requests and wikis.")
    ] = ReportChoice.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write a report of a run: of a trace its devices, kernels and layers, of a sweep the best, the roofline and what failed."""
    from services.cli.session import Server, analyzer_session

    with analyzer_session(Server(server, token, token_file, ca_file, insecure), with_profiler=False) as client:
        content = client.report(run_id, report_format.value)
    if output is None:
        typer.echo(content.decode(), nl=False)
    else:
        output.write_bytes(content)
