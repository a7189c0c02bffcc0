"""The state of the device while samples are taken: clocks, temperature, power, and what holds the clock back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from services.core.disturbance import EMERGENCY_THROTTLE_REASONS
from services.core.model import BackendName, Device
from services.profiler.measuring.power import read_power_watts

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
    """The device at one moment. None: this device does not tell."""

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
    """A meter for devices whose clocks nobody can read."""

    def read(self) -> ClockReading | None:
        return None


class NvidiaClockMeter:
    """Reads one NVIDIA device through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> ClockReading | None:
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

    def _ask(self, question: Callable[[], float]) -> float | None:
        try:
            return question()
        except self._nvml.NVMLError:  # not supported on this device, or not permitted in this container
            return None


def reason_names(bits: int) -> tuple[str, ...]:
    """Return what holds the clock back, by name; an idle device's own low clock is not among it."""
    names = (name for bit, name in REASON_NAMES.items() if bits & bit)
    return tuple(name for name in names if name != IDLE_REASON)


def open_clock_meter(device: Device) -> ClockMeter:
    """Return the meter for `device`; one that reads nothing where the device is not NVIDIA's or NVML is missing."""
    if BackendName.PYCUDA not in device.backends and BackendName.NVCC not in device.backends:
        return NoClockMeter()
    try:
        import pynvml
    except ImportError:
        return NoClockMeter()
    try:
        pynvml.nvmlInit()
        if device.uuid is not None:
            return NvidiaClockMeter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(device.uuid))
        return NvidiaClockMeter(pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(device.device_id.rpartition(":")[2])))
    except (pynvml.NVMLError, ValueError):
        return NoClockMeter()


class ClockRecord:
    """The readings of one configuration."""

    def __init__(self) -> None:
        self._readings: list[ClockReading] = []
        self._sample_clocks_hz: list[float] = []

    def add(self, reading: ClockReading | None) -> None:
        if reading is not None:
            self._readings.append(reading)

    def add_sm_clocks(self, sm_clock_hz: npt.NDArray[np.float64] | None) -> None:
        """Add clocks that were taken with the samples themselves: they count instead of the readings beside them."""
        if sm_clock_hz is not None:
            self._sample_clocks_hz += sm_clock_hz[np.isfinite(sm_clock_hz)].tolist()

    def mean(self) -> ClockReading:
        """Return the means of what was read, and every throttle reason that came up; all None without a reading."""
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
