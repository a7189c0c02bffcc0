"""Tables of a file that nobody has imported: read, answered and forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from kernalyse.companions import companions_of
from services.analyzer.file_tables import has_results, results_table
from services.analyzer.querying import QueryResult, run_query
from services.analyzer.readers.ncu_trace import NcuReader
from services.analyzer.readers.registry import HEAD_BYTES, reader_of
from services.analyzer.readers.selection import Selection, SelectiveReader
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.analyzer.readers.trace_paths import trace_files
from services.analyzer.schema import table_named
from services.analyzer.trace_answers import PLAIN_QUESTION, TRACE_ANALYSES, TraceFrames, answerable, inputs, question_of, trace_frames
from services.analyzer.trace_reading import read_with_counters
from services.cli.row_choice import RowChoice
from services.core.model import ImportedTrace, TableQuery
from services.core.words.usage import UsageError


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """What is asked of a file.

    table_names: none for the kernels of a trace, the measurements of results.
    reports: of ncu, of the same program.
    op_registry_folder: of op_registry.py, for files of operations.
    """

    table_names: Sequence[str]
    choice: RowChoice
    reports: Sequence[Path] = ()
    op_registry_folder: Path | None = None


def tables_of_file(path: Path, question: FileQuestion) -> tuple[dict[str, QueryResult], list[str]]:
    """Return what is found, by table, and the reader's notes.

    Args:
        path: of a file, or of a folder that is one trace.

    Raises:
        InvalidTraceError: no reader takes the file, or it is damaged; a report is no report, or of another program.
        InvalidRequestError: a value that a column cannot hold.
        UsageError: a table that the file has to be imported for.
    """
    files = _files(path, question)
    queries = question.choice.queries(question.table_names or ["kernels"])
    if isinstance(reader_of(files), SelectiveReader):
        read = _read(files, queries)
    else:
        read = read_with_counters(files)
        if has_results(read.frames):
            return _results(read, question.choice.queries(question.table_names or ["measurements"])), read.notes.splitlines()
        _refuse_unanswerable(files, queries)
    trace = trace_frames(read.frames)
    return {query.table_name: _answered(trace, query) for query in queries}, read.notes.splitlines()


def report_of_file(path: Path, chosen: str) -> bytes:
    """Return what `kernalyse report` says of a run, of a file. chosen: the format. Raises InvalidTraceError."""
    from services.analyzer.imported_run import imported_run
    from services.analyzer.writers.report import report_format
    from services.analyzer.writers.report_file import report_file

    written = report_format(chosen)
    files = _files(path, FileQuestion((), RowChoice()))
    read = read_with_counters(files)
    run = imported_run(str(path), ImportedTrace(files.file_name, "", reader_of(files).format), read)
    return report_file(run, _rows_of(read), written)


def _rows_of(read: ImportedTables) -> Callable[[str], pl.LazyFrame]:
    """Return tables of what was read by their names; those that it has nothing for have no rows."""
    trace = trace_frames(read.frames)

    def rows_of(name: str) -> pl.LazyFrame:
        table = table_named(name)
        if has_results(read.frames):
            return results_table(read.frames, table)
        if name in TRACE_ANALYSES:
            return table.conform(TRACE_ANALYSES[name].answer(trace, PLAIN_QUESTION))
        return trace.get(name, table.empty().lazy())

    return rows_of


def _files(path: Path, question: FileQuestion) -> TraceFiles:
    """Return the trace with what lies beside it and what the command line names."""
    files = trace_files(path, time.time_ns())
    beside = {} if path.is_dir() else {file.relative_to(path.parent).as_posix(): file for file in companions_of(path)}
    companions = {**files.companions, **beside, **report_files(question.reports)}
    return replace(files, companions=companions, op_registry_folder=question.op_registry_folder)


def report_files(reports: Sequence[Path]) -> dict[str, Path]:
    """Return reports of ncu by the names that they go by beside a trace. Raises UsageError: one is none, or two have one name."""
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


def _results(read: ImportedTables, queries: Sequence[TableQuery]) -> dict[str, QueryResult]:
    return {query.table_name: _found(results_table(read.frames, table_named(query.table_name)), query) for query in queries}


def _answered(trace: TraceFrames, query: TableQuery) -> QueryResult:
    """Return the result of a query; of a table that an analysis shares with other runs, its own columns alone."""
    name = query.table_name
    return _found(TRACE_ANALYSES[name].answer(trace, question_of(query)) if name in TRACE_ANALYSES else trace[name], query)


def _found(rows: pl.LazyFrame, query: TableQuery) -> QueryResult:
    """Return rows without the columns of a store."""
    columns = tuple(column for column in rows.collect_schema().names() if column not in ("run_id", "event_index"))
    table = table_named(query.table_name)
    return run_query(table.conform(rows), table, replace(query, columns=columns))


def _read(files: TraceFiles, queries: Sequence[TableQuery]) -> ImportedTables:
    """Read what the queries need of a large trace."""
    _refuse_unanswerable(files, queries)
    selection = Selection.of(needed for query in queries for needed in inputs([query.table_name], question_of(query)))
    return read_with_counters(files, selection)


def _refuse_unanswerable(files: TraceFiles, queries: Sequence[TableQuery]) -> None:
    for query in queries:
        if not answerable(query.table_name):
            raise UsageError(
                f"table {query.table_name} of file {files.file_name}",
                found="a table that is no trace's",
                expected="kernels, layers, breakdown, roofline, layer_roofline, opportunities or a table of the trace",
                remedy="Import the file, then show the run.",
            )
