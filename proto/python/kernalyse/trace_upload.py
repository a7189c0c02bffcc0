"""A file and what belongs to it, sent to ImportTrace."""

from __future__ import annotations

import errno
import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from kernalyse.v1 import analyzer_service_pb2 as messages

CHUNK_BYTES: Final = 1024 * 1024
MAX_RESUMPTION_COUNT: Final = 10
"""A line that breaks more often within one file needs a person."""

RETURN_TIMEOUT_S: Final = 20.0
"""For a line to come back: a network that changes takes seconds. Longer, and who watches takes it for hanging."""

COMPANION_FOLDERS: Final = ("-bin", "-freqs-bin")
"""What NVBench's --jsonbin adds to the name of its document for the folders of binary samples beside it."""


TABLE_ENDINGS: Final = (".parquet", ".arrow")
"""Of the files in a folder that is one trace. The first file tells what the trace is: one of these has to come first."""

COMPANION_FILE: Final = "roofline_config.json"
"""Beside a list of operations or kernels: what their device can do at most."""

LIST_HEAD_BYTES: Final = 1024


def companions_of(path: Path) -> list[Path]:
    """Files that belong to a trace by what they are called and where they lie. Raises OSError."""
    folders = (path.with_name(path.name + ending) for ending in COMPANION_FOLDERS)
    found = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()) if file.is_file()]
    config = path.with_name(COMPANION_FILE)
    return [*found, *([config] if config != path and config.is_file() and _is_list(path) else [])]


def _is_list(path: Path) -> bool:
    """A JSON list or a CSV table: other traces that lie in the same folder have no use for ceilings."""
    if path.suffix.lower() == ".csv":
        return True
    with path.open("rb") as file:
        return file.read(LIST_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


class TraceUpload:
    """One trace on its way out.

    Files that `companions_of` finds go with it; names inside it are not followed anywhere, for whoever wrote
    it could name any file of this machine.

    Args:
        path: of the trace; of a folder that is one, as Nsight Systems exports them, all files go, tables first.
        reports: of ncu, of the same program; the analyzer knows them by what is in them.
        on_sent: called with the bytes of each part once it is taken.

    Raises:
        OSError: the trace is not there.
    """

    def __init__(self, path: Path, on_sent: Callable[[int], None], reports: Sequence[Path] = ()) -> None:
        of_trace = _files_of_folder(path) if path.is_dir() else (path, *companions_of(path))
        self._names = {file: file.relative_to(path.parent).as_posix() for file in of_trace} | {report: report.name for report in reports}
        self._files = (*of_trace, *reports)
        self._on_sent = on_sent
        self._problem: OSError | None = None
        self._upload_id = uuid.uuid4().hex
        self._there = messages.ResumeUploadResponse()  # what the analyzer has of it
        self._sent_bytes = 0
        self.size_bytes = sum(file.stat().st_size for file in self._files)

    def send(self, stub: Any, **options: Any) -> messages.ImportTraceResponse:
        """Calls ImportTrace of a stub. When the line breaks, what the analyzer has already is not sent again.

        Args:
            options: of the call.

        Raises:
            OSError: a file cannot be read.
            grpc.RpcError: the analyzer refuses the trace, or is gone.
        """
        for _ in range(MAX_RESUMPTION_COUNT):
            try:
                return self._stream(stub, options)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or self._sent_bytes == 0:
                    raise
                self._resume(stub, error)
        return self._stream(stub, options)

    def _stream(self, stub: Any, options: dict[str, Any]) -> messages.ImportTraceResponse:
        try:
            # No deadline: a trace of gigabytes takes its time, and keepalive notices an analyzer that is gone.
            response: messages.ImportTraceResponse = stub.ImportTrace(self._requests(), **options)
        except grpc.RpcError:
            if self._problem is not None:
                raise self._problem from None
            raise
        return response

    def _resume(self, stub: Any, error: grpc.RpcError) -> None:
        request = messages.ResumeUploadRequest(upload_id=self._upload_id)
        try:
            self._there = stub.ResumeUpload(request, timeout=RETURN_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError:
            raise error from None

    def _requests(self) -> Iterator[messages.ImportTraceRequest]:
        """Messages, read as they are asked for. An unreadable file ends them early, and the analyzer takes nothing of them."""
        upload_id, offset_bytes = self._upload_id, self._there.offset_bytes
        whole, rest = self._files[: self._there.whole_file_count], self._files[self._there.whole_file_count :]
        try:
            position_bytes = sum(file.stat().st_size for file in whole) + offset_bytes
            for file in rest:
                for request in self._requests_of(file, offset_bytes):
                    request.upload_id, upload_id = upload_id, ""
                    yield request
                    position_bytes += len(request.chunk)
                    self._tell(position_bytes)
                offset_bytes = 0
            yield messages.ImportTraceRequest(upload_id=upload_id, is_last=True)
        except OSError as error:
            self._problem = error

    def _tell(self, position_bytes: int) -> None:
        """What is sent a second time was told of the first time."""
        if position_bytes > self._sent_bytes:
            self._on_sent(position_bytes - self._sent_bytes)
            self._sent_bytes = position_bytes

    def _requests_of(self, path: Path, offset_bytes: int) -> Iterator[messages.ImportTraceRequest]:
        """A file from an offset on; the digest is of all of it."""
        digest = hashlib.sha256()
        request = messages.ImportTraceRequest(file_name=self._names[path], offset_bytes=offset_bytes)
        with path.open("rb") as file:
            while (left_bytes := offset_bytes - file.tell()) > 0 and (chunk := file.read(min(CHUNK_BYTES, left_bytes))):
                digest.update(chunk)
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                request.chunk = chunk
                yield request
                request = messages.ImportTraceRequest()
        request.digest = f"sha256:{digest.hexdigest()}"
        yield request


def _files_of_folder(folder: Path) -> tuple[Path, ...]:
    """Tables first. Raises FileNotFoundError when there are none."""
    files = sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: (file.suffix not in TABLE_ENDINGS, file.name))
    if not files or files[0].suffix not in TABLE_ENDINGS:
        raise FileNotFoundError(errno.ENOENT, "no table in the folder", str(folder))
    return tuple(files)
