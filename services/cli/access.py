"""The commands `kernalyse tokens` and `kernalyse audit`: who may call a service of this machine, and what was decided about calls."""

from __future__ import annotations

import json
import ssl
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kernalyse.services.cli.options import JsonFlag
from kernalyse.services.core.identity import Entry, Kind, Scope, TokenFile

if TYPE_CHECKING:
    from kernalyse.services.core.settings import GrpcSettings

DAY_S: Final = 86_400.0


class Service(StrEnum):
    """A service that takes calls."""

    ANALYZER = "analyzer"
    PROFILER = "profiler"


ServiceOption = Annotated[Service, typer.Option("--service", help="Of which service of this machine.")]
WhichArgument = Annotated[str, typer.Argument(metavar="ID|NAME", help="Of the token; `kernalyse tokens list` shows both.")]


def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the person or machine that gets it.")],
    scope: Annotated[
        Scope, typer.Option("--scope", help="What it grants: read < measure (the catalogue) < source (own kernels) < command < admin.")
    ] = Scope.READ,
    kind: Annotated[
        Kind, typer.Option("--kind", help="Who gets it; an analyzer calls for others, a dashboard signs people in.")
    ] = Kind.PERSON,
    days: Annotated[float, typer.Option("--days", min=0, help="Until it ends; 0: it never does.")] = 90.0,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="PEM client certificate that is to be let in instead; no token is made.")
    ] = None,
    password: Annotated[
        bool, typer.Option("--password", help="Ask for a password to sign in with at a dashboard instead; no token is made.")
    ] = False,
    service: ServiceOption = Service.ANALYZER,
) -> None:
    """Issue a token and print it, this once: the service keeps its SHA-256."""
    file, lifetime_s = TokenFile(_settings(service).tokens_path()), days * DAY_S or None
    if password:
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        typer.echo(f"Password: {_told(file.set_password(name, scope, given, lifetime_s))}.", err=True)
        return
    if certificate is not None:
        entry = file.admit(name, scope, _der(certificate), kind, lifetime_s)
        typer.echo(f"Certificate {entry.token_id}: {_told(entry)}.", err=True)
        return
    entry, token = file.issue(name, scope, kind, lifetime_s)
    typer.echo(f"Token {entry.token_id}: {_told(entry)}. It is shown only now.", err=True)
    typer.echo(token)


def list_tokens(service: ServiceOption = Service.ANALYZER, json_output: JsonFlag = False) -> None:
    """List the tokens and certificates that were issued, without what they are."""
    entries = TokenFile(_settings(service).tokens_path()).read()
    rows = [_row(entry, time.time()) for entry in entries]
    if json_output:
        typer.echo(json.dumps(rows, indent=2))
    elif not rows:
        typer.echo(f"No token has been issued for the {service}. Issue one: kernalyse tokens issue NAME --scope measure")
    else:
        _print_rows(rows)


def revoke(which: WhichArgument, service: ServiceOption = Service.ANALYZER) -> None:
    """Revoke a token, or all of a name; a running service notices within a second."""
    for entry in TokenFile(_settings(service).tokens_path()).revoke(which):
        typer.echo(f"Revoked {entry.token_id} of {entry.name}.")


def rotate(
    which: WhichArgument,
    grace_hours: Annotated[float, typer.Option("--grace-hours", min=0, help="How long the old one goes on.")] = 0.0,
    service: ServiceOption = Service.ANALYZER,
) -> None:
    """Issue a token in the place of another and print it."""
    entry, token = TokenFile(_settings(service).tokens_path()).rotate(which, grace_hours * 3600)
    typer.echo(f"Token {entry.token_id}: {_told(entry)}. The old one ends {f'in {grace_hours:g} h' if grace_hours else 'now'}.", err=True)
    typer.echo(token)


def audit(
    service: ServiceOption = Service.ANALYZER,
    who: Annotated[str, typer.Option("--who", help="Only of this name.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 50,
    json_output: JsonFlag = False,
) -> None:
    """Show what was decided about calls: who wanted what, on what; the newest last. Reading is not recorded, unless it was refused."""
    path = _settings(service).audit_path()
    wanted = (line for line in _lines(path) if (not who or line["who"] == who) and (not refused or line["decision"] != "allowed"))
    rows = deque(wanted, maxlen=limit)
    if json_output:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
    elif not rows:
        typer.echo(f"Nothing recorded in {path}.")
    else:
        _print_rows(list(rows))


# ---------------------------------------------------------------- help


def _settings(service: Service) -> GrpcSettings:
    from kernalyse.services.core.settings import AnalyzerSettings, ProfilerSettings

    return AnalyzerSettings.load() if service is Service.ANALYZER else ProfilerSettings.load()


def _der(path: Path) -> bytes:
    from kernalyse.services.core.errors import UsageError

    try:
        return ssl.PEM_cert_to_DER_cert(path.read_text().strip())
    except (OSError, ValueError) as error:
        found = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UsageError(f"--certificate {path}", found=found, expected="one PEM certificate", remedy="Correct the path.") from error


def _told(entry: Entry) -> str:
    return f"{entry.kind} {entry.name}, scope {entry.scope}, {f'ends {_day(entry.end_unix_s)}' if entry.end_unix_s else 'without an end'}"


def _row(entry: Entry, now_unix_s: float) -> dict[str, Any]:
    state = "valid" if entry.is_valid(now_unix_s) else "revoked" if entry.revoke_unix_s else "ended"
    return {
        "id": entry.token_id,
        "name": entry.name,
        "kind": str(entry.kind),
        "scope": str(entry.scope),
        "by": str(entry.means),
        "issued": _day(entry.create_unix_s),
        "ends": _day(entry.end_unix_s),
        "state": state,
    }


def _day(unix_s: float | None) -> str:
    return "never" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the decisions of all files that are kept, the oldest first; a line that was cut is left out."""
    rotated = sorted(path.parent.glob(f"{path.name}.*"), key=lambda file: -int(file.suffix[1:]) if file.suffix[1:].isdigit() else 0)
    for file in (*rotated, path):
        if file.is_file():
            for text in file.read_text(errors="replace").splitlines():
                try:
                    yield json.loads(text)
                except ValueError:
                    continue


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from kernalyse.services.cli.output import TerminalTable, console

    headings = [name.replace("_", " ") for name in rows[0]]
    cells = ([str(value) for value in row.values()] for row in rows)
    console().print(TerminalTable(headings, cells, unwrapped=("id", "issued", "ends", "time", "token id")))
