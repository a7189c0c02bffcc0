"""Backends load on demand, and what is missing is named with its remedy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    DeviceNotFoundError,
    InternalError,
    InvalidSettingError,
    UnknownKernelError,
)
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Dim3, KernelSource
from kernalyse.services.profiler.backends.cuda import nvcc_backend
from kernalyse.services.profiler.backends.cuda.modules import find_entry
from kernalyse.services.profiler.backends.discovery import open_backend, open_backend_for, read_probe, write_probe
from kernalyse.services.profiler.backends.opencl.runtimes import check_runtime, platform_slug
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source

DEVICE = Device(
    device_id="opencl:pocl:0",
    name="a device",
    kind=DeviceKind.CPU,
    backends=(BackendName.OPENCL,),
    compute_unit_count=4,
    max_block=Dim3(64, 32, 16),
)


def test_importing_backends_catalogue_and_probe_loads_no_runtime_and_no_numpy() -> None:
    program = (
        "import sys, kernalyse.services.profiler.backends.discovery, kernalyse.services.profiler.kernel_sources.catalog\n"
        "print([name for name in ('numpy', 'pyopencl', 'pycuda', 'pynvml', 'polars', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_probe_survives_the_way_through_json() -> None:
    assert read_probe(write_probe((DEVICE,), ("no GPU",))) == ((DEVICE,), ("no GPU",))


def test_output_that_is_no_probe_is_an_error() -> None:
    with pytest.raises(InternalError, match="Segmentation"):
        read_probe("Segmentation fault")


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed")
def test_missing_pycuda_is_named_with_its_extra() -> None:
    with pytest.raises(BackendUnavailableError, match=r"pycuda is missing.*kernalyse\[cuda\]"):
        open_backend(BackendName.PYCUDA)


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed, so a driver may be too")
def test_nvcc_backend_names_the_missing_driver() -> None:
    with pytest.raises(BackendUnavailableError, match=r"libcuda.*Install NVIDIA's driver"):
        open_backend(BackendName.NVCC)


def test_nvcc_backend_names_the_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc_backend, "find_nvcc", lambda: None)
    with pytest.raises(BackendUnavailableError, match=r"backend NVCC: no nvcc.*Install the CUDA toolkit, or set CUDA_HOME"):
        open_backend(BackendName.NVCC)


def test_a_driver_older_than_the_toolkit_is_refused() -> None:
    nvcc_backend.check_versions((13, 0), "12.8")
    nvcc_backend.check_versions((12, 2), "12.8")
    nvcc_backend.check_versions((12, 2), None)
    with pytest.raises(BackendUnavailableError, match=r"CUDA 12\.8 and the toolkit 13\.0.*Update the driver"):
        nvcc_backend.check_versions((12, 8), "13.0")


def test_device_id_of_no_backend_is_refused() -> None:
    with pytest.raises(DeviceNotFoundError, match="rocm:0"):
        open_backend_for(BackendName.AUTO, "rocm:0")


def test_wrong_runtime_in_the_environment_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="intel or pocl"):
        check_runtime("amd")


@pytest.mark.parametrize(
    ("platform", "slug"),
    [
        ("Intel(R) OpenCL", "intel"),
        ("Portable Computing Language", "pocl"),
        ("Intel(R) OpenCL Graphics", "intel-opencl-graphics"),
        ("NVIDIA CUDA", "nvidia-cuda"),
    ],
)
def test_platform_names_become_short_slugs(platform: str, slug: str) -> None:
    assert platform_slug(platform) == slug


@pytest.mark.parametrize(
    ("symbols", "found"),
    [
        (b".text.saxpy\0", "saxpy"),
        (b".text._Z5saxpyif\0.text._Z6saxpy2if\0", "_Z5saxpyif"),
        (b".text._ZN4math5saxpyEif\0", "_ZN4math5saxpyEif"),
    ],
)
def test_kernel_is_found_by_its_compiled_name(symbols: bytes, found: str) -> None:
    kernel = parse_kernel_source(KernelSource("a.cu", "__global__ void saxpy(int n) {}")).kernel("saxpy")
    assert find_entry(symbols, kernel, "a.cu") == found


def test_overloaded_kernel_is_refused() -> None:
    kernel = parse_kernel_source(KernelSource("a.cu", "__global__ void saxpy(int n) {}")).kernel("saxpy")
    with pytest.raises(UnknownKernelError, match="_Z5saxpyf, _Z5saxpyi"):
        find_entry(b".text._Z5saxpyi\0.text._Z5saxpyf\0", kernel, "a.cu")


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="needs pyopencl")
def test_a_pocl_that_compiles_nothing_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernalyse.services.profiler.backends.opencl import backend, runtimes
    from kernalyse.services.profiler.backends.opencl.dialect import Dialect

    class Error(Exception):
        pass

    class Program:
        def __init__(self, context: str, text: str) -> None:
            self._context = context

        def build(self) -> None:
            raise Error("clBuildProgram failed: BUILD_PROGRAM_FAILURE\n\nerror: unknown target CPU 'generic'\nDevice failed")

    stand_in = SimpleNamespace(Error=Error, Program=Program, Context=str)
    devices = [Device(f"opencl:{slug}:0", "CPU", DeviceKind.CPU, (BackendName.OPENCL,), driver_version="3.0") for slug in ("intel", "pocl")]
    found = tuple(
        runtimes.OpenCLDevice(device, None, dialect=Dialect.C, has_warps=False, runtime=runtime)
        for device, runtime in zip(devices, ("Intel's CPU runtime", runtimes.POCL), strict=True)
    )
    monkeypatch.setattr(backend, "load_pyopencl", lambda _runtime: stand_in)
    monkeypatch.setattr(backend, "find_devices", lambda _runtime: found)
    usable, notices = backend.OpenCLBackend().usable_devices()
    assert usable == (devices[0],)
    (notice,) = notices
    assert notice.startswith("Backend OPENCL: PoCL 3.0 (opencl:pocl:0) compiles nothing for this processor (error: unknown target CPU")
