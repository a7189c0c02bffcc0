"""Measurements tell what the run made of the device's clocks.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("rows_measurements", sa.Column("clocks", sa.Text))
