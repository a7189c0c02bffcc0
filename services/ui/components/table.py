"""Tables of rows that have been put into words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
import panel as pn

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
