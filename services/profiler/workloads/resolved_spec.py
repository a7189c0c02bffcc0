"""A run's spec with everything settled, kept as an artifact: from it a run can be repeated or continued exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from services.core.model import KernelSweep, RunSpec
from services.profiler.header_bundle import HeaderBundle, bundle_folder, repack_headers
from services.profiler.workloads.sweep_plan import SweepPlan


def resolved_spec(spec: RunSpec, plan: SweepPlan) -> RunSpec:
    """Return the spec of a sweep with the sources and definitions that it took from the catalogue, or derived."""
    sweep = spec.work
    assert isinstance(sweep, KernelSweep)
    kernels = tuple(
        replace(selection, source=planned.source, definition=planned.definition)
        for selection, planned in zip(sweep.kernels, plan.kernels, strict=True)
    )
    return replace(spec, work=replace(sweep, kernels=kernels))


def kept_headers(plan: SweepPlan, folder: Path) -> Iterator[HeaderBundle]:
    """Yield the bundles of headers that the sweep's kernels name, as they were uploaded. folder: of the run."""
    for digest in sorted({kernel.bundle_digest for kernel in plan.kernels if kernel.bundle_digest is not None}):
        headers = repack_headers(bundle_folder(folder, digest))
        if headers is not None and headers.digest == digest:
            yield headers
