"""Files that a run left on its node, on their way into private files here; a transfer that breaks off goes on where it broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Of one run. What has come stays in the arrival until `discard`."""

    def __init__(self, files: Sequence[WantedFile], arrival: Arrival) -> None:
        self._files = files
        self._arrival = arrival

    async def go_on(self, link: NodeLink, run_id: str) -> None:
        """Fetches what is still missing.

        Raises:
            InvalidTraceError: the bytes do not have the digest that the run announced.
            LimitReachedError: they are more than the arrival takes.
            NodeUnreachableError, RunNotFoundError, ArtifactNotFoundError: as the node answers.
            OSError: there is no room.
        """
        extent = self._arrival.extent
        offset_bytes = extent.offset_bytes
        for number, file in enumerate(self._files[extent.whole_file_count :], extent.whole_file_count):
            is_further_trace = file.is_trace and number > 0
            self._arrival.take(TracePart(file.artifact_name, b"", "", offset_bytes=offset_bytes, is_further_trace=is_further_trace))
            async for chunk in link.artifact_chunks(run_id, file.artifact_name, offset_bytes):
                self._arrival.take(TracePart("", chunk, ""))
            self._arrival.take(TracePart("", b"", file.digest))
            offset_bytes = 0

    def whole(self) -> tuple[ArrivedTrace, ...]:
        return self._arrival.whole()

    def pause(self) -> None:
        """The link broke. Raises OSError when what is still in memory cannot be written."""
        self._arrival.pause()

    def discard(self) -> None:
        self._arrival.discard()
