"""The analysis of runs of ML models: passes, layers, layer trees, verdicts on variants, and opportunities."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.analysis.expressions import null_safe_ratio
from kernalyse.services.analyzer.analysis.roofline import RooflineModel, place_under_ceilings
from kernalyse.services.analyzer.analysis.traces.roofline import subject_rows
from kernalyse.services.analyzer.tables.base import COUNT, NUMBER, TEXT
from kernalyse.services.analyzer.tables.derived import (
    LAYER_KERNELS,
    LAYER_ROOFLINE,
    LAYER_TREE,
    LAYER_VARIANTS,
    LAYERS,
    MODELS,
    OPPORTUNITIES,
)
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS
from kernalyse.services.core.comparison import CPU_MARGIN_RATIO, GPU_MARGIN_RATIO, Timings, compare_pairs
from kernalyse.services.core.model import Verdict

# ---------------------------------------------------------------- passes
# Passes of ML models and their launches, of live runs too.

COMPLETE_PASS: Final = "model"
"""Category of configurations that are complete passes."""

MODEL_PASS_KEYS: Final = ["run_id", "configuration_index"]
PASS_KEYS: Final = ["run_id", "model_name", "variant", "device_id"]
NS_PER_S: Final = 1e9
FORMULA: Final = "formula"

FACTS: Final = {
    "sequence_length": ("sequence_length", "seq_len"),
    "layer_count": ("layer_count", "n_layer"),
    "head_count": ("head_count", "n_head"),
    "width": ("width", "n_embd"),
    "vocabulary_size": ("vocabulary_size", "vocab_size"),
    "memory_bytes": ("memory_bytes", "peak_memory_bytes"),
}
"""Names of a pass's parameters: here, and in files of other tools."""


def is_launch() -> pl.Expr:
    """Return whether a row is a launch in a layer of an ML model; other rows are kernels of sweeps and complete passes."""
    return pl.col("layer_path").is_not_null()


def is_pass() -> pl.Expr:
    """Return whether a row is a complete pass of an ML model."""
    return pl.col("category").eq_missing(COMPLETE_PASS)


def live_measurements(
    configurations: pl.LazyFrame, measurements: pl.LazyFrame, samples: pl.LazyFrame, ceilings: pl.LazyFrame
) -> pl.LazyFrame:
    """Return launches and passes of ML models as rows of table measurements: finished ones, those with samples, and registered passes.

    Args:
        configurations, measurements, samples, ceilings: the tables of these names, of any runs; the last provides the device of
            configurations that are not finished yet.
    """
    of_models = is_launch() | is_pass()
    measured = measurements.filter(of_models)
    registered = configurations.filter(of_models).join(measurements, on=MODEL_PASS_KEYS, how="anti")
    device = ceilings.group_by("run_id").agg(pl.col("device_id").drop_nulls().first())
    durations = (
        samples.filter(~pl.col("is_discarded").fill_null(False))
        .join(registered.select(MODEL_PASS_KEYS), on=MODEL_PASS_KEYS, how="semi")
        .group_by(MODEL_PASS_KEYS)
        .agg(
            pl.col("event_index").max(),
            sample_count=pl.len().cast(COUNT),
            duration_median_ns=pl.col("duration_ns").median(),
            duration_mean_ns=pl.col("duration_ns").mean(),
            duration_min_ns=pl.col("duration_ns").min(),
            duration_max_ns=pl.col("duration_ns").max(),
        )
    )
    unfinished = (
        registered.rename({"event_index": "registered_index"})
        .join(durations, on=MODEL_PASS_KEYS, how="left")
        .filter(is_pass() | pl.col("sample_count").is_not_null())
        .with_columns(event_index=pl.coalesce("event_index", "registered_index"))
        .join(device, on="run_id", how="left")
    )
    return pl.concat([measured, MEASUREMENTS.conform(unfinished)])


def with_formulas(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of measurements with the columns on costs that `place_under_ceilings` requires; costs of ML models are by formula."""
    has_work = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    return rows.with_columns(
        counted_level=pl.lit(None, dtype=TEXT),
        work_source=pl.when(has_work).then(pl.lit(FORMULA)),
    )


def models(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Return table models.

    Args:
        timed: the result of `live_measurements`.
        ceilings, thresholds: the tables of these names, of the same runs.
    """
    launches = (
        timed.filter(is_launch())
        .group_by(
            "run_id", "variant", launched_model="model_name"
        )  # files may have several ML models; a run of a single one does not name it
        .agg(launch_count=pl.len().cast(COUNT), launches_duration_sum_ns=pl.col("duration_median_ns").sum())
    )
    token_count = pl.col("batch_size") * pl.col("sequence_length")
    passes = timed.filter(is_pass()).with_columns(launched_model="model_name", model_name=pl.coalesce("model_name", "kernel_name"))
    return MODELS.conform(
        place_under_ceilings(with_formulas(passes), RooflineModel.of(ceilings, thresholds))
        .with_columns(**{name: _fact(names) for name, names in FACTS.items()}, batch_size=pl.coalesce("batch_size", _fact(("batch_size",))))
        .with_columns(
            memory_bytes=pl.coalesce("device_memory_bytes", "memory_bytes"),
            # By the median duration, as every other rate of the row.
            tokens_per_s=pl.coalesce(
                token_count / (pl.coalesce("duration_median_ns", "duration_mean_ns") / NS_PER_S),
                "tokens_per_s",
            ),
        )
        .join(launches, on=["run_id", "variant", "launched_model"], how="left", nulls_equal=True, maintain_order="left")
        .sort("run_id", "configuration_index", maintain_order=True)
        .group_by(*PASS_KEYS, "batch_size", "sequence_length", maintain_order=True)  # several processes may have measured it
        .first()
        .with_columns(variant=pl.col("variant").replace("", None))
    )


def pass_medians(timed: pl.LazyFrame) -> pl.LazyFrame:
    """Return run_id, variant ("" for none) and pass_duration_median_ns, null if a variant has passes of several ML models.

    Args:
        timed: the result of `live_measurements`.
    """
    names = pl.coalesce("model_name", "kernel_name")
    return (
        timed.filter(is_pass())
        .group_by("run_id", pl.col("variant").fill_null(""))
        .agg(pass_duration_median_ns=pl.when(names.n_unique() == 1).then(pl.col("duration_median_ns").drop_nulls().first()))
    )


def _fact(names: tuple[str, ...]) -> pl.Expr:
    """Return the first of these parameters of a row that is an integer."""
    return pl.coalesce(pl.col("parameters").str.extract(rf'"{name}": (-?\d+)').cast(COUNT) for name in names)


def known_sum(name: str) -> pl.Expr:
    """Return the sum of a column; null if one of the values is not known."""
    return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).cast(NUMBER)


# ---------------------------------------------------------------- layers
# The metrics of a layer are sums over one pass, with each launch at its median duration.

ANNOTATION: Final = "annotation"
OF_MOST: Final = ("dtype", "path", "category")
RATES: Final = (
    *("flop", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s"),
    *("efficiency_ratio", "bound", "work_source", "disturbance"),
)


def in_layers(timed: pl.LazyFrame, depth: int | None) -> pl.LazyFrame:
    """Return the launches with their layer. depth: depth at which the path is cut, 0 for its first part; None: the full path."""
    path = pl.col("layer_path")
    layer = path if depth is None else path.str.split(".").list.head(depth + 1).list.join(".")
    return timed.filter(is_launch()).with_columns(layer=layer, variant=pl.col("variant").fill_null(""))


def place_layers(launches: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """Return the launches with known costs summed by the keys, with the columns that `place_under_ceilings` adds.

    duration_median_ns is the sum of the launches' medians. dtype, path and category are those of the launch with the most flop,
    without flop those of the longest.

    Args:
        launches: the result of `in_layers`.
        ceilings, thresholds: the tables of these names, of the same runs.
        keys: columns of the launches.
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
    return place_under_ceilings(with_formulas(points), RooflineModel.of(ceilings, thresholds))


def model_layers(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Return table layers of runs of ML models, the longest first.

    Args:
        timed: the result of `live_measurements`.
        ceilings, thresholds: the tables of these names, of the same runs.
        depth: see `in_layers`.
    """
    launches = in_layers(timed, depth)
    time_ns = pl.col("duration_median_ns")
    worked = place_layers(launches, ceilings, thresholds, VERDICT_KEYS).select(*VERDICT_KEYS, *RATES, worked_ns="duration_sum_ns")
    return LAYERS.conform(
        launches.group_by(VERDICT_KEYS)
        .agg(
            pl.col("event_index").max(),
            call_count=pl.col("layer_path").n_unique().cast(COUNT),
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=time_ns.sum().round().cast(COUNT),
            memory_bytes=pl.col("device_memory_bytes").max(),
        )
        .with_columns(
            share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum().over("run_id", "variant")),
            source=pl.lit(ANNOTATION),
        )
        .join(worked, on=VERDICT_KEYS, how="left")
        .join(pass_medians(timed), on=["run_id", "variant"], how="left")
        .with_columns(
            worked_share_ratio=pl.when(pl.col("duration_sum_ns") > 0).then(pl.col("worked_ns").fill_null(0) / pl.col("duration_sum_ns")),
            variant=pl.col("variant").replace("", None),
        )
        .sort("duration_sum_ns", "run_id", "layer", "variant", descending=[True, False, False, False])
    )


def model_layer_roofline(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Return table layer_roofline of runs of ML models. Arguments are those of `model_layers`."""
    points = place_layers(in_layers(timed, depth), ceilings, thresholds, VERDICT_KEYS)
    return LAYER_ROOFLINE.conform(
        points.with_columns(
            source=pl.lit(ANNOTATION),
            layer_path="layer",
            label=pl.concat_str("layer", pl.col("variant").replace("", None), separator=" ", ignore_nulls=True),
            share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum().over("run_id", "variant")),
            variant=pl.col("variant").replace("", None),
        ).sort("run_id", "configuration_index", "layer", maintain_order=True)
    )


def layer_variants(layers: pl.LazyFrame, timed: pl.LazyFrame, samples: pl.LazyFrame, depth: int | None = None) -> pl.LazyFrame:
    """Return table layer_variants: every later variant of a run compared with the one that was registered first.

    Args:
        layers: the result of `model_layers` for the same depth.
        timed: the result of `live_measurements` for the same runs.
        samples: the table of that name.
        depth: see `in_layers`.
    """
    blocks = layer_blocks(in_layers(timed, depth), samples)
    order = timed.filter(is_launch()).group_by("run_id", "variant").agg(pl.col("configuration_index").min()).sort("configuration_index")
    firsts = order.group_by("run_id", maintain_order=True).agg(baseline_variant=pl.col("variant").first())
    later = order.join(firsts, on="run_id").filter(pl.col("variant") != pl.col("baseline_variant")).drop("configuration_index")
    figures = ("launch_count", "duration_sum_ns", "efficiency_ratio", "event_index", BLOCKS)
    operands = layers.join(blocks, on=VERDICT_KEYS, how="left").select(*VERDICT_KEYS, "is_gpu", *figures)
    after = later.join(operands, on=["run_id", "variant"])
    before = later.join(operands.drop("is_gpu").rename({"variant": "baseline_variant"}), on=["run_id", "baseline_variant"]).rename(
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


# ---------------------------------------------------------------- layer tree
# The tree of layers has sums over each subtree, for one pass with each launch at its median duration.

TREE_KEYS: Final = ["run_id", "variant", "layer_path"]
OWN: Final = pl.col("layer_path") == pl.col("own_path")
PARTS: Final = pl.col("layer_path").str.split(".")
TIME_NS: Final = pl.col("duration_median_ns")


def model_layer_tree(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Return table layer_tree of runs of ML models.

    Args:
        timed: the result of `live_measurements`.
        ceilings, thresholds: the tables of these names, of the same runs.
    """
    launches = _in_every_layer(timed)
    time_ns = pl.col("duration_sum_ns")
    summed = (
        launches.sort(TIME_NS, descending=True, maintain_order=True)
        .group_by(TREE_KEYS)
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
        .with_columns(share_ratio=null_safe_ratio(time_ns, time_ns.filter(pl.col("depth") == 0).sum().over("run_id", "variant")))
    )
    work = place_layers(launches, ceilings, thresholds, TREE_KEYS).select(*TREE_KEYS, *RATES, worked_ns="duration_sum_ns")
    with_passes = summed.join(pass_medians(timed), on=["run_id", "variant"], how="left")
    return LAYER_TREE.conform(
        _with_work(with_passes, work, TREE_KEYS).sort(
            "duration_sum_ns", "run_id", "layer_path", "variant", descending=[True, False, False, False]
        )
    )


def model_layer_kernels(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Return table layer_kernels of runs of ML models. Arguments are those of `model_layer_tree`."""
    launches = _in_every_layer(timed)
    keys = [*TREE_KEYS, "kernel_name"]
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
            layer=PARTS.list.last(),
            depth=PARTS.list.len().cast(COUNT) - 1,
            share_ratio=null_safe_ratio(time_ns, time_ns.sum().over(TREE_KEYS)),
        )
    )
    work = place_layers(launches, ceilings, thresholds, keys).select(*keys, *RATES, worked_ns="duration_sum_ns")
    order = ("run_id", "layer_path", "kernel_name", "variant")
    return LAYER_KERNELS.conform(_with_work(summed, work, keys).sort("duration_sum_ns", *order, descending=[True, *(False for _ in order)]))


def _in_every_layer(timed: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per launch and each layer that contains it, as layer_path. own_path: the innermost of them."""
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


# ---------------------------------------------------------------- verdicts on layers
# Verdicts on layers of another variant of an ML model rest on interleaved batches of launches in one run.

VERDICT_KEYS: Final = ["run_id", "variant", "layer"]
BLOCKS: Final = "block_ns"
BASELINE_BLOCKS: Final = "baseline_block_ns"
AGAINST: Final = "Batches that took turns say one thing, the medians of all launches the opposite: something else ran meanwhile."
VERDICT: Final[dict[str, Any]] = {
    "paired_ratio": NUMBER,
    "paired_ratio_low": NUMBER,
    "paired_ratio_high": NUMBER,
    "verdict": TEXT,
    "reason": TEXT,
}


def layer_blocks(launches: pl.LazyFrame, samples: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per value of VERDICT_KEYS: is_gpu, and block_ns, the layer's duration in each batch of passes, in their order.

    Of a batch the fastest pass counts on a CPU and the median one on a GPU, as for blocks of complete passes.

    Args:
        launches: the result of `in_layers`.
        samples: the table of that name, of the same runs.
    """
    launch_count = launches.group_by(VERDICT_KEYS).agg(launch_count=pl.len())
    is_gpu = pl.col("device_id").str.starts_with("cuda:").fill_null(False)
    of_passes = (
        samples.filter(~pl.col("is_discarded").fill_null(False), pl.col("duration_ns") > 0)
        .join(launches.select(*VERDICT_KEYS, "configuration_index", is_gpu=is_gpu), on=["run_id", "configuration_index"])
        .group_by(*VERDICT_KEYS, "sample_index")
        .agg(pl.col("duration_ns").sum(), pl.col("measured_unix_ns").max(), pl.col("is_gpu").first(), taken_count=pl.len())
        .join(launch_count, on=VERDICT_KEYS)
        .filter(pl.col("taken_count") == pl.col("launch_count"))
    )
    fastest, middle = pl.col("duration_ns").min(), pl.col("duration_ns").median()
    return (
        of_passes.group_by(*VERDICT_KEYS, "measured_unix_ns")
        .agg(pl.col("is_gpu").first(), block_ns=pl.when(pl.col("is_gpu").first()).then(middle).otherwise(fastest))
        .sort("measured_unix_ns")
        .group_by(VERDICT_KEYS, maintain_order=True)
        .agg(pl.col("is_gpu").first(), BLOCKS)
    )


def with_verdicts(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns of VERDICT instead of blocks, null if an operand has no blocks.

    Args:
        pairs: block_ns and baseline_block_ns of `layer_blocks`, is_gpu, and duration_sum_ns and baseline_duration_sum_ns. A verdict
            that these durations contradict becomes UNDECIDED.
    """
    rows = [_verdict(*row) for row in pairs.select(BLOCKS, BASELINE_BLOCKS, "is_gpu").iter_rows()]
    verdicts = pl.DataFrame(rows, schema=VERDICT, orient="row")
    change_ns = pl.col("duration_sum_ns") - pl.col("baseline_duration_sum_ns")
    is_faster, is_slower = (pl.col("verdict") == verdict.value for verdict in (Verdict.FASTER, Verdict.SLOWER))
    is_against = (is_faster & (change_ns > 0)) | (is_slower & (change_ns < 0))
    return (
        pairs.drop(BLOCKS, BASELINE_BLOCKS, "is_gpu")
        .hstack(verdicts)
        .with_columns(
            verdict=pl.when(is_against).then(pl.lit(Verdict.UNDECIDED.value)).otherwise("verdict"),
            reason=pl.when(is_against).then(pl.lit(AGAINST)).otherwise("reason"),
        )
    )


def _verdict(candidate: list[float] | None, baseline: list[float] | None, is_gpu: bool | None) -> tuple[object, ...]:
    if not candidate or not baseline:
        return (None,) * len(VERDICT)
    count = min(len(candidate), len(baseline))
    margin_ratio = GPU_MARGIN_RATIO if is_gpu else CPU_MARGIN_RATIO
    found = compare_pairs(Timings(np.array(candidate[:count])), Timings(np.array(baseline[:count])), margin_ratio)
    return found.duration.ratio, found.duration.low, found.duration.high, found.verdict.value, found.reason


# ---------------------------------------------------------------- opportunities
# The time that kernels and layers of an ML model lose compared with what the hardware allows.

SIDE: Final = ["run_id", "variant"]
SUBJECTS: Final = {"kernel": "kernel_name", "layer": "layer"}
"""Kinds of subjects, and the column of launches with their names."""


def model_opportunities(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Return table opportunities of runs of ML models, separately for each variant. Arguments are those of `model_layers`."""
    return pl.defer(lambda: _rows(timed, ceilings, thresholds), schema=OPPORTUNITIES.schema)


def _rows(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.DataFrame:
    launches = in_layers(timed, depth=None).collect()
    frames = [OPPORTUNITIES.empty().lazy()]
    for kind, name in SUBJECTS.items():
        points = place_layers(launches.lazy(), ceilings, thresholds, [*SIDE, name]).collect()
        for (run_id, variant), part in launches.group_by(SIDE, maintain_order=True):
            is_side = (pl.col("run_id") == run_id) & (pl.col("variant") == variant)
            subjects = (
                part.lazy()
                .group_by(subject=name)
                .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.col("duration_median_ns").sum().round().cast(COUNT))
            )
            rows = subject_rows(kind, points.lazy().filter(is_side).rename({name: "name"}), subjects)
            frames.append(
                OPPORTUNITIES.conform(
                    rows.with_columns(run_id=pl.lit(run_id), event_index=pl.lit(part["event_index"].max()), variant=pl.lit(variant or None))
                )
            )
    return (
        pl.concat(frames)
        .sort("lost_ns", "duration_sum_ns", "subject_kind", "subject", descending=[True, True, False, False], nulls_last=True)
        .collect()
    )
