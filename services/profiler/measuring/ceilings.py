"""What a device reaches on copies and on fused multiply-adds: the measured ceilings of its roofline.

A ceiling is a maximum, so each is the best of several launches, and the best of several ways to write the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.errors import KernalyseError, UnmetConditionError
from services.core.model import CacheMode, Ceiling, DataType, Device, Dim3, KernelSource, TimingMethod
from services.profiler.backends.base import Argument, Build, DeviceSession, LaunchConfiguration, PreparedLaunch, Timing

BATCH_LAUNCH_COUNT: Final = 5
MIN_REPETITION_NS: Final = 80_000_000  # shorter may lie within one slice of a busy neighbour, longer makes a sweep wait
BLOCK_THREAD_COUNT: Final = 256
FLOAT_BYTES: Final = 4

# Three arrays of this size are beyond the last-level cache of GPUs, and of CPUs as far as one process gets hold of it (a
# virtual machine may report hundreds of MB, shared with others); larger ones would take a small machine's memory.
DRAM_ARRAY_BYTES: Final = 256 * 2**20
L2_ARRAY_BYTES: Final = 4 * 2**20  # three of them are beyond a core's own caches, and within any last-level cache
MAX_MEMORY_SHARE: Final = 16  # one array takes at most this fraction of a device's memory
ELEMENTS_PER_READING_THREAD: Final = 16  # as in ceiling_read of memory.cu

BLOCKS_PER_COMPUTE_UNIT: Final = 32  # enough threads to fill every unit of a GPU several times over
FIRST_ROUNDS: Final = 64
FLOP_PER_ROUND: Final = 16  # as in fma.cu
TARGET_LAUNCH_NS: Final = 10_000_000  # long beside the launch itself, short beside a change of clock
MAX_ROUNDS: Final = 2**24
FMA_FORMS: Final = ("fma", "contracted", "wide")

SINGLE_HOT: Final = Timing(TimingMethod.SINGLE, CacheMode.HOT)

MEMORY_FILE: Final = "memory.cu"
FMA_FILE: Final = "fma.cu"


@dataclass(frozen=True, slots=True)
class CeilingSources:
    """The kernels that measure ceilings."""

    memory: KernelSource
    fma: KernelSource


def measure_ceilings(session: DeviceSession, sources: CeilingSources) -> tuple[Ceiling, ...]:
    """Bandwidth of DRAM and of the last-level cache ("l2"), and float32 and float64 throughput. What the device lacks is left out.

    The cache's ceiling is the one for hot samples of arrays that fit: they may well be faster than DRAM allows.

    Raises:
        KernalyseError: nothing could be measured; the first reason.
    """
    measured: list[Ceiling] = []
    errors: list[KernalyseError] = []
    attempts: tuple[Callable[[], Ceiling], ...] = (
        lambda: _measure_bandwidth(session, sources.memory, "dram", DRAM_ARRAY_BYTES),
        lambda: _measure_bandwidth(session, sources.memory, "l2", min(L2_ARRAY_BYTES, (session.device.l2_cache_bytes or 0) // 8)),
        lambda: _measure_fma(session, sources.fma, DataType.FLOAT32),
        lambda: _measure_fma(session, sources.fma, DataType.FLOAT64),
    )
    for measure in attempts:
        try:
            measured.append(measure())
        except KernalyseError as error:  # a device without float64, or with little memory
            errors.append(error)
    if not measured:
        raise errors[0]
    return tuple(measured)


# ---------------------------------------------------------------- memory


def _measure_bandwidth(session: DeviceSession, source: KernelSource, ceiling_name: str, array_bytes: int) -> Ceiling:
    """The best byte rate over three arrays of at most `array_bytes` each. 0: a memory whose size nobody knows."""
    if array_bytes == 0:
        raise UnmetConditionError(f"ceiling {ceiling_name}", found="a device that does not tell its size", expected="a known size")
    element_count = _element_count(session.device, array_bytes)
    arrays = [session.allocate(element_count * FLOAT_BYTES) for _ in range(3)]
    try:
        _touch(session, source, arrays, element_count)
        left, right, target = arrays
        count = np.int32(element_count)
        full_grid = _blocks_for(element_count)
        reading_grid = element_count // (BLOCK_THREAD_COUNT * ELEMENTS_PER_READING_THREAD)
        sum_count = reading_grid * BLOCK_THREAD_COUNT
        work: tuple[tuple[str, list[Argument], int, int], ...] = (
            ("copy", [left, target, count], full_grid, 2 * element_count),
            ("triad", [left, right, target, count], full_grid, 3 * element_count),
            ("update", [left, target, count], full_grid, 3 * element_count),
            ("read", [left, target, count], reading_grid, element_count + sum_count),
        )
        rates = {
            form: moved_count * FLOAT_BYTES / _best_seconds(session, _prepare(session, source, f"ceiling_{form}", arguments, grid))
            for form, arguments, grid, moved_count in work
        }
    finally:
        for array in arrays:
            session.release(array)
    return _ceiling(session.device, ceiling_name, "bytes_per_s", "copy", rates)


def _element_count(device: Device, array_bytes: int) -> int:
    size_bytes = min(
        array_bytes,
        device.memory_bytes // MAX_MEMORY_SHARE if device.memory_bytes is not None else array_bytes,
        device.max_buffer_bytes if device.max_buffer_bytes is not None else array_bytes,
    )
    stretch = BLOCK_THREAD_COUNT * ELEMENTS_PER_READING_THREAD
    return max(1, size_bytes // FLOAT_BYTES // stretch) * stretch


def _touch(session: DeviceSession, source: KernelSource, arrays: Sequence[Argument], element_count: int) -> None:
    """Writes every array once: memory never written may all be one page of zeros, which reads far too quickly."""
    first, second, third = arrays
    for left, right, target in ((first, second, third), (second, third, first), (third, first, second)):
        arguments = [left, right, target, np.int32(element_count)]
        session.run(_prepare(session, source, "ceiling_triad", arguments, _blocks_for(element_count)))


# ---------------------------------------------------------------- compute


def _measure_fma(session: DeviceSession, source: KernelSource, dtype: DataType) -> Ceiling:
    block_count = BLOCKS_PER_COMPUTE_UNIT * (session.device.compute_unit_count or 1)
    results = session.allocate(block_count * BLOCK_THREAD_COUNT * np.dtype(dtype.value).itemsize)
    try:
        rates = {form: _flop_rate(session, source, f"ceiling_{form}_{dtype.value}", results, block_count) for form in FMA_FORMS}
    finally:
        session.release(results)
    return _ceiling(session.device, dtype.value, "flop_per_s", "fma", rates)


def _flop_rate(session: DeviceSession, source: KernelSource, function_name: str, results: Argument, block_count: int) -> float:
    def prepare(rounds: int) -> PreparedLaunch:
        return _prepare(session, source, function_name, [results, np.int32(rounds)], block_count)

    first = prepare(FIRST_ROUNDS)
    session.run(first)
    first_ns = max(1.0, float(session.time(first, SINGLE_HOT, 2).duration_ns.min()))
    wanted_rounds = min(MAX_ROUNDS, int(FIRST_ROUNDS * TARGET_LAUNCH_NS / first_ns))
    rounds = max(1, wanted_rounds // FIRST_ROUNDS) * FIRST_ROUNDS  # the wide form counts rounds by eight
    flop = rounds * FLOP_PER_ROUND * block_count * BLOCK_THREAD_COUNT
    return flop / _best_seconds(session, prepare(rounds))


# ---------------------------------------------------------------- both


def _prepare(
    session: DeviceSession, source: KernelSource, function_name: str, arguments: Sequence[Argument], block_count: int
) -> PreparedLaunch:
    configuration = LaunchConfiguration(block=Dim3(BLOCK_THREAD_COUNT), grid=Dim3(block_count))
    kernel = session.compile(Build(source, function_name), configuration.block)
    return session.prepare(kernel, arguments, configuration)


def _best_seconds(session: DeviceSession, launch: PreparedLaunch) -> float:
    session.run(launch)
    best_ns, total_ns = math.inf, 0.0
    while total_ns < MIN_REPETITION_NS:
        durations_ns = session.time(launch, SINGLE_HOT, BATCH_LAUNCH_COUNT).duration_ns
        best_ns = min(best_ns, max(1.0, float(durations_ns.min())))
        total_ns += max(1.0, float(durations_ns.sum()))
    return best_ns / 1e9


def _blocks_for(element_count: int) -> int:
    return -(-element_count // BLOCK_THREAD_COUNT)


def _ceiling(device: Device, ceiling_name: str, unit: str, path: str, rates: dict[str, float]) -> Ceiling:
    shown = ", ".join(f"{form} {rate:.4g}" for form, rate in rates.items())
    return Ceiling(
        device_id=device.device_id,
        ceiling_name=ceiling_name,
        unit=unit,
        value=max(rates.values()),
        path=path,
        source="measured",
        note=f"Best launch of each form: {shown} {unit}.",
    )
