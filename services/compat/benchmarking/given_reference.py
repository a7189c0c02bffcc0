"""What a kernel should compute, as the caller says it: a Python function, or a kernel of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.core.errors import InvalidParameterError
from services.core.model import ArgumentDefinition, BufferDefinition, KernelDefinition
from services.profiler.backends.kernel_source import SourceParameter, parse_kernel_source
from services.profiler.catalog import load_catalog
from services.profiler.measuring.references import Inputs, Outputs, Reference, Scalars, compute_reference


def reference_from_function(function: Callable[..., Any], signature: Sequence[SourceParameter]) -> Reference:
    """`function` takes what the kernel takes, in the same order, and writes into its arrays what the kernel should write.

    Arrays are copies, flat unless the definition's shapes say otherwise; those behind const pointers cannot be written.
    """

    def expected(inputs: Inputs, scalars: Scalars) -> Outputs:
        arrays = {parameter.name: inputs[parameter.name].copy() for parameter in signature if parameter.is_pointer}
        written = {parameter.name for parameter in signature if parameter.is_pointer and not parameter.is_const}
        for name, array in arrays.items():
            array.flags.writeable = name in written
        function(*(arrays[parameter.name] if parameter.is_pointer else scalars[parameter.name] for parameter in signature))
        return {name: array for name, array in arrays.items() if name in written}

    return expected


def like_catalog_kernel(
    definition: KernelDefinition, signature: Sequence[SourceParameter], catalog_name: str, arguments: Mapping[str, object]
) -> tuple[KernelDefinition, Reference]:
    """The definition with buffers, counts and tolerance of a catalogue kernel, and that kernel's reference.

    Both take the same parameters in the same order; the names may differ. `arguments` are given by the caller and stay.

    Raises:
        UnknownKernelError: not in the catalogue; names the closest that are.
        InvalidParameterError: its signature is another, or it has no reference.
    """
    catalog = load_catalog()
    model = catalog.definition(catalog_name)
    model_signature = parse_kernel_source(catalog.source(catalog_name)).kernel(model.function).parameters
    if model.reference is None or _types(model_signature) != _types(signature):
        raise InvalidParameterError(
            f"reference {catalog_name} of kernel {definition.kernel_name}",
            found=f"a kernel that takes ({_shown(signature)})",
            expected=f"({_shown(model_signature)}), as {catalog_name} of the catalogue takes them",
            remedy="Name another kernel of the catalogue, or give a Python function.",
        )
    own_names = {theirs.name: own.name for theirs, own in zip(model_signature, signature, strict=True)}
    described = replace(
        definition,
        category=model.category,
        buffers=tuple(_renamed_buffer(buffer, own_names) for buffer in model.buffers),
        arguments=tuple(_renamed_argument(argument, own_names, definition, arguments) for argument in model.arguments),
        flop=None if model.flop is None else _renamed(model.flop, own_names),
        bytes=None if model.bytes is None else _renamed(model.bytes, own_names),
        relative_tolerance=model.relative_tolerance,
    )
    return described, _under_own_names(model.reference, own_names)


def _under_own_names(reference_name: str, own_names: Mapping[str, str]) -> Reference:
    def expected(inputs: Inputs, scalars: Scalars) -> Outputs:
        their_inputs = {theirs: inputs[own] for theirs, own in own_names.items() if own in inputs}
        their_scalars = {theirs: scalars[own] for theirs, own in own_names.items() if own in scalars}
        outputs = compute_reference(reference_name, their_inputs, their_scalars)
        return {own_names[theirs]: array for theirs, array in outputs.items()}

    return expected


def _renamed_buffer(buffer: BufferDefinition, own_names: Mapping[str, str]) -> BufferDefinition:
    return replace(buffer, name=own_names[buffer.name], shape=tuple(_renamed(extent, own_names) for extent in buffer.shape))


def _renamed_argument(
    argument: ArgumentDefinition, own_names: Mapping[str, str], definition: KernelDefinition, given: Mapping[str, object]
) -> ArgumentDefinition:
    own_name = own_names[argument.name]
    if own_name in given:
        return next(own for own in definition.arguments if own.name == own_name)
    return ArgumentDefinition(own_name, _renamed(argument.expression, own_names))


def _renamed(expression: str, own_names: Mapping[str, str]) -> str:
    # All names at once: N may become M while M becomes N.
    return re.sub(r"[A-Za-z_]\w*", lambda found: own_names.get(found[0], found[0]), expression)


def _types(signature: Sequence[SourceParameter]) -> list[tuple[object, ...]]:
    return [(parameter.is_pointer, parameter.dtype, parameter.component_count) for parameter in signature]


def _shown(signature: Sequence[SourceParameter]) -> str:
    return ", ".join(f"{parameter.type_name}{' *' if parameter.is_pointer else ' '}{parameter.name}" for parameter in signature)
