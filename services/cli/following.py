"""A list of operations that is read again whenever it changes, and whose roofline_config.json takes what is set on the pages."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from services.cli.analyzer_client import AnalyzerClient
from services.cli.registry_run import with_registry
from services.core.errors import KernalyseError, UnavailableError
from services.core.model import Filter, Hardware, HardwareKey, LogLevel, Run, TableQuery, Thresholds
from services.core.roofline_config import FILE_NAME, MEMBERS, config_of

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
