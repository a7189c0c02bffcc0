"""Traces and what belongs to them, sent to ImportTrace."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from kernalyse.channel import answer_when_back
from kernalyse.companions import companions_of
from kernalyse.v1 import analyzer_service_pb2 as messages

CHUNK_BYTES: Final = 1024 * 1024
MAX_RESUMPTION_COUNT: Final = 10
"""A line that breaks more often within one file needs a person."""

CANCEL_TIMEOUT_S: Final = 2.0  # who has pressed Ctrl-C waits no longer

TABLE_ENDINGS: Final = (".parquet", ".arrow")
"""Of the files in a folder that is one trace. The first file tells what the trace is: one of these has to come first."""


@dataclass(frozen=True, slots=True)
class OutgoingTrace:
    """One trace of an upload.

    path: of its file, or of the folder that it is, as Nsight Systems exports them.
    companions: further files that belong to it and lie elsewhere, sent by their names alone, as reports of ncu of the same program.
    """

    path: Path
    companions: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class _OutgoingFile:
    """One file of an upload. file_name: what the analyzer is told."""

    path: Path
    file_name: str
    is_further_trace: bool = False


class TraceUpload:
    """Traces of one run on their way out: one, or those of the processes of a job.

    Files that `companions_of` finds go with them; names inside a trace are not followed anywhere, for whoever wrote it could
    name any file of this machine.

    Args:
        traces: at least one.
        on_sent: called with the bytes of each part once it is taken.
        on_progress: called with what becomes of them afterwards, in a thread of its own.
        source_id: what they are a state of; the run of an earlier state takes their rows. Empty: a run by their content.

    Raises:
        OSError: a trace is not there, or is no trace.
    """

    def __init__(
        self,
        traces: Sequence[OutgoingTrace],
        on_sent: Callable[[int], None],
        on_progress: Callable[[messages.ImportProgress], None] | None = None,
        source_id: str = "",
    ) -> None:
        self._source_id = source_id
        self._files = tuple(_files(traces))
        self._on_sent = on_sent
        self._on_progress = on_progress
        self._problem: OSError | None = None
        self._upload_id = uuid.uuid4().hex
        self._there = messages.ResumeUploadResponse()  # what the analyzer has of it
        self._sent_bytes = 0
        self.size_bytes = sum(file.path.stat().st_size for file in self._files)

    def send(self, stub: Any, **options: Any) -> messages.ImportTraceResponse:
        """Call ImportTrace of a stub. When the line breaks, what the analyzer has already is not sent again.

        An interrupt (Ctrl-C) ends the import at the analyzer too, and leaves nothing there.

        Args:
            options: of the call.

        Raises:
            OSError: a file cannot be read.
            grpc.RpcError: the analyzer refuses the trace, or is gone.
        """
        with self._watched(stub):
            for _ in range(MAX_RESUMPTION_COUNT):
                try:
                    return self._stream(stub, options)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or self._sent_bytes == 0:
                        raise
                    self._resume(stub, error)
            return self._stream(stub, options)

    def _stream(self, stub: Any, options: dict[str, Any]) -> messages.ImportTraceResponse:
        # No deadline: a trace of gigabytes takes its time, and keepalive notices an analyzer that is gone.
        call = stub.ImportTrace.future(self._requests(), **options)
        try:
            response: messages.ImportTraceResponse = call.result()
        except grpc.RpcError:
            if self._problem is not None:
                raise self._problem from None
            raise
        except KeyboardInterrupt:
            with suppress(grpc.RpcError):  # closing the stream alone would keep what has arrived, to be resumed
                stub.CancelImport(messages.CancelImportRequest(upload_id=self._upload_id), timeout=CANCEL_TIMEOUT_S)
            raise
        finally:
            call.cancel()
        return response

    @contextmanager
    def _watched(self, stub: Any) -> Iterator[None]:
        """Report what becomes of the import while the block runs."""
        if self._on_progress is None:
            yield
            return
        call = stub.WatchImport(messages.WatchImportRequest(upload_id=self._upload_id), wait_for_ready=True)
        thread = threading.Thread(target=_tell_each, args=(call, self._on_progress), daemon=True)
        thread.start()
        try:
            yield
        finally:
            call.cancel()
            thread.join()

    def _resume(self, stub: Any, error: grpc.RpcError) -> None:
        try:
            self._there = answer_when_back(stub.ResumeUpload, messages.ResumeUploadRequest(upload_id=self._upload_id))
        except grpc.RpcError:
            raise error from None

    def _requests(self) -> Iterator[messages.ImportTraceRequest]:
        """Yield messages, read as they are asked for. An unreadable file ends them early, and the analyzer takes nothing of them."""
        upload_id, source_id, offset_bytes = self._upload_id, self._source_id, self._there.offset_bytes
        whole, rest = self._files[: self._there.whole_file_count], self._files[self._there.whole_file_count :]
        try:
            position_bytes = sum(file.path.stat().st_size for file in whole) + offset_bytes
            for file in rest:
                for request in self._requests_of(file, offset_bytes):
                    request.upload_id, upload_id = upload_id, ""
                    request.source_id, source_id = source_id, ""
                    yield request
                    position_bytes += len(request.chunk)
                    self._tell(position_bytes)
                offset_bytes = 0
            yield messages.ImportTraceRequest(upload_id=upload_id, source_id=source_id, is_last=True)
        except OSError as error:
            self._problem = error

    def _tell(self, position_bytes: int) -> None:
        """Report how much was sent; what is sent a second time was reported the first time."""
        if position_bytes > self._sent_bytes:
            self._on_sent(position_bytes - self._sent_bytes)
            self._sent_bytes = position_bytes

    def _requests_of(self, outgoing: _OutgoingFile, offset_bytes: int) -> Iterator[messages.ImportTraceRequest]:
        """Yield a file from an offset on; the digest is of all of it."""
        digest = hashlib.sha256()
        request = messages.ImportTraceRequest(
            file_name=outgoing.file_name, offset_bytes=offset_bytes, is_further_trace=outgoing.is_further_trace
        )
        with outgoing.path.open("rb") as file:
            while (left_bytes := offset_bytes - file.tell()) > 0 and (chunk := file.read(min(CHUNK_BYTES, left_bytes))):
                digest.update(chunk)
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                request.chunk = chunk
                yield request
                request = messages.ImportTraceRequest()
        request.digest = f"sha256:{digest.hexdigest()}"
        yield request


def _tell_each(call: Iterable[messages.WatchImportResponse], on_progress: Callable[[messages.ImportProgress], None]) -> None:
    with suppress(grpc.RpcError):  # the import has ended, or the analyzer is gone: ImportTrace says which
        for response in call:
            on_progress(response.progress)


def _files(traces: Sequence[OutgoingTrace]) -> Iterator[_OutgoingFile]:
    """Yield each trace with what belongs to it. Of several the folders in which they differ belong to their names."""
    common_folder = Path(os.path.commonpath([trace.path.absolute().parent for trace in traces]))
    for number, trace in enumerate(traces):
        path = trace.path.absolute()
        first, *others = _tables_of(path) if path.is_dir() else (path, *companions_of(path))
        yield _OutgoingFile(first, first.relative_to(common_folder).as_posix(), is_further_trace=number > 0)
        for file in others:
            yield _OutgoingFile(file, file.relative_to(path.parent).as_posix())
        for companion in trace.companions:
            yield _OutgoingFile(companion, companion.name)


def _tables_of(folder: Path) -> list[Path]:
    """Return all files of a folder that is one trace, tables first. Raises FileNotFoundError when there are none."""
    files = sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: (file.suffix not in TABLE_ENDINGS, file.name))
    if not files or files[0].suffix not in TABLE_ENDINGS:
        raise FileNotFoundError(errno.ENOENT, "no table in the folder", str(folder))
    return files
