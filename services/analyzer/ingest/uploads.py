"""Resumable uploads of traces, with checks of size and digest."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, Self

from kernalyse.services.analyzer.readers.registry import HEAD_BYTES
from kernalyse.services.core.errors import CancelledError, InvalidTraceError, KernalyseError, LimitReachedError, StorageFullError

# ---------------------------------------------------------------- one upload

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_FILE_COUNT: Final = 100_000
"""Most files of an upload. NVBench writes two files per state; without a bound a stream of empty files would fill the inodes."""

MAX_NAME_LENGTH: Final = 255
STREAM_NAME: Final = "the stream of ImportTrace"


@dataclass(frozen=True, slots=True)
class UploadMessage:
    """One message of the upload stream.

    file_name: set where a file begins. digest: set where it ends. upload_id: set in the first message of a stream that can be
    resumed. offset_bytes: where a file continues that another stream began. is_last: set in the last message. is_further_trace:
    set where a file begins that is another trace, not a companion. source_id: set in the first message of a stream whose trace
    is one state of something that changes.
    """

    file_name: str
    chunk: bytes
    digest: str
    upload_id: str = ""
    offset_bytes: int = 0
    is_last: bool = False
    is_further_trace: bool = False
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """An uploaded file. file_name: as the sender wrote it; digest: "sha256:" and hexadecimal digits."""

    file_name: str
    path: Path
    digest: str  # "sha256:…"
    is_further_trace: bool = False


@dataclass(frozen=True, slots=True)
class UploadedTrace:
    """An uploaded trace: the first file is the trace, the others are its companions."""

    files: tuple[UploadedFile, ...]

    @property
    def digest(self) -> str:
        """Digest of the trace file."""
        return self.files[0].digest

    @property
    def file_name(self) -> str:
        """Name of the trace file without directories, as lists show it."""
        name = re.split(r"[/\\]", self.files[0].file_name)[-1]
        return name[-MAX_NAME_LENGTH:]

    @property
    def identity(self) -> str:
        """64 hexadecimal digits that identify the trace and its companions, whatever the trace file is called."""
        if len(self.files) == 1:
            return self.digest.removeprefix("sha256:")
        companions = sorted(f"{file.file_name}\0{file.digest}" for file in self.files[1:])
        return hashlib.sha256("\n".join((self.digest, *companions)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TraceHead:
    """The beginning of a trace. head: its first HEAD_BYTES, or all of it."""

    file_name: str
    head: bytes


@dataclass(frozen=True, slots=True)
class UploadPosition:
    """The position at which an upload continues: complete files, and bytes of the next one."""

    whole_file_count: int = 0
    offset_bytes: int = 0


@dataclass(slots=True)
class _OpenFile:
    """A file that is being received. head: the beginning so far of a trace; None: it has been handed out, or this is a companion."""

    file_name: str
    path: Path
    is_further_trace: bool
    file: IO[bytes]
    hash: Any
    head: bytes | None
    size_bytes: int = 0

    @classmethod
    def create(cls, file_name: str, path: Path, *, is_trace: bool, is_further_trace: bool) -> Self:
        """Return a new, empty file."""
        return cls(file_name, path, is_further_trace, path.open("wb"), hashlib.sha256(), b"" if is_trace else None)

    @classmethod
    def reopen_partial(cls, file_name: str, path: Path, *, is_further_trace: bool) -> Self:
        """Return a closed file that an earlier process has begun to write, with the hash of its bytes."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file_name, path, is_further_trace, file, digest, None, file.tell())

    def write(self, chunk: bytes) -> None:
        self.hash.update(chunk)
        self.file.write(chunk)
        self.size_bytes += len(chunk)
        if self.head is not None:
            self.head += chunk[: HEAD_BYTES - len(self.head)]

    def beginning(self, *, is_complete: bool) -> TraceHead | None:
        """Return the beginning of a trace once, as soon as it is there; else None."""
        if self.head is None or (len(self.head) < HEAD_BYTES and not is_complete):
            return None
        head, self.head = self.head, None
        return TraceHead(self.file_name[-MAX_NAME_LENGTH:], head)

    def reopen(self) -> None:
        self.file = self.path.open("ab")


class UploadSession:
    """The files of one upload, stored by number: names that a sender gives never become paths.

    Args:
        directory: of this upload, empty or with the files that `adopt` takes over; `discard` deletes it.
        max_bytes: of all files together.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._files: list[UploadedFile] = []
        self._names: set[str] = set()
        self._open: _OpenFile | None = None
        self._partial: _OpenFile | None = None  # interrupted, until another stream continues it

    @property
    def extent(self) -> UploadPosition:
        """Position at which the upload continues."""
        return UploadPosition(len(self._files), 0 if self._partial is None else self._partial.size_bytes)

    def adopt(self, part: UploadMessage, size_bytes: int) -> bool:
        """Take over the next file as an earlier process has left it, and return whether it is complete.

        Args:
            part: its name and digest.
            size_bytes: of the complete file.

        Raises:
            InvalidTraceError: it has the size, but another digest.
        """
        path = self._directory / str(len(self._files))
        if not path.exists():
            return False
        left = _OpenFile.reopen_partial(part.file_name, path, is_further_trace=part.is_further_trace)
        self._size_bytes += left.size_bytes
        if left.size_bytes < size_bytes:
            self._partial = left
            return False
        self._end(left, part.digest)
        return True

    def take(self, part: UploadMessage) -> TraceHead | None:
        """Store one message; return the beginning of a trace when it is there, else None.

        Raises:
            InvalidTraceError: the message does not follow on the one before it, or a digest is not that of the bytes.
            LimitReachedError: a chunk, the upload or its number of files is too large.
            OSError: there is no room.
        """
        if part.file_name:
            self._begin(part)
        if self._open is None:
            if part.is_last and not part.chunk and not part.digest:
                return None
            raise invalid_upload(STREAM_NAME, "bytes that belong to no file", "file_name in the first message of each file")
        self._check_size(self._open.file_name, len(part.chunk))
        file = self._open
        file.write(part.chunk)
        if part.digest:
            self._end(file, part.digest)
        return file.beginning(is_complete=bool(part.digest))

    def traces(self) -> tuple[UploadedTrace, ...]:
        """Return every trace, once the stream has ended. Raises InvalidTraceError."""
        if self._open is not None:
            raise invalid_upload(f"file {self._open.file_name}", "an end without a digest", "a digest in the last message of each file")
        if self._partial is not None:
            raise invalid_upload(f"file {self._partial.file_name}", f"its first {self._partial.size_bytes} bytes alone", "the rest of it")
        if not self._files:
            raise invalid_upload(STREAM_NAME, "no file", "the trace")
        return self.complete_traces()

    def complete_traces(self) -> tuple[UploadedTrace, ...]:
        """Return the traces of all complete files; more files may follow that belong to the last one."""
        starts = [number for number, file in enumerate(self._files) if number == 0 or file.is_further_trace]
        return tuple(UploadedTrace(tuple(self._files[start:end])) for start, end in pairwise([*starts, len(self._files)]))

    def pause(self) -> None:
        """Close the file that an interrupted stream was sending. Raises OSError when buffered bytes cannot be written."""
        if self._open is not None:
            self._partial, self._open = self._open, None
            self._partial.file.close()

    def discard(self) -> None:
        """Delete all files of the upload."""
        if self._open is not None:
            with suppress(OSError):  # on a full disk, buffered bytes fail once more
                self._open.file.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _begin(self, part: UploadMessage) -> None:
        file_name, offset_bytes = part.file_name, part.offset_bytes
        if self._open is not None:
            raise invalid_upload(f"file {file_name}", "its beginning", f"the digest of {self._open.file_name} before it")
        if self._partial is not None or offset_bytes:
            self._open = self._resume_file(file_name, offset_bytes)
            return
        if part.is_further_trace:
            self._names.clear()  # its companions are named relative to its own directory
        if file_name in self._names:
            raise invalid_upload(f"file {file_name}", "a second one of this name", "another name for each file")
        if len(self._files) >= MAX_FILE_COUNT:
            raise LimitReachedError(f"file {file_name}", found=f"{MAX_FILE_COUNT} before it", expected="no more", remedy="Send fewer.")
        self._names.add(file_name)
        path = self._directory / str(len(self._files))
        is_trace = not self._files or part.is_further_trace
        self._open = _OpenFile.create(file_name, path, is_trace=is_trace, is_further_trace=part.is_further_trace)

    def _resume_file(self, file_name: str, offset_bytes: int) -> _OpenFile:
        partial = self._partial
        if partial is None or (partial.file_name, partial.size_bytes) != (file_name, offset_bytes):
            there = "nothing of it" if partial is None else f"{partial.size_bytes} bytes of {partial.file_name}"
            raise invalid_upload(f"file {file_name}", f"its part from byte {offset_bytes} on", f"what follows on what is there: {there}")
        partial.reopen()
        self._partial = None
        return partial

    def _check_size(self, file_name: str, chunk_bytes: int) -> None:
        if chunk_bytes > MAX_CHUNK_BYTES:
            raise LimitReachedError(
                f"chunk of file {file_name}",
                found=f"{chunk_bytes} bytes",
                expected=f"at most {MAX_CHUNK_BYTES}",
                remedy="Send smaller ones.",
            )
        self._size_bytes += chunk_bytes
        if self._size_bytes > self._max_bytes:
            raise LimitReachedError(
                f"file {file_name}",
                found=f"more than {self._max_bytes} bytes with what belongs to it",
                expected=f"at most {self._max_bytes}",
                remedy="Import less at a time, or raise import_max_bytes of the analyzer.",
            )

    def _end(self, file: _OpenFile, expected_digest: str) -> None:
        found = f"sha256:{file.hash.hexdigest()}"
        if found != expected_digest:
            raise InvalidTraceError(
                f"file {file.file_name}",
                found=f"bytes with the digest {found}",
                expected=expected_digest,
                remedy="It was damaged on its way, or changed while it was sent: send it again.",
            )
        file.file.close()
        self._files.append(UploadedFile(file.file_name, file.path, found, file.is_further_trace))
        self._open = None


def invalid_upload(subject: str, found: str, expected: str) -> InvalidTraceError:
    """Return the error for a stream that violates the contract."""
    return InvalidTraceError(subject, found=found, expected=expected, remedy="Send the whole file again.")


# ---------------------------------------------------------------- all uploads

MAX_PAUSED_COUNT: Final = 4
"""Most interrupted uploads that are kept. Each may have gigabytes: more would fill disks, and with only one, two clients on bad
lines would replace each other for ever."""

PAUSED_UPLOAD_LIFETIME_S: Final = 3600.0
"""How long an interrupted upload is kept: a laptop that was closed during a meeting resumes; after an hour clients start anew."""

CANCELLED_ID_COUNT: Final = 1024
"""Most cancelled upload_ids that are remembered, so that nothing of them is stored, in whatever order calls arrive."""


@dataclass(slots=True)
class _Stream:
    """A stream in progress. upload_id: empty when it cannot be resumed."""

    upload_id: str
    upload: UploadSession
    is_replaced: bool = False  # by one that continues the same upload


@dataclass(frozen=True, slots=True)
class _PausedUpload:
    upload: UploadSession
    paused_s: float  # by the clock


class UploadSessions:
    """The uploads in progress, and those that were interrupted, until they are resumed or expire.

    Args:
        directory: for one directory per upload; holds nothing else.
        max_bytes: of one trace with all its companions.
        recognize: called with name and head of each trace, in a thread; an error that it raises ends the stream. None: any is accepted.
        clock: seconds.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        recognize: Callable[[str, bytes], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._recognize = recognize
        self._clock = clock
        self._running: dict[str, _Stream] = {}  # those that can be resumed, by upload_id
        self._partial: dict[str, _PausedUpload] = {}  # by upload_id, the oldest first
        self._cancelled_ids: deque[str] = deque(maxlen=CANCELLED_ID_COUNT)

    def resume_position(self, upload_id: str) -> UploadPosition:
        """Return where an upload continues. A stream of it that still seems open is treated as broken: its sender has come back."""
        self._replace_stream(upload_id)
        partial = self._partial.get(upload_id)
        return UploadPosition() if partial is None else partial.upload.extent

    def forget(self, upload_id: str) -> None:
        """Cancel an upload: delete what an interrupted stream has left, and reject what still comes."""
        if upload_id:
            self._cancelled_ids.append(upload_id)
        if upload_id in self._partial:
            self._partial.pop(upload_id).upload.discard()

    @asynccontextmanager
    async def receive(
        self, parts: AsyncIterable[UploadMessage], on_traces: Callable[[tuple[UploadedTrace, ...]], None] = lambda _: None
    ) -> AsyncIterator[tuple[UploadedTrace, ...]]:
        """Yield the traces of a stream; their files are there until the block ends.

        Args:
            on_traces: called with all complete traces whenever another one begins.

        Raises:
            InvalidTraceError: the stream violates the contract, a digest is wrong, or a trace is not recognized.
            LimitReachedError: more than max_bytes, or a chunk over 1 MiB.
            StorageFullError: there is no room.
            CancelledError: the upload was cancelled before it began.
        """
        upload = await self._receive_all(parts, on_traces)
        try:
            yield upload.traces()
        finally:
            upload.discard()

    async def _receive_all(
        self, parts: AsyncIterable[UploadMessage], on_traces: Callable[[tuple[UploadedTrace, ...]], None]
    ) -> UploadSession:
        """Store every message of the stream. What an interrupted stream leaves is kept if it can be resumed."""
        stream: _Stream | None = None
        is_complete = False
        try:
            async for part in parts:
                stream = stream or self._begin_stream(part.upload_id)
                if stream.is_replaced:
                    raise invalid_upload(STREAM_NAME, "another stream that continues the same upload", "one at a time")
                if is_complete:
                    raise invalid_upload(STREAM_NAME, "a message after the one with is_last", "none")
                with self._storage_errors():
                    if part.is_further_trace:
                        on_traces(stream.upload.complete_traces())
                    beginning = stream.upload.take(part)
                if beginning is not None and self._recognize is not None:
                    await asyncio.to_thread(self._recognize, beginning.file_name, beginning.head)
                is_complete = part.is_last
        except KernalyseError:
            self._end(stream, is_resumable=False)
            raise
        except BaseException:
            self._end(stream, is_resumable=True)
            raise
        # A broken connection is not always an error: at times the messages just end.
        if stream is None or not is_complete:
            self._end(stream, is_resumable=True)
            raise invalid_upload(STREAM_NAME, "an end before its last message", "is_last in the last message")
        self._running.pop(stream.upload_id, None)
        return stream.upload

    def _begin_stream(self, upload_id: str) -> _Stream:
        """Return a new stream, or one that continues an interrupted upload."""
        if upload_id in self._cancelled_ids:
            raise import_cancelled(upload_id)
        self._replace_stream(upload_id)
        partial = self._partial.pop(upload_id, None)
        with self._storage_errors():
            upload = UploadSession(Path(tempfile.mkdtemp(dir=self._directory)), self._max_bytes) if partial is None else partial.upload
        stream = _Stream(upload_id, upload)
        if upload_id:
            self._running[upload_id] = stream
        return stream

    def _replace_stream(self, upload_id: str) -> None:
        """Set aside a stream of the upload that is still open, as its sender has come back."""
        if upload_id in self._running:
            previous = self._running[upload_id]
            self._end(previous, is_resumable=True)
            previous.is_replaced = True
        self._discard_expired()

    def _discard_expired(self) -> None:
        """Delete uploads that nobody has resumed in time, and the oldest ones of too many."""
        earliest_s = self._clock() - PAUSED_UPLOAD_LIFETIME_S
        while self._partial and (len(self._partial) > MAX_PAUSED_COUNT or next(iter(self._partial.values())).paused_s < earliest_s):
            self._partial.pop(next(iter(self._partial))).upload.discard()

    def _end(self, stream: _Stream | None, *, is_resumable: bool) -> None:
        """Keep or delete what a stream brought."""
        if stream is None or stream.is_replaced:
            return
        self._running.pop(stream.upload_id, None)
        if is_resumable and stream.upload_id and stream.upload_id not in self._cancelled_ids:
            try:
                stream.upload.pause()
            except OSError:  # no room for buffered bytes
                stream.upload.discard()
            else:
                self._partial[stream.upload_id] = _PausedUpload(stream.upload, self._clock())
                self._discard_expired()
        else:
            stream.upload.discard()

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFullError(
                f"directory of uploads {self._directory}", found=str(error), expected="room to write", remedy="Free space on that disk."
            ) from error


def import_cancelled(upload_id: str) -> CancelledError:
    """Return the error for an import that was cancelled."""
    return CancelledError(f"import {upload_id}", found="cancelled", remedy="Import it again.")
