"""What CUDA's errors become, and when a stream may be held."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    CompileError,
    InternalError,
    KernalyseError,
    LaunchLimitError,
    MemoryLimitError,
    TimeLimitError,
    WorkerCrashedError,
)
from kernalyse.services.profiler.backends.base import can_block_streams
from kernalyse.services.profiler.backends.cuda.driver import HARMLESS, failure
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE, command_limit_s


@pytest.mark.parametrize(
    ("code", "name", "error_class", "is_harmless"),
    [
        (0, "program", InternalError, True),
        (2, "cudaErrorMemoryAllocation", MemoryLimitError, True),
        (9, "cudaErrorInvalidConfiguration", LaunchLimitError, True),
        (701, "cudaErrorLaunchOutOfResources", LaunchLimitError, True),
        (700, "cudaErrorIllegalAddress", WorkerCrashedError, False),
        (710, "cudaErrorAssert", WorkerCrashedError, False),
        (719, "cudaErrorLaunchFailure", WorkerCrashedError, False),
        (702, "cudaErrorLaunchTimeout", TimeLimitError, False),
        (209, "cudaErrorNoKernelImageForDevice", CompileError, False),
        (35, "cudaErrorInsufficientDriver", BackendUnavailableError, False),
        (36, "cudaErrorCallRequiresNewerDriver", BackendUnavailableError, False),
        (100, "cudaErrorNoDevice", BackendUnavailableError, False),
        (214, "cudaErrorECCUncorrectable", InternalError, False),
    ],
)
def test_cuda_error_says_who_is_at_fault(code: int, name: str, error_class: type[KernalyseError], is_harmless: bool) -> None:
    error = failure("kernel k on a device", code, name, "its words")
    assert type(error) is error_class
    assert error.subject == "kernel k on a device"
    assert "its words" in error.found
    assert error.remedy
    assert (code in HARMLESS) is is_harmless


def test_streams_are_held_unless_a_tool_forbids_it() -> None:
    assert can_block_streams({"PATH": "/bin", "CUDA_LAUNCH_BLOCKING": "0", "KERNALYSE_UNDER_PROFILER": "0"})
    for name in ("NV_TPS_LAUNCH_TOKEN", "NV_SANITIZER_INJECTION_PORT_BASE", "CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING"):
        assert not can_block_streams({name: "1"})


def test_a_command_has_half_of_the_time_that_a_worker_may_be_silent() -> None:
    assert command_limit_s({}) == 30.0
    assert command_limit_s({SILENCE_LIMIT_VARIABLE: "9"}) == 4.5
