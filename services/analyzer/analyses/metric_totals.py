"""What the metrics of a launch come to, in units of this project and summed over the device."""

from __future__ import annotations

from itertools import product
from typing import Final

import polars as pl

LAUNCH_KEYS: Final = ["run_id", "event_index", "launch_index"]

EXPONENTS: Final = {"": 0, "n": -9, "u": -6, "m": -3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
SECONDS: Final = ("second", "s")
NS_PER_S: Final = 1e9


def _unit_scales() -> dict[str, float]:
    """Factors from ncu's units to nanoseconds, bytes, hertz, bytes per second and ratios. Counts of anything else stay."""
    scales = {"%": 0.01}
    for prefix, exponent in EXPONENTS.items():
        scales[f"{prefix}byte"] = scales[f"{prefix}byte/block"] = scales[f"{prefix}hz"] = scales[f"{prefix}Hz"] = 10.0**exponent
        for second in SECONDS:
            scales[f"{prefix}{second}"] = 10.0 ** (exponent + 9)
    for (prefix, exponent), (per, divisor), what, second in product(
        EXPONENTS.items(), EXPONENTS.items(), ("byte", "cycle", "inst"), SECONDS
    ):
        scales[f"{prefix}{what}/{per}{second}"] = 10.0 ** (exponent - divisor)  # exact, as quotients of powers are not
    return scales


UNIT_SCALES: Final = _unit_scales()

LABELS: Final = {
    ("Duration", None): "gpu__time_duration.sum",
    ("SM Frequency", None): "sm__cycles_elapsed.avg.per_second",
    ("Achieved Occupancy", "%"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Compute (SM) Throughput", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Registers Per Thread", "register/thread"): "launch__registers_per_thread",
    ("Static Shared Memory Per Block", None): "launch__shared_mem_per_block_static",
    ("Dynamic Shared Memory Per Block", None): "launch__shared_mem_per_block_dynamic",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
}
"""Page details shows metrics of sections by these labels. With a unit: another metric of another unit has the same label."""

SUM: Final = ".sum"
RATES: Final = {"per_second": 1, "per_cycle_elapsed": 2}
"""Rollups from which a sum can be had back, and their ranks after the sum itself (rank 0)."""


def in_project_units(counters: pl.LazyFrame) -> pl.LazyFrame:
    """The table's numbers: values in nanoseconds, bytes, hertz, bytes per second or ratios, labels as the metrics they show.

    Args:
        counters: table counters.
    """
    # Without a unit a percentage still says so in its name.
    scale = (
        pl.when(pl.col("metric_name").str.contains(r"\bpct\b|\.pct_") & pl.col("unit").is_null())
        .then(pl.lit(0.01))
        .otherwise(pl.col("unit").replace_strict(UNIT_SCALES, default=1.0, return_dtype=pl.Float64))
    )
    return counters.filter(pl.col("value").is_not_null()).with_columns(value=pl.col("value") * scale, metric_name=_named())


def metric_sums(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """One row per launch and metric with its sum over the device: base_name, total.

    Reports made with sections have rates instead: over the duration, or per cycle at smsp__cycles_elapsed.avg.per_second
    (NVIDIA's own roofline section multiplies the two). A sum that was counted itself comes first.

    Args:
        metrics: as `in_project_units` gives them.
    """
    rollup = pl.col("metric_name").str.extract(r"\.sum(?:\.(\w+))?$")
    duration_s = _of_launch("gpu__time_duration.sum") / NS_PER_S
    cycles_per_s = pl.coalesce(_of_launch("smsp__cycles_elapsed.avg.per_second"), _of_launch("sm__cycles_elapsed.avg.per_second"))
    return (
        metrics.with_columns(rollup=rollup, duration_s=duration_s, cycles_per_s=cycles_per_s)
        .filter(pl.col("metric_name").str.contains(SUM, literal=True))
        .with_columns(
            base_name=pl.col("metric_name").str.extract(r"^(.*?)\.sum"),
            rank=pl.when(pl.col("metric_name").str.ends_with(SUM))
            .then(0)
            .otherwise(pl.col("rollup").replace_strict(RATES, default=None, return_dtype=pl.Int64)),
            total=pl.when(pl.col("rollup") == "per_second")
            .then(pl.col("value") * pl.col("duration_s"))
            .when(pl.col("rollup") == "per_cycle_elapsed")
            .then(pl.col("value") * pl.col("cycles_per_s") * pl.col("duration_s"))
            .otherwise(pl.col("value")),
        )
        .filter(pl.col("rank").is_not_null(), pl.col("total").is_not_null())
        .sort("rank", maintain_order=True)
        .unique([*LAUNCH_KEYS, "base_name"], keep="first", maintain_order=True)
        .select(*LAUNCH_KEYS, "base_name", "total")
    )


def of_metric(*names: str) -> pl.Expr:
    """In a group of rows of one launch: the value of the first of these metrics that it has."""
    return pl.coalesce(pl.col("value").filter(pl.col("metric_name") == name).first() for name in names)


def total_of(base_name: str) -> pl.Expr:
    """In a group of sums of one launch: the one of this metric."""
    return pl.col("total").filter(pl.col("base_name") == base_name).first()


def _of_launch(metric_name: str) -> pl.Expr:
    return of_metric(metric_name).over(LAUNCH_KEYS)


def _named() -> pl.Expr:
    name = pl.col("metric_name")
    expression = name
    for (label, unit), metric_name in LABELS.items():
        is_meant = (name == label) if unit is None else (name == label) & (pl.col("unit") == unit)
        expression = pl.when(is_meant).then(pl.lit(metric_name)).otherwise(expression)
    return expression.alias("metric_name")
