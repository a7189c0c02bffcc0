"""Whether a kernel is at a limit of its device, far below it, or between: five categories by two thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import polars as pl

from services.core.model import Thresholds

BOUND_RATIO: Final = 0.7
"""Over it the hardware is the limit. What datasheets promise is never reached whole: at 0.9 hardly a kernel would count as
bound; at 0.5 one that could be twice as fast would."""

KEYS: Final = ["run_id", "device_id"]


def with_efficiency_category(points: pl.LazyFrame, thresholds: pl.LazyFrame, suffixes: Sequence[str] = ("",)) -> pl.LazyFrame:
    """The rows with the column efficiency_category, and one for each further suffix.

    The ceiling that binds picks the side. Over BOUND_RATIO of what is attainable: "compute bound" or "memory bound"; else
    below the threshold of that side: "compute inefficient" or "memory inefficient"; else "normal".

    Args:
        points: with run_id, device_id and, for each suffix, efficiency{suffix}_ratio and bound{suffix} ("compute", "memory"; null: not
            known).
        thresholds: table thresholds, of the same runs; devices without a row have the default ones.
    """
    defaults = asdict(Thresholds())
    known = thresholds.select(*KEYS, *defaults).unique(KEYS, keep="last", maintain_order=True)
    return points.join(known, on=KEYS, how="left", maintain_order="left").with_columns(
        _category(suffix, defaults).alias(f"efficiency_category{suffix}") for suffix in suffixes
    )


def _category(suffix: str, defaults: dict[str, float]) -> pl.Expr:
    bound, efficiency = pl.col(f"bound{suffix}"), pl.col(f"efficiency{suffix}_ratio")
    memory_ratio, compute_ratio = (pl.col(name).fill_null(value) for name, value in defaults.items())
    threshold = pl.when(bound == "memory").then(memory_ratio).otherwise(compute_ratio)
    return (
        pl.when(efficiency.is_null() | bound.is_null())
        .then(None)
        .when(efficiency > BOUND_RATIO)
        .then(pl.format("{} bound", bound))
        .when(efficiency < threshold)
        .then(pl.format("{} inefficient", bound))
        .otherwise(pl.lit("normal"))
    )
