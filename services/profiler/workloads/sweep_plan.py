"""What a sweep will measure: kernels x axes x ties x constraint, checked before anything runs.

The server imports this to refuse a request at once, so it needs neither NumPy nor a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product

from services.core.errors import (
    InvalidParameterError,
    NotBuiltYetError,
    TooManyConfigurationsError,
    UnknownParameterError,
)
from services.core.expressions import Expression, parse_expression
from services.core.model import (
    ArgumentDefinition,
    Axis,
    Dim3,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    MeasuringOptions,
    ParameterValue,
    Tie,
)
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.catalog import Catalog, check_definition, derive_definition
from services.profiler.definition_checks import BLOCK_NAMES


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One kernel of a sweep, with everything its configurations need."""

    definition: KernelDefinition
    source: KernelSource
    axes: tuple[Axis, ...]  # the request's in its order, then the definition's defaults for the parameters left
    ties: tuple[Tie, ...]  # in an order in which each source already has its value
    arguments: tuple[ArgumentDefinition, ...]  # those of the request in place of the definition's
    block: Dim3 | None  # None: the definition's

    @property
    def product_count(self) -> int:
        """Configurations before the constraint."""
        return math.prod(len(axis.values) for axis in self.axes)

    def values(self) -> Iterator[dict[str, int]]:
        """Every combination, first axis slowest, as parameter values in the definition's order."""
        names = [parameter.name for parameter in self.definition.parameters]
        for combination in product(*(axis.values for axis in self.axes)):
            chosen = dict(zip((axis.name for axis in self.axes), combination, strict=True))
            for tie in self.ties:
                chosen[tie.name] = chosen[tie.source_name]
            yield {name: chosen[name] for name in names}

    def block_for(self, values: Mapping[str, int]) -> Dim3:
        """The block for these parameter values; the definition's where the request names none."""
        if self.block is not None:
            return self.block
        return Dim3(*(parse_expression(extent).evaluate_integer(values) for extent in self.definition.launch.block))


@dataclass(frozen=True, slots=True)
class PlannedConfiguration:
    """One kernel with one value for each of its parameters."""

    configuration_index: int
    kernel: PlannedKernel
    values: Mapping[str, int]
    block: Dim3

    @property
    def parameters(self) -> tuple[ParameterValue, ...]:
        return tuple(ParameterValue(name, value) for name, value in self.values.items())

    @property
    def names(self) -> dict[str, int]:
        """Everything an expression may refer to: parameters and block_x, block_y, block_z."""
        return {**self.values, **_block_values(self.block)}


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep that can be run. `configuration_count` counts what `configurations` yields."""

    kernels: tuple[PlannedKernel, ...]
    where: Expression | None
    configuration_count: int
    notices: tuple[str, ...] = ()  # what was assumed where a definition was derived, one sentence each

    def configurations(self) -> Iterator[PlannedConfiguration]:
        """Kernels slowest, then axes in order; those the constraint rules out are left out and take no index."""
        return _configurations(self.kernels, self.where)


def plan_sweep(sweep: KernelSweep, catalog: Catalog, max_configuration_count: int) -> SweepPlan:
    """Expands and checks a sweep. A sweep over the limit is refused without being listed.

    Raises:
        UnknownKernelError: not in the catalogue; names the closest that are.
        UnknownParameterError: an axis, tie, argument or constraint names what the kernels do not have.
        InvalidParameterError: a value no run could use, a name given twice, nothing left to run.
        InvalidExpressionError: the constraint is not arithmetic.
        TooManyConfigurationsError: names limit and count.
    """
    _check_options(sweep.measuring)
    _check_block(sweep.block)
    resolved = _resolve_kernels(sweep, catalog)
    _check_names(sweep, [kernel.definition for kernel in resolved])
    kernels = tuple(_plan_kernel(kernel.definition, kernel.source, sweep) for kernel in resolved)
    product_count = sum(kernel.product_count for kernel in kernels)
    if product_count > max_configuration_count:
        raise TooManyConfigurationsError(
            "the sweep",
            found=f"{product_count} configurations" + (" before the constraint" if sweep.where else ""),
            expected=f"at most {max_configuration_count}",
            remedy="Give the axes fewer values, tie some, or split the sweep.",
        )
    where = _parse_where(sweep.where, kernels)
    configuration_count = product_count if where is None else sum(1 for _ in _configurations(kernels, where))
    if configuration_count == 0:
        raise InvalidParameterError(
            f"constraint '{sweep.where}'",
            found=f"none of {product_count} configurations for which it holds",
            expected="at least one",
            remedy="Loosen the constraint or extend the axes.",
        )
    notices = tuple(notice for kernel in resolved for notice in kernel.notices)
    return SweepPlan(kernels, where, configuration_count, notices)


def _configurations(kernels: tuple[PlannedKernel, ...], where: Expression | None) -> Iterator[PlannedConfiguration]:
    configuration_index = 0
    for kernel in kernels:
        for values in kernel.values():
            block = kernel.block_for(values)
            if where is None or where.evaluate({**values, **_block_values(block)}):
                yield PlannedConfiguration(configuration_index, kernel, values, block)
                configuration_index += 1


def _block_values(block: Dim3) -> dict[str, int]:
    return dict(zip(BLOCK_NAMES, (block.x, block.y, block.z), strict=True))


# ---------------------------------------------------------------- kernels


def _resolve_kernels(sweep: KernelSweep, catalog: Catalog) -> list[_ResolvedKernel]:
    if not sweep.kernels:
        raise InvalidParameterError("the sweep", found="no kernel", expected="at least one", remedy="Name a kernel.")
    for position, selection in enumerate(sweep.kernels):
        if selection in sweep.kernels[:position]:
            raise InvalidParameterError(
                f"kernel {selection.kernel_name}", found="the same kernel twice", expected="each kernel once", remedy="Name it once."
            )
        if selection.bundle_digest is not None:
            raise NotBuiltYetError(
                f"kernel {selection.kernel_name}",
                found="a bundle with its headers",
                expected="a source that includes none of its own",
                remedy="Put the headers into the source.",
            )
    return [_resolve(selection, sweep.arguments, catalog) for selection in sweep.kernels]


@dataclass(frozen=True, slots=True)
class _ResolvedKernel:
    definition: KernelDefinition
    source: KernelSource
    notices: tuple[str, ...] = ()


def _resolve(selection: KernelSelection, arguments: tuple[ArgumentDefinition, ...], catalog: Catalog) -> _ResolvedKernel:
    """Definition and source of one selection, each its own or the catalogue's; a source alone has its definition derived."""
    source = selection.source if selection.source is not None else catalog.source(selection.kernel_name)
    if selection.definition is not None:
        check_definition(selection.definition, source)
        return _ResolvedKernel(selection.definition, source)
    if selection.source is None:
        return _ResolvedKernel(catalog.definition(selection.kernel_name), source)
    scalars = {one.name for one in parse_kernel_source(source).kernel(selection.kernel_name).parameters if not one.is_pointer}
    given = {argument.name: argument.expression for argument in arguments if argument.name in scalars}
    definition, notices = derive_definition(source, selection.kernel_name, arguments=given)
    return _ResolvedKernel(definition, source, notices)


def _plan_kernel(definition: KernelDefinition, source: KernelSource, sweep: KernelSweep) -> PlannedKernel:
    names = {parameter.name for parameter in definition.parameters}
    ties = tuple(tie for tie in sweep.ties if tie.name in names)
    for tie in ties:
        if tie.source_name not in names:
            raise UnknownParameterError(
                f"tie {tie.name}={tie.source_name}",
                found=f"kernel {definition.kernel_name} without a parameter {tie.source_name}",
                expected=f"one of {', '.join(sorted(names - {tie.name}))}",
                remedy="Tie it to one of these, or give it values of its own.",
            )
    axes = tuple(axis for axis in sweep.axes if axis.name in names)
    settled = {axis.name for axis in axes} | {tie.name for tie in ties}
    defaults = tuple(Axis(parameter.name, parameter.default_values) for parameter in definition.parameters if parameter.name not in settled)
    planned = PlannedKernel(
        definition=definition,
        source=source,
        axes=axes + defaults,
        ties=_ordered_ties(ties),
        arguments=_merge_arguments(definition, sweep.arguments),
        block=sweep.block,
    )
    _check_values(planned)
    return planned


def _merge_arguments(definition: KernelDefinition, overrides: tuple[ArgumentDefinition, ...]) -> tuple[ArgumentDefinition, ...]:
    known = {parameter.name for parameter in definition.parameters} | set(BLOCK_NAMES)
    chosen = {override.name: override for override in overrides}
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


def _ordered_ties(ties: tuple[Tie, ...]) -> tuple[Tie, ...]:
    """Sources before what is tied to them. Raises InvalidParameterError for a circle."""
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


# ---------------------------------------------------------------- checks


def _check_names(sweep: KernelSweep, definitions: list[KernelDefinition]) -> None:
    parameters = {parameter.name for definition in definitions for parameter in definition.parameters}
    arguments = {argument.name for definition in definitions for argument in definition.arguments}
    kernels = ", ".join(definition.kernel_name for definition in definitions)
    for axis in sweep.axes:
        _check_known("axis", axis.name, parameters, kernels)
    for tie in sweep.ties:
        _check_known("tie", tie.name, parameters, kernels)
        _check_known(f"tie of {tie.name} to", tie.source_name, parameters, kernels)
    for argument in sweep.arguments:
        _check_known("argument", argument.name, arguments, kernels)
    _check_once("axis", [axis.name for axis in sweep.axes])
    _check_once("tie", [tie.name for tie in sweep.ties])
    _check_once("argument", [argument.name for argument in sweep.arguments])
    both = {axis.name for axis in sweep.axes} & {tie.name for tie in sweep.ties}
    if both:
        raise InvalidParameterError(
            f"parameter {min(both)}",
            found="both an axis and a tie",
            expected="one of the two",
            remedy="Leave out the axis to let it follow, or the tie to vary it alone.",
        )


def _check_known(what: str, name: str, known: set[str], kernels: str) -> None:
    if name not in known:
        close = get_close_matches(name, sorted(known), n=3)
        raise UnknownParameterError(
            f"{what} {name}",
            found=f"no such name in {kernels}",
            expected=f"perhaps {' or '.join(close)}" if close else f"one of {', '.join(sorted(known)) or 'none, for they have none'}",
            remedy="Check the spelling.",
        )


def _check_once(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameterError(f"{what} {name}", found=f"{names.count(name)} times", expected="once", remedy="Give it once.")


def _check_values(kernel: PlannedKernel) -> None:
    axes = {axis.name: axis for axis in kernel.axes}
    sources = {tie.name: tie.source_name for tie in kernel.ties}
    for parameter in kernel.definition.parameters:
        name = parameter.name
        while name in sources:
            name = sources[name]
        values = axes[name].values
        if not values:
            raise InvalidParameterError(
                f"parameter {parameter.name} of kernel {kernel.definition.kernel_name}",
                found="no value",
                expected="at least one",
                remedy=f"Give it values, for example {parameter.name}=1024.",
            )
        if min(values) < parameter.min_value:
            raise InvalidParameterError(
                f"parameter {parameter.name} of kernel {kernel.definition.kernel_name}",
                found=str(min(values)),
                expected=f"at least {parameter.min_value}",
                remedy="Choose larger values.",
            )


def _parse_where(text: str, kernels: tuple[PlannedKernel, ...]) -> Expression | None:
    if not text.strip():
        return None
    where = parse_expression(text)
    for kernel in kernels:
        known = {parameter.name for parameter in kernel.definition.parameters} | set(BLOCK_NAMES)
        unknown = where.names - known
        if unknown:
            raise UnknownParameterError(
                f"constraint '{text}'",
                found=f"{', '.join(sorted(unknown))}, which kernel {kernel.definition.kernel_name} does not have",
                expected=f"names out of {', '.join(sorted(known))}",
                remedy="Check the spelling, or sweep that kernel by itself.",
            )
    return where


def _check_block(block: Dim3 | None) -> None:
    if block is not None and min(block.x, block.y, block.z) < 1:
        raise InvalidParameterError("the block", found=str(block), expected="at least 1 in every dimension", remedy="Write 256 or 16x16.")


def _check_options(options: MeasuringOptions) -> None:
    ratio = options.target_half_width_ratio
    max_count = options.max_sample_count
    for subject, found, is_good, expected in (
        ("min_sample_count", options.min_sample_count, options.min_sample_count >= 2, "at least 2, for one sample has no spread"),
        ("max_sample_count", max_count, max_count is None or max_count >= 2, "at least 2, for one sample has no spread"),
        ("min_duration_ns", options.min_duration_ns, options.min_duration_ns >= 0, "at least 0"),
        ("max_duration_ns", options.max_duration_ns, options.max_duration_ns > 0, "more than 0"),
        ("target_half_width_ratio", ratio, ratio is None or (math.isfinite(ratio) and ratio > 0), "a ratio above 0, for example 0.01"),
        ("warm_up_count", options.warm_up_count, options.warm_up_count >= 0, "at least 0"),
        ("seed", options.seed, options.seed >= 0, "at least 0"),
    ):
        if not is_good:
            raise InvalidParameterError(
                f"measuring option {subject}", found=str(found), expected=expected, remedy="Correct it, or leave it out."
            )
