"""Criteria for when to stop taking samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernalyse.services.core.model import DeviceKind, MeasuringOptions, StopReason
from kernalyse.services.core.model import StoppingCriterion as CriterionName
from kernalyse.services.core.statistics import Samples, median_interval

GPU_TARGET_HALF_WIDTH_RATIO: Final = 0.005
CPU_TARGET_HALF_WIDTH_RATIO: Final = 0.02  # shared cores are noisier: at 0.5 % nearly every configuration would run into the limit
GPU_TARGET_NOISE_RATIO: Final = 0.005  # as NVBench has it
CPU_TARGET_NOISE_RATIO: Final = 0.05
DEFAULT_MAX_SAMPLE_COUNT: Final = 50_000  # fewer end launches of 10 us before half a second; more fill the journal: 8 bytes each
DEFAULT_SAMPLE_COUNT: Final = 100  # of the criterion SAMPLE_COUNT without a count
MIN_SPREAD_COUNT: Final = 2  # without two samples there is no standard deviation, so no limit may stop earlier
CHECK_GROWTH: Final = 8  # look again after 1/8 more samples: looking at every batch would cost O(n^2), rarer would overshoot
MIN_IMPROVEMENT_RATIO: Final = 0.1  # independent samples narrow the interval by 29 % when their number doubles
MAX_IDLE_DOUBLING_COUNT: Final = 2  # one doubling without improvement happens by chance


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """The limits of one configuration's sampling, and the target that may end it earlier."""

    criterion: CriterionName
    target_ratio: float  # of the half-width or the noise; no meaning for other criteria
    min_sample_count: int
    max_sample_count: int
    min_duration_ns: int
    max_duration_ns: int

    @classmethod
    def of(cls, options: MeasuringOptions, device_kind: DeviceKind) -> StoppingRule:
        """Return the rule of `options`, with the device kind's defaults for what they leave open."""
        is_cpu = device_kind is DeviceKind.CPU
        if options.stopping_criterion is CriterionName.NOISE:
            asked, default_ratio = options.target_noise_ratio, CPU_TARGET_NOISE_RATIO if is_cpu else GPU_TARGET_NOISE_RATIO
        else:
            asked, default_ratio = options.target_half_width_ratio, CPU_TARGET_HALF_WIDTH_RATIO if is_cpu else GPU_TARGET_HALF_WIDTH_RATIO
        is_counted = options.stopping_criterion is CriterionName.SAMPLE_COUNT
        default_count = DEFAULT_SAMPLE_COUNT if is_counted else DEFAULT_MAX_SAMPLE_COUNT
        return cls(
            criterion=options.stopping_criterion,
            target_ratio=default_ratio if asked is None else asked,
            min_sample_count=max(MIN_SPREAD_COUNT, options.min_sample_count),
            max_sample_count=max(MIN_SPREAD_COUNT, options.max_sample_count or default_count),
            min_duration_ns=options.min_duration_ns,
            max_duration_ns=options.max_duration_ns,
        )


class StoppingCriterion:
    """The decision when enough samples have been taken, batch by batch.

    Sampling stops, whichever comes first,

    - at the sample limit or the time limit (time spent between `add`s since this object was made), but never before two samples;
    - once both minima are reached and the rule's criterion is met: half-width of the median's 95 % interval, or noise, at
      most the target; or an entropy that no longer grows;
    - once both minima are reached and half-width or noise no longer improve: noted whenever the number of samples has
      doubled, two doublings in a row brought it down by less than 10 % each.

    The figures are computed only past the minima and then after every eighth more samples, so all checks together cost
    O(n) with n samples.
    """

    def __init__(self, rule: StoppingRule, clock_ns: Callable[[], int]) -> None:
        self.rule = rule
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._paused_ns: int | None = None
        self._batches: list[Samples] = []
        self._count = 0
        self._next_check_count = rule.min_sample_count
        self._doubling_count = 0  # samples when the metric was last recorded
        self._noted_ratio: float | None = None
        self._idle_doublings = 0

    @property
    def sample_count(self) -> int:
        """Return the number of samples so far."""
        return self._count

    @property
    def elapsed_ns(self) -> int:
        """Return the time spent on sampling so far, pauses left out."""
        return (self._clock_ns() if self._paused_ns is None else self._paused_ns) - self._start_ns

    def change_rule(self, rule: StoppingRule) -> None:
        """Continue under another rule, with the samples taken so far."""
        self.rule = rule
        self._next_check_count = max(self._next_check_count, rule.min_sample_count)

    def pause(self) -> None:
        """Stop the clock until `resume`."""
        self._paused_ns = self._clock_ns()

    def resume(self) -> None:
        """End a pause; without one, do nothing."""
        if self._paused_ns is not None:
            self._start_ns += self._clock_ns() - self._paused_ns
            self._paused_ns = None

    def samples(self) -> Samples:
        """Return all samples so far, in the order taken, shape (sample_count,)."""
        if len(self._batches) > 1:
            self._batches = [np.concatenate(self._batches)]
        return self._batches[0] if self._batches else np.empty(0)

    def add(self, durations_ns: Samples) -> StopReason | None:
        """Add one batch of durations in ns, shape (n,); return the reason to stop now, or None to continue."""
        self.keep(durations_ns)
        elapsed_ns = self.elapsed_ns
        if self._has_enough(elapsed_ns):
            reason = self._judge()
            if reason is not None:
                return reason
        return self._reached_limit(elapsed_ns)

    def keep(self, durations_ns: Samples) -> None:
        """Add one batch of durations in ns, shape (n,), where others decide when to stop."""
        self._batches.append(durations_ns)
        self._count += durations_ns.size

    def _has_enough(self, elapsed_ns: int) -> bool:
        return elapsed_ns >= self.rule.min_duration_ns and self._count >= self._next_check_count

    def _reached_limit(self, elapsed_ns: int) -> StopReason | None:
        if self._count < MIN_SPREAD_COUNT:
            return None
        if self._count >= self.rule.max_sample_count:
            return StopReason.SAMPLE_LIMIT
        return StopReason.TIME_LIMIT if elapsed_ns >= self.rule.max_duration_ns else None

    def _judge(self) -> StopReason | None:
        self._next_check_count = self._count + max(1, self._count // CHECK_GROWTH)
        match self.rule.criterion:
            case CriterionName.CONFIDENCE:
                return self._judge_ratio(confidence_half_width(self.samples()), StopReason.CONFIDENCE_REACHED)
            case CriterionName.NOISE:
                return self._judge_ratio(noise(self.samples()), StopReason.NOISE_REACHED)
            case CriterionName.ENTROPY:
                return StopReason.ENTROPY_SETTLED if has_entropy_converged(self.samples()) else None
            case CriterionName.SAMPLE_COUNT:
                return None

    def _judge_ratio(self, ratio: float, reached: StopReason) -> StopReason | None:
        if ratio <= self.rule.target_ratio:
            return reached
        if self._count >= 2 * self._doubling_count:
            self._note(ratio)
        return StopReason.NO_IMPROVEMENT if self._idle_doublings >= MAX_IDLE_DOUBLING_COUNT else None

    def _note(self, ratio: float) -> None:
        if self._noted_ratio is not None:
            improved = ratio <= self._noted_ratio * (1 - MIN_IMPROVEMENT_RATIO)
            self._idle_doublings = 0 if improved else self._idle_doublings + 1
        self._noted_ratio, self._doubling_count = ratio, self._count


# ---------------------------------------------------------------- stopping metrics
# Each metric is a function of the samples so far.

ENTROPY_BIN_RATIO: Final = 0.001  # of the median: finer bins hold single samples for ever, coarser ones hide a second mode
ENTROPY_POINT_COUNT: Final = 24  # of the entropy's course over the second half of the samples
MAX_ENTROPY_SLOPE_BITS: Final = 0.06  # growth over that half: an unsettled distribution still gains a tenth of a bit and more
MIN_ENTROPY_SAMPLE_COUNT: Final = 48


def confidence_half_width(samples: Samples) -> float:
    """Return the half-width of the median's 95 % interval over the median."""
    return median_interval(samples).half_width_ratio


def noise(samples: Samples) -> float:
    """Return the standard deviation over the mean."""
    mean = float(samples.mean())
    return float(samples.std(ddof=1)) / mean if mean > 0 else math.inf


def has_entropy_converged(samples: Samples) -> bool:
    """Return whether the samples' entropy no longer grows, and so their distribution is known.

    The entropy of a histogram of the first m samples is followed over m from half of them to all; it has settled when a
    line through it rises by less than MAX_ENTROPY_SLOPE_BITS. After the entropy criterion of NVBench, which looks at the
    slope of the same course.
    """
    count = samples.size
    if count < MIN_ENTROPY_SAMPLE_COUNT:
        return False
    width = float(np.median(samples)) * ENTROPY_BIN_RATIO
    if width <= 0:
        return True
    bins = np.unique(np.floor(samples / width), return_inverse=True)[1]
    sizes = np.linspace(count // 2, count, ENTROPY_POINT_COUNT).astype(int)
    course = [_entropy_bits(np.bincount(bins[:size])) for size in sizes]
    slope, _ = np.polyfit(np.linspace(0.0, 1.0, ENTROPY_POINT_COUNT), course, 1)
    return float(slope) < MAX_ENTROPY_SLOPE_BITS


def _entropy_bits(counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
