"""Checks of results: outputs of different kernels compared, and rates that no device can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.compat.kernel_benchmarker.kernels import KernelConfig
from kernalyse.services.compat.kernel_benchmarker.progress import LOGGER
from kernalyse.services.compat.kernel_benchmarker.results import COMPARED_WITH, UNVERIFIED, Agreement, BenchmarkResult
from kernalyse.services.core.disturbance import undisturbed_rate
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.formatting import rate
from kernalyse.services.core.model import (
    CacheMode,
    Ceiling,
    CeilingsMeasured,
    Configuration,
    DataType,
    DeviceKind,
    EventPayload,
    InputDistribution,
    Measurement,
    VerificationState,
)
from kernalyse.services.core.settings import ProfilerSettings
from kernalyse.services.profiler.backends.base import Build, DeviceSession
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.measuring.buffers import Array, DeviceBuffers, bind_arguments, input_values
from kernalyse.services.profiler.measuring.verification import compare
from kernalyse.services.profiler.workloads.ceilings import load_sources, report_ceilings_before_sweep
from kernalyse.services.profiler.workloads.sweeps.launches import plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration, SweepPlan

# ---------------------------------------------------------------- plausibility
# A rate above the device's ceiling cannot be true.

MAX_PLAUSIBLE_RATIO: Final = 1.05
"""Relative to the highest ceiling, as in the analyzer: a lower limit would mark valid kernels on a device that boosts its clock."""

NS_PER_S: Final = 1e9
COLD_LEVELS: Final = ("dram", "l2")
SUMS_IN_HALF: Final = "_accumulate16"


def device_ceilings(session: DeviceSession) -> tuple[Ceiling, ...]:
    """Return the ceilings of the device: of a GPU by its data sheet, of a CPU as measured, which takes some seconds once a day.

    The result is empty where nothing is known, or nothing could be measured.
    """
    if session.device.kind is not DeviceKind.CPU:
        return device_peaks(session.device).ceilings
    events = _CeilingEvents()
    try:
        report_ceilings_before_sweep(session, load_sources(), events, ProfilerSettings.load().ceilings_file, 1)
    except KernalyseError as error:  # invalid settings of a profiler, which this process does not start
        LOGGER.info("No ceilings: %s", error.message)
    return events.ceilings


def implausible_reason(configuration: Configuration, measurement: Measurement, ceilings: Sequence[Ceiling]) -> str | None:
    """Return a sentence on why a measurement cannot be true, or None where nothing contradicts it.

    A ceiling measured on a busy host is raised to what the host would reach without the other programs.
    """
    duration_s = measurement.duration_median_ns / NS_PER_S
    is_cold = measurement.cache_mode is CacheMode.COLD
    of_dtype = [one for one in ceilings if one.unit == "flop_per_s" and one.ceiling_name.removesuffix(SUMS_IN_HALF) == configuration.dtype]
    of_memory = [one for one in ceilings if one.unit == "bytes_per_s" and (not is_cold or one.ceiling_name in COLD_LEVELS)]
    has_cache = any(one.ceiling_name != "dram" for one in of_memory)  # else a cache may be faster than all known ceilings
    for work, unit, known in ((configuration.flop, "flop/s", of_dtype), (configuration.bytes, "B/s", of_memory if has_cache else [])):
        if not work or not known or duration_s <= 0:
            continue
        highest = max(known, key=lambda one: undisturbed_rate(one.value, one.host_busy_ratio))
        ceiling = undisturbed_rate(highest.value, highest.host_busy_ratio)
        if work / duration_s > MAX_PLAUSIBLE_RATIO * ceiling:
            times = f"{work / duration_s / ceiling:.3g} times the {highest.ceiling_name} ceiling of the device ({rate(ceiling, unit)})"
            return f"{rate(work / duration_s, unit)} is {times}: less work than claimed, or a cached result."
    return None


class _CeilingEvents:
    """An event sink that stores ceilings."""

    def __init__(self) -> None:
        self.ceilings: tuple[Ceiling, ...] = ()

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, CeilingsMeasured):
            self.ceilings = payload.ceilings


# ---------------------------------------------------------------- compared outputs
# Kernels without a reference are compared with each other.
#
# This cannot show which of two is wrong, but it shows that they differ: a kernel that does nothing is faster than any other.

SEED: Final = 12_345  # differs from the seed of the measurement, which exposes cached results
EPSILON: Final = {DataType.FLOAT16: 2.0**-10, DataType.BFLOAT16: 2.0**-7}
"""Rounding errors of types that are coarser than the tolerances of kernels."""

ROUNDINGS: Final = 4  # by which two correct results may differ, because of another order of summation


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of a benchmark, how its configurations are launched, and their results."""

    kernel: KernelConfig
    plan: SweepPlan
    results: Sequence[BenchmarkResult]


@dataclass(slots=True)
class _Candidate:
    """One result, and the launch that it belongs to."""

    kernel: KernelConfig
    planned: PlannedConfiguration
    result: BenchmarkResult
    compared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_verified(self) -> bool:
        return bool(self.result.metrics["verification"]["state"] == VerificationState.PASSED)

    @property
    def is_unverified(self) -> bool:
        return self.result.metrics["verification"]["state"] in UNVERIFIED

    @property
    def signature(self) -> tuple[object, ...]:
        """Return the types of the parameters in their order: kernels of one signature can be given the same arguments."""
        function = parse_kernel_source(self.kernel.source).kernel(self.kernel.definition.function)
        return tuple((parameter.is_pointer, parameter.dtype, parameter.component_count) for parameter in function.parameters)


def with_compared_outputs(measured: Sequence[MeasuredKernel], session: DeviceSession) -> list[BenchmarkResult]:
    """Return all results in their order; metrics["compared_with"] has the kernels that a result was compared with, and the outcome.

    Of the kernels measured at the same parameters, each without a reference is compared with the first of the same
    signature, preferably one with a verified result. A launch that cannot be repeated is not compared.
    """
    candidates = [found for one in measured for found in _candidates(one)]
    for candidate in candidates:
        others = [one for one in candidates if one.kernel is not candidate.kernel and _is_of_one_problem(one, candidate)]
        others = [one for one in others if one.is_verified or (one.is_unverified and candidates.index(one) < candidates.index(candidate))]
        if candidate.is_unverified and others:
            _compare(candidate, max(others, key=lambda one: one.is_verified), session)
    return [
        replace(one.result, metrics={**one.result.metrics, COMPARED_WITH: one.compared}) if one.compared else one.result
        for one in candidates
    ]


def _candidates(measured: MeasuredKernel) -> list[_Candidate]:
    by_parameters = {tuple(planned.values.items()): planned for planned in measured.plan.configurations()}
    return [_Candidate(measured.kernel, by_parameters[tuple(one.parameters.items())], one) for one in measured.results]


def _is_of_one_problem(first: _Candidate, second: _Candidate) -> bool:
    return first.result.parameters == second.result.parameters and first.signature == second.signature


def _compare(candidate: _Candidate, other: _Candidate, session: DeviceSession) -> None:
    """Compare the outputs of two launches, and record the outcome with both."""
    try:
        found, expected = (_written(one.planned, session) for one in (candidate, other))
        if [(name, values.shape) for name, values in found.items()] != [(name, values.shape) for name, values in expected.items()]:
            return  # the caller gave the two kernels different buffer sizes
        verification = compare(found, expected, _tolerance(candidate.kernel, other.kernel))
    except KernalyseError:  # e.g. no memory for a second set of buffers
        return
    is_same = verification.state is VerificationState.PASSED
    for one, partner in ((candidate, other), (other, candidate)):
        row = {"kernel": partner.kernel.kernel_name, "state": (Agreement.SAME if is_same else Agreement.DIFFERENT).value}
        one.compared.append(row | {"max_relative_error": verification.max_relative_error})


def _tolerance(first: KernelConfig, second: KernelConfig) -> float:
    """Return the sum of both kernels' tolerances and of the rounding errors of their type."""
    rounding = max((EPSILON.get(buffer.dtype, 0.0) for buffer in first.definition.buffers), default=0.0)
    return first.definition.relative_tolerance + second.definition.relative_tolerance + ROUNDINGS * rounding


def _written(planned: PlannedConfiguration, session: DeviceSession) -> dict[str, Array]:
    """Return what one launch writes, by the position of the buffer, because names may differ.

    Input buffers have equal contents at equal positions.

    Raises:
        KernalyseError: compiling, allocating or launching failed.
    """
    plan = plan_launch(planned)
    function = parse_kernel_source(planned.kernel.source).kernel(plan.definition.function)
    build = Build(source=planned.kernel.source, function_name=plan.definition.function, macros=planned.macro_values)
    compiled = session.compile(build, planned.block)
    positions = {parameter.name: str(position) for position, parameter in enumerate(function.parameters)}
    device_buffers = DeviceBuffers(session)
    try:
        buffers = device_buffers.take(plan.buffers())
        for one in plan.buffers():
            session.upload(buffers[one.name], input_values(replace(one, name=positions[one.name]), SEED, InputDistribution.UNIFORM))
        arguments = bind_arguments(plan.definition.kernel_name, function.parameters, buffers, plan.scalars)
        session.run(session.prepare(compiled, arguments, plan.launch))
        written: dict[str, Array] = {}
        for one in plan.buffers():
            if one.is_written:
                written[positions[one.name]] = np.empty(one.shape, one.array_type).reshape(-1)
                session.download(buffers[one.name], written[positions[one.name]])
        return dict(sorted(written.items()))
    finally:
        device_buffers.release()
