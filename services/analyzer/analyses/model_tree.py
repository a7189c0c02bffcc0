"""The layers of a model's run as a tree, each with all that is inside of it: one pass, each launch taken at its median."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.model_layers import ANNOTATION, RATES, in_layers, placed_layers
from services.analyzer.analyses.model_passes import pass_medians
from services.analyzer.analyses.shares import share_of
from services.analyzer.table import COUNT
from services.analyzer.tree_tables import LAYER_KERNELS, LAYER_TREE

KEYS: Final = ["run_id", "variant", "layer_path"]
OWN: Final = pl.col("layer_path") == pl.col("own_path")
PARTS: Final = pl.col("layer_path").str.split(".")
TIME_NS: Final = pl.col("duration_median_ns")


def model_layer_tree(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Table layer_tree of models' runs. timed: what `timed_so_far` says."""
    launches = _in_every_layer(timed)
    time_ns = pl.col("duration_sum_ns")
    summed = (
        launches.sort(TIME_NS, descending=True, maintain_order=True)
        .group_by(KEYS)
        .agg(
            pl.col("event_index").max(),
            order_index=pl.col("configuration_index").min(),
            call_count=pl.col("own_path").n_unique().cast(COUNT),
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=TIME_NS.sum().round().cast(COUNT),
            own_duration_sum_ns=TIME_NS.filter(OWN).sum().round().cast(COUNT),
            category=pl.col("category").drop_nulls().first(),
            memory_bytes=pl.col("device_memory_bytes").max(),
        )
        .with_columns(
            layer=PARTS.list.last(),
            depth=PARTS.list.len().cast(COUNT) - 1,
            parent_path=pl.when(PARTS.list.len() > 1).then(PARTS.list.head(PARTS.list.len() - 1).list.join(".")),
            source=pl.lit(ANNOTATION),
        )
        .with_columns(share_ratio=share_of(time_ns, time_ns.filter(pl.col("depth") == 0).sum().over("run_id", "variant")))
    )
    work = placed_layers(launches, ceilings, thresholds, KEYS).select(*KEYS, *RATES, worked_ns="duration_sum_ns")
    with_passes = summed.join(pass_medians(timed), on=["run_id", "variant"], how="left")
    return LAYER_TREE.conform(
        _with_work(with_passes, work, KEYS).sort(
            "duration_sum_ns", "run_id", "layer_path", "variant", descending=[True, False, False, False]
        )
    )


def model_layer_kernels(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Table layer_kernels of models' runs. Arguments as of `model_layer_tree`."""
    launches = _in_every_layer(timed)
    keys = [*KEYS, "kernel_name"]
    time_ns = pl.col("duration_sum_ns")
    summed = (
        launches.group_by(keys)
        .agg(
            pl.col("event_index").max(),
            launch_count=pl.len().cast(COUNT),
            own_launch_count=OWN.sum().cast(COUNT),
            category=pl.col("category").drop_nulls().first(),
            dtype=pl.col("dtype").drop_nulls().first(),
            duration_sum_ns=TIME_NS.sum().round().cast(COUNT),
        )
        .with_columns(
            layer=PARTS.list.last(), depth=PARTS.list.len().cast(COUNT) - 1, share_ratio=share_of(time_ns, time_ns.sum().over(KEYS))
        )
    )
    work = placed_layers(launches, ceilings, thresholds, keys).select(*keys, *RATES, worked_ns="duration_sum_ns")
    order = ("run_id", "layer_path", "kernel_name", "variant")
    return LAYER_KERNELS.conform(_with_work(summed, work, keys).sort("duration_sum_ns", *order, descending=[True, *(False for _ in order)]))


def _in_every_layer(timed: pl.LazyFrame) -> pl.LazyFrame:
    """One row per launch and layer that it is in, outer ones too, as layer_path; own_path: the innermost."""
    parts = pl.col("own_path").str.split(".")
    return (
        in_layers(timed, None)
        .with_columns(own_path="layer_path")
        .with_columns(part_count=pl.int_ranges(1, parts.list.len() + 1))
        .explode("part_count")
        .with_columns(layer_path=parts.list.head(pl.col("part_count")).list.join("."))
        .drop("part_count")
    )


def _with_work(summed: pl.LazyFrame, work: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    time_ns = pl.col("duration_sum_ns")
    return summed.join(work, on=keys, how="left").with_columns(
        worked_share_ratio=pl.when(time_ns > 0).then(pl.col("worked_ns").fill_null(0) / time_ns),
        variant=pl.col("variant").replace("", None),
    )
