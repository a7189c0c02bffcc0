"""A figure over time: which runs belong together, at which level they are, and where the level changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.tables.derived import HISTORY, HISTORY_SERIES, LARGER_IS_BETTER
from kernalyse.services.core.comparison import CPU_MARGIN_RATIO, GPU_MARGIN_RATIO

NAMED_CHANGES: Final[Mapping[str, str]] = {
    "git_commit": "commit",
    "driver_version": "driver",
    "toolkit_version": "toolkit",
    "compiler_options": "compiler options",
    "timing_method": "timing",
}
"""What may be the reason of a change, by its column."""

COMMIT_LENGTH: Final = 10


def history(rows: pl.LazyFrame, metric: str) -> pl.LazyFrame:
    """Table history. Input: table history_rows; runs without the figure, or with one that is no size, have no row."""
    low, high = (f"duration_median_{end}_ns" if metric == "duration_median_ns" else None for end in ("low", "high"))
    valued = (
        rows.filter(pl.col(metric) > 0, pl.col(metric).is_finite())
        .sort("series", "measured_unix_ns", "run_id")
        .with_columns(
            metric=pl.lit(metric),
            value=pl.col(metric),
            value_low=pl.col(low) if low else pl.lit(None, dtype=pl.Float64),
            value_high=pl.col(high) if high else pl.lit(None, dtype=pl.Float64),
        )
        .collect()
    )
    run_count = pl.len().over("series")
    few = valued.filter(run_count < MIN_RUNS_TOGETHER).with_columns(
        level_index=pl.lit(0, dtype=pl.Int64), level_value=pl.col("value").log().mean().over("series").exp()
    )
    parts = valued.filter(run_count >= MIN_RUNS_TOGETHER).partition_by("series", maintain_order=True)
    levelled = [HISTORY.conform(part.lazy()) for part in (few, *(_with_levels(part, metric) for part in parts))]
    return pl.concat(levelled)


def history_series(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Table history_series. Input: table history_rows."""
    newest = rows.group_by("series").agg(pl.len().alias("run_count"), pl.col("measured_unix_ns").max())
    described = rows.join(newest, on=["series", "measured_unix_ns"]).unique("series", keep="last")
    return HISTORY_SERIES.conform(described.sort("measured_unix_ns", "series", descending=[True, False]))


def margin_of(device_id: str | None) -> float:
    """The smallest change that counts on a device."""
    return GPU_MARGIN_RATIO if (device_id or "").startswith("cuda") else CPU_MARGIN_RATIO


def _with_levels(part: pl.DataFrame, metric: str) -> pl.DataFrame:
    """One series; the newest runs of a very long one are judged."""
    judged = part.tail(MAX_RUNS)
    offset = part.height - judged.height
    half_widths = judged.select((pl.col("value_high") / pl.col("value_low")).log() / 2).to_series().fill_null(float("nan")).to_numpy()
    found = levels(judged["value"].to_numpy(), np.asarray(half_widths, dtype=np.float64), margin_of(part["device_id"][0]))
    changes = [_change(part, level, metric, offset) for level in found]
    columns = ("level_index", "level_value", "level_low", "level_high")
    whole: dict[str, list[Any]] = {name: [None] * offset for name in columns}
    firsts: dict[str, list[Any]] = {name: [None] * part.height for name in changes[0]}
    for index, (level, change) in enumerate(zip(found, changes, strict=True)):
        for name, value in zip(columns, (index, level.value, level.band_low, level.band_high), strict=True):
            whole[name] += [value] * (level.end - level.begin)
        for name, value in change.items():
            firsts[name][offset + level.begin] = value
    schema = HISTORY.schema
    return part.with_columns(pl.Series(name, values, dtype=schema[name]) for name, values in (whole | firsts).items())


def _change(part: pl.DataFrame, level: Level, metric: str, offset: int) -> dict[str, Any]:
    """What the first row of a level says of it."""
    names = ("change_ratio", "change_ratio_low", "change_ratio_high", "verdict", "is_confirmed", "baseline_run_id", "reason")
    if level.ratio is None:
        return dict.fromkeys(names)
    before, first = (part.row(offset + level.begin + step, named=True) for step in (-1, 0))
    is_better = (level.ratio > 1) == (metric in LARGER_IS_BETTER)
    verdict = "IMPROVEMENT" if is_better else "REGRESSION"
    values = (level.ratio, level.ratio_low, level.ratio_high, verdict, level.is_confirmed, before["run_id"])
    return dict(zip(names, (*values, _reason(before, first, level)), strict=True))


def _reason(before: Mapping[str, Any], first: Mapping[str, Any], level: Level) -> str:
    assert level.ratio is not None
    count = level.end - level.begin
    held = f"{(level.ratio - 1) * 100:+.1f} % in {count} run{'s' if count > 1 else ''} since"
    sentences = [held + (": to be confirmed by more." if not level.is_confirmed else ".")]
    changed = [
        f"{word} {_shown(before[name])} to {_shown(first[name])}"
        for name, word in NAMED_CHANGES.items()
        if before[name] != first[name] and (before[name] or first[name])
    ]
    if changed:
        sentences.append(f"Different from the run before: {', '.join(changed)}.")
    return " ".join(sentences)


def _shown(value: str | None) -> str:
    return value[:COMMIT_LENGTH] if value else "unknown"


# ---------------------------------------------------------------- change points
# At which runs a figure changed for good, and how sure that is.
#
# Two steps, as Hunter has them (M. Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance Regressions", ICPE
# 2023): a segmentation proposes levels, and a t test keeps those that differ. The segmentation is optimal partitioning (B. Jackson et
# al., "An algorithm for optimal partitioning of data on an interval", 2005; the criterion of PELT) of the logarithms with weighted
# squares: a run counts as much as its noise between runs and its own confidence interval allow, which no library of change points takes
# into account. What one run does alone, as on a busy host, is no change; at the end of the series it may be the first of one.

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
FRACTION_ERROR: Final = 1e-14  # relative: less is below the last digit of a float, and is never reached
MAX_FRACTION_STEPS: Final = 1000  # some square roots of the degrees of freedom are needed, of which there are at most 2 MAX_RUNS
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
        if self.freedom < MIN_RUNS_TOGETHER - 2:
            return 1.0
        return student_p_value(self.step / self.error, self.freedom)

    def interval(self) -> tuple[float, float]:
        """Of the ratio, at 99 %."""
        reach = student_quantile(0.995, self.freedom) * self.error
        return math.exp(self.step - reach), math.exp(self.step + reach)


def _test(before: Numbers, after: Numbers, least: float) -> _Test:
    """Student's, with the variance of both levels together; it is never less than that of the least noise."""
    freedom = before.size + after.size - 2
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    variance = max(squares / max(freedom, 1), least**2)
    is_over = min(before.size, after.size) >= MIN_LEVEL_RUNS
    rank_p_value = mann_whitney_p_value(before, after) if is_over else 0.0
    error = math.sqrt(variance * (1 / before.size + 1 / after.size))
    step = float(after.mean() - before.mean())
    agree = is_over or bool(np.all((after - before.mean()) * np.sign(step) >= abs(step) / 2))
    return _Test(step, error, freedom, rank_p_value, agree)


def _levels(logarithms: Numbers, bounds: list[int], least: float) -> list[Level]:
    found: list[Level] = []
    for begin, end in itertools.pairwise(bounds):
        part = logarithms[begin:end]
        # A short level borrows its noise from the one before: two runs say little of it.
        known = part if part.size >= MIN_LEVEL_RUNS or not found else logarithms[found[-1].begin : found[-1].end]
        deviation = max(least, float(known.std(ddof=1)) if known.size > 1 else least)
        reach = student_quantile(0.975, max(known.size - 1, 1)) * deviation * math.sqrt(1 + 1 / part.size) if known.size > 2 else None
        mean = float(part.mean())
        reach = reach if reach is not None else 2 * INTERVAL_DEVIATIONS * deviation
        level = Level(begin, end, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
        if found:
            test = _test(logarithms[found[-1].begin : found[-1].end], part, least)
            low, high = test.interval()
            level = Level(begin, end, level.value, level.band_low, level.band_high, math.exp(test.step), low, high)
        found.append(level)
    return found


# ---------------------------------------------------------------- distributions


def student_p_value(t: float, freedom: int) -> float:
    """Return the probability that a Student's t is at least as far from 0 as this one.

    I_x(n/2, 1/2) at x = n / (n + t²) for n degrees of freedom (M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions", 26.7.1).
    """
    if t == 0:
        return 1.0
    # As logarithms: x is close to 1 for a small t, 1 - x for a large one.
    log_x, log_rest = -math.log1p(t * t / freedom), 2 * math.log(abs(t)) - math.log(freedom + t * t)
    half = freedom / 2
    log_beta = math.lgamma(half) + math.lgamma(0.5) - math.lgamma(half + 0.5)
    front = math.exp(half * log_x + 0.5 * log_rest - log_beta)
    if math.exp(log_x) < (half + 1) / (half + 2.5):
        return front * _beta_fraction(math.exp(log_x), half, 0.5) / half
    return 1 - front * _beta_fraction(math.exp(log_rest), 0.5, half) / 0.5


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, I_x(a, b) = x^a (1 - x)^b / (a B(a, b)) times it.

    It converges fast for x < (a + 1) / (a + b + 2). Source: NIST Digital Library of Mathematical Functions, 8.17.22 to 8.17.24;
    evaluated from the front, as W. Lentz does ("Generating Bessel functions in Mie scattering calculations", 1976).
    """
    found = upper = 1.0
    lower = 0.0
    for step in range(1, MAX_FRACTION_STEPS):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / (1 + term * lower)
        upper = 1 + term / upper
        found *= upper * lower
        if abs(upper * lower - 1) < FRACTION_ERROR:
            break
    return 1 / found


@cache
def student_quantile(probability: float, freedom: int) -> float:
    """Return what a Student's t stays below with this probability, more than one half.

    By Newton's method from the normal quantile, which is nearer to 0: from there on the distribution function is concave, so that
    no step goes too far.
    """
    log_peak = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    found, step = NormalDist().inv_cdf(probability), math.inf
    while step > FRACTION_ERROR * found:
        density = math.exp(log_peak - (freedom + 1) / 2 * math.log1p(found * found / freedom))
        step = (student_p_value(found, freedom) / 2 - (1 - probability)) / density
        found += step
    return found


def mann_whitney_p_value(one: Numbers, other: Numbers) -> float:
    """Return the two-sided p value of the rank test of H. Mann and D. Whitney ("On a test of whether one of two random variables is
    stochastically larger than the other", 1947).

    Up to MAX_EXACT_RUNS values a side it is exact, as though there were no ties; for more by the normal distribution, with corrections
    for ties and for continuity.
    """
    _, ranks, counts = np.unique(np.concatenate((one, other)), return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts - 1) / 2  # of equal values the mean of their ranks
    pair_count, count = one.size * other.size, one.size + other.size
    of_one = float(middles[ranks[: one.size]].sum()) - one.size * (one.size + 1) / 2
    statistic = max(of_one, pair_count - of_one)
    if max(one.size, other.size) <= MAX_EXACT_RUNS:
        ways = _rank_ways(one.size, other.size)
        return min(1.0, 2 * sum(ways[int(statistic) :]) / math.comb(count, one.size))
    ties = float((counts**3 - counts).sum()) / (count * (count - 1))
    deviation = math.sqrt(pair_count / 12 * (count + 1 - ties))
    return min(1.0, math.erfc((statistic - pair_count / 2 - 0.5) / deviation / math.sqrt(2))) if deviation > 0 else 1.0


@cache
def _rank_ways(one: int, other: int) -> list[int]:
    """Return, by value of Mann and Whitney's U from 0, how many orders of so many values a side have it.

    They are the coefficients of the Gaussian binomial, the product of (1 - q^(other + i)) / (1 - q^i) over i up to one.
    """
    ways = [1] + [0] * (one * other)
    for i in range(1, one + 1):
        for u in range(one * other, other + i - 1, -1):
            ways[u] -= ways[u - other - i]
        for u in range(i, one * other + 1):
            ways[u] += ways[u - i]
    return ways
