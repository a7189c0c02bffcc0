"""Every documented CUDA construct on OpenCL: it runs and computes what NumPy does, or is refused as documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernalyse.services.core.errors import UnsupportedConstructError
from kernalyse.services.core.model import Dim3, KernelSource
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from tests.integration.opencl_constructs import CONSTRUCTS, COUNT, POCL_REFUSALS, REFUSALS, Construct, Refusal


@pytest.fixture(scope="module")
def backend() -> OpenCLBackend:
    return OpenCLBackend()


def _open(backend: OpenCLBackend, device_id: str) -> Iterator[DeviceSession]:
    usable, notices = backend.usable_devices()
    if device_id not in [device.device_id for device in usable]:
        pytest.skip(next((notice for notice in notices if device_id in notice), f"the OpenCL runtime {device_id} is not installed"))
    session = backend.open(device_id)
    yield session
    session.close()


@pytest.fixture(scope="module")
def intel(backend: OpenCLBackend) -> Iterator[DeviceSession]:
    yield from _open(backend, "opencl:intel:0")


@pytest.fixture(scope="module")
def pocl(backend: OpenCLBackend) -> Iterator[DeviceSession]:
    yield from _open(backend, "opencl:pocl:0")


def _check(session: DeviceSession, construct: Construct) -> None:
    kernel = session.compile(Build(KernelSource("k.cu", construct.text), "k"), construct.block)
    x = np.random.default_rng(0).random(COUNT, np.float32)
    y = np.zeros_like(x)
    source, target = session.allocate(x.nbytes), session.allocate(y.nbytes)
    session.upload(source, x)
    session.upload(target, y)
    grid = Dim3(COUNT // construct.block.count)
    configuration = LaunchConfiguration(construct.block, grid, construct.dynamic_shared_memory_bytes)
    session.run(session.prepare(kernel, [source, target, np.int32(COUNT)], configuration))
    session.download(target, y)
    session.release(source)
    session.release(target)
    np.testing.assert_allclose(y, construct.expected(x), rtol=construct.tolerance, atol=construct.tolerance)


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.name)
def test_construct_computes_on_intel_what_numpy_does(intel: DeviceSession, construct: Construct) -> None:
    _check(intel, construct)


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.name)
def test_construct_runs_on_pocl_or_is_refused_by_name(pocl: DeviceSession, construct: Construct) -> None:
    if not construct.pocl_refuses:
        _check(pocl, construct)
        return
    with pytest.raises(UnsupportedConstructError, match=re.escape(construct.pocl_refuses)) as refusal:
        _check(pocl, construct)
    assert re.search(r"k\.cu, line \d+", refusal.value.message)
    assert "the Intel CPU runtime (OPENCL=intel) and on the PYCUDA backend" in refusal.value.message


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_unsupported_construct_is_refused_with_line_and_runtime(intel: DeviceSession, refusal: Refusal) -> None:
    with pytest.raises(UnsupportedConstructError) as error:
        intel.compile(Build(KernelSource("k.cu", refusal.text), "k"), Dim3(32))
    assert f"k.cu, line {refusal.line}:" in error.value.message
    assert refusal.names in error.value.message
    assert "PYCUDA" in error.value.message


@pytest.mark.parametrize("refusal", POCL_REFUSALS, ids=lambda refusal: refusal.name)
def test_pointer_that_cannot_be_placed_is_refused_on_pocl_and_runs_on_intel(
    intel: DeviceSession, pocl: DeviceSession, refusal: Refusal
) -> None:
    source = KernelSource("k.cu", refusal.text)
    with pytest.raises(UnsupportedConstructError) as error:
        pocl.compile(Build(source, "k"), Dim3(32))
    assert f"k.cu, line {refusal.line}:" in error.value.message
    assert refusal.names in error.value.message
    assert "OPENCL=intel" in error.value.message
    assert intel.compile(Build(source, "k"), Dim3(32)).compile_ns > 0


def test_shuffle_is_refused_where_the_block_is_no_multiple_of_a_warp(intel: DeviceSession) -> None:
    text = "__global__ void k(float* y) {\n  y[threadIdx.x] = __shfl_down_sync(0xffffffff, y[threadIdx.x], 1);\n}"
    with pytest.raises(UnsupportedConstructError, match=r"line 2: found the warp function __shfl_down_sync with a block of 16x16x1"):
        intel.compile(Build(KernelSource("k.cu", text), "k"), Dim3(16, 16))


def test_readme_lists_every_construct() -> None:
    table = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    missing = [construct.name for construct in CONSTRUCTS if f"| {construct.name} |" not in table]
    missing += [refusal.name for refusal in REFUSALS if f"| {refusal.name} |" not in table]
    assert missing == []
