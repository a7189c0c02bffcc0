"""The readers of Nsight Systems reports: SQLite exports, directories of Parquet or Arrow files, and .nsys-rep files."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Indexes, Nesting, find_nesting, match_calls
from kernalyse.services.analyzer.readers.base import ALL_COLUMNS, ReadResult, Selection, TraceFiles, TraceNames
from kernalyse.services.analyzer.readers.nsys import frames as nsys_frames
from kernalyse.services.analyzer.readers.nsys.export import (
    COPIES,
    FILLS,
    Environment,
    Events,
    ExportedTables,
    Processes,
    TableDirectory,
    is_table,
    read_environment,
)
from kernalyse.services.analyzer.readers.nsys.frames import (
    CALLS,
    GRAPH_EXECUTIONS,
    KERNELS,
    MEMORY_SOURCES,
    NODE_ID,
    NVTX,
    Launches,
    Ranges,
    call_columns,
    creations,
    find_operators,
    input_shapes,
    kernel_columns,
    node_ranges,
    read_nodes,
    read_ranges,
)
from kernalyse.services.analyzer.readers.nsys.sqlite_file import HEADER, RequestedColumns, SqliteFile
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.traces import (
    API_CALLS,
    KERNEL_LAUNCHES,
    MEMORY_OPS,
    RANGES,
    TRACE_DEVICES,
    TRACE_NAMES,
    TRACE_PROCESSES,
)
from kernalyse.services.core.errors import InvalidTraceError, TimeLimitError, UnmetConditionError
from kernalyse.services.core.external_programs import find_nsys, run_limited

# ---------------------------------------------------------------- SQLite exports
# SQLite exports, schemas of 2022 to 2026.
#
# Tables and columns differ between versions and with what was traced, so each is probed. Correlation ids are unique within one process
# only; calls are not always in order, and some kernels have none. The notes state what is missing.

SQLITE_FORMAT: Final = "nsys-sqlite"
OWN_TABLES: Final = (KERNELS, CALLS, NVTX, "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME")
NS_PER_US: Final = 1000

OF_CALL: Final = ("api_call_index", "launch_thread_id", "launch_start_ns")
OF_OPERATOR: Final = "operator_index"
INPUT_SHAPES: Final = "input_shapes"
OF_RANGE: Final = ("range_index", "layer_source", OF_OPERATOR)


class NsysSqliteReader:
    """The reader of SQLite exports."""

    format = SQLITE_FORMAT
    description = "an SQLite export of Nsight Systems"

    def matches(self, head: bytes) -> bool:
        """Return whether the file is an SQLite file."""
        return head.startswith(HEADER)

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the export. Raises InvalidTraceError if it is damaged or of another program."""
        return self.read_columns(files, ALL_COLUMNS)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ReadResult:
        """Read the requested columns. Raises InvalidTraceError if the export is damaged or of another program."""
        with closing(SqliteFile.open(files.path, files.file_name)) as file:
            return read_tables(file, selection)


def read_tables(file: ExportedTables, selection: Selection = ALL_COLUMNS) -> ReadResult:
    """Return the tables of an export as a trace.

    Raises:
        InvalidTraceError: the tables are of another program, damaged, or missing.
    """
    _check_kind(file)
    environment = read_environment(file)
    rows = file.rows("StringIds")
    texts = {row["id"]: str(row["value"]) for row in rows if row.get("id") is not None and row.get("value") is not None}
    notes = [*environment.notes, *([] if texts else ["It has no texts (table StringIds): kernels and calls have no names."])]
    return _ExportReader(file, selection, environment, TraceNames(texts), notes).tables()


def _check_kind(file: ExportedTables) -> None:
    if not set(OWN_TABLES) & set(file.table_names):
        names = ", ".join(sorted(file.table_names)[:6])
        raise InvalidTraceError(
            f"file {file.name}",
            found=f"the tables {names}" if names else "a file without tables",
            expected="those that Nsight Systems exports",
            remedy="Export the report again: nsys export --type sqlite --lazy=false REPORT.nsys-rep",
        )


@dataclass(slots=True)
class _ExportReader:
    """The conversion of one export to tables."""

    file: ExportedTables
    selection: Selection
    environment: Environment
    names: TraceNames
    notes: list[str]
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    def tables(self) -> ReadResult:
        """Return the requested tables of the export."""
        wants = self.selection.wants
        kernels, memory, calls = self._kernels(), self._memory(), self._calls()
        processes = Processes(self.environment.process_names)
        processes.code_device_events(kernels, memory)
        processes.code_host_events(calls)
        kernel_calls = _launching_calls(kernels, calls)
        memory_calls = _launching_calls(memory, calls) if wants(MEMORY_OPS, "launch_start_ns") else np.empty(0, dtype=np.int32)
        if not wants(API_CALLS, "correlation_id"):
            calls.release("correlationId")  # so that it need not be sorted
        calls = calls.by_start()
        kernel_calls, memory_calls = calls.to_rows(kernel_calls), calls.to_rows(memory_calls)
        ranges = self._ranges()
        nodes = read_nodes(self.file) if self._wants_nodes else Events.none()
        processes.code_host_events(ranges.events, nodes)
        nesting = _nesting(ranges, calls)
        of_nodes = node_ranges(kernels, nodes, ranges)
        around = np.where(of_nodes == NULL_INDEX, _ranges_around(nesting, kernel_calls), of_nodes)
        shapes = input_shapes(ranges, self.names.frame()["name"]) if self._wants_operators else None
        operators = None
        if shapes is not None:
            operators = find_operators(ranges, shapes, calls)[kernel_calls]
            self.selection = self.selection.with_work() if self.selection.wants_costs else self.selection
        launches = Launches(kernels, calls, kernel_calls, around, of_nodes != NULL_INDEX, operators)
        if self.selection is ALL_COLUMNS:
            counts = {"kernels": kernels, "calls": calls, "ranges": ranges.events, "memory operations": memory}
            self.notes.append(f"It has {', '.join(f'{part.row_count} {what}' for what, part in counts.items())}.")
        if self._wants_calls:
            self._note_missing(launches)
        if self._wants_nodes:
            self._note_graphs(launches, nodes)
        self._add(nsys_frames.kernel_launches(launches, processes, self.names, self.selection), KERNEL_LAUNCHES)
        self._add(nsys_frames.api_calls(calls, processes, self.names, self.selection), API_CALLS)
        self._add(nsys_frames.range_rows(ranges, nesting, shapes, processes, self.selection), RANGES)
        self._add(nsys_frames.memory_ops(memory, calls, memory_calls, processes, self.selection), MEMORY_OPS)
        if wants(TRACE_DEVICES):
            self._add(nsys_frames.trace_devices((kernels, memory), processes, self.environment), TRACE_DEVICES)
        if wants(TRACE_PROCESSES):
            self._add(nsys_frames.trace_processes(processes, self.environment, self.file.name), TRACE_PROCESSES)
        if wants(TRACE_NAMES):
            self._add(self.names.frame(), TRACE_NAMES)
        return ReadResult(
            frames=self.frames,
            notes="\n".join(self.notes),
            start_time=self._time(self.environment.first_ns),
            end_time=self._time(self.environment.last_ns),
        )

    def _add(self, frame: pl.DataFrame, table: Table) -> None:
        if frame.width:
            self.frames[table.table_name] = frame

    # ------------------------------------------------------------ events

    @property
    def _wants_ranges(self) -> bool:
        return self.selection.wants(RANGES) or self.selection.wants(KERNEL_LAUNCHES, *OF_RANGE)

    @property
    def _wants_operators(self) -> bool:
        wants = self.selection.wants
        return self.selection.wants_costs or wants(KERNEL_LAUNCHES, OF_OPERATOR) or wants(RANGES, INPUT_SHAPES)

    @property
    def _wants_calls(self) -> bool:
        wants = self.selection.wants
        return self._wants_ranges or wants(API_CALLS) or wants(KERNEL_LAUNCHES, *OF_CALL) or wants(MEMORY_OPS, "launch_start_ns")

    @property
    def _wants_nodes(self) -> bool:
        return self._wants_ranges and NODE_ID in self.file.column_names(KERNELS)

    def _kernels(self) -> Events:
        wanted = self.selection.of_table(KERNEL_LAUNCHES)
        columns = kernel_columns(self.file.column_names(KERNELS), wanted, has_calls=self._wants_calls, has_nodes=self._wants_nodes)
        found = self._read(columns, "kernels").timed().by_start()
        graph_count = Events.read(self.file, RequestedColumns.of(GRAPH_EXECUTIONS, ["start"])).row_count
        if graph_count:
            self.notes.append(
                f"{graph_count} executions of CUDA graphs were recorded as single events: their kernels are not in the trace. "
                "To have them, record with --cuda-graph-trace=node."
            )
        elif found.row_count == 0:
            self.notes.append("It has no kernels: CUDA was not traced, or nothing ran on a device.")
        self._note_untimed(found, "kernels without start or end")
        backwards = int((found.column("end") < found.column("start")).sum())
        if backwards:
            self.notes.append(f"{backwards} kernels end before they start; their times are kept as they are.")
        return found

    def _calls(self) -> Events:
        if not self._wants_calls:
            return Events.none()
        found = self._read(call_columns(self.selection.of_table(API_CALLS)), "calls of the runtime").timed(may_be_open=True)
        self._note_untimed(found, "calls without a start")
        return found

    def _memory(self) -> Events:
        if not (self.selection.wants(MEMORY_OPS) or self.selection.wants(TRACE_DEVICES)):
            return Events.none()
        wanted = self.selection.of_table(MEMORY_OPS)
        columns = ["start", "end", "deviceId", "globalPid"]
        columns += [source for name, source in MEMORY_SOURCES.items() if name in wanted]
        if "launch_start_ns" in wanted and "correlationId" not in columns:
            columns.append("correlationId")
        copies = self._read(RequestedColumns.of(COPIES, columns), "copies")
        fills = self._read(RequestedColumns.of(FILLS, (name for name in columns if name != "copyKind")), "fills")
        for part, is_fill in ((copies, 0), (fills, 1)):
            part.integers["is_fill"] = np.full(part.row_count, is_fill, dtype=np.int64)
        found = Events.concatenate((copies, fills)).timed()
        self._note_untimed(found, "copies and fills without start or end")
        return found.by_start()

    def _ranges(self) -> Ranges:
        if not self._wants_ranges:
            return Ranges.none()
        wanted = self.selection.of_table(RANGES)
        found = read_ranges(
            self.file,
            self.names,
            self.environment.last_ns,
            has_names="name_index" in wanted or self._wants_operators,
            has_domains="domain_name_index" in wanted,
        )
        self._note_untimed(found.events, "ranges without a start")
        if found.events.row_count == 0:
            self.notes.append("It has no NVTX ranges: kernels cannot be attributed to layers.")
        open_count = int(found.is_open.sum())
        if open_count:
            self.notes.append(f"{open_count} ranges had not ended when the recording did; no kernel is counted as inside of them.")
        if found.other_count:
            self.notes.append(f"{found.other_count} other NVTX events, such as marks, are skipped.")
        return found

    def _read(self, columns: RequestedColumns, what: str) -> Events:
        found = Events.read(self.file, columns)
        if found.row_count > 0 and found.missing:
            self.notes.append(f"Its {what} have no {', '.join(found.missing)}: another version wrote them.")
        if found.refused_count:
            self.notes.append(f"{found.refused_count} values of table {columns.table_name} are no integers: they are treated as unknown.")
        return found

    # ------------------------------------------------------------ notes

    def _note_untimed(self, found: Events, what: str) -> None:
        if found.untimed_count:
            self.notes.append(f"{found.untimed_count} {what} are skipped.")

    def _note_missing(self, launches: Launches) -> None:
        """Note how many kernels have no call or no range."""
        kernel_count = launches.kernels.row_count
        missing_count = int((launches.call_indexes == NULL_INDEX).sum())
        if missing_count:
            self.notes.append(f"{missing_count} of {kernel_count} kernels have no runtime call: their thread and range are not known.")
        outside_count = int((launches.range_indexes == NULL_INDEX).sum()) - missing_count
        if self._wants_ranges and outside_count:
            self.notes.append(f"{outside_count} of {kernel_count} kernels were launched outside of every range.")

    def _note_graphs(self, launches: Launches, nodes: Events) -> None:
        """Note which range counts for kernels inside CUDA graphs."""
        attributed_count = int(launches.is_of_node.sum())
        if attributed_count:
            self.notes.append(f"{attributed_count} kernels of CUDA graphs are counted for the range in which their node was created.")
        is_in_graph = launches.kernels.column(NODE_ID) > 0
        unknown_count = int((is_in_graph & (creations(launches.kernels, nodes) == NULL_INDEX)).sum())
        if unknown_count:
            self.notes.append(
                f"{unknown_count} kernels of CUDA graphs have no recorded creation of their node: "
                "they are counted for the range in which the graph was launched."
            )

    def _time(self, ns: int | None) -> datetime | None:
        """Return a time of the recording by the clock of its machine; None if it is not known."""
        start_ns = self.environment.session_start_unix_ns
        if start_ns is None or ns is None:
            return None
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(start_ns + ns) // NS_PER_US)
        except OverflowError:
            return None


def _launching_calls(operations: Events, calls: Events) -> Indexes:
    if calls.row_count == 0:
        return np.full(operations.row_count, NULL_INDEX, dtype=np.int32)
    return match_calls(operations.process, operations.column("correlationId"), calls.process, calls.column("correlationId"))


def _nesting(ranges: Ranges, calls: Events) -> Nesting:
    events = ranges.events
    return find_nesting(events.thread, events.column("start"), ranges.end_ns, ~ranges.is_open, calls.thread, calls.column("start"))


def _ranges_around(nesting: Nesting, call_indexes: Indexes) -> Indexes:
    """Return the innermost range around each of these calls; NONE without one."""
    innermost = np.append(nesting.innermost, np.int32(NULL_INDEX))
    found: Indexes = innermost[call_indexes]
    return found


# ---------------------------------------------------------------- exported directories
# Directories with one file per table: nsys export --type parquetdir, or arrowdir.
#
# Tables and columns are those of an SQLite export. Only the name of a file tells which table it holds.

DIRECTORY_FORMAT: Final = "nsys-folder"  # stored with the runs that were imported
HEAD_BYTES: Final = 8
TABLE_ENDINGS: Final = (".parquet", ".arrow")


class NsysDirectoryReader:
    """The reader of exported directories."""

    format = DIRECTORY_FORMAT
    description = "a directory of tables that Nsight Systems exported (parquetdir, arrowdir)"

    def matches(self, head: bytes) -> bool:
        """Return whether the file is a Parquet or Arrow file."""
        return is_table(head)

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the export. Raises the errors of `read_columns`."""
        return self.read_columns(files, ALL_COLUMNS)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ReadResult:
        """Read the requested columns.

        Raises:
            InvalidTraceError: the files are a single table, tables of another program, or damaged.
        """
        paths = {_table_name(name): path for name, path in _paths(files).items() if holds_table(path)}
        directory = TableDirectory(_directory_name(files), paths)
        if not files.companions:
            raise InvalidTraceError(
                f"file {files.file_name}",
                found="one table alone",
                expected="the directory that Nsight Systems exported, with all of its tables",
                remedy="Give the directory: nsys export --type parquetdir REPORT.nsys-rep makes one.",
            )
        tables = read_tables(directory, selection)
        others = sorted(_parts(name)[-1] for name, path in _paths(files).items() if not holds_table(path))
        skipped = [f"Files of the directory that are no tables are skipped: {', '.join(others)}."] if others else []
        return replace(tables, title=directory.name, notes="\n".join([tables.notes, *skipped]))


def is_export(directory: Path) -> bool:
    """Return whether the files of a directory are the tables of one export. Raises OSError."""
    return any(
        path.stem in OWN_TABLES and path.suffix in TABLE_ENDINGS and path.is_file() and holds_table(path) for path in directory.iterdir()
    )


def _paths(files: TraceFiles) -> dict[str, Path]:
    return {files.file_name: files.path, **files.companions}


def holds_table(path: Path) -> bool:
    """Return whether a file begins like a Parquet or Arrow file. Raises OSError."""
    with path.open("rb") as file:
        return is_table(file.read(HEAD_BYTES))


def _table_name(file_name: str) -> str:
    return _parts(file_name)[-1].rsplit(".", 1)[0]


def _directory_name(files: TraceFiles) -> str:
    """Return the name of the directory of the tables at their sender."""
    directories = [parts[-2] for name in _paths(files) if len(parts := _parts(name)) > 1]
    return directories[0] if directories else files.file_name


def _parts(file_name: str) -> list[str]:
    return re.split(r"[/\\]", file_name)


# ---------------------------------------------------------------- reports
# Reports (.nsys-rep, .qdrep) are exported by an installed nsys first.

REPORT_FORMAT: Final = "nsys-report"
OPENINGS: Final = (b"NVIDIA Tegra Profiler Report", b"NVIDIA Nsight Systems Report")


class NsysReportReader:
    """The reader of .nsys-rep reports."""

    format = REPORT_FORMAT
    description = "a report of Nsight Systems (.nsys-rep), where nsys is installed"

    def matches(self, head: bytes) -> bool:
        """Return whether the file begins like a report of Nsight Systems."""
        return head.startswith(OPENINGS)

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the report. Raises the errors of `read_columns`."""
        return self.read_columns(files, ALL_COLUMNS)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ReadResult:
        """Read the requested columns.

        Raises:
            UnmetConditionError: nsys is not installed here.
            TimeLimitError: nsys did not finish.
            InvalidTraceError: nsys could not read the report.
        """
        with exported(files.path, files.file_name) as path:
            if path.is_dir():
                return read_tables(TableDirectory(files.file_name, {table.stem: table for table in path.iterdir()}), selection)
            with closing(SqliteFile.open(path, files.file_name)) as file:
                return read_tables(file, selection)


# ---------------------------------------------------------------- nsys program
# Only nsys itself can read its reports. Where it is installed, it exports them.

DIRECTORY_TYPE: Final = "parquetdir"
FILE_TYPE: Final = "sqlite"
"""The format that every version exports; it takes longer to write and to read."""

HELP_LIMIT_S: Final = 60.0
BASE_LIMIT_S: Final = 300.0
LIMIT_S_PER_BYTE: Final = 1e-6
"""nsys exports some ten megabytes of report per second. With less, large reports on a busy machine would be given up; with more,
users would wait long for an nsys that hangs, which has been observed."""

SHOWN_LINES: Final = 8


@contextmanager
def exported(report: Path, name: str) -> Iterator[Path]:
    """Yield the path of a temporary export: a directory of Parquet tables, or an SQLite file if nsys cannot export Parquet.

    It is created anew each time in a private directory, since an export found next to the report may be of an older one.

    Args:
        report: path of the report.
        name: name of the report, for errors.

    Raises:
        UnmetConditionError: nsys is not installed here.
        TimeLimitError: nsys did not finish.
        InvalidTraceError: nsys could not read the report; the error quotes its output.
    """
    program = find_nsys()
    if program is None:
        raise UnmetConditionError(
            f"report {name}",
            found="no nsys on this machine",
            expected="Nsight Systems, which alone reads its reports",
            remedy="Install it, or export the report where it is installed: nsys export --type sqlite --lazy=false REPORT.nsys-rep",
        )
    with tempfile.TemporaryDirectory(prefix="kernalyse-nsys-") as private:
        directory = Path(private)
        export_type = (
            DIRECTORY_TYPE if DIRECTORY_TYPE in _output(program, ["export", "--help"], directory, name, HELP_LIMIT_S) else FILE_TYPE
        )
        # nsys requires the file name extension, which a received file does not have.
        link, target = directory / "report.nsys-rep", directory / "exported"
        link.symlink_to(report.absolute())
        limit_s = BASE_LIMIT_S + report.stat().st_size * LIMIT_S_PER_BYTE
        said = _output(
            program, ["export", "--type", export_type, "--quiet", "true", "--output", str(target), str(link)], directory, name, limit_s
        )
        if not target.exists():
            raise _unreadable_report(name, f"no export, and: {said}")
        yield target


def _output(program: str, arguments: list[str], directory: Path, name: str, limit_s: float) -> str:
    """Run nsys and return its output on both streams."""
    with (directory / "output").open("w+b") as output:
        try:
            status = run_limited([program, *arguments], directory=directory, output=output, errors=output, limit_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(
                f"report {name}",
                found=f"nsys {arguments[0]}, which had not ended after {limit_s:.0f} s",
                expected="an export",
                remedy="Export it by hand, with a newer nsys if there is one, and give the export.",
            ) from error
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    if status != 0:
        raise _unreadable_report(name, f"nsys {arguments[0]} ended with status {status}: {' '.join(said.splitlines()[-SHOWN_LINES:])}")
    return said


def _unreadable_report(name: str, found: str) -> InvalidTraceError:
    return InvalidTraceError(
        f"report {name}",
        found=found,
        expected="an export of it",
        remedy="Copy it again if it is damaged; if a newer nsys wrote it, export it with that one.",
    )
