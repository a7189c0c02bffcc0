"""The store's SQLite database: its tables, transactions, and the rows of live runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl
import sqlalchemy as sa
import sqlalchemy.exc
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from kernalyse.services.analyzer.tables.base import FLAG, TEXT, DataType, Table
from kernalyse.services.analyzer.tables.event_rows import Row, SampleRow, TableRow, samples_frame
from kernalyse.services.analyzer.tables.runs import COUNTERS, EVENT_TABLES, SAMPLES
from kernalyse.services.core.errors import StorageFullError
from kernalyse.services.core.model import Run

# ---------------------------------------------------------------- tables

metadata = sa.MetaData()

nodes: Final = sa.Table(
    "nodes",
    metadata,
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("ca_certificate", sa.LargeBinary),
    sa.Column("node", sa.LargeBinary, nullable=False),  # serialized Node, as it last described itself
    sa.Column("client_certificate", sa.LargeBinary),
    sa.Column("origin", sa.Text),  # null: stored by a version that knew of no other than ADDED
    sa.Column("server_name", sa.Text),  # that its certificate is for; null: its address
    sa.Column("unreachable_since_unix_ns", sa.BigInteger),  # null: it answered last
)

cursors: Final = sa.Table(
    "cursors",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("journal_id", sa.Text, primary_key=True),
    sa.Column("next_event_index", sa.BigInteger, nullable=False),
)

runs: Final = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("node_id", sa.Text, nullable=False, index=True),
    sa.Column("journal_id", sa.Text),  # null until its first event
    sa.Column("run", sa.LargeBinary, nullable=False),  # serialized Run
    sa.Column("create_unix_ns", sa.BigInteger, nullable=False, index=True),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("is_compacted", sa.Boolean, nullable=False),
    sa.Column("next_event_index", sa.BigInteger, nullable=False),  # one more than the last collected; 0: none yet
    sa.Column("device_event_index", sa.BigInteger),  # event from which on the device was known
    sa.Column("owner", sa.Text, index=True),  # as in the run; null: stored by a version that did not know of owners
    sa.Column("stored_bytes", sa.BigInteger),  # of its Parquet files; null: not written yet
)

traces: Final = sa.Table(  # left by runs on their nodes
    "traces",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("event_index", sa.BigInteger, primary_key=True),
    sa.Column("artifact_names", sa.Text, nullable=False),  # JSON array, the one to read first
    sa.Column("collector", sa.Text, nullable=False),
    sa.Column("is_read", sa.Boolean, nullable=False),
)

parquet_prefixes: Final = sa.Table(  # a run's files are visible by its row here, and by nothing else
    "parquet_prefixes",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("prefix", sa.Text, nullable=False),
)

sample_batches: Final = sa.Table(
    "sample_batches",
    metadata,
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("event_index", sa.BigInteger, nullable=False),
    sa.Column("configuration_index", sa.BigInteger, nullable=False),
    sa.Column("first_sample_index", sa.BigInteger, nullable=False),
    sa.Column("measured_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("sample_count", sa.BigInteger, nullable=False),
    sa.Column("duration_ns", sa.LargeBinary, nullable=False),  # packed little-endian float64
    sa.Column("sm_clock_hz", sa.LargeBinary),  # packed little-endian int64
    sa.Column("discarded_positions", sa.LargeBinary),  # packed little-endian int32
    sa.Index("sample_batches_by_run", "run_id", "event_index"),
)

device_descriptions: Final = sa.Table(
    "device_descriptions",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("device_id", sa.Text, primary_key=True),
    sa.Column("device", sa.LargeBinary, nullable=False),  # serialized Device, as its node last described it
)

device_ceilings: Final = sa.Table(
    "device_ceilings",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),  # or the run_id, for a device that only an imported run knows
    sa.Column("device_id", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("ceiling_name", sa.Text, primary_key=True),
    sa.Column("unit", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("confidence", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("clock_hz", sa.BigInteger),
    sa.Column("measured_unix_ns", sa.BigInteger),
    sa.Column("host_busy_ratio", sa.Double),
)

device_thresholds: Final = sa.Table(
    "device_thresholds",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),  # or run_id, as above
    sa.Column("device_id", sa.Text, primary_key=True),
    sa.Column("memory_inefficient_ratio", sa.Double, nullable=False),
    sa.Column("compute_inefficient_ratio", sa.Double, nullable=False),
)


def _sql_type(dtype: DataType) -> sa.types.TypeEngine[Any]:
    if dtype is TEXT:
        return sa.Text()
    if dtype is FLAG:
        return sa.Boolean()
    return sa.BigInteger() if dtype is pl.Int64 else sa.Double()


def _event_table(table: Table) -> sa.Table:
    """Return the database table for a canonical table's rows while their run is not yet in Parquet."""
    name = f"rows_{table.table_name}"
    columns = [sa.Column(column.name, _sql_type(column.dtype), nullable=column.name != "run_id") for column in table.columns]
    return sa.Table(name, metadata, *columns, sa.Index(f"{name}_by_run", "run_id", "event_index"))


event_tables: Final = {table.table_name: _event_table(table) for table in EVENT_TABLES}

sa.Index(
    "configurations_by_index",
    event_tables["configurations"].c.run_id,
    event_tables["configurations"].c.configuration_index,
)

ROW_TABLES: Final = (*event_tables.values(), sample_batches)
"""Everything that leaves the database once its run is in Parquet."""


# ---------------------------------------------------------------- transactions


class Database:
    """The open database: one writer at a time and any number of readers, from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = _engine(path, "BEGIN IMMEDIATE")
        self._reader = _engine(path, "BEGIN")
        self._write_lock = threading.Lock()
        with self.writing() as connection:
            metadata.create_all(connection)
            _add_missing_columns(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection in one write transaction, rolled back on any error.

        Raises:
            StorageFullError: the disk is full.
        """
        try:
            with self._write_lock, self._writer.begin() as connection:
                yield connection
        except sa.exc.OperationalError as error:
            if "full" not in str(error.orig):
                raise
            raise StorageFullError(
                f"store {self._path.parent}",
                found=str(error.orig),
                expected="room for the rows that arrive",
                remedy="Free space on that disk or delete runs; collecting goes on by itself then, and nothing is lost.",
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with one consistent view."""
        with self._reader.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def _engine(path: Path, begin: str) -> Engine:
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30.0})

    def configure(connection: Any, _record: object) -> None:
        # SQLAlchemy begins transactions below: a reader needs one for a consistent view, which sqlite3 would not open.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # After a power cut the last transactions may be gone, but each with its cursor: they are collected again from the
        # profiler's journal. FULL would wait for the disk at every batch.
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _add_missing_columns(connection: Connection) -> None:
    """Add the columns that a database of an older version lacks."""
    for table in (*ROW_TABLES, device_ceilings, nodes, runs):
        present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                sql_type = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f'ALTER TABLE {table.name} ADD COLUMN "{column.name}" {sql_type}')


# ---------------------------------------------------------------- live rows
# Rows of runs that are not yet in Parquet.


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
    query = sa.select(table).where(table.c.run_id == run_id, table.c.configuration_index == configuration_index).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else dict(row._mapping)


def insert_rows(connection: Connection, commit: RunCommit) -> None:
    """Insert the rows, samples and counters of a commit in its transaction."""
    rows_by_table: defaultdict[str, list[Row]] = defaultdict(list)
    for row in commit.rows:
        rows_by_table[row.table.table_name].append(row.values)
    for table_name, rows in rows_by_table.items():
        # One statement for all rows needs every column in each of them.
        unset = dict.fromkeys(event_tables[table_name].columns.keys())
        connection.execute(sa.insert(event_tables[table_name]), [unset | row for row in rows])
    for frame in commit.counters:
        if frame.height > 0:
            connection.execute(sa.insert(event_tables[COUNTERS.table_name]), frame.to_dicts())
    if commit.samples:
        names = tuple(column.name for column in sample_batches.columns)
        connection.execute(sa.insert(sample_batches), [{name: getattr(row, name) for name in names} for row in commit.samples])


def read_live_rows(
    connection: Connection, table: Table, run_ids: Sequence[str] | None, first_event_index: int, end_event_index: int | None
) -> pl.DataFrame:
    """Return rows of a stored table that are in the database, in order of event_index within each run."""
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


def select_events(frame: pl.LazyFrame, first_event_index: int, end_event_index: int | None) -> pl.LazyFrame:
    """Keep the rows from the first event up to before the end; None: no end."""
    index = pl.col("event_index")
    frame = frame.filter(index >= first_event_index) if first_event_index > 0 else frame
    return frame if end_event_index is None else frame.filter(index < end_event_index)
