"""Figures of pages are copies: Bokeh must not be able to tell them from those that it makes itself."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.core.property.validation import validate
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc
from bokeh.models import FixedTicker

from kernalyse.services.ui import kept_charts, page_document
from kernalyse.services.ui.charts import heatmap, strips
from kernalyse.services.ui.charts.elements import bokeh_theme
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.kept_charts import keep, take_kept
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.preparation import Preparation
from kernalyse.services.ui.theme import LIGHT, Palette

LAYERS = ("finished", "samples", "intervals", "medians")


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[EmptyChart]:
    """One whose marks are chosen by clicks and one without, rendered for these tests alone."""
    monkeypatch.setattr(EmptyChart, "known", [])
    return [EmptyChart(_strips), EmptyChart(_heatmap)]


def _strips(palette: Palette) -> Any:
    return strips.strip_chart(strips.no_samples(), strips.no_samples(), *strips.no_medians(), palette)


def _heatmap(palette: Palette) -> Any:
    return heatmap.heatmap_chart(*heatmap.no_cells(), palette)


def document_of(**roots: Any) -> Document:
    document = Document()
    document.theme = bokeh_theme(LIGHT)
    page_document.fill(document, roots)
    return document


def sent(document: Document) -> Any:
    """Without what tells one copy's ids from another's."""
    return json.loads(re.sub(r"one-p\d+-", "one-", json.dumps(document.to_json(deferred=False))))["roots"]


def sent_by_bokeh(document: Document) -> Any:
    return json.loads(re.sub(r"one-p\d+-", "one-", json.dumps(Document.to_json(document, deferred=False))))["roots"]


def test_a_page_is_sent_as_bokeh_would_send_it(charts: list[EmptyChart]) -> None:
    for chart in charts:
        first, second = (document_of(chart=chart.figure("one", LIGHT)) for _ in range(2))
        assert sent(first) == sent_by_bokeh(first)
        assert sent(second) == sent(first)  # by then from what the first was sent
        assert {model.id for model in first.models} == {model.id for model in Document.from_json(Document.to_json(first)).models}


def test_a_page_that_is_sent_while_a_chart_is_drawn_in_another_thread_keeps_its_colours(charts: list[EmptyChart]) -> None:
    document = document_of(chart=charts[0].figure("one", LIGHT))
    with validate(False):  # as HoloViews does, for all threads
        unchecked = sent(document)
    assert unchecked == sent_by_bokeh(document)


def test_what_has_changed_is_sent_and_no_other_copy_changes(charts: list[EmptyChart]) -> None:
    chart = charts[0]
    before = sent(document_of(one=chart.figure("one", LIGHT)))
    figure = LiveFigure("one", chart, LIGHT, LAYERS)
    figure.stream("medians", {name: np.array(["a"]) for name in strips.no_medians()[0]})
    figure.follow("x", 2.0, 5.0)
    figure.figure.yaxis[0].axis_label = "Other"
    figure.figure.toolbar.tools.pop()
    document = document_of(one=figure.figure)
    assert sent(document) == sent_by_bokeh(document)
    assert '"Other"' in json.dumps(sent(document))
    assert sent(document_of(one=chart.figure("one", LIGHT))) == before


def test_two_figures_of_one_chart_share_a_document(charts: list[EmptyChart]) -> None:
    one, two = (LiveFigure(name, charts[0], LIGHT, LAYERS) for name in ("one", "two"))
    document = document_of(one=one.figure, two=two.figure)
    assert len(list(document.models)) == len(one.figure.references()) + len(two.figure.references())
    one.follow("x", 0.0, 7.0)
    assert two.figure.x_range.end != 7.0


def test_a_model_that_comes_later_belongs_to_the_document(charts: list[EmptyChart]) -> None:
    figure = LiveFigure("one", charts[0], LIGHT, LAYERS)
    document = document_of(one=figure.figure)
    old = figure.figure.xaxis[0].major_label_policy
    figure.name_ticks({0: "a"})
    (ticker,) = [model for model in document.models if isinstance(model, FixedTicker)]
    assert ticker.document is document
    assert old.document is None


def test_other_names_at_the_same_places_take_the_place_of_those_before(charts: list[EmptyChart]) -> None:
    figure = LiveFigure("one", charts[0], LIGHT, LAYERS)
    axis = figure.figure.xaxis[0]
    for name in ("", "resnet", "bert"):
        figure.name_ticks({0: name})
        assert axis.major_label_overrides == {0: name}


def test_names_lie_flat_below_a_chart_where_there_is_room(charts: list[EmptyChart]) -> None:
    figure = LiveFigure("one", charts[0], LIGHT, LAYERS)
    axis, slant = figure.figure.xaxis[0], 0.5
    figure._slant = slant
    found = []
    for names in (["matmul_naive", "matmul_tiled"], ["matmul_naive", "matmul_tiled", "matmul_registers"], ["128"] * 8):
        figure.name_ticks(dict(enumerate(names)))
        found.append(axis.major_label_orientation)
    assert found == ["horizontal", slant, "horizontal"]
    figure.name_ticks({0: "matmul_naive", 1: "matmul_tiled"}, room=20)
    assert axis.major_label_orientation == slant


def test_a_page_that_is_opened_while_a_chart_is_rendered_keeps_its_theme(charts: list[EmptyChart]) -> None:
    page = Document(theme=bokeh_theme(LIGHT))
    with patch_curdoc(page):  # of the whole process, whichever thread renders
        charts[1].rendered(LIGHT)
    assert page.theme is bokeh_theme(LIGHT)


def test_rendered_charts_are_kept_for_the_next_server(charts: list[EmptyChart], tmp_path: Path) -> None:
    expected = [sent(document_of(chart=chart.figure("one", LIGHT))) for chart in charts]
    keep(tmp_path)
    EmptyChart.known.clear()
    again = [EmptyChart(_strips), EmptyChart(_heatmap)]
    take_kept(tmp_path)
    assert all(chart.is_rendered(LIGHT) for chart in again)
    assert [sent(document_of(chart=chart.figure("one", LIGHT))) for chart in again] == expected
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_a_file_that_cannot_be_trusted_is_not_taken(
    charts: list[EmptyChart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    charts[0].rendered(LIGHT)
    keep(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    foreign = pickle.dumps({(charts[1].name, LIGHT.name): print})
    for damaged, mode in ((content[:-9], 0o600), (content, 0o666), (hashlib.sha256(foreign).digest() + foreign, 0o600), (b"", 0o600)):
        path.write_bytes(damaged)
        path.chmod(mode)
        monkeypatch.setattr(EmptyChart, "known", [])
        chart = EmptyChart(_strips)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            take_kept(tmp_path)
        assert not chart.is_rendered(LIGHT)
        assert "could not be read" in caplog.text
    monkeypatch.setattr(kept_charts, "_file_name", lambda: "of-another-version.pickle")
    caplog.clear()
    take_kept(tmp_path)
    assert not caplog.records  # a first start is no news


def test_charts_are_prepared_while_nobody_is_served(charts: list[EmptyChart], tmp_path: Path) -> None:
    is_serving = True
    preparation = Preparation(tmp_path, lambda: is_serving)
    preparation.start()
    assert not any(chart.is_rendered(LIGHT) for chart in charts)
    is_serving = False
    try:
        deadline = time.monotonic() + 60
        while not all(chart.is_rendered(LIGHT) for chart in charts) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(chart.is_rendered(LIGHT) for chart in charts)
    finally:
        preparation.stop()
    assert list(tmp_path.iterdir())
