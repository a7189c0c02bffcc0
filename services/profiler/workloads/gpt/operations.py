"""The operations of a GPT's forward pass, variant by variant: catalog kernels in order, on named tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.ml_models import Architecture
from kernalyse.services.core.model import CacheMode, Configuration, DataType, DeviceKind, Dim3, KernelDefinition, ParameterValue
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, catalog_directory, load_catalog
from kernalyse.services.profiler.workloads.gpt.spec import FUSED
from kernalyse.services.profiler.workloads.sweeps.launches import LaunchPlan, plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration, PlannedKernel

MAX_NORM_BLOCK: Final = 256  # threads on a row: more wait for each other longer than they save
CPU_NORM_BLOCK: Final = 16  # one vector: every barrier of a wider block is a loop over its threads
SMALL_TILE: Final = 32
LARGE_TILE: Final = 64  # of matmul_block: twice the work per byte, worth it once there are blocks for all multiprocessors


@dataclass(frozen=True, slots=True)
class Problem:
    """An ML model on one input shape, and the kind of device that kernels are selected for."""

    architecture: Architecture
    batch_size: int
    sequence_length: int
    vocabulary_size: int
    device_kind: DeviceKind
    compute_unit_count: int | None = None

    @property
    def row_count(self) -> int:
        """Return the number of rows of the activations: one for each token of each sequence."""
        return self.batch_size * self.sequence_length


@dataclass(frozen=True, slots=True)
class Operation:
    """One launch of the pass: a kernel, its dimensions, and the tensors that it works on."""

    layer_path: str
    kernel_name: str
    values: Mapping[str, int]  # of the kernel's parameters
    tensors: Mapping[str, str]  # tensor for each of the kernel's buffers, by their names
    block: Dim3 | None = None  # None: the definition's
    macros: Mapping[str, int] = field(default_factory=dict)


def operations(problem: Problem, variant: str) -> tuple[Operation, ...]:
    """Return the launches of one pass in their order.

    Tensors: tokens and logits; the activations x (residual stream), normed, qkv, scores, attended, delta, hidden; weights by
    the paths of their layers.
    """
    return tuple(_fused(problem) if variant == FUSED else _baseline(problem))


def _baseline(problem: Problem) -> Iterator[Operation]:
    """Yield one naive kernel for each operation."""
    architecture = problem.architecture
    yield _embedding(problem)
    for index in range(architecture.layer_count):
        block = f"blocks.{index}"
        yield _layernorm(problem, f"{block}.ln1")
        yield from _linear(problem, f"{block}.attn.qkv", "normed", "qkv", architecture.width, 3 * architecture.width)
        yield from _attention(problem, f"{block}.attn")
        yield from _linear(problem, f"{block}.attn.proj", "attended", "delta", architecture.width, architecture.width)
        yield _residual(problem, f"{block}.attn.residual")
        yield _layernorm(problem, f"{block}.ln2")
        yield from _linear(problem, f"{block}.mlp.fc", "normed", "hidden", architecture.width, architecture.mlp_width)
        yield Operation(f"{block}.mlp.gelu", "gelu", {"N": problem.row_count * architecture.mlp_width}, {"x": "hidden"})
        yield from _linear(problem, f"{block}.mlp.proj", "hidden", "delta", architecture.mlp_width, architecture.width)
        yield _residual(problem, f"{block}.mlp.residual")
    yield _layernorm(problem, "ln_f")
    yield Operation("logits", "matmul_naive", _extents(problem, architecture.width, problem.vocabulary_size), _logits_tensors())


def _fused(problem: Problem) -> Iterator[Operation]:
    """Yield fused kernels: bias and GELU in the products, the residual in the layer norm after it, attention in one kernel."""
    architecture = problem.architecture
    width, mlp_width = architecture.width, architecture.mlp_width
    yield _embedding(problem)
    yield _layernorm(problem, "blocks.0.ln1")
    for index in range(architecture.layer_count):
        block = f"blocks.{index}"
        following = f"blocks.{index + 1}.ln1" if index + 1 < architecture.layer_count else "ln_f"
        yield _product(problem, f"{block}.attn.qkv", "normed", "qkv", width, 3 * width, "_bias")
        yield _one_kernel_attention(problem, f"{block}.attn.core")
        yield _product(problem, f"{block}.attn.proj", "attended", "delta", width, width, "_bias")
        yield _residual_layernorm(problem, f"{block}.ln2")
        yield _product(problem, f"{block}.mlp.fc", "normed", "hidden", width, mlp_width, "_bias_gelu")
        yield _product(problem, f"{block}.mlp.proj", "hidden", "delta", mlp_width, width, "_bias")
        yield _residual_layernorm(problem, following)
    yield _product(problem, "logits", "normed", "logits", width, problem.vocabulary_size, "")


# ---------------------------------------------------------------- operations of both variants


def _embedding(problem: Problem) -> Operation:
    extents = {
        "M": problem.row_count,
        "T": problem.sequence_length,
        "D": problem.architecture.width,
        "V": problem.vocabulary_size,
    }
    tables = {"token_table": "embed.token_table", "position_table": "embed.position_table"}
    return Operation("embed", "embedding", extents, {"tokens": "tokens", "x": "x", **tables})


def _layernorm(problem: Problem, path: str) -> Operation:
    return Operation(
        path,
        "layernorm",
        {"M": problem.row_count, "N": problem.architecture.width},
        {"x": "x", "y": "normed", **_norm_weights(path)},
        Dim3(_norm_block(problem)),
    )


# ---------------------------------------------------------------- operations of the baseline


def _linear(problem: Problem, path: str, source: str, target: str, in_width: int, out_width: int) -> Iterator[Operation]:
    extents = _extents(problem, in_width, out_width)
    yield Operation(path, "matmul_naive", extents, {"A": source, "B": f"{path}.weight", "C": target})
    yield Operation(path, "add_bias", {"M": extents["M"], "N": out_width}, {"x": target, "bias": f"{path}.bias"})


def _attention(problem: Problem, path: str) -> Iterator[Operation]:
    extents = _head_extents(problem)
    length = problem.sequence_length
    rows = {"R": problem.batch_size * problem.architecture.head_count * length, "T": length}
    yield Operation(f"{path}.scores", "attention_scores", extents, {"qkv": "qkv", "scores": "scores"})
    yield Operation(f"{path}.softmax", "causal_softmax", rows, {"scores": "scores"})
    yield Operation(f"{path}.values", "attention_values", extents, {"scores": "scores", "qkv": "qkv", "output": "attended"})


def _residual(problem: Problem, path: str) -> Operation:
    return Operation(path, "add_residual", {"N": problem.row_count * problem.architecture.width}, {"x": "x", "delta": "delta"})


# ---------------------------------------------------------------- operations of the fused variant


def _product(problem: Problem, path: str, source: str, target: str, in_width: int, out_width: int, epilogue: str) -> Operation:
    """Return a product: rows in registers on CPUs, tiles in shared memory on GPUs. epilogue: "", "_bias" or "_bias_gelu"."""
    extents = _extents(problem, in_width, out_width)
    tensors = {"A": source, "B": f"{path}.weight", "C": target} | ({"bias": f"{path}.bias"} if epilogue else {})
    if problem.device_kind is DeviceKind.CPU:
        return Operation(path, f"matmul_registers{epilogue}", extents, tensors)
    large_tile_count = -(-extents["M"] // LARGE_TILE) * -(-out_width // LARGE_TILE)
    tile = LARGE_TILE if large_tile_count >= (problem.compute_unit_count or 1) else SMALL_TILE
    return Operation(path, f"matmul_block{epilogue}", extents, tensors, Dim3(tile // 4, tile // 4), {"TILE": tile})


def _one_kernel_attention(problem: Problem, path: str) -> Operation:
    extents = _head_extents(problem)
    return Operation(path, "causal_attention", extents, {"qkv": "qkv", "output": "attended"}, macros={"HEAD_WIDTH": extents["D"]})


def _residual_layernorm(problem: Problem, path: str) -> Operation:
    return Operation(
        path,
        "residual_layernorm",
        {"M": problem.row_count, "N": problem.architecture.width},
        {"x": "x", "delta": "delta", "y": "normed", **_norm_weights(path)},
        Dim3(_norm_block(problem)),
    )


# ---------------------------------------------------------------- dimensions and tensor names


def _extents(problem: Problem, in_width: int, out_width: int) -> dict[str, int]:
    return {"M": problem.row_count, "N": out_width, "K": in_width}


def _head_extents(problem: Problem) -> dict[str, int]:
    architecture = problem.architecture
    return {"B": problem.batch_size, "H": architecture.head_count, "T": problem.sequence_length, "D": architecture.head_width}


def _norm_weights(path: str) -> dict[str, str]:
    return {"gamma": f"{path}.gamma", "beta": f"{path}.beta"}


def _logits_tensors() -> dict[str, str]:
    return {"A": "normed", "B": "logits.weight", "C": "logits"}


def _norm_block(problem: Problem) -> int:
    """Return the threads of a block that normalizes one row: a power of two, which the kernels need."""
    if problem.device_kind is DeviceKind.CPU:
        return CPU_NORM_BLOCK
    return min(MAX_NORM_BLOCK, 1 << (problem.architecture.width.bit_length() - 1))


# ---------------------------------------------------------------- planned launches
# The launches of one variant, resolved from the catalogs: kernels, dimensions, counts and memory.

MODEL_CATEGORY: Final = "model"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One launch of a planned pass."""

    operation: Operation
    plan: LaunchPlan

    @property
    def configuration(self) -> Configuration:
        """Return the configuration under which the launch is reported."""
        return self.plan.configuration

    @property
    def device_memory_bytes(self) -> int:
        """Return the size of the tensors that the launch uses."""
        return sum({self.operation.tensors[buffer.name]: buffer.size_bytes for buffer in self.plan.buffers()}.values())


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A variant of a model: its launches, and the complete pass as a configuration of its own."""

    variant: str
    pass_configuration: Configuration
    steps: tuple[PlannedStep, ...]

    @property
    def name(self) -> str:
        """Return the name of model and variant."""
        return f"{self.pass_configuration.kernel_name} {self.variant}"

    @property
    def configuration_count(self) -> int:
        """Return the number of configurations: one for each launch, and one for the complete pass."""
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
    """Return the project's own catalogs, whatever catalog the node offers for sweeps."""
    return load_catalog(), load_catalog(catalog_directory() / "gpt" / "catalog.toml")
