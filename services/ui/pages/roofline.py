"""The Roofline page: one or several runs under the ceilings of their devices, filtered, and what limits the point that is chosen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import polars as pl

from kernalyse.services.core.model import Filter, LogLevel, TableQuery
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import ceiling_choice, memory_level, roofline
from kernalyse.services.ui.charts.ceiling_choice import choice_note
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.charts.memory_level import drawn_levels, level_note
from kernalyse.services.ui.charts.roofline_points import LEVEL_TITLES, MAX_DRAWN_POINTS, Span, near, thinned
from kernalyse.services.ui.client import AnalyzerClient, TablePage
from kernalyse.services.ui.diagnosis import point_key, rows_of_point
from kernalyse.services.ui.legend import hidden_names, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.memory import Overview, RunMemory
from kernalyse.services.ui.pages.hardware_panel import HardwarePanel
from kernalyse.services.ui.pages.results import ResultRow, result_rows, results_fragment
from kernalyse.services.ui.pages.roofline_figure import ROOFLINE, no_points
from kernalyse.services.ui.pages.roofline_legend import legend_entries
from kernalyse.services.ui.pages.roofline_point import PointPanel
from kernalyse.services.ui.pages.roofline_rows import (
    COUNTED_TABLE_OF_POINTS,
    TABLE_OF_POINTS,
    HeldRows,
    OfRun,
    Shown,
    held_rows,
    named_ceilings,
    rows_of_run,
)
from kernalyse.services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, filters_fragment, fragment, run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import Page, PointsOf, ViewState, to_query

MAX_LISTED_POINTS: Final = 200
MAX_NEIGHBOURS: Final = 6
MAX_FILE_PROBLEMS: Final = 10
"""Lines under the chart: more push the points off the screen, and the log has all of them."""

REACH_PX: Final = 22.0
"""From a click to the point that it means: half the width of a finger."""

UNMEASURED_FRAME_PX: Final = (800.0, 400.0)
"""Of a chart whose browser has not told its size yet."""

NO_POINTS: Final[dict[PointsOf, str]] = {
    "kernel": "Choose a run, or start one: kernalyse bench matmul_tiled.",
    "layer": "Layers are those of models and of traces in which the work of kernels is known. Choose one, or points by kernel.",
}
NO_WORK: Final = (
    "None of its kernels has a point: how many flop and bytes they need is not known. PyTorch tells it with record_shapes=True, "
    "and a report of ncu that is imported with the trace."
)
COLUMN_OF: Final[dict[str, str]] = {
    "category": "category",
    "efficiency": "efficiency_category",
    "dtype": "dtype",
    "kernel": "kernel_name",
    "variant": "variant",
    "run": "run_id",
}


class RooflinePage(PageBase):
    page: Page = "roofline"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.roofline = LiveFigure("roofline", ROOFLINE, self.palette, ("ceilings", "names", "points", "rings"))
        self.roofline.figure.on_event("tap", self._tapped)
        for span in (self.roofline.figure.x_range, self.roofline.figure.y_range):
            span.on_change("start", self._moved)
            span.on_change("end", self._moved)
        self.hardware = HardwarePanel(client, Question(self.wake))
        self._drawn: object = None
        self._shown: Shown | None = None  # None: no rows have arrived
        self._held_parts: tuple[object, ...] | None = None
        self._held_rows: HeldRows | None = None
        self._ringed: object = None
        self._neighbours: tuple[str, ...] = ()  # keys of points under the last click
        self._counted: Question[pl.DataFrame] = Question(self.wake)
        self._file_problems: Question[TablePage] = Question(self.wake)
        self._panel = PointPanel(client, self.palette, self.wake)
        self._fragments = {"filters": "", "legend": "", "roofline_note": "", "results_note": ""}

    def roots(self) -> dict[str, Any]:
        return {"roofline": self.roofline.figure}

    def close(self) -> None:
        self._counted.stop()
        self._file_problems.stop()
        self._panel.stop()
        self.hardware.close()
        super().close()

    def template_values(self) -> dict[str, Any]:
        return {"ceiling_titles": ceiling_choice.TITLES, "level_titles": memory_level.TITLES}

    def handle(self, name: str, value: str) -> Any:
        if name.startswith("hardware"):
            return self.hardware.handle(name, value)
        if name == "toggle-run" and not self.state.runs:
            # The newest run is shown without being named; choosing another adds to it.
            shown = self.shown_run_ids(self.client.nodes.overview())
            self.state = replace(self.state, runs=tuple(run_id for run_id in shown if run_id != value))
        if name == "point":
            self._neighbours = ()
            self.state = replace(self.state, point="" if value == self.state.point else value)
            return None
        return super().handle(name, value)

    # ------------------------------------------------------------ clicks

    def _tapped(self, event: Any) -> None:
        """Chooses the point nearest to the click, among all that there are, drawn or not; next to none, none."""
        if self._shown is None:
            return
        placed = self._shown.placed
        width_px, height_px = self.roofline.frame_px or UNMEASURED_FRAME_PX
        found = near(placed, self._view(), event.x, event.y, width_px, height_px, REACH_PX)
        keys = tuple(dict.fromkeys(point_key(placed.row(row, named=True)) for row in found[: 4 * MAX_NEIGHBOURS]))
        self._neighbours = keys[:MAX_NEIGHBOURS]
        self.state = replace(self.state, point=keys[0] if keys else "")
        self.wake()

    def _view(self) -> Span:
        across, up = self.roofline.figure.x_range, self.roofline.figure.y_range
        return Span(across.start, across.end, up.start, up.end)

    def _moved(self, _name: str, _old: float, _new: float) -> None:
        """Of many points others are drawn in another view."""
        if self._is_thinned:
            self.wake()

    @property
    def _is_thinned(self) -> bool:
        return self._shown is not None and self._shown.placed.height > MAX_DRAWN_POINTS

    # ------------------------------------------------------------ one update

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        run_ids = self.shown_run_ids(overview)
        memories = self.memories(run_ids)
        # Positions say what has arrived: the chart is drawn anew when rows, runs or filters changed, and only then.
        watched = (*TABLE_OF_POINTS.values(), "ceilings", "counter_reports")
        positions = tuple(memory.since(name, 2**62).position for memory in memories for name in watched)
        self._ask_counted(run_ids, (overview.revision, *positions))
        view = self._view() if self._is_thinned else None
        wanted = (replace(self.state, point=""), run_ids, positions, self._counted.answered, self._counted.is_on_its_way, view)
        if wanted != self._drawn:
            self._drawn = wanted
            self._draw(memories, overview)
        return {
            "runs": self._runs_fragment(overview, run_ids),
            "hardware": self.hardware.fragment(overview, memories),
            "file_problems": self._file_problems_fragment(memories),
            **self._fragments,
            **self._chosen_fragments(memories, overview.revision),
        }

    def _ask_counted(self, run_ids: tuple[str, ...], progress: tuple[int, ...]) -> None:
        points = self.state.points
        if self.state.level != "auto" and run_ids:
            name = COUNTED_TABLE_OF_POINTS[points]
            self._counted.ask((points, run_ids), lambda: self.client.run_table(name, run_ids), progress, min_interval_s=1.0)

    def _file_problems_fragment(self, memories: tuple[RunMemory, ...]) -> str:
        """What the readers of the shown lists found wrong in them, above all why an operation has no place here."""
        listed = [memory for memory in memories if memory.run is not None and memory.run.is_imported and not memory.run.is_trace]
        if not listed:
            return ""
        run_ids = tuple(memory.run_id for memory in listed)
        query = TableQuery("log_lines", run_ids, filters=(Filter("level", LogLevel.WARNING.value),), limit=MAX_FILE_PROBLEMS)
        self._file_problems.ask(run_ids, partial(self.client.table, query), tuple(memory.state_count for memory in listed))
        answer = self._file_problems.answer_to(run_ids)
        lines = [] if answer is None else answer.rows["line"].to_list()
        return fragment("file_problems.html", lines=lines, count=0 if answer is None else answer.total_row_count)

    def _draw(self, memories: tuple[RunMemory, ...], overview: Overview) -> None:
        state = self.state
        runs = [rows_of_run(memory, state.points) for memory in memories]
        ceilings = named_ceilings(runs, overview, state.ceilings)
        held = self._held(runs)
        if held is None:
            self._shown = None
            known = roofline.shown_ceilings(ceilings, (), state.ceilings, drawn_levels(state.level, None))
            span = roofline.span_of(no_points(), known)
            self._follow(span)
            self._replace(no_points(), known, span)
            texts = {"legend": "", "roofline_note": _no_points(state.points, memories), "results_note": ""}
        else:
            rows = filters.filtered(held.rows, state, filters.LAYER_NAMES if state.points == "layer" else ("kernel_name",))
            self._shown = self._shown_of(rows, ceilings, held.missing_count, _titles(memories))
            texts = self._texts(self._shown)
        self._fragments = {"filters": filters_fragment(state, {} if held is None else held.filter_values), **texts}

    def _held(self, runs: Sequence[OfRun]) -> HeldRows | None:
        """Made anew when rows, level or ceilings changed, not with every filter."""
        state = self.state
        counted = self._counted.answer_to((state.points, tuple(run.run_id for run in runs)))
        # The frames themselves, not their ids: what they are of stays as long as it is compared with.
        parts = (state.points, state.level, state.ceilings, counted, *(run.rows for run in runs))
        if self._held_parts is None or any(new is not old for new, old in zip_longest(parts, self._held_parts)):
            self._held_parts, self._held_rows = parts, held_rows(runs, counted, state.level, state.ceilings)
        return self._held_rows

    def _shown_of(self, rows: pl.DataFrame, ceilings: pl.DataFrame | None, missing_count: int, run_titles: Mapping[str, str]) -> Shown:
        """Draws them."""
        state, column = self.state, COLUMN_OF[self.state.color_by]
        placeable = roofline.drawable(rows)
        present = placeable[column].drop_nulls().unique(maintain_order=True).to_list()
        values = theme.values_with(present) if column == "category" else tuple(present)
        hidden = hidden_names(["", *present], state.hidden)
        placed = placeable.filter(~pl.col(column).fill_null("").is_in(list(hidden))) if hidden else placeable
        dtypes = tuple(sorted(placed["dtype"].drop_nulls().unique()))
        shown = roofline.shown_ceilings(ceilings, dtypes, state.ceilings, drawn_levels(state.level, placed))
        extent = {"intensity": placed["intensity_flop_per_byte"].to_numpy(), "rate": placed["achieved_flop_per_s"].to_numpy()}
        span = roofline.span_of(extent, shown)
        self._follow(span)
        drawn = thinned(placed, self._view(), column)
        points = roofline.point_columns(drawn, self.palette, column, values, state.sizes)
        self._replace(points, shown, span)
        listed, listed_as = foremost(rows, with_level=state.level == "all")
        return Shown(rows, listed, listed_as, placeable, placed, drawn, points, shown, column, values, missing_count, run_titles)

    def _replace(self, points: Columns, shown: tuple[roofline.CeilingRow, ...], span: Span) -> None:
        lines = roofline.ceiling_columns(shown, span, self.palette)
        self.roofline.replace("points", points)
        self.roofline.replace("ceilings", lines)
        self.roofline.replace("names", roofline.label_columns(lines))

    def _follow(self, span: Span) -> None:
        self.roofline.follow("x", span.x_start, span.x_end)
        self.roofline.follow("y", span.y_start, span.y_end)

    # ------------------------------------------------------------ fragments

    def _runs_fragment(self, overview: Overview, run_ids: tuple[str, ...]) -> str:
        now_unix_s = time.time()
        runs = [
            {
                "card": run_card(run, overview, now_unix_s),
                "href": f"/roofline?{to_query(self.state.with_run_toggled(run.run_id))}",
            }
            for run in overview.runs[:MAX_LISTED_RUNS]
        ]
        return fragment(
            "runs.html",
            runs=runs,
            selected=run_ids,
            action="toggle-run",
            is_known=overview.is_known,
            hidden_count=max(0, len(overview.runs) - MAX_LISTED_RUNS),
            with_node=len(overview.nodes) > 1,
        )

    def _texts(self, shown: Shown) -> dict[str, str]:
        is_cut = shown.rows.height > MAX_LISTED_POINTS
        return {
            "legend": legend_fragment(legend_entries(shown, self.palette, self.state.hidden), **roofline.marks_of(shown.points)),
            "roofline_note": " ".join(note for note in self._notes(shown) if note),
            "results_note": f"the {MAX_LISTED_POINTS} {shown.listed_as} of {theme.count(shown.rows.height)}" if is_cut else "",
        }

    def _notes(self, shown: Shown) -> list[str]:
        rows = shown.rows
        notes = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(shown.ceilings)]
        unplaced_count = rows.height - shown.placeable.height
        if unplaced_count:
            notes.append(f"{unplaced_count} without a flop count cannot be placed here, only listed below.")
        if self._is_thinned:
            counts = f"{theme.count(shown.drawn.height)} of {theme.count(shown.placed.height)} points"
            notes.append(f"{counts} are drawn, one of those that cover each other; zoom in for more. A click finds the nearest of all.")
        notes.append(level_note(self.state.level, shown.missing_count, self._counted.is_on_its_way))
        notes.append(self._counted.problem if self.state.level != "auto" else "")
        notes.append(roofline.over_ceiling_note(rows))
        notes.append(choice_note(self.state.ceilings, rows, any(row["is_preferred"] for row in shown.ceilings)))
        if any(not row["is_preferred"] for row in shown.ceilings):
            notes.append("Solid ceilings are the ones that efficiency is computed with; dashed ones come from another source.")
        return notes

    # ------------------------------------------------------------ the chosen point

    def _chosen_fragments(self, memories: tuple[RunMemory, ...], revision: int) -> dict[str, str]:
        shown, key = self._shown, self.state.point
        self._draw_rings()
        if shown is None:
            return {"results": results_fragment([], with_run=False), "point": ""}
        neighbours = [other for other in self._neighbours if other != key] if key in self._neighbours else []
        return {
            "results": results_fragment(shown.listed, with_run=len(self.state.runs) > 1, chosen=key),
            "point": self._panel.html(rows_of_point(shown.rows, key), memories, shown.placed, neighbours, revision) if key else "",
        }

    def _draw_rings(self) -> None:
        shown, key = self._shown, self.state.point
        if self._ringed == (key, id(shown)):
            return
        self._ringed = (key, id(shown))
        rings = roofline.no_ring()
        if shown is not None and key:
            chosen = rows_of_point(shown.placed, key)
            points = roofline.point_columns(chosen, self.palette, shown.column, shown.values, self.state.sizes)
            rings = roofline.ring_columns(points)
        if self.roofline.row_count("rings") or len(rings["rate"]):
            self.roofline.replace("rings", rings)


def _titles(memories: Sequence[RunMemory]) -> dict[str, str]:
    """By run_id; those of one title are told apart."""
    titles = {memory.run_id: memory.run.title if memory.run else theme.short_run_id(memory.run_id) for memory in memories}
    counts = Counter(titles.values())
    return {run_id: title if counts[title] == 1 else f"{title} {theme.short_run_id(run_id)}" for run_id, title in titles.items()}


def foremost(rows: pl.DataFrame, *, with_level: bool) -> tuple[list[ResultRow], str]:
    """Those to list, and what they are: of traces the kernels that take longest, of sweeps the most efficient configurations.

    with_level: labels name the memory level.
    """
    is_of_traces = rows["duration_sum_ns"].count() > 0
    key, what = ("duration_sum_ns", "that take longest") if is_of_traces else ("efficiency_ratio", "most efficient")
    listed = rows.sort(key, descending=True, nulls_last=True, maintain_order=True).head(MAX_LISTED_POINTS)
    found = result_rows(listed, with_points=True)
    if with_level:
        labels = listed.select(
            pl.coalesce(pl.format("{} · {}", "label", pl.col("memory_level").replace(LEVEL_TITLES)), "label")
        ).to_series()
        found = [row._replace(label=label) for row, label in zip(found, labels, strict=True)]
    return found, what


def _no_points(points: PointsOf, memories: Sequence[RunMemory]) -> str:
    """Why nothing is drawn, with the remedy."""
    runs = [memory.run for memory in memories]
    is_read = bool(runs) and all(run is not None and run.is_trace and run.state.is_final for run in runs)
    return NO_WORK if points == "kernel" and is_read else NO_POINTS[points]
