"""`kernalyse bench --backend nvcc` from the command to the tables, over stand-ins for NVIDIA's driver and the CUDA runtime."""

from __future__ import annotations

import ctypes.util
import json
from pathlib import Path

import pytest

from kernalyse.services.core.model import BackendName, Dim3
from kernalyse.services.profiler.backends.cuda.compiler import toolkit_version
from kernalyse.services.profiler.backends.cuda.driver import CudaDriver
from tests.command import kernalyse
from tests.integration.nvcc_stand_in import COLD_NS, needs_nvcc, stand_in_driver, stand_in_object
from tests.service_processes import ServiceProcesses

pytestmark = [
    needs_nvcc,
    pytest.mark.timeout(300),  # programs are compiled by the command itself
    pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a CUDA driver, which tests/gpu uses"),
]


@pytest.fixture
def node(analyzer_that_runs: None, services: ServiceProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user's analyzer; its workers find the stand-ins."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in_driver()))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-cudart none -Xlinker {stand_in_object()}")
    profiler = services.start("profiler")
    added = kernalyse("nodes", "add", profiler.address, "--node-token-file", services.directory / "config" / "kernalyse" / "token")
    assert added.returncode == 0, added.stderr


@pytest.mark.slow
def test_clocks_are_locked_while_it_measures_and_reset_after_it(nvml_calls: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.getfixturevalue("node")  # started with the stand-in for NVML
    file = tmp_path / "results.json"
    quick = ("--max-time", "0.2", "--samples", "50", "--backend", "nvcc", "--json", file)
    done = kernalyse("bench", "saxpy", "-p", "N=1024", "--clocks", "max", "--processes", "2", *quick)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["measurements"]
    assert [row["clocks"] for row in rows] == ["SM locked to 1980 MHz, memory locked to 2619 MHz"] * 2
    locked, reset = ["SM 1980 GPU-stand-in", "memory 2619 GPU-stand-in"], ["memory reset GPU-stand-in", "SM reset GPU-stand-in"]
    assert nvml_calls.read_text().splitlines() == [*locked, *locked, *reset]


def test_the_driver_tells_the_device() -> None:
    (device,) = CudaDriver("a test", str(stand_in_driver() / "libcuda.so.1")).devices(BackendName.NVCC)
    assert (device.device_id, device.name, device.backends) == ("cuda:0", "a stand-in", (BackendName.NVCC,))
    assert (device.runtime, device.compute_capability, device.toolkit_version) == ("CUDA 99.1", "9.0", toolkit_version())
    assert (device.compute_unit_count, device.max_clock_hz, device.l2_cache_bytes) == (4, 2_000_000_000, 2 * 2**20)
    assert (device.max_block, device.max_grid) == (Dim3(1024, 1024, 64), Dim3(2**31 - 1, 65535, 65535))
    assert device.max_shared_memory_bytes == 227 * 1024
    assert device.memory_bytes == device.max_buffer_bytes == 64 * 2**20


@pytest.mark.slow
@pytest.mark.usefixtures("node")
def test_bench_measures_verifies_and_keeps_programs(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    quick = ("--max-time", "0.2", "--samples", "50", "--json", file)
    done = kernalyse("bench", "saxpy", "-p", "N=1024,2**30", "--backend", "nvcc", *quick)
    assert done.returncode == 1, done.stderr  # one configuration does not fit
    results = json.loads(file.read_text())
    (row,) = results["measurements"]
    assert (row["compiler_options"], row["verification_state"], row["cache_mode"]) == ("-arch=sm_90 -lineinfo", "PASSED", "COLD")
    assert row["duration_median_ns"] == pytest.approx(COLD_NS)
    assert row["register_count"] == 24
    (failure,) = results["failures"]
    assert failure["reason"] == "MEMORY_LIMIT"
    assert "67108864" in failure["message"]

    again = kernalyse("bench", "saxpy", "-p", "N=1024", "--backend", "nvcc", *quick)
    assert again.returncode == 0, again.stderr
    assert json.loads(file.read_text())["measurements"][0]["compile_ns"] == 0
