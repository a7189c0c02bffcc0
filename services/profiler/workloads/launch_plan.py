"""Launch plan of a configuration: its grid, its buffers, its counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.errors import InvalidParameterError, LaunchLimitError
from services.core.expressions import parse_expression
from services.core.model import Configuration, Dim3, KernelDefinition
from services.profiler.backends.base import LaunchConfiguration
from services.profiler.measuring.inputs import BufferPlan, plan_buffer
from services.profiler.workloads.sweep_plan import PlannedConfiguration

MAX_EXTENT: Final = 2**31 - 1  # of CUDA's grid.x; what the contract's fields hold


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything about a configuration that its definition's expressions say."""

    planned: PlannedConfiguration
    configuration: Configuration
    launch: LaunchConfiguration
    scalars: Mapping[str, float]  # parameters and arguments by name

    @property
    def definition(self) -> KernelDefinition:
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
        if not 0 <= found <= MAX_EXTENT:
            shown = " ".join(f"{name}={value}" for name, value in planned.values.items())
            raise LaunchLimitError(
                f"launch of {planned.kernel.definition.kernel_name} {shown}",
                found=f"{what} = {found}",
                expected=f"0 to {MAX_EXTENT}",
                remedy="Choose other parameters, or correct the definition's launch expressions.",
            )


def _count(formula: str | None, subject: str, names: Mapping[str, int]) -> float | None:
    if formula is None:
        return None
    count = float(parse_expression(formula).evaluate(names))
    if count < 0 or math.isnan(count):
        raise InvalidParameterError(subject, found=f"{formula} = {count:g}", expected="at least 0", remedy="Correct the formula.")
    return count
