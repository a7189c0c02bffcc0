"""Rows of a table that the analyzer filters, sorts and pages, in the columns that somebody has chosen; tables of results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import panel as pn
from markupsafe import Markup

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.metrics import configuration_key
from kernalyse.services.ui.charts.roofline_points import VERIFICATION_TEXTS
from kernalyse.services.ui.components.base import Text, flow, fold, html
from kernalyse.services.ui.components.table import Column, Extent, Heading, PagedRows, Rows, extent_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.client import TablePage
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.roofline_rows import ResultRow
from kernalyse.services.ui.data.table_columns import COLUMNS, TEXT_FORMATS, TableName
from kernalyse.services.ui.data.table_columns import Column as TableColumn
from kernalyse.services.ui.data.table_query import KEY_COLUMNS, csv_query, table_query
from kernalyse.services.ui.view import TableView, View

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


REFRESH_INTERVAL_S: Final = 1.5
"""Between questions while runs go on; each costs the analyzer a sort of its table."""

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
NOTHING: Final = "Nothing has been measured yet."
NO_MATCH: Final = "No row matches these filters."
READING: Final = "The trace is being read: its rows appear here."
OTHER_ROWS: Final = " Sweeps and traces have other rows: choose them under Table."


def progress_of(runs: Iterable[Run], overview: Overview) -> tuple[object, ...]:
    """Return what changes with the rows of these runs."""
    return (*((run.run_id, run.state, run.is_settled, run.completed_configuration_count) for run in runs), overview.revision)


class ColumnChoice:
    """Which columns a table has, in a card that opens.

    Args:
        page: that the table is on.
    """

    def __init__(self, context: Context, view: TableView, page: str) -> None:
        self._view = view
        self._known: tuple[TableColumn, ...] = ()
        self._boxes = pn.widgets.CheckBoxGroup(options={}, inline=True, margin=0, css_classes=["column-boxes"], sizing_mode="stretch_width")
        self._boxes.param.watch(self._choose, "value")
        every = pn.widgets.Button(label="all", margin=0, on_click=self._choose_all)
        default = pn.widgets.Button(label="as at first", margin=0, on_click=lambda _event: view.param.update(columns=[]))
        buttons = flow(every, default, classes=("column-buttons",))
        self.layout = fold(Text(html("Columns"), sizing_mode=None), buttons, self._boxes)
        context.keep(f"columns of {page}", self.layout, ("collapsed",))

    @property
    def shown(self) -> tuple[TableColumn, ...]:
        chosen = tuple(column for column in self._known if column.name in self._view.columns)
        return chosen or tuple(column for column in self._known if column.is_default)

    def update(self, table: TableName) -> None:
        """Offer the columns of this table."""
        self._known = COLUMNS[table]
        options = {column.title: column.name for column in self._known}
        value = [column.name for column in self.shown]
        if self._boxes.options != options or self._boxes.value != value:
            self._boxes.param.update(options=options, value=value)

    def _choose(self, event: Any) -> None:
        names = [column.name for column in self._known if column.name in event.new]
        if names != [column.name for column in self.shown]:
            self._view.columns = names

    def _choose_all(self, _event: Any) -> None:
        self._view.columns = [column.name for column in self._known]


class TableRows(PagedRows):
    """A card with rows of a table, its download and its columns.

    Args:
        page: that the table is on, as of its path.
        tools: beside the title.
    """

    def __init__(self, context: Context, view: TableView, page: str, tools: Sequence[Any]) -> None:
        self._download = Text(sizing_mode=None)
        self._columns = ColumnChoice(context, view, page)
        row = flow(*tools, self._download, classes=("at-end",), sizing_mode=None)
        super().__init__(context, view, page, "Rows", (row,), (self._columns.layout,), self._choose)
        self._page_view = view
        self._answers: Question[TablePage] = Question(context.wake)
        self._keys: list[str] = []
        self._made: object = None
        self._answer: TablePage | None = None
        self._run_watcher = context.view.param.watch(self._show_first_rows, "runs")

    def close(self) -> None:
        super().close()
        self.context.view.param.unwatch(self._run_watcher)
        self._answers.stop()

    # ------------------------------------------------------------ what a page says of its table

    def prepare(self) -> None:
        """Bring what the table stands on up to date."""

    @property
    def table(self) -> TableName:
        """Which table is shown."""
        raise NotImplementedError

    @property
    def asked(self) -> View:
        """Runs and filters that the rows are asked for by."""
        return self.context.view

    def progress(self) -> object:
        """Return what changes with the rows."""
        raise NotImplementedError

    def runs(self) -> Collection[Run]:
        """Return those of the chosen runs that are known."""
        raise NotImplementedError

    def choose(self, key: str) -> None:
        """Choose the row of this key."""

    def nothing(self) -> str:
        """Return what is said where no rows are left."""
        chosen = self.context.view.runs
        return (NO_MATCH if chosen or filters.has_any(self.context.view) else NOTHING) + (OTHER_ROWS if chosen else "")

    def chosen(self) -> str:
        """Return the key of the chosen row; empty: none."""
        return ""

    # ------------------------------------------------------------ showing

    def update(self) -> None:
        self.prepare()
        view, table, asked = self._page_view, self.table, self.asked
        self._columns.update(table)
        columns = self._columns.shown
        query = table_query(table, asked, view, tuple(column.name for column in columns))
        progress = (self.progress(), self.context.overview.problem)
        self._answers.ask(query, partial(self.context.client.table, query), progress, REFRESH_INTERVAL_S)
        answer, problem = self._answers.answer, self._answers.problem
        reading = is_reading(self.runs())
        made = (self._answers.answer_subject, columns, problem, self.context.view.written(), view.written(), table, reading)
        if made == self._made and answer is self._answer:
            return
        self._made, self._answer = made, answer
        link = '<a class="button" href="/download/{}.csv?{}" download>Download CSV</a>'
        self._download.show(html(link, table, csv_query(asked, view)))
        if problem or answer is None or not answer.rows.height:
            empty = (
                html('<p class="problem block">{}</p>', problem)
                if problem
                else html('<p class="empty">{}</p>', self._empty(answer, is_reading=reading))
            )
            self.show_rows((), (), Extent(0, view.row_count, 0 if answer is None else answer.total_row_count), empty)
            return
        rows, chosen = answer.rows.to_dicts(), self.chosen()
        self._keys = [row_key(table, row) for row in rows]
        chosen_place = self._keys.index(chosen) if chosen and chosen in self._keys else None
        cells = [tuple(_cell(column, row, key, key == chosen) for column in columns) for row, key in zip(rows, self._keys, strict=True)]
        self.show_rows(headings_of(columns), cells, extent_of(view, answer.total_row_count), chosen=chosen_place)

    def _empty(self, answer: TablePage | None, *, is_reading: bool) -> str:
        if answer is None:
            return ASKING
        return READING if is_reading else self.nothing()

    def _choose(self, place: int) -> None:
        if place < len(self._keys) and self._keys[place]:
            self.choose(self._keys[place])

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
        mark = Markup(' aria-current="true"') if is_chosen else ""  # Tabulator tells screen readers of no choice
        return html('<a class="choose" data-toggle href="{}" title="{}"{}>{}</a>', choose_href(key), text, mark, text)
    if column.is_bad(value):
        return html('<span class="problem" title="{0}">{0}</span>', text)
    return html('<span title="{0}">{0}</span>', text) if column.show == "text" else html("{}", text)


RESULT_COLUMNS: Final = (
    Column("Run", 90),
    Column("Configuration"),
    Column("Median", 80, is_number=True),
    Column("Flop rate", 100, is_number=True),
    Column("Byte rate", 90, is_number=True),
    Column("Intensity", 105, is_number=True),
    Column("Efficiency", 125, is_number=True),
    Column("Bound", 115),
    Column("Result", 125),
)
NO_RESULTS: Final = "Results appear here as soon as something has been measured, or a trace read in which the work of kernels is known."
REMEMBERED_ROW_COUNT: Final = 4_096
"""Rows kept as HTML: tabs of one run show the same ones again and again."""


class Results(Rows):
    """Rows of the table roofline in words.

    Args:
        choose: called with the key of a point whose row somebody clicks on; None: points cannot be chosen.
    """

    def __init__(self, choose: Callable[[str], None] | None = None) -> None:
        self._choose = choose
        self._points: list[str] = []
        super().__init__(
            RESULT_COLUMNS,
            NO_RESULTS,
            None if choose is None else self._choose_row,
            hidden_columns=["Run", "Result"],
            css_classes=["results"],
        )

    def show_results(self, rows: Iterable[ResultRow], *, with_run: bool, chosen: str = "") -> None:
        """Show the rows. chosen: key of the point that is marked."""
        listed = list(rows)
        with_result = any(
            row.verification_state or row.is_implausible or row.disturbance for row in listed
        )  # a trace has nothing to say of it
        hidden = [title for title, is_shown in (("Run", with_run), ("Result", with_result)) if not is_shown]
        if hidden != self.table.hidden_columns:
            self.table.hidden_columns = hidden
        self._points = [row.point for row in listed]
        self.show([(theme.short_run_id(row.run_id), self._name(row), *_cells(row._replace(point=""))) for row in listed])
        self.choose(self._points.index(chosen) if chosen and chosen in self._points else None)

    def _choose_row(self, place: int) -> None:
        if self._choose is not None and place < len(self._points):
            self._choose(self._points[place])

    def _name(self, row: ResultRow) -> Markup:
        if self._choose is None or not row.point:
            return html('<span title="{0}">{0}</span>', row.label)
        return html('<a href="?{0}" data-toggle class="choose" title="{1}">{1}</a>', urlencode({"point": row.point}), row.label)


@lru_cache(REMEMBERED_ROW_COUNT)
def _cells(row: ResultRow) -> tuple[Any, ...]:
    median = theme.duration(row.duration_median_ns)
    if row.duration_median_ns is None and row.duration_mean_ns is not None:
        median = html('<span title="no median came with the file">mean {}</span>', theme.duration(row.duration_mean_ns))
    return (
        median,
        theme.flop_rate(row.achieved_flop_per_s, row.dtype),
        theme.byte_rate(row.achieved_bytes_per_s),
        theme.intensity(row.intensity_flop_per_byte),
        efficiency_cell(row.efficiency_ratio),
        html("{}", row.efficiency_category or row.bound or theme.UNKNOWN),
        _result(row),
    )


def efficiency_cell(ratio: float | None) -> Markup:
    """Return a ratio with a bar of its length."""
    if ratio is None:
        return Markup(theme.UNKNOWN)
    bar = '<span class="meter" aria-hidden="true"><span style="width:{:.0f}%"></span></span>{}'
    return html(bar, min(ratio * 100, 100), theme.percent(ratio))


def _result(row: ResultRow) -> Markup:
    said = html("{}", VERIFICATION_TEXTS.get(row.verification_state, row.verification_state) or "")
    if row.verification_state == "FAILED":
        said = html('<span class="problem">{}</span>', said)
    if row.is_implausible:
        mark = ' <strong class="problem">{} implausible</strong><span class="why">{}</span>'
        said += html(mark, theme.IMPLAUSIBLE_SYMBOL, row.implausible_reason or "")
    if row.disturbance:
        said += html(' <strong class="problem">{} disturbed</strong><span class="why">{}</span>', DISTURBED_SYMBOL, row.disturbance)
    return said
