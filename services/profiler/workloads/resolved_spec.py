"""A run's spec with everything settled, kept as an artifact: from it a run can be repeated or continued exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.model import KernelSweep, RunSpec
from services.profiler.workloads.sweep_plan import SweepPlan

SPEC_ARTIFACT: Final = "run_spec.json"


def resolved_spec(spec: RunSpec, plan: SweepPlan) -> RunSpec:
    """The spec of a sweep with the sources and definitions that it took from the catalogue, or derived."""
    sweep = spec.work
    assert isinstance(sweep, KernelSweep)
    kernels = tuple(
        replace(selection, source=planned.source, definition=planned.definition)
        for selection, planned in zip(sweep.kernels, plan.kernels, strict=True)
    )
    return replace(spec, work=replace(sweep, kernels=kernels))
