"""kernalyse.services.core.statistics: order statistics of the median, and the summary of one configuration."""

from __future__ import annotations

import math
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernalyse.services.core.statistics import MAX_EXACT_COUNT, median_interval, median_ranks, summarize

durations = arrays(np.float64, st.integers(2, 60), elements=st.floats(0.125, 1e12, allow_nan=False))


@pytest.mark.parametrize(
    ("sample_count", "ranks"),
    [(1, (1, 1)), (5, (1, 5)), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (70, (27, 44))],
)
def test_ranks_are_those_of_the_published_table(sample_count: int, ranks: tuple[int, int]) -> None:
    assert median_ranks(sample_count) == ranks


@given(st.integers(6, MAX_EXACT_COUNT))
def test_exact_ranks_are_the_narrowest_that_still_cover_95_percent(sample_count: int) -> None:
    def coverage_percent(lower_rank: int) -> float:
        left_out = sum(comb(sample_count, ways) for ways in range(lower_rank))
        return float(100 * (1 - 2 * left_out / 2**sample_count))

    lower_rank, upper_rank = median_ranks(sample_count)
    assert lower_rank + upper_rank == sample_count + 1
    assert coverage_percent(lower_rank) >= 95 > coverage_percent(lower_rank + 1)


def test_exact_and_approximate_ranks_meet() -> None:
    exact, approximate = median_ranks(MAX_EXACT_COUNT)[0], median_ranks(MAX_EXACT_COUNT + 1)[0]
    assert abs(exact - approximate) <= 1


@pytest.mark.parametrize("sample_count", [6, 11, 40, 400, 2_000])
@pytest.mark.parametrize("distribution", ["lognormal", "exponential", "uniform"])
def test_interval_covers_the_true_median_in_95_percent_of_simulations(sample_count: int, distribution: str) -> None:
    random = np.random.default_rng(7)
    simulations = 1_000
    samples, true_median = {
        "lognormal": (random.lognormal(0.0, 1.0, (simulations, sample_count)), 1.0),
        "exponential": (random.exponential(1.0, (simulations, sample_count)), math.log(2)),
        "uniform": (random.random((simulations, sample_count)), 0.5),
    }[distribution]
    intervals = [median_interval(row) for row in samples]
    covered = sum(interval.low <= true_median <= interval.high for interval in intervals) / simulations
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / simulations)


@given(durations)
def test_statistics_are_ordered(samples: np.ndarray) -> None:
    summary = summarize(samples)
    ordered = (
        summary.duration_min_ns,
        summary.duration_lower_quartile_ns,
        summary.duration_median_ns,
        summary.duration_upper_quartile_ns,
        summary.duration_p95_ns,
        summary.duration_p99_ns,
        summary.duration_max_ns,
    )
    assert list(ordered) == sorted(ordered)
    assert summary.duration_min_ns <= summary.duration_median_low_ns <= summary.duration_median_ns
    assert summary.duration_median_ns <= summary.duration_median_high_ns <= summary.duration_max_ns
    assert summary.duration_min_ns <= summary.duration_mean_ns <= summary.duration_max_ns
    assert summary.noise_ratio >= 0


@given(durations, st.randoms(use_true_random=False))
def test_summary_does_not_depend_on_the_order_of_samples(samples: np.ndarray, random: object) -> None:
    shuffled = np.array(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarize(samples) == summarize(shuffled)


@given(durations)
def test_selection_and_sorting_give_the_same_interval(samples: np.ndarray) -> None:
    interval, summary = median_interval(samples), summarize(samples)
    assert (interval.low, interval.high) == (summary.duration_median_low_ns, summary.duration_median_high_ns)
    assert interval.median == pytest.approx(summary.duration_median_ns)
    assert interval.half_width_ratio == pytest.approx(summary.half_width_ratio)


def test_summary_of_known_samples() -> None:
    summary = summarize(np.arange(1.0, 12.0))
    assert summary.sample_count == 11
    assert (summary.duration_median_low_ns, summary.duration_median_ns, summary.duration_median_high_ns) == (2.0, 6.0, 10.0)
    assert (summary.duration_lower_quartile_ns, summary.duration_upper_quartile_ns) == (3.5, 8.5)
    assert summary.duration_mean_ns == 6.0
    assert summary.duration_standard_deviation_ns == pytest.approx(math.sqrt(11))
    assert summary.noise_ratio == pytest.approx(math.sqrt(11) / 6)
    assert summary.half_width_ratio == pytest.approx(4 / 6)


@pytest.mark.parametrize("sample_count", [0, 1])
def test_too_few_samples_for_a_spread_are_refused(sample_count: int) -> None:
    with pytest.raises(ValueError, match=f"found {sample_count} samples"):
        summarize(np.ones(sample_count))
