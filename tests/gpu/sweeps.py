"""Sweeps on an open session, in the test's own process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from kernalyse.services.core.model import ConfigurationFailed, EventPayload, KernelSweep, Measurement, PairedComparison
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep

MAX_CONFIGURATION_COUNT = 1_000


@dataclass(slots=True)
class Kept:
    """Of a sweep's events, what tests ask about."""

    measurements: list[Measurement] = field(default_factory=list)
    comparisons: list[PairedComparison] = field(default_factory=list)
    failures: list[ConfigurationFailed] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, Measurement):
            self.measurements.append(payload)
        elif isinstance(payload, PairedComparison):
            self.comparisons.append(payload)
        elif isinstance(payload, ConfigurationFailed):
            self.failures.append(payload)


def swept(session: DeviceSession, sweep: KernelSweep) -> Kept:
    kept = Kept()
    with tempfile.TemporaryDirectory() as directory:
        run_sweep(sweep, plan_sweep(sweep, load_catalog(), MAX_CONFIGURATION_COUNT), session, kept, Path(directory))
    return kept
