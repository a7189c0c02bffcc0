"""Reads the JSON that NVBench writes (--json, --jsonbin; format version 1), all states of all devices.

A state becomes a configuration for its isolated launches (cold) and a second one for its batch (hot); axes of integers
become parameters, other axes the variant. A skipped state is a configuration that failed, for the reason given. What no
column holds is kept, as it stands in the file, as lines of the log.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from services.analyzer.event_rows import frame_of
from services.analyzer.readers.json_document import JsonObject, read_document
from services.analyzer.readers.nvbench_state import MAX_FIGURE, Row, State, StateSamples, as_line, lines_of
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.analyzer.schema import CEILINGS, CONFIGURATIONS, FAILURES, LOG_LINES, MEASUREMENTS, SAMPLES
from services.analyzer.table import COUNT, TEXT
from services.core.errors import InvalidTraceError
from services.core.model import LogLevel

FORMAT: Final = "nvbench"
READ_MAJOR: Final = 1
WRITER: Final = "kernalyse"
"""Among the versions of a file that this project exported."""

SKIPPED: Final = "SKIPPED"
NOT_TIMED: Final = "NO_GPU_TIME"
FAILURE_CODE: Final = "FAILED_PRECONDITION"
KEPT_ELSEWHERE: Final = ("name", "states")
BANDWIDTH: Final = "global_memory_bus_bandwidth"


class NvbenchReader:
    format = FORMAT
    description = "NVBench JSON"

    def matches(self, head: bytes) -> bool:
        return re.match(rb"\s*\{", head) is not None and b'"devices"' in head and b'"benchmarks"' in head

    def read(self, files: TraceFiles) -> ImportedTables:
        document = read_document(files)
        version = _version(document)
        devices = _devices(document)
        reading = _Reading(files, devices, has_modes=WRITER in _versions(document))
        for index, benchmark in enumerate(document.objects("benchmarks")):
            reading.add_benchmark(JsonObject(f"file {files.file_name}, benchmark {index}", benchmark.members))
        if not reading.configurations:
            raise InvalidTraceError(
                f"file {files.file_name}", found="no state of any benchmark", expected="at least one", remedy="Run the benchmarks first."
            )
        return ImportedTables(
            frames=reading.frames(_document_lines(document, devices)),
            notes="\n".join(reading.notes(version, document)),
            device_id=next(iter(reading.device_ids)) if len(reading.device_ids) == 1 else None,
        )


# ---------------------------------------------------------------- the file


def _version(document: JsonObject) -> str:
    """Of the format. A file without one is older than versions; its structure tells whether it can be read."""
    found = _versions(document).get("json")
    if not isinstance(found, dict):
        return "none"
    version = JsonObject(f"{document.place}: version of the format", found)
    if version.count("major") != READ_MAJOR:
        raise InvalidTraceError(
            document.place,
            found=f"NVBench JSON of version {version.optional_text('string') or version.count('major')}",
            expected=f"version {READ_MAJOR}",
            remedy="Import it with a version of kernalyse that knows it.",
        )
    return version.optional_text("string") or str(READ_MAJOR)


def _versions(document: JsonObject) -> dict[str, Any]:
    """Of the format and of what wrote it, by name."""
    meta = document.members.get("meta")
    found = meta.get("version") if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def _axis_texts(benchmark: JsonObject) -> dict[str, dict[str, str]]:
    """How values are written, by axis and value: a float64 axis has 0.0003 where its states have 0.00030000000000000003."""
    return {
        axis.text("name"): {str(value.members.get("value")): value.text("input_string") for value in axis.objects("values")}
        for axis in benchmark.optional_objects("axes")
        if axis.optional_text("type") == "float64"
    }


@dataclass(frozen=True, slots=True)
class _Device:
    """device_id: its name, with its number where several have the same."""

    device_id: str
    source: JsonObject


def _devices(document: JsonObject) -> dict[int, _Device]:
    """By the number that states name them with."""
    sources = document.optional_objects("devices")
    counts = Counter(source.text("name") for source in sources)
    return {
        source.count("id"): _Device(
            source.text("name") if counts[source.text("name")] == 1 else f"{source.text('name')} [{source.count('id')}]", source
        )
        for source in sources
    }


def _document_lines(document: JsonObject, devices: dict[int, _Device]) -> list[str]:
    meta = document.members.get("meta")
    return [
        *([as_line("meta", meta)] if meta is not None else []),
        *(as_line(f"device {device.device_id}", device.source.members) for device in devices.values()),
        *lines_of("document", {name: value for name, value in document.members.items() if name not in ("meta", "devices", "benchmarks")}),
    ]


def _ceilings(devices: dict[int, _Device]) -> pl.DataFrame:
    """The bandwidth that the driver states, which NVBench's own utilization refers to."""
    rows = [
        {
            "device_id": device.device_id,
            "ceiling_name": "dram",
            "unit": "bytes_per_s",
            "value": float(value),
            "path": "copy",
            "source": "clock",
            "confidence": "",
            "note": "NVBench: memory clock x bus width, as the driver states them",
        }
        for device in devices.values()
        if isinstance(value := device.source.members.get(BANDWIDTH), int | float) and 0 < value < MAX_FIGURE
    ]
    return frame_of(CEILINGS, rows)


# ---------------------------------------------------------------- benchmarks and states


@dataclass(slots=True)
class _Reading:
    """Rows as they are found."""

    files: TraceFiles
    devices: dict[int, _Device]
    has_modes: bool
    configurations: list[Row] = field(default_factory=list)
    measurements: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    samples: list[pl.DataFrame] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    missing_files: list[str] = field(default_factory=list)
    leftover_names: Counter[str] = field(default_factory=Counter)
    device_ids: dict[str, None] = field(default_factory=dict)
    isolated_count: int = 0

    def add_benchmark(self, benchmark: JsonObject) -> None:
        name = benchmark.text("name")
        settings = {key: value for key, value in benchmark.members.items() if key not in KEPT_ELSEWHERE}
        self.lines += lines_of(f"benchmark {name}", settings)
        axis_texts = _axis_texts(benchmark)
        for index, source in enumerate(benchmark.optional_objects("states")):
            place = f"file {self.files.file_name}, benchmark {name}, state {index}"
            self._add_state(name, State(JsonObject(place, source.members), self.files, axis_texts, self.has_modes), settings)

    def _add_state(self, kernel_name: str, state: State, settings: dict[str, Any]) -> None:
        device_id = self._device_id(state.source)
        cold, batch = state.cold(), state.batch()
        both = cold is not None and batch is not None
        if cold is not None:
            row, samples = cold
            self._add_measurement(kernel_name, state, device_id, row, "cold" if both else "")
            self._add_samples(samples)
            self.isolated_count += 1
        if batch is not None:
            self._add_measurement(kernel_name, state, device_id, batch, "hot" if both else "")
        if cold is None and batch is None:
            self._add_failure(kernel_name, state)
        leftovers = state.leftovers(settings, has_cold=cold is not None, has_batch=batch is not None)
        self.leftover_names.update(leftovers.keys())
        self.missing_files += state.missing_files.values()
        self.lines += lines_of(f"{kernel_name} {state.source.optional_text('name') or ''}".rstrip(), leftovers)

    def _device_id(self, source: JsonObject) -> str | None:
        number = source.optional_count("device")
        if number is None:
            return None
        if number not in self.devices:
            source.refuse("device", f"one of {', '.join(map(str, self.devices)) or 'none: the file has no devices'}")
        device_id = self.devices[number].device_id
        self.device_ids[device_id] = None
        return device_id

    def _add_configuration(self, kernel_name: str, state: State, extra: str, columns: Row) -> Row:
        parameters = state.parameters()
        variant = " ".join(part for part in (state.variant(), extra) if part)
        label = " ".join((kernel_name, *(f"{name}={value}" for name, value in parameters.items()), *([variant] if variant else ())))
        row: Row = {
            "configuration_index": len(self.configurations),
            "kernel_name": kernel_name,
            "label": label,
            "parameters": json.dumps(parameters),
            "variant": variant,
            "bytes": state.bytes(),
            **columns,
        }
        self.configurations.append(row)
        return row

    def _add_measurement(self, kernel_name: str, state: State, device_id: str | None, columns: Row, extra: str) -> None:
        configuration = self._add_configuration(kernel_name, state, extra, {"cache_mode": columns["cache_mode"]})
        self.measurements.append(configuration | {"device_id": device_id} | columns)

    def _add_samples(self, samples: StateSamples | None) -> None:
        """Of the configuration added last."""
        if samples is None:
            return
        count = samples.duration_ns.size
        columns = {
            "configuration_index": pl.repeat(len(self.configurations) - 1, count, dtype=COUNT, eager=True),
            "sample_index": np.arange(count),
            "duration_ns": samples.duration_ns,
            "is_discarded": np.zeros(count, dtype=np.bool_),
        }
        if samples.sm_clock_hz is not None:
            columns["sm_clock_hz"] = np.rint(samples.sm_clock_hz).astype(np.int64)
        self.samples.append(SAMPLES.conform(pl.LazyFrame(columns)).collect())

    def _add_failure(self, kernel_name: str, state: State) -> None:
        configuration = self._add_configuration(kernel_name, state, "", {})
        reason = (
            (SKIPPED, state.skip_reason) if state.skip_reason else (NOT_TIMED, "The state has no GPU time; its figures are in the log.")
        )
        row = {"code": FAILURE_CODE, "reason": reason[0], "message": reason[1]}
        self.failures.append({name: configuration[name] for name in ("configuration_index", "label")} | row)

    # ------------------------------------------------------------ all of it

    def frames(self, document_lines: list[str]) -> dict[str, pl.DataFrame]:
        lines = pl.LazyFrame({"line": [*document_lines, *self.lines]}, schema={"line": TEXT}).with_columns(
            event_unix_ns=pl.lit(self.files.arrived_unix_ns), level=pl.lit(LogLevel.INFO.value), source=pl.lit(FORMAT)
        )
        return {
            CONFIGURATIONS.table_name: frame_of(CONFIGURATIONS, self.configurations),
            SAMPLES.table_name: pl.concat([SAMPLES.empty(), *self.samples]),
            MEASUREMENTS.table_name: frame_of(MEASUREMENTS, self.measurements),
            FAILURES.table_name: frame_of(FAILURES, self.failures),
            CEILINGS.table_name: _ceilings(self.devices),
            LOG_LINES.table_name: LOG_LINES.conform(lines).collect(),
        }

    def notes(self, version: str, document: JsonObject) -> Iterator[str]:
        meta = document.members.get("meta")
        command = meta.get("argv") if isinstance(meta, dict) else None
        yield f"NVBench JSON, version {version}."
        if isinstance(command, list) and command:
            yield f"Command: {' '.join(map(str, command))}"
        yield f"Devices: {', '.join(self.device_ids) or 'none'}."
        batch_count = len(self.measurements) - self.isolated_count
        yield f"{self.isolated_count} isolated and {batch_count} batch measurements; {len(self.failures)} states without a measurement."
        if any(row.get("duration_median_ns") is None for row in self.measurements):
            yield "Where the file has no median, rates are over the mean."
        if self.missing_files:
            yield f"{len(self.missing_files)} files of samples were not beside it, e.g. {self.missing_files[0]}."
        if self.leftover_names:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.leftover_names.items()))
            yield f"Kept as log lines, for no column holds them: {names}."
