"""Events of Nsight Systems as frames of the canonical tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from services.analyzer.correlation import NONE, Flags, Indexes, Integers, Nesting, coded
from services.analyzer.readers.nsys_columns import KERNEL_COUNTS, KERNEL_NAME_COLUMNS, KERNEL_SMALL_COUNTS
from services.analyzer.readers.nsys_environment import Environment
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_numbers import ID_MASK, durations, indexes, numbers, process_id, small_numbers, taken
from services.analyzer.readers.nsys_processes import Processes
from services.analyzer.readers.nsys_ranges import Ranges
from services.analyzer.readers.selection import Selection
from services.analyzer.readers.sqlite_pages import NULL_INTEGER
from services.analyzer.readers.trace_names import TraceNames
from services.analyzer.table import INDEX, Table
from services.analyzer.trace_tables import API_CALLS, KERNEL_LAUNCHES, MEMORY_OPS, RANGES, TRACE_DEVICES, TRACE_PROCESSES

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
"""By CUpti_ActivityMemcpyKind."""

MEMORY_SOURCES: Final = {"direction": "copyKind", "stream_index": "streamId", "bytes": "bytes", "correlation_id": "correlationId"}
"""Of copies and fills, by the column that needs it; fills have no copyKind."""

MAX_INDEX: Final = 2**31 - 1

Columns = Mapping[str, Callable[[], pl.Series]]


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels with the call that launched each and the innermost range around that; NONE where there is none.

    is_of_node: the range is the one around the creation of the node of a CUDA graph instead.
    """

    kernels: Events
    calls: Events
    call_indexes: Indexes
    range_indexes: Indexes
    is_of_node: Flags
    operator_indexes: Indexes | None = None  # None: the trace has no operators


def kernel_launches(launches: Launches, processes: Processes, names: TraceNames, selection: Selection) -> pl.DataFrame:
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
    """input_shapes: of each range; None: no range has any."""
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


def trace_devices(works: Sequence[Events], processes: Processes, environment: Environment) -> pl.DataFrame:
    """Devices that did some of the works."""
    used: set[tuple[int, int]] = set()
    for work in works:
        device = work.codes("deviceId")
        (pairs,) = coded(work.process.astype(np.int64) * device.keys.size + device.codes)
        numbers_of_devices = device.keys.tolist()
        used |= {(pair // device.keys.size, numbers_of_devices[pair % device.keys.size]) for pair in pairs.keys.tolist()}
    rows = []
    for process, device_index in sorted(pair for pair in used if 0 <= pair[1] <= MAX_INDEX):
        gpu = environment.gpu(process_id(processes.keys[process]), device_index)
        described = {name: getattr(gpu, name) for name in gpu.__slots__} if gpu is not None else {}
        rows.append({"process_id": _known(int(processes.ids[process])), "device_index": device_index} | described)
    return TRACE_DEVICES.own_rows(rows)


def trace_processes(processes: Processes, environment: Environment, file_name: str) -> pl.DataFrame:
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
    return pl.int_range(count, dtype=INDEX, eager=True)


def thread_ids(events: Events) -> Integers:
    global_ids = events.column("globalTid")
    return np.where(global_ids == NULL_INTEGER, NULL_INTEGER, global_ids & ID_MASK)


def _kernel_names(kernels: Events, names: TraceNames) -> Indexes:
    present = next((name for name in KERNEL_NAME_COLUMNS if name in kernels.integers), KERNEL_NAME_COLUMNS[0])
    found = names.of_codes(kernels.codes(present))
    if bool((found == NONE).any()):
        found[found == NONE] = names.index_of("")
    return found


def _counts(events: Events, source: str) -> Callable[[], pl.Series]:
    return lambda: numbers(events.column(source))


def _small_counts(events: Events, source: str) -> Callable[[], pl.Series]:
    """Found out once for each value there is."""

    def small() -> pl.Series:
        column = events.codes(source)
        return small_numbers(column.keys).gather(column.codes)

    return small


def _layer_sources(launches: Launches) -> pl.Series:
    is_of_node, has_range = pl.Series(launches.is_of_node), pl.Series(launches.range_indexes != NONE)
    return pl.select(pl.when(is_of_node).then(pl.lit("graph")).when(has_range).then(pl.lit("range"))).to_series()


def _either(mask: np.ndarray[tuple[int], np.dtype[np.bool_]], text: str, other: str) -> pl.Series:
    return pl.select(pl.when(pl.Series(mask)).then(pl.lit(text)).otherwise(pl.lit(other))).to_series()


def _known(value: int) -> int | None:
    return None if value == NULL_INTEGER else value


def _frame(table: Table, columns: Columns, selection: Selection) -> pl.DataFrame:
    return pl.DataFrame({name: columns[name]() for name in selection.of_table(table) if name in columns})
