"""The judgement of device checks: against equal devices where those are alike, else against the device's own earlier checks.

Bandwidth and launches of sound devices of one name agree within a percent, so a device that falls out of the fleet is found by the
generalized test for outliers of B. Rosner ("Percentage points for a generalized ESD many-outlier procedure", Technometrics 1983),
one-sided: several slow devices do not hide each other. Compute under a power limit follows each chip's leakage and differs by several
percent among sound devices: there a device's newest check is held against its earlier ones, by the prediction interval of a further check
whose spread is pooled over all devices of the name. All tests of one fleet together give a false alarm in about four of a hundred fleets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.analysis.history import student_quantile
from kernalyse.services.analyzer.tables.runs import FLEET
from kernalyse.services.core.device_health import CHECK_NAMES, CHECK_TITLES, FINE, NOT_JUDGED, POWER_LIMITED, SLOWER

Numbers = npt.NDArray[np.float64]

FLEET_ALPHA: Final = 0.035
"""Probability of a false alarm among equal devices, over all measurements of a check. With less, a device that is six spreads slow would be
missed more than once in twenty times."""

HISTORY_ALPHA: Final = 0.01  # the same against earlier checks, over all devices and measurements
MIN_EQUAL_COUNT: Final = 5  # devices: with fewer, one slow device makes the spread that hides it
MAX_SLOW_FRACTION: Final = 4  # a quarter of the devices at most are outliers; more are the fleet
MIN_EARLIER_COUNT: Final = 3  # checks of a device
MIN_EARLIER_FREEDOM: Final = 4  # of the pooled spread: below it only absurd changes would count
MIN_EFFECT_RATIO: Final = 0.01  # slower by less is nothing to act on, however sure it is
MIN_SPREAD_RATIO: Final = 0.0005  # less is below the resolution of the clocks
MAX_EARLIER_COUNT: Final = 30  # checks of a device that are looked back at: rooms and drivers change
MAX_AGE_NS: Final = 30 * 24 * 3600 * 1_000_000_000
"""Age of a device's newest check, before the fleet's newest, beyond which it is left out: the device may be gone."""

CLOCK_MARGIN_RATIO: Final = 0.02  # by which a clock is called lower
INTERVAL_PROBABILITY: Final = 0.975  # of both sides of a 95 % interval
HALF_WIDTHS_PER_ERROR: Final = 1.96  # half of a 95 % interval over the standard error

Device = ("node_id", "device_id")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of one measurement of one device.

    rate_ratio: its rate over what it was compared with, with its 95 % interval; None: there was nothing.
    """

    verdict: str
    baseline: str
    rate_ratio: float | None = None
    rate_ratio_low: float | None = None
    rate_ratio_high: float | None = None


def fleet(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return table fleet: a row for each device and measurement of its newest check.

    Args:
        rows: table history_rows, of which those of device checks count.
    """
    age_ns = pl.col("measured_unix_ns").max() - pl.col("measured_unix_ns").max().over(Device)
    checks = (
        rows.filter(pl.col("kernel_name").is_in(CHECK_NAMES), pl.col("duration_median_ns") > 0)
        .filter(age_ns <= MAX_AGE_NS)
        .with_columns(device_name=pl.coalesce("device_name", "device_id"))
        .sort("measured_unix_ns")
        .collect()
    )
    groups = checks.partition_by("device_name", "kernel_name", maintain_order=True)
    ways = [(group["device_name"][0], _is_by_fleet(group)) for group in groups]
    judged = [_judged(group, is_by_fleet, ways.count((name, is_by_fleet))) for group, (name, is_by_fleet) in zip(groups, ways, strict=True)]
    return pl.concat([FLEET.empty().lazy(), *(FLEET.conform(part.lazy()) for part in judged)]).sort("device_name", *Device, "check")


def _is_by_fleet(group: pl.DataFrame) -> bool:
    return group["kernel_name"][0] not in POWER_LIMITED and group.select(Device).n_unique() >= MIN_EQUAL_COUNT


def _judged(group: pl.DataFrame, is_by_fleet: bool, measurement_count: int) -> pl.DataFrame:
    """Return the rows of the newest checks of equal devices, judged in one measurement.

    Args:
        group: all checks of these devices, oldest first.
        is_by_fleet: they are compared with each other, else each with its earlier checks.
        measurement_count: of a check that are judged in the same way.
    """
    of_devices = group.partition_by(Device, maintain_order=True)
    newest = pl.concat([checks.tail(1) for checks in of_devices])
    earlier = [checks.head(-1).tail(MAX_EARLIER_COUNT) for checks in of_devices]
    rates = _rates(newest)
    if is_by_fleet:
        judgements = list(_against_fleet(rates, _errors(newest), FLEET_ALPHA / measurement_count))
    else:
        tests = newest.height * measurement_count
        judgements = list(_against_history(rates, [_rates(checks) for checks in earlier], HISTORY_ALPHA / tests))
    reasons = [
        _reason(row, newest if is_by_fleet else own) if judgement.verdict == SLOWER else None
        for row, own, judgement in zip(newest.iter_rows(named=True), earlier, judgements, strict=True)
    ]
    return newest.with_columns(
        check=pl.lit(CHECK_TITLES[group["kernel_name"][0]]),
        verdict=pl.Series([judgement.verdict for judgement in judgements], dtype=pl.String),
        baseline=pl.Series([judgement.baseline for judgement in judgements], dtype=pl.String),
        reason=pl.Series(reasons, dtype=pl.String),
        **{
            column: pl.Series([getattr(judgement, column) for judgement in judgements], dtype=pl.Float64)
            for column in ("rate_ratio", "rate_ratio_low", "rate_ratio_high")
        },
    )


def _rates(rows: pl.DataFrame) -> Numbers:
    """Return the logarithms of the rates but for a constant: the work of equal devices is equal."""
    rates: Numbers = -np.log(rows["duration_median_ns"].to_numpy())
    return rates


def _errors(rows: pl.DataFrame) -> Numbers:
    """Return the standard error of each rate, from the interval of its median."""
    half_widths = (rows["duration_median_high_ns"] / rows["duration_median_low_ns"]).log().to_numpy() / 2
    errors: Numbers = np.nan_to_num(half_widths, nan=0.0, posinf=0.0) / HALF_WIDTHS_PER_ERROR
    return errors


def _against_fleet(rates: Numbers, errors: Numbers, alpha: float) -> Iterator[Judgement]:
    """Yield the judgement of each device against the equal ones that are not outliers themselves."""
    is_slow = slow_outliers(rates, alpha)
    for place in range(rates.size):
        is_other = ~is_slow
        is_other[place] = False
        others = rates[is_other]
        error = math.hypot(errors[place], float(others.std(ddof=1)) / math.sqrt(others.size))
        effect, margin = rates[place] - float(others.mean()), student_quantile(INTERVAL_PROBABILITY, others.size - 1) * error
        yield _judgement(bool(is_slow[place]), f"{others.size} equal devices", effect, margin)


def slow_outliers(values: Numbers, alpha: float) -> npt.NDArray[np.bool_]:
    """Return which values are too low for the rest, shape (n,), n >= MIN_EQUAL_COUNT. alpha: probability of any where there is none."""
    remaining, found, slow_count = list(np.argsort(values)), [], 0
    for count in range(1, max(1, values.size // MAX_SLOW_FRACTION) + 1):
        rest = values[remaining]
        spread = max(float(rest.std(ddof=1)), MIN_SPREAD_RATIO)
        freedom = rest.size - 2
        quantile = student_quantile(1 - alpha / rest.size, freedom)
        limit = (rest.size - 1) * quantile / math.sqrt((freedom + quantile**2) * rest.size)
        lowest = remaining.pop(0)
        found.append(lowest)
        if (float(rest.mean()) - values[lowest]) / spread > limit:
            slow_count = count
    is_slow = np.zeros(values.size, dtype=np.bool_)
    is_slow[found[:slow_count]] = True
    return is_slow & (values < float(values[~is_slow].mean()) + math.log1p(-MIN_EFFECT_RATIO))


def _against_history(rates: Numbers, histories: list[Numbers], alpha: float) -> Iterator[Judgement]:
    """Yield the judgement of each device against its own earlier checks."""
    repeated = [earlier for earlier in histories if earlier.size >= 2]
    freedom = sum(earlier.size - 1 for earlier in repeated)
    squares = sum(float(((earlier - earlier.mean()) ** 2).sum()) for earlier in repeated)
    for rate, earlier in zip(rates, histories, strict=True):
        count = earlier.size
        if count < MIN_EARLIER_COUNT or freedom < MIN_EARLIER_FREEDOM:
            yield Judgement(NOT_JUDGED, f"{count} earlier check{'' if count == 1 else 's'} of its own, too few to judge by")
            continue
        error = max(math.sqrt(squares / freedom), MIN_SPREAD_RATIO) * math.sqrt(1 + 1 / count)
        effect = rate - float(earlier.mean())
        is_slow = effect < -student_quantile(1 - alpha, freedom) * error and effect < math.log1p(-MIN_EFFECT_RATIO)
        margin = student_quantile(INTERVAL_PROBABILITY, freedom) * error
        yield _judgement(is_slow, f"{count} earlier checks of its own", effect, margin)


def _judgement(is_slow: bool, baseline: str, effect: float, margin: float) -> Judgement:
    ends = (math.exp(effect + sign * margin) for sign in (-1, 1))
    return Judgement(SLOWER if is_slow else FINE, baseline, math.exp(effect), *ends)


def _reason(row: dict[str, Any], reference: pl.DataFrame) -> str | None:
    """Return what else differs from what a slower device was compared with; None: nothing that is known."""
    phrases = []
    for name, title in (("memory_clock_hz", "memory clock"), ("sm_clock_hz", "SM clock")):
        usual_hz = reference[name].median()
        if row[name] is not None and isinstance(usual_hz, float) and row[name] < usual_hz * (1 - CLOCK_MARGIN_RATIO):
            phrases.append(f"{title} lower, {row[name] / 1e6:.0f} instead of {usual_hz / 1e6:.0f} MHz")
    drivers = reference["driver_version"].drop_nulls().mode().sort().to_list()
    if row["driver_version"] is not None and drivers and row["driver_version"] not in drivers:
        phrases.append(f"driver {row['driver_version']} instead of {drivers[0]}")
    if row["disturbance"]:
        phrases.append(str(row["disturbance"]))
    return "; ".join(phrases) or None
