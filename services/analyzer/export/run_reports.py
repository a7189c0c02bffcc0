"""Reports of runs in a store, and of comparisons of two runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import Difference
from kernalyse.services.analyzer.export.report_files import LazyTableLookup, ReportFiles, report_files, run_report_files
from kernalyse.services.analyzer.export.report_sections import comparison_report
from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import ContinuedSweepSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.derived import HISTORY
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import Device, Run
from kernalyse.services.core.report import DrawingTask, ReportFormat

HistoryOfRun = Callable[[str], pl.DataFrame]
TRACE_COMPARISON_TABLE_NAMES: Final = ("kernel_comparison", "layer_comparison")


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A report to write, in one or more formats.

    baseline: the run to compare with; None: a report of the run alone. allowed_differences: between compared measurements.
    """

    run: Run
    formats: tuple[ReportFormat, ...]
    baseline: Run | None = None
    allowed_differences: frozenset[Difference] = frozenset()


def run_report(store: Store, request: ReportRequest, history_of_run: HistoryOfRun) -> ReportFiles:
    """Return the content of the report's files.

    Args:
        history_of_run: returns the rows of table history, by run_id.

    Raises:
        InvalidRequestError: the runs cannot be compared.
        BackendUnavailableError, LimitReachedError, InternalError: as `kernalyse.services.analyzer.export.report_files.draw_report` raises.
    """
    if request.baseline is None:
        run = request.run
        rows_of = _rows(store, [run.run_id])

        def with_history(name: str) -> pl.LazyFrame:
            return history_of_run(run.run_id).lazy() if name == HISTORY.table_name else rows_of(name)

        return run_report_files(run, with_history, request.formats, _device(store, run))
    return _comparison_report(store, request, request.baseline)


def _comparison_report(store: Store, request: ReportRequest, baseline: Run) -> ReportFiles:
    run, run_ids = request.run, [baseline.run_id, request.run.run_id]
    rows_of = _rows(store, run_ids, request.allowed_differences)

    def table_of(name: str) -> pl.DataFrame:
        return rows_of(name).collect()

    report = comparison_report(run, baseline, table_of, lambda side: _device(store, side))
    names = TRACE_COMPARISON_TABLE_NAMES if run.is_trace and baseline.is_trace else ("comparison",)
    return report_files(
        DrawingTask(request.formats, report, run.run_id, report.title, baseline.run_id),
        lambda: {name: table_of(name) for name in (*names, "roofline", "ceilings")},
    )


def _rows(store: Store, run_ids: Sequence[str], allowed: frozenset[Difference] = frozenset()) -> LazyTableLookup:
    return lambda name: resolve_table(find_table(name), ContinuedSweepSource(store, run_ids, allowed))


def _device(store: Store, run: Run) -> Device | None:
    return None if run.device_id is None else store.hardware.device(run.node_id, run.device_id)
