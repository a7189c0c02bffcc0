"""What kernels are given to read, and what lies where they are to write."""

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
from services.core.model import BufferDefinition, BufferRole, DataType, Device

Array = npt.NDArray[Any]

INPUT_DISTRIBUTION: Final = "uniform"  # [0, 1) for floats, 0..99 for integers: sums of such values do not cancel out,
# so an error relative to the largest result says something even where the result is a single sum
INTEGER_BOUND: Final = 100  # sums and products of a few hundred such values still fit 32 bits


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """One buffer of one configuration: its definition with the shape worked out."""

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    role: BufferRole

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.element_count * np.dtype(self.dtype.value).itemsize

    @property
    def is_read(self) -> bool:
        return self.role is not BufferRole.OUTPUT

    @property
    def is_written(self) -> bool:
        return self.role is not BufferRole.INPUT


def plan_buffer(definition: BufferDefinition, values: Mapping[str, int]) -> BufferPlan:
    """Works out the shape for these parameter values. Raises InvalidParameterError for a dimension below 1."""
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
    """Refuses, before anything is allocated, what the device cannot hold. Raises MemoryLimitError."""
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


def random_values(plan: BufferPlan, seed: int) -> Array:
    """Uniform random values of the plan's shape.

    They depend on the seed, the buffer's name, its shape and its type alone, so that two kernels with equal buffers get
    equal inputs and one reference result serves both.
    """
    generator = np.random.default_rng((seed, zlib.crc32(plan.name.encode()), *plan.shape))
    dtype = np.dtype(plan.dtype.value)
    if dtype.kind != "f":
        return generator.integers(0, INTEGER_BOUND, plan.shape, dtype)
    if dtype.itemsize < np.dtype(np.float32).itemsize:
        return generator.random(plan.shape, np.float32).astype(dtype)
    return generator.random(plan.shape, dtype.type)


def poison_values(plan: BufferPlan) -> Array:
    """What an output holds before the launch, so that an element left unwritten cannot pass: NaN, or the largest integer."""
    dtype = np.dtype(plan.dtype.value)
    return np.full(plan.shape, np.nan if dtype.kind == "f" else np.iinfo(dtype).max, dtype)
