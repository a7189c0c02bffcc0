"""What the devices of a trace did all the time."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.coverage import covered_ns
from services.analyzer.table import COUNT, INDEX

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

KERNEL: Final = 1
COMPUTE: Final = 2
COMMUNICATES: Final = 4
MEMORY: Final = 8
ANY: Final = 16
UNIONS: Final = {"busy_ns": 0, "compute_ns": 1, "communication_ns": 2, "memory_ns": 3, "worked_ns": 4}
"""Places of the bits above."""


def trace_breakdown(launches: pl.LazyFrame, memory_ops: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process and device: table breakdown.

    Args:
        launches, memory_ops, names, devices: the tables kernel_launches, memory_ops, trace_names and trace_devices of one trace,
            the first two in order of start.
    """
    kernel_kinds = pl.when(pl.col("name").str.contains(COMMUNICATION)).then(COMMUNICATES | KERNEL | ANY).otherwise(COMPUTE | KERNEL | ANY)
    kinds = names.select("name_index", kind=kernel_kinds.cast(pl.UInt8))
    kernels = launches.join(kinds, on="name_index", how="left", maintain_order="left").select(*TIMES, "kind")
    memory = memory_ops.select(*TIMES, kind=pl.lit(MEMORY | ANY, dtype=pl.UInt8))
    return (
        kernels.merge_sorted(memory, key="start_ns")
        .map_batches(_summed, schema=SUMMED)
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


TIMES: Final = (*KEYS, "start_ns", "duration_ns")
SUMMED: Final = {
    "process_id": COUNT,
    "device_index": INDEX,
    "span_ns": COUNT,
    "launch_count": COUNT,
    "memory_op_count": COUNT,
    **dict.fromkeys(UNIONS, COUNT),
}


def _summed(work: pl.DataFrame) -> pl.DataFrame:
    """One row per process and device that did some of the work."""
    places = work.select(KEYS).unique(maintain_order=True).with_row_index("place")
    place = work.select(KEYS).join(places, on=KEYS, how="left", maintain_order="left", nulls_equal=True)["place"]
    start_ns, duration_ns = work["start_ns"], work["duration_ns"]
    unions = covered_ns(
        place.cast(INDEX).to_numpy(),
        work["kind"].fill_null(COMPUTE | KERNEL | ANY).to_numpy(),
        start_ns.to_numpy(),
        duration_ns.to_numpy(),
        places.height,
    )
    end_ns = pl.col("start_ns") + pl.col("duration_ns").clip(lower_bound=0)
    is_kernel = pl.col("kind") != MEMORY | ANY
    return (
        work.with_columns(place=place)
        .group_by("place")
        .agg(
            span_ns=end_ns.max() - pl.col("start_ns").min(),
            launch_count=is_kernel.sum().cast(COUNT),
            memory_op_count=(~is_kernel).sum().cast(COUNT),
        )
        .sort("place")
        .hstack([pl.Series(name, unions[:, bit]) for name, bit in UNIONS.items()])
        .join(places, on="place", maintain_order="left")
        .select(list(SUMMED))
    )
