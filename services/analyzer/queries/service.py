"""What GetTable answers with: from columns in memory where a table is large and never changes, else from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import Difference
from kernalyse.services.analyzer.analysis.fleet import fleet
from kernalyse.services.analyzer.analysis.history import history, history_series
from kernalyse.services.analyzer.analysis.traces.timeline import Matches
from kernalyse.services.analyzer.queries.filters import FAR_ROW_COUNT, QueryResult, condition, run_far_query, run_query
from kernalyse.services.analyzer.queries.materialized import history_view, kernels_view, run_history
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, DERIVED, QueryParameters, RunKind, parameters_of, resolve_table
from kernalyse.services.analyzer.queries.run_tables import ContinuedSweepSource, rows_state, timeline_of
from kernalyse.services.analyzer.store.column_cache import CachedColumn, CachedRows, ColumnCache
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.store.trace_parts import TABLES_IN_PARTS
from kernalyse.services.analyzer.tables.base import COUNT, Table
from kernalyse.services.analyzer.tables.derived import (
    HISTORY,
    HISTORY_ROWS,
    HISTORY_SERIES,
    HISTORY_TABLES,
    IDENTITY_COLUMNS,
    METRICS,
)
from kernalyse.services.analyzer.tables.runs import FLEET, KERNELS, STORED_TABLES
from kernalyse.services.analyzer.tables.traces import COLLECTIVES, GAPS, TIMELINE_MATCHES, TRACE_TABLES
from kernalyse.services.core.device_health import CHECK_NAMES
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery

MIN_HELD_ROWS: Final = 300_000
"""Below it a question takes the store less than a tenth of a second, and columns in memory would save nothing."""

MAX_HELD_ANSWER_ROWS: Final = 100_000
"""Above it most of a table is wanted, which the store reads in one go."""

MAX_KEPT_CONFIGURATIONS: Final = 10_000
"""Above it a page of a table may take much less memory than the whole."""

MAX_PAGE_ROWS: Final = 2**31
"""No table has more rows: polars numbers them with 32 bits, and fails on an offset or limit beyond its own types."""

ROW_NUMBER: Final = pl.UInt32


class TableAnswers:
    """Answers questions of tables. Methods block; call them in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._history_rows = history_view(store)
        self._kernels = kernels_view(store)
        self._series: tuple[object, pl.DataFrame] | None = None  # those of all runs, and what they were made of

    def answer(
        self, table: Table, run_ids: Sequence[str] | None, query: TableQuery, allowed_differences: frozenset[Difference]
    ) -> QueryResult:
        """Return the rows that a query selects.

        Raises:
            InvalidRequestError: a column that the table lacks, a value that it cannot hold.
            StoredRunDamagedError: a file of one of the runs cannot be read.
            What resolve_table raises.
        """
        query = replace(query, offset=min(query.offset, MAX_PAGE_ROWS), limit=min(query.limit, MAX_PAGE_ROWS))
        try:
            return self._answer(table, run_ids, query, allowed_differences)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            self._store.check_files(run_ids)
            raise

    def _answer(
        self, table: Table, run_ids: Sequence[str] | None, query: TableQuery, allowed_differences: frozenset[Difference]
    ) -> QueryResult:
        parameters = parameters_of(query)
        run_id = run_ids[0] if run_ids is not None and len(run_ids) == 1 else ""
        if table is TIMELINE_MATCHES and run_id and _asks_for_names(query):
            return self._matches(run_id, query)
        if table is FLEET:
            return run_query(self._fleet(run_ids), table, query)
        if table in HISTORY_TABLES:
            return run_query(self._history(table, run_ids, query.filters), table, query)
        if table is KERNELS and run_ids is None and parameters == DEFAULT_QUERY:
            return run_query(self._kernels.rows(), table, query)
        is_as_stored = not (query.filters or query.order_by)
        if table in TABLES_IN_PARTS and run_id and is_as_stored and query.limit:
            page = self._store.page_of_parts(table, run_id, query.offset, query.limit)
            if page is not None:
                return QueryResult(run_query(page[0], table, replace(query, offset=0, limit=0)).frame, page[1])
        rows = self._rows(table, ContinuedSweepSource(self._store, run_ids, allowed_differences), parameters)
        if table in (*TRACE_TABLES, GAPS, COLLECTIVES) and run_id and not is_as_stored and 0 < query.limit <= MAX_HELD_ANSWER_ROWS:
            height = rows.select(pl.len()).collect().item()
            if height >= MIN_HELD_ROWS:
                return LargeTable(rows, table, height, (run_id, table.table_name), self._store.held).answer(query)
        is_far = bool(query.order_by) and query.limit > 0 and query.offset >= FAR_ROW_COUNT
        return run_far_query(rows, table, query) if is_far and table in STORED_TABLES else run_query(rows, table, query)

    def _rows(self, table: Table, source: ContinuedSweepSource, parameters: QueryParameters) -> pl.LazyFrame:
        """Return the table's rows, of few measurements that are complete from memory: planning alone takes polars up to 50 ms."""
        rows = partial(resolve_table, table, source, parameters)
        is_of_measurements = any(derived.kind is not RunKind.TRACE for derived in DERIVED.get(table.table_name, ()))
        if source.run_ids is None or not is_of_measurements:
            return rows()
        records = self._store.runs.of([*source.run_ids, *chain.from_iterable(source.chains.values())])
        is_complete = all(record.run.state.is_final for record in records)
        if not is_complete or sum(record.run.total_configuration_count or 0 for record in records) > MAX_KEPT_CONFIGURATIONS:
            return rows()
        key = (table.table_name, tuple(source.run_ids), parameters, rows_state(self._store, records))
        return self._store.held.get(key, CachedRows, lambda: CachedRows(rows().collect())).frame.lazy()

    def history_of_run(self, run_id: str) -> pl.DataFrame:
        """Rows of table history that the run's document shows."""
        return run_history(self._history_rows, run_id)

    def _matches(self, run_id: str, query: TableQuery) -> QueryResult:
        """Of ten million events only those asked for become rows."""
        if not self._store.trace_run_ids([run_id]):
            return QueryResult(TIMELINE_MATCHES.empty().select(query.columns or TIMELINE_MATCHES.column_names), 0)
        timeline = timeline_of(self._store, run_id)
        conditions = [condition(TIMELINE_MATCHES.column(wanted.column), wanted) for wanted in query.filters]
        key = (run_id, TIMELINE_MATCHES.table_name, query.filters)
        matches = self._store.held.get(key, Matches, lambda: Matches.of(timeline, pl.all_horizontal(conditions) if conditions else None))
        first, end = matches.between(query.window_start_ns, query.window_end_ns)
        last = end if query.limit == 0 else min(first + query.offset + query.limit, end)
        event_index = self._store.runs.get(run_id).next_event_index - 1
        rows = matches.frame(timeline, min(first + query.offset, last), last)
        rows = rows.with_columns(run_id=pl.lit(run_id), event_index=pl.lit(event_index, dtype=COUNT))
        return QueryResult(rows.select(query.columns or TIMELINE_MATCHES.column_names), end - first)

    def _history(self, table: Table, run_ids: Sequence[str] | None, filters: Sequence[Filter]) -> pl.LazyFrame:
        """Of the series that the filters leave: levels of the others need not be found."""
        names = {column.name for column in IDENTITY_COLUMNS}
        if table is HISTORY_SERIES and run_ids is None:
            return self._series_of_all()
        conditions = [condition(HISTORY_ROWS.column(wanted.column), wanted) for wanted in filters if wanted.column in names]
        chosen = self._history_rows.rows(run_ids, conditions)
        return history(chosen, _metric_of(filters)) if table is HISTORY else history_series(chosen)

    def _fleet(self, run_ids: Sequence[str] | None) -> pl.LazyFrame:
        """Return the judgements of these checks, or of every device's newest: all checks count for them."""
        found = fleet(self._history_rows.rows(None, [pl.col("kernel_name").is_in(CHECK_NAMES)]))
        return found if run_ids is None else found.filter(pl.col("run_id").is_in(run_ids))

    def _series_of_all(self) -> pl.LazyFrame:
        """Kept until a run comes, goes or goes on: a page of them is asked for again and again."""
        state = self._history_rows.state()
        if self._series is None or state is None or self._series[0] != state:
            self._series = (state, history_series(self._history_rows.rows(None)).collect())
        return self._series[1].lazy()


def _asks_for_names(query: TableQuery) -> bool:
    """Nothing else: rows come in the order that they have."""
    return not query.order_by and {wanted.column for wanted in query.filters} <= {"name", "track"}


def _metric_of(filters: Sequence[Filter]) -> str:
    """Raises InvalidRequestError that names those there are."""
    asked = [wanted.value for wanted in filters if wanted.column == "metric" and wanted.operator is FilterOperator.EQUAL]
    if asked and asked[0] not in METRICS:
        raise InvalidRequestError(
            "metric of table history", found=repr(asked[0]), expected=f"one of {', '.join(METRICS)}", remedy="Choose one of these."
        )
    return asked[0] if asked else METRICS[0]


@dataclass(frozen=True, slots=True)
class LargeTable:
    """A table whose questions are answered from columns in memory. rows: those of key, which never change; height: of them."""

    rows: pl.LazyFrame
    table: Table
    height: int
    key: tuple[str, str]
    held: ColumnCache

    def answer(self, query: TableQuery) -> QueryResult:
        """The same as run_query."""
        conditions = [(wanted.column, condition(self.table.column(wanted.column), wanted)) for wanted in query.filters]
        names = [self.table.column(name).name for name in query.columns] or list(self.table.column_names)
        chosen: pl.Series | None = None
        for name, expression in conditions:
            holds = self._column(name).where(expression)
            chosen = holds if chosen is None else chosen & holds
        rows, total = self._ordered(chosen, query.order_by)
        page = rows.slice(query.offset, query.limit)
        return QueryResult(pl.DataFrame([self._column(name).at(page).alias(name) for name in names]), total)

    def _ordered(self, chosen: pl.Series | None, order_by: Sequence[SortKey]) -> tuple[pl.Series, int]:
        """Row numbers of what was chosen, all when that is None, in order; and how many."""
        if order_by:
            order = self._order(order_by)
            rows = order if chosen is None else order.filter(chosen.gather(order))
        else:
            rows = pl.int_range(self.height, dtype=ROW_NUMBER, eager=True) if chosen is None else chosen.arg_true()
        return rows, rows.len()

    def _column(self, name: str) -> CachedColumn:
        return self.held.get((self.key, name), CachedColumn, lambda: CachedColumn.of(self.rows.select(name).collect().to_series()))

    def _order(self, order_by: Sequence[SortKey]) -> pl.Series:
        """Row numbers by these keys, nulls last, rows of equal keys as they come."""
        for key in order_by:
            self.table.column(key.column)
        found = self.held.get((self.key, tuple(order_by)), CachedColumn, lambda: CachedColumn(self._sorted(order_by), None, self.height))
        return found.values

    def _sorted(self, order_by: Sequence[SortKey]) -> pl.Series:
        keys = pl.DataFrame([self._column(key.column).sort_key().alias(str(place)) for place, key in enumerate(order_by)])
        descending = [key.descending for key in order_by]
        order = pl.arg_sort_by(keys.columns, descending=descending, nulls_last=True, maintain_order=True)
        return keys.select(order.cast(ROW_NUMBER)).to_series()
