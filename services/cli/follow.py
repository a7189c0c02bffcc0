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
from kernalyse.services.cli.session import START_TIMEOUT_S, STOP_GRACE_S, Child, endpoint_of, named_endpoint, stop_children
from kernalyse.services.core.errors import KernalyseError, UnavailableError
from kernalyse.services.core.file_formats import FILE_NAME, MEMBERS, config_of
from kernalyse.services.core.model import Filter, Hardware, HardwareKey, LogLevel, Run, TableQuery, Thresholds
from kernalyse.services.core.settings import AnalyzerSettings, Announcement, UiSettings, data_folder, find_service
from kernalyse.trace_upload import OutgoingTrace, TraceUpload

# ---------------------------------------------------------------- following
# A list of operations that is read again whenever it changes, and whose roofline_config.json takes what is set on the pages.

REGISTRY_NAME: Final = "op_registry.py"
POLL_S: Final = 0.25
"""Between looks at three files: seldom enough to cost nothing, often enough that the page is new when one looks up from the editor."""

RETRY_S: Final = 1.0
SHOWN_PROBLEM_COUNT: Final = 10
"""After each reading; a list with thousands of them would push everything else out of the terminal."""

SAME_RATIO: Final = 1e-9
"""Values that differ less went through a division and back."""

State = tuple[tuple[int, int] | None, ...]


class FollowedList:
    """One file with its roofline_config.json and, where there is one, a registry of operations.

    Args:
        op_registry_folder: whose registry tells the work of operations; None: none does.
        say: shows one line to the user.
    """

    def __init__(self, client: AnalyzerClient, path: Path, op_registry_folder: Path | None, say: Callable[[str], None]) -> None:
        self._client = client
        self._path = path.resolve()
        self._config_path = self._path.with_name(FILE_NAME)
        self._op_registry_folder = op_registry_folder
        self._watched = (self._path, self._config_path, *([op_registry_folder / REGISTRY_NAME] if op_registry_folder else []))
        self._say = say
        self._imported: State | None = None
        self._is_edited = threading.Event()
        self.run: Run | None = None

    def read(self) -> Run:
        """Import the list as it is now. Raises KernalyseError, OSError."""
        state = self._state()
        source_id = f"{socket.gethostname()}:{self._path}"
        with with_registry(OutgoingTrace(self._path), self._op_registry_folder) as trace:
            run, is_known = self._client.import_trace(TraceUpload([trace], lambda _sent_bytes: None, source_id=source_id))
        if self.run is None or not is_known:
            self._say(f"{time.strftime('%H:%M:%S')} {self._path.name} read: {run.total_configuration_count} operations")
            self._say_problems(run)
        self._imported, self.run = state, run
        return run

    def _say_problems(self, run: Run) -> None:
        """Say what the reader found wrong, above all why an operation has no place on the roofline."""
        warnings = (Filter("level", LogLevel.WARNING.value),)
        rows, count = self._client.rows(TableQuery("log_lines", (run.run_id,), filters=warnings, limit=SHOWN_PROBLEM_COUNT))
        for line in rows["line"]:
            self._say(f"  {line}")
        if count > rows.height:
            self._say(f"  And {count - rows.height} more: kernalyse show {run.run_id} log_lines --filter level=WARNING")

    def follow(self, is_over: threading.Event) -> None:
        """Follow the list until it is over, or interrupted. A file that cannot be read is reported, and what was read before stays."""
        threading.Thread(target=self._listen, args=(is_over,), name="hardware", daemon=True).start()
        seen = self._imported
        while not is_over.is_set():
            state = self._state()
            if state != seen:
                seen = state  # it is read when it has stayed so: an editor may still be writing
            elif state != self._imported:
                self._read_or_say()
            elif self._is_edited.is_set():
                self._is_edited.clear()
                self._write_back()
            self._is_edited.wait(POLL_S) if state == self._imported else time.sleep(POLL_S)

    def _state(self) -> State:
        return tuple(_stamp(path) for path in self._watched)

    def _read_or_say(self) -> None:
        state = self._state()
        try:
            self.read()
        except UnavailableError as error:
            self._say(f"The analyzer does not answer, trying again: {error.found}")
            time.sleep(RETRY_S)
        except (KernalyseError, OSError) as error:
            self._imported = state  # nothing else would come of it before it changes
            self._say(f"{error} The page shows what was read before.")

    def _listen(self, is_over: threading.Event) -> None:
        """Note edits of this run's device; after a pause of the stream there may have been some."""
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
            after = merged(before, hardware)
            if after != before:
                _write(self._config_path, after)
                self._say(f"{time.strftime('%H:%M:%S')} {FILE_NAME} written: what was set on the page")
        except (KernalyseError, OSError, ValueError) as error:
            self._say(f"{self._config_path} is not written: {error}")


def merged(before: Mapping[str, Any], hardware: Hardware) -> dict[str, Any]:
    """Return members of roofline_config.json with what users set; members of other names, and values that are the same, stay."""
    wanted = config_of(hardware) if _is_set_by_hand(hardware) or before else {}
    after = {name: value for name, value in before.items() if name not in MEMBERS or name in wanted}
    for name, value in wanted.items():
        known = before.get(name)
        is_same = isinstance(known, int | float) and math.isclose(known, value, rel_tol=SAME_RATIO)
        if not is_same and (name in before or name not in _defaults(hardware)):
            after[name] = value
    return after


def _is_set_by_hand(hardware: Hardware) -> bool:
    return hardware.thresholds != Thresholds() or any(ceiling.source == "user" for ceiling in hardware.ceilings)


def _defaults(hardware: Hardware) -> set[str]:
    """Return the names of thresholds that have their default."""
    plain = config_of(Hardware(None, (), Thresholds(), ""))
    return {name for name, value in config_of(hardware).items() if plain.get(name) == value}


def _members(path: Path) -> dict[str, Any]:
    """Return what the file has. Raises OSError, and ValueError when it is no JSON object."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(document, dict):
        raise ValueError(f"found {type(document).__name__}, expected a JSON object")
    return document


def _write(path: Path, members: Mapping[str, Any]) -> None:
    """Write the file so that the old one or the new one is there at every moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(members, indent=4) + "\n", encoding="utf-8")
    temporary.replace(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return time and size of a file, or None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


# ---------------------------------------------------------------- registry run
# A user's op_registry.py, run here: its answers travel with the list, so an analyzer that runs already can read it.


@contextmanager
def with_registry(trace: OutgoingTrace, folder: Path | None) -> Iterator[OutgoingTrace]:
    """Yield the trace with the answers of the folder's registry to its operations; as it is where it is no list of operations.

    Args:
        folder: of op_registry.py; None: none is run.
    """
    answers = None if folder is None else _answers(trace.path, folder)
    if answers is None:
        yield trace
        return
    from kernalyse.services.analyzer.readers.operation_list import ANSWERS_FILE_NAME

    with tempfile.TemporaryDirectory(prefix="kernalyse-registry-") as own_folder:
        path = Path(own_folder) / ANSWERS_FILE_NAME
        path.write_text(json.dumps(answers), encoding="utf-8")
        yield OutgoingTrace(trace.path, (*trace.companions, path))


def _answers(path: Path, folder: Path) -> dict[str, object] | None:
    """Return the registry's answers, or None for what is no list of operations, or one that the analyzer refuses with a reason."""
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
    return ask_registry(folder, operations).document()


# ---------------------------------------------------------------- dashboard session
# An analyzer with a dashboard: those that run on this machine, or ones of a command's own for its own length.

HOST = "127.0.0.1"
FREE_ADDRESS = f"{HOST}:0"


@contextmanager
def dashboard_session(server: Server, port: int | None) -> Iterator[tuple[AnalyzerClient, Announcement | None]]:
    """Yield a client, and where the dashboard is served; None: only who runs that analyzer knows.

    Args:
        port: that the dashboard is wanted on. Where it is free and no dashboard is there, one is started on it, beside one that runs
            elsewhere too. Where something else is there, and with 0 or None, the dashboard that runs is taken; without any one is
            started on a free port, or with None as the settings say.

    Raises:
        UnavailableError: a service does not start.
    """
    if server.address is not None:
        with AnalyzerClient(named_endpoint(server)) as client:
            yield client, None
        return
    with ExitStack() as started:
        analyzer_announcements = AnalyzerSettings.load().announcement_path()
        analyzer = find_service(analyzer_announcements) or _started(started, "analyzer", analyzer_announcements, {"address": FREE_ADDRESS})
        ui = _dashboard(started, analyzer, port)
        with AnalyzerClient(endpoint_of(analyzer, server)) as client:
            yield client, ui


def _dashboard(started: ExitStack, analyzer: Announcement, port: int | None) -> Announcement:
    announcements = UiSettings.load().announcement_path()
    running = find_service(announcements)
    is_wanted = bool(port) and _is_free(port or 0)
    if running is not None and not is_wanted:
        return running
    if running is not None:  # other commands go on finding that one
        announcements = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kernalyse-"))) / "ui.json"
    address = {} if port is None else {"address": f"{HOST}:{port if is_wanted else 0}"}
    own_announcement = {} if running is None else {"announcement-file": str(announcements)}
    return _started(started, "ui", announcements, {"analyzer-address": analyzer.address, **address, **own_announcement})


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was served a moment ago is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _started(started: ExitStack, service: str, announcement_path: Path, settings: Mapping[str, str]) -> Announcement:
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    child = Child(service, arguments, log_path=data_folder() / "logs" / f"{service}.log", announcement_path=announcement_path)
    started.callback(stop_children, (child,), grace_s=STOP_GRACE_S)
    child.start()
    return child.wait_until_serving(START_TIMEOUT_S)
