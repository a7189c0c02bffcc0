"""The events of a Kineto trace on its clock: processes and threads as numbers, halves of pairs joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernalyse.services.analyzer.numeric.correlation import coded
from kernalyse.services.analyzer.readers.kineto.events import BEGIN, COMPLETE, END, NULL, EventKind, Field, KinetoEvents
from kernalyse.services.core.errors import InvalidTraceError

Integers = NDArray[np.int64]
Indexes = NDArray[np.int32]

TEXT_BASE: Final = 2**40
"""Added to the place of a process or thread that is no number among all such: "Spans", "stream 7". No system has so large numbers."""

NOTHING: Final = -1
"""Token of a process, thread or name that an event has not: it indexes tables of tokens at their end."""

TIME_LIMIT_NS: Final = 2**62
"""Times, durations and the span of a trace are less: the sum of two of them fits 64 bits. From 1970 it is the year 2116."""

EARLIEST_UNIX_NS: Final = 946_684_800 * 10**9  # 2000-01-01
"""Times before it count from something else than the Unix epoch, as those of the boot do."""


@dataclass(frozen=True, slots=True)
class KinetoFile:
    """One file: of one process, of which a job may have many."""

    file_name: str
    events: KinetoEvents

    @property
    def base_ns(self) -> int:
        """What its times count from, by the clock of its machine. Raises InvalidTraceError."""
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
class Counts:
    """What could not be taken as it is."""

    unpaired: int = 0
    negative: int = 0
    without_duration: int = 0


@dataclass(frozen=True)
class Program:
    """Times are nanoseconds since the first event.

    process_number, thread_number, thread_code: of each row. Numbers of TEXT_BASE and more stand for text; the code is one for
    each thread of each process.
    origin_ns: what times count from, nanoseconds since the epoch of the trace.
    """

    file: KinetoFile
    events: KinetoEvents
    process_number: Integers
    thread_number: Integers
    thread_code: Integers
    origin_ns: int
    counts: Counts

    @property
    def session_start_unix_ns(self) -> int | None:
        return self.origin_ns if self.origin_ns >= EARLIEST_UNIX_NS else None

    def of_kind(self, *kinds: EventKind) -> Program:
        """In the order of the file."""
        return self.at(self.rows_of(*kinds))

    def rows_of(self, *kinds: EventKind) -> Integers:
        return np.flatnonzero(np.isin(self.kinds, [int(kind) for kind in kinds]))

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        return self.events.column(Field.KIND).astype(np.int8)

    def at(self, rows: Integers) -> Program:
        return Program(
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
        return self.events.column(Field.TIME_NS)

    @property
    def duration_ns(self) -> Integers:
        return self.events.column(Field.DURATION_NS)


def program(file: KinetoFile) -> Program:
    """Takes the columns of the file over and changes them. Raises InvalidTraceError for times that no clock has."""
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
    counts = Counts(unpaired, int(negative.sum()), int(without.sum()))
    (processes,), (threads,) = coded(process_number), coded(thread_number)
    thread_code = processes.codes * np.int64(threads.keys.size) + threads.codes
    return Program(file, events, process_number, thread_number, thread_code, origin_ns, counts)


def _set_times_of_names(columns: Sequence[Integers]) -> None:
    """Names of processes hold at any time: that of another event, so that the trace begins where it does."""
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
    """Of each token what it is as the number of a process or thread; at the end NULL, for NOTHING."""
    for field in (Field.PROCESS, Field.THREAD, Field.NAME):
        events.columns[field][events.columns[field] == NULL] = NOTHING
    numbers = np.full(len(events.tokens) + 1, NULL, dtype=np.int64)
    is_wanted = np.zeros(numbers.size, dtype=np.bool_)
    for field in (Field.PROCESS, Field.THREAD):
        is_wanted[events.columns[field]] = True
    wanted = np.flatnonzero(is_wanted[:NOTHING]).tolist()
    others = sorted({events.texts[token] for token in wanted if not _is_number(events.texts[token])})
    places = {text: TEXT_BASE + place for place, text in enumerate(others)}  # whatever the order in which tokens were found
    numbers[wanted] = [places[text] if text in places else int(text) for text in (events.texts[token] for token in wanted)]
    return numbers


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(text) < 19


def _paired(columns: Sequence[Integers], threads: tuple[NDArray[Any], ...]) -> tuple[Integers | None, int]:
    """Makes complete events of begins and ends: which events to keep (None: all), and how many halves have no other one."""
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
