"""The table of the page Kernels: rows that the analyzer filters, sorts and pages, in the columns that somebody has chosen."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode

import panel as pn
from markupsafe import Markup

from kernalyse.services.core.model import Run
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts.metrics import METRICS
from kernalyse.services.ui.charts.performance_rows import configuration_key
from kernalyse.services.ui.client import TablePage
from kernalyse.services.ui.components.base import field
from kernalyse.services.ui.components.compare import fold
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.kernel_charts import REFRESH_INTERVAL_S, ChartedRows, progress_of
from kernalyse.services.ui.components.paging import Extent, Heading, PagedRows, extent_of
from kernalyse.services.ui.components.runs import MAX_LISTED_RUNS
from kernalyse.services.ui.components.table import Column
from kernalyse.services.ui.components.text import Text, html
from kernalyse.services.ui.pages.shell import run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import ViewState, from_query
from kernalyse.services.ui.table_columns import COLUMNS, TEXT_FORMATS
from kernalyse.services.ui.table_columns import Column as TableColumn
from kernalyse.services.ui.table_query import KEY_COLUMNS, csv_query, table_query
from kernalyse.services.ui.theme import CATEGORIES
from kernalyse.services.ui.view import KernelsView, View, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

FIGURES: Final = {metric.title: name for name, metric in METRICS.items()}
DTYPES: Final = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64")
NAMES: Final = ("label", "kernel_name", "best_label")
"""Columns whose cells choose the row."""

LONG_TEXTS: Final = frozenset(
    {*NAMES, "layer", "layer_path", "subject", "reason", "kernel_before", "kernel_after", "call", "model_name", "verification_message"}
)
LONG_TEXT_PX: Final = 230
MIN_COLUMN_PX: Final = 84
MIN_TEXT_PX: Final = 112
LETTER_PX: Final = 7
MAX_FIXED_PX: Final = 640
"""Of columns beside which long texts take the room that is left: with more, the table is wider than its card and scrolls."""

ASKING: Final = "Asking the analyzer."
NOTHING: Final = "Nothing has been measured yet. Start with: kernalyse bench saxpy"
NO_MATCH: Final = "No row matches these filters."
READING: Final = "The trace is being read: its rows appear here."
OTHER_ROWS: Final = " Sweeps and traces have other rows: choose them under Table."


def asked_view(view: View, page: KernelsView) -> ViewState:
    """Return what the table and its download are asked for by."""
    return from_query(parse_qs(to_query(view, page)))


class KernelFilters(Filters):
    """Filters with the choice of a run, and of the figure that charts show."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows) -> None:
        self._run = pn.widgets.Select(label="Run", options={"all": ""}, sizing_mode="stretch_width", min_width=0, margin=0)
        self._figure = pn.widgets.Select(label="Charts show", options=FIGURES, sizing_mode="stretch_width", min_width=0, margin=0)
        super().__init__(context, self._run, self._figure)
        self._view = view
        self._charted = charted
        self._listed: object = None
        self._run.param.watch(self._choose_runs, "value")
        self._figure.param.watch(self._choose_figure, "value")

    def update(self) -> None:
        self._charted.update()
        self.show(self._values())
        self._figure.value = self._drawn_figure
        overview, shown = self.context.overview, self.context.view.runs
        listed = [*overview.runs[:MAX_LISTED_RUNS], *(run for run in self._charted.known_runs[MAX_LISTED_RUNS:] if run.run_id in shown)]
        made = ([(run.run_id, run.title) for run in listed], tuple(shown))
        if made != self._listed:
            self._listed = made
            cards = [run_card(run, overview, time.time()) for run in listed]
            runs = {f"{told.title[:40]} · {told.create_text[5:16]} · {theme.short_run_id(told.run_id)}": told.run_id for told in cards}
            if len(shown) > 1 or not set(shown) <= set(runs.values()):
                runs[f"{len(shown)} runs" if len(shown) > 1 else theme.short_run_id(shown[0])] = ",".join(shown)
            self._run.param.update(options={"all": "", **runs}, value=",".join(shown))

    @property
    def _drawn_figure(self) -> str:
        return self._charted.metric_name or self._view.figure or next(iter(METRICS))

    def _values(self) -> dict[str, tuple[str, ...]]:
        """Of the shown runs' own words: a table of a million rows is not searched for what there is to choose."""
        chosen = self.context.view.runs
        if not chosen:
            devices = tuple(device.device_id for status in self.context.overview.nodes if status.node for device in status.node.devices)
            return {"category": tuple(CATEGORIES), "dtype": DTYPES, "device": tuple(dict.fromkeys(devices))}
        memories = self.context.memories(chosen)
        tables = [memory.table(name) for memory in memories for name in ("configurations", "roofline")]
        return filters.together(filters.values_of(table) for table in tables if table is not None)

    def _choose_runs(self, event: Any) -> None:
        if event.new != ",".join(self.context.view.runs):
            self.context.view.runs = [run_id for run_id in event.new.split(",") if run_id]

    def _choose_figure(self, event: Any) -> None:
        if event.new != self._drawn_figure:
            self._view.figure = event.new


class ColumnChoice:
    """Which columns a table has, in a card that opens."""

    def __init__(self, context: Context, view: KernelsView) -> None:
        self._view = view
        self._boxes = pn.widgets.CheckBoxGroup(options={}, inline=True, margin=0, css_classes=["column-boxes"], sizing_mode="stretch_width")
        self._boxes.param.watch(self._choose, "value")
        every = pn.widgets.Button(label="all", margin=0, on_click=self._choose_all)
        default = pn.widgets.Button(label="as at first", margin=0, on_click=lambda _event: view.param.update(columns=[]))
        buttons = pn.FlexBox(every, default, gap="8px", css_classes=["column-buttons"], sizing_mode="stretch_width")
        self.layout = fold(Text(html("Columns"), sizing_mode=None), buttons, self._boxes)
        context.keep("columns", self.layout, ("collapsed",))

    @property
    def shown(self) -> tuple[TableColumn, ...]:
        known = COLUMNS[self._view.table]
        chosen = tuple(column for column in known if column.name in self._view.columns)
        return chosen or tuple(column for column in known if column.is_default)

    def update(self) -> None:
        options = {column.title: column.name for column in COLUMNS[self._view.table]}
        value = [column.name for column in self.shown]
        if self._boxes.options != options or self._boxes.value != value:
            self._boxes.param.update(options=options, value=value)

    def _choose(self, event: Any) -> None:
        names = [column.name for column in COLUMNS[self._view.table] if column.name in event.new]
        if names != [column.name for column in self.shown]:
            self._view.columns = names

    def _choose_all(self, _event: Any) -> None:
        self._view.columns = [column.name for column in COLUMNS[self._view.table]]


class KernelTable(PagedRows):
    """Rows of the chosen table of the chosen runs, of all runs where none is chosen."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows) -> None:
        table = field(pn.widgets.Select, view.param.table)
        table.param.update(sizing_mode="fixed", width=230)
        self._download = Text(sizing_mode=None)
        self._columns = ColumnChoice(context, view)
        tools = pn.FlexBox(table, self._download, gap="6px 10px", align_items="end", sizing_mode=None)
        super().__init__(context, view, "kernels", "Rows", (tools,), (self._columns.layout,), self._choose)
        self._page_view = view
        self._charted = charted
        self._answers: Question[TablePage] = Question(context.wake)
        self._keys: list[str] = []
        self._made: object = None
        self._answer: TablePage | None = None
        self._run_watcher = context.view.param.watch(self._show_first_rows, "runs")

    def close(self) -> None:
        super().close()
        self.context.view.param.unwatch(self._run_watcher)
        self._answers.stop()

    def update(self) -> None:
        self._charted.update()
        view, overview, chosen = self._page_view, self.context.overview, self.context.view.runs
        runs = [run for run in self._charted.known_runs if run.run_id in chosen]
        if view.table == "measurements" and runs and all(run.is_trace for run in runs):
            view.table = "launched"  # traces have no measurements, which are shown where nobody has chosen
        self._columns.update()
        columns = self._columns.shown
        state = asked_view(self.context.view, view)
        query = table_query(state, tuple(column.name for column in columns))
        progress = (progress_of(runs if chosen else overview.runs, overview), overview.problem)
        self._answers.ask(query, partial(self.context.client.table, query), progress, REFRESH_INTERVAL_S)
        answer, problem = self._answers.answer, self._answers.problem
        made = (self._answers.answer_subject, columns, problem, self.context.view.written(), view.written(), is_reading(runs))
        if made == self._made and answer is self._answer:
            return
        self._made, self._answer = made, answer
        self._download.show(html('<a class="button" href="/download/{}.csv?{}" download>Download CSV</a>', view.table, csv_query(state)))
        if problem or answer is None or not answer.rows.height:
            empty = (
                html('<p class="problem block">{}</p>', problem) if problem else html('<p class="empty">{}</p>', self._empty(answer, runs))
            )
            self.show_rows((), (), Extent(0, view.row_count, 0 if answer is None else answer.total_row_count), empty)
            return
        rows = answer.rows.to_dicts()
        self._keys = [row_key(view.table, row) for row in rows]
        chosen_place = self._keys.index(view.configuration) if view.configuration in self._keys and view.configuration else None
        cells = [
            tuple(_cell(column, row, key, key == view.configuration) for column in columns)
            for row, key in zip(rows, self._keys, strict=True)
        ]
        self.show_rows(headings_of(columns), cells, extent_of(view, answer.total_row_count), chosen=chosen_place)

    def _empty(self, answer: TablePage | None, runs: Collection[Run]) -> str:
        if answer is None:
            return ASKING
        if is_reading(runs):
            return READING
        chosen = self.context.view.runs
        return (NO_MATCH if chosen or filters.has_any(self.context.view) else NOTHING) + (OTHER_ROWS if chosen else "")

    def _choose(self, place: int) -> None:
        if place < len(self._keys) and self._keys[place]:
            self._page_view.configuration = self._keys[place]

    def _show_first_rows(self, *_events: Any) -> None:
        self._page_view.row = 0


def is_reading(runs: Collection[Run]) -> bool:
    """Return whether a trace among the runs is still being read."""
    return any(run.state.is_final and not run.is_settled for run in runs)


def row_key(table: str, row: Mapping[str, Any]) -> str:
    """Return what choosing the row says; empty: it cannot be chosen."""
    return configuration_key({"configuration_index": None, **row}) if table in KEY_COLUMNS else ""


def headings_of(columns: Sequence[TableColumn]) -> list[Heading]:
    """Return the columns as wide as their titles and figures; long texts take the room that is left, where there is some."""
    widths = {
        column.name: max(MIN_TEXT_PX if column.show == "text" else MIN_COLUMN_PX, 26 + LETTER_PX * len(column.title))
        for column in columns
        if column.name not in LONG_TEXTS
    }
    room = LONG_TEXT_PX if sum(widths.values()) > MAX_FIXED_PX else None
    return [
        Heading(Column(column.title, widths.get(column.name, room), is_number=column.show not in TEXT_FORMATS), column.name)
        for column in columns
    ]


def choose_href(key: str) -> str:
    """Return the link that chooses a row, and of what its compiler left the first."""
    return f"?{urlencode({'configuration': key, 'listing': ''})}"


def _cell(column: TableColumn, row: Mapping[str, Any], key: str, is_chosen: bool) -> Markup:
    value = row.get(column.name)
    text = column.text(value, row.get("dtype"))
    if column.name in NAMES and key:
        mark = Markup(' aria-current="true"') if is_chosen else ""
        return html('<a class="choose" data-toggle href="{}" title="{}"{}>{}</a>', choose_href(key), text, mark, text)
    if column.is_bad(value):
        return html('<span class="problem" title="{0}">{0}</span>', text)
    return html('<span title="{0}">{0}</span>', text) if column.show == "text" else html("{}", text)
