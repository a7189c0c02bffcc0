"""Imports that are under way: how far they are, for who watches them, and their end, for who cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from services.core.model import ImportProgress, ImportStage

BEGIN_TIMEOUT_S: Final = 10.0
"""For an import to begin that is watched already: two calls of one client may overtake each other."""


@dataclass(slots=True)
class ImportUnderWay:
    """One upload. version: counts what was told."""

    progress: ImportProgress = field(default_factory=ImportProgress)
    version: int = 0
    is_over: bool = False
    is_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, stage: ImportStage, trace_count: int) -> None:
        self._set(replace(self.progress, stage=stage, trace_count=trace_count))

    def tell_read(self) -> None:
        """One more trace has been read."""
        self._set(replace(self.progress, read_trace_count=self.progress.read_trace_count + 1))

    def end(self) -> None:
        self.is_over = True
        self._set(self.progress)

    def _set(self, progress: ImportProgress) -> None:
        self.progress = progress
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()


class ImportsUnderWay:
    """By upload_id."""

    def __init__(self) -> None:
        self._imports: dict[str, ImportUnderWay] = {}
        self._begun = asyncio.Condition()

    async def begin(self, upload_id: str) -> ImportUnderWay:
        """Of an upload without an id nobody can ask."""
        found = ImportUnderWay()
        if upload_id:
            async with self._begun:
                self._imports[upload_id] = found
                self._begun.notify_all()
        return found

    def end(self, upload_id: str, under_way: ImportUnderWay) -> None:
        under_way.end()
        if self._imports.get(upload_id) is under_way:  # not when another stream continues the upload by now
            del self._imports[upload_id]

    def cancel(self, upload_id: str) -> None:
        """Nothing happens when there is none."""
        if upload_id in self._imports:
            self._imports[upload_id].is_cancelled.set()

    async def watch(self, upload_id: str) -> AsyncIterator[ImportProgress]:
        """How far it is now, and each change, until it is over. Nothing when it does not begin in time."""
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S), self._begun:
                await self._begun.wait_for(lambda: upload_id in self._imports)
        except TimeoutError:
            return
        under_way = self._imports.get(upload_id)
        version = None
        while under_way is not None and not under_way.is_over:
            changed = under_way.changed
            if under_way.version != version:
                version = under_way.version
                yield under_way.progress
            else:
                await changed.wait()
