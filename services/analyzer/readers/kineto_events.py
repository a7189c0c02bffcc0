"""The events of a Kineto trace as columns of numbers: scanned from the bytes, or by the plain parser where the scan gives up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.readers.json_scan import BROKEN, NULL, Bytes, after_space, after_string, after_value, has_escape
from services.analyzer.readers.kineto_ahead import NOT_AHEAD, Ahead, read_only
from services.analyzer.readers.kineto_fields import TOKEN_FIELDS, Field
from services.analyzer.readers.kineto_scan import ENDED, LEFT
from services.analyzer.readers.kineto_stretch import Stretch, scan_events

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

    columns: a row of the array for each Field, a value in it for each event, NULL for what it has not.
    tokens: the JSON that values refer to by index.
    dropped_counts: of all other events, by category (None: it has none) and phase.
    document: the members of the trace beside its events.
    chosen: indexes of the events that count; None: all.
    """

    columns: Integers
    tokens: tuple[bytes, ...]
    event_count: int
    dropped_counts: Mapping[tuple[str | None, str | None], int]
    document: Mapping[str, Any]
    chosen: Integers | None = None

    @property
    def size(self) -> int:
        """Number of the events that tables are made of."""
        return int(self.columns.shape[1] if self.chosen is None else self.chosen.size)

    def column(self, field: Field) -> Integers:
        """Not to be changed: it may be a part of `columns`."""
        values: Integers = self.columns[field]
        return values if self.chosen is None else values[self.chosen]

    def where(self, indexes: Integers) -> KinetoEvents:
        chosen = indexes if self.chosen is None else self.chosen[indexes]
        return replace(self, chosen=chosen)

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


def scanned_events(data: Bytes, ahead: Ahead = NOT_AHEAD) -> KinetoEvents | Unscanned:
    """The events by the fast way. ahead: what was scanned of them already."""
    data = read_only(data)
    start = len(BYTE_ORDER_MARK) if bytes(data[: len(BYTE_ORDER_MARK)]) == BYTE_ORDER_MARK else 0
    position = after_space(data, start)
    members: dict[str, Any] = {}
    scan: _Scan | None = None
    if bytes(data[position : position + 1]) == b"[":
        scan = _scan_list(data, position + 1, ahead)
        position = scan.position
    elif bytes(data[position : position + 1]) == b"{":
        for key, value_position, place in _members(data, position + 1):
            if key == EVENTS_MEMBER and scan is None and bytes(data[value_position : value_position + 1]) == b"[":
                scan = _scan_list(data, value_position + 1, ahead)
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
        if colon == BROKEN or bytes(data[colon : colon + 1]) != b":" or has_escape(data, key_start + 1, key_end - 1):
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
    """stretches: of the list, in its order."""

    status: int
    position: int
    stretches: tuple[Stretch, ...]

    @property
    def event_count(self) -> int:
        return sum(stretch.event_count for stretch in self.stretches)

    def events(self, data: Bytes, document: Mapping[str, Any]) -> KinetoEvents:
        indexes: dict[bytes, int] = {}
        dropped: dict[tuple[str | None, str | None], int] = {}
        chunks: list[Integers] = []
        for stretch in self.stretches:
            raw = [data[start:end].tobytes() for start, end in stretch.tokens.tolist()]
            table = np.array([*(indexes.setdefault(token, len(indexes)) for token in raw), NULL], dtype=np.int64)
            for columns in stretch.columns if chunks else ():  # those of the first stretch keep their indexes
                for field in TOKEN_FIELDS:
                    columns[field] = table[np.where(columns[field] == NULL, len(raw), columns[field])]
            chunks += stretch.columns
            for category, phase, count in stretch.dropped.tolist():
                key = (None if category == NULL else text_of(raw[category]), None if phase == NULL else chr(phase))
                dropped[key] = dropped.get(key, 0) + count
        columns = chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=1)
        return KinetoEvents(columns, tuple(indexes), self.event_count, dropped, document)


def _scan_list(data: Bytes, position: int, ahead: Ahead) -> _Scan:
    """All events of a list, in parallel. position: behind its opening bracket.

    Stretches begin where an event seems to start. One that really does not is found out: the stretch before it ends elsewhere.
    """
    stretches: list[Stretch] = []
    if ahead.start == position:
        stretches += ahead.stretches
        position = ahead.position
    starts = _event_starts(data, position)
    stops = [*starts[1:], data.size]
    status = LEFT
    with ThreadPoolExecutor(max_workers=len(starts)) as pool:
        pending = [pool.submit(scan_events, data, start, stop) for start, stop in zip(starts, stops, strict=True)]
        for start, stop, scan in zip(starts, stops, pending, strict=True):
            if stop <= position and stop != data.size:
                continue  # the stretch before went over all of it
            stretch = scan.result() if start == position else scan_events(data, position, stop)
            stretches.append(stretch)
            status, position = stretch.status, stretch.position
            if status in (ENDED, LEFT):
                break
    return _Scan(status, position, tuple(stretches))


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
