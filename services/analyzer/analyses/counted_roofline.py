"""Work for the roofline: by formula where the kernel has one, by counters where it has none or for further memory levels."""

from __future__ import annotations

from typing import Final

import polars as pl

MEMORY_LEVELS: Final = ("dram", "l2", "l1")
LAUNCH_IDENTITY: Final = ("kernel_name", "parameters", "macros", "block", "dynamic_shared_memory_bytes", "cache_mode")
"""What a launch does depends on these alone: counters of one process of a run hold for the others."""

FORMULA: Final = "formula"
COUNTERS: Final = "counters"


def with_counted_work(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Measurements as the roofline takes them: one row for each point that it is to draw.

    Every measurement has one row with is_main, which stands for it in summaries: its flop and bytes by formula, where its
    kernel has either formula; else flop by counters and the bytes of device memory. Where counters know the bytes of a
    level, it has a further row for that level, if that is not its main row already.

    Args:
        measurements, counted_work: the tables of these names, of any runs.

    Returns:
        The columns of measurements, in their order and with the main rows in the order of the measurements, then
        work_source ("formula", "counters"; null: no work is known), memory_level ("dram", "l2", "l1"; null: the roofline
        chooses, as it does for formulas), is_main, and to compare with, in every row, counted_flop and counted_dram_bytes
        (null: not counted). Rows by counters have dtype and path of most of the flop, which pick the compute ceiling.
        event_index: the later one of measurement and counters.
    """
    names = measurements.collect_schema().names()
    joined = (
        measurements.with_row_index("place")
        .join(_latest(measurements, counted_work), on=["run_id", *LAUNCH_IDENTITY], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(event_index=pl.max_horizontal("event_index", "counted_event_index"))
    )
    has_formula = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    added = ["work_source", "memory_level", "is_main", "counted_flop", "counted_dram_bytes"]
    by_formula = joined.filter(has_formula).with_columns(
        work_source=pl.lit(FORMULA), memory_level=pl.lit(None, dtype=pl.String), is_main=pl.lit(True)
    )
    by_counters = [_at_level(joined, level, has_formula) for level in MEMORY_LEVELS]
    return (
        pl.concat([frame.select("place", *names, *added) for frame in (by_formula, *by_counters)])
        .sort("place", ~pl.col("is_main"), maintain_order=True)
        .select(*names, *added)
    )


def _at_level(joined: pl.LazyFrame, level: str, has_formula: pl.Expr) -> pl.LazyFrame:
    """Rows by counters for one level. That of device memory is there for every measurement without formulas, known or not."""
    level_bytes = pl.col(f"counted_{level}_bytes")
    is_main = ~has_formula & pl.lit(level == MEMORY_LEVELS[0])
    is_counted = pl.col("counted_flop").is_not_null() | pl.any_horizontal(
        pl.col(f"counted_{name}_bytes").is_not_null() for name in MEMORY_LEVELS
    )
    return (
        joined.filter(is_main | level_bytes.is_not_null())
        .with_columns(
            work_source=pl.when(is_counted).then(pl.lit(COUNTERS)),
            memory_level=pl.when(level_bytes.is_not_null()).then(pl.lit(level)),
            is_main=is_main,
        )
        .with_columns(
            flop=pl.col("counted_flop"),
            bytes=level_bytes,
            dtype=pl.coalesce("counted_dtype", "dtype"),
            path=pl.coalesce("counted_path", "path"),
        )
    )


def _latest(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Counters by what identifies a launch; of several reports or launches the last."""
    identities = measurements.select("run_id", "configuration_index", *LAUNCH_IDENTITY).unique(["run_id", "configuration_index"])
    return (
        counted_work.filter(pl.col("configuration_index").is_not_null())
        .sort("event_index", "launch_index", maintain_order=True)
        .join(identities, on=["run_id", "configuration_index"], maintain_order="left")
        .unique(["run_id", *LAUNCH_IDENTITY], keep="last", maintain_order=True)
        .select(
            "run_id",
            *LAUNCH_IDENTITY,
            counted_event_index="event_index",
            counted_flop="flop",
            counted_dtype="dtype",
            counted_path="path",
            **{f"counted_{level}_bytes": f"{level}_bytes" for level in MEMORY_LEVELS},
        )
    )
