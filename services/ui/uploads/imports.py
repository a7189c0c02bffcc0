"""Traces on their way from a browser to the analyzer, and those lately ended: every tab shows them, whoever has begun them.

What has arrived is passed on, nothing of it is kept here. A browser sends slices, each from where the one before ended.
When a line breaks, on either side, `extent` says where the next slice has to begin; the analyzer keeps what it has.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import grpc
import grpc.aio

from kernalyse.services.core.errors import (
    CancelledError,
    ForbiddenError,
    InvalidRequestError,
    KernalyseError,
    LimitReachedError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnmetConditionError,
)
from kernalyse.services.core.model import ImportProgress, ImportStage, Run
from kernalyse.services.core.protobuf import decode
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.v1 import analyzer_service_pb2 as messages

WRITTEN_TO_BROKEN_LINE: Final = "Internal error from Core"
"""What gRPC itself says, as INTERNAL, of a message written between a line's break and the call's end."""


class ImportStream:
    """Every method raises KernalyseError: what the analyzer refuses, or UnavailableError when the line breaks.

    A write returns when the message is on its way, so that a slow analyzer slows the browser and nothing piles up here.
    """

    def __init__(self, client: AnalyzerClient, call: Any) -> None:
        self._client = client
        self._call = call

    @classmethod
    async def open(cls, client: AnalyzerClient) -> Self:
        async def begin(stub: Any) -> Any:
            return stub.ImportTrace(wait_for_ready=True)

        return cls(client, await client.call(begin))

    async def write(self, request: messages.ImportTraceRequest) -> None:
        async def write(_stub: Any) -> None:
            with _end_in_own_errors():
                try:
                    await self._call.write(request)
                except asyncio.InvalidStateError:  # the call is over; its end says why
                    await self._call

        await self._client.call(write)

    async def answer(self) -> messages.ImportTraceResponse:
        """Of the whole, once everything has been written."""

        async def end(_stub: Any) -> messages.ImportTraceResponse:
            with _end_in_own_errors():
                await self._call.done_writing()
                answer: messages.ImportTraceResponse = await self._call
            return answer

        return await self._client.call(end)

    async def cancel(self) -> None:
        async def cancel(_stub: Any) -> None:
            self._call.cancel()

        await self._client.call(cancel)


@contextmanager
def _end_in_own_errors() -> Iterator[None]:
    """A call that was cancelled is so for whoever sends; one whose line broke can go on."""
    try:
        yield
    except asyncio.CancelledError as error:
        raise CancelledError("import", found="cancelled") from error
    except grpc.aio.AioRpcError as error:
        if error.details() == WRITTEN_TO_BROKEN_LINE:
            raise UnavailableError("the analyzer", found="the line broke while a message was written") from error
        raise


CHUNK_BYTES: Final = 1024 * 1024  # the analyzer takes no larger ones
FIRST_CHUNK_BYTES: Final = 64 * 1024
"""Of each file: as much as the analyzer looks at to know a trace. It refuses a wrong file while the rest of the first MiB comes."""

RETURN_TIMEOUT_S: Final = 60.0
"""For the analyzer to come back: a restart takes seconds. Longer, and who watches takes it for hanging."""

RETRY_S: Final = 0.2


class ImportState(StrEnum):
    RECEIVING = "receiving"
    READING = "reading"
    STORING = "storing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (ImportState.DONE, ImportState.FAILED, ImportState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FileToImport:
    """One file as the browser announces it. modified_unix_ms: tells a file chosen again from another one of its name."""

    file_name: str
    size_bytes: int
    modified_unix_ms: int
    is_further_trace: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the next slice begins: in which file, at which byte."""

    file_index: int = 0
    offset_bytes: int = 0


class TraceImport:
    """On the server's loop.

    Args:
        files: at least one, the trace first.
        on_change: called after every step.
        upload_id: of one that another dashboard has begun; `take_up` asks how far it came.
    """

    def __init__(self, client: AnalyzerClient, files: tuple[FileToImport, ...], on_change: Callable[[], None], upload_id: str = "") -> None:
        self.upload_id = upload_id or uuid.uuid4().hex
        self.files = files
        self.state = ImportState.RECEIVING
        self.progress = ImportProgress()
        self.run: Run | None = None
        self.is_known = False  # the run was there before, from the same files
        self.problem = ""
        self.last_arrival_s = time.monotonic()
        self.begin_s = time.monotonic()
        self.settled = asyncio.Event()  # it does not wait for a slice: read, or given back to the browser
        self._client = client
        self._on_change = on_change
        self._extent = Extent()
        self._hash = hashlib.sha256()
        self._hashes = {Extent(): self._hash.copy()}  # of what is before each message, where a stream may have to go on
        self._waiting = bytearray()  # of the next message
        self._there_bytes = 0  # of the next file, at the analyzer already: they are wanted once more for its digest alone
        self._stream: ImportStream | None = None
        self._claim = 0
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def extent(self) -> Extent:
        return self._extent

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def arrived_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files[: self._extent.file_index]) + self._extent.offset_bytes

    # ------------------------------------------------------------ slices

    def claim(self) -> int:
        """A slice begins; one that still seems under way, on a line that has broken, writes no more."""
        self._claim += 1
        return self._claim

    async def write(self, claim: int, begin: Extent, data: bytes) -> Extent:
        """Takes bytes that begin there and answers with where the next ones do.

        Raises:
            InvalidRequestError: it is not what comes next: go on from `extent`.
            KernalyseError: the analyzer refuses the trace, or stays away.
        """
        async with self._lock:
            if claim != self._claim or begin != self._extent or self.state is not ImportState.RECEIVING:
                raise _out_of_turn(self, begin)
            if begin.offset_bytes + len(data) > self.files[begin.file_index].size_bytes:
                raise _out_of_turn(self, begin)
            self.last_arrival_s = time.monotonic()
            try:
                await self._take(data)
            except UnavailableError as error:
                await self._go_back(error)
            except KernalyseError as error:
                self._end(ImportState.FAILED, error.message)
                raise
            self._on_change()
            return self._extent

    async def _take(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            is_there = self._extent.offset_bytes < self._there_bytes
            end_bytes = self._there_bytes if is_there else _message_end_bytes(self._extent.offset_bytes)
            part = view[: end_bytes - self._extent.offset_bytes]
            view = view[len(part) :]
            self._hash.update(part)
            self._extent = Extent(self._extent.file_index, self._extent.offset_bytes + len(part))
            if is_there:
                self._hashes[self._extent] = self._hash.copy()
                continue
            self._waiting += part
            if self._extent.offset_bytes == end_bytes:
                await self._send()
        if self._extent.offset_bytes == self.files[self._extent.file_index].size_bytes:
            await self._end_file()

    async def _send(self, digest: str = "") -> None:
        """What is waiting, as one message."""
        stream, is_first = self._stream, False
        if stream is None:
            stream = self._stream = await ImportStream.open(self._client)
            is_first = True
        file = self.files[self._extent.file_index]
        offset_bytes = self._extent.offset_bytes - len(self._waiting)
        is_begin = is_first or offset_bytes == 0
        request = messages.ImportTraceRequest(
            upload_id=self.upload_id if is_first else "",
            file_name=file.file_name if is_begin else "",
            offset_bytes=offset_bytes if is_begin else 0,
            is_further_trace=is_begin and file.is_further_trace,
            chunk=bytes(self._waiting),
            digest=digest,
        )
        self._waiting.clear()
        self._hashes[self._extent] = self._hash.copy()  # before: a line that breaks may have carried the message
        await stream.write(request)

    async def _end_file(self) -> None:
        following = Extent(self._extent.file_index + 1)
        self._hashes[following] = hashlib.sha256()
        await self._send(f"sha256:{self._hash.hexdigest()}")
        self._hash, self._extent, self._there_bytes = hashlib.sha256(), following, 0
        if self._extent.file_index == len(self.files):
            self._finish()

    # ------------------------------------------------------------ after the last byte

    def _finish(self) -> None:
        self.state = ImportState.READING
        self.settled.clear()
        for work in (self._await_run(), self._watch()):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _await_run(self) -> None:
        try:
            if self._stream is None:
                self._stream = await ImportStream.open(self._client)
                await self._stream.write(messages.ImportTraceRequest(upload_id=self.upload_id, is_last=True))
            else:
                await self._stream.write(messages.ImportTraceRequest(is_last=True))
            answer = await self._stream.answer()
        except UnavailableError as error:
            async with self._lock:
                try:
                    await self._go_back(error)
                except KernalyseError:
                    return
        except KernalyseError as error:
            if self.state is not ImportState.CANCELLED:
                self._end(ImportState.FAILED, error.message)
        else:
            self.run, self.is_known = decode(answer.run, Run), answer.is_known
            self._end(ImportState.DONE)

    async def _watch(self) -> None:
        """Tells what becomes of it, as long as the analyzer says so."""

        async def watch(stub: Any) -> None:
            async for response in stub.WatchImport(messages.WatchImportRequest(upload_id=self.upload_id)):
                self.progress = decode(response.progress, ImportProgress)
                if not self.state.is_final and self.state is not ImportState.RECEIVING:
                    self.state = ImportState.STORING if self.progress.stage is ImportStage.STORING else ImportState.READING
                self._on_change()

        try:
            await self._client.call(watch)
        except KernalyseError:
            return  # _await_run says what has happened

    # ------------------------------------------------------------ lines that break

    async def _go_back(self, cause: UnavailableError) -> None:
        """To what the analyzer has of it. Raises the cause when it stays away, its refusal when it lets the sender in no more."""
        self._stream = None
        try:
            there = await self._client.call(self._resume)
        except (ForbiddenError, UnauthenticatedError) as error:
            self._end(ImportState.FAILED, error.message)
            raise
        except (KernalyseError, TimeoutError):
            self._end(ImportState.FAILED, cause.message)
            raise cause from None
        self._waiting.clear()
        self._there_bytes = 0
        self._extent = Extent(there.whole_file_count, there.offset_bytes)
        self._hash = self._hashes[self._extent].copy()
        self.progress = ImportProgress()
        if self._extent.file_index == len(self.files):
            self._finish()
            return
        self.state = ImportState.RECEIVING
        self.settled.set()
        self._on_change()

    async def take_up(self) -> None:
        """Goes on with what a dashboard that has ended began: from the first file on that did not arrive whole.

        Raises KernalyseError when the analyzer stays away.
        """
        async with self._lock:
            try:
                there = await self._client.call(self._resume)
            except (KernalyseError, TimeoutError) as error:
                away = UnavailableError("the analyzer", found="no answer", remedy="Choose the file again when it is back.")
                self._end(ImportState.FAILED, away.message)
                raise away from error
            self._extent, self._there_bytes = Extent(there.whole_file_count), there.offset_bytes
            self._hashes[self._extent] = self._hash.copy()
            if self._extent.file_index == len(self.files):
                self._finish()

    async def _resume(self, stub: Any) -> messages.ResumeUploadResponse:
        """What the analyzer has, as soon as it answers: a call on a line that is just breaking fails at once."""
        request = messages.ResumeUploadRequest(upload_id=self.upload_id)
        async with asyncio.timeout(RETURN_TIMEOUT_S):
            while True:
                try:
                    answer: messages.ResumeUploadResponse = await stub.ResumeUpload(request, wait_for_ready=True)
                    return answer
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        """Nobody sends any more: the stream ends, and the analyzer keeps what it has to be resumed."""
        async with self._lock:
            if self.state is ImportState.RECEIVING and self._stream is not None:
                stream, self._stream = self._stream, None
                await stream.cancel()
                silence = UnavailableError("the browser", found="sends no more")
                with suppress(KernalyseError):  # the analyzer stays away: the import has failed, and says so
                    await self._go_back(silence)

    async def cancel(self, client: AnalyzerClient) -> None:
        """Ends it here and at the analyzer, which forgets what has arrived.

        Args:
            client: of the person who cancels it.

        Raises KernalyseError: the analyzer does not let the person, or does not answer.
        """
        if self.state.is_final:
            return

        async def tell(stub: Any) -> None:
            await stub.CancelImport(messages.CancelImportRequest(upload_id=self.upload_id), timeout=RETURN_TIMEOUT_S)

        if self._stream is not None:
            await client.call(tell)
        self._end(ImportState.CANCELLED)
        if self._stream is not None:
            await self._stream.cancel()

    def _end(self, state: ImportState, problem: str = "") -> None:
        self.state, self.problem = state, problem
        self._waiting.clear()
        self._hashes.clear()
        self.settled.set()
        self._on_change()


def _message_end_bytes(offset_bytes: int) -> int:
    """Of the message that has the byte at this offset of its file."""
    return FIRST_CHUNK_BYTES if offset_bytes < FIRST_CHUNK_BYTES else (offset_bytes // CHUNK_BYTES + 1) * CHUNK_BYTES


def _out_of_turn(upload: TraceImport, begin: Extent) -> InvalidRequestError | CancelledError:
    if upload.state is ImportState.CANCELLED:
        return CancelledError(f"import of {upload.files[0].file_name}", found="cancelled")
    return InvalidRequestError(
        f"slice of {upload.files[0].file_name}",
        found=f"file {begin.file_index} from byte {begin.offset_bytes} on",
        expected=f"{upload.extent}",
    )


MAX_LISTED: Final = 40
"""Beyond, ended ones are forgotten, the oldest first; their runs stay in the lists of runs."""

MAX_UNDER_WAY: Final = 64
"""Each holds a stream of the analyzer open."""

SILENCE_S: Final = 60.0
"""Without a byte: the browser has gone. The stream ends, and the analyzer keeps for an hour what has arrived."""


class Imports:
    """On the server's loop."""

    def __init__(self, client: AnalyzerClient) -> None:
        self._client = client
        self._imports: dict[str, TraceImport] = {}
        self._own: dict[Path, asyncio.Task[Run]] = {}
        self._watchers: set[Callable[[], None]] = set()
        self._version = 0

    @property
    def version(self) -> int:
        """Counts changes."""
        return self._version

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Answers with what ends the watching."""
        self._watchers.add(on_change)
        return lambda: self._watchers.discard(on_change)

    def newest_first(self) -> tuple[TraceImport, ...]:
        return tuple(reversed(self._imports.values()))

    def begin(self, files: tuple[FileToImport, ...], client: AnalyzerClient | None = None) -> TraceImport:
        """A new import, or the one of the same files that has broken off.

        Args:
            client: of the person who sends; None: the dashboard's own.

        Raises LimitReachedError.
        """
        for known in self.newest_first():
            if known.files == files and known.state is ImportState.RECEIVING:
                return known
        return self._added(TraceImport(client or self._client, files, self._changed))

    async def take_up(self, files: tuple[FileToImport, ...], upload_id: str, client: AnalyzerClient | None = None) -> TraceImport:
        """One that a dashboard which has ended began. client: as of `begin`.

        Raises KernalyseError: LimitReachedError, or the analyzer stays away.
        """
        known = self._imports.get(upload_id)
        if known is not None:
            return known
        made = self._added(TraceImport(client or self._client, files, self._changed, upload_id))
        await made.take_up()
        return made

    def is_sending(self, path: Path) -> bool:
        """Whether a file of this machine is on its way."""
        return path in self._own

    async def send(self, path: Path, client: AnalyzerClient | None = None) -> Run:
        """Imports a file of this machine; who asks for one that is on its way waits for the same run. client: as of `begin`.

        Raises KernalyseError.
        """
        if path not in self._own:
            self._own[path] = asyncio.ensure_future(self._send(path, client))
        return await asyncio.shield(self._own[path])

    async def _send(self, path: Path, client: AnalyzerClient | None) -> Run:
        try:
            data = await asyncio.to_thread(path.read_bytes)
            upload = self.begin((FileToImport(path.name, len(data), 0),), client)
            while not upload.state.is_final:
                if upload.state is ImportState.RECEIVING:
                    await upload.write(upload.claim(), upload.extent, data[upload.extent.offset_bytes :])
                else:
                    await upload.settled.wait()
        finally:
            del self._own[path]
            self._changed()
        if upload.run is not None:
            return upload.run
        if upload.state is ImportState.CANCELLED:
            raise CancelledError(f"import of {path.name}", found="cancelled")
        raise UnmetConditionError(f"import of {path.name}", found=upload.problem)

    def _added(self, made: TraceImport) -> TraceImport:
        if sum(not known.state.is_final for known in self._imports.values()) >= MAX_UNDER_WAY:
            raise LimitReachedError(
                f"import of {made.files[0].file_name}",
                found=f"{MAX_UNDER_WAY} imports under way",
                expected="fewer",
                remedy="Wait until one has ended, or cancel one.",
            )
        self._imports[made.upload_id] = made
        ended = [known.upload_id for known in self._imports.values() if known.state.is_final]
        for upload_id in ended[: max(0, len(self._imports) - MAX_LISTED)]:
            del self._imports[upload_id]
        self._changed()
        return made

    def find(self, upload_id: str) -> TraceImport:
        """Raises NotFoundError."""
        found = self._imports.get(upload_id)
        if found is None:
            raise NotFoundError(f"import {upload_id}", found="none of this id here", remedy="Choose the file again.")
        return found

    def forget(self, upload_id: str) -> None:
        """Takes one that has ended from the list."""
        if upload_id in self._imports and self._imports[upload_id].state.is_final:
            del self._imports[upload_id]
            self._changed()

    async def leave_silent(self) -> None:
        """Ends the streams of browsers that have gone."""
        now = time.monotonic()
        silent = [known for known in self._imports.values() if now - known.last_arrival_s > SILENCE_S]
        await asyncio.gather(*(known.leave() for known in silent))

    def _changed(self) -> None:
        self._version += 1
        for watcher in tuple(self._watchers):
            watcher()
