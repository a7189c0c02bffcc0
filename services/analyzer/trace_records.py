"""What the catalogue knows of the traces that runs leave on their nodes: which wait to be read, and whose are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from services.analyzer.catalogue import Catalogue, runs, traces
from services.core.model import RunEvent, TraceStored


@dataclass(frozen=True, slots=True)
class LeftTrace:
    """artifact_names: its files, the one to read first. collector: what wrote them."""

    artifact_names: tuple[str, ...]
    collector: str


class TraceRecords:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def waiting_run_ids(self, node_id: str) -> list[str]:
        """Runs of the node that have ended and whose traces are still to be read, oldest first."""
        query = (
            sa.select(runs.c.run_id)
            .where(runs.c.node_id == node_id, runs.c.is_final, runs.c.run_id.in_(sa.select(traces.c.run_id).where(~traces.c.is_read)))
            .order_by(runs.c.create_unix_ns)
        )
        with self._catalogue.reading() as connection:
            return list(connection.scalars(query))

    def unread_run_ids(self) -> set[str]:
        """Of all nodes, with runs that have not ended yet."""
        with self._catalogue.reading() as connection:
            return set(connection.scalars(sa.select(traces.c.run_id).where(~traces.c.is_read)))

    def of(self, run_id: str) -> list[LeftTrace]:
        """In the order in which the run has left them."""
        query = sa.select(traces).where(traces.c.run_id == run_id).order_by(traces.c.event_index)
        with self._catalogue.reading() as connection:
            return [LeftTrace(tuple(json.loads(row.artifact_names)), row.collector) for row in connection.execute(query)]

    def read_run_ids(self, run_ids: Sequence[str] | None) -> set[str]:
        """Those of the runs, or of all, whose traces have been read."""
        query = sa.select(traces.c.run_id).where(traces.c.is_read)
        with self._catalogue.reading() as connection:
            return set(connection.scalars(query if run_ids is None else query.where(traces.c.run_id.in_(run_ids))))


def keep_trace(connection: Connection, event: RunEvent, stored: TraceStored) -> None:
    """Remembers that the trace is to be read, whatever becomes of this process."""
    values = {"run_id": event.run_id, "event_index": event.event_index, "collector": stored.collector, "is_read": False}
    connection.execute(sa.insert(traces), values | {"artifact_names": json.dumps(stored.artifact_names)})


def has_waiting_trace(connection: Connection, run_id: str) -> bool:
    return connection.scalar(sa.select(traces.c.event_index).where(traces.c.run_id == run_id, ~traces.c.is_read).limit(1)) is not None


def settle_traces(connection: Connection, run_id: str, *, is_read: bool) -> None:
    """All of the run's are read, or never will be."""
    of_run = traces.c.run_id == run_id
    connection.execute(sa.update(traces).where(of_run).values(is_read=True) if is_read else sa.delete(traces).where(of_run))
