"""profiling_data.json and comparison_data.json: times of ML models in milliseconds, in files for scripts.

{"metadata": {...}, "benchmarks": {"gpt_nano": {"config": {"n_layer": 3, ...}, "timing": {"mean": 1.32, ...}, ...}}}
{"metadata": {...}, "comparisons": {"gpt_nano": {"baseline": {"mean_ms": 1.32, ...}, "fused": {...}, "speedup": 2.1, ...}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.errors import InvalidTraceError

Document = dict[str, Any]

NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9
BYTES_PER_MB: Final = 1e6
BYTES_PER_GB: Final = 1e9
NOT_KNOWN: Final[Mapping[str, Any]] = {}
CONFIG: Final = {"n_layer": "layer_count", "n_head": "head_count", "n_embd": "width", "vocab_size": "vocabulary_size"}
"""Names of a model's shape in the files, and in the table models."""

TIMING: Final = {
    "mean": "duration_mean_ns",
    "std": "duration_standard_deviation_ns",
    "min": "duration_min_ns",
    "max": "duration_max_ns",
    "median": "duration_median_ns",
    "p95": "duration_p95_ns",
    "p99": "duration_p99_ns",
}


def document_model_name(model_name: str) -> str:
    """Return the name of a model in the files: gpt_nano for gpt-nano."""
    return model_name.replace("-", "_")


def benchmark_entry(model: Mapping[str, Any], layers: list[Document], roof: Mapping[str, Any] = NOT_KNOWN) -> Document:
    """Return one entry of benchmarks.

    Args:
        model: a row of the table models.
        layers: results of `layer_entry`.
        roof: a row of the table roofline, of the entire pass.
    """
    return {
        **_shape_of(model),
        "variant": model["variant"],
        "timing": timing_entry(model),
        "throughput_tokens_per_sec": _tokens_per_s(model),
        "sample_count": model["sample_count"],
        **_memory_of(model),
        **_traffic_of(model, roof),
        **_disturbance_of(model),
        "efficiency": model["efficiency_ratio"],
        "layers": layers,
    }


def layer_entry(layer: Mapping[str, Any]) -> Document:
    """Return one layer of an entry, from a row of the table layers."""
    return {
        "layer": layer["layer"],
        "time": layer["duration_sum_ns"] / NS_PER_MS,
        "share": layer["share_ratio"],
        "launches": layer["launch_count"],
        "flop": layer["flop"],
        "bytes": layer["bytes"],
        "efficiency": layer["efficiency_ratio"],
        "bound": layer["bound"],
        **_memory_of(layer),
        **_disturbance_of(layer),
    }


def _disturbance_of(row: Mapping[str, Any]) -> Document:
    return {"disturbance": row["disturbance"]} if row.get("disturbance") else {}


def stated_disturbance(entry: Mapping[str, Any]) -> str | None:
    """Return the disturbance that the file states for an entry or one of its implementations; None: nothing known."""
    stated = entry.get("disturbance")
    return stated if isinstance(stated, str) and stated else None


def _memory_of(row: Mapping[str, Any]) -> Document:
    memory_bytes = row.get("memory_bytes")
    return {} if memory_bytes is None else {"peak_memory_mb": memory_bytes / BYTES_PER_MB}


def _traffic_of(model: Mapping[str, Any], roof: Mapping[str, Any]) -> Document:
    """Return the bytes that a pass moves, and the bandwidth of the memory; unknown values are left out."""
    ceiling_bytes_per_s = roof.get("memory_ceiling_bytes_per_s")
    known = {
        "bytes": model["bytes"],
        "memory_level": roof.get("memory_level"),
        "memory_ceiling_gb_per_s": None if ceiling_bytes_per_s is None else ceiling_bytes_per_s / BYTES_PER_GB,
    }
    return {name: value for name, value in known.items() if value is not None}


def comparison_entry(model: Mapping[str, Any]) -> Document:
    """Return one entry of comparisons without its implementations, from a row of the table models."""
    return _shape_of(model)


def implementation_entry(model: Mapping[str, Any]) -> Document:
    """Return one implementation in an entry of comparisons, from a row of the table models."""
    timing = {f"{name}_ms": value for name, value in timing_entry(model).items()}
    return timing | {"throughput_tokens_per_sec": _tokens_per_s(model)} | _memory_of(model) | _disturbance_of(model)


def timing_entry(model: Mapping[str, Any]) -> Document:
    """Return milliseconds by name of the statistic; unknown ones are left out."""
    return {name: model[column] / NS_PER_MS for name, column in TIMING.items() if model[column] is not None}


def _tokens_per_s(model: Mapping[str, Any]) -> float | None:
    """Return the throughput at the mean, which the files call latency; the table models uses the median."""
    batch_size, sequence_length, mean_ns = (model[name] for name in ("batch_size", "sequence_length", "duration_mean_ns"))
    stated: float | None = model["tokens_per_s"]
    return stated if None in (batch_size, sequence_length, mean_ns) else float(batch_size * sequence_length / mean_ns * NS_PER_S)


def _shape_of(model: Mapping[str, Any]) -> Document:
    return {
        "config": {name: model[column] for name, column in CONFIG.items() if model[column] is not None},
        "batch_size": model["batch_size"],
        "seq_len": model["sequence_length"],
    }


def read_document(path: Path, member: str) -> Document:
    """Return the document in a file that this module's commands, or a script with the same layout, have written.

    Args:
        path: of the file.
        member: "benchmarks" or "comparisons", which the document must have.

    Raises:
        InvalidTraceError: the file does not exist, cannot be read, or lacks the member.
    """
    subject, remedy = f"file {path}", f"Name a file with {member}, as perf-dashboard or perf-comparison write them."
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InvalidTraceError(subject, found=error.strerror or str(error), expected="a file", remedy="Correct the path.") from error
    except ValueError as error:
        raise InvalidTraceError(subject, found=f"JSON that cannot be read: {error}", expected="a complete file", remedy=remedy) from error
    entries = document.get(member) if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not entries or not all(isinstance(entry, dict) for entry in entries.values()):
        raise InvalidTraceError(subject, found=f"no {member}", expected=f"an object {member} with a member for each model", remedy=remedy)
    for name, entry in entries.items():
        _check_entry(f"{subject}, model {name}", entry, member)
    return dict(document)


def _check_entry(subject: str, entry: Document, member: str) -> None:
    times = [entry.get("timing")] if member == "benchmarks" else list_implementations(entry).values()
    mean = "mean" if member == "benchmarks" else "mean_ms"
    if not times or not all(isinstance(side, dict) and _is_time(side.get(mean)) for side in times):
        raise InvalidTraceError(
            subject, found="no mean time over zero", expected=f"{mean} in milliseconds", remedy="Measure the model again."
        )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def list_implementations(entry: Mapping[str, Any]) -> dict[str, Document]:
    """Return the implementations in an entry of comparisons, the baseline first."""
    return {name: side for name, side in entry.items() if isinstance(side, dict) and "mean_ms" in side}


def write_document(document: Document, path: Path) -> None:
    """Write the document, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
