"""The document of a run, or of two that are compared: the report's own words and tables around the charts."""

from __future__ import annotations

from kernalyse.services.core.report import UNKNOWN, DrawingTask, Section
from kernalyse.services.ui.charts.elements import plain
from kernalyse.services.ui.report.document import Document, FigureTable
from kernalyse.services.ui.report.run_charts import Tables, comparison_charts, run_charts


def run_document(task: DrawingTask, tables: Tables) -> Document:
    """tables: of the run by their names; of a comparison as `comparison_charts` has them."""
    charts = comparison_charts(tables, task.run_id, task.baseline_run_id) if task.baseline_run_id else run_charts(tables)
    facts = [(plain(name), plain(value)) for section in task.report.sections for name, value in section.facts]
    details = [_table(section) for section in task.report.sections if section.sentences or section.rows]
    return Document(plain(task.title), facts, charts, details=details)


def _table(section: Section) -> FigureTable:
    """Without columns of which nothing is known: a page has room for those that tell something."""
    columns = [place for place in range(len(section.headings)) if any(row[place] != UNKNOWN for row in section.rows)]
    headings = tuple(section.headings[place] for place in columns)
    numeric = tuple(section.headings[place] for place in columns if section.is_numeric[place])
    rows = [[plain(row[place]) for place in columns] for row in section.rows]
    return FigureTable(section.title, headings, numeric, rows, " ".join(section.footnotes), [*map(plain, section.sentences)])
