"""Kernels and layers of a trace as points under a roofline: work and time of their launches summed, then divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from services.analyzer.analyses.launch_work import launch_work
from services.analyzer.correlation import NONE, ancestors
from services.analyzer.table import COUNT, INDEX, NUMBER, TEXT, DataType

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


def device_id() -> pl.Expr:
    """Of rows of trace_devices. Devices of one name are alike: what a kernel does on one it does on the other."""
    return pl.coalesce("device_name", pl.format("device {}", "device_index"))


def kernel_points(trace: TraceFrames, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """One row per name of a kernel, data type, path and device with known work: KERNEL_POINT.

    duration_sum_ns is the time of the launches whose work is known, and of those alone are flop and bytes. Either is null
    where one of them does not know it.

    Args:
        work: what `work_of_launches` says of the trace, where it has been asked already.
    """
    return pl.defer(lambda: _kernel_points(trace, work), schema=KERNEL_POINT)


def layer_points(trace: TraceFrames, depth: int | None = None, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """One row per layer and what tells it, as in table layers, that has launches with known work: LAYER_POINT.

    dtype and path are those of most of the flop, without flop of most of the bytes; device_id is null where the layer ran
    on devices of several kinds.

    Args:
        depth: of the ranges that kernels count for; None: the innermost.
        work: as of `kernel_points`.
    """
    return pl.defer(lambda: _layer_points(trace, depth, work), schema=LAYER_POINT)


def work_of_launches(trace: TraceFrames) -> pl.DataFrame:
    """See `launch_work`."""
    return launch_work(trace["kernel_launches"], trace["ranges"], trace["trace_names"], trace.get("launch_work"))


def _kernel_points(trace: TraceFrames, work: pl.DataFrame | None) -> pl.DataFrame:
    worked = _worked(trace, ("name_index",), work)
    if worked.is_empty():
        return pl.DataFrame(schema=KERNEL_POINT)
    sums = _sums(worked, ("name_index", "dtype", "path", "device_id", "work_source"))
    return _points(sums, ("name_index", "dtype", "path", "device_id"), trace, KERNEL_POINT)


def _layer_points(trace: TraceFrames, depth: int | None, work: pl.DataFrame | None) -> pl.DataFrame:
    worked = _worked(trace, ("range_index", "layer_source"), work)
    if worked.is_empty():
        return pl.DataFrame(schema=LAYER_POINT)
    worked = worked.with_columns(_layer_names(worked["range_index"], trace["ranges"], depth))
    keys = ("name_index", "layer_source")
    return _points(_sums(worked, (*keys, *KINDS, "device_id")), keys, trace, LAYER_POINT)


def _worked(trace: TraceFrames, columns: Sequence[str], work: pl.DataFrame | None) -> pl.DataFrame:
    """Launches with known work, with these columns of theirs, duration_ns and device_id."""
    work = launch_work(trace["kernel_launches"], trace["ranges"], trace["trace_names"], trace.get("launch_work"))
    wanted = [*dict.fromkeys((*columns, "duration_ns", *DEVICE_KEYS))]
    if work.is_empty():
        return work
    devices = trace["trace_devices"].select(*DEVICE_KEYS, device_id=device_id()).unique(DEVICE_KEYS, keep="first").collect()
    launches = trace["kernel_launches"].select(wanted)
    found = launches.collect()[work["launch_index"]]
    return work.hstack(found).join(devices, on=DEVICE_KEYS, how="left", nulls_equal=True, maintain_order="left")


def _layer_names(range_index: pl.Series, ranges: pl.LazyFrame, depth: int | None) -> pl.Series:
    """Name of the range that each launch counts for. A range's index is its row."""
    found = ranges.select("name_index", *(("parent_range_index", "depth") if depth is not None else ())).collect()
    if depth is not None:
        rows = ancestors(found["parent_range_index"].fill_null(NONE).to_numpy(), found["depth"].to_numpy(), depth)
        range_index = pl.Series(rows, dtype=INDEX).gather(range_index)
    return found["name_index"].gather(range_index).alias("name_index")


def _sums(worked: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    return worked.group_by(keys).agg(
        flop=_whole("flop"),
        bytes=_whole("bytes"),
        launch_count=pl.len().cast(COUNT),
        duration_sum_ns=pl.col("duration_ns").clip(lower_bound=0).sum(),
    )


def _points(sums: pl.DataFrame, keys: Sequence[str], trace: TraceFrames, schema: Mapping[str, DataType]) -> pl.DataFrame:
    names = trace["trace_names"].select("name_index", "name").collect()
    heaviest_first = pl.struct(pl.col("flop").fill_null(0.0), pl.col("bytes").fill_null(0.0), pl.col("dtype").cast(TEXT).fill_null(""))
    return (
        sums.sort(heaviest_first, descending=True)
        .group_by(keys, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in ("dtype", "path") if name not in keys),
            *([pl.when(pl.col("device_id").n_unique() == 1).then(pl.col("device_id").first())] if "device_id" not in keys else []),
            pl.col("work_source").unique().sort().cast(TEXT).str.join(", "),
            _whole("flop"),
            _whole("bytes"),
            pl.col("launch_count", "duration_sum_ns").sum(),
        )
        .join(names, on="name_index", how="left")
        .rename({"layer_source": "source"}, strict=False)
        .sort(pl.col("duration_sum_ns").neg(), "name", *(name for name in TIE_BREAKERS if name in schema), nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    )


def _whole(name: str) -> pl.Expr:
    """The sum; null where one of them is."""
    return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name)
