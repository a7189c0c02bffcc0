"""Records of the store's database: runs, nodes, traces, hardware."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from kernalyse.services.analyzer.store.database import Database, insert_missing, upsert
from kernalyse.services.analyzer.store.run_listing import RunListing, listed_values, next_revision
from kernalyse.services.analyzer.store.schema import (
    ROW_TABLES,
    cursors,
    device_ceilings,
    device_descriptions,
    device_thresholds,
    nodes,
    parquet_prefixes,
    runs,
    traces,
)
from kernalyse.services.analyzer.tables.event_rows import time_from_unix_ns, unix_ns
from kernalyse.services.core import protobuf
from kernalyse.services.core.disturbance import is_busy
from kernalyse.services.core.errors import RunLostError, RunNotFinishedError, RunNotFoundError
from kernalyse.services.core.model import Ceiling, Device, Node, NodeOrigin, Run, RunError, RunEvent, RunState, Thresholds, TraceStored

# ---------------------------------------------------------------- runs

LAST = "last"
LISTED_CANDIDATE_COUNT = 5


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run with what the store knows of its collecting.

    journal_id: None until its first event. next_event_index: one more than the last event collected. device_event_index: the event
    from which on its device was known; None: it is not.
    """

    run: Run
    journal_id: str | None
    is_compacted: bool
    next_event_index: int
    device_event_index: int | None


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position of a run in the list of runs, newest first: a page continues with the runs after it."""

    create_unix_ns: int
    run_id: str


class RunRecords:
    """The runs of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listing = RunListing()

    def add(self, run: Run) -> None:
        """Insert a run that is not known yet; one that is stays as it is."""
        with self._database.writing() as connection:
            insert_run(connection, run)

    def get(self, run_id: str) -> RunRecord:
        """Return the record of a run. Raises RunNotFoundError."""
        with self._database.reading() as connection:
            return read_run(connection, run_id)

    def resolve(self, text: str) -> str:
        """Return the run_id that a complete run_id, a unique prefix of one, or "last" stands for. Raises RunNotFoundError."""
        with self._database.reading() as connection:
            found = _matching(connection, text)
        if len(found) == 1 or text in found:
            return text if text in found else found[0]
        if not found:
            raise RunNotFoundError(
                f"run {text!r}",
                found="no such run" if text != LAST else "no run at all",
                expected='a run_id, the beginning of one, or "last"',
                remedy="List the runs to see which there are.",
            )
        raise RunNotFoundError(
            f"run {text!r}",
            found=f"several runs that begin so: {', '.join(found[:LISTED_CANDIDATE_COUNT])}",
            expected="the beginning of exactly one run_id",
            remedy="Give more of it.",
        )

    def known(self, run_ids: Sequence[str]) -> set[str]:
        """Return those of the run_ids that the store has."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))))

    def newest(self, count: int, before: RunPosition | None = None) -> list[RunRecord]:
        """Return at most `count` records, newest first, older than the position."""
        query = sa.select(runs).order_by(runs.c.create_unix_ns.desc(), runs.c.run_id.desc()).limit(count)
        if before is not None:
            query = query.where(sa.tuple_(runs.c.create_unix_ns, runs.c.run_id) < (before.create_unix_ns, before.run_id))
        return self._select(query)

    def of(self, run_ids: Sequence[str] | None) -> list[RunRecord]:
        """Return the records of these runs, or of all, oldest first."""
        query = sa.select(runs).order_by(runs.c.create_unix_ns, runs.c.run_id)
        return self._select(query if run_ids is None else query.where(runs.c.run_id.in_(run_ids)))

    def listing(self, run_ids: Sequence[str] | None) -> pl.DataFrame:
        """Return what lists show of these runs, or of all, oldest first: columns of table runs and those of `run_listing.STATE_COLUMNS`."""
        with self._database.reading() as connection:
            return self._listing.read(connection, run_ids)

    def unfinished(self, node_id: str) -> list[RunRecord]:
        """Return the records of the node's runs that have not ended."""
        return self._select(sa.select(runs).where(runs.c.node_id == node_id, ~runs.c.is_final))

    def to_compact(self, node_id: str | None = None) -> list[str]:
        """Return the final runs of a node, or of all, whose rows are still in the database."""
        query = sa.select(runs.c.run_id).where(runs.c.is_final, ~runs.c.is_compacted)
        with self._database.reading() as connection:
            return list(connection.scalars(query if node_id is None else query.where(runs.c.node_id == node_id)))

    def annotate(self, run_id: str, tags: tuple[str, ...], notes: str) -> Run:
        """Replace the run's tags and notes, and return it. Raises RunNotFoundError."""
        with self._database.writing() as connection:
            run = replace(read_run(connection, run_id).run, tags=tags, notes=notes)
            update_run(connection, run)
            return run

    def update_activity(self, run_id: str, activity: str) -> Run | None:
        """Set the status message of a run that has ended but whose traces are still to be read.

        Returns:
            The changed run; None: the message is the same, the run needs nothing more, or it has been deleted.
        """
        with self._database.writing() as connection:
            try:
                run = read_run(connection, run_id).run
            except RunNotFoundError:
                return None
            if run.is_settled or run.activity == activity:
                return None
            run = replace(run, activity=activity)
            update_run(connection, run)
            return run

    def mark_lost(self, run_id: str, end_time: datetime) -> Run:
        """Mark a run as lost, as its further events will never come, and return it. A final one stays as it is."""
        with self._database.writing() as connection:
            run = read_run(connection, run_id).run
            if not run.state.is_final:
                run = replace(run, state=RunState.LOST, end_time=end_time, error=_lost_error(run_id), activity="")
                update_run(connection, run)
            return run

    def of_owner(self, owner: str, since_unix_ns: int) -> list[Run]:
        """Return the owner's runs that have not ended, and those that were created since."""
        is_meant = sa.or_(sa.not_(runs.c.is_final), runs.c.create_unix_ns >= since_unix_ns)
        return [record.run for record in self._select(sa.select(runs).where(runs.c.owner == owner, is_meant))]

    def totals(self) -> tuple[int, int, int]:
        """Return how many runs have ended, how many have not, and the bytes of all on disk."""
        query = sa.select(runs.c.is_final, sa.func.count(), sa.func.sum(runs.c.stored_bytes)).group_by(runs.c.is_final)
        with self._database.reading() as connection:
            rows = {bool(is_final): (count, size or 0) for is_final, count, size in connection.execute(query)}
        ended, going_on = rows.get(True, (0, 0)), rows.get(False, (0, 0))
        return ended[0], going_on[0], int(ended[1] + going_on[1])

    def stored_bytes(self, owner: str) -> int:
        """Return the bytes of the owner's runs on disk."""
        with self._database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.sum(runs.c.stored_bytes)).where(runs.c.owner == owner)).scalar() or 0)

    def delete(self, run_id: str) -> None:
        """Delete a run and its rows. Raises RunNotFoundError, RunNotFinishedError."""
        with self._database.writing() as connection:
            state = read_run(connection, run_id).run.state
            if not state.is_final:
                raise RunNotFinishedError(
                    f"run {run_id}", found=f"state {state.value}", expected="a run that has ended", remedy="Cancel it first."
                )
            for table in (*ROW_TABLES, traces, parquet_prefixes, runs):
                connection.execute(sa.delete(table).where(table.c.run_id == run_id))

    def _select(self, query: sa.Select[tuple[object, ...]]) -> list[RunRecord]:
        with self._database.reading() as connection:
            return [_record(row) for row in connection.execute(query)]


def insert_run(connection: Connection, run: Run) -> None:
    """Insert a run without events, unless it is known."""
    insert_missing(
        connection,
        runs,
        {
            "run_id": run.run_id,
            "node_id": run.node_id,
            "create_unix_ns": unix_ns(run.create_time),
            "is_compacted": False,
            "next_event_index": 0,
            "owner": run.owner,
            "revision": connection.scalar(sa.select(next_revision())),
            **_values(run),
        },
    )


def insert_compacted_run(connection: Connection, run: Run, next_event_index: int) -> None:
    """Insert or replace a run whose rows are in Parquet already. One that was there keeps its tags and its creation time."""
    insert_run(connection, run)
    before = read_run(connection, run.run_id).run
    update_run(connection, replace(run, create_time=before.create_time, tags=before.tags))
    mark_compacted(connection, run.run_id)
    values = {"next_event_index": next_event_index, "device_event_index": 0}
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(values))


def mark_compacted(connection: Connection, run_id: str) -> None:
    """Write that the rows of the run are in Parquet."""
    connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(is_compacted=True, revision=next_revision()))


def _values(run: Run) -> dict[str, object]:
    """Return the columns that follow from the run."""
    return {"run": protobuf.encode_bytes(run), "is_final": run.state.is_final, **listed_values(run)}


def set_stored_bytes(connection: Connection, run_id: str, stored_bytes: int) -> None:
    """Write how large a run's files are."""
    connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(stored_bytes=stored_bytes))


def read_run(connection: Connection, run_id: str) -> RunRecord:
    """Return the record of a run. Raises RunNotFoundError."""
    row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one_or_none()
    if row is None:
        raise RunNotFoundError(f"run {run_id!r}", found="no such run", expected="a run of this store", remedy="List the runs.")
    return _record(row)


def update_run(connection: Connection, run: Run) -> None:
    """Write the run itself; the rest of its record stays."""
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(_values(run) | {"revision": next_revision()}))


def update_record(connection: Connection, record: RunRecord) -> None:
    """Write the record after a commit; is_compacted stays."""
    run = record.run
    connection.execute(
        sa.update(runs)
        .where(runs.c.run_id == run.run_id)
        .values(
            **_values(run),
            revision=next_revision(),
            journal_id=record.journal_id,
            next_event_index=record.next_event_index,
            device_event_index=record.device_event_index,
        )
    )


def _record(row: Row[tuple[object, ...]]) -> RunRecord:
    return RunRecord(protobuf.decode_bytes(row.run, Run), row.journal_id, row.is_compacted, row.next_event_index, row.device_event_index)


def _matching(connection: Connection, text: str) -> list[str]:
    query = sa.select(runs.c.run_id).order_by(runs.c.create_unix_ns.desc(), runs.c.run_id.desc())
    if text == LAST:
        return list(connection.scalars(query.limit(1)))
    # substr, not LIKE: % and _ are no wildcards here.
    has_prefix = sa.func.substr(runs.c.run_id, 1, len(text)) == text
    return list(connection.scalars(query.where(has_prefix))) if text else []


def _lost_error(run_id: str) -> RunError:
    error = RunLostError(
        f"run {run_id}",
        found="a node whose journal no longer has the run's events",
        expected="its events up to the last",
        remedy="What was collected before is kept; start the run again for the rest.",
    )
    return RunError(error.code, error.reason, error.message)


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node that was added. node: its last description of itself."""

    address: str
    node: Node
    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None
    origin: NodeOrigin = NodeOrigin.ADDED
    server_name: str = ""  # that its certificate is for; empty: its address
    unreachable_since_time: datetime | None = None


class NodeRecords:
    """The nodes to collect from, and how far each journal has been collected."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[NodeRecord]:
        """Return every node, in order of address."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(nodes).order_by(nodes.c.address)).all()
        return [
            NodeRecord(
                *(row.address, protobuf.decode_bytes(row.node, Node), row.ca_certificate, row.client_certificate),
                origin=NodeOrigin(row.origin or NodeOrigin.ADDED),
                server_name=row.server_name or "",
                unreachable_since_time=time_from_unix_ns(row.unreachable_since_unix_ns),
            )
            for row in rows
        ]

    def put(self, record: NodeRecord) -> None:
        """Insert the node, or replace the one of the same address."""
        values = {
            "address": record.address,
            "node_id": record.node.node_id,
            "ca_certificate": record.ca_certificate,
            "client_certificate": record.client_certificate,
            "node": protobuf.encode_bytes(record.node),
            "origin": str(record.origin),
            "server_name": record.server_name,
            "unreachable_since_unix_ns": unix_ns(record.unreachable_since_time),
        }
        with self._database.writing() as connection:
            upsert(connection, nodes, values)

    def delete(self, address: str) -> None:
        """Delete the node. Its cursors stay: when it is added again, collecting continues where it stopped."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(nodes).where(nodes.c.address == address))

    def next_event_index(self, node_id: str, journal_id: str) -> int:
        """Return the first event of the journal that has not been collected; 0: none has been."""
        with self._database.reading() as connection:
            return read_cursor(connection, node_id, journal_id)


def read_cursor(connection: Connection, node_id: str, journal_id: str) -> int:
    """Return the next event_index to collect from a journal; 0: none has been collected."""
    query = sa.select(cursors.c.next_event_index).where(cursors.c.node_id == node_id, cursors.c.journal_id == journal_id)
    return connection.scalar(query) or 0


def write_cursor(connection: Connection, node_id: str, journal_id: str, next_event_index: int) -> None:
    """Move the cursor of a journal."""
    values = {"node_id": node_id, "journal_id": journal_id, "next_event_index": next_event_index}
    upsert(connection, cursors, values)


# ---------------------------------------------------------------- traces on nodes


@dataclass(frozen=True, slots=True)
class RemoteTrace:
    """A trace that a run left on its node. artifact_names: its files, the one to read first; collector: the program that wrote them."""

    artifact_names: tuple[str, ...]
    collector: str


class TraceRecords:
    """The traces that runs left on their nodes, and which of them have been read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting_run_ids(self, node_id: str) -> list[str]:
        """Return the node's runs that have ended and whose traces are still to be read, oldest first."""
        query = (
            sa.select(runs.c.run_id)
            .where(runs.c.node_id == node_id, runs.c.is_final, runs.c.run_id.in_(sa.select(traces.c.run_id).where(~traces.c.is_read)))
            .order_by(runs.c.create_unix_ns)
        )
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def unread_run_ids(self) -> set[str]:
        """Return the runs of all nodes with unread traces, including runs that have not ended."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(traces.c.run_id).where(~traces.c.is_read)))

    def of(self, run_id: str) -> list[RemoteTrace]:
        """Return the traces of a run in the order in which it left them."""
        query = sa.select(traces).where(traces.c.run_id == run_id).order_by(traces.c.event_index)
        with self._database.reading() as connection:
            return [RemoteTrace(tuple(json.loads(row.artifact_names)), row.collector) for row in connection.execute(query)]

    def read_run_ids(self, run_ids: Sequence[str] | None) -> set[str]:
        """Return those of the runs, or of all, whose traces have been read."""
        query = sa.select(traces.c.run_id).where(traces.c.is_read)
        with self._database.reading() as connection:
            return set(connection.scalars(query if run_ids is None else query.where(traces.c.run_id.in_(run_ids))))


def insert_trace(connection: Connection, event: RunEvent, stored: TraceStored) -> None:
    """Record in the event's transaction that the trace is to be read, so that a restart does not forget it."""
    values = {"run_id": event.run_id, "event_index": event.event_index, "collector": stored.collector, "is_read": False}
    connection.execute(sa.insert(traces), values | {"artifact_names": json.dumps(stored.artifact_names)})


def has_waiting_trace(connection: Connection, run_id: str) -> bool:
    """Return whether the run has a trace that is still to be read."""
    return connection.scalar(sa.select(traces.c.event_index).where(traces.c.run_id == run_id, ~traces.c.is_read).limit(1)) is not None


def finish_traces(connection: Connection, run_id: str, *, is_read: bool) -> None:
    """Mark all traces of the run as read, or drop those that never will be."""
    of_run = traces.c.run_id == run_id
    connection.execute(sa.update(traces).where(of_run).values(is_read=True) if is_read else sa.delete(traces).where(of_run))


# ---------------------------------------------------------------- hardware
# Kept independently of runs, and after the node has been removed.

USER = "user"
MEASURED = "measured"
DATASHEET_SOURCES = ("datasheet", "clock")
_CEILING_FIELDS = tuple(field.name for field in fields(Ceiling))


class HardwareRecords:
    """Descriptions, ceilings and thresholds of devices.

    For a device that only an imported run knows, the run_id takes the place of the node_id.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def device(self, node_id: str, device_id: str) -> Device | None:
        """Return the device as its node last described it; None: no node has."""
        query = sa.select(device_descriptions.c.device).where(
            device_descriptions.c.node_id == node_id, device_descriptions.c.device_id == device_id
        )
        with self._database.reading() as connection:
            data = connection.scalar(query)
        return None if data is None else protobuf.decode_bytes(data, Device)

    def devices(self, node_id: str) -> list[Device]:
        """Return all devices that the node has described."""
        query = sa.select(device_descriptions.c.device).where(device_descriptions.c.node_id == node_id)
        with self._database.reading() as connection:
            return [protobuf.decode_bytes(data, Device) for data in connection.scalars(query)]

    def ceilings(self, node_id: str, device_id: str) -> tuple[Ceiling, ...]:
        """Return the device's ceilings of every source."""
        query = sa.select(device_ceilings).where(device_ceilings.c.node_id == node_id, device_ceilings.c.device_id == device_id)
        with self._database.reading() as connection:
            return tuple(Ceiling(**{name: getattr(row, name) for name in _CEILING_FIELDS}) for row in connection.execute(query))

    def thresholds(self, node_id: str, device_id: str) -> Thresholds:
        """Return the device's thresholds set by the user, or the defaults."""
        query = sa.select(device_thresholds.c.memory_inefficient_ratio, device_thresholds.c.compute_inefficient_ratio).where(
            device_thresholds.c.node_id == node_id, device_thresholds.c.device_id == device_id
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return Thresholds() if row is None else Thresholds(*row)

    def of_runs(self, run_ids: Collection[str] | None) -> dict[str, dict[str, tuple[tuple[Ceiling, ...], Thresholds]]]:
        """Return user overrides for devices that only runs know, by run_id and device_id; of these runs, or of all."""
        with self._database.reading() as connection:
            known = connection.execute(sa.select(device_thresholds.c.node_id, device_thresholds.c.device_id)).all()
        found: dict[str, dict[str, tuple[tuple[Ceiling, ...], Thresholds]]] = {}
        for owner_id, device_id in known:
            if run_ids is None or owner_id in run_ids:
                found.setdefault(owner_id, {})[device_id] = (self.ceilings(owner_id, device_id), self.thresholds(owner_id, device_id))
        return found

    def forget(self, run_id: str) -> None:
        """Delete the user overrides for devices of a run."""
        with self._database.writing() as connection:
            for table in (device_ceilings, device_thresholds):
                connection.execute(sa.delete(table).where(table.c.node_id == run_id))

    def publish(self, node_id: str, device: Device, ceilings: Sequence[Ceiling]) -> None:
        """Store the device's description, and replace its ceilings from datasheet and clock."""
        description = {"node_id": node_id, "device_id": device.device_id, "device": protobuf.encode_bytes(device)}
        with self._database.writing() as connection:
            upsert(connection, device_descriptions, description)
            _replace(connection, node_id, device.device_id, DATASHEET_SOURCES, ceilings)

    def set_user_overrides(self, node_id: str, device_id: str, ceilings: Sequence[Ceiling], thresholds: Thresholds) -> None:
        """Replace the user's ceilings and thresholds of a device."""
        with self._database.writing() as connection:
            _replace(connection, node_id, device_id, (USER,), ceilings)
            row = {"node_id": node_id, "device_id": device_id, **asdict(thresholds)}
            upsert(connection, device_thresholds, row)


def update_measured_ceilings(connection: Connection, node_id: str, ceilings: Sequence[Ceiling]) -> frozenset[str]:
    """Store the newest measurement of each ceiling. One taken on a busy host does not lower a ceiling that is known.

    Returns:
        device_ids whose ceilings have changed.
    """
    changed = set()
    for ceiling in ceilings:
        if ceiling.source != MEASURED:
            continue
        row = {"node_id": node_id, **asdict(ceiling)}
        is_same = (column == row[column.name] for column in device_ceilings.primary_key.columns)
        known = connection.execute(sa.select(device_ceilings.c.value, device_ceilings.c.host_busy_ratio).where(*is_same)).one_or_none()
        if known is not None and is_busy(ceiling.host_busy_ratio) and known.value > ceiling.value:
            continue
        upsert(connection, device_ceilings, row)
        if known is None or tuple(known) != (ceiling.value, ceiling.host_busy_ratio):
            changed.add(ceiling.device_id)
    return frozenset(changed)


def _replace(connection: Connection, node_id: str, device_id: str, sources: Sequence[str], ceilings: Sequence[Ceiling]) -> None:
    connection.execute(
        sa.delete(device_ceilings).where(
            device_ceilings.c.node_id == node_id, device_ceilings.c.device_id == device_id, device_ceilings.c.source.in_(sources)
        )
    )
    rows = [{"node_id": node_id, **asdict(ceiling)} for ceiling in ceilings]
    if rows:
        connection.execute(sa.insert(device_ceilings), rows)
