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
from pathlib import Path
from typing import IO, Any, Final, Self

from kernalyse.services.analyzer.readers.registry import HEAD_BYTES
from kernalyse.services.core.errors import CancelledError, InvalidTraceError, KernalyseError, LimitReachedError, StorageFullError

# ---------------------------------------------------------------- trace arrival
# A trace on its way in: received into private files, measured against the limit, compared with its digest.

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_FILE_COUNT: Final = 100_000
"""With a trace: NVBench writes two files a state. Without a bound a stream of empty files would fill the disk's inodes."""

MAX_NAME_LENGTH: Final = 255
STREAM: Final = "the stream of ImportTrace"


@dataclass(frozen=True, slots=True)
class TracePart:
    """One message of the stream.

    file_name: set where a file begins; digest: set where it ends. upload_id: set in the first message of a stream that can be
    resumed; offset_bytes: where a file goes on that another stream began; is_last: set in the last message; is_further_trace: set
    where a file begins that is a trace as the first one is; source_id: set in the first message of a stream whose trace is a
    state of something that changes.
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
class ArrivedFile:
    """file_name: as the sender wrote it."""

    file_name: str
    path: Path
    digest: str  # "sha256:…"
    is_further_trace: bool = False


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


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a trace. head: its first HEAD_BYTES, or all of it."""

    file_name: str
    head: bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """How far an upload came: files that are whole, and bytes of the one after them."""

    whole_file_count: int = 0
    offset_bytes: int = 0


@dataclass(slots=True)
class _OpenFile:
    """head: what has arrived of a trace's beginning; None: that has been told of, or it is a file that belongs to one."""

    file_name: str
    path: Path
    is_further_trace: bool
    file: IO[bytes]
    hash: Any
    head: bytes | None
    size_bytes: int = 0

    @classmethod
    def create(cls, file_name: str, path: Path, *, is_trace: bool, is_further_trace: bool) -> Self:
        return cls(file_name, path, is_further_trace, path.open("wb"), hashlib.sha256(), b"" if is_trace else None)

    @classmethod
    def left(cls, file_name: str, path: Path, *, is_further_trace: bool) -> Self:
        """One that another process began to write; closed."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file_name, path, is_further_trace, file, digest, None, file.tell())

    def write(self, chunk: bytes) -> None:
        self.hash.update(chunk)
        self.file.write(chunk)
        self.size_bytes += len(chunk)
        if self.head is not None:
            self.head += chunk[: HEAD_BYTES - len(self.head)]

    def beginning(self, *, is_whole: bool) -> Beginning | None:
        """Once, as soon as it is there."""
        if self.head is None or (len(self.head) < HEAD_BYTES and not is_whole):
            return None
        head, self.head = self.head, None
        return Beginning(self.file_name[-MAX_NAME_LENGTH:], head)

    def reopen(self) -> None:
        self.file = self.path.open("ab")


class Arrival:
    """The files of one upload, by number: the names that a sender gives never become paths.

    Args:
        folder: its own, empty or with what `take_up` goes on with; `discard` deletes it.
        max_bytes: of all files together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._whole: list[ArrivedFile] = []
        self._names: set[str] = set()
        self._open: _OpenFile | None = None
        self._cut: _OpenFile | None = None  # where a stream broke off that another one continues

    @property
    def extent(self) -> Extent:
        return Extent(len(self._whole), 0 if self._cut is None else self._cut.size_bytes)

    def take_up(self, part: TracePart, size_bytes: int) -> bool:
        """Goes on with the next file as a process that has ended left it here. Answers whether it is whole.

        Args:
            part: its name and digest. size_bytes: of the whole file.

        Raises:
            InvalidTraceError: it has the size, and another digest.
        """
        path = self._folder / str(len(self._whole))
        if not path.exists():
            return False
        left = _OpenFile.left(part.file_name, path, is_further_trace=part.is_further_trace)
        self._size_bytes += left.size_bytes
        if left.size_bytes < size_bytes:
            self._cut = left
            return False
        self._end(left, part.digest)
        return True

    def take(self, part: TracePart) -> Beginning | None:
        """Answers with the beginning of a trace when it has arrived.

        Raises InvalidTraceError, LimitReachedError; OSError when there is no room.
        """
        if part.file_name:
            self._begin(part)
        if self._open is None:
            if part.is_last and not part.chunk and not part.digest:
                return None
            raise unfit(STREAM, "bytes that belong to no file", "file_name in the first message of each file")
        self._check_size(self._open.file_name, len(part.chunk))
        arriving = self._open
        arriving.write(part.chunk)
        if part.digest:
            self._end(arriving, part.digest)
        return arriving.beginning(is_whole=bool(part.digest))

    def whole(self) -> tuple[ArrivedTrace, ...]:
        """Every trace, once the stream has ended."""
        if self._open is not None:
            raise unfit(f"file {self._open.file_name}", "an end without a digest", "a digest in the last message of each file")
        if self._cut is not None:
            raise unfit(f"file {self._cut.file_name}", f"its first {self._cut.size_bytes} bytes alone", "the rest of it")
        if not self._whole:
            raise unfit(STREAM, "no file", "the trace")
        starts = [number for number, file in enumerate(self._whole) if number == 0 or file.is_further_trace]
        ends = [*starts[1:], len(self._whole)]
        return tuple(ArrivedTrace(tuple(self._whole[start:end])) for start, end in zip(starts, ends, strict=True))

    def pause(self) -> None:
        """The stream broke off. Raises OSError when what is still in memory cannot be written."""
        if self._open is not None:
            self._cut, self._open = self._open, None
            self._cut.file.close()

    def discard(self) -> None:
        if self._open is not None:
            with suppress(OSError):  # a full disk refuses once more what is still in memory
                self._open.file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, part: TracePart) -> None:
        file_name, offset_bytes = part.file_name, part.offset_bytes
        if self._open is not None:
            raise unfit(f"file {file_name}", "its beginning", f"the digest of {self._open.file_name} before it")
        if self._cut is not None or offset_bytes:
            self._open = self._continued(file_name, offset_bytes)
            return
        if part.is_further_trace:
            self._names.clear()  # what belongs to it is named from its own folder
        if file_name in self._names:
            raise unfit(f"file {file_name}", "a second one of this name", "another name for each file")
        if len(self._whole) >= MAX_FILE_COUNT:
            raise LimitReachedError(f"file {file_name}", found=f"{MAX_FILE_COUNT} before it", expected="no more", remedy="Send fewer.")
        self._names.add(file_name)
        path = self._folder / str(len(self._whole))
        is_trace = not self._whole or part.is_further_trace
        self._open = _OpenFile.create(file_name, path, is_trace=is_trace, is_further_trace=part.is_further_trace)

    def _continued(self, file_name: str, offset_bytes: int) -> _OpenFile:
        cut = self._cut
        if cut is None or (cut.file_name, cut.size_bytes) != (file_name, offset_bytes):
            there = "nothing of it" if cut is None else f"{cut.size_bytes} bytes of {cut.file_name}"
            raise unfit(f"file {file_name}", f"its part from byte {offset_bytes} on", f"what follows on what is there: {there}")
        cut.reopen()
        self._cut = None
        return cut

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

    def _end(self, arriving: _OpenFile, expected_digest: str) -> None:
        found = f"sha256:{arriving.hash.hexdigest()}"
        if found != expected_digest:
            raise InvalidTraceError(
                f"file {arriving.file_name}",
                found=f"bytes with the digest {found}",
                expected=expected_digest,
                remedy="It was damaged on its way, or changed while it was sent: send it again.",
            )
        arriving.file.close()
        self._whole.append(ArrivedFile(arriving.file_name, arriving.path, found, arriving.is_further_trace))
        self._open = None


def unfit(subject: str, found: str, expected: str) -> InvalidTraceError:
    """A stream that is not as the contract says."""
    return InvalidTraceError(subject, found=found, expected=expected, remedy="Send the whole file again.")


# ---------------------------------------------------------------- arrivals
# Uploads on their way in, each into a folder of its own, and those that broke off, until they are resumed.

MAX_CUT_COUNT: Final = 4
"""Uploads that broke off and are kept. Each may have gigabytes: more would fill disks, and with one alone two who import over
bad lines would take each other's place for ever."""

KEPT_S: Final = 3600.0
"""A laptop that was closed over a meeting goes on; who has not come back after an hour sends anew."""

FORGOTTEN_COUNT: Final = 1024
"""Uploads that are known to have been cancelled: nothing of them is taken or kept, in whatever order calls and ends arrive."""


@dataclass(slots=True)
class _Stream:
    """upload_id: empty when it cannot be resumed."""

    upload_id: str
    arrival: Arrival
    is_replaced: bool = False  # by one that continues the same upload


@dataclass(frozen=True, slots=True)
class _CutUpload:
    arrival: Arrival
    cut_s: float  # by the clock


@asynccontextmanager
async def private_folder(parent: Path) -> AsyncIterator[Path]:
    """For rows on their way; it goes, whatever is in it."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Arrivals:
    """Below one folder, which holds nothing else.

    Args:
        max_bytes: of one trace with all that belongs to it.
        recognize: called with name and beginning of each trace, in a thread; what it raises ends the stream. None: any is taken.
        clock: seconds.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        recognize: Callable[[str, bytes], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._recognize = recognize
        self._clock = clock
        self._running: dict[str, _Stream] = {}  # those that can be resumed
        self._cut: dict[str, _CutUpload] = {}  # the oldest first
        self._forgotten: deque[str] = deque(maxlen=FORGOTTEN_COUNT)

    def resumed(self, upload_id: str) -> Extent:
        """How far an upload came. A stream of it that still seems open is taken for broken: its sender has come back."""
        self._make_way(upload_id)
        cut = self._cut.get(upload_id)
        return Extent() if cut is None else cut.arrival.extent

    def forget(self, upload_id: str) -> None:
        """Throws away what an upload has left that broke off, and what it still brings."""
        if upload_id:
            self._forgotten.append(upload_id)
        if upload_id in self._cut:
            self._cut.pop(upload_id).arrival.discard()

    @asynccontextmanager
    async def received(self, parts: AsyncIterable[TracePart]) -> AsyncIterator[tuple[ArrivedTrace, ...]]:
        """The traces of a stream, whose files are there until the block ends.

        Raises:
            InvalidTraceError: the stream is not as the contract says, a digest is not that of the bytes, or a trace is not recognized.
            LimitReachedError: more than max_bytes, or a chunk over 1 MiB.
            StorageFullError: there is no room.
            CancelledError: it has been forgotten before it began.
        """
        arrival = await self._arrived(parts)
        try:
            yield arrival.whole()
        finally:
            arrival.discard()

    async def _arrived(self, parts: AsyncIterable[TracePart]) -> Arrival:
        """Every part of the stream. What a stream leaves that breaks off is kept when it can be resumed."""
        stream: _Stream | None = None
        is_whole = False
        try:
            async for part in parts:
                stream = stream or self._begun(part.upload_id)
                if stream.is_replaced:
                    raise unfit(STREAM, "another stream that continues the same upload", "one at a time")
                if is_whole:
                    raise unfit(STREAM, "a message after the one with is_last", "none")
                with self._room():
                    beginning = stream.arrival.take(part)
                if beginning is not None and self._recognize is not None:
                    await asyncio.to_thread(self._recognize, beginning.file_name, beginning.head)
                is_whole = part.is_last
        except KernalyseError:
            self._end(stream, is_resumable=False)
            raise
        except BaseException:
            self._end(stream, is_resumable=True)
            raise
        # A broken line does not always show as an error: at times the messages just end.
        if stream is None or not is_whole:
            self._end(stream, is_resumable=True)
            raise unfit(STREAM, "an end before its last message", "is_last in the last message")
        self._running.pop(stream.upload_id, None)
        return stream.arrival

    def _begun(self, upload_id: str) -> _Stream:
        """A stream from its first message on."""
        if upload_id in self._forgotten:
            raise cancelled(upload_id)
        self._make_way(upload_id)
        cut = self._cut.pop(upload_id, None)
        with self._room():
            arrival = Arrival(Path(tempfile.mkdtemp(dir=self._folder)), self._max_bytes) if cut is None else cut.arrival
        stream = _Stream(upload_id, arrival)
        if upload_id:
            self._running[upload_id] = stream
        return stream

    def _make_way(self, upload_id: str) -> None:
        """Sets an open stream of the upload aside."""
        if upload_id in self._running:
            previous = self._running[upload_id]
            self._end(previous, is_resumable=True)
            previous.is_replaced = True
        self._forget()

    def _forget(self) -> None:
        """Throws away what nobody has come back for, and the oldest of too many."""
        earliest_s = self._clock() - KEPT_S
        while self._cut and (len(self._cut) > MAX_CUT_COUNT or next(iter(self._cut.values())).cut_s < earliest_s):
            self._cut.pop(next(iter(self._cut))).arrival.discard()

    def _end(self, stream: _Stream | None, *, is_resumable: bool) -> None:
        """Keeps what a stream brought, or throws it away."""
        if stream is None or stream.is_replaced:
            return
        self._running.pop(stream.upload_id, None)
        if is_resumable and stream.upload_id and stream.upload_id not in self._forgotten:
            try:
                stream.arrival.pause()
            except OSError:  # no room for what was still in memory
                stream.arrival.discard()
            else:
                self._cut[stream.upload_id] = _CutUpload(stream.arrival, self._clock())
                self._forget()
        else:
            stream.arrival.discard()

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFullError(
                f"folder of arriving traces {self._folder}", found=str(error), expected="room to write", remedy="Free space on that disk."
            ) from error


def cancelled(upload_id: str) -> CancelledError:
    return CancelledError(f"import {upload_id}", found="cancelled", remedy="Import it again.")
