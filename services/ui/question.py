"""What a page asks of the analyzer: the newest question counts, and its answer stays until the next one has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from services.core.errors import KernalyseError

Answer = TypeVar("Answer")


class Question(Generic[Answer]):
    """On the server's loop.

    Args:
        on_answer: called when an answer, or the reason that there is none, has come.
    """

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self.answer: Answer | None = None  # to the subject in `answered`, else to an earlier one
        self.answered: Hashable = None
        self.problem = ""  # why the newest question has no answer, one sentence
        self._on_answer = on_answer
        self._asked: Hashable = None
        self._asked_time = 0.0
        self._task: asyncio.Task[None] | None = None

    def ask(
        self, subject: Hashable, call: Callable[[], Coroutine[Any, Any, Answer]], progress: Hashable = None, min_interval_s: float = 0.0
    ) -> None:
        """Asks unless that was asked already. May be called at every update of a page.

        Args:
            subject: what is asked; another one replaces a question on its way.
            call: asks it. Raises KernalyseError.
            progress: what changes with the answer to the same subject.
            min_interval_s: between two questions of one subject.
        """
        is_other = subject != self.answered
        now = time.monotonic()
        if (subject, progress) == self._asked or (not is_other and now - self._asked_time < min_interval_s):
            return
        if self.is_on_its_way:
            if not is_other:
                return
            self.stop()
        self._asked, self._asked_time = (subject, progress), now
        self._task = asyncio.ensure_future(self._ask(subject, call))

    @property
    def is_on_its_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        """The answer is not wanted any longer."""
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, subject: Hashable, call: Callable[[], Coroutine[Any, Any, Answer]]) -> None:
        try:
            self.answer = await call()
            self.problem = ""
        except KernalyseError as error:
            self.problem = error.message
        self.answered = subject
        self._on_answer()
