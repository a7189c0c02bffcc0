"""Reading of a trace with its ncu reports into tables, and into the run that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.analyzer.readers.base import ALL_COLUMNS, Reader, ReadResult, Selection, SelectiveReader, TraceFiles
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, select_reader
from kernalyse.services.analyzer.tables.base import COUNT, Table
from kernalyse.services.analyzer.tables.event_rows import ceiling_row, frame_from_rows
from kernalyse.services.analyzer.tables.runs import (
    CEILINGS,
    CONFIGURATIONS,
    COUNTERS,
    IMPORTED_TABLES,
    MEASUREMENTS,
    SAMPLES,
    STORED_TABLES,
)
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, LAUNCH_WORK, TRACE_TABLES
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.file_formats import BANDWIDTH, FILE_NAME, PEAK
from kernalyse.services.core.model import Ceiling, Device, DeviceKind, ImportedTrace, Run, RunSpec, RunState

if TYPE_CHECKING:
    from kernalyse.services.analyzer.readers.ncu.csv_report import NcuReport


# ---------------------------------------------------------------- reading
# Modules that only reports of ncu need are imported where there is one, so that other traces do not wait for them.


def read_with_counters(files: TraceFiles, selection: Selection = ALL_COLUMNS) -> ReadResult:
    """Return the tables of a trace. Reports of ncu among its companion files give the costs of its launches.

    Args:
        selection: tables and columns that are requested.

    Raises:
        InvalidTraceError: no reader accepts it, it is damaged, or a report is of another program.
    """
    reader = select_reader(files)
    reports = _reports(files) if files.companions else {}
    if not reports:
        return _with_own_peaks(_with_own_counters(_read(reader, files, selection)))
    from kernalyse.services.analyzer.ingest.counter_join import JOIN_INPUT, with_reports

    requested = selection.with_columns(JOIN_INPUT)
    tables = _with_own_counters(_read(reader, files, requested.with_work() if selection.wants_costs else requested))
    if not selection.wants(LAUNCH_WORK):
        return tables
    if tables.frames.get(KERNEL_LAUNCHES.table_name) is None:
        raise InvalidTraceError(
            f"file {files.file_name}",
            found=f"{reader.description}, which has no launches of kernels",
            expected=f"a trace whose launches {', '.join(reports)} could count",
            remedy="Give it without the report.",
        )
    return with_reports(tables, reports)


def _read(reader: Reader, files: TraceFiles, selection: Selection) -> ReadResult:
    return reader.read_columns(files, selection) if isinstance(reader, SelectiveReader) else reader.read(files)


def _with_own_peaks(tables: ReadResult) -> ReadResult:
    if "measurements" not in tables.frames:
        return tables
    return with_datasheet_ceilings(tables)


def _with_own_counters(tables: ReadResult) -> ReadResult:
    if COUNTERS.table_name not in tables.frames:
        return tables
    from kernalyse.services.analyzer.ingest.counter_join import with_own_counters

    return with_own_counters(tables)


def _reports(files: TraceFiles) -> dict[str, NcuReport]:
    """Return the ncu reports among the companion files by name; the other companions are for the trace's reader."""
    from kernalyse.services.analyzer.readers.ncu.reader import NcuReader, read_report

    ncu = NcuReader()
    found = {}
    for name, path in sorted(files.companions.items()):
        with path.open("rb") as file:
            is_report = ncu.matches(file.read(HEAD_BYTES))
        if is_report:
            found[name] = read_report(TraceFiles(name, path, files.arrived_unix_ns))
    return found


# ---------------------------------------------------------------- imported run

SAMPLES_PER_EVENT: Final = 4096
"""Samples that share an event_index, as those of a batch do. Subscribers get all rows of an index at once: one index for all
samples would make one huge response."""

# Pages expect rows in this order: a configuration before its samples, these before the measurement that ends them.
STORED_ORDER: Final = (
    CONFIGURATIONS,
    SAMPLES,
    MEASUREMENTS,
    *(table for table in STORED_TABLES if table not in (CONFIGURATIONS, SAMPLES, MEASUREMENTS)),
    *IMPORTED_TABLES,
)


Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)


def build_imported_run(run_id: str, work: ImportedTrace, tables: ReadResult) -> Run:
    """Return the run of an imported trace. Its state is SUCCEEDED: it is stored only together with its rows."""
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


def with_event_indexes(run_id: str, frames: Mapping[str, Rows]) -> tuple[dict[str, Rows], int]:
    """Add run_id and event_index, as if a journal had brought the rows.

    Rows keep their order: of two ceilings of one kind the later one counts. Frames that are not read yet have rows; those of traces
    stay unread.

    Returns:
        The frames, and one more than the last event_index.
    """
    stored: dict[str, Rows] = {}
    next_event_index = 0
    for table in STORED_ORDER:
        frame = frames.get(table.table_name)
        if frame is None or (isinstance(frame, pl.DataFrame) and frame.is_empty()):
            continue
        if table in TRACE_TABLES:  # these are not shown live: each table is one event
            stored[table.table_name] = frame.with_columns(run_id=pl.lit(run_id), event_index=pl.lit(next_event_index, dtype=COUNT))
            next_event_index += 1
            continue
        offsets = frame.lazy().select(_event_offset(table)).collect().to_series()
        stored[table.table_name] = frame.with_columns(run_id=pl.lit(run_id), event_index=next_event_index + offsets)
        next_event_index += int(offsets[-1]) + 1
    return stored, next_event_index


def _event_offset(table: Table) -> pl.Expr:
    """Return an expression for the number of the event that each row belongs to, within its table."""
    if table is SAMPLES:
        return pl.int_range(pl.len(), dtype=pl.Int64) // SAMPLES_PER_EVENT
    if table is COUNTERS:  # each report is one: its launches are counted from 0, in order
        return (pl.col("launch_index").diff() < 0).fill_null(False).cum_sum().cast(pl.Int64)
    return pl.int_range(pl.len(), dtype=pl.Int64)


# ---------------------------------------------------------------- datasheet ceilings

COST_COLUMNS: Final = ("flop", "bytes", "stated_flop_per_s")
"""Columns of table measurements; without a value in any of them no ceiling is needed."""

PEAKS_FILE_HINT: Final = f"{PEAK} (10^12 operations/s) and {BANDWIDTH} (GB/s) in a {FILE_NAME} beside it"
PEAKS_HINT: Final = f"give its peaks on the Roofline page under Hardware, or {PEAKS_FILE_HINT}"


def with_datasheet_ceilings(tables: ReadResult) -> ReadResult:
    """Add datasheet ceilings of the devices that the tables name, except those that they state themselves.

    Notes name the datasheet, and devices without one, with the remedy.
    """
    measurements = tables.frames.get(MEASUREMENTS.table_name)
    if measurements is None or not any(measurements[name].count() for name in COST_COLUMNS):
        return tables
    ceilings = tables.frames.get(CEILINGS.table_name, CEILINGS.empty())
    added: list[Ceiling] = []
    notes: list[str] = []
    for device in _devices(tables, measurements):
        known = ceilings.filter(device_id=device.device_id)
        peaks = device_peaks(device)
        stated = set(known.select("ceiling_name", "path", "source").iter_rows())
        new = [ceiling for ceiling in peaks.ceilings if (ceiling.ceiling_name, ceiling.path, ceiling.source) not in stated]
        if new:
            added += new
            notes.append(f"Ceilings of {device.device_id}: {peaks.explanation.partition(': ')[2]}")
        elif known.is_empty() and device.kind is DeviceKind.GPU:
            notes.append(f"No data sheet is known of {device.name}, so nothing has a roof: {PEAKS_HINT}.")
    if not notes:
        return tables
    frame = pl.concat([ceilings, frame_from_rows(CEILINGS, [ceiling_row("", None, ceiling) for ceiling in added])])
    return replace(
        tables, frames={**tables.frames, CEILINGS.table_name: frame}, notes="\n".join(note for note in (tables.notes, *notes) if note)
    )


def _devices(tables: ReadResult, measurements: pl.DataFrame) -> Iterator[Device]:
    """Yield the devices that measurements name; one without a description is taken for a GPU of that name."""
    described = {device.device_id: device for device in tables.devices}
    for device_id in measurements["device_id"].drop_nulls().unique(maintain_order=True):
        yield described.get(device_id) or Device(device_id, device_id, DeviceKind.GPU, ())
