"""The conversion of an nsys export to frames of the canonical tables, with NVTX ranges, CUDA graphs and operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import (
    NULL_INDEX,
    Factorization,
    Flags,
    Indexes,
    Integers,
    Nesting,
    factorize,
    find_nesting,
    match_calls,
)
from kernalyse.services.analyzer.readers.base import Selection, TraceNames
from kernalyse.services.analyzer.readers.nsys.export import (
    ID_MASK,
    Environment,
    Events,
    ExportedTables,
    Processes,
    durations,
    indexes,
    numbers,
    process_id,
    process_keys,
    small_numbers,
    taken,
)
from kernalyse.services.analyzer.readers.nsys.sqlite_file import RequestedColumns
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import NULL_INTEGER
from kernalyse.services.analyzer.tables.base import INDEX, Table
from kernalyse.services.analyzer.tables.traces import API_CALLS, KERNEL_LAUNCHES, MEMORY_OPS, RANGES, TRACE_DEVICES, TRACE_PROCESSES

# ---------------------------------------------------------------- frames

DIRECTIONS: Final = {
    1: "host_to_device",
    2: "device_to_host",
    3: "host_to_array",
    4: "array_to_host",
    5: "array_to_array",
    6: "array_to_device",
    7: "device_to_array",
    8: "device_to_device",
    9: "host_to_host",
    10: "peer_to_peer",
    11: "managed_host_to_device",
    12: "managed_device_to_host",
    13: "managed_device_to_device",
}
"""Directions by CUpti_ActivityMemcpyKind."""

MEMORY_SOURCES: Final = {"direction": "copyKind", "stream_index": "streamId", "bytes": "bytes", "correlation_id": "correlationId"}
"""Columns of copies and fills, by the column of memory_ops that needs them; fills have no copyKind."""

MAX_INDEX: Final = 2**31 - 1

Columns = Mapping[str, Callable[[], pl.Series]]


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels, with the call that launched each and the innermost range around that call; NONE where there is none.

    is_of_node: the range is around the creation of the kernel's node in a CUDA graph instead.
    """

    kernels: Events
    calls: Events
    call_indexes: Indexes
    range_indexes: Indexes
    is_of_node: Flags
    operator_indexes: Indexes | None = None  # None: the trace has no operators


def kernel_launches(launches: Launches, processes: Processes, names: TraceNames, selection: Selection) -> pl.DataFrame:
    """Return the requested columns of table kernel_launches."""
    kernels, calls = launches.kernels, launches.calls
    columns: Columns = {
        "launch_index": lambda: row_numbers(kernels.row_count),
        "name_index": lambda: indexes(_kernel_names(kernels, names)),
        "process_id": lambda: numbers(processes.ids).gather(kernels.process),
        "start_ns": lambda: numbers(kernels.column("start")),
        "duration_ns": lambda: numbers(durations(kernels.column("start"), kernels.column("end"))),
        "api_call_index": lambda: indexes(launches.call_indexes),
        "launch_thread_id": lambda: numbers(taken(thread_ids(calls), launches.call_indexes)),
        "launch_start_ns": lambda: numbers(taken(calls.column("start"), launches.call_indexes)),
        "range_index": lambda: indexes(launches.range_indexes),
        "layer_source": lambda: _layer_sources(launches),
        **{name: _counts(kernels, source) for name, source in KERNEL_COUNTS.items()},
        **{name: _small_counts(kernels, source) for name, source in KERNEL_SMALL_COUNTS.items()},
    }
    operators = launches.operator_indexes
    if operators is not None:
        columns = {**columns, "operator_index": lambda: indexes(operators)}
    return _frame(KERNEL_LAUNCHES, columns, selection)


def api_calls(calls: Events, processes: Processes, names: TraceNames, selection: Selection) -> pl.DataFrame:
    """Return the requested columns of table api_calls."""
    columns: Columns = {
        "call_index": lambda: row_numbers(calls.row_count),
        "name_index": lambda: indexes(names.of_codes(calls.codes("nameId"))),
        "process_id": lambda: numbers(processes.ids).gather(calls.process),
        "thread_id": lambda: numbers(thread_ids(calls)),
        "start_ns": lambda: numbers(calls.column("start")),
        "duration_ns": lambda: numbers(durations(calls.column("start"), calls.column("end"))),
        "correlation_id": _counts(calls, "correlationId"),
        "return_value": _small_counts(calls, "returnValue"),
    }
    return _frame(API_CALLS, columns, selection)


def range_rows(
    ranges: Ranges, nesting: Nesting, input_shapes: pl.Series | None, processes: Processes, selection: Selection
) -> pl.DataFrame:
    """Return the requested columns of table ranges. input_shapes: shapes of each range; None: no range has any."""
    events = ranges.events
    columns: Columns = {
        "range_index": lambda: row_numbers(events.row_count),
        "name_index": lambda: indexes(ranges.name),
        "domain_name_index": lambda: indexes(ranges.domain),
        "kind": lambda: _either(ranges.is_start_end, "start_end", "push_pop"),
        "process_id": lambda: numbers(processes.ids).gather(events.process),
        "thread_id": lambda: numbers(thread_ids(events)),
        "start_ns": lambda: numbers(events.column("start")),
        "duration_ns": lambda: numbers(durations(events.column("start"), ranges.end_ns)),
        "is_open": lambda: pl.Series(ranges.is_open),
        "parent_range_index": lambda: indexes(nesting.parent),
        "depth": lambda: indexes(nesting.depth),
    }
    if input_shapes is not None:
        columns = {**columns, "input_shapes": lambda: input_shapes}
    return _frame(RANGES, columns, selection)


def memory_ops(memory: Events, calls: Events, call_indexes: Indexes, processes: Processes, selection: Selection) -> pl.DataFrame:
    """Return the requested columns of table memory_ops."""
    columns: Columns = {
        "op_index": lambda: row_numbers(memory.row_count),
        "kind": lambda: _either(memory.column("is_fill") == 1, "set", "copy"),
        "direction": lambda: numbers(memory.column("copyKind")).replace_strict(DIRECTIONS, default=None, return_dtype=pl.String),
        "process_id": lambda: numbers(processes.ids).gather(memory.process),
        "device_index": _small_counts(memory, "deviceId"),
        "stream_index": _counts(memory, "streamId"),
        "start_ns": lambda: numbers(memory.column("start")),
        "duration_ns": lambda: numbers(durations(memory.column("start"), memory.column("end"))),
        "bytes": _counts(memory, "bytes"),
        "correlation_id": _counts(memory, "correlationId"),
        "launch_start_ns": lambda: numbers(taken(calls.column("start"), call_indexes)),
    }
    return _frame(MEMORY_OPS, columns, selection)


def trace_devices(operations: Sequence[Events], processes: Processes, environment: Environment) -> pl.DataFrame:
    """Return table trace_devices: the devices that some of the operations ran on."""
    used: set[tuple[int, int]] = set()
    for events in operations:
        device = events.codes("deviceId")
        (pairs,) = factorize(events.process.astype(np.int64) * device.keys.size + device.codes)
        numbers_of_devices = device.keys.tolist()
        used |= {(pair // device.keys.size, numbers_of_devices[pair % device.keys.size]) for pair in pairs.keys.tolist()}
    rows = []
    for process, device_index in sorted(pair for pair in used if 0 <= pair[1] <= MAX_INDEX):
        gpu = environment.gpu(process_id(processes.keys[process]), device_index)
        described = {name: getattr(gpu, name) for name in gpu.__slots__} if gpu is not None else {}
        rows.append({"process_id": _known(int(processes.ids[process])), "device_index": device_index} | described)
    return TRACE_DEVICES.own_rows(rows)


def trace_processes(processes: Processes, environment: Environment, file_name: str) -> pl.DataFrame:
    """Return table trace_processes."""
    rows = [
        {
            "process_id": int(number),
            "system_process_id": process_id(key),
            "process_name": environment.process_names.get(key),
            "host_name": environment.host_name,
            "file_name": file_name,
            "session_start_unix_ns": environment.session_start_unix_ns,
        }
        for key, number in sorted(zip(processes.keys, processes.ids.tolist(), strict=True))
        if key != NULL_INTEGER
    ]
    return TRACE_PROCESSES.own_rows(rows)


def row_numbers(count: int) -> pl.Series:
    """Return the column 0 to count - 1."""
    return pl.int_range(count, dtype=INDEX, eager=True)


def thread_ids(events: Events) -> Integers:
    """Return the system's thread id of each event; NULL_INTEGER where it is not stated."""
    global_ids = events.column("globalTid")
    return np.where(global_ids == NULL_INTEGER, NULL_INTEGER, global_ids & ID_MASK)


def _kernel_names(kernels: Events, names: TraceNames) -> Indexes:
    present = next((name for name in KERNEL_NAME_COLUMNS if name in kernels.integers), KERNEL_NAME_COLUMNS[0])
    found = names.of_codes(kernels.codes(present))
    if bool((found == NULL_INDEX).any()):
        found[found == NULL_INDEX] = names.index_of("")
    return found


def _counts(events: Events, source: str) -> Callable[[], pl.Series]:
    return lambda: numbers(events.column(source))


def _small_counts(events: Events, source: str) -> Callable[[], pl.Series]:
    """Return a function that converts each distinct value once."""

    def small() -> pl.Series:
        column = events.codes(source)
        return small_numbers(column.keys).gather(column.codes)

    return small


def _layer_sources(launches: Launches) -> pl.Series:
    is_of_node, has_range = pl.Series(launches.is_of_node), pl.Series(launches.range_indexes != NULL_INDEX)
    return pl.select(pl.when(is_of_node).then(pl.lit("graph")).when(has_range).then(pl.lit("range"))).to_series()


def _either(mask: np.ndarray[tuple[int], np.dtype[np.bool_]], text: str, other: str) -> pl.Series:
    return pl.select(pl.when(pl.Series(mask)).then(pl.lit(text)).otherwise(pl.lit(other))).to_series()


def _known(value: int) -> int | None:
    return None if value == NULL_INTEGER else value


def _frame(table: Table, columns: Columns, selection: Selection) -> pl.DataFrame:
    return pl.DataFrame({name: columns[name]() for name in selection.of_table(table) if name in columns})


# ---------------------------------------------------------------- required columns
# The columns of an export's largest tables that a selection requires.

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX: Final = "NVTX_EVENTS"

NODE_ID: Final = "graphNodeId"

KERNEL_NAME_COLUMNS: Final = ("demangledName", "shortName", "mangledName")
"""The most specific name first."""

KERNEL_COUNTS: Final = {
    "graph_node_id": NODE_ID,
    "grid_x": "gridX",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "stream_index": "streamId",
    "correlation_id": "correlationId",
}
KERNEL_SMALL_COUNTS: Final = {
    "device_index": "deviceId",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers_per_thread": "registersPerThread",
}
"""Columns that are copied unchanged, by the column of kernel_launches."""

CALL_CODES: Final = {"name_index": "nameId", "return_value": "returnValue"}
"""Factorized columns, by the column of api_calls."""


def kernel_columns(present: Collection[str], requested: Collection[str], *, has_calls: bool, has_nodes: bool) -> RequestedColumns:
    """Return the columns to read of the table of kernels.

    Args:
        present: columns that the file's table has.
        requested: requested columns of kernel_launches.
        has_calls, has_nodes: whether kernels are correlated with calls, and with nodes of CUDA graphs.
    """
    names = [name for name in KERNEL_NAME_COLUMNS if name in present][:1] if "name_index" in requested else []
    codes = ["deviceId", "globalPid", *names, *(source for name, source in KERNEL_SMALL_COUNTS.items() if name in requested)]
    integers = ["start", "end", *(["correlationId"] if has_calls else [])]
    integers += [source for name, source in KERNEL_COUNTS.items() if name in requested]
    integers += [NODE_ID] if has_nodes else []
    return RequestedColumns.of(KERNELS, integers, codes=codes)


def call_columns(requested: Collection[str]) -> RequestedColumns:
    """Return the columns to read of the table of calls. requested: requested columns of api_calls."""
    codes = ["globalTid", *(source for name, source in CALL_CODES.items() if name in requested)]
    return RequestedColumns.of(CALLS, ["start", "correlationId", *(["end"] if "duration_ns" in requested else [])], codes=codes)


def range_columns(*, has_names: bool, has_domains: bool) -> RequestedColumns:
    """Return the columns to read of the table of NVTX events."""
    is_named = has_names or has_domains
    codes = ["eventType", "globalTid", *(["textId"] if is_named else []), *(["domainId"] if has_domains else [])]
    return RequestedColumns.of(NVTX, ["start", "end"], ["text"] if is_named else [], codes)


# ---------------------------------------------------------------- NVTX ranges

PUSH_POP_TYPES: Final = (59, 70)  # 70, 71: imported from a text file of NVTX
START_END_TYPES: Final = (60, 71)
DOMAIN_TYPE: Final = 75
UNNAMED: Final = ""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The NVTX ranges in order of start, of equal starts the later end first. An open range ends with the session.

    other_count: number of events that are no ranges, such as marks.
    """

    events: Events
    end_ns: Integers
    is_open: Flags
    is_start_end: Flags
    name: Indexes
    domain: Indexes
    other_count: int = 0

    @classmethod
    def none(cls) -> Self:
        """Return no ranges."""
        nothing, flags = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.bool_)
        return cls(Events.none(), np.empty(0, dtype=np.int64), flags, flags, nothing, nothing)


def read_ranges(file: ExportedTables, names: TraceNames, session_end_ns: int | None, *, has_names: bool, has_domains: bool) -> Ranges:
    """Read the NVTX ranges of an export.

    Args:
        file: the tables of the export.
        names: the names of the trace, which those of ranges are added to.
        session_end_ns: end of the recording since the session's start; None: not stated.
        has_names, has_domains: whether names and domains are read.

    Raises:
        InvalidTraceError: the table is damaged.
    """
    found = Events.read(file, range_columns(has_names=has_names, has_domains=has_domains))
    is_range = _is_one_of(found, (*PUSH_POP_TYPES, *START_END_TYPES))
    domains = _domains(found, names) if has_domains else {}
    other_count = found.row_count - int(is_range.sum()) - int(_is_one_of(found, (DOMAIN_TYPE,)).sum())
    found = found.where(is_range).timed(may_be_open=True)
    end_ns = found.column("end")
    has_open = bool((end_ns == NULL_INTEGER).any())
    if has_open:
        last_ns = max(int(end_ns.max()), int(found.column("start").max()), session_end_ns or 0)
        end_ns = np.where(end_ns == NULL_INTEGER, last_ns, end_ns)
    found = found.by_range(end_ns)
    is_open = found.column("end") == NULL_INTEGER
    return Ranges(
        found,
        np.where(is_open, last_ns, found.column("end")) if has_open else found.column("end"),
        is_open,
        _is_one_of(found, START_END_TYPES),
        _range_names(found, names) if has_names else np.empty(0, dtype=np.int32),
        _of_domains(found, domains) if has_domains else np.empty(0, dtype=np.int32),
        other_count,
    )


def _is_one_of(events: Events, requested: Sequence[int]) -> Flags:
    types = events.codes("eventType")
    is_wanted = np.isin(types.keys, requested)
    if bool(is_wanted.all()) or not bool(is_wanted.any()):  # most files have ranges of one kind
        return np.full(events.row_count, bool(is_wanted.any()))
    found: Flags = is_wanted[types.codes]
    return found


def _range_names(found: Events, names: TraceNames) -> Indexes:
    """Return the name of each range: its text, else the string of its textId, else the empty name."""
    name = names.of_texts(found.text("text"))
    without_text = np.flatnonzero(name == NULL_INDEX)
    if without_text.size:
        ids = found.codes("textId")
        by_id = names.of_codes(Factorization(ids.codes[without_text], ids.keys).used())
        name[without_text] = np.where(by_id == NULL_INDEX, names.index_of(UNNAMED), by_id) if bool((by_id == NULL_INDEX).any()) else by_id
    return name


def _domains(found: Events, names: TraceNames) -> dict[tuple[int, int], int]:
    """Return the name index of each domain by process key and domainId, from the events that create domains."""
    is_creation = _is_one_of(found, (DOMAIN_TYPE,))
    created = replace(found, integers=dict(found.integers), factorized=dict(found.factorized)).where(
        is_creation
    )  # a copy, since `where` takes the columns
    keys = zip(process_keys(created.column("globalTid")).tolist(), created.column("domainId").tolist(), strict=True)
    return dict(zip(keys, _range_names(created, names).tolist(), strict=True))


def _of_domains(found: Events, domains: dict[tuple[int, int], int]) -> Indexes:
    domain = np.full(found.row_count, NULL_INDEX, dtype=np.int32)
    keys, numbers = process_keys(found.column("globalTid")), found.column("domainId")
    for (process_key, number), name_index in domains.items():
        domain[(keys == process_key) & (numbers == number)] = name_index
    return domain


# ---------------------------------------------------------------- CUDA graphs
# Kernels inside CUDA graphs belong to the range in which their node was created.
#
# A graph is launched by one call, whose range says only where the graph ran. The purpose of a kernel shows in the range around the call
# that created its node, explicitly or by stream capture. Instantiating a graph clones its nodes; a clone refers to its original.
# https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html, tables CUDA_GRAPH_NODE_EVENTS and CUPTI_ACTIVITY_KIND_KERNEL.

NODE_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Tables with creations of nodes; the first present one counts. Until 2022 it was the second, which now describes complete graphs."""

GRAPH_EXECUTIONS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""Table of executions of graphs whose kernels were not traced."""

ORIGINAL_ID: Final = "originalGraphNodeId"
DOUBLING_COUNT: Final = 5
"""Pointer-doubling steps from clone to original: enough for 32 generations. In a file with cyclic clones the search ends too."""


def node_table(file: ExportedTables) -> str | None:
    """Return the table with the creations of graph nodes; None if there is none."""
    return next((name for name in NODE_TABLES if NODE_ID in file.column_names(name)), None)


def read_nodes(file: ExportedTables) -> Events:
    """Read the creations of graph nodes, in order of start. Raises InvalidTraceError if the table is damaged."""
    table_name = node_table(file)
    if table_name is None:
        return Events.none()
    return (
        Events.read(file, RequestedColumns.of(table_name, ["start", "globalTid", NODE_ID, ORIGINAL_ID])).timed(may_be_open=True).by_start()
    )


def node_ranges(kernels: Events, nodes: Events, ranges: Ranges) -> Indexes:
    """Return the innermost range around the creation of each kernel's graph node; NONE if node, creation or range is not known."""
    if nodes.row_count == 0 or kernels.row_count == 0:
        return np.full(kernels.row_count, NULL_INDEX, dtype=np.int32)
    events = ranges.events
    innermost = find_nesting(
        events.thread, events.column("start"), ranges.end_ns, ~ranges.is_open, nodes.thread, nodes.column("start")
    ).innermost
    original = _originals(nodes)
    found: Indexes = np.append(innermost[original], np.int32(NULL_INDEX))[creations(kernels, nodes)]
    return found


def creations(operations: Events, nodes: Events) -> Indexes:
    """Return the row of the creation of each operation's graph node; NONE without one."""
    return _first_creations(operations.process, operations.column(NODE_ID), nodes)


def _originals(nodes: Events) -> Indexes:
    """Return for each creation the one of its node's ultimate original, as far as it is known."""
    rows = np.arange(nodes.row_count, dtype=np.int32)
    original = _first_creations(nodes.process, nodes.column(ORIGINAL_ID), nodes)
    original = np.where(original == NULL_INDEX, rows, original)
    for _ in range(DOUBLING_COUNT):
        original = original[original]
    return original


def _first_creations(process: Indexes, node_ids: Integers, nodes: Events) -> Indexes:
    """Return the creation of each node, which is the first of its events; NONE without one."""
    found = match_calls(process, node_ids, np.ascontiguousarray(nodes.process[::-1]), np.ascontiguousarray(nodes.column(NODE_ID)[::-1]))
    return np.where(found == NULL_INDEX, np.int32(NULL_INDEX), np.int32(nodes.row_count - 1) - found).astype(np.int32)


# ---------------------------------------------------------------- operators
# PyTorch's emit_nvtx writes operators as NVTX ranges, with their shapes in the text but without data types:
#
# "aten::addmm, seq = 12, op_id = 34, sizes = [[8], [4, 16], [16, 8]], input_op_ids = [(33,0)]" (torch/csrc/profiler/util.cpp,
# getNvtxStr).

SIZES: Final = r", sizes = (\[[\[\]0-9, ]*\])"
SIGN: Final = ", sizes = ["


def input_shapes(ranges: Ranges, names: pl.Series) -> pl.Series | None:
    """Return the input shapes of each range (JSON), null for ranges that are no operators; None if no range is one.

    Args:
        ranges: the ranges.
        names: the names of the trace, by name index.
    """
    if ranges.name.size == 0 or not names.str.contains(SIGN, literal=True).any():
        return None
    found = names.str.extract(SIZES).gather(pl.Series(ranges.name))
    return None if found.null_count() == found.len() else found


def find_operators(ranges: Ranges, shapes: pl.Series, calls: Events) -> Indexes:
    """Return the innermost operator around each call, NONE without one. A last entry NONE is appended, for the call index NONE."""
    counts = shapes.is_not_null().to_numpy() & ~ranges.is_open
    found = find_nesting(ranges.events.thread, ranges.events.column("start"), ranges.end_ns, counts, calls.thread, calls.column("start"))
    around: Indexes = np.append(found.innermost, np.int32(NULL_INDEX))
    return around
