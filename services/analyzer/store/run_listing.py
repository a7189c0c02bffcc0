"""The list of runs: what it shows stands in columns of the catalogue, and is kept in memory as a frame that follows changes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from kernalyse.services.analyzer.store.schema import runs
from kernalyse.services.analyzer.tables.event_rows import unix_ns
from kernalyse.services.analyzer.tables.runs import RUNS
from kernalyse.services.core.model import Run

STATE_COLUMNS: Final = ("revision", "is_final", "is_compacted", "is_settled", "next_event_index", "imported_digest")
"""Columns of the listing besides those of table runs."""

_SCHEMA: Final = {
    **{column.name: column.dtype for column in RUNS.columns if column.name != "event_index"},
    "revision": pl.Int64(),
    "is_final": pl.Boolean(),
    "is_compacted": pl.Boolean(),
    "is_settled": pl.Boolean(),
    "next_event_index": pl.Int64(),
    "imported_digest": pl.String(),
}


def listed_values(run: Run) -> dict[str, Any]:
    """Return the columns of the catalogue that follow from the run itself."""
    revision = run.spec.revision
    return {
        "host_name": run.hostname or None,
        "title": run.title,
        "continues_run_id": run.spec.continues_run_id,
        "state": run.state.value,
        "start_unix_ns": unix_ns(run.start_time),
        "end_unix_ns": unix_ns(run.end_time),
        "device_id": run.device_id,
        "completed_configuration_count": run.completed_configuration_count,
        "failed_configuration_count": run.failed_configuration_count,
        "total_configuration_count": run.total_configuration_count,
        "error_reason": None if run.error is None else run.error.reason,
        "error_message": None if run.error is None else run.error.message,
        "git_commit": None if revision is None else revision.commit,
        "git_is_dirty": None if revision is None else revision.is_dirty,
        "tags": ",".join(run.tags),
        "notes": run.notes,
        "is_settled": run.is_settled,
        "imported_digest": run.imported_digest,
    }


def next_revision() -> sa.ScalarSelect[int]:
    """Return the revision of a change that is being written: one more than any run has."""
    every = runs.alias()
    return sa.select(sa.func.coalesce(sa.func.max(every.c.revision), 0) + 1).scalar_subquery()


class RunListing:
    """The listing of all runs, oldest first. It reads what has changed since it was asked last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frame = pl.DataFrame(schema=_SCHEMA)
        self._revision = 0

    def read(self, connection: Connection, run_ids: Sequence[str] | None) -> pl.DataFrame:
        """Return the columns of table runs and STATE_COLUMNS of these runs, or of all; node_id is empty for imported ones."""
        if run_ids is not None:
            return _select(connection, runs.c.run_id.in_(run_ids)).sort("create_unix_ns", "run_id")
        with self._lock:
            changed = _select(connection, runs.c.revision > self._revision)
            if changed.height:
                self._revision = int(changed["revision"].max())  # type: ignore[arg-type]
                kept = self._frame.join(changed, on="run_id", how="anti", maintain_order="left")
                self._frame = pl.concat([kept, changed]).sort("create_unix_ns", "run_id")
            count = connection.scalar(sa.select(sa.func.count()).select_from(runs))
            if count != self._frame.height:  # some have been deleted
                self._frame = _select(connection, sa.true()).sort("create_unix_ns", "run_id")
            return self._frame


def _select(connection: Connection, condition: sa.ColumnElement[bool]) -> pl.DataFrame:
    rows = connection.execute(sa.select(*(runs.c[name] for name in _SCHEMA)).where(condition)).all()
    return pl.DataFrame([tuple(row) for row in rows], schema=_SCHEMA, orient="row")
