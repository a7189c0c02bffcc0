"""Tables of results that were read from a file and are stored nowhere."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from services.analyzer.schema import MEASUREMENTS
from services.analyzer.sweep_tables import sweep_table
from services.analyzer.table import Table

RUN_ID = "file"
"""Analyses join on it; no run has it."""


def has_results(frames: Mapping[str, pl.DataFrame]) -> bool:
    """Whether a reader gave results of benchmarks; a trace has none."""
    return MEASUREMENTS.table_name in frames


def results_table(frames: Mapping[str, pl.DataFrame], table: Table) -> pl.LazyFrame:
    """A stored table as the reader gave it, or one that is worked out from these, without run_id and event_index of a store.

    Ceilings are those of the file alone: nothing is known of its devices.
    """

    def rows_of(part: Table) -> pl.LazyFrame:
        frame = frames.get(part.table_name)
        rows = part.empty().lazy() if frame is None else part.conform(frame.lazy())
        # Of several ceilings of one kind the later one counts, by this index.
        return rows.with_columns(run_id=pl.lit(RUN_ID), event_index=pl.int_range(pl.len(), dtype=pl.Int64))

    return sweep_table(table, rows_of).drop("run_id", "event_index")
