"""Work for the roofline: by formula where the kernel has one, else by counters; and by counters for each memory level."""

from __future__ import annotations

from typing import Final

import polars as pl

MEMORY_LEVELS: Final = ("dram", "l2", "l1")
LAUNCH_IDENTITY: Final = ("kernel_name", "parameters", "macros", "block", "dynamic_shared_memory_bytes", "cache_mode")
"""What a launch does depends on these alone: counters of one process of a run hold for the others."""

FORMULA: Final = "formula"
COUNTERS: Final = "counters"


def with_counted_work(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Measurements with the work that their point on the roofline stands on.

    A kernel with either formula has its flop and bytes by formula: they say what it has to do, counters what it did. A
    kernel with none has them by counters: all its flop, and the bytes of the farthest memory that it used.

    Args:
        measurements, counted_work: the tables of these names, of any runs.

    Returns:
        The rows and columns of measurements in their order, then work_source ("formula", "counters"; null: no work is
        known), counted_level ("dram", "l2", "l1": where bytes by counters were counted; null: the roofline chooses), and to
        compare with, counted_flop and counted_dram_bytes (null: not counted). Of rows by counters dtype and path are those
        of most of the flop, for they pick the compute ceiling. event_index: the later one of measurement and counters.
    """
    has_formula = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    level = pl.coalesce(pl.when(_level_bytes(name) > 0).then(pl.lit(name)) for name in MEMORY_LEVELS)
    used_bytes = pl.coalesce(pl.when(_level_bytes(name) > 0).then(_level_bytes(name)) for name in MEMORY_LEVELS)
    by_counters = ~has_formula & _is_counted()
    return (
        _joined(measurements, counted_work)
        .with_columns(
            work_source=pl.when(has_formula).then(pl.lit(FORMULA)).when(by_counters).then(pl.lit(COUNTERS)),
            counted_level=pl.when(by_counters).then(level),
            flop=pl.when(has_formula).then("flop").otherwise("counted_flop"),
            bytes=pl.when(has_formula).then("bytes").otherwise(used_bytes),
            **_counted_kind(by_counters),
        )
        .select(*measurements.collect_schema().names(), *_ADDED)
    )


def counted_levels(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """One row for each measurement and memory level whose bytes are counted, whether its kernel has formulas or not.

    Args and columns as those of `with_counted_work`; levels of one measurement from the farthest to the nearest.
    """
    joined = _joined(measurements.with_row_index("place"), counted_work)
    levels = [
        joined.filter(_level_bytes(level).is_not_null()).with_columns(
            work_source=pl.lit(COUNTERS),
            counted_level=pl.lit(level),
            flop="counted_flop",
            bytes=_level_bytes(level),
            **_counted_kind(pl.lit(True)),
        )
        for level in MEMORY_LEVELS
    ]
    return pl.concat(levels).sort("place", maintain_order=True).select(*measurements.collect_schema().names(), *_ADDED)


_ADDED: Final = ("work_source", "counted_level", "counted_flop", "counted_dram_bytes")


def _level_bytes(level: str) -> pl.Expr:
    return pl.col(f"counted_{level}_bytes")


def _is_counted() -> pl.Expr:
    return pl.any_horizontal(pl.col("counted_flop").is_not_null(), *(_level_bytes(level).is_not_null() for level in MEMORY_LEVELS))


def _counted_kind(by_counters: pl.Expr) -> dict[str, pl.Expr]:
    """Data type and path of most of the flop, where that is what counts and is known."""
    return {name: pl.when(by_counters).then(pl.coalesce(f"counted_{name}", name)).otherwise(name) for name in ("dtype", "path")}


def _joined(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    counted = counted_work.filter(pl.col("configuration_index").is_not_null()).collect()
    latest = _latest(measurements, counted.lazy())
    if counted.is_empty():  # mostly; a million measurements need not be looked up in nothing
        added = {name: dtype for name, dtype in latest.collect_schema().items() if name.startswith("counted_")}
        return measurements.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in added.items())
    return measurements.join(latest, on=["run_id", *LAUNCH_IDENTITY], how="left", nulls_equal=True, maintain_order="left").with_columns(
        event_index=pl.max_horizontal("event_index", "counted_event_index")
    )


def _latest(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Counters of configurations by what identifies a launch; of several reports or launches the last."""
    identities = measurements.select("run_id", "configuration_index", *LAUNCH_IDENTITY).unique(["run_id", "configuration_index"])
    return (
        counted_work.sort("event_index", "launch_index", maintain_order=True)
        .join(identities, on=["run_id", "configuration_index"], maintain_order="left", suffix="_measured")
        .select(
            "run_id",
            # The kernel's name is in both tables; the measurement's is the one to join on.
            *(pl.col("kernel_name_measured").alias(name) if name == "kernel_name" else name for name in LAUNCH_IDENTITY),
            counted_event_index="event_index",
            counted_flop="flop",
            counted_dtype="dtype",
            counted_path="path",
            **{f"counted_{level}_bytes": f"{level}_bytes" for level in MEMORY_LEVELS},
        )
        .unique(["run_id", *LAUNCH_IDENTITY], keep="last", maintain_order=True)
    )
