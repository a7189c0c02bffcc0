"""Statistics of one configuration's samples, without assuming that they are normally distributed.

Durations of launches are skewed and have outliers, so the median stands for them, and its confidence interval comes from
order statistics, which hold for any continuous distribution of independent samples: with B ~ Binomial(n, 1/2), the r-th
smallest and the r-th largest sample enclose the true median with probability 1 - 2 P(B <= r - 1).
Source: W. J. Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; for large n the normal approximation of
J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, theorem 2.1 and appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.95
NORMAL_QUANTILE: Final = 1.959963984540054  # of (1 + CONFIDENCE) / 2
MAX_EXACT_COUNT: Final = 1_000  # above it the approximation is off by at most one rank, and exact sums cost milliseconds
MIN_COUNT_FOR_CONFIDENCE: Final = 6  # below it even the range of all samples covers the median with less than 95 %


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """Statistics over the durations of one configuration's launches; fields as in `kernalyse.services.core.model.Measurement`."""

    sample_count: int
    duration_median_ns: float
    duration_median_low_ns: float  # 95 % confidence interval of the median
    duration_median_high_ns: float
    duration_min_ns: float
    duration_max_ns: float
    duration_mean_ns: float
    duration_lower_quartile_ns: float
    duration_upper_quartile_ns: float
    duration_p95_ns: float
    duration_p99_ns: float
    duration_standard_deviation_ns: float  # of the sample, n - 1 in the denominator
    duration_median_absolute_deviation_ns: float  # median of the distances from the median
    noise_ratio: float  # standard deviation / mean

    @property
    def half_width_ratio(self) -> float:
        """Return half the width of the median's confidence interval, relative to the median."""
        return _half_width_ratio(self.duration_median_low_ns, self.duration_median_ns, self.duration_median_high_ns)


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median with its 95 % confidence interval, in the unit of the samples."""

    low: float
    median: float
    high: float

    @property
    def half_width_ratio(self) -> float:
        """Return half the width of the interval, relative to the median."""
        return _half_width_ratio(self.low, self.median, self.high)


def summarize(durations_ns: Samples) -> SampleSummary:
    """Return statistics over at least two durations in ns, shape (n,). Percentiles interpolate linearly between samples.

    Raises:
        ValueError: fewer than two samples, which have no spread.
    """
    count = durations_ns.size
    if count < 2:
        raise ValueError(f"found {count} samples, expected at least 2: one sample has no spread")
    ordered = np.sort(durations_ns)
    lower_rank, upper_rank = median_ranks(count)
    lower_quartile, median, upper_quartile, p95, p99 = np.percentile(ordered, (25, 50, 75, 95, 99))
    # Rounding may put a mean of equal samples, or an interpolated percentile, one bit outside the range of the samples.
    mean = min(max(float(ordered.mean()), float(ordered[0])), float(ordered[-1]))
    deviation = float(ordered.std(ddof=1))
    return SampleSummary(
        sample_count=count,
        duration_median_ns=float(median),
        duration_median_low_ns=float(ordered[lower_rank - 1]),
        duration_median_high_ns=float(ordered[upper_rank - 1]),
        duration_min_ns=float(ordered[0]),
        duration_max_ns=float(ordered[-1]),
        duration_mean_ns=mean,
        duration_lower_quartile_ns=float(lower_quartile),
        duration_upper_quartile_ns=float(upper_quartile),
        duration_p95_ns=float(p95),
        duration_p99_ns=float(p99),
        duration_standard_deviation_ns=deviation,
        duration_median_absolute_deviation_ns=float(np.median(np.abs(ordered - median))),
        noise_ratio=deviation / mean if mean > 0 else 0.0,
    )


def median_interval(samples: Samples) -> MedianInterval:
    """Return median and interval of samples, shape (n,) with n >= 1, by selection: O(n), without sorting them."""
    count = samples.size
    lower_rank, upper_rank = median_ranks(count)
    middle_ranks = ((count - 1) // 2, count // 2)
    selected = np.partition(samples, sorted({lower_rank - 1, upper_rank - 1, *middle_ranks}))
    median = (float(selected[middle_ranks[0]]) + float(selected[middle_ranks[1]])) / 2
    return MedianInterval(float(selected[lower_rank - 1]), median, float(selected[upper_rank - 1]))


@lru_cache(maxsize=MAX_EXACT_COUNT)
def median_ranks(sample_count: int) -> tuple[int, int]:
    """Return the ranks, from 1, of the two samples that enclose the median with at least 95 % confidence.

    Fewer than six samples cannot reach it: theirs are the smallest and the largest.

    Raises:
        ValueError: sample_count is below 1.
    """
    if sample_count < 1:
        raise ValueError(f"found {sample_count} samples, expected at least 1")
    if sample_count < MIN_COUNT_FOR_CONFIDENCE:
        lower_rank = 1
    elif sample_count <= MAX_EXACT_COUNT:
        lower_rank = _exact_lower_rank(sample_count)
    else:
        lower_rank = math.floor((sample_count - NORMAL_QUANTILE * math.sqrt(sample_count)) / 2)
    return lower_rank, sample_count + 1 - lower_rank


def _exact_lower_rank(sample_count: int) -> int:
    """Return the largest r with P(Binomial(n, 1/2) <= r - 1) <= 2.5 %, in integers: no rounding."""
    ways_left = math.floor((1 - CONFIDENCE) / 2 * 1_000_000 + 0.5) * 2**sample_count // 1_000_000
    rank, ways = 0, 1  # ways: C(n, rank)
    while ways <= ways_left:
        ways_left -= ways
        ways = ways * (sample_count - rank) // (rank + 1)
        rank += 1
    return rank


def _half_width_ratio(low: float, median: float, high: float) -> float:
    if median > 0:
        return (high - low) / 2 / median
    return 0.0 if low == high else math.inf
