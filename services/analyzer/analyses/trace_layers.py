"""What a trace says of each of its layers."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.guessed_layers import GUESSED, guessed_layer
from services.analyzer.correlation import NONE, ancestors
from services.analyzer.table import COUNT, INDEX, TEXT

INPUT: Final = {
    "kernel_launches": ("range_index", "duration_ns", "layer_source", "name_index"),
    "ranges": ("range_index", "name_index"),
    "trace_names": ("name_index", "name"),
}
DEPTH_INPUT: Final = {"ranges": ("parent_range_index", "depth")}
"""With a depth, these too."""


def trace_layers(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """One row per name of a range and source, longest in all first: table layers.

    Kernels without a range count for what their names tell, with the source guessed; without a source where they tell nothing.

    Args:
        launches, ranges, names: the tables kernel_launches, ranges and trace_names of one trace.
        depth: kernels count for the range at this depth, from 0 for the outermost, or the innermost where that is less deep;
            None: for the innermost.
    """
    counted = launches.select("range_index", "layer_source", "duration_ns", "name_index").map_batches(
        lambda frame: _named(frame, ranges, depth),
        schema={"range_index": INDEX, "name_index": INDEX, "layer_source": TEXT, "duration_ns": COUNT},
    )
    is_told_by_kernel = pl.col("name_index") < 0
    return (
        counted.group_by("name_index", "layer_source")
        .agg(
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=pl.col("duration_ns").sum(),
            call_count=pl.col("range_index").drop_nulls().n_unique().cast(COUNT),
        )
        .with_columns(
            is_told_by_kernel=is_told_by_kernel,
            name_index=pl.when(is_told_by_kernel).then(-1 - pl.col("name_index")).otherwise("name_index"),
        )
        .join(names.select("name_index", "name"), on="name_index", how="left")
        .with_columns(guess=guessed_layer(pl.when("is_told_by_kernel").then("name")))
        .with_columns(
            layer=pl.when("is_told_by_kernel").then("guess").otherwise("name"),
            source=pl.when(pl.col("guess").is_not_null()).then(pl.lit(GUESSED)).otherwise("layer_source"),
        )
        .group_by("layer", "source")
        .agg(pl.col("launch_count", "duration_sum_ns", "call_count").sum())
        .with_columns(share_ratio=pl.col("duration_sum_ns") / pl.col("duration_sum_ns").sum())
        .sort("duration_sum_ns", "layer", "source", descending=[True, False, False])
        .select("layer", "call_count", "launch_count", "duration_sum_ns", "share_ratio", "source")
    )


def _named(launches: pl.DataFrame, ranges: pl.LazyFrame, depth: int | None) -> pl.DataFrame:
    """Kernels with the range that they count for and its name; without a range, -1 less the index of their own.

    A range's index is its row: to look it up takes no join.
    """
    if depth is None:
        found = ranges.select("name_index").collect()
        range_index = launches["range_index"]
    else:
        found = ranges.select("name_index", "parent_range_index", "depth").collect()
        rows = ancestors(found["parent_range_index"].fill_null(NONE).to_numpy(), found["depth"].to_numpy(), depth)
        range_index = pl.Series("range_index", rows, dtype=INDEX).gather(launches["range_index"])
    name_index = found["name_index"].gather(range_index)
    if range_index.null_count():
        name_index = name_index.zip_with(range_index.is_not_null(), -1 - launches["name_index"])
    return launches.select(range_index, name_index.alias("name_index"), "layer_source", "duration_ns")
