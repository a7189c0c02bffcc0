"""The time of every launch of a pass: whole passes, launch by launch, until their sum is known well enough."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from services.core.errors import UnmetConditionError
from services.core.model import StopReason, TimingMethod, Verification
from services.core.statistics import summarize
from services.profiler.backends.base import TimedSamples, Timing
from services.profiler.measuring.benchmark import Batch, BenchmarkResult
from services.profiler.measuring.busy import DeviceUse
from services.profiler.measuring.clocks import ClockRecord
from services.profiler.measuring.stopping import MIN_SPREAD_COUNT, StoppingCriterion, StoppingRule
from services.profiler.measuring.verification import joined
from services.profiler.workloads.gpt.loading import LoadedPass
from services.profiler.workloads.gpt.pass_bench import INPUT_DISTRIBUTION, PassBench

TARGET_BATCH_NS: Final = 200_000_000
"""Of passes between two events for each launch. A pass has a hundred launches: shorter batches flood whoever watches with
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
    """One variant, sampled in batches of passes; another may take batches in between.

    Args:
        block_count: batches that a comparison with the other wants; they are taken as far as the time allows. 0: there is none.
    """

    def __init__(self, loaded: LoadedPass, bench: PassBench, block_count: int) -> None:
        self._loaded = loaded
        self._bench = bench
        self._clocks = ClockRecord()
        rule = replace(bench.method.rule, max_duration_ns=bench.method.rule.max_duration_ns // LIMIT_DIVISOR)
        self._rule = rule
        self._sums = _Record(rule)
        self._steps = [_Record(rule) for _ in loaded.planned.steps]
        self._block_count = block_count
        self._target_batch_ns = min(TARGET_BATCH_NS, rule.max_duration_ns // max(1, BLOCK_ROOM * block_count))
        self._taken_block_count = 0
        self._batch_count = 1
        self._taken_count = 0
        self._discarded_count = 0
        self._elapsed_ns = 0
        self._measured_unix_ns = 0

    @property
    def is_finished(self) -> bool:
        """The launches of a pass together are known well enough, or each of them is; and there are blocks enough."""
        is_known = self._sums.stop_reason is not None or all(step.stop_reason is not None for step in self._steps)
        is_full = self._elapsed_ns >= self._rule.max_duration_ns or self._taken_count >= self._rule.max_sample_count
        return is_known and (is_full or self._taken_block_count >= self._block_count)

    def take_batch(self) -> None:
        """Takes passes and tells the samples of every launch.

        Raises:
            UnmetConditionError: the device was throttled all the time.
        """
        start_ns = time.perf_counter_ns()
        for record in (self._sums, *self._steps):
            record.criterion.resume()
        self._taken_block_count += 1
        count = min(self._batch_count, self._rule.max_sample_count - self._taken_count)
        durations_ns = self._bench.session.time_steps(self._loaded.launches, self._bench.method.cache_mode, max(1, count))
        self._tell(durations_ns)
        batch_ns = max(1, time.perf_counter_ns() - start_ns)
        self._elapsed_ns += batch_ns
        size = durations_ns.shape[0]
        self._batch_count = max(1, min(self._target_batch_ns * size // batch_ns, MAX_BATCH_GROWTH * size, MAX_BATCH_COUNT))
        for record in (self._sums, *self._steps):
            record.criterion.pause()
        self._check_progress()

    def _tell(self, durations_ns: npt.NDArray[np.float64]) -> None:
        self._measured_unix_ns = time.time_ns()
        reading = self._bench.clock_meter.read()
        self._clocks.add(reading)
        is_throttled = reading is not None and reading.is_throttled
        size = durations_ns.shape[0]
        discarded = tuple(range(size)) if is_throttled else ()
        for record, planned, samples_ns in zip(self._steps, self._loaded.planned.steps, durations_ns.T, strict=True):
            batch = Batch(self._taken_count, TimedSamples(np.ascontiguousarray(samples_ns)), discarded, self._measured_unix_ns)
            self._bench.sink.write(batch.event(planned.configuration.configuration_index))
            record.add(batch.samples.duration_ns[: 0 if is_throttled else size])
        self._sums.add(durations_ns[: 0 if is_throttled else size].sum(axis=1))
        self._taken_count += size
        self._discarded_count += len(discarded)

    def _check_progress(self) -> None:
        kept_count = self._taken_count - self._discarded_count
        if kept_count < MIN_SPREAD_COUNT and self._discarded_count and self._elapsed_ns >= self._rule.max_duration_ns:
            reading = self._clocks.mean()
            raise UnmetConditionError(
                f"launches of {self._loaded.planned.name}",
                found=f"a clock held back by {', '.join(reading.throttle_reasons or ('an unknown reason',))}",
                expected="a device that is not throttled",
                remedy="Look after its cooling and power supply, then try again.",
            )

    def finish(self, verification: Verification, recheck: Verification | None, use: DeviceUse) -> int:
        """Tells what each launch comes to, and answers with their number. Arguments as of `PassRun.finish`."""
        bench, clocks = self._bench, self._clocks.mean()
        for record, planned, kernel in zip(self._steps, self._loaded.planned.steps, self._loaded.kernels, strict=True):
            result = BenchmarkResult(
                summary=summarize(record.criterion.samples()),
                verification=joined(verification, recheck),
                stop_reason=record.stop_reason or StopReason.TIME_LIMIT,  # the pass's time was up
                discarded_sample_count=self._discarded_count,
                measured_unix_ns=self._measured_unix_ns,
                elapsed_ns=self._elapsed_ns,
                clocks=clocks,
                timing=Timing(TimingMethod.SINGLE, bench.method.cache_mode),
                is_blocked=False,
            )
            index = planned.configuration.configuration_index
            measured = result.measurement(index, bench.method, bench.session.device, use)
            bench.sink.write(
                replace(
                    measured,
                    compile_ns=kernel.compile_ns,
                    compiler_options=kernel.compiler_options,
                    resources=bench.session.resources(kernel, planned.plan.launch),
                    seed=bench.seed,
                    input_distribution=INPUT_DISTRIBUTION,
                    recheck=recheck,
                    device_memory_bytes=planned.device_memory_bytes,
                )
            )
        return len(self._steps)


class _Record:
    """Samples of one launch, or of all launches of a pass together, and why they are enough."""

    def __init__(self, rule: StoppingRule) -> None:
        self.criterion = StoppingCriterion(rule, time.perf_counter_ns)
        self.criterion.pause()
        self.stop_reason: StopReason | None = None

    def add(self, durations_ns: npt.NDArray[np.float64]) -> None:
        """Samples go on coming after it has enough, for the sake of the others of the pass: they count too."""
        if self.stop_reason is None:
            self.stop_reason = self.criterion.add(durations_ns)
        else:
            self.criterion.keep(durations_ns)
