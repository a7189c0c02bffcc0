"""The NVCC backend on a real device: its medians beside PYCUDA's, its resources, its clocks, and what a fault costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernalyse.services.core.errors import MemoryLimitError
from kernalyse.services.core.model import (
    Axis,
    BackendName,
    BufferDefinition,
    BufferRole,
    CacheMode,
    ConfigurationFailed,
    DataType,
    Dim3,
    EventPayload,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    Measurement,
    MeasuringOptions,
    ParameterDefinition,
    SampleBatch,
    TimingMethod,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.backends.discovery import open_backend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep
from tests.integration.devices import found_devices

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(100)]

QUICK = MeasuringOptions(min_duration_ns=200_000_000, max_duration_ns=1_500_000_000)
HANG_LIMIT_S = 20.0  # of silence; a program is ended after half of it, in which even a driver without persistence starts

ROUND_COUNT = 2  # of both backends in turns; the mean of each one's medians counts
TOLERANCE, TOLERANCE_NS = 0.01, 1_000.0
SIZES: Mapping[str, tuple[dict[str, int], ...]] = {
    "stream_copy": ({"N": 2**18}, {"N": 2**22}, {"N": 2**26}),
    "saxpy": ({"N": 2**18}, {"N": 2**24}),
    "matmul_tiled": ({"M": 256, "N": 256, "K": 256}, {"M": 2048, "N": 2048, "K": 2048}),
}


class _Sink:
    def __init__(self) -> None:
        self.measurements: list[Measurement] = []
        self.failures: list[ConfigurationFailed] = []
        self.batches: list[SampleBatch] = []

    def write(self, payload: EventPayload) -> None:
        match payload:
            case Measurement():
                self.measurements.append(payload)
            case ConfigurationFailed():
                self.failures.append(payload)
            case SampleBatch():
                self.batches.append(payload)
            case _:
                pass


def _swept(session: DeviceSession, sweep: KernelSweep, directory: Path) -> _Sink:
    sink = _Sink()
    run_sweep(sweep, plan_sweep(sweep, load_catalog(), 1_000), session, sink, directory)
    return sink


@cache
def _missing(backend: BackendName) -> str | None:
    """Why the backend cannot be tested here; None: it can."""
    devices, notices = found_devices()
    if any(backend in device.backends for device in devices):
        return None
    return " ".join(notice for notice in notices if backend.value in notice) or f"no device for {backend}"


def _opened(backend: BackendName, directory: Path) -> Iterator[DeviceSession]:
    reason = _missing(backend)
    if reason is not None:
        pytest.skip(reason)
    session = open_backend(backend, directory / "kept").open()
    yield session
    session.close()


@pytest.fixture
def nvcc_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceSession]:
    monkeypatch.setenv(SILENCE_LIMIT_VARIABLE, str(HANG_LIMIT_S))
    yield from _opened(BackendName.NVCC, tmp_path)


@pytest.fixture
def pycuda_session(tmp_path: Path) -> Iterator[DeviceSession]:
    yield from _opened(BackendName.PYCUDA, tmp_path)


# ---------------------------------------------------------------- beside PYCUDA


@pytest.mark.parametrize("cache_mode", [CacheMode.COLD, CacheMode.HOT])
@pytest.mark.parametrize("kernel_name", SIZES)
def test_medians_are_those_of_pycuda(
    nvcc_session: DeviceSession,
    pycuda_session: DeviceSession,
    kernel_name: str,
    cache_mode: CacheMode,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    measuring = replace(QUICK, cache_mode=cache_mode, skip_verification=True, min_duration_ns=100_000_000)
    far_off = []
    for sizes in SIZES[kernel_name]:
        axes = tuple(Axis(name, (value,)) for name, value in sizes.items())
        sweep = KernelSweep((KernelSelection(kernel_name),), axes=axes, measuring=measuring)
        medians_ns: dict[str, list[float]] = {"nvcc": [], "pycuda": []}
        for _ in range(ROUND_COUNT):
            for name, session in (("nvcc", nvcc_session), ("pycuda", pycuda_session)):
                (measured,) = _swept(session, sweep, tmp_path).measurements
                medians_ns[name].append(measured.duration_median_ns)
        nvcc_ns, pycuda_ns = (float(np.median(medians_ns[name])) for name in ("nvcc", "pycuda"))
        label = f"{kernel_name} {sizes} {cache_mode.lower()}"
        text = f"nvcc {nvcc_ns:.0f} ns, pycuda {pycuda_ns:.0f} ns, ratio {nvcc_ns / pycuda_ns:.4f}"
        record_property(label, text)
        if abs(nvcc_ns - pycuda_ns) > TOLERANCE * pycuda_ns + TOLERANCE_NS:
            far_off.append(f"{label}: {text}")
    assert not far_off


def test_resources_are_those_of_pycuda(nvcc_session: DeviceSession, pycuda_session: DeviceSession) -> None:
    for kernel_name, block in (("softmax", Dim3(256)), ("matmul_tiled", Dim3(16, 16))):
        build, launch = Build(load_catalog().source(kernel_name), kernel_name), LaunchConfiguration(block, Dim3(64))
        ours, theirs = (session.resources(session.compile(build, block), launch) for session in (nvcc_session, pycuda_session))
        assert ours is not None
        assert ours == theirs
        assert ours.spill_store_bytes is not None


# ---------------------------------------------------------------- the record


@pytest.mark.parametrize(
    ("cache_mode", "method"),
    [
        (CacheMode.COLD, TimingMethod.SINGLE),
        (CacheMode.HOT, TimingMethod.SINGLE),
        (CacheMode.HOT, TimingMethod.BATCHED),
        (CacheMode.HOT, TimingMethod.GRAPH),
    ],
)
def test_every_way_of_timing_holds_the_stream_and_tells_the_clock(
    nvcc_session: DeviceSession, cache_mode: CacheMode, method: TimingMethod, tmp_path: Path
) -> None:
    measuring = replace(QUICK, cache_mode=cache_mode, timing_method=method)
    sweep = KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", (2**16, 2**24)),), measuring=measuring)
    sink = _swept(nvcc_session, sweep, tmp_path)
    assert sink.failures == []
    assert nvcc_session.device.max_clock_hz is not None
    for measured in sink.measurements:
        assert (measured.verification.state, measured.timing_method) == (VerificationState.PASSED, method)
        assert measured.is_blocked, "launch overhead is in the samples"
        assert measured.sm_clock_hz is not None
        assert 0.1 < measured.sm_clock_hz / nvcc_session.device.max_clock_hz < 1.05
    for index in range(2):
        clocks_hz = [clock for batch in sink.batches if batch.configuration_index == index for clock in batch.sm_clock_hz]
        assert np.count_nonzero(clocks_hz) >= 0.9 * len(clocks_hz) > 0


def test_a_template_instance_with_much_shared_memory_runs(nvcc_session: DeviceSession) -> None:
    text = """#include <cstdio>
template <typename T, int N> __global__ void fill(T* y, int last) {
  extern __shared__ char memory[];
  T* s = reinterpret_cast<T*>(memory);
  s[last] = N;
  printf("a kernel that prints\\n");
  y[0] = s[last];
}
template __global__ void fill<double, 7>(double*, int);
"""
    most_bytes = nvcc_session.device.max_shared_memory_bytes
    assert most_bytes is not None
    kernel = nvcc_session.compile(Build(KernelSource("fill.cu", text), "fill"), Dim3(1))
    buffer, result = nvcc_session.allocate(8), np.zeros(1)
    launch = LaunchConfiguration(Dim3(1), Dim3(1), most_bytes)
    nvcc_session.run(nvcc_session.prepare(kernel, [buffer, np.int32(most_bytes // 8 - 1)], launch))
    nvcc_session.download(buffer, result)
    assert result[0] == 7


# ---------------------------------------------------------------- what goes wrong


def test_faults_cost_their_configurations_alone(nvcc_session: DeviceSession, tmp_path: Path) -> None:
    text = """#include <cassert>
__global__ void act(int what, int n, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (what == 1) y[(size_t)1 << 40] = 1;
  if (what == 2) { volatile float* w = y; while (w[0] != 12345.0f) w[1] = 0; }
  if (what == 3) assert(n < 0);
  if (what == 4) __trap();
  if (i < n) y[i] = x[i];
}
"""
    definition = KernelDefinition(
        kernel_name="act",
        source_file_name="act.cu",
        launch=LaunchDefinition(block=("128",), grid=("ceil_div(n, block_x)",)),
        parameters=(ParameterDefinition("what", (0, 1, 2, 3, 4, 5), min_value=0), ParameterDefinition("n", (1_000,))),
        buffers=(
            BufferDefinition("x", ("n",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("y", ("n",), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
    )
    sweep = KernelSweep((KernelSelection("act", KernelSource("act.cu", text), definition),), measuring=QUICK)
    sink = _swept(nvcc_session, sweep, tmp_path)
    assert [failure.error.reason for failure in sink.failures] == ["WORKER_CRASHED", "TIME_LIMIT", "WORKER_CRASHED", "WORKER_CRASHED"]
    assert "cudaErrorIllegalAddress" in sink.failures[0].error.message
    assert "cudaErrorAssert" in sink.failures[2].error.message
    first, last = sink.measurements
    assert last.duration_median_ns == pytest.approx(first.duration_median_ns, rel=0.1, abs=TOLERANCE_NS)


def test_the_largest_size_that_is_named_fits(nvcc_session: DeviceSession) -> None:
    text = "__global__ void touch(float* y) { y[0] = 1; }\n"
    kernel = nvcc_session.compile(Build(KernelSource("touch.cu", text), "touch"), Dim3(1))
    launch = LaunchConfiguration(Dim3(1), Dim3(1))
    assert nvcc_session.device.memory_bytes is not None
    too_large = nvcc_session.allocate(nvcc_session.device.memory_bytes)
    with pytest.raises(MemoryLimitError, match="the largest that fits now") as error:
        nvcc_session.run(nvcc_session.prepare(kernel, [too_large], launch))
    nvcc_session.release(too_large)
    largest_bytes = int(error.value.expected.split()[2])
    fitting, result = nvcc_session.allocate(largest_bytes), np.zeros(1, np.float32)
    nvcc_session.run(nvcc_session.prepare(kernel, [fitting], launch))
    nvcc_session.download(fitting, result)
    assert result[0] == 1
