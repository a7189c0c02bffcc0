"""What the devices of a trace did all the time."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.correlation import coded
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
DEVICE_STEP: Final = 2**20  # more devices than a process has
UNIONS: Final = {"busy_ns": 0, "compute_ns": 1, "communication_ns": 2, "memory_ns": 3, "worked_ns": 4}
"""Places of the bits above."""


def trace_breakdown(launches: pl.LazyFrame, memory_ops: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process and device: table breakdown.

    Args:
        launches, memory_ops, names, devices: the tables kernel_launches, memory_ops, trace_names and trace_devices of one trace,
            the first two in order of start.
    """
    kernels = launches.select(*TIMES, "name_index", is_kernel=True)
    memory = memory_ops.select(*TIMES, name_index=pl.lit(None, dtype=INDEX), is_kernel=False)
    is_communication = pl.col("name").str.contains(COMMUNICATION)
    communicating = names.filter(is_communication).select("name_index")
    return (
        kernels.merge_sorted(memory, key="start_ns")
        .map_batches(lambda work: _summed(work, communicating), schema=SUMMED)
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


def _summed(work: pl.DataFrame, communicating: pl.LazyFrame) -> pl.DataFrame:
    """One row per process and device that did some of the work; of work without a start nothing is known."""
    work = work.drop_nulls("start_ns")
    unknown = -1  # no process and no device has this number
    process_id, device_index = (work[name].cast(COUNT).fill_null(unknown) for name in KEYS)
    (device,) = coded(((process_id * DEVICE_STEP) + device_index).to_numpy())
    is_communication = work["name_index"].is_in(communicating.collect()["name_index"].implode())
    kinds = work.select(
        pl.when(~pl.col("is_kernel"))
        .then(MEMORY | ANY)
        .when(is_communication)
        .then(COMMUNICATES | KERNEL | ANY)
        .otherwise(COMPUTE | KERNEL | ANY)
        .cast(pl.UInt8)
    )
    unions = covered_ns(
        device.codes, kinds.to_series().to_numpy(), work["start_ns"].to_numpy(), work["duration_ns"].to_numpy(), device.keys.size
    )
    return (
        work.select(*TIMES, "is_kernel", device=pl.Series(device.codes))
        .group_by("device")
        .agg(
            pl.col(*KEYS).first(),
            span_ns=(pl.col("start_ns") + pl.col("duration_ns").clip(lower_bound=0)).max() - pl.col("start_ns").min(),
            launch_count=pl.col("is_kernel").sum().cast(COUNT),
            memory_op_count=(~pl.col("is_kernel")).sum().cast(COUNT),
        )
        .sort("device")
        .hstack([pl.Series(name, unions[:, bit]) for name, bit in UNIONS.items()])
        .select(list(SUMMED))
    )
