"""The state of a device during measurement: clocks, power, throttle reasons, other users."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import psutil

from kernalyse.services.core.disturbance import EMERGENCY_THROTTLE_REASONS, is_busy
from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.model import BackendName, BusyPolicy, Device, DeviceKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")

# ---------------------------------------------------------------- NVML

REUSE_S: Final = 0.02
"""For which a reading of NVML stands for later ones too. On an H200 a batch of samples took one to two milliseconds beside them, with five
questions to NVML among it; a short configuration of a sweep has several batches and takes little more."""


class RecentReading(Generic[T]):
    """A meter that gives its last reading again until that is `REUSE_S` old."""

    def __init__(self, read: Callable[[], T], *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock_s = clock_s
        self._last: tuple[float, T] | None = None

    def read(self) -> T:
        """Return the last reading, or a new one."""
        now_s = self._clock_s()
        if self._last is None or now_s - self._last[0] >= REUSE_S:
            self._last = (now_s, self._read())
        return self._last[1]


def open_nvml() -> Any:
    """Return the module pynvml, initialized; None where it or NVIDIA's driver is missing."""
    try:
        import pynvml  # 8 MB of memory, for machines that have a use for it
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


# ---------------------------------------------------------------- clocks

# Bits of NVML's clock event reasons. Names follow nvml.h, section "Clocks Event Reasons".
REASON_NAMES: Final = {
    0x0000_0001: "gpu_idle",
    0x0000_0002: "applications_clocks_setting",
    0x0000_0004: "sw_power_cap",
    0x0000_0008: "hw_slowdown",
    0x0000_0010: "sync_boost",
    0x0000_0020: "sw_thermal_slowdown",
    0x0000_0040: "hw_thermal_slowdown",
    0x0000_0080: "hw_power_brake_slowdown",
    0x0000_0100: "display_clock_setting",
}
IDLE_REASON: Final = "gpu_idle"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Clocks, temperature and power at one moment. None: the device does not report it."""

    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] | None = None

    @property
    def is_throttled(self) -> bool:
        """Return whether a sample taken now has to be discarded."""
        return bool(EMERGENCY_THROTTLE_REASONS & set(self.throttle_reasons or ()))


class ClockMeter(Protocol):
    """A meter of a device's clocks, temperature and power."""

    def read(self) -> ClockReading | None:
        """Return the device now; None when it cannot be asked."""
        ...


class NoClockMeter:
    """A meter for devices without readable clocks."""

    def read(self) -> ClockReading | None:
        """Return None."""
        return None


class NvidiaClockMeter:
    """A meter of one NVIDIA device, through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> ClockReading | None:
        """Return clocks, temperature, power and throttle reasons; fields that NVML does not report are None."""
        nvml, handle = self._nvml, self._handle
        sm_clock_mhz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        memory_clock_mhz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return ClockReading(
            sm_clock_hz=None if sm_clock_mhz is None else int(sm_clock_mhz * 1_000_000),
            memory_clock_hz=None if memory_clock_mhz is None else int(memory_clock_mhz * 1_000_000),
            temperature_celsius=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_watts=read_power_watts(nvml, handle),
            throttle_reasons=None if reasons is None else reason_names(int(reasons)),
        )

    def _ask(self, query: Callable[[], float]) -> float | None:
        try:
            return query()
        except self._nvml.NVMLError:  # not supported on this device, or not permitted in this container
            return None


def reason_names(bits: int) -> tuple[str, ...]:
    """Return the names of throttle reasons; the low clock of an idle device is none."""
    names = (name for bit, name in REASON_NAMES.items() if bits & bit)
    return tuple(name for name in names if name != IDLE_REASON)


def open_clock_meter(device: Device) -> ClockMeter:
    """Return the meter for `device`; one that reads nothing where the device is not NVIDIA's or NVML is missing."""
    if BackendName.PYCUDA not in device.backends and BackendName.NVCC not in device.backends:
        return NoClockMeter()
    nvml = open_nvml()
    if nvml is None:
        return NoClockMeter()
    try:
        if device.uuid is not None:
            handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        else:
            handle = nvml.nvmlDeviceGetHandleByIndex(int(device.device_id.rpartition(":")[2]))
    except (nvml.NVMLError, ValueError):
        return NoClockMeter()
    return RecentReading(NvidiaClockMeter(nvml, handle).read)


class ClockRecord:
    """The readings of one configuration."""

    def __init__(self) -> None:
        self._readings: list[ClockReading] = []
        self._sample_clocks_hz: list[float] = []

    def add(self, reading: ClockReading | None) -> None:
        """Add a reading; None is ignored."""
        if reading is not None:
            self._readings.append(reading)

    def add_sm_clocks(self, sm_clock_hz: npt.NDArray[np.float64] | None) -> None:
        """Add SM clocks measured within the samples; they replace those of the readings."""
        if sm_clock_hz is not None:
            self._sample_clocks_hz += [clock_hz for clock_hz in sm_clock_hz.tolist() if isfinite(clock_hz)]

    def mean(self) -> ClockReading:
        """Return the means of all readings, and every throttle reason seen; all None without a reading."""
        read_clocks_hz: list[float | None] = [reading.sm_clock_hz for reading in self._readings]
        sm_clock_hz = _mean([*self._sample_clocks_hz] or read_clocks_hz)
        memory_clock_hz = _mean([reading.memory_clock_hz for reading in self._readings])
        known_reasons = [reading.throttle_reasons for reading in self._readings if reading.throttle_reasons is not None]
        return ClockReading(
            sm_clock_hz=None if sm_clock_hz is None else round(sm_clock_hz),
            memory_clock_hz=None if memory_clock_hz is None else round(memory_clock_hz),
            temperature_celsius=_mean([reading.temperature_celsius for reading in self._readings]),
            power_watts=_mean([reading.power_watts for reading in self._readings]),
            throttle_reasons=tuple(sorted({name for names in known_reasons for name in names})) if known_reasons else None,
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# ---------------------------------------------------------------- other users of the device
# Other processes on a GPU, or other work on the cores of a CPU device.

WAIT_LIMIT_S: Final = 300.0  # then somebody has to decide; waiting on would look like a hang
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of the device by others at one moment. None: not known."""

    other_process_count: int | None = None
    host_busy_ratio: float | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether anybody else uses the device."""
        return bool(self.other_process_count) or is_busy(self.host_busy_ratio)

    def __str__(self) -> str:
        if self.other_process_count:
            return f"{self.other_process_count} other process{'es' if self.other_process_count > 1 else ''} on it"
        return f"a host that other programs keep {self.host_busy_ratio or 0.0:.0%} busy"


class UseMeter(Protocol):
    """A meter of the device's use by others."""

    def read(self) -> DeviceUse:
        """Return the use by others, now or since the reading before."""
        ...


class HostUseMeter:
    """A meter of the cores of a CPU device: what other programs used of them since the last reading.

    Without waiting: what all took, less what this process took.
    """

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._times()

    def read(self) -> DeviceUse:
        """Return the ratio of the cores' time that other programs took since the reading before."""
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


# The inode of the machine's first PID namespace, PROC_PID_INIT_INO of Linux's proc_ns.h. In any other one, as of a container, NVML's
# process ids are those of the machine, or missing.
FIRST_PID_NAMESPACE: Final = 0xEFFF_FFFC


def sees_all_processes() -> bool:
    """Return whether this process sees those of the whole machine; in a container it does not, unless that has the host's."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


class NvidiaUsers:
    """Other processes on one NVIDIA device, computing or drawing; this process, its parents and what it has started do not count.

    Args:
        nvml: the module pynvml.
        handle: of the device.
        can_tell: whether NVML's process ids mean anything here.
    """

    def __init__(self, nvml: Any, handle: Any, *, can_tell: bool) -> None:
        self._nvml = nvml
        self._handle = handle
        self._can_tell = can_tell
        self._own_ids = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}

    def ids(self) -> tuple[int, ...] | None:
        """Return their process ids; None where NVML cannot tell them: in a container, on a device in MIG mode, without permission."""
        nvml, handle = self._nvml, self._handle
        if not self._can_tell or self._is_in_mig_mode():
            return None
        try:
            found = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            with suppress(nvml.NVMLError_NotSupported):  # a device that cannot draw
                found |= {process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)}
        except nvml.NVMLError:
            return None
        return tuple(sorted(process_id for process_id in found if not self._is_own(process_id)))

    def names(self) -> tuple[str, ...] | None:
        """Return each of them as "python 1234"; None as `ids`."""
        process_ids = self.ids()
        return None if process_ids is None else tuple(f"{_program(process_id)} {process_id}" for process_id in process_ids)

    def _is_in_mig_mode(self) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(self._handle)[0])
        except self._nvml.NVMLError:  # a device without MIG
            return False

    def _is_own(self, process_id: int) -> bool:
        try:
            return process_id in self._own_ids or any(parent.pid == os.getpid() for parent in psutil.Process(process_id).parents())
        except psutil.Error:  # it has just ended, or is hidden from this user
            return False


def _program(process_id: int) -> str:
    try:
        return psutil.Process(process_id).name()
    except psutil.Error:
        return "process"


class NvidiaUseMeter:
    """A meter of the other processes on one NVIDIA device."""

    def __init__(self, users: NvidiaUsers) -> None:
        self._users = users

    def read(self) -> DeviceUse:
        """Return their number; unknown where NVML cannot tell."""
        process_ids = self._users.ids()
        return DeviceUse(other_process_count=None if process_ids is None else len(process_ids))


class NoUseMeter:
    """A meter for devices whose use by others cannot be read."""

    def read(self) -> DeviceUse:
        """Return a reading without values."""
        return DeviceUse()


def open_use_meter(device: Device) -> UseMeter:
    """Return the meter for `device`; one without readings where its use cannot be read."""
    if device.kind is DeviceKind.CPU:
        return HostUseMeter()
    if device.uuid is None or BackendName.OPENCL in device.backends:
        return NoUseMeter()
    nvml = open_nvml()
    if nvml is None:
        return NoUseMeter()
    try:
        users = NvidiaUsers(nvml, nvml.nvmlDeviceGetHandleByUUID(device.uuid), can_tell=sees_all_processes())
    except nvml.NVMLError:
        return NoUseMeter()
    return RecentReading(NvidiaUseMeter(users).read)


class ContentionCheck:
    """The check for other users of the device before and after each configuration, and the policy for a busy one."""

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

    def ensure_idle(self, policy: BusyPolicy, on_activity: Callable[[str], None]) -> None:
        """Wait for an idle device as the policy asks. Raises UnmetConditionError: busy under REFUSE, or busy for too long."""
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


# ---------------------------------------------------------------- power
# This section does without NumPy, because the service reads the power too.


def read_power_watts(nvml: Any, handle: Any) -> float | None:
    """Return the instantaneous power, else NVML's averaged value; None where the device reports neither.

    NVML's own figure is the mean of a second on GPUs since Ampere: a kernel of some milliseconds is lost in it.

    Args:
        nvml: the module pynvml. handle: of the device.
    """
    with suppress(nvml.NVMLError):  # a driver without field values
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn == nvml.NVML_SUCCESS and field.value.uiVal:
            return float(field.value.uiVal / 1000)  # it comes in milliwatts
    with suppress(nvml.NVMLError):  # not supported on this device, or not permitted in this container
        return float(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return None
