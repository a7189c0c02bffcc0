"""What doctor makes of what a machine's programs say: nothing here looks at this one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernalyse.services.cli.doctor import (
    CheckState,
    CommandResult,
    can_run_kernels,
    check_clocks,
    check_commands,
    check_devices,
    check_gpu,
    check_perf_events,
    check_toolkit,
)
from kernalyse.services.core.model import BackendName, Device, DeviceKind
from kernalyse.services.core.settings import ProfilerSettings
from kernalyse.services.profiler.backends.discovery import write_probe

H200 = Device("cuda:0", "NVIDIA H200", DeviceKind.GPU, (BackendName.PYCUDA, BackendName.NVCC), "CUDA 13.0")


class Saying:
    """Stands in for every program: gives one answer, and keeps what it was asked."""

    def __init__(self, status: int | None, output: str) -> None:
        self._result = CommandResult(status, output)
        self.asked: Sequence[str] = ()

    def __call__(self, arguments: Sequence[str]) -> CommandResult:
        self.asked = arguments
        return self._result


def test_gpu_is_named_with_its_driver() -> None:
    check = check_gpu(Saying(0, "NVIDIA H200, 580.82.07\n"))
    assert (check.state, check.found) == (CheckState.OK, "NVIDIA H200, 580.82.07")
    assert check_gpu(Saying(None, "")).state is CheckState.MISSING
    assert "restart" in check_gpu(Saying(9, "Driver/library version mismatch")).remedy


def test_clocks_are_told_with_their_limits() -> None:
    run = Saying(0, "345, 1980, 2619, 3201, Enabled\n")
    check = check_clocks(run, has_gpu=True)
    assert (check.state, check.found) == (CheckState.OK, "SM 345 of 1980 MHz, memory 2619 of 3201 MHz")
    assert run.asked[0] == "nvidia-smi"
    assert "-pm 1" in check_clocks(Saying(0, "345, 1980, 2619, 3201, Disabled\n"), has_gpu=True).remedy
    assert check_clocks(Saying(6, "no permission"), has_gpu=True).state is CheckState.MISSING
    assert check_clocks(Saying(None, ""), has_gpu=False).state is CheckState.NOT_NEEDED


def test_toolkit_is_told_with_its_place() -> None:
    run = Saying(0, "Cuda compilation tools, release 13.0, V13.0.88\n")
    check = check_toolkit(run, has_gpu=True)
    assert check.state is CheckState.OK
    assert check.found == f"release 13.0, {run.asked[0]}"
    assert "CUDA_HOME" in check_toolkit(Saying(None, ""), has_gpu=True).remedy


def test_devices_are_told_with_the_backends_that_drive_them() -> None:
    probe = CommandResult(0, write_probe((H200,), ("Backend OPENCL: no device.",)))
    check = check_devices(probe, "CUDA devices", ("PYCUDA", "NVCC"), is_needed=True)
    assert (check.state, check.found) == (CheckState.OK, "cuda:0 NVIDIA H200 (CUDA 13.0, by PYCUDA and NVCC)")
    opencl = check_devices(probe, "OpenCL devices", ("OPENCL",), is_needed=True)
    assert (opencl.state, opencl.remedy) == (CheckState.MISSING, "Backend OPENCL: no device.")
    assert can_run_kernels((check, opencl))
    assert not can_run_kernels((opencl,))


def test_missing_backend_is_told_only_where_there_is_a_gpu() -> None:
    probe = CommandResult(0, write_probe((), ("backend PYCUDA: no driver. Install it.",)))
    assert check_devices(probe, "CUDA devices", ("PYCUDA", "NVCC"), is_needed=True).remedy == "backend PYCUDA: no driver. Install it."
    assert check_devices(probe, "CUDA devices", ("PYCUDA", "NVCC"), is_needed=False).state is CheckState.NOT_NEEDED


def test_crashing_probe_is_told_by_its_last_line() -> None:
    check = check_devices(CommandResult(-11, "one\nSegmentation fault"), "OpenCL devices", ("OPENCL",), is_needed=True)
    assert (check.state, check.found) == (CheckState.MISSING, "Segmentation fault")


def test_what_stands_against_cpu_sampling_and_commands_is_told(tmp_path: Path) -> None:
    level = tmp_path / "perf_event_paranoid"
    level.write_text("2\n")
    assert check_perf_events(level).state is CheckState.OK
    level.write_text("4\n")
    assert "sysctl kernel.perf_event_paranoid=2" in check_perf_events(level).remedy
    assert check_perf_events(tmp_path / "none").state is CheckState.MISSING
    here = tmp_path / "data"  # made by the first start
    assert check_commands(ProfilerSettings.load(data_directory=here)).found == f"any; run below {tmp_path}"
    assert check_commands(ProfilerSettings.load(data_directory=here, allowed_commands=("python *",))).found.startswith(
        "limited to python *;"
    )
    assert check_commands(ProfilerSettings.load(data_directory=here, allow_commands=False)).state is CheckState.NOT_NEEDED
