"""Files that a run left on its node, on their way into private files here; a transfer that breaks off goes on where it broke.

Their bytes are what is remembered of it: whoever comes next, another process too, counts them and their digest, and asks for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.analyzer.node_link import NodeLink
from services.analyzer.trace_arrival import Arrival, ArrivedTrace, TracePart


@dataclass(frozen=True, slots=True)
class WantedFile:
    """An artifact as its run has announced it. is_trace: the first of its trace; those after it belong to it."""

    artifact_name: str
    digest: str
    size_bytes: int
    is_trace: bool


class ArtifactFetch:
    """Of one run. What has come stays in the folder until `discard`.

    Args:
        folder: of this run; may hold what an earlier one of its fetches has left.
    """

    def __init__(self, files: Sequence[WantedFile], folder: Path, max_bytes: int) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self.is_continued = any(folder.iterdir())
        self._files = files
        self._arrival = Arrival(folder, max_bytes)

    async def go_on(self, link: NodeLink, run_id: str) -> None:
        """Fetches what is still missing.

        Raises:
            InvalidTraceError: the bytes do not have the digest that the run announced. Those that were there before may be why.
            LimitReachedError: they are more than the arrival takes.
            NodeUnreachableError, RunNotFoundError, ArtifactNotFoundError: as the node answers.
            OSError: there is no room.
        """
        try:
            await asyncio.to_thread(self._take_up)
            extent = self._arrival.extent
            offset_bytes = extent.offset_bytes
            for number, file in enumerate(self._files[extent.whole_file_count :], extent.whole_file_count):
                self._arrival.take(self._beginning(number, "", offset_bytes))
                async for chunk in link.artifact_chunks(run_id, file.artifact_name, offset_bytes):
                    self._arrival.take(TracePart("", chunk, ""))
                self._arrival.take(TracePart("", b"", file.digest))
                offset_bytes = 0
        finally:
            self._arrival.pause()

    def _take_up(self) -> None:
        for number, file in enumerate(self._files):
            if not self._arrival.take_up(self._beginning(number, file.digest), file.size_bytes):
                return

    def _beginning(self, number: int, digest: str, offset_bytes: int = 0) -> TracePart:
        file = self._files[number]
        return TracePart(file.artifact_name, b"", digest, offset_bytes=offset_bytes, is_further_trace=file.is_trace and number > 0)

    def whole(self) -> tuple[ArrivedTrace, ...]:
        return self._arrival.whole()

    def discard(self) -> None:
        self._arrival.discard()
