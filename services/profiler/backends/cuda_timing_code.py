"""The device code of timing: compiled once a process, loaded once a session, and put to use."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.core.model import Device, Dim3, KernelSource
from services.profiler.backends.base import Build, LaunchConfiguration
from services.profiler.backends.cuda_arguments import PackedArgument, launcher, pack_arguments
from services.profiler.backends.cuda_blocking import StreamBlocker
from services.profiler.backends.cuda_clock import SampleClock
from services.profiler.backends.cuda_kernels import architecture_of
from services.profiler.backends.cuda_timing import SampleTimer, max_batch_count
from services.profiler.backends.nvcc_compiler import NvccCompiler
from services.profiler.backends.stream_holding import may_hold_streams

SOURCE_FILE: Final = Path(__file__).parent / "device_code" / "measuring_program" / "timing_kernels.cuh"
HOLD, STAMP, STEP = FUNCTION_NAMES = ("kernalyse_hold_stream", "kernalyse_write_stamp", "kernalyse_measure_timer_step")
STEP_BYTES: Final = 8


@lru_cache(maxsize=4)
def _timing_cubin(compiler: NvccCompiler, architecture: str) -> bytes:
    return compiler.compile(timing_build(), architecture).code


def timing_build() -> Build:
    """Return the header as a source of its own; nvcc goes by the ending of its name."""
    return Build(KernelSource(f"{SOURCE_FILE.stem}.cu", SOURCE_FILE.read_text(encoding="utf-8")), HOLD)


def open_timer(driver: Any, compiler: NvccCompiler, device: Device, stream: Any, flush: Callable[[], None]) -> SampleTimer:
    """Return a timer with all its device code loaded and run once: what is loaded late would wait for a stream that waits for the host.

    Args:
        driver: of PyCUDA.
        flush: overwrites the L2 cache, on `stream`.

    Raises:
        CompileError, BackendUnavailableError: nvcc does not compile for this device, or is missing.
    """
    module = driver.module_from_buffer(_timing_cubin(compiler, architecture_of(device)))

    def enqueue(name: str, block_count: int, *arguments: PackedArgument) -> None:
        launcher(functions[name], LaunchConfiguration(Dim3(1), Dim3(block_count)), pack_arguments(arguments), stream)()

    functions = {name: module.get_function(name) for name in FUNCTION_NAMES}
    flush()
    blocker = None
    if may_hold_streams(os.environ):
        blocker = StreamBlocker(
            driver,
            lambda released, timed_out, limit_ns: enqueue(HOLD, 1, released, timed_out, np.uint64(limit_ns)),
        )
        blocker.warm_up()
    step_ns = _timer_step_ns(driver, stream, lambda address: enqueue(STEP, 1, address))
    clock = None
    if step_ns:
        clock = SampleClock(
            driver,
            stream,
            lambda stamp: enqueue(STAMP, device.compute_unit_count or 1, stamp),
            step_ns,
            max_batch_count(launch_count=1),
        )
        clock.clear(1)
        clock.stamp_before(0)
    stream.synchronize()
    return SampleTimer(driver, stream, flush, blocker, clock)


def _timer_step_ns(driver: Any, stream: Any, enqueue: Callable[[int], None]) -> int:
    """Return how finely the device's global timer counts; 0: it cannot be read."""
    step_ns, buffer = np.zeros(1, np.uint64), driver.mem_alloc(STEP_BYTES)
    enqueue(int(buffer))
    stream.synchronize()
    driver.memcpy_dtoh(step_ns, buffer)
    buffer.free()
    return int(step_ns[0])
