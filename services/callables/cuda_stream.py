"""CUDA events on a stream that another library of this process has opened, by NVIDIA's driver itself.

One way for all of these libraries: they share the driver's streams and contexts, and differ only in which stream is current.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.callables.session import Call
from services.core.errors import InternalError
from services.core.model import BackendName, Device
from services.profiler.backends.cuda_driver import LIBRARY, CudaDriver

NS_PER_MS: Final = 1e6
MAX_SAMPLES_IN_FLIGHT: Final = 128
"""Enqueued before the stream is waited for. Fewer let the device run dry between samples, and launch overhead into them; more
fill the driver's queue of about 1024 entries with functions that launch several kernels."""

UNKNOWN_CACHE_BYTES: Final = 64 * 2**20


class CudaStream:
    """Args: library_name: whose stream it is. handle: of the driver; 0 is the default stream. Its context is this thread's."""

    def __init__(self, library_name: str, handle: int, driver_library: str = LIBRARY) -> None:
        self._cuda = ctypes.CDLL(driver_library)
        self._stream = ctypes.c_void_p(handle)
        self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        self._filler: ctypes.c_uint64 | None = None
        self.device = self._current_device(driver_library)
        self.description = f"CUDA events on the current stream of {library_name}"
        self.notice = (
            "The stream was not held: launch overhead of hot calls that the device does sooner than the host enqueues them is in it."
        )

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[np.float64]:
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
        for event in (event for pair in self._events for event in pair):
            self._cuda.cuEventDestroy_v2(event)
        self._events.clear()
        if self._filler is not None:
            self._cuda.cuMemFree_v2(self._filler)
            self._filler = None


def has_context(driver_library: str = LIBRARY) -> bool:
    """Whether this thread has a CUDA context, whoever has opened it."""
    try:
        cuda = ctypes.CDLL(driver_library)
    except OSError:
        return False
    context = ctypes.c_void_p()
    return cuda.cuInit(0) == 0 and cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0 and bool(context.value)
