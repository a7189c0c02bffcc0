"""Tables: of rows that have been put into words, and of rows that the analyzer filters, sorts and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pandas as pd
import panel as pn
from markupsafe import Markup

from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, card, field, flow, html, joined
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.view import PagedView, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from urllib.parse import urlencode

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.core.model import Run
from kernalyse.services.ui.charts.metrics import configuration_key
from kernalyse.services.ui.charts.roofline import VERIFICATION_TEXTS
from kernalyse.services.ui.components.base import fold
from kernalyse.services.ui.data.client import TablePage
from kernalyse.services.ui.data.filters import KEY_COLUMNS, csv_query, table_query
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.roofline_rows import ResultRow
from kernalyse.services.ui.data.table_columns import COLUMNS, TEXT_FORMATS, TableName
from kernalyse.services.ui.data.table_columns import Column as TableColumn
from kernalyse.services.ui.view import TableView, View

LEAST_PX: Final = 180
"""Of a column that takes the room that is left: the beginning of a name can be read."""

MAX_HEIGHT_PX: Final = 620
"""Longer tables scroll within their card: what lies below stays in reach."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: unique within the table.
        width_px: None: it takes the room that the others leave; long texts are cut there.
        is_number: cells are aligned to the right.
    """

    title: str
    width_px: int | None = None
    is_number: bool = False


class Rows:
    """A table of cells that are HTML, made by `text.html`.

    Args:
        columns: of every row, in their order.
        empty: what is said in the place of rows.
        on_choice: called with the place of a row that somebody clicks on; None: rows cannot be chosen.
    """

    def __init__(self, columns: Sequence[Column], empty: str, on_choice: Callable[[int], None] | None = None, **params: Any) -> None:
        self._columns = tuple(columns)
        self._rows: list[tuple[Any, ...]] = []
        titles = [column.title for column in columns]
        self.table = pn.widgets.Tabulator(
            pd.DataFrame(columns=titles, dtype=object),
            show_index=False,
            disabled=True,
            selectable=False if on_choice is None else 1,
            sortable=False,
            theme="simple",
            layout="fit_columns",
            widths={column.title: column.width_px for column in columns if column.width_px is not None},
            configuration={
                "placeholder": empty,
                "columnDefaults": {"resizable": "header"},
                "columns": [{"field": column.title, "minWidth": LEAST_PX if column.width_px is None else 90} for column in columns],
            },
            formatters={title: {"type": "html"} for title in titles},
            text_align={column.title: "right" if column.is_number else "left" for column in columns},
            header_align={column.title: "right" if column.is_number else "left" for column in columns},
            sizing_mode="stretch_width",
            max_height=MAX_HEIGHT_PX,
            margin=0,
            stylesheets=["/assets/table.css"],
            **params,
        )
        self._on_choice = on_choice
        self.table.param.watch(self._chosen, "selection")

    def show(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Show these rows in the place of those shown. rows: a cell for each column."""
        listed = list(rows)
        if listed != self._rows:
            self._rows = listed
            titles = [column.title for column in self._columns]
            self.table.value = pd.DataFrame([[str(cell) for cell in row] for row in listed], columns=titles, dtype=object)

    def choose(self, place: int | None) -> None:
        """Mark the row at the place, or none."""
        wanted = [] if place is None else [place]
        if self.table.selection != wanted:
            self.table.selection = wanted

    def _chosen(self, event: Any) -> None:
        if self._on_choice is not None and event.new:
            self._on_choice(event.new[0])


FILTER_NAMES: Final = (filters.PART_OF_NAME, *(choice.name for choice in filters.CHOICES))


@dataclass(frozen=True, slots=True)
class Heading:
    """A column, and the name that rows are sorted by. name: empty: they cannot be."""

    column: Column
    name: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which of all rows are shown."""

    first: int
    step: int
    total: int

    @property
    def end(self) -> int:
        return min(self.first + self.step, self.total)

    @property
    def page(self) -> int:
        return self.first // self.step + 1

    @property
    def page_count(self) -> int:
        return max(1, -(-self.total // self.step))


def extent_of(view: PagedView, total: int) -> Extent:
    """Return what the view asks for; the first rows where there are fewer than it skips."""
    return Extent(view.row if view.row < total else 0, view.row_count, total)


class PagedRows(Component):
    """A card with some rows of a table. Another filter begins at the first row again.

    Args:
        page: that the table is on, as of its path.
        tools: beside the title.
        below: below the title and the tools.
        on_choice: called with the place of a row that somebody clicks on; None: rows cannot be chosen.
    """

    def __init__(
        self,
        context: Context,
        view: PagedView,
        page: str,
        title: str,
        tools: Sequence[Any] = (),
        below: Sequence[Any] = (),
        on_choice: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(context)
        self._view = view
        self._page = page
        self._headings: tuple[Heading, ...] = ()
        self._extent = Extent(0, 1, 0)
        self._on_choice = on_choice
        self._rows = Rows((), "")
        self._place = pn.Column(self._rows.table, sizing_mode="stretch_width", visible=False)  # what tables need is loaded with the page
        self._links = Text(classes=("pages",), sizing_mode=None)
        self._number = pn.widgets.IntInput(label="Page", start=1, value=1, width=84, margin=0)
        self._number.param.watch(self._gone_to, "value")
        step = field(pn.widgets.Select, view.param.row_count)
        step.param.update(sizing_mode="fixed", width=100)
        self._pager = flow(self._links, self._number, step, classes=("pager",), visible=False, sizing_mode=None)
        heading = Text(html("<h2>{}</h2>", title), sizing_mode=None)
        head = flow(heading, *tools, self._pager, classes=("card-head",))
        self._note = Text(classes=("note",))
        self.layout = card(head, *below, self._note, self._place, classes=("listed",))
        self._watcher = context.view.param.watch(self._filtered, list(FILTER_NAMES))

    def close(self) -> None:
        self.context.view.param.unwatch(self._watcher)

    def show_rows(
        self, headings: Sequence[Heading], rows: Sequence[tuple[Any, ...]], extent: Extent, note: str = "", chosen: int | None = None
    ) -> None:
        """Show the rows of this extent.

        Args:
            note: above them, or in their place.
            chosen: place of the row that is marked; None: none is.
        """
        titles = {heading.column.title: self._title(heading) for heading in headings}
        if tuple(headings) != self._headings:
            self._headings = tuple(headings)
            self._rows = Rows([heading.column for heading in headings], "", self._on_choice, titles=titles)
            self._place[:] = [self._rows.table]
        elif titles != self._rows.table.titles:
            self._rows.table.titles = titles
        self._rows.show(rows)
        self._rows.choose(chosen)
        self._note.show(note)
        if self._place.visible != bool(rows):
            self._place.visible = bool(rows)
        self._show_extent(extent)

    # ------------------------------------------------------------ order

    def _href(self, **changes: object) -> str:
        return f"/{self._page}?{to_query(self.context.view, self._view, **changes)}"

    def _title(self, heading: Heading) -> str:
        """The heading as a link that sorts by its column; the same one once more turns the order round."""
        title, view = heading.column.title, self._view
        if not heading.name:
            return str(html("{}", title))
        is_sorted = view.sort == heading.name
        link = '<a class="sort" href="{}" aria-label="{}">{}<span aria-hidden="true">{}</span></a>'
        order = ("descending" if view.descending else "ascending") if is_sorted else ""
        said = f"{title}, {order}" if order else f"Sort by {title}"
        # Only what differs: another choice must not change the headings, a table is drawn anew with them.
        href = f"?sort={quote(heading.name)}&descending={'1' if is_sorted and not view.descending else ''}&row="
        return str(html(link, href, said, title, {"descending": " ↓", "ascending": " ↑"}.get(order, "")))

    # ------------------------------------------------------------ place

    def _show_extent(self, extent: Extent) -> None:
        self._extent = extent
        is_long = extent.total > min(PagedView.param.row_count.objects)
        if self._pager.visible != is_long:
            self._pager.visible = is_long
        if not is_long:
            return
        last = (extent.page_count - 1) * extent.step
        places = (
            ("First rows", "«", 0, extent.first > 0),
            ("Previous rows", "‹", max(0, extent.first - extent.step), extent.first > 0),
            ("Next rows", "›", extent.first + extent.step, extent.end < extent.total),
            ("Last rows", "»", last, extent.end < extent.total),
        )
        told = html("<span>{} to {} of {}</span>", *(theme.count(count) for count in (extent.first + 1, extent.end, extent.total)))
        self._links.show(told + joined(self._link(*place) for place in places))
        if (self._number.value, self._number.end) != (extent.page, extent.page_count):
            self._number.param.update(value=extent.page, end=extent.page_count)

    def _link(self, said: str, sign: str, row: int, leads_on: bool) -> Markup:
        if not leads_on:
            return html('<span class="page" aria-hidden="true">{}</span>', sign)
        return html('<a class="page" href="{}" aria-label="{}">{}</a>', self._href(row=row), said, sign)

    def _gone_to(self, event: Any) -> None:
        if event.new is not None and event.new != self._extent.page:
            self._view.row = (min(max(1, event.new), self._extent.page_count) - 1) * self._extent.step

    def _filtered(self, *_events: Any) -> None:
        self._view.row = 0


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
            return html('<span class="clamped" title="{0}">{0}</span>', row.label)
        return html('<a href="?{0}" data-toggle class="choose clamped" title="{1}">{1}</a>', urlencode({"point": row.point}), row.label)


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
