"""Questions of pages and the filters that hold for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import polars as pl

from services.core.errors import NotFoundError
from services.core.model import Filter, FilterOperator
from services.ui import filters
from services.ui.question import Question
from services.ui.state import ViewState

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
        return filters.filtered(ROWS, ViewState(**chosen))["kernel_name"].to_list()  # type: ignore[arg-type]

    assert left(kernel="matmul") == ["matmul_tiled", "MatMul_naive"]
    assert left(dtype="float32") == ["matmul_tiled", "saxpy"]
    assert left(model="bert", batch_size="16") == ["saxpy"]
    assert left(device="cuda:0") == ROWS["kernel_name"].to_list()  # these rows know no device


def test_the_analyzer_is_asked_for_the_same_rows() -> None:
    state = ViewState(kernel="mat", batch_size="8", device="cuda:0")
    assert filters.query_filters(state, ROWS.columns) == (
        Filter("kernel_name", "mat", FilterOperator.CONTAINS),
        Filter("batch_size", "8"),
    )


def test_only_what_can_be_chosen_is_offered() -> None:
    state = ViewState(category="matmul")
    offered = {entry["name"]: entry["values"] for entry in filters.entries(state, filters.values_of(ROWS))}
    assert offered == {"category": ("matmul",), "dtype": ("float16", "float32"), "batch_size": ("8", "16")}
