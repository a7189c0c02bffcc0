"""Medians on a real device: beside NVBench's and Triton's of the same machine code, against themselves, and in pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from kernalyse.services.core.model import (
    Axis,
    BackendName,
    BufferDefinition,
    BufferRole,
    CacheMode,
    DataType,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    Pairing,
    ParameterDefinition,
    Verdict,
)
from kernalyse.services.profiler.backends.base import Build, DeviceSession
from kernalyse.services.profiler.backends.cuda.modules import CudaKernel
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.measuring.buffers import convert_scalar
from kernalyse.services.profiler.measuring.stopping import StoppingRule
from kernalyse.services.profiler.workloads.sweeps.launches import plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from tests.gpu.conftest import RecordFigure
from tests.gpu.cubin_launches import LaunchCase, write_cases
from tests.gpu.sweeps import MAX_CONFIGURATION_COUNT, swept

ROOT = Path(__file__).parents[2]
MEASURING = MeasuringOptions(min_duration_ns=200_000_000, max_duration_ns=1_500_000_000, skip_verification=True, cache_mode=CacheMode.COLD)

ROUND_COUNT = 2  # all tools take turns so often, and the mean of each one's medians counts
NVBENCH_TOLERANCE, NVBENCH_TOLERANCE_NS = 0.01, 1_000.0
TRITON_TOLERANCE, TRITON_MIN_NS = 0.01, 100_000.0  # its events have launch gaps between them
TOOL_LIMIT_S = 60.0

SIZES: Mapping[str, tuple[dict[str, int], ...]] = {
    "stream_copy": ({"N": 2**18}, {"N": 2**26}),
    "saxpy": ({"N": 2**22}, {"N": 2**26}),
    "softmax": ({"M": 256, "N": 1024}, {"M": 8192, "N": 4096}),
    "matmul_tiled": ({"M": 1024, "N": 1024, "K": 1024}, {"M": 2048, "N": 2048, "K": 2048}),
}


def sweep_of(kernel_name: str, values: Mapping[str, int], **changes: object) -> KernelSweep:
    axes = tuple(Axis(name, (value,)) for name, value in values.items())
    sweep = KernelSweep((KernelSelection(kernel_name),), axes=axes, backend=BackendName.PYCUDA, measuring=MEASURING)
    return replace(sweep, **changes)  # type: ignore[arg-type]


SWEEPS = {
    f"{name} {' '.join(f'{axis}={value}' for axis, value in values.items())}": sweep_of(name, values)
    for name, sizes in SIZES.items()
    for values in sizes
}


def case_of(label: str, sweep: KernelSweep, session: DeviceSession, directory: Path) -> LaunchCase:
    """The sweep's only configuration, as the other tools launch it: the same cubin, grid and block, and buffers of the same size."""
    (planned,) = plan_sweep(sweep, load_catalog(), MAX_CONFIGURATION_COUNT).configurations()
    plan, source = plan_launch(planned), planned.kernel.source
    kernel = session.compile(Build(source, plan.definition.function), plan.launch.block)
    assert isinstance(kernel, CudaKernel)
    cubin_file = directory / f"{plan.definition.kernel_name}.cubin"
    cubin_file.write_bytes(kernel.cubin)
    sizes = {buffer.name: buffer.element_count * buffer.array_type.itemsize for buffer in plan.buffers()}
    arguments = [
        sizes[parameter.name]
        if parameter.is_pointer
        else convert_scalar(kernel.function_name, parameter, plan.scalars[parameter.name]).tobytes().hex()
        for parameter in parse_kernel_source(source).kernel(plan.definition.function).parameters
    ]
    grid, block = plan.launch.grid, plan.launch.block
    return LaunchCase(
        label=label,
        cubin_file=str(cubin_file),
        entry=kernel.entry,
        grid=(grid.x, grid.y, grid.z),
        block=(block.x, block.y, block.z),
        shared_bytes=plan.launch.dynamic_shared_memory_bytes,
        arguments=tuple(arguments),
    )


def medians_by(module: str, cases_file: Path) -> dict[str, float]:
    """In nanoseconds, by another tool in a process of its own."""
    results_file = cases_file.with_name(f"{module}.json")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-m", f"tests.gpu.{module}", str(cases_file), str(results_file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    medians: dict[str, float] = json.loads(results_file.read_text())
    return medians


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Deviation:
    """Of our median from another tool's, for one case. is_close: within what was promised."""

    label: str
    tool: str
    own_ns: float
    other_ns: float
    is_close: bool


@pytest.mark.timeout(150)
def test_medians_agree_with_nvbench_and_triton(pycuda_session: DeviceSession, tmp_path: Path, figure: RecordFigure) -> None:
    tools = {
        "nvbench": ("timed_by_nvbench", is_installed("cuda.bench")),
        "triton": ("timed_by_triton", is_installed("triton") and is_installed("torch")),
    }
    modules = {tool: module for tool, (module, is_there) in tools.items() if is_there}
    if not modules:
        pytest.skip("needs cuda-bench, or torch with triton")
    cases_file = tmp_path / "cases.json"
    write_cases([case_of(label, sweep, pycuda_session, tmp_path) for label, sweep in SWEEPS.items()], cases_file)
    rounds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUND_COUNT):
        for label, sweep in SWEEPS.items():
            kept = swept(pycuda_session, sweep)
            assert [failure.error.message for failure in kept.failures] == []
            rounds.setdefault(("own", label), []).append(kept.measurements[0].duration_median_ns)
        for tool, module in modules.items():
            for label, median_ns in medians_by(module, cases_file).items():
                rounds.setdefault((tool, label), []).append(median_ns)
    medians_ns = {key: float(np.median(values)) for key, values in rounds.items()}
    deviations = [deviation_of(label, tool, medians_ns) for tool in modules for label in SWEEPS]
    for one in deviations:
        figure(
            "median",
            case=one.label,
            tool=one.tool,
            own_us=one.own_ns / 1e3,
            other_us=one.other_ns / 1e3,
            ratio=one.own_ns / one.other_ns,
            is_close=one.is_close,
            own_rounds_us=[ns / 1e3 for ns in rounds["own", one.label]],
            other_rounds_us=[ns / 1e3 for ns in rounds[one.tool, one.label]],
        )
    far = [f"{one.label}: {one.own_ns / 1e3:.2f} us, {one.tool} {one.other_ns / 1e3:.2f} us" for one in deviations if not one.is_close]
    assert far == []
    assert set(modules) == set(tools), f"only compared with {', '.join(modules)}"


def deviation_of(label: str, tool: str, medians_ns: Mapping[tuple[str, str], float]) -> Deviation:
    own_ns, other_ns = medians_ns["own", label], medians_ns[tool, label]
    if tool == "triton":
        is_close = other_ns < TRITON_MIN_NS or abs(own_ns / other_ns - 1) <= TRITON_TOLERANCE
    else:
        is_close = abs(own_ns - other_ns) <= max(NVBENCH_TOLERANCE * other_ns, NVBENCH_TOLERANCE_NS)
    return Deviation(label, tool, own_ns, other_ns, is_close)


# ---------------------------------------------------------------- against themselves

REPEAT_COUNT = 20
REPEATED = replace(MEASURING, max_duration_ns=600_000_000)
MIN_COVERED_SHARE = 0.9


@pytest.mark.timeout(120)
@pytest.mark.parametrize("label", ["saxpy N=4194304", "matmul_tiled M=1024 N=1024 K=1024"])
def test_a_median_is_where_the_first_one_said(pycuda_session: DeviceSession, label: str, figure: RecordFigure) -> None:
    """Of repeated measurements, 90 % within the first one's 95 % interval, widened by the half-width that sampling aims at."""
    sweep = replace(SWEEPS[label], measuring=REPEATED)
    target_ratio = StoppingRule.of(sweep.measuring, pycuda_session.device.kind).target_ratio
    first, *others = (swept(pycuda_session, sweep).measurements[0] for _ in range(REPEAT_COUNT + 1))
    low_ns = first.duration_median_low_ns - target_ratio * first.duration_median_ns
    high_ns = first.duration_median_high_ns + target_ratio * first.duration_median_ns
    covered_share = float(np.mean([low_ns <= one.duration_median_ns <= high_ns for one in others]))
    medians_us = [one.duration_median_ns / 1e3 for one in (first, *others)]
    figure("coverage", case=label, share=covered_share, low_us=low_ns / 1e3, high_us=high_ns / 1e3, medians_us=medians_us)
    assert covered_share >= MIN_COVERED_SHARE


# ---------------------------------------------------------------- in pairs

PAIR_COUNT = 50  # of each kind, and none may be wrong
PLANTED_RATIO = 0.03
STEP_COUNT = 4_000  # a chain of multiply-adds of some 200 us on a large device

CHAIN = """
extern "C" __global__ void NAME(const float *a, float *b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float factor = a[i], sum = 0.0f;
    for (int step = 0; step < STEPS; ++step) sum = factor * sum + 1.0f;
    b[i] = sum;
}
"""


def chain(name: str, step_count: int) -> KernelSelection:
    definition = KernelDefinition(
        kernel_name=name,
        source_file_name=f"{name}.cu",
        launch=LaunchDefinition(block=("256",), grid=("ceil_div(N, block_x)",)),
        parameters=(ParameterDefinition("N", (2**20,)),),
        buffers=(
            BufferDefinition("a", ("N",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("b", ("N",), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
    )
    text = CHAIN.replace("NAME", name).replace("STEPS", str(step_count))
    return KernelSelection(name, KernelSource(f"{name}.cu", text), definition)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("planted_ratio", [0.0, PLANTED_RATIO], ids=["same", "slower"])
def test_paired_comparisons_are_right(pycuda_session: DeviceSession, planted_ratio: float, figure: RecordFigure) -> None:
    sweep = KernelSweep(
        (chain("baseline", STEP_COUNT), chain("judged", round(STEP_COUNT * (1 + planted_ratio)))),
        backend=BackendName.PYCUDA,
        measuring=replace(MEASURING, max_duration_ns=400_000_000, cache_mode=CacheMode.HOT),
        pairing=Pairing(),
    )
    comparisons = [swept(pycuda_session, sweep).comparisons[0] for _ in range(PAIR_COUNT)]
    verdicts = [one.verdict for one in comparisons]
    expected = Verdict.SLOWER if planted_ratio else Verdict.SAME
    ratios = sorted(one.duration_ratio for one in comparisons)
    figure(
        "pairs",
        planted_ratio=planted_ratio,
        verdicts={verdict.value: verdicts.count(verdict) for verdict in Verdict},
        ratio_quartiles=[ratios[len(ratios) * quarter // 4] for quarter in (1, 2, 3)],
        smallest_ratio=ratios[0],
        largest_ratio=ratios[-1],
        block_count_median=float(np.median([one.block_count for one in comparisons])),
        others=[[one.verdict.value, one.duration_ratio_low, one.duration_ratio_high] for one in comparisons if one.verdict is not expected],
    )
    if planted_ratio:
        assert verdicts.count(Verdict.SLOWER) == PAIR_COUNT
    else:
        assert verdicts.count(Verdict.SLOWER) + verdicts.count(Verdict.FASTER) == 0
