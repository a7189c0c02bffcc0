"""Damaged exports of Nsight Systems against the reader: python -m tests.fuzzing.nsys --minutes 10

Each file is read twice, from its pages and through SQLite. Both have to answer the same, or both have to refuse it with an error of
this project; in seconds, without ending the process or filling the memory. A case is made from its number alone: --case NUMBER does
one again and keeps its file. Status 1: something was found; it is printed with its number.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import closing
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.queries.registry import trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult
from kernalyse.services.analyzer.readers.nsys.reader import read_tables
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.core.errors import KernalyseError
from tests.fuzzing.nsys_mutations import write_case

SHARED: Final = Path(__file__).parents[3] / "shared" / "data" / "nsys"
CASE_LIMIT_S: Final = 60.0
"""The largest case takes a second on a quiet machine."""

START_LIMIT_S: Final = 600.0
"""Until the first case: a machine that has not compiled the reader yet takes half a minute, a busy one several."""

ADDRESS_BYTES: Final = 8 * 1024**3
GROWTH_BYTES: Final = 600 * 1024**2
"""Of memory in use. Files are of three megabytes at most."""

REFUSED: Final = "refused"


MEMORY_DIRECTORY: Final = Path("/dev/shm")
"""Cases are written there where it is: SQLite waits for a disk several times a case."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def outcome(path: Path, *, decodes_pages: bool) -> ReadResult | str:
    """The tables, or REFUSED."""
    try:
        with closing(SqliteFile.open(path, "case.sqlite", decodes_pages=decodes_pages)) as file:
            return read_tables(file)
    except KernalyseError:
        return REFUSED


def difference(path: Path) -> str:
    """Between both ways of reading a file; empty when there is none."""
    of_pages, of_sqlite = outcome(path, decodes_pages=True), outcome(path, decodes_pages=False)
    if isinstance(of_pages, str) or isinstance(of_sqlite, str):
        return "" if of_pages == of_sqlite else f"pages {_said(of_pages)}, SQLite {_said(of_sqlite)}"
    if of_pages.notes != of_sqlite.notes:
        return f"notes {of_pages.notes!r} and {of_sqlite.notes!r}"
    for name, frame in _with_names(of_pages).items():
        if not frame.equals(_with_names(of_sqlite)[name]):
            return f"table {name}"
    _answer(of_pages)
    return ""


def _said(found: ReadResult | str) -> str:
    return found if isinstance(found, str) else "answer"


def _with_names(tables: ReadResult) -> dict[str, pl.DataFrame]:
    """Names in the place of their indexes, which are in the order that they were met in."""
    names = tables.frames["trace_names"]["name"]
    found = {name: frame for name, frame in tables.frames.items() if name != "trace_names"}
    return {
        name: frame.with_columns(names.gather(frame[column]).alias(column) for column in frame.columns if column.endswith("name_index"))
        for name, frame in found.items()
    }


def _answer(tables: ReadResult) -> None:
    """Whatever was read has to be answered from."""
    trace = trace_frames(tables.frames)
    launches, names = trace["kernel_launches"], trace["trace_names"]
    for depth in (None, 0):
        trace_layers(launches, trace["ranges"], names, depth).collect()
    trace_breakdown(launches, trace["memory_ops"], names, trace["trace_devices"]).collect()


# ---------------------------------------------------------------- the process that reads


def read_cases(first: int, directory: Path) -> None:
    """One after the other until it is ended; says the number of each before it and what came of it after."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    samples = sorted(SHARED.glob("*.sqlite"))
    read_case(first, directory / "case.sqlite", [])  # compiles what is not compiled yet
    number = first
    while True:
        say(f"case {number}")
        found = read_case(number, directory / "case.sqlite", samples)
        if found:
            say(f"found {number} {found}")
        number += 1


def read_case(number: int, path: Path, samples: list[Path]) -> str:
    for beside in path.parent.glob("case.sqlite-*"):
        beside.unlink()
    made = write_case(number, path, samples)
    before_bytes = _peak_bytes()
    try:
        found = difference(path)
    except Exception:
        found = " | ".join(traceback.format_exc().strip().splitlines()[-3:])
    grown_bytes = _peak_bytes() - before_bytes
    if not found and grown_bytes > GROWTH_BYTES:
        found = f"{grown_bytes >> 20} MiB more"
    return f"{found} [{made}]" if found else ""


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---------------------------------------------------------------- the one that watches it


def watch(minutes: float, first: int) -> int:
    """Status. Starts the reading process anew after whatever ended it."""
    os.nice(19)
    end = time.monotonic() + 60 * minutes
    number, found_count = first, 0
    while time.monotonic() < end:
        number, count = _watch_one(number, end)
        found_count += count
    say(f"{number - first} cases, {found_count} findings")
    return 1 if found_count else 0


def _watch_one(first: int, end: float) -> tuple[int, int]:
    """The number to go on with, and how much was found."""
    number, found_count, limit_s = first, 0, START_LIMIT_S
    with (
        tempfile.TemporaryDirectory(dir=MEMORY_DIRECTORY if MEMORY_DIRECTORY.is_dir() else None) as directory,
        DefaultSelector() as selector,
    ):
        arguments = [sys.executable, "-m", "tests.fuzzing.nsys", "--read", str(first), directory]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            selector.register(process.stdout, EVENT_READ)
            while time.monotonic() < end:
                if not selector.select(limit_s):
                    say(f"found {number} no end after {limit_s:.0f} s")
                    return number + 1, found_count + 1
                line, limit_s = process.stdout.readline(), CASE_LIMIT_S
                if not line:
                    status = process.wait()
                    say(f"found {number} ended the process with {status}: {process.stderr.read()[-300:]}")
                    return number + 1, found_count + 1
                if line.startswith("case "):
                    number = int(line.split()[1])
                else:
                    say(line.strip())
                    found_count += 1
            return number, found_count
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the first case")
    parser.add_argument("--case", type=int, metavar="NUMBER", help="this one only; its file stays in the working directory")
    parser.add_argument("--read", nargs=2, metavar=("NUMBER", "DIRECTORY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read_cases(int(arguments.read[0]), Path(arguments.read[1]))
    if arguments.case is not None:
        found = read_case(arguments.case, Path(f"case-{arguments.case}.sqlite"), sorted(SHARED.glob("*.sqlite")))
        say(found or "nothing found")
        return 1 if found else 0
    return watch(arguments.minutes, arguments.first)


if __name__ == "__main__":
    sys.exit(main())
