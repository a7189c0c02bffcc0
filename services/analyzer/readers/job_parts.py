"""Which traces are of processes of one job, told by a look into each of them: reading them whole comes later."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.analyzer.readers.kineto.decompress import unpacked_head
from services.analyzer.readers.kineto.reader import KinetoReader
from services.analyzer.readers.nsys_environment import read_environment
from services.analyzer.readers.nsys_sqlite import NsysSqliteReader
from services.analyzer.readers.sqlite_file import SqliteFile
from services.core.errors import KernalyseError

HEAD_BYTES: Final = 1024 * 1024
"""A Kineto trace says its rank behind the properties of up to sixteen devices and before its first event; lists of process
groups of large jobs have hundreds of kilobytes."""

MAX_START_SPREAD_NS: Final = 60 * 10**9
"""Between the starts of ranks whose ends are not known. Ranks begin at the same step of their training, seconds apart at most;
the next recording of a job that records again and again mostly comes later, and a rank that comes twice tells it in any case."""

MIN_OVERLAP_RATIO: Final = 0.5
"""Of the shorter of two recordings: less, and one was started as the other ended."""

DISTRIBUTED: Final = re.compile(rb'"distributedInfo"\s*:\s*')
BASE_TIME: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
FIRST_TIME: Final = re.compile(rb'"ts"\s*:\s*(\d{1,19})')
NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class JobPart:
    """What a trace says of the job that it is a part of.

    key: equal for all parts of a job.
    members: ranks or processes of it; no two parts of a job share one.
    end_ns: None: not known without reading it all.
    """

    key: tuple[object, ...]
    members: frozenset[object]
    start_ns: int
    end_ns: int | None = None

    def is_beside(self, other: JobPart) -> bool:
        """Whether both can be of one job: of the same, at the same time, and not the same part of it."""
        if self.key != other.key or self.members & other.members:
            return False
        if self.end_ns is None or other.end_ns is None:
            return abs(self.start_ns - other.start_ns) <= MAX_START_SPREAD_NS
        overlap_ns = min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns)
        return overlap_ns >= MIN_OVERLAP_RATIO * min(self.end_ns - self.start_ns, other.end_ns - other.start_ns)


def by_job(paths: Sequence[Path]) -> list[list[Path]]:
    """The traces, those of one job together. Jobs in the order of their first trace; the parts of one by rank, then as given."""
    parts = {path: part_of(path) for path in paths}
    jobs: list[list[Path]] = []
    for path in sorted(parts, key=lambda path: _start(parts[path])):
        found = next((job for job in reversed(jobs) if _belongs(parts[path], [parts[other] for other in job])), None)
        if found is None:
            jobs.append([path])
        else:
            found.append(path)
    places = {path: number for number, path in enumerate(paths)}
    ordered = [sorted(job, key=lambda path: (_rank(parts[path]), places[path])) for job in jobs]
    return sorted(ordered, key=lambda job: min(places[path] for path in job))


def part_of(path: Path) -> JobPart | None:
    """None: it is of no job with others, does not say, or cannot be read: that is told when its turn comes."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if KinetoReader().matches(head):
            return _of_kineto(unpacked_head(head, HEAD_BYTES))
        return _of_nsys(path) if NsysSqliteReader().matches(head) else None
    except (OSError, KernalyseError):
        return None


def _belongs(part: JobPart | None, others: Iterable[JobPart | None]) -> bool:
    return part is not None and all(other is not None and part.is_beside(other) for other in others)


def _start(part: JobPart | None) -> int:
    return 0 if part is None else part.start_ns


def _rank(part: JobPart | None) -> int:
    return min((member for member in part.members if isinstance(member, int)), default=0) if part is not None else 0


def _of_kineto(head: bytes) -> JobPart | None:
    found, first = DISTRIBUTED.search(head), FIRST_TIME.search(head)
    if found is None or first is None:
        return None
    try:
        info: Any = json.JSONDecoder().raw_decode(head[found.end() :].decode(errors="replace"))[0]
    except ValueError:
        return None
    rank, world_size = (_whole(info.get(name)) for name in ("rank", "world_size")) if isinstance(info, dict) else (None, None)
    if rank is None or world_size is None or world_size < 2:
        return None
    base = BASE_TIME.search(head)
    start_ns = (0 if base is None else int(base[1])) + int(first[1]) * NS_PER_US
    return JobPart(("kineto", str(info.get("backend")), world_size), frozenset({rank}), start_ns)


def _of_nsys(path: Path) -> JobPart | None:
    with closing(SqliteFile.open(path, path.name)) as file:
        environment = read_environment(file)
    start_ns, first_ns, last_ns = environment.session_start_unix_ns, environment.first_ns, environment.last_ns
    if start_ns is None or first_ns is None or last_ns is None or not environment.process_names:
        return None
    members = frozenset((environment.host_name, key) for key in environment.process_names)
    programs = frozenset(environment.process_names.values())
    return JobPart(("nsys", programs), members, start_ns + first_ns, start_ns + last_ns)


def _whole(value: object) -> int | None:
    is_number = isinstance(value, int | str) and str(value).isascii() and str(value).isdigit()
    return int(str(value)) if is_number else None
