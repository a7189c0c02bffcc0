"""What a view asks the analyzer for: the rows of its table, a page of them or all."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.names_wanted import named
from kernalyse.services.ui.data.table_columns import COLUMNS, NAME_COLUMNS, TableName
from kernalyse.services.ui.view import TableView, View, to_query

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
        filters=(*launched, *of_layers, *filters.query_filters(view, known, name_column)),
        order_by=(SortKey(page.sort, page.descending),) if page.sort in known else (),
        offset=0 if limit == 0 else page.row,
        limit=page.row_count if limit is None else limit,
        columns=tuple(dict.fromkeys((*columns, *KEY_COLUMNS.get(table, ()), *dtype))) if columns else (),
    )


def csv_query(view: View, page: TableView) -> str:
    """Return the query of the download: the same rows, all of them, with every column."""
    order = TableView(layer_name=page.layer_name, sort=page.sort, descending=page.descending)
    return to_query(view, order, theme="")
