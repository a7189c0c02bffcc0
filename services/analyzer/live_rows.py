"""Rows of runs while they are in the database, before they go to Parquet: in, commit by commit, and out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from services.analyzer.catalogue import event_tables, sample_batches
from services.analyzer.counter_tables import COUNTERS
from services.analyzer.event_rows import Row, SampleRow, TableRow, samples_frame
from services.analyzer.schema import SAMPLES
from services.analyzer.table import Table
from services.core.model import Run


@dataclass(slots=True)
class RunCommit:
    """What one transaction added to one run: events from first_event_index up to before next_event_index."""

    run_id: str
    first_event_index: int
    next_event_index: int
    run: Run | None = None  # None: its state is what it was
    rows: list[TableRow] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    counters: list[pl.DataFrame] = field(default_factory=list)  # rows of table counters
    has_new_ceilings: bool = False  # also because its device became known, or counters tell the work of its kernels
    changed_device_ids: frozenset[str] = frozenset()  # of which every run of the node knows other ceilings from now on


def read_configuration(connection: Connection, run_id: str, configuration_index: int) -> Row | None:
    """The run's row of table configurations, while it is in the database."""
    table = event_tables["configurations"]
    query = sa.select(table).where(table.c.run_id == run_id, table.c.configuration_index == configuration_index).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else dict(row._mapping)


def insert_rows(connection: Connection, commit: RunCommit) -> None:
    """What a commit brings, in its transaction."""
    rows_by_table: defaultdict[str, list[Row]] = defaultdict(list)
    for row in commit.rows:
        rows_by_table[row.table.table_name].append(row.values)
    for table_name, rows in rows_by_table.items():
        # One statement for all: a column that only some rows have is null in the others.
        unset = dict.fromkeys(event_tables[table_name].columns.keys())
        connection.execute(sa.insert(event_tables[table_name]), [unset | row for row in rows])
    for frame in commit.counters:
        if frame.height > 0:
            connection.execute(sa.insert(event_tables[COUNTERS.table_name]), frame.to_dicts())
    if commit.samples:
        names = tuple(column.name for column in sample_batches.columns)
        connection.execute(sa.insert(sample_batches), [{name: getattr(row, name) for name in names} for row in commit.samples])


def read_live(
    connection: Connection, table: Table, run_ids: Sequence[str] | None, first_event_index: int, end_event_index: int | None
) -> pl.DataFrame:
    """Rows of a stored table, in order of event_index within each run."""
    source = sample_batches if table is SAMPLES else event_tables[table.table_name]
    names = [column.name for column in (sample_batches.columns if table is SAMPLES else table.columns)]
    query = sa.select(*(source.c[name] for name in names)).where(source.c.event_index >= first_event_index)
    query = query.order_by(source.c.run_id, source.c.event_index, sa.literal_column("rowid"))
    if run_ids is not None:
        query = query.where(source.c.run_id.in_(run_ids))
    if end_event_index is not None:
        query = query.where(source.c.event_index < end_event_index)
    rows = connection.execute(query)
    return samples_frame([SampleRow(*row) for row in rows]) if table is SAMPLES else table.frame(rows)


def between(frame: pl.LazyFrame, first_event_index: int, end_event_index: int | None) -> pl.LazyFrame:
    """Rows from the first event up to before the end; None: no end."""
    index = pl.col("event_index")
    frame = frame.filter(index >= first_event_index) if first_event_index > 0 else frame
    return frame if end_event_index is None else frame.filter(index < end_event_index)
