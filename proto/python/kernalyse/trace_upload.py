"""A file and what belongs to it, sent to ImportTrace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc

from kernalyse.v1 import analyzer_service_pb2 as messages

CHUNK_BYTES: Final = 1024 * 1024
COMPANION_FOLDERS: Final = ("-bin", "-freqs-bin")
"""What NVBench's --jsonbin adds to the name of its document for the folders of binary samples beside it."""


class TraceUpload:
    """One trace on its way out.

    Files in folders that are named after the trace go with it; names inside it are not followed anywhere, for whoever wrote
    it could name any file of this machine.

    Args:
        path: of the trace.
        on_sent: called with the bytes of each part once it is taken.

    Raises:
        OSError: the trace is not there, or no file.
    """

    def __init__(self, path: Path, on_sent: Callable[[int], None]) -> None:
        folders = (path.with_name(path.name + ending) for ending in COMPANION_FOLDERS)
        companions = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()) if file.is_file()]
        self._folder = path.parent
        self._files = (path, *companions)
        self._on_sent = on_sent
        self._problem: OSError | None = None
        self.size_bytes = sum(file.stat().st_size for file in self._files)

    def send(self, method: Callable[..., Any], **options: Any) -> messages.ImportTraceResponse:
        """Calls ImportTrace of a stub.

        Raises:
            OSError: a file cannot be read.
            grpc.RpcError: the analyzer refuses the trace, or is gone.
        """
        try:
            # No deadline: a trace of gigabytes takes its time, and keepalive notices an analyzer that is gone.
            response: messages.ImportTraceResponse = method(self._requests(), **options)
        except grpc.RpcError:
            if self._problem is not None:
                raise self._problem from None
            raise
        return response

    def _requests(self) -> Iterator[messages.ImportTraceRequest]:
        """Messages, read as they are asked for. An unreadable file ends them early, and the analyzer takes nothing of them."""
        try:
            for file in self._files:
                yield from self._requests_of(file)
        except OSError as error:
            self._problem = error

    def _requests_of(self, path: Path) -> Iterator[messages.ImportTraceRequest]:
        digest = hashlib.sha256()
        name = path.relative_to(self._folder).as_posix()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                yield messages.ImportTraceRequest(file_name=name, chunk=chunk)
                self._on_sent(len(chunk))
                name = ""
        yield messages.ImportTraceRequest(file_name=name, digest=f"sha256:{digest.hexdigest()}")
