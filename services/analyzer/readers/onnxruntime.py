"""Reads profiles of ONNX Runtime (SessionOptions.enable_profiling): the nodes of a model, one call after the other.

A list of complete events of Chrome's kind: categories Session (runs of the model), Node (`NAME_kernel_time`, with operator,
provider and shapes) and, of builds that trace the GPU, Kernel. A node is a layer. On a provider whose kernels run while its
node does, the node is the kernel too; on one that only launches them, its time is the host's, and kernels are those of
category Kernel. A node around others, such as a loop, is a layer alone, or its time would count twice. What a node has to do
follows from its operator and the shapes that went in and came out (`onnx_models`); kernels of a device share it by their times.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, factorize, find_nesting, range_order
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles, TraceNames
from kernalyse.services.analyzer.readers.documents import JsonObject, read_list
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, LAUNCH_WORK, RANGES, TRACE_DEVICES, TRACE_NAMES, TRACE_PROCESSES
from kernalyse.services.core.costs.onnx import OnnxCall, onnx_cost
from kernalyse.services.core.costs.operator import MODELLED, OperatorCost
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.file_formats import FORMAT, KERNEL, LAUNCHING_PROVIDERS, MODEL_RUN, NODE, NODE_SUFFIX, NS_PER_US, SESSION

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{")
SIGN: Final = re.compile(rb'"cat"\s*:\s*"Session"')

UNKNOWN_PROVIDER: Final = "an unnamed provider"
MAX_TIME_US: Final = 2**61 // NS_PER_US


class OnnxRuntimeReader:
    """Reader of ONNX Runtime's profiles."""

    format = FORMAT
    description = "a profile of ONNX Runtime"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        return OPENING.match(head) is not None and SIGN.search(head) is not None

    def read(self, files: TraceFiles) -> ReadResult:
        """Raises InvalidTraceError: no whole JSON, or an event that is none."""
        reading = _Reading(files.file_name)
        for index, event in enumerate(read_list(files)):
            if not isinstance(event, dict):
                raise InvalidTraceError(
                    f"file {files.file_name}, event {index}",
                    found="something else than an object",
                    expected="an event",
                    remedy="Give the file as ONNX Runtime wrote it.",
                )
            reading.take(JsonObject(f"file {files.file_name}, event {index}", event))
        return reading.tables()


@dataclass(frozen=True, slots=True)
class _Event:
    """A stretch of a host thread, or of a device's stream. operator: what a node computes; node: that a kernel is of."""

    name: str
    process_id: int
    thread_id: int
    start_ns: int
    duration_ns: int
    arguments: dict[str, Any]

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns

    def text(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return value if isinstance(value, str) and value else None


@dataclass(slots=True)
class _Reading:
    """One file on its way to tables."""

    file_name: str
    sessions: list[_Event] = field(default_factory=list)
    nodes: list[_Event] = field(default_factory=list)
    kernels: list[_Event] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def take(self, event: JsonObject) -> None:
        category = event.members.get("cat")
        name = event.members.get("name")
        is_node = category == NODE and isinstance(name, str) and name.endswith(NODE_SUFFIX)
        if event.members.get("ph") != "X" or not (is_node or category in (SESSION, KERNEL)):
            self.left_out[str(category)] += 1
        elif is_node:
            self.nodes.append(_event(event))
        else:
            (self.sessions if category == SESSION else self.kernels).append(_event(event))

    def tables(self) -> ReadResult:
        names = TraceNames({})
        host = [(event, False) for event in self.sessions] + [(event, True) for event in self.nodes]
        ranges = _Ranges.of(host)
        launches = sorted(self._launches(ranges), key=lambda launch: launch.event.start_ns)
        work = _work(launches, ranges)
        devices = list(dict.fromkeys(launch.provider for launch in launches))
        frames = {
            RANGES: RANGES.own_rows(ranges.rows(names)),
            KERNEL_LAUNCHES: KERNEL_LAUNCHES.own_rows(
                launch.row(index, names, devices.index(launch.provider)) for index, launch in enumerate(launches)
            ),
            LAUNCH_WORK: work,
            TRACE_NAMES: names.frame(),
            TRACE_PROCESSES: TRACE_PROCESSES.own_rows(
                {"process_id": number, "system_process_id": number, "file_name": self.file_name} for number in self._process_ids()
            ),
            TRACE_DEVICES: TRACE_DEVICES.own_rows(
                {"process_id": number, "device_index": index, "device_name": provider}
                for number in self._process_ids()
                for index, provider in enumerate(devices)
            ),
        }
        notes = "\n".join(self._notes(ranges, launches, work.height))
        return ReadResult({table.table_name: frame for table, frame in frames.items()}, notes=notes)

    def _process_ids(self) -> list[int]:
        return list(dict.fromkeys(event.process_id for event in (*self.sessions, *self.nodes)))

    def _launches(self, ranges: _Ranges) -> Iterator[_Launch]:
        for row, event in enumerate(ranges.events):
            provider = event.text("provider")
            if ranges.is_node[row] and not ranges.holds_nodes[row] and provider not in LAUNCHING_PROVIDERS:
                yield _Launch(event.text("op_name") or _node_name(event), event, row, event.thread_id, provider or UNKNOWN_PROVIDER)
        last_rows = {_node_name(event): row for row, event in enumerate(ranges.events) if ranges.is_node[row]}
        own_process = self._process_ids()
        for event in self.kernels:
            parent = event.text("parent_name")
            of_node = None if parent is None else last_rows.get(parent.removesuffix(NODE_SUFFIX))
            provider = None if of_node is None else ranges.events[of_node].text("provider")
            # The recorder of the device knows no process: it is that of the session.
            placed = event if event.process_id in own_process or not own_process else _of_process(event, own_process[0])
            yield _Launch(event.name, placed, of_node, None, provider or UNKNOWN_PROVIDER)

    def _notes(self, ranges: _Ranges, launches: list[_Launch], worked_count: int) -> Iterator[str]:
        run_count = sum(event.name == MODEL_RUN for event in self.sessions)
        yield f"Profile of ONNX Runtime: {run_count} runs of the model, {len(self.nodes)} executions of nodes."
        if not self.nodes:
            yield "It has no nodes: no model was run while it was recorded."
        elif not launches:
            yield "It has no kernels: its providers only launch them, and this build of ONNX Runtime does not trace the device."
        else:
            yield "A node's time holds what recording it takes, some microseconds; sums of small nodes are too long by that."
        launching = Counter(provider for event in self.nodes if (provider := event.text("provider")) in LAUNCHING_PROVIDERS)
        for provider, count in launching.items():
            yield f"{count} nodes ran on {provider}: their times are those of launching, not of their kernels."
        if worked_count < len(launches):
            yield f"The work of {len(launches) - worked_count} executions is not known: no model of their operators, or no shapes."
        holding_count = int(ranges.holds_nodes.sum())
        if holding_count:
            yield f"{holding_count} executions of nodes hold others, as loops do: their time is counted for those."
        if self.left_out:
            yield f"Left out, for no table holds them: {', '.join(f'{count} of {name}' for name, count in self.left_out.items())}."


# ---------------------------------------------------------------- events


def _event(event: JsonObject) -> _Event:
    arguments = event.members.get("args")
    return _Event(
        event.text("name"),
        event.count("pid"),
        event.count("tid"),
        _ns(event, "ts"),
        _ns(event, "dur"),
        arguments if isinstance(arguments, dict) else {},
    )


def _ns(event: JsonObject, name: str) -> int:
    value = event.members.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= MAX_TIME_US:  # type: ignore[arg-type,operator]
        event.refuse(name, "microseconds from 0 on")
    return round(value * NS_PER_US)  # type: ignore[operator]


def _work(launches: list[_Launch], ranges: _Ranges) -> pl.DataFrame:
    """Return table launch_work.

    Kernels of a device name their node, but not which execution of it: they stand for all of them, at the last one's row.
    """
    found = NodeWork()
    last_rows = {event.name: row for row, event in enumerate(ranges.events) if ranges.is_node[row]}
    for row, event in enumerate(ranges.events):
        if ranges.is_node[row]:
            is_launching = event.text("provider") in LAUNCHING_PROVIDERS
            found.add_execution(last_rows[event.name] if is_launching else row, event.arguments)
    return found.rows([launch.range_row for launch in launches], [launch.event.duration_ns for launch in launches])


def _of_process(event: _Event, process_id: int) -> _Event:
    return _Event(event.name, process_id, event.thread_id, event.start_ns, event.duration_ns, event.arguments)


def _node_name(event: _Event) -> str:
    return event.name.removesuffix(NODE_SUFFIX)


def _types_and_shapes(event: _Event) -> tuple[str | None, str | None]:
    """Of the inputs, as JSON: shapes and data types. ONNX Runtime writes [{"float": [8, 64]}, …]; a constant may be missing."""
    recorded = event.arguments.get("input_type_shape")
    if not isinstance(recorded, list) or not all(isinstance(part, dict) and len(part) == 1 for part in recorded):
        return None, None
    pairs = [next(iter(part.items())) for part in recorded]
    return json.dumps([shape for _, shape in pairs]), json.dumps([dtype for dtype, _ in pairs])


@dataclass(frozen=True, slots=True)
class _Launch:
    """event: its time. range_row: of the node that it is of; None: not told."""

    kernel_name: str
    event: _Event
    range_row: int | None
    thread_id: int | None
    provider: str

    def row(self, launch_index: int, names: TraceNames, device_index: int) -> dict[str, Any]:
        return {
            "launch_index": launch_index,
            "name_index": names.index_of(self.kernel_name),
            "process_id": self.event.process_id,
            "device_index": device_index,
            "start_ns": self.event.start_ns,
            "duration_ns": self.event.duration_ns,
            "launch_thread_id": self.thread_id,
            "range_index": self.range_row,
            "layer_source": None if self.range_row is None else "node",
        }


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Events of host threads in the order of table ranges, and how they lie in each other."""

    events: list[_Event]
    is_node: list[bool]
    parent: np.ndarray[Any, np.dtype[np.int32]]
    depth: np.ndarray[Any, np.dtype[np.int32]]
    holds_nodes: np.ndarray[Any, np.dtype[np.bool_]]

    @classmethod
    def of(cls, host: list[tuple[_Event, bool]]) -> _Ranges:
        start_ns = np.array([event.start_ns for event, _ in host], dtype=np.int64)
        end_ns = np.array([event.end_ns for event, _ in host], dtype=np.int64)
        order = range_order(start_ns, end_ns)
        ordered = host if order is None else [host[index] for index in order]
        start_ns, end_ns = (times if order is None else times[order] for times in (start_ns, end_ns))
        (process,) = factorize(np.array([event.process_id for event, _ in ordered], dtype=np.int64))
        (thread,) = factorize(np.array([event.thread_id for event, _ in ordered], dtype=np.int64))
        (place,) = factorize(process.codes.astype(np.int64) * (thread.keys.size + 1) + thread.codes)
        counts = np.ones(len(ordered), dtype=np.bool_)
        nesting = find_nesting(place.codes, start_ns, end_ns, counts, np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
        is_node = [is_node for _, is_node in ordered]
        holds_nodes = np.zeros(len(ordered), dtype=np.bool_)
        parents = nesting.parent[np.array(is_node, dtype=np.bool_)]
        holds_nodes[parents[parents != NULL_INDEX]] = True
        return cls([event for event, _ in ordered], is_node, nesting.parent, nesting.depth, holds_nodes & np.array(is_node, dtype=np.bool_))

    def rows(self, names: TraceNames) -> Iterator[dict[str, Any]]:
        for row, (event, is_node) in enumerate(zip(self.events, self.is_node, strict=True)):
            shapes, dtypes = _types_and_shapes(event) if is_node else (None, None)
            yield {
                "range_index": row,
                "name_index": names.index_of(_node_name(event) if is_node else event.name),
                "kind": "operator" if is_node else "annotation",
                "process_id": event.process_id,
                "thread_id": event.thread_id,
                "start_ns": event.start_ns,
                "duration_ns": event.duration_ns,
                "is_open": False,
                "parent_range_index": None if self.parent[row] == NULL_INDEX else int(self.parent[row]),
                "depth": int(self.depth[row]),
                "input_shapes": shapes,
                "input_dtypes": dtypes,
            }


# ---------------------------------------------------------------- onnxruntime work
# What launches of an ONNX model have to do, from the operators and shapes of their nodes.

PATH = "fma"


@dataclass(slots=True)
class NodeWork:
    """Adds up what the executions of each node do and how long its launches take. A key tells nodes apart."""

    _models: dict[OnnxCall, OperatorCost | None] = field(default_factory=dict)
    _executions: dict[int, list[OperatorCost | None]] = field(default_factory=lambda: defaultdict(list))

    def add_execution(self, key: int, arguments: Mapping[str, Any]) -> None:
        """arguments: of its event."""
        call = OnnxCall.recorded(arguments)
        if call is not None and call not in self._models:
            self._models[call] = onnx_cost(call)
        self._executions[key].append(None if call is None else self._models[call])

    def rows(self, keys: Sequence[int | None], durations_ns: Sequence[int]) -> pl.DataFrame:
        """Table launch_work: of several launches with one key each has its part, by the times that they take.

        Args:
            keys, durations_ns: of the launches in their order; None: of no node.
        """
        totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for key, duration_ns in zip(keys, durations_ns, strict=True):
            if key is not None:
                totals[key][0] += duration_ns
                totals[key][1] += 1
        return LAUNCH_WORK.own_rows(self._rows(keys, durations_ns, totals))

    def _rows(self, keys: Sequence[int | None], durations_ns: Sequence[int], totals: Mapping[int, list[int]]) -> Iterator[dict[str, Any]]:
        for index, (key, duration_ns) in enumerate(zip(keys, durations_ns, strict=True)):
            parts = [] if key is None else self._executions.get(key, [])
            known = [part for part in parts if part is not None]
            if key is None or not known or len(known) < len(parts):
                continue
            total_ns, count = totals[key]
            share = duration_ns / total_ns if total_ns else 1 / count
            yield {
                "launch_index": index,
                "flop": _total([part.flop for part in known], share),
                "bytes": _total([part.bytes for part in known], share),
                "dtype": known[0].dtype,
                "path": PATH,
                "work_source": MODELLED,
            }


def _total(amounts: Sequence[float | None], share: float) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) * share if len(known) == len(amounts) else None
