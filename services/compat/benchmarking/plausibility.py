"""What no kernel can do: rates above what the device can do at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.analyzer.hardware.peaks import device_peaks
from services.compat.benchmarking.notices import LOGGER
from services.core.disturbance import undisturbed
from services.core.errors import KernalyseError
from services.core.model import CacheMode, Ceiling, CeilingsMeasured, Configuration, DeviceKind, EventPayload, Measurement
from services.core.quantities import rate
from services.core.settings import ProfilerSettings
from services.profiler.backends.base import DeviceSession
from services.profiler.workloads.ceilings import load_sources, report_ceilings_before_sweep

MAX_PLAUSIBLE_RATIO: Final = 1.05
"""Of the highest ceiling, as the analyzer has it: below, honest kernels on a device that boosts would be marked."""

NS_PER_S: Final = 1e9
COLD_LEVELS: Final = ("dram", "l2")
SUMS_IN_HALF: Final = "_accumulate16"


def device_ceilings(session: DeviceSession) -> tuple[Ceiling, ...]:
    """Return what the device can do at most: of a GPU by its data sheet, of a CPU as measured, which takes some seconds once a day.

    Empty where nothing is known, or nothing could be measured.
    """
    if session.device.kind is not DeviceKind.CPU:
        return device_peaks(session.device).ceilings
    told = _Told()
    try:
        report_ceilings_before_sweep(session, load_sources(), told, ProfilerSettings.load().ceilings_file, 1)
    except KernalyseError as error:  # settings of a profiler that this process does not start
        LOGGER.info("No ceilings: %s", error.message)
    return told.ceilings


def implausible_reason(configuration: Configuration, measurement: Measurement, ceilings: Sequence[Ceiling]) -> str | None:
    """Return why a measurement cannot be true, in a sentence; None: it can, or nothing is known that could tell.

    A ceiling of a busy host counts as what that host would do without the other programs.
    """
    duration_s = measurement.duration_median_ns / NS_PER_S
    is_cold = measurement.cache_mode is CacheMode.COLD
    of_dtype = [one for one in ceilings if one.unit == "flop_per_s" and one.ceiling_name.removesuffix(SUMS_IN_HALF) == configuration.dtype]
    of_memory = [one for one in ceilings if one.unit == "bytes_per_s" and (not is_cold or one.ceiling_name in COLD_LEVELS)]
    has_cache = any(one.ceiling_name != "dram" for one in of_memory)  # else bytes may be faster than all that is known
    for work, unit, known in ((configuration.flop, "flop/s", of_dtype), (configuration.bytes, "B/s", of_memory if has_cache else [])):
        if not work or not known or duration_s <= 0:
            continue
        highest = max(known, key=lambda one: undisturbed(one.value, one.host_busy_ratio))
        ceiling = undisturbed(highest.value, highest.host_busy_ratio)
        if work / duration_s > MAX_PLAUSIBLE_RATIO * ceiling:
            times = f"{work / duration_s / ceiling:.3g} times the {highest.ceiling_name} ceiling of the device ({rate(ceiling, unit)})"
            return f"{rate(work / duration_s, unit)} is {times}: less work than claimed, or a cached result."
    return None


class _Told:
    """An event sink that keeps ceilings."""

    def __init__(self) -> None:
        self.ceilings: tuple[Ceiling, ...] = ()

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, CeilingsMeasured):
            self.ceilings = payload.ceilings
