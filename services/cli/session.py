"""One way to an analyzer for every command: a named one, the one that runs here, or one of its own for its own length."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.cli.analyzer_client import AnalyzerClient
from services.cli.children import Child, describe_exit, stop_children
from services.cli.options import Server
from services.core.discovery import Announcement, find_service
from services.core.errors import InvalidSettingError, KernalyseError, NodeExistsError, NodeUnreachableError, UnavailableError
from services.core.model import NodeHealth
from services.core.rpc import Endpoint, is_local
from services.core.settings import AnalyzerSettings
from services.core.words.usage import UsageError

START_TIMEOUT_S: Final = 60.0
"""A cold disk and a busy machine can hold a start up for seconds; a minute means that it hangs."""

STOP_GRACE_S: Final = 6.0
NODE_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.02
WATCH_S: Final = 0.2  # later than that nobody notices; more often is for nothing


def named_endpoint(server: Server) -> Endpoint:
    """Where the server that is named answers; it has an address.

    Raises:
        UsageError: without a token.
        InvalidSettingError: for an unreadable file or a token that would travel in the clear.
    """
    assert server.address is not None
    if server.ca_file is None and not is_local(server.address) and not server.is_insecure_allowed:
        raise UsageError(
            f"option --server {server.address}",
            found="another machine, without TLS",
            expected="--ca-file, so that the token travels encrypted",
            remedy="Give the analyzer a certificate (README, Security), or say --insecure.",
        )
    token = _token(server)
    return Endpoint(server.address, token, contents(server.ca_file, "--ca-file"), *_client_pair(server))


def _client_pair(server: Server) -> tuple[bytes | None, bytes | None]:
    """Return the client certificate and its key. Raises InvalidSettingError."""
    return (
        contents(server.client_certificate_file, "--client-certificate-file"),
        contents(server.client_key_file, "--client-key-file"),
    )


def contents(path: Path | None, option: str) -> bytes | None:
    """Return what is in the file that an option names, if it names one. Raises InvalidSettingError."""
    return None if path is None else read_file(path, f"option {option}")


def _token(server: Server) -> str:
    if server.token is not None:
        return server.token
    if server.token_file is not None:
        return read_token(server.token_file)
    raise UsageError(f"option --server {server.address}", found="no token", expected="--token-file, KERNALYSE_TOKEN or --token")


def read_file(path: Path, subject: str) -> bytes:
    """Raises InvalidSettingError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettingError(subject, found=f"{path}: {error.strerror}", expected="a file", remedy="Correct the path.") from error


def read_token(path: Path) -> str:
    """Raises InvalidSettingError."""
    token = read_file(path, "token file").decode(errors="replace").strip()
    if not token:
        raise InvalidSettingError(f"token file {path}", found="nothing in it", expected="a token")
    return token


def endpoint_of(announcement: Announcement, server: Server) -> Endpoint:
    """Return where a service of this machine answers, with the client certificate of `server`. Raises InvalidSettingError."""
    token = read_token(Path(announcement.token_file))
    if announcement.ca_file is None:
        return Endpoint(announcement.address, token)
    ca_certificate = read_file(Path(announcement.ca_file), "certificate of the running service")
    return Endpoint(announcement.address, token, ca_certificate, *_client_pair(server))


@contextmanager
def analyzer_session(server: Server, *, with_profiler: bool = True) -> Iterator[AnalyzerClient]:
    """A client of the analyzer that `server` names, else of the one that runs, else of one that lives as long as the block.

    Args:
        with_profiler: whether one of its own gets a profiler; commands that only read do without.
    """
    if server.address is not None:
        with AnalyzerClient(named_endpoint(server)) as client:
            yield client
        return
    running = find_service(AnalyzerSettings.load().announcement_path())
    if running is not None:
        with AnalyzerClient(endpoint_of(running, server)) as client:
            yield client
        return
    with own_services(server, with_profiler=with_profiler) as client:
        yield client


@contextmanager
def own_services(server: Server, *, with_profiler: bool) -> Iterator[AnalyzerClient]:
    """Profiler and analyzer on Unix sockets in a private folder, over the store of the user; both end with the block.

    Args:
        server: its client certificate is shown to both.
    """
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as folder_name:
        folder = Path(folder_name)
        children = [_own_child("analyzer", folder)]
        if with_profiler:
            children.append(_own_child("profiler", folder))
        try:
            for child in children:
                child.start()
            announcements = {child.service: child.wait_until_serving(START_TIMEOUT_S) for child in children}
            with AnalyzerClient(endpoint_of(announcements["analyzer"], server)) as client:
                _forget_vanished_sockets(client)
                with _ended_with(children, client), _added_node(client, announcements.get("profiler"), server):
                    yield client
        finally:
            for child in reversed(children):  # the analyzer last: it collects how the profiler's run ended
                stop_children((child,), grace_s=STOP_GRACE_S)


@contextmanager
def _ended_with(children: Sequence[Child], client: AnalyzerClient) -> Iterator[None]:
    """What waits for services of its own ends when one of them does: nobody would start it again.

    The client gives up then, so whatever the command waits for ends. An exception out of a signal handler would be simpler, but
    one that comes while gRPC starts a thread leaves a channel that never closes.

    Raises:
        UnavailableError: one has ended, with the end of its log.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            if _ended_among(children) is not None:
                client.give_up()
                return

    watcher = threading.Thread(target=watch, name="watch own services", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        ended = _ended_among(children)
        if ended is None:
            raise
        child, status = ended
        raise UnavailableError(
            f"service {child.service} of this command",
            found=f"it {describe_exit(status)}\n{child.log_tail()}\n",
            expected="that it runs as long as the command",
            remedy="What was measured so far is kept: kernalyse resume last goes on with a sweep.",
        ) from error
    finally:
        is_over.set()
        watcher.join()


def _ended_among(children: Sequence[Child]) -> tuple[Child, int] | None:
    """With its exit status."""
    return next(((child, status) for child in children if (status := child.exit_status()) is not None), None)


def _own_child(service: str, folder: Path) -> Child:
    announcement_path = folder / f"{service}.json"
    settings = {"address": f"unix:{folder / service}.sock", "announcement-file": str(announcement_path)}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    if service == "profiler":
        arguments += ["--drain-s", "0"]
    return Child(service, arguments, log_path=folder / f"{service}.log", announcement_path=announcement_path)


@contextmanager
def _added_node(client: AnalyzerClient, profiler: Announcement | None, server: Server) -> Iterator[None]:
    if profiler is None:
        yield
        return
    connect_node(client, endpoint_of(profiler, server))
    try:
        yield
    finally:
        if not client.is_given_up:  # else the next session forgets the node
            with contextlib.suppress(KernalyseError):  # the analyzer may be gone already
                client.remove_node(profiler.address)


def connect_node(client: AnalyzerClient, endpoint: Endpoint) -> None:
    """Adds a running profiler to the analyzer, and waits until it is collected from. Raises what AddNode raises."""
    try:
        client.add_node(endpoint)
    except NodeExistsError:
        return  # it serves: only then is a node refused as known
    deadline = time.monotonic() + NODE_TIMEOUT_S
    while True:
        status = next((node for node in client.nodes() if node.address == endpoint.address), None)
        if status is not None and status.health is NodeHealth.SERVING:
            return
        if time.monotonic() > deadline:
            raise NodeUnreachableError(
                f"node {endpoint.address}",
                found="no answer" if status is None else status.problem or "no answer",
                expected=f"an answer within {NODE_TIMEOUT_S:.0f} s",
            )
        time.sleep(POLL_S)


def _forget_vanished_sockets(client: AnalyzerClient) -> None:
    """Removes profilers of sessions that were killed before they could do it."""
    for node in client.nodes():
        _, is_socket, path = node.address.partition("unix:")
        if is_socket and node.health is not NodeHealth.SERVING and not Path(path).exists():
            client.remove_node(node.address)
