"""The document of a run, or of two that are compared: the report's own words and tables around the charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import comparison_disturbance_notes
from kernalyse.services.core.report import UNKNOWN, DrawingTask, Section
from kernalyse.services.ui.charts import compare, roofline
from kernalyse.services.ui.charts.elements import plain
from kernalyse.services.ui.report.document import Chart, Document, FigureTable, Key
from kernalyse.services.ui.report.run_charts import Tables, roofline_of, run_charts
from kernalyse.services.ui.theme import LIGHT

NAME_LENGTH: Final = 44
"""A page has more room than the dashboard has on a telephone."""


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


def comparison_charts(tables: Tables, run_id: str, baseline_run_id: str) -> list[Chart]:
    """Those that there are rows for.

    Args:
        tables: comparison, or kernel_comparison and layer_comparison; roofline and ceilings of both runs.
    """
    return [*_speed_ups(tables), *_changes(tables), *_rooflines(tables, {baseline_run_id: "before", run_id: "after"})]


def _speed_ups(tables: Tables) -> Iterator[Chart]:
    rows = tables.get("comparison", pl.DataFrame())
    shown = rows if rows.is_empty() else compare.charted(rows)
    if shown.is_empty():
        return
    points, whiskers, names = compare.speedup_columns(shown, LIGHT, NAME_LENGTH)
    element = compare.speedup_chart(points, whiskers, LIGHT, compare.chart_height_px(len(names)))
    note = "Above ×1 the judged run is faster; whiskers are the interval of the ratio. Hollow: undecided."
    sides = (rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", ""))
    note = " ".join((note, *comparison_disturbance_notes(*sides)))
    key = [Key(*entry) for entry in compare.legend_of(shown, LIGHT)]
    yield Chart("Speed-up of each configuration", _with_places(element, names), "wide", note + _left_out(rows, shown.height), key)


def _changes(tables: Tables) -> Iterator[Chart]:
    for table_name, name, title in (
        ("kernel_comparison", "kernel_name", "Kernels that changed most"),
        ("layer_comparison", "layer", "Layers that changed most"),
    ):
        rows = tables.get(table_name, pl.DataFrame())
        if rows.is_empty():
            continue
        bars, names = compare.change_columns(rows, name, LIGHT, NAME_LENGTH)
        element = compare.change_chart(bars, LIGHT, compare.chart_height_px(len(names)))
        note = "Device time of the second trace less that of the first: bars to the left take less time now."
        yield Chart(title, _with_places(element, names), "wide", note + _left_out(rows, len(names)))


def _left_out(rows: pl.DataFrame, shown_count: int) -> str:
    return f" The {shown_count} that changed most, of {rows.height}." if rows.height > shown_count else ""


def _with_places(element: hv.Overlay, names: Mapping[int, str]) -> hv.Overlay:
    return element.opts(hv.opts.Overlay(yticks=[*names.items()]))


def _rooflines(tables: Tables, sides: Mapping[str, str]) -> Iterator[Chart]:
    rows = tables.get("roofline", pl.DataFrame())
    if rows.is_empty():
        return
    newest = roofline.newest_rows(rows).with_columns(run_id=pl.col("run_id").replace(dict(sides))).sort("run_id", descending=True)
    if not roofline.drawable(newest).is_empty():
        yield roofline_of(newest, tables.get("ceilings", pl.DataFrame()), "Rooflines of both runs", "run_id")
