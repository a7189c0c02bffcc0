"""The function `connect`, which finds an analyzer and opens a client for it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kernalyse.channel import Endpoint, is_local
from kernalyse.client import Client
from kernalyse.discovery import announcement_path, find_service
from kernalyse.errors import call_error


def connect(
    address: str | None = None,
    token: str | None = None,
    *,
    token_file: Path | None = None,
    ca_certificate: bytes | None = None,
    ca_file: Path | None = None,
    client_certificate_file: Path | None = None,
    client_key_file: Path | None = None,
    insecure: bool = False,
    start: bool = False,
) -> Client:
    """Return a client of an analyzer, which connects at the first call; close it, or use it in a `with` block.

    Args:
        address: "host:port" or "unix:PATH". None: the analyzer that this user has running on this machine.
        token: of that analyzer; None: it is read from `token_file`, or else from KERNALYSE_TOKEN. Not needed without an address.
        token_file: file with the token.
        ca_certificate, ca_file: PEM, or a file with it; without either there is no TLS.
        client_certificate_file, client_key_file: PEM, for an analyzer that requires a client certificate; None: the files that
            KERNALYSE_CLIENT_CERTIFICATE_FILE and KERNALYSE_CLIENT_KEY_FILE name.
        insecure: allow the token to travel to another machine without TLS.
        start: if none runs on this machine, start a profiler and an analyzer with the user's store; they end
            when the client is closed. Needs the extras profiler and analyzer.

    Raises:
        RequestError: no analyzer runs here, or the arguments do not suffice to connect to the one at `address`.
        OSError: a file cannot be read.
    """
    client_certificate_file = client_certificate_file or _file_of("KERNALYSE_CLIENT_CERTIFICATE_FILE")
    client_key_file = client_key_file or _file_of("KERNALYSE_CLIENT_KEY_FILE")
    client_pair = _contents(client_certificate_file), _contents(client_key_file)
    if address is not None:
        endpoint = _endpoint(address, token, token_file, ca_certificate or _contents(ca_file), insecure=insecure)
        return Client(replace(endpoint, client_certificate=client_pair[0], client_key=client_pair[1]))
    running = find_service(announcement_path("analyzer"))
    if running is not None:
        own_token = Path(running.token_file).read_text().strip()
        return Client(
            Endpoint(running.address, own_token, _contents(None if running.ca_file is None else Path(running.ca_file)), *client_pair)
        )
    if start:
        endpoint, stop = _start_services(client_certificate_file, client_key_file)
        return Client(endpoint, on_close=stop)
    raise call_error(
        "analyzer of this machine",
        found="none that runs",
        expected="one",
        remedy="Start it with `kernalyse up`, call connect(start=True), or name one: connect('HOST:7002', token, ca_file=…).",
        code="UNAVAILABLE",
        reason="NO_SERVICE",
    )


def _endpoint(address: str, token: str | None, token_file: Path | None, ca_certificate: bytes | None, *, insecure: bool) -> Endpoint:
    known = token or (token_file.read_text().strip() if token_file is not None else os.environ.get("KERNALYSE_TOKEN"))
    if not known:
        raise call_error(
            f"analyzer {address}",
            found="no token",
            expected="token, token_file or the variable KERNALYSE_TOKEN",
            remedy="It is in ~/.config/kernalyse/token of the user who runs it.",
        )
    if ca_certificate is None and not is_local(address) and not insecure:
        raise call_error(
            f"analyzer {address}",
            found="another machine, without TLS",
            expected="ca_file, so that the token travels encrypted",
            remedy="Give the analyzer a certificate (docs/security.md), or pass insecure=True.",
        )
    return Endpoint(address, known, ca_certificate)


def _file_of(variable: str) -> Path | None:
    named = os.environ.get(variable)
    return Path(named) if named else None


def _contents(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _start_services(client_certificate_file: Path | None, client_key_file: Path | None) -> tuple[Endpoint, Callable[[], None]]:
    """Start services that run until the returned function is called, at the latest until this program ends."""
    from kernalyse.services.cli.options import Server
    from kernalyse.services.cli.session import temporary_services

    stack = ExitStack()
    atexit.register(stack.close)
    server = Server(client_certificate_file=client_certificate_file, client_key_file=client_key_file)
    client = stack.enter_context(temporary_services(server))
    return client.endpoint, stack.close
