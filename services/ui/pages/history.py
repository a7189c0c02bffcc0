"""The History page: configurations, models and layers over time, what changed of late, and one of them run by run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import holoviews as hv
import polars as pl
from bokeh.models import DatetimeTicker

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import history
from kernalyse.services.ui.charts.compare import change
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.client import AnalyzerClient, TablePage
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.names_wanted import is_whole_name, named
from kernalyse.services.ui.pages.pager import gone_to_page, pager_fragment, sorted_by
from kernalyse.services.ui.pages.shell import PageBase, filters_fragment, fragment
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import Across, HistoryMetric, Page, ViewState
from kernalyse.services.ui.theme import SYMBOLS, Palette

MAX_JUDGED_RUNS: Final = 60_000
"""Of all series that the filters leave: with more, changes are looked for in the chosen one alone, else the list would wait."""

MAX_LISTED_SERIES: Final = 20_000
REFRESH_INTERVAL_S: Final = 2.0
CHANGE_COLUMNS: Final = ("series", "run_id", "measured_unix_ns", "git_commit", "change_ratio", "verdict", "is_confirmed", "level_index")
SUBJECTS: Final = {"": "all", "configuration": "configurations", "model": "whole passes", "layer": "layers", "kernel": "kernels of traces"}
SUBJECT_WORDS: Final = {"configuration": "configuration", "model": "whole pass", "layer": "layer", "kernel": "kernel of a trace"}
MIN_JUDGED_RUNS: Final = 6  # fewer cannot tell noise from a change, says the analyzer
NO_RUNS: Final = "Nothing has been measured yet. Each run adds a point: kernalyse bench saxpy"
NO_MATCH: Final = "No history matches these filters, or none has this figure."


@EmptyChart
def _chart(palette: Palette) -> hv.Overlay:
    return history.history_chart(palette)


class HistoryPage(PageBase):
    page: Page = "history"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self._series: Question[TablePage] = Question(self.wake)
        self._changes: Question[pl.DataFrame] = Question(self.wake)
        self._rows: Question[pl.DataFrame] = Question(self.wake)
        self.chart = LiveFigure("history", _chart, self.palette, history.LAYERS)
        self._drawn: tuple[pl.DataFrame, HistoryMetric, Across] | None = None
        self._labelled: tuple[HistoryMetric, Across] = ("duration_median_ns", "time")
        self._row_count = 0

    def roots(self) -> dict[str, Any]:
        return {"history": self.chart.figure}

    def template_values(self) -> dict[str, Any]:
        return {"metrics": history.METRICS, "subjects": SUBJECTS}

    def close(self) -> None:
        for question in (self._series, self._changes, self._rows):
            question.stop()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "sort":
                self.state = sorted_by(self.state, value)
            case "set" if value.startswith("page="):
                self.state = gone_to_page(self.state, value.removeprefix("page="), self._row_count)
            case "set" if value.startswith("series="):
                self.state = replace(self.state, series=value.removeprefix("series="))
            case _:
                return super().handle(name, value)
        return None

    # ------------------------------------------------------------ asking

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        progress = (len(overview.runs), sum(run.is_settled for run in overview.runs), overview.revision, overview.problem)
        chosen = self._asked_filters()
        self._series.ask(("series", chosen), partial(self._ask_series, chosen), progress, REFRESH_INTERVAL_S)
        listed = self._listed(chosen)
        is_judged = self._ask_changes(chosen, listed, progress)
        series = self._shown_series(listed) if is_judged else self.state.series
        if series:
            subject = (series, self.state.metric)
            self._rows.ask(subject, partial(self._ask_rows, *subject), progress, REFRESH_INTERVAL_S)
        rows = self._shown_rows(series)
        self._draw(rows)
        self._row_count = listed.height
        return {
            "filters": filters_fragment(self.state, {} if self._series.answer is None else filters.values_of(self._series.answer.rows)),
            "history_title": self._title(listed, series),
            "history_note": self._note(listed, rows),
            "changes": self._changes_fragment(rows),
            "series": self._series_fragment(listed, series),
            "pager": pager_fragment(self.state, listed.height),
        }

    def _asked_filters(self) -> tuple[Filter, ...]:
        part: tuple[Filter, ...] = (named(self._name_column(), self.state.kernel),) if self.state.kernel else ()
        values = [(choice.column, getattr(self.state, choice.name)) for choice in filters.CHOICES]
        part += (Filter("subject", self.state.subject),) if self.state.subject else ()
        return (*part, *(Filter(column, value) for column, value in values if value))

    def _name_column(self) -> str:
        """A whole name is a kernel's, a model's or a layer's, which labels only begin with."""
        return "kernel_name" if is_whole_name(self.state.kernel) else "label"

    async def _ask_series(self, chosen: tuple[Filter, ...]) -> TablePage:
        return await self.client.table(TableQuery("history_series", filters=chosen, limit=MAX_LISTED_SERIES))

    def _ask_changes(self, chosen: tuple[Filter, ...], listed: pl.DataFrame, progress: object) -> bool:
        """Whether what changed is known as far as it is going to be."""
        if listed.is_empty() or int(listed["run_count"].sum()) > MAX_JUDGED_RUNS:
            return True
        subject = (chosen, self.state.metric)
        self._changes.ask(subject, partial(self._ask_changed, *subject), progress, REFRESH_INTERVAL_S)
        return self._changes.answered == subject

    async def _ask_changed(self, chosen: tuple[Filter, ...], metric: str) -> pl.DataFrame:
        """The last change of each series."""
        wanted = (*chosen, Filter("metric", metric), Filter("verdict", "", FilterOperator.CONTAINS))
        answer = await self.client.table(TableQuery("history", filters=wanted, columns=CHANGE_COLUMNS))
        return answer.rows.sort("level_index").group_by("series").last()

    async def _ask_rows(self, series: str, metric: str) -> pl.DataFrame:
        wanted = (Filter("series", series), Filter("metric", metric))
        return (await self.client.table(TableQuery("history", filters=wanted, order_by=(SortKey("measured_unix_ns"),)))).rows

    # ------------------------------------------------------------ what there is

    def _listed(self, chosen: tuple[Filter, ...]) -> pl.DataFrame:
        """The series in the order that is asked for, with their last changes: the worst news first."""
        answer = self._series.answer_to(("series", chosen))
        if answer is None:
            return pl.DataFrame()
        found = answer.rows.filter(pl.col(self.state.metric) > 0)
        known = self._changes.answer_to((chosen, self.state.metric))
        empty = pl.DataFrame(schema={"series": pl.String, "change_ratio": pl.Float64, "verdict": pl.String, "is_confirmed": pl.Boolean})
        changes = known if known is not None and known.height else empty
        since = {"measured_unix_ns": "since_unix_ns", "git_commit": "since_commit"}
        kept = changes.rename({old: new for old, new in since.items() if old in changes.columns}).drop(
            "run_id", "level_index", strict=False
        )
        joined = found.join(kept, on="series", how="left", maintain_order="left")
        if self.state.sort in joined.columns:
            return joined.sort(self.state.sort, descending=self.state.descending, nulls_last=True, maintain_order=True)
        rank = pl.col("verdict").replace_strict({"REGRESSION": 0, "IMPROVEMENT": 1}, default=2, return_dtype=pl.Int8)
        size = pl.col("change_ratio").log().abs()
        return joined.sort(rank, size, "run_count", descending=[False, True, True], nulls_last=True, maintain_order=True)

    def _shown_series(self, listed: pl.DataFrame) -> str:
        """The one that is chosen, whatever the filters leave; else the first of the list."""
        if self.state.series:
            return self.state.series
        return str(listed["series"][0]) if listed.height else ""

    def _shown_rows(self, series: str) -> pl.DataFrame:
        rows = self._rows.answer_to((series, self.state.metric)) if series else None
        return pl.DataFrame() if rows is None else rows

    @property
    def _is_asking(self) -> bool:
        return any(question.is_on_its_way for question in (self._series, self._changes, self._rows))

    @property
    def _is_narrowed(self) -> bool:
        return filters.has_any(self.state) or bool(self.state.subject) or self.state.metric != "duration_median_ns"

    # ------------------------------------------------------------ showing

    def _draw(self, rows: pl.DataFrame) -> None:
        wanted = (rows, self.state.metric, self.state.across)
        if self._drawn is not None and wanted[0] is self._drawn[0] and wanted[1:] == self._drawn[1:]:
            return
        if rows.is_empty() and self._is_asking:
            return  # what was drawn stays until the answer has come
        if self._drawn is not None and rows.height and (wanted[1:] != self._drawn[1:] or _key(rows) != _key(self._drawn[0])):
            self.chart.forget_moves()
        self._drawn = wanted
        across, metric = self.state.across, self.state.metric
        points = history.point_columns(rows, metric, across, self.palette)
        whiskers = history.whisker_columns(rows, across)
        bands, middles = history.level_columns(rows, across) if rows.height else history.no_levels()
        for layer, columns in (("bands", bands), ("levels", middles), ("whiskers", whiskers), ("runs", points)):
            self.chart.replace(layer, columns)
        x, y = history.span_of(points, whiskers, bands, across)
        self.chart.follow("x", *x)
        self.chart.follow("y", *y)
        if metric != self._labelled[0]:
            title, _, ticks = history.METRICS[metric]
            self.chart.figure.yaxis[0].update(axis_label=title, formatter=tick_formatter(ticks))
        if across == "runs":
            self.chart.figure.xaxis[0].axis_label = "Runs, by commit"
            self.chart.name_ticks(history.run_names(rows))
        elif self._labelled[1] == "runs":
            self.chart.figure.xaxis[0].update(axis_label="Measured (UTC)", ticker=DatetimeTicker(), major_label_overrides={})
        self._labelled = (metric, across)

    def _title(self, listed: pl.DataFrame, series: str) -> str:
        named = listed.filter(pl.col("series") == series) if listed.height else listed
        if named.is_empty():
            return "Over time"
        row = named.row(0, named=True)
        parts = [row["label"], row["device_name"] or row["device_id"], (row["cache_mode"] or "").lower(), (row["backend"] or "").lower()]
        return fragment("text.html", text=" · ".join(part for part in parts if part))

    def _note(self, listed: pl.DataFrame, rows: pl.DataFrame) -> str:
        problem = next((question.problem for question in (self._series, self._changes, self._rows) if question.problem), "")
        if problem:
            return fragment("text.html", text=problem)
        if rows.is_empty() and self._is_asking:
            return "Asking the analyzer."
        if rows.is_empty():
            return NO_RUNS if not self._is_narrowed and listed.is_empty() else NO_MATCH
        return (
            "Dashed: levels, with the band that 95 % of such runs lie in. ▼ a regression, ▲ an improvement; hollow: not confirmed yet. "
            "A click on a run compares it with the level before."
        )

    def _changes_fragment(self, rows: pl.DataFrame) -> str:
        if rows.is_empty():
            return ""
        show = history.METRICS[self.state.metric][1]
        changed = [
            {
                **row,
                "moment": theme.moment(row["measured_unix_ns"])[:16],
                "commit": history.commit_text(row["git_commit"], row["git_is_dirty"]),
                "change": change(row["change_ratio"]),
                "value": show(row["level_value"]),
                **_look(row["verdict"], self.palette),
            }
            for row in reversed(rows.filter(pl.col("verdict").is_not_null()).to_dicts())
        ]
        return fragment("history_changes.html", changes=changed, run_count=rows.height, theme_name=self.state.theme)

    def _series_fragment(self, listed: pl.DataFrame, series: str) -> str:
        show = history.METRICS[self.state.metric][1]
        shown = [
            {
                **row,
                "is_chosen": row["series"] == series,
                "what": SUBJECT_WORDS.get(row["subject"], row["subject"]),
                "device": row["device_name"] or row["device_id"] or theme.UNKNOWN,
                "value": show(row[self.state.metric]),
                "change": change(row["change_ratio"]) if row["verdict"] else "",
                "since": "" if not row["verdict"] else theme.moment(row["since_unix_ns"])[:16],
                "moment": theme.moment(row["measured_unix_ns"])[:16],
                **_look(row["verdict"], self.palette, row["run_count"]),
            }
            for row in listed.slice(self.state.row, self.state.row_count).to_dicts()
        ]
        is_judged = self._changes.answer_to((self._asked_filters(), self.state.metric)) is not None
        too_many = listed.height > 0 and int(listed["run_count"].sum()) > MAX_JUDGED_RUNS
        return fragment(
            "history_series.html",
            rows=shown,
            metric=self.state.metric,
            metric_title=history.METRICS[self.state.metric][0],
            sort=self.state.sort,
            descending=self.state.descending,
            is_loading=listed.is_empty() and self._series.is_on_its_way,
            is_judged=is_judged,
            too_many=too_many,
            empty=self._series.problem or (NO_MATCH if self._is_narrowed else NO_RUNS),
        )


def _key(rows: pl.DataFrame) -> str:
    return str(rows["series"][0]) if rows.height else ""


def _look(verdict: str | None, palette: Palette, run_count: int = MIN_JUDGED_RUNS) -> dict[str, str]:
    if verdict is None:
        return {"word": "steady" if run_count >= MIN_JUDGED_RUNS else "too few runs", "symbol": "", "color": palette.muted}
    style = history.change_style(verdict, palette)
    return {"word": verdict.lower(), "symbol": SYMBOLS[style.marker], "color": style.color}
