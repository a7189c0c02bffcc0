"""When the devices of a trace had nothing to do, and why."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from services.analyzer.activity_tables import GAPS
from services.analyzer.correlation import NONE, Indexes, Integers
from services.analyzer.idle_stretches import REASONS, Calls, Work, causes_of, covered_within, idle_stretches
from services.analyzer.pairs import coded_pairs
from services.analyzer.table import COUNT, INDEX, TEXT

_WORK: Final = ("process_id", "device_index", "start_ns", "duration_ns")
INPUT: Final = {
    "kernel_launches": (*_WORK, "name_index", "api_call_index", "range_index"),
    "memory_ops": _WORK,
    "api_calls": ("name_index", "process_id", "thread_id", "start_ns", "duration_ns"),
    "ranges": ("name_index",),
    "trace_names": ("name_index", "name"),
}

ALWAYS_WAITS: Final = "(?i)synchronize"
COPIES: Final = "^(cuda|hip|cu)Memcpy"
RETURNS_AT_ONCE: Final = "Async"
"""In names of calls. Copies without it return when the copy is done; calls that may wait, as cudaFree, count as others."""

SCHEMA: Final = {column.name: column.dtype for column in GAPS.columns[2:]}


def trace_gaps(
    launches: pl.LazyFrame, memory_ops: pl.LazyFrame, calls: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame
) -> pl.LazyFrame:
    """One row per stretch in which a device ran no kernel, longest first: table gaps.

    A stretch lies between the first start and the last end of the work of one process on one device, so that those of a
    device sum to idle_ns of table breakdown. The reason is what services.analyzer.idle_stretches.causes_of says.

    Args:
        launches, memory_ops, calls, ranges, names: the tables kernel_launches, memory_ops, api_calls, ranges and trace_names of
            one trace, the first three in order of start.
    """
    parts = [part.select(INPUT[name]) for name, part in (("memory_ops", memory_ops), ("api_calls", calls))]

    def found(kernels: pl.DataFrame) -> pl.DataFrame:
        memory, host = pl.collect_all(parts)
        # Reports of ncu do not tell when their launches were.
        return _gaps(kernels.drop_nulls("start_ns"), memory, host, ranges, names)

    return launches.select(INPUT["kernel_launches"]).map_batches(found, schema=SCHEMA)


def trace_gap_reasons(gaps: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process, device and reason, of each device the most time first: table gap_reasons.

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
    of_kernels, of_memory = coded_pairs("process_id", "device_index", kernels, memory_ops)
    memory = Work(of_memory.codes, *_times(memory_ops))
    stretches = idle_stretches(Work(of_kernels.codes, *_times(kernels)), memory, of_memory.count)
    memory_ns = covered_within(stretches, memory, of_memory.count)
    found_names = names.select("name").collect()["name"]
    (of_calls,) = coded_pairs("process_id", "thread_id", calls)
    is_sync = _is_sync(found_names).gather(calls["name_index"]).fill_null(False)
    host = Calls(of_calls.codes, *_times(calls), is_sync.to_numpy())
    causes = causes_of(stretches, memory_ns, kernels["api_call_index"].fill_null(NONE).to_numpy(), host)

    order = np.lexsort((stretches.start_ns, -stretches.duration_ns))
    process_id, device_index = of_memory.series(stretches.device[order])
    before, after, call = (_index(rows[order]) for rows in (stretches.before, stretches.after, causes.call))
    launching = kernels["api_call_index"].gather(after)
    range_names = ranges.select("name_index").collect()["name_index"]
    host_ns, sync_ns, api_ns = (
        pl.Series(values[order]).set(launching.is_null(), None) for values in (causes.host_ns, causes.sync_ns, causes.api_ns)
    )
    return pl.DataFrame(
        {
            "process_id": process_id,
            "device_index": device_index.cast(INDEX),
            "start_ns": stretches.start_ns[order],
            "duration_ns": stretches.duration_ns[order],
            "reason": pl.Series(REASONS, dtype=TEXT).gather(pl.Series(causes.reason[order], dtype=INDEX)),
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
    """A call whose end is not known takes no time."""
    return frame["start_ns"].to_numpy(), frame["duration_ns"].fill_null(0).to_numpy()


def _is_sync(names: pl.Series) -> pl.Series:
    copies = names.str.contains(COPIES) & ~names.str.contains(RETURNS_AT_ONCE)
    return names.str.contains(ALWAYS_WAITS) | copies


def _index(rows: Indexes) -> pl.Series:
    series = pl.Series(rows, dtype=INDEX)
    return series.set(series == NONE, None)
