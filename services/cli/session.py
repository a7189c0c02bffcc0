"""One way to an analyzer for every command: a named one, the one that runs here, or one of its own for its own length."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from kernalyse.revision import git_revision
from kernalyse.services.cli.analyzer_client import AnalyzerClient
from kernalyse.services.cli.options import Server
from kernalyse.services.core.errors import (
    InvalidSettingError,
    KernalyseError,
    NodeExistsError,
    NodeUnreachableError,
    UnavailableError,
    UsageError,
)
from kernalyse.services.core.model import NodeHealth, Revision
from kernalyse.services.core.rpc import Endpoint, is_local
from kernalyse.services.core.settings import AnalyzerSettings, Announcement, find_service

# ---------------------------------------------------------------- children
# Services as child processes: started, watched, and ended with their parent whatever ends that.

PARENT_VARIABLE: Final = "KERNALYSE_PARENT_PROCESS_ID"
PR_SET_PDEATHSIG: Final = 1
LOG_TAIL_LINES: Final = 15
POLL_S: Final = 0.05


def end_with_parent() -> None:
    """Ask the kernel, in a service that `Child` started, for a SIGTERM when the parent ends, by SIGKILL too."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the request was in place
        sys.exit(1)


class Child:
    """One service in a process of its own.

    It gets its own process group, so that Ctrl-C reaches the parent alone, which then ends the services in order.
    """

    def __init__(self, service: str, arguments: Sequence[str], *, log_path: Path, announcement_path: Path) -> None:
        self.service = service
        self.log_path = log_path
        self.arguments = tuple(arguments)  # a later flag wins: what is added counts from the next start
        self._announcement_path = announcement_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service; its output goes to the log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # -P: a folder named `services` where the user stands must not hide the package.
        command = [sys.executable, "-P", "-m", "kernalyse.services.cli.main", self.service, *self.arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )

    @property
    def process_id(self) -> int | None:
        """Return the id of the process, or None before its start."""
        return None if self._process is None else self._process.pid

    def exit_status(self) -> int | None:
        """Return None while it runs, and a negative number for the signal that ended it."""
        return None if self._process is None else self._process.poll()

    def announcement(self) -> Announcement | None:
        """Return where it serves, once it does."""
        found = find_service(self._announcement_path)
        return found if found is not None and found.process_id == self.process_id else None

    def wait_until_serving(self, timeout_s: float) -> Announcement:
        """Return where it serves. Raise UnavailableError with the end of its log when it ends, or does not serve in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.announcement()
            if found is not None:
                return found
            status = self.exit_status()
            if status is not None:
                raise UnavailableError(f"service {self.service}", found=f"it {describe_exit(status)}\n{self.log_tail()}\n")
            time.sleep(POLL_S)
        raise UnavailableError(
            f"service {self.service}",
            found=f"no answer within {timeout_s:.0f} s\n{self.log_tail()}\n",
            expected="its announcement",
            remedy=f"See {self.log_path}.",
        )

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def log_tail(self) -> str:
        """Return the last lines of the log, or nothing where it cannot be read."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop_children(children: Sequence[Child], *, grace_s: float) -> None:
    """Send TERM to all, KILL to those that still run after the grace, and return when none is left."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(_is_running(child) for child in children):
        time.sleep(POLL_S)
    for child in children:
        child.kill()
    while any(_is_running(child) for child in children):
        time.sleep(POLL_S)


def _is_running(child: Child) -> bool:
    return child.process_id is not None and child.exit_status() is None


def describe_exit(status: int) -> str:
    """Return "ended with status 1", or "was ended by SIGKILL"."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


# ---------------------------------------------------------------- session

START_TIMEOUT_S: Final = 60.0
"""A cold disk and a busy machine can hold a start up for seconds; a minute means that it hangs."""

STOP_GRACE_S: Final = 6.0
NODE_TIMEOUT_S: Final = 20.0
START_POLL_S: Final = 0.02
WATCH_S: Final = 0.2  # later than that nobody notices; more often is for nothing


def named_endpoint(server: Server) -> Endpoint:
    """Return where the server that is named answers; it has an address.

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
            remedy="Give the analyzer a certificate (docs/security.md), or say --insecure.",
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
    """Return what is in a file. Raises InvalidSettingError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettingError(subject, found=f"{path}: {error.strerror}", expected="a file", remedy="Correct the path.") from error


def read_token(path: Path) -> str:
    """Return the token in a file. Raises InvalidSettingError."""
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
    """Yield a client of the analyzer that `server` names, else of the one that runs, else of one that lives as long as the block.

    Args:
        with_profiler: whether one of its own gets a profiler; commands that only use the store do without.
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
    with own_services(server) if with_profiler else own_analyzer(server) as client:
        yield client


@contextmanager
def own_analyzer(server: Server) -> Iterator[AnalyzerClient]:
    """Yield a client of an analyzer in a thread of this process, on a Unix socket, over the store of the user.

    A process of its own would load most of what this one has loaded once more, which is half of a short command's time.

    Args:
        server: its client certificate is shown.
    """
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as folder_name:
        folder = Path(folder_name)
        settings = AnalyzerSettings.load(address=f"unix:{folder / 'analyzer.sock'}", announcement_file=folder / "analyzer.json")
        with _served_in_thread(settings) as announcement, AnalyzerClient(endpoint_of(announcement, server)) as client:
            _forget_vanished_sockets(client)
            yield client


@contextmanager
def _served_in_thread(settings: AnalyzerSettings) -> Iterator[Announcement]:
    """Serve an analyzer while the block runs. Raises what `serve_until` raises."""
    from kernalyse.services.analyzer.server import serve_until

    logging.getLogger().addHandler(logging.NullHandler())  # what a service logs is for who runs it, not for who reads a table
    told_to_stop = asyncio.Event()
    loop: Future[asyncio.AbstractEventLoop] = Future()
    serving: Future[None] = Future()

    async def serve() -> None:
        loop.set_result(asyncio.get_running_loop())
        await serve_until(settings, told_to_stop, partial(serving.set_result, None))

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            if serving.done():
                raise
            serving.set_exception(error)

    thread = threading.Thread(target=run, name="own analyzer", daemon=True)
    thread.start()
    try:
        serving.result()
        announcement = find_service(settings.announcement_path())
        assert announcement is not None  # written before it serves
        yield announcement
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.result().call_soon_threadsafe(told_to_stop.set)
        thread.join()


@contextmanager
def own_services(server: Server) -> Iterator[AnalyzerClient]:
    """Run profiler and analyzer on Unix sockets in a private folder, over the store of the user; both end with the block.

    Args:
        server: its client certificate is shown to both.
    """
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as folder_name:
        folder = Path(folder_name)
        children = [_own_child("analyzer", folder), _own_child("profiler", folder)]
        try:
            for child in children:
                child.start()
            announcements = {child.service: child.wait_until_serving(START_TIMEOUT_S) for child in children}
            with AnalyzerClient(endpoint_of(announcements["analyzer"], server)) as client:
                _forget_vanished_sockets(client)
                with _ended_with(children, client), _added_node(client, announcements["profiler"], server):
                    yield client
        finally:
            for child in reversed(children):  # the analyzer last: it collects how the profiler's run ended
                stop_children((child,), grace_s=STOP_GRACE_S)


@contextmanager
def _ended_with(children: Sequence[Child], client: AnalyzerClient) -> Iterator[None]:
    """End what waits for services of its own when one of them ends: nobody would start it again.

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
    """Return the first that has ended, with its exit status."""
    return next(((child, status) for child in children if (status := child.exit_status()) is not None), None)


def _own_child(service: str, folder: Path) -> Child:
    announcement_path = folder / f"{service}.json"
    settings = {"address": f"unix:{folder / service}.sock", "announcement-file": str(announcement_path)}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    if service == "profiler":
        arguments += ["--drain-s", "0"]
    return Child(service, arguments, log_path=folder / f"{service}.log", announcement_path=announcement_path)


@contextmanager
def _added_node(client: AnalyzerClient, profiler: Announcement, server: Server) -> Iterator[None]:
    connect_node(client, endpoint_of(profiler, server))
    try:
        yield
    finally:
        if not client.is_given_up:  # else the next session forgets the node
            with contextlib.suppress(KernalyseError):  # the analyzer may be gone already
                client.remove_node(profiler.address)


def connect_node(client: AnalyzerClient, endpoint: Endpoint) -> None:
    """Add a running profiler to the analyzer, and wait until it is collected from. Raises what AddNode raises."""
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
        time.sleep(START_POLL_S)


def _forget_vanished_sockets(client: AnalyzerClient) -> None:
    """Remove profilers of sessions that were killed before they could do it."""
    for node in client.nodes():
        _, is_socket, path = node.address.partition("unix:")
        if is_socket and node.health is not NodeHealth.SERVING and not Path(path).exists():
            client.remove_node(node.address)


# ---------------------------------------------------------------- revision
# The git checkout that a run is submitted from.


def revision_of(folder: Path) -> Revision | None:
    """Return the commit of a folder, or None outside a checkout, without commits or without git."""
    found = git_revision(folder)
    return None if found is None else Revision(*found)
