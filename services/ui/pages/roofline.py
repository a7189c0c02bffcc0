"""The Roofline page: one or several runs under the ceilings of their device, filtered."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import polars as pl

from services.ui import filters, theme
from services.ui.charts import roofline
from services.ui.charts.ceiling_choice import at_clock_of, choice_note, held_against
from services.ui.client import AnalyzerClient
from services.ui.live_figure import LiveFigure
from services.ui.memory import Overview, RunMemory
from services.ui.pages.hardware_panel import HardwarePanel
from services.ui.pages.results import ResultRow, result_rows, results_fragment
from services.ui.pages.roofline_figure import no_points, roofline_prototype
from services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, filters_fragment, fragment, run_card
from services.ui.question import Question
from services.ui.state import Page, PointsOf, ViewState, to_query
from services.ui.theme import CATEGORIES, SYMBOLS, style_of

MAX_LISTED_POINTS: Final = 200
NO_POINTS: Final[dict[PointsOf, str]] = {
    "kernel": "Choose a run, or start one: kernalyse bench matmul_tiled. A trace has points where the work of its kernels is known: "
    "of PyTorch record with record_shapes=True, or import a report of ncu with it.",
    "layer": "Layers are those of models and of traces in which the work of kernels is known. Choose one, or points by kernel.",
}
TABLE_OF_POINTS: Final[dict[PointsOf, str]] = {"kernel": "roofline", "layer": "layer_roofline"}
COLUMN_OF: Final[dict[str, str]] = {
    "category": "category",
    "dtype": "dtype",
    "kernel": "kernel_name",
    "variant": "variant",
    "run": "run_id",
}


class RooflinePage(PageBase):
    page: Page = "roofline"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.roofline = LiveFigure("roofline", roofline_prototype(self.palette, 480), ("ceilings", "names", "points"))
        self.hardware = HardwarePanel(client, Question(self.wake))
        self._drawn: object = None
        self._fragments = {"filters": "", "legend": "", "roofline_note": "", "results": "", "results_note": ""}

    def roots(self) -> dict[str, Any]:
        return {"roofline": self.roofline.figure}

    def close(self) -> None:
        self.hardware.close()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        if name.startswith("hardware"):
            return self.hardware.handle(name, value)
        if name == "toggle-run" and not self.state.runs:
            # The newest run is shown without being named; choosing another adds to it.
            shown = self.shown_run_ids(self.client.nodes.overview())
            self.state = replace(self.state, runs=tuple(run_id for run_id in shown if run_id != value))
        return super().handle(name, value)

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        run_ids = self.shown_run_ids(overview)
        memories = self.memories(run_ids)
        # Positions say what has arrived: the chart is drawn anew when rows, runs or filters changed, and only then.
        watched = (*TABLE_OF_POINTS.values(), "ceilings")
        wanted = (self.state, run_ids, *(memory.since(name, 2**62).position for memory in memories for name in watched))
        if wanted != self._drawn:
            self._drawn = wanted
            self._draw(memories)
        now_unix_s = time.time()
        runs = [
            {
                "card": run_card(run, overview, now_unix_s),
                "href": f"/roofline?{to_query(self.state.with_run_toggled(run.run_id))}",
            }
            for run in overview.runs[:MAX_LISTED_RUNS]
        ]
        hidden_count = max(0, len(overview.runs) - MAX_LISTED_RUNS)
        listed = fragment(
            "runs.html",
            runs=runs,
            selected=run_ids,
            action="toggle-run",
            is_known=overview.is_known,
            hidden_count=hidden_count,
            with_node=len(overview.nodes) > 1,
        )
        return {"runs": listed, "hardware": self.hardware.fragment(overview, memories), **self._fragments}

    def _draw(self, memories: tuple[RunMemory, ...]) -> None:
        found = [frame for memory in memories if (frame := memory.table(TABLE_OF_POINTS[self.state.points])) is not None]
        ceilings_found = [frame for memory in memories if (frame := memory.table("ceilings")) is not None]
        choice = self.state.ceilings
        newest = roofline.newest_rows(pl.concat(found, how="vertical_relaxed")) if found else None
        name_column = "label" if self.state.points == "layer" else "kernel_name"
        rows = None if newest is None else held_against(filters.filtered(newest, self.state, name_column), choice)
        ceilings = pl.concat(ceilings_found, how="vertical_relaxed") if ceilings_found else None
        if choice == "clock" and ceilings is not None and rows is not None:
            ceilings = at_clock_of(ceilings, rows)
        column = COLUMN_OF[self.state.color_by]
        values = CATEGORIES
        points = no_points()
        if rows is not None:
            if column != "category":
                values = tuple(roofline.drawable(rows)[column].drop_nulls().unique(maintain_order=True).to_list())
            points = roofline.point_columns(rows, self.palette, column, values)
        dtypes = tuple(sorted(set(points["dtype"].tolist()) - {""}))
        shown = roofline.shown_ceilings(ceilings, dtypes, choice)
        span = roofline.span_of(points, shown)
        lines = roofline.ceiling_columns(shown, span, self.palette)
        self.roofline.replace("points", points)
        self.roofline.replace("ceilings", lines)
        self.roofline.replace("names", roofline.label_columns(lines))
        self.roofline.follow("x", span.x_start, span.x_end)
        self.roofline.follow("y", span.y_start, span.y_end)
        self._fragments = {
            "filters": filters_fragment(self.state, {} if newest is None else filters.values_of(newest)),
            **self._texts(rows=rows, points=points, values=values, column=column, ceilings=shown),
        }

    def _texts(
        self,
        *,
        rows: pl.DataFrame | None,
        points: dict[str, Any],
        values: tuple[str, ...],
        column: str,
        ceilings: tuple[roofline.CeilingRow, ...],
    ) -> dict[str, str]:
        present = set(roofline.drawable(rows)[column].drop_nulls().to_list()) if rows is not None else set()
        shown = [value for value in (*values, *sorted(present - set(values))) if value in present]
        entries = [
            {"name": theme.short_run_id(value) if column == "run_id" else value, "color": style.color, "symbol": SYMBOLS[style.marker]}
            for value in shown
            for style in (style_of(value, values, self.palette),)
        ]
        notes = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(ceilings)]
        missing_count = 0 if rows is None else rows.height - len(points["rate"])
        if missing_count:
            notes.append(f"{missing_count} without a flop count have no place here and are only listed below.")
        if rows is not None:
            notes.append(roofline.over_ceiling_note(rows))
            notes.append(choice_note(self.state.ceilings, rows, any(row["is_preferred"] for row in ceilings)))
        if any(not row["is_preferred"] for row in ceilings):
            notes.append("Solid ceilings are the ones that efficiency is computed with; dashed ones come from another source.")
        listed, what = ([], "") if rows is None else _foremost(rows)
        count_text = (
            f"the {MAX_LISTED_POINTS} {what} of {theme.count(rows.height)}" if rows is not None and rows.height > MAX_LISTED_POINTS else ""
        )
        return {
            "legend": fragment("legend.html", entries=entries, **roofline.marks_of(points)),
            "roofline_note": " ".join(note for note in notes if note) if rows is not None else NO_POINTS[self.state.points],
            "results": results_fragment(listed, with_run=len(self.state.runs) > 1),
            "results_note": count_text,
        }


def _foremost(rows: pl.DataFrame) -> tuple[list[ResultRow], str]:
    """Those to list, and what they are: of traces the kernels that take longest, of sweeps the most efficient configurations."""
    is_of_traces = rows["duration_sum_ns"].count() > 0
    key, what = ("duration_sum_ns", "that take longest") if is_of_traces else ("efficiency_ratio", "most efficient")
    return result_rows(rows.sort(key, descending=True, nulls_last=True).head(MAX_LISTED_POINTS)), what
