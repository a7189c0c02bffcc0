"""The Compare page: a candidate run judged by a baseline, configuration by configuration, or kernel by kernel of two traces."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.formatting import footnote_lines
from kernalyse.services.core.model import Run
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import compare, roofline
from kernalyse.services.ui.charts.elements import empty_columns
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hideable, legend_fragment, series_key
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.memory import Overview, RunMemory
from kernalyse.services.ui.pages.compared_rows import (
    Compared,
    columns_of,
    compared,
    disturbances,
    has_layers,
    reason_marks,
    table_rows,
    tiles,
    verdict_legend,
    with_shown_verdicts,
)
from kernalyse.services.ui.pages.compared_sides import chosen_pair, facts
from kernalyse.services.ui.pages.pager import gone_to_page, pager_fragment, sorted_by
from kernalyse.services.ui.pages.roofline_figure import no_points
from kernalyse.services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, filters_fragment, fragment, run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.run_sources import sources_of
from kernalyse.services.ui.source_difference import FileDifference, source_difference
from kernalyse.services.ui.state import Page, ViewState
from kernalyse.services.ui.theme import Palette

REFRESH_INTERVAL_S: Final = 2.0
"""Between questions while one of the runs goes on: each costs the analyzer a bootstrap of every configuration."""

NOT_ALIKE: Final = "One of these is a trace and the other has measurements: choose two traces, or two runs of measurements."
ONE_RUN: Final = "Both sides are of one run, and of the same sources."
NO_LAYERS: Final = "This run has its model in one variant only: choose two of them when it is started."
NO_PAIR: Final = "Choose two runs. Measure one kernel twice, before and after a change: kernalyse bench saxpy --processes 5"


@EmptyChart
def _speedups(palette: Palette) -> hv.Overlay:
    return compare.speedup_chart(compare.no_speedups(), empty_columns(compare.WHISKER_NUMBERS), palette)


@EmptyChart
def _changes(palette: Palette) -> hv.Overlay:
    return compare.change_chart(empty_columns(compare.CHANGE_NUMBERS, compare.CHANGE_TEXTS), palette)


@EmptyChart
def _rooflines(palette: Palette) -> hv.Overlay:
    moves = compare.moves_layer(empty_columns(compare.MOVE_NUMBERS, compare.MOVE_TEXTS))
    ceilings = empty_columns(roofline.CEILING_NUMBERS, roofline.CEILING_TEXTS)
    return roofline.roofline_chart(no_points(), ceilings, roofline.Span(*roofline.NO_POINT_SPAN), palette, 420, under_points=(moves,))


class ComparePage(PageBase):
    page: Page = "compare"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self._rows: Question[Compared] = Question(self.wake)
        self._sources: Question[tuple[tuple[FileDifference, ...], str]] = Question(self.wake)
        self.speedups = LiveFigure("speedups", _speedups, self.palette, ("even", "whiskers", "points"))
        self.changes = LiveFigure("changes", _changes, self.palette, ("bars",))
        self.roofline = LiveFigure("roofline", _rooflines, self.palette, ("ceilings", "names", "moves", "points"))
        self._drawn: object = None
        self._moved: object = None
        self._drawn_of: object = None  # which runs, and what of them
        self._has_points = False  # on the roofline, hidden ones too
        self._row_count = 0  # of the table, by the filters
        self._legend = self._roofline_legend = ""

    def roots(self) -> dict[str, Any]:
        return {"speedups": self.speedups.figure, "changes": self.changes.figure, "roofline": self.roofline.figure}

    def close(self) -> None:
        self._rows.stop()
        self._sources.stop()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "swap":
                before, after = self._pair(self.client.nodes.overview())
                self.state = replace(self.state, baseline=_id(after), candidate=_id(before), row=0)
            case "sort":
                self.state = sorted_by(self.state, value)
            case "set" if value.startswith("page="):
                self.state = gone_to_page(self.state, value.removeprefix("page="), self._row_count)
            case "set" if value.startswith(("baseline=", "candidate=")):
                # Both are named from then on: what nobody has chosen must not change under the one that somebody has.
                before, after = self._pair(self.client.nodes.overview())
                named = replace(self.state, baseline=_id(before), candidate=_id(after), allow="")
                side, _, run_id = value.partition("=")
                self.state = named.changed(side, run_id)
            case _:
                return super().handle(name, value)
        return None

    # ------------------------------------------------------------ showing

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        before, after = self._pair(overview)
        problem = self._problem_of(before, after, overview)
        shown: dict[str, str] = {"difference": "", "tiles": "", "verdict_legend": "", "roofline_legend": "", "sources": ""}
        answer = None
        if before is not None and after is not None and not problem:
            memories = self.memories(tuple(dict.fromkeys((before.run_id, after.run_id))))
            answer = self._answer(before, after, overview)
            shown |= self._pair_fragments(memories, overview, before, after, answer)
        rows = pl.DataFrame() if answer is None else self._filtered(answer)
        self._row_count = rows.height
        return {
            **shown,
            "side_choice": self._side_choice(overview, before, after),
            "filters": filters_fragment(self.state, {} if answer is None else filters.values_of(answer.rows)),
            "what": self._what(answer, problem, can_have_layers=before is not None and after is not None and has_layers(before, after)),
            "table": self._table(answer, rows, problem),
            "pager": pager_fragment(self.state, rows.height),
        }

    def _pair(self, overview: Overview) -> tuple[Run | None, Run | None]:
        """Baseline and candidate. Only the newest runs are in the overview: older ones that are named are looked at for their own sake."""
        named = {run_id for run_id in (self.state.baseline, self.state.candidate, *self.state.runs[:2]) if run_id}
        older = sorted(named - {run.run_id for run in overview.runs})
        found = tuple(memory.run for memory in self.memories((*older, *(run_id for run_id in self._looked_at if run_id not in older))))
        known = replace(overview, runs=(*overview.runs, *(run for run in found if run is not None and run.run_id in older)))
        return chosen_pair(known, self.state.baseline, self.state.candidate, self.state.runs)

    def _problem_of(self, before: Run | None, after: Run | None, overview: Overview) -> str:
        if not overview.is_known:
            return "Waiting for the analyzer's list."
        for run_id, run in ((self.state.baseline, before), (self.state.candidate, after)):
            if run_id and run is None:
                is_gone = run_id in self._looked_at and self._looked_at[run_id].problem
                return f"Run {run_id} is not there; it may have been deleted. Choose another." if is_gone else "Asking the analyzer."
        if before is None or after is None:
            return NO_PAIR
        return NOT_ALIKE if before.is_trace != after.is_trace else ""

    def _answer(self, before: Run, after: Run, overview: Overview) -> Compared | None:
        """Of this pair, where it has come and no difference stands against it that nobody has allowed."""
        subject = (before.run_id, after.run_id, self.state.points if has_layers(before, after) else "")
        progress = (overview.revision, *((run.state, run.is_settled, run.completed_configuration_count) for run in (before, after)))
        self._rows.ask(subject, partial(compared, self.client, before, after, self.state.points), progress, REFRESH_INTERVAL_S)
        self._sources.ask((before.run_id, after.run_id), partial(self._source_difference, before, after), overview.reach)
        return self._rows.answer if self._rows.answered == subject and not self._rows.problem else None

    def _pair_fragments(
        self, memories: tuple[RunMemory, ...], overview: Overview, before: Run, after: Run, answer: Compared | None
    ) -> dict[str, str]:
        refused = self._refused(answer)
        if answer is not None and not refused:
            of = (before.run_id, after.run_id, self.state.points)
            if of != self._drawn_of:
                self._drawn_of = of
                for figure in (self.speedups, self.changes, self.roofline):
                    figure.forget_moves()
            self._draw(answer)
            self._draw_roofline(memories, answer)
        one_run = before.run_id == after.run_id
        compared_facts = [] if one_run else facts(memories[0], memories[-1], overview)
        return {
            "difference": fragment("compared_facts.html", facts=compared_facts, refused=refused, allow=",".join(refused)),
            "tiles": "" if answer is None or refused else fragment("tiles.html", tiles=tiles(answer)),
            "verdict_legend": self._legend if answer is not None and not refused else "",
            "roofline_legend": self._roofline_legend,
            "sources": fragment("said.html", sentence=ONE_RUN) if one_run else self._sources_fragment((before.run_id, after.run_id)),
        }

    def _refused(self, answer: Compared | None) -> tuple[str, ...]:
        allowed = set(self.state.allow.split(","))
        return () if answer is None else tuple(name for name in answer.differences if name not in allowed)

    def _filtered(self, answer: Compared) -> pl.DataFrame:
        if self._refused(answer):
            return answer.rows.clear()
        rows = filters.filtered(answer.rows, self.state, (answer.name_column if answer.is_of_traces else "kernel_name",))
        if self.state.verdict and not answer.is_of_traces:
            column = "occurrence" if self.state.verdict in ("NEW", "GONE") else "verdict"
            rows = rows.filter(pl.col(column) == self.state.verdict)
        order = self.state.sort if self.state.sort in rows.columns else ""
        if order:
            return rows.sort(order, descending=self.state.descending, nulls_last=True, maintain_order=True)
        return rows if answer.is_of_traces else rows.sort("duration_ratio", descending=True, nulls_last=True, maintain_order=True)

    # ------------------------------------------------------------ charts

    def _draw(self, answer: Compared) -> None:
        rows = self._filtered(answer)
        wanted = (answer, self.state)
        if wanted == self._drawn:
            return
        self._drawn = wanted
        if answer.is_of_traces:
            bars, names = compare.change_columns(rows, answer.name_column, self.palette)
            self.changes.replace("bars", bars)
            _show_places(self.changes, names)
            self.changes.follow("x", *compare.change_span(bars))
            self._legend = ""
            return
        shown = with_shown_verdicts(rows, self.state.hidden)
        points, whiskers, names = compare.speedup_columns(compare.charted(shown), self.palette)
        self.speedups.replace("points", points)
        self.speedups.replace("whiskers", whiskers)
        self.speedups.replace("even", compare.even_columns(len(names)))
        _show_places(self.speedups, names)
        self.speedups.follow("x", *compare.speedup_span(points, whiskers))
        self._legend = legend_fragment(verdict_legend(rows, self.palette, self.state.hidden))

    def _draw_roofline(self, memories: tuple[RunMemory, ...], answer: Compared) -> None:
        table_name = "layer_roofline" if answer.is_of_traces and self.state.points == "layer" else "roofline"
        wanted = (answer, self.state, *(memory.since(name, 2**62).position for memory in memories for name in (table_name, "ceilings")))
        if wanted == self._moved:
            return
        self._moved = wanted
        empty = pl.DataFrame()
        tables = [table if (table := memory.table(table_name)) is not None else empty for memory in memories]
        found = [roofline.newest_rows(table) for table in tables if table.height]
        name_columns = filters.LAYER_NAMES if table_name == "layer_roofline" else ("kernel_name",)
        rows = filters.filtered(pl.concat(found, how="vertical_relaxed"), self.state, name_columns) if found else None
        run_ids = tuple(memory.run_id for memory in memories)
        words = dict(zip(run_ids, ("before", "after") if len(run_ids) == 2 else ("this run",), strict=True))
        hidden = [run_id for run_id, word in words.items() if series_key(word) in self.state.hidden]
        self._has_points = rows is not None and roofline.drawable(rows).height > 0
        shown_rows = rows if rows is None or not hidden else rows.filter(~pl.col("run_id").is_in(hidden))
        points = no_points() if shown_rows is None else roofline.point_columns(shown_rows, self.palette, "run_id", run_ids)
        ceilings = [table for memory in memories if (table := memory.table("ceilings")) is not None]
        dtypes = tuple(sorted(set(points["dtype"].tolist()) - {""}))
        shown = roofline.shown_ceilings(pl.concat(ceilings, how="vertical_relaxed") if ceilings else None, dtypes)
        span = roofline.span_of(points, shown)
        lines = roofline.ceiling_columns(shown, span, self.palette)
        moves = empty_columns(compare.MOVE_NUMBERS, compare.MOVE_TEXTS)
        if all(table.height for table in tables) and not hidden:
            moves = compare.move_columns(tables[0], tables[-1], _matches(answer, self._filtered(answer)), self.palette)
        for layer, columns in (("points", points), ("moves", moves), ("ceilings", lines), ("names", roofline.label_columns(lines))):
            self.roofline.replace(layer, columns)
        self.roofline.follow("x", span.x_start, span.x_end)
        self.roofline.follow("y", span.y_start, span.y_end)
        styles = [(word, theme.style_of(run_id, run_ids, self.palette)) for run_id, word in words.items()]
        entries = [LegendEntry(word, style.color, theme.SYMBOLS[style.marker]) for word, style in styles]
        self._roofline_legend = legend_fragment(hideable(entries, self.state.hidden), **roofline.marks_of(points))

    # ------------------------------------------------------------ fragments

    def _side_choice(self, overview: Overview, before: Run | None, after: Run | None) -> str:
        listed = list(overview.runs[:MAX_LISTED_RUNS])
        listed += [run for run in (before, after) if run is not None and run not in listed]
        cards = [run_card(run, overview, 0.0) for run in listed]
        return fragment("side_choice.html", runs=cards, baseline=_id(before), candidate=_id(after))

    def _what(self, answer: Compared | None, problem: str, *, can_have_layers: bool) -> str:
        """Which parts of the page have something to show; its style sheet hides the others."""
        kind = "nothing" if answer is None or problem or self._refused(answer) else "traces" if answer.is_of_traces else "measurements"
        return fragment("compared_what.html", kind=kind, has_layers=can_have_layers, has_points=self._has_points)

    def _table(self, answer: Compared | None, rows: pl.DataFrame, problem: str) -> str:
        columns = () if answer is None else columns_of(answer)
        heads = [
            {
                "name": column.name,
                "title": column.title,
                "is_number": not column.is_text,
                "can_sort": answer is not None and column.name in answer.rows.columns,
                "order": ("descending" if self.state.descending else "ascending") if column.name == self.state.sort else "none",
            }
            for column in columns
        ]
        page = rows.slice(self.state.row, self.state.row_count)
        marks = reason_marks(page)
        empty = "No row matches these filters."
        if answer is not None and self._refused(answer):
            empty = "Not compared: say above that the difference is meant."
        elif answer is not None and answer.is_of_one_run and answer.rows.is_empty():
            empty = (
                NO_LAYERS
                if self.state.points == "layer"
                else "This run has compared none of its configurations in turns; such a run is made by: kernalyse bench A B --paired"
            )
        elif answer is not None and answer.rows.is_empty():
            empty = "Neither run has measured anything that could be compared."
        return fragment(
            "compared_table.html",
            columns=heads,
            rows=[] if answer is None else table_rows(answer, page, marks, self.palette),
            notes=(*footnote_lines(marks), *([] if answer is None else disturbances(answer.rows))),
            problem=problem or self._rows.problem,
            is_loading=answer is None and not problem and not self._rows.problem,
            empty=empty,
        )

    # ------------------------------------------------------------ sources

    async def _source_difference(self, before: Run, after: Run) -> tuple[tuple[FileDifference, ...], str]:
        """File by file, or why there is nothing to compare."""
        old, new = await asyncio.gather(sources_of(self.client, before), sources_of(self.client, after))
        if old.missing or new.missing:
            return (), " ".join(dict.fromkeys(text for text in (old.missing, new.missing) if text))
        return await asyncio.to_thread(source_difference, old.texts, new.texts), ""

    def _sources_fragment(self, pair: tuple[str, str]) -> str:
        is_loading = self._sources.answered != pair
        files, note = self._sources.answer or ((), "")
        return fragment("source_difference.html", files=files, note=self._sources.problem or note, is_loading=is_loading)


def _id(run: Run | None) -> str:
    return "" if run is None else run.run_id


def _show_places(figure: LiveFigure, names: dict[int, str]) -> None:
    figure.name_ticks(names, leaves_none_out=True, on="y")
    figure.follow("y", *compare.place_span(len(names)))
    height_px = compare.chart_height_px(len(names))
    if figure.figure.height != height_px:
        figure.figure.update(height=height_px, min_height=height_px)


def _matches(answer: Compared, rows: pl.DataFrame) -> pl.DataFrame:
    """What is in both runs, as `move_columns` takes it."""
    matched = rows.filter(pl.col("occurrence") == "MATCHED")
    if answer.is_of_traces:
        verdict = pl.when(pl.col("duration_ratio") > 1).then(pl.lit("SLOWER")).otherwise(pl.lit("FASTER"))
        return matched.select(
            key_before=f"baseline_{answer.name_column}", key=answer.name_column, key_name=pl.lit(answer.name_column), verdict=verdict
        ).drop_nulls()
    return matched.select(
        key_before="baseline_configuration_index",
        key="configuration_index",
        key_name=pl.lit("configuration_index"),
        verdict="verdict",
    ).drop_nulls("key")
