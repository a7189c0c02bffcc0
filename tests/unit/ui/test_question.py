"""Questions of a page: the newest counts, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.ui.data.question import Question

INTERVAL_S = 0.05


class Asker:
    """A page that asks about what it shows whenever it is woken."""

    def __init__(self) -> None:
        self.subject, self.progress = "run", 0
        self.asked: list[tuple[str, int]] = []
        self.answers_may_come = asyncio.Event()
        self.answers_may_come.set()
        self.question: Question[str] = Question(self.update)

    def update(self) -> None:
        self.question.ask(self.subject, self._call(self.subject, self.progress), self.progress, INTERVAL_S)

    def _call(self, subject: str, progress: int) -> Callable[[], Coroutine[Any, Any, str]]:
        async def call() -> str:
            self.asked.append((subject, progress))
            await self.answers_may_come.wait()
            if subject == "refused":
                raise InvalidRequestError("run refused", found="no such run")
            return f"{subject} {progress}"

        return call

    async def answered(self, answer: str) -> None:
        async with asyncio.timeout(10):
            while self.question.answer != answer:
                await asyncio.sleep(0.001)


async def test_a_change_soon_after_the_last_question_is_asked_about_though_nothing_else_wakes_the_page() -> None:
    page = Asker()
    page.update()
    await page.answered("run 0")
    page.progress = 1
    page.update()
    assert page.asked == [("run", 0)]
    await page.answered("run 1")


async def test_changes_of_its_run_do_not_keep_a_first_question_from_being_answered() -> None:
    page = Asker()
    page.answers_may_come.clear()
    for progress in range(5):
        page.progress = progress
        page.update()
        await asyncio.sleep(0.001)
    assert page.asked == [("run", 0)]
    page.answers_may_come.set()
    await page.answered("run 4")
    assert page.asked == [("run", 0), ("run", 4)]


async def test_another_subject_replaces_the_question_on_its_way_at_once() -> None:
    page = Asker()
    page.answers_may_come.clear()
    page.update()
    await asyncio.sleep(0.001)
    page.subject = "other"
    page.update()
    page.answers_may_come.set()
    await page.answered("other 0")
    assert page.asked == [("run", 0), ("other", 0)]


async def test_a_refusal_is_said_and_the_answer_before_it_stays() -> None:
    page = Asker()
    page.update()
    await page.answered("run 0")
    page.subject = "refused"
    page.update()
    async with asyncio.timeout(10):
        while not page.question.problem:
            await asyncio.sleep(0.001)
    assert "no such run" in page.question.problem
    assert (page.question.answer, page.question.answered) == ("run 0", "refused")
    assert (page.question.answer_to("run"), page.question.answer_to("refused")) == ("run 0", None)


async def test_a_stopped_question_wakes_nobody() -> None:
    page = Asker()
    page.update()
    await page.answered("run 0")
    page.progress = 1
    page.update()
    page.question.stop()
    await asyncio.sleep(2 * INTERVAL_S)
    assert page.asked == [("run", 0)]
