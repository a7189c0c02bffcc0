"""The events of a Kineto trace as rows of numbers: scanned from the bytes, or by the plain parser where the scan gives up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.readers.json_scan import BROKEN, NULL, Bytes, after_space, after_string, after_value, has_escape
from services.analyzer.readers.kineto_fields import TOKEN_FIELDS, EventKind, Field
from services.analyzer.readers.kineto_scan import ENDED, LEFT, scan_events

Integers = NDArray[np.int64]

EVENTS_MEMBER: Final = "traceEvents"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

BYTES_PER_THREAD: Final = 4 * 1024 * 1024
"""At least: 20 ms of work, against the tenth of one that handing it out takes."""

EVENT_START: Final = re.compile(rb',\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|id|args)"\s*:)')
"""Where an event may start. What only looks like one costs time: the scan before it does not arrive there."""

SEARCHED_BYTES: Final = 1024 * 1024
"""For the start of an event: events of stacks and shapes are some kilobytes long."""


@dataclass(frozen=True)
class KinetoEvents:
    """Events that tables are made of.

    rows: a row for each, a column for each Field, NULL for what it has not. tokens: the JSON that rows refer to by index.
    dropped_counts: of all other events, by category (None: it has none) and phase.
    document: the members of the trace beside its events.
    """

    rows: Integers
    tokens: tuple[bytes, ...]
    event_count: int
    dropped_counts: Mapping[tuple[str | None, str | None], int]
    document: Mapping[str, Any]

    def column(self, field: Field) -> Integers:
        return np.ascontiguousarray(self.rows[:, field])

    def of_kind(self, *kinds: EventKind) -> KinetoEvents:
        return self.where(np.isin(self.rows[:, Field.KIND], kinds))

    def where(self, chosen: NDArray[Any]) -> KinetoEvents:
        """Rows by a mask or by their indexes."""
        return KinetoEvents(self.rows[chosen], self.tokens, self.event_count, self.dropped_counts, self.document)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The tokens as text: strings without quotes, everything else as it stands."""
        return tuple(text_of(token) for token in self.tokens)


def text_of(token: bytes) -> str:
    if not token.startswith(b'"'):
        return token.decode("utf-8", "replace")
    text: str = decoded(token) if b"\\" in token else token[1:-1].decode("utf-8", "replace")
    return whole_characters(text)


def decoded(token: bytes) -> Any:
    return json.loads(token.decode("utf-8", "replace"), strict=False)


def whole_characters(text: str) -> str:
    """Halves of characters, which escapes can bring and no table takes, replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class Unscanned:
    """Why and where a scan gave up: after so many whole events, at that byte."""

    event_count: int
    position: int


def scanned_events(data: Bytes) -> KinetoEvents | Unscanned:
    """The events by the fast way."""
    start = len(BYTE_ORDER_MARK) if bytes(data[: len(BYTE_ORDER_MARK)]) == BYTE_ORDER_MARK else 0
    position = after_space(data, start)
    members: dict[str, Any] = {}
    scan: _Scan | None = None
    if bytes(data[position : position + 1]) == b"[":
        scan = _scan_list(data, position + 1)
        position = scan.position
    elif bytes(data[position : position + 1]) == b"{":
        for key, value_position, place in _members(data, position + 1):
            if key == EVENTS_MEMBER and scan is None and bytes(data[value_position : value_position + 1]) == b"[":
                scan = _scan_list(data, value_position + 1)
                place.position = scan.position if scan.status == ENDED else BROKEN
            elif key is not None:
                place.position = after_value(data, value_position)
                if place.position == BROKEN or key in members or key == EVENTS_MEMBER:
                    place.position = BROKEN
                else:
                    members[key] = _small_value(data, value_position, place.position)
            position = place.position
            if position == BROKEN:
                break
    if scan is None or scan.status != ENDED or position == BROKEN or after_space(data, position) != data.size:
        return Unscanned(0 if scan is None else scan.event_count, max(position, 0 if scan is None else scan.position))
    return scan.events(data, members)


@dataclass(slots=True)
class _Place:
    """Where the walk over members is; whoever reads a value moves it behind the value."""

    position: int


def _members(data: Bytes, position: int) -> Iterator[tuple[str | None, int, _Place]]:
    """Of each member of an object its key and where its value begins. Ends with (None, …) behind the object, or BROKEN."""
    place = _Place(after_space(data, position))
    if bytes(data[place.position : place.position + 1]) == b"}":
        yield None, place.position, _Place(place.position + 1)
        return
    while True:
        key_start = place.position
        key_end = after_string(data, key_start) if bytes(data[key_start : key_start + 1]) == b'"' else BROKEN
        colon = after_space(data, key_end) if key_end != BROKEN else BROKEN
        if colon == BROKEN or bytes(data[colon : colon + 1]) != b":" or has_escape(data, key_start, key_end):
            yield None, key_start, _Place(BROKEN)
            return
        yield text_of(bytes(data[key_start:key_end])), after_space(data, colon + 1), place
        if place.position == BROKEN:
            return
        end = after_space(data, place.position)
        closing = bytes(data[end : end + 1])
        if closing != b",":
            yield None, end, _Place(end + 1 if closing == b"}" else BROKEN)
            return
        place.position = after_space(data, end + 1)


def _small_value(data: Bytes, start: int, end: int) -> Any:
    return decoded(bytes(data[start:end]))


@dataclass(frozen=True, slots=True)
class _Scan:
    """parts: rows, tokens (their bytes) and dropped counts of stretches of the list, in its order."""

    status: int
    position: int
    event_count: int
    parts: tuple[tuple[Integers, Integers, Integers], ...]

    def events(self, data: Bytes, document: Mapping[str, Any]) -> KinetoEvents:
        indexes: dict[bytes, int] = {}
        dropped: dict[tuple[str | None, str | None], int] = {}
        for rows, tokens, dropped_rows in self.parts:
            raw = [data[start:end].tobytes() for start, end in tokens.tolist()]
            table = np.array([*(indexes.setdefault(token, len(indexes)) for token in raw), NULL], dtype=np.int64)
            for field in TOKEN_FIELDS:
                column = rows[:, field]
                column[:] = table[np.where(column == NULL, len(raw), column)]
            for category, phase, count in dropped_rows.tolist():
                key = (None if category == NULL else text_of(raw[category]), None if phase == NULL else chr(phase))
                dropped[key] = dropped.get(key, 0) + count
        rows = self.parts[0][0] if len(self.parts) == 1 else np.concatenate([part[0] for part in self.parts])
        return KinetoEvents(rows, tuple(indexes), self.event_count, dropped, document)


def _scan_list(data: Bytes, position: int) -> _Scan:
    """All events of a list, in parallel. position: behind its opening bracket.

    Stretches begin where an event seems to start. One that really does not is found out: the stretch before it ends elsewhere.
    """
    starts = _event_starts(data, position)
    stops = [*starts[1:], data.size]
    parts = []
    event_count, status = 0, LEFT
    with ThreadPoolExecutor(max_workers=len(starts)) as pool:
        pending = [pool.submit(scan_events, data, start, stop) for start, stop in zip(starts, stops, strict=True)]
        for start, stop, scan in zip(starts, stops, pending, strict=True):
            if stop <= position and stop != data.size:
                continue  # the stretch before went over all of it
            status, position, count, *part = scan.result() if start == position else scan_events(data, position, stop)
            event_count += count
            parts.append((part[0], part[1], part[2]))
            if status in (ENDED, LEFT):
                break
    return _Scan(status, position, event_count, tuple(parts))


def _event_starts(data: Bytes, position: int) -> list[int]:
    thread_count = max(1, min(os.cpu_count() or 1, (data.size - position) // BYTES_PER_THREAD))
    step = (data.size - position) // thread_count
    starts = [position]
    for thread in range(1, thread_count):
        begin = position + thread * step
        found = EVENT_START.search(data[begin : begin + SEARCHED_BYTES].tobytes())
        if found is not None:
            starts.append(begin + found.end())
    return starts
