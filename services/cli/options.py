"""Options that several commands share: which analyzer to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

PANEL: Final = "Which analyzer"

ServerOption = Annotated[
    str | None, typer.Option("--server", metavar="ADDRESS", help="Analyzer to use: host:port or unix:PATH.", rich_help_panel=PANEL)
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="KERNALYSE_TOKEN", help="Token of --server; other users of this machine can see it here.", rich_help_panel=PANEL
    ),
]
TokenFileOption = Annotated[Path | None, typer.Option("--token-file", help="File with the token of --server.", rich_help_panel=PANEL)]
CaFileOption = Annotated[
    Path | None, typer.Option("--ca-file", help="PEM CA certificate of --server, when it serves TLS.", rich_help_panel=PANEL)
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Send the token to another machine without TLS.", rich_help_panel=PANEL)]

CountersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--counters",
        metavar="REPORT",
        exists=True,
        dir_okay=False,
        help="Report of ncu (CSV) of the same program, for the work of the trace's kernels; may be given several times.",
    ),
]
OpRegistryOption = Annotated[
    Path | None,
    typer.Option(
        "--op-registry",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="Folder of an op_registry.py: its get_custom_metrics(cmd, dt_size) tells the work of operations in commands.json. It is run.",
    ),
]
