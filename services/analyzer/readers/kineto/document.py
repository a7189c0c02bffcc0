"""The decoding of the list of events in a Kineto trace, in ranges, by one process or several.

The list is located from both ends of the file. The boundary between two ranges is a guess that decoding verifies: the first range
begins where an event does, and a range that decodes completely as comma-separated events ends where an event does. Anything unusual
is read again as one document by the standard library's json, which decides what is valid JSON.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kernalyse.services.analyzer.readers.kineto.decompress import TraceBytes
from kernalyse.services.analyzer.readers.kineto.events import EventColumns, EventDecoder, KinetoEvents, join_chunks
from kernalyse.services.analyzer.readers.kineto.workers import EVENT_START, DecodedChunk, WorkerProcess, cut, decode_chunk
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError

EVENTS_MEMBER: Final = "traceEvents"
LIST_START: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
OPEN_LIST: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*(?=\[)")
SPACE: Final = re.compile(r"[ \t\r\n]*")

HEAD_BYTES: Final = 1024 * 1024
"""Beginning of the file that is searched for the start of the list; the members before it take some kilobytes."""

TAIL_BYTES: Final = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
"""End of the file that is searched for the end of the list; the members after it take a line or some kilobytes."""

BYTES_PER_PROCESS: Final = 48 * 1024 * 1024
"""Least share of a process: it takes half a second to decode, and the process a quarter of a second to start."""

START_BYTES: Final = 24 * 1024 * 1024
"""Amount that this process decodes while another process starts."""

MAX_PROCESSES: Final = 4
"""Each process takes 100 MB and the memory of its columns."""

MAX_PLAIN_BYTES: Final = 1024**3
"""Python objects take about six times the size of their JSON: more could exhaust the memory of the service."""

WALKED_BYTES: Final = 64 * 1024 * 1024
SHOWN_BYTES: Final = 60

_DECODER: Final = json.JSONDecoder(strict=False)


def read_events(source: TraceBytes, file_name: str) -> KinetoEvents:
    """Read the events of a trace.

    Raises:
        InvalidTraceError: it is no JSON, truncated, nested too deep, or no trace.
        LimitReachedError: only json could read it, and it is too large for that.
    """
    opening = _opening(source)
    closing = None if opening is None else _closing(source, opening)
    if opening is not None and closing is not None:
        members = opening.members | closing.members
        for process_count in dict.fromkeys((_process_count(closing.position - opening.position), 1)):
            parts = _decode(source, opening.position, closing.position, process_count)
            if parts is not None:
                return join_chunks(parts, members)
    return _read_as_document(source, file_name, opening)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of the list of events.

    position: after the opening bracket, or at the closing one.
    members: members of the document on this side of the list. is_member: the list is a member, not the document itself.
    """

    position: int
    members: dict[str, Any]
    is_member: bool


def _opening(source: TraceBytes) -> _End | None:
    """Return the start of the list; None if it is not found.

    The text before it must become a document when an empty list and a brace are appended, so that it is no inner list.
    """
    head = source.read(0, HEAD_BYTES)
    found = OPEN_LIST.match(head)
    if found is not None:
        return _End(found.end() + 1, {}, is_member=False)
    found = LIST_START.search(head)
    if found is None:
        return None
    try:
        members = _loaded(head[: found.end()] + b"[]}")
    except (ValueError, RecursionError):
        return None
    members.pop(EVENTS_MEMBER, None)
    return _End(found.end() + 1, members, is_member=True)


def _closing(source: TraceBytes, opening: _End) -> _End | None:
    """Return the end of the list; None if it is not found. It relies on a guessed start of an event, which decoding verifies."""
    for byte_count in TAIL_BYTES:
        start = max(opening.position, source.size - byte_count)
        tail = source.read(start, source.size)
        first = 0 if start == opening.position else cut(tail)[1]
        if first > 0 or start == opening.position:
            try:
                _, end = _DECODER.raw_decode("[" + tail[first:].decode("latin-1"))
                position = first + end - 2  # without the bracket that was prepended
                rest = tail[position + 1 :]
                members = _loaded(b'{"":[]' + rest) if opening.is_member else {"": rest}
            except (ValueError, RecursionError):
                continue
            if EVENTS_MEMBER in members or not (opening.is_member or SPACE.fullmatch(rest.decode("latin-1"))):
                return None
            del members[""]
            return _End(start + position, members, opening.is_member)
        if start == opening.position:
            break
    return None


def _loaded(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.decode("utf-8-sig", "replace"), strict=False)
    return found


# ------------------------------------------------------------ ranges


def _process_count(byte_count: int) -> int:
    return max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)), byte_count // BYTES_PER_PROCESS))


def _decode(source: TraceBytes, start: int, stop: int, process_count: int) -> list[EventColumns] | None:
    """Return the events in the order of the list; None if it holds anything else."""
    (own_start, own_stop), *others = _parts(source, start, stop, process_count)
    with ExitStack() as stack:
        workers = []
        for part_start, part_stop in others:
            workers.append(WorkerProcess(source, part_start, part_stop))
            stack.callback(workers[-1].end)
        own = _decode_here(source, own_start, own_stop)
        found = [own.decoder.columns() if own_start + own.decoded_bytes == own_stop else None]
        found += [worker.columns() for worker in workers if found[-1] is not None]
    parts = [part for part in found if part is not None]
    return parts if len(parts) == 1 + len(others) else None


def _decode_here(source: TraceBytes, start: int, stop: int) -> DecodedChunk:
    position = start

    def read(byte_count: int) -> bytes:
        nonlocal position
        block = source.read(position, position + byte_count)
        position += len(block)
        return block

    return decode_chunk(read, stop - start)


def _parts(source: TraceBytes, start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Return start and stop of the chunk of each process; the first chunk, for this process, is larger."""
    bounds = [start]
    share = max(0, stop - start - START_BYTES) // count
    for index in range(count - 1, 0, -1):
        position = max(stop - index * share, bounds[-1])
        gap = EVENT_START.search(source.read(position, min(stop, position + HEAD_BYTES)))
        if gap is not None:
            bounds += [position + gap.start(1), position + gap.end(1)]
    bounds.append(stop)
    return list(zip(bounds[::2], bounds[1::2], strict=True))


# ------------------------------------------------------------ fallback


def _read_as_document(source: TraceBytes, file_name: str, opening: _End | None) -> KinetoEvents:
    """Read the events with the standard library's json. Raises the errors of read_events."""
    if source.size > MAX_PLAIN_BYTES:
        event_count, position = _find_damage(source, opening)
        raise LimitReachedError(
            f"file {file_name}: byte {position}",
            found=f"{_shown(source, position)}, which only the fallback parser may accept",
            expected=f"at most {MAX_PLAIN_BYTES} bytes for that one",
            remedy="If the file is complete, write it with the profiler's own exporter.",
        )
    try:
        text = source.read(0, source.size).decode("utf-8-sig", "replace")
        document = json.loads(text, parse_float=Decimal, strict=False)
    except (ValueError, RecursionError) as error:
        event_count, position = _find_damage(source, opening)
        raise InvalidTraceError(
            f"file {file_name}: byte {position}, after {event_count} complete events",
            found=f"{_shown(source, position)}: {error}",
            expected="a complete JSON document",
            remedy="It is damaged or was cut off: write or copy the file again.",
        ) from error
    events = document.get(EVENTS_MEMBER) if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InvalidTraceError(
            f"file {file_name}",
            found=f"JSON without a list {EVENTS_MEMBER}",
            expected="a Kineto or Chrome trace",
            remedy="Give the file that the profiler's export_chrome_trace wrote.",
        )
    members = {key: value for key, value in document.items() if key != EVENTS_MEMBER} if isinstance(document, dict) else {}
    decoder = EventDecoder()
    decoder.add_values(events)
    return join_chunks([decoder.columns()], json.loads(json.dumps(members, default=float)))


def _find_damage(source: TraceBytes, opening: _End | None) -> tuple[int, int]:
    """Return the number of complete events and the byte after them; (0, 0) if no list of events starts."""
    if opening is None:
        return 0, 0
    part = _decode_here(source, opening.position, source.size)
    start = opening.position + part.decoded_bytes
    text = source.read(start, start + WALKED_BYTES).decode("latin-1")  # a character for each byte
    count, index, is_due = part.decoder.event_count, _after_space(text, 0), part.decoder.event_count > 0
    while index < len(text) and (text[index] != "]" or is_due):
        try:
            _, end = _DECODER.raw_decode(text, index)
        except (ValueError, RecursionError):
            return count, start + index
        count += 1
        index = _after_space(text, end)
        is_due = text[index : index + 1] == ","
        if is_due:
            index = _after_space(text, index + 1)
        elif text[index : index + 1] != "]":
            return count, start + index
    if index == len(text):
        return count, start + index
    try:  # the rest of the document, with something behind it?
        rest = '{"":[]' + text[index + 1 :]
        _, end = _DECODER.raw_decode(rest) if opening.is_member else (None, 0)
    except (ValueError, RecursionError):
        end = 0
    return count, start + index + 1 + max(0, end - len('{"":[]'))


def _after_space(text: str, index: int) -> int:
    found = SPACE.match(text, index)
    return index if found is None else found.end()


def _shown(source: TraceBytes, position: int) -> str:
    rest = source.read(position, position + SHOWN_BYTES)
    return repr(rest.decode("utf-8", "replace")) if rest else "the end of the file"
