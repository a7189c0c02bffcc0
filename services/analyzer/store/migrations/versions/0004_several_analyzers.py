"""Several analyzers share a store: which of them live, and which of them follows a node.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "analyzers",
        sa.Column("address", sa.Text, primary_key=True),
        sa.Column("analyzer_id", sa.Text, nullable=False),
        sa.Column("end_unix_ns", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "node_leases",
        sa.Column("node_address", sa.Text, primary_key=True),
        sa.Column("analyzer_id", sa.Text, nullable=False),
    )
