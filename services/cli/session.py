"""Connections of commands to an analyzer: a named one, the one of this machine, or one that is started for the command."""

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

# ---------------------------------------------------------------- child processes

PARENT_VARIABLE: Final = "KERNALYSE_PARENT_PROCESS_ID"
PR_SET_PDEATHSIG: Final = 1
LOG_TAIL_LINES: Final = 15
POLL_S: Final = 0.05


def end_with_parent() -> None:
    """Make the operating system send SIGTERM to this process when the parent that started it as a `Child` ends, even by SIGKILL."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the request was in place
        sys.exit(1)


class Child:
    """A service in a child process.

    It has its own process group, so that Ctrl-C reaches the parent alone, which then ends the services in order.

    Args:
        service: profiler, analyzer or ui.
        arguments: flags of the service.
        log_path: file for its output.
        announcement_path: file in which it announces its address.
    """

    def __init__(self, service: str, arguments: Sequence[str], *, log_path: Path, announcement_path: Path) -> None:
        self.service = service
        self.log_path = log_path
        self.arguments = tuple(arguments)  # a later flag wins, so an added one applies from the next start
        self._announcement_path = announcement_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service with its output in the log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # -P: a directory named `services` where the user stands must not hide the package.
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
        """Return the process id, or None before the start."""
        return None if self._process is None else self._process.pid

    def exit_status(self) -> int | None:
        """Return the exit status, negative for the signal that ended it, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def announcement(self) -> Announcement | None:
        """Return the announcement of this process, or None before it serves."""
        found = find_service(self._announcement_path)
        return found if found is not None and found.process_id == self.process_id else None

    def wait_until_serving(self, timeout_s: float) -> Announcement:
        """Wait for the announcement and return it.

        Raises:
            UnavailableError: it ended, or does not serve in time; the error has the end of its log.
        """
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
        """Return the last lines of the log; empty where it cannot be read."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop_children(children: Sequence[Child], *, grace_s: float) -> None:
    """Send SIGTERM to all, SIGKILL to those that still run after grace_s seconds, and return when all have ended."""
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
"""A cold disk and a busy machine delay a start by seconds; after a minute it hangs for good."""

STOP_GRACE_S: Final = 6.0
NODE_TIMEOUT_S: Final = 20.0
START_POLL_S: Final = 0.02
WATCH_S: Final = 0.2  # a user does not notice a delay this short; shorter intervals cost CPU time


def server_endpoint(server: Server) -> Endpoint:
    """Return the endpoint of a server with an address.

    Raises:
        UsageError: there is no token, or it would travel to another machine without TLS.
        InvalidSettingError: a file cannot be read.
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
    return Endpoint(server.address, token, read_optional_file(server.ca_file, "--ca-file"), *_client_pair(server))


def _client_pair(server: Server) -> tuple[bytes | None, bytes | None]:
    """Return the client certificate and its key, each None where no file is named."""
    return (
        read_optional_file(server.client_certificate_file, "--client-certificate-file"),
        read_optional_file(server.client_key_file, "--client-key-file"),
    )


def read_optional_file(path: Path | None, option: str) -> bytes | None:
    """Return the content of the file that an option names, or None where it names none.

    Raises:
        InvalidSettingError: the file cannot be read.
    """
    return None if path is None else read_file(path, f"option {option}")


def _token(server: Server) -> str:
    if server.token is not None:
        return server.token
    if server.token_file is not None:
        return read_token(server.token_file)
    raise UsageError(f"option --server {server.address}", found="no token", expected="--token-file, KERNALYSE_TOKEN or --token")


def read_file(path: Path, subject: str) -> bytes:
    """Return the content of a file.

    Raises:
        InvalidSettingError: it cannot be read; the error is about `subject`.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettingError(subject, found=f"{path}: {error.strerror}", expected="a file", remedy="Correct the path.") from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        InvalidSettingError: the file cannot be read, or is empty.
    """
    token = read_file(path, "token file").decode(errors="replace").strip()
    if not token:
        raise InvalidSettingError(f"token file {path}", found="nothing in it", expected="a token")
    return token


def service_endpoint(announcement: Announcement, server: Server) -> Endpoint:
    """Return the endpoint of a service of this machine, with the client certificate of `server`.

    Raises:
        InvalidSettingError: the token or a certificate cannot be read.
    """
    token = read_token(Path(announcement.token_file))
    if announcement.ca_file is None:
        return Endpoint(announcement.address, token)
    ca_certificate = read_file(Path(announcement.ca_file), "certificate of the running service")
    return Endpoint(announcement.address, token, ca_certificate, *_client_pair(server))


@contextmanager
def analyzer_session(server: Server, *, with_profiler: bool = True) -> Iterator[AnalyzerClient]:
    """Yield a client of the analyzer that `server` names, else of the one of this machine, else of one started for the block.

    Args:
        server: the analyzer to use.
        with_profiler: whether an analyzer that is started here gets a profiler; commands that only use the store need none.
    """
    if server.address is not None:
        with AnalyzerClient(server_endpoint(server)) as client:
            yield client
        return
    running = find_service(AnalyzerSettings.load().announcement_path())
    if running is not None:
        with AnalyzerClient(service_endpoint(running, server)) as client:
            yield client
        return
    with temporary_services(server) if with_profiler else temporary_analyzer(server) as client:
        yield client


@contextmanager
def temporary_analyzer(server: Server) -> Iterator[AnalyzerClient]:
    """Yield a client of an analyzer in a thread of this process, on a Unix socket, with the store of the user.

    A separate process would load most modules a second time, which is half of a short command's time.

    Args:
        server: has the client certificate.
    """
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as directory_name:
        directory = Path(directory_name)
        settings = AnalyzerSettings.load(address=f"unix:{directory / 'analyzer.sock'}", announcement_file=directory / "analyzer.json")
        with _served_in_thread(settings) as announcement, AnalyzerClient(service_endpoint(announcement, server)) as client:
            _remove_vanished_nodes(client)
            yield client


@contextmanager
def _served_in_thread(settings: AnalyzerSettings) -> Iterator[Announcement]:
    """Serve an analyzer in a thread while the block runs. Raises what `serve_until` raises."""
    from kernalyse.services.analyzer.server import serve_until

    logging.getLogger().addHandler(logging.NullHandler())  # keeps log lines of the service out of the output of the command
    stop_requested = asyncio.Event()
    loop: Future[asyncio.AbstractEventLoop] = Future()
    serving: Future[None] = Future()

    async def serve() -> None:
        loop.set_result(asyncio.get_running_loop())
        await serve_until(settings, stop_requested, partial(serving.set_result, None))

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
        assert announcement is not None  # the announcement is written before it serves
        yield announcement
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.result().call_soon_threadsafe(stop_requested.set)
        thread.join()


@contextmanager
def temporary_services(server: Server) -> Iterator[AnalyzerClient]:
    """Run profiler and analyzer on Unix sockets in a private directory, with the store of the user, until the block ends.

    Args:
        server: has the client certificate for both.

    Raises:
        UnavailableError: a service does not start, or ends during the block.
    """
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as directory_name:
        directory = Path(directory_name)
        children = [_own_child("analyzer", directory), _own_child("profiler", directory)]
        try:
            for child in children:
                child.start()
            announcements = {child.service: child.wait_until_serving(START_TIMEOUT_S) for child in children}
            with AnalyzerClient(service_endpoint(announcements["analyzer"], server)) as client:
                _remove_vanished_nodes(client)
                with _fail_when_ended(children, client), _registered_node(client, announcements["profiler"], server):
                    yield client
        finally:
            for child in reversed(children):  # the analyzer last: it collects the last events of the profiler's run
                stop_children((child,), grace_s=STOP_GRACE_S)


@contextmanager
def _fail_when_ended(children: Sequence[Child], client: AnalyzerClient) -> Iterator[None]:
    """End the calls of the client when one of the services ends, which nobody would restart.

    The client gives up then, so every waiting call ends. An exception from a signal handler would be simpler, but one that is raised
    while gRPC starts a thread leaves a channel that never closes.

    Raises:
        UnavailableError: a service ended; the error has the end of its log.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            if _first_ended(children) is not None:
                client.give_up()
                return

    watcher = threading.Thread(target=watch, name="watch own services", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        ended = _first_ended(children)
        if ended is None:
            raise
        child, status = ended
        raise UnavailableError(
            f"service {child.service} of this command",
            found=f"it {describe_exit(status)}\n{child.log_tail()}\n",
            expected="that it runs as long as the command",
            remedy="What was measured so far is kept: kernalyse resume last continues a sweep.",
        ) from error
    finally:
        is_over.set()
        watcher.join()


def _first_ended(children: Sequence[Child]) -> tuple[Child, int] | None:
    """Return the first service that has ended, with its exit status, or None while all run."""
    return next(((child, status) for child in children if (status := child.exit_status()) is not None), None)


def _own_child(service: str, directory: Path) -> Child:
    announcement_path = directory / f"{service}.json"
    settings = {"address": f"unix:{directory / service}.sock", "announcement-file": str(announcement_path)}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    if service == "profiler":
        arguments += ["--drain-s", "0", "--join", "", "--no-tunnel"]  # for this command alone
    return Child(service, arguments, log_path=directory / f"{service}.log", announcement_path=announcement_path)


@contextmanager
def _registered_node(client: AnalyzerClient, profiler: Announcement, server: Server) -> Iterator[None]:
    connect_node(client, service_endpoint(profiler, server))
    try:
        yield
    finally:
        if not client.is_given_up:  # after that the next session removes the node
            with contextlib.suppress(KernalyseError):  # the analyzer may be gone already
                client.remove_node(profiler.address)


def connect_node(client: AnalyzerClient, endpoint: Endpoint) -> None:
    """Register a running profiler with the analyzer, and wait until the analyzer collects from it.

    Raises:
        NodeUnreachableError: the analyzer does not reach it in time.
        KernalyseError: the analyzer rejects the node.
    """
    try:
        client.add_node(endpoint)
    except NodeExistsError:
        return  # it serves: only a node that serves is rejected as known
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


def _remove_vanished_nodes(client: AnalyzerClient) -> None:
    """Remove the profilers of sessions that were killed before they removed them."""
    for node in client.nodes():
        _, is_socket, path = node.address.partition("unix:")
        if is_socket and node.health is not NodeHealth.SERVING and not Path(path).exists():
            client.remove_node(node.address)


# ---------------------------------------------------------------- revision


def checkout_revision(directory: Path) -> Revision | None:
    """Return the commit of the git checkout at a directory, or None outside a checkout, without commits or without git."""
    found = git_revision(directory)
    return None if found is None else Revision(*found)
