"""The buffers of a kernel: planned, allocated, filled, and bound to its arguments."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import InvalidParameterError, MemoryLimitError
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import BufferDefinition, BufferRole, DataType, Device, InputDistribution
from kernalyse.services.profiler.backends.base import Argument, DeviceBuffer, DeviceSession
from kernalyse.services.profiler.kernel_sources.functions import SourceParameter

# ---------------------------------------------------------------- inputs
# Contents of buffers before a launch: inputs for reading, and poison values for outputs.

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
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def array_type(self) -> np.dtype[Any]:
        """Return NumPy's type of the elements."""
        return array_type(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Return the size of the contents."""
        return self.element_count * self.array_type.itemsize

    @property
    def is_read(self) -> bool:
        """Return whether the kernel reads the buffer."""
        return self.role is not BufferRole.OUTPUT

    @property
    def is_written(self) -> bool:
        """Return whether the kernel writes the buffer."""
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
    """Raise MemoryLimitError, before anything is allocated, for buffers that the device cannot hold."""
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
    """Return the contents of an output before the launch: NaN or the largest integer, so that unwritten elements show."""
    dtype = plan.array_type
    return np.full(plan.shape, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan, dtype)


# ---------------------------------------------------------------- device buffers
# Device memory is reused from one configuration to the next.

Key = tuple[str, int]  # name and size in bytes


class DeviceBuffers:
    """The buffers of one session, reused by the next configuration where a size recurs.

    Allocating and first touching a buffer costs more than many a launch; keeping every size that ever came would fill the
    device. So what the next configuration does not need is released before it allocates.
    """

    def __init__(self, session: DeviceSession) -> None:
        self._session = session
        self._allocated: dict[Key, DeviceBuffer] = {}

    def take(self, plans: tuple[BufferPlan, ...], companions: tuple[BufferPlan, ...] = ()) -> dict[str, DeviceBuffer]:
        """Return one buffer for each plan, by name; contents are undefined. What an earlier call returned is taken back.

        Args:
            companions: plans of another configuration, whose buffers stay its own. Those with the name and size of one in
                `plans` are shared: where a buffer happens to lie moves the speed of a memory-bound kernel by as much as
                7 % (a copy on PoCL), and two sides that are compared must not differ in that.

        Raises MemoryLimitError.
        """
        requested = [_key(plan) for plan in plans]
        retained = {key: buffer for key, buffer in self._allocated.items() if key in {*requested, *map(_key, companions)}}
        free: dict[int, list[DeviceBuffer]] = defaultdict(list)
        for key, buffer in self._allocated.items():
            if key not in retained:
                free[buffer.size_bytes].append(buffer)
        for key in requested:
            if key not in retained and free[key[1]]:
                retained[key] = free[key[1]].pop()
        self._allocated = retained
        for surplus in free.values():
            for buffer in surplus:
                self._session.release(buffer)
        for key in requested:
            if key not in retained:
                retained[key] = self._session.allocate(key[1])
        return {plan.name: retained[_key(plan)] for plan in plans}

    def release(self) -> None:
        """Release everything."""
        for buffer in self._allocated.values():
            self._session.release(buffer)
        self._allocated = {}


def _key(plan: BufferPlan) -> Key:
    return plan.name, plan.size_bytes


# ---------------------------------------------------------------- arguments
# A kernel's arguments in the order of its source: buffers by name, scalars converted to the source's types.


def bind_arguments(
    kernel_name: str, signature: Sequence[SourceParameter], buffers: Mapping[str, DeviceBuffer], scalars: Mapping[str, float]
) -> list[Argument]:
    """Return one argument for each parameter of the signature.

    Raises:
        InvalidParameterError: a parameter without a buffer or value, or a value that its type cannot hold.
    """
    return [_bind(kernel_name, parameter, buffers, scalars) for parameter in signature]


def _bind(kernel_name: str, parameter: SourceParameter, buffers: Mapping[str, DeviceBuffer], scalars: Mapping[str, float]) -> Argument:
    if parameter.is_pointer:
        if parameter.name in buffers:
            return buffers[parameter.name]
        raise _missing(kernel_name, parameter, "a buffer", buffers)
    if parameter.name in scalars:
        return convert_scalar(kernel_name, parameter, scalars[parameter.name])
    raise _missing(kernel_name, parameter, "a value", scalars)


def convert_scalar(kernel_name: str, parameter: SourceParameter, value: float) -> np.generic:
    """Return `value` in the parameter's own type. Raises InvalidParameterError where that type cannot hold it."""
    if parameter.dtype is None or parameter.component_count != 1:
        raise InvalidParameterError(
            f"argument {parameter.name} of kernel {kernel_name}",
            found=f"the type {parameter.type_name} in line {parameter.line}",
            expected="a pointer, or a number type",
            remedy="Pass such a value through a buffer.",
        )
    dtype = array_type(parameter.dtype)
    is_whole = dtype.kind in "iu"
    lowest, highest = _limits(dtype)
    if (is_whole and value != int(value)) or not lowest <= value <= highest:
        raise InvalidParameterError(
            f"argument {parameter.name} of kernel {kernel_name}",
            found=str(value),
            expected=f"a {'whole ' if is_whole else ''}number from {lowest} to {highest}, for its type is {parameter.type_name}",
            remedy="Choose another value, or a wider type in the source.",
        )
    scalar: np.generic = dtype.type(int(value) if is_whole else value)
    return scalar


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    import ml_dtypes  # its finfo knows NumPy's own types too

    limits: Any = ml_dtypes.finfo
    return float(limits(dtype).min), float(limits(dtype).max)


def _missing(kernel_name: str, parameter: SourceParameter, what: str, known: Mapping[str, object]) -> InvalidParameterError:
    declared = f"{parameter.type_name}{' *' if parameter.is_pointer else ' '}{parameter.name}"
    return InvalidParameterError(
        f"argument {parameter.name} of kernel {kernel_name}",
        found=f"only definitions of {', '.join(known)}" if known else "no definition of it",
        expected=f"{what} for '{declared}' in line {parameter.line}",
        remedy=f"Define it: {'--buffer' if parameter.is_pointer else '--arg'} {parameter.name}=….",
    )
