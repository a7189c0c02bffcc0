"""Filters that hold for every chart and table of the shown runs on every page, and what tables ask the analyzer for under them.

A filter by name lets names through that have a part of it, or in quotes the one that is meant. Links quote theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import polars as pl

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui.data.table_columns import COLUMNS, NAME_COLUMNS, TableName
from kernalyse.services.ui.view import TableView, View, to_query

MAX_LENGTH: Final = 1000
"""Of a text in the URL. Names of templates take hundreds of characters; with many more, messengers cut the links they are sent in."""

_QUOTE: Final = '"'
Names = TypeVar("Names", pl.Expr, pl.Series)


def whole(name: str) -> str:
    """What a filter says that lets this name through and no longer one. Of a name too long for the URL it has the beginning."""
    return f"{_QUOTE}{name}{_QUOTE}" if len(name) + 2 <= MAX_LENGTH else name[:MAX_LENGTH]


def named(column: str, wanted: str) -> Filter:
    """For a table that the analyzer answers."""
    return Filter(column, wanted[1:-1]) if is_whole_name(wanted) else Filter(column, wanted, FilterOperator.CONTAINS)


def is_wanted(names: Names, wanted: str) -> Names:
    """The same for names that are here already: whether each is let through. Letters' case does not matter in a part."""
    if is_whole_name(wanted):
        return names == wanted[1:-1]
    return names.str.to_lowercase().str.contains(wanted.lower(), literal=True)


def is_whole_name(wanted: str) -> bool:
    """Whether it stands in quotes."""
    return len(wanted) > 2 and wanted.startswith(_QUOTE) and wanted.endswith(_QUOTE)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """One filter. name: of the parameter of View. column: of the tables that it holds for."""

    name: str
    column: str
    title: str


PART_OF_NAME: Final = "kernel"
LAYER_NAMES: Final = ("label", "layer")
"""Columns of points of layers: links name the layer, people what they read."""

CHOICES: Final = (
    RowFilter("category", "category", "Category"),
    RowFilter("dtype", "dtype", "Data type"),
    RowFilter("model", "model_name", "Model"),
    RowFilter("batch_size", "batch_size", "Batch size"),
    RowFilter("device", "device_id", "Device"),
    RowFilter("efficiency", "efficiency_category", "Efficiency"),
)
"""Those with a list of values to choose from; a table without the column is not filtered by it."""


def has_any(state: View) -> bool:
    return any(getattr(state, name) for name in (PART_OF_NAME, *(choice.name for choice in CHOICES)))


def filtered(rows: pl.DataFrame, state: View, name_columns: Sequence[str] = ("kernel_name",)) -> pl.DataFrame:
    """Rows that the view's filters leave. name_columns: one of them has to be what the filter of names lets through."""
    present = [name for name in name_columns if name in rows.columns]
    if state.kernel and present:
        rows = rows.filter(pl.any_horizontal(is_wanted(pl.col(name), state.kernel) for name in present))
    for choice in CHOICES:
        value = getattr(state, choice.name)
        if value and choice.column in rows.columns:
            rows = rows.filter(pl.col(choice.column).cast(pl.String) == value)
    return rows


def query_filters(state: View, columns: Collection[str], name_column: str = "kernel_name") -> tuple[Filter, ...]:
    """The same for a table that the analyzer answers; columns: those that it has."""
    parts = [named(name_column, state.kernel)] if state.kernel and name_column in columns else []
    chosen = [(choice.column, getattr(state, choice.name)) for choice in CHOICES]
    return (*parts, *(Filter(column, value) for column, value in chosen if value and column in columns))


def values_of(rows: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """What each filter can be set to, by its name: the values that occur."""
    found: dict[str, tuple[str, ...]] = {}
    for choice in CHOICES:
        if choice.column in rows.columns:
            found[choice.name] = tuple(rows[choice.column].drop_nulls().unique().sort().cast(pl.String).to_list())
    return found


def together(found: Iterable[Mapping[str, Sequence[str]]]) -> dict[str, tuple[str, ...]]:
    """Values of several tables."""
    merged: dict[str, dict[str, None]] = {}
    for values in found:
        for name, some in values.items():
            merged.setdefault(name, {}).update(dict.fromkeys(some))
    return {name: tuple(some) for name, some in merged.items()}


KEY_COLUMNS: Final[dict[TableName, tuple[str, ...]]] = {
    "measurements": ("run_id", "configuration_index"),
    "kernels": ("run_id", "kernel_name"),
    "launched": ("run_id", "kernel_name"),
}
"""What tells one row of a table from the others, where rows can be chosen."""


def table_query(table: TableName, view: View, page: TableView, columns: tuple[str, ...] = (), limit: int | None = None) -> TableQuery:
    """Return what the analyzer is asked for.

    Args:
        columns: empty: all.
        limit: None: as many rows as the page shows at once; 0: all rows from the first on.
    """
    known = {column.name for column in COLUMNS[table]}
    name_column = NAME_COLUMNS.get(table, "kernel_name")
    dtype = ("dtype",) if "dtype" in known else ()  # says whether rates are of flop or of op
    launched = (Filter("launch_count", "0", FilterOperator.GREATER),) if table == "launched" else ()
    of_layers = (named("layer_path", page.layer_name),) if table == "layer_kernels" and page.layer_name else ()
    return TableQuery(
        "kernels" if table == "launched" else table,
        run_ids=tuple(view.runs),
        filters=(*launched, *of_layers, *query_filters(view, known, name_column)),
        order_by=(SortKey(page.sort, page.descending),) if page.sort in known else (),
        offset=0 if limit == 0 else page.row,
        limit=page.row_count if limit is None else limit,
        columns=tuple(dict.fromkeys((*columns, *KEY_COLUMNS.get(table, ()), *dtype))) if columns else (),
    )


def csv_query(view: View, page: TableView) -> str:
    """Return the query of the download: the same rows, all of them, with every column."""
    order = TableView(layer_name=page.layer_name, sort=page.sort, descending=page.descending)
    return to_query(view, order, theme="")
