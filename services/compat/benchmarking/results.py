"""What one kernel took at one set of parameters, under the names that scripts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from services.compat.benchmarking.percentages import UNKNOWN_PERCENTAGE, Percentages
from services.core.model import BackendName, Configuration, Device, Dim3, KernelResources, Measurement


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Percentages are NaN where nothing measured them, and printed as n/a.

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


def result_of(
    configuration: Configuration, measurement: Measurement, counters: Mapping[str, float], device: Device, backend: BackendName
) -> BenchmarkResult:
    """counters: of ncu by their own names; empty where none were counted."""
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
            **asdict(measurement),
            **counters,
        },
    )


def _occupancy(counted: Percentages, resources: KernelResources | None) -> tuple[str | None, float | None]:
    """Where it comes from, and its percentage."""
    if counted.achieved_occupancy_pct is not None:
        return "achieved", counted.achieved_occupancy_pct
    if resources is not None and resources.theoretical_occupancy_ratio is not None:
        return "theoretical", resources.theoretical_occupancy_ratio * 100
    return None, None


def _or_nan(percentage: float | None) -> float:
    return UNKNOWN_PERCENTAGE if percentage is None else percentage


def _extents(dimensions: Dim3) -> tuple[int, int, int]:
    return dimensions.x, dimensions.y, dimensions.z
