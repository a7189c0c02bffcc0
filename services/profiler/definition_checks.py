"""Checks of a kernel definition: its expressions, its names, and its agreement with the .cu signature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from services.core.errors import InvalidCatalogError, InvalidExpressionError, UnknownKernelError
from services.core.expressions import parse_expression
from services.core.kernel_categories import CATALOG_CATEGORIES
from services.core.model import BufferRole, DataType, KernelDefinition, KernelSource
from services.profiler.backends.kernel_source import SourceParameter, parse_kernel_source
from services.profiler.measuring.reference_names import REFERENCE_NAMES

BLOCK_NAMES: Final = ("block_x", "block_y", "block_z")
PATHS: Final = ("", "fma", "tensor")
WHOLE_TYPES: Final = (DataType.INT8, DataType.INT32, DataType.INT64, DataType.UINT8, DataType.UINT32, DataType.UINT64)


def catalog_error(file_name: str, kernel_name: str, field: str, found: str, expected: str) -> InvalidCatalogError:
    """Return the error of a catalogue entry: file, kernel, field, found, expected."""
    return InvalidCatalogError(
        f"{file_name}, kernel {kernel_name}, field {field}",
        found=found,
        expected=expected,
        remedy="Correct that field.",
    )


def check_definition(
    definition: KernelDefinition, source: KernelSource | None = None, file_name: str = "request", *, macro_names: tuple[str, ...] = ()
) -> None:
    """Check one definition, against its source where there is one. macro_names: that its expressions may use beside the source's own.

    Raises:
        InvalidCatalogError: names file, kernel, field, found and expected.
        InvalidSourceError: the source cannot be read.
    """
    name = definition.kernel_name
    _check_names(definition, file_name)
    constants = {} if source is None else parse_kernel_source(source).constants
    parameters = [*(parameter.name for parameter in definition.parameters), *dict.fromkeys((*constants, *macro_names))]
    for field, texts in expressions_of(definition):
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


def expressions_of(definition: KernelDefinition) -> Iterator[tuple[str, Iterable[str]]]:
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
            is_whole = parameter.dtype in WHOLE_TYPES
            raise catalog_error(
                file_name,
                name,
                "parameters" if is_whole else "arguments",
                f"nothing for {parameter.type_name} {parameter.name} of {source.file_name}, line {parameter.line}",
                f"values of {parameter.name}" if is_whole else f"an expression for {parameter.name}",
            )
        elif parameter.dtype is None or parameter.component_count != 1:
            raise catalog_error(file_name, name, "source", f"{parameter.name} of type {parameter.type_name}", "a pointer or a number")
        elif parameter.name in parameters and parameter.dtype not in WHOLE_TYPES:
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
