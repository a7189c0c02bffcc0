"""What the catalogue knows of each run besides its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from services.analyzer import catalogue
from services.analyzer.catalogue import Catalogue, runs
from services.analyzer.event_rows import unix_ns
from services.core import wire
from services.core.errors import RunLostError, RunNotFinishedError, RunNotFoundError
from services.core.model import Run, RunError, RunState

LAST = "last"
NAMED_CANDIDATE_COUNT = 5


@dataclass(frozen=True, slots=True)
class RunRecord:
    """next_event_index: one more than the last event collected; device_event_index: from which on its device was known."""

    run: Run
    journal_id: str | None
    is_compacted: bool
    next_event_index: int
    device_event_index: int | None


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Where a page of runs ends: newest first, so the next one begins with older ones."""

    create_unix_ns: int
    run_id: str


class RunRecords:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def add(self, run: Run) -> None:
        """Keeps a run that is not known yet; one that is stays as it is."""
        with self._catalogue.writing() as connection:
            insert_run(connection, run)

    def get(self, run_id: str) -> RunRecord:
        """Raises RunNotFoundError."""
        with self._catalogue.reading() as connection:
            return read_run(connection, run_id)

    def resolve(self, text: str) -> str:
        """The run_id that a whole one, the beginning of exactly one, or "last" stands for. Raises RunNotFoundError."""
        with self._catalogue.reading() as connection:
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
            found=f"several runs that begin so: {', '.join(found[:NAMED_CANDIDATE_COUNT])}",
            expected="the beginning of exactly one run_id",
            remedy="Give more of it.",
        )

    def known(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the run_ids that are in the catalogue."""
        with self._catalogue.reading() as connection:
            return set(connection.scalars(sa.select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))))

    def newest(self, count: int, before: RunPosition | None = None) -> list[RunRecord]:
        """At most `count` records, newest first, older than the position."""
        query = sa.select(runs).order_by(runs.c.create_unix_ns.desc(), runs.c.run_id.desc()).limit(count)
        if before is not None:
            query = query.where(sa.tuple_(runs.c.create_unix_ns, runs.c.run_id) < (before.create_unix_ns, before.run_id))
        return self._select(query)

    def of(self, run_ids: Sequence[str] | None) -> list[RunRecord]:
        """Records of these runs, or of all, oldest first."""
        query = sa.select(runs).order_by(runs.c.create_unix_ns, runs.c.run_id)
        return self._select(query if run_ids is None else query.where(runs.c.run_id.in_(run_ids)))

    def unfinished(self, node_id: str) -> list[RunRecord]:
        return self._select(sa.select(runs).where(runs.c.node_id == node_id, ~runs.c.is_final))

    def to_compact(self) -> list[str]:
        """Final runs whose rows are still in the database."""
        with self._catalogue.reading() as connection:
            return list(connection.scalars(sa.select(runs.c.run_id).where(runs.c.is_final, ~runs.c.is_compacted)))

    def annotate(self, run_id: str, tags: tuple[str, ...], notes: str) -> Run:
        """Replaces tags and notes. Raises RunNotFoundError."""
        with self._catalogue.writing() as connection:
            run = replace(read_run(connection, run_id).run, tags=tags, notes=notes)
            update_run(connection, run)
            return run

    def tell_activity(self, run_id: str, activity: str) -> Run | None:
        """What is done for a run that has ended; None: it says so already, is over with, or has been deleted."""
        with self._catalogue.writing() as connection:
            try:
                run = read_run(connection, run_id).run
            except RunNotFoundError:
                return None
            if run.is_settled or run.activity == activity:
                return None
            run = replace(run, activity=activity)
            update_run(connection, run)
            return run

    def lose(self, run_id: str, end_time: datetime) -> Run:
        """Ends a run whose further events will never come. A final one stays as it is."""
        with self._catalogue.writing() as connection:
            run = read_run(connection, run_id).run
            if not run.state.is_final:
                run = replace(run, state=RunState.LOST, end_time=end_time, error=_lost(run_id), activity="")
                update_run(connection, run)
            return run

    def delete(self, run_id: str) -> None:
        """Raises RunNotFoundError, RunNotFinishedError."""
        with self._catalogue.writing() as connection:
            state = read_run(connection, run_id).run.state
            if not state.is_final:
                raise RunNotFinishedError(
                    f"run {run_id}", found=f"state {state.value}", expected="a run that has ended", remedy="Cancel it first."
                )
            for table in (*catalogue.ROW_TABLES, catalogue.traces, catalogue.parquet_prefixes, runs):
                connection.execute(sa.delete(table).where(table.c.run_id == run_id))

    def _select(self, query: sa.Select[tuple[object, ...]]) -> list[RunRecord]:
        with self._catalogue.reading() as connection:
            return [_record(row) for row in connection.execute(query)]


def insert_run(connection: Connection, run: Run) -> None:
    connection.execute(
        sa.insert(runs).prefix_with("OR IGNORE"),
        {
            "run_id": run.run_id,
            "node_id": run.node_id,
            "run": wire.encode_bytes(run),
            "create_unix_ns": unix_ns(run.create_time),
            "is_final": run.state.is_final,
            "is_compacted": False,
            "next_event_index": 0,
        },
    )


def insert_compacted_run(connection: Connection, run: Run, next_event_index: int) -> None:
    """Store a run whose rows are in Parquet already. One that was there keeps its tags and its position among the others."""
    insert_run(connection, run)
    before = read_run(connection, run.run_id).run
    update_run(connection, replace(run, create_time=before.create_time, tags=before.tags))
    values = {"is_compacted": True, "next_event_index": next_event_index, "device_event_index": 0}
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(values))


def read_run(connection: Connection, run_id: str) -> RunRecord:
    row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one_or_none()
    if row is None:
        raise RunNotFoundError(f"run {run_id!r}", found="no such run", expected="a run of this store", remedy="List the runs.")
    return _record(row)


def update_run(connection: Connection, run: Run) -> None:
    values = {"run": wire.encode_bytes(run), "is_final": run.state.is_final}
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(values))


def update_record(connection: Connection, record: RunRecord) -> None:
    run = record.run
    connection.execute(
        sa.update(runs)
        .where(runs.c.run_id == run.run_id)
        .values(
            run=wire.encode_bytes(run),
            is_final=run.state.is_final,
            journal_id=record.journal_id,
            next_event_index=record.next_event_index,
            device_event_index=record.device_event_index,
        )
    )


def _record(row: Row[tuple[object, ...]]) -> RunRecord:
    return RunRecord(wire.decode_bytes(row.run, Run), row.journal_id, row.is_compacted, row.next_event_index, row.device_event_index)


def _matching(connection: Connection, text: str) -> list[str]:
    query = sa.select(runs.c.run_id).order_by(runs.c.create_unix_ns.desc(), runs.c.run_id.desc())
    if text == LAST:
        return list(connection.scalars(query.limit(1)))
    # substr, not LIKE: % and _ are no wildcards here.
    begins_so = sa.func.substr(runs.c.run_id, 1, len(text)) == text
    return list(connection.scalars(query.where(begins_so))) if text else []


def _lost(run_id: str) -> RunError:
    error = RunLostError(
        f"run {run_id}",
        found="a node whose journal no longer has the run's events",
        expected="its events up to the last",
        remedy="What was collected before is kept; start the run again for the rest.",
    )
    return RunError(error.code, error.reason, error.message)
