"""Rooflines of traces: kernels and layers under the ceilings of the devices that they ran on."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.guessed_layers import guessed_category
from services.analyzer.analyses.roofline import Roofs, placed
from services.analyzer.analyses.shares import share_of
from services.analyzer.analyses.trace_ceilings import trace_ceilings
from services.analyzer.analyses.trace_points import TraceFrames, counted_layer_points, counted_points, kernel_points, layer_points
from services.analyzer.answer_tables import LAYERS
from services.analyzer.roofline_tables import COUNTED_LAYER_ROOFLINE, COUNTED_ROOFLINE, LAYER_ROOFLINE, ROOFLINE
from services.analyzer.schema import CEILINGS
from services.analyzer.table import COUNT, NUMBER, TEXT, DataType
from services.analyzer.threshold_table import THRESHOLDS
from services.analyzer.trace_tables import HOST_DEVICE
from services.core.kernel_categories import COMMUNICATION
from services.core.labels import LAYER_PARTS, MODULE_PREFIX

_NOT_OF_TRACES: Final[dict[str, DataType]] = {
    "duration_median_ns": NUMBER,
    "sm_clock_hz": COUNT,
    "counted_level": TEXT,
    "stated_flop_per_s": NUMBER,
    "stated_flop_per_byte": NUMBER,
}
"""Columns of measurements that placing looks at. Counted points have a level."""

UNDER_CEILINGS: Final = (
    *("efficiency_ratio", "efficiency_datasheet_ratio", "efficiency_clock_ratio", "efficiency_measured_ratio"),
    *("bound", "bound_datasheet", "bound_clock", "bound_measured"),
    *("efficiency_category", "efficiency_category_datasheet", "efficiency_category_clock", "efficiency_category_measured"),
    *("attainable_flop_per_s", "is_implausible", "implausible_reason"),
)
"""What a collective has none of: its bytes go over links, of which no ceilings are known, not only to the device's memory."""

RATES: Final = (
    *("intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s"),
    *("efficiency_ratio", "bound", "work_source"),
)
"""What table layers takes over."""


def trace_roofline(trace: TraceFrames) -> pl.LazyFrame:
    """Table roofline of a trace: one row per name of a kernel, data type, path and device. See `placed`.

    flop, bytes and duration_mean_ns are those of the mean launch: rates are the sums' over each other.
    """
    label = pl.concat_str("name", "dtype", separator=" ", ignore_nulls=True)
    return ROOFLINE.conform(placed_kernels(trace).with_columns(kernel_name="name", label=label, category=guessed_category(pl.col("name"))))


def trace_counted_roofline(trace: TraceFrames) -> pl.LazyFrame:
    """Table counted_roofline of a trace: one row per name of a kernel, data type, path, device and memory level that counters know."""
    label = pl.concat_str("name", "dtype", separator=" ", ignore_nulls=True)
    found = _without_links(placed_points(trace, counted_points(trace)))
    return COUNTED_ROOFLINE.conform(found.with_columns(kernel_name="name", label=label, category=guessed_category(pl.col("name"))))


def layer_roofline(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Table layer_roofline: one row per layer with known work and what tells it. depth: see `layer_points`."""
    return LAYER_ROOFLINE.conform(placed_layers(trace, depth).with_columns(layer="name", label=_layer_label()))


def counted_layer_roofline(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Table counted_layer_roofline: one row per layer and memory level that counters know. depth: see `layer_points`."""
    found = placed_points(trace, counted_layer_points(trace, depth))
    return COUNTED_LAYER_ROOFLINE.conform(found.with_columns(layer="name", label=_layer_label()))


def _layer_label() -> pl.Expr:
    """Of points of layers as `labels.layer_label` has it; null outside of every layer."""
    part = pl.col("source").replace_strict(LAYER_PARTS, default=None, return_dtype=TEXT)
    label = pl.concat_str(pl.col("name").str.strip_prefix(MODULE_PREFIX), part, separator=" ", ignore_nulls=True)
    return pl.when(pl.col("name").is_not_null()).then(label)


def with_layer_work(layers: pl.LazyFrame, trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Table layers, from its columns that need no work: flop and bytes are sums, rates are over worked_share_ratio of the time."""
    worked = placed_layers(trace, depth).select(
        "source", *RATES, layer="name", flop="flop_sum", bytes="bytes_sum", worked_ns="duration_sum_ns"
    )
    return (
        layers.join(worked, on=("layer", "source"), how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            worked_share_ratio=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("worked_ns").fill_null(0) / pl.col("duration_sum_ns")),
            variant=pl.lit(None, dtype=TEXT),
            memory_bytes=pl.lit(None, dtype=COUNT),
        )
        .select(LAYERS.column_names[2:])
    )


def placed_kernels(trace: TraceFrames, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Points of `kernel_points` with what `placed` adds."""
    return _without_links(placed_points(trace, kernel_points(trace, work)))


def _without_links(points: pl.LazyFrame) -> pl.LazyFrame:
    communicates = pl.col("name").str.contains(COMMUNICATION).fill_null(False)
    return points.with_columns(pl.when(~communicates).then(pl.col(name)) for name in UNDER_CEILINGS)


def placed_layers(trace: TraceFrames, depth: int | None = None, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Points of `layer_points` with what `placed` adds."""
    return placed_points(trace, layer_points(trace, depth, work))


def placed_points(trace: TraceFrames, points: pl.LazyFrame) -> pl.LazyFrame:
    """Points of a trace with what `placed` adds, and their share of the time of all kernels."""
    durations = [trace["kernel_launches"].select("duration_ns")]
    if "kernel_totals" in trace:
        durations.append(trace["kernel_totals"].select(duration_ns="duration_sum_ns"))
    kernels = pl.concat(durations).select(kernels_ns=pl.col("duration_ns").sum())
    known = set(points.collect_schema().names())
    measured = points.with_columns(
        *(pl.lit(None, dtype=dtype).alias(name) for name, dtype in _NOT_OF_TRACES.items() if name not in known),
        # Launches of a trace met the caches as they were; a processor's hold what the operator before has left.
        cache_mode=pl.when(pl.col("device_id") == HOST_DEVICE).then(pl.lit("HOT")),
        flop_sum="flop",
        bytes_sum="bytes",
        flop=pl.col("flop") / pl.col("launch_count"),
        bytes=pl.col("bytes") / pl.col("launch_count"),
        run_id=pl.lit(""),
        event_index=pl.lit(None, dtype=COUNT),
        # Of launches that took no time no rate is known.
        duration_mean_ns=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("duration_sum_ns") / pl.col("launch_count")),
    )
    by_hand, limits = (trace.get(table.table_name, table.empty().lazy()) for table in (CEILINGS, THRESHOLDS))
    return (
        placed(measured, Roofs.of(pl.concat([trace_ceilings(trace["trace_devices"]), by_hand]), limits))
        .join(kernels, how="cross", maintain_order="left")
        .with_columns(share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("kernels_ns")))
    )
