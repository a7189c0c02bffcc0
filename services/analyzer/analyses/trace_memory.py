"""What the copies and fills of a trace moved, and how fast."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.table import COUNT, NUMBER

_DEVICE: Final = ("process_id", "device_index")
INPUT: Final = {
    "memory_ops": (*_DEVICE, "kind", "direction", "duration_ns", "bytes"),
    "trace_devices": (*_DEVICE, "device_name", "memory_bandwidth_bytes_per_s"),
}

SMALL_BYTES: Final = 64 * 1024
"""Below it the one or two microseconds that any operation takes outweigh the moving, on PCIe and more so within a device:
such operations gain from being put together. Far larger ones run at the bandwidth already."""

NS_PER_S: Final = 1_000_000_000
DEVICE_TRAFFIC: Final = {"set": 1, "device_to_device": 2}
"""Accesses to the device's memory for each byte: a copy within it reads and writes. Between host and device the link counts,
which no trace describes."""


def trace_memory(memory_ops: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process, device, kind and direction, of each device the most time first: table memory.

    Args:
        memory_ops, devices: the tables memory_ops and trace_devices of one trace.
    """
    timed = pl.col("duration_ns") > 0
    accesses = pl.coalesce("direction", "kind").replace_strict(DEVICE_TRAFFIC, default=None, return_dtype=NUMBER)
    rate = pl.col("timed_bytes") / pl.col("timed_ns") * NS_PER_S
    return (
        memory_ops.group_by(*_DEVICE, "kind", "direction")
        .agg(
            op_count=pl.len().cast(COUNT),
            bytes_sum=_sum("bytes"),
            duration_sum_ns=pl.col("duration_ns").sum(),
            duration_median_ns=pl.col("duration_ns").median(),
            small_op_count=(pl.col("bytes") < SMALL_BYTES).sum().cast(COUNT),
            # Of the same operations: bytes that nobody stated would count as none.
            timed_bytes=pl.col("bytes").filter(timed).sum(),
            timed_ns=pl.col("duration_ns").filter(timed & pl.col("bytes").is_not_null()).sum(),
        )
        .with_columns(achieved_bytes_per_s=pl.when(pl.col("timed_ns") > 0).then(rate))
        .join(devices.select(*_DEVICE, "device_name", "memory_bandwidth_bytes_per_s"), on=_DEVICE, how="left", nulls_equal=True)
        .with_columns(bandwidth_ratio=accesses * pl.col("achieved_bytes_per_s") / pl.col("memory_bandwidth_bytes_per_s"))
        .sort(*_DEVICE, "duration_sum_ns", "kind", "direction", descending=[False, False, True, False, False], nulls_last=True)
        .select(
            *(*_DEVICE, "device_name", "kind", "direction", "op_count", "bytes_sum", "duration_sum_ns", "duration_median_ns"),
            *("achieved_bytes_per_s", "bandwidth_ratio", "small_op_count"),
        )
    )


def _sum(column: str) -> pl.Expr:
    """Null where none is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())
