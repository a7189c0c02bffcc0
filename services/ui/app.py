"""The dashboard's server: pages and files behind the gate, one analyzer client for all tabs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import signal
import ssl
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import panel as pn
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import bind_sockets
from bokeh.settings import settings as bokeh_settings
from panel.auth import CodeChallengeLoginHandler, GenericLoginHandler
from panel.io.application import build_applications
from panel.io.state import set_curdoc
from prometheus_client.core import Metric
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.web import RequestHandler
from tornado.websocket import WebSocketClosedError

from kernalyse.channel import Endpoint, is_local
from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.identity import Identities, read_or_create_token
from kernalyse.services.core.metrics import Metrics, served
from kernalyse.services.core.settings import RenewedCertificate, UiSettings, advertised
from kernalyse.services.ui import handlers
from kernalyse.services.ui.access import Access, Gate
from kernalyse.services.ui.components.base import is_loop_running
from kernalyse.services.ui.data.client import OWN_SESSION, VISITOR, AnalyzerClient
from kernalyse.services.ui.preparation import Preparation
from kernalyse.services.ui.shell import PLACES, DashboardDesign, frame_of
from kernalyse.services.ui.tab import Tab, UpdatePace
from kernalyse.services.ui.uploads.handlers import Uploads

LARGE_BYTES: Final = 128 * 1024
ARENA_COUNT: Final = 1

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h


def give_back_soon() -> None:
    """Columns of live charts are made anew ten times a second: glibc would keep what they once took, for each thread.

    Does nothing where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((_TRIM_THRESHOLD, LARGE_BYTES), (_MMAP_THRESHOLD, LARGE_BYTES), (_ARENA_MAX, ARENA_COUNT)):
            mallopt(parameter, value)


HEARTBEAT_S: Final = 1.0
"""Between looks at the clock: elapsed and remaining times go on although nothing arrives."""

EXPECTED_S: Final = 2.0
"""For a browser that has the frame of a page to ask for the page."""

UNUSED_SESSION_LIFETIME_MS: Final = 60_000
"""Until a browser that has been given a page asks for its socket: with twenty pages at once on a slow machine that takes half a minute."""
PROVIDER_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


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
        metrics = Metrics("ui")
        metrics.add(partial(dashboard.figures, metrics))
        with (
            served(
                settings.metrics_address,
                metrics,
                Identities(settings.token()).may_read,
                settings.certificate_files,
                is_insecure_allowed=settings.insecure,
            ),
            advertised(settings.announcement_path(), "ui", address, settings.token_file, settings.certificate_file),
        ):
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


FULL_COLLECTION_THRESHOLD: Final = 1_000
"""Collections of the middle generation after which Python thinks of a full one; 10 by default."""


class Dashboard:
    """Everything of one server process. Made and used on its event loop."""

    def __init__(self, settings: UiSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._tabs: set[Tab] = set()
        self._pace = UpdatePace(settings.update_interval_s)
        self._is_wake_due = False
        self.client = AnalyzerClient(_analyzer_endpoint(settings), self._on_news)
        self._uploads = Uploads(self.client)
        self._tls: ssl.SSLContext | None = None
        self._renewed_certificate = RenewedCertificate(settings)
        self._server: BaseServer | None = None
        self._http: HTTPServer | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._expected_until = 0.0
        self._preparation = Preparation(self._is_serving)

    def start(self) -> str:
        """Bind and serve; return the real address.

        Raises:
            InvalidSettingError: see serve.
        """
        settings = self._settings
        host, port = _host_and_port(settings)
        _refuse_open_address(settings)
        # Bokeh warns of origins that it is told not to check; the gate has checked them before it sees the request.
        logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
        logging.getLogger("tornado.access").setLevel(logging.WARNING)
        pn.config.design = DashboardDesign
        handlers.use_page_handlers(settings.allowed_frame_ancestors, self._expect, self._settle, self._person_of)
        bokeh_settings.perform_document_validation = False  # it takes longer than to make the document
        try:
            sockets, port = bind_sockets(host, port)
        except OSError as error:
            raise InvalidSettingError(
                "setting ui.address",
                found=f"{settings.address}: {error.strerror or error}",
                expected="an address of this machine that is free",
                remedy="Stop the program that uses it, or choose another.",
            ) from error
        hosts = _allowed_hosts(host, port, settings.allowed_hosts)
        is_secure = settings.certificate_file is not None
        self._tls = _tls(settings)
        access = self._access = Access(
            settings.token(),
            hosts,
            is_secure,
            frame_ancestors=settings.allowed_frame_ancestors,
            sign_in=self.client.sign_in,
            way=settings.sign_in,
        )
        pages = BokehTornado(
            build_applications({f"/{place}": self._open_tab for place in PLACES}, location=False),
            extra_websocket_origins=["*"],
            extra_patterns=[*handlers.patterns(self._client_of, access), *self._uploads.patterns(self._client_of)],
            unused_session_lifetime_milliseconds=UNUSED_SESSION_LIFETIME_MS,
        )
        # Bokeh's own hooks for access leave its static files open; the gate sees every request.
        self._http = HTTPServer(Gate(pages, access, _provider_handler(settings)), ssl_options=self._tls)
        self._http.add_sockets(sockets)
        self._server = BaseServer(IOLoop.current(), pages, self._http)
        self._server.start()
        self.client.start()
        frame_of(PLACES[0], "light")  # the first page loads what the others stand on: better here than under the first visitor
        # What was loaded so far stays: without it a full collection takes a fifth of the time, and no page waits a quarter second.
        gc.collect()
        gc.freeze()
        # A full collection walks through the documents of all tabs: with sixty of them for half a second. Panel asks for one whenever
        # tabs have ended, so Python's own need to come but rarely.
        youngest, middle, _ = gc.get_threshold()
        gc.set_threshold(youngest, middle, FULL_COLLECTION_THRESHOLD)
        self._heartbeat = self._loop.create_task(self._beat())
        self._preparation.start()
        return f"{settings.address.rpartition(':')[0]}:{port}"

    def figures(self, metrics: Metrics) -> Iterator[Metric]:
        """Yield what Prometheus is told of the dashboard."""
        yield metrics.gauge("tabs", "Browser tabs that are looked at.", self._pace.session_count)
        yield metrics.gauge("update_interval_seconds", "Between two updates of a tab, by what they cost of late.", self._pace.interval_s)

    def stop(self) -> None:
        """End all sessions, and what goes on in the background."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._preparation.stop()
        if self._server is not None and self._http is not None:
            self._http.stop()
            self._server.stop()
        self._uploads.close()
        self.client.stop()

    # ------------------------------------------------------------ pages

    def _open_tab(self) -> Any:
        """Bokeh 3.10 asks for it on another thread: what a tab stands on belongs to the loop."""
        document = pn.state.curdoc
        if is_loop_running():
            return self._opened(document)
        return asyncio.run_coroutine_threadsafe(self._opened_on_loop(document), self._loop).result()

    async def _opened_on_loop(self, document: Any) -> Any:
        with set_curdoc(document):
            return self._opened(document)

    def _opened(self, document: Any) -> Any:
        request = document.session_context.request
        query = {name: values[-1].decode(errors="replace") for name, values in request.arguments.items()}
        if handlers.THEME_COOKIE in request.cookies:
            query.setdefault("theme", request.cookies[handlers.THEME_COOKIE])
        tab = Tab(document, self._client_of(request), request.path.strip("/"), query, self._pace, self._tabs.discard, self._uploads)
        self._tabs.add(tab)
        return tab.template

    def _client_of(self, request: HTTPServerRequest) -> AnalyzerClient:
        """Return the client as it is used for the person who has sent the request."""
        return self.client.acting_for(self._access.session_of(request) or VISITOR)

    def _person_of(self, request: HTTPServerRequest) -> str:
        session = self._access.session_of(request)
        return "" if session is None or session is OWN_SESSION else session.name

    async def _settle(self, document: Any) -> None:
        for tab in tuple(self._tabs):
            if tab.document is document:
                await tab.settle()

    def _expect(self) -> None:
        """A browser has got the frame of a page, and asks for the page next."""
        self._expected_until = self._loop.time() + EXPECTED_S

    def _is_serving(self) -> bool:
        return self._loop.time() < self._expected_until or any(tab.is_opening for tab in tuple(self._tabs))

    # ------------------------------------------------------------ news

    def _on_news(self) -> None:
        """On the client's thread: one wake-up of the loop, however much arrives before it."""
        if not self._is_wake_due:
            self._is_wake_due = True
            self._loop.call_soon_threadsafe(self._wake_tabs)

    def _wake_tabs(self) -> None:
        self._is_wake_due = False
        for tab in tuple(self._tabs):
            tab.wake()

    def _renew_certificate(self) -> None:
        files = self._settings.certificate_file, self._settings.key_file
        if self._tls is not None and files[0] is not None and self._renewed_certificate() is not None:
            try:
                self._tls.load_cert_chain(files[0], files[1])
            except OSError as error:  # replaced once more since it was looked at: the next look finds another pair
                logger.warning("The certificate is not renewed yet: %s", error)

    def _renew_sessions(self) -> None:
        """End what tabs show whose person's token has been revoked; the others' short tokens are renewed when that is due."""
        for tab in tuple(self._tabs):
            client = tab.context.client
            if not client.session.is_valid:
                tab.end("Your session has ended.")
            elif client.session.is_renewal_due:
                tab.context.carry_out(client.renew_session())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._renew_certificate()
            self._renew_sessions()
            await self._uploads.imports.leave_silent()
            if any(not run.state.is_final for run in self.client.nodes.overview().runs):
                self._wake_tabs()


def _analyzer_endpoint(settings: UiSettings) -> Endpoint:
    token = read_or_create_token(settings.analyzer_token_file or settings.token_file)
    client_pair = settings.certificate_pair("analyzer_client_certificate_file", "analyzer_client_key_file")
    return Endpoint(settings.analyzer_address, token, settings.contents("analyzer_ca_file"), *client_pair)


def _provider_handler(settings: UiSettings) -> type[RequestHandler] | None:
    """Return Panel's handler of sign-ins at the provider of the settings, which it is told of; None: people sign in otherwise.

    Raises:
        InvalidSettingError: a setting is missing, or the provider does not answer.
    """
    if settings.sign_in != "oidc":
        return None
    if not settings.oidc_issuer or not settings.oidc_client_id:
        raise InvalidSettingError(
            "setting ui.sign_in",
            found="oidc without a provider",
            expected="oidc_issuer and oidc_client_id",
            remedy="Set both, here and for the analyzer.",
        )
    url = f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        with urllib.request.urlopen(url, timeout=PROVIDER_TIMEOUT_S) as answer:
            found = json.load(answer)
            endpoints = {"AUTHORIZE_URL": found["authorization_endpoint"], "TOKEN_URL": found["token_endpoint"]}
    except (OSError, ValueError, KeyError) as error:
        raise InvalidSettingError(
            "setting ui.oidc_issuer",
            found=f"{url}: {error!r}",
            expected="the configuration of an OpenID Connect provider",
            remedy="Correct the URL, or start the provider.",
        ) from error
    secret = settings.contents("oidc_client_secret_file")
    told = {
        "oauth_key": settings.oidc_client_id,
        "oauth_secret": None if secret is None else secret.decode().strip(),
        "oauth_extra_params": {**endpoints, "scope": ["openid", "email", "profile"]},
        "oauth_jwt_user": "sub",
    }
    for name, value in told.items():
        setattr(pn.config, name, value)  # its properties take values, which its types do not say
    return CodeChallengeLoginHandler if secret is None else GenericLoginHandler


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


def _tls(settings: UiSettings) -> ssl.SSLContext | None:
    settings.certificate_pair()
    if settings.certificate_file is None or settings.key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.certificate_file, settings.key_file)
    return context
