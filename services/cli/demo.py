"""The sweep that a first visitor sees: several kinds of kernel, about a minute on two cores."""

from __future__ import annotations

from typing import Final

from services.core.model import KernelSelection, KernelSweep, MeasuringOptions, RunSpec

MIN_DURATION_NS: Final = 500_000_000
MAX_DURATION_NS: Final = 2_500_000_000
"""A point every second or two: short enough to be watched, long enough for intervals that mean something."""

KERNELS: Final = (
    "matmul_tiled", "saxpy", "stream_triad", "transpose_naive", "transpose_tiled", "softmax", "layernorm", "reduce_sum", "matmul_naive",
)  # fmt: skip


def demo_spec() -> RunSpec:
    """Return a sweep of each kernel over the sizes that the catalogue names."""
    sweep = KernelSweep(
        kernels=tuple(KernelSelection(name) for name in KERNELS),
        measuring=MeasuringOptions(min_duration_ns=MIN_DURATION_NS, max_duration_ns=MAX_DURATION_NS),
    )
    return RunSpec(sweep, title="Demo sweep")
