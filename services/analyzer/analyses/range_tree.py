"""The tree that the ranges of a trace make: those of one name in the same range are one layer, whatever call or step they are of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.correlation import NONE, Indexes
from services.analyzer.table import COUNT, INDEX, TEXT, DataType
from services.core.labels import PATH_SEPARATOR

CALL_DETAILS: Final = r", (?:seq|op_id|sizes|input_op_ids) = .*$"
"""What PyTorch's emit_nvtx adds to an operator's name: each call would be a layer of its own."""

STEP_NUMBER: Final = r"(?i)(#|\b(?:step|iteration|iter|epoch|batch)[ _:=#-]*)\d+\b"
"""In names of steps, as ProfilerStep#15 and iteration 3; modules keep their numbers, which tell them apart."""

NODE: Final[dict[str, DataType]] = {
    "node": INDEX,
    "parent_node": INDEX,
    "depth": INDEX,
    "layer": TEXT,
    "layer_path": TEXT,
    "order_index": COUNT,
    "call_count": COUNT,
}


@dataclass(frozen=True, slots=True)
class RangeTree:
    """nodes: one row per layer, outer ones first: NODE. node_of: of each range; NONE: it has no kernels."""

    nodes: pl.DataFrame
    node_of: Indexes

    @property
    def lineage(self) -> pl.DataFrame:
        """One row per layer and layer that holds it, itself too: node, ancestor."""
        parents = self.nodes["parent_node"]
        current = self.nodes.select("node", ancestor="node")
        parts = []
        while current.height:
            parts.append(current)
            current = current.with_columns(ancestor=parents.gather(current["ancestor"])).drop_nulls("ancestor")
        return pl.concat(parts) if parts else current


def layer_names(names: pl.Series) -> pl.Series:
    """What ranges of these names are called as layers."""
    return (
        names.to_frame("name")
        .select(pl.col("name").fill_null("").str.replace(CALL_DETAILS, "").str.replace_all(STEP_NUMBER, "${1}*"))
        .to_series()
    )


def range_tree(ranges: pl.DataFrame, names: pl.Series, launching: pl.Series) -> RangeTree:
    """The layers of the ranges that launch kernels.

    Args:
        ranges: parent_range_index, depth and name_index of each range; parents come before what they hold.
        names: what name_index are rows of.
        launching: rows of ranges that kernels were launched in.
    """
    parent, depth, name = (_places(ranges[column]) for column in ("parent_range_index", "depth", "name_index"))
    layers = layer_names(names)
    codes = layers.rank("dense").to_numpy().astype(np.int64)
    order = _rows_by_depth(parent, depth, launching.to_numpy())
    node_of = np.full(parent.size, NONE, dtype=np.int32)
    levels: list[pl.DataFrame] = []
    paths = pl.Series("layer_path", [], dtype=pl.String)
    count = 0
    for level, rows in enumerate(order):
        around = np.where(parent[rows] == NONE, NONE, node_of[parent[rows]]).astype(np.int64)
        code = codes[name[rows]]
        _, first, inverse, calls = np.unique(
            (around + 1) * (codes.size + 1) + code, return_index=True, return_inverse=True, return_counts=True
        )
        node_of[rows] = count + inverse
        own_names = layers.gather(name[rows[first]])
        holders = pl.Series(around[first], dtype=INDEX).replace(NONE, None)
        own_paths = own_names if level == 0 else paths.gather(holders - (count - paths.len())) + PATH_SEPARATOR + own_names
        levels.append(
            pl.DataFrame(
                {
                    "node": np.arange(count, count + first.size),
                    "parent_node": holders,
                    "depth": np.full(first.size, level),
                    "layer": own_names,
                    "layer_path": own_paths,
                    "order_index": rows[first],
                    "call_count": calls,
                },
                schema=NODE,
            )
        )
        paths, count = own_paths, count + first.size
    nodes = pl.concat(levels) if levels else pl.DataFrame(schema=NODE)
    return RangeTree(nodes, node_of)


def _rows_by_depth(parent: Indexes, depth: Indexes, launching: Indexes) -> list[npt.NDArray[np.int64]]:
    """Ranges with launches in them or in ranges that they hold, by depth, in their own order."""
    is_wanted = np.zeros(parent.size, dtype=np.bool_)
    is_wanted[launching] = True
    by_depth = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=NONE)) + 2))
    rows: list[npt.NDArray[np.int64]] = []
    for start, end in reversed(list(itertools.pairwise(ends))):
        at_depth = by_depth[start:end]
        wanted = at_depth[is_wanted[at_depth]]
        around = parent[wanted]
        is_wanted[around[around != NONE]] = True
        rows.append(wanted)
    return [found for found in reversed(rows) if found.size]


def _places(indexes: pl.Series) -> Indexes:
    """NONE for null."""
    found: Indexes = indexes.cast(INDEX).fill_null(NONE).to_numpy()
    return found
