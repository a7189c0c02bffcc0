"""All imports of one dashboard, on their way and lately ended: every tab shows them, whoever has begun them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import CancelledError, LimitReachedError, NotFoundError, UnmetConditionError
from kernalyse.services.core.model import Run
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.uploads.trace_import import FileToImport, ImportState, TraceImport

MAX_LISTED: Final = 40
"""Beyond, ended ones are forgotten, the oldest first; their runs stay in the lists of runs."""

MAX_UNDER_WAY: Final = 64
"""Each holds a stream of the analyzer open."""

SILENCE_S: Final = 60.0
"""Without a byte: the browser has gone. The stream ends, and the analyzer keeps for an hour what has arrived."""


class Imports:
    """On the server's loop."""

    def __init__(self, client: AnalyzerClient) -> None:
        self._client = client
        self._imports: dict[str, TraceImport] = {}
        self._own: dict[Path, asyncio.Task[Run]] = {}
        self._watchers: set[Callable[[], None]] = set()
        self._version = 0

    @property
    def version(self) -> int:
        """Counts changes."""
        return self._version

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Answers with what ends the watching."""
        self._watchers.add(on_change)
        return lambda: self._watchers.discard(on_change)

    def newest_first(self) -> tuple[TraceImport, ...]:
        return tuple(reversed(self._imports.values()))

    def begin(self, files: tuple[FileToImport, ...]) -> TraceImport:
        """A new import, or the one of the same files that has broken off.

        Raises LimitReachedError.
        """
        for known in self.newest_first():
            if known.files == files and known.state is ImportState.RECEIVING:
                return known
        return self._added(TraceImport(self._client, files, self._changed))

    async def take_up(self, files: tuple[FileToImport, ...], upload_id: str) -> TraceImport:
        """One that a dashboard which has ended began.

        Raises KernalyseError: LimitReachedError, or the analyzer stays away.
        """
        known = self._imports.get(upload_id)
        if known is not None:
            return known
        made = self._added(TraceImport(self._client, files, self._changed, upload_id))
        await made.take_up()
        return made

    def is_sending(self, path: Path) -> bool:
        """Whether a file of this machine is on its way."""
        return path in self._own

    async def send(self, path: Path) -> Run:
        """Imports a file of this machine; who asks for one that is on its way waits for the same run.

        Raises KernalyseError.
        """
        if path not in self._own:
            self._own[path] = asyncio.ensure_future(self._send(path))
        return await asyncio.shield(self._own[path])

    async def _send(self, path: Path) -> Run:
        try:
            data = await asyncio.to_thread(path.read_bytes)
            upload = self.begin((FileToImport(path.name, len(data), 0),))
            while not upload.state.is_final:
                if upload.state is ImportState.RECEIVING:
                    await upload.write(upload.claim(), upload.extent, data[upload.extent.offset_bytes :])
                else:
                    await upload.settled.wait()
        finally:
            del self._own[path]
            self._changed()
        if upload.run is not None:
            return upload.run
        if upload.state is ImportState.CANCELLED:
            raise CancelledError(f"import of {path.name}", found="cancelled")
        raise UnmetConditionError(f"import of {path.name}", found=upload.problem)

    def _added(self, made: TraceImport) -> TraceImport:
        if sum(not known.state.is_final for known in self._imports.values()) >= MAX_UNDER_WAY:
            raise LimitReachedError(
                f"import of {made.files[0].file_name}",
                found=f"{MAX_UNDER_WAY} imports under way",
                expected="fewer",
                remedy="Wait until one has ended, or cancel one.",
            )
        self._imports[made.upload_id] = made
        ended = [known.upload_id for known in self._imports.values() if known.state.is_final]
        for upload_id in ended[: max(0, len(self._imports) - MAX_LISTED)]:
            del self._imports[upload_id]
        self._changed()
        return made

    def find(self, upload_id: str) -> TraceImport:
        """Raises NotFoundError."""
        found = self._imports.get(upload_id)
        if found is None:
            raise NotFoundError(f"import {upload_id}", found="none of this id here", remedy="Choose the file again.")
        return found

    def forget(self, upload_id: str) -> None:
        """Takes one that has ended from the list."""
        if upload_id in self._imports and self._imports[upload_id].state.is_final:
            del self._imports[upload_id]
            self._changed()

    async def leave_silent(self) -> None:
        """Ends the streams of browsers that have gone."""
        now = time.monotonic()
        silent = [known for known in self._imports.values() if now - known.last_arrival_s > SILENCE_S]
        await asyncio.gather(*(known.leave() for known in silent))

    def _changed(self) -> None:
        self._version += 1
        for watcher in tuple(self._watchers):
            watcher()
