"""Decide which of two measurements is faster, by how much, and whether the data allow a verdict at all.

The method is shaped by what noise does to comparisons on a shared CPU (Intel's runtime and PoCL). Medians of one process
agree far better with each other than with the medians of the next process, and the machine's speed jumps by a tenth and more
within a second. So only two kinds of evidence decide: blocks of candidate and baseline that alternate in one process, and at
least five processes for each of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernalyse.services.core.model import DeviceKind, Verdict
from kernalyse.services.core.statistics import Samples

CONFIDENCE: Final = 0.99
"""The confidence level of every interval here. At 95 % one of twenty comparisons of equal things would claim a difference; at 99.9 % five
processes per operand could never show one (their smallest p is 2/252)."""

INTERVAL_QUANTILES: Final = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)  # quantiles

RESAMPLE_COUNT: Final = 2_000  # ten lie beyond each end of the interval: fewer make the ends unstable, more only cost time
SEED: Final = 0  # of the resampling: equal samples get equal verdicts

GPU_MARGIN_RATIO: Final = 0.01
CPU_MARGIN_RATIO: Final = 0.02
"""The difference that counts as none. A buffer's address, or the alignment of a loop, changes a kernel's time by about as much:
smaller margins would mistake that for a difference of the kernels, larger ones would hide what people work a week for."""

MIN_PAIR_COUNT: Final = 20  # with fewer, intervals of a median miss it more often than they state
MIN_PROCESS_COUNT: Final = 5  # per operand; with four the smallest p of an exact test is 2/70
MAX_PERMUTATION_COUNT: Final = 200_000  # enough for all permutations of ten processes per operand (184756)
PERMUTATION_BATCH_SIZE: Final = 10_000  # permutations per array: more take more memory, fewer more time
ROUNDING_ERROR: Final = 1e-12  # relative: sums that differ by less differ only by their order of addition


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of one operand (candidate or baseline), and the same in clock cycles; both of shape (n,).

    cycle_counts is None where the device reports no clock.
    """

    durations_ns: Samples
    cycle_counts: Samples | None = None


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The ratio of candidate to baseline, with its confidence interval at CONFIDENCE."""

    ratio: float
    low: float
    high: float

    @property
    def half_width_ratio(self) -> float:
        """Return half the interval's width on the logarithmic scale, on which twice and half as long are equally far from 1."""
        return math.log(self.high / self.low) / 2

    @property
    def direction(self) -> int:
        """Return 1 if the interval lies entirely above 1, -1 if entirely below, and 0 if it contains 1."""
        return int(self.low > 1) - int(self.high < 1)

    def is_within(self, margin_ratio: float) -> bool:
        """Return whether the entire interval lies within the margin around 1."""
        return 1 / (1 + margin_ratio) <= self.low and self.high <= 1 + margin_ratio

    def is_outside(self, margin_ratio: float) -> bool:
        """Return whether the entire interval lies outside the margin around 1."""
        return self.low > 1 + margin_ratio or self.high < 1 / (1 + margin_ratio)

    def __str__(self) -> str:
        return f"{_percent(self.ratio)} ({_percent(self.low)} to {_percent(self.high)})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a comparison: ratios with intervals, a verdict and the reason for it, one sentence.

    cycles is None where a clock is not known.
    """

    duration: RatioInterval
    cycles: RatioInterval | None
    verdict: Verdict
    reason: str


def equality_margin(device_kind: DeviceKind) -> float:
    """Return the relative difference up to which two durations on this kind of device count as equal."""
    return CPU_MARGIN_RATIO if device_kind is DeviceKind.CPU else GPU_MARGIN_RATIO


# ---------------------------------------------------------------- kinds of evidence


def compare_pairs(candidate: Timings, baseline: Timings, margin_ratio: float) -> Comparison:
    """Compare by interleaved blocks: element i of both operands belongs to the i-th pair of blocks.

    The ratio is the median over the pairs of block ratios: what slows the machine for a while slows both blocks of a pair,
    and what hits one of them makes an outlier, which a median ignores.
    """
    duration = paired_ratio(candidate.durations_ns, baseline.durations_ns)
    cycles = None
    if candidate.cycle_counts is not None and baseline.cycle_counts is not None:
        cycles = paired_ratio(candidate.cycle_counts, baseline.cycle_counts)
    pair_count = candidate.durations_ns.size
    if pair_count < MIN_PAIR_COUNT:
        reason = f"{pair_count} pairs of blocks are too few: at least {MIN_PAIR_COUNT} are needed. "
        reason += "A longer --max-time gives more; so does --paired-blocks N of bench."
        return Comparison(duration, cycles, Verdict.UNDECIDED, reason)
    return Comparison(duration, cycles, *judge(duration, cycles, margin_ratio))


def compare_processes(candidate: Sequence[Timings], baseline: Sequence[Timings], margin_ratio: float) -> Comparison:
    """Compare by processes that each measured one operand: at least one process per operand, each with at least one sample.

    Fewer than MIN_PROCESS_COUNT processes per operand give a ratio and an interval of what was observed, but never a verdict.
    With enough, a difference counts when the interval excludes 1 and an exact permutation test of the processes' medians
    agrees: the bootstrap alone treats the few medians that it has as the entire population.
    """
    duration = _ratio_of_medians([one.durations_ns for one in candidate], [one.durations_ns for one in baseline])
    cycles = None
    candidate_cycles = [one.cycle_counts for one in candidate if one.cycle_counts is not None]
    baseline_cycles = [one.cycle_counts for one in baseline if one.cycle_counts is not None]
    if len(candidate_cycles) == len(candidate) and len(baseline_cycles) == len(baseline):
        cycles = _ratio_of_medians(candidate_cycles, baseline_cycles)
    fewest = min(len(candidate), len(baseline))
    if fewest < MIN_PROCESS_COUNT:
        return Comparison(duration, cycles, Verdict.UNDECIDED, _too_few_processes(fewest))
    verdict, reason = judge(duration, cycles, margin_ratio)
    if verdict in (Verdict.FASTER, Verdict.SLOWER):
        p_value = permutation_p_value([one.durations_ns for one in candidate], [one.durations_ns for one in baseline])
        if p_value > 1 - CONFIDENCE:
            verdict = Verdict.UNDECIDED
            reason = f"{duration} of time, but processes dealt out at random differ as much with a probability of {p_value:.2g}."
    return Comparison(duration, cycles, verdict, reason)


def judge(duration: RatioInterval, cycles: RatioInterval | None, margin_ratio: float) -> tuple[Verdict, str]:
    """Return the verdict on these intervals, and a sentence that says why.

    An interval within the margin is SAME even where it excludes 1: enough samples find a difference between any two
    things. A difference has to show in cycles too, else a change of the clock made it.
    """
    if duration.is_within(margin_ratio):
        if cycles is not None and cycles.is_outside(margin_ratio):
            return Verdict.UNDECIDED, f"{duration} of time, but {cycles} of cycles: the clock was not the same."
        return Verdict.SAME, f"{duration} of time, all of it within the {margin_ratio * 100:.2g} % that counts as equal."
    if duration.direction == 0:
        return Verdict.UNDECIDED, f"{duration} of time: more noise than difference."
    if cycles is not None and cycles.direction != duration.direction:
        return Verdict.UNDECIDED, f"{duration} of time, but {cycles} of cycles: the clock may have made the difference."
    verdict = Verdict.SLOWER if duration.direction > 0 else Verdict.FASTER
    return verdict, f"{duration} of time" + ("." if cycles is None else f", {cycles} of cycles.")


# ---------------------------------------------------------------- ratios and intervals


def paired_ratio(candidate: Samples, baseline: Samples) -> RatioInterval:
    """Return the median over the pairs of their ratios, with its percentile bootstrap interval over the pairs.

    Not BCa: for a median its acceleration is not defined where the middle values are equal, as times of a coarse clock
    are; and where it is, both miss the true value equally often (1 to 2 % of the time from 20 pairs on, normal, skewed and
    heavy-tailed noise alike).
    """
    log_ratios = np.log(candidate / baseline)
    middle = float(np.median(log_ratios))
    if log_ratios.size < 2:
        return RatioInterval(math.exp(middle), math.exp(middle), math.exp(middle))
    resamples = np.random.default_rng(SEED).choice(log_ratios, (RESAMPLE_COUNT, log_ratios.size))
    low, high = np.quantile(np.median(resamples, axis=1), INTERVAL_QUANTILES)
    return RatioInterval(math.exp(middle), math.exp(low), math.exp(high))


def permutation_p_value(candidate: Sequence[Samples], baseline: Sequence[Samples]) -> float:
    """Return the two-sided p-value of an exact permutation test on the mean of the processes' log medians.

    It is the fraction of random assignments of processes to the two operands that differ at least as much as the observed one.
    Up to MAX_PERMUTATION_COUNT assignments are all counted; beyond that as many are drawn, and the observed one counts as one of them
    (B. Phipson, G. Smyth, "Permutation p-values should never be zero", 2010).
    """
    values = np.concatenate((_log_medians(candidate), _log_medians(baseline)))
    values -= values.mean()  # the sum of one operand then measures the distance of the means
    seen = float(values[: len(candidate)].sum())
    reach = ROUNDING_ERROR * float(np.abs(values).sum())
    way_count = math.comb(values.size, len(candidate))
    is_exact = way_count <= MAX_PERMUTATION_COUNT
    sums = _sums_of_all(values, len(candidate), way_count) if is_exact else _sums_of_drawn(values, len(candidate))
    fewer = min(np.count_nonzero(sums <= seen + reach), np.count_nonzero(sums >= seen - reach))
    return min(1.0, 2 * fewer / way_count if is_exact else 2 * (fewer + 1) / (sums.size + 1))


def _sums_of_all(values: Samples, operand_size: int, way_count: int) -> Samples:
    """Return the sum of every choice of so many values, shape (way_count,)."""
    selected = itertools.chain.from_iterable(itertools.combinations(range(values.size), operand_size))
    positions = np.fromiter(selected, dtype=np.int8, count=way_count * operand_size)
    return np.asarray(values[positions.reshape(way_count, operand_size)].sum(axis=1))


def _sums_of_drawn(values: Samples, operand_size: int) -> Samples:
    """Return the sums of MAX_PERMUTATION_COUNT random choices of so many values."""
    random = np.random.default_rng(SEED)
    rows = np.tile(values, (PERMUTATION_BATCH_SIZE, 1))
    drawn = (random.permuted(rows, axis=1)[:, :operand_size].sum(axis=1) for _ in range(MAX_PERMUTATION_COUNT // PERMUTATION_BATCH_SIZE))
    return np.concatenate(list(drawn))


def _ratio_of_medians(candidate: Sequence[Samples], baseline: Sequence[Samples]) -> RatioInterval:
    """Return the ratio of the medians of the processes' medians; the interval comes from resampling processes, and samples within each."""
    random = np.random.default_rng(SEED)
    ratio = float(np.median([np.median(one) for one in candidate]) / np.median([np.median(one) for one in baseline]))
    resampled = _resampled_medians(candidate, random) / _resampled_medians(baseline, random)
    low, high = np.quantile(resampled, INTERVAL_QUANTILES)
    return RatioInterval(ratio, float(low), float(high))


def _resampled_medians(processes: Sequence[Samples], random: np.random.Generator) -> Samples:
    """Return the medians of the medians of resampled processes, shape (RESAMPLE_COUNT,).

    The median of n values drawn from n ordered ones is the one at a rank that follows a beta distribution (order
    statistics of uniform numbers: David and Nagaraja, Order Statistics, 3rd ed., section 2.1): nothing has to be drawn
    n times.
    """
    ordered = [np.sort(samples) for samples in processes]
    selected = random.integers(0, len(ordered), (RESAMPLE_COUNT, len(ordered)))
    medians = np.empty(selected.shape)
    for index, samples in enumerate(ordered):
        positions = np.nonzero(selected == index)
        middle_rank = (samples.size + 1) / 2
        ranks = random.beta(middle_rank, middle_rank, positions[0].size) * samples.size
        medians[positions] = samples[np.minimum(ranks.astype(np.int64), samples.size - 1)]
    return np.asarray(np.median(medians, axis=1))


def _log_medians(processes: Sequence[Samples]) -> Samples:
    return np.log([np.median(samples) for samples in processes])


def _too_few_processes(fewest: int) -> str:
    seen = "a single process" if fewest == 1 else f"{fewest} processes"
    return (
        f"Medians of one kernel differ between processes (by 1 to 10 % on Intel's CPU runtime, by 30 % on PoCL): "
        f"{seen} each cannot decide; {MIN_PROCESS_COUNT} can (--processes {MIN_PROCESS_COUNT}, or runs that repeat each other), "
        "and alternating blocks can (--paired)."
    )


def _percent(ratio: float) -> str:
    """Format a ratio of 1.0512 as "+5.12 %", and factors of two and more as "x2.5"."""
    return f"x{ratio:.3g}" if ratio >= 2 else f"{(ratio - 1) * 100:+.2f} %"
