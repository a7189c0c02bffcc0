"""What to look at first: time that kernels, layers and devices lose against what the hardware can do."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.trace_points import TraceFrames, work_of_launches
from services.analyzer.analyses.trace_roofline import placed_kernels, placed_layers
from services.analyzer.answer_tables import OPPORTUNITIES
from services.analyzer.table import COUNT, NUMBER, TEXT

NS_PER_MS: Final = 1e6
UNKNOWN_WORK: Final = "Nothing is known of what it has to do: no operator with shapes, no counters, nothing stated."
UNKNOWN_CEILING: Final = "Its work is known, but no ceiling of its device and data type, or it took no time."

COLUMNS: Final = OPPORTUNITIES.column_names[2:]


def opportunities(trace: TraceFrames, kernels: pl.LazyFrame, layers: pl.LazyFrame, breakdown: pl.LazyFrame) -> pl.LazyFrame:
    """Table opportunities.

    lost_ns is time x (1 - efficiency) of the time whose efficiency is known, summed over the points of a kernel; faster than
    the ceiling, as out of a cache, loses nothing. The rest of a kernel's time, and of a layer's, is a row of its own.

    Args:
        kernels, layers, breakdown: the tables of these names of the trace, the first with trace's columns alone.
    """
    return pl.defer(lambda: _rows(trace, kernels, layers, breakdown), schema={name: OPPORTUNITIES.schema[name] for name in COLUMNS})


def _rows(trace: TraceFrames, kernels: pl.LazyFrame, layers: pl.LazyFrame, breakdown: pl.LazyFrame) -> pl.DataFrame:
    work = work_of_launches(trace)
    of_kernels, of_layers = pl.collect_all([placed_kernels(trace, work), placed_layers(trace, work=work)])
    rows = [
        subjects_of("kernel", of_kernels.lazy(), kernels.select("launch_count", "duration_sum_ns", subject="kernel_name")),
        subjects_of("layer", of_layers.lazy(), layers.select("launch_count", "duration_sum_ns", subject="layer")),
        _idle(breakdown),
    ]
    return (
        pl.concat(rows)
        .sort("lost_ns", "duration_sum_ns", "subject_kind", "subject", descending=[True, True, False, False], nulls_last=True)
        .collect()
    )


def subjects_of(kind: str, points: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of one kind: of each subject what is known of it, then what is not."""
    subjects = subjects.group_by("subject").agg(pl.col("launch_count", "duration_sum_ns").sum())
    known = _known(points.rename({"name": "subject"}))
    part = pl.concat([known, _unknown(known, subjects)])
    whole = subjects.select(whole_ns=pl.col("duration_sum_ns").sum())
    return (
        part.join(whole, how="cross")
        .with_columns(
            subject_kind=pl.lit(kind),
            share_ratio=pl.when(pl.col("whole_ns") > 0).then(pl.col("duration_sum_ns") / pl.col("whole_ns")),
            variant=pl.lit(None, dtype=TEXT),
        )
        .select(COLUMNS)
    )


def _known(points: pl.LazyFrame) -> pl.LazyFrame:
    """Points of one subject together, those with an efficiency apart from those without."""
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
    """A sentence with the figures that matter."""
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
    """Of each subject the launches that are in no point."""
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
    """Devices with the time in which no kernel ran."""
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
