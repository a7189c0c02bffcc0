"""Traces of several processes of one job: which files belong together, and how they become one trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.analysis.traces.collectives import COLLECTIVES_INPUT, rank_clocks
from kernalyse.services.analyzer.readers.kineto.decompress import unpacked_head
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.readers.nsys.export import read_environment
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.analyzer.store.trace_parts import PartMap
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, Table
from kernalyse.services.analyzer.tables.runs import COUNTERS
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_NAMES, TRACE_PROCESSES, TRACE_TABLES
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.kernel_categories import COMMUNICATION

# ---------------------------------------------------------------- joining

PROCESS_STEP: Final = 2**32
"""Added to a process id that another file has too, once for each file before it. No system has process ids of this size."""

MIN_ALIGNING_OPERATIONS: Final = 10
"""Collective operations that two files must share for the times of one to be changed: the ends of a few may agree by chance."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one process. frames: by table name; a missing table has no rows, or is not known."""

    file_name: str
    frames: Mapping[str, pl.LazyFrame]

    def rows(self, table: Table) -> pl.LazyFrame:
        """Return a table with all its columns except run_id and event_index."""
        return table.conform(self.frames.get(table.table_name, table.empty().lazy())).drop("run_id", "event_index")

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
    """One trace of several processes: frames of the tables with rows, not read yet. notes: of what could not be determined.

    row_counts: of each part, by table name. maps: of each part, how its rows become those of the frames.
    """

    frames: Mapping[str, pl.LazyFrame]
    row_counts: Mapping[str, Sequence[int]]
    maps: Sequence[PartMap]
    notes: tuple[str, ...]


def join_traces(parts: Sequence[RankTrace]) -> JoinedTrace:
    """Join traces into one with all their rows, those of one trace after those of the other.

    Times count from the earliest start of a session, unless a trace does not tell its start, and are those of the first rank's
    clock where collective operations tell how far apart the clocks are. What a clock drifts is left: durations stay as they were
    measured. Of processes that share an id, those of later traces get another one.
    """
    starts = [part.session_start_unix_ns for part in parts]
    known = [start for start in starts if start is not None]
    origin_ns = min(known) if len(known) == len(parts) else None
    shifts_ns = [0 if start is None or origin_ns is None else start - origin_ns for start in starts]
    ranks, rank_notes = _ranks_from_names(parts)
    names, name_indexes = _merge_names(parts)
    row_counts = {table.table_name: [_row_count(part, table) for part in parts] for table in (*TRACE_TABLES, COUNTERS)}
    first_rows = {name: list(accumulate(counts, initial=0)) for name, counts in row_counts.items()}
    members = [
        _Member(
            part, rank, origin_ns, PartMap({name: rows[number] for name, rows in first_rows.items()}, name_indexes[number], ids, shift_ns)
        )
        for number, (part, ids, shift_ns, rank) in enumerate(zip(parts, _changed_process_ids(parts), shifts_ns, ranks, strict=True))
    ]
    members = _by_one_clock(members, names)
    frames = {
        table.table_name: names.lazy() if table is TRACE_NAMES else pl.concat([member.rows(table) for member in members])
        for table in (*TRACE_TABLES, COUNTERS)
        if any(row_counts[table.table_name])
    }
    return JoinedTrace(frames, row_counts, [member.map for member in members], (_clock_note(members), *rank_notes))


@dataclass(frozen=True, slots=True)
class _Member:
    """A trace within a joined one.

    origin_ns: of all times; None: each trace has its own. clock_offset_ns: in the map's shift, how far its clock was ahead of the
    first rank's; None: not known, or it is that clock.
    """

    trace: RankTrace
    rank_index: int | None
    origin_ns: int | None
    map: PartMap
    clock_offset_ns: int | None = None

    def rows(self, table: Table) -> pl.LazyFrame:
        """Return the rows of a table as they are in the joined trace; processes with file and rank."""
        rows = self.map.rows(self.trace.rows(table))
        return _describe_processes(rows, self) if table is TRACE_PROCESSES else rows


def _row_count(part: RankTrace, table: Table) -> int:
    count: int = part.rows(table).select(pl.len()).collect().item()
    return count


def _merge_names(parts: Sequence[RankTrace]) -> tuple[pl.DataFrame, list[pl.Series]]:
    """Return every name once, in order of first appearance, and for each part its rows of names as rows of these."""
    indexes: dict[str | None, int] = {}
    own = [pl.Series([indexes.setdefault(name, len(indexes)) for name in part.frame(TRACE_NAMES)["name"]], dtype=INDEX) for part in parts]
    names = TRACE_NAMES.empty().drop("run_id", "event_index")
    return pl.DataFrame({"name_index": range(len(indexes)), "name": list(indexes)}, schema=names.schema), own


# ---------------------------------------------------------------- processes and clocks


def _changed_process_ids(parts: Sequence[RankTrace]) -> list[dict[int | None, int | None]]:
    """Return for each part those of its process ids that another part before it has too, mapped to ids that no other has."""
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
            if combined_id != process_id:
                ids[process_id] = combined_id
            used.add(combined_id)
        found.append(ids)
    return found


def _describe_processes(rows: pl.LazyFrame, member: _Member) -> pl.LazyFrame:
    """Return the processes with file, rank, session start, and what was taken off their times."""
    origin_ns = member.origin_ns
    return rows.with_columns(
        file_name=pl.lit(member.trace.file_name),
        rank_index=pl.coalesce("rank_index", pl.lit(member.rank_index, dtype=INDEX)),
        session_start_unix_ns=pl.col("session_start_unix_ns") if origin_ns is None else pl.lit(origin_ns, dtype=COUNT),
        clock_offset_ns=pl.lit(member.clock_offset_ns, dtype=COUNT),
    )


def _by_one_clock(members: Sequence[_Member], names: pl.DataFrame) -> list[_Member]:
    """Return the traces with their times by the clock of the first rank, where collective operations tell how far apart the clocks are."""
    communicating = names.lazy().filter(pl.col("name").str.contains(COMMUNICATION))
    launches, processes = [], []
    for number, member in enumerate(members):
        rows = member.rows(KERNEL_LAUNCHES).select(COLLECTIVES_INPUT["kernel_launches"])
        launches.append(rows.join(communicating, on="name_index", how="semi"))
        # By number: files of several directories may have one name.
        described = member.rows(TRACE_PROCESSES).select(COLLECTIVES_INPUT["trace_processes"])
        processes.append(described.with_columns(file_name=pl.lit(str(number))))
    clocks = rank_clocks(pl.concat(pl.collect_all(launches)).lazy(), names.lazy(), pl.concat(processes))
    is_aligned = (pl.col("clock_source") == "collectives") & (pl.col("operation_count") >= MIN_ALIGNING_OPERATIONS)
    offsets_ns: dict[str, int] = dict(clocks.filter(is_aligned).select("file_name", "clock_offset_ns").collect().rows())
    return [
        member
        if (offset_ns := offsets_ns.get(str(number))) is None
        else replace(member, map=replace(member.map, shift_ns=member.map.shift_ns - offset_ns), clock_offset_ns=offset_ns)
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
