"""Damaged Kineto traces: `python -m tests.fuzzing.kineto --minutes 10`.

The plain parser reads and refuses alike, whatever the ranges; and every file becomes tables or an error that names it. The files are small
pieces of the shared traces where those are there, and events that are written out here.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from kernalyse.services.analyzer.queries.registry import DERIVED, FileSource, is_of_traces, resolve_table
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto.events import CATEGORIES
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import KernalyseError
from tests.fuzzing.campaign import campaign, options
from tests.fuzzing.damage import damaged
from tests.unit.kineto_alike import assert_alike
from tests.unit.kineto_plain import ARGUMENTS, MEMBER_NAMES

SHARED = Path(__file__).parents[3] / "shared" / "data" / "kineto"
EVENTS_OF_A_KIND = 2
RANGE_BYTES = (1_000, 8 * 1024 * 1024)

WRITTEN_EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 1, "ts": 1.5, "dur": 9, "args": {"Sequence number": 5}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1, "ts": 2, "dur": 1, "args": {"correlation": 3}},
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 4, "dur": 3, "args": {"correlation": 3, "grid": [1, 2, 3]}},
    {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "pid": 0,
        "tid": 7,
        "ts": 8,
        "dur": 1,
        "args": {"bytes": 4},
    },
    {"ph": "B", "cat": "user_annotation", "name": 'step "1"', "pid": "9", "tid": 1, "ts": 0},
    {"ph": "E", "pid": "9", "tid": 1, "ts": 20},
    {"ph": "s", "id": 3, "cat": "fwdbwd", "name": "fwdbwd", "pid": 9, "tid": 1, "ts": 1.5},
    {"ph": "f", "id": 3, "cat": "fwdbwd", "name": "fwdbwd", "pid": 9, "tid": 1, "ts": 12, "bp": "e"},
    {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}},
]
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**63),
    10**40,
    0.1,
    -2.5,
    1e300,
    "",
    "7",
    "\ud83d",
    [],
    {},
    [[1]],
    "nn.Module: A",
)


WRITTEN = tuple(
    json.dumps(document, indent=indent).encode()
    for document in ({"schemaVersion": 1, "traceEvents": WRITTEN_EVENTS}, WRITTEN_EVENTS)
    for indent in (None, 1)
)


def recorded() -> tuple[bytes, ...]:
    """Pieces of the shared traces; none where those are not there."""
    pieces = [_piece(json.loads(gzip.decompress(path.read_bytes()))) for path in sorted(SHARED.glob("*.json.gz"))]
    return tuple(json.dumps(piece, indent=indent).encode() for piece in pieces for indent in (None, 1))


def _piece(document: dict[str, Any]) -> dict[str, Any]:
    """A few events of each kind, and what stands beside them if it is short."""
    counts: dict[tuple[object, object], int] = {}
    events = []
    for event in document["traceEvents"]:
        kind = (event.get("cat"), event.get("ph"))
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= EVENTS_OF_A_KIND:
            events.append(event)
    return {key: value for key, value in document.items() if key != "traceEvents" and len(str(value)) < 500} | {"traceEvents": events}


@cache
def words() -> tuple[bytes, ...]:
    names = [*MEMBER_NAMES, *ARGUMENTS, *CATEGORIES, "traceEvents", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"]
    return (
        *(json.dumps(name).encode() + b": " for name in names),
        b"null",
        b"NaN",
        b"{}",
        b"[]",
        b"[" * 70,
        b"\\u0000",
        b"\\ud83d",
        b"\xff",
        b"\0",
    )


def attempt(random: Random, wholes: Sequence[bytes]) -> tuple[bytes, str]:
    """A damaged one of these traces, and how it was damaged."""
    whole = random.choice(wholes)
    match random.randrange(8):
        case 0:
            return damaged(random, gzip.compress(whole, mtime=0), wholes, words()), "packed, then damaged"
        case 1:
            return gzip.compress(damaged(random, whole, wholes, words()), mtime=0), "damaged, then packed"
        case 2 | 3 | 4:
            return json.dumps(_with_odd_values(random, json.loads(whole))).encode(), "odd values"
        case _:
            return damaged(random, whole, wholes, words()), "damaged"


def _with_odd_values(random: Random, document: Any) -> Any:
    """Some members of events, of their arguments or of the document become what no profiler writes there."""
    events = document["traceEvents"] if isinstance(document, dict) else document
    for _ in range(random.randint(1, 6)):
        event = random.choice(events)
        arguments = event.get("args") if isinstance(event.get("args"), dict) else event
        place = random.choice([event, event, arguments, document if isinstance(document, dict) else event])
        names = [*place, *(ARGUMENTS if place is arguments else MEMBER_NAMES), "deviceProperties", "distributedInfo", "baseTimeNanoseconds"]
        name = random.choice(names)
        if name != "traceEvents":
            place[name] = deepcopy(random.choice(ODD_VALUES))
    return document


def check(data: bytes) -> str:
    """How reading ended. Raises AssertionError where the two ways differ, and whatever escapes the reader."""
    text = data
    if data[:2] == b"\x1f\x8b":
        try:
            text = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            text = b""
    if text:
        assert_alike(text, RANGE_BYTES)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        path.write_bytes(data)
        try:
            tables = KinetoReader().read(TraceFiles(path.name, path, arrived_unix_ns=0))
        except KernalyseError as error:
            if path.name not in error.subject:
                raise
            return type(error).__name__
    source = FileSource(tables.frames)
    for table_name in filter(is_of_traces, DERIVED):
        resolve_table(find_table(table_name), source).collect()
    return "read"


if __name__ == "__main__":
    sys.exit(1 if campaign(partial(attempt, wholes=(*WRITTEN, *recorded())), check, options(__doc__)) else 0)
