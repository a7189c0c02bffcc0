"""Checks that kernel arguments fit the signature that the source declares; the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.core.errors import InvalidParameterError
from services.profiler.backends.base import Argument
from services.profiler.backends.kernel_source import SourceFunction, SourceParameter


def check_arguments(kernel: SourceFunction, arguments: Sequence[Argument]) -> None:
    """Raise InvalidParameterError naming the first argument that does not fit."""
    if len(arguments) != len(kernel.parameters):
        raise InvalidParameterError(
            f"arguments of kernel {kernel.name}",
            found=str(len(arguments)),
            expected=f"{len(kernel.parameters)} ({', '.join(parameter.name for parameter in kernel.parameters)})",
            remedy="Give one per parameter of the source, in its order.",
        )
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        found, expected = _kind(argument), _expected_kind(parameter)
        if found != expected:
            raise InvalidParameterError(
                f"argument {parameter.name} of kernel {kernel.name}", found=found, expected=expected, remedy="Change its type."
            )


def _kind(argument: Argument) -> str:
    return f"a scalar of type {argument.dtype.name}" if isinstance(argument, np.generic) else "device memory"


def _expected_kind(parameter: SourceParameter) -> str:
    if parameter.is_pointer:
        return "device memory"
    if parameter.dtype is None or parameter.component_count != 1:
        return f"a value of type {parameter.type_name}, which cannot be passed"
    return f"a scalar of type {parameter.dtype.value}"
