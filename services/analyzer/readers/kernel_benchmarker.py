"""Reads benchmark_results.json, which scripts for KernelBenchmarker leave.

Written by this project its metrics are columns of the table measurements under their own names; of other writers' only kernel,
parameters, time and percentages are sure. Counters and percentages become rows of table counters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from services.analyzer.counter_tables import COUNTERS
from services.analyzer.event_rows import frame_of
from services.analyzer.readers.json_document import JsonObject, fits, is_count, read_document
from services.analyzer.readers.nvbench_state import lines_of
from services.analyzer.readers.result_rows import ResultRows, Row, label_of
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.analyzer.schema import MEASUREMENTS
from services.core.disturbance import SEPARATOR, disturbances
from services.core.model import Device, DeviceKind

FORMAT: Final = "kernel_benchmarker"
NS_PER_MS: Final = 1e6

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\{")
PERCENTAGES: Final = ("memory_throughput_pct", "compute_throughput_pct", "occupancy_pct", "sm_efficiency_pct")
EXTENT_COLUMNS: Final = ("block", "grid")
SET_HERE: Final = (
    "run_id",
    "event_index",
    "configuration_index",
    "kernel_name",
    "label",
    "parameters",
    "macros",
    "device_id",
    *EXTENT_COLUMNS,
)
PLAIN_COLUMNS: Final = {column.name: column for column in MEASUREMENTS.columns if column.name not in SET_HERE}
CONFIGURATION_COLUMNS: Final = ("dtype", "path", "flop", "bytes", "cache_mode", "dynamic_shared_memory_bytes", *EXTENT_COLUMNS)
COUNTER_NAME: Final = re.compile(r"[a-z0-9]+__\w+")
"""ncu's names, as in dram__bytes.sum."""


class KernelBenchmarkerReader:
    format = FORMAT
    description = "benchmark_results.json of KernelBenchmarker"

    def matches(self, head: bytes) -> bool:
        return OPENING.match(head) is not None and b'"benchmarks"' in head and b'"execution_time_ms"' in head

    def read(self, files: TraceFiles) -> ImportedTables:
        rows = ResultRows(FORMAT, files.arrived_unix_ns)
        counters: list[Row] = []
        devices: dict[str, str] = {}  # name by id
        for index, source in enumerate(read_document(files).objects("benchmarks")):
            benchmark = _Benchmark(JsonObject(f"file {files.file_name}, benchmark {index}", source.members))
            counters += benchmark.add(rows)
            if benchmark.device_id is not None:
                devices[benchmark.device_id] = benchmark.device_name or benchmark.device_id
        frames = rows.frames(files.file_name)
        frames[COUNTERS.table_name] = frame_of(COUNTERS, counters)
        return ImportedTables(
            frames=frames,
            notes="\n".join(_notes(rows, counters)),
            device_id=next(iter(devices)) if len(devices) == 1 else None,
            devices=tuple(Device(name, title, DeviceKind.GPU, ()) for name, title in devices.items() if name.startswith("cuda")),
        )


class _Benchmark:
    """One entry."""

    def __init__(self, source: JsonObject) -> None:
        self._source = source
        self._metrics = source.object("metrics") if source.members.get("metrics") is not None else JsonObject(source.place, {})
        self.device_id = self._text_of("device_id")
        self.device_name = self._text_of("device_name")

    def add(self, rows: ResultRows) -> list[Row]:
        """Its configuration and measurement, and what no column holds as lines; answers with its rows of counters."""
        kernel_name = self._source.text("kernel")
        parameters = self._parameters()
        found = self._columns()
        configuration: Row = {
            "kernel_name": kernel_name,
            "parameters": parameters,
            "label": label_of(kernel_name, parameters, ""),
            **{name: found.get(name) for name in CONFIGURATION_COLUMNS},
        }
        measured = {name: value for name, value in found.items() if name not in CONFIGURATION_COLUMNS}
        measured["disturbance"] = SEPARATOR.join(self._disturbances(found)) or None
        time_ms = self._source.optional_number("execution_time_ms")
        if time_ms is not None and time_ms <= 0:
            self._source.refuse("execution_time_ms", "a time over zero")
        if time_ms is not None and "duration_median_ns" not in found and "duration_mean_ns" not in found:
            measured["duration_mean_ns"] = time_ms * NS_PER_MS
        if time_ms is None and "duration_median_ns" not in found and "duration_mean_ns" not in found:
            rows.add_unmeasured(configuration, "It has no execution_time_ms.")
        else:
            rows.add(configuration, {"device_id": self.device_id} | measured)
        for line in lines_of(configuration["label"], self._leftovers(found)):
            rows.add_line(line)
        return self._counters(kernel_name, configuration, len(rows.configurations) - 1)

    def _parameters(self) -> dict[str, int]:
        values = self._source.object("parameters")
        return {name: _bounded(values, name) for name in values.members}

    def _text_of(self, name: str) -> str | None:
        value = self._metrics.members.get(name)
        return value if isinstance(value, str) else None

    def _columns(self) -> Row:
        """Metrics that are columns of the table measurements, with values that these can hold."""
        members = self._metrics.members
        found = {
            name: members[name]
            for name, column in PLAIN_COLUMNS.items()
            if members.get(name) is not None and fits(members[name], column.dtype)
        }
        for name in EXTENT_COLUMNS:
            extents = members.get(name)
            if isinstance(extents, list) and len(extents) == 3 and all(isinstance(extent, int) for extent in extents):
                found[name] = "x".join(map(str, extents))
        return found

    def _disturbances(self, found: Row) -> tuple[str, ...]:
        reasons = self._metrics.members.get("throttle_reasons")
        known = [reason for reason in reasons if isinstance(reason, str)] if isinstance(reasons, list) else []
        return disturbances(found.get("host_busy_ratio"), found.get("other_process_count"), known)

    def _leftovers(self, found: Row) -> dict[str, Any]:
        held = {*found, "device_id"}
        return {
            name: value
            for name, value in self._metrics.members.items()
            if name not in held and value is not None and not COUNTER_NAME.fullmatch(name.partition(".")[0])
        }

    def _counters(self, kernel_name: str, configuration: Row, index: int) -> list[Row]:
        shared = {"configuration_index": index, "launch_index": index, "kernel_name": kernel_name}
        shared |= {name: configuration[name] for name in EXTENT_COLUMNS}
        percentages = [(name, self._source.optional_number(name), "%") for name in PERCENTAGES]
        counted = [
            (name, self._metrics.optional_number(name), None)
            for name, value in self._metrics.members.items()
            if COUNTER_NAME.fullmatch(name.partition(".")[0]) and isinstance(value, int | float)
        ]
        return [
            shared | {"metric_name": name, "value": value, "unit": unit}
            for name, value, unit in (*percentages, *counted)
            if value is not None
        ]


def _bounded(values: JsonObject, name: str) -> int:
    value = values.count(name)
    return value if is_count(value) else values.refuse(name, "a whole number of 64 bits")


def _notes(rows: ResultRows, counters: list[Row]) -> Iterator[str]:
    yield f"{len(rows.configurations)} benchmarks, {len(rows.failures)} of them without a time."
    if any("duration_median_ns" not in row for row in rows.measurements):
        yield "Where the file has no median, its execution_time_ms counts as a mean."
    if counters:
        yield "Percentages and counters are rows of table counters."
