"""Reads what Triton's Proton writes: a tree of scopes with sums over the launches of each kernel in them (hatchet JSON).

A document is a list: the tree, then what is known of the devices. A node with a time is a kernel; nodes around it are its
scopes. No launch has a time of its own, so what becomes of it are rows of sums, not launches. Flop and bytes that a launch
hook or a user stated stand on the kernel or on a scope around it; Proton adds them up over the tree, and so does this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles, TraceNames
from kernalyse.services.analyzer.readers.documents import JsonObject, read_list
from kernalyse.services.analyzer.tables.traces import KERNEL_TOTALS, SCOPES, TRACE_DEVICES, TRACE_NAMES, TRACE_PROCESSES
from kernalyse.services.core.errors import InvalidTraceError

FORMAT: Final = "proton"

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{\s*\"(?:children|frame|metrics)\"\s*:")

TIMES: Final = ("time (ns)", "Time (ns)")
COUNTS: Final = ("count", "Count")
DEVICE_IDS: Final = ("device_id", "DeviceId")
DEVICE_TYPES: Final = ("device_type", "DeviceType")
BYTES: Final = "bytes"
FLOP: Final[Mapping[str, str | None]] = {
    "flops": None,
    "flops8": "float8",
    "flops16": "float16",
    "flops32": "float32",
    "flops64": "float64",
}
"""Flop by the width of their inputs, and the data type of that width."""

KNOWN_METRICS: Final = {*TIMES, *COUNTS, *DEVICE_IDS, *DEVICE_TYPES, BYTES, *FLOP}
PROCESS_ID: Final = 0
MAX_COUNT: Final = 2**63 - 1
HZ_PER_KHZ: Final = 1000
TRANSFERS_PER_CLOCK: Final = 2
"""Of memory of double data rate, which all of these devices have."""


class ProtonReader:
    """Reader of Triton Proton's profiles."""

    format = FORMAT
    description = "a profile of Triton's Proton (hatchet JSON)"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        return OPENING.match(head) is not None and b'"frame"' in head

    def read(self, files: TraceFiles) -> ReadResult:
        """Raises InvalidTraceError: no whole JSON, or a node that is none."""
        roots, devices = _parts(read_list(files), files.file_name)
        tree = _Tree(files.file_name)
        for index, root in enumerate(roots):
            tree.add(JsonObject(f"file {files.file_name}, tree {index}", root))
        tree.share_work()
        return tree.tables(devices)


def _parts(document: list[Any], file_name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trees, and objects that describe devices."""
    for index, part in enumerate(document):
        if not isinstance(part, dict):
            raise InvalidTraceError(
                f"file {file_name}, element {index}",
                found="something else than an object",
                expected="a tree of scopes, or what is known of the devices",
                remedy="Give the file as Proton wrote it.",
            )
    trees = [part for part in document if "frame" in part or "children" in part]
    return trees, [part for part in document if part not in trees]


# ---------------------------------------------------------------- the tree


@dataclass(slots=True)
class _Work:
    """Sums of one node alone. dtypes: of its flop; None among them: a width was not stated."""

    flop: float | None = None
    bytes: float | None = None
    dtypes: frozenset[str | None] = frozenset()

    @property
    def is_stated(self) -> bool:
        return self.flop is not None or self.bytes is not None

    def add(self, other: _Work, share_ratio: float) -> None:
        if other.flop is not None:
            self.flop = (self.flop or 0.0) + other.flop * share_ratio
            self.dtypes |= other.dtypes
        if other.bytes is not None:
            self.bytes = (self.bytes or 0.0) + other.bytes * share_ratio

    @property
    def dtype(self) -> str | None:
        return next(iter(self.dtypes)) if len(self.dtypes) == 1 else None


@dataclass(slots=True)
class _Scope:
    name_index: int
    parent: int | None
    depth: int
    work: _Work
    kernels: list[int] = field(default_factory=list)  # of the whole subtree, where there is work to share among them


@dataclass(slots=True)
class _Kernel:
    name_index: int
    scope: int | None
    device: tuple[str, int] | None
    launch_count: int
    duration_sum_ns: int
    work: _Work
    is_stated: bool  # by its own node


class _Tree:
    """Scopes and kernels as they come; scopes before what they hold."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name
        self._names = TraceNames({})
        self._scopes: list[_Scope] = []
        self._kernels: list[_Kernel] = []
        self._left_out: Counter[str] = Counter()
        self._unplaced_count = 0  # nodes whose work belongs to no kernel

    def add(self, root: JsonObject) -> None:
        """The root stands for the program; it is no scope of it."""
        waiting: list[tuple[JsonObject, int | None]] = [(root, None)]
        is_root = True
        while waiting:
            node, parent = waiting.pop()
            children = node.optional_objects("children")
            metrics = node.optional_object("metrics")
            name_index = self._names.index_of(node.object("frame").text("name"))
            work = _work(metrics)
            self._left_out.update(name for name in metrics.members if name not in KNOWN_METRICS)
            kernel = None if is_root else self._kernel(metrics, name_index, parent, work)
            if kernel is not None:
                self._keep(kernel)
            scope = parent
            if not is_root and children:
                scope = self._add_scope(name_index, parent, _Work() if kernel is not None else work)
            elif kernel is None and work.is_stated and (work.flop or work.bytes):
                self._unplaced_count += 1
            waiting += [(child, scope) for child in reversed(children)]
            is_root = False

    def _add_scope(self, name_index: int, parent: int | None, work: _Work) -> int:
        depth = 0 if parent is None else self._scopes[parent].depth + 1
        self._scopes.append(_Scope(name_index, parent, depth, work))
        return len(self._scopes) - 1

    def _kernel(self, metrics: JsonObject, name_index: int, scope: int | None, work: _Work) -> _Kernel | None:
        """None: the node has no time, or nothing was launched."""
        duration_ns = _count(metrics, TIMES)
        if duration_ns is None:
            return None
        launch_count = _count(metrics, COUNTS)
        if launch_count is None:
            metrics.refuse(COUNTS[0], "how often the kernel was launched")
        if launch_count == 0 and duration_ns == 0:
            return None
        return _Kernel(name_index, scope, _device(metrics), launch_count, duration_ns, work, work.is_stated)

    def _keep(self, kernel: _Kernel) -> None:
        scope = kernel.scope
        while scope is not None:
            if self._scopes[scope].work.is_stated:
                self._scopes[scope].kernels.append(len(self._kernels))
            scope = self._scopes[scope].parent
        self._kernels.append(kernel)

    def share_work(self) -> None:
        """Work stated for a scope goes to its kernels by their time: to those that nothing nearer states any for, else to all."""
        stated = {index for index, kernel in enumerate(self._kernels) if kernel.is_stated}
        for scope in reversed(self._scopes):  # inner ones first
            if not scope.work.is_stated:
                continue
            receiving = [index for index in scope.kernels if index not in stated] or scope.kernels
            total_ns = sum(self._kernels[index].duration_sum_ns for index in receiving)
            for index in receiving:
                duration_ns = self._kernels[index].duration_sum_ns
                self._kernels[index].work.add(scope.work, duration_ns / total_ns if total_ns else 1 / len(receiving))
            stated.update(receiving)
            if not receiving and (scope.work.flop or scope.work.bytes):
                self._unplaced_count += 1

    # ------------------------------------------------------------ what becomes of it

    def tables(self, devices: list[dict[str, Any]]) -> ReadResult:
        totals = [
            {
                "name_index": kernel.name_index,
                "scope_index": kernel.scope,
                "process_id": PROCESS_ID,
                "device_index": None if kernel.device is None else kernel.device[1],
                "launch_count": kernel.launch_count,
                "duration_sum_ns": kernel.duration_sum_ns,
                "flop": kernel.work.flop,
                "bytes": kernel.work.bytes,
                "dtype": kernel.work.dtype,
            }
            for kernel in self._kernels
        ]
        scopes = [
            {"scope_index": index, "name_index": scope.name_index, "parent_scope_index": scope.parent, "depth": scope.depth}
            for index, scope in enumerate(self._scopes)
        ]
        used = sorted({kernel.device for kernel in self._kernels if kernel.device is not None})
        frames = {
            TRACE_NAMES: self._names.frame(),
            TRACE_PROCESSES: TRACE_PROCESSES.own_rows([{"process_id": PROCESS_ID, "file_name": self._file_name}]),
            TRACE_DEVICES: TRACE_DEVICES.own_rows(_device_rows(devices, used)),
            SCOPES: SCOPES.own_rows(scopes),
            KERNEL_TOTALS: KERNEL_TOTALS.own_rows(totals),
        }
        return ReadResult({table.table_name: frame for table, frame in frames.items()}, notes="\n".join(self._notes()))

    def _notes(self) -> Iterator[str]:
        launch_count = sum(kernel.launch_count for kernel in self._kernels)
        yield f"Proton profile of {launch_count} launches in {len(self._kernels)} sums and {len(self._scopes)} scopes."
        if not self._kernels:
            yield "It has no kernels: no device was traced, or nothing ran on one."
            return
        yield "It has sums over launches only: median, shortest and longest launch, gaps and the breakdown are not known."
        if self._unplaced_count:
            yield f"Flop or bytes of {self._unplaced_count} scopes without a kernel are left out."
        if self._left_out:
            yield f"Left out, for no table holds them: {', '.join(f'{name} of {count} nodes' for name, count in self._left_out.items())}."


# ---------------------------------------------------------------- one node


def _stated(metrics: JsonObject, names: Iterable[str]) -> list[str]:
    """Those of the names that have a value."""
    return [name for name in names if metrics.members.get(name) is not None]


def _number(metrics: JsonObject, name: str, most: int) -> int | float:
    value = metrics.members[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        metrics.refuse(name, "a number from 0 on")
    return value


def _count(metrics: JsonObject, names: tuple[str, ...]) -> int | None:
    """The first of these. Some versions write whole numbers with a fraction of zero."""
    return next((round(_number(metrics, name, MAX_COUNT)) for name in _stated(metrics, names)), None)


def _work(metrics: JsonObject) -> _Work:
    amounts = {name: float(_number(metrics, name, MAX_COUNT**2)) for name in _stated(metrics, (*FLOP, BYTES))}
    moved_bytes = amounts.pop(BYTES, None)
    return _Work(sum(amounts.values()) if amounts else None, moved_bytes, frozenset(FLOP[name] for name, flop in amounts.items() if flop))


def _device(metrics: JsonObject) -> tuple[str, int] | None:
    kind = next((metrics.members[name] for name in DEVICE_TYPES if name in metrics.members), "")
    for name in _stated(metrics, DEVICE_IDS):
        number = str(metrics.members[name])
        if not re.fullmatch(r"\d{1,9}", number, re.ASCII):
            metrics.refuse(name, "the number of a device")
        return str(kind), int(number)
    return None


# ---------------------------------------------------------------- devices


def _device_rows(devices: list[dict[str, Any]], used: list[tuple[str, int]]) -> list[dict[str, Any]]:
    rows = []
    for kind, index in used:
        described: dict[str, Any] = next((part[kind] for part in devices if isinstance(part.get(kind), dict)), {})
        own = described.get(str(index))
        rows.append({"process_id": PROCESS_ID, "device_index": index} | _described(own if isinstance(own, dict) else {}))
    return rows


def _described(device: dict[str, Any]) -> dict[str, Any]:
    """Clocks are kilohertz, widths bits: bandwidth is what both allow."""
    memory_khz, width_bits = _whole(device.get("memory_clock_rate")), _whole(device.get("bus_width"))
    clock_khz = _whole(device.get("clock_rate"))
    arch = str(device.get("arch", ""))
    is_capability = re.fullmatch(r"\d{2,3}", arch, re.ASCII) is not None
    return {
        "device_name": arch if arch and not is_capability else None,
        "compute_capability": f"{arch[:-1]}.{arch[-1]}" if is_capability else None,
        "sm_count": _whole(device.get("num_sms")),
        "clock_hz": None if clock_khz is None else clock_khz * HZ_PER_KHZ,
        "memory_bandwidth_bytes_per_s": None
        if memory_khz is None or width_bits is None
        else TRANSFERS_PER_CLOCK * memory_khz * HZ_PER_KHZ * width_bits // 8,
    }


def _whole(value: object) -> int | None:
    is_fit = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    return value if is_fit and isinstance(value, int) else None
