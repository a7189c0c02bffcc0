"""What a view asks the analyzer for: the rows of its table, a page of them or all."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui import filters
from kernalyse.services.ui.names_wanted import named
from kernalyse.services.ui.state import TableName, ViewState
from kernalyse.services.ui.table_columns import COLUMNS, NAME_COLUMNS

KEY_COLUMNS: Final[dict[TableName, tuple[str, ...]]] = {
    "measurements": ("run_id", "configuration_index"),
    "kernels": ("run_id", "kernel_name"),
    "launched": ("run_id", "kernel_name"),
}
"""What tells one row of a table from the others, where rows can be chosen."""


def table_query(state: ViewState, columns: tuple[str, ...] = (), limit: int | None = None) -> TableQuery:
    """What the analyzer is asked for.

    Args:
        columns: empty: all.
        limit: None: as many rows as the view shows at once; 0: all rows from the first on.
    """
    known = {column.name for column in COLUMNS[state.table]}
    name_column = NAME_COLUMNS.get(state.table, "kernel_name")
    dtype = ("dtype",) if "dtype" in known else ()  # says whether rates are of flop or of op
    launched = (Filter("launch_count", "0", FilterOperator.GREATER),) if state.table == "launched" else ()
    of_layers = (named("layer_path", state.layer_name),) if state.table == "layer_kernels" and state.layer_name else ()
    return TableQuery(
        "kernels" if state.table == "launched" else state.table,
        run_ids=state.runs,
        filters=(*launched, *of_layers, *filters.query_filters(state, known, name_column)),
        order_by=(SortKey(state.sort, state.descending),) if state.sort in known else (),
        offset=0 if limit == 0 else state.row,
        limit=state.row_count if limit is None else limit,
        columns=tuple(dict.fromkeys((*columns, *KEY_COLUMNS.get(state.table, ()), *dtype))) if columns else (),
    )


def csv_query(state: ViewState) -> str:
    """Query of the download: the same rows, all of them, with every column."""
    names = (filters.PART_OF_NAME, *(choice.name for choice in filters.CHOICES), "layer_name", "sort")
    pairs = [(name, getattr(state, name)) for name in names if getattr(state, name)]
    pairs += [("runs", ",".join(state.runs))] if state.runs else []
    pairs += [("descending", "1")] if state.descending else []
    return urlencode(pairs, safe=",")
