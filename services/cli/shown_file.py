"""Tables of a file that nobody has imported: read, answered and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from services.analyzer.querying import QueryResult
    from services.analyzer.readers.trace import TraceFiles
    from services.analyzer.trace_answers import TraceFrames
    from services.core.model import TableQuery


def tables_of_file(path: Path, queries: Sequence[TableQuery], reports: Sequence[Path] = ()) -> tuple[dict[str, QueryResult], list[str]]:
    """What the queries find, by table, and the reader's notes.

    Args:
        path: of a file, or of a folder that is one trace.
        reports: of ncu, of the same program.

    Raises:
        InvalidTraceError: no reader takes the file, or it is damaged; a report is no report, or of another program.
        InvalidRequestError: a value that a column cannot hold.
        UsageError: a table that the file has to be imported for.
    """
    import time

    from services.analyzer.readers.trace_paths import trace_files
    from services.analyzer.trace_answers import trace_frames

    files = trace_files(path, time.time_ns())
    frames, notes = _read(replace(files, companions={**files.companions, **report_files(reports)}), queries)
    trace = trace_frames(frames)
    return {query.table_name: _answered(trace, query) for query in queries}, notes


def _answered(trace: TraceFrames, query: TableQuery) -> QueryResult:
    """Without the columns of a store, and those of an analysis alone where its table has others for other runs."""
    from services.analyzer.querying import run_query
    from services.analyzer.schema import table_named
    from services.analyzer.trace_answers import TRACE_ANALYSES, question_of

    name = query.table_name
    answer = TRACE_ANALYSES[name].answer(trace, question_of(query)) if name in TRACE_ANALYSES else trace[name]
    columns = tuple(column for column in answer.collect_schema().names() if column not in ("run_id", "event_index"))
    table = table_named(name)
    return run_query(table.conform(answer), table, replace(query, columns=columns))


def report_files(reports: Sequence[Path]) -> dict[str, Path]:
    """Reports of ncu by the names that they go by beside a trace. Raises UsageError: one is none, or two have one name."""
    from services.analyzer.readers.ncu_trace import NcuReader
    from services.analyzer.readers.registry import HEAD_BYTES
    from services.cli.usage import UsageError

    found: dict[str, Path] = {}
    for path in reports:
        with path.open("rb") as file:
            is_report = NcuReader().matches(file.read(HEAD_BYTES))
        if not is_report or path.name in found:
            raise UsageError(
                f"option --counters {path}",
                found="a second report of this name" if is_report else "a file of another kind",
                expected="reports of ncu, each with its own name",
                remedy="Write one with: ncu --csv --page raw.",
            )
        found[path.name] = path
    return found


def _read(files: TraceFiles, queries: Sequence[TableQuery]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    from services.analyzer.readers.selection import Selection
    from services.analyzer.trace_answers import answerable, inputs, question_of
    from services.analyzer.trace_reading import read_with_counters
    from services.cli.usage import UsageError

    for query in queries:
        if not answerable(query.table_name):
            raise UsageError(
                f"table {query.table_name} of file {files.file_name}",
                found="a table that is no trace's",
                expected="kernels, layers, breakdown or a table of the trace",
                remedy="Import the file, then show the run.",
            )
    selection = Selection.of(needed for query in queries for needed in inputs([query.table_name], question_of(query)))
    read = read_with_counters(files, selection)
    return dict(read.frames), read.notes.splitlines()
