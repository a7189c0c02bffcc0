"""The layers of a trace: attribution of launches to them, and traces that hold sums of launches only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.expressions import null_safe_ratio
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, ancestors
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, TEXT
from kernalyse.services.core.kernel_categories import NAME_PATTERNS

# ---------------------------------------------------------------- table layers

INPUT: Final = {
    "kernel_launches": ("range_index", "duration_ns", "layer_source", "name_index"),
    "ranges": ("range_index", "name_index"),
    "trace_names": ("name_index", "name"),
}
DEPTH_INPUT: Final = {"ranges": ("parent_range_index", "depth")}
"""Further columns that are required with a depth."""


def trace_layers(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Return table layers: one row per range name and source, the longest total first.

    The layer of kernels without a range is inferred from their names, with the source "guessed"; it is null, without a source,
    where the name is not recognized.

    Args:
        launches, ranges, names: the tables kernel_launches, ranges and trace_names of one trace.
        depth: kernels count for their range at this depth, from 0 for the outermost, or for the innermost one if that is less
            deep. None: for the innermost.
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
        .with_columns(share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()))
        .sort("duration_sum_ns", "layer", "source", descending=[True, False, False])
        .select("layer", "call_count", "launch_count", "duration_sum_ns", "share_ratio", "source")
    )


# ---------------------------------------------------------------- layers of launches
# A launch counts for the layer of its range, or without one for the layer inferred from its kernel's name.


def layer_keys(launches: pl.DataFrame, ranges: pl.LazyFrame, depth: int | None) -> pl.DataFrame:
    """Return range_index and name_index of the range that each launch counts for.

    Without a range, name_index is -1 minus the kernel's name_index. Layers stay numbers until they are summed, since ten million
    launches have few layers; then `named` resolves them.

    Args:
        launches: range_index and name_index of launches.
        ranges: table ranges of the trace.
        depth: see `trace_layers`.
    """
    # A range's index is its row, so no join is needed.
    if depth is None:
        found = ranges.select("name_index").collect()
        range_index = launches["range_index"]
    else:
        found = ranges.select("name_index", "parent_range_index", "depth").collect()
        rows = ancestors(found["parent_range_index"].fill_null(NULL_INDEX).to_numpy(), found["depth"].to_numpy(), depth)
        range_index = pl.Series("range_index", rows, dtype=INDEX).gather(launches["range_index"])
    name_index = found["name_index"].gather(range_index)
    if range_index.null_count():
        name_index = name_index.zip_with(range_index.is_not_null(), -1 - launches["name_index"])
    return pl.DataFrame([range_index.alias("range_index"), name_index.alias("name_index")])


def named(keyed: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows with name_index (see `layer_keys`) and layer_source replaced by the columns layer and source.

    Kernels of several names may have the same inferred layer, so a layer and source may have several rows.
    """
    is_of_kernel = pl.col("name_index") < 0
    return (
        keyed.with_columns(
            is_of_kernel=is_of_kernel, name_index=pl.when(is_of_kernel).then(-1 - pl.col("name_index")).otherwise("name_index")
        )
        .join(names.select("name_index", "name"), on="name_index", how="left", maintain_order="left")
        .with_columns(inferred=infer_layer(pl.when("is_of_kernel").then("name")))
        .with_columns(
            layer=pl.when("is_of_kernel").then("inferred").otherwise("name"),
            source=pl.when(pl.col("inferred").is_not_null()).then(pl.lit(INFERRED)).otherwise("layer_source"),
        )
        .drop("name_index", "layer_source", "is_of_kernel", "name", "inferred")
    )


# ---------------------------------------------------------------- inferred layers
# The last resort, for kernels without a range and a module, is to infer their purpose from their names.

PATTERNS: Final = tuple((f"{category} kernels", pattern) for category, pattern in NAME_PATTERNS)
"""Layers and the patterns of names of their kernels. Kernels of other names stay without a layer."""

INFERRED: Final = "guessed"


def infer_layer(kernel_name: pl.Expr) -> pl.Expr:
    """Return the layer inferred from a kernel's name; null where the name is not recognized."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(layer)) for layer, pattern in PATTERNS)


def infer_category(kernel_name: pl.Expr) -> pl.Expr:
    """Return the category inferred from a kernel's name, such as matmul; null where the name is not recognized."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(category)) for category, pattern in NAME_PATTERNS)


# ---------------------------------------------------------------- totals
# Some profilers record only sums over launches, from which the tables kernels and layers are filled as far as possible.

_TOTALS: Final = ("name_index", "launch_count", "duration_sum_ns")
_NAMES: Final = {"trace_names": ("name_index", "name")}
KERNELS_INPUT: Final = {"kernel_totals": _TOTALS, **_NAMES}
LAYERS_INPUT: Final = {
    "kernel_totals": (*_TOTALS, "scope_index"),
    "scopes": ("scope_index", "name_index", "parent_scope_index", "depth"),
    **_NAMES,
}

SCOPE: Final = "scope"
"""Source of the layers of sums."""


def kernels_from_totals(totals: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per kernel with the metrics of table kernels that sums provide, without minimum, maximum and median.

    Args:
        totals, names: the tables kernel_totals and trace_names of one trace.
    """
    return totals.group_by("name_index").agg(_sums()).join(names.select("name_index", kernel_name="name"), on="name_index", how="left")


def layers_from_totals(totals: pl.LazyFrame, scopes: pl.LazyFrame, names: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Return one row per scope name with the metrics of table layers that sums provide, without the number of calls.

    Args:
        totals, scopes, names: the tables kernel_totals, scopes and trace_names of one trace.
        depth: as in `trace_layers`.
    """
    keyed = in_layers(totals, scopes, depth).group_by("name_index", "layer_source").agg(_sums())
    return named(keyed, names).group_by("layer", "source").agg(_sums())


def in_layers(totals: pl.LazyFrame, scopes: pl.LazyFrame, depth: int | None) -> pl.LazyFrame:
    """Return sums with name_index of their scope instead of their kernel, as in `layer_keys`, and with layer_source."""
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
    """Return rows of launches and of totals together, the longest total first, with the columns of the first; others are null.

    Args:
        of_launches: rows from single launches.
        of_totals: rows from sums, which may lack columns.
        order: columns that break ties.
    """
    share_ratio = null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum())
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
    """Return the name that each scope counts for. A scope's index is its row."""
    rows = scopes["scope_index"]
    if depth is not None and scopes.height > 0:
        found = ancestors(scopes["parent_scope_index"].fill_null(NULL_INDEX).to_numpy(), scopes["depth"].to_numpy(), depth)
        rows = pl.Series(found, dtype=INDEX)
    return pl.DataFrame({"scope_index": scopes["scope_index"], "scope_name_index": scopes["name_index"].gather(rows)})
