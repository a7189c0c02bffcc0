"""Everything that browsers send to one dashboard, and what answers them. The gate has checked cookie, host and origin before."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, RequestHandler, stream_request_body

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.uploads.given_files import MAX_FILE_BYTES, GivenFiles, IncomingFile
from kernalyse.services.ui.uploads.imports import Extent, FileToImport, Imports, ImportState, TraceImport

MAX_SLICE_BYTES: Final = 64 * 1024 * 1024
MAX_ANNOUNCEMENT_BYTES: Final = 8 * 1024 * 1024
"""Names and sizes of an import's files; a directory of NVBench's samples has thousands."""

WAITING_S: Final = 25.0
"""For a change, before the page is told to ask again: shorter than what proxies cut off."""

UPLOAD_ID: Final = "[0-9a-f]{32}"

PAGE_HEADER: Final = "X-Kernalyse-Page"
"""No page of another site can set it without asking first, which nobody answers."""


ClientOf = Callable[[HTTPServerRequest], AnalyzerClient]
"""Returns the analyzer's client as it is used for the person who has sent the request."""


class _PageHandler(RequestHandler):
    """Answers JSON, and refusals as sentences."""

    def prepare(self) -> None:
        if self.request.method != "GET" and PAGE_HEADER not in self.request.headers:
            raise HTTPError(403, reason="Only the dashboard's own pages may send files here")

    def refuse(self, status: int, sentence: str) -> None:
        self.set_status(status)
        self.finish({"problem": sentence})


class ImportsHandler(_PageHandler):
    """POST begins an import: its files' names, sizes and times; or goes on with one that a dashboard which has ended began."""

    def initialize(self, imports: Imports, client_of: ClientOf) -> None:
        self._imports = imports
        self._client = client_of(self.request)

    async def post(self) -> None:
        try:
            said = json.loads(self.request.body[:MAX_ANNOUNCEMENT_BYTES])
            files, upload_id = tuple(_file(announced) for announced in said["files"]), said.get("upload_id", "")
            if not files or not re.fullmatch(f"(?:{UPLOAD_ID})?", upload_id):
                raise ValueError(said)
        except (ValueError, KeyError, TypeError, OverflowError):
            return self.refuse(400, "This is no list of files.")
        try:
            begun = self._imports.take_up(files, upload_id, self._client) if upload_id else None
            upload = await begun if begun is not None else self._imports.begin(files, self._client)
        except KernalyseError as error:
            self.refuse(429, error.message)
        else:
            self.finish(answer_of(upload))


@stream_request_body
class ImportHandler(_PageHandler):
    """PUT takes a slice, GET waits for what becomes of the import, DELETE cancels it."""

    def initialize(self, imports: Imports, client_of: ClientOf) -> None:
        self._imports = imports
        self._client = client_of(self.request)
        self._upload: TraceImport | None = None
        self._claim = 0
        self._position = Extent()
        self._error: KernalyseError | None = None

    def prepare(self) -> None:
        super().prepare()
        try:
            self._upload = self._imports.find(self.path_args[0])
        except KernalyseError as error:
            self._error = error
            return
        if self.request.method == "PUT":
            self.request.connection.set_max_body_size(MAX_SLICE_BYTES)  # type: ignore[union-attr]
            self._position = Extent(_number(self.get_query_argument("file")), _number(self.get_query_argument("offset")))
            self._claim = self._upload.claim()

    async def data_received(self, chunk: bytes) -> None:
        if self.request.method == "PUT":
            await self._write(chunk)

    async def put(self, _upload_id: str) -> None:
        if self.request.headers.get("Content-Length") == "0":  # an empty file
            await self._write(b"")
        self._answer()

    async def get(self, _upload_id: str) -> None:
        if self._upload is not None and self._upload.state in (ImportState.READING, ImportState.STORING):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._upload.settled.wait(), WAITING_S)
        self._answer()

    async def delete(self, _upload_id: str) -> None:
        if self._upload is not None:
            try:
                await self._upload.cancel(self._client)
            except KernalyseError as error:
                self._error = error
        self._answer()

    async def _write(self, chunk: bytes) -> None:
        """What follows on a refused part is read and left aside: the answer says where to go on."""
        if self._error is not None or self._upload is None:
            return
        try:
            reached = await self._upload.write(self._claim, self._position, chunk)
        except KernalyseError as error:
            self._error = error
            return
        expected = Extent(self._position.file_index, self._position.offset_bytes + len(chunk))
        self._position = reached if reached == Extent(expected.file_index + 1) else expected

    def _answer(self) -> None:
        """Refused parts are no error of the page: it goes on by what the answer says."""
        if self._upload is None:
            self.refuse(404, self._error.message if self._error else "There is no such import.")
        else:
            self.finish(answer_of(self._upload))


@stream_request_body
class GivenFileHandler(_PageHandler):
    """POST keeps a file for the forms."""

    def initialize(self, files: GivenFiles) -> None:
        self._files = files
        self._incoming: IncomingFile | None = None
        self._error: KernalyseError | None = None

    def prepare(self) -> None:
        super().prepare()
        self.request.connection.set_max_body_size(MAX_FILE_BYTES)  # type: ignore[union-attr]
        try:
            self._incoming = self._files.receive(self.get_query_argument("name"))
        except KernalyseError as error:
            self._error = error

    async def data_received(self, chunk: bytes) -> None:
        if self._incoming is None:
            return
        try:
            await asyncio.to_thread(self._incoming.write, chunk)
        except KernalyseError as error:
            self._error = error
            self._incoming.discard()
            self._incoming = None

    def post(self) -> None:
        if self._incoming is None:
            return self.refuse(400, self._error.message if self._error else "The file could not be kept.")
        kept = self._incoming.end()
        self._incoming = None
        self.finish({"file_id": kept.file_id, "name": kept.name, "size_bytes": kept.size_bytes})

    def on_connection_close(self) -> None:
        if self._incoming is not None:
            self._incoming.discard()


def answer_of(upload: TraceImport) -> dict[str, Any]:
    """What the page goes on by."""
    return {
        "upload_id": upload.upload_id,
        "state": upload.state.value,
        "file": upload.extent.file_index,
        "offset": upload.extent.offset_bytes,
        "problem": upload.problem,
    }


def _file(announced: dict[str, Any]) -> FileToImport:
    """Raises ValueError, KeyError, TypeError, and OverflowError for an infinite number."""
    file = FileToImport(
        str(announced["name"]), int(announced["size"]), int(announced["modified"]), bool(announced.get("is_further_trace", False))
    )
    if not file.file_name or file.size_bytes < 0:
        raise ValueError(announced)
    return file


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise HTTPError(400, reason="Not a number")
    return int(text)


class Uploads:
    """On the server's loop."""

    def __init__(self, client: AnalyzerClient) -> None:
        self.imports = Imports(client)
        self.files = GivenFiles()

    def patterns(self, client_of: ClientOf) -> list[tuple[str, Any, dict[str, Any]]]:
        """Paths, handlers and their arguments, for the server. client_of: of the person who has sent a request."""
        imports = {"imports": self.imports, "client_of": client_of}
        return [
            (r"/imports", ImportsHandler, imports),
            (rf"/imports/({UPLOAD_ID})", ImportHandler, imports),
            (r"/files", GivenFileHandler, {"files": self.files}),
        ]

    def close(self) -> None:
        self.files.close()
