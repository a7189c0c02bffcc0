"""Kernels and layers of recorders that keep sums over launches only: what they say in the tables of single launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from services.analyzer.analyses.launch_layers import named
from services.analyzer.analyses.shares import share_of
from services.analyzer.correlation import NONE, ancestors
from services.analyzer.table import COUNT, INDEX

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
