"""The launches of a sweep: planned, checked against the device's memory, and compiled."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kernalyse.services.core.artifacts import listing_stem, listing_variant
from kernalyse.services.core.errors import InvalidParameterError, InvalidRequestError, KernalyseError, LaunchLimitError, MemoryLimitError
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import Configuration, Device, Dim3, KernelDefinition, LogLevel, LogLines
from kernalyse.services.profiler.backends.base import Build, CompiledKernel, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.kernel_sources.headers import bundle_directory, bundle_include_directories
from kernalyse.services.profiler.measuring.buffers import BufferPlan, check_fits, plan_buffer
from kernalyse.services.profiler.workloads.events import EventSink, store_artifact
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration

# ---------------------------------------------------------------- launch plan

MAX_DIMENSION: Final = 2**31 - 1  # of CUDA's grid.x; what the contract's fields hold


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch of a configuration, with all expressions of its definition evaluated."""

    planned: PlannedConfiguration
    configuration: Configuration
    launch: LaunchConfiguration
    scalars: Mapping[str, float]  # parameters and arguments by name

    @property
    def definition(self) -> KernelDefinition:
        """Return the definition of the configuration's kernel."""
        return self.planned.kernel.definition

    def buffers(self) -> tuple[BufferPlan, ...]:
        """Return the buffers with their shapes. Raises InvalidParameterError or InvalidExpressionError."""
        return tuple(plan_buffer(buffer, self.planned.names) for buffer in self.definition.buffers)


def plan_launch(planned: PlannedConfiguration) -> LaunchPlan:
    """Evaluate the definition's expressions for one configuration.

    Raises:
        InvalidParameterError, InvalidExpressionError: a formula without a usable value.
        LaunchLimitError: an extent that no device could take.
    """
    definition, names = planned.kernel.definition, planned.names
    grid = planned.kernel.grid(names)
    shared_memory_bytes = parse_expression(definition.launch.shared_memory_bytes).evaluate_integer(names)
    _check_extents(planned, grid, shared_memory_bytes)
    launch = LaunchConfiguration(planned.block, grid, shared_memory_bytes)
    configuration = Configuration(
        configuration_index=planned.configuration_index,
        kernel_name=definition.kernel_name,
        parameters=planned.parameters,
        block=launch.block,
        grid=launch.grid,
        dynamic_shared_memory_bytes=launch.dynamic_shared_memory_bytes,
        category=definition.category,
        dtype=definition.dtype,
        flop=_count(definition.flop, f"flop of kernel {definition.kernel_name}", names),
        bytes=_count(definition.bytes, f"bytes of kernel {definition.kernel_name}", names),
        macros=planned.macro_values,
        cache_mode=planned.cache_mode,
        process_index=planned.process_index,
        variant=planned.variant,
        path=definition.path,
    )
    arguments = {argument.name: parse_expression(argument.expression).evaluate(names) for argument in planned.kernel.arguments}
    return LaunchPlan(planned, configuration, launch, {**planned.values, **arguments})


def check_requirement(plan: LaunchPlan) -> None:
    """Raise LaunchLimitError for a launch that the kernel's source is not written for."""
    requires = plan.definition.launch.requires
    if requires and not parse_expression(requires).evaluate(plan.planned.names):
        shown = ", ".join(f"{name}={value}" for name, value in plan.planned.names.items() if name in parse_expression(requires).names)
        raise LaunchLimitError(
            f"launch of {plan.configuration.label}",
            found=shown,
            expected=f"{requires}, which the kernel's source relies on",
            remedy="Choose other values, or leave the block to the definition.",
        )


def _check_extents(planned: PlannedConfiguration, grid: Dim3, shared_memory_bytes: int) -> None:
    block = planned.block
    for what, found in (
        *zip(("block.x", "block.y", "block.z"), (block.x, block.y, block.z), strict=True),
        *zip(("grid.x", "grid.y", "grid.z"), (grid.x, grid.y, grid.z), strict=True),
        ("bytes of dynamic shared memory", shared_memory_bytes),
    ):
        if not 0 <= found <= MAX_DIMENSION:
            shown = " ".join(f"{name}={value}" for name, value in planned.values.items())
            raise LaunchLimitError(
                f"launch of {planned.kernel.definition.kernel_name} {shown}",
                found=f"{what} = {found}",
                expected=f"0 to {MAX_DIMENSION}",
                remedy="Choose other parameters, or correct the definition's launch expressions.",
            )


def _count(formula: str | None, subject: str, names: Mapping[str, int]) -> float | None:
    if formula is None:
        return None
    count = float(parse_expression(formula).evaluate(names))
    if count < 0 or math.isnan(count):
        raise InvalidParameterError(subject, found=f"{formula} = {count:g}", expected="at least 0", remedy="Correct the formula.")
    return count


# ---------------------------------------------------------------- fitting sizes
# Where a device cannot hold a configuration's buffers, the error names the largest sizes that would fit.


def check_device_memory(planned: PlannedConfiguration, device: Device) -> None:
    """Raise MemoryLimitError that names, for each parameter, the largest value that fits with the others as they are."""
    try:
        _check(planned, device)
    except MemoryLimitError as error:
        fitting = " or ".join(f"{name} up to {value}" for name, value in largest_fitting_values(planned, device).items())
        remedy = f"What fits, with the rest as it is: {fitting}." if fitting else error.remedy
        raise MemoryLimitError(error.subject, found=error.found, expected=error.expected, remedy=remedy) from error


def largest_fitting_values(planned: PlannedConfiguration, device: Device) -> Mapping[str, int]:
    """Return the largest value below its own of each parameter, by name; tied ones move together, under a name like N=M.

    Without those that no value helps. Buffers are taken to grow with their parameters.
    """
    together: defaultdict[str, list[str]] = defaultdict(list)
    sources = {tie.name: tie.source_name for tie in planned.kernel.ties}
    for name in planned.values:
        source = name
        while source in sources:
            source = sources[source]
        together[source].append(name)
    found: dict[str, int] = {}
    for source, names in together.items():
        low, high = 0, planned.values[source]  # fits, as far as is known; does not
        while high - low > 1:
            middle = (low + high) // 2
            if _fits(replace(planned, values={**planned.values, **dict.fromkeys(names, middle)}), device):
                low = middle
            else:
                high = middle
        if low > 0:
            found["=".join(names)] = low
    return found


def _fits(planned: PlannedConfiguration, device: Device) -> bool:
    try:
        _check(planned, device)
    except (MemoryLimitError, InvalidRequestError):  # a formula need not have a value everywhere
        return False
    return True


def _check(planned: PlannedConfiguration, device: Device) -> None:
    check_fits(tuple(plan_buffer(buffer, planned.names) for buffer in planned.kernel.definition.buffers), device)


# ---------------------------------------------------------------- sweep compiler
# What does not compile is tried only once, and each compiler message is reported only once.


class SweepCompiler:
    """The compiler of one process's configurations.

    Args:
        options: of the compiler, for all of them.
        directory: of the run; listings become its artifacts.
    """

    def __init__(self, options: tuple[str, ...], session: DeviceSession, sink: EventSink, directory: Path) -> None:
        self._options = options
        self._session = session
        self._sink = sink
        self._directory = directory
        self._refusals: dict[tuple[Build, Dim3], KernalyseError] = {}
        self._reported: set[tuple[str, str]] = set()  # logs, listings and their names, each with its kind

    def compile(self, planned: PlannedConfiguration) -> CompiledKernel:
        """Compile one configuration. Raises as the session's `compile`; a build that failed before fails again without a try."""
        build = self._build(planned)
        key = (build, planned.block)
        if key in self._refusals:  # a kernel that does not compile costs its compiler's time once
            raise self._refusals[key]
        try:
            compiled = self._session.compile(build, planned.block)
        except KernalyseError as error:
            self._refusals[key] = error
            raise
        if planned.process_index == 0:  # later processes would report the same
            self._report(planned, compiled)
        return compiled

    def _build(self, planned: PlannedConfiguration) -> Build:
        kernel = planned.kernel
        digest = kernel.bundle_digest
        return Build(
            source=kernel.source,
            function_name=kernel.definition.function,
            macros=planned.macro_values,
            options=self._options,
            include_directories=() if digest is None else bundle_include_directories(bundle_directory(self._directory, digest)),
        )

    def _report(self, planned: PlannedConfiguration, compiled: CompiledKernel) -> None:
        log = compiled.compiler_log.strip()
        if log and self._is_new("log", log):
            self._sink.write(LogLines(LogLevel.WARNING, "compiler", tuple(log.splitlines())))
        for suffix, data in compiled.listings.items():
            if self._is_new(suffix, data.decode(errors="replace")):
                self._sink.write(store_artifact(self._directory, self._listing_name(planned, suffix), data))

    def _listing_name(self, planned: PlannedConfiguration, suffix: str) -> str:
        """Return a file name unique within the run: the plain one first, later ones with what differs."""
        stem = listing_stem(planned.kernel.definition.kernel_name)
        variant = listing_variant(planned.macros)
        names = (stem, f"{stem}.{variant}", f"{stem}.{variant}.{planned.block}", f"{stem}.{planned.configuration_index}")
        candidates = [f"{name.replace('..', '.')}.{suffix}" for name in names]
        return next((name for name in candidates if self._is_new("name", name)), candidates[-1])

    def _is_new(self, kind: str, text: str) -> bool:
        is_new = (kind, text) not in self._reported
        self._reported.add((kind, text))
        return is_new
