"""Local directories of runs as a cache of the objects: fetched when they are asked for, dropped when they take too much room."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from kernalyse.services.analyzer.store.objects import DIGESTS, ObjectStore
from kernalyse.services.core.errors import ObjectsUnavailableError, StorageFullError

FETCHES_AT_ONCE: Final = 4
IN_USE_S: Final = 600.0
"""For which a directory stays after it was asked for: a query opens files when it comes to them. Shorter, and they may be gone by then."""

ORPHAN_AGE_S: Final = 86_400.0
"""From which on objects that no row names are deleted: younger ones may be an upload of another process, which names them at its end."""

FETCHING: Final = ".fetching-"
DROPPED: Final = ".dropped-"
TOKEN_BYTES: Final = 4

logger = logging.getLogger(__name__)


class ObjectCache:
    """The local directories of one store, whose objects are the files themselves. It may be used from any thread.

    Args:
        max_bytes: of all local directories. They take more only while what they have is in use, or not in the objects yet.
        now: returns seconds of a clock that never goes back.
    """

    def __init__(self, objects: ObjectStore, max_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._objects, self._max_bytes, self._now = objects, max_bytes, now
        self._lock = threading.Lock()  # of all below
        self._pool = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="fetch objects")
        self._file_names: dict[Path, frozenset[str]] = {}  # of the directories that the objects have completely
        self._size_bytes: dict[Path, int] = {}  # of the local directories
        self._used: dict[Path, float] = {}
        self._fetching: dict[Path, Future[None]] = {}
        self._undeleted: set[Path] = set()  # directories whose objects are still to be deleted
        self._put_unix_s: dict[Path, dict[Path, float]] = {}  # by root: what the survey has found and `catch_up` has not seen yet
        self._survey_lock = threading.Lock()
        self._caught_up: set[Path] = set()  # roots

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._objects.close()

    # ------------------------------------------------------------ reading

    def has_file(self, directory: Path, name: str) -> bool:
        """Return whether a directory has a file, here or in the objects. Raises ObjectsUnavailableError."""
        with self._lock:
            found = self._file_names.get(directory)
        if found is None and directory.is_dir():
            is_there = (directory / name).exists()
            if is_there or directory.is_dir():  # else it was dropped between the two
                return is_there
        if found is None:
            self._survey(directory.parent)
            with self._lock:
                found = self._file_names.get(directory)
        if found is None:  # put by another process since
            found = self._objects.file_names(directory)
            if DIGESTS not in found:
                return True  # not complete: `provide` says what is missing
            with self._lock:
                self._file_names[directory] = found
        return name in found

    def provide(self, directories: Iterable[Path]) -> None:
        """Fetch those of the directories that are not local; several at once, each by one thread however many ask for it.

        Raises:
            ObjectsUnavailableError: the objects cannot be reached.
            StoredRunDamagedError: a file is not as it was put.
            StorageFullError: there is no room.
        """
        waiting = []
        with self._lock:
            for directory in directories:
                self._used[directory] = self._now()
                if not directory.is_dir():
                    if directory not in self._fetching:
                        self._fetching[directory] = self._pool.submit(self._fetch, directory)
                    waiting.append(self._fetching[directory])
        for future in waiting:
            future.result()

    def _fetch(self, directory: Path) -> None:
        # Of its own for each attempt: a thread of one that failed may still write.
        part = directory.with_name(f"{FETCHING}{directory.name}-{secrets.token_hex(TOKEN_BYTES)}")
        try:
            part.mkdir()
            size_bytes = self._objects.fetch_directory(directory, part)
            file_names = frozenset(path.name for path in part.iterdir())
            with self._lock:
                part.rename(directory)
                self._size_bytes[directory], self._file_names[directory] = size_bytes, file_names
        except OSError as error:
            raise StorageFullError(
                f"directory {directory.parent}", found=str(error), expected="room for files from the objects", remedy="Free space there."
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
            with self._lock:
                self._fetching.pop(directory, None)
        self._shrink()

    # ------------------------------------------------------------ writing

    def check(self) -> None:
        """Raise ObjectsUnavailableError where the objects could not be reached a moment ago, without asking them again."""
        self._objects.check()

    def put(self, directory: Path) -> None:
        """Put a local directory into the objects. Raises ObjectsUnavailableError."""
        self._objects.put_directory(directory)
        with self._lock:
            self._file_names[directory] = frozenset(path.name for path in directory.iterdir() if path.is_file())
            self._used[directory] = self._now()
        self.measure(directory)

    def measure(self, directory: Path) -> None:
        """Count what a local directory takes, after something was written to it, and make room."""
        size_bytes = directory_bytes(directory)
        with self._lock:
            if directory.is_dir():  # else it has been deleted meanwhile
                self._size_bytes[directory] = size_bytes
        self._shrink()

    def forget(self, directory: Path) -> None:
        """Delete a directory, here and in the objects; in these later, should they not be reached."""
        self.drop(directory)
        with self._lock:
            self._file_names.pop(directory, None)
            self._undeleted.add(directory)
        try:
            self._delete_objects()
        except ObjectsUnavailableError as error:
            logger.info("Objects are deleted later: %s", error.message)

    def drop(self, directory: Path) -> None:
        """Delete the local directory."""
        with self._lock:
            self._size_bytes.pop(directory, None)
            self._used.pop(directory, None)
        shutil.rmtree(directory, ignore_errors=True)

    def _delete_objects(self) -> None:
        with self._lock:
            waiting = sorted(self._undeleted)
        for directory in waiting:
            self._objects.delete_directory(directory)
            with self._lock:
                self._undeleted.discard(directory)

    def _shrink(self) -> None:
        """Drop the local directories that were used least recently, until the rest takes no more than max_bytes."""
        dropped = []
        with self._lock:
            total_bytes, now = sum(self._size_bytes.values()), self._now()
            for directory in sorted(self._size_bytes, key=lambda directory: self._used.get(directory, 0.0)):
                if total_bytes <= self._max_bytes:
                    break
                is_in_use = directory in self._used and now - self._used[directory] < IN_USE_S
                if is_in_use or directory not in self._file_names:
                    continue
                total_bytes -= self._size_bytes.pop(directory)
                if directory.is_dir():  # it may have been deleted by hand
                    dropped.append(directory.with_name(f"{DROPPED}{directory.name}-{secrets.token_hex(TOKEN_BYTES)}"))
                    directory.rename(dropped[-1])  # at once: who comes now fetches it
        for path in dropped:
            shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------ what was left

    def _survey(self, root: Path) -> None:
        """Learn once what the objects have of a root."""
        with self._survey_lock:
            if root not in self._put_unix_s:
                found = self._objects.prefixes(root.name)
                with self._lock:
                    for prefix, stored in found.items():
                        if stored.is_complete:
                            self._file_names.setdefault(root / prefix, stored.file_names)
                self._put_unix_s[root] = {root / prefix: stored.put_unix_s for prefix, stored in found.items()}

    def catch_up(self, root: Path, named: Callable[[], Collection[Path]]) -> None:
        """Put, delete and drop what an outage or the end of a process has left.

        Args:
            root: of the directories.
            named: returns those that the catalogue names.

        Raises:
            ObjectsUnavailableError: the objects cannot be reached.
        """
        self._objects.probe()  # before a run is written, and written again, for nothing
        if root not in self._caught_up:
            self._survey(root)
            self._take_over(root, named())
            self._caught_up.add(root)
        self._delete_objects()
        self._shrink()

    def _take_over(self, root: Path, named: Collection[Path]) -> None:
        """Count what an earlier process has left, and put or delete what it should have."""
        put_unix_s, now_unix_s = self._put_unix_s[root], time.time()
        for directory in named:
            if not directory.is_dir():
                continue
            idle_s, size_bytes = max(0.0, now_unix_s - directory.stat().st_mtime), directory_bytes(directory)
            with self._lock:
                self._size_bytes[directory] = size_bytes
                self._used.setdefault(directory, self._now() - idle_s)
                is_put = directory in self._file_names
            if not is_put:  # put back by `kernalyse store restore`
                self.put(directory)
        with self._lock:
            orphans = set(put_unix_s) - set(named)
            self._undeleted |= {orphan for orphan in orphans if now_unix_s - put_unix_s[orphan] > ORPHAN_AGE_S}
            put_unix_s.clear()


def directory_bytes(directory: Path) -> int:
    """Return what the files of a directory take."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
