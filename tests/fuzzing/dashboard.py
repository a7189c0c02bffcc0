"""Hostile requests to the dashboard: its pages, files, uploads and socket, as bytes on a connection."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final
from urllib.parse import quote

from kernalyse.services.ui.data.table_columns import TABLE_TITLES
from kernalyse.services.ui.shell import PLACES
from tests.browser.socket_viewer import ask, log_in, session_token
from tests.fuzzing.damage import damaged
from tests.fuzzing.messages import TEXTS
from tests.fuzzing.services import Fuzzed

LIMIT_S: Final = 30.0
"""For an answer. A page with charts takes some seconds on a busy machine."""

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
GATEWAY_STATUSES: Final = (502, 503, 504)
"""What the analyzer refuses or does not answer."""

QUERY_NAMES: Final = (
    *("run", "runs", "against", "baseline", "device", "node", "table", "sort", "columns", "filter", "offset", "limit", "theme", "name"),
    *("page", "kernel", "allow", "dtype", "address", "days", "token", "link", "next", "file", "bokeh-session-id", "window", "depth"),
)
SOCKET_KEY: Final = base64.b64encode(b"0123456789abcdef").decode()
KINDS: Final = ("page", *("file",) * 3, *("upload",) * 4, *("slice",) * 4, "kept file", *("malformed",) * 3, "socket")
WORDS: Final = (
    b"\r\n",
    b"\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"%00",
    b"\x00",
    b"\xff\xfe",
    b"[[[[",
    b'{"a":',
    b"null",
    b"1e999",
    b'"\\ud800"',
)
MESSAGE_TYPES: Final = ("PULL-DOC-REQ", "PATCH-DOC", "PUSH-DOC", "SERVER-INFO-REQ", "OK", "ERROR", "NONE", "")
PATCH: Final = {"events": [{"kind": "ModelChanged", "model": {"id": "p1"}, "attr": "acknowledged", "new": 3}]}


class Dashboard:
    """Sends cases and judges what becomes of them."""

    def __init__(self, service: Fuzzed, judge: Callable[..., None]) -> None:
        self._service = service
        self._judge = judge
        self._cookie = log_in(service.endpoint.address, service.endpoint.token)
        host, _, port = service.endpoint.address.rpartition(":")
        self._place = host, int(port)
        self._uploads = [f"{number:032x}" for number in range(3)]

    # ------------------------------------------------------------ cases

    def attempt(self, random: Random) -> tuple[bytes, str]:
        kind = random.choice(KINDS)
        case = {"kind": kind, **getattr(self, f"_{kind.replace(' ', '_')}")(random)}
        return json.dumps(case).encode(), f"ui, {kind}"

    def _page(self, random: Random) -> dict[str, Any]:
        place = random.choice((*PLACES, "", "login", "logout", "nothing", "static/js/bokeh.js", "assets/../../x"))
        return self._request(random, "GET", f"/{place}{random.choice(('', '/', '/autoload.js', '/ws'))}?{self._query(random)}")

    def _file(self, random: Random) -> dict[str, Any]:
        run_id = quote(self._text(random)) or "x"
        paths = (
            f"/download/{random.choice((*TABLE_TITLES, 'nothing'))}.csv",
            *("/download/artifact", "/download/roofline_config.json", "/link"),
            f"/export/{run_id}.{random.choice(('txt', 'md', 'text', 'markdown', 'exe'))}",
        )
        return self._request(random, "GET", f"{random.choice(paths)}?{self._query(random)}")

    def _upload(self, random: Random) -> dict[str, Any]:
        said: Any = {"files": [{"name": "a.json", "size": 10, "modified": 1}], "upload_id": random.choice(("", *self._uploads))}
        files = said["files"]
        values: tuple[Any, ...] = (None, -1, 0, 1e400, 10**40, "x", [], {}, "a" * 5000, True, "../x", "a\0b", "\ud800", 5)
        for _ in range(random.randrange(3)):
            match random.randrange(4):
                case 0:
                    files[0][random.choice(list(files[0]))] = random.choice(values)
                case 1:
                    said[random.choice(list(said))] = random.choice(values)
                case 2 if isinstance(said.get("files"), list):
                    files.extend(files[:1] * random.choice((1, 2000)))
                case _:
                    said = random.choice((said, [said], {"files": [said]}, 7, None, "text"))
                    if not isinstance(said, dict):
                        break
        body = json.dumps(said).encode()
        return self._request(random, "POST", "/imports", _damaged(random, body) if random.random() < 0.3 else body)

    def _slice(self, random: Random) -> dict[str, Any]:
        upload_id = random.choice((*self._uploads, "begun", "begun", "begun", "nothing", "0" * 32))
        numbers = ("0", "1", "7", "-1", "1e3", "9" * 18, "9" * 400, "", "a", "٣", "10")
        query = f"file={quote(random.choice(numbers))}&offset={quote(random.choice(numbers))}"
        method = random.choice(("PUT", "PUT", "PUT", "GET", "DELETE", "POST", "HEAD"))
        return self._request(random, method, f"/imports/{upload_id}?{query}", random.randbytes(random.choice((0, 3, 10, 70_000))))

    def _kept_file(self, random: Random) -> dict[str, Any]:
        return self._request(random, "POST", f"/files?name={quote(self._text(random))}", random.randbytes(random.choice((0, 5, 200_000))))

    def _malformed(self, random: Random) -> dict[str, Any]:
        head = self._request(random, random.choice(("GET", "POST", "PUT", "BREW", "CONNECT")), f"/imports?{self._query(random)}", b"{}")
        return {**head, "raw": base64.b64encode(_damaged(random, base64.b64decode(head["raw"]))).decode(), "is_cut": True}

    def _socket(self, random: Random) -> dict[str, Any]:
        frames = []
        for _ in range(random.randrange(1, 6)):
            header = {
                "msgid": random.choice(("a", "", 5, None)),
                "msgtype": random.choice(MESSAGE_TYPES),
                "num_buffers": random.choice((0, 1, -1)),
            }
            parts = [json.dumps(header), "{}", json.dumps(random.choice((PATCH, {}, [], {"events": [{"kind": "x"}]}, {"doc": 1})))]
            for part in parts:
                payload = _damaged(random, part.encode()) if random.random() < 0.3 else part.encode()
                frames.append((random.choice((1, 1, 1, 1, 2, 9, 8, 3)), payload))
        data = b"".join(_frame(code, payload) for code, payload in frames)
        return {"frames": base64.b64encode(_damaged(random, data) if random.random() < 0.2 else data).decode()}

    def _request(self, random: Random, method: str, target: str, body: bytes = b"") -> dict[str, Any]:
        """A request as bytes; the cookie and the id of an upload are put in when it is sent."""
        length = len(body) if random.random() < 0.85 else random.choice((0, len(body) + 50, -1, 10**15, len(body) // 2))
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._service.endpoint.address}", "Connection: close"]
        if random.random() < 0.95:
            lines.append("Cookie: @cookie@")
        if random.random() < 0.9:
            lines.append("X-Kernalyse-Page: 1")
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {length}")
        if random.random() < 0.1:
            lines.append(
                random.choice(("Transfer-Encoding: chunked", "Origin: http://evil", "Expect: 100-continue", "Content-Encoding: gzip"))
            )
        raw = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
        return {"raw": base64.b64encode(raw).decode(), "is_cut": length > len(body) or b"chunked" in raw or b"100-continue" in raw}

    def _query(self, random: Random) -> str:
        parts = (f"{random.choice(QUERY_NAMES)}={quote(self._text(random))}" for _ in range(random.randrange(5)))
        return "&".join(parts) + random.choice(("", "", "", "&%ff%zz", "&=&&"))

    def _text(self, random: Random) -> str:
        return random.choice((*self._service.ids, *self._service.ids, *TEXTS))[:3000]

    # ------------------------------------------------------------ sending

    def check(self, data: bytes) -> str:
        """Send a case and return how it ended. Raises AssertionError."""
        case = json.loads(data)
        start_s = time.monotonic()
        try:
            ended = (
                self._talked(case)
                if case["kind"] == "socket"
                else self._answered(base64.b64decode(case["raw"]), is_half_closed=case["is_cut"])
            )
            duration_s = time.monotonic() - start_s
            assert duration_s < LIMIT_S, f"{case['kind']}: {ended} after {duration_s:.1f} s"
        finally:
            # Bokeh closes a socket over what is no message of its protocol, and tells of it, perhaps later, by tracebacks of its own.
            self._judge(self._service, case["kind"], traceback_of="/services/")
        return ended

    def _answered(self, raw: bytes, *, is_half_closed: bool) -> str:
        if b"/imports/begun?" in raw:
            raw = raw.replace(b"begun", self._begun().encode(), 1)
        raw = raw.replace(b"@cookie@", self._cookie.encode(), 1)
        answer = self._exchange(raw, is_half_closed=is_half_closed)
        status = re.match(rb"(?:HTTP/1\.1 100 [^\r]*\r\n\r\n)?HTTP/1\.[01] (\d{3}) ", answer)
        if status is None:
            return "closed" if not answer else "no HTTP"
        code = int(status[1])
        assert code < 500 or code in GATEWAY_STATUSES, answer[:2000]
        return status[1].decode()

    def _begun(self) -> str:
        said = {"files": [{"name": "a.json", "size": 100_000, "modified": 1}]}
        answer = ask(
            f"http://{self._service.endpoint.address}/imports", data=json.dumps(said).encode(), Cookie=self._cookie, X_Kernalyse_Page="1"
        )
        return str(json.loads(answer.text)["upload_id"]) if answer.status == 200 else "0" * 32

    def _exchange(self, raw: bytes, *, is_half_closed: bool) -> bytes:
        """Send bytes and return the answer. is_half_closed: no more follows, and the server knows; else it may answer at leisure."""
        with socket.create_connection(self._place, LIMIT_S) as connection:
            answer = bytearray()
            with suppress(OSError):  # it need not read on what it has refused
                connection.sendall(raw)
                if is_half_closed:
                    connection.shutdown(socket.SHUT_WR)
                while (part := connection.recv(65_536)) and len(answer) < MAX_ANSWER_BYTES:
                    answer += part
        return bytes(answer)

    def _talked(self, case: dict[str, Any]) -> str:
        address = self._service.endpoint.address
        page = ask(f"http://{address}/live/", Cookie=self._cookie)
        assert page.status == 200, page.text[:2000]
        lines = (
            *("GET /live/ws HTTP/1.1", f"Host: {address}", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
            *(f"Sec-WebSocket-Key: {SOCKET_KEY}", f"Sec-WebSocket-Protocol: bokeh, {session_token(page.text)}", f"Cookie: {self._cookie}"),
        )
        with socket.create_connection(self._place, LIMIT_S) as connection, suppress(ConnectionError):
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 101"), "no socket"
            connection.sendall(base64.b64decode(case["frames"]))
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                while connection.recv(65_536):
                    pass
                return "closed"
            return "open"
        return "reset"


def _damaged(random: Random, data: bytes) -> bytes:
    return damaged(random, data, [data or b"0"], WORDS)


def _frame(code: int, payload: bytes) -> bytes:
    """A frame of a WebSocket from a client."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    mask = b"\1\2\3\4"
    return bytes([0x80 | code]) + length + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
