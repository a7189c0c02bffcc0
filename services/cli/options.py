"""Options that several commands share: which analyzer to talk to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

PANEL: Final = "Which analyzer"


@dataclass(frozen=True, slots=True)
class Server:
    """The analyzer that the command line names. address: None for the one of this machine."""

    address: str | None = None
    token: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    is_insecure_allowed: bool = False


ClientCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--client-certificate-file",
        envvar="KERNALYSE_CLIENT_CERTIFICATE_FILE",
        help="PEM certificate to show to services that ask for one (client_ca_file).",
        rich_help_panel=PANEL,
    ),
]
ClientKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--client-key-file", envvar="KERNALYSE_CLIENT_KEY_FILE", help="PEM key of --client-certificate-file.", rich_help_panel=PANEL
    ),
]


def _server(
    server: Annotated[
        str | None, typer.Option("--server", metavar="ADDRESS", help="Analyzer to use: host:port or unix:PATH.", rich_help_panel=PANEL)
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="KERNALYSE_TOKEN",
            help="Token of --server; other users of this machine can see it here.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="File with the token of --server.", rich_help_panel=PANEL)] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM CA certificate of --server, when it serves TLS.", rich_help_panel=PANEL)
    ] = None,
    client_certificate_file: ClientCertificateOption = None,
    client_key_file: ClientKeyOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the token to another machine without TLS.", rich_help_panel=PANEL)
    ] = False,
) -> Server:
    return Server(server, token, token_file, ca_file, client_certificate_file, client_key_file, insecure)


SERVER_PARAMETERS: Final = inspect.signature(_server, eval_str=True).parameters


def takes_server(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options that name an analyzer, after its own; it gets them as one keyword argument, server."""

    @wraps(command)
    def called(**given: Any) -> None:
        server = _server(**{name: given.pop(name) for name in SERVER_PARAMETERS})
        command(**given, server=server)

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "server"]
    vars(called)["__signature__"] = signature.replace(parameters=[*own, *SERVER_PARAMETERS.values()])  # which typer reads
    return called


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, the beginning of one, or last.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ReadableFormat(StrEnum):
    """Formats for people, for pull requests and for programs."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


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
