"""A model's forward pass as a backend sees it: launches that always follow each other in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from services.core.model import CacheMode
from services.profiler.backends.base import DeviceSession, PreparedLaunch, TimedSamples


@dataclass(frozen=True, slots=True)
class PassStep:
    """A launch of a pass. range_name: of the range that it is put in where the runtime has ranges (NVTX)."""

    range_name: str
    launch: PreparedLaunch


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPass:
    """At least one step. range_name: of the range around all of them."""

    range_name: str
    steps: tuple[PassStep, ...]


@runtime_checkable
class PassSession(DeviceSession, Protocol):
    """A session that keeps many launches on one stream. In COLD passes the last-level cache is overwritten before each pass."""

    def run_pass(self, whole: LaunchPass) -> None:
        """Run one pass, and wait for its end."""
        ...

    def time_passes(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> TimedSamples:
        """Return the device time of `count` passes, each from its first launch's start to its last one's end, nothing in between."""
        ...

    def time_steps(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> npt.NDArray[np.float64]:
        """Return the device time of each launch in ns, by events of its own, shape (count, steps)."""
        ...
