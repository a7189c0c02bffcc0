"""One browser tab: its view, its pages, and when they are brought up to date.

The server changes components and the browser draws; after the animation frame in which an update was drawn it acknowledges it. A tab
that owes two acknowledgements (slow, hidden, or gone) gets nothing until it has caught up, and then all that is new at once: components
read from memory where they stopped, so nothing piles up for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import panel as pn
import param
from bokeh.core.types import ID
from bokeh.document import Document
from panel.io.location import Location
from panel.io.state import set_curdoc

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import Run, RunState
from kernalyse.services.ui.catalog import CHARTS, PAGES
from kernalyse.services.ui.components.base import Component, Text, html, joined
from kernalyse.services.ui.components.chart import ChartTools
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.memory import Overview, RunMemory
from kernalyse.services.ui.data.question import is_asked
from kernalyse.services.ui.shell import Browser, DashboardDesign
from kernalyse.services.ui.theme import PALETTES, Palette
from kernalyse.services.ui.uploads.handlers import Uploads
from kernalyse.services.ui.view import View, to_query

MAX_UNACKNOWLEDGED: Final = 2
MAX_WAIT_S: Final = 0.4
"""For the answers to a page's first questions before it is shown: what is there at once is laid out once."""

MAX_UPDATE_SHARE: Final = 0.85
"""Of the server's one core for updates of all tabs: more delays the pages' own requests, less the updates."""

SETTLE_POLL_S: Final = 0.01
"""Between looks whether answers have come: far below what one update costs."""

OPENING_S: Final = 10.0
"""A browser that has not drawn its first page by then is not coming."""

COST_SMOOTHING_RATIO: Final = 0.1
"""Of a new cost in the average: one slow update must not stop the tabs, a busy machine has to show within a second."""

FILLING: Final = (
    "{% from macros import embed %}{{ embed(roots.banner) }}{% for place in places %}{{ embed(roots[place]) }}{% endfor %}"
    '<div id="browser">{{ embed(roots.browser) }}{{ embed(roots.tools) }}</div>{{ plot_script }}'
)

logger = logging.getLogger(__name__)


class UpdatePace:
    """How long every session waits between two updates of its page, by what updates have cost of late.

    Args:
        min_interval_s: while the server keeps up.
    """

    def __init__(self, min_interval_s: float) -> None:
        self._min_interval_s = min_interval_s
        self._cost_s = 0.0
        self.tabs: set[Tab] = set()

    def record(self, cost_s: float) -> None:
        """Take in what one update took: the pace slows down before a queue builds up."""
        self._cost_s += (cost_s - self._cost_s) * COST_SMOOTHING_RATIO

    @property
    def session_count(self) -> int:
        """Return how many tabs somebody looks at: one that was closed lasts for a while, and costs nothing."""
        return sum(tab.is_served for tab in self.tabs)

    @property
    def interval_s(self) -> float:
        return max(self._min_interval_s, self.session_count * self._cost_s / MAX_UPDATE_SHARE)


class Context:
    """What the components of one tab stand on: the analyzer's client, the view, and the runs that it shows.

    Args:
        wake: has the tab brought up to date soon.
        uploads: what browsers send to the server; None: nothing of others.
    """

    def __init__(
        self, client: AnalyzerClient, view: View, browser: Browser, wake: Callable[[], None], uploads: Uploads | None = None
    ) -> None:
        self.client = client
        self.uploads = uploads or Uploads(client)
        self.browser = browser
        self.secrets: dict[str, str] = {}  # that are typed but not sent; the browser does not keep them
        self._forms: dict[str, tuple[param.Parameterized, tuple[str, ...]]] = {}
        self.view = view
        self.wake = wake
        self.update_count = 0  # another for each update: what several components need is worked out once for it
        self.has_new_inputs = False  # set by what shows other inputs, for this update
        self.problem = ""  # why something that the user asked for was not done, one sentence
        self._memories: dict[str, RunMemory] = {}
        self._used: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def palette(self) -> Palette:
        return PALETTES[self.view.theme]

    @property
    def overview(self) -> Overview:
        """The nodes and the newest runs."""
        return self.client.nodes.overview()

    def shown_run_ids(self) -> list[str]:
        """Return the runs of the view; where it names none, the newest running one, else the newest."""
        runs = self.overview.runs
        newest = next((run for run in runs if run.state is RunState.RUNNING), next(iter(runs), None))
        return self.view.runs or ([] if newest is None else [newest.run_id])

    def memories(self, run_ids: list[str]) -> tuple[RunMemory, ...]:
        """Return what is known of the runs, which are watched from now on, until an update passes in which nobody asks for them."""
        for run_id in run_ids:
            self._used.add(run_id)
            if run_id not in self._memories:
                self._memories[run_id] = self.client.look_at(run_id)
        return tuple(self._memories[run_id] for run_id in run_ids)

    def known_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Return these runs as far as they are known. Only the newest are in the overview: others are looked at for their own sake."""
        newest = {run.run_id: run for run in self.overview.runs}
        found = (newest.get(run_id) or self.memories([run_id])[0].run for run_id in run_ids)
        return [run for run in found if run is not None]

    def keep(self, name: str, form: param.Parameterized, names: Sequence[str]) -> None:
        """Keep what is typed into a form when the page is loaded again, or the server restarted.

        Args:
            name: no other form of the dashboard has it.
            names: of the form's parameters.
        """
        first = {key: getattr(form, key) for key in names}
        found = {**self.browser.found_drafts, **self.browser.drafts}.get(name, {})
        form.param.update(**{key: value for key, value in found.items() if key in names})
        self._forms[name] = (form, tuple(names))

        def changed(*_events: Any) -> None:
            values = {key: getattr(form, key) for key in names if getattr(form, key) != first[key]}
            self.browser.drafts = {**self.browser.found_drafts, **self.browser.drafts, name: values}

        form.param.watch(changed, list(names))

    def find_drafts(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what the browser has kept."""
        for name, (form, names) in self._forms.items():
            form.param.update(**{key: value for key, value in found.get(name, {}).items() if key in names})

    def visit(self, address: str) -> None:
        """Show another view, as a link to it does."""
        self.browser.visited = [address, -self.update_count]  # the browser counts upwards

    def carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that the user asked for; the page says so where it is refused."""
        task = asyncio.ensure_future(self._carried_out(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carried_out(self, work: Coroutine[Any, Any, None]) -> None:
        self.problem = ""
        try:
            await work
        except KernalyseError as error:
            self.problem = error.message
        except Exception as error:
            logger.exception("What a user asked for could not be done")
            self.problem = f"This could not be done: {type(error).__name__}. The log of the dashboard's server has more."
        self.wake()

    @property
    def is_waiting(self) -> bool:
        """Whether something that the page asked for is on its way."""
        overview = self.overview
        return (
            not (overview.is_known or overview.problem)
            or is_asked(self.wake)
            or any(memory.run is None and not memory.problem for memory in self._memories.values())
        )

    def begin_update(self) -> None:
        """Start to count which runs are asked for; an id that a link gave in part is completed."""
        self.update_count += 1
        self.has_new_inputs = False
        self._used.clear()
        known = {run_id: memory.run.run_id for run_id, memory in self._memories.items() if memory.run is not None}
        told = list(dict.fromkeys(known.get(run_id, run_id) for run_id in self.view.runs))
        if told != self.view.runs:
            self.view.runs = told

    def end_update(self) -> None:
        """Look away from the runs that nobody asked for."""
        for run_id in set(self._memories) - self._used:
            del self._memories[run_id]
            self.client.look_away(run_id)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._used.clear()
        self.end_update()


class TabTemplate(pn.Template):
    """A template whose document Bokeh walks through once, not after each part and each of Panel's steps."""

    def __repr__(self) -> str:
        """Return the name alone: Panel asks for it whenever a part is added, and writes down each part with all that is in it."""
        return type(self).__name__

    def server_doc(self, doc: Document | None = None, title: str | None = None, location: bool | Location = True) -> Document:
        """Return the document with the parts as its roots."""
        document = doc or pn.state.curdoc
        assert document is not None
        with document.models.freeze():
            return super().server_doc(document, title, location)


class Tab:
    """Shows pages in one browser tab.

    Args:
        place: path of the first, such as "live" or "charts/roofline".
    """

    def __init__(
        self,
        document: Document,
        client: AnalyzerClient,
        place: str,
        query: Mapping[str, str],
        pace: UpdatePace,
        on_close: Callable[[Tab], None],
        uploads: Uploads | None = None,
    ) -> None:
        self.document = document
        self._entries = PAGES if place in PAGES else {place: CHARTS[place.removeprefix("charts/")]}
        self._views = {name: entry.view() for name, entry in self._entries.items()}
        self._pages: dict[str, Component] = {}  # those that are not shown are hidden, and need not be drawn again
        self._pace = pace
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._last_update_time = 0.0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None  # of what is scheduled; None: it has begun
        self._has_news = False
        self._is_closed = False
        self._fault = ""  # of the page that is shown
        self._end = ""  # why nothing is shown any more
        self._wanted = ""  # address that the user asked for
        self.browser = Browser()
        self.context = Context(client, View(), self.browser, self.wake, uploads)
        self.tools = ChartTools(self._toggle_series, lambda model_id: document.get_model_by_id(ID(model_id)))
        self.banner = Text(classes=("banner", "bad"))
        # Each a root of the document: Bokeh lays all of a root out when something in it changes.
        self.places = {name: pn.Column(visible=name == place, sizing_mode="stretch_width") for name in self._entries}
        self._palette = self.context.palette
        self._opened_time = self._made_time = self._loop.time()  # the latter of the newest page
        self._is_made_only = False  # the newest page is not shown yet
        self.template = self._template()  # while it has no page: Panel writes down what is in it whenever something is added
        self._read(place, query)
        self._show_page()
        for watched in (self.context.view, *self._views.values()):
            watched.param.watch(self._changed, list(watched.names()))
        if place in PAGES:  # a chart that stands alone shows what its address says, for whoever has a link to it
            self.browser.param.watch(self._visited, "visited")
        self.browser.param.watch(self._acknowledged, "acknowledged")
        self.browser.param.watch(self._recolored, "theme")
        self.browser.param.watch(lambda event: self.context.find_drafts(event.new), "found_drafts")
        pace.tabs.add(self)
        document.on_session_destroyed(self._closed)

    def _template(self) -> pn.Template:
        """Return what the frame of the page is filled with."""
        template = TabTemplate(FILLING, design=DashboardDesign)
        template.add_variable("places", list(self.places))
        # With each part Bokeh walks through all that were added before: the large one comes late.
        shown_last = sorted(self.places.items(), key=lambda place: place[1].visible)
        # Browsers draw them in this order: the last one acknowledges all.
        for name, part in (("tools", self.tools), ("banner", self.banner), *shown_last, ("browser", self.browser)):
            template.add_panel(name, part)
        return template

    # ------------------------------------------------------------ the view and its address

    def _read(self, page: str, query: Mapping[str, str]) -> None:
        self._page = page
        self.context.view.read(query)
        self._views[page].read(query)

    def _address(self, page: str) -> str:
        return f"/{page}?{to_query(self.context.view, self._views[page])}"

    def _visited(self, event: Any) -> None:
        """The user has followed a link, or gone back. Inputs change with the view: the browser draws what it was sent first."""
        self._wanted = event.new[0]
        self.wake()

    def _follow(self) -> None:
        """Show the view that the user wants."""
        parts = urlsplit(self._wanted)
        self._wanted = ""
        page = parts.path.strip("/")
        if page in self._views:
            if page != self._page:
                self.browser.left = self._address(self._page)
            self._read(page, {"theme": self.context.view.theme, **dict(parse_qsl(parts.query))})  # a link without one leaves the colours

    def _recolored(self, event: Any) -> None:
        self.context.view.theme = event.new

    def _toggle_series(self, key: str) -> None:
        self._views[self._page].toggle_series(key)

    def _changed(self, *_events: Any) -> None:
        self.wake()

    # ------------------------------------------------------------ updates

    def end(self, sentence: str) -> None:
        """Show nothing any more but a sentence, and the way to sign in."""
        self._end = sentence
        self.wake()

    def wake(self) -> None:
        """Bring the page up to date soon: there may be something new. On the server's loop."""
        self._has_news = True
        is_waited_for = bool(self._wanted) or self._is_made_only or self.browser.acknowledged < 0
        if self._is_closed or (self._is_scheduled and (self._timer is None or not is_waited_for)) or self._owes_acknowledgements():
            return
        if self._timer is not None:
            self._timer.cancel()  # it would be later
        self._is_scheduled = True
        interval_s = 0.0 if is_waited_for else self._pace.interval_s
        self._timer = self._loop.call_at(self._last_update_time + interval_s, self._enter_document)

    def _owes_acknowledgements(self) -> bool:
        """Return whether the browser has to catch up first. What comes before it asks for the document is in it from the first."""
        if self.browser.acknowledged < 0:
            return self._is_connected()
        return self.browser.sent - self.browser.acknowledged >= MAX_UNACKNOWLEDGED

    @property
    def is_served(self) -> bool:
        """Whether somebody looks at it, or is about to."""
        return self._is_connected() or self.is_opening

    @property
    def is_opening(self) -> bool:
        """Whether the browser is still to draw its first page. On any thread."""
        return self.browser.acknowledged < 0 and self._loop.time() - self._opened_time < OPENING_S

    def _is_connected(self) -> bool:
        session = getattr(self.document.session_context, "session", None)
        return session is not None and session.connection_count > 0

    def _acknowledged(self, _event: Any) -> None:
        if self._has_news or self.browser.sent == 0:
            self.wake()

    def _enter_document(self) -> None:
        self._timer = None
        if not self._is_closed:
            self.document.add_next_tick_callback(self._update)  # type: ignore[arg-type]  # Bokeh awaits it

    async def _update(self) -> None:
        """Run as a coroutine on the loop: Bokeh 3.10 calls what is none on another thread."""
        self._is_scheduled = False
        if self._owes_acknowledgements():  # it has asked for the document meanwhile
            return
        self._has_news = False
        self._last_update_time = self._loop.time()
        is_page_due = self._is_page_due()
        # What wakes a tab may be news that another has asked for. Held together, all changes travel as one message. Bokeh walks through
        # the models of a document whenever one comes or goes, and once after a freeze: that pays where a page is made or changed.
        with set_curdoc(self.document), pn.io.hold(self.document, freeze=is_page_due):
            if self._end:
                self._close()
                for place in self.places.values():
                    place.clear()
                self.banner.show(html('<p role="alert">{} <a href="/login">Sign in again</a></p>', self._end))
                return
            if self._wanted:
                self._follow()
            self._show_page()
            # Inputs that the browser has not drawn yet cannot be changed: it is waited for.
            self.browser.sent += MAX_UNACKNOWLEDGED if self.context.has_new_inputs else 1
        if not is_page_due:
            self._pace.record(self._loop.time() - self._last_update_time)

    def _is_page_due(self) -> bool:
        """Return whether the next update makes or changes a page, not only what a page shows."""
        is_shown = self._page in self._pages and not self._is_made_only and self.context.palette is self._palette
        return bool(self._wanted) or not is_shown or self.browser.acknowledged < 0

    def _show_page(self) -> None:
        context = self.context
        context.begin_update()
        if context.palette is not self._palette:
            self._palette = context.palette
            self._close_pages()  # charts and names are drawn in the colours of the other theme
            for name, place in self.places.items():
                if name != self._page:
                    place.clear()
        page = self._pages.get(self._page)
        if page is None:
            page = self._pages[self._page] = self._entries[self._page].component(context, self._views[self._page])
            self._made_time = self._loop.time()
        self._update_page(page)
        self._place(page)
        run_ids = context.shown_run_ids()
        run = self.context.memories(run_ids)[0].run if len(run_ids) == 1 else None
        subject = "" if run is None else run.title
        context.end_update()
        links = {name: self._address(name) if name == self._page else f"/{name}?{to_query(context.view)}" for name in self._views}
        self.browser.param.update(
            subject=subject,
            address=self._address(self._page),
            title=f"{self._entries[self._page].title} · kernalyse",
            links=links,
            out=page.out,
            theme=context.view.theme,
        )

    def _place(self, page: Component) -> None:
        """Show the page; one that is new once it has what it asked for, or has waited long enough."""
        context, shown = self.context, self.places[self._page]
        is_new = page.layout not in list(shown)
        waited_s = self._loop.time() - self._made_time
        is_first = self.browser.acknowledged < 0
        self._is_made_only = is_new and not is_first and context.is_waiting and waited_s < MAX_WAIT_S
        if self._is_made_only:
            context.has_new_inputs = False
            self._loop.call_later(MAX_WAIT_S - waited_s, self.wake)
            return
        if is_new:
            shown[:] = [page.layout]
            context.has_new_inputs = True
        for name, place in self.places.items():
            place.visible = name == self._page

    async def settle(self) -> None:
        """Wait until the first page has what it asked for, or has waited long enough."""
        end_time = self._loop.time() + MAX_WAIT_S
        while (self._has_news or self._is_scheduled or self.context.is_waiting) and self._loop.time() < end_time:
            await asyncio.sleep(SETTLE_POLL_S)

    def _update_page(self, page: Component) -> None:
        """A fault of one component must neither stop the page without a word nor be logged ten times a second."""
        context, problem = self.context, ""
        try:
            page.update()
        except Exception as error:
            problem = f"This page could not be brought up to date: {type(error).__name__}. Its server's log has more; reload the page."
            if problem != self._fault:
                logger.exception("A page could not be brought up to date")
        self._fault = problem
        said = [html('<p role="alert">{}</p>', sentence) for sentence in (context.problem, problem) if sentence]
        if context.overview.problem:
            said.append(html('<p role="alert"><strong>Analyzer unreachable, trying again.</strong> {}</p>', context.overview.problem))
        self.banner.show(joined(said))

    def _close_pages(self) -> None:
        for page in self._pages.values():
            page.close()
        self._pages.clear()

    def _closed(self, _context: Any) -> None:
        self._close()

    def _close(self) -> None:
        """Let go of everything. The document may be destroyed long after the tab has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pace.tabs.discard(self)
        self._close_pages()
        self.context.close()
        self._on_close(self)
