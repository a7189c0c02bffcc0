"""Use of the device by others: other processes on a GPU, other work on the cores of a CPU device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psutil

from services.core.disturbance import is_busy
from services.core.errors import UnmetConditionError
from services.core.model import BackendName, BusyPolicy, Device, DeviceKind

WAIT_LIMIT_S: Final = 300.0  # then somebody has to decide; waiting on would look like a hang
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Use of the device by others, at one moment. None: not known."""

    other_process_count: int | None = None
    host_busy_ratio: float | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.other_process_count) or is_busy(self.host_busy_ratio)

    def __str__(self) -> str:
        if self.other_process_count:
            return f"{self.other_process_count} other process{'es' if self.other_process_count > 1 else ''} on it"
        return f"a host that other programs keep {self.host_busy_ratio or 0.0:.0%} busy"


class UseMeter(Protocol):
    """A meter of the device's use by others."""

    def read(self) -> DeviceUse: ...


class HostUseMeter:
    """The cores that a CPU device shares with everybody: what others took of them since the reading before.

    Without waiting: what all took, less what this process took.
    """

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._times()

    def read(self) -> DeviceUse:
        now, last = self._times(), self._last
        total_s, busy_s, own_s = (new - old for new, old in zip(now, last, strict=True))
        if total_s <= 0:
            return DeviceUse()
        self._last = now
        return DeviceUse(host_busy_ratio=min(1.0, max(0.0, (busy_s - own_s) / total_s)))

    def _times(self) -> tuple[float, float, float]:
        """Return the seconds of all cores, of all programs, and of this process."""
        all_times, own = psutil.cpu_times(), self._own.cpu_times()
        total_s = sum(all_times)
        return total_s, total_s - all_times.idle - getattr(all_times, "iowait", 0.0), own.user + own.system


class NvidiaUseMeter:
    """Processes with a context on one NVIDIA device, by NVML; this process and its parents do not count."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        own = psutil.Process()
        self._own_ids = {os.getpid(), *(parent.pid for parent in own.parents())}

    def read(self) -> DeviceUse:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:  # not permitted in this container
            return DeviceUse()
        ids = {process.pid for process in found} - self._own_ids
        children = {child.pid for child in psutil.Process().children(recursive=True)}
        return DeviceUse(other_process_count=len(ids - children))


class NoUseMeter:
    """A meter for devices that nobody can be asked about."""

    def read(self) -> DeviceUse:
        return DeviceUse()


def open_use_meter(device: Device) -> UseMeter:
    """Return the meter for `device`; one that knows nothing where nobody can be asked."""
    if device.kind is DeviceKind.CPU:
        return HostUseMeter()
    if device.uuid is None or BackendName.OPENCL in device.backends:
        return NoUseMeter()
    try:
        import pynvml
    except ImportError:
        return NoUseMeter()
    try:
        pynvml.nvmlInit()
        return NvidiaUseMeter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(device.uuid))
    except pynvml.NVMLError:
        return NoUseMeter()


class Neighbours:
    """Looks at the device before and after each configuration, and acts as the request wants it."""

    def __init__(
        self,
        meter: UseMeter,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wait_limit_s: float = WAIT_LIMIT_S,
    ) -> None:
        self._meter = meter
        self._clock_s = clock_s
        self._sleep = sleep
        self._wait_limit_s = wait_limit_s

    def read(self) -> DeviceUse:
        """Return the use by others, now or since the reading before."""
        return self._meter.read()

    def wait_or_refuse(self, policy: BusyPolicy, on_activity: Callable[[str], None]) -> None:
        """Wait for a quiet device. Raises UnmetConditionError: it is busy and the policy refuses that, or it stayed busy."""
        if policy is BusyPolicy.RECORD:  # a reading takes a tenth of what a short configuration costs; the one after it is enough
            return
        use = self._meter.read()
        if not use.is_busy:
            return
        if policy is BusyPolicy.REFUSE:
            raise _busy(use, "a device of one's own", "Wait until they have ended, or use --wait-idle.")
        begin_s = self._clock_s()
        while use.is_busy:
            waited_s = self._clock_s() - begin_s
            if waited_s > self._wait_limit_s:
                raise _busy(use, f"an idle device within {self._wait_limit_s:.0f} s", "Find out who uses it, or leave out --wait-idle.")
            on_activity(f"waiting for an idle device: {use}")
            self._sleep(POLL_S)
            use = self._meter.read()


def _busy(use: DeviceUse, expected: str, remedy: str) -> UnmetConditionError:
    return UnmetConditionError("the device", found=str(use), expected=expected, remedy=remedy)
