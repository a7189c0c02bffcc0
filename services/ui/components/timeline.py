"""The timeline of a trace: what devices, streams and threads did when, from all of it down to one launch."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import panel as pn
import param
import polars as pl

from kernalyse.services.core.model import Filter, FilterOperator, Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.timeline_rows import (
    CATEGORIES,
    REASONS,
    Looks,
    TimelineRows,
    category_title,
    gap_columns,
    gap_title,
    legend_entries,
    timeline_rows,
)
from kernalyse.services.ui.components.base import Component, Text, card, flow, html
from kernalyse.services.ui.components.chart import LegendEntry, download_html, ended, hideable, legend_html, series_key
from kernalyse.services.ui.components.timeline_figure import TimelineFigure
from kernalyse.services.ui.data.filters import named
from kernalyse.services.ui.data.question import Answer, Question
from kernalyse.services.ui.data.timeline_questions import (
    MAX_DETAILED_COUNT,
    Event,
    Match,
    Outline,
    Tile,
    TileRequest,
    TimelineQuestions,
    TimeWindow,
    event_of,
)
from kernalyse.services.ui.view import TimelineView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

MAX_FOLDED_COUNT: Final = 40
NEAR_PX: Final = 3
CALLS: Final = "API calls"
"""A click this far from a bar means it: short launches are a pixel wide."""

IS_OF_CALLS: Final = pl.col("track") == "calls"

NO_RUN: Final = "No run has a timeline yet."
NO_TRACE: Final = (
    "This run has no trace, so nothing tells when its kernels ran: sweeps keep how long each took. Choose a trace, or record one."
)
NO_TIMES: Final = "This trace does not tell when its kernels ran (reports of ncu and sums do not). Import one of nsys or of PyTorch."
BEING_READ: Final = "The trace is recorded or read; its timeline appears here."
BEING_WORKED_OUT: Final = "Working out the timeline; of a large trace that takes some seconds the first time."
AS_PIXELS: Final = "rows with many events show how busy each pixel is (height) and what took most of it (colour)"
HELP: Final = (
    "Wheel zooms, dragging moves; with Shift, or on the time axis, it marks a stretch. "
    "Keys: a d or ← → move, w s or + − zoom, Home shows all, n and p next and previous match."
)


class TimelineChart(Component):
    """The chart with its rows, its window, what is chosen on it and marked, and what is searched.

    Attributes:
        run: that is shown; None: there is none, or nothing is known of it.
        outline: of its trace; None: nothing of it is there yet.
        match: the one that was jumped to last; None: none of what is searched.
        has_none: the run has no timeline, or there is no run.
    """

    def __init__(self, context: Context, view: TimelineView) -> None:
        super().__init__(context)
        self.view = view
        self.run: Run | None = None
        self.outline: Outline | None = None
        self.has_none = False
        self.ask = TimelineQuestions(context.client)
        self.figure = TimelineFigure(context.palette, self._moved, self._tapped, self._marked, self._told)
        self._outlines: Question[Outline] = Question(context.wake)
        self._tile: Question[Tile] = Question(context.wake)
        self._gaps: Question[pl.DataFrame] = Question(context.wake)
        self._details: Question[dict[str, dict[int, str]]] = Question(context.wake)
        self._event: Question[Event] = Question(context.wake)
        self._matched: tuple[object, Match | None] = (None, None)  # what was searched, and what was found last
        self._window: str | None = None  # of the view, as it is shown; None: to be shown
        self._rows: TimelineRows | None = None
        self._drawn = timeline.no_tile()
        self._drawn_gaps = timeline.no_gaps()
        self._drawn_for: dict[str, object] = {}  # what each part of the figure was drawn for
        self._calls = pn.widgets.CheckBoxGroup(options=[CALLS], value=[CALLS], margin=0, visible=False)
        self._calls.param.watch(self._switch_calls, "value")
        self._legend = Text()
        self._download = Text(sizing_mode=None)
        self._note = Text(classes=("note",), styles={"min-height": "20px"})
        self._help = Text(html("<p>{}</p>", HELP), classes=("note",))
        head = flow(
            Text(html("<h2>Timeline</h2>"), sizing_mode=None, styles={"flex": "1"}), self._calls, self._download, classes=("card-head",)
        )
        self.layout = card(head, self._note, self.figure.frame, self._legend, self._help)

    def close(self) -> None:
        for question in (self._outlines, self._tile, self._gaps, self._details, self._event):
            question.stop()

    # ------------------------------------------------------------ what others stand on

    @property
    def searched(self) -> tuple[Filter, ...]:
        """Of table timeline_matches: a match that is not shown could not be looked at."""
        wanted = named("name", self.view.search)
        return (wanted,) if self.view.calls == "shown" else (wanted, Filter("track", "calls", FilterOperator.NOT_EQUAL))

    @property
    def match(self) -> Match | None:
        subject, match = self._matched
        return match if self.outline is not None and subject == (self.outline.run_id, self.searched) else None

    def is_answered(self, question: Question[Any], subject: object) -> bool:
        """Return whether the newest answer, or refusal, is to a question on this subject of the run."""
        return self.outline is not None and question.answered == (self.outline.run_id, subject)

    def chosen_event(self) -> tuple[Event | None, str]:
        """Return what is known of the chosen event, and why nothing is."""
        if event_of(self.view.event) is None or not self.is_answered(self._event, self.view.event):
            return None, ""
        return (None, self._event.problem) if self._event.problem else (self._event.answer, "")

    # ------------------------------------------------------------ what a user does

    def go_to(self, window: TimeWindow) -> None:
        """Show the window and a little around it."""
        if self.outline is not None:
            self.view.window = str(window.widened(0.1).clipped(self.outline.whole))

    def mark_what_is_shown(self) -> None:
        """Mark all that is in sight."""
        if self.outline is not None:
            self.view.stretch = str(self.figure.view.clipped(self.outline.whole))

    async def go_to_match(self, step: int) -> None:
        """Choose the match after or before the last one, at first the first that is in sight. step: 1 or -1."""
        if self.outline is None or not self.view.search:
            return
        run_id, filters, last = self.outline.run_id, self.searched, self.match
        if last is not None:
            found = await self.ask.match_at(run_id, filters, last.index + step)
        else:
            found = await self.ask.match_after(run_id, filters, self.figure.view.start_ns)
            if found is not None and step < 0:
                found = await self.ask.match_at(run_id, filters, found.index - 1)
        if self._is_shown(run_id):
            self._matched = ((run_id, filters), found)
            self.choose(found)
            self.context.wake()

    async def go_to_launch(self, step: int) -> None:
        """Choose the launch of the same kernel after or before the chosen one. step: 1 or -1."""
        event, _ = self.chosen_event()
        chosen = event_of(self.view.event)
        if self.outline is None or event is None or chosen is None:
            return
        run_id, filters = self.outline.run_id, (Filter("name", event.name), Filter("track", event.track))
        index = await self.ask.match_of(run_id, filters, event, chosen[1])
        found = None if index is None else await self.ask.match_at(run_id, filters, index + step)
        if self._is_shown(run_id):
            self.choose(found)

    def _is_shown(self, run_id: str) -> bool:
        """Another run may have been chosen since the question."""
        return self.outline is not None and self.outline.run_id == run_id

    def choose(self, found: Match | Event | None) -> None:
        """Choose the event, and bring it into sight where it is not or would be too small to see."""
        if found is None or self.outline is None:
            return
        self.view.event = found.text
        view, length_ns = self.figure.view, found.end_ns - found.start_ns
        is_seen = view.start_ns <= found.start_ns and found.end_ns <= view.end_ns
        is_large = length_ns >= NEAR_PX * self.figure.pixel_ns
        if not is_seen or not is_large:
            wanted = view if is_large else TimeWindow(0, max(length_ns * 40, 1_000))
            self.view.window = str(wanted.around(found.start_ns, found.end_ns).clipped(self.outline.whole))

    def _told(self, message: dict[str, str]) -> None:
        """A row's button or a key. message: see Frame."""
        match message:
            case {"fold": str(group)}:
                others = [other for other in self.view.folded if other != group]
                self.view.folded = others if group in self.view.folded else [*others, group][-MAX_FOLDED_COUNT:]
            case {"match": "next" | "previous" as name}:
                self.context.carry_out(self.go_to_match(1 if name == "next" else -1))

    def _switch_calls(self, event: Any) -> None:
        self.view.calls = "shown" if event.new else "hidden"

    def _moved(self) -> None:
        """Ask at once, when both ends of the window have arrived: an update of the page may have to wait for its turn."""
        asyncio.get_running_loop().call_soon(self._ask_moved)

    def _ask_moved(self) -> None:
        self._ask_tile()
        if not self._tile.is_on_its_way:  # else its answer wakes the page, which then need not wait for the update's turn
            self.context.wake()

    def _tapped(self, time_ns: float, row: float) -> None:
        """Choose the shortest event there; where there are only pixels, come closer."""
        placed = self._drawn.placed
        if placed.is_empty() or self.outline is None:
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
            self.go_to(TimeWindow(middle - found["duration_ns"] * 10, middle + found["duration_ns"] * 10 + 1))
        else:
            self.view.event = f"{found['track']}.{found['row_index']}"

    def _marked(self, start_ns: float, end_ns: float) -> None:
        if self.outline is not None:
            self.view.stretch = str(TimeWindow(round(start_ns), max(round(end_ns), round(start_ns) + 1)).clipped(self.outline.whole))

    # ------------------------------------------------------------ asking

    def _chosen_run(self) -> Run | None:
        """Return the run that the view names, else the newest with a timeline, else the newest run."""
        runs, wanted = self.context.overview.runs, self.context.view.runs[:1]
        if wanted:  # what the list of the newest runs does not have is looked at for its own sake
            return next((run for run in runs if run.run_id == wanted[0]), None) or self.context.memories(wanted)[0].run
        return next((run for run in runs if run.has_timeline and run.is_settled), next(iter(runs), None))

    def _ask_tile(self) -> None:
        """Unless there is one that serves, or a question is on its way: its answer leads back here, to the newest view."""
        if self.outline is None or self._tile.is_on_its_way:
            return
        run_id, whole, view = self.outline.run_id, self.outline.whole, self.figure.view
        if self._tile.answer is not None and self._tile.answer.serves(run_id, view, whole, self.figure.pixel_ns):
            return
        request = TileRequest.for_view(view, whole, self.figure.width_px)
        self._tile.ask((run_id, request), partial(self.ask.tile, run_id, request), self.context.overview.revision)

    def _ask_beside(self, run_id: str, tile: Tile) -> None:
        """What may come later than the drawing."""
        revision = self.context.overview.revision
        if not self._gaps.is_on_its_way:
            self._gaps.ask((run_id, tile.request), partial(self.ask.gaps, run_id, tile.request), revision)
        spans = self._drawn.spans(MAX_DETAILED_COUNT)
        if spans and not self._details.is_on_its_way:
            self._details.ask((run_id, spans), partial(self.ask.details, run_id, spans), revision)

    # ------------------------------------------------------------ showing

    def update(self) -> None:
        overview, view = self.context.overview, self.view
        self.run = self._chosen_run()
        if self.run is not None and self.run.has_timeline:
            run_id = self.run.run_id
            self._outlines.ask(run_id, partial(self.ask.outline, run_id), (self.run.is_settled, overview.problem))
        self._begin(self._outlines.answer)
        if self.outline is not None:
            self._lay_out(self.outline)
            self._follow_window(self.outline.whole)
            self._ask_tile()
            self._draw(self.outline)
            if event_of(view.event) is not None:
                ask = partial(self.ask.event, self.outline.run_id, view.event)
                self._event.ask((self.outline.run_id, view.event), ask, overview.revision)
        self._show_legend()
        self._show_notes()  # after it: where there is nothing to see the legend is hidden
        has_calls = self.outline is not None and not self.outline.lanes.filter(IS_OF_CALLS).is_empty()
        self._calls.param.update(visible=has_calls, value=[CALLS] if view.calls == "shown" else [])

    def _show_notes(self) -> None:
        """Why there is nothing to see, or what is."""
        problem = self._outlines.problem or self._tile.problem or (f"Gaps: {self._gaps.problem}" if self._gaps.problem else "")
        empty = self._empty(problem)
        told = html('<p class="problem">{}</p>', problem) if problem else html("")
        self._note.show(told + html("<p>{}</p>", empty or self._shown_part()))
        self.has_none = empty in (NO_RUN, NO_TRACE, NO_TIMES)
        for part in (self.figure.frame, self._legend, self._help, self._download):
            if part.visible == bool(empty):
                part.visible = not empty

    def _empty(self, problem: str) -> str:
        if self.run is None and not self.context.view.runs:
            return NO_RUN if self.context.overview.is_known else "Waiting for the analyzer's list."
        if self.run is None:
            (memory,) = self.context.memories(self.context.view.runs[:1])
            return "The run is not there any longer. Choose another." if memory.problem else "Asking the analyzer."
        if not self.run.has_timeline:
            return NO_TRACE
        if self.outline is None:
            return "" if problem else BEING_WORKED_OUT if self.run.is_settled else BEING_READ
        if self.outline.tile.is_empty():
            return BEING_READ if not self.run.is_settled else NO_TIMES if self.run.is_trace else NO_TRACE
        return ""

    def _shown_part(self) -> str:
        if self.outline is None:
            return ""
        view, whole = self.figure.view.clipped(self.outline.whole), self.outline.whole
        parts = [f"{'All' if view == whole else theme.duration(view.length_ns)} of {theme.duration(whole.length_ns)}"]
        if self._tile.answer is not None and not self._tile.answer.is_exact:
            parts.append(AS_PIXELS)
        if self._gaps.is_on_its_way:
            parts.append("working out gaps")
        return "; ".join(parts) + "."

    def _show_legend(self) -> None:
        """Categories of kernels, and reasons for which the trace has gaps."""
        gaps = None if self.outline is None else _of_run(self._gaps, self.outline.run_id)
        if not self._is_new("legend", (self._gaps.answer_subject, gaps is None, tuple(self.view.hidden), self.view.color_by)):
            return
        reasons = [] if gaps is None else gaps["reason"].unique().to_list()
        entries = legend_entries(self.context.palette, reasons, by_name=self.view.color_by == "kernel")
        shown = ended(hideable((LegendEntry(*entry) for entry in entries), self.view.hidden))
        self._legend.show(legend_html(shown))
        self._download.show(download_html("Timeline", self.figure.bars, shown))

    # ------------------------------------------------------------ drawing

    def _begin(self, outline: Outline | None) -> None:
        """Another trace is to be shown, or more of it was read."""
        if outline is None or self.run is None or outline.run_id != self.run.run_id:
            self.outline = self._rows = None
        elif outline is not self.outline:
            self.outline, self._rows, self._window = outline, None, None
            self._drawn = timeline.no_tile()
            self.figure.set_tile(self._drawn)
            self.figure.bars.replace("names", timeline.label_columns(self._drawn, 0, 0, 1))
            self.figure.bound(outline.whole)

    def _follow_window(self, whole: TimeWindow) -> None:
        """Show the view's window where a link or a jump leads; else write down where the user has moved."""
        if self.view.window != self._window:
            wanted = TimeWindow.of(self.view.window)
            self.figure.show(whole if wanted is None else wanted.clipped(whole))
        shown = self.figure.view.clipped(whole)
        self._window = "" if shown == whole else str(shown)
        if self.view.window != self._window:
            with param.discard_events(self.view):  # the address is told after this update: another would only delay the next tile
                self.view.window = self._window

    def _lay_out(self, outline: Outline) -> None:
        lanes = outline.lanes if self.view.calls == "shown" else outline.lanes.filter(~IS_OF_CALLS)
        rows = timeline_rows(lanes, outline.devices, outline.processes, self.view.folded)
        if self._rows is None or rows.rows != self._rows.rows:
            self._rows, self._drawn_for = rows, {}
            self.figure.set_rows(rows.rows)
            self.figure.overview.replace("busy", timeline.overview_columns(outline.tile, rows))

    def _is_new(self, part: str, wanted: object) -> bool:
        """Return whether a part of the figure is to be drawn, because it was drawn for something else."""
        is_new = part not in self._drawn_for or self._drawn_for[part] != wanted
        self._drawn_for[part] = wanted
        return is_new

    def _looks(self) -> Looks:
        view, by_name = self.view, self.view.color_by == "kernel"
        hidden = (code for code, category in enumerate(CATEGORIES) if series_key(category_title(category)) in view.hidden)
        return Looks(by_name, view.search or self.context.view.kernel, frozenset(() if by_name else hidden))

    def _draw(self, outline: Outline) -> None:
        tile, rows, hidden = self._tile.answer, self._rows, tuple(self.view.hidden)
        if tile is None or rows is None or tile.run_id != outline.run_id:
            return
        bars, view, pixel_ns, looks = self.figure.bars, self.figure.view, self.figure.pixel_ns, self._looks()
        # Of an exact tile, what is wide enough for a name changes with every zoom.
        scale = round(np.log2(pixel_ns / tile.request.pixel_ns), 1) if tile.is_exact else 0
        if self._is_new("tile", (tile.request, looks, scale)):
            self._drawn = timeline.drawn_tile(tile.rows, rows, looks, min(pixel_ns, tile.request.pixel_ns))
            self.figure.set_tile(self._drawn)
            for part in ("names", "hatches", "details"):
                self._drawn_for.pop(part, None)
        self._ask_beside(outline.run_id, tile)
        if self._is_new("names", (view, pixel_ns)):
            bars.replace("names", timeline.label_columns(self._drawn, view.start_ns, view.end_ns, pixel_ns))
        details, gaps = _of_run(self._details, outline.run_id), _of_run(self._gaps, outline.run_id)
        if details is not None and self._is_new("details", self._details.answer_subject):
            bars.replace("events", timeline.with_details(self._drawn, details))
        if self._is_new("gaps", (self._gaps.answer_subject, hidden)):
            self._drawn_gaps = timeline.no_gaps() if gaps is None else gap_columns(_without(gaps, hidden), rows)
            bars.replace("gaps", self._drawn_gaps)
        if self._is_new("hatches", (self._gaps.answer_subject, hidden)):
            for hatch, columns in timeline.hatch_columns(self._drawn, self._drawn_gaps, looks).items():
                bars.replace(hatch, columns)
        event, _ = self.chosen_event()
        if self._is_new("chosen", event and (event.track, event.start_ns, event.name)):
            chosen, links = timeline.chosen_columns(rows, *_sides_of(event))
            bars.replace("chosen", chosen)
            bars.replace("links", links)
        stretch = TimeWindow.of(self.view.stretch)
        if self._is_new("stretch", stretch):
            bars.replace("stretch", timeline.stretch_columns(None if stretch is None else (stretch.start_ns, stretch.end_ns), rows))


def _without(gaps: pl.DataFrame, hidden: tuple[str, ...]) -> pl.DataFrame:
    """Rows of table gaps without those whose reasons are hidden. hidden: keys of series."""
    reasons = [reason for reason in REASONS if series_key(gap_title(reason)) in hidden]
    return gaps.filter(~pl.col("reason").is_in(reasons).fill_null(value=False)) if reasons else gaps


def _sides_of(event: Event | None) -> list[dict[str, Any] | None]:
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
