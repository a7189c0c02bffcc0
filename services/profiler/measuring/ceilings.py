"""Measured ceilings of a device's roofline: the rates of its best copies, multiply-adds and tile products.

A ceiling is a maximum, so each is the best of several launches, and the best of several ways to write the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import InternalError, KernalyseError
from kernalyse.services.core.formatting import ceiling_rate
from kernalyse.services.core.model import Ceiling, DataType, Device, DeviceKind
from kernalyse.services.profiler.backends.base import Argument, DeviceBuffer, DeviceSession, PreparedLaunch
from kernalyse.services.profiler.measuring.ceiling_bench import (
    BLOCK_THREAD_COUNT,
    CeilingContext,
    CeilingPlan,
    CeilingSources,
    KernelVariant,
    Rate,
    capability_numbers,
    compiles_with_nvcc,
)
from kernalyse.services.profiler.measuring.device_state import ClockMeter

# ---------------------------------------------------------------- memory ceilings
# Bandwidth of every memory level: streams through device memory and caches, and windows that are read repeatedly.

STREAM_FILE: Final = "memory.cu"
CACHE_FILE: Final = "cache.cu"
FLOAT_BYTES: Final = 4
FLOAT4_BYTES: Final = 16

# Three arrays of this size are beyond the last-level cache of CPUs as far as one process gets hold of it (a virtual machine
# may report hundreds of MB, shared with others); larger ones would take a small machine's memory.
DRAM_ARRAY_BYTES: Final = 256 * 2**20
GPU_CACHE_MULTIPLE: Final = 20  # of a GPU's L2 in one array: what stays in it from the launch before is under 5 % of the bytes
L2_ARRAY_BYTES: Final = 4 * 2**20  # three of them are beyond a CPU core's own caches, and within any last-level cache
MAX_MEMORY_FRACTION: Final = 16  # one array takes at most this fraction of a device's memory
CHUNK_BYTES: Final = BLOCK_THREAD_COUNT * 16 * FLOAT4_BYTES  # of the block that reads most: arrays are multiples of it

BLOCKS_PER_COMPUTE_UNIT: Final = 32  # enough threads to fill every unit of a GPU several times over
CPU_WINDOW_BYTES: Final = 8 * BLOCK_THREAD_COUNT * FLOAT_BYTES  # 8 KiB, as in ceiling_window
CPU_WINDOW_COUNT: Final = 2  # 16 KiB lie within the L1 of every core
GLANCE_FLOATS: Final = 16  # of a thread, as in ceiling_glance
GLANCE_BLOCK_COUNT: Final = 16_384
GPU_WINDOW_BYTES: Final = 4 * BLOCK_THREAD_COUNT * FLOAT4_BYTES  # 16 KiB, as in ceiling_window_float4: within every L1
L2_FRACTION: Final = 4  # a region is this fraction of an L2, whose halves may each keep a copy of what all read
OWN_WINDOW_COUNT: Final = 4  # of a block, where each has its own
SHARED_WINDOW_BYTES: Final = GPU_WINDOW_BYTES // 2


@dataclass(frozen=True, slots=True)
class StreamVariant(KernelVariant):
    """A kernel that streams once over its arrays. moved_elements: elements read and written per array element."""

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
    """The ceiling of a memory level, by streams over arrays of `array_bytes` each. Their size decides which level it is."""

    ceiling_name: str
    array_bytes: int
    variants: tuple[StreamVariant, ...]
    unit: str = "bytes_per_s"
    path: str = "copy"

    def measure(self, bench: CeilingContext) -> dict[str, Rate]:
        """Return the rates in bytes per second by the name of the variant."""
        array_bytes = self.array_bytes // CHUNK_BYTES * CHUNK_BYTES
        return bench.rates(self.variants, lambda variant: _stream(bench, variant, array_bytes))


def _stream(bench: CeilingContext, variant: StreamVariant, array_bytes: int) -> Rate:
    """Return the rate of one variant, in arrays of its own.

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


def _touch(bench: CeilingContext, arrays: tuple[DeviceBuffer, ...]) -> None:
    """Write every array once.

    Host memory that was never written is one shared page of zeros, which reads far too quickly.
    """
    copy = STREAM_VARIANTS[0]
    float_count = arrays[0].size_bytes // FLOAT_BYTES
    for position, target in enumerate(arrays):
        launch = bench.prepare(copy, [arrays[position - 1], target, np.int32(float_count)], float_count // BLOCK_THREAD_COUNT)
        bench.session.run(launch)


@dataclass(frozen=True, slots=True)
class WindowVariant(KernelVariant):
    """A kernel that reads windows of a region repeatedly. arguments: the kernel's, after region, sums and rounds."""

    window_bytes: int = GPU_WINDOW_BYTES
    window_count: int = 1
    arguments: tuple[int, ...] = ()
    has_rounds: bool = True


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The ceiling of a cache, by repeated reads of windows that fit into it."""

    ceiling_name: str
    variants: tuple[WindowVariant, ...]
    unit: str = "bytes_per_s"
    path: str = "copy"

    def measure(self, bench: CeilingContext) -> dict[str, Rate]:
        """Return the rates in bytes per second by the name of the variant."""
        return bench.rates(self.variants, lambda variant: _windows(bench, variant))


def _windows(bench: CeilingContext, variant: WindowVariant) -> Rate:
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
    """Return plans for DRAM and the caches before it on this kind of device, the farthest first."""
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
    with_cuda = compiles_with_nvcc(device)
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
    window_count = 1 << max(0, (l2_cache_bytes // L2_FRACTION // GPU_WINDOW_BYTES).bit_length() - 1)
    last = window_count - 1
    everything, own = (0, last, last), (OWN_WINDOW_COUNT, min(last, OWN_WINDOW_COUNT - 1), last)
    if not with_cuda:
        return (WindowVariant("all", CACHE_FILE, "ceiling_window_float4", window_count=window_count, arguments=everything),)
    return tuple(
        WindowVariant(name, CACHE_FILE, "ceiling_window_past_l1", window_count=window_count, arguments=arguments)
        for name, arguments in (("all", everything), ("own", own))
    )


def _within_memory(device: Device, array_bytes: int) -> int:
    limits = [device.memory_bytes // MAX_MEMORY_FRACTION if device.memory_bytes is not None else None, device.max_buffer_bytes]
    return max(CHUNK_BYTES, min(array_bytes, *(limit for limit in (*limits, array_bytes) if limit is not None)))


# ---------------------------------------------------------------- multiply-add ceilings
# Peak rates of the ordinary arithmetic units: fused multiply-adds on registers alone.

FMA_FILE: Final = "fma.cu"
FLOP_PER_ROUND: Final = 16  # of a thread, as in fma.cu
HALF2_CAPABILITY: Final = (7, 0)  # before it, two half-precision values a register are slower than one float, or unknown


@dataclass(frozen=True, slots=True)
class FmaVariant(KernelVariant):
    """A kernel of multiply-adds on registers."""

    values_per_register: int = 1


@dataclass(frozen=True, slots=True)
class FmaPlan:
    """The ceiling of multiply-adds of one type."""

    ceiling_name: str
    variants: tuple[FmaVariant, ...]
    unit: str = "flop_per_s"
    path: str = "fma"

    def measure(self, bench: CeilingContext) -> dict[str, Rate]:
        """Return the rates in flop per second by the name of the variant."""
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
    if capability_numbers(device) >= HALF2_CAPABILITY:
        half2 = FmaVariant("half2", FMA_FILE, "ceiling_half2_float16", values_per_register=2)
        plans.append(FmaPlan(DataType.FLOAT16.value, (half2,)))
    return tuple(plans)


# ---------------------------------------------------------------- tensor ceilings
# Peak rates of tensor cores: products of tiles in registers or shared memory, checked for correctness before they are timed.

Array = npt.NDArray[Any]
Capability = tuple[int, int]

MMA_FILE: Final = "mma.cu"
MMA_FLOAT64_FILE: Final = "mma_float64.cu"
WGMMA_FILE: Final = "wgmma.cu"

ACCUMULATE16: Final = "float16_accumulate16"  # sums in half precision: twice as fast on GeForce, and no faster elsewhere
FIRST_CAPABILITIES: Final[dict[str, Capability]] = {
    DataType.FLOAT16: (7, 5),
    ACCUMULATE16: (7, 5),
    DataType.BFLOAT16: (8, 0),
    DataType.TFLOAT32: (8, 0),
    DataType.FLOAT8: (8, 9),
    DataType.INT8: (7, 5),
}
"""Of mma.sync, by ceiling."""

TYPE_NAMES: Final[dict[str, str]] = {
    DataType.FLOAT16: "Float16",
    ACCUMULATE16: "Float16Accumulate16",
    DataType.BFLOAT16: "Bfloat16",
    DataType.TFLOAT32: "Tfloat32",
    DataType.FLOAT8: "Float8",
    DataType.INT8: "Int8",
}
"""As mma.cu and wgmma.cu know them."""

FLOAT64_CAPABILITIES: Final = ((8, 0), (9, 0), (10, 0))
WGMMA_CAPABILITY: Final = (9, 0)
TCGEN05_MAJORS: Final = (10, 11)
"""Compute capabilities whose tensor cores are reached in full by tcgen05 alone: a ceiling by mma.sync would be far too low."""

TOLERANCES: Final[dict[str, float]] = {ACCUMULATE16: 2e-2, DataType.FLOAT8: 2e-2, DataType.INT8: 0.0, DataType.FLOAT64: 1e-12}
"""Of the largest sum: half-precision sums are rounded to 11 bits at every step, those of float8 products to about 14."""

DEFAULT_TOLERANCE: Final = 1e-3
TFLOAT32_MASK: Final = np.uint32(0xFFFF_E000)  # the bits of a float32 that count


@dataclass(frozen=True, slots=True)
class TensorVariant(KernelVariant):
    """A kernel whose blocks multiply tiles of rows x columns over depth_bytes of each, one tile per tile_thread_count threads."""

    ceiling_name: str = ""
    rows: int = 32
    columns: int = 32
    depth_bytes: int = 32
    tile_thread_count: int = 32
    block_thread_count: int = 256
    blocks_per_compute_unit: int = 4

    @property
    def dtype(self) -> DataType:
        """Return the type of the multiplied elements."""
        return DataType.FLOAT16 if self.ceiling_name == ACCUMULATE16 else DataType(self.ceiling_name)

    @property
    def sum_type(self) -> np.dtype[Any]:
        """Return the type in which the products are summed."""
        return np.dtype(_SUM_TYPES.get(self.ceiling_name, "float32"))

    @property
    def flop_per_round(self) -> int:
        """Return the flop of one tile; a multiply-add counts two."""
        return 2 * self.rows * self.columns * (self.depth_bytes // _ELEMENT_BYTES[self.dtype])


_SUM_TYPES: Final[dict[str, str]] = {ACCUMULATE16: "float16", DataType.INT8: "int32", DataType.FLOAT64: "float64"}
_ELEMENT_BYTES: Final = {
    DataType.FLOAT64: 8,
    DataType.TFLOAT32: 4,
    DataType.FLOAT16: 2,
    DataType.BFLOAT16: 2,
    DataType.FLOAT8: 1,
    DataType.INT8: 1,
}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The ceiling of tile products of one type."""

    ceiling_name: str
    variants: tuple[TensorVariant, ...]
    unit: str = "flop_per_s"
    path: str = "tensor"

    def measure(self, bench: CeilingContext) -> dict[str, Rate]:
        """Return the rates in flop per second by the name of the variant."""
        return bench.rates(self.variants, lambda variant: _rate(bench, variant))


def tensor_plans(device: Device) -> tuple[CeilingPlan, ...]:
    """Return one plan for each type of the device's tensor cores; none off NVIDIA or for unknown generations."""
    capability = capability_numbers(device)
    names = [name for name, first in FIRST_CAPABILITIES.items() if capability >= first and capability[0] not in TCGEN05_MAJORS]
    plans = [TensorPlan(name, tuple(_variants(name, capability))) for name in names]
    float64_variants = tuple(_float64_variants(capability))
    return (*plans, *([TensorPlan(DataType.FLOAT64, float64_variants)] if float64_variants else []))


def _variants(name: str, capability: Capability) -> list[TensorVariant]:
    options = (f"-DTYPE={TYPE_NAMES[name]}",)
    variants = []
    # Hopper has no mma.sync for float8: the compiler turns it into half precision.
    if not (capability == WGMMA_CAPABILITY and name == DataType.FLOAT8):
        variants.append(TensorVariant("mma", MMA_FILE, "ceiling_mma", options, ceiling_name=name))
    if capability == WGMMA_CAPABILITY:
        wgmma = TensorVariant(
            "wgmma",
            WGMMA_FILE,
            "ceiling_wgmma",
            (*options, "-arch=sm_90a"),
            ceiling_name=name,
            rows=128,
            columns=256,
            depth_bytes=128,
            tile_thread_count=256,
            blocks_per_compute_unit=1,
        )
        variants.append(wgmma)
    return variants


def _float64_variants(capability: Capability) -> list[TensorVariant]:
    """Return variants for double-precision tensor cores, which only the data-centre GPUs of each generation have at full rate."""
    if capability not in FLOAT64_CAPABILITIES:
        return []
    name = DataType.FLOAT64
    variants = [TensorVariant("mma", MMA_FLOAT64_FILE, "ceiling_mma_float64", ceiling_name=name)]
    if capability >= (9, 0):
        variants.append(TensorVariant("mma deep", MMA_FLOAT64_FILE, "ceiling_mma_deep_float64", ceiling_name=name, depth_bytes=128))
    return variants


def _rate(bench: CeilingContext, variant: TensorVariant) -> Rate:
    block_count = variant.blocks_per_compute_unit * bench.unit_count()
    tile_count = block_count * (variant.block_thread_count // variant.tile_thread_count)
    tile_bytes = variant.rows * variant.columns * variant.sum_type.itemsize
    stored, values = random_operands(variant)
    with bench.buffers(stored.nbytes, tile_count * tile_bytes) as (operands, results):
        bench.session.upload(operands, stored)

        def prepare(rounds: int) -> PreparedLaunch:
            arguments: list[Argument] = [operands, results, np.int32(rounds)]
            return bench.prepare(variant, arguments, block_count, variant.block_thread_count)

        bench.session.run(prepare(1))
        product = np.empty((variant.rows, variant.columns), variant.sum_type)
        bench.session.download(results, product)
        check_product(variant, product, values)
        rounds = bench.rounds(prepare)
        return bench.best(prepare(rounds), float(variant.flop_per_round) * rounds * tile_count)


def random_operands(variant: TensorVariant) -> tuple[Array, Array]:
    """Return a tile's rows, then columns: as device bytes, and as float64 values of shape (rows + columns, depth)."""
    shape = (variant.rows + variant.columns, variant.depth_bytes // _ELEMENT_BYTES[variant.dtype])
    generator = np.random.default_rng(0)
    stored: Array
    match variant.dtype:
        case DataType.INT8:
            stored = generator.integers(-128, 128, shape, np.int8)
        case DataType.TFLOAT32:
            stored = (generator.standard_normal(shape, np.float32).view(np.uint32) & TFLOAT32_MASK).view(np.float32)
        case dtype:
            stored = generator.standard_normal(shape).astype(_storage_type(dtype))
    return stored.view(np.uint8), stored.astype(np.float64)


def check_product(variant: TensorVariant, product: Array, values: Array) -> None:
    """Raise InternalError unless one round gives the product of the tile: the speed of a wrong result means nothing."""
    expected = values[: variant.rows] @ values[variant.rows :].T
    error_ratio = float(np.max(np.abs(product.astype(np.float64) - expected)) / np.max(np.abs(expected)))
    tolerance = TOLERANCES.get(variant.ceiling_name, DEFAULT_TOLERANCE)
    if not error_ratio <= tolerance:  # NaN is no number to accept
        raise InternalError(
            f"form {variant.variant_name} of ceiling {variant.ceiling_name} tensor",
            found=f"a product that is off by {error_ratio:.3g} of its largest sum",
            expected=f"at most {tolerance:g}",
            remedy="This ceiling is dropped; please report it with the device and its driver.",
        )


def _storage_type(dtype: DataType) -> np.dtype[Any]:
    if dtype in (DataType.BFLOAT16, DataType.FLOAT8):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if dtype is DataType.BFLOAT16 else ml_dtypes.float8_e4m3fn)
        return found
    return np.dtype(dtype.value)


# ---------------------------------------------------------------- all ceilings of a device

SOURCE_FILES: Final = (STREAM_FILE, CACHE_FILE, FMA_FILE, MMA_FILE, MMA_FLOAT64_FILE, WGMMA_FILE)


@dataclass(frozen=True, slots=True)
class MeasuredCeilings:
    """The ceilings of a device. problems: why expected ceilings or variants are missing; one sentence each."""

    ceilings: tuple[Ceiling, ...]
    problems: tuple[str, ...]


def plan_ceilings(device: Device) -> tuple[CeilingPlan, ...]:
    """Return the plans for a device, by its kind, backend and compute capability.

    Memory comes first ("dram", "l2", "l1", "shared"), then multiply-adds by data type, then tensor cores.
    """
    return (*memory_plans(device), *fma_plans(device), *tensor_plans(device))


def measure_ceilings(
    session: DeviceSession, sources: CeilingSources, clock_meter: ClockMeter, on_plan: Callable[[int, CeilingPlan], None]
) -> MeasuredCeilings:
    """Measure every ceiling of the plan. What the device turns out to lack is skipped, with a problem that says so.

    Args:
        on_plan: called before each ceiling with its index.

    Raises:
        KernalyseError: nothing could be measured; the first reason.
    """
    bench = CeilingContext(session, sources, clock_meter)
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
