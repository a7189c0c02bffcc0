"""Medians beside Kernel Tuner's: `python -m tests.benchmarks.beside_kernel_tuner`.

Both time the same generated OpenCL source, compiled with the same options, with the same inputs, launch and runtime. They
take turns block by block in one process, each block beginning with a launch that does not count, in the order ABBA: what
the machine does meanwhile, it does to both. Kernel Tuner's side is its own
`DeviceInterface.benchmark_default`, this project's the engine's own session.

Kernel Tuner asks the event over and over whether the kernel has finished, and waits for the queue only then. On a CPU the
thread that waits is one of those that compute: a thread that asks instead leaves its core idle. So there is a third side,
Kernel Tuner that waits at once; that is the one to agree with.

Printed are the ratio of the medians of all samples, and with their intervals the medians over the pairs of blocks of the
ratios of block medians and of the fastest samples of blocks. The ratio of the medians has to lie within 3 % of 1; where
other programs keep the cores busy, only the fastest hardly move.

Needs kernel-tuner (`pip install kernel-tuner`) and an OpenCL device.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the worker has it, for both sides

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernalyse.services.core.comparison import RatioInterval, paired_ratio
from kernalyse.services.core.model import CacheMode, Dim3, TimingMethod
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.backends.base import Build, CompiledKernel, DeviceSession, LaunchConfiguration, Timing
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from tests.benchmarks.configuration_overhead import platform_index

MAX_DEVIATION_RATIO = 0.03
SAMPLES_A_BLOCK = 7  # Kernel Tuner's default
TAKE_BLOCK = Callable[[], Samples]


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of the catalogue with its launch; arguments in the order of its source."""

    kernel_name: str
    launch: LaunchConfiguration
    arguments: tuple[Any, ...]

    @property
    def build(self) -> Build:
        return Build(load_catalog().source(self.kernel_name), self.kernel_name)


def subjects() -> tuple[Subject, ...]:
    random = np.random.default_rng(0)
    extent, count = 256, 2**22
    a, b, c = (random.random((extent, extent), np.float32) for _ in range(3))
    x, y, z = (random.random(count, np.float32) for _ in range(3))
    scalar = np.int32(extent)
    tiles = LaunchConfiguration(Dim3(16, 16), Dim3(extent // 16, extent // 16))
    return (
        Subject("matmul_tiled", tiles, (a, b, c, scalar, scalar, scalar)),
        Subject("matmul_naive", tiles, (a, b, c, scalar, scalar, scalar)),
        Subject("vector_add", LaunchConfiguration(Dim3(256), Dim3(count // 256)), (x, y, z, np.int32(count))),
    )


def engine_side(session: DeviceSession, subject: Subject, compiled: CompiledKernel) -> TAKE_BLOCK:
    arguments = []
    for argument in subject.arguments:
        if isinstance(argument, np.ndarray):
            buffer = session.allocate(argument.nbytes)
            session.upload(buffer, argument)
            arguments.append(buffer)
        else:
            arguments.append(argument)
    launch = session.prepare(compiled, arguments, subject.launch)
    timing = Timing(TimingMethod.SINGLE, CacheMode.HOT)

    def take_block() -> Samples:
        session.run(launch)
        return session.time(launch, timing, SAMPLES_A_BLOCK).duration_ns

    return take_block


def kernel_tuner_side(session: DeviceSession, subject: Subject, compiled: CompiledKernel, waits: bool) -> TAKE_BLOCK:
    """waits: for the queue at once, without asking for the kernel's state before."""
    from kernel_tuner.core import DeviceInterface, KernelInstance, KernelSource

    text = compiled.listings["cl"].decode()
    source = KernelSource(subject.kernel_name, text, lang="OpenCL")
    options = compiled.compiler_options.split()
    device = DeviceInterface(source, platform=platform_index(session), compiler_options=options, iterations=SAMPLES_A_BLOCK, quiet=True)
    if waits:
        device.dev.kernel_finished = lambda: True
    threads, grid = _extents(subject.launch.block), _extents(subject.launch.grid)
    arguments = device.dev.ready_argument_list(subject.arguments)
    function = device.dev.compile(KernelInstance(subject.kernel_name, source, text, {}, threads, grid, {}, subject.arguments))

    def take_block() -> Samples:
        device.dev.run_kernel(function, arguments, threads, grid)
        result: dict[str, Any] = {}
        device.benchmark_default(function, arguments, threads, grid, result)
        return np.array(result["times"]) * 1e6

    return take_block


def _extents(dim: Dim3) -> tuple[int, int, int]:
    return (dim.x, dim.y, dim.z)


def is_close(session: DeviceSession, subject: Subject, block_count: int) -> bool:
    """Measures and prints one kernel."""
    compiled = session.compile(subject.build, subject.launch.block)
    sides = (
        engine_side(session, subject, compiled),
        kernel_tuner_side(session, subject, compiled, waits=True),
        kernel_tuner_side(session, subject, compiled, waits=False),
    )
    for take_block in sides:
        take_block()  # the runtime compiles, and first touches its buffers
    blocks: tuple[list[Samples], ...] = ([], [], [])
    for turn in range(block_count):
        for side in (0, 1, 2) if turn % 2 == 0 else (2, 1, 0):
            blocks[side].append(sides[side]())
    ours, waiting, asking = (float(np.median(np.concatenate(taken))) for taken in blocks)
    medians, fastest = (
        paired_ratio(*(np.array([figure(block) for block in taken]) for taken in blocks[:2])) for figure in (np.median, np.min)
    )
    print(
        f"{subject.kernel_name:<14}{ours / 1e3:>12.1f}{asking / 1e3:>14.1f}{waiting / 1e3:>14.1f}{ours / waiting:>18.4f}"
        f"  {_shown(medians)}  {_shown(fastest)}",
        flush=True,
    )
    return abs(ours / waiting - 1) <= MAX_DEVIATION_RATIO


def _shown(ratio: RatioInterval) -> str:
    return f"{ratio.ratio:>8.4f} ({ratio.low:.4f} to {ratio.high:.4f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=("intel", "pocl"), help="OpenCL CPU runtime; the first there is if not given")
    parser.add_argument("--blocks", type=int, default=200, help="of each side")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # pyopencl's and Kernel Tuner's own
    session = OpenCLBackend(arguments.runtime).open()
    print(f"on {session.device.name}, {session.device.runtime}, {arguments.blocks} blocks of {SAMPLES_A_BLOCK} a side")
    print(
        f"{'median, us':<14}{'kernalyse':>12}{'Kernel Tuner':>14}{'waiting':>14}{'ratio of medians':>18}"
        f"  {'medians of pairs':<27}  fastest of pairs"
    )
    close = [is_close(session, subject, arguments.blocks) for subject in subjects()]
    return 0 if all(close) else 1


if __name__ == "__main__":
    sys.exit(main())
