"""Configurations, models, layers and kernels over time: what changed of late, and one of them run by run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from bokeh.models import DatetimeTicker
from markupsafe import Markup

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import history
from kernalyse.services.ui.charts.compare import change
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.components.base import Component, Text, field, html, joined
from kernalyse.services.ui.components.chart import ChartCard
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.table import Column, Heading, PagedRows, extent_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.client import TablePage
from kernalyse.services.ui.data.filters import is_whole_name, named
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.theme import SYMBOLS
from kernalyse.services.ui.view import HistoryView, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

MAX_JUDGED_RUNS: Final = 60_000
"""Of all series that the filters leave: with more, changes are looked for in the chosen one alone, else the list would wait."""

MAX_LISTED_SERIES: Final = 20_000
REFRESH_INTERVAL_S: Final = 2.0
MIN_JUDGED_RUNS: Final = 6
"""Fewer cannot tell noise from a change, says the analyzer."""

CHANGE_COLUMNS: Final = ("series", "run_id", "measured_unix_ns", "git_commit", "change_ratio", "verdict", "is_confirmed", "level_index")
NO_CHANGES: Final = pl.DataFrame(
    schema={
        "series": pl.String, "since_unix_ns": pl.Int64, "since_commit": pl.String, "change_ratio": pl.Float64,
        "verdict": pl.String, "is_confirmed": pl.Boolean,
    }
)  # fmt: skip
SUBJECT_WORDS: Final = {"configuration": "configuration", "model": "whole pass", "layer": "layer", "kernel": "kernel of a trace"}
ASKING: Final = "Asking the analyzer."
NO_RUNS: Final = "Nothing has a history yet."
NO_MATCH: Final = "No history matches these filters, or none has this figure."
MEANING: Final = (
    "Dashed: levels, with the band that 95 % of such runs lie in. ▼ a regression, ▲ an improvement; hollow: not confirmed yet. "
    "A click on a run compares it with the level before."
)
TOO_MANY: Final = "These are too many to look for changes in all of them at once: choose one, or narrow them by a filter."

HISTORY: Final = RenderedChart(history.history_chart)


class Histories(Component):
    """What the page's components stand on: the series that the filters leave, and the runs of the one that is shown.

    Attributes:
        listed: the series in the order that is asked for, with their last changes.
        series: key of the one that is shown; empty: none.
        rows: its runs, oldest first.
        is_judged: whether what changed is known.
        version: another when any of these is.
    """

    def __init__(self, context: Context, view: HistoryView) -> None:
        super().__init__(context)
        self.view = view
        self.listed = self.rows = pl.DataFrame()
        self.series = ""
        self.is_judged = False
        self.version = 0
        self._series: Question[TablePage] = Question(context.wake)
        self._changes: Question[pl.DataFrame] = Question(context.wake)
        self._rows: Question[pl.DataFrame] = Question(context.wake)
        self._questions: tuple[Question[Any], ...] = (self._series, self._changes, self._rows)
        self._update_count = -1
        self._answers: tuple[TablePage | None, pl.DataFrame | None] = (None, None)
        self._order: object = None

    def close(self) -> None:
        for question in self._questions:
            question.stop()

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        overview, view = self.context.overview, self.view
        progress = (len(overview.runs), sum(run.is_settled for run in overview.runs), overview.revision, overview.problem)
        wanted = self._asked_filters()
        self._series.ask(wanted, partial(self._ask_series, wanted), progress, REFRESH_INTERVAL_S)
        answer, changes = self._series.answer_to(wanted), self._changes.answer_to((wanted, view.metric))
        # Answers themselves, not their ids: what they are of stays as long as it is compared with.
        has_arrived = answer is not self._answers[0] or changes is not self._answers[1]
        order = (view.metric, view.sort, view.descending)
        if has_arrived or order != self._order:
            self._answers, self._order = (answer, changes), order
            self.version += 1
            self.listed = pl.DataFrame() if answer is None else self._sorted(answer.rows, changes)
        is_known = self._ask_changes(wanted, progress)
        self.is_judged = changes is not None
        # The first of the list is shown where nobody has chosen: once it is sorted by what changed.
        self.series = view.series or (str(self.listed["series"][0]) if is_known and self.listed.height else "")
        if self.series:
            subject = (self.series, view.metric)
            self._rows.ask(subject, partial(self._ask_rows, *subject), progress, REFRESH_INTERVAL_S)
        found = self._rows.answer_to((self.series, view.metric)) if self.series else None
        self.rows = pl.DataFrame() if found is None else found

    @property
    def state(self) -> object:
        """What is on its way, and what was refused."""
        return (self.version, self.series, id(self.rows), self.is_asking, self.problem, self.has_too_many)

    @property
    def problem(self) -> str:
        """Why a question has no answer."""
        return next((question.problem for question in self._questions if question.problem), "")

    @property
    def is_asking(self) -> bool:
        return any(question.is_on_its_way for question in self._questions) or not self.context.overview.is_known

    @property
    def is_listing(self) -> bool:
        """Whether the list itself is on its way."""
        return self._series.is_on_its_way or not self.context.overview.is_known

    @property
    def is_narrowed(self) -> bool:
        return filters.has_any(self.context.view) or bool(self.view.subject) or self.view.metric != "duration_median_ns"

    @property
    def has_none(self) -> bool:
        """Whether nothing has a history at all."""
        return self._answers[0] is not None and self.listed.is_empty() and not self.is_narrowed and not self.problem

    @property
    def has_too_many(self) -> bool:
        return self.listed.height > 0 and int(self.listed["run_count"].sum()) > MAX_JUDGED_RUNS

    @property
    def filter_values(self) -> dict[str, tuple[str, ...]]:
        """What the filters can be set to."""
        return {} if self._series.answer is None else filters.values_of(self._series.answer.rows)

    # ------------------------------------------------------------ asking

    def _asked_filters(self) -> tuple[Filter, ...]:
        view = self.context.view
        # A whole name is a kernel's, a model's or a layer's, which labels only begin with.
        name_column = "kernel_name" if is_whole_name(view.kernel) else "label"
        part = (named(name_column, view.kernel),) if view.kernel else ()
        values = [("subject", self.view.subject), *((choice.column, getattr(view, choice.name)) for choice in filters.CHOICES)]
        return (*part, *(Filter(column, value) for column, value in values if value))

    async def _ask_series(self, wanted: tuple[Filter, ...]) -> TablePage:
        return await self.context.client.table(TableQuery("history_series", filters=wanted, limit=MAX_LISTED_SERIES))

    def _ask_changes(self, wanted: tuple[Filter, ...], progress: object) -> bool:
        """Return whether what changed is known as far as it is going to be."""
        if self.listed.is_empty() or self.has_too_many:
            return True
        subject = (wanted, self.view.metric)
        self._changes.ask(subject, partial(self._ask_changed, *subject), progress, REFRESH_INTERVAL_S)
        return self._changes.answered == subject

    async def _ask_changed(self, wanted: tuple[Filter, ...], metric: str) -> pl.DataFrame:
        """The last change of each series."""
        changed = (*wanted, Filter("metric", metric), Filter("verdict", "", FilterOperator.CONTAINS))
        answer = await self.context.client.table(TableQuery("history", filters=changed, columns=CHANGE_COLUMNS))
        return answer.rows.sort("level_index").group_by("series").last()

    async def _ask_rows(self, series: str, metric: str) -> pl.DataFrame:
        wanted = (Filter("series", series), Filter("metric", metric))
        query = TableQuery("history", filters=wanted, order_by=(SortKey("measured_unix_ns"),))
        return (await self.context.client.table(query)).rows

    def _sorted(self, rows: pl.DataFrame, changes: pl.DataFrame | None) -> pl.DataFrame:
        """The worst news first, unless another order is asked for."""
        view = self.view
        known = NO_CHANGES
        if changes is not None and changes.height:
            renamed = changes.rename({"measured_unix_ns": "since_unix_ns", "git_commit": "since_commit"})
            known = renamed.select(NO_CHANGES.columns)
        joined = rows.filter(pl.col(view.metric) > 0).join(known, on="series", how="left", maintain_order="left")
        if view.sort in joined.columns:
            return joined.sort(view.sort, descending=view.descending, nulls_last=True, maintain_order=True)
        rank = pl.col("verdict").replace_strict({"REGRESSION": 0, "IMPROVEMENT": 1}, default=2, return_dtype=pl.Int8)
        size = pl.col("change_ratio").log().abs()
        return joined.sort(rank, size, "run_count", descending=[False, True, True], nulls_last=True, maintain_order=True)


class HistoryChart(Component):
    """One history, run by run, with its levels and its changes.

    Args:
        histories: None: its own, where the chart stands alone.
    """

    def __init__(self, context: Context, view: HistoryView, histories: Histories | None = None) -> None:
        super().__init__(context)
        self.view = view
        self.histories = histories or Histories(context, view)
        self.figure = Figure("history", HISTORY, context.palette, history.LAYERS)
        self._changes = Text(classes=("changes",))
        self._card = ChartCard("Over time", self.figure, self._changes)
        self._drawn: object = None
        self._rows: pl.DataFrame | None = None
        self._drawn_of: object = None
        self._labelled = ("duration_median_ns", "time")
        self.layout = self._card.layout

    def close(self) -> None:
        self.histories.close()

    def update(self) -> None:
        self.histories.update()
        found, view = self.histories, self.view
        drawn = (found.state, view.metric, view.across)
        if drawn == self._drawn and found.rows is self._rows:
            return
        is_other = self._rows is not found.rows or drawn[1:] != (self._drawn or ())[1:]  # type: ignore[index]
        if is_other and not (found.rows.is_empty() and found.is_asking):  # else what was drawn stays until the answer has come
            self._drawn, self._rows = drawn, found.rows
            self._draw(found.rows)
            self._changes.show(_change_list(found.rows, view.metric, context=self.context))
        self._card.show_title(_title(found.listed, found.series))
        self._card.note.show(self._note())

    def _draw(self, rows: pl.DataFrame) -> None:
        across, metric = self.view.across, self.view.metric
        drawn_of = (rows["series"][0] if rows.height else "", metric, across)
        if drawn_of != self._drawn_of and rows.height:
            self._drawn_of = drawn_of
            self.figure.forget_moves()
        points = history.point_columns(rows, metric, across, self.context.palette)
        whiskers = history.whisker_columns(rows, across)
        bands, middles = history.level_columns(rows, across) if rows.height else history.no_levels()
        for layer, columns in (("bands", bands), ("levels", middles), ("whiskers", whiskers), ("runs", points)):
            self.figure.replace(layer, columns)
        x, y = history.span_of(points, whiskers, bands, across)
        self.figure.follow("x", *x)
        self.figure.follow("y", *y)
        self._label(rows, metric, across)

    def _label(self, rows: pl.DataFrame, metric: str, across: str) -> None:
        figure = self.figure.figure
        if metric != self._labelled[0]:
            title, _, ticks = history.METRICS[metric]
            figure.yaxis[0].update(axis_label=title, formatter=tick_formatter(ticks))
        if across == "runs":
            figure.xaxis[0].axis_label = "Runs, by commit"
            self.figure.name_ticks(history.run_names(rows))
        elif self._labelled[1] == "runs":
            figure.xaxis[0].update(axis_label="Measured (UTC)", ticker=DatetimeTicker(), major_label_overrides={})
        self._labelled = (metric, across)

    def _note(self) -> str:
        found = self.histories
        if found.problem:
            return found.problem
        if found.rows.height:
            return MEANING
        if found.is_asking:
            return ASKING
        return NO_RUNS if not found.is_narrowed and found.listed.is_empty() else NO_MATCH


def _title(listed: pl.DataFrame, series: str) -> str:
    shown = listed.filter(pl.col("series") == series) if listed.height else listed
    if shown.is_empty():
        return "Over time"
    row = shown.row(0, named=True)
    parts = [row["label"], row["device_name"] or row["device_id"], (row["cache_mode"] or "").lower(), (row["backend"] or "").lower()]
    return " · ".join(part for part in parts if part)


def _change_list(rows: pl.DataFrame, metric: str, context: Context) -> Markup:
    """The lasting changes, the newest first, each with the way to its comparison."""
    if rows.is_empty():
        return Markup()
    changed = rows.filter(pl.col("verdict").is_not_null()).to_dicts()
    if not changed:
        return html('<p class="note">No lasting change in {} run{}.</p>', theme.count(rows.height), "s" if rows.height != 1 else "")
    line = (
        '<li>{look} <strong>{word} {change}</strong> <span>to {value}, {moment}{commit}</span> <span class="note">{reason}</span> '
        '<a href="{href}">Compare</a></li>'
    )
    return html(
        "<ul>{}</ul>",
        joined(
            html(
                line,
                look=_swatch(row["verdict"], context),
                word=row["verdict"].lower(),
                change=change(row["change_ratio"]),
                value=history.METRICS[metric][1](row["level_value"]),
                moment=theme.moment(row["measured_unix_ns"])[:16],
                commit=html(", commit <code>{}</code>", history.commit_text(row["git_commit"], row["git_is_dirty"]))
                if row["git_commit"]
                else "",
                reason=row["reason"] or "",
                href=f"/compare?{to_query(context.view, baseline=row['baseline_run_id'] or '', candidate=row['run_id'])}",
            )
            for row in reversed(changed)
        ),
    )


def _swatch(verdict: str, context: Context) -> Markup:
    style = history.change_style(verdict, context.palette)
    return html('<span class="swatch" style="color:{}" aria-hidden="true">{}</span>', style.color, SYMBOLS[style.marker])


class HistoryTable(PagedRows):
    """The histories that the filters leave; a click on one shows it."""

    def __init__(self, context: Context, histories: Histories) -> None:
        super().__init__(context, histories.view, "history", "Histories")
        self._histories = histories
        self._made: object = None

    def update(self) -> None:
        self._histories.update()
        found, view = self._histories, self._histories.view
        made = (found.state, view.written(), self.context.view.written())
        if made == self._made:
            return
        self._made = made
        extent = extent_of(view, found.listed.height)
        rows = found.listed.slice(extent.first, extent.step).to_dicts()
        self.show_rows(self._headings_of(view.metric), [self._cells(row) for row in rows], extent, self._said())

    def _said(self) -> str:
        found = self._histories
        if found.listed.height:
            return TOO_MANY if found.has_too_many else ""
        empty = found.problem or (ASKING if found.is_listing else NO_MATCH if found.is_narrowed else NO_RUNS)
        return html('<div class="empty">{}</div>', empty)

    @staticmethod
    def _headings_of(metric: str) -> tuple[Heading, ...]:
        return (
            Heading(Column("History"), "label"),
            Heading(Column("Last change", 175), "verdict"),
            Heading(Column("Since (UTC)", 130), "since_unix_ns"),
            Heading(Column(f"{history.METRICS[metric][0]}, newest", 165, is_number=True), metric),
            Heading(Column("Runs", 70, is_number=True), "run_count"),
            Heading(Column("Device", 140), "device_id"),
            Heading(Column("Of", 120), "subject"),
            Heading(Column("Newest (UTC)", 130), "measured_unix_ns"),
        )

    def _cells(self, row: dict[str, Any]) -> tuple[Any, ...]:
        device = row["device_name"] or row["device_id"] or theme.UNKNOWN
        return (
            html(
                '<a href="{href}" class="choose" aria-current="{current}" title="{label}">{label}</a>',
                href=self._href(series=row["series"]),
                current="true" if row["series"] == self._histories.series else "false",
                label=row["label"],
            ),
            self._last_change(row),
            theme.moment(row["since_unix_ns"])[:16] if row["verdict"] else "",
            html("{}", history.METRICS[self._histories.view.metric][1](row[self._histories.view.metric])),
            theme.count(row["run_count"]),
            html('<span title="{0}">{0}</span>', device),
            html("{}", SUBJECT_WORDS.get(row["subject"], row["subject"])),
            theme.moment(row["measured_unix_ns"])[:16],
        )

    def _last_change(self, row: dict[str, Any]) -> Markup:
        if row["verdict"]:
            doubt = "" if row["is_confirmed"] else html(' <span class="note">unconfirmed</span>')
            return html("{}{} {}{}", _swatch(row["verdict"], self.context), row["verdict"].lower(), change(row["change_ratio"]), doubt)
        if not self._histories.is_judged:
            return Markup()
        return html('<span class="note">{}</span>', "steady" if row["run_count"] >= MIN_JUDGED_RUNS else "too few runs")


class HistoryFilters(Filters):
    """Filters with the choices of a figure, of what has a history, and of what lies along the axis."""

    def __init__(self, context: Context, histories: Histories) -> None:
        view = histories.view
        super().__init__(context, *(field(pn.widgets.Select, view.param[name]) for name in ("metric", "subject", "across")))
        self._histories = histories

    def update(self) -> None:
        self._histories.update()
        self.offer(self._histories.filter_values)
