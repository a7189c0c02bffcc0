"""The kernels of a sweep: their definitions and sources, and what the request says of their parameters and arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from services.core.errors import InvalidParameterError, UnknownParameterError
from services.core.expressions import parse_expression
from services.core.model import ArgumentDefinition, Axis, KernelDefinition, KernelSelection, KernelSource, KernelSweep, Tie
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.backends.source_constants import fixed_line, has_includes, is_mentioned
from services.profiler.catalog import Catalog, check_definition, derive_definition
from services.profiler.definition_checks import BLOCK_NAMES, expressions_of


@dataclass(frozen=True, slots=True)
class ResolvedKernel:
    """Definition and source of a selection. notices: what was assumed to derive the definition."""

    definition: KernelDefinition
    source: KernelSource
    bundle_digest: str | None = None
    notices: tuple[str, ...] = ()


def resolve_kernels(sweep: KernelSweep, catalog: Catalog) -> list[ResolvedKernel]:
    """Return definition and source of every selection.

    Raises:
        InvalidParameterError: no kernel, or one twice.
        UnknownKernelError, InvalidCatalogError, InvalidSourceError: a kernel that is not there or cannot be used.
    """
    if not sweep.kernels:
        raise InvalidParameterError("the sweep", found="no kernel", expected="at least one", remedy="Name a kernel.")
    for position, selection in enumerate(sweep.kernels):
        if selection in sweep.kernels[:position]:
            raise InvalidParameterError(
                f"kernel {selection.kernel_name}", found="the same kernel twice", expected="each kernel once", remedy="Name it once."
            )
    resolved = [_resolve(selection, sweep, catalog) for selection in sweep.kernels]
    for kernel in resolved:
        _check_macro_names(kernel, sweep)
    _check_macro_use(resolved, sweep)
    return resolved


def _resolve(selection: KernelSelection, sweep: KernelSweep, catalog: Catalog) -> ResolvedKernel:
    """Return definition and source, each its own or the catalogue's; a source alone has its definition derived."""
    source = selection.source if selection.source is not None else catalog.source(selection.kernel_name)
    macro_names = tuple(axis.name for axis in sweep.macro_axes)
    if selection.definition is not None:
        check_definition(selection.definition, source, macro_names=macro_names)
        return ResolvedKernel(selection.definition, source, selection.bundle_digest)
    if selection.source is None:
        return ResolvedKernel(catalog.definition(selection.kernel_name), source, selection.bundle_digest)
    scalars = {one.name for one in parse_kernel_source(source).kernel(selection.kernel_name).parameters if not one.is_pointer}
    given = {argument.name: argument.expression for argument in sweep.arguments if argument.name in scalars}
    definition, notices = derive_definition(source, selection.kernel_name, arguments=given, macro_names=macro_names)
    return ResolvedKernel(definition, source, selection.bundle_digest, notices)


def _check_macro_names(kernel: ResolvedKernel, sweep: KernelSweep) -> None:
    """Reject macros named like a template parameter, which they would replace in the template's head, or defined by the source."""
    parsed = parse_kernel_source(kernel.source)
    function = parsed.kernel(kernel.definition.function)
    collisions = {axis.name for axis in sweep.macro_axes} & {name for name, _ in function.template_arguments}
    if collisions:
        raise InvalidParameterError(
            f"macro {min(collisions)}",
            found=f"the name of a template parameter of {kernel.definition.function}",
            expected="a name of its own",
            remedy=f"Rename the macro, and give it as an argument: {function.name}<…, MACRO>.",
        )
    for axis in sweep.macro_axes:
        line = fixed_line(parsed.tree.root_node, axis.name)
        if line is not None:
            raise InvalidParameterError(
                f"macro {axis.name}",
                found=f"#define {axis.name} in line {line} of {kernel.source.file_name}, whatever -D says",
                expected=f"#ifndef {axis.name} before it and #endif after it",
                remedy="Write these two lines, and the value there counts where none is given.",
            )


def _check_macro_use(kernels: Sequence[ResolvedKernel], sweep: KernelSweep) -> None:
    """Raise InvalidParameterError for an axis of constants that nothing uses: the same would be measured again and again."""
    for axis in sweep.macro_axes:
        if len(axis.values) > 1 and not any(_may_use(kernel, axis.name, sweep) for kernel in kernels):
            raise InvalidParameterError(
                f"macro {axis.name}",
                found="a name that nothing in the sweep uses",
                expected="a constant of " + " or ".join(dict.fromkeys(kernel.source.file_name for kernel in kernels)),
                remedy="Check the spelling: each of its values would compile to the same code.",
            )


def _may_use(kernel: ResolvedKernel, macro_name: str, sweep: KernelSweep) -> bool:
    """Return whether the source, a header of it, the instance of a template, or an expression has the name."""
    root = parse_kernel_source(kernel.source).tree.root_node
    expressions = (text for _, texts in expressions_of(kernel.definition) for text in texts)
    texts = (kernel.definition.function, *expressions, *(argument.expression for argument in sweep.arguments))
    return is_mentioned(root, macro_name) or has_includes(root) or any(macro_name in re.findall(r"\w+", text) for text in texts)


def merge_arguments(definition: KernelDefinition, source: KernelSource, sweep: KernelSweep) -> tuple[ArgumentDefinition, ...]:
    """Return the definition's arguments, those of the request in their place. Raises UnknownParameterError for a name in them."""
    known = {parameter.name for parameter in definition.parameters} | {axis.name for axis in sweep.macro_axes} | set(BLOCK_NAMES)
    known |= parse_kernel_source(source).constants.keys()
    chosen = {override.name: override for override in sweep.arguments}
    for argument in definition.arguments:
        unknown = parse_expression(chosen[argument.name].expression).names - known if argument.name in chosen else frozenset()
        if unknown:
            raise UnknownParameterError(
                f"argument {argument.name} = {chosen[argument.name].expression}",
                found=f"{', '.join(sorted(unknown))}, which kernel {definition.kernel_name} does not have",
                expected=f"names out of {', '.join(sorted(known))}",
                remedy="Check the spelling.",
            )
    return tuple(chosen.get(argument.name, argument) for argument in definition.arguments)


def ordered_ties(definition: KernelDefinition, ties: tuple[Tie, ...]) -> tuple[Tie, ...]:
    """Return sources before what is tied to them. Raises UnknownParameterError, and InvalidParameterError for a circle."""
    names = {parameter.name for parameter in definition.parameters}
    for tie in ties:
        if tie.source_name not in names:
            raise UnknownParameterError(
                f"tie {tie.name}={tie.source_name}",
                found=f"kernel {definition.kernel_name} without a parameter {tie.source_name}",
                expected=f"one of {', '.join(sorted(names - {tie.name}))}",
                remedy="Tie it to one of these, or give it values of its own.",
            )
    waiting, ordered = list(ties), list[Tie]()
    while waiting:
        unsettled = {tie.name for tie in waiting}
        ready = [tie for tie in waiting if tie.source_name not in unsettled]
        if not ready:
            raise InvalidParameterError(
                "ties " + ", ".join(f"{tie.name}={tie.source_name}" for tie in waiting),
                found="a circle",
                expected="one of these parameters with values of its own",
                remedy="Leave one of the ties out.",
            )
        ordered += ready
        waiting = [tie for tie in waiting if tie not in ready]
    return tuple(ordered)


def values_checked(definition: KernelDefinition, axes: tuple[Axis, ...], ties: tuple[Tie, ...]) -> tuple[Axis, ...]:
    """Return the axes. Raises InvalidParameterError for a parameter without values, or with one below its least."""
    values_of = {axis.name: axis.values for axis in axes}
    sources = {tie.name: tie.source_name for tie in ties}
    for parameter in definition.parameters:
        name = parameter.name
        while name in sources:
            name = sources[name]
        values = values_of[name]
        if not values:
            raise InvalidParameterError(
                f"parameter {parameter.name} of kernel {definition.kernel_name}",
                found="no value",
                expected="at least one",
                remedy=f"Give it values, for example {parameter.name}=1024.",
            )
        if min(values) < parameter.min_value:
            raise InvalidParameterError(
                f"parameter {parameter.name} of kernel {definition.kernel_name}",
                found=str(min(values)),
                expected=f"at least {parameter.min_value}",
                remedy="Choose larger values.",
            )
    return axes
