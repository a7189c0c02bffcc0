"""A definition for a kernel that no catalogue knows: from its signature, what the user says of it, and plain assumptions.

Every assumption is said aloud in a notice, for a wrong one shows as a wrong result or a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from services.core.errors import InvalidParameterError, UnknownParameterError, UnsupportedConstructError
from services.core.kernel_categories import category_of_name
from services.core.model import (
    ArgumentDefinition,
    BufferDefinition,
    BufferRole,
    DataType,
    KernelDefinition,
    KernelSource,
    LaunchDefinition,
    ParameterDefinition,
)
from services.profiler.backends.kernel_source import SourceFunction, SourceParameter, parse_kernel_source
from services.profiler.backends.template_instances import without_arguments
from services.profiler.definition_checks import WHOLE_TYPES, check_definition

NONE: Final[Mapping[str, str]] = {}
NO_VALUES: Final[Mapping[str, tuple[int, ...]]] = {}


def derive_definition(
    source: KernelSource,
    function_name: str,
    *,
    values: Mapping[str, tuple[int, ...]] = NO_VALUES,
    buffers: Mapping[str, str] = NONE,
    arguments: Mapping[str, str] = NONE,
    flop: str | None = None,
    bytes: str | None = None,
    macro_names: tuple[str, ...] = (),
) -> tuple[KernelDefinition, tuple[str, ...]]:
    """Return the definition, and one sentence for each assumption in it.

    Integer scalars become parameters, other scalars arguments (1.0 unless given). A pointer without a size gets as many
    elements as the product of the two largest integer parameters. Which two these are depends on the configuration; the
    largest of all pairwise products is that product in every one of them, so the size is written as that maximum.
    Const pointers are read, others read and written. The grid covers the first integer parameter, or with two and more
    M (else the first) along y and N (else the next) along x, as row-major matrices have it.

    Args:
        values: default values of the integer parameters; those left out must come from the request's axes.
        buffers: sizes in elements, as expressions by pointer name.
        arguments: scalar values, as expressions by name.
        macro_names: compile-time constants that expressions may use.

    Raises:
        UnknownKernelError, InvalidSourceError: the kernel is not there.
        UnknownParameterError: a buffer, argument or value names what the kernel does not have.
        InvalidParameterError: a pointer whose size nothing says.
        UnsupportedConstructError: a parameter of a type that cannot be filled or passed.
        InvalidCatalogError: an expression is wrong.
    """
    kernel = parse_kernel_source(source).kernel(function_name)
    _check_types(kernel, source)
    whole = [one.name for one in kernel.parameters if _is_whole(one) and one.name not in arguments]
    _check_known(kernel, "buffer", buffers, [one.name for one in kernel.parameters if one.is_pointer])
    _check_known(kernel, "argument", arguments, [one.name for one in kernel.parameters if not one.is_pointer])
    _check_known(kernel, "parameter", values, whole)
    notices: list[str] = []
    definition = KernelDefinition(
        kernel_name=function_name,
        source_file_name=source.file_name,
        launch=_launch(whole, notices),
        parameters=tuple(ParameterDefinition(name, tuple(values.get(name, ()))) for name in whole),
        buffers=tuple(_buffers(kernel, whole, buffers, notices)),
        arguments=tuple(_arguments(kernel, whole, arguments, notices)),
        description=f"{function_name} of {source.file_name}",
        category=category_of_name(function_name),
        dtype=_arithmetic_type(kernel),
        flop=flop,
        bytes=bytes,
    )
    if flop is None or bytes is None:
        missing = " and ".join(name for name, formula in (("--flop", flop), ("--bytes", bytes)) if formula is None)
        notices.append(f"Without {missing} the kernel is timed but not placed on the roofline.")
    check_definition(definition, source, source.file_name, macro_names=macro_names)
    return definition, tuple(notices)


def _is_whole(parameter: SourceParameter) -> bool:
    return not parameter.is_pointer and parameter.dtype in WHOLE_TYPES


def _check_types(kernel: SourceFunction, source: KernelSource) -> None:
    if kernel.is_template:
        raise without_arguments(kernel, source.file_name)
    for parameter in kernel.parameters:
        if parameter.dtype is None or (not parameter.is_pointer and parameter.component_count != 1):
            raise UnsupportedConstructError(
                f"{source.file_name}, line {parameter.line}",
                found=f"the parameter {parameter.name} of type {parameter.type_name}",
                expected="a pointer to numbers, or a number",
                remedy="Write a kernel with plain types that calls this one's code.",
            )


def _check_known(kernel: SourceFunction, kind: str, given: Mapping[str, object], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise UnknownParameterError(
                f"{kind} {name}",
                found=f"no such name in kernel {kernel.name}",
                expected=f"one of {', '.join(known)}" if known else f"none, for it has no {kind}",
                remedy="Check the spelling.",
            )


def _launch(whole: list[str], notices: list[str]) -> LaunchDefinition:
    if len(whole) >= 2:
        y = "M" if "M" in whole else next(name for name in whole if name != "N")
        x = "N" if "N" in whole else next(name for name in whole if name != y)
        launch = LaunchDefinition(block=("16", "16"), grid=(f"ceil_div({x}, block_x)", f"ceil_div({y}, block_y)"))
    elif whole:
        launch = LaunchDefinition(block=("256",), grid=(f"ceil_div({whole[0]}, block_x)",))
    else:
        launch = LaunchDefinition(block=("256",), grid=("1",))
    notices.append(f"The grid is taken to be ({', '.join(launch.grid)}) with blocks of {'x'.join(launch.block)}.")
    return launch


def _buffers(kernel: SourceFunction, whole: list[str], given: Mapping[str, str], notices: list[str]) -> Iterator[BufferDefinition]:
    assumed = []
    size = _largest_product(whole)
    for parameter in kernel.parameters:
        if not parameter.is_pointer:
            continue
        assert parameter.dtype is not None
        count = given.get(parameter.name) or size
        if count is None:
            raise InvalidParameterError(
                f"buffer {parameter.name} of kernel {kernel.name}",
                found="no integer parameter to take its size from",
                expected="a size",
                remedy=f"Give it one: --buffer {parameter.name}=1024.",
            )
        if parameter.name not in given:
            assumed.append(parameter.name)
        components = () if parameter.component_count == 1 else (str(parameter.component_count),)
        role = BufferRole.INPUT if parameter.is_const else BufferRole.INPUT_OUTPUT
        yield BufferDefinition(parameter.name, (count, *components), parameter.dtype, role)
    if assumed:
        what = f"the product of the two largest of {', '.join(whole)}" if len(whole) > 1 else whole[0]
        notices.append(f"{', '.join(assumed)}: taken to have {what} elements. Say otherwise with --buffer NAME=EXPRESSION.")


def _largest_product(whole: list[str]) -> str | None:
    if len(whole) <= 1:
        return whole[0] if whole else None
    products = [f"{one}*{other}" for one, other in combinations(whole, 2)]
    return products[0] if len(products) == 1 else f"max({', '.join(products)})"


def _arguments(kernel: SourceFunction, whole: list[str], given: Mapping[str, str], notices: list[str]) -> Iterator[ArgumentDefinition]:
    for parameter in kernel.parameters:
        if parameter.is_pointer or parameter.name in whole:
            continue
        if parameter.name not in given:
            notices.append(f"{parameter.name}: taken to be 1.0. Say otherwise with --arg {parameter.name}=VALUE.")
        yield ArgumentDefinition(parameter.name, given.get(parameter.name, "1.0"))


def _arithmetic_type(kernel: SourceFunction) -> DataType:
    """Return the widest floating type of a pointer, for want of a better guess; float32 where there is none."""
    types = {parameter.dtype for parameter in kernel.parameters if parameter.is_pointer}
    return next((dtype for dtype in (DataType.FLOAT64, DataType.FLOAT32, DataType.FLOAT16) if dtype in types), DataType.FLOAT32)
