"""What the devices of a trace did all the time."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.table import COUNT

_WORK: Final = ("process_id", "device_index", "start_ns", "duration_ns")
INPUT: Final = {
    "kernel_launches": (*_WORK, "name_index"),
    "memory_ops": _WORK,
    "trace_names": ("name_index", "name"),
    "trace_devices": ("process_id", "device_index", "device_name"),
}

COMMUNICATION: Final = r"(?i)nccl|rccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
"""In names of kernels: those of NCCL, RCCL and NVSHMEM, and collectives that other libraries wrote."""

KEYS: Final = ("process_id", "device_index")


def trace_breakdown(launches: pl.LazyFrame, memory_ops: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process and device: table breakdown.

    Args:
        launches, memory_ops, names, devices: the tables kernel_launches, memory_ops, trace_names and trace_devices of one trace,
            the first two in order of start.
    """
    is_communication = pl.col("name").str.contains(COMMUNICATION)
    kinds = names.select("name_index", is_communication=is_communication)
    kernels = launches.join(kinds, on="name_index", how="left", maintain_order="left").select(*_times(), "is_communication", is_kernel=True)
    memory = memory_ops.select(*_times(), is_communication=pl.lit(None, dtype=pl.Boolean), is_kernel=False)
    is_kernel = pl.col("is_kernel")
    communicates = is_kernel & pl.col("is_communication").fill_null(False)
    return (
        kernels.merge_sorted(memory, key="start_ns")
        .group_by(KEYS, maintain_order=True)
        .agg(
            span_ns=pl.col("end_ns").max() - pl.col("start_ns").min(),
            worked_ns=_union_ns(pl.lit(True)),
            busy_ns=_union_ns(is_kernel),
            compute_ns=_union_ns(is_kernel & ~communicates),
            communication_ns=_union_ns(communicates),
            memory_ns=_union_ns(~is_kernel),
            launch_count=is_kernel.sum().cast(COUNT),
            memory_op_count=(~is_kernel).sum().cast(COUNT),
        )
        .with_columns(
            idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
            # What both cover counts once in busy_ns.
            overlap_ns=pl.col("compute_ns") + pl.col("communication_ns") - pl.col("busy_ns"),
            memory_only_ns=pl.col("worked_ns") - pl.col("busy_ns"),
        )
        .join(devices.select(*KEYS, "device_name"), on=KEYS, how="left", nulls_equal=True)
        .sort(KEYS)
        .select(
            *(*KEYS, "device_name", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "overlap_ns"),
            *("memory_ns", "memory_only_ns", "launch_count", "memory_op_count"),
        )
    )


def _times() -> tuple[pl.Expr, ...]:
    """What ends before it starts takes no time."""
    end_ns = pl.col("start_ns") + pl.col("duration_ns").clip(lower_bound=0)
    return pl.col("process_id"), pl.col("device_index"), pl.col("start_ns"), end_ns.alias("end_ns")


def _union_ns(is_counted: pl.Expr) -> pl.Expr:
    """Length of the union of intervals in order of start: what each adds past the furthest end before it."""
    start_ns, end_ns = pl.col("start_ns").filter(is_counted), pl.col("end_ns").filter(is_counted)
    reach_ns = end_ns.cum_max().shift(1)
    return (end_ns - pl.max_horizontal(start_ns, reach_ns)).clip(lower_bound=0).sum()
