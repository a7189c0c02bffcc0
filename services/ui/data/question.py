"""What a page asks of the analyzer: the newest question counts, and its answer stays until the next one has come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from kernalyse.services.core.errors import KernalyseError

Answer = TypeVar("Answer")

_on_their_way: Final[Counter[Callable[[], None]]] = Counter()


def is_asked(on_answer: Callable[[], None]) -> bool:
    """Return whether an answer is on its way that will be told to this callback."""
    return _on_their_way[on_answer] > 0


logger = logging.getLogger(__name__)


class Question(Generic[Answer]):
    """On the server's loop.

    Args:
        on_answer: called when an answer, or the reason that there is none, has come, and when the question can be asked again.
    """

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self.answer: Answer | None = None  # the last that has come
        self.answer_subject: Hashable = None  # what it answers: a refusal leaves that to an earlier subject
        self.answered: Hashable = None
        self.problem = ""  # why the newest question has no answer, one sentence
        self._on_answer = on_answer
        self._asked: tuple[Hashable, Hashable] | None = None  # subject and progress
        self._asked_time = 0.0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, subject: Hashable, call: Callable[[], Awaitable[Answer]], progress: Hashable = None, min_interval_s: float = 0.0) -> None:
        """Asks unless that was asked already. May be called at every update of a page.

        Args:
            subject: what is asked; another one replaces a question on its way.
            call: asks it. Raises KernalyseError.
            progress: what changes with the answer to the same subject.
            min_interval_s: between two questions of one subject.
        """
        if (subject, progress) == self._asked:
            return
        now = time.monotonic()
        if self._asked is not None and subject == self._asked[0]:
            if self.is_on_its_way:  # the page asks again when it is woken by the answer
                return
            wait_s = self._asked_time + min_interval_s - now
            if wait_s > 0:
                self._wake_in(wait_s)
                return
        self.stop()
        self._asked, self._asked_time = (subject, progress), now
        answer = asyncio.ensure_future(call())
        self._task = asyncio.ensure_future(self._take(subject, answer))
        _on_their_way[self._on_answer] += 1
        self._task.add_done_callback(partial(self._arrived, answer))

    def answer_to(self, subject: Hashable) -> Answer | None:
        """The answer, if it is one to this subject."""
        return self.answer if self.answer_subject == subject else None

    @property
    def is_on_its_way(self) -> bool:
        return self._task is not None

    def stop(self) -> None:
        """The answer is not wanted any longer."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_in(self, wait_s: float) -> None:
        """Nothing else may wake the page any more: a run's last change often follows close upon the one before it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._on_answer()

    def _arrived(self, answer: asyncio.Future[Answer], _task: asyncio.Task[None]) -> None:
        answer.cancel()  # where it is not wanted any longer
        _on_their_way[self._on_answer] -= 1
        if not _on_their_way[self._on_answer]:
            del _on_their_way[self._on_answer]

    async def _take(self, subject: Hashable, answer: Awaitable[Answer]) -> None:
        try:
            self.answer = await answer
            self.answer_subject, self.problem = subject, ""
        except KernalyseError as error:
            self.problem = error.message
        except Exception as error:
            logger.exception("A page's question could not be asked")
            self.problem = f"This could not be asked: {type(error).__name__}. The log of the dashboard's server has more."
        self.answered = subject
        self._task = None
        self._on_answer()
