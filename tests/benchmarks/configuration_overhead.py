"""Time per configuration beyond the kernel's own, beside Kernel Tuner's: `python -m tests.benchmarks.configuration_overhead`.

Both sweep the same kernel over the same blocks on the same device in this process, with the same number of launches per
configuration and verification against the same NumPy product. They take turns, and the second turn counts: by then every
cache of compiled programs is warm. What a configuration costs is the wall clock of the sweep, less the launches timed,
less what each side says it spent on compiling.

Needs kernel-tuner (`pip install kernel-tuner`) and an OpenCL device.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the worker has it, for both sides

import argparse
import contextlib
import io
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernalyse.services.core.model import (
    Axis,
    ConfigurationFailed,
    Dim3,
    EventPayload,
    KernelSelection,
    KernelSweep,
    Measurement,
    MeasuringOptions,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import Build, DeviceSession
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep

KERNEL = "matmul_naive"
LAUNCH_COUNT = 7  # Kernel Tuner's default
Blocks = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents of blocks, of x and of y: a sweep has all pairs of them."""

CPU_BLOCKS: Blocks = ((1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128), (1, 2, 3, 4, 5, 6, 7, 8, 16))
GPU_BLOCKS: Blocks = ((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32))  # of at most 1024 threads


@dataclass(frozen=True, slots=True)
class Cost:
    """One sweep of one side."""

    configuration_count: int
    wall_s: float
    launches_s: float
    compile_s: float

    @property
    def overhead_ms(self) -> float:
        return 1e3 * (self.wall_s - self.launches_s - self.compile_s) / self.configuration_count

    @property
    def overhead_with_compile_ms(self) -> float:
        return 1e3 * (self.wall_s - self.launches_s) / self.configuration_count


class Collector:
    """Keeps the measurements and refuses failures: a comparison of unequal sweeps would be worth nothing."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, ConfigurationFailed):
            raise RuntimeError(payload.error.message)
        if isinstance(payload, Measurement):
            assert payload.verification.state is VerificationState.PASSED, payload.verification.message
            self.measurements.append(payload)


def sweep_with_kernalyse(session: DeviceSession, extent: int, blocks: Blocks = CPU_BLOCKS) -> Cost:
    catalog = load_catalog()
    options = MeasuringOptions(min_sample_count=LAUNCH_COUNT, max_sample_count=LAUNCH_COUNT, min_duration_ns=0)
    axes = (*(Axis(name, (extent,)) for name in ("M", "N", "K")), Axis("block_x", blocks[0]), Axis("block_y", blocks[1]))
    sweep = KernelSweep((KernelSelection(KERNEL),), axes, measuring=options, skip_confirmation=True)  # Kernel Tuner has none
    collector = Collector()
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        run_sweep(sweep, plan_sweep(sweep, catalog, 10_000), session, collector, Path(directory))
        wall_s = time.perf_counter() - start
    done = collector.measurements
    return Cost(
        configuration_count=len(done),
        wall_s=wall_s,
        launches_s=sum(one.duration_mean_ns * one.sample_count for one in done) / 1e9,
        compile_s=sum(one.compile_ns for one in done) / 1e9,
    )


def sweep_with_kernel_tuner(session: DeviceSession, extent: int) -> Cost:
    """On the device of a session of OpenCL, with what its backend has made of the kernel."""
    compiled = session.compile(Build(load_catalog().source(KERNEL), KERNEL), Dim3(32))
    text, options = compiled.listings["cl"].decode(), compiled.compiler_options.split()
    return tuned(text, extent, lang="OpenCL", platform=platform_index(session), compiler_options=options)


def tuned(text: str, extent: int, blocks: Blocks = CPU_BLOCKS, **options: Any) -> Cost:
    """By Kernel Tuner. text: of the kernel. options: for `tune_kernel`."""
    from kernel_tuner import tune_kernel

    random = np.random.default_rng(0)
    a, b = (random.random((extent, extent), np.float32) for _ in range(2))
    scalar = np.int32(extent)
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = tune_kernel(
            KERNEL,
            text,
            (extent, extent),
            [a, b, np.zeros_like(a), scalar, scalar, scalar],
            {"block_size_x": list(blocks[0]), "block_size_y": list(blocks[1])},
            answer=[None, None, a @ b, None, None, None],
            atol=1e-4 * extent,
            iterations=LAUNCH_COUNT,
            **options,
        )
    wall_s = time.perf_counter() - start
    assert all(isinstance(one["time"], float) for one in results), "Kernel Tuner could not measure every configuration"
    return Cost(
        configuration_count=len(results),
        wall_s=wall_s,
        launches_s=sum(sum(one["times"]) for one in results) / 1e3,
        compile_s=sum(one["compile_time"] for one in results) / 1e3,
    )


def platform_index(session: DeviceSession) -> int:
    import pyopencl

    names: list[Any] = [platform.name for platform in pyopencl.get_platforms()]
    return names.index(session.device.runtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=("intel", "pocl"), help="OpenCL CPU runtime; the first there is if not given")
    parser.add_argument("--extent", type=int, default=128, help="rows and columns of the matrices")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # pyopencl's and Kernel Tuner's own
    session = OpenCLBackend(arguments.runtime).open()
    for _ in range(2):
        ours = sweep_with_kernalyse(session, arguments.extent)
        theirs = sweep_with_kernel_tuner(session, arguments.extent)
    print(f"{KERNEL}, {arguments.extent} x {arguments.extent}, {ours.configuration_count} blocks, {LAUNCH_COUNT} launches each")
    print(f"on {session.device.name}, {session.device.runtime}")
    print(f"{'per configuration, ms':<34}{'kernalyse':>12}{'Kernel Tuner':>14}{'ratio':>8}")
    for title, left, right in (
        ("beyond launches and compiling", ours.overhead_ms, theirs.overhead_ms),
        ("beyond launches", ours.overhead_with_compile_ms, theirs.overhead_with_compile_ms),
    ):
        print(f"{title:<34}{left:>12.2f}{right:>14.2f}{left / right:>8.3f}")
    assert ours.configuration_count == theirs.configuration_count


if __name__ == "__main__":
    main()
