"""Fused multiply-adds on registers alone: the peaks of the units that are not tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.model import DataType, Device, DeviceKind
from services.profiler.backends.base import PreparedLaunch
from services.profiler.measuring.ceiling_bench import BLOCK_THREAD_COUNT, CeilingBench, CeilingPlan, KernelVariant, Rate, capability_of

FMA_FILE: Final = "fma.cu"
BLOCKS_PER_COMPUTE_UNIT: Final = 32  # enough threads to fill every unit of a GPU several times over
FLOP_PER_ROUND: Final = 16  # of a thread, as in fma.cu
HALF2_CAPABILITY: Final = (7, 0)  # before it, two half-precision values a register are slower than one float, or unknown


@dataclass(frozen=True, slots=True)
class FmaVariant(KernelVariant):
    """A variant that multiplies and adds in registers."""

    values_per_register: int = 1


@dataclass(frozen=True, slots=True)
class FmaPlan:
    """The ceiling of multiply-adds of one type."""

    ceiling_name: str
    variants: tuple[FmaVariant, ...]
    unit: str = "flop_per_s"
    path: str = "fma"

    def measure(self, bench: CeilingBench) -> dict[str, Rate]:
        block_count = BLOCKS_PER_COMPUTE_UNIT * bench.unit_count()
        thread_count = block_count * BLOCK_THREAD_COUNT
        with bench.buffers(thread_count * np.dtype(np.float64).itemsize) as (results,):

            def rate(variant: FmaVariant) -> Rate:
                def prepare(rounds: int) -> PreparedLaunch:
                    return bench.prepare(variant, [results, np.int32(rounds)], block_count)

                rounds = bench.rounds(prepare)
                return bench.best(prepare(rounds), float(FLOP_PER_ROUND * variant.values_per_register) * rounds * thread_count)

            return bench.rates(self.variants, rate)


def fma_plans(device: Device) -> tuple[CeilingPlan, ...]:
    """Return plans for float32 and float64, and for float16 where a register of an NVIDIA GPU holds two of them."""
    names = ("fma", "contracted", "wide") if device.kind is DeviceKind.CPU else ("unrolled",)
    plans = [
        FmaPlan(dtype.value, tuple(FmaVariant(name, FMA_FILE, f"ceiling_{name}_{dtype.value}") for name in names))
        for dtype in (DataType.FLOAT32, DataType.FLOAT64)
    ]
    if capability_of(device) >= HALF2_CAPABILITY:
        half2 = FmaVariant("half2", FMA_FILE, "ceiling_half2_float16", values_per_register=2)
        plans.append(FmaPlan(DataType.FLOAT16.value, (half2,)))
    return tuple(plans)
