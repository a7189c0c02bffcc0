"""A trace on its way in: received into private files, measured against the limit, compared with its digest."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from services.core.errors import InvalidTraceError, LimitReachedError, StorageFullError

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_FILE_COUNT: Final = 100_000
"""With a trace: NVBench writes two files a state. Without a bound a stream of empty files would fill the disk's inodes."""

MAX_NAME_LENGTH: Final = 255


@dataclass(frozen=True, slots=True)
class TracePart:
    """One message of the stream. file_name: set where a file begins; digest: set where it ends."""

    file_name: str
    chunk: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class ArrivedFile:
    """file_name: as the sender wrote it."""

    file_name: str
    path: Path
    digest: str  # "sha256:…"


@dataclass(frozen=True, slots=True)
class ArrivedTrace:
    """The first file is the trace, the others belong to it."""

    files: tuple[ArrivedFile, ...]

    @property
    def digest(self) -> str:
        return self.files[0].digest

    @property
    def file_name(self) -> str:
        """Without folders: what lists call it."""
        name = re.split(r"[/\\]", self.files[0].file_name)[-1]
        return name[-MAX_NAME_LENGTH:]

    @property
    def identity(self) -> str:
        """64 hexadecimal digits that stand for the trace with all that belongs to it, whatever the trace itself is called."""
        if len(self.files) == 1:
            return self.digest.removeprefix("sha256:")
        companions = sorted(f"{file.file_name}\0{file.digest}" for file in self.files[1:])
        return hashlib.sha256("\n".join((self.digest, *companions)).encode()).hexdigest()


@asynccontextmanager
async def received(parts: AsyncIterable[TracePart], folder: Path, max_bytes: int) -> AsyncIterator[ArrivedTrace]:
    """The files of a stream, below `folder` until the block ends.

    Raises:
        InvalidTraceError: the stream is not as the contract says, or a digest is not that of the bytes.
        LimitReachedError: more than max_bytes, or a chunk over 1 MiB.
        StorageFullError: there is no room.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="arriving-") as name:
        arrival = _Arrival(Path(name), max_bytes)
        try:
            async for part in parts:
                arrival.take(part)
        except OSError as error:
            raise StorageFullError(
                f"folder of arriving traces {folder}", found=str(error), expected="room to write", remedy="Free space on that disk."
            ) from error
        finally:
            arrival.close()
        yield arrival.whole()


class _Arrival:
    """Files by number: the names that a sender gives never become paths."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._files: list[ArrivedFile] = []
        self._names: set[str] = set()
        self._file_name = ""
        self._file: IO[bytes] | None = None
        self._hash: Any = None

    def take(self, part: TracePart) -> None:
        if part.file_name:
            self._begin(part.file_name)
        if self._file is None:
            raise self._unfit("bytes that belong to no file", "file_name in the first message of each file")
        if len(part.chunk) > MAX_CHUNK_BYTES:
            raise LimitReachedError(
                f"chunk of file {self._file_name}",
                found=f"{len(part.chunk)} bytes",
                expected=f"at most {MAX_CHUNK_BYTES}",
                remedy="Send smaller ones.",
            )
        self._size_bytes += len(part.chunk)
        if self._size_bytes > self._max_bytes:
            raise LimitReachedError(
                f"file {self._file_name}",
                found=f"more than {self._max_bytes} bytes with what belongs to it",
                expected=f"at most {self._max_bytes}",
                remedy="Import less at a time, or raise import_max_bytes of the analyzer.",
            )
        self._hash.update(part.chunk)
        self._file.write(part.chunk)
        if part.digest:
            self._end(part.digest)

    def whole(self) -> ArrivedTrace:
        """Everything, once the stream has ended."""
        if self._file_name or not self._files:
            raise self._unfit(
                f"{self._size_bytes} bytes and then no more" if self._file_name else "no message",
                "a digest in the last message of each file",
            )
        return ArrivedTrace(tuple(self._files))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, file_name: str) -> None:
        if self._file is not None:
            raise self._unfit(f"the beginning of {file_name}", f"the digest of {self._file_name} before it")
        if file_name in self._names:
            raise self._unfit(f"a second file {file_name}", "another name for each file")
        if len(self._files) >= MAX_FILE_COUNT:
            raise LimitReachedError(
                f"file {file_name}", found=f"{MAX_FILE_COUNT} files before it", expected="no more", remedy="Send fewer."
            )
        self._names.add(file_name)
        self._file_name = file_name
        self._file = (self._folder / str(len(self._files))).open("wb")
        self._hash = hashlib.sha256()

    def _end(self, expected_digest: str) -> None:
        found = f"sha256:{self._hash.hexdigest()}"
        if found != expected_digest:
            raise InvalidTraceError(
                f"file {self._file_name}",
                found=f"bytes with the digest {found}",
                expected=expected_digest,
                remedy="It was damaged on its way, or changed while it was sent: send it again.",
            )
        self.close()
        self._files.append(ArrivedFile(self._file_name, self._folder / str(len(self._files)), found))
        self._file_name = ""

    def _unfit(self, found: str, expected: str) -> InvalidTraceError:
        subject = f"file {self._file_name}" if self._file_name else "the stream of ImportTrace"
        return InvalidTraceError(subject, found=found, expected=expected, remedy="Send the whole file again.")
