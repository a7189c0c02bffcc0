"""Two started configurations that alternate on the device, block by block, until it is known which is faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from services.core.comparison import CONFIDENCE, Comparison, RatioInterval, Timings, compare_pairs, margin_of
from services.core.errors import UnmetConditionError
from services.core.model import PairedComparison, StopReason
from services.profiler.backends.base import TimedSamples
from services.profiler.workloads.configuration_run import ActivitySink, ConfigurationRun

BLOCK_NS: Final = 5_000_000
"""Wall clock of a block. A shared machine changes its speed from one scheduling slice to the next: in the same seconds of
sampling, blocks of 5 ms gave intervals half as wide as blocks of 60 ms on Intel's runtime, a third as wide on PoCL; one
launch a block, where launches are that long, was as good. Much shorter blocks spend their time on the launch that warms
the cache and on reading clocks."""

TELL_NS: Final = 40_000_000  # of blocks in one event: an event per block would cost a core what it is to measure with
LOOK_GROWTH: Final = 4  # look at the interval after a quarter more pairs: each look resamples all of them
TARGET_MARGIN_SHARE: Final = 0.5
"""The interval is narrow enough at half the margin: two equal sides then come out SAME, for the ratio's own error is less
than the other half. A target as wide as the margin would leave most of them UNDECIDED."""

CLEAR_WIDTH_COUNT: Final = 3
"""Half-widths between the ratio and 1 that end it earlier: nearly eight standard errors. Stopping at the first interval that
leaves out 1 would call equal sides different as often as one looks."""

NS_PER_S: Final = 1e9


class Turns:
    """Two started configurations that alternate. `whose` is the one that has the device."""

    def __init__(
        self,
        baseline: ConfigurationRun,
        judged: ConfigurationRun,
        on_activity: ActivitySink,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.whose = baseline
        self.stop_reason = StopReason.TIME_LIMIT
        self._baseline = _Side(baseline)
        self._judged = _Side(judged)
        self._on_activity = on_activity
        self._clock_ns = clock_ns
        self._margin_ratio = margin_of(baseline.device.kind)
        self._kept_pair_count = 0

    def compare(self, block_count: int, max_duration_ns: float = math.inf) -> PairedComparison:
        """Blocks in the order ABBA: what drifts steadily adds as much to the one side as to the other.

        max_duration_ns: of taking turns, even where `block_count` is not reached; infinity: what both sides may take by their own
            rules, once it is.
        """
        baseline, judged = self._baseline, self._judged
        self._on_activity(f"comparing {judged.run.label} with {baseline.run.label}")
        self._time_alike()
        start_ns = told_ns = self._clock_ns()
        limit_ns = baseline.run.rule.max_duration_ns + judged.run.rule.max_duration_ns
        pair_count, next_look_count = 0, block_count
        while True:
            for side in (baseline, judged) if pair_count % 2 == 0 else (judged, baseline):
                self.whose = side.run
                side.take_block()
            pair_count += 1
            now_ns = self._clock_ns()
            is_over = now_ns - start_ns >= max_duration_ns
            is_over = is_over or (pair_count >= block_count and (now_ns - start_ns >= limit_ns or self._is_full()))
            if is_over or pair_count >= next_look_count or now_ns - told_ns >= TELL_NS:
                baseline.keep_blocks()
                judged.keep_blocks()
                told_ns = now_ns
            if is_over or pair_count >= next_look_count:
                comparison = self._look(pair_count)
                if is_over or (comparison is not None and self._is_narrow(comparison.duration)):
                    return self._result(comparison, is_over)
                next_look_count = pair_count + pair_count // LOOK_GROWTH

    def _time_alike(self) -> None:
        """A kernel just short enough for batches is not compared with one just too long for them in single launches."""
        sides = (self._baseline, self._judged)
        timings = [side.run.benchmark.timing for side in sides]
        batching = next((timing.method for timing in timings if timing.launches_per_sample > 1), None)
        for side, timing in zip(sides, timings, strict=True):
            if batching is not None and timing.method is not batching:
                side.run.benchmark.take_method(batching)
            side.choose_sample_count()

    def _is_full(self) -> bool:
        return any(side.sample_count >= side.run.rule.max_sample_count for side in (self._baseline, self._judged))

    def _look(self, pair_count: int) -> Comparison | None:
        """Without the pairs of which the throttled samples have left nothing; None: they have left no pair."""
        kept = [index for index in range(pair_count) if self._baseline.has_block(index) and self._judged.has_block(index)]
        self._kept_pair_count = len(kept)
        if not kept:
            return None
        return compare_pairs(self._judged.timings(kept), self._baseline.timings(kept), self._margin_ratio)

    def _is_narrow(self, ratio: RatioInterval) -> bool:
        return ratio.half_width_ratio <= max(TARGET_MARGIN_SHARE * self._margin_ratio, abs(math.log(ratio.ratio)) / CLEAR_WIDTH_COUNT)

    def _result(self, comparison: Comparison | None, is_over: bool) -> PairedComparison:
        if comparison is None:
            raise UnmetConditionError(
                f"comparison of {self._judged.run.label} with {self._baseline.run.label}",
                found="no pair of blocks at an undisturbed clock",
                expected="a device that is not throttled",
                remedy="Look after its cooling and power supply, then try again.",
            )
        if not is_over:
            self.stop_reason = StopReason.CONFIDENCE_REACHED
        elif self._is_full():
            self.stop_reason = StopReason.SAMPLE_LIMIT
        duration, cycles = comparison.duration, comparison.cycles
        return PairedComparison(
            configuration_index=self._judged.run.planned.configuration_index,
            baseline_configuration_index=self._baseline.run.planned.configuration_index,
            block_count=self._kept_pair_count,
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


class _Side:
    """Blocks of one configuration: taken, then kept as medians."""

    def __init__(self, run: ConfigurationRun) -> None:
        self.run = run
        self.sample_count = 0
        self._count_a_block = 1
        self._taken: list[TimedSamples] = []
        self._durations_ns: list[float] = []  # NaN: no sample of the block counts
        self._cycle_counts: list[float] = []  # NaN: no clock is known

    def choose_sample_count(self) -> None:
        """The same for every block, by the wall clock of a sample; the fastest of three, for a slow one has been disturbed."""
        self.run.take_block(1)
        sample_ns = min((self.run.take_block(1), self.run.benchmark.sample_ns)[1] for _ in range(3))
        self._count_a_block = max(1, round(BLOCK_NS / sample_ns))

    def take_block(self) -> None:
        self._taken.append(self.run.take_block(self._count_a_block))

    def keep_blocks(self) -> None:
        for block in self.run.keep_blocks(self._taken) if self._taken else ():
            self.sample_count += block.duration_ns.size
            self._durations_ns.append(float(np.median(block.duration_ns)) if block.duration_ns.size else np.nan)
            self._cycle_counts.append(_median_cycle_count(block))
        self._taken.clear()

    def has_block(self, index: int) -> bool:
        return not np.isnan(self._durations_ns[index])

    def timings(self, indexes: list[int]) -> Timings:
        cycle_counts = np.array(self._cycle_counts)[indexes]
        return Timings(np.array(self._durations_ns)[indexes], None if np.isnan(cycle_counts).any() else cycle_counts)


def _median_cycle_count(block: TimedSamples) -> float:
    if block.sm_clock_hz is None or not np.isfinite(block.sm_clock_hz).any():
        return np.nan
    return float(np.nanmedian(block.duration_ns * block.sm_clock_hz / NS_PER_S))
