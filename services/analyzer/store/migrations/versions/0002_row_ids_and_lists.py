"""The store gets an id, rows of live runs a number, runs the columns that lists show, and telemetry its counters of errors.

Revision ID: 0002
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from kernalyse.services.analyzer.store.run_listing import listed_values
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import Run

revision = "0002"
down_revision = "0001"

ROW_TABLES: Final = (
    *("rows_artifacts", "rows_ceilings", "rows_configurations", "rows_counter_reports", "rows_counters", "rows_failures", "rows_log_lines"),
    *("rows_measurements", "rows_paired_comparisons", "rows_telemetry", "sample_batches"),
)
TEXTS: Final = (
    "host_name",
    "title",
    "continues_run_id",
    "state",
    "device_id",
    "error_reason",
    "error_message",
    "git_commit",
    "tags",
    "notes",
)
NUMBERS: Final = (
    *("start_unix_ns", "end_unix_ns", "completed_configuration_count", "failed_configuration_count"),
    "total_configuration_count",
)


def upgrade() -> None:
    """Change the tables, and fill the new columns from the runs."""
    connection = op.get_bind()
    op.create_table("stores", sa.Column("store_id", sa.Text, primary_key=True))
    op.add_column("rows_telemetry", sa.Column("error_counts", sa.Text))
    for name in ROW_TABLES:
        _number_rows(connection, name)
    columns: tuple[sa.Column[Any], ...] = (
        sa.Column("revision", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("is_settled", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("imported_digest", sa.Text, nullable=False, server_default=""),
        sa.Column("git_is_dirty", sa.Boolean),
        *(sa.Column(name, sa.Text) for name in TEXTS),
        *(sa.Column(name, sa.BigInteger) for name in NUMBERS),
    )
    for column in columns:
        op.add_column("runs", column)
    op.create_index("ix_runs_revision", "runs", ["revision"])
    runs = sa.Table("runs", sa.MetaData(), autoload_with=connection)
    stored = connection.execute(sa.select(runs.c.run_id, runs.c.run).order_by(runs.c.create_unix_ns, runs.c.run_id)).all()
    for number, (run_id, data) in enumerate(stored, start=1):
        values = listed_values(protobuf.decode_bytes(data, Run)) | {"revision": number}
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(values))


def _number_rows(connection: sa.Connection, name: str) -> None:
    """Make the table anew with a primary key, its rows in the order in which they came."""
    old = sa.Table(name, sa.MetaData(), autoload_with=connection)
    row_id = sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True)
    columns = [sa.Column(column.name, column.type, nullable=column.nullable) for column in old.columns]
    new = op.create_table(f"{name}_new", row_id, *columns)
    names = [column.name for column in columns]
    order: sa.ColumnElement[Any] = sa.literal_column("rowid" if connection.dialect.name == "sqlite" else "ctid")
    connection.execute(sa.insert(new).from_select(names, sa.select(*(old.c[column] for column in names)).order_by(order)))
    indexes = {index.name: [column.name for column in index.columns] for index in old.indexes}
    op.drop_table(name)
    op.rename_table(f"{name}_new", name)
    for index, indexed in indexes.items():
        op.create_index(index, name, indexed)
