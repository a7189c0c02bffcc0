"""Which of two things is faster: intervals that cover what they say, and verdicts that rest on evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kernalyse.services.core.comparison import (
    CONFIDENCE,
    CPU_MARGIN_RATIO,
    GPU_MARGIN_RATIO,
    MIN_PAIR_COUNT,
    MIN_PROCESS_COUNT,
    Comparison,
    RatioInterval,
    Timings,
    compare_pairs,
    compare_processes,
    equality_margin,
    judge,
    paired_ratio,
    permutation_p_value,
)
from kernalyse.services.core.model import DeviceKind, Verdict
from kernalyse.services.core.statistics import Samples

MARGIN = CPU_MARGIN_RATIO
Noise = Callable[[np.random.Generator, int], Samples]

NOISES: dict[str, Noise] = {
    "normal": lambda random, count: random.normal(1.0, 0.05, count),
    "skewed": lambda random, count: random.lognormal(0.0, 0.2, count),
    "heavy-tailed": lambda random, count: np.exp(0.05 * random.standard_t(2, count)),
}


def process(random: np.random.Generator, median_ns: float, *, sample_count: int = 50, cycle_ratio: float | None = None) -> Timings:
    durations_ns = median_ns * random.lognormal(0.0, 0.03, sample_count)
    return Timings(durations_ns, None if cycle_ratio is None else durations_ns * cycle_ratio)


def processes(random: np.random.Generator, count: int, median_ns: float, drift_ratio: float) -> list[Timings]:
    """Each with a median of its own, as processes have them."""
    return [process(random, median_ns * math.exp(random.normal(0.0, drift_ratio))) for _ in range(count)]


# ---------------------------------------------------------------- ratios and intervals


def test_a_ratio_without_noise_is_exact() -> None:
    baseline = np.linspace(1_000.0, 3_000.0, 25)  # the machine slows down; both sides of a pair feel it
    interval = paired_ratio(1.25 * baseline, baseline)
    assert (interval.ratio, interval.low, interval.high) == pytest.approx((1.25, 1.25, 1.25))
    assert interval.direction == 1


def test_a_single_pair_has_a_ratio_and_no_width() -> None:
    interval = paired_ratio(np.array([2.0]), np.array([4.0]))
    assert (interval.ratio, interval.low, interval.high) == (0.5, 0.5, 0.5)


def test_exchanging_the_sides_turns_the_ratio_upside_down() -> None:
    random = np.random.default_rng(3)
    first, second = random.lognormal(0.0, 0.1, 31), random.lognormal(0.02, 0.1, 31)
    forth, back = paired_ratio(first, second), paired_ratio(second, first)
    assert (1 / forth.ratio, 1 / forth.high, 1 / forth.low) == pytest.approx((back.ratio, back.low, back.high))
    assert forth.half_width_ratio == pytest.approx(back.half_width_ratio)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("pair_count", [MIN_PAIR_COUNT, 60])
def test_the_interval_of_a_paired_ratio_covers_the_true_one(noise: str, pair_count: int) -> None:
    """The true median ratio of two sides of equal noise is the planted one. 200 trials at 99 % miss it more than 8 times
    once in 5000; an interval at 95 % would miss it ten times."""
    random, missed = np.random.default_rng(11), 0
    for _ in range(200):
        interval = paired_ratio(1.1 * NOISES[noise](random, pair_count), NOISES[noise](random, pair_count))
        missed += not interval.low <= 1.1 <= interval.high
    assert missed <= 8


def test_the_interval_of_a_paired_ratio_is_no_wider_than_the_noise_asks_for() -> None:
    """Of a median of n normal values it is 2.58 x 1.2533 x sd / sqrt(n) to each side; here sd is that of the log ratio."""
    random = np.random.default_rng(5)
    widths = [paired_ratio(*(random.lognormal(0.0, 0.01, 100) for _ in range(2))).half_width_ratio for _ in range(20)]
    assert np.mean(widths) == pytest.approx(2.58 * 1.2533 * 0.01 * math.sqrt(2) / 10, rel=0.2)


def test_the_permutation_test_counts_the_ways_to_deal_processes_out() -> None:
    slow, fast = ([np.array([base + index]) for index in range(5)] for base in (200.0, 100.0))
    assert permutation_p_value(slow, fast) == pytest.approx(2 / math.comb(10, 5))
    assert permutation_p_value(slow[:4], fast[:4]) == pytest.approx(2 / math.comb(8, 4))
    assert permutation_p_value(slow, slow) == pytest.approx(1.0)


def processes_of(*medians_ns: float) -> list[Samples]:
    return [np.array([median_ns]) for median_ns in medians_ns]


@pytest.mark.parametrize(
    ("candidate", "baseline", "expected"),
    [
        ((101.0, 108.0, 99.0, 104.0, 110.0, 97.0), (100.0, 96.0, 103.0, 95.0, 98.0, 94.0), 0.05627705627705628),
        ((101.0, 108.0, 99.0), (100.0, 96.0, 103.0, 95.0, 98.0, 94.0, 107.0), 0.31666666666666665),
        ((100.0, 101.0, 102.0, 102.0), (100.0, 102.0, 101.0, 104.0), 0.8571428571428571),
    ],
)
def test_the_permutation_test_is_exact_for_few_processes(
    candidate: tuple[float, ...], baseline: tuple[float, ...], expected: float
) -> None:
    """scipy.stats.permutation_test of the difference in the mean of the logarithms."""
    assert permutation_p_value(processes_of(*candidate), processes_of(*baseline)) == pytest.approx(expected, rel=1e-9)


def test_the_permutation_test_draws_where_there_are_too_many_ways() -> None:
    candidate, baseline = ([100.0 + (7 * index) % 12 + shift for index in range(12)] for shift in (3.0, 0.0))
    assert permutation_p_value(processes_of(*candidate), processes_of(*baseline)) == pytest.approx(0.0550, abs=0.002)
    assert permutation_p_value(processes_of(*(2 * value for value in candidate)), processes_of(*baseline)) == pytest.approx(2 / 200_001)


# ---------------------------------------------------------------- verdicts on intervals


def interval(low: float, high: float) -> RatioInterval:
    return RatioInterval(math.sqrt(low * high), low, high)


@pytest.mark.parametrize(
    ("duration", "cycles", "verdict", "said"),
    [
        (interval(1.04, 1.06), None, Verdict.SLOWER, "+5.00 % (+4.00 % to +6.00 %) of time."),
        (interval(0.94, 0.96), None, Verdict.FASTER, "-5.01 %"),
        (interval(0.995, 1.01), None, Verdict.SAME, "within the 2 % that counts as equal"),
        (interval(1.005, 1.015), None, Verdict.SAME, "within the 2 %"),  # not 1, but nothing to speak of
        (interval(0.97, 1.04), None, Verdict.UNDECIDED, "more noise than difference"),
        (interval(1.04, 1.06), interval(1.03, 1.07), Verdict.SLOWER, "of cycles."),
        (interval(1.04, 1.06), interval(0.99, 1.01), Verdict.UNDECIDED, "the clock may have made the difference"),
        (interval(1.04, 1.06), interval(0.94, 0.96), Verdict.UNDECIDED, "the clock may have made the difference"),
        (interval(0.995, 1.01), interval(1.05, 1.07), Verdict.UNDECIDED, "the clock was not the same"),
        (interval(0.995, 1.01), interval(0.99, 1.03), Verdict.SAME, "within the 2 %"),
        (interval(2.1, 2.3), None, Verdict.SLOWER, "x2.2"),
    ],
)
def test_what_intervals_come_to(duration: RatioInterval, cycles: RatioInterval | None, verdict: Verdict, said: str) -> None:
    found, reason = judge(duration, cycles, MARGIN)
    assert (found, said in reason) == (verdict, True), reason


def test_a_gpu_is_held_to_a_narrower_margin_than_a_cpu() -> None:
    assert (equality_margin(DeviceKind.GPU), equality_margin(DeviceKind.CPU)) == (GPU_MARGIN_RATIO, CPU_MARGIN_RATIO)
    assert judge(interval(1.012, 1.018), None, GPU_MARGIN_RATIO)[0] is Verdict.SLOWER
    assert judge(interval(1.012, 1.018), None, CPU_MARGIN_RATIO)[0] is Verdict.SAME


# ---------------------------------------------------------------- blocks that took turns


def test_too_few_pairs_never_decide() -> None:
    baseline = np.full(MIN_PAIR_COUNT - 1, 1_000.0)
    found = compare_pairs(Timings(2 * baseline), Timings(baseline), MARGIN)
    assert found.verdict is Verdict.UNDECIDED
    assert found.duration.ratio == pytest.approx(2.0)
    assert f"{MIN_PAIR_COUNT - 1} pairs of blocks are too few" in found.reason
    assert "--max-time" in found.reason
    assert "--paired-blocks" in found.reason


def test_alternating_blocks_see_a_small_difference_through_drift_of_half_the_speed() -> None:
    random = np.random.default_rng(1)
    drift = np.linspace(1.0, 2.0, 40)
    slow, fast = (Timings(1_000 * ratio * drift * random.lognormal(0.0, 0.02, 40)) for ratio in (1.05, 1.0))
    assert compare_pairs(slow, fast, MARGIN).verdict is Verdict.SLOWER
    assert compare_pairs(fast, slow, MARGIN).verdict is Verdict.FASTER


def test_a_difference_that_the_clock_made_is_no_verdict() -> None:
    random = np.random.default_rng(2)
    durations_ns = 1_000 * random.lognormal(0.0, 0.002, 40)
    cycles = 2_000 * random.lognormal(0.0, 0.002, 40)
    found = compare_pairs(Timings(1.1 * durations_ns, cycles), Timings(durations_ns, cycles), GPU_MARGIN_RATIO)
    assert found.cycles is not None
    assert (found.verdict, found.cycles.ratio) == (Verdict.UNDECIDED, 1.0)


def test_cycles_of_one_side_alone_are_not_compared() -> None:
    durations_ns = np.full(30, 1_000.0)
    found = compare_pairs(Timings(1.1 * durations_ns, durations_ns), Timings(durations_ns), MARGIN)
    assert (found.cycles, found.verdict) == (None, Verdict.SLOWER)


# ---------------------------------------------------------------- processes


def test_a_single_process_a_side_never_decides_however_many_samples_it_has() -> None:
    random = np.random.default_rng(0)
    found = compare_processes([process(random, 1_300.0, sample_count=5_000)], [process(random, 1_000.0, sample_count=5_000)], MARGIN)
    assert found.verdict is Verdict.UNDECIDED
    assert found.duration.ratio == pytest.approx(1.3, rel=0.01)
    assert f"a single process each cannot decide; {MIN_PROCESS_COUNT} can" in found.reason
    few = compare_processes(processes(random, 4, 1_300.0, 0.01), processes(random, 9, 1_000.0, 0.01), MARGIN)
    assert (few.verdict, "4 processes each" in few.reason) == (Verdict.UNDECIDED, True)


def test_five_processes_a_side_decide_what_lies_outside_their_drift() -> None:
    random = np.random.default_rng(4)
    slow, fast = (processes(random, 5, median_ns, 0.01) for median_ns in (1_100.0, 1_000.0))
    assert compare_processes(slow, fast, MARGIN).verdict is Verdict.SLOWER
    assert compare_processes(fast, slow, MARGIN).verdict is Verdict.FASTER
    steady = [process(random, 1_000.0, sample_count=2_000) for _ in range(10)]
    assert compare_processes(steady[:5], steady[5:], MARGIN).verdict is Verdict.SAME


def test_one_process_beyond_the_others_makes_it_undecided() -> None:
    """The bootstrap takes the five medians for all there are; the permutation test knows that five are few."""
    random = np.random.default_rng(6)
    slow = [process(random, median_ns) for median_ns in (1_060.0, 1_070.0, 1_080.0, 1_090.0, 995.0)]
    fast = [process(random, median_ns) for median_ns in (1_000.0, 1_001.0, 1_002.0, 1_003.0, 1_100.0)]
    found = compare_processes(slow, fast, MARGIN)
    assert (found.verdict, found.duration.ratio > 1.05) == (Verdict.UNDECIDED, True)


def test_processes_that_drift_are_called_different_no_more_often_than_stated() -> None:
    """300 same-vs-same comparisons at 99 %: more than 10 wrong ones come once in 2500."""
    random = np.random.default_rng(8)

    def compared(median_ns: float) -> Comparison:
        return compare_processes(processes(random, 5, median_ns, 0.05), processes(random, 5, 1_000.0, 0.05), MARGIN)

    verdicts = Counter(compared(1_000.0).verdict for _ in range(300))
    assert verdicts[Verdict.FASTER] + verdicts[Verdict.SLOWER] <= 10
    assert Counter(compared(1_400.0).verdict for _ in range(20))[Verdict.SLOWER] >= 18


def test_processes_without_a_clock_leave_cycles_unknown_and_with_one_have_to_agree() -> None:
    random = np.random.default_rng(9)
    slow = [process(random, 1_100.0, cycle_ratio=1.0) for _ in range(5)]
    fast = [process(random, 1_000.0, cycle_ratio=1.1) for _ in range(5)]
    found = compare_processes(slow, fast, MARGIN)
    assert found.verdict is Verdict.UNDECIDED
    assert found.cycles is not None
    assert found.cycles.ratio == pytest.approx(1.0, rel=0.02)
    unclocked = [Timings(slow[0].durations_ns), *slow[1:]]
    assert compare_processes(unclocked, fast, MARGIN).cycles is None


def test_equal_samples_get_equal_verdicts() -> None:
    assert CONFIDENCE == 0.99
    random = np.random.default_rng(10)
    sides = processes(random, 6, 1_020.0, 0.02), processes(random, 6, 1_000.0, 0.02)
    assert compare_processes(*sides, MARGIN) == compare_processes(*sides, MARGIN)
