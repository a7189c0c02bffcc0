"""Results of KernelBenchmarker, with the names that scripts read, their remarks and their files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from kernalyse.services.core.disturbance import disturbances
from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.core.model import BackendName, Configuration, Device, Dim3, KernelResources, Measurement, VerificationState

# ---------------------------------------------------------------- percentages
# The four percentages that scripts read, from ncu's metrics.

MEMORY_THROUGHPUT: Final = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
COMPUTE_THROUGHPUT: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
SM_EFFICIENCY: Final = "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"  # what nvprof called sm_efficiency

UNKNOWN_TEXT: Final = "n/a"
SPEC: Final = re.compile(r"(?:.?([<>^=]))?[-+ ]?z?#?0?(\d*)")
"""The alignment and width in a number's format specification; precision and type follow them."""


class UnknownPercentage(float):
    """A NaN that is printed as n/a with any format specification, so that scripts' reports contain "n/a" instead of "nan"."""

    def __format__(self, spec: str) -> str:
        found = SPEC.match(spec)
        assert found is not None  # it also matches the empty text
        align, width = found.groups()
        return format(UNKNOWN_TEXT, f"{align if align in ('<', '^') else '>'}{width}")  # to the right, like numbers

    def __str__(self) -> str:
        return UNKNOWN_TEXT

    __repr__ = __str__


UNKNOWN_PERCENTAGE: Final = UnknownPercentage("nan")


@dataclass(frozen=True, slots=True)
class Percentages:
    """The percentages of one launch, 0 to 100. None: not counted."""

    memory_throughput_pct: float | None = None
    compute_throughput_pct: float | None = None
    achieved_occupancy_pct: float | None = None
    sm_efficiency_pct: float | None = None

    @classmethod
    def of(cls, counters: Mapping[str, float]) -> Self:
        """Return the percentages in the counters of one launch, which have ncu's names."""
        return cls(
            memory_throughput_pct=counters.get(MEMORY_THROUGHPUT),
            compute_throughput_pct=counters.get(COMPUTE_THROUGHPUT),
            achieved_occupancy_pct=counters.get(ACHIEVED_OCCUPANCY),
            sm_efficiency_pct=counters.get(SM_EFFICIENCY),
        )


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The result of one kernel at one set of parameters. Percentages that were not measured are NaN, printed as n/a.

    metrics holds everything else that is known of the measurement, under this project's names, and every counter of ncu
    under its own. `metrics["occupancy_source"]` says what occupancy_pct is: "achieved" (counted), "theoretical" (by
    registers and shared memory) or None.
    """

    kernel_name: str
    parameters: dict[str, int]
    execution_time_ms: float  # median over the samples
    memory_throughput_pct: float = UNKNOWN_PERCENTAGE
    compute_throughput_pct: float = UNKNOWN_PERCENTAGE
    occupancy_pct: float = UNKNOWN_PERCENTAGE
    sm_efficiency_pct: float = UNKNOWN_PERCENTAGE
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)


def build_result(
    configuration: Configuration,
    measurement: Measurement,
    counters: Mapping[str, float],
    device: Device,
    backend: BackendName,
    implausible_reason: str | None = None,
) -> BenchmarkResult:
    """Return the result for one measurement.

    Args:
        configuration: the measured configuration.
        measurement: its statistics.
        counters: of ncu by their own names; empty where none were counted.
        device: where it ran.
        backend: how it ran.
        implausible_reason: why the rate cannot be true; None: nothing contradicts it.
    """
    counted = Percentages.of(counters)
    occupancy_source, occupancy_pct = _occupancy(counted, measurement.resources)
    return BenchmarkResult(
        kernel_name=configuration.kernel_name,
        parameters={parameter.name: parameter.value for parameter in configuration.parameters},
        execution_time_ms=measurement.duration_median_ns / 1e6,
        memory_throughput_pct=_or_nan(counted.memory_throughput_pct),
        compute_throughput_pct=_or_nan(counted.compute_throughput_pct),
        occupancy_pct=_or_nan(occupancy_pct),
        sm_efficiency_pct=_or_nan(counted.sm_efficiency_pct),
        metrics={
            "backend": backend.value,
            "device_id": device.device_id,
            "device_name": device.name,
            "block": _extents(configuration.block),
            "grid": _extents(configuration.grid),
            "dynamic_shared_memory_bytes": configuration.dynamic_shared_memory_bytes,
            "dtype": configuration.dtype.value,
            "path": configuration.path,
            "flop": configuration.flop,
            "bytes": configuration.bytes,
            "occupancy_source": occupancy_source,
            "implausible_reason": implausible_reason,
            **asdict(measurement),
            **counters,
        },
    )


def _occupancy(counted: Percentages, resources: KernelResources | None) -> tuple[str | None, float | None]:
    """Return the source of the occupancy, and its percentage."""
    if counted.achieved_occupancy_pct is not None:
        return "achieved", counted.achieved_occupancy_pct
    if resources is not None and resources.theoretical_occupancy_ratio is not None:
        return "theoretical", resources.theoretical_occupancy_ratio * 100
    return None, None


def _or_nan(percentage: float | None) -> float:
    return UNKNOWN_PERCENTAGE if percentage is None else percentage


def _extents(dimensions: Dim3) -> tuple[int, int, int]:
    return dimensions.x, dimensions.y, dimensions.z


# ---------------------------------------------------------------- remarks
# Reasons to doubt a result: wrong, not verified, different from other kernels' output, implausible, disturbed.

COMPARED_WITH: Final = "compared_with"
IMPLAUSIBLE_REASON: Final = "implausible_reason"
"""Keys of a result's metrics."""

UNVERIFIED: Final = (VerificationState.NO_REFERENCE, VerificationState.SWITCHED_OFF)


class Agreement(StrEnum):
    """Whether two kernels write the same for equal inputs."""

    SAME = "SAME"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on a result: a short mark, and a sentence with the reason.

    is_alarm: it is also logged, for users who only look at the times.
    """

    mark: str
    sentence: str
    is_alarm: bool = False


def result_remarks(result: BenchmarkResult) -> list[Remark]:
    """Return the remarks on a result; none if its file lacks the data."""
    return [*_of_verification(result.metrics), *_of_rate(result.metrics), *_of_circumstances(result.metrics)]


def group_by_remark(results: Iterable[BenchmarkResult]) -> dict[Remark, list[BenchmarkResult]]:
    """Return every remark with the results that have it."""
    found: dict[Remark, list[BenchmarkResult]] = {}
    for result in results:
        for remark in result_remarks(result):
            found.setdefault(remark, []).append(result)
    return found


def alarms(results: Iterable[BenchmarkResult]) -> list[str]:
    """Return a sentence for each remark that nobody should miss: the first result that has it, and how many more."""
    return [
        f"{_named(of[0])}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {remark.sentence}"
        for remark, of in group_by_remark(results).items()
        if remark.is_alarm
    ]


def _named(result: BenchmarkResult) -> str:
    return " ".join((result.kernel_name, *(f"{name}={value}" for name, value in result.parameters.items())))


def is_verified(result: BenchmarkResult) -> bool | None:
    """Return whether the results were compared with a reference and correct; None: not known."""
    state = (result.metrics.get("verification") or {}).get("state")
    return None if state is None else bool(state == VerificationState.PASSED)


def _of_verification(metrics: dict[str, Any]) -> Iterator[Remark]:
    verification = metrics.get("verification") or {}
    compared = metrics.get(COMPARED_WITH) or []
    if verification.get("state") == VerificationState.FAILED:
        yield Remark("WRONG RESULTS", f"WRONG RESULTS: {verification.get('message', '')}")
    different = [str(one["kernel"]) for one in compared if one["state"] == Agreement.DIFFERENT]
    if different:
        others = ", ".join(different)
        yield Remark("other results", f"other results than {others}: they compute different things, or one is wrong", is_alarm=True)
    if verification.get("state") in UNVERIFIED:
        same = [str(one["kernel"]) for one in compared if one["state"] == Agreement.SAME]
        agreeing = f"; the same results as {', '.join(same)}" if same else ""
        yield Remark("not verified", f"not verified: no reference was given to load_kernel{agreeing}")


def _of_rate(metrics: dict[str, Any]) -> Iterator[Remark]:
    if metrics.get(IMPLAUSIBLE_REASON):
        yield Remark("implausible", f"implausible: {metrics[IMPLAUSIBLE_REASON]}", is_alarm=True)


def _of_circumstances(metrics: dict[str, Any]) -> Iterator[Remark]:
    found = disturbances(metrics.get("host_busy_ratio"), metrics.get("other_process_count"), metrics.get("throttle_reasons"))
    if found:
        yield Remark("disturbed", f"disturbed: {', '.join(found)}")


# ---------------------------------------------------------------- result files
# benchmark_results.json for scripts, and benchmark_report.txt for people.

RESULTS_FILE: Final = "benchmark_results.json"
REPORT_FILE: Final = "benchmark_report.txt"
INTERRUPTED_FILE: Final = "benchmark_results.interrupted.json"
"""Results of an interrupted script; under another name, because RESULTS_FILE may have those of a complete benchmark."""

REPORT_WIDTH: Final = 79
NAME_WIDTH: Final = 31  # of the report's columns, the spaces after them included
TIME_WIDTH: Final = 16
PERCENTAGE_WIDTH: Final = 10

PERCENTAGES: Final = ("memory_throughput_pct", "compute_throughput_pct", "occupancy_pct", "sm_efficiency_pct")


# ---------------------------------------------------------------- JSON


def write_results(results: Sequence[BenchmarkResult], path: Path) -> None:
    """Write {"benchmarks": [{"kernel", "parameters", "execution_time_ms", percentages, "is_verified", "remarks", "metrics"}]}.

    NaN becomes null. remarks: reasons to doubt a result.
    """
    entries = [
        {
            "kernel": result.kernel_name,
            "parameters": result.parameters,
            "execution_time_ms": result.execution_time_ms,
            **{name: getattr(result, name) for name in PERCENTAGES},
            "is_verified": is_verified(result),
            "remarks": [remark.sentence for remark in result_remarks(result)],
            "metrics": result.metrics,
        }
        for result in results
    ]
    path.write_text(json.dumps({"benchmarks": _with_nulls(entries)}, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_results(path: Path) -> list[BenchmarkResult]:
    """Return the results in a file that `write_results` wrote. A percentage that is null or missing is NaN.

    Raises:
        InvalidParameterError: the file does not exist or has another layout; names the position.
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
    """Replace NaN and infinity, which JSON lacks, by None."""
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
    """Return one table for each set of parameters in the order measured.

    Its kernels are sorted by time, and listed with their speedup over the slowest.
    """
    lines = ["=" * REPORT_WIDTH, "CUDA KERNEL BENCHMARK REPORT", "=" * REPORT_WIDTH, *_devices(results)]
    by_parameters: dict[tuple[tuple[str, int], ...], list[BenchmarkResult]] = {}
    for result in results:
        by_parameters.setdefault(tuple(result.parameters.items()), []).append(result)
    for parameters, group in by_parameters.items():
        lines += ["", *_table(parameters, sorted(group, key=lambda result: result.execution_time_ms))]
    return "\n".join(lines) + "\n"


def _devices(results: Sequence[BenchmarkResult]) -> Iterator[str]:
    """Yield a line with each device and backend; results of other programs have none."""
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
        marks = ", ".join(remark.mark for remark in result_remarks(result))
        speedup = fastest_first[-1].execution_time_ms / result.execution_time_ms
        yield f"  {result.kernel_name}: {speedup:.2f}x{f' ({marks})' if marks else ''}"
    for remark, results in group_by_remark(fastest_first).items():
        yield f"  {', '.join(dict.fromkeys(result.kernel_name for result in results))}: {remark.sentence}"


def _row(name: str, time_ms: str, *percentages: str) -> str:
    # The space separates even a name as wide as its column from the next cell.
    cells = [f"{name} ".ljust(NAME_WIDTH), time_ms.ljust(TIME_WIDTH), *(text.ljust(PERCENTAGE_WIDTH) for text in percentages)]
    return "".join(cells).rstrip()


def _percentage(value: float) -> str:
    return UNKNOWN_TEXT if math.isnan(value) else f"{value:.1f}"
