"""benchmark_results.json and benchmark_report.txt: what scripts read, and what people read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from services.compat.benchmarking.percentages import UNKNOWN_PERCENTAGE, UNKNOWN_TEXT
from services.compat.benchmarking.results import BenchmarkResult
from services.core.errors import InvalidParameterError
from services.core.model import VerificationState

RESULTS_FILE: Final = "benchmark_results.json"
REPORT_FILE: Final = "benchmark_report.txt"
INTERRUPTED_FILE: Final = "benchmark_results.interrupted.json"
"""Of a benchmarker whose script is ended: under another name, for RESULTS_FILE may be there of a benchmark that was not."""

REPORT_WIDTH: Final = 79
NAME_WIDTH: Final = 31  # of the report's columns, the spaces after them included
TIME_WIDTH: Final = 16
PERCENTAGE_WIDTH: Final = 10

PERCENTAGES: Final = ("memory_throughput_pct", "compute_throughput_pct", "occupancy_pct", "sm_efficiency_pct")


# ---------------------------------------------------------------- JSON


def write_results(results: Sequence[BenchmarkResult], path: Path) -> None:
    """Writes {"benchmarks": [{"kernel", "parameters", "execution_time_ms", percentages, "metrics"}]}; NaN becomes null."""
    entries = [
        {
            "kernel": result.kernel_name,
            "parameters": result.parameters,
            "execution_time_ms": result.execution_time_ms,
            **{name: getattr(result, name) for name in PERCENTAGES},
            "metrics": result.metrics,
        }
        for result in results
    ]
    path.write_text(json.dumps({"benchmarks": _with_nulls(entries)}, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_results(path: Path) -> list[BenchmarkResult]:
    """What `write_results` wrote. A percentage that is null or missing is NaN.

    Raises:
        InvalidParameterError: no such file, or not in that layout; names the place.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _unreadable(path, 'no list "benchmarks"')
    return [_read_entry(path, index, entry) for index, entry in enumerate(entries)]


def _read_entry(path: Path, index: int, entry: Any) -> BenchmarkResult:
    try:
        return BenchmarkResult(
            kernel_name=str(entry["kernel"]),
            parameters={name: int(value) for name, value in entry["parameters"].items()},
            execution_time_ms=float(entry["execution_time_ms"]),
            metrics=dict(entry.get("metrics") or {}),
            **{name: UNKNOWN_PERCENTAGE if entry.get(name) is None else float(entry[name]) for name in PERCENTAGES},
        )
    except KeyError as error:
        raise _unreadable(path, f"benchmarks[{index}] without {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise _unreadable(path, f"benchmarks[{index}]: {error}") from error


def _with_nulls(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _with_nulls(one) for name, one in value.items()}
        case list() | tuple():
            return [_with_nulls(one) for one in value]
        case _:
            return value


def _unreadable(path: Path, found: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"results {path}", found=found, expected="a JSON file as KernelBenchmarker writes it", remedy="Run the benchmark again."
    )


# ---------------------------------------------------------------- report


def report_text(results: Sequence[BenchmarkResult]) -> str:
    """One table for each set of parameters in the order measured, its kernels sorted by time, and how much faster each is
    than the slowest."""
    lines = ["=" * REPORT_WIDTH, "CUDA KERNEL BENCHMARK REPORT", "=" * REPORT_WIDTH, *_devices(results)]
    by_parameters: dict[tuple[tuple[str, int], ...], list[BenchmarkResult]] = {}
    for result in results:
        by_parameters.setdefault(tuple(result.parameters.items()), []).append(result)
    for parameters, group in by_parameters.items():
        lines += ["", *_table(parameters, sorted(group, key=lambda result: result.execution_time_ms))]
    return "\n".join(lines) + "\n"


def _devices(results: Sequence[BenchmarkResult]) -> Iterator[str]:
    """Each once, with what ran kernels on it; results of other programs name none."""
    known = [result.metrics for result in results if "device_name" in result.metrics]
    devices = dict.fromkeys(f"{metrics['device_name']} ({str(metrics.get('backend', 'backend not stated')).lower()})" for metrics in known)
    if devices:
        yield f"Device: {', '.join(devices)}"


def _table(parameters: tuple[tuple[str, int], ...], fastest_first: list[BenchmarkResult]) -> Iterator[str]:
    yield "Parameters: " + (", ".join(f"{name}={value}" for name, value in parameters) or "none")
    yield "-" * REPORT_WIDTH
    yield _row("Kernel", "Time (ms)", "Mem %", "Compute %")
    yield "-" * REPORT_WIDTH
    for result in fastest_first:
        percentages = (_percentage(result.memory_throughput_pct), _percentage(result.compute_throughput_pct))
        yield _row(result.kernel_name, f"{result.execution_time_ms:.3f}", *percentages)
    yield ""
    yield "Speedup vs slowest:"
    for result in fastest_first:
        yield f"  {result.kernel_name}: {fastest_first[-1].execution_time_ms / result.execution_time_ms:.2f}x"
    for result in fastest_first:
        verification = result.metrics.get("verification") or {}
        if verification.get("state") == VerificationState.FAILED:
            yield f"  {result.kernel_name} gives WRONG RESULTS: {verification.get('message', '')}"


def _row(name: str, time_ms: str, *percentages: str) -> str:
    # A name as wide as its column still stands apart from the next one.
    cells = [f"{name} ".ljust(NAME_WIDTH), time_ms.ljust(TIME_WIDTH), *(text.ljust(PERCENTAGE_WIDTH) for text in percentages)]
    return "".join(cells).rstrip()


def _percentage(value: float) -> str:
    return UNKNOWN_TEXT if math.isnan(value) else f"{value:.1f}"
