"""Models on the terminal: whole passes, their layers, and what became of these from one variant to another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from services.cli.terminal import FittedTable
from services.core.disturbance import DISTURBED_SYMBOL
from services.core.layer_timing import layers_note
from services.core.quantities import UNKNOWN, change, duration, giga, median_with_interval, percentage, rate

if TYPE_CHECKING:
    import polars as pl

    from services.core.model import Work

BLOCK_NUMBER: Final = r"\.\d+(\.|$)"
"""In layer paths: blocks of a model are alike, and a terminal shows each kind of layer once."""


def model_table(models: pl.DataFrame) -> FittedTable:
    """Return one row per model and variant. Input: table models."""
    numeric = ("median ± CI", "mean ± sd", "p95", "p99", "tokens/s of median", "GFLOP/s of median", "efficiency")
    rows = (
        (
            row["model_name"],
            row["variant"] or UNKNOWN,
            _median(row),
            f"{duration(row['duration_mean_ns'])} ± {duration(row['duration_standard_deviation_ns'])}",
            duration(row["duration_p95_ns"]),
            duration(row["duration_p99_ns"]),
            rate(row["tokens_per_s"], "tokens/s").removesuffix("tokens/s"),
            giga(row["achieved_flop_per_s"]),
            percentage(row["efficiency_ratio"]),
            (row["verification_state"] or UNKNOWN).lower().replace("_", " ")
            + (f", {DISTURBED_SYMBOL} disturbed" if row["disturbance"] else ""),
        )
        for row in models.iter_rows(named=True)
    )
    return FittedTable(("model", "variant", *numeric, "verified"), rows, numeric=numeric)


def layer_table(layers: pl.DataFrame) -> FittedTable:
    """Return one row per kind of layer, over all blocks. Input: table layers of one variant."""
    import polars as pl

    time_ns = pl.col("duration_sum_ns")
    kinds = (
        layers.with_columns(kind=_kind())
        .group_by("kind", maintain_order=True)
        .agg(
            pl.col("launch_count", "duration_sum_ns", "share_ratio").sum(),
            pl.col("bound").first(),
            flop=_known_sum("flop"),
            bytes=_known_sum("bytes"),
            efficiency_ratio=_over_time("efficiency_ratio"),
        )
        .with_columns(flop_per_s=pl.col("flop") / time_ns * 1e9, bytes_per_s=pl.col("bytes") / time_ns * 1e9)
        .sort("duration_sum_ns", descending=True)
    )
    numeric = ("launches", "time", "share of layers", "GFLOP/s", "GB/s", "efficiency")
    rows = (
        (
            row["kind"],
            str(row["launch_count"]),
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            giga(row["flop_per_s"]),
            giga(row["bytes_per_s"]),
            percentage(row["efficiency_ratio"]),
            row["bound"] or UNKNOWN,
        )
        for row in kinds.iter_rows(named=True)
    )
    return FittedTable(("layer", *numeric, "bound"), rows, numeric=numeric)


def variant_table(layer_variants: pl.DataFrame) -> FittedTable:
    """Return one row per kind of layer, over all blocks, both variants side by side. Input: table layer_variants."""
    import polars as pl

    kinds = (
        layer_variants.with_columns(kind=_kind())
        .group_by("variant", "baseline_variant", "kind", maintain_order=True)
        .agg(
            _known_sum("duration_sum_ns"),
            _known_sum("baseline_duration_sum_ns"),
            pl.col("duration_delta_ns").sum(),
            efficiency_ratio=_over_time("efficiency_ratio"),
            baseline_efficiency_ratio=_over_time("efficiency_ratio", "baseline_"),
            verdicts=pl.col("verdict").drop_nulls().str.to_lowercase(),
        )
        .sort(pl.max_horizontal("duration_sum_ns", "baseline_duration_sum_ns"), descending=True)
    )
    numeric = ("before", "after", "change", "saved", "efficiency before", "efficiency after")
    rows = (
        (
            row["kind"],
            duration(row["baseline_duration_sum_ns"]),
            duration(row["duration_sum_ns"]),
            _change(row["duration_sum_ns"], row["baseline_duration_sum_ns"]),
            duration(-row["duration_delta_ns"]),
            percentage(row["baseline_efficiency_ratio"]),
            percentage(row["efficiency_ratio"]),
            _counted(row["verdicts"]),
            f"{row['baseline_variant']} → {row['variant']}",
        )
        for row in kinds.iter_rows(named=True)
    )
    return FittedTable(("layer", *numeric, "verdict in turns", "variants"), rows, numeric=numeric)


def _change(after_ns: float | None, before_ns: float | None) -> str:
    return change(after_ns / before_ns) if after_ns is not None and before_ns else UNKNOWN


def _counted(verdicts: list[str]) -> str:
    """Return the verdict of all blocks: "faster", or "2 faster, 1 undecided" where they do not agree."""
    counts = Counter(verdicts)
    return next(iter(counts), UNKNOWN) if len(counts) < 2 else ", ".join(f"{count} {name}" for name, count in counts.most_common())


def layer_lines(models: pl.DataFrame, work: Work) -> list[str]:
    """Say what the layers of each variant take together beside its whole pass. Input: table models of one run."""
    sums = models.select("variant", "launches_duration_sum_ns", "duration_median_ns")
    notes = ((variant, layers_note(work, layers_ns, pass_ns)) for variant, layers_ns, pass_ns in sums.iter_rows())
    return [f"{variant}: {note}" if variant else note for variant, note in notes if note]


def pair_lines(comparisons: pl.DataFrame, models: pl.DataFrame) -> list[str]:
    """Return what alternating blocks of passes say of two variants, beside the ratio of their medians.

    Args:
        comparisons, models: tables paired_comparisons and models of a model's run.
    """
    medians = dict(models.select("variant", "duration_median_ns").iter_rows())
    return [_pair_line(row, medians) for row in comparisons.iter_rows(named=True)]


def _pair_line(row: dict[str, Any], medians: dict[str | None, float | None]) -> str:
    speed, low, high = (1 / row[name] for name in ("duration_ratio", "duration_ratio_high", "duration_ratio_low"))
    variant, baseline = _last_word(row["label"]), _last_word(row["baseline_label"])
    after_ns, before_ns = medians.get(variant), medians.get(baseline)
    of_medians = f"; ×{before_ns / after_ns:.3g} by the medians" if after_ns and before_ns else ""
    in_turns = f"×{speed:.3g} (×{low:.3g} to ×{high:.3g}) the speed in turns"
    return f"{variant} against {baseline}: {row['verdict'].lower()}, {in_turns}{of_medians}; {row['reason']}"


def _last_word(label: str) -> str:
    """Return the variant, which ends the label of a complete pass."""
    return label.rpartition(" ")[2]


def _kind() -> pl.Expr:
    import polars as pl

    return pl.col("layer").str.replace_all(BLOCK_NUMBER, ".*${1}")


def _known_sum(name: str) -> pl.Expr:
    """Return the sum of a column, null where nothing is known."""
    import polars as pl

    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def _over_time(name: str, prefix: str = "") -> pl.Expr:
    """Return the efficiency of layers together: time at the roof over time taken, of those whose efficiency is known."""
    import polars as pl

    known_ns = pl.col(f"{prefix}duration_sum_ns").filter(pl.col(f"{prefix}{name}").is_not_null())
    at_roof_ns = pl.col(f"{prefix}{name}") * pl.col(f"{prefix}duration_sum_ns")
    return pl.when(known_ns.sum() > 0).then(at_roof_ns.sum() / known_ns.sum())


def _median(row: dict[str, Any]) -> str:
    if row["duration_median_low_ns"] is None:
        return duration(row["duration_median_ns"])
    return median_with_interval(row["duration_median_ns"], row["duration_median_low_ns"], row["duration_median_high_ns"])
