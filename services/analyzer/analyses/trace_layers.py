"""What a trace says of each of its layers."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.launch_layers import layer_keys, named
from services.analyzer.analyses.shares import share_of
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
    counted = launches.select("range_index", "name_index", "layer_source", "duration_ns").map_batches(
        lambda frame: frame.with_columns(layer_keys(frame, ranges, depth)),
        schema={"range_index": INDEX, "name_index": INDEX, "layer_source": TEXT, "duration_ns": COUNT},
    )
    summed = counted.group_by("name_index", "layer_source").agg(
        launch_count=pl.len().cast(COUNT),
        duration_sum_ns=pl.col("duration_ns").sum(),
        call_count=pl.col("range_index").drop_nulls().n_unique().cast(COUNT),
    )
    return (
        named(summed, names)
        .group_by("layer", "source")
        .agg(pl.col("launch_count", "duration_sum_ns", "call_count").sum())
        .with_columns(share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()))
        .sort("duration_sum_ns", "layer", "source", descending=[True, False, False])
        .select("layer", "call_count", "launch_count", "duration_sum_ns", "share_ratio", "source")
    )
