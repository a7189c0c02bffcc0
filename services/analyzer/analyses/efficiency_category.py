"""Whether a kernel is at a limit of its device, far below it, or between: five categories by two thresholds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import polars as pl

from services.core.model import Thresholds

BOUND_RATIO: Final = 0.7
"""Over it the hardware is the limit. What datasheets promise is never reached whole: at 0.9 hardly a kernel would count as
bound; at 0.5 one that could be twice as fast would."""

KEYS: Final = ["run_id", "device_id"]


def with_efficiency_category(points: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """The rows with the column efficiency_category.

    The ceiling that binds picks the side. Over BOUND_RATIO of what is attainable: "compute bound" or "memory bound"; else
    below the threshold of that side: "compute inefficient" or "memory inefficient"; else "normal".

    Args:
        points: with run_id, device_id, efficiency_ratio and bound ("compute", "memory"; null: not known).
        thresholds: table thresholds, of the same runs; devices without a row have the default ones.
    """
    defaults = asdict(Thresholds())
    known = thresholds.select(*KEYS, *defaults).unique(KEYS, keep="last", maintain_order=True)
    memory_ratio, compute_ratio = (pl.col(name).fill_null(value) for name, value in defaults.items())
    threshold = pl.when(pl.col("bound") == "memory").then(memory_ratio).otherwise(compute_ratio)
    efficiency = pl.col("efficiency_ratio")
    return points.join(known, on=KEYS, how="left", maintain_order="left").with_columns(
        efficiency_category=pl.when(efficiency.is_null() | pl.col("bound").is_null())
        .then(None)
        .when(efficiency > BOUND_RATIO)
        .then(pl.format("{} bound", "bound"))
        .when(efficiency < threshold)
        .then(pl.format("{} inefficient", "bound"))
        .otherwise(pl.lit("normal"))
    )
