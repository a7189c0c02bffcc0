"""One browser tab: what it was sent, what it has drawn, what it asks for.

The server changes Bokeh sources and `Bridge` and the browser draws; after the animation frame in which an update was drawn
it sets `acknowledged`. A tab that owes two acknowledgements (slow, hidden, or gone) gets nothing until it has caught up,
and then all that is new at once: pages read from memory where they stopped, so nothing piles up for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, cast

import panel as pn
from bokeh.core.properties import Dict, Int, String
from bokeh.document import Document
from bokeh.model import DataModel
from markupsafe import Markup
from panel.io.state import set_curdoc

from kernalyse.services.core.errors import KernalyseError

MAX_UNACKNOWLEDGED: Final = 2
MAX_COMMAND_LENGTH: Final = 100_000
MAX_UPDATE_SHARE: Final = 0.65
"""Of the server's one core for updates of all pages: more delays the pages' own requests, less the updates."""

COST_SMOOTHING_RATIO: Final = 0.1
"""Of a new cost in the average: one slow update must not stop the pages, a busy machine has to show within a second."""

logger = logging.getLogger(__name__)


class Bridge(DataModel):
    """What server and page tell each other besides chart data.

    sent and acknowledged count updates; acknowledged is -1 until the page is ready. fragments: HTML by element id, those
    that changed. query: the URL's query. command: the page's latest wish, JSON.
    """

    sent = Int(default=0)
    acknowledged = Int(default=-1)
    fragments = Dict(String, String, default={})
    query = String(default="")
    command = String(default="")


class View(Protocol):
    """What a page does for its session. Called with the document locked."""

    def update(self) -> dict[str, str]:
        """Brings the page's sources up to date; answers with its fragments, changed or not."""

    def query(self) -> str:
        """The query string of the view shown."""

    def handle(self, name: str, value: str) -> Coroutine[Any, Any, None] | None:
        """Carries out a wish of the user, at once or as a coroutine. Raises KernalyseError."""

    def fail(self, sentence: str) -> None:
        """Shows why a wish was not carried out."""

    def close(self) -> None:
        """The tab is gone."""


class UpdatePace:
    """How long every session waits between two updates of its page, by what updates have cost of late.

    Args:
        min_interval_s: while the server keeps up.
    """

    def __init__(self, min_interval_s: float) -> None:
        self._min_interval_s = min_interval_s
        self._cost_s = 0.0
        self.session_count = 0

    def record(self, cost_s: float) -> None:
        """Processor time of one update: the pace slows down before a queue builds up."""
        self._cost_s += (cost_s - self._cost_s) * COST_SMOOTHING_RATIO

    @property
    def interval_s(self) -> float:
        return max(self._min_interval_s, self.session_count * self._cost_s / MAX_UPDATE_SHARE)


class BrowserSession:
    """Runs a view's updates: at once when the last is long enough ago, else when the interval is over."""

    def __init__(self, document: Document, view: View, pace: UpdatePace, on_close: Callable[[BrowserSession], None]) -> None:
        self.bridge = cast(Any, Bridge())  # its properties are descriptors that no type checker reads
        self._document = document
        self._view = view
        self._pace = pace
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._last_update_time = 0.0
        self._is_scheduled = False
        self._has_news = False
        self._is_closed = False
        try:
            self._sent_fragments = view.update()
        except Exception:
            view.close()
            raise
        pace.session_count += 1
        self._wishes: set[asyncio.Task[None]] = set()
        self.bridge.query = view.query()
        self.bridge.on_change("acknowledged", self._acknowledged)
        self.bridge.on_change("command", self._commanded)
        document.on_session_destroyed(self._closed)

    @property
    def first_fragments(self) -> dict[str, str]:
        """What the page is served with."""
        return self._sent_fragments

    def wake(self) -> None:
        """There may be something new. On the server's loop."""
        self._has_news = True
        if self._is_scheduled or self._is_closed or self._owes_acknowledgements():
            return
        self._is_scheduled = True
        delay_s = self._last_update_time + self._pace.interval_s - self._loop.time()
        self._loop.call_later(max(0.0, delay_s), self._enter_document)

    def _owes_acknowledgements(self) -> bool:
        return bool(self.bridge.acknowledged < 0 or self.bridge.sent - self.bridge.acknowledged >= MAX_UNACKNOWLEDGED)

    def _enter_document(self) -> None:
        if not self._is_closed:
            self._document.add_next_tick_callback(self._update)

    def _update(self) -> None:
        # News that one page has asked for wake all the others in its context: Panel would look at that page's document.
        with set_curdoc(self._document):
            self._update_document()

    def _update_document(self) -> None:
        if not pn.state.loaded:  # Panel holds changes back for ever when they come before the page's first event
            self._loop.call_later(self._pace.interval_s, self._enter_document)
            return
        self._is_scheduled = False
        self._has_news = False
        self._last_update_time = self._loop.time()
        begin_s = time.thread_time()
        # Held together, all changes travel as one message.
        with pn.io.hold(self._document):
            fragments = self._updated()
            changed = {name: html for name, html in fragments.items() if self._sent_fragments.get(name) != html}
            self._sent_fragments = fragments
            if changed:
                self.bridge.fragments = changed
            self.bridge.query = self._view.query()
            self.bridge.sent += 1
        self._pace.record(time.thread_time() - begin_s)

    def _updated(self) -> dict[str, str]:
        """A fault of one view must neither stop its page without a word nor be tried again ten times a second."""
        try:
            return self._view.update()
        except Exception as error:
            logger.exception("A page could not be brought up to date")
            sentence = f"This page could not be brought up to date: {type(error).__name__}. Its server's log has more; reload the page."
            return {**self._sent_fragments, "banner": str(Markup('<div class="banner bad">{}</div>').format(sentence))}

    def _acknowledged(self, _name: str, _old: int, _new: int) -> None:
        if self._has_news or self.bridge.sent == 0:
            self.wake()

    def _commanded(self, _name: str, _old: str, new: str) -> None:
        try:
            wish = json.loads(new[:MAX_COMMAND_LENGTH])
            work = self._view.handle(str(wish["name"]), str(wish["value"]))
        except (ValueError, KeyError, TypeError):
            logger.warning("A page sent a command that is none")
            return
        except KernalyseError as error:
            self._view.fail(error.message)
            work = None
        if work is not None:
            task = asyncio.ensure_future(self._carry_out(work))
            self._wishes.add(task)
            task.add_done_callback(self._wishes.discard)
        self.wake()

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except KernalyseError as error:
            self._view.fail(error.message)
        except Exception as error:
            logger.exception("A wish could not be carried out")
            self._view.fail(f"This could not be done: {type(error).__name__}. The log of the dashboard's server has more.")
        self.wake()

    def _closed(self, _context: Any) -> None:
        self._is_closed = True
        self._pace.session_count -= 1
        for task in self._wishes:
            task.cancel()
        self._view.close()
        self._on_close(self)
