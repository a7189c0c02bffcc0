"""Uploads on their way in, each into a folder of its own, and those that broke off, until they are resumed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.analyzer.trace_arrival import STREAM, Arrival, ArrivedTrace, Extent, TracePart, unfit
from services.core.errors import CancelledError, KernalyseError, StorageFullError

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
