"""The layers of a trace as a tree, each with the sums over its subtree, and the kernels of each layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.analysis.expressions import null_safe_ratio
from kernalyse.services.analyzer.analysis.traces import layers
from kernalyse.services.analyzer.analysis.traces.layers import INFERRED, infer_layer
from kernalyse.services.analyzer.analysis.traces.roofline import RATES, place_points
from kernalyse.services.analyzer.analysis.traces.work import (
    FIGURES,
    KINDS,
    TraceFrames,
    launches_with_costs,
    make_points,
    sum_launches,
    sum_totals,
    totals_with_costs,
)
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Indexes
from kernalyse.services.analyzer.readers.base import WORK
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, NUMBER, TEXT, DataType
from kernalyse.services.analyzer.tables.derived import LAYER_KERNELS, LAYER_TREE
from kernalyse.services.analyzer.tables.traces import COST_INPUT_COLUMNS
from kernalyse.services.core.formatting import PATH_SEPARATOR
from kernalyse.services.core.kernel_categories import COMMUNICATION

NO_LAYER: Final = "kernels of no layer"
"""Layer of kernels without range and module whose names are not recognized."""

KERNELS_SUFFIX: Final = r" kernels$"
INPUT: Final = {
    "kernel_launches": ("range_index", "duration_ns", "layer_source", "name_index"),
    "ranges": ("range_index", "name_index", "parent_range_index", "depth"),
    **layers.LAYERS_INPUT,
    "launch_work": COST_INPUT_COLUMNS["launch_work"],
    WORK: (),
}
OWN: Final = pl.col("node") == pl.col("ancestor")
OWN_KEYS: Final = ("node", "name_index")


def layer_tree(trace: TraceFrames) -> pl.LazyFrame:
    """Return table layer_tree of a trace. Kernels without a range are in root layers inferred from their names."""
    return pl.defer(lambda: _layer_tree(trace), schema={name: LAYER_TREE.schema[name] for name in LAYER_TREE.column_names[2:]})


def layer_kernels(trace: TraceFrames) -> pl.LazyFrame:
    """Return table layer_kernels of a trace."""
    return pl.defer(lambda: _layer_kernels(trace), schema={name: LAYER_KERNELS.schema[name] for name in LAYER_KERNELS.column_names[2:]})


def _layer_tree(trace: TraceFrames) -> pl.DataFrame:
    data = _LayerSums(trace)
    duration_ns = pl.col("duration_sum_ns")
    longest = pl.col("duration_sum_ns").fill_null(0)
    summed = (
        data.sums.join(data.names.select("name_index", "category"), on="name_index", how="left")
        .join(data.tree.lineage.lazy(), on="node")
        .sort(longest, descending=True, maintain_order=True)
        .group_by("ancestor")
        .agg(
            pl.col("launch_count").sum(),
            _known_sum("duration_sum_ns"),
            own_duration_sum_ns=duration_ns.filter(OWN).sum(),
            source=pl.col("layer_source").drop_nulls().first(),
            category=pl.col("category").drop_nulls().first(),
        )
        .rename({"ancestor": "node"})
    )
    paths = pl.col("layer_path")
    nodes = data.tree.nodes.lazy()
    found = (
        nodes.join(nodes.select(parent_node="node", parent_path="layer_path"), on="parent_node", how="left")
        .join(summed, on="node")
        .with_columns(share_ratio=null_safe_ratio(duration_ns, duration_ns.filter(pl.col("depth") == 0).sum()))
        .join(data.work(()).rename({"name": "layer_path"}), on="layer_path", how="left")
        .sort(duration_ns, paths, descending=[True, False], nulls_last=True)
    )
    return _with_work(found, LAYER_TREE.column_names[2:])


def _layer_kernels(trace: TraceFrames) -> pl.DataFrame:
    data = _LayerSums(trace)
    duration_ns = pl.col("duration_sum_ns")
    found = (
        data.sums.join(data.tree.lineage.lazy(), on="node")
        .group_by("ancestor", "name_index")
        .agg(pl.col("launch_count").sum(), _known_sum("duration_sum_ns"), own_launch_count=pl.col("launch_count").filter(OWN).sum())
        .join(data.tree.nodes.lazy().select("layer", "layer_path", "depth", ancestor="node"), on="ancestor")
        .join(data.names.select("name_index", "kernel_name", "category"), on="name_index")
        .with_columns(share_ratio=null_safe_ratio(duration_ns, duration_ns.sum().over("ancestor")))
        .join(data.work(("kernel_name",)).rename({"name": "layer_path"}), on=["layer_path", "kernel_name"], how="left")
        .sort(duration_ns, "layer_path", "kernel_name", descending=[True, False, False], nulls_last=True)
    )
    return _with_work(found, LAYER_KERNELS.column_names[2:])


def _with_work(found: pl.LazyFrame, columns: Sequence[str]) -> pl.DataFrame:
    duration_ns = pl.col("duration_sum_ns")
    return (
        found.with_columns(
            worked_share_ratio=pl.when(duration_ns > 0).then(pl.col("worked_ns").fill_null(0) / duration_ns),
            variant=pl.lit(None, dtype=TEXT),
            memory_bytes=pl.lit(None, dtype=COUNT),
            pass_duration_median_ns=pl.lit(None, dtype=NUMBER),
        )
        .select(columns)
        .collect()
    )


class _LayerSums:
    """The input of both tables: the tree, and sums of launches and costs by layer and kernel name."""

    def __init__(self, trace: TraceFrames) -> None:
        self._trace = trace
        name = pl.col("name")
        inferred = infer_layer(name)
        self.names = trace["trace_names"].select(
            "name_index", kernel_name="name", inferred=inferred, category=inferred.str.replace(KERNELS_SUFFIX, "")
        )
        launches = trace["kernel_launches"].select("range_index", "name_index", "layer_source", "duration_ns").collect()
        totals = trace["kernel_totals"].collect() if "kernel_totals" in trace else pl.DataFrame()
        ranges = trace["ranges"].select("name_index", "parent_range_index", "depth").collect()
        scopes = trace["scopes"].select("name_index", parent_range_index="parent_scope_index", depth="depth").collect()
        # Scopes are numbered after the ranges; a trace has one kind or the other.
        self._first_scope = ranges.height
        joined = pl.concat([ranges, scopes.with_columns(pl.col("parent_range_index") + ranges.height)], how="vertical_relaxed")
        parts = [launches]
        if totals.height:
            parts.append(totals.select(pl.col("scope_index") + self._first_scope, "name_index"))
        launching = pl.concat([part.to_series(0).rename("range_index").cast(INDEX) for part in parts]).drop_nulls().unique()
        names = trace["trace_names"].select("name").collect().to_series()
        tree = range_tree(joined, names, launching)
        outside = [part.filter(part.to_series(0).is_null()).select("name_index") for part in parts]
        self._node_of = tree.node_of
        self._inferred, self.tree = _with_inferred_layers(tree, self.names.collect(), pl.concat(outside)["name_index"].unique())
        counted = (
            self._in_nodes(launches, "range_index")
            .group_by(*OWN_KEYS, "layer_source")
            .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=_known_sum("duration_ns"))
        )
        sums = [counted]
        if totals.height:
            of_scopes = totals.select(
                "name_index", "launch_count", "duration_sum_ns", range_index=pl.col("scope_index") + self._first_scope
            )
            in_scopes = self._in_nodes(of_scopes.with_columns(layer_source=pl.lit(layers.SCOPE)), "range_index")
            sums.append(in_scopes.group_by(*OWN_KEYS, "layer_source").agg(pl.col("launch_count").sum(), _known_sum("duration_sum_ns")))
        self.sums = pl.concat(sums, how="diagonal_relaxed").lazy()

    def _in_nodes(self, rows: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return rows with their range replaced by the node of their layer; inferred layers have their own source."""
        ranges = rows[column].cast(INDEX)
        node = pl.Series("node", self._node_of, dtype=INDEX).gather(ranges)
        found = rows.drop(column).with_columns(node)
        if ranges.null_count() == 0:
            return found
        is_outside = pl.col("node").is_null()
        found = found.join(self._inferred, on="name_index", how="left", maintain_order="left")
        if "layer_source" in found.columns:
            source = pl.when(is_outside & pl.col("is_known")).then(pl.lit(INFERRED)).when(~is_outside).then("layer_source")
            found = found.with_columns(layer_source=source)
        return found.with_columns(node=pl.coalesce("node", "inferred_node")).drop("inferred_node", "is_known")

    def work(self, further_keys: tuple[str, ...]) -> pl.LazyFrame:
        """Return costs and rates of the launches with known costs of each layer, whose path is the column name.

        Collectives are excluded, since their bytes go over links. further_keys: kernel_name, or none.
        """
        columns = ["name", *further_keys, "dtype", *RATES, "flop_sum", "bytes_sum", "duration_sum_ns"]
        keys = (*OWN_KEYS, *KINDS, "device_id")
        sums = []
        worked = launches_with_costs(self._trace, ("range_index", "name_index"), None)
        if worked.height:
            communicating = self.names.filter(pl.col("kernel_name").str.contains(COMMUNICATION)).select("name_index").collect()
            worked = worked.join(communicating, on="name_index", how="anti", maintain_order="left")
            sums.append(sum_launches(self._in_nodes(worked, "range_index"), keys))
        totals = totals_with_costs(self._trace)
        if totals.height:
            in_ranges = totals.with_columns(range_index=pl.col("scope_index") + self._first_scope)
            sums.append(sum_totals(self._in_nodes(in_ranges, "range_index"), keys))
        schema: dict[str, DataType] = {"name": TEXT, **dict.fromkeys(further_keys, TEXT), **FIGURES}
        points = pl.DataFrame(schema=schema)
        if any(part.height for part in sums):
            rows = (
                pl.concat(sums)
                .lazy()
                .join(self.tree.lineage.lazy(), on="node")
                .join(self.tree.nodes.lazy().select(name="layer_path", ancestor="node"), on="ancestor")
                .join(self.names.select("name_index", "kernel_name"), on="name_index")
            )
            points = make_points(rows, ("name", *further_keys), schema)
        return (
            place_points(self._trace, points.lazy())
            .select(columns)
            .rename({"flop_sum": "flop", "bytes_sum": "bytes", "duration_sum_ns": "worked_ns"})
        )


def _with_inferred_layers(tree: RangeTree, names: pl.DataFrame, outside: pl.Series) -> tuple[pl.DataFrame, RangeTree]:
    """Return the inferred layer of each kernel name outside of all ranges, and the tree with these layers as further roots."""
    first = tree.nodes.height
    kernels = names.filter(pl.col("name_index").is_in(outside.implode())).with_columns(layer=pl.col("inferred").fill_null(NO_LAYER))
    layers = kernels["layer"].unique(maintain_order=True)
    nodes = pl.DataFrame(
        {
            "node": np.arange(first, first + len(layers)),
            "parent_node": [None] * len(layers),
            "depth": np.zeros(len(layers)),
            "layer": layers,
            "layer_path": layers,
            "order_index": np.arange(len(layers)) + tree.node_of.size,
            "call_count": [None] * len(layers),
        },
        schema=NODE,
    )
    inferred = kernels.join(nodes.select("layer", inferred_node="node"), on="layer").select(
        "name_index", "inferred_node", is_known=pl.col("inferred").is_not_null()
    )
    return inferred, RangeTree(pl.concat([tree.nodes, nodes]), tree.node_of)


def _known_sum(name: str) -> pl.Expr:
    """Return the sum of the known values as duration_sum_ns; null if none is known."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).cast(COUNT).alias("duration_sum_ns")


# ---------------------------------------------------------------- range tree
# Ranges of one name within the same layer are one layer, whatever call or step they are of.

CALL_DETAILS: Final = r", (?:seq|op_id|sizes|input_op_ids) = .*$"
"""Details that PyTorch's emit_nvtx appends to an operator's name, with which each call would be a layer of its own."""

STEP_NUMBER: Final = r"(?i)(#|\b(?:step|iteration|iter|epoch|batch)[ _:=#-]*)\d+\b"
"""Numbers in names of steps, such as ProfilerStep#15 and iteration 3. Numbers of modules remain, since they identify them."""

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
    """The tree of layers. nodes: one row per layer, parents first: NODE. node_of: node of each range, NONE if it has no kernels."""

    nodes: pl.DataFrame
    node_of: Indexes

    @property
    def lineage(self) -> pl.DataFrame:
        """One row per layer and each of its ancestors, including itself: node, ancestor."""
        parents = self.nodes["parent_node"]
        current = self.nodes.select("node", ancestor="node")
        parts = []
        while current.height:
            parts.append(current)
            current = current.with_columns(ancestor=parents.gather(current["ancestor"])).drop_nulls("ancestor")
        return pl.concat(parts) if parts else current


def layer_names(names: pl.Series) -> pl.Series:
    """Return the names of the layers of ranges with these names."""
    return (
        names.to_frame("name")
        .select(pl.col("name").fill_null("").str.replace(CALL_DETAILS, "").str.replace_all(STEP_NUMBER, "${1}*"))
        .to_series()
    )


def range_tree(ranges: pl.DataFrame, names: pl.Series, launching: pl.Series) -> RangeTree:
    """Return the tree of the layers of the ranges that launch kernels.

    Args:
        ranges: parent_range_index, depth and name_index of each range; parents precede their children.
        names: the names of the trace, by name_index.
        launching: rows of the ranges that kernels were launched in.
    """
    parent, depth, name = (_indexes(ranges[column]) for column in ("parent_range_index", "depth", "name_index"))
    layers = layer_names(names)
    codes = layers.rank("dense").to_numpy().astype(np.int64)
    order = _rows_by_depth(parent, depth, launching.to_numpy())
    node_of = np.full(parent.size, NULL_INDEX, dtype=np.int32)
    levels: list[pl.DataFrame] = []
    paths = pl.Series("layer_path", [], dtype=pl.String)
    count = 0
    for level, rows in enumerate(order):
        around = np.where(parent[rows] == NULL_INDEX, NULL_INDEX, node_of[parent[rows]]).astype(np.int64)
        code = codes[name[rows]]
        _, first, inverse, calls = np.unique(
            (around + 1) * (codes.size + 1) + code, return_index=True, return_inverse=True, return_counts=True
        )
        node_of[rows] = count + inverse
        own_names = layers.gather(name[rows[first]])
        holders = pl.Series(around[first], dtype=INDEX).replace(NULL_INDEX, None)
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
    """Return the ranges with launches in them or their descendants, by depth, in their own order."""
    has_launches = np.zeros(parent.size, dtype=np.bool_)
    has_launches[launching] = True
    by_depth = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=NULL_INDEX)) + 2))
    rows: list[npt.NDArray[np.int64]] = []
    for start, end in reversed(list(itertools.pairwise(ends))):
        at_depth = by_depth[start:end]
        launching_rows = at_depth[has_launches[at_depth]]
        around = parent[launching_rows]
        has_launches[around[around != NULL_INDEX]] = True
        rows.append(launching_rows)
    return [found for found in reversed(rows) if found.size]


def _indexes(indexes: pl.Series) -> Indexes:
    """Return a column of indexes as an array, NONE for null."""
    found: Indexes = indexes.cast(INDEX).fill_null(NULL_INDEX).to_numpy()
    return found
