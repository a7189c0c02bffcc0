"""What a run says of each of its kernels."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.model_passes import is_pass
from services.analyzer.schema import KERNELS

KEYS: Final = ["run_id", "kernel_name"]


def kernel_summary(
    configurations: pl.LazyFrame, measurements: pl.LazyFrame, failures: pl.LazyFrame, roofline: pl.LazyFrame
) -> pl.LazyFrame:
    """One row per run and kernel, in order of announcement: table kernels. Whole passes of models are no kernels.

    Args:
        configurations, measurements, failures, roofline: the tables of these names, of any runs.

    The best configuration is the one of the highest efficiency; without ceilings that of the highest flop rate, and for
    kernels without flop that of the highest byte rate. Implausible ones count only for kernels that have no other.
    """
    return KERNELS.conform(
        _announced(configurations)
        .join(_failed(configurations, failures), on=KEYS, how="left", maintain_order="left")
        .join(_measured(measurements), on=KEYS, how="left", maintain_order="left")
        .join(_achieved(roofline), on=KEYS, how="left", maintain_order="left")
        .with_columns(
            pl.max_horizontal("event_index", "failed_event_index", "measured_event_index", "roofline_event_index").alias("event_index"),
            pl.col(
                "failed_configuration_count", "sample_count", "verification_failed_count", "implausible_count", "disturbed_count"
            ).fill_null(0),
        )
    )


def _announced(configurations: pl.LazyFrame) -> pl.LazyFrame:
    return (
        configurations.filter(~is_pass())
        .group_by(KEYS, maintain_order=True)
        .agg(
            pl.col("category", "dtype").first(),
            event_index=pl.col("event_index").max(),
            configuration_count=pl.len(),
        )
    )


def _failed(configurations: pl.LazyFrame, failures: pl.LazyFrame) -> pl.LazyFrame:
    names = configurations.select("run_id", "configuration_index", "kernel_name")
    return (
        failures.join(names, on=["run_id", "configuration_index"])
        .group_by(KEYS)
        .agg(failed_event_index=pl.col("event_index").max(), failed_configuration_count=pl.len())
    )


def _measured(measurements: pl.LazyFrame) -> pl.LazyFrame:
    return measurements.group_by(KEYS).agg(
        pl.col("device_id").last(),
        measured_event_index=pl.col("event_index").max(),
        sample_count=pl.col("sample_count").sum(),
        duration_median_min_ns=pl.col("duration_median_ns").min(),
        duration_median_max_ns=pl.col("duration_median_ns").max(),
        verification_failed_count=(pl.col("verification_state") == "FAILED").sum(),
    )


def _achieved(roofline: pl.LazyFrame) -> pl.LazyFrame:
    is_implausible = pl.col("is_implausible").fill_null(False)
    best_first = (is_implausible, "efficiency_ratio", "achieved_flop_per_s", "achieved_bytes_per_s")

    def of_best(column: str) -> pl.Expr:
        return pl.col(column).sort_by(*best_first, descending=[False, True, True, True], nulls_last=True, maintain_order=True).first()

    def highest(column: str) -> pl.Expr:
        return pl.coalesce(pl.col(column).filter(~is_implausible).max(), pl.col(column).max())

    return roofline.group_by(KEYS).agg(
        roofline_event_index=pl.col("event_index").max(),
        achieved_flop_per_s_max=highest("achieved_flop_per_s"),
        achieved_bytes_per_s_max=highest("achieved_bytes_per_s"),
        efficiency_ratio_max=highest("efficiency_ratio"),
        best_label=of_best("label"),
        bound=of_best("bound"),
        implausible_count=is_implausible.sum(),
        disturbed_count=pl.col("disturbance").is_not_null().sum(),
    )
