"""The thread that alone writes the journal.

It takes whatever has been asked for since the last commit and commits it together: one sync serves many. A commit that
carries a change of state is synced to disk before anybody hears of it (synchronous=FULL); one of samples and progress is
handed to the system (NORMAL) and survives a crash of the service, though not always one of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import Run
from kernalyse.services.profiler.journal import database
from kernalyse.services.profiler.journal.database import JournalEvent, encode_frame
from kernalyse.v1 import run_pb2

logger = logging.getLogger(__name__)

INDEX_BLOCK_SIZE: Final = 100_000
"""Indexes reserved by one synced write. Smaller syncs more often; larger leaves larger gaps after a crash."""

EXPIRY_CHUNK_COUNT: Final = 2_000
"""Events dropped in one transaction: some milliseconds, so that writes in between hardly wait."""

EXPIRY_INTERVAL_S: Final = 60.0

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_UNIX_NS: Final = 2**63 - 1

MAX_COMMIT_COUNT: Final = 256
"""Requests in one commit, so that the first of a burst does not wait for the last."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Limits of the journal. max_bytes: of the database in use; max_age_s: since a run's end. The oldest finished runs go first."""

    max_bytes: int
    max_age_s: float


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Events of one run; the run as it is after them, where they change it; and the digest of the request, for a new run."""

    run_id: str
    run: Run | None
    events: Sequence[run_pb2.RunEvent] = field(repr=False)
    is_synced: bool
    committed: asyncio.Future[None]
    body_digest: str | None = None


class RunClocks:
    """Times of active runs: those of one run go on evenly from its first, however the host's clock is set meanwhile.

    Args:
        wall_ns: nanoseconds since the epoch; may be set forward and back.
        monotonic_ns: nanoseconds of a clock that nobody sets.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._offsets_ns: dict[str, int] = {}

    def begin(self, run_id: str, earlier_ns: int = 0) -> datetime:
        """Count the times of a run from now on, and return its first.

        Args:
            run_id: of the run.
            earlier_ns: the last time that is known of the run, in nanoseconds since the epoch; its next one is not before it.
        """
        self._offsets_ns[run_id] = max(self._wall_ns(), earlier_ns) - self._monotonic_ns()
        return self.now(run_id)

    def now(self, run_id: str) -> datetime:
        """Return the time of a run, in UTC."""
        return EPOCH + timedelta(microseconds=self.unix_ns(run_id) // 1000)

    def unix_ns(self, run_id: str) -> int:
        """Return the time of a run in nanoseconds since the epoch; of one that has not begun here, the host's."""
        offset_ns = self._offsets_ns.get(run_id)
        return self._wall_ns() if offset_ns is None else offset_ns + self._monotonic_ns()

    def end(self, run_id: str) -> None:
        """Forget a run that has ended."""
        self._offsets_ns.pop(run_id, None)


class JournalWriter(threading.Thread):
    """The thread that commits requests in their order.

    Args:
        path: of the database.
        clocks: times of events.
        publish: called on the event loop with the events of each commit, before its requests are answered.
        forget: called on the event loop with the id of each run that has left the journal.
    """

    def __init__(
        self,
        path: Path,
        limits: JournalLimits,
        clocks: RunClocks,
        *,
        publish: Callable[[Sequence[JournalEvent]], None],
        forget: Callable[[str], None],
    ) -> None:
        super().__init__(name="journal", daemon=True)
        self._path = path
        self._limits = limits
        self._clocks = clocks
        self._publish = publish
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[WriteRequest | None] = queue.SimpleQueue()
        self._connection = database.open_for_writing(path)
        self.head = database.read_head(self._connection)
        self.expired_index = self.head.expired_index
        self._next_index = self.head.reserved_index
        self._reserved_index = self.head.reserved_index
        self._next_expiry_time = time.monotonic()
        self._uncounted_bytes = 0

    def submit(self, request: WriteRequest | None) -> None:
        """Hand a request to the writer. None: finish and close."""
        self._requests.put(request)

    def run(self) -> None:
        """Commit requests and expire old runs until None is submitted."""
        while (requests := self._take()) is not None:
            if requests:
                self._write(requests)
            if self._is_expiry_due():
                self._expire()
        with contextlib.suppress(sqlite3.Error):  # it only saves a gap in the indexes
            self._connection.execute("UPDATE journal SET reserved_index = ?", (self._next_index,))
        self._connection.close()

    def _take(self) -> list[WriteRequest] | None:
        """Wait for requests and return all that are queued; empty when expired runs are due, None when the writer is to finish."""
        requests: list[WriteRequest] = []
        try:
            item = self._requests.get(timeout=max(0.0, self._next_expiry_time - time.monotonic()))
            while item is not None:
                requests.append(item)
                if len(requests) == MAX_COMMIT_COUNT:
                    return requests
                item = self._requests.get_nowait()
        except queue.Empty:
            return requests
        if requests:
            self._requests.put(None)  # these first, then close
            return requests
        return None

    def _write(self, requests: list[WriteRequest]) -> None:
        try:
            events = self._commit(requests)
        except sqlite3.Error as error:
            logger.error("The journal could not be written: %s", error)
            self._call(self._fail, requests, database.storage_error(error, self._path))
        else:
            self._call(self._answer, requests, events)

    def _commit(self, requests: list[WriteRequest]) -> list[JournalEvent]:
        execute = self._connection.execute
        count = sum(len(request.events) for request in requests)
        if self._next_index + count > self._reserved_index:
            self._reserve(count)
        synchronous = "FULL" if any(request.is_synced for request in requests) else "NORMAL"
        execute(f"PRAGMA synchronous = {synchronous}")
        events: list[JournalEvent] = []
        rows: list[tuple[int, str, bytes]] = []
        next_index = self._next_index
        execute("BEGIN IMMEDIATE")
        try:
            for request in requests:
                now_ns = self._clocks.unix_ns(request.run_id)
                for message in request.events:
                    message.event_index = next_index
                    message.journal_id = self.head.journal_id
                    message.run_id = request.run_id
                    message.event_unix_ns = now_ns
                    data = message.SerializeToString()
                    rows.append((next_index, request.run_id, data))
                    events.append(JournalEvent(next_index, request.run_id, encode_frame(data)))
                    next_index += 1
            for request in requests:
                if request.run is not None:
                    self._write_run(request.run, request.body_digest)
            self._connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self._next_index = next_index
        self._uncounted_bytes += sum(len(row[2]) for row in rows)
        return events

    def _write_run(self, run: Run, body_digest: str | None) -> None:
        data = database.encoded_run(run)
        if body_digest is None:
            self._connection.execute(
                "UPDATE runs SET state = ?, end_unix_ns = ?, run = ? WHERE run_id = ?",
                (run.state.value, database.end_unix_ns(run), data, run.run_id),
            )
        else:
            self._connection.execute(
                "INSERT INTO runs (run_id, state, request_id, body_digest, spec, run) VALUES (?, ?, ?, ?, ?, ?)",
                (run.run_id, run.state.value, run.request_id, body_digest, protobuf.encode_bytes(run.spec), data),
            )

    def _reserve(self, count: int) -> None:
        """Reserve event indexes on disk, so that they are never used twice, whatever happens to the commits that use them."""
        reserved_index = self._next_index + max(count, INDEX_BLOCK_SIZE)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("UPDATE journal SET reserved_index = ?", (reserved_index,))
        self._reserved_index = reserved_index

    # ------------------------------------------------------------ expiry

    def _is_expiry_due(self) -> bool:
        return time.monotonic() >= self._next_expiry_time or self._uncounted_bytes > self._limits.max_bytes // 16

    def _expire(self) -> None:
        """Delete one chunk of the expired data; the next call follows at once while there is more."""
        self._uncounted_bytes = 0
        self._next_expiry_time = time.monotonic() + EXPIRY_INTERVAL_S
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            run_id = self._expiring_run() or self._mark_expired_run()
            if run_id is not None:
                self._drop_events(run_id)
                self._next_expiry_time = time.monotonic()
            else:
                self._drop_old_runs()
        except sqlite3.Error as error:
            logger.error("Expired runs could not be dropped from the journal: %s", error)

    def _expiring_run(self) -> str | None:
        """Return a run marked as expired that still has events."""
        row = self._connection.execute(
            "SELECT run_id FROM runs WHERE is_expired AND EXISTS (SELECT 1 FROM events WHERE events.run_id = runs.run_id) LIMIT 1"
        ).fetchone()
        return None if row is None else row[0]

    def _mark_expired_run(self) -> str | None:
        """Mark the oldest finished run when it is over age or the journal over size."""
        # Of a journal over its size any run that has ended, also one whose end lies ahead since the clock was set back.
        oldest_ns = -1 if database.used_bytes(self._connection) <= self._limits.max_bytes else MAX_UNIX_NS
        oldest_ns = max(oldest_ns, self._oldest_end_unix_ns())
        row = self._connection.execute(
            "SELECT run_id, (SELECT max(event_index) FROM events WHERE events.run_id = runs.run_id) FROM runs "
            "WHERE end_unix_ns <= ? AND NOT is_expired ORDER BY end_unix_ns LIMIT 1",
            (oldest_ns,),
        ).fetchone()
        if row is None:
            return None
        run_id, last_index = row
        # Before the events go, so that a reader between two chunks can tell that some are missing.
        self.expired_index = max(self.expired_index, last_index or 0)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE journal SET expired_index = ?", (self.expired_index,))
        self._connection.execute("UPDATE runs SET is_expired = 1 WHERE run_id = ?", (run_id,))
        self._connection.execute("COMMIT")
        logger.info("Run %s leaves the journal, which is over its limit of size or age.", run_id)
        self._call(self._forget, run_id)
        return str(run_id)

    def _drop_events(self, run_id: str) -> None:
        self._connection.execute(
            "DELETE FROM events WHERE event_index IN (SELECT event_index FROM events WHERE run_id = ? LIMIT ?)",
            (run_id, EXPIRY_CHUNK_COUNT),
        )

    def _drop_old_runs(self) -> None:
        """Delete the records of runs over the age limit; runs that expired only to free space keep theirs."""
        self._connection.execute("DELETE FROM runs WHERE is_expired AND end_unix_ns <= ?", (self._oldest_end_unix_ns(),))

    def _oldest_end_unix_ns(self) -> int:
        return time.time_ns() - int(self._limits.max_age_s * 1_000_000_000)

    # ------------------------------------------------------------ back on the event loop

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _answer(self, requests: list[WriteRequest], events: list[JournalEvent]) -> None:
        self._publish(events)
        for request in requests:
            if not request.committed.done():
                request.committed.set_result(None)

    def _fail(self, requests: list[WriteRequest], error: KernalyseError) -> None:
        for request in requests:
            if not request.committed.done():
                request.committed.set_exception(error)
