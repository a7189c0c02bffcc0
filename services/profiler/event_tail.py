"""The newest events of the journal, in memory, so that many watchers do not read the database for the same bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_EVENTS_FIELD_TAG: Final = b"\x0a"
"""Field 1, length-delimited: `events` of the responses of WatchRun and of WatchNode alike."""


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """A committed event. frame: field `events` of a watch response, as it goes on the wire."""

    event_index: int
    run_id: str
    frame: bytes = field(repr=False)


def framed(event_data: bytes) -> bytes:
    """Return a serialized RunEvent as element of `events`; frames joined parse as one response."""
    size = len(event_data)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return _EVENTS_FIELD_TAG + length + event_data


class EventTail:
    """A window over the end of the journal.

    Args:
        next_event_index: where the journal stands; the window is empty and begins there.
        limit_bytes: above it, the older half leaves.
    """

    def __init__(self, next_event_index: int, limit_bytes: int) -> None:
        self.first_index = next_event_index  # every committed event from here on is in the window
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._indexes: list[int] = []
        self._events: list[JournalEvent] = []

    def extend(self, events: Sequence[JournalEvent]) -> None:
        self._events += events
        self._indexes += [event.event_index for event in events]
        self._size_bytes += sum(len(event.frame) for event in events)
        if self._size_bytes > self._limit_bytes:
            self._drop_older_half()

    def read(self, position: int, run_id: str | None, limit_bytes: int) -> tuple[list[bytes], int]:
        """Return frames from `position` on, at least one where there is one, and the position after them."""
        frames: list[bytes] = []
        size_bytes = 0
        for place in range(bisect_left(self._indexes, position), len(self._events)):
            event = self._events[place]
            if run_id is None or event.run_id == run_id:
                if frames and size_bytes + len(event.frame) > limit_bytes:
                    return frames, position
                frames.append(event.frame)
                size_bytes += len(event.frame)
            position = event.event_index + 1
        return frames, position

    def _drop_older_half(self) -> None:
        # Half at a time: dropping one by one would move the whole list for each.
        count = 0
        while count < len(self._events) and self._size_bytes > self._limit_bytes // 2:
            self._size_bytes -= len(self._events[count].frame)
            count += 1
        self.first_index = self._indexes[count - 1] + 1
        del self._events[:count], self._indexes[:count]
