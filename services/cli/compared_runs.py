"""The two sides of `kernalyse compare`: runs of the store, or files that `bench --json`, `export` or another tool wrote."""

from __future__ import annotations

import time
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


def compared_sides(names: Sequence[str], server: Server, depth: int | None) -> list[ComparedRun | ComparedTrace]:
    """Each a run id, the beginning of one, "last", or a file. Services are asked for runs alone.

    depth: of the ranges that layers of traces are summed at; None: the innermost.

    Raises:
        UsageError: a file that is not there.
        InvalidTraceError: a file that no reader takes.
        RunNotFoundError: no such run.
    """
    from services.cli.session import analyzer_session

    is_file = [_is_file(name) for name in names]
    if all(is_file):
        return [_of_file(Path(name), depth) for name in names]
    with analyzer_session(server, with_profiler=False) as client:
        return [_of_file(Path(name), depth) if file else _of_run(client, name, depth) for name, file in zip(names, is_file, strict=True)]


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
    """A run of measurements as one side."""
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
