"""Questions of pages and the filters that hold for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl

import panel as pn
import polars as pl
import pytest

from kernalyse.services.core.errors import NotFoundError
from kernalyse.services.core.model import Filter, FilterOperator, TableQuery
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.chosen_row import NO_SAMPLES, ChosenRow
from kernalyse.services.ui.data.client import AnalyzerClient, TablePage
from kernalyse.services.ui.data.filters import MAX_LENGTH, is_wanted, whole
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.row_facts import RowLinks
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import View, to_query

ROWS = pl.DataFrame(
    {
        "kernel_name": ["matmul_tiled", "MatMul_naive", "saxpy", None],
        "dtype": ["float32", "float16", "float32", None],
        "model_name": [None, "bert", "bert", None],
        "batch_size": [None, 8, 16, None],
    }
)


def settle(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_newer_question_replaces_one_on_its_way() -> None:
    heard: list[str] = []
    question: Question[str] = Question(lambda: heard.append(str(question.answer)))

    async def answer(text: str) -> str:
        await asyncio.sleep(0)
        return text

    def scenario() -> None:
        question.ask("old", lambda: answer("old"))
        question.ask("new", lambda: answer("new"))
        question.ask("new", lambda: answer("never asked again"))

    settle(scenario)
    assert (heard, question.answered, question.problem) == (["new"], "new", "")


def test_one_subject_is_asked_again_when_it_has_gone_on_and_not_too_soon() -> None:
    counted: list[int] = []
    question: Question[int] = Question(lambda: None)

    async def count() -> int:
        counted.append(1)
        return len(counted)

    for progress, interval_s in ((1, 0.0), (1, 0.0), (2, 0.0), (3, 1e9)):
        settle(lambda progress=progress, interval_s=interval_s: question.ask("rows", count, progress, interval_s))  # type: ignore[misc]
    assert question.answer == 2


def test_an_answer_stays_when_the_next_one_fails() -> None:
    question: Question[str] = Question(lambda: None)

    async def answer() -> str:
        return "rows"

    async def fail() -> str:
        raise NotFoundError("run x", found="none", expected="a run", remedy="Look at the list.")

    settle(lambda: question.ask(1, answer))
    settle(lambda: question.ask(2, fail))
    assert question.answer == "rows"
    assert question.problem.startswith("run x: found none")


def test_batch_size_data_type_and_model_filter_rows() -> None:
    def left(**chosen: str) -> list[str | None]:
        return filters.filtered(ROWS, View(**chosen))["kernel_name"].to_list()

    assert left(kernel="matmul") == ["matmul_tiled", "MatMul_naive"]
    assert left(kernel='"matmul"') == []
    assert left(kernel=whole("saxpy")) == ["saxpy"]
    assert left(dtype="float32") == ["matmul_tiled", "saxpy"]
    assert left(model="bert", batch_size="16") == ["saxpy"]
    assert left(device="cuda:0") == ROWS["kernel_name"].to_list()  # these rows know no device


def test_the_analyzer_is_asked_for_the_same_rows() -> None:
    state = View(kernel="mat", batch_size="8", device="cuda:0")
    assert filters.query_filters(state, ROWS.columns) == (
        Filter("kernel_name", "mat", FilterOperator.CONTAINS),
        Filter("batch_size", "8"),
    )
    assert filters.query_filters(View(kernel=whole("saxpy")), ROWS.columns) == (Filter("kernel_name", "saxpy"),)


@pytest.mark.parametrize("name", ["saxpy", "gemm<" + "float, " * 100 + ">", "gemm<" + "float, " * 1000 + ">"])
def test_a_link_means_one_kernel_or_the_beginning_of_a_name_too_long_for_it(name: str) -> None:
    view = View()
    view.read(dict(parse_qsl(to_query(View(kernel=whole(name))))))
    wanted = view.kernel
    let_through = is_wanted(pl.Series([name, name + "_v2", name.upper()]), wanted).to_list()
    assert let_through == [True, False, False] if len(name) < MAX_LENGTH else let_through[0]


def test_a_history_is_that_of_all_processes_with_one_cache() -> None:
    asked: list[TableQuery] = []

    class Client:
        async def table(self, query: TableQuery) -> TablePage:
            asked.append(query)
            return TablePage(pl.DataFrame({"series": ["key"]}), 1)

    figures = {"cache_mode": "HOT", "backend": "OPENCL", "device_id": "opencl:intel:0"}
    row = ChosenRow("run.0", "run", "saxpy", "saxpy N=8 hot process=2", figures, NO_SAMPLES, 0)
    links = RowLinks(Client(), lambda: None)  # type: ignore[arg-type]

    def ask() -> None:
        links.of(row, 0)

    settle(ask)
    assert Filter("label", "saxpy N=8") in asked[0].filters
    assert Filter("cache_mode", "HOT") in asked[0].filters

    def look() -> None:
        (history,) = (link.href for link in links.of(row, 0) if link.title == "Its history")
        assert parse_qs(history.partition("?")[2]) == {"kernel": ['"saxpy"'], "subject": ["configuration"], "series": ["key"]}

    settle(look)


def test_only_what_can_be_chosen_is_offered() -> None:
    context = Context(AnalyzerClient.__new__(AnalyzerClient), View(category="matmul"), Browser(), lambda: None)
    widgets = Filters(context)
    widgets.offer(filters.values_of(ROWS))
    selects: list[Any] = widgets.layout.select(pn.widgets.Select)
    offered = {widget.label: list(widget.options.values()) for widget in selects if widget.visible}
    assert offered == {"Category": ["", "matmul"], "Data type": ["", "float16", "float32"], "Batch size": ["", "8", "16"]}
