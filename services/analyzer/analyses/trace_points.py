"""Kernels and layers of a trace as points under a roofline: work and time of their launches summed, then divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl

from services.analyzer.analyses.launch_layers import layer_keys, named
from services.analyzer.analyses.launch_work import PATHS, launch_work
from services.analyzer.analyses.launch_work import SCHEMA as WORK_SCHEMA
from services.analyzer.analyses.operator_work import DTYPES, RECORDED, SOURCES
from services.analyzer.analyses.trace_totals import in_layers
from services.analyzer.table import COUNT, NUMBER, TEXT, DataType
from services.core.kernel_categories import COMMUNICATION
from services.core.work.kinds import MODELLED

TraceFrames = Mapping[str, pl.LazyFrame]

DEVICE_KEYS: Final = ("process_id", "device_index")
KINDS: Final = ("dtype", "path", "work_source")
FIGURES: Final[dict[str, DataType]] = {
    "device_id": TEXT,
    "dtype": TEXT,
    "path": TEXT,
    "work_source": TEXT,
    "flop": NUMBER,
    "bytes": NUMBER,
    "launch_count": COUNT,
    "duration_sum_ns": COUNT,
}
TIE_BREAKERS: Final = ("source", "dtype", "path", "device_id")
KERNEL_POINT: Final[dict[str, DataType]] = {"name": TEXT, **FIGURES}
LAYER_POINT: Final[dict[str, DataType]] = {"name": TEXT, "source": TEXT, **FIGURES}
COUNTED_POINT: Final[dict[str, DataType]] = {**KERNEL_POINT, "counted_level": TEXT}
COUNTED_LAYER_POINT: Final[dict[str, DataType]] = {**LAYER_POINT, "counted_level": TEXT}

WORK: Final = ("flop", "bytes")
MIN_KNOWN_SHARE: Final = 0.5
"""Of the time of launches with known work. With all of it one small launch without bytes leaves a model with the compute ceiling alone, far
above what its memory allows; with little of it the known bytes are so few that its intensity is many times too high."""

LEVEL_BYTES: Final = {"dram": "bytes", "l2": "l2_bytes", "l1": "l1_bytes"}
"""Columns of launch_work."""


def device_id() -> pl.Expr:
    """Of rows of trace_devices. Devices of one name are alike: what a kernel does on one it does on the other."""
    return pl.coalesce("device_name", pl.format("device {}", "device_index"))


def kernel_points(trace: TraceFrames, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """One row per name of a kernel, data type, path and device with known work: KERNEL_POINT.

    duration_sum_ns is the time of the launches whose work is known, and of those alone are flop and bytes. Where some of them
    know only one of the two, the other is the sum over the rest, and null where these are less than MIN_KNOWN_SHARE of the time.

    Args:
        work: what `work_of_launches` says of the trace, where it has been asked already.
    """
    return pl.defer(lambda: _kernel_points(trace, work), schema=KERNEL_POINT)


def counted_points(trace: TraceFrames) -> pl.LazyFrame:
    """The same by counters alone, a row for each memory level whose bytes they know, from the farthest to the nearest: COUNTED_POINT.

    Of launches that lack the bytes of a level neither work nor time counts at it.
    """
    return pl.defer(lambda: _at_levels(trace, _kernel_points), schema=COUNTED_POINT)


def layer_points(trace: TraceFrames, depth: int | None = None, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """One row per layer and what tells it, as in table layers, that has launches with known work: LAYER_POINT.

    Collectives are left out: their bytes go over links.

    dtype and path are those of most of the flop, without flop of most of the bytes; device_id is null where the layer ran
    on devices of several kinds.

    Args:
        depth: of the ranges that kernels count for; None: the innermost.
        work: as of `kernel_points`.
    """
    return pl.defer(lambda: _layer_points(trace, depth, work), schema=LAYER_POINT)


def counted_layer_points(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """`layer_points` by counters alone, a row for each memory level as in `counted_points`: COUNTED_LAYER_POINT."""
    return pl.defer(lambda: _at_levels(trace, lambda launched, work: _layer_points(launched, depth, work)), schema=COUNTED_LAYER_POINT)


def work_of_launches(trace: TraceFrames) -> pl.DataFrame:
    """See `launch_work`."""
    return launch_work(trace["kernel_launches"], trace["ranges"], trace["trace_names"], trace.get("launch_work"))


def _kernel_points(trace: TraceFrames, work: pl.DataFrame | None) -> pl.DataFrame:
    keys = ("name_index", "dtype", "path", "device_id", "work_source")
    worked, totals = worked_launches(trace, ("name_index",), work), worked_totals(trace)
    sums = [summed(part, keys) for part, summed in ((worked, sums_of_launches), (totals, sums_of_totals)) if part.height]
    if not sums:
        return pl.DataFrame(schema=KERNEL_POINT)
    names = trace["trace_names"].select("name_index", "name")
    return points_of(pl.concat(sums).lazy().join(names, on="name_index", how="left"), ("name", "dtype", "path", "device_id"), KERNEL_POINT)


def _at_levels(trace: TraceFrames, points: Callable[[TraceFrames, pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    counted = trace["launch_work"].filter(pl.col("work_source") != MODELLED).collect()
    launched = {name: frame for name, frame in trace.items() if name != "kernel_totals"}
    levels = []
    for level, column in LEVEL_BYTES.items():
        work = counted.filter(pl.col(column).is_not_null()).with_columns(bytes=column).sort("launch_index")
        work = work.select(pl.col(name).cast(dtype, strict=False) for name, dtype in WORK_SCHEMA.items())
        levels.append(points(launched, work).with_columns(counted_level=pl.lit(level)))
    found = pl.concat(levels)
    keys = (pl.col("duration_sum_ns").neg(), "name", *(name for name in TIE_BREAKERS if name in found.columns))
    return found.sort(keys, nulls_last=True, maintain_order=True)


def _layer_points(trace: TraceFrames, depth: int | None, work: pl.DataFrame | None) -> pl.DataFrame:
    keys = ("name_index", "layer_source", *KINDS, "device_id")
    worked, totals = worked_launches(trace, ("range_index", "name_index", "layer_source"), work), worked_totals(trace)
    sums = []
    if worked.height:
        names = trace["trace_names"].select("name_index", "name")
        communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index").collect()
        worked = worked.join(communicating, on="name_index", how="anti", maintain_order="left")
    if worked.height:
        sums.append(sums_of_launches(worked.with_columns(layer_keys(worked, trace["ranges"], depth)), keys))
    if totals.height:
        sums.append(sums_of_totals(in_layers(totals.lazy(), trace["scopes"], depth).collect(), keys))
    if not sums:
        return pl.DataFrame(schema=LAYER_POINT)
    return points_of(named(pl.concat(sums).lazy(), trace["trace_names"]).rename({"layer": "name"}), ("name", "source"), LAYER_POINT)


def worked_launches(trace: TraceFrames, columns: Sequence[str], work: pl.DataFrame | None) -> pl.DataFrame:
    """Launches with known work, with these columns of theirs, duration_ns and device_id."""
    work = work_of_launches(trace) if work is None else work
    wanted = [*dict.fromkeys((*columns, "duration_ns", *DEVICE_KEYS))]
    if work.is_empty():
        return work
    launches = trace["kernel_launches"].select(wanted)
    found = launches.collect()[work["launch_index"]]
    return work.hstack(found).join(_devices(trace).collect(), on=DEVICE_KEYS, how="left", nulls_equal=True, maintain_order="left")


def worked_totals(trace: TraceFrames) -> pl.DataFrame:
    """Sums of recorders that keep no launches, of those whose work is stated, with device_id and the kinds of launches' work."""
    if "kernel_totals" not in trace:
        return pl.DataFrame()
    return (
        trace["kernel_totals"]
        .filter(pl.col("flop").is_not_null() | pl.col("bytes").is_not_null())
        .join(_devices(trace), on=DEVICE_KEYS, how="left", nulls_equal=True, maintain_order="left")
        .select(
            *("name_index", "scope_index", "device_id", "launch_count", "duration_sum_ns", "flop", "bytes"),
            pl.col("dtype").cast(DTYPES, strict=False),
            path=pl.lit(None, dtype=PATHS),
            work_source=pl.lit(RECORDED, dtype=SOURCES),
        )
        .collect()
    )


def _devices(trace: TraceFrames) -> pl.LazyFrame:
    return trace["trace_devices"].select(*DEVICE_KEYS, device_id=device_id()).unique(DEVICE_KEYS, keep="first")


def sums_of_launches(worked: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    timed = worked.with_columns(launch_count=pl.lit(1, COUNT), duration_sum_ns=pl.col("duration_ns").clip(lower_bound=0))
    return sums_of_totals(timed, keys)


def sums_of_totals(totals: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """For `points_of`: for each of flop and bytes the sum of what is known, and the time of the launches that know it."""
    known_ns = {f"{name}_known_ns": pl.when(pl.col(name).is_not_null()).then("duration_sum_ns") for name in WORK}
    return totals.with_columns(**known_ns).group_by(keys).agg(pl.col(*WORK, *known_ns, "launch_count", "duration_sum_ns").sum())


def points_of(sums: pl.LazyFrame, keys: Sequence[str], schema: Mapping[str, DataType]) -> pl.DataFrame:
    heaviest_first = pl.struct(pl.col("flop").fill_null(0.0), pl.col("bytes").fill_null(0.0), pl.col("dtype").cast(TEXT).fill_null(""))
    return (
        sums.sort(heaviest_first, descending=True)
        .group_by(keys, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in ("dtype", "path") if name not in keys),
            *([pl.when(pl.col("device_id").n_unique() == 1).then(pl.col("device_id").first())] if "device_id" not in keys else []),
            pl.col("work_source").unique().sort().cast(TEXT).str.join(", "),
            *map(_mostly_known, WORK),
            pl.col("launch_count", "duration_sum_ns").sum(),
        )
        .sort(pl.col("duration_sum_ns").neg(), "name", *(name for name in TIE_BREAKERS if name in schema), nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .collect()
    )


def _mostly_known(name: str) -> pl.Expr:
    """The sum of what is known; null where that is too little of the time, or nothing."""
    known_ns = pl.col(f"{name}_known_ns")
    is_known = known_ns.sum() >= MIN_KNOWN_SHARE * pl.col("duration_sum_ns").sum()
    return pl.when(is_known & known_ns.max().gt(0)).then(pl.col(name).sum()).alias(name)
