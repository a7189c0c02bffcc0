"""Timers of Python callables: CUDA events of a stream, or the host's clock, and the choice between them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from numpy import float64

from kernalyse.services.core.errors import InternalError, InvalidParameterError, UnmetConditionError
from kernalyse.services.core.model import BackendName, CacheMode, Device, DeviceKind, TimingMethod
from kernalyse.services.profiler.backends.base import PreparedLaunch, TimedSamples, Timing, without_garbage_collector
from kernalyse.services.profiler.backends.cuda.driver import LIBRARY, CudaDriver

# ---------------------------------------------------------------- session
# Calls of a Python function take the place of launches in the measuring engine.

Call = Callable[[], object]

METHODS: Final = frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED})


@dataclass(frozen=True, slots=True)
class CallableLaunch:
    """A function in the place of a prepared launch."""

    function: Call


class CallTimer(Protocol):
    """A timer of calls on one device."""

    @property
    def device(self) -> Device:
        """Return the device that the calls are attributed to."""
        ...

    @property
    def description(self) -> str:
        """Return whose clock it is, for the record."""
        ...

    @property
    def notice(self) -> str:
        """Return what the times do not include, or include needlessly."""
        ...

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[float64]:
        """Return the mean duration of a call in ns for each of `count` samples, shape (count,).

        Args:
            function: what is called.
            calls_per_sample: calls between two readings of the clock.
            count: number of samples.
            is_cold: overwrite the last-level cache before each sample.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all enqueued work is done."""
        ...

    def close(self) -> None:
        """Release what the timer holds on the device."""
        ...


class CallableSession:
    """The device session of a benchmark whose launches are calls of Python functions."""

    def __init__(self, timer: CallTimer) -> None:
        self._timer = timer

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        """Return the supported timing methods; Python calls cannot be replayed as a graph."""
        return METHODS

    def run(self, launch: PreparedLaunch) -> None:
        """Call the function once and wait for its work."""
        assert isinstance(launch, CallableLaunch)
        launch.function()
        self._timer.synchronize()

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        """Return `count` samples of the function."""
        assert isinstance(launch, CallableLaunch)
        with without_garbage_collector():
            is_cold = timing.cache_mode is CacheMode.COLD
            return TimedSamples(self._timer.time(launch.function, timing.launches_per_sample, count, is_cold=is_cold))


# ---------------------------------------------------------------- choice of the timer
# The clock of the GPU library that this program has used, else the host's.

HOST: Final = "host"
AUTO: Final = "auto"


def _torch_stream(torch: Any) -> int | None:
    """Return PyTorch's current stream, or None if this PyTorch has no CUDA or has not used it.

    Being initialized is not enough: its context has to be current in this thread.
    """
    if torch.version.cuda is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    torch.cuda.synchronize()
    return int(torch.cuda.current_stream().cuda_stream)


def _cupy_stream(cupy: Any) -> int | None:
    return int(cupy.cuda.get_current_stream().ptr) if has_context() else None


def _default_stream(_: Any) -> int | None:
    return 0 if has_context() else None


STREAMS: Final[dict[str, tuple[str, str, Callable[[Any], int | None]]]] = {
    "torch": ("torch", "PyTorch", _torch_stream),
    "cupy": ("cupy", "CuPy", _cupy_stream),
    "cuda": ("cuda.bindings.driver", "CUDA Python", _default_stream),
    "pycuda": ("pycuda.driver", "PyCUDA", _default_stream),
}
"""Module, library and a function of its current stream, by the timer's name. Triton launches on PyTorch's stream."""


def select_timer(timer: str) -> CallTimer:
    """Return the timer that `timer` names: auto, host, or one of STREAMS.

    Raises:
        InvalidParameterError: there is no such timer.
        UnmetConditionError: that library is not loaded, or has not opened a device.
    """
    if timer == AUTO:
        return next((found for name in STREAMS if (found := _opened(name)) is not None), None) or HostClock()
    if timer == HOST:
        return HostClock()
    if timer not in STREAMS:
        raise InvalidParameterError("argument timer", found=repr(timer), expected=", ".join((AUTO, HOST, *STREAMS)))
    found = _opened(timer)
    if found is None:
        _, library, _ = STREAMS[timer]
        raise UnmetConditionError(
            f"timer {timer}",
            found=f"no CUDA device that {library} has opened in this thread",
            expected="a program that uses one",
            remedy="Call the function once before, or choose timer='host'.",
        )
    return found


def _opened(name: str) -> CallTimer | None:
    module_name, library, stream_of = STREAMS[name]
    module: ModuleType | None = sys.modules.get(module_name)
    stream = None if module is None else stream_of(module)
    return None if stream is None else CudaStream(library, stream)


# ---------------------------------------------------------------- host clock
# For work of the CPU, and for functions that wait for their device themselves.

CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
"""Overwritten where the size of the cache is not known: more than most caches, and still a matter of milliseconds."""

UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


class HostClock:
    """A timer that reads time.perf_counter_ns around each sample."""

    description = "the host's clock (time.perf_counter_ns)"
    notice = "What a function leaves running on a device when it returns is not in its time."

    def __init__(self) -> None:
        self.device = _host()
        self._filler: npt.NDArray[np.uint8] | None = None

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[np.float64]:
        """Return the mean duration of a call in ns for each sample."""
        durations_ns = np.empty(count)
        for index in range(count):
            if is_cold:
                self._overwrite_cache()
            start_ns = time.perf_counter_ns()
            for _ in repeat(None, calls_per_sample):
                function()
            durations_ns[index] = time.perf_counter_ns() - start_ns
        # A clock coarser than the function's duration returns 0, which allows no ratios.
        return np.maximum(durations_ns, 1.0) / calls_per_sample

    def synchronize(self) -> None:
        """Do nothing: a function has done its work when it returns."""

    def close(self) -> None:
        """Release the buffer that overwrites the cache."""
        self._filler = None

    def _overwrite_cache(self) -> None:
        if self._filler is None:
            self._filler = np.zeros(self.device.l2_cache_bytes or UNKNOWN_CACHE_BYTES, np.uint8)
        self._filler += 1


def _host() -> Device:
    return Device(
        device_id="host",
        name=_cpu_name(),
        kind=DeviceKind.CPU,
        backends=(),
        runtime=f"{platform.python_implementation()} {platform.python_version()}",
        compute_unit_count=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        l2_cache_bytes=last_level_cache_bytes(CACHES),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()


def last_level_cache_bytes(directory: Path) -> int | None:
    """Return the size of the largest cache in the kernel's listing, or None if it lists none."""
    sizes = []
    for path in directory.glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in UNITS:
            sizes.append(int(text[:-1]) * UNITS[text[-1]])
    return max(sizes, default=None)


# ---------------------------------------------------------------- CUDA stream
# CUDA events on a stream that another library of this process has opened, through NVIDIA's driver.
#
# The same code serves all of these libraries: they share the driver's streams and contexts, and differ only in which stream is current.

NS_PER_MS: Final = 1e6
MAX_SAMPLES_IN_FLIGHT: Final = 128
"""Samples enqueued before waiting for the stream. With fewer, the device runs dry between samples and they include launch overhead;
with more, functions that launch several kernels fill the driver's queue of about 1024 entries."""


class CudaStream:
    """A timer that records CUDA events on a stream.

    Args:
        library_name: whose stream it is.
        handle: the driver's handle of the stream; 0 is the default stream. Its context must be current in this thread.
    """

    def __init__(self, library_name: str, handle: int, driver_library: str = LIBRARY) -> None:
        self._cuda = ctypes.CDLL(driver_library)
        self._stream = ctypes.c_void_p(handle)
        self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        self._filler: ctypes.c_uint64 | None = None
        self.device = self._current_device(driver_library)
        self.description = f"CUDA events on the current stream of {library_name}"
        self.notice = "Launch overhead is included for hot calls that the device executes faster than the host enqueues them."

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[np.float64]:
        """Return the mean duration of a call in ns for each sample."""
        durations_ns = np.empty(count)
        for first in range(0, count, MAX_SAMPLES_IN_FLIGHT):
            events = self._take_events(min(MAX_SAMPLES_IN_FLIGHT, count - first))
            for start, end in events:
                if is_cold:
                    self._overwrite_cache()
                self._call("cuEventRecord", start, self._stream)
                for _ in range(calls_per_sample):
                    function()
                self._call("cuEventRecord", end, self._stream)
            self.synchronize()
            durations_ns[first : first + len(events)] = [self._elapsed_ns(start, end) / calls_per_sample for start, end in events]
        return durations_ns

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._call("cuStreamSynchronize", self._stream)

    def _take_events(self, count: int) -> list[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
        while len(self._events) < count:
            self._events.append((self._new_event(), self._new_event()))
        return self._events[:count]

    def _new_event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def _elapsed_ns(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        elapsed_ms = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed_ms), start, end)
        return max(elapsed_ms.value * NS_PER_MS, 1.0)

    def _overwrite_cache(self) -> None:
        size_bytes = ctypes.c_size_t(self.device.l2_cache_bytes or UNKNOWN_CACHE_BYTES)
        if self._filler is None:
            self._filler = ctypes.c_uint64()
            self._call("cuMemAlloc_v2", ctypes.byref(self._filler), size_bytes)
        self._call("cuMemsetD8Async", self._filler, ctypes.c_ubyte(1), size_bytes, self._stream)

    def _current_device(self, driver_library: str) -> Device:
        index = ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(index))
        return CudaDriver("timing by CUDA events", driver_library).devices(BackendName.PYCUDA)[index.value]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status != 0:
            raise InternalError("NVIDIA's driver", found=f"{name}: status {status}", remedy="Check the function by itself.")

    def close(self) -> None:
        """Release the events and the buffer that overwrites the cache."""
        for event in (event for pair in self._events for event in pair):
            self._cuda.cuEventDestroy_v2(event)
        self._events.clear()
        if self._filler is not None:
            self._cuda.cuMemFree_v2(self._filler)
            self._filler = None


def has_context(driver_library: str = LIBRARY) -> bool:
    """Return whether this thread has a CUDA context, whichever library opened it."""
    try:
        cuda = ctypes.CDLL(driver_library)
    except OSError:
        return False
    context = ctypes.c_void_p()
    return cuda.cuInit(0) == 0 and cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0 and bool(context.value)
