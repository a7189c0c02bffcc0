"""What charts of kernels show of each configuration: one figure, its unit, and which end of it is good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.ui import theme
from kernalyse.services.ui.theme import Ticks

MetricName = Literal["flop_rate", "byte_rate", "efficiency", "duration"]


@dataclass(frozen=True, slots=True)
class Metric:
    """column: of `performance_rows`. ticks: how an axis is written. missing: why a measured configuration has none."""

    title: str
    column: str
    axis_label: str
    show: Callable[[float | None], str]
    ticks: Ticks
    missing: str
    is_lower_better: bool = False


METRICS: Final[dict[MetricName, Metric]] = {
    "flop_rate": Metric(
        "Flop rate",
        "achieved_flop_per_s",
        "Flop rate (flop/s)",
        theme.flop_rate,
        theme.SI_TICKS,
        "measured, but how many flop it does is not known",
    ),
    "byte_rate": Metric(
        "Byte rate",
        "achieved_bytes_per_s",
        "Byte rate (B/s)",
        theme.byte_rate,
        theme.SI_TICKS,
        "measured, but how many bytes it moves is not known",
    ),
    "efficiency": Metric(
        "Efficiency",
        "efficiency_ratio",
        "Achieved ÷ attainable",
        theme.percent,
        theme.SHARE_TICKS,
        "measured, but its work or the ceilings of its device are not known",
    ),
    "duration": Metric(
        "Median time",
        "duration_median_ns",
        "Median time of a launch",
        theme.duration,
        theme.DURATION_TICKS,
        "measured without a median",
        True,
    ),
}


def metric_of(chosen: str, rows: pl.DataFrame) -> MetricName:
    """The chosen one; of none the first that any row has, for what cannot be drawn explains nothing."""
    for name, metric in METRICS.items():
        if name == chosen or (not chosen and rows[metric.column].count() > 0):
            return name
    return next(iter(METRICS))


def best_place(values: list[float], metric: Metric) -> int:
    """Index of the best of at least one."""
    chosen = min(values) if metric.is_lower_better else max(values)
    return values.index(chosen)


def counts(row: Mapping[str, Any]) -> bool:
    """Whether a configuration's figure can be believed: its result is right, and its device can do it."""
    return row["verification_state"] != "FAILED" and not row["is_implausible"]


def remark_of(row: Mapping[str, Any]) -> str:
    """Why it cannot, or what disturbed it; empty: it can, and nothing did."""
    if row["verification_state"] == "FAILED":
        return "WRONG RESULT"
    if row["is_implausible"]:
        return "IMPLAUSIBLE: faster than its device can be"
    return f"{DISTURBED_SYMBOL} {row['disturbance']}" if row["disturbance"] else ""


def figures_text(row: Mapping[str, Any], metric: Metric) -> str:
    """The metric's figure, then efficiency and time, without saying one twice."""
    others = {
        "efficiency_ratio": f"{theme.percent(row['efficiency_ratio'])} of attainable",
        "duration_median_ns": theme.duration(row["duration_median_ns"]),
    }
    value = row[metric.column]
    shown = theme.flop_rate(value, row["dtype"]) if metric.column == "achieved_flop_per_s" else metric.show(value)
    return ", ".join([shown, *(text for column, text in others.items() if column != metric.column)])
