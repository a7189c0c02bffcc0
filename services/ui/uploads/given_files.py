"""Files that people give the forms: kernel sources, models, programs. Kept in a private directory until the dashboard ends.

The directory is locked as long as its dashboard lives, so that the next one knows, and deletes, what one that was killed has left.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kernalyse.services.core.errors import BundleTooLargeError, InvalidRequestError, StorageFullError

MAX_FILE_BYTES: Final = 1024**3  # nodes take bundles of this size, unpacked
MAX_KEPT_BYTES: Final = 4 * 1024**3
MAX_NAME_LENGTH: Final = 200
DIRECTORY_PREFIX: Final = "kernalyse-ui-"


@dataclass(frozen=True, slots=True)
class GivenFile:
    """name: without directories, as its giver calls it; the path is of this service's own making."""

    file_id: str
    name: str
    size_bytes: int
    path: Path


class GivenFiles:
    """Used on the server's loop; writes of an incoming file may run elsewhere."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._lock_fd: int | None = None
        self._files: dict[str, GivenFile] = {}
        _delete_abandoned_directories()

    def close(self) -> None:
        if self._directory is not None and self._lock_fd is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock_fd)
            self._directory = self._lock_fd = None

    def receive(self, name: str) -> IncomingFile:
        """Raises InvalidRequestError for a name that no file can have."""
        plain = name.replace("\\", "/").rpartition("/")[2]
        if not plain or plain in (".", "..") or len(plain) > MAX_NAME_LENGTH or not plain.isprintable():
            raise InvalidRequestError("name of the file", found=repr(name[:80]), expected="a plain name", remedy="Rename it.")
        if self._directory is None:
            self._directory, self._lock_fd = _locked_directory()
        self._make_room()
        file_id = secrets.token_hex(8)
        return IncomingFile(self, file_id, plain, self._directory / file_id)

    def find(self, file_id: str) -> GivenFile | None:
        """None: it was never given, or has had to make room."""
        return self._files.get(file_id)

    def found(self, file_ids: Iterable[str]) -> tuple[GivenFile, ...]:
        """Those that are still there."""
        return tuple(file for file_id in file_ids if (file := self._files.get(file_id)) is not None)

    def add(self, file: GivenFile) -> None:
        self._files[file.file_id] = file

    def _make_room(self) -> None:
        """The oldest go first."""
        while self._files and sum(file.size_bytes for file in self._files.values()) > MAX_KEPT_BYTES:
            oldest = self._files.pop(next(iter(self._files)))
            oldest.path.unlink(missing_ok=True)


def _locked_directory() -> tuple[Path, int]:
    """Return a new directory and a descriptor that keeps it locked; the lock falls with the process, whatever ends that."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        with suppress(FileNotFoundError):  # a dashboard that was just starting has deleted it before it was locked
            lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
            if directory.exists():
                return directory, lock_fd
            os.close(lock_fd)


def _delete_abandoned_directories() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        with suppress(OSError):  # another user's, or deleted meanwhile
            if directory.lstat().st_uid == os.geteuid():
                _delete_if_abandoned(directory)


def _delete_if_abandoned(directory: Path) -> None:
    lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock_fd)


class IncomingFile:
    """One that is being received."""

    def __init__(self, files: GivenFiles, file_id: str, name: str, path: Path) -> None:
        self._files = files
        self._file_id = file_id
        self._name = name
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._size_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Raises BundleTooLargeError, StorageFullError."""
        self._size_bytes += len(chunk)
        if self._size_bytes > MAX_FILE_BYTES:
            raise BundleTooLargeError(
                f"file {self._name}",
                found=f"more than {MAX_FILE_BYTES} bytes",
                expected="at most that",
                remedy="Name large data by its path on the node.",
            )
        try:
            self._file.write(chunk)
        except OSError as error:
            raise StorageFullError(
                f"file {self._name}",
                found=error.strerror or "an error",
                expected="room for it",
                remedy=f"Free space in {self._path.parent}.",
            ) from error

    def end(self) -> GivenFile:
        self._file.close()
        kept = GivenFile(self._file_id, self._name, self._size_bytes, self._path)
        self._files.add(kept)
        return kept

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
