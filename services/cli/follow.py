"""A list of operations that is imported again whenever it changes, and the dashboard that shows it: what `kernalyse follow` runs."""

from __future__ import annotations

import json
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kernalyse.services.cli.analyzer_client import AnalyzerClient
from kernalyse.services.cli.options import Server
from kernalyse.services.cli.session import START_TIMEOUT_S, STOP_GRACE_S, Child, server_endpoint, service_endpoint, stop_children
from kernalyse.services.core.errors import KernalyseError, UnavailableError
from kernalyse.services.core.file_formats import FILE_NAME, MEMBERS, to_roofline_config
from kernalyse.services.core.model import Filter, Hardware, HardwareKey, LogLevel, Run, TableQuery, Thresholds
from kernalyse.services.core.settings import AnalyzerSettings, Announcement, UiSettings, data_directory, find_service
from kernalyse.trace_upload import OutgoingTrace, TraceUpload

# ---------------------------------------------------------------- list of operations
# The list is read again whenever it changes; its roofline_config.json receives what users set on the pages.

REGISTRY_NAME: Final = "op_registry.py"
POLL_S: Final = 0.25
"""Between checks of three files: longer, and the page is still old when one looks up from the editor; shorter costs CPU time."""

RETRY_S: Final = 1.0
SHOWN_PROBLEM_COUNT: Final = 10
"""Shown after each import: thousands of them would push everything else out of the terminal."""

SAME_RATIO: Final = 1e-9
"""Values that differ less are the same: conversion to ratios and back rounds them."""

State = tuple[tuple[int, int] | None, ...]


class OperationListFollower:
    """A list of operations with its roofline_config.json and, where there is one, a registry of operations.

    Args:
        client: the analyzer that imports the list.
        path: the list.
        op_registry_directory: directory of the op_registry.py that computes the cost of operations; None: there is none.
        say: shows one line to the user.

    Attributes:
        run: of the latest import; None: nothing was imported yet.
    """

    def __init__(self, client: AnalyzerClient, path: Path, op_registry_directory: Path | None, say: Callable[[str], None]) -> None:
        self._client = client
        self._path = path.resolve()
        self._config_path = self._path.with_name(FILE_NAME)
        self._op_registry_directory = op_registry_directory
        self._watched = (self._path, self._config_path, *([op_registry_directory / REGISTRY_NAME] if op_registry_directory else []))
        self._say = say
        self._imported: State | None = None
        self._is_edited = threading.Event()
        self.run: Run | None = None

    def read(self) -> Run:
        """Import the list in its present state and return the run.

        Raises:
            KernalyseError: the analyzer refuses the list, or cannot be reached.
            OSError: the file cannot be read.
        """
        state = self._state()
        source_id = f"{socket.gethostname()}:{self._path}"
        with with_registry(OutgoingTrace(self._path), self._op_registry_directory) as trace:
            run, is_known = self._client.import_trace(TraceUpload([trace], lambda _sent_bytes: None, source_id=source_id))
        if self.run is None or not is_known:
            self._say(f"{time.strftime('%H:%M:%S')} {self._path.name} read: {run.total_configuration_count} operations")
            self._say_problems(run)
        self._imported, self.run = state, run
        return run

    def _say_problems(self, run: Run) -> None:
        """Show the reader's warnings, above all why an operation cannot be placed on the roofline."""
        warnings = (Filter("level", LogLevel.WARNING.value),)
        rows, count = self._client.rows(TableQuery("log_lines", (run.run_id,), filters=warnings, limit=SHOWN_PROBLEM_COUNT))
        for line in rows["line"]:
            self._say(f"  {line}")
        if count > rows.height:
            self._say(f"  And {count - rows.height} more: kernalyse show {run.run_id} log_lines --filter level=WARNING")

    def follow(self, is_over: threading.Event) -> None:
        """Import the list whenever it changes, until `is_over` is set. A file that cannot be read is reported; the last import stays."""
        threading.Thread(target=self._listen, args=(is_over,), name="hardware", daemon=True).start()
        seen = self._imported
        while not is_over.is_set():
            state = self._state()
            if state != seen:
                seen = state  # imported only when it stays the same for one more check: an editor may still be writing
            elif state != self._imported:
                self._read_or_say()
            elif self._is_edited.is_set():
                self._is_edited.clear()
                self._write_back()
            self._is_edited.wait(POLL_S) if state == self._imported else time.sleep(POLL_S)

    def _state(self) -> State:
        return tuple(_file_stamp(path) for path in self._watched)

    def _read_or_say(self) -> None:
        state = self._state()
        try:
            self.read()
        except UnavailableError as error:
            self._say(f"The analyzer does not answer, trying again: {error.found}")
            time.sleep(RETRY_S)
        except (KernalyseError, OSError) as error:
            self._imported = state  # a second attempt would fail alike before the file changes
            self._say(f"{error} The page shows what was read before.")

    def _listen(self, is_over: threading.Event) -> None:
        """Note edits of this run's device; each new stream counts as one, because edits may have been missed before it."""
        while not is_over.is_set():
            try:
                for changed in self._client.changed_hardware():
                    run_id = self.run.run_id if self.run is not None else ""
                    if not changed or any(key.run_id == run_id for key in changed):
                        self._is_edited.set()
            except KernalyseError:
                time.sleep(RETRY_S)

    def _write_back(self) -> None:
        run = self.run
        if run is None or run.device_id is None:
            return
        try:
            hardware = self._client.hardware(HardwareKey("", run.device_id, run.run_id))
            before = _members(self._config_path)
            after = merge_config(before, hardware)
            if after != before:
                _write(self._config_path, after)
                self._say(f"{time.strftime('%H:%M:%S')} {FILE_NAME} written: what was set on the page")
        except (KernalyseError, OSError, ValueError) as error:
            self._say(f"{self._config_path} is not written: {error}")


def merge_config(before: Mapping[str, Any], hardware: Hardware) -> dict[str, Any]:
    """Return the members of roofline_config.json with the values that users set; unknown members and equal values stay as they are."""
    new_members = to_roofline_config(hardware) if _has_user_values(hardware) or before else {}
    after = {name: value for name, value in before.items() if name not in MEMBERS or name in new_members}
    for name, value in new_members.items():
        known = before.get(name)
        is_same = isinstance(known, int | float) and math.isclose(known, value, rel_tol=SAME_RATIO)
        if not is_same and (name in before or name not in _defaults(hardware)):
            after[name] = value
    return after


def _has_user_values(hardware: Hardware) -> bool:
    return hardware.thresholds != Thresholds() or any(ceiling.source == "user" for ceiling in hardware.ceilings)


def _defaults(hardware: Hardware) -> set[str]:
    """Return the names of members that have their default value."""
    defaults = to_roofline_config(Hardware(None, (), Thresholds(), ""))
    return {name for name, value in to_roofline_config(hardware).items() if defaults.get(name) == value}


def _members(path: Path) -> dict[str, Any]:
    """Return the members of the file; without a file none.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(document, dict):
        raise ValueError(f"found {type(document).__name__}, expected a JSON object")
    return document


def _write(path: Path, members: Mapping[str, Any]) -> None:
    """Replace the file atomically: readers see the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(members, indent=4) + "\n", encoding="utf-8")
    temporary.replace(path)


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Return modification time in nanoseconds and size in bytes of a file, or None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


# ---------------------------------------------------------------- operation registry
# A user's op_registry.py runs in this process, and its results are uploaded with the list, so that any running analyzer can read it.


@contextmanager
def with_registry(trace: OutgoingTrace, directory: Path | None) -> Iterator[OutgoingTrace]:
    """Yield the trace with the registry's results for its operations as a companion file; unchanged where it is no list of operations.

    Args:
        trace: a file to upload.
        directory: directory of op_registry.py; None: no registry is run.
    """
    results = None if directory is None else _registry_results(trace.path, directory)
    if results is None:
        yield trace
        return
    from kernalyse.services.analyzer.readers.operation_list import ANSWERS_FILE_NAME

    with tempfile.TemporaryDirectory(prefix="kernalyse-registry-") as temporary_directory:
        path = Path(temporary_directory) / ANSWERS_FILE_NAME
        path.write_text(json.dumps(results), encoding="utf-8")
        yield OutgoingTrace(trace.path, (*trace.companions, path))


def _registry_results(path: Path, directory: Path) -> dict[str, object] | None:
    """Return the registry's results, or None for a file that is no list of operations, or one that the analyzer will reject."""
    from kernalyse.services.analyzer.readers.base import TraceFiles
    from kernalyse.services.analyzer.readers.operation_list import CommandsReader, ask_registry, operations_of
    from kernalyse.services.analyzer.readers.registry import HEAD_BYTES
    from kernalyse.services.core.errors import InvalidTraceError

    if not path.is_file():
        return None
    with path.open("rb") as file:
        if not CommandsReader().matches(file.read(HEAD_BYTES)):
            return None
    try:
        operations = operations_of(TraceFiles(path.name, path, 0))
    except InvalidTraceError:
        return None
    return ask_registry(directory, operations).document()


# ---------------------------------------------------------------- dashboard session
# The analyzer and the dashboard that run on this machine; where there are none, they are started for the time of the command.

HOST = "127.0.0.1"
FREE_ADDRESS = f"{HOST}:0"


@contextmanager
def dashboard_session(server: Server, port: int | None) -> Iterator[tuple[AnalyzerClient, Announcement | None]]:
    """Yield a client of the analyzer and the announcement of a dashboard, or None for the dashboard of an analyzer that `server` names.

    Args:
        server: the analyzer to use.
        port: requested port of the dashboard. When it is free, a dashboard is started on it, in addition to one that may run on another
            port. When it is in use, and for 0 or None, the dashboard that runs is used; when none runs, one is started: on a free port,
            or for None on the port of the settings.

    Raises:
        UnavailableError: a service does not start.
    """
    if server.address is not None:
        with AnalyzerClient(server_endpoint(server)) as client:
            yield client, None
        return
    with ExitStack() as started:
        analyzer_announcements = AnalyzerSettings.load().announcement_path()
        analyzer = find_service(analyzer_announcements) or _start_service(
            started, "analyzer", analyzer_announcements, {"address": FREE_ADDRESS}
        )
        ui = _dashboard(started, analyzer, port)
        with AnalyzerClient(service_endpoint(analyzer, server)) as client:
            yield client, ui


def _dashboard(started: ExitStack, analyzer: Announcement, port: int | None) -> Announcement:
    announcements = UiSettings.load().announcement_path()
    running = find_service(announcements)
    uses_port = bool(port) and _is_free(port or 0)
    if running is not None and not uses_port:
        return running
    if running is not None:  # other commands must still find the dashboard that runs
        announcements = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kernalyse-"))) / "ui.json"
    address = {} if port is None else {"address": f"{HOST}:{port if uses_port else 0}"}
    own_announcement = {} if running is None else {"announcement-file": str(announcements)}
    return _start_service(started, "ui", announcements, {"analyzer-address": analyzer.address, **address, **own_announcement})


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was in use a moment ago is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _start_service(started: ExitStack, service: str, announcement_path: Path, settings: Mapping[str, str]) -> Announcement:
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    child = Child(service, arguments, log_path=data_directory() / "logs" / f"{service}.log", announcement_path=announcement_path)
    started.callback(stop_children, (child,), grace_s=STOP_GRACE_S)
    child.start()
    return child.wait_until_serving(START_TIMEOUT_S)
