"""Bandwidth of every memory level: streams through device memory and caches, and windows read again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.model import Device, DeviceKind
from services.profiler.backends.base import DeviceBuffer, PreparedLaunch
from services.profiler.measuring.ceiling_bench import BLOCK_THREAD_COUNT, CeilingBench, CeilingPlan, KernelVariant, Rate, takes_cuda

STREAM_FILE: Final = "memory.cu"
CACHE_FILE: Final = "cache.cu"
FLOAT_BYTES: Final = 4
FLOAT4_BYTES: Final = 16

# Three arrays of this size are beyond the last-level cache of CPUs as far as one process gets hold of it (a virtual machine
# may report hundreds of MB, shared with others); larger ones would take a small machine's memory.
DRAM_ARRAY_BYTES: Final = 256 * 2**20
GPU_CACHE_MULTIPLE: Final = 20  # of a GPU's L2 in one array: what stays in it from the launch before is under 5 % of the bytes
L2_ARRAY_BYTES: Final = 4 * 2**20  # three of them are beyond a CPU core's own caches, and within any last-level cache
MAX_MEMORY_SHARE: Final = 16  # one array takes at most this fraction of a device's memory
STRETCH_BYTES: Final = BLOCK_THREAD_COUNT * 16 * FLOAT4_BYTES  # of the block that reads most: arrays are multiples of it

BLOCKS_PER_COMPUTE_UNIT: Final = 32  # enough threads to fill every unit of a GPU several times over
CPU_WINDOW_BYTES: Final = 8 * BLOCK_THREAD_COUNT * FLOAT_BYTES  # 8 KiB, as in ceiling_window
CPU_WINDOW_COUNT: Final = 2  # 16 KiB lie within the L1 of every core
GLANCE_FLOATS: Final = 16  # of a thread, as in ceiling_glance
GLANCE_BLOCK_COUNT: Final = 16_384
GPU_WINDOW_BYTES: Final = 4 * BLOCK_THREAD_COUNT * FLOAT4_BYTES  # 16 KiB, as in ceiling_window_float4: within every L1
L2_SHARE: Final = 4  # a region is this fraction of an L2, whose halves may each keep a copy of what all read
OWN_WINDOW_COUNT: Final = 4  # of a block, where each has its own
SHARED_WINDOW_BYTES: Final = GPU_WINDOW_BYTES // 2


@dataclass(frozen=True, slots=True)
class StreamVariant(KernelVariant):
    """A variant that passes once over arrays. moved_elements: read and written for each of them."""

    array_count: int = 2  # of the kernel's, the one written to last
    moved_elements: float = 2
    element_bytes: int = FLOAT_BYTES
    elements_per_thread: int = 1
    writes_sums: bool = False  # one float a thread besides


STREAM_VARIANTS: Final = (
    StreamVariant("copy", STREAM_FILE, "ceiling_copy"),
    StreamVariant("triad", STREAM_FILE, "ceiling_triad", array_count=3, moved_elements=3),
    StreamVariant("update", STREAM_FILE, "ceiling_update", moved_elements=3),
    StreamVariant("read", STREAM_FILE, "ceiling_read", moved_elements=1, elements_per_thread=16, writes_sums=True),
)
WIDE_STREAM_VARIANTS: Final = (
    StreamVariant("copy float4", STREAM_FILE, "ceiling_copy_float4", element_bytes=FLOAT4_BYTES),
    StreamVariant("copy ahead", STREAM_FILE, "ceiling_copy_ahead", element_bytes=FLOAT4_BYTES, elements_per_thread=4),
    StreamVariant("triad float4", STREAM_FILE, "ceiling_triad_float4", array_count=3, moved_elements=3, element_bytes=FLOAT4_BYTES),
    StreamVariant("update float4", STREAM_FILE, "ceiling_update_float4", moved_elements=3, element_bytes=FLOAT4_BYTES),
    StreamVariant(
        "read float4",
        STREAM_FILE,
        "ceiling_read_float4",
        moved_elements=1,
        element_bytes=FLOAT4_BYTES,
        elements_per_thread=16,
        writes_sums=True,
    ),
)
CUDA_STREAM_VARIANTS: Final = (
    StreamVariant("copy streaming", STREAM_FILE, "ceiling_copy_streaming", element_bytes=FLOAT4_BYTES, elements_per_thread=4),
)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Arrays of `array_bytes` each: where they fit says whose ceiling it is."""

    ceiling_name: str
    array_bytes: int
    variants: tuple[StreamVariant, ...]
    unit: str = "bytes_per_s"
    path: str = "copy"

    def measure(self, bench: CeilingBench) -> dict[str, Rate]:
        array_bytes = self.array_bytes // STRETCH_BYTES * STRETCH_BYTES
        return bench.rates(self.variants, lambda variant: _stream(bench, variant, array_bytes))


def _stream(bench: CeilingBench, variant: StreamVariant, array_bytes: int) -> Rate:
    """Measure in arrays of its own.

    What another variant left in them is worth nothing, and moving gigabytes from one program to the next, as the NVCC backend
    would, takes seconds.
    """
    element_count = array_bytes // variant.element_bytes
    thread_count = element_count // variant.elements_per_thread
    moved_bytes = variant.moved_elements * element_count * variant.element_bytes
    with bench.buffers(*[array_bytes] * variant.array_count) as arrays:
        if bench.device.kind is DeviceKind.CPU:
            _touch(bench, arrays)
        launch = bench.prepare(variant, [*arrays, np.int32(element_count)], thread_count // BLOCK_THREAD_COUNT)
        return bench.best(launch, moved_bytes + (thread_count * FLOAT_BYTES if variant.writes_sums else 0))


def _touch(bench: CeilingBench, arrays: tuple[DeviceBuffer, ...]) -> None:
    """Write every array once: a host's memory that was never written is all one page of zeros, which reads far too quickly."""
    copy = STREAM_VARIANTS[0]
    float_count = arrays[0].size_bytes // FLOAT_BYTES
    for position, target in enumerate(arrays):
        launch = bench.prepare(copy, [arrays[position - 1], target, np.int32(float_count)], float_count // BLOCK_THREAD_COUNT)
        bench.session.run(launch)


@dataclass(frozen=True, slots=True)
class WindowVariant(KernelVariant):
    """Windows of a region, again and again. arguments: of the kernel, after region, sums and rounds."""

    window_bytes: int = GPU_WINDOW_BYTES
    window_count: int = 1
    arguments: tuple[int, ...] = ()
    has_rounds: bool = True


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The ceiling of a cache, by windows that stay in it."""

    ceiling_name: str
    variants: tuple[WindowVariant, ...]
    unit: str = "bytes_per_s"
    path: str = "copy"

    def measure(self, bench: CeilingBench) -> dict[str, Rate]:
        return bench.rates(self.variants, lambda variant: _windows(bench, variant))


def _windows(bench: CeilingBench, variant: WindowVariant) -> Rate:
    block_count = BLOCKS_PER_COMPUTE_UNIT * bench.unit_count() if variant.has_rounds else GLANCE_BLOCK_COUNT
    region_bytes = variant.window_bytes * variant.window_count
    with bench.buffers(region_bytes, block_count * BLOCK_THREAD_COUNT * FLOAT_BYTES) as (region, sums):
        bench.session.upload(region, np.random.default_rng(0).random(region_bytes // FLOAT_BYTES, np.float32))

        def prepare(rounds: int) -> PreparedLaunch:
            counted = [np.int32(rounds)] if variant.has_rounds else []
            return bench.prepare(variant, [region, sums, *counted, *map(np.int32, variant.arguments)], block_count)

        rounds = bench.rounds(prepare) if variant.has_rounds else 1
        return bench.best(prepare(rounds), float(variant.window_bytes) * rounds * block_count)


def memory_plans(device: Device) -> tuple[CeilingPlan, ...]:
    """Return plans for DRAM and what is known to lie before it on this kind of device, the farthest first."""
    return _cpu_plans(device) if device.kind is DeviceKind.CPU else _gpu_plans(device)


def _cpu_plans(device: Device) -> tuple[CeilingPlan, ...]:
    plans: list[CeilingPlan] = [StreamPlan("dram", _within_memory(device, DRAM_ARRAY_BYTES), STREAM_VARIANTS)]
    if device.l2_cache_bytes:
        plans.append(StreamPlan("l2", _within_memory(device, min(L2_ARRAY_BYTES, device.l2_cache_bytes // 8)), STREAM_VARIANTS))
    window = WindowVariant(
        "window",
        CACHE_FILE,
        "ceiling_window",
        window_bytes=CPU_WINDOW_BYTES,
        window_count=CPU_WINDOW_COUNT,
        arguments=(CPU_WINDOW_COUNT - 1,),
    )
    glance_bytes = GLANCE_FLOATS * BLOCK_THREAD_COUNT * FLOAT_BYTES
    glance = WindowVariant("glance", CACHE_FILE, "ceiling_glance", window_bytes=glance_bytes, has_rounds=False)
    return (*plans, WindowPlan("l1", (window, glance)))


def _gpu_plans(device: Device) -> tuple[CeilingPlan, ...]:
    with_cuda = takes_cuda(device)
    dram_bytes = max(DRAM_ARRAY_BYTES, GPU_CACHE_MULTIPLE * (device.l2_cache_bytes or 0))
    stream_variants = (*WIDE_STREAM_VARIANTS, *(CUDA_STREAM_VARIANTS if with_cuda else ()))
    plans: list[CeilingPlan] = [StreamPlan("dram", _within_memory(device, dram_bytes), stream_variants)]
    if device.l2_cache_bytes:
        plans.append(WindowPlan("l2", _l2_variants(device.l2_cache_bytes, with_cuda)))
    near = WindowVariant("window", CACHE_FILE, "ceiling_window_float4", arguments=(0, 0, 0))
    shared = WindowVariant("shared", CACHE_FILE, "ceiling_shared", window_bytes=SHARED_WINDOW_BYTES, window_count=2, arguments=(1,))
    return (*plans, WindowPlan("l1", (near,)), WindowPlan("shared", (shared,)))


def _l2_variants(l2_cache_bytes: int, with_cuda: bool) -> tuple[WindowVariant, ...]:
    """Return variants with arguments block_stride, own_windows, last_window (cache.cu). Without CUDA nothing passes by L1; it is small."""
    window_count = 1 << max(0, (l2_cache_bytes // L2_SHARE // GPU_WINDOW_BYTES).bit_length() - 1)
    last = window_count - 1
    everything, own = (0, last, last), (OWN_WINDOW_COUNT, min(last, OWN_WINDOW_COUNT - 1), last)
    if not with_cuda:
        return (WindowVariant("all", CACHE_FILE, "ceiling_window_float4", window_count=window_count, arguments=everything),)
    return tuple(
        WindowVariant(name, CACHE_FILE, "ceiling_window_past_l1", window_count=window_count, arguments=arguments)
        for name, arguments in (("all", everything), ("own", own))
    )


def _within_memory(device: Device, array_bytes: int) -> int:
    limits = [device.memory_bytes // MAX_MEMORY_SHARE if device.memory_bytes is not None else None, device.max_buffer_bytes]
    return max(STRETCH_BYTES, min(array_bytes, *(limit for limit in (*limits, array_bytes) if limit is not None)))
