"""What a trace says of each of its layers."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.correlation import ancestors
from services.analyzer.table import COUNT, INDEX

INPUT: Final = {
    "kernel_launches": ("range_index", "duration_ns", "layer_source"),
    "ranges": ("range_index", "name_index"),
    "trace_names": ("name_index", "name"),
}
DEPTH_INPUT: Final = {"ranges": ("parent_range_index", "depth")}
"""With a depth, these too."""


def trace_layers(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """One row per name of a range and source, longest in all first: table layers.

    Args:
        launches, ranges, names: the tables kernel_launches, ranges and trace_names of one trace.
        depth: kernels count for the range at this depth, from 0 for the outermost, or the innermost where that is less deep;
            None: for the innermost.
    """
    layers = ranges.select("range_index", "name_index")
    placed = launches.select("range_index", "layer_source", "duration_ns")
    if depth is not None:
        placed = placed.join(_at_depth(ranges, depth), on="range_index", how="left").with_columns(range_index=pl.col("layer_range_index"))
    return (
        placed.group_by("range_index", "layer_source")
        .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.col("duration_ns").sum())
        .join(layers, on="range_index", how="left")
        .group_by("name_index", "layer_source")
        .agg(
            pl.col("launch_count", "duration_sum_ns").sum(),
            call_count=pl.col("range_index").count().cast(COUNT),
        )
        .join(names.select("name_index", layer="name"), on="name_index", how="left")
        .with_columns(share_ratio=pl.col("duration_sum_ns") / pl.col("duration_sum_ns").sum())
        .sort("duration_sum_ns", "layer", "layer_source", descending=[True, False, False])
        .select("layer", "call_count", "launch_count", "duration_sum_ns", "share_ratio", source="layer_source")
    )


def _at_depth(ranges: pl.LazyFrame, depth: int) -> pl.LazyFrame:
    """For each range_index the layer_range_index that stands for it."""

    def place(frame: pl.DataFrame) -> pl.DataFrame:
        parents = frame["parent_range_index"].fill_null(-1).to_numpy()
        found = ancestors(parents, frame["depth"].to_numpy(), depth)
        return frame.select("range_index").with_columns(layer_range_index=pl.Series(found, dtype=INDEX))

    return ranges.select("range_index", "parent_range_index", "depth").map_batches(
        place, schema={"range_index": INDEX, "layer_range_index": INDEX}
    )
