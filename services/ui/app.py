"""The dashboard's server: pages, assets and downloads behind the gate, one analyzer client for all tabs."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import json
import logging
import math
import signal
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

import panel as pn
import polars as pl
from bokeh.settings import settings as bokeh_settings
from tornado.web import RequestHandler, StaticFileHandler
from tornado.websocket import WebSocketClosedError

from kernalyse.channel import Endpoint, is_local
from kernalyse.services.core import file_formats
from kernalyse.services.core.errors import InvalidSettingError, KernalyseError, NotFoundError
from kernalyse.services.core.model import HardwareKey
from kernalyse.services.core.rpc import read_or_create_token
from kernalyse.services.core.settings import UiSettings, advertised
from kernalyse.services.ui.access import Access, Gate
from kernalyse.services.ui.allocation import give_back_soon
from kernalyse.services.ui.artifact_download import ArtifactHandler
from kernalyse.services.ui.catalog import PAGES
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.design import DashboardDesign
from kernalyse.services.ui.exports import PATTERN, ExportHandler
from kernalyse.services.ui.kept_charts import chart_directory, take_kept
from kernalyse.services.ui.page_handler import THEME_COOKIE, use_page_handlers
from kernalyse.services.ui.pages.compare import ComparePage
from kernalyse.services.ui.pages.history import HistoryPage
from kernalyse.services.ui.pages.kernels import KernelsPage
from kernalyse.services.ui.pages.layers import LayersPage
from kernalyse.services.ui.pages.live import LivePage
from kernalyse.services.ui.pages.nodes import NodesPage
from kernalyse.services.ui.pages.roofline import RooflinePage
from kernalyse.services.ui.pages.shell import ASSET_DIRECTORY, PageBase, apply_theme, fill_document
from kernalyse.services.ui.pages.start import StartPage
from kernalyse.services.ui.pages.timeline import TimelinePage
from kernalyse.services.ui.preparation import Preparation
from kernalyse.services.ui.session import BrowserSession, UpdatePace
from kernalyse.services.ui.shell import PLACES
from kernalyse.services.ui.state import TABLE_TITLES, ViewState, from_query
from kernalyse.services.ui.tab import Tab, template_of
from kernalyse.services.ui.table_query import table_query
from kernalyse.services.ui.theme import ThemeName
from kernalyse.services.ui.uploads.uploads import Uploads

HEARTBEAT_S: Final = 1.0
"""Between looks at the clock: elapsed and remaining times go on although nothing arrives."""

OPENING_S: Final = 1.0
"""From a page's request until its browser has drawn it."""

UNUSED_SESSION_LIFETIME_MS: Final = 15_000

logger = logging.getLogger(__name__)

PAGE_CLASSES: Final[tuple[type[PageBase], ...]] = (
    LivePage,
    RooflinePage,
    KernelsPage,
    LayersPage,
    TimelinePage,
    ComparePage,
    HistoryPage,
    NodesPage,
    StartPage,
)


async def serve(settings: UiSettings, on_serving: Callable[[], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        on_serving: called on a thread of its own when pages can be opened.

    Raises:
        InvalidSettingError: an address that cannot be bound, or one that others reach without TLS.
    """
    give_back_soon()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_exception_handler(_report)
    dashboard = Dashboard(settings)
    address = dashboard.start()
    try:
        with advertised(settings.announcement_path(), "ui", address, settings.token_file, settings.certificate_file):
            logger.info("Dashboard on %s://%s", "https" if settings.certificate_file else "http", address)
            if on_serving is not None:
                loop.run_in_executor(None, on_serving)
            await stop.wait()
    finally:
        dashboard.stop()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A tab that is closed while an update is on its way is no error; Panel leaves such a write unawaited."""
    if not isinstance(context.get("exception"), WebSocketClosedError):
        loop.default_exception_handler(context)


class Dashboard:
    """Everything of one server process. Made and used on its event loop."""

    def __init__(self, settings: UiSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._sessions: set[BrowserSession] = set()
        self._pace = UpdatePace(settings.update_interval_s)
        self._is_wake_due = False
        self.client = AnalyzerClient(_analyzer_endpoint(settings), self._on_news)
        self._uploads = Uploads(self.client)
        self._server: Any = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._asset_version = _asset_version()
        self._last_opening_time = -math.inf
        self._preparation = Preparation(chart_directory(), self._is_serving)

    def start(self) -> str:
        """Binds and serves; answers with the real address.

        Raises:
            InvalidSettingError: see serve.
        """
        host, port = _host_and_port(self._settings)
        _refuse_open_address(self._settings)
        # Bokeh warns of origins that it is told not to check; the gate has checked them before it sees the request.
        logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
        logging.getLogger("tornado.access").setLevel(logging.WARNING)
        take_kept(chart_directory())
        pn.config.design = DashboardDesign
        use_page_handlers()
        bokeh_settings.perform_document_validation = False  # it takes longer than to make the document
        try:
            self._server = pn.io.server.get_server(
                {f"/{cls.page}": self._opener(cls) for cls in PAGE_CLASSES if cls.page not in PAGES}
                | dict.fromkeys((f"/{place}" for place in PLACES), self._open_tab),
                port=port,
                address=host,
                websocket_origin=["*"],
                location=False,
                show=False,
                start=False,
                unused_session_lifetime=UNUSED_SESSION_LIFETIME_MS,
                extra_patterns=[
                    (r"/assets/[0-9a-f]{12}/(.*)", StaticFileHandler, {"path": str(ASSET_DIRECTORY)}),
                    (r"/assets/(.*)", StaticFileHandler, {"path": str(ASSET_DIRECTORY)}),
                    (rf"/download/{file_formats.FILE_NAME}", _HardwareDownloadHandler, {"client": self.client}),
                    (rf"/download/({'|'.join(TABLE_TITLES)})\.csv", _DownloadHandler, {"client": self.client}),
                    (PATTERN, ExportHandler, {"client": self.client}),
                    *self._uploads.patterns(),
                    (r"/download/artifact", ArtifactHandler, {"client": self.client}),
                ],
                **_tls_options(self._settings),
            )
        except OSError as error:
            raise InvalidSettingError(
                "setting ui.address",
                found=f"{self._settings.address}: {error.strerror or error}",
                expected="an address of this machine that is free",
                remedy="Stop the program that uses it, or choose another.",
            ) from error
        port = self._server.port
        access = Access(
            self._settings.token(), _allowed_hosts(host, port, self._settings.allowed_hosts), self._settings.certificate_file is not None
        )
        # Bokeh's own hooks for access leave its static files open; the router sees every request.
        self._server._http.request_callback = Gate(self._server._tornado, access)
        self._server.start()
        self.client.start()
        # The first page loads what the others stand on: better here than under the first visitor.
        LivePage(self.client, ViewState())
        # What was loaded so far stays: without it a full collection takes a fifth of the time, and no page waits a quarter second.
        gc.collect()
        gc.freeze()
        self._heartbeat = self._loop.create_task(self._beat())
        self._preparation.start()
        return f"{self._settings.address.rpartition(':')[0]}:{port}"

    def stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._preparation.stop()
        self._server.unlisten()
        self._server.stop()
        self._uploads.close()
        self.client.stop()

    # ------------------------------------------------------------ pages

    def _opener(self, page_class: type[PageBase]) -> Any:
        def open_page() -> None:
            self._open_page(page_class)

        return open_page  # Panel takes plain functions only, no partials; None leaves the document as it was made

    def _open_tab(self) -> Any:
        document: Any = pn.state.curdoc
        request = document.session_context.request
        query = {name: values[-1].decode(errors="replace") for name, values in request.arguments.items()}
        if THEME_COOKIE in request.cookies:
            query.setdefault("theme", request.cookies[THEME_COOKIE])
        tab = Tab(document, self.client, request.path.strip("/"), query, self._pace, self._sessions.discard, self._uploads)
        self._sessions.add(tab)
        return template_of(tab)

    def _is_serving(self) -> bool:
        return self._loop.time() - self._last_opening_time < OPENING_S

    def _open_page(self, page_class: type[PageBase]) -> None:
        self._last_opening_time = self._loop.time()
        document: Any = pn.state.curdoc
        request = document.session_context.request
        arguments = {name: [value.decode(errors="replace") for value in values] for name, values in request.arguments.items()}
        cookie_theme: ThemeName = "dark" if request.cookies.get(THEME_COOKIE) == "dark" else "light"
        state: ViewState = from_query(arguments, cookie_theme)
        page = StartPage(self.client, state, self._uploads) if page_class is StartPage else page_class(self.client, state)
        apply_theme(document, page.palette)
        session = BrowserSession(document, page, self._pace, self._sessions.discard)
        page.on_wake = session.wake
        self._sessions.add(session)
        fill_document(document, page, session.bridge, session.first_fragments, self._asset_version)

    # ------------------------------------------------------------ news

    def _on_news(self) -> None:
        """On the client's thread: one wake-up of the loop, however much arrives before it."""
        if not self._is_wake_due:
            self._is_wake_due = True
            self._loop.call_soon_threadsafe(self._wake_sessions)

    def _wake_sessions(self) -> None:
        self._is_wake_due = False
        for session in tuple(self._sessions):
            session.wake()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._uploads.imports.leave_silent()
            if any(not run.state.is_final for run in self.client.nodes.overview().runs):
                self._wake_sessions()


class _DownloadHandler(RequestHandler):
    """A table as CSV: the rows that the Kernels page shows, all of them."""

    def initialize(self, client: AnalyzerClient) -> None:
        self._client = client

    async def get(self, table_name: str) -> None:
        state = from_query({**parse_qs(self.request.query), "table": [table_name]})
        try:
            answer = await self._client.table(table_query(state, limit=0))
        except KernalyseError as error:
            self.set_status(502)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(error.message + "\n")
            return
        text = await asyncio.to_thread(_csv, answer.rows)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{table_name}.csv"')
        self.finish(text)


class _HardwareDownloadHandler(RequestHandler):
    """What is known of a device, as the file that tools for lists of operations read."""

    def initialize(self, client: AnalyzerClient) -> None:
        self._client = client

    async def get(self) -> None:
        key = HardwareKey(*(self.get_query_argument(name, "") for name in ("node", "device", "run")))
        try:
            hardware = await self._client.hardware(key)
        except KernalyseError as error:
            self.set_status(404 if isinstance(error, NotFoundError) else 502)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(error.message + "\n")
            return
        members = file_formats.to_roofline_config(hardware, self.get_query_argument("dtype", ""))
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{file_formats.FILE_NAME}"')
        self.finish(json.dumps(members, indent=4) + "\n")


def _csv(rows: pl.DataFrame) -> bytes:
    """Text that a spreadsheet would take for a formula gets an apostrophe: names come from users."""
    texts = [name for name, kind in rows.schema.items() if kind == pl.String]
    safe = rows.with_columns(
        pl.when(pl.col(name).str.contains(r"^[=+\-@\t\r]")).then("'" + pl.col(name)).otherwise(pl.col(name)).alias(name) for name in texts
    )
    buffer = io.BytesIO()
    safe.write_csv(buffer)
    return buffer.getvalue()


def _analyzer_endpoint(settings: UiSettings) -> Endpoint:
    token = read_or_create_token(settings.analyzer_token_file or settings.token_file)
    client_pair = settings.certificate_pair("analyzer_client_certificate_file", "analyzer_client_key_file")
    return Endpoint(settings.analyzer_address, token, settings.contents("analyzer_ca_file"), *client_pair)


def _host_and_port(settings: UiSettings) -> tuple[str, int]:
    host, _, port = settings.address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettingError(
            "setting ui.address", found=repr(settings.address), expected="host:port", remedy="For example 127.0.0.1:7003."
        )
    return host.strip("[]"), int(port)


def _refuse_open_address(settings: UiSettings) -> None:
    if settings.certificate_file is None and not is_local(settings.address) and not settings.insecure:
        raise InvalidSettingError(
            f"listen address {settings.address}",
            found="an address that other machines can reach, without TLS",
            expected="loopback or a certificate",
            remedy="Set certificate and key, or say --insecure to send token and results in the clear.",
        )


def _allowed_hosts(host: str, port: int, further: tuple[str, ...]) -> frozenset[str]:
    bound = f"[{host}]" if ":" in host else host
    own = {f"{name}:{port}" for name in (bound, "localhost", "127.0.0.1", "[::1]")}
    return frozenset({*own, *(name.lower() for name in further)})


def _tls_options(settings: UiSettings) -> dict[str, Any]:
    if settings.certificate_pair() == (None, None):
        return {}
    return {"ssl_certfile": str(settings.certificate_file), "ssl_keyfile": str(settings.key_file)}


def _asset_version() -> str:
    """Changes with the assets, so that browsers never mix those of two versions."""
    content = b"".join(path.read_bytes() for path in sorted(ASSET_DIRECTORY.iterdir()))
    return hashlib.sha256(content).hexdigest()[:12]
