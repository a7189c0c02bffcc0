"""What a trace spends its device time on, held against another trace: kernel by kernel, layer by layer."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.table import COUNT, NUMBER, TEXT

FIGURES: Final = ("launch_count", "duration_sum_ns")
MEDIAN: Final = "duration_median_ns"
MATCHED_BY_NAME: Final = "name"
MATCHED_BY_FORM: Final = "form"
MAX_TEMPLATE_DEPTH: Final = 64
"""Of template arguments within each other that are taken out of a name, one level in each pass over all names; those of CUTLASS
go sixteen deep. What is deeper stays in the name, which then has no counterpart."""

ADDRESS: Final = r"0x[0-9a-fA-F]+"
INNERMOST_TEMPLATE: Final = r"<[^<>]*>"
PARAMETERS: Final = r"\((?:[^()]|\([^()]*\))*\)\s*(?:\[[^\[\]]*\])?\s*$"
ANONYMOUS: Final = r"\(anonymous namespace\)::|<unnamed>::"
COUNTER: Final = r",?\s*\b(?:op_id|seq|input_op_ids|sizes) = (?:\[.*\]|\S+)|(?:^|\b)(triton_\w*?)_\d+$"
"""What PyTorch's NVTX ranges and Triton's compiler number through a program: another run has other numbers."""


def kernel_comparison(judged: pl.LazyFrame, baseline: pl.LazyFrame) -> pl.LazyFrame:
    """One row per kernel of either trace, largest change first: table kernel_comparison.

    Args:
        judged, baseline: kernels by name, as `trace_kernels` sums them.
    """
    compared = _compared(judged, baseline, "kernel_name", FIGURES, (MEDIAN,))
    return compared.with_columns(duration_median_ratio=_ratio(pl.col(MEDIAN), pl.col(f"baseline_{MEDIAN}")))


def layer_comparison(judged: pl.LazyFrame, baseline: pl.LazyFrame) -> pl.LazyFrame:
    """One row per layer of either trace, largest change first: table layer_comparison.

    Args:
        judged, baseline: layers by name and source, as `trace_layers` sums them; layers of one name count together.
    """
    return _compared(judged, baseline, "layer", ("call_count", *FIGURES))


def _compared(
    judged: pl.LazyFrame, baseline: pl.LazyFrame, name: str, figures: tuple[str, ...], medians: tuple[str, ...] = ()
) -> pl.LazyFrame:
    """Names that are equal belong together; the others count by their form, several in a row if need be.

    Every launch of both sides is in exactly one row.

    Args:
        figures: what is summed. medians: what a row of several names has none of.
    """
    after, before = (side.group_by(name).agg(pl.col(*figures).sum(), *map(_of_one, medians)) for side in (judged, baseline))
    by_name = after.join(before, on=name, suffix="_before", nulls_equal=True).with_columns(
        pl.col(name).alias(f"{name}_before"),
        name_count=pl.lit(1, dtype=COUNT),
        name_count_before=pl.lit(1, dtype=COUNT),
        matched_by=pl.lit(MATCHED_BY_NAME),
    )
    after_forms = _by_form(after.join(before, on=name, how="anti", nulls_equal=True), name, figures, medians)
    before_forms = _by_form(before.join(after, on=name, how="anti", nulls_equal=True), name, figures, medians)
    by_form = after_forms.join(before_forms, on="form", suffix="_before").with_columns(matched_by=pl.lit(MATCHED_BY_FORM))
    new = after_forms.join(before_forms, on="form", how="anti")
    gone = before_forms.join(after_forms, on="form", how="anti").rename(
        {column: f"{column}_before" for column in (name, *figures, *medians, "name_count")}
    )
    return _judged(pl.concat([by_name, by_form, new, gone], how="diagonal"), name, (*figures, *medians))


def _of_one(figure: str) -> pl.Expr:
    return pl.when(pl.len() == 1).then(pl.col(figure).first()).alias(figure)


def _by_form(side: pl.LazyFrame, name: str, figures: tuple[str, ...], medians: tuple[str, ...]) -> pl.LazyFrame:
    """One row per form: under its name where it has one, under the form where it has several."""
    is_one = pl.len() == 1
    return (
        side.with_columns(form=pl.col(name).map_batches(forms, return_dtype=TEXT))
        .group_by("form")
        .agg(
            pl.col(*figures).sum(),
            *map(_of_one, medians),
            pl.when(is_one).then(pl.col(name).first()).otherwise(pl.col("form").first()).alias(name),
            name_count=pl.len().cast(COUNT),
        )
    )


def forms(names: pl.Series) -> pl.Series:
    """Names without what differs between builds and runs: template arguments, parameters, addresses, counters."""
    plain = names.str.replace_all(ANONYMOUS, "").str.replace_all(ADDRESS, "")
    for _ in range(MAX_TEMPLATE_DEPTH):
        if not plain.str.contains(INNERMOST_TEMPLATE).any():
            break
        plain = plain.str.replace_all(INNERMOST_TEMPLATE, "")
    return plain.str.replace(PARAMETERS, "").str.replace_all(COUNTER, "$1").str.strip_prefix("void ").str.strip_chars()


def _judged(rows: pl.LazyFrame, name: str, figures: tuple[str, ...]) -> pl.LazyFrame:
    """Each pair with what changed. A side that has nothing of it has spent nothing on it."""
    after, before = (pl.col(column).fill_null(0) for column in ("duration_sum_ns", "duration_sum_ns_before"))
    delta_ns, total_delta_ns = after - before, (after - before).sum()
    per_launch = pl.col("duration_sum_ns") / pl.col("launch_count")
    per_launch_before = pl.col("duration_sum_ns_before") / pl.col("launch_count_before")
    is_after, is_before = pl.col("name_count").is_not_null(), pl.col("name_count_before").is_not_null()
    return (
        rows.with_columns(
            occurrence=pl.when(is_after & is_before).then(pl.lit("MATCHED")).when(is_after).then(pl.lit("NEW")).otherwise(pl.lit("GONE")),
            duration_delta_ns=delta_ns,
            delta_share_ratio=pl.when(total_delta_ns != 0).then(delta_ns / total_delta_ns),
            duration_ratio=_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns_before")),
            duration_per_launch_ratio=_ratio(per_launch, per_launch_before),
        )
        .with_columns(pl.when(is_after).then(pl.col(name)).otherwise(pl.col(f"{name}_before")).alias(name))
        .sort(
            pl.col("duration_delta_ns").abs(),
            "duration_delta_ns",
            name,
            "occurrence",
            descending=[True, True, False, False],
            nulls_last=True,
        )
        .select(
            *("occurrence", "matched_by", name, pl.col(f"{name}_before").alias(f"baseline_{name}"), "name_count"),
            pl.col("name_count_before").alias("baseline_name_count"),
            *(pl.col(column, f"{column}_before") for column in figures),
            *("duration_delta_ns", "delta_share_ratio", "duration_ratio", "duration_per_launch_ratio"),
        )
        .rename({f"{column}_before": f"baseline_{column}" for column in figures})
    )


def _ratio(after: pl.Expr, before: pl.Expr) -> pl.Expr:
    return pl.when(before > 0).then(after / before).cast(NUMBER)
