"""Reads profiling_data.json and comparison_data.json: forward passes of language models, alone or two implementations of each.

Times of these files are milliseconds. A model becomes a configuration; of a comparison each implementation has one, with the
model as its model_name, and the first of them is what the speedup refers to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from services.analyzer.readers.json_document import JsonObject, is_count, read_document
from services.analyzer.readers.nvbench_state import as_line, lines_of
from services.analyzer.readers.result_rows import ResultRows, Row, label_of
from services.analyzer.readers.trace import ImportedTables, TraceFiles

FORMAT: Final = "model_profiles"
NS_PER_MS: Final = 1e6

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\{")
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
    format = FORMAT
    description = "profiling_data.json or comparison_data.json of language models"

    def matches(self, head: bytes) -> bool:
        is_profile = b'"benchmarks"' in head and b'"timing"' in head
        is_comparison = b'"comparisons"' in head and b'"mean_ms"' in head
        return OPENING.match(head) is not None and (is_profile or is_comparison)

    def read(self, files: TraceFiles) -> ImportedTables:
        document = read_document(files)
        metadata = document.object("metadata") if document.members.get("metadata") is not None else JsonObject(document.place, {})
        gpu_name = metadata.optional_text("gpu_name")
        rows = ResultRows(FORMAT, files.arrived_unix_ns, gpu_name)
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
        return ImportedTables(
            frames=rows.frames(files.file_name),
            notes="\n".join(_notes(rows, len(models.members), metadata, is_comparison=is_comparison)),
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
    for line in lines_of(model_name, rest):
        rows.add_line(line)


def _configuration(kernel_name: str, model_name: str, source: JsonObject) -> Row:
    config = source.object("config") if source.members.get("config") is not None else JsonObject(source.place, {})
    parameters = {name: value for name, value in config.members.items() if is_count(value)}
    sequence_length = source.optional_count("seq_len")
    if sequence_length is not None:
        parameters["seq_len"] = sequence_length if is_count(sequence_length) else source.refuse("seq_len", "a whole number of 64 bits")
    batch_size = source.optional_count("batch_size")
    if batch_size is not None and not (is_count(batch_size) and batch_size > 0):
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
    for line in lines_of(configuration["label"], kept):
        rows.add_line(line)


def _notes(rows: ResultRows, model_count: int, metadata: JsonObject, *, is_comparison: bool) -> Iterator[str]:
    what = "models, several implementations of each" if is_comparison else "models"
    yield f"{model_count} {what}: {len(rows.measurements)} measurements of forward passes, {len(rows.failures)} without a time."
    said = [f"{name} {value}" for name, value in metadata.members.items() if isinstance(value, str | int | float)]
    if said:
        yield f"Recorded with: {', '.join(said)}."
    if is_comparison and rows.measurements:
        yield "Speedups are in the log, as the file states them; the measurements tell them too."
