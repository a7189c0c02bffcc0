"""Figures of tabs: copies of charts that were rendered once, each with models of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc

from kernalyse.services.ui.charts import heatmap, strips
from kernalyse.services.ui.charts.elements import bokeh_theme
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.preparation import COMMAND, Preparation
from kernalyse.services.ui.theme import LIGHT, PALETTES, Palette

LAYERS = ("finished", "samples", "intervals", "medians")


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[RenderedChart]:
    """One whose marks are chosen by clicks and one without, rendered for these tests alone."""
    monkeypatch.setattr(RenderedChart, "known", [])
    return [RenderedChart(_strips), RenderedChart(_heatmap)]


def _strips(palette: Palette) -> Any:
    return strips.strip_chart(strips.no_samples(), strips.no_samples(), *strips.no_medians(), palette)


def _heatmap(palette: Palette) -> Any:
    return heatmap.heatmap_chart(*heatmap.no_cells(), palette)


def ids_of(figure: Any) -> set[str]:
    return {model.id for model in figure.references()}


def test_copies_share_no_model_with_each_other_and_one_document_holds_them_all(charts: list[RenderedChart]) -> None:
    copies = [chart.copy(LIGHT) for chart in (*charts, *charts)]
    assert len(set.union(*map(ids_of, copies))) == sum(len(ids_of(copy)) for copy in copies)
    document = Document()
    for copy in copies:
        document.add_root(copy)
    assert len(list(document.models)) == sum(len(ids_of(copy)) for copy in copies)


def test_what_changes_in_one_copy_changes_in_no_other(charts: list[RenderedChart]) -> None:
    one, two = (Figure(name, charts[0], LIGHT, LAYERS) for name in ("one", "two"))
    one.stream("medians", {name: np.array(["a"]) for name in strips.no_medians()[0]})
    one.follow("x", 0.0, 7.0)
    one.figure.yaxis[0].axis_label = "Other"
    assert (one.row_count("medians"), two.row_count("medians")) == (1, 0)
    assert two.figure.x_range.end != 7.0
    assert charts[0].copy(LIGHT).yaxis[0].axis_label != "Other"


def test_a_copy_is_drawn_as_what_was_rendered(charts: list[RenderedChart]) -> None:
    for chart in charts:
        document = Document()
        document.add_root(chart.copy(LIGHT))
        again = Document.from_json(document.to_json(deferred=False))
        (root,) = again.roots
        assert {model.id for model in root.references()} == ids_of(document.roots[0])


def test_other_names_at_the_same_places_take_the_place_of_those_before(charts: list[RenderedChart]) -> None:
    figure = Figure("one", charts[0], LIGHT, LAYERS)
    axis = figure.figure.xaxis[0]
    for name in ("", "resnet", "bert"):
        figure.name_ticks({0: name})
        assert axis.major_label_overrides == {0: name}


def test_names_lie_flat_below_a_chart_where_there_is_room(charts: list[RenderedChart]) -> None:
    figure = Figure("one", charts[0], LIGHT, LAYERS)
    axis, slant = figure.figure.xaxis[0], 0.5
    figure._slant = slant
    found = []
    for names in (["matmul_naive", "matmul_tiled"], ["matmul_naive", "matmul_tiled", "matmul_registers"], ["128"] * 8):
        figure.name_ticks(dict(enumerate(names)))
        found.append(axis.major_label_orientation)
    assert found == ["horizontal", slant, "horizontal"]
    figure.name_ticks({0: "matmul_naive", 1: "matmul_tiled"}, room=20)
    assert axis.major_label_orientation == slant


def test_a_page_that_is_opened_while_a_chart_is_prepared_keeps_its_theme(charts: list[RenderedChart]) -> None:
    page = Document(theme=bokeh_theme(LIGHT))
    with patch_curdoc(page):  # of the whole process, whichever thread renders
        charts[1].rendered(LIGHT)
    assert page.theme is bokeh_theme(LIGHT)


@pytest.mark.slow
def test_charts_are_prepared_for_each_theme_while_nobody_is_served(charts: list[RenderedChart]) -> None:
    is_serving = True
    preparation = Preparation(lambda: is_serving, rendering(charts))
    preparation.start()
    assert not any(chart.is_prepared(LIGHT) for chart in charts)
    is_serving = False
    try:
        deadline = time.monotonic() + 60
        while not _are_rendered(charts) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _are_rendered(charts)
    finally:
        preparation.stop()


def rendering(charts: list[RenderedChart]) -> tuple[str, ...]:
    """A command that renders these instead of all of the dashboard's."""
    lines = [json.dumps([chart.key, theme, chart.rendered(palette)]) for theme, palette in PALETTES.items() for chart in charts]
    for chart in charts:
        chart._rendered.clear()
    return (sys.executable, "-c", f"print({chr(10).join(lines)!r})")


@pytest.mark.slow
def test_the_process_that_renders_knows_each_chart_by_a_key_of_its_own() -> None:
    program = (
        "import json; from kernalyse.services.ui import pages; from kernalyse.services.ui.components.figure import RenderedChart; "
        "print(json.dumps([chart.key for chart in RenderedChart.known]))"
    )
    keys = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout)
    assert len(set(keys)) == len(keys) > 20
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        key, theme, rendered = json.loads(process.stdout.readline())
        process.kill()
    assert (key in keys, theme) == (True, "light")
    assert len(Document.from_json(rendered).roots) == 1


def _are_rendered(charts: list[RenderedChart]) -> bool:
    return all(chart.is_prepared(palette) for chart in charts for palette in PALETTES.values())
