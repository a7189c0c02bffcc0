"""Kernels of one benchmark without a reference: whether they write the same as each other.

Which of two is wrong cannot be told, but that they differ can: one that does nothing is faster than any that does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from services.compat.benchmarking.kernel_config import KernelConfig
from services.compat.benchmarking.remarks import COMPARED_WITH, UNVERIFIED, Agreement
from services.compat.benchmarking.results import BenchmarkResult
from services.core.errors import KernalyseError
from services.core.model import DataType, InputDistribution, VerificationState
from services.profiler.backends.base import Build, DeviceSession
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.measuring.arguments import bind_arguments
from services.profiler.measuring.device_buffers import DeviceBuffers
from services.profiler.measuring.inputs import Array, input_values
from services.profiler.measuring.verification import compare
from services.profiler.workloads.launch_plan import plan_launch
from services.profiler.workloads.sweep_plan import PlannedConfiguration, SweepPlan

SEED: Final = 12_345  # any but the one that was measured with would do: what a kernel kept of those inputs is wrong here
EPSILON: Final = {DataType.FLOAT16: 2.0**-10, DataType.BFLOAT16: 2.0**-7}
"""Of types whose last digit is coarser than the tolerances that kernels have."""

ROUNDINGS: Final = 4  # last digits that two right results may be apart, in sums of another order


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of a benchmark, how its configurations are launched, and what they came to."""

    kernel: KernelConfig
    plan: SweepPlan
    results: Sequence[BenchmarkResult]


@dataclass(slots=True)
class _Candidate:
    """One result, and the launch that it is of."""

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
        """Types of the parameters in their order: kernels of one signature can be given the same."""
        function = parse_kernel_source(self.kernel.source).kernel(self.kernel.definition.function)
        return tuple((parameter.is_pointer, parameter.dtype, parameter.component_count) for parameter in function.parameters)


def with_compared_outputs(measured: Sequence[MeasuredKernel], session: DeviceSession) -> list[BenchmarkResult]:
    """Return all results in their order; metrics["compared_with"] of those that could be compared says with which and how.

    Of the kernels measured at the same parameters each without a reference is held against the first that has the same
    signature, one with a verified result before others. What cannot be run once more is not compared.
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


def _compare(judged: _Candidate, other: _Candidate, session: DeviceSession) -> None:
    """Notes on both what came out."""
    try:
        found, expected = (_written(one.planned, session) for one in (judged, other))
        if [(name, values.shape) for name, values in found.items()] != [(name, values.shape) for name, values in expected.items()]:
            return  # sizes of buffers that the caller gave apart
        verification = compare(found, expected, _tolerance(judged.kernel, other.kernel))
    except KernalyseError:  # as no room for a second set of buffers
        return
    is_same = verification.state is VerificationState.PASSED
    for one, beside in ((judged, other), (other, judged)):
        row = {"kernel": beside.kernel.kernel_name, "state": (Agreement.SAME if is_same else Agreement.DIFFERENT).value}
        one.compared.append(row | {"max_relative_error": verification.max_relative_error})


def _tolerance(first: KernelConfig, second: KernelConfig) -> float:
    """Either may be off by as much as it is allowed to, and by the roundings of its type."""
    rounding = max((EPSILON.get(buffer.dtype, 0.0) for buffer in first.definition.buffers), default=0.0)
    return first.definition.relative_tolerance + second.definition.relative_tolerance + ROUNDINGS * rounding


def _written(planned: PlannedConfiguration, session: DeviceSession) -> dict[str, Array]:
    """What one launch writes, by the place of the buffer: names may differ. Buffers have equal contents at equal places.

    Raises:
        KernalyseError: what compiling, allocating and launching raise.
    """
    plan = plan_launch(planned)
    function = parse_kernel_source(planned.kernel.source).kernel(plan.definition.function)
    build = Build(source=planned.kernel.source, function_name=plan.definition.function, macros=planned.macro_values)
    compiled = session.compile(build, planned.block)
    places = {parameter.name: str(place) for place, parameter in enumerate(function.parameters)}
    held = DeviceBuffers(session)
    try:
        buffers = held.take(plan.buffers())
        for one in plan.buffers():
            session.upload(buffers[one.name], input_values(replace(one, name=places[one.name]), SEED, InputDistribution.UNIFORM))
        arguments = bind_arguments(plan.definition.kernel_name, function.parameters, buffers, plan.scalars)
        session.run(session.prepare(compiled, arguments, plan.launch))
        written: dict[str, Array] = {}
        for one in plan.buffers():
            if one.is_written:
                written[places[one.name]] = np.empty(one.shape, one.array_type).reshape(-1)
                session.download(buffers[one.name], written[places[one.name]])
        return dict(sorted(written.items()))
    finally:
        held.release()
