"""A GPT on a device: its loading, and the timing of complete passes and single launches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.model import Device, StopReason, TimingMethod, Verification
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.backends.base import (
    CompiledKernel,
    DeviceBuffer,
    LaunchPass,
    PassSession,
    PassStep,
    PreparedLaunch,
    TimedSamples,
    Timing,
)
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.measuring.benchmark import Batch, Benchmark, Method, Observer, Recorder
from kernalyse.services.profiler.measuring.buffers import bind_arguments
from kernalyse.services.profiler.measuring.device_state import ClockMeter, ClockReading, ContentionCheck, DeviceUse
from kernalyse.services.profiler.measuring.stopping import StoppingRule
from kernalyse.services.profiler.measuring.verification import worse_verification
from kernalyse.services.profiler.workloads.events import EventSink
from kernalyse.services.profiler.workloads.gpt.operations import PlannedPass, PlannedStep, Problem
from kernalyse.services.profiler.workloads.gpt.reference import LOGITS, TOKENS, Array
from kernalyse.services.profiler.workloads.sweeps.configuration import ActivitySink
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler

# ---------------------------------------------------------------- loading


@dataclass(frozen=True, slots=True)
class LoadedPass:
    """A variant, compiled and bound, ready to be launched."""

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
        """Upload weights and tokens."""
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
        """Free all tensors."""
        for tensor in self._tensors.values():
            self._session.release(tensor)
        self._tensors.clear()


# ---------------------------------------------------------------- measurement context

INPUT_DISTRIBUTION: Final = "normal"  # of the weights


@dataclass(frozen=True, slots=True)
class PassContext:
    """The session, sink, meters and method of one model run."""

    session: PassSession
    sink: EventSink
    clock_meter: ClockMeter
    contention: ContentionCheck
    method: Method
    seed: int


# ---------------------------------------------------------------- complete passes
# The latency of a model: complete passes of one variant, without events between their launches.

FIRST_PASS_COUNT: Final = 3  # before the launches are timed: enough for a latency to look at, soon over in a large model


class PassRun:
    """The measurement of complete passes of one variant.

    Call `start`; then `sample`, or alternate two of them in interleaved trials; then `finish`.
    """

    def __init__(self, loaded: LoadedPass, verification: Verification, pass_context: PassContext, on_activity: ActivitySink) -> None:
        self._planned = loaded.planned
        self.verification: Final = verification
        self._pass_context = pass_context
        observer = Observer(on_activity=lambda activity: on_activity(f"{activity} {self.label}"), on_batch=self._report_batch)
        self.benchmark: Final = Benchmark(
            _PassTimer(pass_context.session), loaded.launches, pass_context.method, pass_context.clock_meter, observer
        )

    @property
    def label(self) -> str:
        """Return the name of the variant."""
        return self._planned.name

    @property
    def configuration_index(self) -> int:
        """Return the index of the complete pass."""
        return self._planned.pass_configuration.configuration_index

    @property
    def device(self) -> Device:
        """Return the device that the model runs on."""
        return self._pass_context.session.device

    @property
    def rule(self) -> StoppingRule:
        """Return the rule by which sampling stops."""
        return self._pass_context.method.rule

    def start(self) -> None:
        """Warm up, choose the timing, and take the first few passes."""
        self.benchmark.start(lambda: self.verification)
        count = min(FIRST_PASS_COUNT, self.rule.max_sample_count - 1)
        self.benchmark.report_blocks([self.benchmark.take_block(count)])

    def sample(self) -> StopReason:
        """Take passes until there are enough."""
        return self.benchmark.sample()

    def finish(self, stop_reason: StopReason, recheck: Verification | None, use: DeviceUse) -> None:
        """Report the measurement. recheck: the verification with new tokens. use: of the device by others during sampling."""
        pass_context, result = self._pass_context, self.benchmark.result(stop_reason)
        measured = result.measurement(self.configuration_index, pass_context.method, self.device, use)
        pass_context.sink.write(
            replace(
                measured,
                verification=worse_verification(self.verification, recheck),
                recheck=recheck,
                seed=pass_context.seed,
                input_distribution=INPUT_DISTRIBUTION,
                device_memory_bytes=self._planned.device_memory_bytes,
            )
        )

    def _report_batch(self, batch: Batch) -> None:
        self._pass_context.sink.write(batch.event(self.configuration_index))


class _PassTimer:
    """A session whose launches are passes. Each pass is one sample, being long enough for an event of its own."""

    timing_methods: Final = frozenset({TimingMethod.SINGLE})

    def __init__(self, session: PassSession) -> None:
        self._session = session

    def run(self, launch: PreparedLaunch) -> None:
        assert isinstance(launch, LaunchPass)
        self._session.run_pass(launch)

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        assert isinstance(launch, LaunchPass)
        return self._session.time_passes(launch, timing.cache_mode, count)


# ---------------------------------------------------------------- single launches
# Every launch is timed within complete passes, until the sum of the launches is known well enough.

TARGET_BATCH_NS: Final = 200_000_000
"""Wall clock of the passes between two events for each launch. A pass has a hundred launches: shorter batches flood whoever watches with
events, longer ones let them wait."""

LIMIT_DIVISOR: Final = 3
"""Launches may take a third of what a variant's whole passes may: there are dozens of them, and the shortest would otherwise keep
on for all that the limit allows, long after the layers that count are known."""

BLOCK_ROOM: Final = 2
"""Blocks for a comparison are so short that twice as many fit the time: with just as many, a machine that others slow down for a
moment would leave one too few."""

MAX_BATCH_COUNT: Final = 1_024
MAX_BATCH_GROWTH: Final = 4  # the first passes may be untypically quick


class StepSampling:
    """The sampling of one variant's launches in batches of passes, between which another variant may take batches.

    Args:
        block_count: batches that a comparison with the other needs; they are taken as far as the time allows. 0: there is none.
    """

    def __init__(self, loaded: LoadedPass, pass_context: PassContext, block_count: int) -> None:
        self._loaded = loaded
        self._pass_context = pass_context
        rule = replace(pass_context.method.rule, max_duration_ns=pass_context.method.rule.max_duration_ns // LIMIT_DIVISOR)
        self._rule = rule
        self._sums = _LaunchSamples(rule)
        self._steps = [_LaunchSamples(rule) for _ in loaded.planned.steps]
        self._block_count = block_count
        self._target_batch_ns = min(TARGET_BATCH_NS, rule.max_duration_ns // max(1, BLOCK_ROOM * block_count))
        self._taken_block_count = 0
        self._batch_count = 1

    @property
    def is_finished(self) -> bool:
        """Return whether the launches of a pass together are known well enough, or each of them is; and there are blocks enough."""
        is_known = self._sums.stop_reason is not None or all(step.stop_reason is not None for step in self._steps)
        recorder = self._sums.recorder
        is_full = recorder.elapsed_ns >= self._rule.max_duration_ns or recorder.taken_count >= self._rule.max_sample_count
        return is_known and (is_full or self._taken_block_count >= self._block_count)

    def take_batch(self) -> None:
        """Take passes and report the samples of every launch.

        Raises:
            UnmetConditionError: the device was throttled all the time.
        """
        start_ns = time.perf_counter_ns()
        series = (self._sums, *self._steps)
        for samples in series:
            samples.recorder.criterion.resume()
        self._taken_block_count += 1
        count = min(self._batch_count, self._rule.max_sample_count - self._sums.recorder.taken_count)
        durations_ns = self._pass_context.session.time_steps(self._loaded.launches, self._pass_context.method.cache_mode, max(1, count))
        self._report(durations_ns)
        batch_ns = max(1, time.perf_counter_ns() - start_ns)
        size = durations_ns.shape[0]
        self._batch_count = max(1, min(self._target_batch_ns * size // batch_ns, MAX_BATCH_GROWTH * size, MAX_BATCH_COUNT))
        for samples in series:
            samples.recorder.criterion.pause()
            samples.recorder.elapsed_ns += batch_ns
        self._sums.recorder.check_clock(f"launches of {self._loaded.planned.name}")

    def _report(self, durations_ns: npt.NDArray[np.float64]) -> None:
        reading = self._pass_context.clock_meter.read()
        for samples, planned, step_ns in zip(self._steps, self._loaded.planned.steps, durations_ns.T, strict=True):
            batch = samples.add(np.ascontiguousarray(step_ns), reading)
            self._pass_context.sink.write(batch.event(planned.configuration.configuration_index))
        self._sums.add(durations_ns.sum(axis=1), reading)

    def finish(self, verification: Verification, recheck: Verification | None, use: DeviceUse) -> int:
        """Report the measurement of each launch, and return their number. Arguments as of `PassRun.finish`."""
        pass_context = self._pass_context
        timing = Timing(TimingMethod.SINGLE, pass_context.method.cache_mode)
        for samples, planned, kernel in zip(self._steps, self._loaded.planned.steps, self._loaded.kernels, strict=True):
            stop_reason = samples.stop_reason or StopReason.TIME_LIMIT  # the pass's time was up
            result = samples.recorder.result(stop_reason, worse_verification(verification, recheck), timing)
            index = planned.configuration.configuration_index
            measured = result.measurement(index, pass_context.method, pass_context.session.device, use)
            pass_context.sink.write(
                replace(
                    measured,
                    compile_ns=kernel.compile_ns,
                    compiler_options=kernel.compiler_options,
                    resources=pass_context.session.resources(kernel, planned.plan.launch),
                    seed=pass_context.seed,
                    input_distribution=INPUT_DISTRIBUTION,
                    recheck=recheck,
                    device_memory_bytes=planned.device_memory_bytes,
                )
            )
        return len(self._steps)


class _LaunchSamples:
    """The samples of one launch, or of all launches of a pass together, and their stop reason."""

    def __init__(self, rule: StoppingRule) -> None:
        self.recorder = Recorder(rule)
        self.stop_reason: StopReason | None = None

    def add(self, durations_ns: Samples, reading: ClockReading | None) -> Batch:
        """Record samples. More may follow after there are enough, for the other launches of the pass; they count too."""
        batch = self.recorder.record(TimedSamples(durations_ns), reading)
        if self.stop_reason is None:
            self.stop_reason = self.recorder.criterion.add(batch.counted_ns)
        else:
            self.recorder.criterion.keep(batch.counted_ns)
        return batch
