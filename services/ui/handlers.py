"""What the server answers with: pages and the socket that keeps them up to date, and files to download. All stand behind the gate."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Final, cast
from urllib.parse import parse_qsl

import polars as pl
from bokeh.document import Document
from bokeh.server import urls
from panel.io.server import DocHandler, WSHandler
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler, StaticFileHandler

from kernalyse.services.core import file_formats
from kernalyse.services.core.errors import InvalidRequestError, KernalyseError, NotFoundError
from kernalyse.services.core.model import Filter, HardwareKey, TableQuery
from kernalyse.services.core.report import ReportFormat
from kernalyse.services.ui.access import LINK_PATHS, MAX_LINK_DAYS, MAX_LINK_LENGTH, Access
from kernalyse.services.ui.data.filters import table_query
from kernalyse.services.ui.data.table_columns import TABLE_TITLES, TableName
from kernalyse.services.ui.shell import ASSET_DIRECTORY, PLACES, frame_of
from kernalyse.services.ui.uploads.handlers import ClientOf
from kernalyse.services.ui.view import TableView, View

THEME_COOKIE: Final = "kernalyse_theme"
REPORT: Final = rf"/export/([\w.-]+)\.({'|'.join(ReportFormat)})"
"""Run and format. With ?against=RUN the comparison, ?allow=device,… as `kernalyse export --allow`."""

HARMLESS: Final = "application/octet-stream"
"""Whatever a file is: a browser must never show as a page of ours what a compiler or a program wrote."""

CONTENT_TYPES: Final = {
    ReportFormat.TEXT: "text/plain; charset=utf-8",
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.PDF: "application/pdf",
    ReportFormat.PPTX: "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ReportFormat.PNG: "application/zip",
    ReportFormat.SVG: "application/zip",
}


def patterns(client_of: ClientOf, access: Access) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return paths, handlers and their arguments of all files, for the server. client_of: of the person who has sent a request."""
    assets, asked = {"path": str(ASSET_DIRECTORY)}, {"client_of": client_of}
    return [
        (r"/assets/[0-9a-f]{12}/(.*)", StaticFileHandler, assets),
        (r"/assets/(.*)", StaticFileHandler, assets),
        (rf"/download/{file_formats.FILE_NAME}", _HardwareHandler, asked),
        (rf"/download/({'|'.join(TABLE_TITLES)})\.csv", _TableHandler, asked),
        (r"/download/artifact", ArtifactHandler, asked),
        (REPORT, _ReportHandler, asked),
        (r"/link", _LinkHandler, {"access": access}),
    ]


# ---------------------------------------------------------------- pages


class PageHandler(DocHandler):
    """The frame of a page at once; at the same path with a slash at its end the page, as Panel's own handler makes it."""

    expect: ClassVar[Callable[[], None]]
    """Told of each frame that is sent: its browser asks for the page next."""

    settle: ClassVar[Callable[[Document], Awaitable[None]]]
    """Waits until a new document has what its page shows. The browser reads Bokeh's and Panel's scripts meanwhile."""

    person_of: ClassVar[Callable[[HTTPServerRequest], str]]
    """Returns the name of who has signed in; empty: whoever has the dashboard's own token."""

    frame_ancestors: ClassVar[str] = "'self'"
    """Whose pages may show this one. Browsers take every port of a host for one site: others could frame it and catch clicks."""

    async def get(self, *_arguments: Any, **_values: Any) -> None:
        # A page holds a token that goes out of date: no browser shall take it from its cache.
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/html")
        self.set_header("Content-Security-Policy", f"frame-ancestors {self.frame_ancestors}")
        place = self.request.path.strip("/")
        if self.request.path.endswith("/") or place not in PLACES:
            await cast(Any, super().get())
            return
        theme = "dark" if "dark" in (self.get_query_argument("theme", ""), self.get_cookie(THEME_COOKIE)) else "light"
        self.write(frame_of(place, theme, type(self).person_of(self.request)))
        type(self).expect()

    async def get_session(self) -> Any:
        session: Any = await cast(Any, super().get_session())
        await type(self).settle(session.document)
        return session


class PageSocket(WSHandler):
    """As Panel's own. A message is three writes and more, and Nagle's algorithm would keep the second one back for 40 ms."""

    def open(self, *arguments: Any, **values: Any) -> Any:
        self.set_nodelay(True)
        return super().open(*arguments, **values)


def use_page_handlers(
    frame_ancestors: tuple[str, ...],
    expect: Callable[[], None],
    settle: Callable[[Document], Awaitable[None]],
    person_of: Callable[[HTTPServerRequest], str],
) -> None:
    """Let servers made from now on serve pages by these handlers; Panel puts its own into this list in the same manner.

    Args:
        frame_ancestors: origins of other sites whose pages may show these.
        expect: told of each frame that is sent.
        settle: awaited with each new document before it is told of.
        person_of: returns the name of who has signed in.
    """
    PageHandler.expect = staticmethod(expect)
    PageHandler.settle = staticmethod(settle)
    PageHandler.person_of = staticmethod(person_of)
    PageHandler.frame_ancestors = " ".join(("'self'", *frame_ancestors))
    own: dict[Any, Any] = {DocHandler: PageHandler, WSHandler: PageSocket}
    known: list[Any] = urls.per_app_patterns
    known[:] = [(path, own.get(handler, handler)) for path, handler in known]


class _LinkHandler(RequestHandler):
    """Makes a link that shows one chart to whoever has it, until it ends."""

    def initialize(self, access: Access) -> None:
        self._access = access

    def get(self) -> None:
        address = self.get_query_argument("address", "")
        try:
            days = min(max(float(self.get_query_argument("days", "7")), 0.0), MAX_LINK_DAYS)
        except ValueError:
            days = math.nan
        if math.isnan(days):
            self.set_status(400)
            self.finish(f"A link lasts for a number of days, 0 to {MAX_LINK_DAYS}: set days, or leave it out for 7.\n")
            return
        if not address.startswith(LINK_PATHS) or len(address) > MAX_LINK_LENGTH or not address.isprintable():
            self.set_status(400)
            self.finish(f"A link leads to a chart, {LINK_PATHS}NAME?…, with an address of at most {MAX_LINK_LENGTH} letters.\n")
            return
        path, _, query = address.partition("?")
        link = (
            f"{self.request.protocol}://{self.request.host}{path}?{query}{'&' if query else ''}link={self._access.new_link(address, days)}"
        )
        self.finish({"link": link, "until": time.strftime("%Y-%m-%d", time.gmtime(time.time() + days * 86_400))})


# ---------------------------------------------------------------- files


class _FileHandler(RequestHandler):
    """Answers with a file, or with the reason why not as a sentence."""

    def initialize(self, client_of: ClientOf) -> None:
        self._client = client_of(self.request)

    def offer(self, file_name: str, content_type: str) -> None:
        """Name what follows."""
        self.set_header("Content-Type", content_type)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Disposition", f'attachment; filename="{file_name}"')

    def refuse(self, error: KernalyseError) -> None:
        """Tell why there is no file."""
        self.set_status(404 if isinstance(error, NotFoundError) else 400 if isinstance(error, InvalidRequestError) else 502)
        self.clear_header("Content-Disposition")
        self.clear_header("Content-Length")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(error.message + "\n")


class _TableHandler(_FileHandler):
    """A table as CSV: the rows that a page shows some of, all of them."""

    async def get(self, table_name: str) -> None:
        view, page, query = View(), TableView(), dict(parse_qsl(self.request.query))
        view.read(query)
        page.read(query)
        try:
            answer = await self._client.table(table_query(cast(TableName, table_name), view, page, limit=0))
        except KernalyseError as error:
            self.refuse(error)
            return
        text = await asyncio.to_thread(_csv, answer.rows)
        self.offer(f"{table_name}.csv", "text/csv; charset=utf-8")
        self.finish(text)


class _HardwareHandler(_FileHandler):
    """What is known of a device, as the file that tools for lists of operations read."""

    async def get(self) -> None:
        key = HardwareKey(*(self.get_query_argument(name, "") for name in ("node", "device", "run")))
        try:
            hardware = await self._client.hardware(key)
        except KernalyseError as error:
            self.refuse(error)
            return
        members = file_formats.to_roofline_config(hardware, self.get_query_argument("dtype", ""))
        self.offer(file_formats.FILE_NAME, "application/json; charset=utf-8")
        self.finish(json.dumps(members, indent=4) + "\n")


class _ReportHandler(_FileHandler):
    """A run, or a comparison of two, as a document that the analyzer writes."""

    async def get(self, run_id: str, format_name: str) -> None:
        chosen = ReportFormat(format_name)
        baseline = self.get_query_argument("against", "")
        allowed = tuple(name for name in self.get_query_argument("allow", "").split(",") if name)
        try:
            content = await self._client.report(run_id, chosen, baseline, allowed)
        except KernalyseError as error:
            self.refuse(error)
            return
        self.offer(report_file_name(run_id, baseline, chosen), CONTENT_TYPES[chosen])
        self.finish(content)


class ArtifactHandler(_FileHandler):
    """A file that a run left, passed on part by part, as fast as the browser takes it."""

    _has_begun = False  # a part of the file is on its way

    async def get(self) -> None:
        run_id, name = self.get_query_argument("run", ""), self.get_query_argument("name", "")
        try:
            await self._pass_on(run_id, name)
        except KernalyseError as error:
            if self._has_begun:
                self.detach().close()  # what has come must not look like all of the file
                return
            self.refuse(error)
        except StreamClosedError:
            return  # the browser has gone

    async def _pass_on(self, run_id: str, name: str) -> None:
        """Write the file. Raises KernalyseError; StreamClosedError."""
        size_bytes = await self._announced_size_bytes(run_id, name)
        self.offer("".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name), HARMLESS)
        if size_bytes is not None:
            self.set_header("Content-Length", str(size_bytes))
        async with aclosing(self._client.artifact_parts(run_id, name)) as parts:
            async for part in parts:
                self._has_begun = True
                self.write(part)
                await self.flush()
        self.finish()

    async def _announced_size_bytes(self, run_id: str, name: str) -> int | None:
        """Return how large the file is; None: the run has not told of it."""
        query = TableQuery("artifacts", (run_id,), (Filter("artifact_name", name),), columns=("size_bytes",))
        rows = (await self._client.table(query)).rows
        return None if rows.is_empty() else rows["size_bytes"][-1]


def report_file_name(run_id: str, baseline: str, chosen: ReportFormat) -> str:
    """Return a name of letters, digits, dashes and dots, whatever the runs are called."""
    pictures = f"-{chosen}" if chosen.suffix == ".zip" else ""
    stem = f"{run_id}-against-{baseline}" if baseline else run_id
    return re.sub(r"[^\w.-]", "_", f"kernalyse-{stem}{pictures}{chosen.suffix}", flags=re.ASCII)


def _csv(rows: pl.DataFrame) -> bytes:
    """Return the rows as CSV. Text that a spreadsheet would take for a formula gets an apostrophe: names come from users."""
    texts = [name for name, kind in rows.schema.items() if kind == pl.String]
    safe = rows.with_columns(
        pl.when(pl.col(name).str.contains(r"^[=+\-@\t\r]")).then("'" + pl.col(name)).otherwise(pl.col(name)).alias(name) for name in texts
    )
    buffer = io.BytesIO()
    safe.write_csv(buffer)
    return buffer.getvalue()
