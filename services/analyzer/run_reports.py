"""Reports of the runs in a store."""

from __future__ import annotations

from services.analyzer.run_tables import run_table
from services.analyzer.schema import table_named
from services.analyzer.store import Store
from services.analyzer.writers.report import ReportFormat, written_report
from services.analyzer.writers.report_sections import report_of
from services.core.model import Run


def run_report(store: Store, run: Run, chosen: ReportFormat) -> str:
    """The whole file."""
    report = report_of(run, lambda name: run_table(store, table_named(name), [run.run_id]).collect())
    return written_report(report, chosen)
