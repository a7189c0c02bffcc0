"""At which runs a figure changed for good, and how sure that is.

Two steps, as Hunter has them (M. Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance Regressions", ICPE
2023): a segmentation proposes levels, and a t test keeps those that differ. The segmentation is optimal partitioning (B. Jackson et
al., "An algorithm for optimal partitioning of data on an interval", 2005; the criterion of PELT) of the logarithms with weighted
squares: a run counts as much as its noise between runs and its own confidence interval allow, which no library of change points
takes into account. What one run does alone, as on a busy host, is no change; at the end of the series it may be the first of one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.numeric import jit

Numbers = npt.NDArray[np.float64]

MIN_LEVEL_RUNS: Final = 5
"""Of a level that is over. With three, two slow runs on a busy afternoon are taken for a regression and its repair; with more, a
change that was soon taken back is not seen. The newest level may be shorter, and is not confirmed then."""

MIN_RUNS_TOGETHER: Final = 6  # of two levels that are held against each other: fewer cannot tell noise from a change
MAX_P_VALUE: Final = 0.001  # of the t test: a page of a hundred kernels would show five false ones at 5 %
MAX_RANK_P_VALUE: Final = 0.01
"""Of the rank test of Mann and Whitney, which two levels that are over have to pass as well: what a few runs far out do to a mean,
they do not do to ranks."""

MAX_EXACT_RUNS: Final = 20
"""Of each level: with five runs a side the approximation by a normal distribution never comes below the limit."""

PENALTY: Final = 3.0  # times log(n), of each level: 2 is BIC, which proposes more than the test keeps
MAX_STEP: Final = 6.0  # standard deviations that one run may stand out from its neighbours; further out it counts no more
NEIGHBOURS: Final = 3  # on each side
MAD_TO_DEVIATION: Final = 1.4826
INTERVAL_DEVIATIONS: Final = 1.96  # half of a 95 % interval
MAX_RUNS: Final = 1000
"""The newest, of one series: the time grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class Level:
    """Runs from begin up to before end that agree. value: their mean (geometric); band_low, band_high: where 95 % of such runs lie.

    ratio: value over that of the level before, with its 99 % interval; None for the first level.
    """

    begin: int
    end: int
    value: float
    band_low: float
    band_high: float
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def is_confirmed(self) -> bool:
        """It is no longer the affair of one or two runs."""
        return self.end - self.begin >= MIN_LEVEL_RUNS


def levels(values: Numbers, half_widths: Numbers, margin_ratio: float) -> list[Level]:
    """The levels of a series in the order of its runs, each apart from the one before by more than the margin.

    Args:
        values: over zero, one a run; shape (n,), n ≥ 1.
        half_widths: of the logarithms' 95 % intervals, shape (n,); NaN: not known.
        margin_ratio: the smallest change that counts; half of it is the least noise that runs are taken to have.
    """
    logarithms = np.log(values)
    errors = np.nan_to_num(half_widths, nan=0.0, posinf=0.0) / INTERVAL_DEVIATIONS
    least = math.log1p(margin_ratio) / 2
    noise = _noise(logarithms, least)
    tamed = _tamed(logarithms, noise)
    between = max(noise**2 - float(np.median(errors**2)), least**2)
    bounds = _significant(tamed, _partition(tamed, 1 / (between + errors**2)), math.log1p(margin_ratio), least)
    if bounds[-1] - bounds[-2] < MIN_LEVEL_RUNS:
        tamed = np.append(tamed[: bounds[-2]], logarithms[bounds[-2] :])  # as it is, for it is what the change is about
    return _levels(tamed, bounds, least)


def _noise(logarithms: Numbers, least: float) -> float:
    """Standard deviation between neighbours, which a few changes of level do not move."""
    if logarithms.size < 3:
        return least
    return max(least, MAD_TO_DEVIATION * float(np.median(np.abs(np.diff(logarithms)))) / math.sqrt(2))


def _tamed(logarithms: Numbers, noise: float) -> Numbers:
    """The same with what stands out alone, far from both its neighbours, pulled towards the runs around (Hampel's filter)."""
    count, reach = logarithms.size, MAX_STEP * noise
    if count < 2 * NEIGHBOURS + 1:
        return logarithms
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logarithms, NEIGHBOURS, mode="reflect"), 2 * NEIGHBOURS + 1)
    middles = np.median(windows, axis=1)
    # A mirror image of what is next to them would make the ends their own neighbours.
    middles[0], middles[-1] = np.median(logarithms[: NEIGHBOURS + 1]), np.median(logarithms[-NEIGHBOURS - 1 :])
    is_far = np.abs(np.diff(logarithms)) > reach
    is_alone = np.append(True, is_far) & np.append(is_far, True)
    return np.where(is_alone, np.clip(logarithms, middles - reach, middles + reach), logarithms)


def _partition(logarithms: Numbers, weights: Numbers) -> list[int]:
    """Where levels begin, the first at 0, and n."""
    count = logarithms.size
    sums = np.zeros((3, count + 1))
    np.cumsum([weights, weights * logarithms, weights * logarithms**2], axis=1, out=sums[:, 1:])
    costs, starts = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    _fill_partition(sums[0], sums[1], sums[2], costs, starts, PENALTY * math.log(max(count, 2)), MIN_LEVEL_RUNS)
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(int(starts[bounds[-1]]))
    return bounds[::-1]


@jit
def _fill_partition(
    weights: Numbers, firsts: Numbers, seconds: Numbers, costs: Numbers, starts: npt.NDArray[np.int64], penalty: float, min_runs: int
) -> None:
    """The least cost of all partitions of the first i runs, and where the last level of that one begins.

    Levels have at least min_runs runs; the last of all may have fewer.
    """
    count = costs.size - 1
    for end in range(1, count + 1):
        costs[end] = math.inf
        for begin in range(end):
            is_short = end - begin < min_runs
            if is_short and end < count:
                continue
            weight = weights[end] - weights[begin]
            total = firsts[end] - firsts[begin]
            cost = costs[begin] + seconds[end] - seconds[begin] - total * total / weight + penalty
            if cost < costs[end]:
                costs[end] = cost
                starts[end] = begin


def _significant(logarithms: Numbers, bounds: list[int], min_step: float, least: float) -> list[int]:
    """The bounds that the test keeps; the least sure one goes first, then what it has parted is judged as one."""
    kept = list(bounds)
    while len(kept) > 2:
        tests = [_test(logarithms[kept[i - 1] : kept[i]], logarithms[kept[i] : kept[i + 1]], least) for i in range(1, len(kept) - 1)]
        worst = max(range(len(tests)), key=lambda i: (not tests[i].is_passed(min_step), tests[i].p_value))
        if tests[worst].is_passed(min_step):
            break
        del kept[worst + 1]
    return kept


@dataclass(frozen=True, slots=True)
class _Test:
    """step: of the logarithms from one level to the next, with its standard error."""

    step: float
    error: float
    freedom: int
    rank_p_value: float
    agree: bool  # all runs of a short level lie on its side: some of them alone, as on a busy host, make no level

    def is_passed(self, min_step: float) -> bool:
        is_sure = self.p_value <= MAX_P_VALUE and self.rank_p_value <= MAX_RANK_P_VALUE
        return is_sure and self.agree and abs(self.step) >= min_step

    @property
    def p_value(self) -> float:
        from scipy import special

        if self.freedom < MIN_RUNS_TOGETHER - 2:
            return 1.0
        return float(2 * special.stdtr(self.freedom, -abs(self.step) / self.error))

    def interval(self) -> tuple[float, float]:
        """Of the ratio, at 99 %."""
        from scipy import special

        reach = float(special.stdtrit(self.freedom, 0.995)) * self.error
        return math.exp(self.step - reach), math.exp(self.step + reach)


def _test(before: Numbers, after: Numbers, least: float) -> _Test:
    """Student's, with the variance of both levels together; it is never less than that of the least noise."""
    from scipy import stats

    freedom = before.size + after.size - 2
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    variance = max(squares / max(freedom, 1), least**2)
    is_over = min(before.size, after.size) >= MIN_LEVEL_RUNS
    method = "exact" if max(before.size, after.size) <= MAX_EXACT_RUNS else "asymptotic"
    rank_p_value = float(stats.mannwhitneyu(before, after, method=method).pvalue) if is_over else 0.0
    error = math.sqrt(variance * (1 / before.size + 1 / after.size))
    step = float(after.mean() - before.mean())
    agree = is_over or bool(np.all((after - before.mean()) * np.sign(step) >= abs(step) / 2))
    return _Test(step, error, freedom, rank_p_value, agree)


def _levels(logarithms: Numbers, bounds: list[int], least: float) -> list[Level]:
    from scipy import special

    found: list[Level] = []
    for begin, end in itertools.pairwise(bounds):
        part = logarithms[begin:end]
        # A short level borrows its noise from the one before: two runs say little of it.
        known = part if part.size >= MIN_LEVEL_RUNS or not found else logarithms[found[-1].begin : found[-1].end]
        deviation = max(least, float(known.std(ddof=1)) if known.size > 1 else least)
        reach = float(special.stdtrit(max(known.size - 1, 1), 0.975)) * deviation * math.sqrt(1 + 1 / part.size) if known.size > 2 else None
        mean = float(part.mean())
        reach = reach if reach is not None else 2 * INTERVAL_DEVIATIONS * deviation
        level = Level(begin, end, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
        if found:
            test = _test(logarithms[found[-1].begin : found[-1].end], part, least)
            low, high = test.interval()
            level = Level(begin, end, level.value, level.band_low, level.band_high, math.exp(test.step), low, high)
        found.append(level)
    return found
