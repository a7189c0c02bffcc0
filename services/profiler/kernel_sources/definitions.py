"""Kernel definitions: their checks, and their derivation from a source alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import combinations
from typing import Final

from kernalyse.services.core.errors import (
    InvalidCatalogError,
    InvalidExpressionError,
    InvalidParameterError,
    UnknownKernelError,
    UnknownParameterError,
    UnsupportedConstructError,
)
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.kernel_categories import CATALOG_CATEGORIES, infer_category
from kernalyse.services.core.model import (
    ArgumentDefinition,
    BufferDefinition,
    BufferRole,
    DataType,
    KernelDefinition,
    KernelSource,
    LaunchDefinition,
    ParameterDefinition,
)
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction, SourceParameter, parse_kernel_source, without_arguments

# ---------------------------------------------------------------- definition checks
# A definition's expressions and names are checked, and its agreement with the .cu signature.

BLOCK_NAMES: Final = ("block_x", "block_y", "block_z")
PATHS: Final = ("", "fma", "tensor")
INTEGER_TYPES: Final = (DataType.INT8, DataType.INT32, DataType.INT64, DataType.UINT8, DataType.UINT32, DataType.UINT64)


def catalog_error(file_name: str, kernel_name: str, field: str, found: str, expected: str) -> InvalidCatalogError:
    """Return the error of a catalog entry: file, kernel, field, found, expected."""
    return InvalidCatalogError(
        f"{file_name}, kernel {kernel_name}, field {field}",
        found=found,
        expected=expected,
        remedy="Correct that field.",
    )


def check_definition(
    definition: KernelDefinition, source: KernelSource | None = None, file_name: str = "request", *, macro_names: tuple[str, ...] = ()
) -> None:
    """Check one definition, against its source where there is one. macro_names: further macros that its expressions may use.

    Raises:
        InvalidCatalogError: names file, kernel, field, found and expected.
        InvalidSourceError: the source cannot be read.
    """
    name = definition.kernel_name
    _check_names(definition, file_name)
    constants = {} if source is None else parse_kernel_source(source).constants
    parameters = [*(parameter.name for parameter in definition.parameters), *dict.fromkeys((*constants, *macro_names))]
    for field, texts in iterate_expressions(definition):
        for text in texts:
            _check_expression(file_name, name, field, text, parameters if field == "block" else [*parameters, *BLOCK_NAMES])
    for field, extents in (("block", definition.launch.block), ("grid", definition.launch.grid)):
        if not 1 <= len(extents) <= 3:
            raise catalog_error(file_name, name, field, f"{len(extents)} expressions", "1 to 3")
    for buffer in definition.buffers:
        if not buffer.shape:
            raise catalog_error(file_name, name, f"buffers.{buffer.name}.shape", "no dimension", "at least one expression")
    if definition.category not in CATALOG_CATEGORIES:
        raise catalog_error(file_name, name, "category", definition.category, "one of " + ", ".join(CATALOG_CATEGORIES))
    if definition.reference is not None and definition.reference not in REFERENCE_NAMES:
        raise catalog_error(file_name, name, "reference", definition.reference, _one_of(definition.reference, REFERENCE_NAMES))
    if definition.path not in PATHS:
        raise catalog_error(file_name, name, "path", definition.path, "fma or tensor")
    if not definition.relative_tolerance >= 0:
        raise catalog_error(file_name, name, "relative_tolerance", str(definition.relative_tolerance), "a number of at least 0")
    for parameter in definition.parameters:
        for value in parameter.default_values:
            if value < parameter.min_value:
                raise catalog_error(
                    file_name, name, f"parameters.{parameter.name}", str(value), f"whole numbers of at least {parameter.min_value}"
                )
    if source is not None:
        _check_signature(definition, source, file_name)


def iterate_expressions(definition: KernelDefinition) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield every field that is an expression, or several, with its texts."""
    launch = definition.launch
    yield "block", launch.block
    yield "grid", launch.grid
    yield "shared_memory_bytes", (launch.shared_memory_bytes,)
    yield "requires", (launch.requires,) if launch.requires else ()
    yield from ((f"buffers.{buffer.name}.shape", buffer.shape) for buffer in definition.buffers)
    yield from ((f"arguments.{argument.name}", (argument.expression,)) for argument in definition.arguments)
    yield "flop", () if definition.flop is None else (definition.flop,)
    yield "bytes", () if definition.bytes is None else (definition.bytes,)


def _check_expression(file_name: str, kernel_name: str, field: str, text: str, known: list[str]) -> None:
    try:
        expression = parse_expression(text)
    except InvalidExpressionError as error:
        raise catalog_error(file_name, kernel_name, field, f"'{text}', {error.found}", error.expected) from error
    unknown = sorted(expression.names - set(known))
    if unknown:
        raise catalog_error(file_name, kernel_name, field, f"the name {unknown[0]} in '{text}'", _one_of(unknown[0], known))


def _check_names(definition: KernelDefinition, file_name: str) -> None:
    seen: dict[str, str] = dict.fromkeys(BLOCK_NAMES, "a name of the launch")
    for kind, names in (
        ("parameters", [parameter.name for parameter in definition.parameters]),
        ("arguments", [argument.name for argument in definition.arguments]),
        ("buffers", [buffer.name for buffer in definition.buffers]),
    ):
        for name in names:
            if name in seen or not name.isidentifier():
                found = f"also {seen[name]}" if name in seen else f"'{name}'"
                raise catalog_error(file_name, definition.kernel_name, f"{kind}.{name}", found, "a name of its own, as in C")
            seen[name] = f"one of the {kind}"


def _check_signature(definition: KernelDefinition, source: KernelSource, file_name: str) -> None:
    name = definition.kernel_name
    try:
        signature = parse_kernel_source(source).kernel(definition.function).parameters
    except UnknownKernelError as error:
        field = "function" if definition.function_name else "source"
        raise catalog_error(
            file_name, name, field, f"{source.file_name} with {error.found}", f"a __global__ function {definition.function}"
        ) from error
    buffers = {buffer.name: buffer for buffer in definition.buffers}
    scalars = {argument.name for argument in definition.arguments}
    parameters = {parameter.name for parameter in definition.parameters}
    for parameter in signature:
        if parameter.is_pointer:
            _check_buffer(definition, parameter, source, file_name)
        elif parameter.name not in scalars | parameters:
            is_whole = parameter.dtype in INTEGER_TYPES
            raise catalog_error(
                file_name,
                name,
                "parameters" if is_whole else "arguments",
                f"nothing for {parameter.type_name} {parameter.name} of {source.file_name}, line {parameter.line}",
                f"values of {parameter.name}" if is_whole else f"an expression for {parameter.name}",
            )
        elif parameter.dtype is None or parameter.component_count != 1:
            raise catalog_error(file_name, name, "source", f"{parameter.name} of type {parameter.type_name}", "a pointer or a number")
        elif parameter.name in parameters and parameter.dtype not in INTEGER_TYPES:
            raise catalog_error(file_name, name, f"parameters.{parameter.name}", parameter.type_name, "an integer type, or an argument")
    pointers = {parameter.name for parameter in signature if parameter.is_pointer}
    values = {parameter.name for parameter in signature if not parameter.is_pointer}
    for kind, names, known in (("buffers", buffers, pointers), ("arguments", scalars, values)):
        for extra in sorted(set(names) - known):
            raise catalog_error(
                file_name, name, f"{kind}.{extra}", f"no such parameter in {source.file_name}", _one_of(extra, sorted(known))
            )


def _check_buffer(definition: KernelDefinition, parameter: SourceParameter, source: KernelSource, file_name: str) -> None:
    name, place = definition.kernel_name, f"{source.file_name}, line {parameter.line}"
    buffer = next((buffer for buffer in definition.buffers if buffer.name == parameter.name), None)
    if buffer is None:
        raise catalog_error(
            file_name, name, "buffers", f"nothing for {parameter.type_name}* {parameter.name} of {place}", f"a buffer {parameter.name}"
        )
    if parameter.dtype is not None and buffer.dtype is not parameter.dtype:
        raise catalog_error(file_name, name, f"buffers.{buffer.name}.dtype", buffer.dtype.value, f"{parameter.dtype.value}, as in {place}")
    if parameter.is_const and buffer.role is not BufferRole.INPUT:
        raise catalog_error(file_name, name, f"buffers.{buffer.name}.role", buffer.role.value, f"INPUT, for it is const in {place}")


def _one_of(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = get_close_matches(name, names, n=1)
    listed = f"one of {', '.join(names)}" if names else "none"
    return f"{listed} (perhaps {close[0]})" if close else listed


# ---------------------------------------------------------------- derived definitions
# For a kernel outside the catalog, the definition is derived from its signature, the user's options and simple assumptions. Each
# assumption is reported in a notice, because a wrong one shows only as a wrong result or a crash.

NO_OVERRIDES: Final[Mapping[str, str]] = {}
NO_VALUES: Final[Mapping[str, tuple[int, ...]]] = {}


def derive_definition(
    source: KernelSource,
    function_name: str,
    *,
    values: Mapping[str, tuple[int, ...]] = NO_VALUES,
    buffers: Mapping[str, str] = NO_OVERRIDES,
    arguments: Mapping[str, str] = NO_OVERRIDES,
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
        category=infer_category(function_name),
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
    return not parameter.is_pointer and parameter.dtype in INTEGER_TYPES


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


# ---------------------------------------------------------------- reference names
# The names stand apart from the NumPy references, so that checking a name needs no NumPy.

REFERENCE_NAMES: Final = (
    "add_bias",
    "add_residual",
    "attention_scores",
    "attention_values",
    "causal_attention",
    "causal_softmax",
    "embedding",
    "gelu",
    "layernorm",
    "matmul",
    "matmul_bias",
    "matmul_bias_gelu",
    "reduce_sum",
    "residual_layernorm",
    "saxpy",
    "softmax",
    "stream_add",
    "stream_copy",
    "stream_scale",
    "stream_triad",
    "transpose",
    "vector_add",
)
