"""How far each measured configuration is from the roof of its device."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.schema import ROOFLINE

SOURCE_RANKS: Final = {"user": 0, "measured": 1, "datasheet": 2, "clock": 3}
"""What a person set wins, then what the device was seen to reach: a datasheet's peak holds at a clock it may never run at."""

PATH_RANKS: Final = {"fma": 0, "copy": 0, "tensor": 1}
"""Tensor units only where a data type has no other path: a kernel without their instructions cannot reach that peak."""

NS_PER_S: Final = 1e9
MEMORY_COLUMNS: Final = ("ceiling_bytes_per_s", "source", "event_index")


def roofline(measurements: pl.LazyFrame, ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One row per measurement: intensity, achieved, attainable, efficiency and bound.

    The memory level is DRAM. A hot measurement that moves its bytes faster than DRAM can has had them from the
    last-level cache, and is held against that one's ceiling where it is known ("l2").

    attainable flop/s = min(compute ceiling of the data type, intensity x memory ceiling), after Williams, Waterman and
    Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009. A kernel
    without flop is held against the memory ceiling alone: efficiency = achieved bytes/s over it. Rates are over the median;
    imported results that have none are taken at their mean.

    Args:
        measurements: table measurements, of any runs.
        ceilings: table ceilings, of the same runs, every source.

    Returns:
        Table roofline, in the order of the measurements. What needs a ceiling that is not known is null. event_index is
        the later one of the measurement and the ceilings it is held against.
    """
    duration_s = pl.coalesce("duration_median_ns", "duration_mean_ns") / NS_PER_S
    has_flop = pl.col("flop") > 0
    has_bytes = pl.col("bytes") > 0
    memory_ceiling = pl.col("memory_ceiling_bytes_per_s")
    compute_ceiling = pl.col("compute_ceiling_flop_per_s")
    memory_roof = pl.col("intensity_flop_per_byte") * memory_ceiling
    both_known = memory_roof.is_not_null() & compute_ceiling.is_not_null()
    only_bytes = ~has_flop.fill_null(False) & pl.col("achieved_bytes_per_s").is_not_null() & memory_ceiling.is_not_null()
    is_memory_bound = memory_roof < compute_ceiling
    return (
        measurements.with_columns(achieved_bytes_per_s=pl.when(has_bytes).then(pl.col("bytes") / duration_s))
        .join(_best_memory_ceilings(ceilings, "dram"), on=["run_id", "device_id"], how="left", maintain_order="left")
        .join(_best_memory_ceilings(ceilings, "l2"), on=["run_id", "device_id"], how="left", maintain_order="left")
        .with_columns(memory_level=pl.when(_is_cached()).then(pl.lit("l2")).otherwise(pl.lit("dram")))
        .with_columns(_of_level(column) for column in MEMORY_COLUMNS)
        .join(_best_compute_ceilings(ceilings), on=["run_id", "device_id", "dtype"], how="left", maintain_order="left")
        .with_columns(
            event_index=pl.max_horizontal("event_index", "memory_event_index", "compute_event_index"),
            intensity_flop_per_byte=pl.when(has_flop & has_bytes).then(pl.col("flop") / pl.col("bytes")),
            achieved_flop_per_s=pl.when(has_flop).then(pl.col("flop") / duration_s),
            ridge_flop_per_byte=compute_ceiling / memory_ceiling,
        )
        .with_columns(
            attainable_flop_per_s=pl.when(both_known).then(pl.min_horizontal(compute_ceiling, memory_roof)),
            bound=pl.when(only_bytes | (both_known & is_memory_bound)).then(pl.lit("memory")).when(both_known).then(pl.lit("compute")),
        )
        .with_columns(
            efficiency_ratio=pl.when(only_bytes)
            .then(pl.col("achieved_bytes_per_s") / memory_ceiling)
            .otherwise(pl.col("achieved_flop_per_s") / pl.col("attainable_flop_per_s")),
            ceiling_source=pl.when(pl.col("bound") == "memory")
            .then(pl.col("memory_source"))
            .when(pl.col("bound") == "compute")
            .then(pl.col("compute_source")),
        )
        .select(ROOFLINE.column_names)
    )


def _is_cached() -> pl.Expr:
    is_faster_than_dram = pl.col("achieved_bytes_per_s") > pl.col("dram_ceiling_bytes_per_s")
    return (is_faster_than_dram & (pl.col("cache_mode") == "HOT") & pl.col("l2_ceiling_bytes_per_s").is_not_null()).fill_null(False)


def _of_level(column: str) -> pl.Expr:
    """The column of the memory level that counts."""
    return (
        pl.when(pl.col("memory_level") == "l2").then(pl.col(f"l2_{column}")).otherwise(pl.col(f"dram_{column}")).alias(f"memory_{column}")
    )


def _best_memory_ceilings(ceilings: pl.LazyFrame, level: str) -> pl.LazyFrame:
    """One ceiling of this memory level per run and device, columns named after the level."""
    is_of_level = (pl.col("unit") == "bytes_per_s") & (pl.col("ceiling_name") == level)
    return (
        _ranked(ceilings.filter(is_of_level))
        .unique(["run_id", "device_id"], keep="first", maintain_order=True)
        .select("run_id", "device_id", "event_index", ceiling_bytes_per_s="value", source="source")
        .rename({column: f"{level}_{column}" for column in MEMORY_COLUMNS})
    )


def _best_compute_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One compute ceiling per run, device and data type."""
    return (
        _ranked(ceilings.filter(pl.col("unit") == "flop_per_s"))
        .unique(["run_id", "device_id", "ceiling_name"], keep="first", maintain_order=True)
        .select(
            "run_id",
            "device_id",
            dtype="ceiling_name",
            compute_ceiling_flop_per_s="value",
            compute_source="source",
            compute_event_index="event_index",
        )
    )


def _ranked(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Best first: by path, then source, then the newest."""
    return ceilings.sort(
        pl.col("path").replace_strict(PATH_RANKS, default=len(PATH_RANKS), return_dtype=pl.Int64),
        pl.col("source").replace_strict(SOURCE_RANKS, default=len(SOURCE_RANKS), return_dtype=pl.Int64),
        -pl.col("event_index"),
        maintain_order=True,
    )
