"""Metrics that stopping criteria look at, each a function of the samples so far."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from services.core.statistics import Samples, median_interval

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


def is_entropy_settled(samples: Samples) -> bool:
    """Return whether the distribution of the samples is known: more of them no longer add entropy.

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
