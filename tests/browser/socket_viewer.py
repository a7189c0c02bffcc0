"""A viewer of the dashboard without a browser: takes a page's socket, receives its updates, acknowledges them."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Message
    text: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask(url: str, *, data: bytes | None = None, **headers: str) -> Answer:
    """One request, redirects not followed; underscores in header names stand for hyphens."""
    request = urllib.request.Request(url, data=data, headers={name.replace("_", "-"): value for name, value in headers.items()})
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return Answer(response.status, response.headers, response.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read().decode(errors="replace"))


def in_thread(awaitable: Coroutine[Any, Any, T]) -> T:
    """What it comes to. In a thread of its own: Playwright's loop may be running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, awaitable).result()


def log_in(address: str, token: str) -> str:
    """The cookie that the dashboard gives for the token, as the header Cookie wants it."""
    answer = ask(f"http://{address}/live?token={token}")
    assert answer.status == 303, answer.text
    return str(answer.headers["Set-Cookie"]).partition(";")[0]


def session_token(page: str) -> str:
    """Of the Bokeh session that a page's HTML belongs to."""
    found = re.search(r'"token":"([^"]+)"', page)
    assert found is not None
    return found[1]


async def open_socket(address: str, cookie: str, token: str, **headers: str) -> ClientConnection:
    return await connect(
        f"ws://{address}/live/ws",
        subprotocols=["bokeh", token],  # type: ignore[list-item]
        additional_headers={"Cookie": cookie, **headers},
        max_size=None,
        open_timeout=120,
        ping_interval=None,  # many that open at once keep the server busy for longer than pings wait
        proxy=None,
    )


class SocketViewer:
    """Counts updates. acknowledges: off, it is a tab that has stopped drawing."""

    def __init__(self, address: str, cookie: str, *, acknowledges: bool = True) -> None:
        self._address = address
        self._cookie = cookie
        self._acknowledges = acknowledges
        self._bridge_id = ""
        self._message_count = 0
        self.update_times_s: list[float] = []

    @property
    def update_count(self) -> int:
        return len(self.update_times_s)

    async def watch(self) -> None:
        """Until cancelled."""
        page = await asyncio.to_thread(ask, f"http://{self._address}/live/", Cookie=self._cookie)
        socket = await open_socket(self._address, self._cookie, session_token(page.text))
        async with socket:
            with suppress(asyncio.CancelledError):
                while True:
                    await self._receive(socket)

    async def _receive(self, socket: ClientConnection) -> None:
        header = json.loads(await socket.recv())
        if "msgtype" not in header:
            return
        await socket.recv()  # metadata
        content = json.loads(await socket.recv())
        for _ in range(2 * header.get("num_buffers", 0)):
            await socket.recv()
        match header["msgtype"]:
            case "ACK":
                await self._send(socket, "PULL-DOC-REQ", {})
            case "PULL-DOC-REPLY":
                self._bridge_id = _bridge_id(content)
                ready = {"type": "event", "name": "document_ready", "values": {"type": "map"}}
                event = {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": ready}
                await self._send(socket, "PATCH-DOC", {"events": [event]})
                await self._acknowledge(socket, 0)
            case "PATCH-DOC":
                for event in content["events"]:
                    if event.get("attr") == "sent":
                        self.update_times_s.append(time.monotonic())
                        if self._acknowledges or event["new"] == 0:
                            await self._acknowledge(socket, event["new"])

    async def _acknowledge(self, socket: ClientConnection, count: int) -> None:
        change = {"kind": "ModelChanged", "model": {"id": self._bridge_id}, "attr": "acknowledged", "new": count}
        await self._send(socket, "PATCH-DOC", {"events": [change]})

    async def _send(self, socket: ClientConnection, kind: str, content: dict[str, Any]) -> None:
        self._message_count += 1
        for part in ({"msgid": f"viewer-{self._message_count}", "msgtype": kind}, {}, content):
            await socket.send(json.dumps(part))


async def all_served(viewers: list[SocketViewer], watching: list[asyncio.Task[None]], timeout_s: float = 60) -> None:
    """Returns when each has received an update; watching: their tasks, whose errors are raised."""
    async with asyncio.timeout(timeout_s):
        while not all(viewer.update_count for viewer in viewers):
            await asyncio.sleep(0.1)
            for task in watching:
                if task.done():
                    task.result()


def _bridge_id(content: Any) -> str:
    """Of the Browser in a serialized document, wherever it lies."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if {"links", "address"} <= set(value.get("attributes") or ()) and "id" in value:
                return str(value["id"])
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    raise AssertionError("the document has no Browser")
