"""Traces of several processes of one job: which files belong together, and how they become one trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import range_order, start_order
from kernalyse.services.analyzer.readers.kineto.decompress import unpacked_head
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.readers.nsys.export import read_environment
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, Table
from kernalyse.services.analyzer.tables.runs import COUNTERS
from kernalyse.services.analyzer.tables.traces import (
    API_CALLS,
    KERNEL_LAUNCHES,
    MEMORY_OPS,
    RANGES,
    SCOPES,
    TRACE_NAMES,
    TRACE_PROCESSES,
    TRACE_TABLES,
)
from kernalyse.services.core.errors import KernalyseError

# ---------------------------------------------------------------- joining

OWN_INDEXES: Final = {
    TRACE_NAMES.table_name: "name_index",
    KERNEL_LAUNCHES.table_name: "launch_index",
    API_CALLS.table_name: "call_index",
    RANGES.table_name: "range_index",
    MEMORY_OPS.table_name: "op_index",
    SCOPES.table_name: "scope_index",
}
"""Columns that number the rows of their table."""

REFERENCES: Final = {
    "name_index": TRACE_NAMES,
    "domain_name_index": TRACE_NAMES,
    "operator_index": RANGES,
    "api_call_index": API_CALLS,
    "range_index": RANGES,
    "parent_range_index": RANGES,
    "launch_index": KERNEL_LAUNCHES,
    "scope_index": SCOPES,
    "parent_scope_index": SCOPES,
}
"""Columns that hold row numbers of other tables, or of their own."""

TIMES: Final = ("start_ns", "launch_start_ns")

PROCESS_STEP: Final = 2**32
"""Added to a process id that another file has too, once for each file before it. No system has process ids of this size."""

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one process. frames: by table name; a missing table has no rows, or is not known."""

    file_name: str
    frames: Mapping[str, pl.DataFrame]

    def frame(self, table: Table) -> pl.DataFrame:
        """Return a table with all its columns except run_id and event_index."""
        found = self.frames.get(table.table_name)
        frame = table.empty() if found is None else table.conform(found.lazy()).collect()
        return frame.drop("run_id", "event_index")

    @property
    def session_start_unix_ns(self) -> int | None:
        """Start of the earliest session, nanoseconds since the Unix epoch; None: not known."""
        starts: list[int] = self.frame(TRACE_PROCESSES)["session_start_unix_ns"].drop_nulls().to_list()
        return min(starts, default=None)


@dataclass(frozen=True, slots=True)
class JoinedTrace:
    """One trace of several processes. notes: for users, about what could not be determined."""

    frames: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...]


def join_traces(parts: Sequence[RankTrace]) -> JoinedTrace:
    """Join traces into one with all their rows.

    Times count from the earliest start of a session; unless every trace tells its start, they stay as they are. Of processes
    that share an id, those of later traces get another one.
    """
    starts = [part.session_start_unix_ns for part in parts]
    known = [start for start in starts if start is not None]
    origin_ns = min(known) if len(known) == len(parts) else None
    shifts_ns = [0 if start is None or origin_ns is None else start - origin_ns for start in starts]
    ranks, rank_notes = _ranks_from_names(parts)
    row_maps: dict[str, _RowMap] = {}
    process_ids = _unique_process_ids(parts)
    names, name_row_map = _merge_names(parts)
    row_maps[TRACE_NAMES.table_name] = name_row_map
    frames: dict[str, list[pl.DataFrame]] = {}
    for table in (*TRACE_TABLES, COUNTERS):
        if table is not TRACE_NAMES:
            frames[table.table_name] = [
                _disambiguate(part.frame(table), ids, shift_ns) for part, ids, shift_ns in zip(parts, process_ids, shifts_ns, strict=True)
            ]
            if table is TRACE_PROCESSES:
                frames[table.table_name] = [
                    _describe_processes(frame, part, rank, origin_ns)
                    for frame, part, rank in zip(frames[table.table_name], parts, ranks, strict=True)
                ]
            row_maps[table.table_name] = _RowMap.of(table, frames[table.table_name])
    found = {TRACE_NAMES.table_name: names}
    found |= {name: _renumber(name, part_frames, row_maps) for name, part_frames in frames.items()}
    return JoinedTrace(found, (_clock_note(origin_ns), *rank_notes))


# ---------------------------------------------------------------- row numbers


@dataclass(frozen=True, slots=True)
class _RowMap:
    """The rows of each part as rows of the joined table.

    offsets: first row of each part when they follow one another. order: rows in the joined order; None: the same. positions: the
    row of each in the joined order; None: the same.
    """

    offsets: tuple[int, ...]
    order: Order | None
    positions: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, table: Table, frames: Sequence[pl.DataFrame]) -> _RowMap:
        offsets = tuple(np.cumsum([0, *(frame.height for frame in frames)]).tolist())
        if table.table_name not in OWN_INDEXES or "start_ns" not in table.column_names:
            return cls(offsets, None, None)
        start_ns = np.concatenate([frame["start_ns"].fill_null(0).to_numpy() for frame in frames])
        if table is RANGES:
            order = range_order(start_ns, start_ns + np.concatenate([frame["duration_ns"].to_numpy() for frame in frames]))
        else:
            order = start_order(start_ns)
        if order is None:
            return cls(offsets, None, None)
        positions = np.empty(order.size, dtype=np.int64)
        positions[order] = np.arange(order.size)
        return cls(offsets, order, positions)

    def mapped(self, part_number: int, rows: pl.Series) -> pl.Series:
        """Return row numbers of a part as row numbers of the joined table; null stays null."""
        mapped = rows.cast(COUNT) + self.offsets[part_number]
        return (
            (mapped if self.positions is None else pl.Series(self.positions, dtype=COUNT).gather(mapped)).cast(rows.dtype).alias(rows.name)
        )


def _renumber(table_name: str, frames: Sequence[pl.DataFrame], row_maps: Mapping[str, _RowMap]) -> pl.DataFrame:
    """Return the joined table, with new row numbers of its own and in its references to other tables."""
    own_index = OWN_INDEXES.get(table_name)
    renumbered = [
        frame.with_columns(
            row_maps[target.table_name].mapped(number, frame[column])
            for column, target in REFERENCES.items()
            if column in frame.columns and column != own_index
        )
        for number, frame in enumerate(frames)
    ]
    combined, order = pl.concat(renumbered), row_maps[table_name].order
    ordered = combined if order is None else combined[order]
    return ordered if own_index is None else ordered.with_columns(pl.int_range(pl.len(), dtype=INDEX).alias(own_index))


def _merge_names(parts: Sequence[RankTrace]) -> tuple[pl.DataFrame, _RowMap]:
    """Return every name once, in order of first appearance, and how rows of the parts' names map to it."""
    indexes: dict[str | None, int] = {}
    tables = [[indexes.setdefault(name, len(indexes)) for name in part.frame(TRACE_NAMES)["name"]] for part in parts]
    offsets = tuple(np.cumsum([0, *map(len, tables)]).tolist())
    positions = np.array([index for table in tables for index in table], dtype=np.int64)
    names = TRACE_NAMES.empty().drop("run_id", "event_index")
    names = pl.DataFrame({"name_index": range(len(indexes)), "name": list(indexes)}, schema=names.schema)
    return names, _RowMap(offsets, None, positions)


# ---------------------------------------------------------------- processes and clocks


def _unique_process_ids(parts: Sequence[RankTrace]) -> list[dict[int | None, int | None]]:
    """Return for each part its process ids mapped to ids that are unique in the joined trace."""
    used: set[int | None] = set()
    found = []
    for number, part in enumerate(parts):
        tables = [frame["process_id"] for frame in map(part.frame, TRACE_TABLES) if "process_id" in frame.columns]
        own = {value for column in tables for value in column.unique().to_list()}
        ids: dict[int | None, int | None] = {}
        for process_id in sorted(own, key=lambda value: -1 if value is None else value):
            combined_id = process_id
            while combined_id in used:
                combined_id = (combined_id or 0) + PROCESS_STEP * number
            ids[process_id] = combined_id
            used.add(combined_id)
        found.append(ids)
    return found


def _disambiguate(frame: pl.DataFrame, process_ids: Mapping[int | None, int | None], shift_ns: int) -> pl.DataFrame:
    """Return a part's rows with unique process ids, and times shifted to the common origin."""
    changed = {old: new for old, new in process_ids.items() if old != new}
    if changed and "process_id" in frame.columns:
        frame = frame.with_columns(pl.col("process_id").replace(list(changed), list(changed.values())))
    return frame.with_columns(pl.col(name) + shift_ns for name in TIMES if name in frame.columns) if shift_ns else frame


def _describe_processes(frame: pl.DataFrame, part: RankTrace, rank_index: int | None, origin_ns: int | None) -> pl.DataFrame:
    """Return the processes with file, rank and session start."""
    rank = pl.lit(rank_index, dtype=INDEX)
    return frame.with_columns(
        file_name=pl.lit(part.file_name),
        rank_index=pl.coalesce("rank_index", rank),
        session_start_unix_ns=pl.col("session_start_unix_ns") if origin_ns is None else pl.lit(origin_ns, dtype=COUNT),
    )


def _ranks_from_names(parts: Sequence[RankTrace]) -> tuple[list[int | None], list[str]]:
    """Return for each part the rank that its file name gives, if no part states its own rank, and notes."""
    if any(part.frame(TRACE_PROCESSES)["rank_index"].null_count() < part.frame(TRACE_PROCESSES).height for part in parts):
        return [None] * len(parts), []
    found = ranks_of_names([part.file_name for part in parts])
    if found is None:
        return [None] * len(parts), ["Which rank each file is of is not known: neither the files nor their names tell."]
    return list(found), ["Ranks are taken from the names of the files."]


def ranks_of_names(file_names: Sequence[str]) -> list[int] | None:
    """Return the one number in which all names differ; None: there is none, or two names share it."""
    numbers = [re.findall(r"\d+", name) for name in file_names]
    texts = {re.sub(r"\d+", "#", name) for name in file_names}
    if len(texts) != 1:
        return None
    differing = [values for values in zip(*numbers, strict=True) if len(set(values)) > 1]
    ranks = [int(value) for value in differing[0]] if len(differing) == 1 else []
    return ranks if len(set(ranks)) == len(file_names) and max(ranks) < 2**31 else None


def _clock_note(origin_ns: int | None) -> str:
    if origin_ns is None:
        return "Not every file says when its session started: times of one file cannot be compared with those of another."
    return "Times of all files count from the earliest session, by the clocks of their machines: table rank_clocks has their differences."


# ---------------------------------------------------------------- jobs
# Which traces are of one job is decided by their beginnings, before any is read completely.

HEAD_BYTES: Final = 1024 * 1024
"""A Kineto trace states its rank between the properties of up to sixteen devices and its first event; lists of process groups
of large jobs have hundreds of kilobytes."""

MAX_START_SPREAD_NS: Final = 60 * 10**9
"""Most time between the starts of ranks whose ends are not known. Ranks begin at the same training step, seconds apart at most;
the next recording of the same job mostly starts later, and in any case repeats a rank."""

MIN_OVERLAP_RATIO: Final = 0.5
"""Least overlap, as a fraction of the shorter of two recordings: with less, one was started as the other ended."""

DISTRIBUTED: Final = re.compile(rb'"distributedInfo"\s*:\s*')
BASE_TIME: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
FIRST_TIME: Final = re.compile(rb'"ts"\s*:\s*(\d{1,19})')
NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class JobPart:
    """What a trace tells about the job that it belongs to.

    key: equal for all traces of a job.
    members: its ranks or processes; no two traces of a job share one.
    start_ns: of the recording, nanoseconds on a clock that all traces of the job share.
    end_ns: None: not known without reading the complete trace.
    """

    key: tuple[object, ...]
    members: frozenset[object]
    start_ns: int
    end_ns: int | None = None

    def is_compatible(self, other: JobPart) -> bool:
        """Return whether both can be of one job: with equal keys, at the same time, and without a common member."""
        if self.key != other.key or self.members & other.members:
            return False
        if self.end_ns is None or other.end_ns is None:
            return abs(self.start_ns - other.start_ns) <= MAX_START_SPREAD_NS
        overlap_ns = min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns)
        return overlap_ns >= MIN_OVERLAP_RATIO * min(self.end_ns - self.start_ns, other.end_ns - other.start_ns)


def group_by_job(paths: Sequence[Path]) -> list[list[Path]]:
    """Group the traces by job. Jobs are in order of their first trace; the traces of one by rank, then as given."""
    parts = {path: read_job_part(path) for path in paths}
    jobs: list[list[Path]] = []
    for path in sorted(parts, key=lambda path: _start(parts[path])):
        found = next((job for job in reversed(jobs) if _fits_job(parts[path], [parts[other] for other in job])), None)
        if found is None:
            jobs.append([path])
        else:
            found.append(path)
    positions = {path: number for number, path in enumerate(paths)}
    ordered = [sorted(job, key=lambda path: (_rank(parts[path]), positions[path])) for job in jobs]
    return sorted(ordered, key=lambda job: min(positions[path] for path in job))


def read_job_part(path: Path) -> JobPart | None:
    """Return what a trace tells about its job; None: nothing, or it cannot be read, which its import will report."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if KinetoReader().matches(head):
            return _kineto_part(unpacked_head(head, HEAD_BYTES))
        return _nsys_part(path) if NsysSqliteReader().matches(head) else None
    except (OSError, KernalyseError):
        return None


def _fits_job(part: JobPart | None, others: Iterable[JobPart | None]) -> bool:
    return part is not None and all(other is not None and part.is_compatible(other) for other in others)


def _start(part: JobPart | None) -> int:
    return 0 if part is None else part.start_ns


def _rank(part: JobPart | None) -> int:
    return min((member for member in part.members if isinstance(member, int)), default=0) if part is not None else 0


def _kineto_part(head: bytes) -> JobPart | None:
    found, first = DISTRIBUTED.search(head), FIRST_TIME.search(head)
    if found is None or first is None:
        return None
    try:
        info: Any = json.JSONDecoder().raw_decode(head[found.end() :].decode(errors="replace"))[0]
    except ValueError:
        return None
    rank, world_size = (_integer(info.get(name)) for name in ("rank", "world_size")) if isinstance(info, dict) else (None, None)
    if rank is None or world_size is None or world_size < 2:
        return None
    base = BASE_TIME.search(head)
    start_ns = (0 if base is None else int(base[1])) + int(first[1]) * NS_PER_US
    return JobPart(("kineto", str(info.get("backend")), world_size), frozenset({rank}), start_ns)


def _nsys_part(path: Path) -> JobPart | None:
    with closing(SqliteFile.open(path, path.name)) as file:
        environment = read_environment(file)
    start_ns, first_ns, last_ns = environment.session_start_unix_ns, environment.first_ns, environment.last_ns
    if start_ns is None or first_ns is None or last_ns is None or not environment.process_names:
        return None
    members = frozenset((environment.host_name, key) for key in environment.process_names)
    programs = frozenset(environment.process_names.values())
    return JobPart(("nsys", programs), members, start_ns + first_ns, start_ns + last_ns)


def _integer(value: object) -> int | None:
    is_number = isinstance(value, int | str) and str(value).isascii() and str(value).isdigit()
    return int(str(value)) if is_number else None
