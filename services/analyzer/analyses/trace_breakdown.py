"""What the devices of a trace did all the time."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.correlation import Coded, Integers, coded
from services.analyzer.coverage import Intervals, coverage
from services.analyzer.table import COUNT, INDEX
from services.core.kernel_categories import COMMUNICATION

_WORK: Final = ("process_id", "device_index", "start_ns", "duration_ns")
INPUT: Final = {
    "kernel_launches": (*_WORK, "name_index"),
    "memory_ops": _WORK,
    "trace_names": ("name_index", "name"),
    "trace_devices": ("process_id", "device_index", "device_name"),
}

KEYS: Final = ("process_id", "device_index")

KERNEL: Final = 1
COMPUTE: Final = 2
COMMUNICATES: Final = 4
MEMORY: Final = 8
ANY: Final = 16
DEVICE_STEP: Final = 2**20  # more devices than a process has
UNKNOWN: Final = -1  # no process and no device has this number
UNIONS: Final = {"busy_ns": 0, "compute_ns": 1, "communication_ns": 2, "memory_ns": 3, "worked_ns": 4}
"""Places of the bits above."""


def trace_breakdown(launches: pl.LazyFrame, memory_ops: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process and device: table breakdown.

    Args:
        launches, memory_ops, names, devices: the tables kernel_launches, memory_ops, trace_names and trace_devices of one trace,
            the first two in order of start.
    """
    communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index")
    return (
        launches.select(*TIMES, "name_index")
        .map_batches(lambda kernels: _summed(kernels, memory_ops.select(TIMES).collect(), communicating.collect()), schema=SUMMED)
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


def _summed(kernels: pl.DataFrame, memory: pl.DataFrame, communicating: pl.DataFrame) -> pl.DataFrame:
    """One row per process and device that did some of the work; of work without a start nothing is known."""
    kernels, memory = kernels.drop_nulls("start_ns"), memory.drop_nulls("start_ns")
    of_kernels, of_memory = coded(_device_keys(kernels), _device_keys(memory))
    found = coverage(
        _intervals(kernels, of_kernels, _kinds(kernels["name_index"], communicating["name_index"])),
        _intervals(memory, of_memory, np.full(memory.height, MEMORY | ANY, dtype=np.uint8)),
        of_kernels.keys.size,
    )
    process_id, device_index = np.divmod(of_kernels.keys - UNKNOWN, DEVICE_STEP)
    return pl.DataFrame(
        {
            "process_id": process_id,
            "device_index": device_index + UNKNOWN,
            "span_ns": found.span_ns,
            "launch_count": found.counts[:, 0],
            "memory_op_count": found.counts[:, 1],
            **{name: found.covered_ns[:, bit] for name, bit in UNIONS.items()},
        },
        schema=SUMMED,
    ).with_columns(pl.col(KEYS).replace(UNKNOWN, None))


def _device_keys(work: pl.DataFrame) -> Integers:
    """Process and device of each row as one number."""
    process_id, device_index = (pl.col(name).cast(COUNT).fill_null(UNKNOWN) for name in KEYS)
    return work.select(process_id * DEVICE_STEP + device_index).to_series().to_numpy()


def _kinds(name_index: pl.Series, communicating: pl.Series) -> npt.NDArray[np.uint8]:
    """Of kernels, by their names: there are few of these."""
    of_name = np.full(2 + max(cast(int, series.max() or 0) for series in (name_index, communicating)), COMPUTE, dtype=np.uint8)
    of_name[communicating.to_numpy()] = COMMUNICATES
    of_name |= KERNEL | ANY
    found: npt.NDArray[np.uint8] = of_name[name_index.fill_null(-1).to_numpy()]  # of null, -1, the last
    return found


def _intervals(work: pl.DataFrame, device: Coded, kinds: npt.NDArray[np.uint8]) -> Intervals:
    """Work of unknown duration was there when it started, and covers nothing."""
    return Intervals(device.codes, kinds, work["start_ns"].to_numpy(), work["duration_ns"].fill_null(0).to_numpy())
