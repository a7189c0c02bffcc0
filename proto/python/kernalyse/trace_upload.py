"""Uploads of traces and their companion files through ImportTrace."""

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

from kernalyse.channel import call_with_reconnect
from kernalyse.companions import find_companions
from kernalyse.v1 import analyzer_service_pb2 as messages

CHUNK_BYTES: Final = 1024 * 1024
MAX_RESUMPTION_COUNT: Final = 10
"""A connection that breaks more often during one upload needs a person's attention."""

CANCEL_TIMEOUT_S: Final = 2.0  # longer is too long after Ctrl-C

TABLE_ENDINGS: Final = (".parquet", ".arrow")
"""Suffixes of tables. The first file of a trace determines its format, so in a directory one of these must come first."""


@dataclass(frozen=True, slots=True)
class OutgoingTrace:
    """One trace of an upload.

    path: of its file, or of its directory, for exports of Nsight Systems.
    companions: further files of it from elsewhere, sent by name only, such as ncu reports of the same program.
    """

    path: Path
    companions: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class _OutgoingFile:
    """One file of an upload, and the name that the analyzer sees."""

    path: Path
    file_name: str
    is_further_trace: bool = False


class TraceUpload:
    """An upload of the traces of one run: a single one, or those of the processes of a job.

    Files that `find_companions` finds are sent with them. Paths inside a trace are never followed, because its author could
    name any file of this machine.

    Args:
        traces: at least one.
        on_sent: called with the number of bytes of each chunk once it is accepted.
        on_progress: called with the progress of the import afterwards, in a thread of its own.
        source_id: identifies what the traces are a state of; the run of an earlier state receives their rows. Empty: by their content.

    Raises:
        OSError: a trace does not exist, or is no trace.
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
        self._received = messages.ResumeUploadResponse()  # what the analyzer already has
        self._sent_bytes = 0
        self.size_bytes = sum(file.path.stat().st_size for file in self._files)

    def send(self, stub: Any, **options: Any) -> messages.ImportTraceResponse:
        """Call ImportTrace of a stub; after a broken connection, data that the analyzer has already are not sent again.

        An interrupt (Ctrl-C) also cancels the import at the analyzer, and leaves nothing there.

        Args:
            stub: of the analyzer service.
            options: of the call.

        Raises:
            OSError: a file cannot be read.
            grpc.RpcError: the analyzer rejects the trace, or cannot be reached.
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
        # No deadline: gigabytes take long, and keepalive detects an analyzer that is gone.
        call = stub.ImportTrace.future(self._requests(), **options)
        try:
            response: messages.ImportTraceResponse = call.result()
        except grpc.RpcError:
            if self._problem is not None:
                raise self._problem from None
            raise
        except KeyboardInterrupt:
            with suppress(grpc.RpcError):  # after a mere close, the analyzer would keep the data for a resumption
                stub.CancelImport(messages.CancelImportRequest(upload_id=self._upload_id), timeout=CANCEL_TIMEOUT_S)
            raise
        finally:
            call.cancel()
        return response

    @contextmanager
    def _watched(self, stub: Any) -> Iterator[None]:
        """Report the progress of the import while the block runs."""
        if self._on_progress is None:
            yield
            return
        call = stub.WatchImport(messages.WatchImportRequest(upload_id=self._upload_id), wait_for_ready=True)
        thread = threading.Thread(target=_report_each, args=(call, self._on_progress), daemon=True)
        thread.start()
        try:
            yield
        finally:
            call.cancel()
            thread.join()

    def _resume(self, stub: Any, error: grpc.RpcError) -> None:
        try:
            self._received = call_with_reconnect(stub.ResumeUpload, messages.ResumeUploadRequest(upload_id=self._upload_id))
        except grpc.RpcError:
            raise error from None

    def _requests(self) -> Iterator[messages.ImportTraceRequest]:
        """Yield the messages, reading files as needed; an unreadable file ends them early, and the analyzer discards the upload."""
        upload_id, source_id, offset_bytes = self._upload_id, self._source_id, self._received.offset_bytes
        complete, rest = self._files[: self._received.whole_file_count], self._files[self._received.whole_file_count :]
        try:
            position_bytes = sum(file.path.stat().st_size for file in complete) + offset_bytes
            for file in rest:
                for request in self._requests_of(file, offset_bytes):
                    request.upload_id, upload_id = upload_id, ""
                    request.source_id, source_id = source_id, ""
                    yield request
                    position_bytes += len(request.chunk)
                    self._report(position_bytes)
                offset_bytes = 0
            yield messages.ImportTraceRequest(upload_id=upload_id, source_id=source_id, is_last=True)
        except OSError as error:
            self._problem = error

    def _report(self, position_bytes: int) -> None:
        """Report how much was sent; repeated data were already reported."""
        if position_bytes > self._sent_bytes:
            self._on_sent(position_bytes - self._sent_bytes)
            self._sent_bytes = position_bytes

    def _requests_of(self, outgoing: _OutgoingFile, offset_bytes: int) -> Iterator[messages.ImportTraceRequest]:
        """Yield a file from an offset on; the digest covers all of it."""
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


def _report_each(call: Iterable[messages.WatchImportResponse], on_progress: Callable[[messages.ImportProgress], None]) -> None:
    with suppress(grpc.RpcError):  # the import has ended, or the analyzer is gone: ImportTrace says which
        for response in call:
            on_progress(response.progress)


def _files(traces: Sequence[OutgoingTrace]) -> Iterator[_OutgoingFile]:
    """Yield each trace with its companions; with several traces, the directories in which they differ become part of their names."""
    common_directory = Path(os.path.commonpath([trace.path.absolute().parent for trace in traces]))
    for number, trace in enumerate(traces):
        path = trace.path.absolute()
        first, *others = _tables_of(path) if path.is_dir() else (path, *find_companions(path))
        yield _OutgoingFile(first, first.relative_to(common_directory).as_posix(), is_further_trace=number > 0)
        for file in others:
            yield _OutgoingFile(file, file.relative_to(path.parent).as_posix())
        for companion in trace.companions:
            yield _OutgoingFile(companion, companion.name)


def _tables_of(directory: Path) -> list[Path]:
    """Return all files of a directory that is one trace, tables first.

    Raises:
        FileNotFoundError: it has no table.
    """
    files = sorted((file for file in directory.iterdir() if file.is_file()), key=lambda file: (file.suffix not in TABLE_ENDINGS, file.name))
    if not files or files[0].suffix not in TABLE_ENDINGS:
        raise FileNotFoundError(errno.ENOENT, "no table in the directory", str(directory))
    return files
