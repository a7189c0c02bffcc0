"""What every page has: the HTML around the charts, its fragments, the session, and the run that is looked at."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from bokeh.document import Document
from bokeh.models import Spacer
from bokeh.server.views.static_handler import StaticHandler
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from kernalyse.services.core.model import CommandProfile, ModelRun, NodeHealth, Run, RunState
from kernalyse.services.ui import filters, page_document, theme
from kernalyse.services.ui.charts.elements import bokeh_theme
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.memory import Overview, RunMemory
from kernalyse.services.ui.state import KEPT_BETWEEN_PAGES, PAGE_TITLES, Page, ViewState, to_query
from kernalyse.services.ui.theme import PALETTES, Palette

TEMPLATE_DIRECTORY: Final = Path(__file__).parent.parent / "templates"
ASSET_DIRECTORY: Final = Path(__file__).parent.parent / "assets"
MAX_LISTED_RUNS: Final = 40

SCRIPTS: Final = ("shell", "chart_menu", "kernels", "layers", "roofline", "timeline", "start", "pages")
"""Those of every page: the browser goes from one to the next without reading them again. The last tells the others of pages."""


@cache
def environment() -> Environment:
    """Templates of the fragments. Everything put into them is escaped: names, titles and log lines come from users."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATE_DIRECTORY), autoescape=select_autoescape(default=True), undefined=StrictUndefined, trim_blocks=True
    )
    made.globals.update(theme=theme, embed=_embedded)
    made.filters.update(
        duration=theme.duration,
        percent=theme.percent,
        flop_rate=theme.flop_rate,
        byte_rate=theme.byte_rate,
        memory=theme.memory,
        frequency=theme.frequency,
        temperature=theme.temperature,
        power=theme.power,
        count=theme.count,
        span=theme.span,
        moment=theme.moment,
    )
    return made


def fragment(template_name: str, **values: Any) -> Markup:
    return Markup(environment().get_template(template_name).render(**values).strip())


def filters_fragment(state: ViewState, values: Mapping[str, Sequence[str]], name_title: str = "Kernel") -> str:
    """values: what can be chosen, by the filter's name."""
    return fragment("filters.html", name_title=name_title, kernel=state.kernel, entries=filters.entries(state, values))


def fill_document(document: Document, page: PageBase, bridge: Any, fragments: Mapping[str, str], asset_version: str) -> None:
    """Makes it the page: shell.html with the page's own body, the fragments as they are now, and its Bokeh roots by name.

    Panel's own templates would wrap every root in a pane of its own and walk through its models five times over; of the
    browser they want a megabyte and a half of scripts that no page here uses.
    """
    document.title = f"{PAGE_TITLES[page.page]} · kernalyse"
    document.template = environment().get_template("shell.html")
    document.template_variables.update(
        page=page.page,
        state=page.state,
        # Fragments are HTML already, escaped where they were made.
        fragments={name: Markup(html) for name, html in fragments.items()},
        asset_version=asset_version,
        scripts=SCRIPTS,
        bokeh_script=StaticHandler.append_version("js/bokeh.min.js"),
        **page.template_values(),
    )
    page_document.fill(document, {"bridge": _anchor(bridge), **page.roots()})


def _embedded(root: Any) -> Markup:
    """The element that BokehJS puts a root's figure into."""
    return Markup('<div id="{}" data-root-id="{}" class="root"></div>').format(root.elementid, root.id)


def _anchor(bridge: Any) -> Spacer:
    """An invisible root that carries the bridge into the page."""
    return Spacer(visible=False, tags=[bridge], width=0, height=0)


def apply_theme(document: Any, palette: Palette) -> None:
    document.theme = bokeh_theme(palette)
    # The page has a banner of its own for lost connections.
    document.config.notify_connection_status = False
    document.config.reconnect_session = False


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run as lists and headers show it."""

    run_id: str
    title: str
    state: str
    is_active: bool
    progress_ratio: float | None
    completed: int
    failed: int
    total: int | None
    elapsed_s: float | None
    left_s: float | None
    activity: str
    device_id: str | None
    node_name: str
    is_imported: bool
    is_trace: bool
    is_model: bool
    has_timeline: bool
    command: str  # that was profiled; empty: none
    collector: str  # of the command
    create_text: str
    problem: str
    notes: str
    tags: tuple[str, ...]
    continues_run_id: str  # empty: none


def run_card(run: Run, overview: Overview, now_unix_s: float) -> RunCard:
    start_s = run.start_time.timestamp() if run.start_time else None
    end_s = run.end_time.timestamp() if run.end_time else now_unix_s
    elapsed_s = None if start_s is None else max(0.0, end_s - start_s)
    done, total = run.completed_configuration_count, run.total_configuration_count
    work = run.spec.work
    return RunCard(
        run_id=run.run_id,
        title=run.title,
        state=run.state.value,
        is_active=not run.state.is_final,
        progress_ratio=1.0 if run.state is RunState.SUCCEEDED else min(1.0, done / total) if total else None,
        completed=done,
        failed=run.failed_configuration_count,
        total=total,
        elapsed_s=elapsed_s,
        left_s=_left_s(run, overview.progress_unix_s.get(run.run_id, now_unix_s), now_unix_s),
        activity=run.activity,
        device_id=run.device_id,
        node_name=run.node_name,
        is_imported=run.is_imported,
        is_trace=run.is_trace,
        is_model=isinstance(work, ModelRun),
        has_timeline=run.has_timeline,
        command=shlex.join(work.arguments) if isinstance(work, CommandProfile) else "",
        collector=work.collector if isinstance(work, CommandProfile) else "",
        create_text=theme.moment(int(run.create_time.timestamp() * 1e9)),
        problem=run.error.message if run.error else run.problem,
        notes=run.notes,
        tags=run.tags,
        continues_run_id=run.spec.continues_run_id or "",
    )


def _left_s(run: Run, progress_unix_s: float, now_unix_s: float) -> float | None:
    """As long for each of the configurations left as for those that are done; the one that goes on has used some of its time."""
    done, total = run.completed_configuration_count, run.total_configuration_count
    if run.state is not RunState.RUNNING or run.start_time is None or not done or not total:
        return None
    each_s = max(0.0, progress_unix_s - run.start_time.timestamp()) / done
    return max(0.0, each_s * (total - done) - (now_unix_s - progress_unix_s))


class PageBase:
    """State and looks of one page in one tab. Pages implement `own_fragments` and add wishes of their own."""

    page: Page = "live"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        self.client = client
        self.state = state
        self.palette = PALETTES[state.theme]
        self._looked_at: dict[str, RunMemory] = {}
        self._problem = ""
        self.on_wake: Callable[[], None] | None = None  # of the session

    def wake(self) -> None:
        """There is something new to show, though nothing has arrived for all pages."""
        if self.on_wake is not None:
            self.on_wake()

    def roots(self) -> dict[str, Any]:
        """Bokeh models by the name that the page's template embeds them by."""
        return {}

    def template_values(self) -> dict[str, Any]:
        """What the page's own template shows besides fragments, the state and roots."""
        return {}

    # ------------------------------------------------------------ what a session asks of its view

    def query(self) -> str:
        return to_query(self.state)

    def close(self) -> None:
        for run_id in self._looked_at:
            self.client.look_away(run_id)
        self._looked_at = {}

    def fail(self, sentence: str) -> None:
        self._problem = sentence

    def update(self) -> dict[str, str]:
        overview = self.client.nodes.overview()
        self._name_runs_in_full()
        fragments = {
            "nav": fragment("nav.html", links=self._links(), page=self.page),
            "banner": fragment("banner.html", unreachable=overview.problem, problem=self._problem),
            **self.own_fragments(overview),
        }
        return {name: str(escape(text)) for name, text in fragments.items()}  # what came of a template is HTML, other text is not

    def _name_runs_in_full(self) -> None:
        """An address may say "last" or the beginning of a run's id, which the analyzer understands and no list of runs has."""
        looked_at = ((run_id, self._looked_at.get(run_id)) for run_id in self.state.runs)
        told = tuple(run_id if memory is None or memory.run is None else memory.run.run_id for run_id, memory in looked_at)
        if told != self.state.runs:
            self.state = replace(self.state, runs=tuple(dict.fromkeys(told)))

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        raise NotImplementedError

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "dismiss":
                self._problem = ""
            case "run":
                self.state = replace(self.state, runs=(value,) if value else ())
            case "toggle-run":
                self.state = self.state.with_run_toggled(value)
            case "series":
                self.state = self.state.with_series_toggled(value)
            case "set":
                field, _, text = value.partition("=")
                self.state = self.state.changed(field, text)
            case _:
                return None
        return None

    # ------------------------------------------------------------ runs

    def memories(self, run_ids: tuple[str, ...]) -> tuple[RunMemory, ...]:
        """The runs' memories, watched from now on; those not named any longer are looked away from."""
        for run_id in [other for other in self._looked_at if other not in run_ids]:
            del self._looked_at[run_id]
            self.client.look_away(run_id)
        for run_id in run_ids:
            if run_id not in self._looked_at:
                self._looked_at[run_id] = self.client.look_at(run_id)
        return tuple(self._looked_at[run_id] for run_id in run_ids)

    def with_older_runs(self, overview: Overview) -> Overview:
        """The overview lists the newest runs alone: others that the state names are looked at for their own sake."""
        listed = {run.run_id for run in overview.runs}
        if listed.issuperset(self.state.runs):
            return overview
        named = (memory.run for memory in self.memories(self.state.runs))
        return replace(overview, runs=(*overview.runs, *(run for run in named if run is not None and run.run_id not in listed)))

    def listed_runs(self, runs: Sequence[Run]) -> list[Run]:
        """For a list to choose from: the newest, and those that are chosen."""
        return [*runs[:MAX_LISTED_RUNS], *(run for run in runs[MAX_LISTED_RUNS:] if run.run_id in self.state.runs)]

    def shown_run_ids(self, overview: Overview) -> tuple[str, ...]:
        """The runs that the state names; without any, the newest running one, else the newest."""
        if self.state.runs:
            return self.state.runs
        running = next((run for run in overview.runs if run.state is RunState.RUNNING), None)
        newest = running or next(iter(overview.runs), None)
        return () if newest is None else (newest.run_id,)

    def _links(self) -> list[dict[str, str]]:
        kept = replace(ViewState(), **{name: getattr(self.state, name) for name in KEPT_BETWEEN_PAGES})
        return [{"page": page, "title": title, "href": f"/{page}?{to_query(kept)}"} for page, title in PAGE_TITLES.items()]


def node_cards(overview: Overview, client: AnalyzerClient) -> list[dict[str, Any]]:
    """Nodes with health, devices and newest readings."""
    cards = []
    for status in overview.nodes:
        node = status.node
        readings = client.nodes.newest_telemetry(node.node_id) if node else ()
        host = next((reading for reading in readings if reading.device_id is None), None)
        cards.append(
            {
                "name": node.hostname if node else status.address,
                "health": status.health.value,
                "is_serving": status.health is NodeHealth.SERVING,
                "problem": status.collecting_problem,
                "devices": [{"name": device.name, "device_id": device.device_id} for device in node.devices] if node else [],
                "host": host,
                "notices": node.notices if node else (),
            }
        )
    return cards
