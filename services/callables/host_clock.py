"""The host's clock, for work of the CPU and for functions that wait for their device themselves."""

from __future__ import annotations

import os
import platform
import time
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from services.callables.session import Call
from services.core.model import Device, DeviceKind

CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
"""Overwritten where the size of the cache is not told: more than most have, still some milliseconds."""

UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


class HostClock:
    """time.perf_counter_ns around each sample."""

    description = "the host's clock (time.perf_counter_ns)"
    notice = "What a function leaves running on a device when it returns is not in its time."

    def __init__(self) -> None:
        self.device = _host()
        self._filler: npt.NDArray[np.uint8] | None = None

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[np.float64]:
        durations_ns = np.empty(count)
        for index in range(count):
            if is_cold:
                self._overwrite_cache()
            start_ns = time.perf_counter_ns()
            for _ in repeat(None, calls_per_sample):
                function()
            durations_ns[index] = time.perf_counter_ns() - start_ns
        # A clock that steps coarser than the function runs would tell 0, of which no ratio can be had.
        return np.maximum(durations_ns, 1.0) / calls_per_sample

    def synchronize(self) -> None:
        """A function has done its work when it returns."""

    def close(self) -> None:
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


def last_level_cache_bytes(folder: Path) -> int | None:
    """The largest cache that the kernel tells of; None: it tells of none."""
    sizes = []
    for path in folder.glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in UNITS:
            sizes.append(int(text[:-1]) * UNITS[text[-1]])
    return max(sizes, default=None)
