"""The Timeline page: what devices, streams and threads of a trace did when, from all of it down to one launch."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.core.model import Filter, Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.timeline_gaps import gap_columns
from kernalyse.services.ui.charts.timeline_rows import TimelineRows, timeline_rows
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.shell import PageBase, filters_fragment, fragment, run_card
from kernalyse.services.ui.pages.timeline_calls import call_switch, searched, shown_lanes
from kernalyse.services.ui.pages.timeline_legend import looks_of, shown_gaps, timeline_legend
from kernalyse.services.ui.pages.timeline_panels import chosen_fragment, stretch_fragment
from kernalyse.services.ui.question import Answer, Question
from kernalyse.services.ui.state import Page, ViewState
from kernalyse.services.ui.time_window import TileRequest, TimeWindow
from kernalyse.services.ui.timeline_figure import TimelineFigure
from kernalyse.services.ui.timeline_questions import MAX_DETAILED_COUNT, Event, Match, Outline, Tile, TimelineQuestions, event_of

MAX_FOLDED_LENGTH: Final = 200  # of the URL's field
NEAR_PX: Final = 3
"""A click this far from a bar means it: short launches are a pixel wide."""

NO_RUN: Final = (
    "Import a trace: kernalyse import trace.sqlite (Nsight Systems) or trace.json (PyTorch), or record one: "
    "kernalyse profile -- python train.py"
)
NO_TRACE: Final = (
    "This run has no trace, so nothing tells when its kernels ran: sweeps keep how long each took. Choose a trace, or record one: "
    "kernalyse profile -- python train.py"
)
NO_TIMES: Final = "This trace does not tell when its kernels ran (reports of ncu and sums do not). Import one of nsys or of PyTorch."
BEING_READ: Final = "The trace is recorded or read; its timeline appears here."
BEING_WORKED_OUT: Final = "Working out the timeline; of a large trace that takes some seconds the first time."
AS_PIXELS: Final = "rows with many events show how busy each pixel is (height) and what took most of it (colour)"


class TimelinePage(PageBase):
    page: Page = "timeline"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.figure = TimelineFigure(self.palette, self._moved, self._tapped, self._marked)
        self._ask = TimelineQuestions(client)
        self._outline: Question[Outline] = Question(self.wake)
        self._tile: Question[Tile] = Question(self.wake)
        self._gaps: Question[pl.DataFrame] = Question(self.wake)
        self._details: Question[dict[str, dict[int, str]]] = Question(self.wake)
        self._count: Question[int] = Question(self.wake)
        self._event: Question[Event] = Question(self.wake)
        self._summary: Question[pl.DataFrame] = Question(self.wake)
        self._match: Match | None = None
        self._jump: TimeWindow | None = None  # where an answer leads: only an update may change models
        self._run: Run | None = None
        self._revision = 0  # of the overview
        self._shown: Outline | None = None  # None: nothing of the run is there yet
        self._rows: TimelineRows | None = None
        self._drawn = timeline.no_tile()
        self._drawn_gaps = timeline.no_gaps()
        self._drawn_for: dict[str, object] = {}  # what each part of the figure was drawn for

    def close(self) -> None:
        for question in (self._outline, self._tile, self._gaps, self._details, self._count, self._event, self._summary):
            question.stop()
        super().close()

    def roots(self) -> dict[str, Any]:
        parts = {"overview": self.figure.overview, "ruler": self.figure.ruler, "body": self.figure.body}
        return {f"timeline_{name}": part.figure for name, part in parts.items()}

    # ------------------------------------------------------------ wishes

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "fold":
                self._fold(value)
            case "goto":
                self._go_to(TimeWindow.of(value))
            case "mark-view" if self._shown is not None:
                self.state = replace(self.state, stretch=str(self.figure.view.clipped(self._shown.whole)))
            case "match" if self._shown is not None and self.state.search:
                return self._to_match(self._shown.run_id, value == "next")
            case "other" if self._shown is not None and self._event.answer is not None:
                self._choose(self._event.answer.other)
            case "same" if self._shown is not None and self._event.answer is not None:
                return self._to_same(self._shown.run_id, self._event.answer, 1 if value == "next" else -1)
            case "set":
                super().handle(name, value)
                if value.startswith("runs="):
                    self.state = replace(self.state, window="", stretch="", event="", folded="")
                elif value.startswith(("search=", "calls=")):
                    self._match = None
            case _:
                return super().handle(name, value)
        return None

    def _fold(self, group_id: str) -> None:
        toggled = [other for other in self.state.folded.split(",") if other]
        toggled = [other for other in toggled if other != group_id] if group_id in toggled else [*toggled, group_id]
        self.state = replace(self.state, folded=",".join(toggled)[:MAX_FOLDED_LENGTH])

    def _go_to(self, window: TimeWindow | None) -> None:
        if window is not None and self._shown is not None:
            self.figure.show(window.widened(0.1).clipped(self._shown.whole))
            self._moved()

    async def _to_match(self, run_id: str, is_next: bool) -> None:
        filters = searched(self.state)
        if self._match is None:
            view = self.figure.view
            found = await self._ask.match_after(run_id, filters, view.start_ns)
            if found is not None and not is_next:
                found = await self._ask.match_at(run_id, filters, found.index - 1)
        else:
            found = await self._ask.match_at(run_id, filters, self._match.index + (1 if is_next else -1))
        if self._is_shown(run_id):
            self._match = found
            self._choose(found)

    async def _to_same(self, run_id: str, event: Event, step: int) -> None:
        filters = (Filter("name", event.name), Filter("track", event.track))
        chosen = event_of(self.state.event)
        index = None if chosen is None else await self._ask.match_of(run_id, filters, event, chosen[1])
        found = None if index is None else await self._ask.match_at(run_id, filters, index + step)
        if self._is_shown(run_id):
            self._choose(found)

    def _is_shown(self, run_id: str) -> bool:
        """Another run may have been chosen since the question."""
        return self._shown is not None and self._shown.run_id == run_id

    def _choose(self, found: Match | Event | None) -> None:
        """Chooses the event, and brings it into sight where it is not or would be too small to see."""
        if found is None or self._shown is None:
            return
        self.state = replace(self.state, event=found.text)
        view, length_ns = self.figure.view, found.end_ns - found.start_ns
        is_seen = view.start_ns <= found.start_ns and found.end_ns <= view.end_ns
        if not is_seen or length_ns < NEAR_PX * self.figure.pixel_ns:
            wanted = view if length_ns >= NEAR_PX * self.figure.pixel_ns else TimeWindow(0, max(length_ns * 40, 1_000))
            self._jump = wanted.around(found.start_ns, found.end_ns).clipped(self._shown.whole)

    def _moved(self) -> None:
        """Asks at once: an update of the page may have to wait for its turn."""
        if self._shown is None:
            return
        whole = self._shown.whole
        view = self.figure.view.clipped(whole)
        self.state = replace(self.state, window="" if view == whole else str(view))
        self._ask_tile()
        if not self._tile.is_on_its_way:  # else its answer wakes the page, which then need not wait for the update's turn
            self.wake()

    def _tapped(self, time_ns: float, row: float) -> None:
        """Chooses the shortest event there; where there are only pixels, comes closer."""
        placed = self._drawn.placed
        if placed.is_empty() or self._shown is None:
            return
        near_ns = NEAR_PX * self.figure.pixel_ns
        end_ns = pl.col("start_ns") + pl.col("duration_ns")
        hit = placed.filter(pl.col("row") == int(row), pl.col("start_ns") <= time_ns + near_ns, end_ns >= time_ns - near_ns)
        if hit.is_empty():
            return
        distance_ns = pl.max_horizontal(pl.col("start_ns") - time_ns, time_ns - end_ns, 0)
        found = hit.sort(distance_ns, "duration_ns").row(0, named=True)
        if found["row_index"] is None:
            middle = found["start_ns"] + found["duration_ns"] // 2
            self._go_to(TimeWindow(middle - found["duration_ns"] * 10, middle + found["duration_ns"] * 10 + 1))
        else:
            self.state = replace(self.state, event=f"{found['track']}.{found['row_index']}")
            self.wake()

    def _marked(self, start_ns: float, end_ns: float) -> None:
        if self._shown is not None:
            window = TimeWindow(round(start_ns), max(round(end_ns), round(start_ns) + 1)).clipped(self._shown.whole)
            self.state = replace(self.state, stretch=str(window))
            self.wake()

    # ------------------------------------------------------------ asking

    def _chosen_run(self, overview: Overview) -> Run | None:
        """Return the run that the state names, else the newest with a timeline, else the newest run."""
        if self.state.run is not None:
            return next((run for run in overview.runs if run.run_id == self.state.run), None)
        return next((run for run in overview.runs if run.has_timeline and run.is_settled), next(iter(overview.runs), None))

    def _ask_tile(self) -> None:
        """Unless there is one that serves, or a question is on its way: its answer leads back here, to the newest view."""
        if self._shown is None or self._tile.is_on_its_way:
            return
        run_id, whole, view = self._shown.run_id, self._shown.whole, self.figure.view
        if self._tile.answer is not None and self._tile.answer.serves(run_id, view, whole, self.figure.pixel_ns):
            return
        request = TileRequest.for_view(view, whole, self.figure.width_px)
        self._tile.ask((run_id, request), partial(self._ask.tile, run_id, request), self._revision)

    def _ask_beside(self, run_id: str, tile: Tile) -> None:
        """What may come later than the drawing."""
        if not self._gaps.is_on_its_way:
            self._gaps.ask((run_id, tile.request), partial(self._ask.gaps, run_id, tile.request), self._revision)
        spans = self._drawn.spans(MAX_DETAILED_COUNT)
        if spans and not self._details.is_on_its_way:
            self._details.ask((run_id, spans), partial(self._ask.details, run_id, spans), self._revision)

    def _ask_panels(self, run_id: str) -> None:
        if self.state.search:
            filters = searched(self.state)
            self._count.ask((run_id, filters), partial(self._ask.match_count, run_id, filters), self._revision)
        if event_of(self.state.event) is not None:
            self._event.ask((run_id, self.state.event), partial(self._ask.event, run_id, self.state.event), self._revision)
        window = TimeWindow.of(self.state.stretch)
        if window is not None:
            self._summary.ask((run_id, window), partial(self._ask.summary, run_id, window), self._revision)

    # ------------------------------------------------------------ showing

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        overview = self.with_older_runs(overview)
        self._run, self._revision = self._chosen_run(overview), overview.revision
        if self._run is not None and self._run.has_timeline:
            run_id = self._run.run_id
            self._outline.ask(run_id, partial(self._ask.outline, run_id), (self._run.is_settled, overview.problem))
        self._begin(self._outline.answer)
        if self._shown is not None:
            self._lay_out(self._shown)
            if self._jump is not None:
                self.figure.show(self._jump)
                self.state, self._jump = replace(self.state, window=str(self._jump)), None
            self._ask_tile()
            self._draw(self._shown)
            self._ask_panels(self._shown.run_id)
        now_unix_s = time.time()
        runs = [run_card(run, overview, now_unix_s) for run in self.listed_runs([run for run in overview.runs if run.has_timeline])]
        gaps = None if self._shown is None else _of_run(self._gaps, self._shown.run_id)
        reasons = [] if gaps is None else gaps["reason"].unique().to_list()
        return {
            "run_choice": fragment("run_choice.html", runs=runs, selected=self.state.runs),
            "filters": filters_fragment(self.state, {}),
            "matches": self._matches(),
            "call_switch": call_switch(None if self._shown is None else self._shown.lanes, self.state),
            "legend": timeline_legend(self.state, self.palette, reasons),
            "timeline_note": self._note(overview),
            "rows": fragment("timeline_rows.html", rows=self._rows.rows if self._rows is not None else ()),
            "chosen": self._chosen(),
            "stretch": self._stretch(),
        }

    def _matches(self) -> str:
        return fragment(
            "timeline_matches.html",
            text=self.state.search if self._shown is not None else "",
            count=None if self._count.is_on_its_way else self._count.answer,
            index=None if self._match is None else self._match.index,
            problem=self._count.problem,
        )

    def _answered(self, question: Question[Any], subject: object) -> bool:
        return self._shown is not None and question.answered == (self._shown.run_id, subject)

    def _shown_event(self) -> Event | None:
        return self._event.answer if self._answered(self._event, self.state.event) and not self._event.problem else None

    def _chosen(self) -> str:
        is_chosen = event_of(self.state.event) is not None
        problem = self._event.problem if is_chosen and self._answered(self._event, self.state.event) else ""
        state = replace(self.state, runs=self.state.runs or ((self._shown.run_id,) if self._shown is not None else ()))
        return chosen_fragment(self._shown_event(), state, problem, is_chosen)

    def _stretch(self) -> str:
        window = TimeWindow.of(self.state.stretch)
        is_answered = self._answered(self._summary, window)
        problem = self._summary.problem if is_answered else ""
        return stretch_fragment(window, self._summary.answer if is_answered and not problem else None, problem, not is_answered)

    def _note(self, overview: Overview) -> str:
        """Why there is nothing to see, or what is."""
        problem = self._outline.problem or self._tile.problem or (f"Gaps: {self._gaps.problem}" if self._gaps.problem else "")
        return fragment("timeline_note.html", problem=problem, empty=self._empty(overview, problem), text=self._told())

    def _empty(self, overview: Overview, problem: str) -> str:
        if self._run is None and not overview.is_known:
            return "Waiting for the analyzer's list."
        if self._run is None and self.state.run is None:
            return NO_RUN
        if self._run is None:
            is_gone = self._looked_at[self.state.runs[0]].problem
            return "The run is not there any longer. Choose another." if is_gone else "Asking the analyzer."
        if not self._run.has_timeline:
            return NO_TRACE
        if self._shown is None:
            return "" if problem else BEING_WORKED_OUT if self._run.is_settled else BEING_READ
        if self._shown.tile.is_empty():
            if not self._run.is_settled:
                return BEING_READ
            return NO_TIMES if self._run.is_trace else NO_TRACE
        return ""

    def _told(self) -> str:
        if self._shown is None or self._shown.tile.is_empty():
            return ""
        view, whole = self.figure.view.clipped(self._shown.whole), self._shown.whole
        parts = ["All" if view == whole else theme.duration(view.length_ns), f"of {theme.duration(whole.length_ns)}"]
        parts = [" ".join(parts)]
        if self._tile.answer is not None and not self._tile.answer.is_exact:
            parts.append(AS_PIXELS)
        if self._gaps.is_on_its_way:
            parts.append("working out gaps")
        return "; ".join(parts) + "."

    # ------------------------------------------------------------ drawing

    def _begin(self, outline: Outline | None) -> None:
        """Another trace is to be shown, or more of it was read."""
        if outline is None or self._run is None or outline.run_id != self._run.run_id:
            self._shown = self._rows = None
        elif outline is not self._shown:
            self._shown, self._rows, self._match = outline, None, None
            self._drawn = timeline.no_tile()
            self.figure.set_tile(self._drawn)
            self.figure.body.replace("names", timeline.label_columns(self._drawn, 0, 0, 1))
            self.figure.bound(outline.whole)
            wanted = TimeWindow.of(self.state.window)
            self.figure.show(outline.whole if wanted is None else wanted.clipped(outline.whole))

    def _lay_out(self, outline: Outline) -> None:
        rows = timeline_rows(shown_lanes(outline.lanes, self.state), outline.devices, outline.processes, self.state.folded.split(","))
        if self._rows is None or rows.rows != self._rows.rows:
            self._rows, self._drawn_for = rows, {}
            self.figure.set_rows([row.title for row in rows.rows])
            self.figure.overview.replace("busy", timeline.overview_columns(outline.tile, rows))

    def _is_new(self, part: str, wanted: object) -> bool:
        """Whether a part of the figure is to be drawn, because it was drawn for something else."""
        is_new = part not in self._drawn_for or self._drawn_for[part] != wanted
        self._drawn_for[part] = wanted
        return is_new

    def _draw(self, outline: Outline) -> None:
        tile, rows = self._tile.answer, self._rows
        if tile is None or rows is None or tile.run_id != outline.run_id:
            return
        body, view, pixel_ns = self.figure.body, self.figure.view, self.figure.pixel_ns
        looks = looks_of(self.state)
        # Of an exact tile, what is wide enough for a name changes with every zoom.
        scale = round(np.log2(pixel_ns / tile.request.pixel_ns), 1) if tile.is_exact else 0
        if self._is_new("tile", (tile.request, looks, scale)):
            self._drawn = timeline.drawn_tile(tile.rows, rows, looks, min(pixel_ns, tile.request.pixel_ns))
            self.figure.set_tile(self._drawn)
            for part in ("names", "hatches", "details"):
                self._drawn_for.pop(part, None)
        self._ask_beside(outline.run_id, tile)
        if self._is_new("names", view):
            body.replace("names", timeline.label_columns(self._drawn, view.start_ns, view.end_ns, pixel_ns))
        details, gaps = _of_run(self._details, outline.run_id), _of_run(self._gaps, outline.run_id)
        if details is not None and self._is_new("details", self._details.answer_subject):
            body.replace("events", timeline.with_details(self._drawn, details))
        if self._is_new("gaps", (self._gaps.answer_subject, self.state.hidden)):
            self._drawn_gaps = timeline.no_gaps() if gaps is None else gap_columns(shown_gaps(gaps, self.state), rows)
            body.replace("gaps", self._drawn_gaps)
        if self._is_new("hatches", (self._gaps.answer_subject, self.state.hidden)):
            for hatch, columns in timeline.hatch_columns(self._drawn, self._drawn_gaps, looks).items():
                body.replace(hatch, columns)
        event = self._shown_event()
        if self._is_new("chosen", event and (event.track, event.start_ns, event.name)):
            chosen, links = timeline.chosen_columns(rows, *_drawn_of(event))
            body.replace("chosen", chosen)
            body.replace("links", links)
        stretch = TimeWindow.of(self.state.stretch)
        if self._is_new("stretch", stretch):
            body.replace("stretch", timeline.stretch_columns(None if stretch is None else (stretch.start_ns, stretch.end_ns), rows))


def _drawn_of(event: Event | None) -> list[dict[str, Any] | None]:
    """Rows of the event and of both sides of its launch, which are known together."""
    if event is None or event.other is None:
        parts: tuple[Event | None, ...] = (event, None, None)
    else:
        parts = (event, event.call or event, event.work or event)
    return [None if part is None else part.row | {"track": part.track} for part in parts]


def _of_run(question: Question[Answer], run_id: str) -> Answer | None:
    """The newest answer, if it is of the run: what is known of one window serves until that of the next has come."""
    subject = question.answer_subject
    return question.answer if isinstance(subject, tuple) and subject[0] == run_id else None
