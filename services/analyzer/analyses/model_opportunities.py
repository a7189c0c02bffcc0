"""What to look at first in a model: time that its kernels and layers lose against what the hardware can do."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.model_layers import in_layers, placed_layers
from services.analyzer.analyses.opportunities import subjects_of
from services.analyzer.answer_tables import OPPORTUNITIES
from services.analyzer.table import COUNT

SIDE: Final = ["run_id", "variant"]
SUBJECTS: Final = {"kernel": "kernel_name", "layer": "layer"}
"""Kinds of subjects, and the column of launches that names one."""


def model_opportunities(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Table opportunities of models' runs, each variant by itself. Arguments as of `model_layers`."""
    return pl.defer(lambda: _rows(timed, ceilings, thresholds), schema=OPPORTUNITIES.schema)


def _rows(timed: pl.LazyFrame, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.DataFrame:
    launches = in_layers(timed, depth=None).collect()
    frames = [OPPORTUNITIES.empty().lazy()]
    for kind, name in SUBJECTS.items():
        points = placed_layers(launches.lazy(), ceilings, thresholds, [*SIDE, name]).collect()
        for (run_id, variant), part in launches.group_by(SIDE, maintain_order=True):
            is_side = (pl.col("run_id") == run_id) & (pl.col("variant") == variant)
            subjects = (
                part.lazy()
                .group_by(subject=name)
                .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.col("duration_median_ns").sum().round().cast(COUNT))
            )
            rows = subjects_of(kind, points.lazy().filter(is_side).rename({name: "name"}), subjects)
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
