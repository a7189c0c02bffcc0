"""When to stop taking samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.model import DeviceKind, MeasuringOptions, StopReason
from services.core.statistics import Samples, median_interval

GPU_TARGET_HALF_WIDTH_RATIO: Final = 0.005
CPU_TARGET_HALF_WIDTH_RATIO: Final = 0.02  # shared cores are noisier: at 0.5 % nearly every configuration would run into the limit
DEFAULT_MAX_SAMPLE_COUNT: Final = 50_000  # fewer end launches of 10 us before half a second; more fill the journal: 8 bytes each
MIN_SPREAD_COUNT: Final = 2  # without two samples there is no standard deviation, so no limit may stop earlier
CHECK_GROWTH: Final = 8  # look again after 1/8 more samples: looking at every batch would cost O(n^2), rarer would overshoot
MIN_IMPROVEMENT_RATIO: Final = 0.1  # independent samples narrow the interval by 29 % when their number doubles
MAX_IDLE_DOUBLING_COUNT: Final = 2  # one doubling without improvement happens by chance


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """The limits of one configuration's sampling."""

    target_half_width_ratio: float
    min_sample_count: int
    max_sample_count: int
    min_duration_ns: int
    max_duration_ns: int

    @classmethod
    def of(cls, options: MeasuringOptions, device_kind: DeviceKind) -> StoppingRule:
        """The rule that `options` ask for, with the defaults of the device kind where they ask for nothing."""
        default_ratio = CPU_TARGET_HALF_WIDTH_RATIO if device_kind is DeviceKind.CPU else GPU_TARGET_HALF_WIDTH_RATIO
        return cls(
            target_half_width_ratio=default_ratio if options.target_half_width_ratio is None else options.target_half_width_ratio,
            min_sample_count=max(MIN_SPREAD_COUNT, options.min_sample_count),
            max_sample_count=max(MIN_SPREAD_COUNT, options.max_sample_count or DEFAULT_MAX_SAMPLE_COUNT),
            min_duration_ns=options.min_duration_ns,
            max_duration_ns=options.max_duration_ns,
        )


class StoppingCriterion:
    """Takes batches of samples and says when there are enough.

    Sampling stops, whichever comes first,

    - at the sample limit or the time limit (wall clock since this object was made), but never before two samples;
    - once both minima are reached and the half-width of the median's 95 % interval is at most the target;
    - once both minima are reached and the interval no longer improves: it is noted whenever the number of samples has
      doubled, and two doublings in a row narrowed it by less than 10 % each.

    The interval is computed only past the minima and then after every eighth more samples, so all checks together
    cost O(n) with n samples.
    """

    def __init__(self, rule: StoppingRule, clock_ns: Callable[[], int]) -> None:
        self._rule = rule
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._batches: list[Samples] = []
        self._count = 0
        self._next_check_count = rule.min_sample_count
        self._doubling_count = 0  # samples at the last noted half-width
        self._noted_ratio: float | None = None
        self._idle_doublings = 0

    @property
    def sample_count(self) -> int:
        return self._count

    @property
    def elapsed_ns(self) -> int:
        return self._clock_ns() - self._start_ns

    def samples(self) -> Samples:
        """All samples so far, in the order taken, shape (sample_count,)."""
        if len(self._batches) > 1:
            self._batches = [np.concatenate(self._batches)]
        return self._batches[0] if self._batches else np.empty(0)

    def add(self, durations_ns: Samples) -> StopReason | None:
        """Takes one batch, shape (n,); the reason to stop now, or None to go on."""
        self._batches.append(durations_ns)
        self._count += durations_ns.size
        elapsed_ns = self.elapsed_ns
        if self._has_enough(elapsed_ns):
            reason = self._judge_interval()
            if reason is not None:
                return reason
        return self._reached_limit(elapsed_ns)

    def _has_enough(self, elapsed_ns: int) -> bool:
        return elapsed_ns >= self._rule.min_duration_ns and self._count >= self._next_check_count

    def _reached_limit(self, elapsed_ns: int) -> StopReason | None:
        if self._count < MIN_SPREAD_COUNT:
            return None
        if self._count >= self._rule.max_sample_count:
            return StopReason.SAMPLE_LIMIT
        return StopReason.TIME_LIMIT if elapsed_ns >= self._rule.max_duration_ns else None

    def _judge_interval(self) -> StopReason | None:
        self._next_check_count = self._count + max(1, self._count // CHECK_GROWTH)
        ratio = median_interval(self.samples()).half_width_ratio
        if ratio <= self._rule.target_half_width_ratio:
            return StopReason.CONFIDENCE_REACHED
        if self._count >= 2 * self._doubling_count:
            self._note(ratio)
        return StopReason.NO_IMPROVEMENT if self._idle_doublings >= MAX_IDLE_DOUBLING_COUNT else None

    def _note(self, ratio: float) -> None:
        if self._noted_ratio is not None:
            improved = ratio <= self._noted_ratio * (1 - MIN_IMPROVEMENT_RATIO)
            self._idle_doublings = 0 if improved else self._idle_doublings + 1
        self._noted_ratio, self._doubling_count = ratio, self._count
