"""The activity of a trace's devices: the breakdown of their time, and idle gaps."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Factorization, Indexes, Integers, factorize, factorize_pairs
from kernalyse.services.analyzer.numeric.intervals import (
    REASONS,
    ApiCalls,
    DeviceOperations,
    Intervals,
    coverage,
    explain_gaps,
    find_idle_gaps,
    measure_overlap,
)
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, TEXT
from kernalyse.services.analyzer.tables.traces import GAPS
from kernalyse.services.core.kernel_categories import COMMUNICATION

# ---------------------------------------------------------------- breakdown

_WORK: Final = ("process_id", "device_index", "start_ns", "duration_ns")
BREAKDOWN_INPUT: Final = {
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
UNKNOWN: Final = -1  # stands for null: no process and no device has this number
UNIONS: Final = {"busy_ns": 0, "compute_ns": 1, "communication_ns": 2, "memory_ns": 3, "worked_ns": 4}
"""Bit positions of the unions, by column; `worked_ns` is the union of kernels and memory operations."""


def trace_breakdown(launches: pl.LazyFrame, memory_ops: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """Return table breakdown: one row per process and device.

    Args:
        launches, memory_ops, names, devices: the tables kernel_launches, memory_ops, trace_names and trace_devices of one trace,
            the first two in order of start within each process.
    """
    communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index")
    return (
        launches.select(*TIMES, "name_index")
        .map_batches(lambda kernels: _summed(kernels, memory_ops.select(TIMES).collect(), communicating.collect()), schema=SUMMED)
        .with_columns(
            idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
            # Time that both cover counts once in busy_ns.
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
    """Return one row of sums per process and device; operations without a start are ignored."""
    kernels, memory = kernels.drop_nulls("start_ns"), memory.drop_nulls("start_ns")
    of_kernels, of_memory = factorize(_device_keys(kernels), _device_keys(memory))
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
    """Return process and device of each row as one number."""
    process_id, device_index = (pl.col(name).cast(COUNT).fill_null(UNKNOWN) for name in KEYS)
    return work.select(process_id * DEVICE_STEP + device_index).to_series().to_numpy()


def _kinds(name_index: pl.Series, communicating: pl.Series) -> npt.NDArray[np.uint8]:
    """Return the bit mask of each kernel, which is computed once per name."""
    of_name = np.full(2 + max(cast(int, series.max() or 0) for series in (name_index, communicating)), COMPUTE, dtype=np.uint8)
    of_name[communicating.to_numpy()] = COMMUNICATES
    of_name |= KERNEL | ANY
    found: npt.NDArray[np.uint8] = of_name[name_index.fill_null(-1).to_numpy()]  # null, -1, indexes the last entry
    return found


def _intervals(work: pl.DataFrame, device: Factorization, kinds: npt.NDArray[np.uint8]) -> Intervals:
    """Return the operations as intervals. One of unknown duration covers nothing, but extends the span to its start."""
    return Intervals(device.codes, kinds, work["start_ns"].to_numpy(), work["duration_ns"].fill_null(0).to_numpy())


# ---------------------------------------------------------------- idle gaps

GAPS_INPUT: Final = {
    "kernel_launches": (*_WORK, "name_index", "api_call_index", "range_index"),
    "memory_ops": _WORK,
    "api_calls": ("name_index", "process_id", "thread_id", "start_ns", "duration_ns"),
    "ranges": ("name_index",),
    "trace_names": ("name_index", "name"),
}

ALWAYS_WAITS: Final = "(?i)synchronize"
COPIES: Final = "^(cuda|hip|cu)Memcpy"
RETURNS_AT_ONCE: Final = "Async"
"""Part of the names of asynchronous calls. Other copies return when the copy is done. Calls that may wait, such as cudaFree, do not
count as synchronizing."""

SCHEMA: Final = {column.name: column.dtype for column in GAPS.columns[2:]}


def trace_gaps(
    launches: pl.LazyFrame, memory_ops: pl.LazyFrame, calls: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame
) -> pl.LazyFrame:
    """Return table gaps: one row per period in which a device ran no kernel, longest first.

    Gaps lie between the first start and the last end of the operations of one process on one device, so that those of a
    device sum to idle_ns of table breakdown. The reason is defined by kernalyse.services.analyzer.numeric.intervals.explain_gaps.

    Args:
        launches, memory_ops, calls, ranges, names: the tables kernel_launches, memory_ops, api_calls, ranges and trace_names of
            one trace, the first three in order of start within each process.
    """
    parts = [part.select(GAPS_INPUT[name]) for name, part in (("memory_ops", memory_ops), ("api_calls", calls))]

    def found(kernels: pl.DataFrame) -> pl.DataFrame:
        memory, host = pl.collect_all(parts)
        # Launches in ncu reports have no times.
        return _gaps(kernels.drop_nulls("start_ns"), memory, host, ranges, names)

    return launches.select(GAPS_INPUT["kernel_launches"]).map_batches(found, schema=SCHEMA)


def trace_gap_reasons(gaps: pl.LazyFrame) -> pl.LazyFrame:
    """Return table gap_reasons: one row per process, device and reason, per device the longest total first.

    Args:
        gaps: table gaps of one trace.
    """
    device = ["process_id", "device_index"]
    return (
        gaps.group_by(*device, "reason")
        .agg(
            gap_count=pl.len().cast(COUNT),
            duration_sum_ns=pl.col("duration_ns").sum(),
            duration_median_ns=pl.col("duration_ns").median(),
            duration_max_ns=pl.col("duration_ns").max(),
        )
        .with_columns(share_ratio=pl.col("duration_sum_ns") / pl.col("duration_sum_ns").sum().over(device))
        .sort(*device, "duration_sum_ns", "reason", descending=[False, False, True, False])
        .select(*device, "reason", "gap_count", "duration_sum_ns", "share_ratio", "duration_median_ns", "duration_max_ns")
    )


def _gaps(kernels: pl.DataFrame, memory_ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.LazyFrame, names: pl.LazyFrame) -> pl.DataFrame:
    of_kernels, of_memory = factorize_pairs("process_id", "device_index", kernels, memory_ops)
    memory = DeviceOperations(of_memory.codes, *_times(memory_ops))
    gaps = find_idle_gaps(DeviceOperations(of_kernels.codes, *_times(kernels)), memory, of_memory.count)
    memory_ns = measure_overlap(gaps, memory, of_memory.count)
    found_names = names.select("name").collect()["name"]
    (of_calls,) = factorize_pairs("process_id", "thread_id", calls)
    is_sync = _is_sync(found_names).gather(calls["name_index"]).fill_null(False)
    host = ApiCalls(of_calls.codes, *_times(calls), is_sync.to_numpy())
    gap_causes = explain_gaps(gaps, memory_ns, kernels["api_call_index"].fill_null(NULL_INDEX).to_numpy(), host)

    order = np.lexsort((gaps.start_ns, -gaps.duration_ns))
    process_id, device_index = of_memory.series(gaps.device[order])
    before, after, call = (_index(rows[order]) for rows in (gaps.before, gaps.after, gap_causes.call))
    launching = kernels["api_call_index"].gather(after)
    range_names = ranges.select("name_index").collect()["name_index"]
    host_ns, sync_ns, api_ns = (
        pl.Series(values[order]).set(launching.is_null(), None) for values in (gap_causes.host_ns, gap_causes.sync_ns, gap_causes.api_ns)
    )
    return pl.DataFrame(
        {
            "process_id": process_id,
            "device_index": device_index.cast(INDEX),
            "start_ns": gaps.start_ns[order],
            "duration_ns": gaps.duration_ns[order],
            "reason": pl.Series(REASONS, dtype=TEXT).gather(pl.Series(gap_causes.reason[order], dtype=INDEX)),
            "kernel_before": found_names.gather(kernels["name_index"].gather(before)),
            "kernel_after": found_names.gather(kernels["name_index"].gather(after)),
            "call": found_names.gather(calls["name_index"].gather(call)),
            "layer": found_names.gather(range_names.gather(kernels["range_index"].gather(after))),
            "thread_id": calls["thread_id"].gather(launching),
            "host_ns": host_ns,
            "sync_ns": sync_ns,
            "api_ns": api_ns,
            "memory_ns": memory_ns[order],
        },
        schema=SCHEMA,
    )


def _times(frame: pl.DataFrame) -> tuple[Integers, Integers]:
    """Return starts and durations; a call whose end is not known takes no time."""
    return frame["start_ns"].to_numpy(), frame["duration_ns"].fill_null(0).to_numpy()


def _is_sync(names: pl.Series) -> pl.Series:
    copies = names.str.contains(COPIES) & ~names.str.contains(RETURNS_AT_ONCE)
    return names.str.contains(ALWAYS_WAITS) | copies


def _index(rows: Indexes) -> pl.Series:
    series = pl.Series(rows, dtype=INDEX)
    return series.set(series == NULL_INDEX, None)
