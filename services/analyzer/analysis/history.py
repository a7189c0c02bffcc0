"""The history of a metric: series of comparable runs, their levels, and the change points between levels."""

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
"""Possible reasons of a change, by column."""

COMMIT_LENGTH: Final = 10


def history(rows: pl.LazyFrame, metric: str) -> pl.LazyFrame:
    """Return table history.

    Args:
        rows: table history_rows. Runs in which the metric is missing or not positive have no row in the result.
        metric: the column of history_rows.
    """
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
    """Return table history_series. rows: table history_rows."""
    newest = rows.group_by("series").agg(pl.len().alias("run_count"), pl.col("measured_unix_ns").max())
    described = rows.join(newest, on=["series", "measured_unix_ns"]).unique("series", keep="last")
    return HISTORY_SERIES.conform(described.sort("measured_unix_ns", "series", descending=[True, False]))


def change_margin_ratio(device_id: str | None) -> float:
    """Return the smallest change that counts on a device, as a ratio."""
    return GPU_MARGIN_RATIO if (device_id or "").startswith("cuda") else CPU_MARGIN_RATIO


def _with_levels(part: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return the rows of one series with their levels; only the newest MAX_RUNS runs are segmented."""
    newest = part.tail(MAX_RUNS)
    offset = part.height - newest.height
    half_widths = newest.select((pl.col("value_high") / pl.col("value_low")).log() / 2).to_series().fill_null(float("nan")).to_numpy()
    found = levels(newest["value"].to_numpy(), np.asarray(half_widths, dtype=np.float64), change_margin_ratio(part["device_id"][0]))
    changes = [_change(part, level, metric, offset) for level in found]
    columns = ("level_index", "level_value", "level_low", "level_high")
    all_rows: dict[str, list[Any]] = {name: [None] * offset for name in columns}
    firsts: dict[str, list[Any]] = {name: [None] * part.height for name in changes[0]}
    for index, (level, change) in enumerate(zip(found, changes, strict=True)):
        for name, value in zip(columns, (index, level.value, level.band_low, level.band_high), strict=True):
            all_rows[name] += [value] * (level.end - level.begin)
        for name, value in change.items():
            firsts[name][offset + level.begin] = value
    schema = HISTORY.schema
    return part.with_columns(pl.Series(name, values, dtype=schema[name]) for name, values in (all_rows | firsts).items())


def _change(part: pl.DataFrame, level: Level, metric: str, offset: int) -> dict[str, Any]:
    """Return the columns that only the first row of a level has: the change to it from the level before."""
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
# Detection of lasting changes of a metric, with their significance.
#
# The two steps are those of Hunter (M. Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance Regressions", ICPE
# 2023): a segmentation proposes levels, and a t test retains those that differ. The segmentation is optimal partitioning (B. Jackson et
# al., "An algorithm for optimal partitioning of data on an interval", 2005; the criterion of PELT) of the logarithms by weighted squares.
# A run's weight follows from the noise between runs and its own confidence interval, which no change point library takes into account.
# A single outlier, as on a busy host, is no change; at the end of the series it may be the first run of one.

Numbers = npt.NDArray[np.float64]

MIN_LEVEL_RUNS: Final = 5
"""Least number of runs of a level, except the newest. With three, two slow runs on a busy afternoon would count as a regression and its
repair; with more, a change that was soon reverted would be missed. The newest level may be shorter, and is unconfirmed then."""

MIN_RUNS_TOGETHER: Final = 6  # of two levels that are compared: fewer cannot distinguish noise from a change
MAX_P_VALUE: Final = 0.001  # of the t test: a page of a hundred kernels would show five false ones at 5 %
MAX_RANK_P_VALUE: Final = 0.01
"""Limit of the Mann-Whitney rank test, which two completed levels have to pass as well: a few outliers move a mean, but not ranks."""

MAX_EXACT_RUNS: Final = 20
"""Runs per level up to which the rank test is exact. With five runs each, the normal approximation never gets below the limit."""

PENALTY: Final = 3.0  # times log(n), for each level: 2 is BIC, which proposes more levels than the test retains
MAX_STEP: Final = 6.0  # standard deviations by which one run may differ from its neighbours; outliers are clipped to it
NEIGHBOURS: Final = 3  # on each side
MAD_TO_DEVIATION: Final = 1.4826
INTERVAL_DEVIATIONS: Final = 1.96  # half of a 95 % interval
FRACTION_ERROR: Final = 1e-14  # relative: less is below the last digit of a float, and is never reached
MAX_FRACTION_STEPS: Final = 1000  # the steps needed grow with the square root of the degrees of freedom, which are at most 2 MAX_RUNS
MAX_RUNS: Final = 1000
"""Newest runs of a series that are segmented: the time grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level: runs from begin up to end (exclusive) that agree.

    value: their geometric mean. band_low, band_high: prediction interval of 95 % of such runs. ratio, ratio_low, ratio_high: value
    over that of the level before, with its 99 % interval; None for the first level.
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
        """Whether the level has enough runs."""
        return self.end - self.begin >= MIN_LEVEL_RUNS


def levels(values: Numbers, half_widths: Numbers, margin_ratio: float) -> list[Level]:
    """Return the levels of a series in the order of its runs, each different from the one before by more than the margin.

    Args:
        values: positive values, one per run; shape (n,), n ≥ 1.
        half_widths: half widths of the 95 % intervals of the logarithms, shape (n,); NaN: not known.
        margin_ratio: the smallest change that counts; half of it is the least noise that is assumed.
    """
    logarithms = np.log(values)
    errors = np.nan_to_num(half_widths, nan=0.0, posinf=0.0) / INTERVAL_DEVIATIONS
    least = math.log1p(margin_ratio) / 2
    noise = _noise(logarithms, least)
    winsorized = _winsorized(logarithms, noise)
    between = max(noise**2 - float(np.median(errors**2)), least**2)
    bounds = _significant(winsorized, _partition(winsorized, 1 / (between + errors**2)), math.log1p(margin_ratio), least)
    if bounds[-1] - bounds[-2] < MIN_LEVEL_RUNS:
        winsorized = np.append(winsorized[: bounds[-2]], logarithms[bounds[-2] :])  # the newest runs may be the change itself
    return _levels(winsorized, bounds, least)


def _noise(logarithms: Numbers, least: float) -> float:
    """Return the standard deviation between neighbours, which is robust against a few changes of level."""
    if logarithms.size < 3:
        return least
    return max(least, MAD_TO_DEVIATION * float(np.median(np.abs(np.diff(logarithms)))) / math.sqrt(2))


def _winsorized(logarithms: Numbers, noise: float) -> Numbers:
    """Return the values with single outliers, far from both neighbours, clipped towards the runs around (Hampel's filter)."""
    count, reach = logarithms.size, MAX_STEP * noise
    if count < 2 * NEIGHBOURS + 1:
        return logarithms
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logarithms, NEIGHBOURS, mode="reflect"), 2 * NEIGHBOURS + 1)
    middles = np.median(windows, axis=1)
    # Reflection would make the two ends their own neighbours.
    middles[0], middles[-1] = np.median(logarithms[: NEIGHBOURS + 1]), np.median(logarithms[-NEIGHBOURS - 1 :])
    is_far = np.abs(np.diff(logarithms)) > reach
    is_alone = np.append(True, is_far) & np.append(is_far, True)
    return np.where(is_alone, np.clip(logarithms, middles - reach, middles + reach), logarithms)


def _partition(logarithms: Numbers, weights: Numbers) -> list[int]:
    """Return the rows where levels begin, the first at 0, and n."""
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
    """Write the least cost of all partitions of the first i runs, and where the last level of that partition begins.

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
    """Return the significant bounds. The least significant one is removed first, and its two levels are tested as one again."""
    retained = list(bounds)
    while len(retained) > 2:
        tests = [
            _test(logarithms[retained[i - 1] : retained[i]], logarithms[retained[i] : retained[i + 1]], least)
            for i in range(1, len(retained) - 1)
        ]
        worst = max(range(len(tests)), key=lambda i: (not tests[i].is_passed(min_step), tests[i].p_value))
        if tests[worst].is_passed(min_step):
            break
        del retained[worst + 1]
    return retained


@dataclass(frozen=True, slots=True)
class _Test:
    """The test of two neighbouring levels. step: difference of the means of the logarithms; error: its standard error."""

    step: float
    error: float
    freedom: int
    rank_p_value: float
    agree: bool  # all runs of a short level are nearer to it than to the level before: outliers on a busy host make no level

    def is_passed(self, min_step: float) -> bool:
        """Return whether the levels differ significantly, by at least min_step."""
        is_sure = self.p_value <= MAX_P_VALUE and self.rank_p_value <= MAX_RANK_P_VALUE
        return is_sure and self.agree and abs(self.step) >= min_step

    @property
    def p_value(self) -> float:
        """The two-sided p value of the t test."""
        if self.freedom < MIN_RUNS_TOGETHER - 2:
            return 1.0
        return student_p_value(self.step / self.error, self.freedom)

    def interval(self) -> tuple[float, float]:
        """Return the 99 % interval of the ratio."""
        reach = student_quantile(0.995, self.freedom) * self.error
        return math.exp(self.step - reach), math.exp(self.step + reach)


def _test(before: Numbers, after: Numbers, least: float) -> _Test:
    """Return Student's t test of two levels, with the pooled variance, which is at least that of the least noise."""
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
        # A short level takes its noise from the one before: two runs are too few to estimate it.
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
    """Return the quantile of Student's t distribution for a probability above one half.

    It uses Newton's method from the normal quantile, which is nearer to 0: from there on the distribution function is concave, so
    that no step overshoots.
    """
    log_peak = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    found, step = NormalDist().inv_cdf(probability), math.inf
    while step > FRACTION_ERROR * found:
        density = math.exp(log_peak - (freedom + 1) / 2 * math.log1p(found * found / freedom))
        step = (student_p_value(found, freedom) / 2 - (1 - probability)) / density
        found += step
    return found


def mann_whitney_p_value(one: Numbers, other: Numbers) -> float:
    """Return the two-sided p value of the rank test of Mann and Whitney.

    Up to MAX_EXACT_RUNS values per sample it is exact, ignoring ties; for more it is by the normal distribution, with corrections for
    ties and for continuity. Source: H. Mann, D. Whitney, "On a test of whether one of two random variables is stochastically larger
    than the other", 1947.
    """
    _, ranks, counts = np.unique(np.concatenate((one, other)), return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts - 1) / 2  # equal values get the mean of their ranks
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
    """Return the number of orderings of two samples of these sizes for each value of Mann and Whitney's U, from 0.

    They are the coefficients of the Gaussian binomial, the product of (1 - q^(other + i)) / (1 - q^i) over i up to one.
    """
    ways = [1] + [0] * (one * other)
    for i in range(1, one + 1):
        for u in range(one * other, other + i - 1, -1):
            ways[u] -= ways[u - other - i]
        for u in range(i, one * other + 1):
            ways[u] += ways[u - i]
    return ways
