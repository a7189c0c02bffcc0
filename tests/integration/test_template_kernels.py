"""Instances of template kernels on every OpenCL runtime there is, alone and in sweeps of a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernalyse.services.core.model import Axis, Device, Dim3, KernelSelection, KernelSource, Measurement, ParameterValue, VerificationState
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.backends.discovery import open_backend_for
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from tests.integration.devices import device_parameters
from tests.integration.test_worker import run_worker, sweep_of

TEXT = """template <typename T> __device__ T twice(T v) { return v + v; }
template <typename T, int TIMES = 2>
__global__ void add(const T* x, T* y, T offset, int n) {
  __shared__ T tile[32 * TIMES];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  T sum = T();
  for (int j = 0; j < TIMES; ++j) {
    tile[threadIdx.x * TIMES + j] = i < n ? x[i] : T(0);
    __syncthreads();
    sum += tile[threadIdx.x * TIMES + j];
  }
  if (i < n) y[i] = sum + offset;
}
"""
COUNT = 96


@pytest.fixture(scope="module", params=device_parameters())
def session(request: pytest.FixtureRequest) -> Iterator[DeviceSession]:
    device: Device = request.param
    session = open_backend_for(device.backends[0], device.device_id).open(device.device_id)
    yield session
    session.close()


@pytest.mark.parametrize(
    ("function_name", "dtype", "times"),
    [("add<float>", np.float32, 2), ("add<unsigned int, 3>", np.uint32, 3), ("add<double, 2*TILE>", np.float64, 8)],
)
def test_an_instance_computes_with_its_own_types_and_values(session: DeviceSession, function_name: str, dtype: type, times: int) -> None:
    # Without the C++ template, which OpenCL C does not have: the kernel's own template is not left to the runtime.
    text = "\n".join(TEXT.split("\n")[1:])
    build = Build(KernelSource("add.cu", text), function_name, (ParameterValue("TILE", 4),))
    kernel = session.compile(build, Dim3(32))
    x: np.ndarray[Any, Any] = np.arange(COUNT).astype(dtype)
    y = np.zeros_like(x)
    source, target = session.allocate(x.nbytes), session.allocate(y.nbytes)
    session.upload(source, x)
    launch = session.prepare(kernel, [source, target, dtype(5), np.int32(COUNT)], LaunchConfiguration(Dim3(32), Dim3(COUNT // 32)))
    session.run(launch)
    session.download(target, y)
    session.release(source)
    session.release(target)
    np.testing.assert_array_equal(y, times * x + dtype(5))


def test_a_sweep_takes_instances_with_macros_among_their_arguments(tmp_path: Path) -> None:
    text = load_catalog().source("vector_add").text
    text = text.replace('extern "C" __global__', "template <typename T, int STEP>\n__global__").replace("float*", "T*")
    template = KernelSource("add.cu", text)
    definition = replace(load_catalog().definition("vector_add"), kernel_name="vector_add<float, TILE>", source_file_name="add.cu")
    sweep = sweep_of(
        KernelSelection("vector_add<float, TILE>", template, definition), axes=(Axis("N", (1_000,)),), macro_axes=(Axis("TILE", (1, 2)),)
    )
    ended = run_worker(sweep, tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert [one.verification.state for one in ended.of(Measurement)] == [VerificationState.PASSED] * 2
    assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == ["run_spec.json", "vector_add_float_TILE.cl"]
