"""Tables and reports of files, without a store, and filters of rows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kernalyse.companions import companions_of
from kernalyse.services.analyzer.ingest.reading import read_with_counters
from kernalyse.services.analyzer.queries.filters import QueryResult, run_query
from kernalyse.services.analyzer.queries.registry import (
    PLAIN_QUESTION,
    TRACE_ANALYSES,
    TraceFrames,
    answerable,
    has_results,
    inputs,
    question_of,
    results_table,
    trace_frames,
)
from kernalyse.services.analyzer.readers.base import ImportedTables, Selection, SelectiveReader, TraceFiles
from kernalyse.services.analyzer.readers.ncu.reader import NcuReader
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, reader_of, trace_files
from kernalyse.services.analyzer.tables.runs import table_named
from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.model import Filter, FilterOperator, ImportedTrace, SortKey, TableQuery

if TYPE_CHECKING:
    from kernalyse.services.analyzer.tables.base import Table


# ---------------------------------------------------------------- shown file
# Tables of a file that nobody has imported: read, answered and forgotten.


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
    from kernalyse.services.analyzer.export.report_files import report_file, report_format
    from kernalyse.services.analyzer.ingest.reading import imported_run

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


# ---------------------------------------------------------------- row choice
# Which rows of tables are shown, as the command line says it: conditions, order, count, depth.

WINDOWED: Final = ("timeline", "timeline_matches", "window_summary")
CONDITION: Final = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
OPERATORS: Final = {
    "=": FilterOperator.EQUAL,
    "!=": FilterOperator.NOT_EQUAL,
    "<": FilterOperator.LESS,
    "<=": FilterOperator.LESS_EQUAL,
    ">": FilterOperator.GREATER,
    ">=": FilterOperator.GREATER_EQUAL,
    "~": FilterOperator.CONTAINS,
}

QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\W\d_]+|%)")
MOMENT: Final = re.compile(r"(\d+\.?\d*|\.\d+)\s*([^\W\d_]+)?")
DURATIONS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}  # both signs that keyboards have for micro
SIZES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
CLOCKS: Final = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
SHARES: Final = {"%": Decimal("0.01")}
UNITS: Final[Mapping[str, Mapping[str, int | Decimal]]] = {"_ns": DURATIONS, "_bytes": SIZES, "_hz": CLOCKS, "_ratio": SHARES}
"""By the end of the column's name, which says the unit that its values have."""


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of a trace that is drawn. None: from the first start, to the last end, on as many pixels as is usual."""

    start_ns: int | None = None
    end_ns: int | None = None
    pixel_count: int | None = None


WHOLE: Final = Window()


@dataclass(frozen=True, slots=True)
class RowChoice:
    """What is asked of every table that has it.

    max_row_count, depth: None: not given.
    window: of tables of a timeline.
    """

    filters: tuple[Filter, ...] = ()
    order_by: tuple[SortKey, ...] = ()
    max_row_count: int | None = None
    depth: int | None = None
    window: Window = WHOLE

    def queries(self, table_names: Iterable[str]) -> list[TableQuery]:
        """Return one query a table, each with what its table has columns for, of no runs yet. Without tables none.

        Raises:
            TableNotFoundError: there is no such table.
            UsageError: a column or a depth that none of the tables has.
        """
        from kernalyse.services.analyzer.queries.registry import has_depth
        from kernalyse.services.analyzer.tables.runs import table_named

        tables = [table_named(name) for name in dict.fromkeys(table_names)]
        if not tables:
            return []
        for filter_ in self.filters:
            _refuse_unknown(f"option --filter {filter_.column}", filter_.column, tables)
        for key in self.order_by:
            _refuse_unknown(f"option --sort {key.column}", key.column, tables)
        if self.depth is not None and not any(has_depth(table.table_name) for table in tables):
            raise UsageError(f"option --depth {self.depth}", found="no table that has depths", expected="layers", remedy="Leave it out.")
        if self.window != WHOLE and not any(table.table_name in WINDOWED for table in tables):
            raise UsageError(
                "options --window and --pixels", found="no table of a window", expected=" or ".join(WINDOWED), remedy="Leave them out."
            )
        return [self._query(table) for table in tables]

    def _query(self, table: Table) -> TableQuery:
        from kernalyse.services.analyzer.queries.registry import has_depth

        query = TableQuery(
            table.table_name,
            filters=tuple(filter_ for filter_ in self.filters if filter_.column in table.column_names),
            order_by=tuple(key for key in self.order_by if key.column in table.column_names),
            limit=self.max_row_count or 0,
            depth=self.depth if has_depth(table.table_name) else None,
        )
        if table.table_name in WINDOWED:
            window = self.window
            query = replace(query, window_start_ns=window.start_ns, window_end_ns=window.end_ns, pixel_count=window.pixel_count)
        # A sweep measures its configurations in a shuffled order: the first of them are not the first rows.
        is_shuffled = query.limit and not query.order_by and "configuration_index" in table.column_names
        return replace(query, order_by=(SortKey("configuration_index"),)) if is_shuffled else query


def parse_rows(
    filters: Sequence[str], order_by: Sequence[str], max_row_count: int | None, depth: int | None, window: Window = WHOLE
) -> RowChoice:
    """Parse the options. Raises UsageError for what cannot be read."""
    for option, number, least in (("--top", max_row_count, 1), ("--depth", depth, 0)):
        if number is not None and number < least:
            raise UsageError(f"option {option}", found=str(number), expected=f"{least} or more")
    return RowChoice(tuple(map(parse_filter, filters)), tuple(map(parse_sort_key, order_by)), max_row_count, depth, window)


def parse_window(text: str | None, pixel_count: int | None) -> Window:
    """Parse `1.2s..1.3s`, either side of which may be left out. Raises UsageError."""
    if pixel_count is not None and pixel_count < 1:
        raise UsageError("option --pixels", found=str(pixel_count), expected="1 or more")
    if text is None:
        return Window(pixel_count=pixel_count)
    start, dots, end = text.partition("..")
    if not dots or not (start or end):
        raise _no_window(text)
    window = Window(_moment_ns(text, start), _moment_ns(text, end), pixel_count)
    if window.start_ns is not None and window.end_ns is not None and window.start_ns >= window.end_ns:
        raise _no_window(text)
    return window


def _moment_ns(window: str, text: str) -> int | None:
    """Return nanoseconds since the start of the session, also where no unit stands. None: nothing stands there."""
    if not text:
        return None
    found = MOMENT.fullmatch(text.strip())
    if found is None or (found[2] or "ns") not in DURATIONS:
        raise _no_window(window)
    return int(Decimal(found[1]) * DURATIONS[found[2] or "ns"])


def _no_window(text: str) -> UsageError:
    return UsageError(
        f"option --window {text}", found="no stretch of time", expected="START..END, the end after the start", remedy="--window 1.2s..1.3s"
    )


def parse_filter(text: str) -> Filter:
    """Parse `duration_sum_ns>10us`, `kernel_name~gemm`. Raises UsageError."""
    found = CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"option --filter '{text}'",
            found="no condition",
            expected=f"a column, one of {' '.join(OPERATORS)} and a value",
            remedy="For example: --filter 'kernel_name~gemm' or --filter 'duration_sum_ns>10us'",
        )
    column, operator, value = found.groups()
    return Filter(column, value if operator == "~" else _plain(column, value), OPERATORS[operator])


def parse_sort_key(text: str) -> SortKey:
    """Parse `COLUMN` or `COLUMN:desc`. Raises UsageError."""
    column, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc") or not column:
        raise UsageError(f"option --sort {text}", found=repr(text), expected="COLUMN, COLUMN:asc or COLUMN:desc")
    return SortKey(column, descending=direction == "desc")


def _plain(column: str, value: str) -> str:
    """Convert a number with a unit to the unit of the column; anything else stays, for the column's type decides."""
    quantity = QUANTITY.fullmatch(value)
    units = next((units for ending, units in UNITS.items() if f"_{column}".endswith(ending)), None)
    if quantity is None or units is None:
        return value
    number, unit = quantity.groups()
    if unit not in units:
        raise UsageError(f"option --filter, value {value} of {column}", found=f"the unit {unit}", expected=f"one of {' '.join(units)}")
    plain = Decimal(number) * units[unit]
    return str(int(plain)) if plain == plain.to_integral_value() else str(plain)


def _refuse_unknown(subject: str, column: str, tables: Sequence[Table]) -> None:
    """Raise UsageError when none of the tables has the column."""
    if not any(column in table.column_names for table in tables):
        known = "; ".join(f"{', '.join(table.column_names[2:])} of {table.table_name}" for table in tables)
        raise UsageError(subject, found=f"no column {column}", expected=f"one of {known}", remedy="Choose one of them.")
