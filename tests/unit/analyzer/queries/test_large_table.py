"""Questions answered from columns in memory, held against the same questions answered by the query."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.queries.filters import run_far_query, run_query
from kernalyse.services.analyzer.queries.service import LargeTable
from kernalyse.services.analyzer.store.column_cache import CachedColumn, ColumnCache
from kernalyse.services.analyzer.tables.base import COUNT, FLAG, INDEX, NUMBER, TEXT, Column, keyed_table
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from tests.examples import examples

TABLE = keyed_table(
    "things", "For this test.", *(Column(name, dtype, name) for name, dtype in (("name", TEXT), ("count", COUNT), ("index", INDEX))),
    Column("ratio", NUMBER, "ratio"), Column("is_open", FLAG, "is_open"),
)  # fmt: skip
NAMES = TABLE.column_names
texts = st.one_of(st.none(), st.sampled_from(["gemm", "Gemm2", "", "reduce", "é"]))
row = st.tuples(
    st.just("run-1"), st.just(3), texts, st.one_of(st.none(), st.integers(-3, 3)), st.integers(0, 2),
    st.one_of(st.none(), st.sampled_from([0.5, -1.0, 2.0])), st.one_of(st.none(), st.booleans()),
)  # fmt: skip
number_filters = st.builds(
    Filter, st.sampled_from(["count", "index", "ratio"]), st.integers(-3, 3).map(str),
    st.sampled_from([operator for operator in FilterOperator if operator is not FilterOperator.CONTAINS]),
)  # fmt: skip
text_filters = st.builds(
    Filter, st.sampled_from(["name", "run_id"]), st.sampled_from(["gemm", "m", "run", ""]), st.sampled_from(FilterOperator)
)
flag_filters = st.builds(
    Filter, st.just("is_open"), st.sampled_from(["true", "False"]), st.sampled_from([FilterOperator.EQUAL, FilterOperator.NOT_EQUAL])
)
queries = st.builds(
    TableQuery,
    table_name=st.just("things"),
    filters=st.lists(st.one_of(number_filters, text_filters, flag_filters), max_size=2).map(tuple),
    order_by=st.lists(st.builds(SortKey, st.sampled_from(NAMES), st.booleans()), max_size=3).map(tuple),
    offset=st.integers(0, 6),
    limit=st.integers(1, 12),
    columns=st.sampled_from([(), ("name",), ("ratio", "name", "run_id")]),
)


def large(frame: pl.DataFrame, held: ColumnCache | None = None) -> LargeTable:
    return LargeTable(frame.lazy(), TABLE, frame.height, ("run-1", "things"), held or ColumnCache())


@given(st.lists(row, min_size=1, max_size=40), queries)
@examples(400)
def test_the_answer_is_that_of_the_query(rows: list[Any], query: TableQuery) -> None:
    frame = TABLE.frame(rows)
    found, wanted = large(frame).answer(query), run_query(frame.lazy(), TABLE, query)
    assert found.total_row_count == wanted.total_row_count
    assert found.frame.equals(wanted.frame)
    assert found.frame.schema == wanted.frame.schema


@given(st.lists(row, min_size=1, max_size=40), queries.filter(lambda query: query.order_by))
@examples(400)
def test_a_page_far_on_is_that_of_the_query(rows: list[Any], query: TableQuery) -> None:
    frame = TABLE.frame(rows)
    found, wanted = run_far_query(frame.lazy(), TABLE, query), run_query(frame.lazy(), TABLE, query)
    assert found.total_row_count == wanted.total_row_count
    assert found.frame.equals(wanted.frame)
    assert found.frame.schema == wanted.frame.schema


@pytest.mark.parametrize("query", [
    TableQuery("things", order_by=(SortKey("nonsense"),), limit=5),
    TableQuery("things", filters=(Filter("count", "many"),), limit=5),
    TableQuery("things", order_by=(SortKey("count"),), columns=("nonsense",), limit=5),
])  # fmt: skip
def test_what_the_table_has_not_is_refused_as_ever(query: TableQuery) -> None:
    frame = TABLE.frame([("run-1", 1, "gemm", 1, 1, 1.0, True)] * 3)
    with pytest.raises(InvalidRequestError):
        large(frame).answer(query)


def test_a_second_question_reads_nothing_again() -> None:
    read: list[str] = []

    def seen(frame: pl.DataFrame) -> pl.DataFrame:
        read.extend(frame.columns)
        return frame

    frame = TABLE.frame([("run-1", 1, f"kernel {number % 3}", number, 1, 1.0, True) for number in range(100)])
    rows = frame.lazy().map_batches(seen, schema=frame.schema)
    table = LargeTable(rows, TABLE, frame.height, ("run-1", "things"), ColumnCache())
    query = TableQuery("things", order_by=(SortKey("count", descending=True),), limit=2)
    assert table.answer(query).frame["count"].to_list() == [99, 98]
    count = len(read)
    assert count > 0
    assert table.answer(query).frame["name"].to_list() == ["kernel 0", "kernel 2"]
    assert len(read) == count


def test_columns_over_the_limit_are_dropped_those_asked_for_last_stay() -> None:
    one = CachedColumn.of(pl.Series("count", range(1000)))
    held = ColumnCache(max_bytes=2 * one.size_bytes)
    made: list[str] = []

    def ask(key: str) -> None:
        held.get(key, CachedColumn, lambda: made.append(key) or one)  # type: ignore[func-returns-value]

    for key in ("a", "b", "a", "c", "a", "b"):
        ask(key)
    assert made == ["a", "b", "c", "b"]
    assert held.size_bytes == 2 * one.size_bytes


def test_a_column_of_one_value_takes_no_room() -> None:
    assert CachedColumn.of(pl.Series("run_id", ["run-1"] * 10_000)).size_bytes < 100
    assert CachedColumn.of(pl.Series("node", [None] * 10_000, dtype=pl.Int64)).size_bytes < 100
