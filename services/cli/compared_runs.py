"""The two sides of `kernalyse compare`: runs of the store, or files that `bench --json`, `export` or another tool wrote."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.core.model import TableQuery
from services.core.words.usage import UsageError

if TYPE_CHECKING:
    import polars as pl

    from services.analyzer.analyses.compare import ComparedRun
    from services.cli.analyzer_client import AnalyzerClient
    from services.cli.options import Server
    from services.core.model import Run

FILE_SUFFIXES = (".json", ".gz", ".sqlite")


@dataclass(frozen=True, slots=True)
class ComparedTrace:
    """One side that is a trace. tables: kernels and layers of it."""

    run_id: str
    tables: Mapping[str, pl.DataFrame]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the run as the only one of its operand."""
        return (self.run_id,)


def compared_sides(sides: Sequence[str], server: Server, depth: int | None) -> list[ComparedRun | ComparedTrace]:
    """Return both operands: each a run id, the beginning of one, "last", or a file; or several, joined by commas, that repeat each other.

    Services are asked for runs alone.

    depth: of the ranges that layers of traces are summed at; None: the innermost.

    Raises:
        UsageError: a file that is not there, one run named twice, or several traces on one side.
        InvalidTraceError: a file that no reader takes.
        RunNotFoundError: no such run.
    """
    from services.cli.session import analyzer_session

    is_file = {name: _is_file(name) for side in sides for name in _names(side)}
    if all(is_file.values()):
        found = {name: _of_file(Path(name), depth) for name in is_file}
    else:
        with analyzer_session(server, with_profiler=False) as client:
            found = {name: _of_file(Path(name), depth) if file else _of_run(client, name, depth) for name, file in is_file.items()}
    return [_side(side, [found[name] for name in _names(side)]) for side in sides]


def _names(side: str) -> list[str]:
    return [side] if Path(side).is_file() else [name for part in side.split(",") if (name := part.strip())] or [side]


def _side(side: str, parts: Sequence[ComparedRun | ComparedTrace]) -> ComparedRun | ComparedTrace:
    from services.analyzer.analyses.compare import ComparedRun, joined_runs

    if len(parts) == 1:
        return parts[0]
    repeated = [run_id for run_id, count in Counter(part.run_id for part in parts).items() if count > 1]
    if repeated:
        raise UsageError(f"runs {side}", found=f"{repeated[0]} more than once", expected="each run once", remedy="Leave the others out.")
    runs = [part for part in parts if isinstance(part, ComparedRun)]
    if len(runs) < len(parts):
        raise UsageError(
            f"runs {side}", found="a trace among several", expected="runs of measurements, or one trace", remedy="Name one trace a side."
        )
    return joined_runs(runs)


def _is_file(name: str) -> bool:
    path = Path(name)
    if path.is_file():
        return True
    if path.suffix in FILE_SUFFIXES or len(path.parts) > 1:
        raise UsageError(
            f"file {name}", found="no such file", expected="a run id, last, or a file of results or of a trace", remedy="Correct it."
        )
    return False


def _of_run(client: AnalyzerClient, name: str, depth: int | None) -> ComparedRun | ComparedTrace:
    run = client.run(name)
    if run.is_trace:
        queries = (TableQuery("kernels", (run.run_id,)), TableQuery("layers", (run.run_id,), depth=depth))
        return ComparedTrace(run.run_id, {query.table_name: client.rows(query)[0] for query in queries})
    return run_of(client, run)


def run_of(client: AnalyzerClient, run: Run) -> ComparedRun:
    """Return a run of measurements as one operand."""
    from services.analyzer.analyses.compare import ComparedRun
    from services.cli.export import run_results

    results = run_results(client, run)
    return ComparedRun(
        run_id=run.run_id,
        measurements=results.frames["measurements"],
        samples=results.frames["samples"],
        node_id=run.node_id or None,
        devices={device.device_id: device for device in results.devices},
        paired_comparisons=results.frames["paired_comparisons"],
    )


def _of_file(path: Path, depth: int | None) -> ComparedRun | ComparedTrace:
    from kernalyse.companions import COMPANION_FOLDERS
    from services.analyzer.analyses.compare import ComparedRun
    from services.analyzer.readers.registry import reader_of
    from services.analyzer.readers.selection import Selection, SelectiveReader
    from services.analyzer.readers.trace import TraceFiles
    from services.analyzer.schema import MEASUREMENTS, SAMPLES
    from services.analyzer.trace_answers import TRACE_ANALYSES, TraceQuestion, inputs, trace_frames
    from services.analyzer.trace_tables import TRACE_NAMES

    folders = (path.with_name(path.name + ending) for ending in COMPANION_FOLDERS)
    companions = {str(file.relative_to(path.parent)): file for folder in folders if folder.is_dir() for file in folder.iterdir()}
    files, question = TraceFiles(path.name, path, time.time_ns(), companions), TraceQuestion(depth)
    reader = reader_of(files)
    needed = Selection.of(inputs(("kernels", "layers"), question))
    tables = reader.read_columns(files, needed) if isinstance(reader, SelectiveReader) else reader.read(files)
    if TRACE_NAMES.table_name in tables.frames:
        trace = trace_frames(tables.frames)
        return ComparedTrace(str(path), {name: TRACE_ANALYSES[name].answer(trace, question).collect() for name in ("kernels", "layers")})
    return ComparedRun(
        run_id=str(path),
        measurements=tables.frames[MEASUREMENTS.table_name],
        samples=tables.frames.get(SAMPLES.table_name, SAMPLES.empty()),
        node_id=tables.node_id,
        devices={device.device_id: device for device in tables.devices},
    )
