"""The conversion of a Kineto trace to frames of the canonical tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kernalyse.services.analyzer.numeric.correlation import (
    NO_ID,
    NULL_INDEX,
    Indexes,
    Integers,
    factorize,
    match_calls,
    range_order,
    start_order,
)
from kernalyse.services.analyzer.readers.kineto.attribution import (
    GRAPH,
    HOST_INDEX,
    SOURCES,
    Attribution,
    ForwardLinks,
    HostRanges,
    attribute_launches,
    ran_on_host_only,
    select_working_operators,
)
from kernalyse.services.analyzer.readers.kineto.clock import TEXT_BASE, KinetoTrace
from kernalyse.services.analyzer.readers.kineto.events import FLOW_START, NULL, EventKind, Field, decoded, replace_surrogates
from kernalyse.services.analyzer.readers.kineto.graphs import COPY, GRAPH_LAUNCH, KERNEL, SET, DeviceOperations, GraphCalls, captured_calls
from kernalyse.services.analyzer.tables.base import FLAG, NUMBER, TEXT, Column, Table
from kernalyse.services.analyzer.tables.traces import (
    API_CALLS,
    HOST_DEVICE,
    KERNEL_LAUNCHES,
    MEMORY_OPS,
    RANGES,
    TRACE_DEVICES,
    TRACE_NAMES,
    TRACE_PROCESSES,
)
from kernalyse.services.core.costs.data_movement import NAME_INDEX

RANGE_KINDS: Final = {EventKind.OPERATOR: "operator", EventKind.ANNOTATION: "annotation", EventKind.MODULE: "module"}
OPTIMIZER_PREFIX: Final = "Optimizer."  # of annotations that PyTorch sets itself, such as Optimizer.step#AdamW.step

INDEX_LIMIT: Final = 2**31
COUNT_LIMIT: Final = 2**63
INTEGER_TEXT: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)

DIRECTIONS: Final = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "HtoH": "host_to_host",
    "PtoP": "peer_to_peer",
    "HtoA": "host_to_array",
    "AtoH": "array_to_host",
    "AtoA": "array_to_array",
    "AtoD": "array_to_device",
    "DtoA": "device_to_array",
}
"""By the second word of a copy's name: "Memcpy HtoD (Pageable -> Device)"."""

TENSOR_LIST: Final = "TensorList"
DTYPES: Final = {
    "Float": "float",
    "Double": "double",
    "Half": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "Float8_e4m3fn": "c10::Float8_e4m3fn",
    "Float8_e5m2": "c10::Float8_e5m2",
    "Long": "long int",
    "Int": "int",
    "Char": "signed char",
    "Byte": "unsigned char",
    "Bool": "bool",
}
"""Data types as recorded for inputs of operators, by their names in records of collectives."""


@dataclass(frozen=True)
class KinetoFrames:
    """The frames of one trace, whose kernels, calls, memory operations and ranges are each in order of start."""

    trace: KinetoTrace

    # ------------------------------------------------------------ events by table

    @cached_property
    def kernels(self) -> KinetoTrace:
        """The kernels; in a trace of the CPU alone, the operators that count as kernels."""
        return self.ranges.at(self._working_operators) if self.is_host_only else self._by_start(EventKind.KERNEL)

    @cached_property
    def is_host_only(self) -> bool:
        """Whether the trace is of the CPU alone."""
        return ran_on_host_only(self.trace)

    @cached_property
    def _working_operators(self) -> Integers:
        return select_working_operators(self.ranges)

    @cached_property
    def calls(self) -> KinetoTrace:
        """The calls of the runtime and the driver."""
        return self._by_start(EventKind.CALL)

    @cached_property
    def memory(self) -> KinetoTrace:
        """The copies and fills."""
        return self._by_start(EventKind.COPY, EventKind.SET)

    @cached_property
    def ranges(self) -> KinetoTrace:
        """The operators, annotations and modules, of equal starts the longer first."""
        rows = self.trace.find_rows(*RANGE_KINDS)
        start_ns = self.trace.start_ns[rows]
        order = range_order(start_ns, start_ns + self.trace.duration_ns[rows])
        return self.trace.at(rows if order is None else rows[order])

    def _by_start(self, *kinds: EventKind) -> KinetoTrace:
        rows = self.trace.find_rows(*kinds)
        order = start_order(self.trace.start_ns[rows])
        return self.trace.at(rows if order is None else rows[order])

    # ------------------------------------------------------------ correlation

    @cached_property
    def kernel_calls(self) -> Indexes:
        """The call that launched each kernel; NONE where it is not known."""
        return self._launching_calls(self.kernels)

    def _launching_calls(self, operations: KinetoTrace) -> Indexes:
        """Return the call that launched each operation, the first of several; NONE without one. A file is of one process."""
        calls = self.calls
        count = calls.process_number.size
        operation_process, call_process = (np.zeros(part.process_number.size, dtype=np.int32) for part in (operations, calls))
        found = match_calls(operation_process, _ids(operations), call_process, _ids(calls)[::-1].copy())
        return np.where(found == NULL_INDEX, NULL_INDEX, count - 1 - found).astype(np.int32)

    @cached_property
    def captured_calls(self) -> Indexes:
        """The call that captured each kernel of a CUDA graph; NONE for other kernels, and where the capture was not recorded."""
        calls, kernels, memory = self.calls, self.kernels, self.memory
        names = self._names[1]
        if not any(GRAPH_LAUNCH in name for name in names):
            return np.full(kernels.start_ns.size, NULL_INDEX, dtype=np.int32)
        is_set = memory.events.column(Field.KIND) == int(EventKind.SET)
        start_ns = np.concatenate([kernels.start_ns, memory.start_ns])
        order = np.argsort(start_ns, kind="stable")
        operations = DeviceOperations(
            call=np.concatenate([self.kernel_calls, self._launching_calls(memory)])[order],
            kind=np.concatenate([np.full(kernels.start_ns.size, KERNEL), np.where(is_set, SET, COPY)])[order].astype(np.int32),
            stream=np.concatenate([_device(kernels)["stream_index"], _device(memory)["stream_index"]])[order],
        )
        of_graphs = captured_calls(GraphCalls(self._name_indexes(calls), names.__getitem__, calls.thread_code), operations)
        found = np.full(start_ns.size, NULL_INDEX, dtype=np.int32)
        found[order] = of_graphs
        return found[: kernels.start_ns.size]

    @cached_property
    def placing(self) -> Attribution:
        """The nesting of the ranges and the attribution of the kernels."""
        ranges, calls = self.ranges, self.calls
        links = self.trace.select_kinds(EventKind.FORWARD_LINK)
        of_ranges, of_calls, of_links = factorize(ranges.thread_code, calls.thread_code, links.thread_code)
        column = ranges.events.column
        host = HostRanges(
            thread=of_ranges.codes,
            start_ns=ranges.start_ns,
            end_ns=ranges.start_ns + ranges.duration_ns,
            kind=column(Field.KIND),
            is_optimizer=(column(Field.KIND) == int(EventKind.ANNOTATION)) & self._is_optimizer[self._name_indexes(ranges)],
            sequence_number=column(Field.SEQUENCE_NUMBER),
            forward_thread=column(Field.FORWARD_THREAD),
        )
        flow = ForwardLinks(
            key=links.events.column(Field.FLOW_ID),
            is_start=links.events.column(Field.PHASE) == FLOW_START,
            thread=of_links.codes,
            time_ns=links.start_ns,
        )
        if self.is_host_only:
            rows = self._working_operators
            return replace(
                attribute_launches(host, flow, of_ranges.codes[rows], ranges.start_ns[rows]), operator_index=rows.astype(np.int32)
            )
        is_of_graph = self.captured_calls != NULL_INDEX
        placing_calls = np.where(is_of_graph, self.captured_calls, self.kernel_calls)
        found = attribute_launches(
            host, flow, _gather(of_calls.codes, placing_calls, NULL_INDEX), _gather(calls.start_ns, placing_calls, NULL)
        )
        return replace(found, source=np.where(is_of_graph & (found.range_index != NULL_INDEX), GRAPH, found.source).astype(np.int8))

    # ------------------------------------------------------------ processes and names

    @cached_property
    def _main_process(self) -> int:
        """The process with the most runtime calls, else the one with the most ranges, else 0."""
        for part in (self.calls, self.ranges):
            numbers, counts = np.unique(part.process_number, return_counts=True)
            numbers, counts = numbers[numbers != NULL], counts[numbers != NULL]
            if numbers.size > 0:
                return int(numbers[np.argmax(counts)])
        return 0

    @cached_property
    def _process_names(self) -> dict[int, str | None]:
        """The last name that each process was given, by its number."""
        events = self.trace.select_kinds(EventKind.PROCESS_NAME)
        tokens, texts = self.trace.events.tokens, self.trace.events.texts
        return {
            number: texts[label] if label != NULL and tokens[label].startswith(b'"') else None
            for number, label in zip(events.process_number.tolist(), events.events.column(Field.LABEL).tolist(), strict=True)
        }

    def _process_ids(self, part: KinetoTrace) -> Integers:
        """Return the process of each host event."""
        return np.where(part.process_number == NULL, self._main_process, part.process_number)

    def _launching_process_ids(self, call_indexes: Indexes) -> Integers:
        """Return the process of each device operation, whose event names the device instead: that of its call, else the main one."""
        return np.where(call_indexes == NULL_INDEX, self._main_process, _gather(self._process_ids(self.calls), call_indexes, 0))

    @cached_property
    def _names(self) -> tuple[Indexes, tuple[str, ...]]:
        """The row of trace_names for each token, and the names in that order."""
        tokens = self.trace.events.texts
        used = np.zeros(len(tokens) + 1, dtype=np.bool_)
        for part in (self.kernels, self.calls, self.ranges):
            used[part.events.column(Field.NAME)] = True
        indexes: dict[str, int] = {}
        table = np.zeros(len(tokens) + 1, dtype=np.int32)
        for token in np.flatnonzero(used[:-1]).tolist():
            table[token] = indexes.setdefault(tokens[token], len(indexes))
        if used[-1]:
            table[-1] = indexes.setdefault("", len(indexes))
        return table, tuple(indexes)

    @cached_property
    def _is_optimizer(self) -> NDArray[np.bool_]:
        """Whether each name is of PyTorch's own range around an optimizer."""
        return np.fromiter((name.startswith(OPTIMIZER_PREFIX) for name in self._names[1]), dtype=np.bool_, count=len(self._names[1]))

    def _name_indexes(self, part: KinetoTrace) -> Indexes:
        found: Indexes = self._names[0][part.events.column(Field.NAME)]
        return found

    # ------------------------------------------------------------ frames

    def all(self) -> dict[str, pl.DataFrame]:
        """Return the frames by table name."""
        return {
            KERNEL_LAUNCHES.table_name: self.kernel_launches(),
            API_CALLS.table_name: self.api_calls(),
            RANGES.table_name: self.range_rows(),
            MEMORY_OPS.table_name: self.memory_ops(),
            TRACE_DEVICES.table_name: self.trace_devices(),
            TRACE_PROCESSES.table_name: self.trace_processes(),
            TRACE_NAMES.table_name: self.trace_names(),
        }

    def trace_names(self) -> pl.DataFrame:
        """Return the rows of table trace_names."""
        names = self._names[1]
        return _frame(TRACE_NAMES, {"name_index": np.arange(len(names)), "name": pl.Series(names, dtype=TEXT)})

    def kernel_launches(self) -> pl.DataFrame:
        """Return the rows of table kernel_launches."""
        kernels, calls = self.kernels, self.kernel_calls
        column = kernels.events.column
        shared = column(Field.SHARED_BYTES)
        return _frame(
            KERNEL_LAUNCHES,
            {
                "launch_index": np.arange(calls.size),
                "name_index": self._name_indexes(kernels),
                "process_id": self._launching_process_ids(calls),
                **_device(kernels),
                **_times(kernels),
                "correlation_id": column(Field.CORRELATION_ID),
                "api_call_index": calls,
                "launch_thread_id": _thread_ids(kernels) if self.is_host_only else _gather(_thread_ids(self.calls), calls, NULL),
                "launch_start_ns": _gather(self.calls.start_ns, calls, NULL),
                "range_index": self.placing.range_index,
                "operator_index": self.placing.operator_index,
                "layer_source": pl.Series(SOURCES, dtype=TEXT).gather(self.placing.source),
                "graph_node_id": column(Field.GRAPH_NODE_ID),
                "process_group": self._tokens(column(Field.PROCESS_GROUP), _token_text, TEXT),
                "grid_x": column(Field.GRID_X),
                "grid_y": column(Field.GRID_Y),
                "grid_z": column(Field.GRID_Z),
                "block_x": column(Field.BLOCK_X),
                "block_y": column(Field.BLOCK_Y),
                "block_z": column(Field.BLOCK_Z),
                "registers_per_thread": column(Field.REGISTERS),
                # Kineto writes static and dynamic shared memory as one sum: the parts are known only if the sum is 0.
                "static_shared_bytes": np.where(shared == 0, 0, NULL),
                "dynamic_shared_bytes": np.where(shared == 0, 0, NULL),
                "shared_bytes": shared,
            },
        )

    def api_calls(self) -> pl.DataFrame:
        """Return the rows of table api_calls."""
        calls = self.calls
        return _frame(
            API_CALLS,
            {
                "call_index": np.arange(calls.process_number.size),
                "name_index": self._name_indexes(calls),
                "process_id": self._process_ids(calls),
                "thread_id": _thread_ids(calls),
                **_times(calls),
                "correlation_id": calls.events.column(Field.CORRELATION_ID),
            },
        )

    def range_rows(self) -> pl.DataFrame:
        """Return the rows of table ranges."""
        ranges, placing = self.ranges, self.placing
        column = ranges.events.column
        operators = column(Field.KIND) == EventKind.OPERATOR
        collectives = self._tokens(np.where(operators, column(Field.LABEL), NULL), _token_text, TEXT)
        collective_dtypes = self._tokens(np.where(operators, column(Field.COLLECTIVE_DTYPE), NULL), _token_text, TEXT)
        input_dtypes = self._tokens(column(Field.INPUT_DTYPES), _compact, TEXT)
        input_values = self._tokens(column(Field.INPUT_VALUES), _compact, TEXT)
        kinds = pl.Series([RANGE_KINDS.get(kind) for kind in EventKind], dtype=TEXT)
        return _frame(
            RANGES,
            {
                "range_index": np.arange(ranges.process_number.size),
                "name_index": self._name_indexes(ranges),
                "kind": kinds.gather(column(Field.KIND)),
                "process_id": self._process_ids(ranges),
                "thread_id": _thread_ids(ranges),
                **_times(ranges),
                "is_open": np.zeros(ranges.process_number.size, dtype=np.bool_),
                "parent_range_index": placing.parent,
                "depth": placing.depth,
                "sequence_number": np.where(column(Field.SEQUENCE_NUMBER) < 0, NULL, column(Field.SEQUENCE_NUMBER)),
                "is_backward": pl.Series([False, True, None], dtype=FLAG).gather(placing.is_backward),
                "flop": self._tokens(column(Field.FLOP), _number, NUMBER),
                "input_shapes": self._tokens(column(Field.INPUT_SHAPES), _compact, TEXT),
                "input_dtypes": _with_dtypes(input_dtypes, collectives, collective_dtypes),
                "input_values": _with_names(input_values, collectives),
            },
        )

    def memory_ops(self) -> pl.DataFrame:
        """Return the rows of table memory_ops."""
        memory, calls = self.memory, self._launching_calls(self.memory)
        is_copy = memory.events.column(Field.KIND) == EventKind.COPY
        return _frame(
            MEMORY_OPS,
            {
                "op_index": np.arange(calls.size),
                "kind": pl.Series(["set", "copy"], dtype=TEXT).gather(is_copy.astype(np.int32)),
                "direction": self._tokens(np.where(is_copy, memory.events.column(Field.NAME), NULL), _direction, TEXT),
                "process_id": self._launching_process_ids(calls),
                **_device(memory),
                **_times(memory),
                "bytes": memory.events.column(Field.BYTES),
                "correlation_id": memory.events.column(Field.CORRELATION_ID),
                "launch_start_ns": _gather(self.calls.start_ns, calls, NULL),
            },
        )

    def trace_devices(self) -> pl.DataFrame:
        """Return the rows of table trace_devices: the devices that something ran on."""
        used = set()
        for operations, calls in ((self.kernels, self.kernel_calls), (self.memory, self._launching_calls(self.memory))):
            used |= set(zip(self._launching_process_ids(calls).tolist(), _device(operations)["device_index"].tolist(), strict=True))
        document = self.trace.file.events.document
        rows = [
            {"process_id": process, "device_index": device}
            | ({"device_name": HOST_DEVICE} if self.is_host_only else _device_properties(document, device))
            for process, device in sorted(used)
            if device != NULL
        ]
        return (
            TRACE_DEVICES.conform(pl.LazyFrame(rows, schema=None if rows else TRACE_DEVICES.schema)).collect().drop("run_id", "event_index")
        )

    def trace_processes(self) -> pl.DataFrame:
        """Return the rows of table trace_processes."""
        used = {self._main_process}.union(*(np.unique(part.process_number).tolist() for part in (self.calls, self.ranges)))
        file = self.trace.file
        document = file.events.document
        rows = [
            {
                "process_id": number,
                "process_name": self._process_names.get(number),
                "system_process_id": number if 0 < number < TEXT_BASE else None,
                "rank_index": _distributed(document, "rank"),
                "world_size": _distributed(document, "world_size"),
                "host_name": _host_name(document),
                "file_name": file.file_name,
                "session_start_unix_ns": self.trace.session_start_unix_ns,
            }
            for number in sorted(used - {NULL})
        ]
        return TRACE_PROCESSES.conform(pl.LazyFrame(rows, infer_schema_length=None)).collect().drop("run_id", "event_index")

    def _tokens(self, tokens: Integers, read: Any, dtype: Any) -> pl.Series:
        """Return a column of values read from tokens, each token once."""
        (column,) = factorize(tokens)
        raw = self.trace.events.tokens
        values = [None if token < 0 else read(raw[token]) for token in column.keys.tolist()]
        return pl.Series(values, dtype=dtype, strict=False).gather(column.codes)


def _frame(table: Table, columns: Mapping[str, NDArray[Any] | pl.Series]) -> pl.DataFrame:
    """Return the columns in the table's order and types. NULL, NONE (of indexes) and values that do not fit become null."""
    height = max((len(values) for values in columns.values()), default=0)
    return pl.DataFrame(
        [
            _series(column, columns[column.name])
            if column.name in columns
            else pl.repeat(None, height, dtype=column.dtype, eager=True).alias(column.name)
            for column in table.columns[2:]
        ]
    )


def _series(column: Column, values: NDArray[Any] | pl.Series) -> pl.Series:
    found = pl.Series(column.name, values)
    if isinstance(values, np.ndarray) and values.dtype != np.bool_:
        is_null = values == (NULL_INDEX if values.dtype == np.int32 else NULL)
        found = found.set(pl.Series(is_null), None) if bool(is_null.any()) else found
    return found.cast(column.dtype, strict=False)


def _device(operations: KinetoTrace) -> dict[str, Integers]:
    """Return device and stream of the operations by their arguments, else by process and thread of their events."""
    device, stream = operations.events.column(Field.DEVICE_INDEX), operations.events.column(Field.STREAM_INDEX)
    device = np.where(operations.events.column(Field.KIND) == EventKind.OPERATOR, HOST_INDEX, device)
    device = np.where((device == NULL) & (operations.process_number >= 0), operations.process_number, device)
    device = np.where(abs(device) < INDEX_LIMIT, device, NULL)
    stream = np.where((stream == NULL) & (operations.thread_number < TEXT_BASE), operations.thread_number, stream)
    return {"device_index": device, "stream_index": stream}


def _times(part: KinetoTrace) -> dict[str, Integers]:
    return {"start_ns": part.start_ns, "duration_ns": part.duration_ns}


def _ids(part: KinetoTrace) -> Integers:
    column = part.events.column(Field.CORRELATION_ID)
    return np.where(column == NULL, NO_ID, column)


def _thread_ids(part: KinetoTrace) -> Integers:
    return np.where(part.thread_number >= TEXT_BASE, NULL, part.thread_number)


def _gather(values: NDArray[Any], indexes: Indexes, default: int) -> NDArray[Any]:
    """Return the values at these indexes, with a default where the index is NONE."""
    if values.size == 0:
        return np.full(indexes.size, default, dtype=values.dtype)
    return np.where(indexes == NULL_INDEX, default, values[indexes]).astype(values.dtype)


# ------------------------------------------------------------ values of tokens; None for values of another type


def _number(token: bytes) -> float | None:
    value = decoded(token)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _compact(token: bytes) -> str:
    return json.dumps(decoded(token), separators=(",", ":"))


def _token_text(token: bytes) -> str | None:
    return _text(decoded(token))


def _direction(name: str) -> str | None:
    words = name.split()
    return DIRECTIONS.get(words[1]) if len(words) > 1 else None


# ------------------------------------------------------------ other members of the document, which may hold any JSON


def _device_properties(document: Mapping[str, Any], device_index: int) -> dict[str, Any]:
    """Return columns of trace_devices by name; none if the device is not described."""
    properties = document.get("deviceProperties")
    for device in properties if isinstance(properties, list) else ():
        if isinstance(device, dict) and device.get("id") == device_index:
            major, minor = device.get("computeMajor"), device.get("computeMinor")
            return {
                "device_name": _text(device.get("name")),
                "compute_capability": f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
                "sm_count": _integer(device.get("numSms"), INDEX_LIMIT),
                "memory_bytes": _integer(device.get("totalGlobalMem"), COUNT_LIMIT),
            }
    return {}


def _distributed(document: Mapping[str, Any], name: str) -> int | None:
    """Return a number of the distributed job that the process is part of: its "rank" or the "world_size"."""
    info = document.get("distributedInfo")
    value = info.get(name) if isinstance(info, dict) else None
    return _integer(int(value) if isinstance(value, str) and INTEGER_TEXT.fullmatch(value) else value, INDEX_LIMIT)


def _host_name(document: Mapping[str, Any]) -> str | None:
    return _text(document.get("host_name"))


def _text(value: object) -> str | None:
    return replace_surrogates(value) if isinstance(value, str) else None


def _integer(value: object, limit: int) -> int | None:
    """Return the value if it is an integer of a magnitude below the limit, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit else None


# ------------------------------------------------------------ collectives

# The operator record_param_comms has its name as an input, which the profiler omits like all strings, and lists of tensors, whose types
# it omits. Both are in further arguments, from which they are inserted into the inputs here.


def _with_names(input_values: pl.Series, collectives: pl.Series) -> pl.Series:
    """Insert the names of collectives into input_values (JSON). collectives: name of each row's collective, null if it is none."""
    return _insert(input_values, collectives, NAME_INDEX, lambda recorded, name: name if recorded == "" else recorded)


def _with_dtypes(input_dtypes: pl.Series, collectives: pl.Series, dtypes: pl.Series) -> pl.Series:
    """Insert the common data type of a list of tensors into input_dtypes (JSON)."""
    known = dtypes.replace_strict(DTYPES, default=None, return_dtype=pl.String).set(collectives.is_null(), None)
    return _insert(input_dtypes, known, 0, lambda recorded, dtype: dtype if recorded == TENSOR_LIST else recorded)


def _insert(recorded: pl.Series, texts: pl.Series, position: int, merge: Callable[[Any, str], Any]) -> pl.Series:
    """Return the recorded lists (JSON) with the value at a position merged with the row's text, if there is one."""
    rows = (recorded.is_not_null() & texts.is_not_null()).arg_true()
    if rows.is_empty():
        return recorded
    found = []
    for list_text, text in zip(recorded.gather(rows), texts.gather(rows), strict=True):
        values = json.loads(list_text)
        if isinstance(values, list) and position < len(values):
            values[position] = merge(values[position], text)
        found.append(json.dumps(values, separators=(",", ":")))
    return recorded.clone().scatter(rows, found)
