"""Kernels with headers of their own in real workers, on every OpenCL runtime there is."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.model import (
    Axis,
    ConfigurationFailed,
    Device,
    KernelSelection,
    KernelSource,
    Measurement,
    RunState,
    StateChanged,
    VerificationState,
)
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle, pack_headers
from tests.integration.devices import device_parameters
from tests.integration.test_worker import Ended, run_worker, sweep_of

SOURCE = """#include <cuda_runtime.h>
#ifdef NEVER
#include "arithmetic/add.h"
#else
#define ALWAYS
#endif
#include "arithmetic/add.h"
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) c[i] = add(a[i], b[i]);
}
"""
ADD = """#pragma once
#include "../constants.h"
#include <limits/zero.h>

__device__ float add(float a, float b) { return ONE * a + b + ZERO; }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in (
        ("project/src/k.cu", SOURCE),
        ("project/src/arithmetic/add.h", ADD),
        ("project/src/constants.h", "#ifndef CONSTANTS\n#define CONSTANTS\n#define ONE 1.0f\n#endif\n"),
        ("project/include/limits/zero.h", "#define ZERO 0.0f\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "project"


def run_with_headers(project: Path, device: Device, directory: Path) -> Ended:
    """The worker finds the bundle unpacked where the service puts it."""
    bundle = pack_headers(project / "src" / "k.cu", [project / "include"])
    assert isinstance(bundle, HeaderBundle)
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        archive.extractall(
            directory / "bundles" / bundle.digest.removeprefix("sha256:")
        )  # packed here; Debian's Python 3.11 has no filters
    definition = replace(load_catalog().definition("vector_add"), source_file_name="k.cu")
    source = KernelSource("k.cu", (project / "src" / "k.cu").read_text())
    selection = KernelSelection("vector_add", source, definition, bundle.digest)
    return run_worker(sweep_of(selection, axes=(Axis("N", (1_000,)),), device_id=device.device_id), directory)


@pytest.mark.parametrize("device", device_parameters())
def test_a_kernel_finds_its_headers_in_sub_directories_and_include_directories(device: Device, project: Path, tmp_path: Path) -> None:
    ended = run_with_headers(project, device, tmp_path)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert [one.verification.state for one in ended.of(Measurement)] == [VerificationState.PASSED]


@pytest.mark.parametrize("device", device_parameters())
def test_an_error_in_a_header_is_told_with_the_headers_name_and_line(device: Device, project: Path, tmp_path: Path) -> None:
    add = project / "src" / "arithmetic" / "add.h"
    add.write_text(ADD.replace("+ ZERO", "+ undeclared_name"))
    (failed,) = run_with_headers(project, device, tmp_path).of(ConfigurationFailed)
    assert failed.error.reason == "COMPILE_FAILED"
    assert "arithmetic/add.h:5:" in failed.error.message
    assert "undeclared_name" in failed.error.message


@pytest.mark.parametrize("device", device_parameters())
def test_a_header_that_is_nowhere_is_refused_by_name_and_place(device: Device, project: Path, tmp_path: Path) -> None:
    if device.device_id.startswith("cuda"):
        pytest.skip("nvcc has its own words for it")
    add = project / "src" / "arithmetic" / "add.h"
    add.write_text(ADD.replace("limits/zero.h", "nowhere.h"))
    last = run_with_headers(project, device, tmp_path).of(StateChanged)[-1]
    assert last.state is RunState.FAILED
    assert last.error is not None
    assert last.error.reason == "UNSUPPORTED_CONSTRUCT"
    assert "arithmetic/add.h, line 3: found #include of nowhere.h" in last.error.message
