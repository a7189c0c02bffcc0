"""Components of the page Kernels without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.ui.components.kernel_charts import ChartedRows, HeatmapChart, PerformanceChart
from kernalyse.services.ui.components.kernel_detail import listing_text
from kernalyse.services.ui.components.kernels import KernelTable
from kernalyse.services.ui.components.table import headings_of
from kernalyse.services.ui.data.table_columns import COLUMNS
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import KernelsView, View
from tests.unit.ui.test_ui_outage import Client, updated

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, which Bokeh's sources still use

PLACES = [("a", "x", 1e9), ("a", "y", 2e9), ("b", "x", 3e9)]


def placed() -> pl.DataFrame:
    """Two kernels of two models; b has no result of model y."""
    rows = [
        {
            "run_id": "run", "configuration_index": index, "kernel_name": kernel, "label": f"{kernel} {model}", "model_name": model,
            "category": "matmul", "dtype": "float32", "duration_median_ns": 1_000.0, "achieved_flop_per_s": rate,
            "intensity_flop_per_byte": 2.0, "parameters": "{}", "is_implausible": False,
        }
        for index, (kernel, model, rate) in enumerate(PLACES)
    ]  # fmt: skip
    return frame_from_rows(find_table("roofline"), rows)


def context_of(**tables: pl.DataFrame) -> Context:
    names = ("configurations", "roofline", "failures", "kernels", "measurements")
    return Context(Client(**{name: find_table(name).empty() for name in names} | tables), View(runs=["run"]), Browser(), lambda: None)


def updating(context: Context, part: KernelTable | HeatmapChart | PerformanceChart) -> Iterator[None]:
    while True:
        context.begin_update()
        part.update()
        context.end_update()
        yield


async def test_the_heatmap_is_walked_through_cell_by_cell() -> None:
    context, view = context_of(roofline=placed()), KernelsView()
    chart = HeatmapChart(context, view)
    await updated(updating(context, chart).__next__)
    assert (chart._axes["heat_x"].value, chart._axes["heat_y"].value) == ("kernel", "model")
    chart.walk("here")
    assert chart._walked.said.startswith("kernel b, model x: 3.00 Gflop/s")
    chart.walk("up")
    assert chart._walked.said == "kernel b, model y: no figure, no configuration of these runs lies here."
    chart.walk("choose")
    assert view.configuration == ""
    chart.walk("left")
    chart.walk("choose")
    assert view.configuration == "run.1"
    chart.walk("away")
    assert (chart._walked.said, chart.figure.row_count("pointed")) == ("", 0)


async def test_bars_begin_with_the_best_and_a_click_on_one_chooses_it() -> None:
    context, view = context_of(roofline=placed()), KernelsView()
    chart = PerformanceChart(context, view)
    await updated(updating(context, chart).__next__)
    assert [chart.figure.text("bars", "label", place) for place in range(2)] == ["b x", "a y"]
    assert chart.has_rows
    chart.choose("run.2")
    assert view.configuration == "run.2"


async def test_without_rows_charts_say_why() -> None:
    context, view = context_of(), KernelsView()
    for chart in (HeatmapChart(context, view), PerformanceChart(context, view)):
        await updated(updating(context, chart).__next__)
        assert "No configuration of these runs matches the filters" in str(chart.card.note.object)
        assert "Download" not in str(chart.layout[0].object)


async def test_rows_lead_to_their_detail_and_names_are_escaped() -> None:
    row = {"run_id": "run", "configuration_index": 7, "label": "<b>gemm</b>", "dtype": "float32", "verification_state": "FAILED"}
    context, view = context_of(measurements=frame_from_rows(find_table("measurements"), [row])), KernelsView(configuration="run.7")
    table = KernelTable(context, view, ChartedRows(context, view))
    await updated(updating(context, table).__next__)
    shown = table._rows.table.value
    assert 'href="?configuration=run.7&amp;listing="' in shown["Configuration"][0]
    assert "&lt;b&gt;gemm" in shown["Configuration"][0]
    assert "problem" in shown["Result"][0]
    assert table._rows.table.selection == [0]
    assert "/download/measurements.csv?runs=run" in str(table._download.object)
    table._columns._choose_all(None)
    assert view.columns == [column.name for column in COLUMNS["measurements"]]
    view.table = "kernels"
    assert view.columns == []


def test_long_texts_take_the_room_that_other_columns_leave() -> None:
    few = [column for column in COLUMNS["measurements"] if column.name in ("label", "duration_median_ns")]
    assert headings_of(few)[0].column.width_px is None
    assert all(heading.column.width_px for heading in headings_of(COLUMNS["measurements"]))


def test_listings_are_escaped_and_numbered() -> None:
    text = listing_text(b"<script>\nlast")
    assert "&lt;script&gt;\nlast" in text
    assert ">1\n2<" in text
