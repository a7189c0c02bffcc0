"""What GetTable asks for, as a polars query, and frames as Arrow IPC bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.tables.base import COUNT, FLAG, INDEX, NUMBER, TEXT, Column, Table
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Filter, FilterOperator, TableChunk, TableQuery

MAX_CHUNK_BYTES: Final = 1024 * 1024
"""Of one message: larger ones make a slow client hold more than it can show, smaller ones cost more per row."""

FAR_ROW_COUNT: Final = 10_000
"""Up to here a sorted page is cheap: the first rows are kept while all pass by. Past it all rows would be sorted whole."""

PLACE: Final = "row_place"

TYPE_NAMES: Final = {TEXT: "text", COUNT: "a whole number", INDEX: "a whole number", NUMBER: "a number", FLAG: "true or false"}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """total_row_count: before offset and limit."""

    frame: pl.DataFrame
    total_row_count: int


def run_query(rows: pl.LazyFrame, table: Table, query: TableQuery) -> QueryResult:
    """Filters, sorts (nulls last), cuts and selects.

    Raises:
        InvalidRequestError: a column that the table lacks, a value that the column cannot hold.
    """
    names = [table.column(name).name for name in query.columns] or list(table.column_names)
    keys = _sort_keys(table, query)
    matching = _matching(rows, table, query)
    ordered = matching.sort(keys, **_order(query)) if keys else matching
    wanted = ordered.slice(query.offset, query.limit or None).select(names)
    if query.offset == 0 and query.limit == 0:
        frame = wanted.collect()
        return QueryResult(frame, frame.height)
    # One after the other: together they would share the rows, and a page of a large file would be cut from all of it.
    return QueryResult(wanted.collect(), matching.select(pl.len()).collect().item())


def run_far_query(rows: pl.LazyFrame, table: Table, query: TableQuery) -> QueryResult:
    """The same as run_query for a sorted page far on: only the keys are sorted, then the page's rows are looked up.

    Args:
        rows: in the same order each time they are read.
    """
    names = [table.column(name).name for name in query.columns] or list(table.column_names)
    matching = _matching(rows, table, query)
    sort_keys = _sort_keys(table, query)
    keys = matching.select(*dict.fromkeys(sort_keys)).collect()
    places = keys.select(pl.arg_sort_by(sort_keys, **_order(query)).slice(query.offset, query.limit).alias(PLACE))
    found = matching.with_row_index(PLACE).filter(pl.col(PLACE).is_in(places.to_series().implode())).select(PLACE, *names).collect()
    return QueryResult(places.join(found, on=PLACE, how="left", maintain_order="left").select(names), keys.height)


def _matching(rows: pl.LazyFrame, table: Table, query: TableQuery) -> pl.LazyFrame:
    conditions = [condition(table.column(wanted.column), wanted) for wanted in query.filters]
    return rows.filter(*conditions) if conditions else rows


def _sort_keys(table: Table, query: TableQuery) -> list[str]:
    return [table.column(key.column).name for key in query.order_by]


def _order(query: TableQuery) -> dict[str, Any]:
    return {"descending": [key.descending for key in query.order_by], "nulls_last": True, "maintain_order": True}


def chunks(table_name: str, frame: pl.DataFrame) -> Iterator[TableChunk]:
    """The frame as complete Arrow IPC streams of at most MAX_CHUNK_BYTES each; one of no rows for an empty frame."""
    data = _ipc(frame)
    if len(data) <= MAX_CHUNK_BYTES or frame.height <= 1:
        yield TableChunk(table_name, data)
        return
    # Room for parts that compress less well than the whole; one that still is too large is halved again.
    part_count = max(2, len(data) * 5 // (MAX_CHUNK_BYTES * 4) + 1)
    height = -(-frame.height // part_count)
    for offset in range(0, frame.height, height):
        yield from chunks(table_name, frame.slice(offset, height))


def _ipc(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    # polars locks the frame object while it writes, and takes the GIL for each write into the buffer: a thread that holds
    # the GIL and reads the same object then waits for ever. The clone (no data is copied) is nobody else's.
    frame.clone().write_ipc_stream(buffer, compression="lz4")
    return buffer.getvalue()


def condition(column: Column, wanted: Filter) -> pl.Expr:
    """Of the rows that a filter lets through. Raises InvalidRequestError: the column cannot hold the value."""
    operand = pl.col(column.name)
    if wanted.operator is FilterOperator.CONTAINS:
        if column.dtype is not TEXT:
            raise _unfit(column, wanted, "a text column")
        return operand.str.to_lowercase().str.contains(wanted.value.lower(), literal=True)
    value = _value(column, wanted)
    match wanted.operator:
        case FilterOperator.EQUAL:
            return operand == value
        case FilterOperator.NOT_EQUAL:
            return operand.ne_missing(value)
        case FilterOperator.LESS:
            return operand < value
        case FilterOperator.LESS_EQUAL:
            return operand <= value
        case FilterOperator.GREATER:
            return operand > value
        case FilterOperator.GREATER_EQUAL:
            return operand >= value


def _value(column: Column, condition: Filter) -> pl.Expr:
    text: str = condition.value
    try:
        value = VALUE_READERS[column.dtype](text)
        # A literal of the column's type: a whole number past 64 bits is refused here, not by the query.
        return pl.lit(pl.Series([value], dtype=column.dtype)).first()
    except (ValueError, OverflowError, TypeError) as error:
        raise _unfit(column, condition, TYPE_NAMES[column.dtype]) from error


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


VALUE_READERS: Final[dict[object, Callable[[str], Any]]] = {TEXT: str, COUNT: int, INDEX: int, NUMBER: float, FLAG: _flag}


def _unfit(column: Column, condition: Filter, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"filter {condition.operator.value} on column {column.name}",
        found=repr(condition.value) if expected != "a text column" else f"a column of type {TYPE_NAMES[column.dtype]}",
        expected=expected,
        remedy="Correct the value, or choose another operator.",
    )
