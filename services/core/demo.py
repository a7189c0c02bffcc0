"""The demo sweep: several kinds of kernel, measured in about a minute on two cores."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.model import KernelSelection, KernelSweep, MeasuringOptions, RunSpec

TITLE: Final = "Demo sweep"
MIN_DURATION_NS: Final = 500_000_000
MAX_DURATION_NS: Final = 2_500_000_000
"""Limits of one configuration, a point every second or two: longer is dull to watch, shorter gives wide intervals."""

KERNELS: Final = (
    "matmul_tiled", "saxpy", "stream_triad", "transpose_naive", "transpose_tiled", "softmax", "layernorm", "reduce_sum", "matmul_naive",
)  # fmt: skip


def demo_spec() -> RunSpec:
    """Return a run that sweeps each demo kernel over the sizes of its catalog definition."""
    sweep = KernelSweep(
        kernels=tuple(KernelSelection(name) for name in KERNELS),
        measuring=MeasuringOptions(min_duration_ns=MIN_DURATION_NS, max_duration_ns=MAX_DURATION_NS),
    )
    return RunSpec(sweep, title=TITLE)
