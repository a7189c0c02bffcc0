"""Reads SQLite exports of Nsight Systems, schemas of 2022 to 2026.

Tables and columns come and go between versions and with what was traced: each is probed. Correlation ids are those of one
process only; calls are not always in order, and some kernels have none. What is missing is said in the notes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import polars as pl

from services.analyzer.correlation import NONE, Indexes, Nesting, causes, nested
from services.analyzer.readers import nsys_frames
from services.analyzer.readers.exported_tables import ExportedTables
from services.analyzer.readers.nsys_columns import CALLS, KERNELS, NODE_ID, NVTX, call_columns, kernel_columns
from services.analyzer.readers.nsys_environment import Environment, read_environment
from services.analyzer.readers.nsys_events import COPIES, FILLS, Events
from services.analyzer.readers.nsys_frames import MEMORY_SOURCES, Launches
from services.analyzer.readers.nsys_graphs import WHOLE_GRAPHS, creations, node_ranges, read_nodes
from services.analyzer.readers.nsys_operators import input_shapes, operators_around
from services.analyzer.readers.nsys_processes import Processes
from services.analyzer.readers.nsys_ranges import Ranges, read_ranges
from services.analyzer.readers.selection import EVERYTHING, Selection
from services.analyzer.readers.sqlite_file import SqliteFile, WantedColumns
from services.analyzer.readers.sqlite_header import HEADER
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.analyzer.readers.trace_names import TraceNames
from services.analyzer.table import Table
from services.analyzer.trace_tables import API_CALLS, KERNEL_LAUNCHES, MEMORY_OPS, RANGES, TRACE_DEVICES, TRACE_NAMES, TRACE_PROCESSES
from services.core.errors import InvalidTraceError

FORMAT: Final = "nsys-sqlite"
OWN_TABLES: Final = (KERNELS, CALLS, NVTX, "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME")
NS_PER_US: Final = 1000

OF_CALL: Final = ("api_call_index", "launch_thread_id", "launch_start_ns")
OF_OPERATOR: Final = "operator_index"
INPUT_SHAPES: Final = "input_shapes"
OF_RANGE: Final = ("range_index", "layer_source", OF_OPERATOR)


class NsysSqliteReader:
    format = FORMAT
    description = "an SQLite export of Nsight Systems"

    def matches(self, head: bytes) -> bool:
        return head.startswith(HEADER)

    def read(self, files: TraceFiles) -> ImportedTables:
        return self.read_columns(files, EVERYTHING)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ImportedTables:
        with closing(SqliteFile.open(files.path, files.file_name)) as file:
            return read_tables(file, selection)


def read_tables(file: ExportedTables, selection: Selection = EVERYTHING) -> ImportedTables:
    """Raises InvalidTraceError: its tables are those of another program, there are none, or they are damaged."""
    _check_kind(file)
    environment = read_environment(file)
    rows = file.rows("StringIds")
    texts = {row["id"]: str(row["value"]) for row in rows if row.get("id") is not None and row.get("value") is not None}
    notes = [*environment.notes, *([] if texts else ["It has no texts (table StringIds): kernels and calls have no names."])]
    return _Reading(file, selection, environment, TraceNames(texts), notes).tables()


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
class _Reading:
    """One file on its way to tables."""

    file: ExportedTables
    selection: Selection
    environment: Environment
    names: TraceNames
    notes: list[str]
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    def tables(self) -> ImportedTables:
        wants = self.selection.wants
        kernels, memory, calls = self._kernels(), self._memory(), self._calls()
        processes = Processes(self.environment.process_names)
        processes.tell_device(kernels, memory)
        processes.tell_host(calls)
        kernel_calls = _causes(kernels, calls)
        memory_calls = _causes(memory, calls) if wants(MEMORY_OPS, "launch_start_ns") else np.empty(0, dtype=np.int32)
        if not wants(API_CALLS, "correlation_id"):
            calls.release("correlationId")  # what is not needed is not put in order either
        calls = calls.by_start()
        kernel_calls, memory_calls = calls.moved(kernel_calls), calls.moved(memory_calls)
        ranges = self._ranges()
        nodes = read_nodes(self.file) if self._wants_nodes else Events.none()
        processes.tell_host(ranges.events, nodes)
        nesting = _nesting(ranges, calls)
        of_nodes = node_ranges(kernels, nodes, ranges)
        around = np.where(of_nodes == NONE, _around(nesting, kernel_calls), of_nodes)
        shapes = input_shapes(ranges, self.names.frame()["name"]) if self._wants_operators else None
        operators = None
        if shapes is not None:
            operators = operators_around(ranges, shapes, calls)[kernel_calls]
            self.selection = self.selection.with_work() if self.selection.wants_work else self.selection
        launches = Launches(kernels, calls, kernel_calls, around, of_nodes != NONE, operators)
        if self.selection is EVERYTHING:
            counts = {"kernels": kernels, "calls": calls, "ranges": ranges.events, "memory operations": memory}
            self.notes.append(f"It has {', '.join(f'{part.row_count} {what}' for what, part in counts.items())}.")
        if self._wants_calls:
            self._say_of(launches)
        if self._wants_nodes:
            self._say_of_graphs(launches, nodes)
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
        return ImportedTables(
            frames=self.frames,
            notes="\n".join(self.notes),
            start_time=self._time(self.environment.first_ns),
            end_time=self._time(self.environment.last_ns),
        )

    def _add(self, frame: pl.DataFrame, table: Table) -> None:
        if frame.width:
            self.frames[table.table_name] = frame

    # ------------------------------------------------------------ what there is

    @property
    def _wants_ranges(self) -> bool:
        return self.selection.wants(RANGES) or self.selection.wants(KERNEL_LAUNCHES, *OF_RANGE)

    @property
    def _wants_operators(self) -> bool:
        wants = self.selection.wants
        return self.selection.wants_work or wants(KERNEL_LAUNCHES, OF_OPERATOR) or wants(RANGES, INPUT_SHAPES)

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
        graph_count = Events.read(self.file, WantedColumns.of(WHOLE_GRAPHS, ["start"])).row_count
        if graph_count:
            self.notes.append(
                f"{graph_count} executions of CUDA graphs were recorded as wholes: their kernels are not in the trace. "
                "To have them, record with --cuda-graph-trace=node."
            )
        elif found.row_count == 0:
            self.notes.append("It has no kernels: CUDA was not traced, or nothing ran on a device.")
        self._say_untimed(found, "kernels without start or end")
        backwards = int((found.column("end") < found.column("start")).sum())
        if backwards:
            self.notes.append(f"{backwards} kernels end before they start; their times are kept as they are.")
        return found

    def _calls(self) -> Events:
        if not self._wants_calls:
            return Events.none()
        found = self._read(call_columns(self.selection.of_table(API_CALLS)), "calls of the runtime").timed(may_be_open=True)
        self._say_untimed(found, "calls without a start")
        return found

    def _memory(self) -> Events:
        if not (self.selection.wants(MEMORY_OPS) or self.selection.wants(TRACE_DEVICES)):
            return Events.none()
        wanted = self.selection.of_table(MEMORY_OPS)
        columns = ["start", "end", "deviceId", "globalPid"]
        columns += [source for name, source in MEMORY_SOURCES.items() if name in wanted]
        if "launch_start_ns" in wanted and "correlationId" not in columns:
            columns.append("correlationId")
        copies = self._read(WantedColumns.of(COPIES, columns), "copies")
        fills = self._read(WantedColumns.of(FILLS, (name for name in columns if name != "copyKind")), "fills")
        for part, is_fill in ((copies, 0), (fills, 1)):
            part.integers["is_fill"] = np.full(part.row_count, is_fill, dtype=np.int64)
        found = Events.together((copies, fills)).timed()
        self._say_untimed(found, "copies and fills without start or end")
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
        self._say_untimed(found.events, "ranges without a start")
        if found.events.row_count == 0:
            self.notes.append("It has no NVTX ranges: kernels cannot be put to layers.")
        open_count = int(found.is_open.sum())
        if open_count:
            self.notes.append(f"{open_count} ranges had not ended when the recording did; no kernel is counted as inside of them.")
        if found.other_count:
            self.notes.append(f"{found.other_count} other NVTX events, such as marks, are left out.")
        return found

    def _read(self, columns: WantedColumns, what: str) -> Events:
        found = Events.read(self.file, columns)
        if found.row_count > 0 and found.missing:
            self.notes.append(f"Its {what} have no {', '.join(found.missing)}: another version wrote them.")
        if found.refused_count:
            self.notes.append(f"{found.refused_count} values of table {columns.table_name} are no whole numbers: taken for unknown.")
        return found

    # ------------------------------------------------------------ notes

    def _say_untimed(self, found: Events, what: str) -> None:
        if found.untimed_count:
            self.notes.append(f"{found.untimed_count} {what} are left out.")

    def _say_of(self, launches: Launches) -> None:
        """What keeps kernels from a call or a range."""
        kernel_count = launches.kernels.row_count
        missing_count = int((launches.call_indexes == NONE).sum())
        if missing_count:
            self.notes.append(f"{missing_count} of {kernel_count} kernels have no runtime call: their thread and range are not known.")
        outside_count = int((launches.range_indexes == NONE).sum()) - missing_count
        if self._wants_ranges and outside_count:
            self.notes.append(f"{outside_count} of {kernel_count} kernels were launched outside of every range.")

    def _say_of_graphs(self, launches: Launches, nodes: Events) -> None:
        """Which range counts for kernels inside CUDA graphs."""
        placed_count = int(launches.is_of_node.sum())
        if placed_count:
            self.notes.append(f"{placed_count} kernels of CUDA graphs are counted for the range in which their node was created.")
        is_in_graph = launches.kernels.column(NODE_ID) > 0
        unknown_count = int((is_in_graph & (creations(launches.kernels, nodes) == NONE)).sum())
        if unknown_count:
            self.notes.append(
                f"{unknown_count} kernels of CUDA graphs have no recorded creation of their node: "
                "they are counted for the range in which the graph was launched."
            )

    def _time(self, ns: int | None) -> datetime | None:
        """Of the recording, by the clock of its machine."""
        start_ns = self.environment.session_start_unix_ns
        if start_ns is None or ns is None:
            return None
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(start_ns + ns) // NS_PER_US)
        except OverflowError:
            return None


def _causes(work: Events, calls: Events) -> Indexes:
    if calls.row_count == 0:
        return np.full(work.row_count, NONE, dtype=np.int32)
    return causes(work.process, work.column("correlationId"), calls.process, calls.column("correlationId"))


def _nesting(ranges: Ranges, calls: Events) -> Nesting:
    events = ranges.events
    return nested(events.thread, events.column("start"), ranges.end_ns, ~ranges.is_open, calls.thread, calls.column("start"))


def _around(nesting: Nesting, call_indexes: Indexes) -> Indexes:
    """Innermost range around each call; NONE of none."""
    innermost = np.append(nesting.innermost, np.int32(NONE))
    found: Indexes = innermost[call_indexes]
    return found
