"""Puts a kernel's arguments in the order of its source: buffers by name, scalars with the source's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from services.core.errors import InvalidParameterError
from services.profiler.backends.base import Argument, DeviceBuffer
from services.profiler.backends.kernel_source import SourceParameter


def bind_arguments(
    kernel_name: str, signature: Sequence[SourceParameter], buffers: Mapping[str, DeviceBuffer], scalars: Mapping[str, float]
) -> list[Argument]:
    """One argument for each parameter of the signature.

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
    """`value` as the parameter's own type. Raises InvalidParameterError where that type cannot hold it."""
    if parameter.dtype is None or parameter.component_count != 1:
        raise InvalidParameterError(
            f"argument {parameter.name} of kernel {kernel_name}",
            found=f"the type {parameter.type_name} in line {parameter.line}",
            expected="a pointer, or a number type",
            remedy="Pass such a value through a buffer.",
        )
    dtype = np.dtype(parameter.dtype.value)
    if dtype.kind == "f":
        lowest, highest, is_held = float(np.finfo(dtype).min), float(np.finfo(dtype).max), True
    else:
        lowest, highest, is_held = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), value == int(value)
    if not is_held or not lowest <= value <= highest:
        raise InvalidParameterError(
            f"argument {parameter.name} of kernel {kernel_name}",
            found=str(value),
            expected=f"a {'' if dtype.kind == 'f' else 'whole '}number from {lowest} to {highest}, for its type is {parameter.type_name}",
            remedy="Choose another value, or a wider type in the source.",
        )
    scalar: np.generic = dtype.type(value if dtype.kind == "f" else int(value))
    return scalar


def _missing(kernel_name: str, parameter: SourceParameter, what: str, known: Mapping[str, object]) -> InvalidParameterError:
    declared = f"{parameter.type_name}{' *' if parameter.is_pointer else ' '}{parameter.name}"
    return InvalidParameterError(
        f"argument {parameter.name} of kernel {kernel_name}",
        found=f"no definition of it beside {', '.join(known)}" if known else "no definition of it",
        expected=f"{what} for '{declared}' in line {parameter.line}",
        remedy=f"Define it: {'--buffer' if parameter.is_pointer else '--arg'} {parameter.name}=….",
    )
