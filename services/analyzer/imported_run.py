"""What a trace becomes when it is stored: a run, and rows as if a journal had brought them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import polars as pl

from services.analyzer.counter_tables import COUNTERS
from services.analyzer.readers.trace import ImportedTables
from services.analyzer.schema import CONFIGURATIONS, IMPORTED_TABLES, MEASUREMENTS, SAMPLES, STORED_TABLES
from services.analyzer.table import Table
from services.analyzer.trace_tables import TRACE_TABLES
from services.core.model import ImportedTrace, Run, RunSpec, RunState

SAMPLES_PER_EVENT: Final = 4096
"""That share an index, as those of a batch do. Watchers are sent whole indexes: one for all samples would be one answer."""

# A page takes rows in this order: a configuration before its samples, these before the measurement that ends them.
STORED_ORDER: Final = (
    CONFIGURATIONS,
    SAMPLES,
    MEASUREMENTS,
    *(table for table in STORED_TABLES if table not in (CONFIGURATIONS, SAMPLES, MEASUREMENTS)),
    *IMPORTED_TABLES,
)


def imported_run(run_id: str, work: ImportedTrace, tables: ImportedTables) -> Run:
    """The run that has succeeded when its rows are stored."""
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
        offsets = frame.select(_event_offset(table)).to_series()
        stored[table.table_name] = frame.with_columns(run_id=pl.lit(run_id), event_index=next_event_index + offsets)
        next_event_index += int(offsets[-1]) + 1
    return stored, next_event_index


def _event_offset(table: Table) -> pl.Expr:
    """Events before each row, of those that its table takes."""
    if table is SAMPLES:
        return pl.int_range(pl.len(), dtype=pl.Int64) // SAMPLES_PER_EVENT
    if table in TRACE_TABLES:  # nobody watches a trace arrive: each of its tables is one event
        return pl.repeat(0, pl.len(), dtype=pl.Int64)
    if table is COUNTERS:  # each report is one: its launches are counted from 0, in order
        return (pl.col("launch_index").diff() < 0).fill_null(False).cum_sum().cast(pl.Int64)
    return pl.int_range(pl.len(), dtype=pl.Int64)
