"""NVTX ranges of an export of Nsight Systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from services.analyzer.correlation import NONE, Coded, Flags, Indexes, Integers
from services.analyzer.readers.exported_tables import ExportedTables
from services.analyzer.readers.nsys_columns import range_columns
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_numbers import process_keys
from services.analyzer.readers.sqlite_pages import NULL_INTEGER
from services.analyzer.readers.trace_names import TraceNames

PUSH_POP_TYPES: Final = (59, 70)  # 70, 71: imported from a text file of NVTX
START_END_TYPES: Final = (60, 71)
DOMAIN_TYPE: Final = 75
UNNAMED: Final = ""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges in order of start, of equal starts the later end first. Of an open one the end is that of the session.

    other_count: events that are no ranges, as marks.
    """

    events: Events
    end_ns: Integers
    is_open: Flags
    is_start_end: Flags
    name: Indexes
    domain: Indexes
    other_count: int = 0

    @classmethod
    def none(cls) -> Self:
        nothing, flags = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.bool_)
        return cls(Events.none(), np.empty(0, dtype=np.int64), flags, flags, nothing, nothing)


def read_ranges(file: ExportedTables, names: TraceNames, session_end_ns: int | None, *, has_names: bool, has_domains: bool) -> Ranges:
    """Raises InvalidTraceError when the table is damaged."""
    found = Events.read(file, range_columns(has_names=has_names, has_domains=has_domains))
    is_range = _is_one_of(found, (*PUSH_POP_TYPES, *START_END_TYPES))
    domains = _domains(found, names) if has_domains else {}
    other_count = found.row_count - int(is_range.sum()) - int(_is_one_of(found, (DOMAIN_TYPE,)).sum())
    found = found.where(is_range).timed(may_be_open=True)
    end_ns = found.column("end")
    has_open = bool((end_ns == NULL_INTEGER).any())
    if has_open:
        last_ns = max(int(end_ns.max()), int(found.column("start").max()), session_end_ns or 0)
        end_ns = np.where(end_ns == NULL_INTEGER, last_ns, end_ns)
    found = found.by_range(end_ns)
    is_open = found.column("end") == NULL_INTEGER
    return Ranges(
        found,
        np.where(is_open, last_ns, found.column("end")) if has_open else found.column("end"),
        is_open,
        _is_one_of(found, START_END_TYPES),
        _range_names(found, names) if has_names else np.empty(0, dtype=np.int32),
        _of_domains(found, domains) if has_domains else np.empty(0, dtype=np.int32),
        other_count,
    )


def _is_one_of(events: Events, wanted: Sequence[int]) -> Flags:
    types = events.codes("eventType")
    is_wanted = np.isin(types.keys, wanted)
    if bool(is_wanted.all()) or not bool(is_wanted.any()):  # most files have ranges of one kind
        return np.full(events.row_count, bool(is_wanted.any()))
    found: Flags = is_wanted[types.codes]
    return found


def _range_names(found: Events, names: TraceNames) -> Indexes:
    """The text, else what textId refers to, else nothing: then the range has the empty name."""
    name = names.of_texts(found.text("text"))
    without_text = np.flatnonzero(name == NONE)
    if without_text.size:
        ids = found.codes("textId")
        by_id = names.of_codes(Coded(ids.codes[without_text], ids.keys).used())
        name[without_text] = np.where(by_id == NONE, names.index_of(UNNAMED), by_id) if bool((by_id == NONE).any()) else by_id
    return name


def _domains(found: Events, names: TraceNames) -> dict[tuple[int, int], int]:
    """Name index by process key and domainId, of the events that say so."""
    is_creation = _is_one_of(found, (DOMAIN_TYPE,))
    created = replace(found, integers=dict(found.integers), coded=dict(found.coded)).where(is_creation)  # the others are still needed
    keys = zip(process_keys(created.column("globalTid")).tolist(), created.column("domainId").tolist(), strict=True)
    return dict(zip(keys, _range_names(created, names).tolist(), strict=True))


def _of_domains(found: Events, domains: dict[tuple[int, int], int]) -> Indexes:
    domain = np.full(found.row_count, NONE, dtype=np.int32)
    keys, numbers = process_keys(found.column("globalTid")), found.column("domainId")
    for (process_key, number), name_index in domains.items():
        domain[(keys == process_key) & (numbers == number)] = name_index
    return domain
