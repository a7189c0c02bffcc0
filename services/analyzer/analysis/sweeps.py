"""The analysis of sweeps: the best configuration of each problem, and kernel summaries."""

from __future__ import annotations

from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.models import is_launch, is_pass
from kernalyse.services.analyzer.tables.runs import BEST, KERNELS

# ---------------------------------------------------------------- best configurations
# The fastest configuration of each problem, its margin, and whether the margin is significant.

MIN_PROCESS_COUNT: Final = 5
"""Least number of processes per operand. Medians of one kernel drift between processes by more than their intervals; with five
processes each, all of one are below all of the other by chance once in 126 times."""

SEQUENTIALLY_MEASURED: Final = (
    "Measured one after the other, where drift alone can make such a margin; --paired, --processes 5 or --strategy halving decides."
)

PROBLEM: Final = ["run_id", "device_id", "cache_mode", "problem", "category", "work_flop", "work_bytes"]
CANDIDATE: Final = ["kernel_name", "macros", "block", "model_variant"]


def best(measurements: pl.LazyFrame, comparisons: pl.LazyFrame, roofline: pl.LazyFrame) -> pl.LazyFrame:
    """Return table best: one row per problem, in the order of their first configurations.

    Configurations compete if they have the same parameters, cache mode and device and compute the same: one kernel in several
    variants, or kernels of one category with equal flop and bytes. Wrong and implausible results do not compete. Configurations
    that a search eliminated rank after the others, since their few samples may be fast by chance. A configuration that several
    processes measured is one candidate, whose duration is the median of its processes' medians. Results of other tools without a
    median or a stop reason do not compete, since it is not known which of them compute the same.

    The margin is real if a comparison in alternating blocks found the best to be faster, or if both were measured by at least
    five processes and every process of the best was faster than every one of the runner-up.

    Args:
        measurements: table measurements, of any runs.
        comparisons, roofline: tables paired_comparisons and roofline, of the same runs.
    """
    implausible = roofline.filter("is_implausible").select("run_id", "configuration_index")
    measured = _correct_measurements(measurements.join(implausible, on=["run_id", "configuration_index"], how="anti"))
    ranked = _candidates(measured).with_columns(
        rank=pl.struct("is_eliminated", "duration_median_ns", "configuration_index").rank("ordinal").over(PROBLEM),
        candidate_count=pl.len().over(PROBLEM).cast(pl.Int64),
        first_index=pl.col("configuration_index").min().over(PROBLEM),
    )
    runners_up = ranked.filter(pl.col("rank") == 2).select(*PROBLEM, pl.exclude(PROBLEM).name.prefix("runner_up_"))
    has_pair = pl.col("paired_ratio").is_not_null()
    low, high = _margin_interval()
    return (
        ranked.filter(pl.col("rank") == 1)
        .join(runners_up, on=PROBLEM, how="left", nulls_equal=True)
        .join(_paired(measured, comparisons), on=["run_id", "configuration_index", "runner_up_configuration_index"], how="left")
        .sort("run_id", "first_index")
        .with_columns(
            event_index=pl.max_horizontal("event_index", "runner_up_event_index", "paired_event_index"),
            margin_ratio=pl.coalesce("paired_ratio", pl.col("runner_up_duration_median_ns") / pl.col("duration_median_ns")) - 1,
            margin_ratio_low=pl.coalesce("paired_ratio_low", low) - 1,
            margin_ratio_high=pl.coalesce("paired_ratio_high", high) - 1,
            is_real=pl.when(has_pair).then("is_paired_faster").otherwise(_has_enough_processes() & _is_separate()).fill_null(False),
            reason=_reason(has_pair),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in BEST.schema.items())
    )


def _correct_measurements(measurements: pl.LazyFrame) -> pl.LazyFrame:
    """Return the measurements that compete, with their problem and the first configuration of their candidate."""
    same_kernel = ["run_id", "device_id", "cache_mode", "problem", "kernel_name"]
    listed_first = (
        pl.col("flop", "bytes").sort_by("configuration_index").first().over(same_kernel)
    )  # variants of one kernel compute the same
    return (
        measurements.filter(pl.col("verification_state").ne_missing("FAILED"), pl.col("stop_reason", "duration_median_ns").is_not_null())
        .with_columns(problem=pl.col("parameters").str.extract_all(r'"[^"]+": -?\d+').list.sort().list.join(","))
        .with_columns(listed_first.name.prefix("work_"))
        .filter(~is_launch())  # a layer is only a step of a pass, which competes as one
        .with_columns(model_variant=pl.when(is_pass()).then("variant"))
        .with_columns(candidate_index=pl.col("configuration_index").min().over([*same_kernel, *CANDIDATE[1:]]))
    )


def _candidates(measured: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per configuration over all processes."""
    return (
        measured.sort("configuration_index")
        .group_by([*PROBLEM, *CANDIDATE])
        .agg(
            pl.col("parameters", "label").first(),
            pl.col("configuration_index").min(),
            event_index=pl.col("event_index").max(),
            process_count=pl.col("process_index").n_unique(),
            is_eliminated=pl.col("stop_reason").eq_missing("ELIMINATED").all(),
            duration_median_ns=pl.col("duration_median_ns").median(),
            duration_low_ns=pl.col("duration_median_low_ns").min(),
            duration_high_ns=pl.col("duration_median_high_ns").max(),
            process_min_ns=pl.col("duration_median_ns").min(),
            process_max_ns=pl.col("duration_median_ns").max(),
        )
        .with_columns(pl.col("label").str.replace(r" process=\d+$", ""))
    )


def _margin_interval() -> tuple[pl.Expr, pl.Expr]:
    """Return the interval of runner-up over best from the intervals of both medians; it is wider than one of the ratio itself."""
    low = pl.col("runner_up_duration_low_ns") / pl.col("duration_high_ns")
    return low, pl.col("runner_up_duration_high_ns") / pl.col("duration_low_ns")


def _paired(measured: pl.LazyFrame, comparisons: pl.LazyFrame) -> pl.LazyFrame:
    """Return the comparisons in alternating blocks of two candidates, in both directions: duration of the second over the first."""
    candidate_of = measured.select("run_id", "configuration_index", "candidate_index")
    known = (
        comparisons.join(candidate_of, on=["run_id", "configuration_index"])
        .rename({"candidate_index": "candidate"})
        .join(candidate_of.rename({"configuration_index": "baseline_configuration_index"}), on=["run_id", "baseline_configuration_index"])
        .rename({"candidate_index": "baseline"})
    )
    ratio, low, high = pl.col("duration_ratio"), pl.col("duration_ratio_low"), pl.col("duration_ratio_high")
    slower = _directed("baseline", "candidate", ratio, low, high, pl.col("verdict") == "SLOWER")
    faster = _directed("candidate", "baseline", 1 / ratio, 1 / high, 1 / low, pl.col("verdict") == "FASTER")
    return (
        pl.concat([known.select(slower), known.select(faster)])
        .group_by("run_id", "configuration_index", "runner_up_configuration_index")
        .agg(
            paired_event_index=pl.col("event_index").max(),
            paired_ratio=pl.col("ratio").median(),
            paired_ratio_low=pl.col("low").min(),
            paired_ratio_high=pl.col("high").max(),
            is_paired_faster=pl.col("is_faster").all(),  # several processes may have compared them
        )
    )


def _directed(first: str, second: str, ratio: pl.Expr, low: pl.Expr, high: pl.Expr, is_faster: pl.Expr) -> list[pl.Expr]:
    return [
        pl.col("run_id"),
        pl.col("event_index"),
        pl.col(first).alias("configuration_index"),
        pl.col(second).alias("runner_up_configuration_index"),
        ratio.alias("ratio"),
        low.alias("low"),
        high.alias("high"),
        is_faster.alias("is_faster"),
    ]


def _has_enough_processes() -> pl.Expr:
    return pl.min_horizontal("process_count", "runner_up_process_count") >= MIN_PROCESS_COUNT


def _is_separate() -> pl.Expr:
    return pl.col("process_max_ns") < pl.col("runner_up_process_min_ns")


def _reason(has_pair: pl.Expr) -> pl.Expr:
    def sentence(text: str) -> pl.Expr:
        return pl.lit(text)

    overlap = pl.col("duration_high_ns") >= pl.col("runner_up_duration_low_ns")
    return (
        pl.when(pl.col("candidate_count") == 1)
        .then(sentence("It is the only configuration of this problem."))
        .when(has_pair & pl.col("is_paired_faster"))
        .then(sentence("Alternating blocks say so."))
        .when(has_pair)
        .then(sentence("Alternating blocks do not say that it is faster."))
        .when(_has_enough_processes() & _is_separate())
        .then(sentence("In every process it is faster than the runner-up in any."))
        .when(_has_enough_processes())
        .then(sentence("The medians of its processes and the runner-up's overlap."))
        .when(overlap)
        .then(sentence("The intervals of both medians overlap."))
        .otherwise(sentence(SEQUENTIALLY_MEASURED))
    )


# ---------------------------------------------------------------- kernel summary

KEYS: Final = ["run_id", "kernel_name"]


def kernel_summary(
    configurations: pl.LazyFrame, measurements: pl.LazyFrame, failures: pl.LazyFrame, roofline: pl.LazyFrame
) -> pl.LazyFrame:
    """Return table kernels: one row per run and kernel, in order of registration, without complete passes of ML models.

    The best configuration is the one of the highest efficiency; without ceilings that of the highest flop rate, and for
    kernels without flop that of the highest byte rate. Implausible ones count only for kernels that have no other.

    Args:
        configurations, measurements, failures, roofline: the tables of these names, of any runs.
    """
    return KERNELS.conform(
        _registered(configurations)
        .join(_failed(configurations, failures), on=KEYS, how="left", maintain_order="left")
        .join(_measured_kernels(measurements), on=KEYS, how="left", maintain_order="left")
        .join(_achieved(roofline), on=KEYS, how="left", maintain_order="left")
        .with_columns(
            pl.max_horizontal("event_index", "failed_event_index", "measured_event_index", "roofline_event_index").alias("event_index"),
            pl.col(
                "failed_configuration_count", "sample_count", "verification_failed_count", "implausible_count", "disturbed_count"
            ).fill_null(0),
        )
    )


def _registered(configurations: pl.LazyFrame) -> pl.LazyFrame:
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


def _measured_kernels(measurements: pl.LazyFrame) -> pl.LazyFrame:
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
