"""The history of what a run measured: of the figures that earlier runs have too, those that its document shows."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.history import history
from services.analyzer.history_rows import HistoryRows
from services.analyzer.history_tables import HISTORY

METRIC: Final = "duration_median_ns"
MAX_SERIES_COUNT: Final = 4
MAX_RUN_COUNT: Final = 200  # of one of them, the newest ones: more points lie on each other
MAX_JUDGED_ROWS: Final = 20_000
"""Changes are looked for in so many rows, a second's work; in those of what takes longest, where a sweep has more."""


def run_history(rows: HistoryRows, run_id: str) -> pl.DataFrame:
    """Table history of the median time up to the run; those that changed most of late, else those that take longest, come first."""
    of_run = rows.rows([run_id]).filter(pl.col(METRIC) > 0).collect()
    time_ns = pl.coalesce("duration_sum_ns", METRIC)
    own = of_run.group_by("series").agg(until_unix_ns=pl.col("measured_unix_ns").max(), time_ns=time_ns.max())
    found = rows.rows(None, (pl.col("series").is_in(own["series"].implode()), pl.col(METRIC) > 0)).collect()
    earlier = (
        found.join(own, on="series")
        .filter((pl.col("measured_unix_ns") < pl.col("until_unix_ns")) | (pl.col("run_id") == run_id))
        .filter(pl.col("run_id").n_unique().over("series") > 1)
        .sort("time_ns", "series", "measured_unix_ns", descending=[True, False, False])
        .head(MAX_JUDGED_ROWS)
    )
    judged = history(earlier.lazy(), METRIC).collect()
    last_change = pl.col("change_ratio").drop_nulls().last().log().abs().fill_null(0.0)
    shown = (
        judged.group_by("series")
        .agg(last_change.alias("change_size"))
        .join(own, on="series")
        .sort("change_size", "time_ns", "series", descending=[True, True, False])
        .head(MAX_SERIES_COUNT)
        .with_row_index("place")
    )
    newest = judged.join(shown.select("series", "place"), on="series").sort("place", "measured_unix_ns", maintain_order=True)
    return HISTORY.conform(newest.group_by("series", maintain_order=True).tail(MAX_RUN_COUNT).lazy()).collect()
