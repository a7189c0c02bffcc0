"""Traces of several processes of one job: which files belong together, and how they become one trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from kernalyse.services.analyzer.analysis.traces.collectives import COLLECTIVES_INPUT, rank_clocks
from kernalyse.services.analyzer.numeric.correlation import Indexes, find_stretches, merged_order
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
from kernalyse.services.core.kernel_categories import COMMUNICATION

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

MIN_ALIGNING_OPERATIONS: Final = 10
"""Collective operations that two files must share for the times of one to be changed: the ends of a few may agree by chance."""

CHUNK_ROWS: Final = 2**20
"""Rows of a joined table that are in memory at once: of the widest one 0.2 GB, a few times. Chunks of a sixteenth take twice as long."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one process. frames: by table name; a missing table has no rows, or is not known."""

    file_name: str
    frames: Mapping[str, pl.LazyFrame]

    def rows(self, table: Table) -> pl.LazyFrame:
        """Return a table with all its columns except run_id and event_index."""
        return table.conform(self.frames.get(table.table_name, table.empty().lazy())).drop("run_id", "event_index")

    def columns(self, table: Table) -> list[str]:
        """Return the columns that the trace has of a table."""
        frame = self.frames.get(table.table_name)
        return [] if frame is None else frame.collect_schema().names()

    def frame(self, table: Table) -> pl.DataFrame:
        """Return the rows of a table in memory."""
        return self.rows(table).collect()

    @property
    def session_start_unix_ns(self) -> int | None:
        """Start of the earliest session, nanoseconds since the Unix epoch; None: not known."""
        starts: list[int] = self.frame(TRACE_PROCESSES)["session_start_unix_ns"].drop_nulls().to_list()
        return min(starts, default=None)


@dataclass(frozen=True, slots=True)
class JoinedTrace:
    """One trace of several processes. frames: of the tables with rows, read chunk by chunk. notes: of what could not be determined."""

    frames: Mapping[str, pl.LazyFrame]
    notes: tuple[str, ...]


def join_traces(parts: Sequence[RankTrace]) -> JoinedTrace:
    """Join traces into one with all their rows.

    Times count from the earliest start of a session, unless a trace does not tell its start, and are those of the first rank's
    clock where collective operations tell how far apart the clocks are. What a clock drifts is left: durations stay as they were
    measured. Of processes that share an id, those of later traces get another one. The rows of no table are in memory as a whole.
    """
    starts = [part.session_start_unix_ns for part in parts]
    known = [start for start in starts if start is not None]
    origin_ns = min(known) if len(known) == len(parts) else None
    shifts_ns = [0 if start is None or origin_ns is None else start - origin_ns for start in starts]
    ranks, rank_notes = _ranks_from_names(parts)
    members = [
        _Member(part, ids, shift_ns, rank, origin_ns)
        for part, ids, shift_ns, rank in zip(parts, _unique_process_ids(parts), shifts_ns, ranks, strict=True)
    ]
    names, names_map = _merge_names(parts)
    members = _by_one_clock(members, names, names_map)
    row_maps = _RowMaps(members, names_map)
    frames = {
        table.table_name: names.lazy() if table is TRACE_NAMES else _joined_rows(table, members, row_maps)
        for table in (*TRACE_TABLES, COUNTERS)
        if row_maps.row_count(table)
    }
    return JoinedTrace(frames, (_clock_note(members), *rank_notes))


@dataclass(frozen=True, slots=True)
class _Member:
    """A trace within a joined one.

    process_ids: new by old. origin_ns: of all times; None: each trace has its own. clock_offset_ns: of shift_ns, how far its
    clock was ahead of the first rank's; None: not known, or it is that clock.
    """

    trace: RankTrace
    process_ids: Mapping[int | None, int | None]
    shift_ns: int
    rank_index: int | None
    origin_ns: int | None
    clock_offset_ns: int | None = None

    def rows(self, table: Table) -> pl.LazyFrame:
        """Return the rows of a table with unique process ids and times from the common origin; processes with file and rank."""
        rows = _disambiguate(self.trace.rows(table), table, self.process_ids, self.shift_ns)
        return _describe_processes(rows, self) if table is TRACE_PROCESSES else rows


# ---------------------------------------------------------------- row numbers


@dataclass(frozen=True, slots=True)
class _RowMap:
    """The rows of each part as rows of the joined table.

    offsets: first row of each part when they follow one another. order: rows in the joined order; None: the same. positions: the
    row of each in the joined order; None: the same.
    """

    offsets: tuple[int, ...]
    order: Indexes | None
    positions: pl.Series | None

    @property
    def row_count(self) -> int:
        return self.offsets[-1]

    @classmethod
    def of(cls, table: Table, members: Sequence[_Member]) -> _RowMap:
        times = [name for name in ("start_ns", "duration_ns") if name in table.column_names]
        offsets = _offsets(table, members)
        if table.table_name not in OWN_INDEXES or "start_ns" not in times:
            return cls(offsets, None, None)
        start_ns = np.empty(offsets[-1], dtype=np.int64)
        end_ns = np.empty_like(start_ns) if table is RANGES else start_ns
        for member, (begin, end) in zip(members, pairwise(offsets), strict=True):  # one after the other: ranges may be a hundred million
            frame = member.rows(table).select(times).collect()
            start_ns[begin:end] = frame["start_ns"].fill_null(0).to_numpy()
            if table is RANGES:
                end_ns[begin:end] = start_ns[begin:end] + frame["duration_ns"].to_numpy()
        order = merged_order(start_ns, end_ns, offsets)
        del start_ns, end_ns  # of a hundred million ranges 1.6 GB
        if order is None:
            return cls(offsets, None, None)
        positions = np.empty(order.size, dtype=np.int32)
        positions[order] = np.arange(order.size, dtype=np.int32)
        return cls(offsets, order, pl.Series(positions))

    def stretches(self, begin: int, end: int) -> tuple[dict[int, tuple[int, int]], Indexes | None]:
        """Return the stretch of rows of each part that the joined rows from begin to end are among: first row, and row after the last.

        With them the place of each joined row in these stretches, one after the other; None: the same.
        """
        bounds = np.array(self.offsets)
        places, first, stop = None, np.maximum(begin, bounds[:-1]), np.minimum(end, bounds[1:])
        if self.order is not None:
            places, first, stop = find_stretches(self.order[begin:end], bounds)
        own = zip((first - bounds[:-1]).tolist(), (stop - bounds[:-1]).tolist(), strict=True)
        return {number: stretch for number, stretch in enumerate(own) if stretch[0] < stretch[1]}, places

    def mapped(self, part_number: int, rows: pl.Series) -> pl.Series:
        """Return row numbers of a part as row numbers of the joined table; null stays null."""
        mapped = rows.cast(COUNT) + self.offsets[part_number]
        return (mapped if self.positions is None else self.positions.gather(mapped)).cast(rows.dtype).alias(rows.name)


class _RowMaps:
    """The row map of each table, made when it is needed first: joining one table takes few of them."""

    def __init__(self, members: Sequence[_Member], names: _RowMap) -> None:
        self._members = members
        self._made = {TRACE_NAMES.table_name: names}

    def row_count(self, table: Table) -> int:
        """Return the rows of the joined table."""
        made = self._made.get(table.table_name)
        return _offsets(table, self._members)[-1] if made is None else made.row_count

    def __getitem__(self, table: Table) -> _RowMap:
        if table.table_name not in self._made:
            self._made[table.table_name] = _RowMap.of(table, self._members)
        return self._made[table.table_name]


def _offsets(table: Table, members: Sequence[_Member]) -> tuple[int, ...]:
    """Return the first row of each part when they follow one another, and the row count."""
    counts = [member.trace.rows(table).select(pl.len()).collect().item() for member in members]
    return tuple(np.cumsum([0, *counts]).tolist())


def _joined_rows(table: Table, members: Sequence[_Member], row_maps: _RowMaps) -> pl.LazyFrame:
    """Return the joined table, with new row numbers of its own and in its references to other tables."""
    own_index = OWN_INDEXES.get(table.table_name)
    # What no part knows, and the own numbers, are added to the joined rows: reading and reordering them would take as long as all else.
    known = set(table.column_names if table is TRACE_PROCESSES else (name for member in members for name in member.trace.columns(table)))
    names = [name for name in table.column_names[2:] if name in known and name != own_index]
    rows = [member.rows(table).select(names) for member in members]
    references = {name: REFERENCES[name] for name in names if name in REFERENCES}

    def chunk(begin: int, end: int) -> pl.DataFrame:
        """Return the joined rows from begin to end. Parts in order of start give a stretch of theirs to each."""
        stretches, places = row_maps[table].stretches(begin, end)
        pieces = pl.collect_all([rows[number].slice(first, stop - first) for number, (first, stop) in stretches.items()])
        mapped = [
            piece.with_columns(row_maps[target].mapped(number, piece[name]) for name, target in references.items())
            for number, piece in zip(stretches, pieces, strict=True)
        ]
        found = pl.concat(mapped, rechunk=True)
        found = found if places is None else found[places]
        numbered = found if own_index is None else found.with_columns(pl.int_range(begin, end, dtype=INDEX).alias(own_index))
        return table.conform(numbered.lazy()).drop("run_id", "event_index").collect()

    def chunks(
        with_columns: list[str] | None, predicate: pl.Expr | None, row_count: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        end = row_maps.row_count(table) if row_count is None else min(row_count, row_maps.row_count(table))
        for begin in range(0, end, CHUNK_ROWS):
            found = chunk(begin, min(begin + CHUNK_ROWS, end))
            found = found if predicate is None else found.filter(predicate)
            yield found if with_columns is None else found.select(with_columns)

    schema = {column.name: column.dtype for column in table.columns[2:]}
    return register_io_source(chunks, schema=schema)


def _merge_names(parts: Sequence[RankTrace]) -> tuple[pl.DataFrame, _RowMap]:
    """Return every name once, in order of first appearance, and how rows of the parts' names map to it."""
    indexes: dict[str | None, int] = {}
    tables = [[indexes.setdefault(name, len(indexes)) for name in part.frame(TRACE_NAMES)["name"]] for part in parts]
    offsets = tuple(np.cumsum([0, *map(len, tables)]).tolist())
    positions = pl.Series([index for table in tables for index in table], dtype=INDEX)
    names = TRACE_NAMES.empty().drop("run_id", "event_index")
    names = pl.DataFrame({"name_index": range(len(indexes)), "name": list(indexes)}, schema=names.schema)
    return names, _RowMap(offsets, None, positions)


# ---------------------------------------------------------------- processes and clocks


def _unique_process_ids(parts: Sequence[RankTrace]) -> list[dict[int | None, int | None]]:
    """Return for each part its process ids mapped to ids that are unique in the joined trace."""
    used: set[int | None] = set()
    found = []
    for number, part in enumerate(parts):
        tables = [part.rows(table).select(pl.col("process_id").unique()) for table in TRACE_TABLES if "process_id" in table.column_names]
        own = {value for frame in pl.collect_all(tables) for value in frame["process_id"].to_list()}
        ids: dict[int | None, int | None] = {}
        for process_id in sorted(own, key=lambda value: -1 if value is None else value):
            combined_id = process_id
            while combined_id in used:
                combined_id = (combined_id or 0) + PROCESS_STEP * number
            ids[process_id] = combined_id
            used.add(combined_id)
        found.append(ids)
    return found


def _disambiguate(rows: pl.LazyFrame, table: Table, process_ids: Mapping[int | None, int | None], shift_ns: int) -> pl.LazyFrame:
    """Return a part's rows with unique process ids, and times shifted to the common origin."""
    changed = {old: new for old, new in process_ids.items() if old != new}
    if changed and "process_id" in table.column_names:
        rows = rows.with_columns(pl.col("process_id").replace(list(changed), list(changed.values())))
    return rows.with_columns(pl.col(name) + shift_ns for name in TIMES if name in table.column_names) if shift_ns else rows


def _describe_processes(rows: pl.LazyFrame, member: _Member) -> pl.LazyFrame:
    """Return the processes with file, rank, session start, and what was taken off their times."""
    origin_ns = member.origin_ns
    return rows.with_columns(
        file_name=pl.lit(member.trace.file_name),
        rank_index=pl.coalesce("rank_index", pl.lit(member.rank_index, dtype=INDEX)),
        session_start_unix_ns=pl.col("session_start_unix_ns") if origin_ns is None else pl.lit(origin_ns, dtype=COUNT),
        clock_offset_ns=pl.lit(member.clock_offset_ns, dtype=COUNT),
    )


def _by_one_clock(members: Sequence[_Member], names: pl.DataFrame, names_map: _RowMap) -> list[_Member]:
    """Return the traces with their times by the clock of the first rank, where collective operations tell how far apart the clocks are."""
    communicating = names.lazy().filter(pl.col("name").str.contains(COMMUNICATION))
    launches, processes = [], []
    for number, member in enumerate(members):
        rows = member.rows(KERNEL_LAUNCHES).select(COLLECTIVES_INPUT["kernel_launches"])
        name_index = pl.col("name_index").map_batches(partial(names_map.mapped, number), return_dtype=INDEX)
        launches.append(rows.with_columns(name_index).join(communicating, on="name_index", how="semi"))
        # By number: files of several directories may have one name.
        described = member.rows(TRACE_PROCESSES).select(COLLECTIVES_INPUT["trace_processes"])
        processes.append(described.with_columns(file_name=pl.lit(str(number))))
    clocks = rank_clocks(pl.concat(pl.collect_all(launches)).lazy(), names.lazy(), pl.concat(processes))
    is_aligned = (pl.col("clock_source") == "collectives") & (pl.col("operation_count") >= MIN_ALIGNING_OPERATIONS)
    offsets_ns: dict[str, int] = dict(clocks.filter(is_aligned).select("file_name", "clock_offset_ns").collect().rows())
    return [
        member
        if (offset_ns := offsets_ns.get(str(number))) is None
        else replace(member, shift_ns=member.shift_ns - offset_ns, clock_offset_ns=offset_ns)
        for number, member in enumerate(members)
    ]


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


def _clock_note(members: Sequence[_Member]) -> str:
    aligned = [member for member in members if member.clock_offset_ns is not None]
    if aligned:
        found = "Times of all files are" if len(aligned) == len(members) - 1 else f"Times of {len(aligned) + 1} of {len(members)} files are"
        return f"{found} by one clock, aligned by collective operations: table rank_clocks has how far the clocks were apart."
    if members[0].origin_ns is None:
        return "Not every file says when its session started: times of one file cannot be compared with those of another."
    few = "they share too few collective operations to align these"
    return f"Times of all files count from the earliest session, by the clocks of their machines: {few}."


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
