"""Tensor cores: products of tiles that never leave registers or shared memory, checked before they are timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.core.errors import InternalError
from services.core.model import DataType, Device
from services.profiler.backends.base import Argument, PreparedLaunch
from services.profiler.measuring.ceiling_bench import CeilingBench, CeilingPlan, KernelVariant, Rate, capability_of

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
    """A block multiplies tiles of rows x columns over depth_bytes of each, one tile for every tile_thread_count threads."""

    ceiling_name: str = ""
    rows: int = 32
    columns: int = 32
    depth_bytes: int = 32
    tile_thread_count: int = 32
    block_thread_count: int = 256
    blocks_per_compute_unit: int = 4

    @property
    def dtype(self) -> DataType:
        return DataType.FLOAT16 if self.ceiling_name == ACCUMULATE16 else DataType(self.ceiling_name)

    @property
    def sum_type(self) -> np.dtype[Any]:
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

    def measure(self, bench: CeilingBench) -> dict[str, Rate]:
        return bench.rates(self.variants, lambda variant: _rate(bench, variant))


def tensor_plans(device: Device) -> tuple[CeilingPlan, ...]:
    """Return every type that this device's tensor cores multiply; none off NVIDIA, nor where their own instruction is unknown here."""
    capability = capability_of(device)
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
    """Return variants for double-precision tensor cores that are more than an emulation: the data-centre members of each generation."""
    if capability not in FLOAT64_CAPABILITIES:
        return []
    name = DataType.FLOAT64
    variants = [TensorVariant("mma", MMA_FLOAT64_FILE, "ceiling_mma_float64", ceiling_name=name)]
    if capability >= (9, 0):
        variants.append(TensorVariant("mma deep", MMA_FLOAT64_FILE, "ceiling_mma_deep_float64", ceiling_name=name, depth_bytes=128))
    return variants


def _rate(bench: CeilingBench, variant: TensorVariant) -> Rate:
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
    """Return rows and then columns of a tile: as the device stores them, bytes, and their values, float64 (rows + columns, depth)."""
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
    """Raise InternalError when one round did not give the product of the tile: then its speed would mean nothing."""
    expected = values[: variant.rows] @ values[variant.rows :].T
    error_ratio = float(np.max(np.abs(product.astype(np.float64) - expected)) / np.max(np.abs(expected)))
    tolerance = TOLERANCES.get(variant.ceiling_name, DEFAULT_TOLERANCE)
    if not error_ratio <= tolerance:  # NaN is no number to accept
        raise InternalError(
            f"form {variant.variant_name} of ceiling {variant.ceiling_name} tensor",
            found=f"a product that is off by {error_ratio:.3g} of its largest sum",
            expected=f"at most {tolerance:g}",
            remedy="This ceiling is not kept; please report it with the device and its driver.",
        )


def _storage_type(dtype: DataType) -> np.dtype[Any]:
    if dtype in (DataType.BFLOAT16, DataType.FLOAT8):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if dtype is DataType.BFLOAT16 else ml_dtypes.float8_e4m3fn)
        return found
    return np.dtype(dtype.value)
