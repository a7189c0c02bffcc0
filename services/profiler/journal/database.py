"""The journal's SQLite schema and reads, and its latest events in memory."""

from __future__ import annotations

import sqlite3
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InternalError, StorageFullError, UnmetConditionError
from kernalyse.services.core.model import CeilingMeasurement, Run, RunSpec
from kernalyse.v1 import run_pb2

# ---------------------------------------------------------------- tables and queries
# A run's spec has a table of its own: it never changes and can be large, while the rest is small and changes with every progress event.
# Both are serialized messages; the other columns are those that queries filter and sort by.

_PAGE_BYTES: Final = 8192
"""Two batches of 500 samples fit; with SQLite's 4096 each such event would waste most of a second page."""

_WAL_BYTES: Final = 16 * 1024 * 1024
"""To which the write-ahead log shrinks again after a burst."""

_RUNS_PAGE_BYTES: Final = 16 * 1024 * 1024
"""Of one answer to ListRuns, whose specs may carry sources."""

_VERSION: Final = 0
"""SQLite's user_version of journals with these tables, those of version 0.1 too. Whoever changes them raises it, and changes older journals
in `open_for_writing`; a lower one lets an earlier kernalyse write to tables that it does not know."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS journal (
    journal_id TEXT NOT NULL,
    reserved_index INTEGER NOT NULL,      -- no event at or above it has ever had an index
    expired_index INTEGER NOT NULL        -- no event above it has ever been dropped
);
CREATE TABLE IF NOT EXISTS runs (
    run_number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    request_id TEXT UNIQUE,
    body_digest TEXT NOT NULL,
    end_unix_ns INTEGER,
    is_expired INTEGER NOT NULL DEFAULT 0,  -- its events have been dropped, or are being dropped
    spec BLOB NOT NULL,
    run BLOB NOT NULL                       -- without spec
);
CREATE TABLE IF NOT EXISTS events (
    event_index INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    event BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_run ON events (run_id);
CREATE INDEX IF NOT EXISTS runs_by_end ON runs (end_unix_ns);
"""

_NO_SPEC: Final = RunSpec(CeilingMeasurement())


@dataclass(frozen=True, slots=True)
class JournalHead:
    """Identity of the journal, and the event indexes up to which it has reserved and expired."""

    journal_id: str
    reserved_index: int
    expired_index: int


@dataclass(frozen=True, slots=True)
class RunsPage:
    """One page of runs. next_run_number: for the page after; None: this is the last."""

    runs: tuple[Run, ...]
    next_run_number: int | None


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the journal, creating it when there is none. Event indexes start at 1: 0 asks for the oldest.

    Raises:
        UnmetConditionError: a newer version has written it.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        connection.close()
        raise UnmetConditionError(
            f"journal {path}",
            found=f"version {version} of its tables, which a newer kernalyse has written",
            expected=f"version {_VERSION} or an older one",
            remedy="Use that version of kernalyse or a newer one on this node until the analyzer has collected its runs; then move the"
            " journal away, and this version begins a new one.",
        )
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_SCHEMA)
    if connection.execute("SELECT count(*) FROM journal").fetchone()[0] == 0:
        connection.execute("INSERT INTO journal VALUES (?, 1, 0)", (uuid.uuid4().hex,))
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the journal for queries alone."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA query_only = 1")
    return connection


def read_head(connection: sqlite3.Connection) -> JournalHead:
    """Read the journal's head."""
    return JournalHead(*connection.execute("SELECT journal_id, reserved_index, expired_index FROM journal").fetchone())


def read_frames(connection: sqlite3.Connection, position: int, run_id: str | None, limit_bytes: int) -> tuple[list[bytes], int, bool]:
    """Return frames from `position` on, the position after them, and whether these were all. At least one, if there is any."""
    where, values = ("", ()) if run_id is None else (" AND run_id = ?", (run_id,))
    rows = connection.execute(
        f"SELECT event_index, event FROM events WHERE event_index >= ?{where} ORDER BY event_index", (position, *values)
    )
    frames: list[bytes] = []
    size_bytes = 0
    for event_index, event in rows:
        frame = encode_frame(event)
        if frames and size_bytes + len(frame) > limit_bytes:
            rows.close()
            return frames, position, False
        frames.append(frame)
        size_bytes += len(frame)
        position = event_index + 1
    return frames, position, True


def read_first_index(connection: sqlite3.Connection, above: int) -> int | None:
    """Return the index of the oldest event above `above`."""
    found: int | None = connection.execute("SELECT min(event_index) FROM events WHERE event_index > ?", (above,)).fetchone()[0]
    return found


def read_run(connection: sqlite3.Connection, run_id: str) -> tuple[Run, bool] | None:
    """Return the run, and whether its events have been dropped."""
    row = connection.execute("SELECT run, spec, is_expired FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return None if row is None else (_decoded(row[0], row[1]), bool(row[2]))


def read_request(connection: sqlite3.Connection, request_id: str) -> tuple[Run, str] | None:
    """Return the run that a request made, and the digest of the request's body."""
    row = connection.execute("SELECT run, spec, body_digest FROM runs WHERE request_id = ?", (request_id,)).fetchone()
    return None if row is None else (_decoded(row[0], row[1]), row[2])


def read_runs(connection: sqlite3.Connection, before_run_number: int | None, limit: int) -> RunsPage:
    """Return runs, newest first, below `before_run_number`; fewer than `limit` when they are large."""
    rows = connection.execute(
        "SELECT run_number, run, spec FROM runs WHERE run_number < ? ORDER BY run_number DESC LIMIT ?",
        (2**62 if before_run_number is None else before_run_number, limit + 1),
    )
    runs: list[Run] = []
    size_bytes = 0
    number = 0
    for number_here, run, spec in rows:
        size_bytes += len(run) + len(spec)
        if len(runs) == limit or (runs and size_bytes > _RUNS_PAGE_BYTES):
            rows.close()
            return RunsPage(tuple(runs), number)
        runs.append(_decoded(run, spec))
        number = number_here
    return RunsPage(tuple(runs), None)


def read_unfinished(connection: sqlite3.Connection) -> list[tuple[Run, int]]:
    """Return queued and running runs, oldest first, each with the time of its last event in Unix ns."""
    last = "(SELECT event FROM events WHERE events.run_id = runs.run_id ORDER BY event_index DESC LIMIT 1)"
    rows = connection.execute(f"SELECT run, spec, {last} FROM runs WHERE state IN ('QUEUED', 'RUNNING') ORDER BY run_number")
    return [(_decoded(run, spec), run_pb2.RunEvent.FromString(event or b"").event_unix_ns) for run, spec, event in rows]


def encoded_run(run: Run) -> bytes:
    """Return the run without its spec."""
    message = protobuf.encode(replace(run, spec=_NO_SPEC))
    message.ClearField("spec")
    data: bytes = message.SerializeToString()
    return data


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages in use."""
    page_bytes, page_count, free_count = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_size", "page_count", "freelist_count")
    )
    return page_bytes * (page_count - free_count)


def end_unix_ns(run: Run) -> int | None:
    """Return the end time of a run in Unix ns; None while it has not ended."""
    return None if run.end_time is None else int(run.end_time.timestamp() * 1_000_000_000)


def storage_error(error: sqlite3.Error, path: Path) -> StorageFullError | InternalError:
    """Return the error that a caller gets for a failed write."""
    primary_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary_code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return StorageFullError(
            f"journal {path}", found=str(error), expected="room to write", remedy="Free space on that disk; the service goes on by itself."
        )
    return InternalError(f"journal {path}", found=str(error), remedy="See the service's log.")


def _decoded(run: bytes, spec: bytes) -> Run:
    message = run_pb2.Run.FromString(run)
    message.spec.MergeFromString(spec)
    return protobuf.decode(message, Run)


# ---------------------------------------------------------------- event tail
# The newest events are cached in memory, so that many watchers do not read the same bytes from the database.

_EVENTS_FIELD_TAG: Final = b"\x0a"
"""Field 1, length-delimited: `events` of the responses of WatchRun and of WatchNode alike."""


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """A committed event. frame: the event as field `events` of a watch response, in wire format."""

    event_index: int
    run_id: str
    frame: bytes = field(repr=False)


def encode_frame(event_data: bytes) -> bytes:
    """Return a serialized RunEvent as element of `events`; frames joined parse as one response."""
    size = len(event_data)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return _EVENTS_FIELD_TAG + length + event_data


class EventTail:
    """The newest events of the journal, cached in memory.

    Args:
        next_event_index: where the journal stands; the window is empty and begins there.
        limit_bytes: above it, the older half leaves.
    """

    def __init__(self, next_event_index: int, limit_bytes: int) -> None:
        self.first_index = next_event_index  # every committed event from here on is in the window
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._indexes: list[int] = []
        self._events: list[JournalEvent] = []

    def extend(self, events: Sequence[JournalEvent]) -> None:
        """Append events, and drop the oldest where the window grows over its limit."""
        self._events += events
        self._indexes += [event.event_index for event in events]
        self._size_bytes += sum(len(event.frame) for event in events)
        if self._size_bytes > self._limit_bytes:
            self._drop_older_half()

    def read(self, position: int, run_id: str | None, limit_bytes: int) -> tuple[list[bytes], int]:
        """Return frames from `position` on, and the position after them. At least one, if there is any."""
        frames: list[bytes] = []
        size_bytes = 0
        for place in range(bisect_left(self._indexes, position), len(self._events)):
            event = self._events[place]
            if run_id is None or event.run_id == run_id:
                if frames and size_bytes + len(event.frame) > limit_bytes:
                    return frames, position
                frames.append(event.frame)
                size_bytes += len(event.frame)
            position = event.event_index + 1
        return frames, position

    def _drop_older_half(self) -> None:
        # Half at a time: dropping one by one would move the whole list for each.
        count = 0
        while count < len(self._events) and self._size_bytes > self._limit_bytes // 2:
            self._size_bytes -= len(self._events[count].frame)
            count += 1
        self.first_index = self._indexes[count - 1] + 1
        del self._events[:count], self._indexes[:count]
