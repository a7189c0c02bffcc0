"""A GPT on the device: its tensors, and the passes that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.profiler.backends.base import CompiledKernel, DeviceBuffer
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.backends.passes import LaunchPass, PassSession, PassStep
from services.profiler.measuring.arguments import bind_arguments
from services.profiler.workloads.gpt.launches import PlannedPass, PlannedStep
from services.profiler.workloads.gpt.operations import Problem
from services.profiler.workloads.gpt.reference import LOGITS
from services.profiler.workloads.gpt.weights import TOKENS, Array
from services.profiler.workloads.sweep_compiler import SweepCompiler


@dataclass(frozen=True, slots=True)
class LoadedPass:
    """A variant, ready to be launched."""

    planned: PlannedPass
    launches: LaunchPass
    kernels: tuple[CompiledKernel, ...]  # of each step


class LoadedModel:
    """Weights, tokens and room for activations; variants share all tensors that they have in common.

    Where a buffer happens to lie moves the speed of a memory-bound kernel: two variants that are compared must not differ in it.
    """

    def __init__(self, problem: Problem, passes: Sequence[PlannedPass], session: PassSession) -> None:
        """Allocate tensors. Raises MemoryLimitError: the device has less room than it states."""
        self._problem = problem
        self._session = session
        sizes = {name: size_bytes for planned in passes for name, size_bytes in planned.tensor_bytes().items()}
        self._tensors: dict[str, DeviceBuffer] = {name: session.allocate(size_bytes) for name, size_bytes in sizes.items()}

    def fill(self, weights: Mapping[str, Array], tokens: Array) -> None:
        for name, values in {**weights, TOKENS: tokens}.items():
            self._session.upload(self._tensors[name], np.ascontiguousarray(values))

    def prepare(self, planned: PlannedPass, compiler: SweepCompiler) -> LoadedPass:
        """Compile and bind a variant. Raises what the session's compiler raises: CompileError, UnsupportedConstructError."""
        kernels = tuple(compiler.compile(step.plan.planned) for step in planned.steps)
        steps = tuple(
            PassStep(step.operation.layer_path, self._session.prepare(kernel, self._arguments(step), step.plan.launch))
            for step, kernel in zip(planned.steps, kernels, strict=True)
        )
        return LoadedPass(planned, LaunchPass(planned.pass_configuration.kernel_name, steps), kernels)

    def logits(self, loaded: LoadedPass) -> Array:
        """Return what one pass writes, float32, shape (batch, sequence, vocabulary); NaN where it writes nothing."""
        problem = self._problem
        logits = np.full((problem.batch_size, problem.sequence_length, problem.vocabulary_size), np.nan, np.float32)
        self._session.upload(self._tensors[LOGITS], logits)
        self._session.run_pass(loaded.launches)
        self._session.download(self._tensors[LOGITS], logits)
        return logits

    def _arguments(self, step: PlannedStep) -> list[DeviceBuffer | np.generic]:
        definition = step.plan.definition
        function = parse_kernel_source(step.plan.planned.kernel.source).kernel(definition.function)
        buffers = {buffer: self._tensors[tensor] for buffer, tensor in step.operation.tensors.items()}
        return bind_arguments(definition.kernel_name, function.parameters, buffers, step.plan.scalars)

    def release(self) -> None:
        for tensor in self._tensors.values():
            self._session.release(tensor)
        self._tensors.clear()
