"""The tables that are worked out from measurements, wherever their rows lie: in a store, or in a file just read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from services.analyzer.analyses.best import best
from services.analyzer.analyses.counted_work import counted_work
from services.analyzer.analyses.roofline import counted_roofline, roofline
from services.analyzer.analyses.summary import kernel_summary
from services.analyzer.counter_tables import COUNTED_WORK, COUNTER_REPORTS, COUNTERS
from services.analyzer.schema import (
    BEST,
    CEILINGS,
    CONFIGURATIONS,
    COUNTED_ROOFLINE,
    FAILURES,
    KERNELS,
    MEASUREMENTS,
    PAIRED_COMPARISONS,
    ROOFLINE,
)
from services.analyzer.table import Table
from services.analyzer.threshold_table import THRESHOLDS

RowsOf = Callable[[Table], pl.LazyFrame]

SWEEP_TABLES: Final = (ROOFLINE, COUNTED_ROOFLINE, KERNELS, BEST, COUNTED_WORK)


def sweep_table(table: Table, rows_of: RowsOf) -> pl.LazyFrame:
    """Rows of one of SWEEP_TABLES, or what `rows_of` says of any other table.

    Args:
        rows_of: of a table that is not worked out here, every row of the runs asked for.
    """
    if table in (ROOFLINE, COUNTED_ROOFLINE):
        place = roofline if table is ROOFLINE else counted_roofline
        return place(rows_of(MEASUREMENTS), rows_of(CEILINGS), sweep_table(COUNTED_WORK, rows_of), rows_of(THRESHOLDS))
    if table is KERNELS:
        return kernel_summary(rows_of(CONFIGURATIONS), rows_of(MEASUREMENTS), rows_of(FAILURES), sweep_table(ROOFLINE, rows_of))
    if table is BEST:
        return best(rows_of(MEASUREMENTS), rows_of(PAIRED_COMPARISONS), sweep_table(ROOFLINE, rows_of))
    if table is COUNTED_WORK:
        return counted_work(rows_of(COUNTERS), rows_of(COUNTER_REPORTS), rows_of(CONFIGURATIONS))
    return rows_of(table)
