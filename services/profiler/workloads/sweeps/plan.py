"""The plan of a sweep: its configurations, its kernels, and its resolved spec."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from kernalyse.services.core.errors import InvalidParameterError, TooManyConfigurationsError, UnknownParameterError
from kernalyse.services.core.expressions import Expression, parse_expression
from kernalyse.services.core.model import (
    ArgumentDefinition,
    Axis,
    CacheMode,
    Dim3,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    ParameterValue,
    RunSpec,
    Tie,
)
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, check_definition, derive_definition
from kernalyse.services.profiler.kernel_sources.definitions import BLOCK_NAMES, iterate_expressions
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle, bundle_directory, repack_headers
from kernalyse.services.profiler.kernel_sources.syntax import fixed_line, has_includes, is_mentioned
from kernalyse.services.profiler.workloads.sweeps.checks import check_names, check_pairing, check_sweep, parse_where

if TYPE_CHECKING:
    from kernalyse.services.profiler.measuring.references import Reference


# ---------------------------------------------------------------- sweep plan
# A sweep is kernels x axes x macros x blocks x caches x processes. The server imports this module to reject bad requests at once, so
# it needs neither NumPy nor a device.


@dataclass(frozen=True, slots=True)
class KernelCallables:
    """Python functions that a caller in this process may supply in place of a definition's expressions.

    No request can carry them. None: the definition counts.
    """

    grid: Callable[[Mapping[str, int]], Dim3] | None = None  # from the names that an expression may refer to
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """A kernel of a sweep, with everything its configurations need."""

    definition: KernelDefinition
    source: KernelSource
    axes: tuple[Axis, ...]  # the request's in its order, then the definition's defaults for the parameters left
    ties: tuple[Tie, ...]  # in an order in which each source already has its value
    arguments: tuple[ArgumentDefinition, ...]  # those of the request in place of the definition's
    bundle_digest: str | None = None  # uploaded directory with headers
    macro_axes: tuple[Axis, ...] = ()
    blocks: tuple[Dim3, ...] = ()  # empty: the definition's
    block_axes: tuple[Axis, ...] = ()  # of block_x, block_y, block_z; they replace extents of the block
    callables: KernelCallables = KernelCallables()

    def grid(self, names: Mapping[str, int]) -> Dim3:
        """Return the grid. Raises InvalidExpressionError."""
        if self.callables.grid is not None:
            return self.callables.grid(names)
        return Dim3(*(parse_expression(extent).evaluate_integer(names) for extent in self.definition.launch.grid))

    @property
    def constants(self) -> Mapping[str, int]:
        """Return the constants that its source leaves open, with the source's values, which count where no macro axis sets others."""
        return parse_kernel_source(self.source).constants

    @property
    def product_count(self) -> int:
        """Return the number of configurations before the constraint, of one cache mode and process."""
        axes = (*self.axes, *self.macro_axes, *self.block_axes)
        return math.prod(len(axis.values) for axis in axes) * max(1, len(self.blocks))

    def candidates(self) -> Iterator[_Candidate]:
        """Yield every combination: parameters slowest, then macros, then blocks."""
        names = [parameter.name for parameter in self.definition.parameters]
        for combination in product(*(axis.values for axis in self.axes)):
            chosen = dict(zip((axis.name for axis in self.axes), combination, strict=True))
            for tie in self.ties:
                chosen[tie.name] = chosen[tie.source_name]
            values = {name: chosen[name] for name in names}
            for macro_values in product(*(axis.values for axis in self.macro_axes)):
                macros = dict(zip((axis.name for axis in self.macro_axes), macro_values, strict=True))
                for block in self._blocks({**self.constants, **values, **macros}):
                    yield _Candidate(self, values, macros, block)

    def _blocks(self, names: Mapping[str, int]) -> Iterator[Dim3]:
        wholes = self.blocks or (Dim3(*(parse_expression(extent).evaluate_integer(names) for extent in self.definition.launch.block)),)
        for whole in wholes:
            for extents in product(*(axis.values for axis in self.block_axes)):
                chosen = _block_values(whole) | dict(zip((axis.name for axis in self.block_axes), extents, strict=True))
                yield Dim3(*(chosen[name] for name in BLOCK_NAMES))


@dataclass(frozen=True, slots=True)
class _Candidate:
    kernel: PlannedKernel
    values: Mapping[str, int]
    macros: Mapping[str, int]
    block: Dim3

    @property
    def names(self) -> dict[str, int]:
        return {**self.kernel.constants, **self.values, **self.macros, **_block_values(self.block)}


@dataclass(frozen=True, slots=True)
class PlannedConfiguration:
    """A kernel with one value for each of its parameters, macros and block extents."""

    configuration_index: int
    kernel: PlannedKernel
    values: Mapping[str, int]
    macros: Mapping[str, int]
    block: Dim3
    cache_mode: CacheMode  # DEFAULT: the device's
    process_index: int
    variant: str  # distinguishes it from others of the same kernel and parameters

    @property
    def parameters(self) -> tuple[ParameterValue, ...]:
        """Return the parameter values as the model's type."""
        return tuple(ParameterValue(name, value) for name, value in self.values.items())

    @property
    def macro_values(self) -> tuple[ParameterValue, ...]:
        """Return the macro values as the model's type."""
        return tuple(ParameterValue(name, value) for name, value in self.macros.items())

    @property
    def names(self) -> dict[str, int]:
        """Return everything an expression may refer to: parameters, the source's constants, macros, and block_x, block_y, block_z."""
        return {**self.kernel.constants, **self.values, **self.macros, **_block_values(self.block)}

    @property
    def problem(self) -> tuple[object, ...]:
        """Return the key of the computed problem: configurations of one problem compete with each other."""
        return (tuple(sorted(self.values.items())), self.cache_mode, self.process_index)

    @property
    def tournament_group(self) -> tuple[object, ...]:
        """Return the key of configurations of one problem with the same work: one kernel's, or kernels with equal counts."""
        definition = self.kernel.definition
        return (self.problem, definition.category, definition.flop, definition.bytes)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep that is ready to run. `configuration_count` is the number of `configurations`."""

    kernels: tuple[PlannedKernel, ...]
    where: Expression | None
    cache_modes: tuple[CacheMode, ...]
    process_count: int
    configuration_count: int  # those done before included
    skipped_indexes: frozenset[int] = frozenset()  # measured by an earlier run, or failed there
    order_seed: int | None = None
    notices: tuple[str, ...] = ()  # what was assumed where a definition was derived, one sentence each

    def configurations(self) -> Iterator[PlannedConfiguration]:
        """Yield configurations: processes slowest, then kernels, axes, macros, blocks, caches; those ruled out take no index."""
        candidates = list(_allowed(self.kernels, self.where))
        index = 0
        for process_index in range(self.process_count):
            for candidate in candidates:
                for cache_mode in self.cache_modes:
                    variant = self._variant(candidate, cache_mode, process_index)
                    yield PlannedConfiguration(
                        index, candidate.kernel, candidate.values, candidate.macros, candidate.block, cache_mode, process_index, variant
                    )
                    index += 1

    def to_measure(self, process_index: int = 0) -> list[PlannedConfiguration]:
        """Return the configurations that one process has left to measure, in order."""
        left = [
            planned
            for planned in self.configurations()
            if planned.process_index == process_index and planned.configuration_index not in self.skipped_indexes
        ]
        if self.order_seed is not None:
            random.Random(f"{self.order_seed}/{process_index}").shuffle(left)
        return left

    def completed_count(self, process_index: int) -> int:
        """Return the number of configurations that an earlier run and earlier processes have finished."""
        return len(self.skipped_indexes) + sum(len(self.to_measure(index)) for index in range(process_index))

    def _variant(self, candidate: _Candidate, cache_mode: CacheMode, process_index: int) -> str:
        parts = [f"{name}={value}" for name, value in candidate.macros.items()]
        if len(candidate.kernel.blocks) > 1 or candidate.kernel.block_axes:
            parts.append(f"block={_short(candidate.block)}")
        if len(self.cache_modes) > 1:
            parts.append(cache_mode.lower())
        if self.process_count > 1:
            parts.append(f"process={process_index + 1}")
        return " ".join(parts)


def plan_sweep(sweep: KernelSweep, catalog: Catalog, max_configuration_count: int) -> SweepPlan:
    """Expand and check a sweep. A sweep over the limit is refused without being listed.

    Raises:
        UnknownKernelError: not in the catalog; names the closest that are.
        UnknownParameterError: an axis, tie, argument or constraint names what the kernels do not have.
        InvalidParameterError: a value no run could use, a name given twice, nothing left to run.
        InvalidExpressionError: the constraint is not arithmetic.
        TooManyConfigurationsError: names limit and count.
    """
    check_sweep(sweep)
    resolved = resolve_kernels(sweep, catalog)
    check_names(sweep, [kernel.definition for kernel in resolved])
    kernels = tuple(_plan_kernel(kernel.definition, kernel.source, kernel.bundle_digest, sweep) for kernel in resolved)
    cache_modes = (CacheMode.COLD, CacheMode.HOT) if sweep.measuring.cache_mode is CacheMode.BOTH else (sweep.measuring.cache_mode,)
    repeat_count = len(cache_modes) * sweep.process_count
    product_count = sum(kernel.product_count for kernel in kernels) * repeat_count
    if product_count > max_configuration_count:
        raise TooManyConfigurationsError(
            "the sweep",
            found=f"{product_count} configurations" + (" before the constraint" if sweep.where else ""),
            expected=f"at most {max_configuration_count}",
            remedy="Give the axes fewer values, tie some, or split the sweep.",
        )
    where = parse_where(sweep, [(kernel.definition, kernel.constants) for kernel in kernels])
    configuration_count = product_count if where is None else sum(1 for _ in _allowed(kernels, where)) * repeat_count
    if configuration_count == 0:
        raise InvalidParameterError(
            f"constraint '{sweep.where}'",
            found=f"none of {product_count} configurations for which it holds",
            expected="at least one",
            remedy="Loosen the constraint or extend the axes.",
        )
    plan = SweepPlan(
        kernels=kernels,
        where=where,
        cache_modes=cache_modes,
        process_count=sweep.process_count,
        configuration_count=configuration_count,
        skipped_indexes=frozenset((*sweep.done_configuration_indexes, *sweep.failed_configuration_indexes)),
        order_seed=sweep.order_seed,
        notices=tuple(notice for kernel in resolved for notice in kernel.notices),
    )
    _check_skipped(plan)
    if sweep.pairing is not None:
        check_pairing([planned.problem for planned in plan.configurations()])
    return plan


def _check_skipped(plan: SweepPlan) -> None:
    """Raise InvalidParameterError for indexes that the sweep does not have, and when it has no others."""
    highest = max(plan.skipped_indexes, default=-1)
    unknown = highest >= plan.configuration_count
    if unknown or len(plan.skipped_indexes) == plan.configuration_count:
        raise InvalidParameterError(
            "sweep options done_configuration_indexes and failed_configuration_indexes",
            found=f"{highest} of {plan.configuration_count} configurations" if unknown else "every configuration",
            expected=f"some of 0 to {plan.configuration_count - 1}, and not all",
            remedy="Take them from the measurements and failures of the run that is to be continued.",
        )


def _plan_kernel(definition: KernelDefinition, source: KernelSource, bundle_digest: str | None, sweep: KernelSweep) -> PlannedKernel:
    names = {parameter.name for parameter in definition.parameters}
    ties = order_ties(definition, tuple(tie for tie in sweep.ties if tie.name in names))
    axes = tuple(axis for axis in sweep.axes if axis.name in names)
    settled = {axis.name for axis in axes} | {tie.name for tie in ties}
    defaults = tuple(Axis(parameter.name, parameter.default_values) for parameter in definition.parameters if parameter.name not in settled)
    return PlannedKernel(
        definition=definition,
        source=source,
        bundle_digest=bundle_digest,
        axes=check_axis_values(definition, axes + defaults, ties),
        ties=ties,
        arguments=merge_arguments(definition, source, sweep),
        macro_axes=sweep.macro_axes,
        blocks=sweep.blocks,
        block_axes=tuple(axis for axis in sweep.axes if axis.name in BLOCK_NAMES),
    )


def _allowed(kernels: tuple[PlannedKernel, ...], where: Expression | None) -> Iterator[_Candidate]:
    for kernel in kernels:
        for candidate in kernel.candidates():
            if where is None or where.evaluate(candidate.names):
                yield candidate


def _block_values(block: Dim3) -> dict[str, int]:
    return dict(zip(BLOCK_NAMES, (block.x, block.y, block.z), strict=True))


def _short(block: Dim3) -> str:
    return f"{block.x}" if block.y == block.z == 1 else f"{block.x}x{block.y}" if block.z == 1 else str(block)


# ---------------------------------------------------------------- sweep kernels
# Definitions and sources of a sweep's kernels, merged with the parameters and arguments of the request.


@dataclass(frozen=True, slots=True)
class ResolvedKernel:
    """The definition and source of a selection. notices: assumptions behind a derived definition."""

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
    """Return definition and source, each from the request or the catalog; for a source alone the definition is derived."""
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
    """Raise InvalidParameterError for a macro axis that nothing uses, whose configurations would all be the same."""
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
    expressions = (text for _, texts in iterate_expressions(kernel.definition) for text in texts)
    texts = (kernel.definition.function, *expressions, *(argument.expression for argument in sweep.arguments))
    return is_mentioned(root, macro_name) or has_includes(root) or any(macro_name in re.findall(r"\w+", text) for text in texts)


def merge_arguments(definition: KernelDefinition, source: KernelSource, sweep: KernelSweep) -> tuple[ArgumentDefinition, ...]:
    """Return the definition's arguments with those of the request replaced. Raises UnknownParameterError for a name in them."""
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


def order_ties(definition: KernelDefinition, ties: tuple[Tie, ...]) -> tuple[Tie, ...]:
    """Return parameters so that each comes after its source. Raises UnknownParameterError; InvalidParameterError for a cycle."""
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


def check_axis_values(definition: KernelDefinition, axes: tuple[Axis, ...], ties: tuple[Tie, ...]) -> tuple[Axis, ...]:
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


# ---------------------------------------------------------------- resolved specs
# A run's completed spec is stored as an artifact, from which the run can be repeated or continued exactly.


def resolved_spec(spec: RunSpec, plan: SweepPlan) -> RunSpec:
    """Return the spec of a sweep completed with its resolved sources and definitions."""
    sweep = spec.work
    assert isinstance(sweep, KernelSweep)
    kernels = tuple(
        replace(selection, source=planned.source, definition=planned.definition)
        for selection, planned in zip(sweep.kernels, plan.kernels, strict=True)
    )
    return replace(spec, work=replace(sweep, kernels=kernels))


def stored_header_bundles(plan: SweepPlan, directory: Path) -> Iterator[HeaderBundle]:
    """Yield the bundles of headers that the sweep's kernels name, as they were uploaded. directory: of the run."""
    for digest in sorted({kernel.bundle_digest for kernel in plan.kernels if kernel.bundle_digest is not None}):
        headers = repack_headers(bundle_directory(directory, digest))
        if headers is not None and headers.digest == digest:
            yield headers
