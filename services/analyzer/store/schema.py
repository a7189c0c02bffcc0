"""The tables of the store's catalogue, the same on SQLite and on PostgreSQL. migrations/ makes them, and changes older ones."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from kernalyse.services.analyzer.tables.base import FLAG, TEXT, DataType, Table
from kernalyse.services.analyzer.tables.runs import EVENT_TABLES, RUNS


class PlainText(sa.types.TypeDecorator[str]):
    """Text in which PostgreSQL, which takes no NUL characters, gets the replacement character in their place."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text as the database takes it."""
        return value.replace("\x00", "\ufffd") if value is not None and dialect.name == "postgresql" else value


metadata = sa.MetaData()


def _sql_type(dtype: DataType) -> sa.types.TypeEngine[Any]:
    if dtype is TEXT:
        return PlainText()
    if dtype is FLAG:
        return sa.Boolean()
    return sa.BigInteger() if dtype is pl.Int64 else sa.Double()


def _row_id() -> sa.Column[int]:
    """Return the column by which rows of one event stay in their order."""
    return sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True)


LISTED_COLUMNS: Final = tuple(
    column for column in RUNS.columns if column.name not in ("run_id", "event_index", "node_id", "create_unix_ns")
)
"""Columns of table runs that the catalogue has under their own names, besides those that it has anyway."""


stores: Final = sa.Table(  # one row: the store whose files this catalogue names
    "stores",
    metadata,
    sa.Column("store_id", PlainText, primary_key=True),
)

nodes: Final = sa.Table(
    "nodes",
    metadata,
    sa.Column("address", PlainText, primary_key=True),
    sa.Column("node_id", PlainText, nullable=False),
    sa.Column("ca_certificate", sa.LargeBinary),
    sa.Column("node", sa.LargeBinary, nullable=False),  # serialized Node, as it last described itself
    sa.Column("client_certificate", sa.LargeBinary),
    sa.Column("origin", PlainText),  # null: stored by a version that knew of no other than ADDED
    sa.Column("server_name", PlainText),  # that its certificate is for; null: its address
    sa.Column("unreachable_since_unix_ns", sa.BigInteger),  # null: it answered last
)

analyzers: Final = sa.Table(  # of this store that live; empty where there is one alone
    "analyzers",
    metadata,
    sa.Column("address", PlainText, primary_key=True),  # at which the others reach it
    sa.Column("analyzer_id", PlainText, nullable=False),  # of its process
    sa.Column("end_unix_ns", sa.BigInteger, nullable=False),  # by the database's clock; it counts as gone after that
)

node_leases: Final = sa.Table(  # which of them follows a node
    "node_leases",
    metadata,
    sa.Column("node_address", PlainText, primary_key=True),
    sa.Column("analyzer_id", PlainText, nullable=False),
)

cursors: Final = sa.Table(
    "cursors",
    metadata,
    sa.Column("node_id", PlainText, primary_key=True),
    sa.Column("journal_id", PlainText, primary_key=True),
    sa.Column("next_event_index", sa.BigInteger, nullable=False),
)

runs: Final = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", PlainText, primary_key=True),
    sa.Column("node_id", PlainText, nullable=False, index=True),
    sa.Column("journal_id", PlainText),  # null until its first event
    sa.Column("run", sa.LargeBinary, nullable=False),  # serialized Run
    sa.Column("create_unix_ns", sa.BigInteger, nullable=False, index=True),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("is_compacted", sa.Boolean, nullable=False),
    sa.Column("next_event_index", sa.BigInteger, nullable=False),  # one more than the last collected; 0: none yet
    sa.Column("device_event_index", sa.BigInteger),  # event from which on the device was known
    sa.Column("owner", PlainText, index=True),  # as in the run; null: stored by a version that did not know of owners
    sa.Column("stored_bytes", sa.BigInteger),  # of its Parquet files; null: not written yet
    sa.Column("revision", sa.BigInteger, nullable=False, index=True),  # grows with every change of any run
    sa.Column("is_settled", sa.Boolean, nullable=False),
    sa.Column("imported_digest", PlainText, nullable=False),  # of what it was imported from; empty: it was not
    # What lists show of it, from the run: nothing has to be decoded for them.
    *(sa.Column(column.name, _sql_type(column.dtype)) for column in LISTED_COLUMNS),
)

traces: Final = sa.Table(  # left by runs on their nodes
    "traces",
    metadata,
    sa.Column("run_id", PlainText, primary_key=True),
    sa.Column("event_index", sa.BigInteger, primary_key=True),
    sa.Column("artifact_names", PlainText, nullable=False),  # JSON array, the one to read first
    sa.Column("collector", PlainText, nullable=False),
    sa.Column("is_read", sa.Boolean, nullable=False),
)

parquet_prefixes: Final = sa.Table(  # a run's files are visible by its row here, and by nothing else
    "parquet_prefixes",
    metadata,
    sa.Column("kind", PlainText, primary_key=True),
    sa.Column("run_id", PlainText, primary_key=True),
    sa.Column("prefix", PlainText, nullable=False),
)


sample_batches: Final = sa.Table(
    "sample_batches",
    metadata,
    _row_id(),
    sa.Column("run_id", PlainText, nullable=False),
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
    sa.Column("node_id", PlainText, primary_key=True),
    sa.Column("device_id", PlainText, primary_key=True),
    sa.Column("device", sa.LargeBinary, nullable=False),  # serialized Device, as its node last described it
)

device_ceilings: Final = sa.Table(
    "device_ceilings",
    metadata,
    sa.Column("node_id", PlainText, primary_key=True),  # or the run_id, for a device that only an imported run knows
    sa.Column("device_id", PlainText, primary_key=True),
    sa.Column("source", PlainText, primary_key=True),
    sa.Column("ceiling_name", PlainText, primary_key=True),
    sa.Column("unit", PlainText, primary_key=True),
    sa.Column("path", PlainText, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("confidence", PlainText, nullable=False),
    sa.Column("note", PlainText, nullable=False),
    sa.Column("clock_hz", sa.BigInteger),
    sa.Column("measured_unix_ns", sa.BigInteger),
    sa.Column("host_busy_ratio", sa.Double),
)

device_thresholds: Final = sa.Table(
    "device_thresholds",
    metadata,
    sa.Column("node_id", PlainText, primary_key=True),  # or run_id, as above
    sa.Column("device_id", PlainText, primary_key=True),
    sa.Column("memory_inefficient_ratio", sa.Double, nullable=False),
    sa.Column("compute_inefficient_ratio", sa.Double, nullable=False),
)


def _event_table(table: Table) -> sa.Table:
    """Return the database table for a canonical table's rows while their run is not yet in Parquet."""
    name = f"rows_{table.table_name}"
    columns = [sa.Column(column.name, _sql_type(column.dtype), nullable=column.name != "run_id") for column in table.columns]
    return sa.Table(name, metadata, _row_id(), *columns, sa.Index(f"{name}_by_run", "run_id", "event_index"))


event_tables: Final = {table.table_name: _event_table(table) for table in EVENT_TABLES}

sa.Index(
    "configurations_by_index",
    event_tables["configurations"].c.run_id,
    event_tables["configurations"].c.configuration_index,
)

ROW_TABLES: Final = (*event_tables.values(), sample_batches)
"""Everything that leaves the database once its run is in Parquet."""
