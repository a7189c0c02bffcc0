"""Measurements tell what the run made of the device's clocks, readings who else uses the device.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("rows_telemetry", sa.Column("other_processes", sa.Text))
    op.add_column("rows_measurements", sa.Column("clocks", sa.Text))
