"""Who may open the dashboard: a gate before every page, socket and file.

The token is given once, in the URL or a form; the browser then keeps the id of a session, signed with a key that is derived
from the token, which ends after some weeks. Requests that name another host, or come from a page of another origin, are
refused before anything else.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from functools import cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, Template
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler, create_signed_value, decode_signed_value

from kernalyse.services.core.rpc import tokens_equal

SESSION_AGE_DAYS: Final = 30
SESSION_ID_BYTES: Final = 18
LOGIN_PATH: Final = "/login"
MAX_FORM_BYTES: Final = 16_384


class Access:
    """What a request must show.

    Args:
        token: the service's.
        hosts: "host:port" values that the header Host may have, in small letters.
        is_secure: pages are served over TLS.
        clock: seconds since the epoch.
    """

    def __init__(self, token: str, hosts: frozenset[str], is_secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._hosts = hosts
        self.is_secure = is_secure
        self._clock = clock
        self._signing_key = hmac.new(token.encode(), b"kernalyse dashboard sessions, version 2", hashlib.sha256).digest()

    def cookie_name(self, request: HTTPServerRequest) -> str:
        """Return the name of the session's cookie: browsers send a cookie to every port of a host, so that its name tells them apart."""
        port = urlsplit(f"//{request.host}").port
        return f"kernalyse_session_{port or (443 if self.is_secure else 80)}"

    def new_session(self, cookie_name: str) -> str:
        """Return the cookie's value for a session that begins now."""
        return create_signed_value(self._signing_key, cookie_name, secrets.token_urlsafe(SESSION_ID_BYTES), clock=self._clock).decode()

    def is_host_allowed(self, request: HTTPServerRequest) -> bool:
        return request.headers.get("Host", "").lower() in self._hosts

    def is_origin_allowed(self, request: HTTPServerRequest) -> bool:
        """Browsers send Origin with every socket and every form; programs that send none are no danger to a browser's user."""
        origin = request.headers.get("Origin")
        if origin is None:
            return True
        parts = urlsplit(origin.lower())
        return parts.scheme == ("https" if self.is_secure else "http") and parts.netloc in self._hosts

    def has_session(self, request: HTTPServerRequest) -> bool:
        """Return whether the request shows a session that this service began and that has not ended."""
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(request.headers.get("Cookie", ""))
        except CookieError:
            return False
        name = self.cookie_name(request)
        if name not in cookies:
            return False
        value = cookies[name].value
        return decode_signed_value(self._signing_key, name, value, max_age_days=SESSION_AGE_DAYS, clock=self._clock) is not None

    def is_token(self, given: str) -> bool:
        return tokens_equal(self._token, given)


class Gate(Router):
    """Leads a request to the pages when it may see them, else to the login form or a refusal."""

    def __init__(self, pages: Application, access: Access) -> None:
        self._pages = pages
        self._access = access
        # No access log: these are the URLs that may hold the token.
        self._gate = Application([(r".*", _GateHandler, {"access": access})], log_function=lambda _handler: None)

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        access = self._access
        may_pass = (
            access.is_host_allowed(request)
            and access.is_origin_allowed(request)
            and access.has_session(request)
            and request.path not in ("/", LOGIN_PATH)
            and "token" not in request.query_arguments
        )
        delegate: HTTPMessageDelegate | None = (self._pages if may_pass else self._gate).find_handler(request, **kwargs)
        return delegate


class _GateHandler(RequestHandler):
    def initialize(self, access: Access) -> None:
        self._access = access

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header(
            "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'"
        )

    def prepare(self) -> None:
        if not self._access.is_host_allowed(self.request):
            self._refuse(f"This dashboard does not answer to the name {self.request.host!r}. Add it to the setting ui.allowed_hosts.")
        elif not self._access.is_origin_allowed(self.request):
            self._refuse("Pages of other sites may not use this dashboard.")

    def get(self) -> None:
        target = _without_token(self.request)
        token = self.get_query_argument("token", None)
        if token is not None:
            self._log_in(token, target)
        elif self._access.has_session(self.request):
            self.redirect(target, status=303)
        else:
            self._show_form("" if target == "/live" else target)

    head = get

    def post(self) -> None:
        if self.request.path != LOGIN_PATH or len(self.request.body) > MAX_FORM_BYTES:
            self._refuse("Only the login form can be sent here.")
            return
        self._log_in(self.get_body_argument("token", "").strip(), _local(self.get_body_argument("next", "/live")))

    def _log_in(self, token: str, target: str) -> None:
        if not self._access.is_token(token):
            self._show_form(target, "That is not this dashboard's token. It is printed at the start and kept in the service's token file.")
            return
        name = self._access.cookie_name(self.request)
        self.set_cookie(
            name,
            self._access.new_session(name),
            expires_days=SESSION_AGE_DAYS,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._access.is_secure,
        )
        self.redirect(target, status=303)

    def _show_form(self, target: str, problem: str = "") -> None:
        self.set_status(401)
        self.finish(_form().render(target=target or "/live", problem=problem))

    def _refuse(self, sentence: str) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(sentence + "\n")


def _without_token(request: HTTPServerRequest) -> str:
    """Path and query of the request, the token left out; "/" and the login form lead to the first page."""
    path = "/live" if request.path in ("/", LOGIN_PATH) else request.path
    query = urlencode([(name, value) for name, value in parse_qsl(request.query, keep_blank_values=True) if name != "token"], safe=",")
    return _local(f"{path}?{query}" if query else path)


def _local(target: str) -> str:
    """The target when it stays on this server, else the first page: "//elsewhere" and "/\\elsewhere" are other hosts to a browser."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable() else "/live"


@cache
def _form() -> Template:
    return Environment(autoescape=True).from_string((Path(__file__).parent / "assets" / "login.html").read_text())
