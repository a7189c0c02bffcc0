"""The layer that each launch of a trace counts for: that of its range, or without one what the name of its kernel tells."""

from __future__ import annotations

import polars as pl

from services.analyzer.analyses.guessed_layers import GUESSED, guessed_layer
from services.analyzer.correlation import NONE, ancestors
from services.analyzer.table import INDEX


def layer_keys(launches: pl.DataFrame, ranges: pl.LazyFrame, depth: int | None) -> pl.DataFrame:
    """For each launch range_index and name_index of the range that it counts for; without one name_index is -1 less its kernel's.

    Numbers first, for ten million launches have few layers: `named` says what they are once these are summed.

    Args:
        launches: range_index and name_index of launches.
        depth: see `trace_layers`.
    """
    # A range's index is its row: to look it up takes no join.
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
    return pl.DataFrame([range_index.alias("range_index"), name_index.alias("name_index")])


def named(keyed: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """Rows with name_index of `layer_keys` and layer_source, with layer and source in their place.

    Kernels of several names may be of one guessed layer: there may be several rows of one layer and source.
    """
    is_of_kernel = pl.col("name_index") < 0
    return (
        keyed.with_columns(
            is_of_kernel=is_of_kernel, name_index=pl.when(is_of_kernel).then(-1 - pl.col("name_index")).otherwise("name_index")
        )
        .join(names.select("name_index", "name"), on="name_index", how="left", maintain_order="left")
        .with_columns(guess=guessed_layer(pl.when("is_of_kernel").then("name")))
        .with_columns(
            layer=pl.when("is_of_kernel").then("guess").otherwise("name"),
            source=pl.when(pl.col("guess").is_not_null()).then(pl.lit(GUESSED)).otherwise("layer_source"),
        )
        .drop("name_index", "layer_source", "is_of_kernel", "name", "guess")
    )
