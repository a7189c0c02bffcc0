"""Calls of a Python function as launches of the measuring engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy.typing as npt
from numpy import float64

from services.core.model import CacheMode, Device, TimingMethod
from services.profiler.backends.base import PreparedLaunch, TimedSamples, Timing
from services.profiler.backends.stream_holding import without_garbage_collector

Call = Callable[[], object]

METHODS: Final = frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED})


@dataclass(frozen=True, slots=True)
class CallableLaunch:
    function: Call


class Stopwatch(Protocol):
    """Times calls on one device."""

    @property
    def device(self) -> Device: ...

    @property
    def description(self) -> str:
        """Whose clock it is, for the record."""
        ...

    @property
    def notice(self) -> str:
        """What whoever reads the times has to know of it."""
        ...

    def time(self, function: Call, calls_per_sample: int, count: int, *, is_cold: bool) -> npt.NDArray[float64]:
        """Mean duration of a call in ns for each of `count` samples, shape (count,); cold: after the last-level cache was overwritten."""
        ...

    def synchronize(self) -> None:
        """Waits until what was enqueued is done."""
        ...

    def close(self) -> None: ...


class CallableSession:
    """What a benchmark needs of a device, for functions of this process."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        return METHODS

    def run(self, launch: PreparedLaunch) -> None:
        assert isinstance(launch, CallableLaunch)
        launch.function()
        self._stopwatch.synchronize()

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        assert isinstance(launch, CallableLaunch)
        with without_garbage_collector():
            is_cold = timing.cache_mode is CacheMode.COLD
            return TimedSamples(self._stopwatch.time(launch.function, timing.launches_per_sample, count, is_cold=is_cold))
