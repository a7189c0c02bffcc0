"""Puts a kernel's arguments in the order of its source: buffers by name, scalars with the source's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.core.errors import InvalidParameterError
from services.profiler.backends.base import Argument, DeviceBuffer
from services.profiler.backends.kernel_source import SourceParameter
from services.profiler.measuring.inputs import array_type


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
        found=f"no definition of it beside {', '.join(known)}" if known else "no definition of it",
        expected=f"{what} for '{declared}' in line {parameter.line}",
        remedy=f"Define it: {'--buffer' if parameter.is_pointer else '--arg'} {parameter.name}=….",
    )
