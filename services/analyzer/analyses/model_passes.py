"""What a run of a model says of its passes and of their launches, while it goes on too."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.roofline import Roofs, placed
from services.analyzer.model_tables import MODELS
from services.analyzer.schema import MEASUREMENTS
from services.analyzer.table import COUNT, NUMBER, TEXT

WHOLE_PASS: Final = "model"
"""Category of the configuration that stands for a whole pass."""

KEYS: Final = ["run_id", "configuration_index"]
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
"""What a pass's parameters are called: here, and in files of others."""


def is_launch() -> pl.Expr:
    """Of a model's layer; the others are kernels of sweeps and whole passes."""
    return pl.col("layer_path").is_not_null()


def is_pass() -> pl.Expr:
    return pl.col("category").eq_missing(WHOLE_PASS)


def timed_so_far(configurations: pl.LazyFrame, measurements: pl.LazyFrame, samples: pl.LazyFrame, ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Launches and passes of models as rows of table measurements: those measured, those with samples so far, and announced passes.

    Args:
        configurations, measurements, samples, ceilings: the tables of these names, of any runs; the last tells the device of
            what is not measured yet.
    """
    of_models = is_launch() | is_pass()
    measured = measurements.filter(of_models)
    announced = configurations.filter(of_models).join(measurements, on=KEYS, how="anti")
    device = ceilings.group_by("run_id").agg(pl.col("device_id").drop_nulls().first())
    durations = (
        samples.filter(~pl.col("is_discarded").fill_null(False))
        .join(announced.select(KEYS), on=KEYS, how="semi")
        .group_by(KEYS)
        .agg(
            pl.col("event_index").max(),
            sample_count=pl.len().cast(COUNT),
            duration_median_ns=pl.col("duration_ns").median(),
            duration_mean_ns=pl.col("duration_ns").mean(),
            duration_min_ns=pl.col("duration_ns").min(),
            duration_max_ns=pl.col("duration_ns").max(),
        )
    )
    going_on = (
        announced.rename({"event_index": "announced_index"})
        .join(durations, on=KEYS, how="left")
        .filter(is_pass() | pl.col("sample_count").is_not_null())
        .with_columns(event_index=pl.coalesce("event_index", "announced_index"))
        .join(device, on="run_id", how="left")
    )
    return pl.concat([measured, MEASUREMENTS.conform(going_on)])


def with_formulas(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of measurements with what `placed` wants to know of their work: models tell it by formula."""
    has_work = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    return rows.with_columns(
        counted_level=pl.lit(None, dtype=TEXT),
        work_source=pl.when(has_work).then(pl.lit(FORMULA)),
    )


def models(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Table models.

    Args:
        timed: what `timed_so_far` says.
        ceilings, thresholds: the tables of these names, of the same runs.
    """
    launches = (
        timed.filter(is_launch())
        .group_by("run_id", "variant", launched_model="model_name")  # files have several models; a run that measures one names none
        .agg(launch_count=pl.len().cast(COUNT), launches_duration_sum_ns=pl.col("duration_median_ns").sum())
    )
    token_count = pl.col("batch_size") * pl.col("sequence_length")
    passes = timed.filter(is_pass()).with_columns(launched_model="model_name", model_name=pl.coalesce("model_name", "kernel_name"))
    return MODELS.conform(
        placed(with_formulas(passes), Roofs.of(ceilings, thresholds))
        .with_columns(**{name: _fact(names) for name, names in FACTS.items()}, batch_size=pl.coalesce("batch_size", _fact(("batch_size",))))
        .with_columns(
            memory_bytes=pl.coalesce("device_memory_bytes", "memory_bytes"),
            # Of the median, as every other rate: two bases in one row could not be held against each other.
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
    """run_id, variant ("" for none) and pass_duration_median_ns; null where a variant has passes of several models.

    Args:
        timed: what `timed_so_far` says.
    """
    names = pl.coalesce("model_name", "kernel_name")
    return (
        timed.filter(is_pass())
        .group_by("run_id", pl.col("variant").fill_null(""))
        .agg(pass_duration_median_ns=pl.when(names.n_unique() == 1).then(pl.col("duration_median_ns").drop_nulls().first()))
    )


def _fact(names: tuple[str, ...]) -> pl.Expr:
    """A whole number of a row's parameters by the first of these names that is there."""
    return pl.coalesce(pl.col("parameters").str.extract(rf'"{name}": (-?\d+)').cast(COUNT) for name in names)


def known_sum(name: str) -> pl.Expr:
    """Null where one of the values is not known."""
    return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).cast(NUMBER)
