"""Contents of buffers before a launch: inputs that kernels read, and poison where they are to write."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.core.errors import InvalidParameterError, MemoryLimitError
from services.core.expressions import parse_expression
from services.core.model import BufferDefinition, BufferRole, DataType, Device, InputDistribution

Array = npt.NDArray[Any]

INTEGER_BOUND: Final = 100  # sums and products of a few hundred such values still fit 32 bits
NORMAL_INTEGER_DEVIATION: Final = 20  # of normal integers, so that rounding leaves more than three values


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """A buffer of one configuration: its definition with the shape computed."""

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    role: BufferRole

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def array_type(self) -> np.dtype[Any]:
        return array_type(self.dtype)

    @property
    def size_bytes(self) -> int:
        return self.element_count * self.array_type.itemsize

    @property
    def is_read(self) -> bool:
        return self.role is not BufferRole.OUTPUT

    @property
    def is_written(self) -> bool:
        return self.role is not BufferRole.INPUT


def plan_buffer(definition: BufferDefinition, values: Mapping[str, int]) -> BufferPlan:
    """Compute the shape for these parameter values. Raises InvalidParameterError for a dimension below 1."""
    shape = tuple(parse_expression(extent).evaluate_integer(values) for extent in definition.shape)
    if min(shape, default=1) < 1:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        raise InvalidParameterError(
            f"shape ({', '.join(definition.shape)}) of buffer {definition.name}",
            found=f"{shape} with {shown}",
            expected="at least 1 in every dimension",
            remedy="Choose other parameters, or correct the shape.",
        )
    return BufferPlan(definition.name, shape, definition.dtype, definition.role)


def check_fits(plans: tuple[BufferPlan, ...], device: Device) -> None:
    """Refuse, before anything is allocated, what the device cannot hold. Raises MemoryLimitError."""
    for plan in plans:
        if device.max_buffer_bytes is not None and plan.size_bytes > device.max_buffer_bytes:
            raise MemoryLimitError(
                f"buffer {plan.name} of shape {plan.shape}",
                found=f"{plan.size_bytes} bytes",
                expected=f"at most {device.max_buffer_bytes} bytes in one buffer of {device.name}",
                remedy="Choose smaller parameters.",
            )
    total_bytes = sum(plan.size_bytes for plan in plans)
    if device.memory_bytes is not None and total_bytes > device.memory_bytes:
        raise MemoryLimitError(
            f"buffers {', '.join(plan.name for plan in plans)}",
            found=f"{total_bytes} bytes together",
            expected=f"at most the {device.memory_bytes} bytes of {device.name}",
            remedy="Choose smaller parameters.",
        )


def array_type(dtype: DataType) -> np.dtype[Any]:
    """Return NumPy's type for elements of a buffer. Raises InvalidParameterError for types that only tensor cores know."""
    if dtype is DataType.BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if dtype in (DataType.TFLOAT32, DataType.FLOAT8):
        raise InvalidParameterError(
            f"a buffer of type {dtype.value}",
            found="a type of tensor cores alone",
            expected="float32 for tfloat32, uint8 for float8",
            remedy="Correct the buffer's dtype.",
        )
    found: np.dtype[Any] = np.dtype(dtype.value)
    return found


def input_values(plan: BufferPlan, seed: int, distribution: InputDistribution) -> Array:
    """Return values of the plan's shape: uniform, normal or zero.

    Uniform ones ([0, 1) for floats, 0..99 for integers) do not cancel out in sums, so an error relative to the largest
    result says something even where the result is a single sum. They depend on the seed, the buffer's name, its shape and
    its type alone, so that two kernels with equal buffers get equal inputs and one reference result serves both.
    """
    dtype = plan.array_type
    if distribution is InputDistribution.ZEROS:
        return np.zeros(plan.shape, dtype)
    generator = np.random.default_rng((seed, zlib.crc32(plan.name.encode()), *plan.shape))
    is_whole = dtype.kind in "iu"
    if distribution is InputDistribution.NORMAL:
        values = generator.standard_normal(plan.shape, np.float64 if dtype == np.float64 else np.float32)
        if not is_whole:
            return values.astype(dtype, copy=False)
        whole = np.rint(values * NORMAL_INTEGER_DEVIATION)
        return (np.abs(whole) if dtype.kind == "u" else whole).astype(dtype)
    if is_whole:
        return generator.integers(0, INTEGER_BOUND, plan.shape, dtype)
    if dtype.itemsize < np.dtype(np.float32).itemsize:
        return generator.random(plan.shape, np.float32).astype(dtype)
    return generator.random(plan.shape, dtype.type)


def poison_values(plan: BufferPlan) -> Array:
    """Return what an output holds before the launch, so that an element left unwritten cannot pass: NaN, or the largest integer."""
    dtype = plan.array_type
    return np.full(plan.shape, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan, dtype)
