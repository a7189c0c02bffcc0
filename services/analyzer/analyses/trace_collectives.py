"""What the ranks of a distributed program did together, and who made the others wait."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from services.analyzer.correlation import Indexes, Integers
from services.analyzer.numeric import jit
from services.analyzer.table import COUNT, INDEX
from services.core.kernel_categories import COMMUNICATION

RANK: Final = ("process_id", "device_index")
INPUT: Final = {
    "kernel_launches": (*RANK, "name_index", "start_ns", "duration_ns"),
    "trace_names": ("name_index", "name"),
    "trace_processes": ("process_id", "rank_index", "host_name", "file_name", "session_start_unix_ns"),
}

PAIRWISE: Final = r"(?i)send_?recv"
"""In names of kernels: between two ranks, or among all as an exchange. Two ranks need not end together: no clock is set by these."""

CALL: Final = ("name_index", "ordinal")
"""What the n-th kernels of one name have in common."""


def trace_collectives(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """One row per collective operation and rank, in order of time: table collectives.

    The n-th kernel of a name in one rank belongs to the n-th of that name in the others, as far as they ran at once: a
    collective ends nowhere before it has begun everywhere. Traces name no groups of ranks: those that run the same kernel
    are told apart by that alone. A rank is a process with one of its devices. Clocks are aligned, see trace_clocks.

    Args:
        launches, names, processes: the tables kernel_launches, trace_names and trace_processes of one trace, the first in
            order of start.
    """
    start_ns, end_ns, duration_ns = pl.col("start_ns"), pl.col("end_ns"), pl.col("duration_ns")
    wait_ns = start_ns.max().over("group") - start_ns
    return (
        _aligned(launches, names, processes)
        .sort(*CALL, "start_ns", "rank_index", *RANK, nulls_last=True)
        .map_batches(_grouped, schema=GROUPED)
        .with_columns(rank_count=pl.len().over("group").cast(INDEX), first_ns=start_ns.min().over("group"))
        .filter(pl.col("rank_count") > 1)
        .sort("first_ns", "group", "rank_index", *RANK, nulls_last=True)
        .join(names.select("name_index", kernel_name="name"), on="name_index", how="left", maintain_order="left")
        .select(
            pl.col("group").rle_id().cast(INDEX).alias("collective_index"),
            *("kernel_name", "rank_count", "rank_index", *RANK, "start_ns", "duration_ns"),
            late_ns=start_ns - pl.col("first_ns"),
            wait_ns=wait_ns,
            wait_ratio=pl.when(duration_ns > 0).then(pl.min_horizontal(wait_ns, duration_ns) / duration_ns),
            end_spread_ns=end_ns.max().over("group") - end_ns.min().over("group"),
            # Of several that came last together, the first rank.
            is_straggler=pl.int_range(pl.len()).over("group") == start_ns.arg_max().over("group"),
        )
    )


def trace_ranks(
    launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame, collectives: pl.LazyFrame, breakdown: pl.LazyFrame
) -> pl.LazyFrame:
    """One row per rank, that is a process with one of its devices: table ranks.

    Args:
        launches, names, processes: the tables kernel_launches, trace_names and trace_processes of one trace.
        collectives, breakdown: these tables of it.
    """
    waits = collectives.group_by(RANK).agg(
        collective_count=pl.len().cast(COUNT),
        wait_ns=pl.min_horizontal("wait_ns", "duration_ns").sum(),
        straggler_count=pl.col("is_straggler").sum().cast(COUNT),
        clock_residual_ns=pl.col("end_spread_ns").median(),
    )
    return (
        breakdown.join(_ranked(processes), on="process_id", how="left", nulls_equal=True)
        .join(waits, on=RANK, how="left", nulls_equal=True)
        .join(trace_clocks(launches, names, processes), on="process_id", how="left", nulls_equal=True)
        .sort("rank_index", *RANK, nulls_last=True)
        .select(
            *("rank_index", *RANK, "device_name", "host_name", "file_name", "span_ns", "busy_ns", "idle_ns", "compute_ns"),
            *("communication_ns", "overlap_ns", pl.col("collective_count").fill_null(0), "wait_ns"),
            pl.col("straggler_count").fill_null(0),
            *("clock_source", "clock_offset_ns", "clock_residual_ns"),
        )
    )


def trace_clocks(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """How far the clock of each process is ahead of that of the first rank: columns process_id, clock_source, clock_offset_ns.

    Processes of one file share a clock. Between files the ends of collectives tell: they end everywhere at once, give or take
    microseconds, while clocks of machines differ by milliseconds. The offset is the median over the operations that both
    files have; without any the starts of their sessions have to do, which are part of the times compared.
    """
    first = _ranked(processes).select(first_file=pl.col("file_name").first())
    together = names.filter(~pl.col("name").str.contains(PAIRWISE))
    ends = _communicating(launches, together, processes).group_by(*CALL, "file_name").agg(pl.col("end_ns").max()).join(first, how="cross")
    is_first = pl.col("file_name").eq_missing(pl.col("first_file"))
    offsets = (
        ends.join(ends.filter(is_first).select(*CALL, reference_ns="end_ns"), on=CALL)
        .group_by("file_name")
        .agg(found_ns=(pl.col("end_ns") - pl.col("reference_ns")).median().round().cast(COUNT))
    )
    return (
        processes.select("process_id", "file_name")
        .join(first, how="cross")
        .join(offsets, on="file_name", how="left", nulls_equal=True)
        .select(
            "process_id",
            clock_source=pl.when(is_first)
            .then(pl.lit("shared"))
            .when(pl.col("found_ns").is_not_null())
            .then(pl.lit("collectives"))
            .otherwise(pl.lit("session")),
            clock_offset_ns=pl.when(is_first).then(0).otherwise(pl.col("found_ns").fill_null(0)),
        )
    )


def _ranked(processes: pl.LazyFrame) -> pl.LazyFrame:
    """Processes, the first rank first, with what to add to their times to count from the earliest session."""
    session_ns = pl.col("session_start_unix_ns")
    return processes.select(
        *("process_id", "rank_index", "host_name", "file_name"),
        session_ns=pl.when(session_ns.is_not_null().all()).then(session_ns - session_ns.min()).otherwise(0),
    ).sort("rank_index", "process_id", nulls_last=True)


def _communicating(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Kernels of communication libraries, numbered by name within their rank, each by the clock of its session."""
    communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index")
    return (
        launches.select(INPUT["kernel_launches"])
        .join(communicating, on="name_index", how="semi", maintain_order="left")
        .with_columns(ordinal=pl.int_range(pl.len(), dtype=COUNT).over(*RANK, "name_index"))
        .join(_ranked(processes), on="process_id", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(start_ns=pl.col("start_ns") + pl.col("session_ns").fill_null(0))
        .with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    )


def _aligned(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    clocks = trace_clocks(launches, names, processes)
    offset_ns = pl.col("clock_offset_ns").fill_null(0)
    return (
        _communicating(launches, names, processes)
        .join(clocks, on="process_id", how="left", nulls_equal=True)
        .with_columns(start_ns=pl.col("start_ns") - offset_ns, end_ns=pl.col("end_ns") - offset_ns)
        .select(*ALIGNED)
    )


ALIGNED: Final = {
    "name_index": INDEX,
    "ordinal": COUNT,
    "process_id": COUNT,
    "device_index": INDEX,
    "rank_index": INDEX,
    "start_ns": COUNT,
    "duration_ns": COUNT,
    "end_ns": COUNT,
}
GROUPED: Final = {**ALIGNED, "group": INDEX}


def _grouped(kernels: pl.DataFrame) -> pl.DataFrame:
    call = kernels.select(pl.struct(*CALL).rle_id().cast(INDEX)).to_series().to_numpy()
    group = np.empty(kernels.height, dtype=np.int32)
    _group(call, kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy(), group)
    return kernels.with_columns(group=pl.Series(group))


@jit
def _group(call: Indexes, start_ns: Integers, end_ns: Integers, group: Indexes) -> None:
    """Numbers kernels of one call that have a moment in common. They come by call, within one by start."""
    number, earliest_end = -1, 0
    for row in range(call.size):
        if row == 0 or call[row] != call[row - 1] or start_ns[row] > earliest_end:
            number += 1
            earliest_end = end_ns[row]
        earliest_end = min(earliest_end, end_ns[row])
        group[row] = number
