"""A trace as its reader gives it, with what reports of ncu count of its launches.

What reports need is loaded where there are some: a trace without any is not to wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.analyzer.counter_tables import COUNTERS
from services.analyzer.readers.registry import HEAD_BYTES, reader_of
from services.analyzer.readers.selection import EVERYTHING, Selection, SelectiveReader
from services.analyzer.readers.trace import ImportedTables, Reader, TraceFiles
from services.analyzer.trace_tables import KERNEL_LAUNCHES, LAUNCH_WORK
from services.core.errors import InvalidTraceError

if TYPE_CHECKING:
    from services.analyzer.readers.ncu import NcuReport


def read_with_counters(files: TraceFiles, selection: Selection = EVERYTHING) -> ImportedTables:
    """The trace; reports of ncu among the files that belong to it tell the work of its launches.

    Args:
        selection: what of it somebody wants.

    Raises:
        InvalidTraceError: no reader takes it, it is damaged, or a report is of another program.
    """
    reader = reader_of(files)
    reports = _reports(files) if files.companions else {}
    if not reports:
        return _with_own_peaks(_with_own_counters(_read(reader, files, selection)))
    from services.analyzer.counted_launches import JOIN_INPUT, with_reports

    wanted = selection.with_columns(JOIN_INPUT)
    tables = _with_own_counters(_read(reader, files, wanted.with_work() if selection.wants_work else wanted))
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


def _read(reader: Reader, files: TraceFiles, selection: Selection) -> ImportedTables:
    return reader.read_columns(files, selection) if isinstance(reader, SelectiveReader) else reader.read(files)


def _with_own_peaks(tables: ImportedTables) -> ImportedTables:
    if "measurements" not in tables.frames:  # by its name: to load the tables of results takes longer than many traces do
        return tables
    from services.analyzer.known_peaks import with_known_peaks

    return with_known_peaks(tables)


def _with_own_counters(tables: ImportedTables) -> ImportedTables:
    if COUNTERS.table_name not in tables.frames:
        return tables
    from services.analyzer.counted_launches import with_own_counters

    return with_own_counters(tables)


def _reports(files: TraceFiles) -> dict[str, NcuReport]:
    """By name; whatever else belongs to the trace is its reader's."""
    from services.analyzer.readers.ncu_trace import NcuReader, read_report

    ncu = NcuReader()
    found = {}
    for name, path in sorted(files.companions.items()):
        with path.open("rb") as file:
            is_report = ncu.matches(file.read(HEAD_BYTES))
        if is_report:
            found[name] = read_report(TraceFiles(name, path, files.arrived_unix_ns))
    return found
