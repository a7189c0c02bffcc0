"""The layer of each launch of a trace, and traces that hold sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.expressions import share_of
from kernalyse.services.analyzer.numeric.correlation import NONE, ancestors
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, TEXT
from kernalyse.services.core.kernel_categories import NAME_PATTERNS

# ---------------------------------------------------------------- trace layers
# What a trace says of each of its layers.

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


# ---------------------------------------------------------------- launch layers
# The layer that each launch of a trace counts for: that of its range, or without one what the name of its kernel tells.


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


# ---------------------------------------------------------------- guessed layers
# What a kernel does as its name tells it: the last resort, for kernels of which no range and no module is known.

PATTERNS: Final = tuple((f"{category} kernels", pattern) for category, pattern in NAME_PATTERNS)
"""The layer that kernels are counted for by their names. What names tell nothing of stays without a layer."""

GUESSED: Final = "guessed"


def guessed_layer(kernel_name: pl.Expr) -> pl.Expr:
    """The layer of kernels of these names; null where a name tells nothing."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(layer)) for layer, pattern in PATTERNS)


def guessed_category(kernel_name: pl.Expr) -> pl.Expr:
    """Return what kernels of these names are for, e.g. matmul; null where a name tells nothing."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(category)) for category, pattern in NAME_PATTERNS)


# ---------------------------------------------------------------- trace totals
# Kernels and layers of recorders that keep sums over launches only: what they say in the tables of single launches.

_TOTALS: Final = ("name_index", "launch_count", "duration_sum_ns")
_NAMES: Final = {"trace_names": ("name_index", "name")}
KERNELS_INPUT: Final = {"kernel_totals": _TOTALS, **_NAMES}
LAYERS_INPUT: Final = {
    "kernel_totals": (*_TOTALS, "scope_index"),
    "scopes": ("scope_index", "name_index", "parent_scope_index", "depth"),
    **_NAMES,
}

SCOPE: Final = "scope"
"""What tells a layer of sums."""


def kernels_of_totals(totals: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """One row per kernel: those figures of table kernels that sums tell. Shortest, longest and median launch they do not.

    Args:
        totals, names: the tables kernel_totals and trace_names of one trace.
    """
    return totals.group_by("name_index").agg(_sums()).join(names.select("name_index", kernel_name="name"), on="name_index", how="left")


def layers_of_totals(totals: pl.LazyFrame, scopes: pl.LazyFrame, names: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """One row per name of a scope: those figures of table layers that sums tell. How often a scope was entered they do not.

    Args:
        totals, scopes, names: the tables kernel_totals, scopes and trace_names of one trace.
        depth: as in `trace_layers`.
    """
    keyed = in_layers(totals, scopes, depth).group_by("name_index", "layer_source").agg(_sums())
    return named(keyed, names).group_by("layer", "source").agg(_sums())


def in_layers(totals: pl.LazyFrame, scopes: pl.LazyFrame, depth: int | None) -> pl.LazyFrame:
    """Sums with what they count for in the place of their kernel, as `layer_keys` has it: name_index and layer_source."""
    of_scopes = scopes.select("scope_index", "name_index", "parent_scope_index", "depth").map_batches(
        lambda frame: _names_at(frame, depth), schema={"scope_index": INDEX, "scope_name_index": INDEX}
    )
    is_in_scope = pl.col("scope_name_index").is_not_null()
    return (
        totals.join(of_scopes, on="scope_index", how="left")
        .with_columns(
            name_index=pl.coalesce("scope_name_index", -1 - pl.col("name_index")).cast(INDEX),
            layer_source=pl.when(is_in_scope).then(pl.lit(SCOPE)),
        )
        .drop("scope_name_index")
    )


def with_totals(of_launches: pl.LazyFrame, of_totals: pl.LazyFrame, order: Sequence[str]) -> pl.LazyFrame:
    """Both together, longest in all first, with the columns of the first; what sums do not tell is null.

    Args:
        order: columns that decide between equals.
    """
    share_ratio = share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum())
    return (
        pl.concat([of_launches, of_totals], how="diagonal")
        .with_columns(share_ratio=share_ratio)
        .sort("duration_sum_ns", *order, descending=[True, *(False for _ in order)], nulls_last=[True, *(False for _ in order)])
        .select(of_launches.collect_schema().names())
    )


def _sums() -> list[pl.Expr]:
    duration_ns = pl.col("duration_sum_ns")
    return [pl.col("launch_count").sum(), pl.when(duration_ns.count() > 0).then(duration_ns.sum()).cast(COUNT).alias("duration_sum_ns")]


def _names_at(scopes: pl.DataFrame, depth: int | None) -> pl.DataFrame:
    """Name that each scope counts for. A scope's index is its row."""
    rows = scopes["scope_index"]
    if depth is not None and scopes.height > 0:
        found = ancestors(scopes["parent_scope_index"].fill_null(NONE).to_numpy(), scopes["depth"].to_numpy(), depth)
        rows = pl.Series(found, dtype=INDEX)
    return pl.DataFrame({"scope_index": scopes["scope_index"], "scope_name_index": scopes["name_index"].gather(rows)})
