"""The page Timeline without a browser: what it asks again, and what it draws of which run."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from kernalyse.services.core.demo import demo_spec
from kernalyse.services.ui.components.timeline import TimelineChart
from kernalyse.services.ui.data.timeline_questions import GAP_COLUMNS
from kernalyse.services.ui.pages import TimelinePage
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import TimelineView, View
from tests.unit.ui.test_timeline_chart import kernel, tile
from tests.unit.ui.test_ui_outage import OUTLINE, TRACE, Client, asked_again, updated

TILE = {"timeline of 1000000": tile(kernel(0, 1_000_000))}


def context_of(client: Client) -> Context:
    return Context(client, View(runs=["t"]), Browser(), lambda: None)


@pytest.mark.parametrize(
    ("tiles", "expected"),
    [
        ({}, ["kernel_launches", "timeline of 1000000", "timeline_matches", "window_summary"]),
        (TILE, ["gaps", "kernel_launches", "timeline_matches", "window_summary"]),
    ],
)
async def test_all_parts_are_asked_for_again(tiles: dict[str, pl.DataFrame], expected: list[str]) -> None:
    client = Client(TRACE, **OUTLINE, **tiles)
    page = TimelinePage(context_of(client), TimelineView(search="gemm", event="kernels.5", stretch="0..1000"))
    assert await asked_again(client, page.update) == expected
    page.close()


async def test_gaps_of_one_trace_are_not_drawn_over_another() -> None:
    gaps = pl.DataFrame([{**dict.fromkeys(GAP_COLUMNS), "process_id": 1, "device_index": 0, "start_ns": 10, "duration_ns": 500_000}])
    client = Client(TRACE, replace(TRACE, run_id="u"), **OUTLINE, **TILE, gaps=gaps)
    context = context_of(client)
    chart = TimelineChart(context, TimelineView())
    await updated(chart.update)
    assert chart.figure.bars.row_count("gaps") == 1
    del client.tables["gaps"]  # working them out takes long
    context.view.runs = ["u"]
    await updated(chart.update)
    assert chart.figure.bars.row_count("gaps") == 0
    chart.close()


async def test_a_link_to_a_run_that_is_too_old_for_the_list_shows_it() -> None:
    client = Client(**OUTLINE)
    chart = TimelineChart(context_of(client), TimelineView())
    chart.update()
    assert "Asking the analyzer" in chart._note.object
    client.looked_at["t"].receive(TRACE, {}, 1)
    await updated(chart.update)
    assert chart.outline is not None
    assert chart.figure.frame.visible
    chart.close()


async def test_a_page_without_a_timeline_has_neither_its_legend_nor_its_download() -> None:
    chart = TimelineChart(context_of(Client()), TimelineView())
    chart.update()
    assert not chart.figure.frame.visible
    assert not chart._legend.visible
    assert not chart._download.visible
    chart.close()


async def test_a_window_follows_links_and_is_written_down_where_the_user_moves() -> None:
    view = TimelineView(window="100..900")
    chart = TimelineChart(context_of(Client(TRACE, **OUTLINE, **TILE)), view)
    await updated(chart.update)
    assert str(chart.figure.view) == "100..900"
    view.window = "200..400"
    chart.update()
    assert str(chart.figure.view) == "200..400"
    chart.figure._range.update(start=250, end=450)
    chart.update()
    assert view.window == "250..450"
    chart.close()


async def test_without_a_trace_it_says_what_one_shows() -> None:
    page = TimelinePage(Context(Client(), View(), Browser(), lambda: None), TimelineView())
    page.update()
    assert list(page.layout) == [page._first.layout]
    page.close()
    page = TimelinePage(context_of(Client(replace(TRACE, spec=demo_spec()))), TimelineView())
    page.update()
    assert page._first.is_shown
    assert "This run has no trace" in page._chart._note.object
    assert not page._chart.figure.frame.visible
    page.close()
