"""Rooflines of a trace: its kernels and layers under the ceilings of its devices, and opportunities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.analysis.expressions import null_safe_ratio
from kernalyse.services.analyzer.analysis.roofline import RooflineModel, place_under_ceilings
from kernalyse.services.analyzer.analysis.traces.layers import infer_category
from kernalyse.services.analyzer.analysis.traces.work import (
    TraceFrames,
    compute_launch_costs,
    counted_layer_points,
    counted_points,
    device_id,
    kernel_points,
    layer_points,
)
from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.analyzer.tables.base import COUNT, NUMBER, TEXT, DataType
from kernalyse.services.analyzer.tables.derived import (
    COUNTED_LAYER_ROOFLINE,
    COUNTED_ROOFLINE,
    LAYER_ROOFLINE,
    LAYERS,
    OPPORTUNITIES,
    ROOFLINE,
)
from kernalyse.services.analyzer.tables.event_rows import ceiling_row, frame_from_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, THRESHOLDS
from kernalyse.services.analyzer.tables.traces import HOST_DEVICE
from kernalyse.services.core.formatting import LAYER_PARTS, MODULE_PREFIX
from kernalyse.services.core.kernel_categories import COMMUNICATION
from kernalyse.services.core.model import Ceiling, Device, DeviceKind

# ---------------------------------------------------------------- rooflines

_NOT_OF_TRACES: Final[dict[str, DataType]] = {
    "duration_median_ns": NUMBER,
    "sm_clock_hz": COUNT,
    "counted_level": TEXT,
    "stated_flop_per_s": NUMBER,
    "stated_flop_per_byte": NUMBER,
    "disturbance": TEXT,
}
"""Columns of measurements that `place_under_ceilings` requires and traces lack. Only counted points have a level."""

UNDER_CEILINGS: Final = (
    *("efficiency_ratio", "efficiency_datasheet_ratio", "efficiency_clock_ratio", "efficiency_measured_ratio"),
    *("bound", "bound_datasheet", "bound_clock", "bound_measured"),
    *("efficiency_category", "efficiency_category_datasheet", "efficiency_category_clock", "efficiency_category_measured"),
    *("attainable_flop_per_s", "is_implausible", "implausible_reason"),
)
"""Columns that are null for collectives: their bytes go over links, for which no ceilings are known."""

RATES: Final = (
    *("intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s"),
    *("efficiency_ratio", "bound", "work_source", "disturbance"),
)
"""Columns that table layers takes from these points."""


def trace_roofline(trace: TraceFrames) -> pl.LazyFrame:
    """Return table roofline of a trace: one row per kernel name, data type, path and device. See `place_under_ceilings`.

    flop, bytes and duration_mean_ns are means per launch, so that rates are ratios of sums.
    """
    label = pl.concat_str("name", "dtype", separator=" ", ignore_nulls=True)
    return ROOFLINE.conform(place_kernels(trace).with_columns(kernel_name="name", label=label, category=infer_category(pl.col("name"))))


def trace_counted_roofline(trace: TraceFrames) -> pl.LazyFrame:
    """Return table counted_roofline of a trace: one row per kernel name, data type, path, device and counted memory level."""
    label = pl.concat_str("name", "dtype", separator=" ", ignore_nulls=True)
    found = _without_links(place_points(trace, counted_points(trace)))
    return COUNTED_ROOFLINE.conform(found.with_columns(kernel_name="name", label=label, category=infer_category(pl.col("name"))))


def layer_roofline(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Return table layer_roofline: one row per layer and source with known costs. depth: see `layer_points`."""
    return LAYER_ROOFLINE.conform(place_layers(trace, depth).with_columns(layer="name", label=_layer_label()))


def counted_layer_roofline(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Return table counted_layer_roofline: one row per layer and counted memory level. depth: see `layer_points`."""
    found = place_points(trace, counted_layer_points(trace, depth))
    return COUNTED_LAYER_ROOFLINE.conform(found.with_columns(layer="name", label=_layer_label()))


def _layer_label() -> pl.Expr:
    """Return the label of a layer's point: its name without prefix, and its source; null outside of every layer."""
    part = pl.col("source").replace_strict(LAYER_PARTS, default=None, return_dtype=TEXT)
    label = pl.concat_str(pl.col("name").str.strip_prefix(MODULE_PREFIX), part, separator=" ", ignore_nulls=True)
    return pl.when(pl.col("name").is_not_null()).then(label)


def with_layer_work(layers: pl.LazyFrame, trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Return table layers with the columns that depend on costs.

    flop and bytes are sums; rates are over the fraction worked_share_ratio of the time.

    Args:
        layers: the other columns of the table.
        trace: the tables of the trace.
        depth: see `layer_points`.
    """
    points = place_layers(trace, depth).select(
        "source", *RATES, layer="name", flop="flop_sum", bytes="bytes_sum", worked_ns="duration_sum_ns"
    )
    return (
        layers.join(points, on=("layer", "source"), how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            worked_share_ratio=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("worked_ns").fill_null(0) / pl.col("duration_sum_ns")),
            variant=pl.lit(None, dtype=TEXT),
            memory_bytes=pl.lit(None, dtype=COUNT),
            pass_duration_median_ns=pl.lit(None, dtype=NUMBER),
        )
        .select(LAYERS.column_names[2:])
    )


def place_kernels(trace: TraceFrames, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Return `kernel_points` with the columns that `place_under_ceilings` adds."""
    return _without_links(place_points(trace, kernel_points(trace, work)))


def _without_links(points: pl.LazyFrame) -> pl.LazyFrame:
    communicates = pl.col("name").str.contains(COMMUNICATION).fill_null(False)
    return points.with_columns(pl.when(~communicates).then(pl.col(name)) for name in UNDER_CEILINGS)


def place_layers(trace: TraceFrames, depth: int | None = None, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Return `layer_points` with the columns that `place_under_ceilings` adds."""
    return place_points(trace, layer_points(trace, depth, work))


def place_points(trace: TraceFrames, points: pl.LazyFrame) -> pl.LazyFrame:
    """Return points of a trace with the columns that `place_under_ceilings` adds, and their fraction of the time of all kernels."""
    durations = [trace["kernel_launches"].select("duration_ns")]
    if "kernel_totals" in trace:
        durations.append(trace["kernel_totals"].select(duration_ns="duration_sum_ns"))
    kernels = pl.concat(durations).select(kernels_ns=pl.col("duration_ns").sum())
    known = set(points.collect_schema().names())
    measured = points.with_columns(
        *(pl.lit(None, dtype=dtype).alias(name) for name, dtype in _NOT_OF_TRACES.items() if name not in known),
        # The state of a GPU's caches is unknown in traces; a CPU's caches hold the results of the operator before.
        cache_mode=pl.when(pl.col("device_id") == HOST_DEVICE).then(pl.lit("HOT")),
        flop_sum="flop",
        bytes_sum="bytes",
        flop=pl.col("flop") / pl.col("launch_count"),
        bytes=pl.col("bytes") / pl.col("launch_count"),
        run_id=pl.lit(""),
        event_index=pl.lit(None, dtype=COUNT),
        # Launches that took no time have no rate.
        duration_mean_ns=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("duration_sum_ns") / pl.col("launch_count")),
    )
    overrides, limits = (trace.get(table.table_name, table.empty().lazy()) for table in (CEILINGS, THRESHOLDS))
    return (
        place_under_ceilings(measured, RooflineModel.of(pl.concat([trace_ceilings(trace["trace_devices"]), overrides]), limits))
        .join(kernels, how="cross", maintain_order="left")
        .with_columns(share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("kernels_ns")))
    )


# ---------------------------------------------------------------- ceilings
# The ceilings of a trace's devices that are known without measuring.

OTHER_VENDORS: Final = ("AMD", "Radeon", "Intel")
"""Vendors whose "compute capability" in traces is no number of NVIDIA's."""

_DESCRIPTION: Final = ("device_name", "compute_capability", "sm_count", "clock_hz", "memory_bandwidth_bytes_per_s")


def trace_ceilings(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Return table ceilings: one row per ceiling of each kind of device, by datasheet and at the clock that the trace states.

    Args:
        devices: table trace_devices of one trace.
    """
    return pl.defer(lambda: _ceiling_rows(devices), schema=CEILINGS.schema)


def _ceiling_rows(devices: pl.LazyFrame) -> pl.DataFrame:
    kinds = devices.select(*_DESCRIPTION, device_id=device_id()).unique("device_id", keep="first", maintain_order=True).collect()
    found = [ceiling for kind in kinds.iter_rows(named=True) for ceiling in _ceilings(kind)]
    return frame_from_rows(CEILINGS, [ceiling_row("", None, ceiling) for ceiling in found])


def _ceilings(kind: dict[str, Any]) -> Iterator[Ceiling]:
    name = kind["device_name"] or ""
    if name.startswith(OTHER_VENDORS):
        return
    device = Device(
        kind["device_id"],
        name,
        DeviceKind.GPU,
        (),
        compute_capability=kind["compute_capability"],
        compute_unit_count=kind["sm_count"],
        max_clock_hz=kind["clock_hz"],
    )
    known = device_peaks(device).ceilings
    yield from known
    bytes_per_s = kind["memory_bandwidth_bytes_per_s"]
    if bytes_per_s and not any(ceiling.ceiling_name == "dram" for ceiling in known):
        note = "Memory clock x bus width, as the driver told the recorder."
        yield Ceiling(device.device_id, "dram", "bytes_per_s", float(bytes_per_s), "copy", "clock", "medium", note)


# ---------------------------------------------------------------- opportunities
# The time that kernels, layers and devices lose compared with what the hardware allows.

NS_PER_MS: Final = 1e6
UNKNOWN_WORK: Final = "Nothing is known of what it has to do: no operator with shapes, no counters, nothing stated."
UNKNOWN_CEILING: Final = "Its work is known, but no ceiling of its device and data type, or it took no time."

COLUMNS: Final = OPPORTUNITIES.column_names[2:]


def opportunities(trace: TraceFrames, kernels: pl.LazyFrame, layers: pl.LazyFrame, breakdown: pl.LazyFrame) -> pl.LazyFrame:
    """Return table opportunities.

    lost_ns is time x (1 - efficiency) over the time with known efficiency, summed over the points of a kernel or layer; points above
    their ceiling, as with data in a cache, lose nothing. The time without known efficiency is a row of its own.

    Args:
        trace: the tables of the trace.
        kernels, layers, breakdown: the tables of these names; of kernels, the columns for traces suffice.
    """
    return pl.defer(
        lambda: _opportunity_rows(trace, kernels, layers, breakdown), schema={name: OPPORTUNITIES.schema[name] for name in COLUMNS}
    )


def _opportunity_rows(trace: TraceFrames, kernels: pl.LazyFrame, layers: pl.LazyFrame, breakdown: pl.LazyFrame) -> pl.DataFrame:
    work = compute_launch_costs(trace)
    of_kernels, of_layers = pl.collect_all([place_kernels(trace, work), place_layers(trace, work=work)])
    rows = [
        subject_rows("kernel", of_kernels.lazy(), kernels.select("launch_count", "duration_sum_ns", subject="kernel_name")),
        subject_rows("layer", of_layers.lazy(), layers.select("launch_count", "duration_sum_ns", subject="layer")),
        _idle(breakdown),
    ]
    return (
        pl.concat(rows)
        .sort("lost_ns", "duration_sum_ns", "subject_kind", "subject", descending=[True, True, False, False], nulls_last=True)
        .collect()
    )


def subject_rows(kind: str, points: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of one kind of subject: for each the part with known costs, and the rest.

    Args:
        kind: subject_kind of the rows.
        points: points of the subjects, as `place_under_ceilings` returns them, with their name.
        subjects: subject, launch_count and duration_sum_ns of all subjects.
    """
    subjects = subjects.group_by("subject").agg(pl.col("launch_count", "duration_sum_ns").sum())
    known = _known(points.rename({"name": "subject"}))
    rows = pl.concat([known, _unknown(known, subjects)])
    total = subjects.select(total_ns=pl.col("duration_sum_ns").sum())
    return (
        rows.join(total, how="cross")
        .with_columns(
            subject_kind=pl.lit(kind),
            share_ratio=pl.when(pl.col("total_ns") > 0).then(pl.col("duration_sum_ns") / pl.col("total_ns")),
            variant=pl.lit(None, dtype=TEXT),
        )
        .select(COLUMNS)
    )


def _known(points: pl.LazyFrame) -> pl.LazyFrame:
    """Return the points of each subject summed up, separately with and without an efficiency."""
    is_known = pl.col("efficiency_ratio").is_not_null()
    lost_ns = pl.col("duration_sum_ns") * (1 - pl.col("efficiency_ratio")).clip(lower_bound=0.0)
    total_ns = pl.col("duration_sum_ns")
    return (
        points.with_columns(is_known=is_known, lost_ns=lost_ns)
        .sort("duration_sum_ns", descending=True, maintain_order=True)
        .group_by("subject", "is_known", maintain_order=True)
        .agg(
            pl.col("launch_count", "duration_sum_ns").sum(),
            efficiency_ratio=pl.when(total_ns.sum() > 0).then((pl.col("efficiency_ratio") * total_ns).sum() / total_ns.sum()),
            lost_ns=pl.col("lost_ns").sum(),
            bound=pl.col("bound").first(),
            work_source=pl.col("work_source").first(),
        )
        .select(
            "subject",
            "launch_count",
            "duration_sum_ns",
            efficiency_ratio=pl.when("is_known").then("efficiency_ratio"),
            lost_ns=pl.when("is_known").then("lost_ns"),
            bound=pl.when("is_known").then("bound"),
            reason=pl.when("is_known").then(_reason()).otherwise(pl.lit(UNKNOWN_CEILING)),
        )
    )


def _reason() -> pl.Expr:
    """Return a sentence with efficiency, bound and lost time."""
    percent = (pl.col("efficiency_ratio") * 100).round_sig_figs(3)
    limit = pl.when(pl.col("bound") == "compute").then(pl.lit("compute")).otherwise(pl.lit("memory"))
    return pl.format(
        "It reaches {} % of what the {} roof allows; at the roof it would take {} ms less (work by {}).",
        percent,
        limit,
        (pl.col("lost_ns") / NS_PER_MS).round_sig_figs(3),
        "work_source",
    )


def _unknown(known: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    """Return for each subject the launches that are in no point."""
    counted = known.group_by("subject").agg(known_count=pl.col("launch_count").sum(), known_ns=pl.col("duration_sum_ns").sum())
    return (
        subjects.join(counted, on="subject", how="left", nulls_equal=True)
        .with_columns(
            launch_count=pl.col("launch_count") - pl.col("known_count").fill_null(0),
            duration_sum_ns=pl.col("duration_sum_ns") - pl.col("known_ns").fill_null(0),
        )
        .filter(pl.col("launch_count") > 0)
        .select(
            "subject",
            "launch_count",
            "duration_sum_ns",
            efficiency_ratio=pl.lit(None, dtype=NUMBER),
            lost_ns=pl.lit(None, dtype=NUMBER),
            bound=pl.lit(None, dtype=TEXT),
            reason=pl.lit(UNKNOWN_WORK),
        )
    )


def _idle(breakdown: pl.LazyFrame) -> pl.LazyFrame:
    """Return the devices with the time in which no kernel ran."""
    share = pl.when(pl.col("span_ns") > 0).then(pl.col("idle_ns") / pl.col("span_ns"))
    name = pl.coalesce("device_name", pl.lit("device"))
    return breakdown.filter(pl.col("idle_ns") > 0).select(
        subject_kind=pl.lit("device"),
        subject=pl.format("{} {} of process {}", name, "device_index", "process_id"),
        launch_count=pl.lit(None, dtype=COUNT),
        duration_sum_ns="idle_ns",
        share_ratio=share,
        efficiency_ratio=1 - share,
        lost_ns=pl.col("idle_ns").cast(NUMBER),
        bound=pl.lit(None, dtype=TEXT),
        reason=pl.format(
            "No kernel ran in {} of {} ms; {} ms of that went to copies and fills alone.",
            *((pl.col(column) / NS_PER_MS).round_sig_figs(4) for column in ("idle_ns", "span_ns", "memory_only_ns")),
        ),
        variant=pl.lit(None, dtype=TEXT),
    )
