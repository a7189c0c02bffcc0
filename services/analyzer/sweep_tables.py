"""The tables that are worked out from measurements, wherever their rows lie: in a store, or in a file just read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from services.analyzer.analyses.best import best
from services.analyzer.analyses.counted_work import counted_work
from services.analyzer.analyses.model_layers import layer_variants, model_layer_roofline, model_layers
from services.analyzer.analyses.model_opportunities import model_opportunities
from services.analyzer.analyses.model_passes import models, timed_so_far
from services.analyzer.analyses.model_tree import model_layer_kernels, model_layer_tree
from services.analyzer.analyses.roofline import counted_roofline, roofline
from services.analyzer.analyses.summary import kernel_summary
from services.analyzer.answer_tables import LAYERS, OPPORTUNITIES
from services.analyzer.comparison_table import PAIRED_COMPARISONS
from services.analyzer.counter_tables import COUNTED_WORK, COUNTER_REPORTS, COUNTERS
from services.analyzer.model_tables import LAYER_VARIANTS, MODELS
from services.analyzer.roofline_tables import COUNTED_ROOFLINE, LAYER_ROOFLINE, ROOFLINE
from services.analyzer.schema import BEST, CEILINGS, CONFIGURATIONS, FAILURES, KERNELS, MEASUREMENTS, SAMPLES
from services.analyzer.table import Table
from services.analyzer.threshold_table import THRESHOLDS
from services.analyzer.tree_tables import LAYER_KERNELS, LAYER_TREE, TREE_TABLES

RowsOf = Callable[[Table], pl.LazyFrame]

LAYERED_TABLES: Final = (LAYERS, LAYER_ROOFLINE, OPPORTUNITIES, LAYER_VARIANTS, *TREE_TABLES)
"""Of runs of models; of traces there are such tables too."""

SWEEP_TABLES: Final = (ROOFLINE, COUNTED_ROOFLINE, KERNELS, BEST, COUNTED_WORK, MODELS, *LAYERED_TABLES)


def sweep_table(table: Table, rows_of: RowsOf, depth: int | None = None) -> pl.LazyFrame:
    """Rows of one of SWEEP_TABLES, or what `rows_of` says of any other table.

    Args:
        rows_of: of a table that is not worked out here, every row of the runs asked for.
        depth: of the layers of models; None: the innermost.
    """
    if table in (MODELS, *LAYERED_TABLES):
        return _model_table(table, rows_of, depth)
    if table in (ROOFLINE, COUNTED_ROOFLINE):
        place = roofline if table is ROOFLINE else counted_roofline
        return place(rows_of(MEASUREMENTS), rows_of(CEILINGS), sweep_table(COUNTED_WORK, rows_of), rows_of(THRESHOLDS))
    if table is KERNELS:
        return kernel_summary(rows_of(CONFIGURATIONS), rows_of(MEASUREMENTS), rows_of(FAILURES), sweep_table(ROOFLINE, rows_of))
    if table is BEST:
        return best(rows_of(MEASUREMENTS), rows_of(PAIRED_COMPARISONS), sweep_table(ROOFLINE, rows_of))
    if table is COUNTED_WORK:
        return _counted_work(rows_of)
    return rows_of(table)


def _counted_work(rows_of: RowsOf) -> pl.LazyFrame:
    counters = rows_of(COUNTERS)
    if counters.head(1).collect().is_empty():  # mostly; all configurations would be read for nothing
        return COUNTED_WORK.empty().lazy()
    return counted_work(counters, rows_of(COUNTER_REPORTS), rows_of(CONFIGURATIONS))


def _model_table(table: Table, rows_of: RowsOf, depth: int | None) -> pl.LazyFrame:
    known = (rows_of(CEILINGS), rows_of(THRESHOLDS))
    timed = timed_so_far(rows_of(CONFIGURATIONS), rows_of(MEASUREMENTS), rows_of(SAMPLES), known[0])
    if table is MODELS:
        return models(timed, *known)
    if table is LAYER_ROOFLINE:
        return model_layer_roofline(timed, *known, depth)
    if table is OPPORTUNITIES:
        return model_opportunities(timed, *known)
    if table is LAYER_TREE:
        return model_layer_tree(timed, *known)
    if table is LAYER_KERNELS:
        return model_layer_kernels(timed, *known)
    layers = model_layers(timed, *known, depth)
    return layers if table is LAYERS else layer_variants(layers, timed, rows_of(SAMPLES), depth)
