"""The collective operations of the ranks of a distributed program, which rank made the others wait, and the clocks of the ranks."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import Indexes, Integers
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, NUMBER, TEXT
from kernalyse.services.core.kernel_categories import COMMUNICATION

# ---------------------------------------------------------------- collectives

RANK: Final = ("process_id", "device_index")
COLLECTIVES_INPUT: Final = {
    "kernel_launches": (*RANK, "name_index", "process_group", "start_ns", "duration_ns"),
    "trace_names": ("name_index", "name"),
    "trace_processes": ("process_id", "rank_index", "host_name", "file_name", "session_start_unix_ns", "clock_offset_ns"),
}

CALL: Final = ("name_index", "process_group", "ordinal")
"""Key that the n-th kernels of one name and process group share across ranks."""


def trace_collectives(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return table collectives: one row per collective operation and rank, in order of time.

    The n-th kernel of a name and process group in one rank is matched with the n-th of these in the others if they overlap in time: a
    collective ends nowhere before it has begun everywhere. Where a trace does not record groups, two that run the same kernel are
    distinguished by this rule alone. A rank is a process with one of its devices. Times are by the clock of the first rank; ranks
    whose clock is not known, see rank_clocks, are left out.

    Args:
        launches, names, processes: the tables kernel_launches, trace_names and trace_processes of one trace, the first in
            order of start within each process.
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
            # If several ranks started last at the same time, the first of them.
            is_straggler=pl.int_range(pl.len()).over("group") == start_ns.arg_max().over("group"),
        )
    )


def trace_ranks(
    launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame, collectives: pl.LazyFrame, breakdown: pl.LazyFrame
) -> pl.LazyFrame:
    """Return table ranks: one row per rank, that is a process with one of its devices.

    Args:
        launches, names, processes: the tables kernel_launches, trace_names and trace_processes of one trace.
        collectives, breakdown: the tables of these names of the same trace.
    """
    waits = collectives.group_by(RANK).agg(
        collective_count=pl.len().cast(COUNT),
        wait_ns=pl.min_horizontal("wait_ns", "duration_ns").sum(),
        straggler_count=pl.col("is_straggler").sum().cast(COUNT),
        clock_residual_ns=pl.col("end_spread_ns").median(),
    )
    clocks = rank_clocks(launches, names, processes).select("process_id", "clock_source", "clock_offset_ns")
    return (
        breakdown.join(_ranked(processes), on="process_id", how="left", nulls_equal=True)
        .join(waits, on=RANK, how="left", nulls_equal=True)
        .join(clocks, on="process_id", how="left", nulls_equal=True)
        .sort("rank_index", *RANK, nulls_last=True)
        .select(
            *("rank_index", *RANK, "device_name", "host_name", "file_name", "span_ns", "busy_ns", "idle_ns", "compute_ns"),
            *("communication_ns", "overlap_ns", pl.col("collective_count").fill_null(0), "wait_ns"),
            pl.col("straggler_count").fill_null(0),
            *("clock_source", "clock_offset_ns", "clock_residual_ns"),
        )
    )


ALIGNED: Final = {
    "name_index": INDEX,
    "process_group": TEXT,
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
    """Number the groups of kernels of one call that overlap in time. Rows are sorted by call, then by start."""
    number, earliest_end = -1, 0
    for row in range(call.size):
        if row == 0 or call[row] != call[row - 1] or start_ns[row] > earliest_end:
            number += 1
            earliest_end = end_ns[row]
        earliest_end = min(earliest_end, end_ns[row])
        group[row] = number


# ---------------------------------------------------------------- clocks
# Ranks of one file share a clock. Clocks of machines differ by milliseconds and drift apart by up to a hundred microseconds a second,
# while a collective ends on all ranks within tens of microseconds: its ends are one moment.

PAIRWISE: Final = r"(?i)send_?recv"
"""Part of the names of kernels that send between two ranks, or exchange among all. Two ranks need not end together, so clocks are not
aligned by these."""

MIN_DRIFT_OPERATIONS: Final = 10
"""With fewer operations one late end makes a drift."""

DRIFT_GAIN: Final = 2.0
"""A drift is assumed only if it divides the residual by this: else it follows the noise of the ends."""

MAX_DRIFT_RATIO: Final = 1e-3
"""Clocks of computers drift by less than 100 ppm, and are corrected by at most 500 ppm (adjtime): what drifts more is no clock."""

MAX_RESIDUAL_NS: Final = 1_000_000
"""Ends of one operation lie within tens of microseconds; where their median is farther off than this, they are not of one operation."""

FILE_CLOCKS: Final = {
    "clock_source": TEXT,
    "operation_count": COUNT,
    "clock_offset_ns": COUNT,
    "clock_drift_ratio": NUMBER,
    "clock_middle_ns": COUNT,
    "residual_median_ns": NUMBER,
    "residual_max_ns": NUMBER,
}


def rank_clocks(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return table rank_clocks: one row per process, with its clock against that of the first rank.

    A file that shares no operation with the first rank's is aligned through those that do. Offset and drift are a robust line
    through the differences of ends, see `_fit`. Without operations only clocks of one machine are taken to be equal.

    Args:
        launches, names, processes: as of trace_collectives.
    """
    taken_off = processes.select("process_id", taken_off_ns=pl.col("clock_offset_ns").fill_null(0))
    return (
        _clocks(launches, names, processes)
        .join(taken_off, on="process_id", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("clock_offset_ns") + pl.col("taken_off_ns"))
        .drop("taken_off_ns")
    )


def _clocks(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return the columns of rank_clocks, the offset as it is in these times: without what was taken off when ranks were joined."""
    ranked = _ranked(processes).with_columns(file=pl.col("file_name").fill_null(""))
    first = ranked.select(first_file=pl.col("file").first(), first_host=pl.col("host_name").first())
    together = names.filter(~pl.col("name").str.contains(PAIRWISE))
    ends = (
        _communicating(launches, together, processes)
        .group_by(*CALL, file=pl.col("file_name").fill_null(""))
        .agg(pl.col("end_ns").max())
        .join(first, how="cross")
        .select("file", *CALL, "end_ns", is_first=pl.col("file") == pl.col("first_file"))
        .map_batches(_file_clocks, schema={"file": TEXT, **FILE_CLOCKS})
    )
    is_first = pl.col("file") == pl.col("first_file")
    is_same_host = (pl.col("host_name") == pl.col("first_host")).fill_null(False) & pl.col("has_sessions")
    is_trusted = is_first | (pl.col("clock_source").is_null() & is_same_host)
    return (
        ranked.join(first, how="cross")
        .join(ends, on="file", how="left")
        .sort("rank_index", "process_id", nulls_last=True)
        .select(
            *("rank_index", "process_id", "host_name", "file_name"),
            clock_source=pl.when(is_first)
            .then(pl.lit("shared"))
            .when(pl.col("clock_source").is_not_null())
            .then("clock_source")
            .when(is_same_host)
            .then(pl.lit("host"))
            .otherwise(pl.lit("unknown")),
            operation_count=pl.col("operation_count").fill_null(0),
            clock_offset_ns=pl.when(is_trusted).then(0).otherwise("clock_offset_ns"),
            clock_drift_ratio=pl.when(is_trusted).then(0.0).otherwise("clock_drift_ratio"),
            **{name: pl.col(name) for name in ("clock_middle_ns", "residual_median_ns", "residual_max_ns")},
        )
    )


def _file_clocks(ends: pl.DataFrame) -> pl.DataFrame:
    """Return the clock of each file but the first that shares operations with another one, from its ends of operations."""
    aligned = ends.filter("is_first").select(*CALL, reference_ns="end_ns")
    waiting = ends.filter(~pl.col("is_first"))
    rows: list[tuple[object, ...]] = []
    while not (matched := waiting.join(_middle(aligned), on=CALL, nulls_equal=True)).is_empty():
        for (file,), part in matched.group_by("file", maintain_order=True):
            clock = _fit(part["reference_ns"].to_numpy(), part["end_ns"].to_numpy())
            rows.append((file, *clock))
            if clock[0] == "collectives":
                of_file = waiting.filter(pl.col("file") == file)
                aligned = aligned.vstack(of_file.select(*CALL, reference_ns=_corrected("end_ns", *map(pl.lit, clock[2:5]))))
        waiting = waiting.join(matched, on="file", how="anti")
    return pl.DataFrame(rows, schema={"file": TEXT, **FILE_CLOCKS}, orient="row")


def _middle(aligned: pl.DataFrame) -> pl.DataFrame:
    """Return when each operation ended, by all files that are aligned so far."""
    return aligned.group_by(CALL).agg(pl.col("reference_ns").median().round().cast(COUNT))


def _fit(reference_ns: Integers, end_ns: Integers) -> tuple[str, int, int | None, float | None, int | None, float, float]:
    """Return the columns FILE_CLOCKS of a clock that shows end_ns when the reference shows reference_ns.

    The drift is the median slope of lines between each end of the first half and that of the second which is half of all ends
    later (Theil's incomplete method, 1950); up to a quarter of the ends may be off.
    """
    order = np.argsort(reference_ns, kind="stable")
    times_ns, ahead_ns = reference_ns[order], (end_ns - reference_ns)[order]
    middle_ns, half = int(times_ns[times_ns.size // 2]), times_ns.size // 2
    since_ns = times_ns - middle_ns
    best = _line(since_ns, ahead_ns, 0.0)
    spans_ns, changes_ns = since_ns[half : 2 * half] - since_ns[:half], ahead_ns[half : 2 * half] - ahead_ns[:half]
    if times_ns.size >= MIN_DRIFT_OPERATIONS and bool((spans_ns > 0).all()):
        drifting = _line(since_ns, ahead_ns, float(np.median(changes_ns / spans_ns)))
        best = drifting if drifting[2] * DRIFT_GAIN <= best[2] else best
    offset_ns, drift_ratio, median_ns, max_ns = best
    if median_ns > MAX_RESIDUAL_NS or abs(drift_ratio) > MAX_DRIFT_RATIO:
        return "unmatched", times_ns.size, None, None, None, median_ns, max_ns
    return "collectives", times_ns.size, offset_ns, drift_ratio, middle_ns, median_ns, max_ns


def _line(since_ns: Integers, ahead_ns: Integers, drift_ratio: float) -> tuple[int, float, float, float]:
    """Return offset, drift, and median and maximum of the residual's magnitude."""
    level_ns = ahead_ns - drift_ratio * since_ns
    offset_ns = round(float(np.median(level_ns)))
    residual_ns: npt.NDArray[np.float64] = np.abs(level_ns - offset_ns)
    return offset_ns, drift_ratio, float(np.median(residual_ns)), float(residual_ns.max())


def _corrected(time_ns: str, offset_ns: pl.Expr, drift_ratio: pl.Expr, middle_ns: pl.Expr) -> pl.Expr:
    """Return times of a clock by that of the first rank. Only the drift is computed in floating point: it is small."""
    level_ns = pl.col(time_ns) - offset_ns
    drift_ns = (level_ns - middle_ns) * drift_ratio / (1 + drift_ratio)
    return level_ns - drift_ns.round().cast(COUNT)


def _ranked(processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return the processes in order of rank, with the offset of their session to the earliest one."""
    session_ns = pl.col("session_start_unix_ns")
    return processes.select(
        *("process_id", "rank_index", "host_name", "file_name"),
        has_sessions=session_ns.is_not_null().all(),
        session_ns=pl.when(session_ns.is_not_null().all()).then(session_ns - session_ns.min()).otherwise(0),
    ).sort("rank_index", "process_id", nulls_last=True)


def _communicating(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return the kernels of communication libraries, numbered by name and process group within their rank.

    Times are since the earliest session.
    """
    communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index")
    return (
        launches.select(COLLECTIVES_INPUT["kernel_launches"])
        .join(communicating, on="name_index", how="semi", maintain_order="left")
        .with_columns(ordinal=pl.int_range(pl.len(), dtype=COUNT).over(*RANK, "name_index", "process_group"))
        .join(_ranked(processes), on="process_id", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(start_ns=pl.col("start_ns") + pl.col("session_ns").fill_null(0))
        .with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    )


def _aligned(launches: pl.LazyFrame, names: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Return the kernels of `_communicating` by the clock of the first rank, without those of ranks whose clock is not known."""
    correction = (
        pl.col("clock_offset_ns"),
        pl.col("clock_drift_ratio"),
        pl.col("clock_middle_ns").fill_null(0),
    )
    clocks = _clocks(launches, names, processes).select("process_id", "clock_offset_ns", "clock_drift_ratio", "clock_middle_ns")
    return (
        _communicating(launches, names, processes)
        .join(clocks, on="process_id", how="left", nulls_equal=True)
        .filter(pl.col("clock_offset_ns").is_not_null())
        .with_columns(start_ns=_corrected("start_ns", *correction), end_ns=_corrected("end_ns", *correction))
        .select(*ALIGNED)
    )
