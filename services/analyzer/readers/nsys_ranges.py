"""NVTX ranges of an export of Nsight Systems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from services.analyzer.correlation import NONE, Flags, Indexes, Integers
from services.analyzer.readers.nsys_events import NVTX, Events
from services.analyzer.readers.nsys_numbers import process_keys
from services.analyzer.readers.sqlite_file import SqliteFile
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


def read_ranges(file: SqliteFile, names: TraceNames, session_end_ns: int | None, *, has_names: bool, has_domains: bool) -> Ranges:
    """Raises InvalidTraceError when the table is damaged."""
    named = has_names or has_domains
    integers = ["start", "end", "eventType", "globalTid", *(["textId"] if named else []), *(["domainId"] if has_domains else [])]
    found = Events.read(file, NVTX, integers, ["text"] if named else [])
    types = found.column("eventType")
    is_start_end = np.isin(types, START_END_TYPES)
    is_range = is_start_end | np.isin(types, PUSH_POP_TYPES)
    domains = _domains(found, names) if has_domains else {}
    other_count = found.row_count - int(is_range.sum()) - int((types == DOMAIN_TYPE).sum())
    found.release("eventType")
    found.integers["is_start_end"] = is_start_end.astype(np.int64)
    found = found.where(is_range).timed(may_be_open=True)
    end_ns = found.column("end")
    is_open = end_ns == NULL_INTEGER
    if bool(is_open.any()):
        last_ns = max(int(end_ns.max()), int(found.column("start").max()), session_end_ns or 0)
        found.integers["end"] = np.where(is_open, last_ns, end_ns)
    found.integers["is_open"] = is_open.astype(np.int64)
    found = found.by_range(found.column("end"))
    name = _range_names(found, names) if has_names else np.empty(0, dtype=np.int32)
    domain = _of_domains(found, domains) if has_domains else np.empty(0, dtype=np.int32)
    flags = found.integers.pop("is_open").astype(np.bool_), found.integers.pop("is_start_end").astype(np.bool_)
    return Ranges(found, found.column("end"), *flags, name, domain, other_count)


def _range_names(found: Events, names: TraceNames) -> Indexes:
    """The text, else what textId refers to, else nothing: then the range has the empty name."""
    by_text, by_id = names.of_texts(found.text("text")), names.of_ids(found.column("textId"))
    name = np.where(by_text == NONE, by_id, by_text)
    if bool((name == NONE).any()):
        name[name == NONE] = names.index_of(UNNAMED)
    return name


def _domains(found: Events, names: TraceNames) -> dict[tuple[int, int], int]:
    """Name index by process key and domainId, of the events that say so."""
    is_creation = found.column("eventType") == DOMAIN_TYPE
    created = replace(found, integers=dict(found.integers)).where(is_creation)  # the others are still needed
    keys = zip(process_keys(created.column("globalTid")).tolist(), created.column("domainId").tolist(), strict=True)
    return dict(zip(keys, _range_names(created, names).tolist(), strict=True))


def _of_domains(found: Events, domains: dict[tuple[int, int], int]) -> Indexes:
    domain = np.full(found.row_count, NONE, dtype=np.int32)
    keys, numbers = process_keys(found.column("globalTid")), found.column("domainId")
    for (process_key, number), name_index in domains.items():
        domain[(keys == process_key) & (numbers == number)] = name_index
    return domain
