"""The launches of one variant worked out from the catalogues: kernels, extents, counts, and the memory that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from services.core.expressions import parse_expression
from services.core.model import CacheMode, Configuration, DataType, Dim3, KernelDefinition, ParameterValue
from services.profiler.catalog import Catalog, catalog_folder, load_catalog
from services.profiler.workloads.gpt.operations import Operation, Problem, operations
from services.profiler.workloads.launch_plan import LaunchPlan, plan_launch
from services.profiler.workloads.sweep_plan import PlannedConfiguration, PlannedKernel

MODEL_CATEGORY: Final = "model"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A launch of a pass."""

    operation: Operation
    plan: LaunchPlan

    @property
    def configuration(self) -> Configuration:
        return self.plan.configuration

    @property
    def device_memory_bytes(self) -> int:
        """Return the size of the tensors that it uses."""
        return sum({self.operation.tensors[buffer.name]: buffer.size_bytes for buffer in self.plan.buffers()}.values())


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A variant of a model: its launches, and the complete pass as a configuration of its own."""

    variant: str
    pass_configuration: Configuration
    steps: tuple[PlannedStep, ...]

    @property
    def name(self) -> str:
        return f"{self.pass_configuration.kernel_name} {self.variant}"

    @property
    def configuration_count(self) -> int:
        return len(self.steps) + 1

    @property
    def device_memory_bytes(self) -> int:
        """Return the size of weights, activations, tokens and logits."""
        return sum(self.tensor_bytes().values())

    def tensor_bytes(self) -> Mapping[str, int]:
        """Return the size of each tensor, by name."""
        return {step.operation.tensors[buffer.name]: buffer.size_bytes for step in self.steps for buffer in step.plan.buffers()}


def plan_pass(problem: Problem, variant: str, first_index: int, cache_mode: CacheMode, parameters: Sequence[ParameterValue]) -> PlannedPass:
    """Plan a variant. first_index: of the complete pass; those of its launches follow. parameters: of the complete pass.

    Raises:
        LaunchLimitError: an extent that no device could take.
    """
    shared = (ParameterValue("batch_size", problem.batch_size), ParameterValue("sequence_length", problem.sequence_length))
    steps = tuple(
        _planned_step(operation, variant, first_index + 1 + position, cache_mode, shared)
        for position, operation in enumerate(operations(problem, variant))
    )
    pass_configuration = Configuration(
        configuration_index=first_index,
        kernel_name=problem.architecture.model_name,
        parameters=(*shared, *parameters),
        block=Dim3(1),
        grid=Dim3(1),
        dynamic_shared_memory_bytes=0,
        category=MODEL_CATEGORY,
        dtype=DataType.FLOAT32,
        flop=sum(step.configuration.flop or 0.0 for step in steps),
        bytes=sum(step.configuration.bytes or 0.0 for step in steps),
        cache_mode=cache_mode,
        variant=variant,
    )
    return PlannedPass(variant, pass_configuration, steps)


def _planned_step(
    operation: Operation, variant: str, configuration_index: int, cache_mode: CacheMode, shared: tuple[ParameterValue, ...]
) -> PlannedStep:
    kernel = _kernel(operation.kernel_name)
    launch = kernel.definition.launch
    names = {**kernel.constants, **operation.values, **operation.macros}
    block = operation.block or Dim3(*(parse_expression(extent).evaluate_integer(names) for extent in launch.block))
    plan = plan_launch(PlannedConfiguration(configuration_index, kernel, operation.values, operation.macros, block, cache_mode, 0, variant))
    configuration = replace(plan.configuration, layer_path=operation.layer_path, parameters=(*shared, *plan.configuration.parameters))
    return PlannedStep(operation, replace(plan, configuration=configuration))


@lru_cache
def _kernel(kernel_name: str) -> PlannedKernel:
    catalog = next(catalog for catalog in _catalogs() if kernel_name in catalog.definitions)
    definition: KernelDefinition = catalog.definition(kernel_name)
    return PlannedKernel(definition, catalog.source(kernel_name), axes=(), ties=(), arguments=definition.arguments)


@lru_cache
def _catalogs() -> tuple[Catalog, ...]:
    """Return the project's own catalogues, whichever one the node offers for sweeps."""
    return load_catalog(), load_catalog(catalog_folder() / "gpt" / "catalog.toml")
