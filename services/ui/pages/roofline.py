"""The Roofline page: one or several runs under the ceilings of their devices, filtered, and what limits the point that is chosen."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from services.core.model import Filter, ImportedTrace, Run, SortKey, TableQuery
from services.ui import filters, theme
from services.ui.charts import ceiling_choice, memory_level, roofline
from services.ui.charts.ceiling_choice import choice_note, held_against
from services.ui.charts.memory_level import at_level, drawn_levels, level_note
from services.ui.charts.roofline_points import LEVEL_TITLES, MAX_DRAWN_POINTS, Span, near, thinned
from services.ui.client import AnalyzerClient
from services.ui.diagnosis import diagnosis, point_key, rows_of_point
from services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from services.ui.live_figure import LiveFigure
from services.ui.memory import Overview, RunMemory
from services.ui.pages.hardware_panel import HardwarePanel
from services.ui.pages.results import ResultRow, result_rows, results_fragment
from services.ui.pages.roofline_figure import no_points, roofline_prototype
from services.ui.pages.roofline_rows import TABLE_OF_POINTS, named_ceilings, rows_of_run, together
from services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, filters_fragment, fragment, run_card
from services.ui.question import Question
from services.ui.state import Page, PointsOf, ViewState, to_query
from services.ui.theme import CATEGORIES, EFFICIENCY_CATEGORIES, SYMBOLS, Outline, efficiency_style, style_of

MAX_LISTED_POINTS: Final = 200
MAX_NEIGHBOURS: Final = 6
REACH_PX: Final = 22.0
"""From a click to the point that it means: half the width of a finger."""

UNMEASURED_FRAME_PX: Final = (800.0, 400.0)
"""Of a chart whose browser has not told its size yet."""

NO_POINTS: Final[dict[PointsOf, str]] = {
    "kernel": "Choose a run, or start one: kernalyse bench matmul_tiled. A trace has points where the work of its kernels is known: "
    "of PyTorch record with record_shapes=True, or import a report of ncu with it.",
    "layer": "Layers are those of models and of traces in which the work of kernels is known. Choose one, or points by kernel.",
}
COLUMN_OF: Final[dict[str, str]] = {
    "category": "category",
    "efficiency": "efficiency_category",
    "dtype": "dtype",
    "kernel": "kernel_name",
    "variant": "variant",
    "run": "run_id",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is on the page. placed: rows with a place on the chart, hidden series left out; points: those of them that are drawn."""

    rows: pl.DataFrame | None
    placed: pl.DataFrame | None
    drawn: pl.DataFrame | None
    points: dict[str, Any]
    ceilings: tuple[roofline.CeilingRow, ...]
    column: str
    values: tuple[str, ...]
    missing_count: int  # without bytes at the chosen level


class RooflinePage(PageBase):
    page: Page = "roofline"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.roofline = LiveFigure(
            "roofline", roofline_prototype(self.palette, 520, has_rings=True), ("ceilings", "names", "points", "rings")
        )
        self.roofline.figure.on_event("tap", self._tapped)
        for span in (self.roofline.figure.x_range, self.roofline.figure.y_range):
            span.on_change("start", self._moved)
            span.on_change("end", self._moved)
        self.hardware = HardwarePanel(client, Question(self.wake))
        self._drawn: object = None
        self._shown: Shown | None = None
        self._neighbours: tuple[str, ...] = ()  # keys of points under the last click
        self._counted: Question[pl.DataFrame] = Question(self.wake)
        self._occupancy: Question[pl.DataFrame] = Question(self.wake)
        self._fragments = {"filters": "", "legend": "", "roofline_note": "", "results_note": ""}

    def roots(self) -> dict[str, Any]:
        return {"roofline": self.roofline.figure}

    def close(self) -> None:
        self._counted.stop()
        self._occupancy.stop()
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
        placed = None if self._shown is None else self._shown.placed
        if placed is None:
            return
        width_px, height_px = (size or usual for size, usual in zip(self._frame_px(), UNMEASURED_FRAME_PX, strict=True))
        found = near(placed, self._view(), event.x, event.y, width_px, height_px, REACH_PX)
        keys = tuple(dict.fromkeys(point_key(placed.row(row, named=True)) for row in found[: 4 * MAX_NEIGHBOURS]))
        self._neighbours = keys[:MAX_NEIGHBOURS]
        self.state = replace(self.state, point=keys[0] if keys else "")
        self.wake()

    def _frame_px(self) -> tuple[float | None, float | None]:
        return self.roofline.figure.inner_width, self.roofline.figure.inner_height

    def _view(self) -> Span:
        across, up = self.roofline.figure.x_range, self.roofline.figure.y_range
        return Span(across.start, across.end, up.start, up.end)

    def _moved(self, _name: str, _old: float, _new: float) -> None:
        """Of many points others are drawn in another view."""
        if self._is_thinned:
            self.wake()

    @property
    def _is_thinned(self) -> bool:
        return self._shown is not None and self._shown.placed is not None and self._shown.placed.height > MAX_DRAWN_POINTS

    # ------------------------------------------------------------ one update

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        run_ids = self.shown_run_ids(overview)
        memories = self.memories(run_ids)
        # Positions say what has arrived: the chart is drawn anew when rows, runs or filters changed, and only then.
        watched = (*TABLE_OF_POINTS.values(), "ceilings", "counter_reports")
        positions = tuple(memory.since(name, 2**62).position for memory in memories for name in watched)
        self._ask_counted(run_ids, positions)
        view = self._view() if self._is_thinned else None
        wanted = (replace(self.state, point=""), run_ids, positions, self._counted.answered, self._counted.is_on_its_way, view)
        if wanted != self._drawn:
            self._drawn = wanted
            self._draw(memories, overview)
        return {
            "runs": self._runs_fragment(overview, run_ids),
            "hardware": self.hardware.fragment(overview, memories),
            **self._fragments,
            **self._chosen_fragments(memories),
        }

    def _ask_counted(self, run_ids: tuple[str, ...], positions: tuple[int, ...]) -> None:
        if self.state.level != "auto" and self.state.points == "kernel" and run_ids:
            self._counted.ask(run_ids, lambda: self.client.run_table("counted_roofline", run_ids), positions, min_interval_s=1.0)

    def _draw(self, memories: tuple[RunMemory, ...], overview: Overview) -> None:
        state = self.state
        runs = [rows_of_run(memory, state.points) for memory in memories]
        newest = together(runs)
        ceilings = named_ceilings(runs, overview, state.ceilings)
        counted = self._counted.answer if state.points == "kernel" and self._counted.answered == tuple(run.run_id for run in runs) else None
        levelled = None if newest is None else at_level(newest, counted, state.level)
        held = None if levelled is None else held_against(levelled, state.ceilings)
        rows = None if held is None else filters.filtered(held, state, "label" if state.points == "layer" else "kernel_name")
        column = COLUMN_OF[state.color_by]
        self._shown = self._shown_of(rows, ceilings, column)
        if newest is not None and levelled is not None and state.level not in ("auto", "all"):
            self._shown = replace(self._shown, missing_count=max(0, newest.height - levelled.height))
        self._fragments = {
            "filters": filters_fragment(state, {} if held is None else filters.values_of(held)),
            **self._texts(self._shown),
        }

    def _shown_of(self, rows: pl.DataFrame | None, ceilings: pl.DataFrame | None, column: str) -> Shown:
        """Draws them."""
        placeable = None if rows is None else roofline.drawable(rows)
        values: tuple[str, ...] = CATEGORIES
        placed = drawn = None
        points, extent = no_points(), no_points()
        if placeable is not None:
            present = placeable[column].drop_nulls().unique(maintain_order=True).to_list()
            values = theme.values_with(present) if column == "category" else tuple(present)
            hidden = hidden_names(["", *present], self.state.hidden)
            placed = placeable.filter(~pl.col(column).fill_null("").is_in(list(hidden))) if hidden else placeable
            extent = {"intensity": placed["intensity_flop_per_byte"].to_numpy(), "rate": placed["achieved_flop_per_s"].to_numpy()}
        dtypes = () if placed is None else tuple(sorted(placed["dtype"].drop_nulls().unique()))
        shown = roofline.shown_ceilings(ceilings, dtypes, self.state.ceilings, drawn_levels(self.state.level, placed))
        span = roofline.span_of(extent, shown)
        self.roofline.follow("x", span.x_start, span.x_end)
        self.roofline.follow("y", span.y_start, span.y_end)
        if placed is not None:
            drawn = thinned(placed, self._view(), column)
            points = roofline.point_columns(drawn, self.palette, column, values, self.state.sizes)
        lines = roofline.ceiling_columns(shown, span, self.palette)
        self.roofline.replace("points", points)
        self.roofline.replace("ceilings", lines)
        self.roofline.replace("names", roofline.label_columns(lines))
        return Shown(rows, placed, drawn, points, shown, column, values, missing_count=0)

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
        rows = shown.rows
        if rows is None:
            return {"legend": "", "roofline_note": NO_POINTS[self.state.points], "results_note": ""}
        what = _foremost(rows)[1]
        is_cut = rows.height > MAX_LISTED_POINTS
        return {
            "legend": legend_fragment(self._legend(shown), **roofline.marks_of(shown.points)),
            "roofline_note": " ".join(note for note in self._notes(shown, rows) if note),
            "results_note": f"the {MAX_LISTED_POINTS} {what} of {theme.count(rows.height)}" if is_cut else "",
        }

    def _notes(self, shown: Shown, rows: pl.DataFrame) -> list[str]:
        notes = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(shown.ceilings)]
        placed_count = 0 if shown.placed is None else shown.placed.height
        unplaced_count = rows.height - roofline.drawable(rows).height
        if unplaced_count:
            notes.append(f"{unplaced_count} without a flop count have no place here and are only listed below.")
        if shown.drawn is not None and shown.drawn.height < placed_count:
            notes.append(
                f"{theme.count(shown.drawn.height)} of {theme.count(placed_count)} points are drawn, one of those that cover each other; "
                "zoom in for more. A click finds the nearest of all."
            )
        notes.append(level_note(self.state.level, shown.missing_count, self._counted.is_on_its_way))
        notes.append(self._counted.problem if self.state.level != "auto" else "")
        notes.append(roofline.over_ceiling_note(rows))
        notes.append(choice_note(self.state.ceilings, rows, any(row["is_preferred"] for row in shown.ceilings)))
        if any(not row["is_preferred"] for row in shown.ceilings):
            notes.append("Solid ceilings are the ones that efficiency is computed with; dashed ones come from another source.")
        return notes

    def _legend(self, shown: Shown) -> list[LegendEntry]:
        """Series as buttons; where colour says how efficient points are, shapes are explained after them."""
        placeable = roofline.drawable(shown.rows) if shown.rows is not None else pl.DataFrame({shown.column: []})
        present = set(placeable[shown.column].fill_null("").to_list())
        order = EFFICIENCY_CATEGORIES if shown.column == "efficiency_category" else shown.values
        names = [name for name in (*order, *sorted(present - set(order))) if name in present]
        markers = _markers_of(shown)
        entries = hideable([self._series_entry(name, shown, markers) for name in names], names, self.state.hidden)
        if shown.column != "efficiency_category":
            return entries
        categories = placeable["category"].drop_nulls().unique().to_list()
        shapes = [name for name in (*CATEGORIES, *sorted(set(categories) - set(CATEGORIES))) if name in categories]
        symbols = {name: SYMBOLS.get(markers.get(name, ""), "●") for name in shapes}
        return [*entries, *(LegendEntry(name, self.palette.muted, symbols[name], meaning="The shape of this kind") for name in shapes)]

    def _series_entry(self, name: str, shown: Shown, markers: dict[str, str]) -> LegendEntry:
        title = theme.short_run_id(name) if shown.column == "run_id" else name or "not known"
        if shown.column == "efficiency_category":
            return LegendEntry(title, efficiency_style(name, self.palette).color, Outline.of(name).symbol)
        style = style_of(name, shown.values, self.palette)
        return LegendEntry(title, style.color, SYMBOLS.get(markers.get(name, style.marker), SYMBOLS[style.marker]))

    # ------------------------------------------------------------ the chosen point

    def _chosen_fragments(self, memories: tuple[RunMemory, ...]) -> dict[str, str]:
        shown = self._shown
        rows = None if shown is None else shown.rows
        chosen = None if rows is None or not self.state.point else rows_of_point(rows, self.state.point)
        self._draw_rings()
        listed = [] if rows is None else _foremost(_with_level(rows) if self.state.level == "all" else rows)[0]
        return {
            "results": results_fragment(listed, with_run=len(self.state.runs) > 1, chosen=self.state.point),
            "point": "" if chosen is None else self._point_fragment(chosen, memories),
        }

    def _draw_rings(self) -> None:
        shown = self._shown
        positions: list[int] = []
        if shown is not None and shown.placed is not None and self.state.point:
            chosen = rows_of_point(shown.placed, self.state.point)
            points = roofline.point_columns(chosen, self.palette, shown.column, shown.values, self.state.sizes)
            positions = list(range(len(points["rate"])))
            rings = roofline.ring_columns(points, positions)
        else:
            rings = roofline.no_ring()
        if self.roofline.row_count("rings") or positions:
            self.roofline.replace("rings", rings)

    def _point_fragment(self, chosen: pl.DataFrame, memories: tuple[RunMemory, ...]) -> str:
        if chosen.is_empty():
            return fragment("point_gone.html")
        row = chosen.row(0, named=True)
        memory = next(memory for memory in memories if memory.run_id == row["run_id"])
        told = diagnosis(row, _measurement_of(row, memory), self._occupancy_of(row), in_macs=_is_in_macs(memory.run))
        return fragment(
            "point.html",
            told=told,
            badge=self.palette.bad if row["is_implausible"] else efficiency_style(told.category, self.palette).color,
            symbol=theme.IMPLAUSIBLE_SYMBOL if row["is_implausible"] else Outline.of(told.category).symbol,
            run_title=memory.run.title if memory.run else theme.short_run_id(row["run_id"]),
            levels=result_rows(chosen) if chosen.height > 1 else [],
            level_names=[LEVEL_TITLES.get(level, level) for level in chosen["memory_level"]],
            neighbours=self._named_neighbours(),
        )

    def _named_neighbours(self) -> list[dict[str, str]]:
        placed = None if self._shown is None else self._shown.placed
        others = [key for key in self._neighbours if key != self.state.point] if self.state.point in self._neighbours else []
        if placed is None:
            return []
        found = ((key, rows_of_point(placed, key)) for key in others)
        return [{"key": key, "label": rows["label"][0]} for key, rows in found if rows.height]

    def _occupancy_of(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """Of a trace's kernel: its launch configuration that took longest."""
        if row["configuration_index"] is not None or not row["kernel_name"]:
            return None
        subject = (row["run_id"], row["kernel_name"])
        query = TableQuery(
            "occupancy",
            (row["run_id"],),
            filters=(Filter("kernel_name", row["kernel_name"]),),
            order_by=(SortKey("duration_sum_ns", True),),
            limit=1,
        )

        async def longest() -> pl.DataFrame:
            return (await self.client.table(query)).rows

        self._occupancy.ask(subject, longest)
        answer = self._occupancy.answer if self._occupancy.answered == subject else None
        return None if answer is None or answer.is_empty() else answer.row(0, named=True)


def _markers_of(shown: Shown) -> dict[str, str]:
    """The one shape of each series, and of each category, whose points all have the same."""
    if shown.drawn is None:
        return {}
    rows = shown.drawn.select(pl.col(shown.column).alias("series"), "category").with_columns(pl.Series("marker", shown.points["marker"]))
    found: dict[str, str] = {}
    for column in ("category", "series"):
        for name, markers in rows.group_by(column).agg(pl.col("marker").unique()).iter_rows():
            if name is not None and len(markers) == 1:
                found[name] = markers[0]
    return found


def _measurement_of(row: dict[str, Any], memory: RunMemory) -> dict[str, Any] | None:
    measurements = memory.table("measurements")
    if row["configuration_index"] is None or measurements is None:
        return None
    found = measurements.filter(pl.col("configuration_index") == row["configuration_index"])
    return None if found.is_empty() else found.row(-1, named=True)


def _is_in_macs(run: Run | None) -> bool:
    return run is not None and isinstance(run.spec.work, ImportedTrace) and run.spec.work.format == "commands"


def _with_level(rows: pl.DataFrame) -> pl.DataFrame:
    """Their labels name the memory level."""
    return rows.with_columns(label=pl.format("{} · {}", "label", pl.col("memory_level").replace(LEVEL_TITLES)))


def _foremost(rows: pl.DataFrame) -> tuple[list[ResultRow], str]:
    """Those to list, and what they are: of traces the kernels that take longest, of sweeps the most efficient configurations."""
    is_of_traces = rows["duration_sum_ns"].count() > 0
    key, what = ("duration_sum_ns", "that take longest") if is_of_traces else ("efficiency_ratio", "most efficient")
    return result_rows(rows.sort(key, descending=True, nulls_last=True).head(MAX_LISTED_POINTS), with_points=True), what
