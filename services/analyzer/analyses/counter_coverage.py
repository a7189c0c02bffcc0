"""How much of a trace hardware counters cover."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.shares import share_of
from services.analyzer.table import COUNT
from services.core.work.kinds import MODELLED

INPUT: Final = {
    "kernel_launches": ("launch_index", "duration_ns"),
    "launch_work": ("launch_index", "work_source"),
}


def counter_coverage(launches: pl.LazyFrame, launch_work: pl.LazyFrame) -> pl.LazyFrame:
    """One row per source of counted work, and one for kernels without: table counter_coverage.

    Args:
        launches, launch_work: the tables kernel_launches and launch_work of one trace.
    """
    duration_ns = pl.col("duration_ns")
    return (
        launches.select("launch_index", "duration_ns")
        .join(launch_work.filter(pl.col("work_source") != MODELLED).select("launch_index", "work_source"), on="launch_index", how="left")
        .group_by("work_source")
        .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.when(duration_ns.count() > 0).then(duration_ns.sum()))
        .with_columns(
            launch_ratio=pl.col("launch_count") / pl.col("launch_count").sum(),
            duration_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()),
        )
        .sort("work_source", nulls_last=True)
        .select("work_source", "launch_count", "launch_ratio", "duration_sum_ns", "duration_ratio")
    )
