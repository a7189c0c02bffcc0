"""What a trace says of each of its kernels."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.shares import share_of
from services.analyzer.table import COUNT

INPUT: Final = {"kernel_launches": ("name_index", "duration_ns"), "trace_names": ("name_index", "name")}
"""Columns that it needs, by table."""


def trace_kernels(launches: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """One row per name, longest in all first: the figures of table kernels.

    Args:
        launches, names: the tables kernel_launches and trace_names of one trace.
    """
    duration_ns = pl.col("duration_ns")
    return (
        launches.group_by("name_index")
        .agg(
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=duration_ns.sum(),
            duration_min_ns=duration_ns.min(),
            duration_median_ns=duration_ns.median(),
            duration_max_ns=duration_ns.max(),
        )
        .join(names.select("name_index", kernel_name="name"), on="name_index", how="left")
        .with_columns(duration_sum_ns=pl.when(pl.col("duration_min_ns").is_not_null()).then("duration_sum_ns"))  # of unknown ones: 0
        .with_columns(share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()))
        .sort("duration_sum_ns", "kernel_name", descending=[True, False])
        .select("kernel_name", "launch_count", "duration_sum_ns", "share_ratio", "duration_min_ns", "duration_median_ns", "duration_max_ns")
    )
