"""Interleaved (ABBA) trials of two started configurations, until it is known which is faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from kernalyse.services.core.comparison import CONFIDENCE, Comparison, RatioInterval, Timings, compare_pairs, equality_margin
from kernalyse.services.core.model import Device, DeviceKind, PairedComparison, StopReason
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.backends.base import TimedSamples
from kernalyse.services.profiler.measuring.benchmark import Benchmark, throttled_error
from kernalyse.services.profiler.measuring.stopping import StoppingRule

TRIAL_NS: Final = 5_000_000
"""Wall clock of a trial. A shared machine changes its speed from one scheduling slice to the next: in the same seconds of
sampling, trials of 5 ms gave intervals half as wide as trials of 60 ms on Intel's runtime, a third as wide on PoCL; one
launch a trial, where launches are that long, was as good. Much shorter trials spend their time on the launch that warms the
cache and on reading clocks."""

CPU_BLOCK_NS: Final = 20_000_000
"""Wall clock of one side's block, which has several trials. On a CPU, other programs take a core for milliseconds at a time,
which only ever adds to a sample: the fastest of a block is what the kernel takes by itself. With seven busy programs on two
cores, four trials a block gave intervals of half a percent to 3 %, medians of single trials 1 to 9 %. Shorter blocks are often
without an undisturbed sample, longer ones leave too few blocks. A GPU runs one program at a time: a block is one trial, and its
median counts, for there a sample may also be too short by what the timer resolves."""

MIN_LOOK_COUNT: Final = 3  # samples that say how long one takes: fewer may all have been disturbed
REPORT_INTERVAL_NS: Final = 40_000_000  # of trials in one event: an event per trial would take time from the core that is measured
HEARTBEAT_INTERVAL_NS: Final = 5_000_000_000
"""Interval of status messages. A comparison after the measurements reports no samples, and a node takes a worker that is silent
for a minute (its configuration_time_limit_s) for one that hangs."""

LOOK_GROWTH: Final = 4  # look at the interval after a quarter more pairs: each look resamples all of them
TARGET_MARGIN_FRACTION: Final = 0.5
"""The interval is narrow enough at half the margin: two equal sides then come out SAME, for the ratio's own error is less
than the other half. A target as wide as the margin would leave most of them UNDECIDED."""

CLEAR_WIDTH_COUNT: Final = 3
"""Half-widths between the ratio and 1 that end it earlier: nearly eight standard errors. Stopping at the first interval that
leaves out 1 would call equal sides different as often as one looks."""

NS_PER_S: Final = 1e9


class Contender(Protocol):
    """A started configuration that takes part in interleaved trials."""

    @property
    def configuration_index(self) -> int:
        """Return the index of the configuration in its run."""
        ...

    @property
    def label(self) -> str:
        """Return the name of the configuration for people."""
        ...

    @property
    def device(self) -> Device:
        """Return the device that it is measured on."""
        ...

    @property
    def rule(self) -> StoppingRule:
        """Return the rule by which its sampling stops."""
        ...

    @property
    def benchmark(self) -> Benchmark:
        """Return its started benchmark."""
        ...


class InterleavedTrials:
    """Interleaved trials of two started configurations. `active` has the device; on_trial gets its index at each change."""

    def __init__(
        self,
        baseline: Contender,
        candidate: Contender,
        on_activity: Callable[[str], None],
        on_trial: Callable[[int], None] = lambda configuration_index: None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.active = baseline
        self.stop_reason = StopReason.TIME_LIMIT
        self._is_cpu = baseline.device.kind is DeviceKind.CPU
        self._baseline = _Operand(baseline, np.min if self._is_cpu else np.median)
        self._candidate = _Operand(candidate, np.min if self._is_cpu else np.median)
        self._on_activity = on_activity
        self._on_trial = on_trial
        self._clock_ns = clock_ns
        self._margin_ratio = equality_margin(baseline.device.kind)
        self._usable_pair_count = 0

    def compare(self, block_count: int, max_duration_ns: float = math.inf) -> PairedComparison:
        """Alternate in the order ABBA, so that a steady drift adds as much to the one side as to the other.

        max_duration_ns: of all trials, even where `block_count` is not reached; infinity: what both sides may take by their own
            rules, once it is.
        """
        baseline, candidate = self._baseline, self._candidate
        activity = f"comparing {candidate.run.label} with {baseline.run.label}"
        self._on_activity(activity)
        trials_per_block = self._time_alike()
        start_ns = last_report_ns = last_heartbeat_ns = self._clock_ns()
        limit_ns = baseline.run.rule.max_duration_ns + candidate.run.rule.max_duration_ns
        pair_count, next_look_count = 0, block_count
        while True:
            for trial in range(pair_count * trials_per_block, (pair_count + 1) * trials_per_block):
                for side in (baseline, candidate) if trial % 2 == 0 else (candidate, baseline):
                    self._with_device(side).take_trial()
            pair_count += 1
            now_ns = self._clock_ns()
            is_over = now_ns - start_ns >= max_duration_ns
            is_over = is_over or (pair_count >= block_count and (now_ns - start_ns >= limit_ns or self._is_full()))
            if is_over or pair_count >= next_look_count or now_ns - last_report_ns >= REPORT_INTERVAL_NS:
                baseline.report_blocks(trials_per_block)
                candidate.report_blocks(trials_per_block)
                last_report_ns = now_ns
            if now_ns - last_heartbeat_ns >= HEARTBEAT_INTERVAL_NS:
                self._on_activity(activity)
                last_heartbeat_ns = now_ns
            if is_over or pair_count >= next_look_count:
                comparison = self._look(pair_count)
                if is_over or (comparison is not None and self._is_narrow(comparison.duration)):
                    return self._result(comparison, is_over)
                next_look_count = pair_count + pair_count // LOOK_GROWTH

    def _time_alike(self) -> int:
        """Choose how both sides are timed; return the number of trials in a block.

        A kernel just short enough for batches is not compared with one just too long for them in single launches. And
        trials of both sides have as many samples: of two samples, the median and the fastest are other things than of four
        where other programs lengthen some of them by far.
        """
        sides = (self._baseline, self._candidate)
        timings = [side.run.benchmark.timing for side in sides]
        batching = next((timing.method for timing in timings if timing.launches_per_sample > 1), None)
        for side, timing in zip(sides, timings, strict=True):
            if batching is not None and timing.method is not batching:
                self._with_device(side).run.benchmark.change_method(batching)
        sample_ns = sum(self._with_device(side).time_sample() for side in sides) / len(sides)
        samples_per_trial = max(1, round(TRIAL_NS / sample_ns))
        for side in sides:
            side.samples_per_trial = samples_per_trial
        return max(1, round(CPU_BLOCK_NS / (samples_per_trial * sample_ns))) if self._is_cpu else 1

    def _with_device(self, side: _Operand) -> _Operand:
        self.active = side.run
        self._on_trial(side.run.configuration_index)
        return side

    def _is_full(self) -> bool:
        return any(side.sample_count >= side.run.rule.max_sample_count for side in (self._baseline, self._candidate))

    def _look(self, pair_count: int) -> Comparison | None:
        """Compare the pairs that have unthrottled samples on both sides; None where there is no such pair."""
        usable = [index for index in range(pair_count) if self._baseline.has_block(index) and self._candidate.has_block(index)]
        self._usable_pair_count = len(usable)
        if not usable:
            return None
        return compare_pairs(self._candidate.timings(usable), self._baseline.timings(usable), self._margin_ratio)

    def _is_narrow(self, ratio: RatioInterval) -> bool:
        return ratio.half_width_ratio <= max(TARGET_MARGIN_FRACTION * self._margin_ratio, abs(math.log(ratio.ratio)) / CLEAR_WIDTH_COUNT)

    def _result(self, comparison: Comparison | None, is_over: bool) -> PairedComparison:
        if comparison is None:
            raise throttled_error(
                f"comparison of {self._candidate.run.label} with {self._baseline.run.label}", "no pair of blocks at an undisturbed clock"
            )
        if not is_over:
            self.stop_reason = StopReason.CONFIDENCE_REACHED
        elif self._is_full():
            self.stop_reason = StopReason.SAMPLE_LIMIT
        duration, cycles = comparison.duration, comparison.cycles
        return PairedComparison(
            configuration_index=self._candidate.run.configuration_index,
            baseline_configuration_index=self._baseline.run.configuration_index,
            block_count=self._usable_pair_count,
            duration_ratio=duration.ratio,
            duration_ratio_low=duration.low,
            duration_ratio_high=duration.high,
            cycle_ratio=None if cycles is None else cycles.ratio,
            cycle_ratio_low=None if cycles is None else cycles.low,
            cycle_ratio_high=None if cycles is None else cycles.high,
            confidence_ratio=CONFIDENCE,
            verdict=comparison.verdict,
            reason=comparison.reason,
            measured_unix_ns=time.time_ns(),
        )


class _Operand:
    """The blocks of one configuration: pending trials, then one statistic for each block.

    statistic: of a block's durations.
    """

    def __init__(self, run: Contender, statistic: Callable[[Samples], np.floating]) -> None:
        self.run = run
        self.samples_per_trial = 1
        self.sample_count = 0
        self._statistic = statistic
        self._pending: list[TimedSamples] = []  # trials
        self._durations_ns: list[float] = []  # of blocks; NaN: no sample of it counts
        self._cycle_counts: list[float] = []  # of blocks; NaN: no clock is known

    def time_sample(self) -> int:
        """Return the wall clock of a sample in ns; the fastest of some, for slow ones have been disturbed."""
        self.run.benchmark.take_block(1)
        walls_ns: list[int] = []
        while len(walls_ns) < MIN_LOOK_COUNT or sum(walls_ns) < CPU_BLOCK_NS:
            self.run.benchmark.take_block(1)
            walls_ns.append(self.run.benchmark.sample_ns)
        return min(walls_ns)

    def take_trial(self) -> None:
        self._pending.append(self.run.benchmark.take_block(self.samples_per_trial))

    def report_blocks(self, trials_per_block: int) -> None:
        usable = self.run.benchmark.report_blocks(self._pending) if self._pending else ()
        for first in range(0, len(usable), trials_per_block):
            trials = usable[first : first + trials_per_block]
            durations_ns = np.concatenate([trial.duration_ns for trial in trials])
            self.sample_count += durations_ns.size
            self._durations_ns.append(float(self._statistic(durations_ns)) if durations_ns.size else np.nan)
            self._cycle_counts.append(_median_cycle_count(trials))
        self._pending.clear()

    def has_block(self, index: int) -> bool:
        return not np.isnan(self._durations_ns[index])

    def timings(self, indexes: list[int]) -> Timings:
        cycle_counts = np.array(self._cycle_counts)[indexes]
        return Timings(np.array(self._durations_ns)[indexes], None if np.isnan(cycle_counts).any() else cycle_counts)


def _median_cycle_count(trials: Sequence[TimedSamples]) -> float:
    counts = [trial.duration_ns * trial.sm_clock_hz / NS_PER_S for trial in trials if trial.sm_clock_hz is not None]
    known = np.concatenate(counts) if counts else np.empty(0)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if known.size else np.nan
