"""The document of a run, or of two that are compared: the report's own words and tables around the charts."""

from __future__ import annotations

from services.core.report import DrawingTask, Section
from services.ui.charts.names import plain
from services.ui.report.comparison_charts import comparison_charts
from services.ui.report.document import Document, FigureTable
from services.ui.report.run_charts import Tables, run_charts


def run_document(task: DrawingTask, tables: Tables) -> Document:
    """tables: of the run by their names; of a comparison as `comparison_charts` has them."""
    charts = comparison_charts(tables, task.run_id, task.baseline_run_id) if task.baseline_run_id else run_charts(tables)
    facts = [(plain(name), plain(value)) for section in task.report.sections for name, value in section.facts]
    details = [_table(section) for section in task.report.sections if section.sentences or section.rows]
    return Document(plain(task.title), facts, charts, details=details)


def _table(section: Section) -> FigureTable:
    numeric = tuple(heading for heading, right in zip(section.headings, section.is_numeric, strict=True) if right)
    rows = [[plain(cell) for cell in row] for row in section.rows]
    return FigureTable(section.title, section.headings, numeric, rows, " ".join(section.footnotes), [*map(plain, section.sentences)])
