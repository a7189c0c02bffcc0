"""The Timeline page: what devices, streams and threads of a trace did when, from all of it down to one launch."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import polars as pl

from services.core.model import Filter, FilterOperator, Run, SortKey, TableQuery
from services.ui import theme
from services.ui.charts import timeline
from services.ui.charts.elements import empty_columns
from services.ui.charts.timeline_rows import LANE, TimelineRows, timeline_rows
from services.ui.client import AnalyzerClient
from services.ui.memory import Overview
from services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, filters_fragment, fragment, run_card
from services.ui.question import Question
from services.ui.state import Page, ViewState
from services.ui.time_window import TileRequest, TimeWindow
from services.ui.timeline_figure import TimelineFigure

OUTLINE_PIXEL_COUNT: Final = 1_000
MAX_GAP_COUNT: Final = 1_500
MIN_GAP_PX: Final = 4
MAX_FOLDED_LENGTH: Final = 200  # of the URL's field

NO_RUN: Final = (
    "Import a trace: kernalyse import trace.sqlite (Nsight Systems) or trace.json (PyTorch), or record one: "
    "kernalyse profile -- python train.py"
)
NO_TRACE: Final = (
    "This run has no trace, so nothing tells when its kernels ran: sweeps keep how long each took. Choose a trace, or record one: "
    "kernalyse profile -- python train.py"
)
NO_TIMES: Final = "This trace does not tell when its kernels ran (reports of ncu and sums do not). Import one of nsys or of PyTorch."


@dataclass(frozen=True, slots=True)
class Outline:
    """What is asked of a trace once. tile: all of it, in OUTLINE_PIXEL_COUNT pixels."""

    run_id: str
    tile: pl.DataFrame
    lanes: pl.DataFrame
    devices: pl.DataFrame
    processes: pl.DataFrame

    @property
    def whole(self) -> TimeWindow:
        start_ns = int(self.tile["start_ns"].min() or 0)  # type: ignore[arg-type]
        end_ns = int((self.tile["start_ns"] + self.tile["duration_ns"]).max() or 0)  # type: ignore[arg-type]
        return TimeWindow(start_ns, max(end_ns, start_ns + 1))


@dataclass(frozen=True, slots=True)
class Tile:
    """rows: of table timeline. is_exact: everything in the window is there one by one."""

    run_id: str
    request: TileRequest
    rows: pl.DataFrame
    is_exact: bool

    def serves(self, run_id: str, view: TimeWindow, whole: TimeWindow, pixel_ns: float) -> bool:
        if self.run_id != run_id:
            return False
        if self.is_exact:
            return view.clipped(whole).within(self.request.window)
        return self.request.serves(view, whole, pixel_ns)


class TimelinePage(PageBase):
    page: Page = "timeline"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.figure = TimelineFigure(self.palette, self._moved, self._tapped, self._marked)
        self._outline: Question[Outline] = Question(self.wake)
        self._tile: Question[Tile] = Question(self.wake)
        self._gaps: Question[pl.DataFrame] = Question(self.wake)
        self._run: Run | None = None
        self._shown: Outline | None = None
        self._rows: TimelineRows | None = None
        self._drawn = timeline.no_tile()
        self._drawn_for: object = None
        self._labelled_for: object = None
        self._gaps_for: object = None

    def close(self) -> None:
        for question in (self._outline, self._tile, self._gaps):
            question.stop()
        super().close()

    def roots(self) -> dict[str, Any]:
        return {"overview": self.figure.overview.figure, "ruler": self.figure.ruler.figure, "body": self.figure.body.figure}

    # ------------------------------------------------------------ wishes

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "fold":
                self._fold(value)
            case "set" if value.startswith("runs="):
                self.state = replace(super_changed(self.state, value), window="", stretch="", event="", folded="")
            case _:
                return super().handle(name, value)
        return None

    def _fold(self, group_id: str) -> None:
        toggled = [other for other in self.state.folded.split(",") if other]
        toggled = [other for other in toggled if other != group_id] if group_id in toggled else [*toggled, group_id]
        self.state = replace(self.state, folded=",".join(toggled)[:MAX_FOLDED_LENGTH])

    def _moved(self) -> None:
        """Asks at once: an update of the page may have to wait for its turn."""
        if self._shown is None:
            return
        whole = self._shown.whole
        view = self.figure.view.clipped(whole)
        self.state = replace(self.state, window="" if view == whole else str(view))
        self._ask_tile()
        self.wake()

    def _tapped(self, time_ns: float, row: float) -> None:
        """Chooses what is there."""

    def _marked(self, start_ns: float, end_ns: float) -> None:
        if self._shown is None:
            return
        window = TimeWindow(round(start_ns), max(round(end_ns), round(start_ns) + 1)).clipped(self._shown.whole)
        self.state = replace(self.state, stretch=str(window))
        self.wake()

    # ------------------------------------------------------------ asking

    def _chosen_run(self, overview: Overview) -> Run | None:
        """The run that the state names, else the newest trace, else the newest run."""
        if self.state.run is not None:
            return next((run for run in overview.runs if run.run_id == self.state.run), None)
        return next((run for run in overview.runs if run.is_trace and run.is_settled), next(iter(overview.runs), None))

    async def _ask_outline(self, run_id: str) -> Outline:
        names = ("trace_devices", "trace_processes")
        whole = self.client.table(TableQuery("timeline", (run_id,), pixel_count=OUTLINE_PIXEL_COUNT))
        answer, devices, processes = await asyncio.gather(whole, *(self.client.run_table(name, (run_id,)) for name in names))
        lanes = answer.rows.select(LANE).unique(maintain_order=True)
        return Outline(run_id, answer.rows, lanes, devices, processes)

    def _ask_tile(self) -> None:
        """Unless there is one that serves, or a question is on its way: its answer leads back here, to the newest view."""
        if self._shown is None or self._tile.is_on_its_way:
            return
        whole, view, pixel_ns = self._shown.whole, self.figure.view, self.figure.pixel_ns
        run_id = self._shown.run_id
        if self._tile.answer is not None and self._tile.answer.serves(run_id, view, whole, pixel_ns):
            return
        request = TileRequest.for_view(view, whole, self.figure.width_px)
        self._tile.ask((run_id, request), partial(self._ask_for, run_id, request))

    async def _ask_for(self, run_id: str, request: TileRequest) -> Tile:
        window = request.window
        query = TableQuery(
            "timeline", (run_id,), window_start_ns=window.start_ns, window_end_ns=window.end_ns, pixel_count=request.pixel_count
        )
        rows = (await self.client.table(query)).rows
        return Tile(run_id, request, rows, rows["row_index"].null_count() == 0)

    def _ask_gaps(self) -> None:
        if self._tile.answer is None or self._shown is None or self._tile.answer.run_id != self._shown.run_id:
            return
        request = self._tile.answer.request
        if not self._gaps.is_on_its_way:
            self._gaps.ask((self._shown.run_id, request), partial(self._ask_for_gaps, self._shown.run_id, request))

    async def _ask_for_gaps(self, run_id: str, request: TileRequest) -> pl.DataFrame:
        """Those long enough to be seen, longest first."""
        filters = (
            Filter("start_ns", str(request.window.end_ns), FilterOperator.LESS),
            Filter("duration_ns", str(max(1, int(request.pixel_ns * MIN_GAP_PX))), FilterOperator.GREATER_EQUAL),
        )
        columns = ("process_id", "device_index", "start_ns", "duration_ns", "reason", "kernel_before", "kernel_after", "call")
        longest_first = (SortKey("duration_ns", True),)
        longest = await self.client.table(TableQuery("gaps", (run_id,), limit=1, columns=("duration_ns",), order_by=longest_first))
        reach_ns = int(longest.rows["duration_ns"][0]) if longest.rows.height else 0
        after = Filter("start_ns", str(request.window.start_ns - reach_ns), FilterOperator.GREATER_EQUAL)
        query = TableQuery("gaps", (run_id,), filters=(*filters, after), order_by=longest_first, limit=MAX_GAP_COUNT, columns=columns)
        found = (await self.client.table(query)).rows
        return found.filter(pl.col("start_ns") + pl.col("duration_ns") > request.window.start_ns)

    # ------------------------------------------------------------ showing

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        self._run = self._chosen_run(overview)
        if self._run is not None and self._run.is_trace:
            run_id = self._run.run_id
            self._outline.ask(run_id, partial(self._ask_outline, run_id), (self._run.is_settled, overview.problem))
        outline = self._outline.answer
        is_current = outline is not None and self._run is not None and outline.run_id == self._run.run_id
        if outline is not None and is_current and outline is not self._shown:
            self._begin(outline)
        if self._shown is not None and is_current:
            self._lay_out()
            self._ask_tile()
            self._draw()
        now_unix_s = time.time()
        runs = [run_card(run, overview, now_unix_s) for run in overview.runs if run.is_trace][:MAX_LISTED_RUNS]
        has_gaps = self._gaps.answer is not None and not self._gaps.answer.is_empty()
        return {
            "run_choice": fragment("run_choice.html", runs=runs, selected=self.state.runs),
            "filters": filters_fragment(self.state, {}),
            "matches": "",
            "legend": fragment(
                "legend.html", entries=timeline.legend_entries(self.palette, has_gaps), has_failed=False, has_implausible=False
            ),
            "timeline_note": fragment("timeline_note.html", **self._note(overview, is_current)),
            "rows": fragment("timeline_rows.html", rows=self._rows.rows if self._rows is not None and is_current else ()),
            "chosen": "",
            "stretch": "",
        }

    def _note(self, overview: Overview, is_current: bool) -> dict[str, Any]:
        """Why there is nothing to see, or what is."""
        if self._run is None:
            empty = "Waiting for the analyzer's list." if not overview.is_known else NO_RUN
            if overview.is_known and self.state.run is not None:
                empty = f"Run {theme.short_run_id(self.state.run)} is not there any longer. Choose another."
            return {"empty": empty, "text": "", "problem": ""}
        if not self._run.is_trace:
            return {"empty": NO_TRACE, "text": "", "problem": ""}
        problem = self._outline.problem or self._tile.problem or (f"Gaps: {self._gaps.problem}" if self._gaps.problem else "")
        if not is_current or self._shown is None:
            waiting = "" if problem else "Working out the timeline; of a large trace that takes some seconds the first time."
            if not self._run.is_settled:
                waiting = "The trace is recorded or read; its timeline appears here."
            return {"empty": waiting, "text": "", "problem": problem}
        if self._shown.tile.is_empty():
            return {
                "empty": NO_TIMES if self._run.is_settled else "The trace is being read; its timeline appears here.",
                "text": "",
                "problem": "",
            }
        view, whole = self.figure.view.clipped(self._shown.whole), self._shown.whole
        parts = [
            f"{self._run.title}: {theme.duration(view.length_ns)} from {theme.duration(view.start_ns - whole.start_ns)} after the first event"
        ]
        if self._tile.answer is not None and not self._tile.answer.is_exact:
            parts.append("rows with many events show how busy each pixel is (height) and what took most of it (colour)")
        if self._gaps.is_on_its_way:
            parts.append("working out gaps")
        return {"empty": "", "text": "; ".join(parts) + ".", "problem": problem}

    def _begin(self, outline: Outline) -> None:
        """Another trace is shown, or more of it was read."""
        self._shown = outline
        self._rows = None
        self.figure.bound(outline.whole)
        wanted = TimeWindow.of(self.state.window)
        self.figure.show(outline.whole if wanted is None else wanted.clipped(outline.whole))

    def _lay_out(self) -> None:
        outline = self._shown
        assert outline is not None
        rows = timeline_rows(outline.lanes, outline.devices, outline.processes, self.state.folded.split(","))
        if self._rows is None or rows.rows != self._rows.rows:
            self._rows = rows
            self._drawn_for = self._gaps_for = None
            self.figure.set_rows([row.title for row in rows.rows])
            self.figure.overview.replace("busy", timeline.overview_columns(outline.tile, rows))

    def _draw(self) -> None:
        tile, rows = self._tile.answer, self._rows
        if tile is None or rows is None or self._shown is None or tile.run_id != self._shown.run_id:
            return
        self._ask_gaps()
        view, pixel_ns = self.figure.view, self.figure.pixel_ns
        looks = timeline.Looks(self.state.color_by == "kernel", self.state.search or self.state.kernel)
        # Of an exact tile, what is wide enough for a name changes with every zoom.
        wanted = (tile.request, tile.run_id, looks, round(pixel_ns / tile.request.pixel_ns, 1) if tile.is_exact else None)
        if wanted != self._drawn_for:
            self._drawn_for, self._labelled_for = wanted, None
            self._drawn = timeline.drawn_tile(tile.rows, rows, looks, min(pixel_ns, tile.request.pixel_ns))
            self.figure.set_tile(self._drawn)
        if self._labelled_for != view:
            self._labelled_for = view
            self.figure.body.replace("names", timeline.label_columns(self._drawn, view.start_ns, view.end_ns, pixel_ns))
        if self._gaps.answer is not self._gaps_for:
            self._gaps_for = self._gaps.answer
            gaps = empty_columns(timeline.GAP_NUMBERS, timeline.GAP_TEXTS)
            self.figure.body.replace("gaps", gaps if self._gaps.answer is None else timeline.gap_columns(self._gaps.answer, rows))


def super_changed(state: ViewState, assignment: str) -> ViewState:
    field, _, text = assignment.partition("=")
    return state.changed(field, text)
