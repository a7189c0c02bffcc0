"""What a run of a model says of each of its layers: one pass, each launch taken at its median."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.layer_verdicts import BLOCKS, KEYS, layer_blocks, with_verdicts
from services.analyzer.analyses.model_passes import is_launch, known_sum, pass_medians, with_formulas
from services.analyzer.analyses.roofline import Roofs, placed
from services.analyzer.analyses.shares import share_of
from services.analyzer.answer_tables import LAYERS
from services.analyzer.model_tables import LAYER_VARIANTS
from services.analyzer.roofline_tables import LAYER_ROOFLINE
from services.analyzer.table import COUNT, NUMBER

ANNOTATION: Final = "annotation"
OF_MOST: Final = ("dtype", "path", "category")
RATES: Final = (
    *("flop", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s"),
    *("efficiency_ratio", "bound", "work_source", "disturbance"),
)


def in_layers(timed: pl.LazyFrame, depth: int | None) -> pl.LazyFrame:
    """Launches with their layer. depth: parts of its path, 0 for the first alone; None: all of it."""
    path = pl.col("layer_path")
    layer = path if depth is None else path.str.split(".").list.head(depth + 1).list.join(".")
    return timed.filter(is_launch()).with_columns(layer=layer, variant=pl.col("variant").fill_null(""))


def placed_layers(launches: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """One row per value of the keys with known work: the same as a launch, see `placed`. duration_median_ns is the launches' sum.

    dtype, path and category are those of most of the flop, without flop of the longest launch.

    Args:
        launches: what `in_layers` says.
    """
    has_work = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    points = (
        launches.filter(has_work)
        .sort("flop", "duration_median_ns", descending=True, nulls_last=True, maintain_order=True)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col(*OF_MOST, "device_id", "cache_mode", "model_name", "batch_size").first(),
            pl.col("event_index").max(),
            pl.col("configuration_index").min(),
            pl.col("duration_median_ns").sum(),
            pl.col("disturbance").drop_nulls().first(),
            flop=known_sum("flop"),
            bytes=known_sum("bytes"),
            launch_count=pl.len().cast(COUNT),
            verification_state=pl.when((pl.col("verification_state") == "FAILED").any())
            .then(pl.lit("FAILED"))
            .otherwise(pl.col("verification_state").first()),
        )
        .with_columns(
            pl.lit(None, dtype=pl.Float64).alias(name) for name in ("duration_mean_ns", "stated_flop_per_s", "stated_flop_per_byte")
        )
        .with_columns(sm_clock_hz=pl.lit(None, dtype=COUNT), duration_sum_ns=pl.col("duration_median_ns").round().cast(COUNT))
    )
    return placed(with_formulas(points), Roofs.of(ceilings, thresholds))


def model_layers(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Table layers of models' runs, longest first. timed: what `timed_so_far` says; depth: see `in_layers`."""
    launches = in_layers(timed, depth)
    time_ns = pl.col("duration_median_ns")
    worked = placed_layers(launches, ceilings, thresholds, KEYS).select(*KEYS, *RATES, worked_ns="duration_sum_ns")
    return LAYERS.conform(
        launches.group_by(KEYS)
        .agg(
            pl.col("event_index").max(),
            call_count=pl.col("layer_path").n_unique().cast(COUNT),
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=time_ns.sum().round().cast(COUNT),
            memory_bytes=pl.col("device_memory_bytes").max(),
        )
        .with_columns(
            share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum().over("run_id", "variant")),
            source=pl.lit(ANNOTATION),
        )
        .join(worked, on=KEYS, how="left")
        .join(pass_medians(timed), on=["run_id", "variant"], how="left")
        .with_columns(
            worked_share_ratio=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("worked_ns").fill_null(0) / pl.col("duration_sum_ns")),
            variant=pl.col("variant").replace("", None),
        )
        .sort("duration_sum_ns", "run_id", "layer", "variant", descending=[True, False, False, False])
    )


def model_layer_roofline(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Table layer_roofline of models' runs. Arguments as of `model_layers`."""
    points = placed_layers(in_layers(timed, depth), ceilings, thresholds, KEYS)
    return LAYER_ROOFLINE.conform(
        points.with_columns(
            source=pl.lit(ANNOTATION),
            layer_path="layer",
            label=pl.concat_str("layer", pl.col("variant").replace("", None), separator=" ", ignore_nulls=True),
            share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum().over("run_id", "variant")),
            variant=pl.col("variant").replace("", None),
        ).sort("run_id", "configuration_index", "layer", maintain_order=True)
    )


def layer_variants(layers: pl.LazyFrame, timed: pl.LazyFrame, samples: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Table layer_variants: every later variant of a run against the one that was announced first.

    Args:
        layers: what `model_layers` says, of the same depth.
        timed: what `timed_so_far` says of the same runs.
        samples: the table of that name.
    """
    blocks = layer_blocks(in_layers(timed, depth), samples)
    order = timed.filter(is_launch()).group_by("run_id", "variant").agg(pl.col("configuration_index").min()).sort("configuration_index")
    firsts = order.group_by("run_id", maintain_order=True).agg(baseline_variant=pl.col("variant").first())
    later = order.join(firsts, on="run_id").filter(pl.col("variant") != pl.col("baseline_variant")).drop("configuration_index")
    figures = ("launch_count", "duration_sum_ns", "efficiency_ratio", "event_index", BLOCKS)
    sides = layers.join(blocks, on=KEYS, how="left").select(*KEYS, "is_gpu", *figures)
    after = later.join(sides, on=["run_id", "variant"])
    before = later.join(sides.drop("is_gpu").rename({"variant": "baseline_variant"}), on=["run_id", "baseline_variant"]).rename(
        {name: f"baseline_{name}" for name in figures}
    )
    keys = ["run_id", "variant", "baseline_variant", "layer"]
    has_after, has_before = pl.col("duration_sum_ns").is_not_null(), pl.col("baseline_duration_sum_ns").is_not_null()
    delta_ns = pl.col("duration_sum_ns").fill_null(0) - pl.col("baseline_duration_sum_ns").fill_null(0)
    return LAYER_VARIANTS.conform(
        after.join(before, on=keys, how="full", coalesce=True)
        .collect()
        .pipe(with_verdicts)
        .lazy()
        .with_columns(
            event_index=pl.max_horizontal("event_index", "baseline_event_index"),
            occurrence=pl.when(~has_before).then(pl.lit("NEW")).when(~has_after).then(pl.lit("GONE")).otherwise(pl.lit("MATCHED")),
            duration_delta_ns=delta_ns,
            duration_ratio=pl.when(pl.col("baseline_duration_sum_ns") > 0)
            .then(pl.col("duration_sum_ns") / pl.col("baseline_duration_sum_ns"))
            .cast(NUMBER),
        )
        .sort(pl.col("duration_delta_ns").abs(), "layer", "variant", descending=[True, False, False])
    )
