"""Traces from elsewhere, taken in as runs of their own: received, read, stored whole or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl

from services.analyzer.arrivals import Arrivals
from services.analyzer.imported_text import MAX_TITLE_LENGTH, bounded, shortened
from services.analyzer.readers.registry import reader_of
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.analyzer.schema import CONFIGURATIONS, IMPORTED_TABLES, MEASUREMENTS, SAMPLES, STORED_TABLES
from services.analyzer.store import Store
from services.analyzer.trace_arrival import ArrivedTrace, Extent, TracePart
from services.analyzer.trace_tables import TRACE_TABLES
from services.core.errors import InvalidTraceError
from services.core.model import ImportedTrace, Run, RunSpec, RunState

SAMPLES_PER_EVENT: Final = 4096
"""That share an index, as those of a batch do. Watchers are sent whole indexes: one for all samples would be one answer."""

IDENTITY_LENGTH: Final = 20
"""Hexadecimal digits of the identity in a run_id: 80 bits, which no two files of a store share by chance."""

# A page takes rows in this order: a configuration before its samples, these before the measurement that ends them.
STORED_ORDER: Final = (
    CONFIGURATIONS,
    SAMPLES,
    MEASUREMENTS,
    *(table for table in STORED_TABLES if table not in (CONFIGURATIONS, SAMPLES, MEASUREMENTS)),
    *IMPORTED_TABLES,
)


@dataclass(frozen=True, slots=True)
class TakenIn:
    """is_known: the run was there before, from the same files."""

    run: Run
    is_known: bool


class Importing:
    """max_bytes: of one trace with all that belongs to it. op_registry_folder: of TraceFiles."""

    def __init__(self, store: Store, max_bytes: int, op_registry_folder: Path | None = None) -> None:
        self._store = store
        self._op_registry_folder = op_registry_folder
        self._arrivals = Arrivals(store.arrivals_folder, max_bytes)

    async def receive(self, parts: AsyncIterable[TracePart]) -> TakenIn:
        """Stores a stream's trace as a run; the same files once more answer with the run that they have become.

        Raises:
            InvalidTraceError: damaged on the way, or no reader takes it.
            LimitReachedError: it is over a limit; names the limit.
            StorageFullError: there is no room for it.
        """
        async with self._arrivals.received(parts) as trace:
            return await asyncio.to_thread(self._take_in, trace)

    def resumed(self, upload_id: str) -> Extent:
        """How far a stream of that upload came which broke off."""
        return self._arrivals.resumed(upload_id)

    def _take_in(self, trace: ArrivedTrace) -> TakenIn:
        run_id = f"imported-{trace.identity[:IDENTITY_LENGTH]}"
        if not self._store.runs.known([run_id]):
            try:
                run, frames = _read(trace, run_id, self._op_registry_folder)
                stored, next_event_index = numbered(run_id, frames)
                if self._store.add_imported(run, stored, next_event_index):
                    return TakenIn(run, is_known=False)
            except UnicodeEncodeError as error:
                raise InvalidTraceError(
                    f"file {trace.file_name}",
                    found=f"text with {error.object[error.start : error.end]!r} in it, half a character",
                    expected="Unicode text",
                    remedy="The file is damaged: write it again.",
                ) from error
        return TakenIn(self._store.runs.get(run_id).run, is_known=True)


def _read(trace: ArrivedTrace, run_id: str, op_registry_folder: Path | None) -> tuple[Run, Mapping[str, pl.DataFrame]]:
    first, *others = trace.files
    companions = {file.file_name: file.path for file in others}
    files = TraceFiles(trace.file_name, first.path, time.time_ns(), companions, op_registry_folder)
    reader = reader_of(files)
    tables = bounded(reader.read(files), trace.file_name)
    work = ImportedTrace(shortened(trace.file_name, MAX_TITLE_LENGTH), trace.digest, reader.format)
    return _run(run_id, work, tables), tables.frames


def _run(run_id: str, work: ImportedTrace, tables: ImportedTables) -> Run:
    heights = {table.table_name: tables.frames[table.table_name].height for table in STORED_TABLES if table.table_name in tables.frames}
    failed_count = heights.get("failures", 0)
    return Run(
        run_id=run_id,
        node_id="",
        spec=RunSpec(work, title=tables.title or work.file_name, revision=tables.revision),
        state=RunState.SUCCEEDED,
        create_time=datetime.now(UTC),
        start_time=tables.start_time,
        end_time=tables.end_time,
        device_id=tables.device_id,
        completed_configuration_count=heights.get("measurements", 0) + failed_count,
        failed_configuration_count=failed_count,
        total_configuration_count=heights.get("configurations"),
        tags=tables.tags,
        notes=tables.notes,
    )


def numbered(run_id: str, frames: Mapping[str, pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], int]:
    """The frames with run_id and event_index as if a journal had brought them, and one more than the last index.

    Rows keep their order: of two ceilings of one kind the later one counts.
    """
    stored: dict[str, pl.DataFrame] = {}
    next_event_index = 0
    for table in STORED_ORDER:
        frame = frames.get(table.table_name)
        if frame is None or frame.is_empty():
            continue
        # Nobody watches a trace arrive: each of its tables is one event.
        rows_per_event = SAMPLES_PER_EVENT if table is SAMPLES else frame.height if table in TRACE_TABLES else 1
        event_index = next_event_index + pl.int_range(pl.len(), dtype=pl.Int64) // rows_per_event
        stored[table.table_name] = frame.with_columns(run_id=pl.lit(run_id), event_index=event_index)
        next_event_index += -(-frame.height // rows_per_event)
    return stored, next_event_index
