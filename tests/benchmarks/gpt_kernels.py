"""Kernels of the GPT workload on the OpenCL CPU device: `python -m tests.benchmarks.gpt_kernels`.

- matmul_registers, the fused variant's product, beside NumPy's float32 product at 512^3, block by block in one process. NumPy has all
  cores, as the kernel has; its rate on one core comes from a process of its own. The fastest sample of each side counts: on
  shared cores, other programs only ever add. The kernel has to reach half of NumPy's rate.
- gpt-tile-medium, batch 4, sequence 64: passes of the fused variant over passes of the baseline, in alternating blocks.

Needs an OpenCL device; figures are for Intel's runtime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kernalyse.services.core.comparison import paired_ratio
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.ml_models import find_architecture
from kernalyse.services.core.model import CacheMode, Dim3, TimingMethod
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration, PassSession, Timing
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.workloads.gpt.operations import Problem, plan_pass
from kernalyse.services.profiler.workloads.gpt.reference import random_tokens, random_weights
from kernalyse.services.profiler.workloads.gpt.sampling import LoadedModel, LoadedPass
from kernalyse.services.profiler.workloads.gpt.spec import VARIANTS
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler

EXTENT = 512
FLOP = 2 * EXTENT**3
MIN_NUMPY_RATIO = 0.5
SAMPLES_A_BLOCK = 10
SETTLE_S = 0.05  # BLAS keeps its threads spinning for some time after a product: beside them no kernel is measured
MODEL_NAME, BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY_SIZE = "gpt-tile-medium", 4, 64, 1024


@dataclass(slots=True)
class Side:
    name: str
    take: Callable[[int], list[float]]  # durations in ns
    durations_ns: list[float] = field(default_factory=list)

    def take_block(self) -> None:
        end = time.perf_counter() + SETTLE_S
        while time.perf_counter() < end:
            self.take(1)
        self.durations_ns += self.take(SAMPLES_A_BLOCK)

    @property
    def fastest_rate(self) -> float:
        return FLOP / min(self.durations_ns)

    def told(self) -> str:
        return f"{self.name}: fastest {self.fastest_rate:.0f}, median {FLOP / float(np.median(self.durations_ns)):.0f} GFLOP/s"


def numpy_side(name: str) -> Side:
    random = np.random.default_rng(0)
    a, b = (random.random((EXTENT, EXTENT), np.float32) for _ in range(2))

    def take(count: int) -> list[float]:
        durations = []
        for _ in range(count):
            start_ns = time.perf_counter_ns()
            np.matmul(a, b)
            durations.append(float(time.perf_counter_ns() - start_ns))
        return durations

    return Side(name, take)


def kernel_side(session: DeviceSession, kernel_name: str) -> Side:
    definition, source = load_catalog().definition(kernel_name), load_catalog().source(kernel_name)
    block = Dim3(*(int(extent) for extent in definition.launch.block))
    names = dict(parse_kernel_source(source).constants) | {"block_x": block.x, "block_y": block.y, "block_z": block.z}
    names |= dict.fromkeys(("M", "N", "K"), EXTENT)
    grid = Dim3(*(parse_expression(extent).evaluate_integer(names) for extent in definition.launch.grid))
    buffers = [session.allocate(4 * EXTENT * EXTENT) for _ in range(3)]
    values = np.random.default_rng(0).random((EXTENT, EXTENT), np.float32)
    for buffer in buffers:
        session.upload(buffer, values)
    extents = [np.int32(EXTENT)] * 3
    launch = session.prepare(session.compile(Build(source, kernel_name), block), [*buffers, *extents], LaunchConfiguration(block, grid))
    timing = Timing(TimingMethod.SINGLE, CacheMode.HOT)
    return Side(kernel_name, lambda count: session.time(launch, timing, count).duration_ns.tolist())


def compare_products(session: DeviceSession, block_count: int) -> bool:
    cores = len(os.sched_getaffinity(0))
    numpy, fused, naive = (
        numpy_side(f"NumPy, {cores} cores"),
        kernel_side(session, "matmul_registers"),
        kernel_side(session, "matmul_naive"),
    )
    for _ in range(block_count):
        for side in (numpy, fused, naive):
            side.take_block()
    one_core = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpt_kernels", "--numpy-alone"],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for line in (numpy.told(), one_core, fused.told(), naive.told()):
        print(f"   {line}")
    ratio = fused.fastest_rate / numpy.fastest_rate
    print(f"   matmul_registers reaches {ratio:.0%} of NumPy's rate on {cores} cores at {EXTENT}^3 (wanted: {MIN_NUMPY_RATIO:.0%})")
    return ratio >= MIN_NUMPY_RATIO


# ---------------------------------------------------------------- passes


class Nowhere:
    def write(self, payload: object) -> None:
        """Events of the compiler, which nobody reads here."""


def compare_variants(session: PassSession, block_count: int) -> None:
    architecture = find_architecture(MODEL_NAME)
    assert architecture is not None
    device = session.device
    problem = Problem(architecture, BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY_SIZE, device.kind, device.compute_unit_count)
    passes = [plan_pass(problem, variant, 0, CacheMode.HOT, ()) for variant in VARIANTS]
    model = LoadedModel(problem, passes, session)
    model.fill(random_weights(problem, 0), random_tokens(problem, 0))
    with tempfile.TemporaryDirectory() as directory:
        loaded = [model.prepare(planned, SweepCompiler((), session, Nowhere(), Path(directory))) for planned in passes]
    blocks: list[list[float]] = [[], []]
    for index in range(block_count):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        for side in order:
            blocks[side].append(fastest_pass_ns(session, loaded[side]))
    baseline, fused = (np.array(one) for one in blocks)
    found = paired_ratio(fused, baseline)
    print(f"   {MODEL_NAME}, batch {BATCH_SIZE}, sequence {SEQUENCE_LENGTH}, fastest pass in ms:", end=" ")
    print(f"baseline {baseline.min() / 1e6:.2f}, fused {fused.min() / 1e6:.2f}")
    print(f"   fused takes {found.ratio:.3f} of the baseline's time ({found.low:.3f} to {found.high:.3f}), block by block")
    model.release()


def fastest_pass_ns(session: PassSession, loaded: LoadedPass) -> float:
    session.run_pass(loaded.launches)
    return float(session.time_passes(loaded.launches, CacheMode.HOT, 4).duration_ns.min())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="of each side (default: 20)")
    parser.add_argument("--numpy-alone", action="store_true", help="NumPy's rate with the threads of the environment, and nothing else")
    options = parser.parse_args()
    if options.numpy_alone:
        alone = numpy_side("NumPy, 1 core")
        for _ in range(options.blocks):
            alone.take_block()
        print(alone.told())
        return 0
    backend = OpenCLBackend()
    if not backend.devices():
        print("   no OpenCL device: nothing measured")
        return 1
    session = backend.open()
    print(f"   {session.device.name}, {session.device.runtime}, load {os.getloadavg()[0]:.1f}")
    is_fast_enough = compare_products(session, options.blocks)
    compare_variants(session, options.blocks)
    session.close()
    return 0 if is_fast_enough else 1


if __name__ == "__main__":
    sys.exit(main())
