"""The counters of single launches, as a program that asks for a handful of percentages takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

PERCENTAGES: Final = {
    "memory_throughput_pct": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput"),
    "compute_throughput_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    "sm_efficiency_pct": (
        "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    ),
}
"""Metrics that say it, the first one that a report has. sm_efficiency is nvprof's, by NVIDIA's table of its successors."""


@dataclass(frozen=True, slots=True)
class LaunchCounters:
    """One profiled launch. None: not counted. metrics: every number of it, by ncu's own name and in its unit."""

    launch_index: int
    kernel_name: str | None
    memory_throughput_pct: float | None
    compute_throughput_pct: float | None
    occupancy_pct: float | None
    sm_efficiency_pct: float | None
    metrics: Mapping[str, float]


def launch_counters(counters: pl.DataFrame) -> tuple[LaunchCounters, ...]:
    """Every launch of one report, in its order.

    Args:
        counters: with the columns launch_index, metric_name, unit and value, and kernel_name if it is known; of
            `NcuReport.counters`, or of the table counters with the rows of one report.
    """
    known = counters.filter(pl.col("value").is_not_null())
    groups = known.partition_by("launch_index", maintain_order=True, as_dict=True)
    names: dict[int, str] = {}
    if "kernel_name" in counters.columns:
        named = counters.filter(pl.col("kernel_name").is_not_null())
        names = dict(named.select("launch_index", "kernel_name").unique("launch_index", keep="first").iter_rows())
    indexes = sorted(counters["launch_index"].unique().to_list())
    empty = known.clear()
    return tuple(_of_launch(index, names.get(index), groups.get((index,), empty)) for index in indexes)


def _of_launch(launch_index: int, kernel_name: str | None, rows: pl.DataFrame) -> LaunchCounters:
    metrics = dict(zip(rows["metric_name"], rows["value"], strict=True))
    percentages = dict(rows.filter(pl.col("unit").is_null() | (pl.col("unit") == "%")).select("metric_name", "value").iter_rows())
    found = {name: next((percentages[one] for one in candidates if one in percentages), None) for name, candidates in PERCENTAGES.items()}
    return LaunchCounters(launch_index, kernel_name, **found, metrics=metrics)
