"""Components of the pages Compare and History without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import ImportedTrace, KernelSelection, KernelSweep, Run, RunSpec, RunState
from kernalyse.services.ui.components.compare import ComparedTable, Pair, SideChoice
from kernalyse.services.ui.components.history import Histories, HistoryTable
from kernalyse.services.ui.components.table import Extent, extent_of
from kernalyse.services.ui.pages import ComparePage
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import CompareView, HistoryView, PagedView, View
from tests.unit.ui.test_ui_outage import Client, updated

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, which Bokeh's sources still use

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def trace(run_id: str, minute: int) -> Run:
    created = TIME + timedelta(minutes=minute)
    return Run(
        run_id, "", RunSpec(ImportedTrace("a.json", f"sha256:{minute}", "kineto"), title="a"), RunState.SUCCEEDED, create_time=created
    )


def context_of(*runs: Run, **tables: pl.DataFrame) -> Context:
    return Context(Client(*runs, **tables), View(), Browser(), lambda: None)


def updating(context: Context, *parts: Pair | SideChoice | ComparedTable | Histories | HistoryTable) -> Iterator[None]:
    while True:
        context.begin_update()
        for part in parts:
            part.update()
        context.end_update()
        yield


async def test_without_two_runs_the_table_says_so() -> None:
    context, view = context_of(), CompareView()
    table = ComparedTable(context, Pair(context, view))
    await updated(updating(context, table).__next__)
    assert "no two runs" in str(table._note.object)
    assert not table._place.visible


async def test_a_choice_names_both_sides_and_forgets_what_was_allowed() -> None:
    runs = (trace("c", 3), trace("b", 2), trace("a", 1))
    context, view = context_of(*runs), CompareView(allow="device")
    sides = SideChoice(context, Pair(context, view))
    next(updating(context, sides))
    assert [choice.value for choice in sides._choices.values()] == ["b", "c"]
    sides._choices["baseline"].value = "a"
    assert (view.baseline, view.candidate, view.allow) == ("a", "c", "")


async def test_rows_of_two_traces_are_listed_by_name() -> None:
    row = {"kernel_name": "gemm<float>", "occurrence": "NEW", "duration_sum_ns": 1_000, "duration_delta_ns": 1_000, "launch_count": 2}
    compared = frame_from_rows(find_table("kernel_comparison"), [row])
    context, view = context_of(trace("b", 2), trace("a", 1), kernel_comparison=compared), CompareView()
    table = ComparedTable(context, Pair(context, view))
    await updated(updating(context, table).__next__)
    shown = table._rows.table.value
    assert "gemm&lt;float&gt;" in shown["Kernel"][0]
    assert (shown["Time after"][0], shown["Launches after"][0]) == ("1.00 µs", "2")
    assert "sort=kernel_name" in table._rows.table.titles["Kernel"]


async def test_one_run_on_both_sides_is_said_in_words_and_draws_nothing() -> None:
    sweep = replace(trace("s", 1), spec=RunSpec(KernelSweep((KernelSelection("saxpy"),))))
    nothing = {name: find_table(name).empty() for name in ("paired_comparisons", "measurements")}
    context, view = context_of(sweep, **nothing), CompareView(baseline="s", candidate="s")
    page = ComparePage(context, view)
    (table,) = (part for part in page.parts if isinstance(part, ComparedTable))
    context.client.nodes.receive((), (sweep,), (), True)

    def update() -> str:
        context.begin_update()
        page.update()
        context.end_update()
        return str(table._note.object)

    assert "Both sides are one and the same run" in await updated(update)
    shown = [part for part in page.layout if part.visible]
    assert len(shown) == 2  # the choice of sides and the table
    page.close()


async def test_without_a_history_the_table_says_so() -> None:
    context, view = context_of(history_series=find_table("history_series").empty()), HistoryView()
    table = HistoryTable(context, Histories(context, view))
    await updated(updating(context, table).__next__)
    assert "Nothing has a history yet" in str(table._note.object)


@pytest.mark.parametrize(
    ("row", "total", "expected"), [(0, 60, (0, 25, 1, 3)), (50, 60, (50, 60, 3, 3)), (75, 60, (0, 25, 1, 3)), (0, 0, (0, 0, 1, 1))]
)
def test_rows_that_a_view_asks_for(row: int, total: int, expected: tuple[int, int, int, int]) -> None:
    extent: Extent = extent_of(PagedView(row=row), total)
    assert (extent.first, extent.end, extent.page, extent.page_count) == expected


def test_links_of_before_open_the_same_view() -> None:
    query = {"baseline": "a", "candidate": "b", "verdict": "SLOWER", "sort": "label", "descending": "1", "row": "50", "row_count": "50"}
    view = CompareView()
    view.read(query)
    assert view.written() == query
    of_history = {"metric": "noise_ratio", "subject": "layer", "across": "runs", "series": "k", "row": "25"}
    history = HistoryView()
    history.read(of_history)
    assert history.written() == of_history
