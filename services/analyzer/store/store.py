"""The store: a catalogue in SQLite or PostgreSQL with the rows of live runs, and Parquet files of finished ones in a directory.

The directory may be a cache of an object storage, which has these files then.

Events are written in one transaction together with the cursor of their journal, so each is stored exactly once even if the
process dies. A finished run is written to Parquet under a prefix of its own, and its rows leave the database in the
transaction that names the prefix: before that its files are invisible.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final
from uuid import uuid4

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from kernalyse.services.analyzer.readers.ncu.run_counters import CounterReport
from kernalyse.services.analyzer.store.column_cache import ColumnCache
from kernalyse.services.analyzer.store.database import CATALOGUE, Database, catalogue_url, store_id
from kernalyse.services.analyzer.store.leases import Leases, StoreLock
from kernalyse.services.analyzer.store.live_rows import RunCommit, insert_rows, read_configuration, read_live_rows, select_events, span_ends
from kernalyse.services.analyzer.store.node_secrets import NodeSecrets
from kernalyse.services.analyzer.store.object_cache import ObjectCache, directory_bytes
from kernalyse.services.analyzer.store.objects import OBJECTS, STORE_ID, ObjectStore
from kernalyse.services.analyzer.store.parquet import RunFiles, cached_result_path, write_cached_result
from kernalyse.services.analyzer.store.repositories import (
    USER,
    HardwareRecords,
    NodeRecords,
    RunRecord,
    RunRecords,
    TraceRecords,
    finish_traces,
    has_waiting_trace,
    insert_compacted_run,
    insert_run,
    insert_trace,
    mark_compacted,
    read_cursor,
    read_run,
    set_stored_bytes,
    update_measured_ceilings,
    update_record,
    write_cursor,
)
from kernalyse.services.analyzer.store.schema import ROW_TABLES, parquet_prefixes, sample_batches, stores
from kernalyse.services.analyzer.tables.base import Table, concat_frames
from kernalyse.services.analyzer.tables.event_rows import Row, apply_event, initial_run, log_row, sample_row, table_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, COUNTERS, IMPORTED_TABLES, SAMPLES, STORED_TABLES, THRESHOLDS, WATCHED_TABLES
from kernalyse.services.analyzer.tables.traces import TRACE_NAMES, TRACE_TABLES
from kernalyse.services.core.errors import InvalidSettingError, RunNotFoundError, StoredRunDamagedError
from kernalyse.services.core.model import (
    CeilingsMeasured,
    Configuration,
    ConfigurationFailed,
    CountersStored,
    LogLevel,
    LogLines,
    Measurement,
    PairedComparison,
    Run,
    RunEvent,
    SampleBatch,
    TraceStored,
)
from kernalyse.services.core.settings import AnalyzerSettings

PRIVATE_MODE = 0o700
MAX_CACHE_BYTES: Final = 20 * 2**30

COMPACTED_ROW_COUNT: Final = 1_000_000
"""Samples in memory at a time when a run becomes files, some 100 MiB. Fewer write more parts; more take what the machine may not have."""

PEERS: Final = "analyzers"
SHARED_UNNAMED_S: Final = 86_400.0
"""Age of files that no run names at which they are no other analyzer's that is still writing them."""

READING_TRACE_MESSAGE: Final = "reading the trace"
"""Status message of a run that has ended and left traces on its node."""

TRACE_AND_COUNTER_TABLES: Final = (*TRACE_TABLES, COUNTERS)

logger = logging.getLogger(__name__)


class Store:
    """The store of one analyzer. Its methods block: call them in threads.

    Args:
        directory: of its files.
        catalogue: postgresql://… of its catalogue; empty: SQLite in the directory.
        objects: where the files of finished runs are, which the store closes; None: in the directory alone.
        max_cache_bytes: of these files in the directory, where there are objects.
        peer_address: at which other analyzers of this store reach this one; empty: there are none. What each has for itself then lies in a
            directory of its own below.

    Raises:
        StoreLockedError: another process has it open.
        InvalidSettingError: catalogue, files and objects are of different stores, or the credentials of the objects are refused.
        ObjectsUnavailableError: the objects cannot be reached.
        What Database raises.
    """

    def __init__(
        self,
        directory: Path,
        catalogue: str = "",
        objects: ObjectStore | None = None,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        peer_address: str = "",
    ) -> None:
        is_shared = bool(peer_address)
        own = directory / PEERS / hashlib.sha256(peer_address.encode()).hexdigest()[:12] if is_shared else directory
        own.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
        self._lock = StoreLock(own / "store.lock")
        try:
            self._database = self.catalogue = Database(catalogue_url(directory, catalogue), is_shared=is_shared)
        except BaseException:
            self._lock.release()
            raise
        self._cache = None if objects is None else ObjectCache(objects, max_cache_bytes)
        try:
            self._check_identity(directory, objects, is_elsewhere=bool(catalogue))
        except BaseException:
            self.close()
            raise
        # Files in a directory are shared with the other analyzers, but a cache of objects is one's own.
        unnamed_s, files = (0.0, own) if objects is not None or not is_shared else (SHARED_UNNAMED_S, directory)
        self._files = RunFiles(files / "runs", self._database, "rows", self._cache, unnamed_s)
        # Of runs of nodes, read after they ended.
        self._trace_files = RunFiles(files / "traces", self._database, "traces", self._cache, unnamed_s)
        self.history_directory = own / "history"  # metrics of all runs; can be computed anew
        self.summary_directory = own / "summary"  # kernels of all runs; can be computed anew
        self._files_lock = threading.Lock()  # of publishing and deleting: a run that is deleted meanwhile would leave files behind
        self.held = ColumnCache()  # of runs that never change
        # Two results of a large run at once would need twice the memory. Reentrant: a result may be computed from another.
        self._result_lock = threading.RLock()
        self.uploads_directory = own / "arriving"  # files being uploaded; leftovers of a killed process are deleted
        shutil.rmtree(self.uploads_directory, ignore_errors=True)
        self.uploads_directory.mkdir(mode=PRIVATE_MODE)
        self.fetched_directory = own / "fetched"  # files being fetched from nodes, by run: the next process resumes them
        self.fetched_directory.mkdir(exist_ok=True, mode=PRIVATE_MODE)
        self.secrets = NodeSecrets(directory / "node_tokens.json")
        self.leases = Leases(self._database, peer_address) if is_shared else None
        self.nodes = NodeRecords(self._database)
        self.runs = RunRecords(self._database)
        self.traces = TraceRecords(self._database)
        self.hardware = HardwareRecords(self._database)
        self._delete_fetched_files(all_but=self.traces.unread_run_ids())

    def close(self) -> None:
        """Close the database and the objects, and release the lock."""
        if self._cache is not None:
            self._cache.close()
        self._database.close()
        self._lock.release()

    def _check_identity(self, directory: Path, objects: ObjectStore | None, *, is_elsewhere: bool) -> None:
        """Check that the catalogue names the files of this directory, and the objects: what it does not name is deleted.

        Args:
            is_elsewhere: the catalogue is not in the directory.

        Raises:
            InvalidSettingError: they are of different stores.
        """
        file = directory / STORE_ID
        with self._database.writing() as connection:
            known, written = store_id(connection), file.read_text().strip() if file.exists() else None
            is_left_behind = written is None and is_elsewhere and (directory / CATALOGUE).exists()
            if is_left_behind or written not in (None, known):
                raise InvalidSettingError(
                    f"catalogue of the store {directory}",
                    found="one of another store" if known else "a new one, while the directory has files of runs",
                    expected="the catalogue that names these files",
                    remedy="Correct the setting catalogue or data_directory, or copy the catalogue with `kernalyse store migrate`.",
                )
            if known is None:
                known = uuid4().hex
                connection.execute(sa.insert(stores), {"store_id": known})
            has_files = connection.scalar(sa.select(parquet_prefixes.c.prefix).limit(1)) is not None
        if objects is not None:
            objects.claim(known, has_files=has_files)
            (directory / OBJECTS).write_text(f"{objects.url}\n")
        elif has_files and ((directory / OBJECTS).exists() or (is_elsewhere and not (directory / "runs").is_dir())):
            url = (directory / OBJECTS).read_text().strip() if (directory / OBJECTS).exists() else "another directory, or an object storage"
            raise InvalidSettingError(
                f"files of the store {directory}",
                found=f"files of runs that are in {url}",
                expected="the setting objects that names them, or their directory",
                remedy="Correct the setting objects or data_directory; `kernalyse store backup` makes a directory with all.",
            )
        if known != written:
            file.write_text(f"{known}\n")

    # ------------------------------------------------------------ writing

    def commit_events(
        self,
        node_id: str,
        journal_id: str,
        events: Sequence[RunEvent],
        new_runs: Sequence[Run] = (),
        reports: Mapping[int, CounterReport] | None = None,
    ) -> list[RunCommit]:
        """Store the events that the journal's cursor has not passed yet, and move the cursor behind the last.

        Args:
            events: of one journal, in order of event_index.
            new_runs: runs of these events that the database lacks. Events of a run that is in neither are skipped.
            reports: counters of the reports that events name, by event_index.

        Returns:
            One commit per run that got events.
        """
        with self._database.writing() as connection:
            cursor = read_cursor(connection, node_id, journal_id)
            new_events = [event for event in events if event.event_index >= cursor]
            if not new_events:
                return []
            for run in new_runs:
                insert_run(connection, initial_run(run))
            events_by_run: defaultdict[str, list[RunEvent]] = defaultdict(list)
            for event in new_events:
                events_by_run[event.run_id].append(event)
            commits = [self._commit_run(connection, run_id, journal_id, part, reports or {}) for run_id, part in events_by_run.items()]
            write_cursor(connection, node_id, journal_id, new_events[-1].event_index + 1)
            return [commit for commit in commits if commit is not None]

    def _commit_run(
        self, connection: Connection, run_id: str, journal_id: str, events: Sequence[RunEvent], reports: Mapping[int, CounterReport]
    ) -> RunCommit | None:
        try:
            record = read_run(connection, run_id)
        except RunNotFoundError:
            return None
        run, device_event_index = record.run, record.device_event_index
        commit = RunCommit(run_id, events[0].event_index, events[-1].event_index + 1)
        configurations: dict[int, Row] = {}

        def find_configuration(configuration_index: int) -> Row | None:
            return configurations.get(configuration_index) or read_configuration(connection, run_id, configuration_index)

        for event in events:
            run = apply_event(run, event)
            configuration: Row | None = None
            baseline: Row | None = None
            if run.device_id is not None and device_event_index is None:
                device_event_index = event.event_index
                commit.has_new_ceilings = True
            match event.payload:
                case SampleBatch() as batch:
                    commit.samples.append(sample_row(event, batch))
                    continue
                case Measurement(configuration_index) | ConfigurationFailed(configuration_index):
                    configuration = find_configuration(configuration_index)
                case PairedComparison(configuration_index, baseline_index):
                    configuration, baseline = find_configuration(configuration_index), find_configuration(baseline_index)
                case CeilingsMeasured(ceilings):
                    commit.has_new_ceilings = True
                    commit.changed_device_ids |= update_measured_ceilings(connection, run.node_id, ceilings)
                case CountersStored() if event.event_index in reports:
                    commit.has_new_ceilings = True
                    commit.counters.append(reports[event.event_index].rows)
                    commit.rows += [log_row(event, LogLevel.WARNING, "analyzer", note) for note in reports[event.event_index].notes]
                case TraceStored() as stored:
                    insert_trace(connection, event, stored)
            rows = list(table_rows(event, run, configuration, baseline))
            if isinstance(event.payload, Configuration):
                configurations[event.payload.configuration_index] = rows[0].values
            commit.rows += rows
        if run.state.is_final and has_waiting_trace(connection, run_id):
            run = replace(run, activity=READING_TRACE_MESSAGE)
        insert_rows(connection, commit)
        update_record(connection, RunRecord(run, journal_id, record.is_compacted, commit.next_event_index, device_event_index))
        commit.run = run if run is not record.run else None
        return commit

    def add_imported(self, run: Run, directory: Path, next_event_index: int) -> bool:
        """Store a final run with all its rows, replacing an earlier state of it, and return whether it was new.

        An earlier state leaves its tags, its creation time and the user's ceilings and thresholds, unless the file itself now
        states other ones.

        Args:
            directory: from `reserve_rows`, filled by `parquet.write_frames`. The store owns it from here on.
        """
        self._files.put(directory)
        with self._files_lock:
            if self.has_imported(run.run_id, run.imported_digest):
                self._files.discard(directory)
                return False
            try:
                stated = self._stated_overrides(run.run_id)
            except BaseException:
                self._files.discard(directory)
                raise
            with self._files.publishing(run.run_id, directory) as connection:
                insert_compacted_run(connection, run, next_event_index)
                set_stored_bytes(connection, run.run_id, directory_bytes(directory))
            if self._stated_overrides(run.run_id) != stated:
                self.hardware.forget(run.run_id)
            self.held.forget(run.run_id)
            return True

    def reserve_rows(self, run_id: str) -> Path:
        """Return a directory that is not there yet, for the rows of an imported run."""
        return self._files.reserve(run_id)

    def reserve_trace(self, run_id: str) -> Path:
        """Return a directory that is not there yet, for the rows of the traces that a run left on its node."""
        return self._trace_files.reserve(run_id)

    def has_imported(self, run_id: str, digest: str) -> bool:
        """Return whether the run is there; with a digest, whether it was read from files of that digest."""
        known = self.runs.of([run_id])
        return bool(known) and digest in ("", known[0].run.imported_digest)

    def _stated_overrides(self, run_id: str) -> list[tuple[object, ...]]:
        """Return the rows of user ceilings and thresholds that the run's file itself states."""
        directory = self._files.directory(run_id)
        directories = [] if directory is None else [directory]
        overrides = [part.filter(pl.col("source") == USER) for part in self._files.scan(CEILINGS, directories)]
        parts = (*overrides, *self._files.scan(THRESHOLDS, directories))
        return [row for part in parts for row in part.drop("event_index").collect().rows()]

    def complete_traces(self, run_id: str, directory: Path | None, notes: str, *, level: LogLevel = LogLevel.INFO) -> RunCommit | None:
        """Publish the traces read for a finished run, with a line in its log and notes. None: the run has been deleted, or has them.

        Args:
            directory: from `reserve_trace`, filled by `parquet.write_frames`; the store owns it from here on. None: nothing could be read.
            notes: text for users, appended to the run's notes.
            level: of the first line of notes, which goes to the log.
        """
        if directory is not None:
            self._trace_files.put(directory)
        with self._files_lock:
            if not self.runs.known([run_id]) or self.traces.read_run_ids([run_id]):  # or another analyzer has read them
                if directory is not None:
                    self._trace_files.discard(directory)
                return None
            with self._database.writing() if directory is None else self._trace_files.publishing(run_id, directory) as connection:
                record = read_run(connection, run_id)
                run = replace(record.run, activity="", notes="\n".join(filter(None, (record.run.notes, notes))))
                log_lines = LogLines(level, "analyzer", tuple(notes.splitlines()[:1]))
                # As one more event of the run, which reaches watchers as any other does.
                event = RunEvent(record.next_event_index, record.journal_id or "", run_id, time.time_ns(), log_lines)
                commit = RunCommit(run_id, event.event_index, event.event_index + 1, run, has_new_ceilings=directory is not None)
                commit.rows += table_rows(event, run, None)
                finish_traces(connection, run_id, is_read=directory is not None)
                insert_rows(connection, commit)
                update_record(connection, replace(record, run=run, next_event_index=commit.next_event_index))
            return commit

    # ------------------------------------------------------------ reading

    def read(
        self, table: Table, run_ids: Sequence[str] | None, first_event_index: int = 0, end_event_index: int | None = None
    ) -> pl.LazyFrame:
        """Return rows of a stored table in order of event_index within each run.

        Args:
            run_ids: None for all runs.
            first_event_index: of the first rows.
            end_event_index: rows before this one; None: no end.
        """
        own = self._own_rows(table, run_ids, first_event_index, end_event_index)
        if table not in TRACE_AND_COUNTER_TABLES:
            return concat_frames(table, own)
        with self._database.reading() as connection:
            directories = self._trace_files.directories(connection, run_ids)
        return concat_frames(table, [*own, *self._trace_files.scan(table, directories.values())])

    def page_of_parts(self, table: Table, run_id: str, offset: int, limit: int) -> tuple[pl.LazyFrame, int] | None:
        """Return a page of a table of a trace whose files are stored each by itself, and the row count; None: it is no such trace.

        A page of what `read` returns would take the time of all rows before it: polars pushes it into one file only.
        """
        found = (files.page_of_parts(table, run_id, offset, limit) for files in (self._files, self._trace_files))
        return next(filter(None, found), None)

    def _own_rows(
        self, table: Table, run_ids: Sequence[str] | None, first_event_index: int, end_event_index: int | None
    ) -> list[pl.LazyFrame]:
        """Return the rows from events or imports: of runs in Parquet, then of those in the database."""
        with self._database.reading() as connection:
            directories = self._files.directories(connection, run_ids)
            is_imported = table in IMPORTED_TABLES  # these come complete, never event by event
            live = [] if is_imported else [read_live_rows(connection, table, run_ids, first_event_index, end_event_index).lazy()]
        archived = [select_events(frame, first_event_index, end_event_index) for frame in self._files.scan(table, directories.values())]
        # Always both: events may still arrive after a run was compacted.
        return [*archived, *live]

    def trace_run_ids(self, run_ids: Sequence[str] | None, without: Table | None = None) -> list[str]:
        """Return those of the runs, or of all, that have a trace, oldest first.

        Args:
            without: leave out runs that have, or may still get, rows of this table.
        """
        with self._database.reading() as connection:
            directories = self._files.directories(connection, run_ids)
            fetched = self._trace_files.directories(connection, run_ids)

        def has(run_id: str, table: Table) -> bool:
            return run_id in directories and self._files.has(table, directories[run_id])

        def is_requested(run_id: str) -> bool:
            if run_id not in fetched and not has(run_id, TRACE_NAMES):
                return False
            return without is None or (run_id in directories and not has(run_id, without))

        return [record.run.run_id for record in self.runs.of(run_ids) if is_requested(record.run.run_id)]

    def answer(self, run_id: str, answer_name: str, work_out: Callable[[], pl.DataFrame]) -> pl.LazyFrame:
        """Return a result of a run that never changes: computed and stored at the first request, read at every later one.

        Args:
            answer_name: identifies the result and the version of the code that computes it.
            work_out: computes the result.
        """
        directory = self._trace_files.local_directory(run_id) or self._files.local_directory(run_id)
        if directory is None:  # deleted meanwhile
            return work_out().lazy()
        path = cached_result_path(directory, answer_name)
        with nullcontext() if path.exists() else self._result_lock:
            if path.exists():
                return pl.scan_parquet(path)
            frame = work_out()
            try:
                write_cached_result(path, frame)
                self._files.measure(directory)
            except (OSError, pl.exceptions.ComputeError) as error:
                logger.warning("Result %s of run %s cannot be stored: %s", answer_name, run_id, error)
            return frame.lazy()

    def row_counts(self, run_id: str, first_event_index: int) -> pl.DataFrame:
        """Return how many rows of all watched tables each event brought: columns event_index and row_count, in order."""
        counts = [
            self.read(table, [run_id], first_event_index).group_by("event_index").agg(row_count=pl.len().cast(pl.Int64))
            for table in WATCHED_TABLES
        ]
        return (
            pl.concat([*counts, self._sample_counts(run_id, first_event_index)])
            .group_by("event_index")
            .agg(pl.col("row_count").sum())
            .sort("event_index")
            .collect()
        )

    def _sample_counts(self, run_id: str, first_event_index: int) -> pl.LazyFrame:
        columns = sample_batches.c
        query = sa.select(columns.event_index, columns.sample_count).where(
            columns.run_id == run_id, columns.event_index >= first_event_index
        )
        with self._database.reading() as connection:
            directories = self._files.directories(connection, [run_id])
            rows = [tuple(row) for row in connection.execute(query)]
        live = pl.LazyFrame(rows, schema={"event_index": pl.Int64, "row_count": pl.Int64}, orient="row")
        archived = [
            select_events(frame, first_event_index, None).group_by("event_index").agg(row_count=pl.len().cast(pl.Int64))
            for frame in self._files.scan(SAMPLES, directories.values())
        ]
        return pl.concat([*archived, live])

    # ------------------------------------------------------------ finished runs

    def compact(self, run_id: str) -> None:
        """Move the rows of a final run from the database to Parquet. Does nothing when that has been done.

        Raises:
            RunNotFoundError: there is no such run.
            ObjectsUnavailableError: its files cannot be put into the objects. The rows stay in the database.
        """
        if self._cache is not None:
            self._cache.check()
        record = self.runs.get(run_id)
        if record.is_compacted:
            return
        end = record.next_event_index
        few = (table for table in STORED_TABLES if table is not SAMPLES)
        frames = {table.table_name: concat_frames(table, self._own_rows(table, [run_id], 0, end)).collect() for table in few}
        with self._samples_in_parts(run_id, end) as samples:
            directory = self._files.write(run_id, {**frames, SAMPLES.table_name: samples})
        self._files.put(directory)
        with self._files_lock:
            now = self.runs.of([run_id])
            if not now or now[0].is_compacted:  # deleted, or compacted by another thread, while the files were being written
                self._files.discard(directory)
                return
            with self._files.publishing(run_id, directory) as connection:
                for table in ROW_TABLES:
                    # Only what was written: a late event may have come in meanwhile.
                    connection.execute(sa.delete(table).where(table.c.run_id == run_id, table.c.event_index < end))
                mark_compacted(connection, run_id)
                set_stored_bytes(connection, run_id, directory_bytes(directory))

    @contextmanager
    def _samples_in_parts(self, run_id: str, end: int) -> Iterator[pl.DataFrame | pl.LazyFrame]:
        """Yield the samples of a run before an event, of a long run as a frame that is read from files a part at a time."""
        counts = self._sample_counts(run_id, 0).sort("event_index").collect()
        spans = list(pairwise([0, *span_ends(counts, COMPACTED_ROW_COUNT, end)]))
        parts = (concat_frames(SAMPLES, self._own_rows(SAMPLES, [run_id], *span)).collect() for span in spans)
        if len(spans) == 1:
            yield next(parts)
            return
        with tempfile.TemporaryDirectory(dir=self.uploads_directory) as name:
            paths = [Path(name) / f"{first}.parquet" for first, _ in spans]
            for path in paths:
                next(parts).write_parquet(path)
            yield pl.scan_parquet(list(paths))

    @property
    def has_objects(self) -> bool:
        """Return whether files are in an object storage, so that `catch_up` is to be called again and again."""
        return self._cache is not None

    def catch_up(self) -> None:
        """Do what an outage of the objects has prevented, and delete what no row names. Raises ObjectsUnavailableError."""
        for files in (self._files, self._trace_files):
            files.catch_up()

    def check_files(self, run_ids: Sequence[str] | None) -> None:
        """Read all files of these runs, or of all, to name the damaged one after a failed query.

        Raises:
            StoredRunDamagedError: a file cannot be read.
        """
        for record in self.runs.of(run_ids):
            run_id = record.run.run_id
            for files in (self._files, self._trace_files):
                if (damage := files.damaged_file(run_id)) is not None:
                    path, found = damage
                    remedy = f"Put it back from a copy of the store, or give the run up: kernalyse delete {run_id}."
                    raise StoredRunDamagedError(
                        f"run {run_id}",
                        found=f"{path} cannot be read: {found}",
                        expected="the file as it was written",
                        remedy=remedy if self._cache is None else "Ask again: it is fetched anew from the objects.",
                    )

    def _delete_fetched_files(self, all_but: Collection[str]) -> None:
        for path in self.fetched_directory.iterdir():
            if path.name not in all_but:
                shutil.rmtree(path, ignore_errors=True)

    def delete_run(self, run_id: str) -> None:
        """Delete a run with its rows, files and hardware settings.

        Raises:
            RunNotFoundError: there is no such run.
            RunNotFinishedError: it has not ended.
        """
        with self._files_lock:
            directories = [(files, files.directory(run_id)) for files in (self._files, self._trace_files)]
            self.runs.delete(run_id)
            self.hardware.forget(run_id)
            for files, directory in directories:
                files.delete(run_id, directory)
            self.held.forget(run_id)


def open_store(settings: AnalyzerSettings) -> Store:
    """Return the store that the settings name. Raises what Store and ObjectStore do."""
    objects = ObjectStore(settings.objects, settings.objects_endpoint) if settings.objects else None
    # An absolute path: Dask workers write there too.
    directory = settings.data_directory.absolute()
    return Store(directory, settings.catalogue, objects, settings.objects_cache_bytes, settings.peer_address)
