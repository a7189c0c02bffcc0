"""Read the files of KernelBenchmarker and of the model dashboards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import JsonObject, fits, is_count, read_document
from kernalyse.services.analyzer.readers.nvbench import as_line, lines_of
from kernalyse.services.analyzer.readers.result_rows import ResultRows, Row, label_of
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import COUNTERS, MEASUREMENTS
from kernalyse.services.core.disturbance import SEPARATOR, disturbances
from kernalyse.services.core.model import Device, DeviceKind

# ---------------------------------------------------------------- kernel benchmarker
# Reads benchmark_results.json, which scripts for KernelBenchmarker leave.
#
# Written by this project its metrics are columns of the table measurements under their own names; of other writers' only kernel,
# parameters, time and percentages are sure. Counters and percentages become rows of table counters.

KERNEL_BENCHMARKER_FORMAT: Final = "kernel_benchmarker"
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
    """Reader of KernelBenchmarker's results."""

    format = KERNEL_BENCHMARKER_FORMAT
    description = "benchmark_results.json of KernelBenchmarker"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        return OPENING.match(head) is not None and b'"benchmarks"' in head and b'"execution_time_ms"' in head

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        rows = ResultRows(KERNEL_BENCHMARKER_FORMAT, files.arrived_unix_ns)
        counters: list[Row] = []
        devices: dict[str, str] = {}  # name by id
        for index, source in enumerate(read_document(files).objects("benchmarks")):
            benchmark = _Benchmark(JsonObject(f"file {files.file_name}, benchmark {index}", source.members))
            counters += benchmark.add(rows)
            if benchmark.device_id is not None:
                devices[benchmark.device_id] = benchmark.device_name or benchmark.device_id
        frames = rows.frames(files.file_name)
        frames[COUNTERS.table_name] = frame_from_rows(COUNTERS, counters)
        return ReadResult(
            frames=frames,
            notes="\n".join(_benchmarker_notes(rows, counters)),
            device_id=next(iter(devices)) if len(devices) == 1 else None,
            devices=tuple(Device(name, title, DeviceKind.GPU, ()) for name, title in devices.items() if name.startswith("cuda")),
        )


class _Benchmark:
    """One entry."""

    def __init__(self, source: JsonObject) -> None:
        self._source = source
        self._metrics = source.optional_object("metrics")
        self.device_id = self._text_of("device_id")
        self.device_name = self._text_of("device_name")

    def add(self, rows: ResultRows) -> list[Row]:
        """Its configuration and measurement, and what no column holds as lines; answers with its rows of counters."""
        kernel_name = self._source.text("kernel")
        values = self._source.object("parameters")
        parameters = {name: values.count(name) for name in values.members}
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
        rows.add_lines(lines_of(configuration["label"], self._leftovers(found)))
        return self._counters(kernel_name, configuration, len(rows.configurations) - 1)

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


def _benchmarker_notes(rows: ResultRows, counters: list[Row]) -> Iterator[str]:
    yield f"{len(rows.configurations)} benchmarks, {len(rows.failures)} of them without a time."
    if any("duration_median_ns" not in row for row in rows.measurements):
        yield "Where the file has no median, its execution_time_ms counts as a mean."
    if counters:
        yield "Percentages and counters are rows of table counters."


# ---------------------------------------------------------------- model profiles
# Reads profiling_data.json and comparison_data.json: forward passes of language models, alone or two implementations of each.
#
# Times of these files are milliseconds. A model becomes a configuration; of a comparison each implementation has one, with the model as
# its model_name, and the first of them is what the speedup refers to.

MODEL_PROFILES_FORMAT: Final = "model_profiles"

DURATIONS: Final[Mapping[str, str]] = {
    "mean": "duration_mean_ns",
    "median": "duration_median_ns",
    "min": "duration_min_ns",
    "max": "duration_max_ns",
    "p95": "duration_p95_ns",
    "p99": "duration_p99_ns",
    "std": "duration_standard_deviation_ns",
}
"""Of an object of times, with or without _ms behind."""

HELD_MEMBERS: Final = (
    "config",
    "timing",
    "throughput_tokens_per_sec",
    "batch_size",
    "seq_len",
    "variant",
    "layers",
    "peak_memory_mb",
    "disturbance",
)
BYTES_PER_MB: Final = 1e6


class ModelProfilesReader:
    """Reader of the model dashboards' files."""

    format = MODEL_PROFILES_FORMAT
    description = "profiling_data.json or comparison_data.json of language models"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        is_profile = b'"benchmarks"' in head and b'"timing"' in head
        is_comparison = b'"comparisons"' in head and b'"mean_ms"' in head
        return OPENING.match(head) is not None and (is_profile or is_comparison)

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        document = read_document(files)
        metadata = document.optional_object("metadata")
        gpu_name = metadata.optional_text("gpu_name")
        rows = ResultRows(MODEL_PROFILES_FORMAT, files.arrived_unix_ns, gpu_name)
        is_comparison = "comparisons" in document.members
        models = document.object("comparisons" if is_comparison else "benchmarks")
        for model_name in models.members:
            source = JsonObject(f"file {files.file_name}, model {model_name}", models.object(model_name).members)
            if is_comparison:
                _add_comparison(rows, model_name, source)
            else:
                # Layers of several models have the same names: those of each are inside of a layer of the model's name.
                _add_profile(rows, model_name, source, model_name.replace(".", "_") if len(models.members) > 1 else "")
        if metadata.members:
            rows.add_line(as_line("metadata", metadata.members))
        return ReadResult(
            frames=rows.frames(files.file_name),
            notes="\n".join(_profile_notes(rows, len(models.members), metadata, is_comparison=is_comparison)),
            device_id=gpu_name,
        )


def _add_profile(rows: ResultRows, model_name: str, source: JsonObject, outermost_layer: str) -> None:
    timing = source.object("timing")
    tokens_per_s = source.optional_number("throughput_tokens_per_sec")
    if tokens_per_s is not None and tokens_per_s < 0:
        source.refuse("throughput_tokens_per_sec", "a rate not below zero")
    configuration = _configuration(model_name, model_name, source)
    _add(rows, configuration, _durations(timing), {"tokens_per_s": tokens_per_s, "disturbance": source.optional_text("disturbance")})
    _keep(rows, configuration, {name: value for name, value in source.members.items() if name not in HELD_MEMBERS}, timing)
    if isinstance(source.members.get("layers"), list):
        _add_layers(rows, configuration, source, outermost_layer)


def _add_layers(rows: ResultRows, of_pass: Row, source: JsonObject, outermost_layer: str) -> None:
    """Launches of a pass, where the file tells them: each a configuration with the layer as its name."""
    for layer in source.objects("layers"):
        path, time_ms = layer.optional_text("layer"), layer.optional_number("time")
        if not path:
            layer.refuse("layer", "the name of a layer")
        if time_ms is None or time_ms <= 0:
            layer.refuse("time", "a time over zero")
        work = {name: layer.optional_number(name) for name in ("flop", "bytes")}
        configuration = {name: of_pass[name] for name in ("variant", "model_name", "batch_size")} | {
            "kernel_name": path,
            "label": label_of(str(path), {}, f"{of_pass['kernel_name']} {of_pass['variant']}".strip()),
            "parameters": {},
            "layer_path": f"{outermost_layer}.{path}" if outermost_layer else path,
            **work,
        }
        rows.add(configuration, {"duration_median_ns": time_ms * NS_PER_MS, "disturbance": layer.optional_text("disturbance")})


def _add_comparison(rows: ResultRows, model_name: str, source: JsonObject) -> None:
    sides = [name for name, value in source.members.items() if isinstance(value, dict) and "mean_ms" in value]
    if not sides:
        source.refuse("mean_ms", "an object of times with it for each implementation")
    for side in sides:
        timing = source.object(side)
        configuration = _configuration(side, model_name, source)
        _add(rows, configuration, _durations(timing), {"disturbance": timing.optional_text("disturbance")})
        _keep(rows, configuration, {}, timing)
    rest = {name: value for name, value in source.members.items() if name not in (*sides, *HELD_MEMBERS)}
    rows.add_lines(lines_of(model_name, rest))


def _configuration(kernel_name: str, model_name: str, source: JsonObject) -> Row:
    config = source.optional_object("config")
    parameters = {name: value for name, value in config.members.items() if is_count(value)}
    sequence_length = source.optional_count("seq_len")
    if sequence_length is not None:
        parameters["seq_len"] = sequence_length
    batch_size = source.optional_count("batch_size")
    if batch_size is not None and batch_size <= 0:
        source.refuse("batch_size", "a whole number over zero")
    words = [f"{name}={value}" for name, value in config.members.items() if not is_count(value) and value is not None]
    named = [*([] if kernel_name == model_name else [f"model={model_name}"]), *([] if batch_size is None else [f"batch={batch_size}"])]
    memory_mb = source.optional_number("peak_memory_mb")
    if memory_mb is not None:
        parameters["peak_memory_bytes"] = round(memory_mb * BYTES_PER_MB)
    words += [variant] if (variant := source.optional_text("variant")) else []
    return {
        "kernel_name": kernel_name,
        "label": label_of(kernel_name, parameters, " ".join((*words, *named))),
        "parameters": parameters,
        "category": "model",
        "variant": " ".join(words) if kernel_name == model_name else " ".join((kernel_name, *words)),
        "model_name": model_name,
        "batch_size": batch_size,
    }


def _add(rows: ResultRows, configuration: Row, durations: Row, figures: Row) -> None:
    if "duration_median_ns" in durations or "duration_mean_ns" in durations:
        rows.add(configuration, durations | figures)
    else:
        rows.add_unmeasured(configuration, "It has neither a mean nor a median.")


def _durations(timing: JsonObject) -> Row:
    durations: Row = {}
    for short, column in DURATIONS.items():
        for name in (short, f"{short}_ms"):
            value = timing.optional_number(name)
            if value is not None and (value < 0 or (value == 0 and short in ("mean", "median"))):
                timing.refuse(name, "a time over zero")
            if value is not None:
                durations[column] = value * NS_PER_MS
    return durations


def _keep(rows: ResultRows, configuration: Row, rest: dict[str, Any], timing: JsonObject) -> None:
    """What no column holds, as lines of the log."""
    known = {"disturbance", *(name for short in DURATIONS for name in (short, f"{short}_ms"))}
    kept = rest | {name: value for name, value in timing.members.items() if name not in known}
    rows.add_lines(lines_of(configuration["label"], kept))


def _profile_notes(rows: ResultRows, model_count: int, metadata: JsonObject, *, is_comparison: bool) -> Iterator[str]:
    what = "models, several implementations of each" if is_comparison else "models"
    yield f"{model_count} {what}: {len(rows.measurements)} measurements of forward passes, {len(rows.failures)} without a time."
    said = [f"{name} {value}" for name, value in metadata.members.items() if isinstance(value, str | int | float)]
    if said:
        yield f"Recorded with: {', '.join(said)}."
    if is_comparison and rows.measurements:
        yield "Speedups are in the log, as the file states them; the measurements tell them too."
