"""Measurement of a ceiling: repeated launches of every kernel variant, of which the fastest counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import BackendName, CacheMode, Device, DeviceKind, Dim3, KernelSource, TimingMethod
from kernalyse.services.profiler.backends.base import (
    Argument,
    Build,
    DeviceBuffer,
    DeviceSession,
    LaunchConfiguration,
    PreparedLaunch,
    TimedSamples,
    Timing,
)
from kernalyse.services.profiler.measuring.device_state import ClockMeter

BATCH_LAUNCH_COUNT: Final = 5
MIN_REPETITION_NS: Final = 80_000_000  # shorter may lie within one slice of a busy neighbour, longer makes a sweep wait
BLOCK_THREAD_COUNT: Final = 256

FIRST_ROUNDS: Final = 64  # every variant's loop takes at most 32 rounds at once
MAX_ROUNDS: Final = 2**24
ROUND_GUESSES: Final = 3  # a GPU that was idle needs some to reach its clock
CPU_LAUNCH_NS: Final = 10_000_000  # long beside the launch itself and a slice of the scheduler
GPU_LAUNCH_NS: Final = 2_000_000  # long beside the launch, and over before the power limit lowers the clock

SINGLE_HOT: Final = Timing(TimingMethod.SINGLE, CacheMode.HOT)

CeilingSources = Mapping[str, KernelSource]
"""The kernels that measure ceilings, by file name."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A kernel variant that can reach a ceiling."""

    variant_name: str  # as notes call it
    file_name: str
    function_name: str
    options: tuple[str, ...] = ()  # of the compiler, as nvcc names them

    def build(self, sources: CeilingSources) -> Build:
        """Return the variant's build, its source taken from `sources`."""
        return Build(sources[self.file_name], self.function_name, options=self.options)


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of a variant in its best launch. sm_clock_hz: during that launch; None: not known."""

    per_s: float
    sm_clock_hz: float | None = None


class CeilingPlan(Protocol):
    """A ceiling of a device, and the variants that compete for it."""

    @property
    def ceiling_name(self) -> str:
        """Return the name of the ceiling, as results carry it."""
        ...

    @property
    def unit(self) -> str:
        """Return the unit of the rate: "bytes_per_s" or "flop_per_s"."""
        ...

    @property
    def path(self) -> str:
        """Return what reaches the ceiling: "copy", "fma" or "tensor"."""
        ...

    @property
    def variants(self) -> Sequence[KernelVariant]:
        """Return the kernel variants that compete for the ceiling."""
        ...

    def measure(self, bench: CeilingContext) -> dict[str, Rate]:
        """Return the rates by the name of the variant. Raises KernalyseError: none of them works on this device."""
        ...


def compiles_with_nvcc(device: Device) -> bool:
    """Return whether the backend compiles with nvcc, so that kernels may contain PTX and CUDA's own functions."""
    return bool({BackendName.PYCUDA, BackendName.NVCC} & set(device.backends))


def capability_numbers(device: Device) -> tuple[int, int]:
    """Return the compute capability as numbers: (9, 0) for "9.0"; (0, 0) for devices without CUDA."""
    if not compiles_with_nvcc(device) or device.compute_capability is None:
        return (0, 0)
    major, _, minor = device.compute_capability.partition(".")
    return int(major), int(minor or 0)


AnyVariant = TypeVar("AnyVariant", bound=KernelVariant)


@dataclass(slots=True)
class CeilingContext:
    """An open device and the kernels to measure it with. problems: why variants have no rate, one sentence each."""

    session: DeviceSession
    sources: CeilingSources
    clock_meter: ClockMeter
    problems: list[str] = field(default_factory=list)

    @property
    def device(self) -> Device:
        """Return the device under measurement."""
        return self.session.device

    def rates(self, variants: Sequence[AnyVariant], rate: Callable[[AnyVariant], Rate]) -> dict[str, Rate]:
        """Return the rate of every variant that works, by name.

        Raises:
            KernalyseError: none does; the first reason.
        """
        rates: dict[str, Rate] = {}
        errors: list[KernalyseError] = []
        for variant in variants:
            try:
                rates[variant.variant_name] = rate(variant)
            except KernalyseError as error:
                errors.append(error)
        if not rates:
            raise errors[0]
        self.problems += [error.message for error in errors]
        return rates

    def prepare(
        self, variant: KernelVariant, arguments: Sequence[Argument], block_count: int, thread_count: int = BLOCK_THREAD_COUNT
    ) -> PreparedLaunch:
        """Compile a variant and return its launch with these arguments, grid and block."""
        configuration = LaunchConfiguration(block=Dim3(thread_count), grid=Dim3(block_count))
        kernel = self.session.compile(variant.build(self.sources), configuration.block)
        return self.session.prepare(kernel, arguments, configuration)

    def best(self, launch: PreparedLaunch, work: float) -> Rate:
        """Return the best rate: `work` of one launch over the time of the shortest launch."""
        self.session.run(launch)
        best_ns, total_ns, sm_clock_hz = math.inf, 0.0, None
        while total_ns < MIN_REPETITION_NS:
            samples = self.session.time(launch, SINGLE_HOT, BATCH_LAUNCH_COUNT)
            durations_ns = samples.duration_ns
            position = int(durations_ns.argmin())
            if durations_ns[position] < best_ns:
                best_ns, sm_clock_hz = float(durations_ns[position]), self._clock_of(samples, position)
            total_ns += max(1.0, float(durations_ns.sum()))
        return Rate(work / max(1.0, best_ns) * 1e9, sm_clock_hz)

    def rounds(self, prepare: Callable[[int], PreparedLaunch]) -> int:
        """Return the number of rounds for a launch of the target duration."""
        target_ns = CPU_LAUNCH_NS if self.device.kind is DeviceKind.CPU else GPU_LAUNCH_NS
        rounds = FIRST_ROUNDS
        for _ in range(ROUND_GUESSES):
            launch = prepare(rounds)
            self.session.run(launch)
            taken_ns = max(1.0, float(self.session.time(launch, SINGLE_HOT, 2).duration_ns.min()))
            rounds = max(1, min(MAX_ROUNDS, int(rounds * target_ns / taken_ns)) // FIRST_ROUNDS) * FIRST_ROUNDS
            if taken_ns > target_ns / 2:
                break
        return rounds

    def unit_count(self) -> int:
        """Return the number of compute units; 1 where the device does not report it."""
        return self.device.compute_unit_count or 1

    @contextmanager
    def buffers(self, *sizes_bytes: int) -> Iterator[tuple[DeviceBuffer, ...]]:
        """Yield device memory of these sizes, released at the end. Raises MemoryLimitError."""
        taken: list[DeviceBuffer] = []
        try:
            for size_bytes in sizes_bytes:
                taken.append(self.session.allocate(size_bytes))
            yield tuple(taken)
        finally:
            for buffer in taken:
                self.session.release(buffer)

    def _clock_of(self, samples: TimedSamples, position: int) -> float | None:
        """Return the SM clock of the sample where the backend measures it, else the device's clock just after."""
        if samples.sm_clock_hz is not None and math.isfinite(samples.sm_clock_hz[position]):
            return float(samples.sm_clock_hz[position])
        reading = self.clock_meter.read()
        return None if reading is None or reading.sm_clock_hz is None else float(reading.sm_clock_hz)
