"""Measured ceilings of a device's roofline: what it reaches on copies, multiply-adds and tile products.

A ceiling is a maximum, so each is the best of several launches, and the best of several ways to write the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.errors import KernalyseError
from services.core.model import Ceiling, Device
from services.core.quantities import ceiling_rate
from services.profiler.backends.base import DeviceSession
from services.profiler.measuring.ceiling_bench import CeilingBench, CeilingPlan, CeilingSources, Rate
from services.profiler.measuring.clocks import ClockMeter
from services.profiler.measuring.fma_ceilings import FMA_FILE, fma_plans
from services.profiler.measuring.memory_ceilings import CACHE_FILE, STREAM_FILE, memory_plans
from services.profiler.measuring.tensor_ceilings import MMA_FILE, MMA_FLOAT64_FILE, WGMMA_FILE, tensor_plans

SOURCE_FILES: Final = (STREAM_FILE, CACHE_FILE, FMA_FILE, MMA_FILE, MMA_FLOAT64_FILE, WGMMA_FILE)


@dataclass(frozen=True, slots=True)
class MeasuredCeilings:
    """Ceilings of a device. problems: why ceilings or variants that this kind of device should have are missing; one sentence each."""

    ceilings: tuple[Ceiling, ...]
    problems: tuple[str, ...]


def plan_ceilings(device: Device) -> tuple[CeilingPlan, ...]:
    """Return what can be measured of a device, by its kind, what compiles for it, and its compute capability.

    Memory comes first ("dram", "l2", "l1", "shared"), then multiply-adds by data type, then tensor cores.
    """
    return (*memory_plans(device), *fma_plans(device), *tensor_plans(device))


def measure_ceilings(
    session: DeviceSession, sources: CeilingSources, clock_meter: ClockMeter, on_plan: Callable[[int, CeilingPlan], None]
) -> MeasuredCeilings:
    """Measure every ceiling of the plan. What the device turns out to lack is left out.

    Args:
        on_plan: called before each ceiling with its index.

    Raises:
        KernalyseError: nothing could be measured; the first reason.
    """
    bench = CeilingBench(session, sources, clock_meter)
    measured: list[Ceiling] = []
    errors: list[KernalyseError] = []
    for index, plan in enumerate(plan_ceilings(session.device)):
        on_plan(index, plan)
        try:
            measured.append(_ceiling(session.device, plan, plan.measure(bench)))
        except KernalyseError as error:  # a device without float64, or with little memory
            errors.append(error)
    if not measured:
        raise errors[0]
    return MeasuredCeilings(tuple(measured), (*bench.problems, *(error.message for error in errors)))


def _ceiling(device: Device, plan: CeilingPlan, rates: dict[str, Rate]) -> Ceiling:
    best = max(rates.values(), key=lambda rate: rate.per_s)
    shown = ", ".join(f"{variant_name} {ceiling_rate(rate.per_s, plan.unit, plan.ceiling_name)}" for variant_name, rate in rates.items())
    clock = "" if best.sm_clock_hz is None else f" SM clock {best.sm_clock_hz / 1e6:.0f} MHz."
    return Ceiling(
        device_id=device.device_id,
        ceiling_name=plan.ceiling_name,
        unit=plan.unit,
        value=best.per_s,
        path=plan.path,
        source="measured",
        note=f"Best launch of each form: {shown}.{clock}",
        clock_hz=None if best.sm_clock_hz is None else round(best.sm_clock_hz),
        measured_unix_ns=time.time_ns(),
    )
