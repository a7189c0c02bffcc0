"""Tables of rows that have been put into words; long ones with what they are sorted by and which of their rows are shown."""

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
