"""Samples of every launch of a pass: complete passes, launch by launch, until their sum is known well enough."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from services.core.model import StopReason, TimingMethod, Verification
from services.core.statistics import Samples
from services.profiler.backends.base import TimedSamples, Timing
from services.profiler.measuring.benchmark import Batch, Recorder
from services.profiler.measuring.busy import DeviceUse
from services.profiler.measuring.clocks import ClockReading
from services.profiler.measuring.stopping import StoppingRule
from services.profiler.measuring.verification import joined
from services.profiler.workloads.gpt.loading import LoadedPass
from services.profiler.workloads.gpt.pass_bench import INPUT_DISTRIBUTION, PassContext

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
    """Samples of one variant, taken in batches of passes; another may take batches in between.

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
            result = samples.recorder.result(stop_reason, joined(verification, recheck), timing)
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
    """Samples of one launch, or of all launches of a pass together, and why they are enough."""

    def __init__(self, rule: StoppingRule) -> None:
        self.recorder = Recorder(rule)
        self.stop_reason: StopReason | None = None

    def add(self, durations_ns: Samples, reading: ClockReading | None) -> Batch:
        """Record samples. They go on coming after there are enough, for the sake of the pass's other launches: they count too."""
        batch = self.recorder.record(TimedSamples(durations_ns), reading)
        if self.stop_reason is None:
            self.stop_reason = self.recorder.criterion.add(batch.counted_ns)
        else:
            self.recorder.criterion.keep(batch.counted_ns)
        return batch
