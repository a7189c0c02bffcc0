"""Both backends for NVIDIA devices on a real one: resources, cache modes, timing methods, clocks.

What every backend must do alike is in tests/integration/test_backend_conformance.py, which run.sh runs here too.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernalyse.services.core.errors import LaunchLimitError, UnsupportedConstructError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName, CacheMode, Dim3, KernelSource, MeasuringOptions, TimingMethod
from kernalyse.services.profiler.backends.base import Argument, Build, DeviceSession, LaunchConfiguration, PreparedLaunch, Timing
from kernalyse.services.profiler.backends.cuda.compiler import NvccCompiler, find_disassembler
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.measuring.device_state import open_clock_meter
from tests.gpu.conftest import RecordFigure

QUICK = MeasuringOptions(min_duration_ns=50_000_000, max_duration_ns=1_000_000_000)
COLD = Timing(TimingMethod.SINGLE, CacheMode.COLD)
HOT = Timing(TimingMethod.SINGLE, CacheMode.HOT)
L2_CASE_BYTES = 8 * 2**20  # two buffers of it fit into the L2 cache of every device with 24 MB and more


def prepared_copy(session: DeviceSession, size_bytes: int) -> PreparedLaunch:
    """c = a over buffers of `size_bytes`."""
    kernel = session.compile(Build(load_catalog().source("stream_copy"), "stream_copy"), Dim3(256))
    count = size_bytes // 4
    source, target = session.allocate(size_bytes), session.allocate(size_bytes)
    session.upload(source, np.random.default_rng(0).random(count, np.float32))
    launch = session.prepare(kernel, [source, target, np.int32(count)], LaunchConfiguration(Dim3(256), Dim3(-(-count // 256))))
    session.run(launch)
    return launch


# ---------------------------------------------------------------- resources


def test_resources_are_those_that_cuobjdump_tells(cuda_backend: BackendName, session: DeviceSession, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    cuobjdump = find_disassembler("cuobjdump", Path(nvcc).parent)
    if cuobjdump is None:
        pytest.skip("needs cuobjdump of the CUDA toolkit")
    text = """extern "C" __global__ void k(float *y) {
  __shared__ float s[1000];
  s[threadIdx.x] = y[threadIdx.x]; __syncthreads();
  float v[40];
  for (int i = 0; i < 40; ++i) v[i] = s[(threadIdx.x * i) % 1000];
  for (int i = 0; i < 40; ++i) y[threadIdx.x + i] = v[(int)y[i] % 40];
}"""
    build, block = Build(KernelSource("k.cu", text), "k"), Dim3(192)
    architecture = "sm_" + (session.device.compute_capability or "").replace(".", "")
    (tmp_path / "k.cubin").write_bytes(NvccCompiler().compile(build, architecture).code)
    told = subprocess.run([cuobjdump, "-res-usage", str(tmp_path / "k.cubin")], capture_output=True, text=True, check=True).stdout
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)}
    resources = session.resources(session.compile(build, block), LaunchConfiguration(block, Dim3(1)))
    assert resources is not None
    assert resources.register_count == numbers["REG"]
    assert resources.local_memory_bytes == max(numbers["STACK"], numbers["LOCAL"])
    # The driver keeps 1 KB of each block for itself on devices from 8.0; cuobjdump counts it in from CUDA 13 on.
    assert numbers["SHARED"] - (resources.static_shared_memory_bytes or 0) in (0, 1024)


@dataclass(frozen=True, slots=True)
class OccupancyCase:
    block: Dim3
    dynamic_shared_bytes: int
    block_count: int  # on one multiprocessor of compute capability 9.0: 64 warps, 32 blocks, 228 KB less 1 KB a block
    ratio: float


@pytest.mark.parametrize(
    "case",
    [
        OccupancyCase(Dim3(32), 0, 32, 0.5),
        OccupancyCase(Dim3(256), 0, 8, 1.0),
        OccupancyCase(Dim3(1024), 0, 2, 1.0),
        OccupancyCase(Dim3(100), 0, 16, 1.0),
        OccupancyCase(Dim3(256), 100_000, 2, 0.25),
        OccupancyCase(Dim3(256), 227 * 1024, 1, 0.125),
    ],
    ids=lambda case: f"{case.block}, {case.dynamic_shared_bytes} bytes",
)
def test_occupancy_is_the_known_one(session: DeviceSession, case: OccupancyCase) -> None:
    if session.device.compute_capability != "9.0":
        pytest.skip("the expected numbers are those of compute capability 9.0")
    text = 'extern "C" __global__ void k(float *y) { extern __shared__ float s[]; s[threadIdx.x] = y[0]; y[1] = s[threadIdx.x]; }'
    kernel = session.compile(Build(KernelSource("k.cu", text), "k"), case.block)
    resources = session.resources(kernel, LaunchConfiguration(case.block, Dim3(1), case.dynamic_shared_bytes))
    assert resources is not None
    assert resources.active_block_count == case.block_count
    assert resources.theoretical_occupancy_ratio == pytest.approx(case.ratio)


def test_shared_memory_above_48_kilobytes_is_there_for_who_asks(session: DeviceSession) -> None:
    most_bytes = session.device.max_shared_memory_bytes
    assert most_bytes is not None
    assert most_bytes > 48 * 1024
    text = """extern "C" __global__ void k(float *y, int last) {
  extern __shared__ float s[];
  s[threadIdx.x == 0 ? last : 0] = 7; __syncthreads(); if (threadIdx.x == 0) y[0] = s[last];
}"""
    kernel, buffer = session.compile(Build(KernelSource("k.cu", text), "k"), Dim3(32)), session.allocate(4)
    for size_bytes in (most_bytes, 1024, 64 * 1024):
        arguments: list[Argument] = [buffer, np.int32(size_bytes // 4 - 1)]
        session.run(session.prepare(kernel, arguments, LaunchConfiguration(Dim3(32), Dim3(1), size_bytes)))
        result = np.zeros(1, np.float32)
        session.download(buffer, result)
        assert result[0] == 7
    with pytest.raises(LaunchLimitError, match=str(most_bytes)):
        session.prepare(kernel, [buffer, np.int32(0)], LaunchConfiguration(Dim3(32), Dim3(1), most_bytes + 1))


def test_blocks_that_wait_for_each_other_run_or_are_refused_by_name(session: DeviceSession, cuda_backend: BackendName) -> None:
    text = """#include <cooperative_groups.h>
extern "C" __global__ void k(int *y) {
  atomicAdd(y, 1); cooperative_groups::this_grid().sync(); if (threadIdx.x == 0) y[1 + blockIdx.x] = y[0];
}"""
    block_count = 16
    kernel, buffer = session.compile(Build(KernelSource("k.cu", text), "k"), Dim3(32)), session.allocate(4 * (1 + block_count))
    launch = LaunchConfiguration(Dim3(32), Dim3(block_count))
    if cuda_backend is BackendName.PYCUDA:
        with pytest.raises(UnsupportedConstructError, match="Use --backend nvcc"):
            session.prepare(kernel, [buffer], launch)
        return
    session.upload(buffer, np.zeros(1 + block_count, np.int32))
    prepared, result = session.prepare(kernel, [buffer], launch), np.zeros(1 + block_count, np.int32)
    session.run(prepared)
    session.download(buffer, result)
    np.testing.assert_array_equal(result, 32 * block_count)
    for timing in (COLD, HOT, Timing(TimingMethod.BATCHED, CacheMode.HOT, 5)):
        assert session.time(prepared, timing, 20).duration_ns.min() > 0


def test_blocks_of_a_declared_cluster_read_each_others_memory(session: DeviceSession) -> None:
    if float(session.device.compute_capability or 0) < 9:
        pytest.skip("clusters are there from compute capability 9.0 on")
    text = """#include <cooperative_groups.h>
extern "C" __global__ void __cluster_dims__(2) k(int *y) {
  __shared__ int own;
  auto cluster = cooperative_groups::this_cluster();
  own = blockIdx.x; cluster.sync(); y[blockIdx.x] = *cluster.map_shared_rank(&own, 1 - cluster.block_rank()); cluster.sync();
}"""
    kernel, buffer = session.compile(Build(KernelSource("k.cu", text), "k"), Dim3(1)), session.allocate(4 * 8)
    session.run(session.prepare(kernel, [buffer], LaunchConfiguration(Dim3(1), Dim3(8))))
    result = np.zeros(8, np.int32)
    session.download(buffer, result)
    assert result.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    with pytest.raises(LaunchLimitError, match="multiples of its clusters of 2x1x1 blocks"):
        session.prepare(kernel, [buffer], LaunchConfiguration(Dim3(1), Dim3(7)))


def test_listings_have_machine_code(pycuda_session: DeviceSession) -> None:
    listings = pycuda_session.compile(Build(load_catalog().source("saxpy"), "saxpy"), Dim3(256)).listings
    assert b"FFMA" in listings["sass"]
    assert b".entry saxpy" in listings["ptx"]
    assert b"Compiling entry function 'saxpy'" in listings["ptxas.txt"]


# ---------------------------------------------------------------- timing


def test_cold_samples_read_memory_and_hot_ones_the_cache(session: DeviceSession, cuda_backend: BackendName, figure: RecordFigure) -> None:
    launch = prepared_copy(session, L2_CASE_BYTES)
    hot_ns, cold_ns = (float(np.median(session.time(launch, timing, 300).duration_ns)) for timing in (HOT, COLD))
    figure("cache", backend=cuda_backend, hot_us=hot_ns / 1e3, cold_us=cold_ns / 1e3)
    assert cold_ns > 1.1 * hot_ns


def test_all_samples_after_the_first_launch_are_behind_a_held_stream(session: DeviceSession) -> None:
    launch = prepared_copy(session, 2**16)
    for timing in (HOT, COLD, Timing(TimingMethod.BATCHED, CacheMode.HOT, 50)):
        assert session.time(launch, timing, 200).is_blocked
    graph = Timing(TimingMethod.GRAPH, CacheMode.HOT, 50)
    session.time(launch, graph, 1)
    assert session.time(launch, graph, 200).is_blocked


def test_short_kernels_lose_their_launch_overhead_in_a_graph(
    session: DeviceSession, cuda_backend: BackendName, figure: RecordFigure
) -> None:
    launch = prepared_copy(session, 2**12)
    medians_ns = {}
    for method, count in ((TimingMethod.SINGLE, 1), (TimingMethod.BATCHED, 100), (TimingMethod.GRAPH, 100)):
        timing = Timing(method, CacheMode.HOT, count)
        session.time(launch, timing, 1)
        medians_ns[method] = float(np.median(session.time(launch, timing, 200).duration_ns))
    figure("short kernel", backend=cuda_backend, **{f"{method.lower()}_us": ns / 1e3 for method, ns in medians_ns.items()})
    assert medians_ns[TimingMethod.GRAPH] < medians_ns[TimingMethod.SINGLE]
    assert medians_ns[TimingMethod.GRAPH] < 1.1 * medians_ns[TimingMethod.BATCHED]
    assert medians_ns[TimingMethod.GRAPH] < 10_000


def test_clock_of_samples_is_what_the_driver_tells(session: DeviceSession, cuda_backend: BackendName, figure: RecordFigure) -> None:
    launch = prepared_copy(session, 256 * 2**20)
    meter, read_hz = open_clock_meter(session.device), list[int]()
    clocks_hz = list[float]()
    for _ in range(20):
        samples = session.time(launch, HOT, 100)
        assert samples.sm_clock_hz is not None
        clocks_hz += samples.sm_clock_hz[np.isfinite(samples.sm_clock_hz)].tolist()
        reading = meter.read()
        if reading is not None and reading.sm_clock_hz is not None:
            read_hz.append(reading.sm_clock_hz)
    assert len(clocks_hz) >= 0.95 * 2000
    measured_hz = float(np.median(clocks_hz[len(clocks_hz) // 2 :]))
    told_hz = float(np.median(read_hz[len(read_hz) // 2 :])) if read_hz else None
    figure("clock", backend=cuda_backend, measured_hz=measured_hz, told_hz=told_hz)
    assert session.device.max_clock_hz is not None
    assert 0.1 * session.device.max_clock_hz < measured_hz < 1.02 * session.device.max_clock_hz
    if told_hz is not None:
        assert measured_hz == pytest.approx(told_hz, rel=0.05)
