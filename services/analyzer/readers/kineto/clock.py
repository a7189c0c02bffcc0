"""The events of a Kineto trace on one clock, with numbered processes and threads and with begin and end events paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernalyse.services.analyzer.numeric.correlation import factorize
from kernalyse.services.analyzer.readers.kineto.events import BEGIN, COMPLETE, END, NULL, EventKind, Field, KinetoEvents
from kernalyse.services.core.errors import InvalidTraceError

Integers = NDArray[np.int64]
Indexes = NDArray[np.int32]

TEXT_BASE: Final = 2**40
"""Processes and threads that are named by text ("Spans", "stream 7") get the number TEXT_BASE plus their index in the sorted texts. No
system has so large numbers."""

NOTHING: Final = -1
"""Token of a missing process, thread or name: it indexes the last entry of token tables."""

TIME_LIMIT_NS: Final = 2**62
"""Times, durations and the span of a trace are less, so that the sum of two fits 64 bits. Counted from 1970 it is the year 2116."""

EARLIEST_UNIX_NS: Final = 946_684_800 * 10**9  # 2000-01-01
"""Earlier times do not count from the Unix epoch, but for example from the boot of the machine."""


@dataclass(frozen=True, slots=True)
class KinetoFile:
    """One trace file, which is of one process; a job may have many."""

    file_name: str
    events: KinetoEvents

    @property
    def base_ns(self) -> int:
        """Origin of the times in the file, by the clock of its machine. Raises InvalidTraceError if it is no such number."""
        base = self.events.document.get("baseTimeNanoseconds")
        if not isinstance(base, int | float):
            return 0
        if not abs(base) < TIME_LIMIT_NS:  # nor is NaN
            raise InvalidTraceError(
                f"file {self.file_name}: baseTimeNanoseconds",
                found=str(base),
                expected="nanoseconds since 1970, or since the machine was started",
                remedy="The file is damaged: write or copy it again.",
            )
        return int(base)


@dataclass(frozen=True, slots=True)
class AnomalyCounts:
    """Numbers of events with anomalies: without counterpart, with a negative duration, without a duration."""

    unpaired: int = 0
    negative: int = 0
    without_duration: int = 0


@dataclass(frozen=True)
class KinetoTrace:
    """A trace, or a selection of its events, with times in nanoseconds since its first event.

    process_number, thread_number: of each event; numbers from TEXT_BASE on stand for text. thread_code: one number for each
    thread of each process. origin_ns: time of the first event since the epoch of the trace.
    """

    file: KinetoFile
    events: KinetoEvents
    process_number: Integers
    thread_number: Integers
    thread_code: Integers
    origin_ns: int
    counts: AnomalyCounts

    @property
    def session_start_unix_ns(self) -> int | None:
        """Unix time of the first event; None if the clock of the trace has another epoch."""
        return self.origin_ns if self.origin_ns >= EARLIEST_UNIX_NS else None

    def select_kinds(self, *kinds: EventKind) -> KinetoTrace:
        """Return the events of these kinds, in the order of the file."""
        return self.at(self.find_rows(*kinds))

    def find_rows(self, *kinds: EventKind) -> Integers:
        """Return the rows of the events of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, [int(kind) for kind in kinds]))

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """The EventKind of each event."""
        return self.events.column(Field.KIND).astype(np.int8)

    def at(self, rows: Integers) -> KinetoTrace:
        """Return the events at these rows."""
        return KinetoTrace(
            self.file,
            self.events.where(rows),
            self.process_number[rows],
            self.thread_number[rows],
            self.thread_code[rows],
            self.origin_ns,
            self.counts,
        )

    @property
    def start_ns(self) -> Integers:
        """Start of each event."""
        return self.events.column(Field.TIME_NS)

    @property
    def duration_ns(self) -> Integers:
        """Duration of each event; NULL for events that have none."""
        return self.events.column(Field.DURATION_NS)


def build_trace(file: KinetoFile) -> KinetoTrace:
    """Return the trace of a file, whose columns it takes over and modifies.

    Raises:
        InvalidTraceError: times that no clock has.
    """
    events = file.events
    columns = events.columns
    _set_times_of_names(columns)
    columns[Field.TIME_NS] += file.base_ns
    _check_span(file, columns[Field.TIME_NS])
    numbers = _numbers(events)
    process_number = numbers[columns[Field.PROCESS]]
    thread_number = numbers[columns[Field.THREAD]]
    kept, unpaired = _paired(columns, (process_number, thread_number))
    if kept is not None:
        process_number, thread_number = process_number[kept], thread_number[kept]
        columns = [column[kept] for column in columns]
        events = replace(events, columns=columns)
    is_timed = (columns[Field.PHASE] == COMPLETE) & (columns[Field.KIND] != EventKind.FORWARD_LINK)
    duration_ns = columns[Field.DURATION_NS]
    without = is_timed & (duration_ns == NULL)
    negative = is_timed & (duration_ns < 0) & ~without
    duration_ns[without] = 0
    origin_ns = int(columns[Field.TIME_NS].min()) if columns[Field.TIME_NS].size > 0 else 0
    columns[Field.TIME_NS] -= origin_ns
    counts = AnomalyCounts(unpaired, int(negative.sum()), int(without.sum()))
    (processes,), (threads,) = factorize(process_number), factorize(thread_number)
    thread_code = processes.codes * np.int64(threads.keys.size) + threads.codes
    return KinetoTrace(file, events, process_number, thread_number, thread_code, origin_ns, counts)


def _set_times_of_names(columns: Sequence[Integers]) -> None:
    """Give events that name processes the time of another event, since they hold at any time and must not move the start."""
    is_name = columns[Field.KIND] == EventKind.PROCESS_NAME
    if is_name.any():
        times_ns = columns[Field.TIME_NS]
        times_ns[is_name] = times_ns[~is_name][:1] if not is_name.all() else 0


def _check_span(file: KinetoFile, time_ns: Integers) -> None:
    span_ns = int(time_ns.max()) - int(time_ns.min()) if time_ns.size > 0 else 0
    if span_ns >= TIME_LIMIT_NS:
        raise InvalidTraceError(
            f"file {file.file_name}",
            found=f"events that are {span_ns} ns apart",
            expected=f"less than {TIME_LIMIT_NS} ns from the first to the last",
            remedy="Times of an event are damaged: write or copy the file again.",
        )


def _numbers(events: KinetoEvents) -> Integers:
    """Return the process or thread number that each token stands for; the last entry is NULL, for NOTHING."""
    for field in (Field.PROCESS, Field.THREAD, Field.NAME):
        events.columns[field][events.columns[field] == NULL] = NOTHING
    numbers = np.full(len(events.tokens) + 1, NULL, dtype=np.int64)
    is_used = np.zeros(numbers.size, dtype=np.bool_)
    for field in (Field.PROCESS, Field.THREAD):
        is_used[events.columns[field]] = True
    used = np.flatnonzero(is_used[:NOTHING]).tolist()
    texts = sorted({events.texts[token] for token in used if not _is_number(events.texts[token])})  # independent of the tokens' order
    text_numbers = {text: TEXT_BASE + index for index, text in enumerate(texts)}
    numbers[used] = [text_numbers[text] if text in text_numbers else int(text) for text in (events.texts[token] for token in used)]
    return numbers


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(text) < 19


def _paired(columns: Sequence[Integers], threads: tuple[NDArray[Any], ...]) -> tuple[Integers | None, int]:
    """Turn begin and end events into complete ones.

    Returns:
        The rows to keep (None: all), and the number of begins and ends without a counterpart.
    """
    phase, time_ns, kind = columns[Field.PHASE], columns[Field.TIME_NS], columns[Field.KIND]
    halves = np.flatnonzero((phase == BEGIN) | (phase == END))
    if halves.size == 0:
        return None, 0
    stacks: dict[tuple[int, ...], list[int]] = {}
    is_kept = ~np.isin(np.arange(phase.size), halves)
    unpaired = 0
    for row in halves[np.argsort(time_ns[halves], kind="stable")].tolist():
        stack = stacks.setdefault(tuple(int(part[row]) for part in threads), [])
        if phase[row] == BEGIN:
            stack.append(row)
        elif stack:
            begin = stack.pop()
            columns[Field.DURATION_NS][begin] = time_ns[row] - time_ns[begin]
            phase[begin] = COMPLETE
            is_kept[begin] = kind[begin] not in (EventKind.OTHER, EventKind.FORWARD_LINK)
        else:
            unpaired += 1
    return np.flatnonzero(is_kept), unpaired + sum(map(len, stacks.values()))
