"""Who may open the dashboard: a gate before every page, socket and file.

The token is given once, in the URL or a form; the browser then keeps the id of a session, signed with a key that is derived
from the token, which ends after some weeks. Requests that name another host, or come from a page of another origin, are
refused before anything else. A link to one chart, signed with the same key, shows that chart and nothing else until it ends:
pages of other sites show charts by such links, if the setting allowed_frame_ancestors names these sites.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, Template
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler, create_signed_value, decode_signed_value

from kernalyse.services.core.errors import KernalyseError, UnauthenticatedError
from kernalyse.services.core.identity import tokens_equal
from kernalyse.services.ui.data.client import OWN_SESSION, Session

SESSION_AGE_DAYS: Final = 30
SESSION_ID_BYTES: Final = 18
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
MAX_FORM_BYTES: Final = 16_384
MAX_SESSIONS: Final = 10_000
"""Remembered; the cookie of one that is not begins it anew."""

LINK_PATHS: Final = "/charts/"
LINK_FILES: Final = ("/static/", "/assets/")
"""What every chart is drawn with."""

MAX_LINK_DAYS: Final = 366
MAX_LINK_LENGTH: Final = 2_000
"""Of the address: it stands in a cookie too, which browsers keep up to 4 KiB."""

LINK_ENDED: Final = "This link has ended, or a part of it is missing. In the dashboard the chart's menu makes a new one."
SignInWay = Literal["token", "password", "oidc"]
ID_TOKEN_COOKIE: Final = "id_token"
PROVIDER_COOKIES: Final = (ID_TOKEN_COOKIE, "access_token", "refresh_token", "oauth_expiry", "user")
"""Panel's own, of which only the first is needed, and this once."""

WRONG: Final = {
    "token": "That token is not known here. The dashboard's own is printed at its start and kept in its token file; "
    "the owner of the analyzer issues others.",
    "password": "Name or password are not known here.",
    "oidc": "Here people sign in at an OpenID Connect provider.",
}
NO_LINK: Final = (
    "This chart has not been opened by a link that was made for it, or this browser has not kept the link's cookie. The chart's menu in "
    "the dashboard makes such links; on pages of other sites they work where the dashboard is served over TLS (setting "
    "ui.certificate_file)."
)


@dataclass(frozen=True, slots=True)
class Link:
    """A signed link to one chart. address: path and query. until_s: when it ends, seconds since the epoch."""

    address: str
    until_s: float

    def leads_to(self, request: HTTPServerRequest) -> bool:
        """Return whether it shows what is asked for: its chart, the chart's socket, or a file that all charts are drawn with."""
        path, _, query = self.address.partition("?")
        if request.path.startswith(LINK_FILES) or request.path == f"{path}/ws":
            return True
        return request.path.rstrip("/") == path and request.query == query


class Access:
    """What a request must show.

    Args:
        token: the service's.
        hosts: "host:port" values that the header Host may have, in small letters.
        is_secure: pages are served over TLS.
        clock: seconds since the epoch.
        frame_ancestors: origins of other sites whose pages may show this one.
        sign_in: `AnalyzerClient.sign_in`; None: only the service's own token is known.
        way: how people sign in.
    """

    def __init__(
        self,
        token: str,
        hosts: frozenset[str],
        is_secure: bool,
        clock: Callable[[], float] = time.time,
        frame_ancestors: tuple[str, ...] = (),
        sign_in: Callable[..., Awaitable[Session]] | None = None,
        way: SignInWay = "token",
    ) -> None:
        self.way = way
        self._sign_in = sign_in
        self._token = token
        self.frame_ancestors = frame_ancestors
        self._hosts = hosts
        self.is_secure = is_secure
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._signing_key = hmac.new(token.encode(), b"kernalyse dashboard sessions, version 2", hashlib.sha256).digest()

    def cookie_name(self, request: HTTPServerRequest) -> str:
        """Return the name of the session's cookie: browsers send a cookie to every port of a host, so that its name tells them apart."""
        port = urlsplit(f"//{request.host}").port
        return f"kernalyse_session_{port or (443 if self.is_secure else 80)}"

    def new_session(self, cookie_name: str, session: Session = OWN_SESSION) -> str:
        """Return the cookie's value for a session that begins now. It goes on when the dashboard is restarted: the cookie has all of it."""
        end_unix_s = None if session is OWN_SESSION else session.session_end_unix_s
        said = json.dumps([secrets.token_urlsafe(SESSION_ID_BYTES), session.name, session.scope, session.short_token, end_unix_s])
        return create_signed_value(self._signing_key, cookie_name, said, clock=self._clock).decode()

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
        return self.session_of(request) is not None

    def session_of(self, request: HTTPServerRequest) -> Session | None:
        """Return the session that the request shows, if this service began it and it has not ended."""
        name = self.cookie_name(request)
        if name not in request.cookies:
            return None
        cookie: Any = request.cookies[name]
        value = cookie if isinstance(cookie, str) else cookie.value  # Bokeh's proxy of a request has texts
        said = decode_signed_value(self._signing_key, name, value, max_age_days=SESSION_AGE_DAYS, clock=self._clock)
        session = None if said is None else self._remembered(said.decode())
        return session if session is not None and session.is_valid else None

    def _remembered(self, said: str) -> Session:
        """Return the session of a cookie: the same one for all its requests, for its token is renewed."""
        session_id, person, scope, short_token, end_unix_s = json.loads(said)
        if not short_token:
            return OWN_SESSION
        if session_id not in self._sessions:
            self._sessions[session_id] = Session(person, scope, short_token, session_end_unix_s=end_unix_s)
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[session_id]

    # ------------------------------------------------------------ OpenID Connect

    @property
    def cookie_secret(self) -> bytes:
        """Return the key that signs what Panel's handler keeps in cookies between the steps of a sign-in."""
        return self._signing_key

    def is_for_provider(self, request: HTTPServerRequest) -> bool:
        """Return whether a request begins a sign-in at the provider, or brings its answer back."""
        is_answer = request.path == "/" and "state" in request.query_arguments
        return self.is_host_allowed(request) and request.method == "GET" and (is_answer or request.path == LOGIN_PATH)

    def id_token(self, request: HTTPServerRequest) -> str:
        """Return the provider's token that Panel's handler has put into a cookie; empty: there is none."""
        cookie = request.cookies.get(ID_TOKEN_COOKIE)
        value = None if cookie is None else decode_signed_value(self.cookie_secret, ID_TOKEN_COOKIE, cookie.value, max_age_days=1)
        return "" if value is None else value.decode()

    # ------------------------------------------------------------ links to one chart

    def new_link(self, address: str, days: float) -> str:
        """Return the signature that lets a chart be seen without a session.

        Args:
            address: path and query.
            days: until it ends.
        """
        said = json.dumps([address, self._clock() + days * 86_400])
        return create_signed_value(self._signing_key, "link", said, clock=self._clock).decode()

    def read_link(self, signature: str) -> Link | None:
        """Return the link if this service has signed it and it has not ended."""
        said = decode_signed_value(self._signing_key, "link", signature, max_age_days=MAX_LINK_DAYS, clock=self._clock)
        link = None if said is None else Link(*json.loads(said))
        return link if link is not None and link.until_s > self._clock() else None

    def has_link(self, request: HTTPServerRequest) -> bool:
        """Return whether a link whose cookie the browser shows leads to what is asked for."""
        return any(link is not None and link.leads_to(request) for link in map(self.read_link, self._link_cookies(request)))

    def link_cookie(self, request: HTTPServerRequest, signature: str, link: Link) -> str:
        """Return the header that lets the browser keep the link, also within pages of other sites where that can be."""
        name = f"{self._link_cookie_name(request)}{hashlib.sha256(link.address.encode()).hexdigest()[:12]}"
        is_trusted = self.is_secure or urlsplit(f"//{request.host}").hostname in ("localhost", "127.0.0.1", "::1")
        where = "SameSite=None; Secure; Partitioned" if is_trusted else "SameSite=Strict"
        return f"{name}={signature}; Path=/; HttpOnly; Max-Age={max(0, int(link.until_s - self._clock()))}; {where}"

    def _link_cookie_name(self, request: HTTPServerRequest) -> str:
        return self.cookie_name(request).replace("session", "link") + "_"

    def _link_cookies(self, request: HTTPServerRequest) -> Iterator[str]:
        start = self._link_cookie_name(request)
        for part in request.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name.startswith(start):
                yield value.strip('"')

    def why_not_framed(self, request: HTTPServerRequest) -> str:
        """Return why the page that shows this one in a frame may not; empty: it may, or the browser has not told which page it is."""
        around = urlsplit(request.headers.get("Referer", ""))
        origin = f"{around.scheme}://{around.netloc}".lower()
        if request.headers.get("Sec-Fetch-Dest") != "iframe" or not around.netloc:
            return ""
        own = {f"{'https' if self.is_secure else 'http'}://{host}" for host in self._hosts}
        if origin in own or origin in self.frame_ancestors:
            return ""
        return f"Pages of {origin} may not show this dashboard. Add it to the setting ui.allowed_frame_ancestors."

    async def sign_in(self, token: str = "", name: str = "", password: str = "", id_token: str = "") -> Session:
        """Return the session of whoever signs in; the dashboard's own token opens it with or without an analyzer.

        Raises:
            KernalyseError: the credential is nobody's, or the analyzer does not say.
        """
        if token and self.way == "token":
            if tokens_equal(self._token, token):
                return OWN_SESSION
            if self._sign_in is not None:
                return await self._sign_in(token=token)
        if name and password and self.way == "password" and self._sign_in is not None:
            return await self._sign_in(name=name, password=password)
        if id_token and self.way == "oidc" and self._sign_in is not None:
            return await self._sign_in(id_token=id_token)
        raise UnauthenticatedError("sign-in", found="nothing that is known", expected=f"a {self.way}", remedy="Ask the dashboard's owner.")


class Gate(Router):
    """Leads a request to the pages when it may see them, else to the login form or a refusal.

    Args:
        pages: what is guarded.
        access: says who may see it.
        provider_handler: Panel's, which sends browsers to an OpenID Connect provider and takes its answer; None: there is none.
    """

    def __init__(self, pages: Application, access: Access, provider_handler: type[RequestHandler] | None = None) -> None:
        self._pages = pages
        self._access = access
        # No access log: these are the URLs that may hold the token.
        own: list[Any] = [(r".*", _GateHandler, {"access": access})]
        self._gate = Application(own, log_function=lambda _handler: None)
        self._provider = Application([(r".*", provider_handler)], cookie_secret=access.cookie_secret) if provider_handler else None

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        access = self._access
        may_pass = (
            access.is_host_allowed(request)
            and access.is_origin_allowed(request)
            and (access.has_session(request) or access.has_link(request))
            and request.path not in ("/", LOGIN_PATH, LOGOUT_PATH)
            and not {"token", "link"} & request.query_arguments.keys()
            and not access.why_not_framed(request)
        )
        chosen = self._pages if may_pass else self._gate
        if self._provider is not None and not may_pass and access.is_for_provider(request):
            chosen = self._provider
        delegate: HTTPMessageDelegate | None = chosen.find_handler(request, **kwargs)
        return delegate


class _GateHandler(RequestHandler):
    def initialize(self, access: Access) -> None:
        self._access = access

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")  # with "no-referrer" browsers hide the origin of the form, too
        self.set_header(
            "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'"
        )

    def prepare(self) -> None:
        if not self._access.is_host_allowed(self.request):
            self._refuse(f"This dashboard does not answer to the name {self.request.host!r}. Add it to the setting ui.allowed_hosts.")
        elif not self._access.is_origin_allowed(self.request):
            self._refuse("Pages of other sites may not use this dashboard.")
        elif reason := self._access.why_not_framed(self.request):
            self._refuse(reason)

    async def get(self) -> None:
        target = _without_token(self.request)
        token = self.get_query_argument("token", None)
        link = self.get_query_argument("link", None)
        if self.request.path == LOGOUT_PATH:
            self._log_out()
        elif token is not None:
            await self._log_in(target, token)
        elif link is not None:
            self._open_link(link)
        elif self._access.has_session(self.request):
            self.redirect(target, status=303)
        elif self.request.headers.get("Sec-Fetch-Dest") == "iframe":
            self._refuse(NO_LINK)
        elif self._access.way == "oidc":
            await self._ask_provider(target)
        else:
            self._show_form("" if target == "/live" else target)

    head = get

    async def post(self) -> None:
        if self.request.path != LOGIN_PATH or len(self.request.body) > MAX_FORM_BYTES:
            self._refuse("Only the login form can be sent here.")
            return
        given = (self.get_body_argument(name, "").strip() for name in ("token", "name", "password"))
        await self._log_in(_local(self.get_body_argument("next", "/live")), *given)

    async def _ask_provider(self, target: str) -> None:
        """Take what the provider has said, or send the browser there."""
        id_token = self._access.id_token(self.request)
        if not id_token:
            self.redirect(f"{LOGIN_PATH}?{urlencode({'next': target})}", status=303)
            return
        for name in PROVIDER_COOKIES:
            self.clear_cookie(name, path="/")
        try:
            session = await self._access.sign_in(id_token=id_token)
        except KernalyseError as error:
            self.set_status(401 if isinstance(error, UnauthenticatedError) else 403)
            self.finish(_form().render(target=target, problem=error.message, way="oidc"))
            return
        self._keep(session)
        # The browser comes from another site, and does not show the strict cookie before a page of ours has asked.
        self.finish(_form().render(target=target, problem="", way="done"))

    async def _log_in(self, target: str, token: str, person: str = "", password: str = "") -> None:
        try:
            session = await self._access.sign_in(token, person, password)
        except UnauthenticatedError:
            self._show_form(target, WRONG[self._access.way])
            return
        except KernalyseError as error:
            self._show_form(target, error.message)
            return
        self._keep(session)
        self.redirect(target, status=303)

    def _keep(self, session: Session) -> None:
        """Let the browser keep the session."""
        name = self._access.cookie_name(self.request)
        self.set_cookie(
            name,
            self._access.new_session(name, session),
            expires_days=SESSION_AGE_DAYS,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._access.is_secure,
        )

    def _log_out(self) -> None:
        self.clear_cookie(self._access.cookie_name(self.request), path="/")
        if self._access.way == "oidc":  # the provider would let the browser in again at once
            self.finish(_form().render(target="/live", problem="You are signed out here.", way="oidc"))
        else:
            self.redirect(LOGIN_PATH, status=303)

    def _open_link(self, signature: str) -> None:
        link = self._access.read_link(signature)
        if link is None:
            self._refuse(LINK_ENDED)
            return
        self.add_header("Set-Cookie", self._access.link_cookie(self.request, signature, link))
        self.redirect(_local(link.address), status=303)

    def _show_form(self, target: str, problem: str = "") -> None:
        self.set_status(401)
        self.finish(_form().render(target=target or "/live", problem=problem, way=self._access.way))

    def _refuse(self, sentence: str) -> None:
        """Answer with the sentence, which pages of all sites may show: there is nothing in it to click on."""
        self.set_status(403)
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors *")
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
