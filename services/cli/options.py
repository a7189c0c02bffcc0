"""Options that several commands share: which analyzer to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ServerOption = Annotated[str | None, typer.Option("--server", metavar="ADDRESS", help="Analyzer to use: host:port or unix:PATH.")]
TokenOption = Annotated[
    str | None, typer.Option("--token", envvar="KERNALYSE_TOKEN", help="Token of --server; other users of this machine can see it here.")
]
TokenFileOption = Annotated[Path | None, typer.Option("--token-file", help="File with the token of --server.")]
CaFileOption = Annotated[Path | None, typer.Option("--ca-file", help="PEM CA certificate of --server, when it serves TLS.")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Send the token to another machine without TLS.")]
