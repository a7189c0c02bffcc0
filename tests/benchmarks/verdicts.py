"""How often paired comparisons are right: `python -m tests.benchmarks.verdicts`.

On each OpenCL CPU runtime, as many comparisons of a kernel with its twin as with one that does more of the same work: 5 %
more on Intel's runtime, 10 % on PoCL. Of 100 twins at most 5 may be called faster or slower, of 100 that do more at least
95 must be called slower. Two kernels: a chain of dependent multiply-adds, and a matrix product through shared memory. That
the planted work is really done, and nothing else, is counted first: with ones as input each kernel's result is the number
of its steps.

Every comparison is a sweep of its own, with buffers of its own. Needs an OpenCL device.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the worker has it

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kernalyse.services.core.model import (
    BackendName,
    BufferDefinition,
    BufferRole,
    ConfigurationFailed,
    DataType,
    EventPayload,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    PairedComparison,
    Pairing,
    ParameterDefinition,
    Verdict,
)
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.launches import plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep

PLANTED_RATIOS = {"intel": 0.05, "pocl": 0.10}
MAX_FALSE_SHARE = 0.05
MIN_FOUND_SHARE = 0.95

CHAIN = """
__global__ void NAME(const float *a, float *b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float factor = a[i], sum = 0.0f;
    for (int step = 0; step < STEPS; ++step) sum = factor * sum + 1.0f;
    b[i] = sum;
}
"""

TILED = """
__global__ void NAME(const float *a, const float *b, float *c, int N) {
    __shared__ float left[16][16];
    __shared__ float right[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int step = 0; step < STEPS; ++step) {
        int first = (step % (N / 16)) * 16;
        left[threadIdx.y][threadIdx.x] = a[row * N + first + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * N + column];
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[row * N + column] = sum;
}
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel in two speeds. step_count: of the baseline."""

    title: str
    text: str
    extent: int  # N
    step_count: int
    result_of_step: float  # with ones as input
    is_square: bool

    def selection(self, name: str, more_ratio: float) -> KernelSelection:
        shape = ("N", "N") if self.is_square else ("N",)
        names = ("a", "b", "c") if self.is_square else ("a", "b")
        definition = KernelDefinition(
            kernel_name=name,
            source_file_name=f"{name}.cu",
            launch=LaunchDefinition(("16", "16"), ("N / 16", "N / 16")) if self.is_square else LaunchDefinition(("64",), ("N / 64",)),
            parameters=(ParameterDefinition("N", (self.extent,)),),
            buffers=tuple(
                BufferDefinition(one, shape, DataType.FLOAT32, BufferRole.OUTPUT if one == names[-1] else BufferRole.INPUT) for one in names
            ),
        )
        text = self.text.replace("NAME", name).replace("STEPS", str(self.steps(more_ratio)))
        return KernelSelection(name, KernelSource(f"{name}.cu", text), definition)

    def steps(self, more_ratio: float) -> int:
        count = self.step_count * (1 + more_ratio)
        assert abs(count - round(count)) < 1e-6, f"{more_ratio:.0%} of {self.step_count} steps are no whole number"
        return round(count)


SUBJECTS = {  # a launch of each takes about a millisecond on two cores
    "intel": (Subject("chain", CHAIN, 8_192, 1_600, 1.0, False), Subject("tiled", TILED, 256, 20, 16.0, True)),
    "pocl": (Subject("chain", CHAIN, 8_192, 400, 1.0, False), Subject("tiled", TILED, 64, 20, 16.0, True)),
}


@dataclass(slots=True)
class Kept:
    """Of a sweep, what is asked about; a failure ends the script."""

    comparisons: list[PairedComparison] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, ConfigurationFailed):
            raise RuntimeError(payload.error.message)
        if isinstance(payload, PairedComparison):
            self.comparisons.append(payload)


def compare(session: DeviceSession, subject: Subject, more_ratio: float, max_duration_s: float) -> PairedComparison:
    sweep = KernelSweep(
        (subject.selection("baseline", 0.0), subject.selection("judged", more_ratio)),
        backend=BackendName.OPENCL,
        measuring=MeasuringOptions(max_duration_ns=round(max_duration_s * 1e9)),
        pairing=Pairing(),
    )
    kept = Kept()
    with tempfile.TemporaryDirectory() as directory:
        run_sweep(sweep, plan_sweep(sweep, load_catalog(), 2), session, kept, Path(directory))
    (comparison,) = kept.comparisons
    return comparison


def check_work(session: DeviceSession, subject: Subject, more_ratio: float) -> None:
    """Runs the kernel on ones: its result counts its steps."""
    selection = subject.selection("judged", more_ratio)
    sweep = KernelSweep((selection,), backend=BackendName.OPENCL)
    plan = plan_launch(next(plan_sweep(sweep, load_catalog(), 2).configurations()))
    assert selection.source is not None
    kernel = session.compile(Build(selection.source, "judged"), plan.launch.block)
    buffers = []
    for one in plan.buffers():
        buffers.append(session.allocate(one.size_bytes))
        session.upload(buffers[-1], np.ones(one.shape, np.float32))
    launch = LaunchConfiguration(plan.launch.block, plan.launch.grid)
    session.run(session.prepare(kernel, [*buffers, np.int32(subject.extent)], launch))
    result = np.empty(plan.buffers()[-1].shape, np.float32)
    session.download(buffers[-1], result)
    for buffer in buffers:
        session.release(buffer)
    expected = subject.steps(more_ratio) * subject.result_of_step
    assert (result == expected).all(), f"{subject.title}: found {result.min()} to {result.max()} steps, expected {expected}"


def judge_runtime(runtime: str, count: int, max_duration_s: float) -> bool:
    """Prints both figures of one runtime; whether they are good enough."""
    session = OpenCLBackend(runtime).open()
    planted = PLANTED_RATIOS[runtime]
    print(f"{session.device.runtime}, {session.device.name}, load {os.getloadavg()[0]:.1f}", flush=True)
    for subject in SUBJECTS[runtime]:
        for more_ratio in (0.0, planted):
            check_work(session, subject, more_ratio)
    verdicts: dict[float, Counter[Verdict]] = {0.0: Counter(), planted: Counter()}
    start = time.monotonic()
    for subject in SUBJECTS[runtime]:
        found: dict[float, list[PairedComparison]] = {0.0: [], planted: []}
        for _ in range(count // len(SUBJECTS[runtime])):
            for more_ratio, comparisons in found.items():
                comparisons.append(compare(session, subject, more_ratio, max_duration_s))
        for more_ratio, comparisons in found.items():
            verdicts[more_ratio].update(one.verdict for one in comparisons)
            _print_subject(subject, more_ratio, comparisons)
    false_count = verdicts[0.0][Verdict.FASTER] + verdicts[0.0][Verdict.SLOWER]
    found_count = verdicts[planted][Verdict.SLOWER]
    same_total, planted_total = verdicts[0.0].total(), verdicts[planted].total()
    print(f"   twins called faster or slower: {false_count} of {same_total} (at most {MAX_FALSE_SHARE:.0%})")
    print(f"   {planted:.0%} more work called slower: {found_count} of {planted_total} (at least {MIN_FOUND_SHARE:.0%})")
    print(f"   {(time.monotonic() - start) / (same_total + planted_total):.2f} s a comparison, load {os.getloadavg()[0]:.1f}", flush=True)
    return false_count <= MAX_FALSE_SHARE * same_total and found_count >= MIN_FOUND_SHARE * planted_total


def _print_subject(subject: Subject, more_ratio: float, comparisons: list[PairedComparison]) -> None:
    ratios = np.array([one.duration_ratio for one in comparisons])
    widths = [one.duration_ratio_high - one.duration_ratio_low for one in comparisons]
    counted = ", ".join(f"{verdict.lower()} {number}" for verdict, number in Counter(one.verdict for one in comparisons).items())
    blocks = np.median([one.block_count for one in comparisons])
    print(
        f"   {subject.title:<6}{more_ratio:>5.0%}: {counted}; ratio {np.median(ratios):.4f} ({ratios.min():.4f} to {ratios.max():.4f}), "
        f"interval {np.median(widths):.2%} wide, {blocks:.0f} blocks",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=tuple(SUBJECTS), help="OpenCL CPU runtime; both, each in a process of its own, if not given")
    parser.add_argument("--count", type=int, default=100, help="comparisons of twins, and as many with planted work")
    parser.add_argument("--max-time", type=float, default=4.0, help="seconds of sampling a side")
    arguments = parser.parse_args()
    if arguments.runtime is None:
        command = [sys.executable, "-m", "tests.benchmarks.verdicts", *sys.argv[1:]]
        return max(subprocess.run([*command, "--runtime", runtime], check=False).returncode for runtime in SUBJECTS)
    warnings.simplefilter("ignore")  # pyopencl's
    return 0 if judge_runtime(arguments.runtime, arguments.count, arguments.max_time) else 1


if __name__ == "__main__":
    sys.exit(main())
