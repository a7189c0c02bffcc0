"""Kernels and layers of a trace on the terminal, with units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.cli.terminal import FittedTable, cut_name
from services.core.labels import layer_label
from services.core.quantities import UNKNOWN, duration, giga, percentage
from services.ui.charts.names import OUTSIDE

if TYPE_CHECKING:
    import polars as pl


def kernel_table(kernels: pl.DataFrame) -> FittedTable:
    """Return one row per kernel. Input: table kernels of a trace."""
    numeric = ("launches", "time", "share", "median")
    rows = (
        (
            cut_name(row["kernel_name"]),
            f"{row['launch_count']}",
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            duration(row["duration_median_ns"]),
        )
        for row in kernels.iter_rows(named=True)
    )
    return FittedTable(("kernel", *numeric), rows, numeric=numeric)


def layer_table(layers: pl.DataFrame) -> FittedTable:
    """Return one row per layer. Input: table layers of a trace."""
    numeric = ("calls", "launches", "time", "share", "GFLOP/s", "GB/s", "efficiency")
    rows = (
        (
            cut_name(layer_label(row["layer"], row["source"]) if row["layer"] else OUTSIDE),
            UNKNOWN if row["call_count"] is None else f"{row['call_count']}",
            f"{row['launch_count']}",
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            giga(row["achieved_flop_per_s"]),
            giga(row["achieved_bytes_per_s"]),
            percentage(row["efficiency_ratio"]),
            row["bound"] or UNKNOWN,
            row["source"] or UNKNOWN,
        )
        for row in layers.iter_rows(named=True)
    )
    return FittedTable(("layer", *numeric, "bound", "told by"), rows, numeric=numeric)
