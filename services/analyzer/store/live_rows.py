"""Rows of runs that are not yet in Parquet: in the catalogue, as their events bring them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from kernalyse.services.analyzer.store.schema import event_tables, sample_batches
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.event_rows import Row, SampleRow, TableRow, samples_frame
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, COUNTERS, SAMPLES
from kernalyse.services.core.model import Run

SAMPLE_FIELDS: Final = tuple(item.name for item in fields(SampleRow))


@dataclass(slots=True)
class RunCommit:
    """What one transaction added to one run: the events from first_event_index up to before next_event_index."""

    run_id: str
    first_event_index: int
    next_event_index: int
    run: Run | None = None  # None: unchanged
    rows: list[TableRow] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    counters: list[pl.DataFrame] = field(default_factory=list)  # rows of table counters
    has_new_ceilings: bool = False  # also when its device became known, or counters of its kernels arrived
    changed_device_ids: frozenset[str] = frozenset()  # devices with new ceilings for every run of the node


def read_configuration(connection: Connection, run_id: str, configuration_index: int) -> Row | None:
    """Return the run's row of table configurations, while it is in the database."""
    table = event_tables["configurations"]
    columns = (table.c[name] for name in CONFIGURATIONS.column_names)
    query = sa.select(*columns).where(table.c.run_id == run_id, table.c.configuration_index == configuration_index).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else dict(row._mapping)


def insert_rows(connection: Connection, commit: RunCommit) -> None:
    """Insert the rows, samples and counters of a commit in its transaction."""
    rows_by_table: defaultdict[str, list[Row]] = defaultdict(list)
    for row in commit.rows:
        rows_by_table[row.table.table_name].append(row.values)
    for table_name, rows in rows_by_table.items():
        # One statement for all rows needs every column in each of them.
        unset = {column.name: None for column in event_tables[table_name].columns if column.name != "row_id"}
        connection.execute(sa.insert(event_tables[table_name]), [unset | row for row in rows])
    for frame in commit.counters:
        if frame.height > 0:
            connection.execute(sa.insert(event_tables[COUNTERS.table_name]), frame.to_dicts())
    if commit.samples:
        rows_of_samples = [{name: getattr(row, name) for name in SAMPLE_FIELDS} for row in commit.samples]
        connection.execute(sa.insert(sample_batches), rows_of_samples)


def read_live_rows(
    connection: Connection, table: Table, run_ids: Sequence[str] | None, first_event_index: int, end_event_index: int | None
) -> pl.DataFrame:
    """Return rows of a stored table that are in the database, in order of event_index within each run."""
    source = sample_batches if table is SAMPLES else event_tables[table.table_name]
    names = SAMPLE_FIELDS if table is SAMPLES else table.column_names
    query = sa.select(*(source.c[name] for name in names)).where(source.c.event_index >= first_event_index)
    query = query.order_by(source.c.run_id, source.c.event_index, source.c.row_id)
    if run_ids is not None:
        query = query.where(source.c.run_id.in_(run_ids))
    if end_event_index is not None:
        query = query.where(source.c.event_index < end_event_index)
    rows = connection.execute(query)
    return samples_frame([SampleRow(*row) for row in rows]) if table is SAMPLES else table.frame(rows)


def select_events(frame: pl.LazyFrame, first_event_index: int, end_event_index: int | None) -> pl.LazyFrame:
    """Keep the rows from the first event up to before the end; None: no end."""
    index = pl.col("event_index")
    frame = frame.filter(index >= first_event_index) if first_event_index > 0 else frame
    return frame if end_event_index is None else frame.filter(index < end_event_index)


def span_ends(counts: pl.DataFrame, row_limit: int, end: int) -> Iterator[int]:
    """Yield event indexes that divide events into spans of about row_limit rows; the last is `end`.

    Args:
        counts: columns event_index and row_count, in order of event_index.
    """
    part = (pl.col("row_count").cum_sum() - 1) // row_limit
    starts = counts.filter(pl.col("event_index") < end).group_by(part.alias("part")).agg(pl.col("event_index").min()).sort("part")
    yield from starts["event_index"].to_list()[1:]
    yield end
