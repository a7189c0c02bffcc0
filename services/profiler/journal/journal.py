"""The journal of this node: events are on disk before anyone sees them.

Events are numbered through the whole journal. A watcher holds a cursor and reads at its own pace, from the memory of recent
events or from the database; nothing is pushed, so a watcher that stalls costs nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from kernalyse.services.core.errors import EventExpiredError, RunNotFoundError, StorageFullError, StoreLockedError
from kernalyse.services.core.model import Run
from kernalyse.services.profiler.journal import database
from kernalyse.services.profiler.journal.database import EventTail, JournalEvent
from kernalyse.services.profiler.journal.writer import JournalLimits, JournalWriter, RunClocks, WriteRequest
from kernalyse.v1 import run_pb2

P = ParamSpec("P")
T = TypeVar("T")

TAIL_BYTES: Final = 4 * 1024 * 1024
"""Recent events kept in memory: half a second of a million samples a second, seconds of anything usual."""

MIN_FREE_BYTES: Final = 4 * 1024 * 1024
"""Below this much free space a new run could not even record that it failed."""

_READER_COUNT: Final = 2


class ChangeNotifier:
    """A change notification. Those it wakes look up for themselves what has changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake everybody who waits."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def next(self) -> asyncio.Event:
        """Return an event that is set at the next change. Fetch it before looking, so that no change is missed."""
        return self._changed


class Cursor:
    """A watcher's place in the journal."""

    def __init__(self, position: int, run_id: str | None, expired_index: int) -> None:
        self.position = position  # the next index to read
        self.run_id = run_id
        self.expired_index = expired_index  # of what had been dropped when the watcher began


class Journal:
    """The journal of one node: `open` it, and `close` it at the end. clocks: tell the times of runs and their events."""

    def __init__(
        self, directory: Path, limits: JournalLimits, news: ChangeNotifier, forget: Callable[[str], None], clocks: RunClocks
    ) -> None:
        self._path = directory / "journal.sqlite"
        self._lock_file = _locked(directory / "journal.lock")
        self.clocks = clocks
        self._writer = JournalWriter(self._path, limits, clocks, publish=self._publish, forget=forget)
        self._tail = EventTail(self._writer.head.reserved_index, TAIL_BYTES)
        self._news = news
        self.problem = ""  # why the last write failed; empty: it did not
        self._idle_readers = [database.open_for_reading(self._path) for _ in range(_READER_COUNT)]
        self._reading = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="journal-reader")

    @classmethod
    async def open(
        cls,
        directory: Path,
        limits: JournalLimits,
        news: ChangeNotifier,
        forget: Callable[[str], None],
        clocks: RunClocks | None = None,
    ) -> Self:
        """Open the journal in `directory`, which is made where it is missing.

        Args:
            news: notified of every commit.
            forget: called with the id of each run that leaves the journal.
            clocks: None: this host's.

        Raises:
            StoreLockedError: another service has it open.
            StorageFullError: there is no room to open it.
            UnmetConditionError: a newer version has written it.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            journal = cls(directory, limits, news, forget, clocks or RunClocks())
        except sqlite3.Error as error:
            raise database.storage_error(error, directory) from error
        journal._writer.start()
        return journal

    async def close(self) -> None:
        """Commit everything submitted; then close the file."""
        self._writer.submit(None)
        await asyncio.to_thread(self._writer.join)
        self._reading.shutdown()
        for connection in self._idle_readers:
            connection.close()
        os.close(self._lock_file)

    @property
    def journal_id(self) -> str:
        """Return the id of this journal, which changes only when its file is made anew."""
        return self._writer.head.journal_id

    # ------------------------------------------------------------ writing

    async def create(self, run: Run, body_digest: str, events: Sequence[run_pb2.RunEvent]) -> None:
        """Add a run with its first events, synced. Raises StorageFullError."""
        await self._submit(run.run_id, run, events, is_synced=True, body_digest=body_digest)

    async def append(self, run_id: str, events: Sequence[run_pb2.RunEvent], run: Run | None = None, *, is_synced: bool = False) -> None:
        """Add events of a run with the state that the run has after them; return once they are committed.

        Takes the messages over and stamps them. run: None where they do not change it.
        Raises StorageFullError: none of them is in the journal.
        """
        await self._submit(run_id, run, events, is_synced=is_synced, body_digest=None)

    async def _submit(
        self, run_id: str, run: Run | None, events: Sequence[run_pb2.RunEvent], *, is_synced: bool, body_digest: str | None
    ) -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.submit(WriteRequest(run_id, run, events, is_synced, committed, body_digest))
        try:
            await committed
        except StorageFullError as error:
            self._report_problem(error.message)
            raise
        self._report_problem("")

    def check_space(self) -> None:
        """Raise StorageFullError when the last write failed, or so little space is left that the next ones will."""
        free_bytes = shutil.disk_usage(self._path.parent).free
        if self.problem or free_bytes < MIN_FREE_BYTES:
            raise StorageFullError(
                f"journal {self._path}",
                found=f"{free_bytes} bytes free",
                expected=f"at least {MIN_FREE_BYTES}",
                remedy="Free space on that disk; the service goes on by itself.",
            )

    def _report_problem(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._news.notify()

    def _publish(self, events: Sequence[JournalEvent]) -> None:
        self._tail.extend(events)
        self._news.notify()

    # ------------------------------------------------------------ watching

    async def cursor(self, next_event_index: int, run_id: str | None = None) -> Cursor:
        """Return a cursor at an index, 0 for the oldest stored one, over one run's events or, without `run_id`, over all.

        Raises:
            RunNotFoundError: there is no such run.
            EventExpiredError: events from there on have been dropped.
        """
        if run_id is not None and (await self.run(run_id))[1]:
            raise await self._expired(f"events of run {run_id}")
        if run_id is None and 0 < next_event_index <= self._writer.expired_index:
            raise await self._expired(f"event {next_event_index}")
        return Cursor(next_event_index, run_id, self._writer.expired_index)

    async def read(self, cursor: Cursor, limit_bytes: int) -> bytes:
        """Return the next events, as frames of a watch response; empty when there is none yet. Moves the cursor.

        Raises:
            EventExpiredError: the watcher was so slow that its next events have been dropped meanwhile.
        """
        first_index = self._tail.first_index
        if cursor.position >= first_index:
            frames, cursor.position = self._tail.read(cursor.position, cursor.run_id, limit_bytes)
            return b"".join(frames)
        frames, next_position, is_complete = await self._query(database.read_frames, cursor.position, cursor.run_id, limit_bytes)
        if cursor.position <= self._writer.expired_index > cursor.expired_index and await self._is_missing_events(cursor):
            raise await self._expired(f"event {cursor.position}")
        # Read to its end, the database has nothing more below what was the tail's start before; what came later, the tail has.
        cursor.position = max(first_index, next_position) if is_complete else next_position
        return b"".join(frames)

    async def _is_missing_events(self, cursor: Cursor) -> bool:
        return cursor.run_id is None or (await self.run(cursor.run_id))[1]

    async def _expired(self, subject: str) -> EventExpiredError:
        oldest = await self._query(database.read_first_index, self._writer.expired_index)
        return EventExpiredError(
            subject,
            found="dropped, as the journal is limited in size and age",
            expected=str(self._tail.first_index if oldest is None else oldest),
            remedy="Watch from that index, the oldest after which nothing is missing, or from 0 for all that is left.",
        )

    # ------------------------------------------------------------ runs

    async def run(self, run_id: str) -> tuple[Run, bool]:
        """Return the run as journalled, and whether its events have been dropped. Raises RunNotFoundError."""
        found = await self._query(database.read_run, run_id)
        if found is None:
            raise RunNotFoundError(
                f"run {run_id}", found="no such run on this node", expected="the id of a run", remedy="ListRuns names them."
            )
        return found

    async def request(self, request_id: str) -> tuple[Run, str] | None:
        """Return the run that a request made, and the digest of that request's body."""
        return await self._query(database.read_request, request_id)

    async def runs(self, before_run_number: int | None, limit: int) -> database.RunsPage:
        """Return one page of runs, newest first, below `before_run_number`."""
        return await self._query(database.read_runs, before_run_number, limit)

    async def unfinished(self) -> list[tuple[Run, int]]:
        """Return queued and running runs, oldest first, each with the time of its last event in Unix ns."""
        return await self._query(database.read_unfinished)

    async def _query(self, function: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        def query() -> T:
            connection = self._idle_readers.pop()  # there are as many as threads
            try:
                return function(connection, *arguments, **named)
            finally:
                self._idle_readers.append(connection)

        return await asyncio.get_running_loop().run_in_executor(self._reading, query)


def _locked(path: Path) -> int:
    lock_file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock_file)
        raise StoreLockedError(
            f"journal in {path.parent}",
            found="another profiler service at it",
            expected="one service a directory",
            remedy="Stop the other one, or set another data directory.",
        ) from error
    return lock_file
