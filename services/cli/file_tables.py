"""Tables and reports of files that are read without being stored, and the filters of rows that a command line gives."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kernalyse.companions import find_companions
from kernalyse.services.analyzer.ingest.reading import read_with_counters
from kernalyse.services.analyzer.queries.filters import QueryResult, run_query
from kernalyse.services.analyzer.queries.registry import FileSource, is_of_traces, parameters_of, resolve_table, trace_inputs
from kernalyse.services.analyzer.readers.base import ReadResult, Selection, SelectiveReader, TraceFiles
from kernalyse.services.analyzer.readers.ncu.reader import NcuReader
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, select_reader, trace_files
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.model import Filter, FilterOperator, ImportedTrace, SortKey, TableQuery

if TYPE_CHECKING:
    from kernalyse.services.analyzer.tables.base import Table


# ---------------------------------------------------------------- tables of a file


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query of tables of a file.

    Attributes:
        table_names: empty: the kernels of a trace, or the measurements of results.
        choice: which rows.
        reports: reports of ncu on the same program.
        op_registry_directory: directory of op_registry.py, for lists of operations.
    """

    table_names: Sequence[str]
    choice: RowSelection
    reports: Sequence[Path] = ()
    op_registry_directory: Path | None = None


def tables_of_file(path: Path, question: FileQuery) -> tuple[dict[str, QueryResult], list[str]]:
    """Return the requested rows by table, and the reader's notes.

    Args:
        path: a file, or a directory that is one trace.
        question: which tables and rows.

    Raises:
        InvalidTraceError: no reader accepts the file, it is damaged, or a report of ncu is not one or is of another program.
        InvalidRequestError: a filter has a value that its column cannot have.
        UsageError: the file has to be imported for a table.
    """
    files = _trace_with_companions(path, question)
    queries = question.choice.queries(question.table_names or ["kernels"])
    if isinstance(select_reader(files), SelectiveReader):
        result = _read_columns(files, queries)
    else:
        result = read_with_counters(files)
        if FileSource(result.frames).has_results:
            queries = question.choice.queries(question.table_names or ["measurements"])
        else:
            _reject_unanswerable(files, queries)
    source = FileSource(result.frames)
    return {query.table_name: _run_file_query(source, query) for query in queries}, result.notes.splitlines()


def report_of_file(path: Path, format_name: str) -> bytes:
    """Return the content of a report on a file.

    Args:
        path: a file, or a directory that is one trace.
        format_name: a format of reports.

    Raises:
        InvalidTraceError: no reader accepts the file, or it is damaged.
    """
    from kernalyse.services.analyzer.export.report_files import report_format, run_report_files
    from kernalyse.services.analyzer.ingest.reading import build_imported_run

    requested_format = report_format(format_name)
    files = _trace_with_companions(path, FileQuery((), RowSelection()))
    result = read_with_counters(files)
    run = build_imported_run(str(path), ImportedTrace(files.file_name, "", select_reader(files).format), result)
    return run_report_files(run, _table_rows(result), [requested_format])[requested_format]


def _table_rows(result: ReadResult) -> Callable[[str], pl.LazyFrame]:
    """Return a function from a table's name to its rows; a table that the file has no data for is empty."""
    source = FileSource(result.frames)

    def rows(name: str) -> pl.LazyFrame:
        table = find_table(name)
        found = resolve_table(table, source)
        return found if source.has_results else table.conform(found)

    return rows


def _trace_with_companions(path: Path, question: FileQuery) -> TraceFiles:
    """Return the trace with its companion files and those that the command line names."""
    files = trace_files(path, time.time_ns())
    own_companions = {} if path.is_dir() else {file.relative_to(path.parent).as_posix(): file for file in find_companions(path)}
    companions = {**files.companions, **own_companions, **report_files(question.reports)}
    return replace(files, companions=companions, op_registry_directory=question.op_registry_directory)


def report_files(reports: Sequence[Path]) -> dict[str, Path]:
    """Return reports of ncu by the names that they have as companions of a trace.

    Raises:
        UsageError: a file is no report, or two have the same name.
    """
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


def _run_file_query(source: FileSource, query: TableQuery) -> QueryResult:
    """Return the rows that a query selects, without the columns of a store; of a table shared with other runs, its own columns."""
    table = find_table(query.table_name)
    rows = resolve_table(table, source, parameters_of(query))
    return run_query(table.conform(rows), table, replace(query, columns=tuple(rows.collect_schema().names())))


def _read_columns(files: TraceFiles, queries: Sequence[TableQuery]) -> ReadResult:
    """Read what the queries need of a large trace."""
    _reject_unanswerable(files, queries)
    selection = Selection.of(needed for query in queries for needed in trace_inputs([query.table_name], parameters_of(query)))
    return read_with_counters(files, selection)


def _reject_unanswerable(files: TraceFiles, queries: Sequence[TableQuery]) -> None:
    for query in queries:
        if not is_of_traces(query.table_name):
            raise UsageError(
                f"table {query.table_name} of file {files.file_name}",
                found="a table that traces do not have",
                expected="kernels, layers, breakdown, roofline, layer_roofline, opportunities or a table of the trace",
                remedy="Import the file, then show the run.",
            )


# ---------------------------------------------------------------- row selection
# Conditions, order, count and depth, as the command line gives them.

WINDOW_TABLES: Final = ("timeline", "timeline_matches", "window_summary")
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
DURATIONS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}  # both Unicode characters for micro
SIZES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
CLOCKS: Final = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
SHARES: Final = {"%": Decimal("0.01")}
UNITS: Final[Mapping[str, Mapping[str, int | Decimal]]] = {"_ns": DURATIONS, "_bytes": SIZES, "_hz": CLOCKS, "_ratio": SHARES}
"""Units that a filter may use, by the suffix of the column's name; each is a multiple of the column's own unit."""


@dataclass(frozen=True, slots=True)
class Window:
    """The time range of a trace that is drawn.

    Attributes:
        start_ns: None: the first start in the trace.
        end_ns: None: the last end in the trace.
        pixel_count: width of the drawing; None: the default.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    pixel_count: int | None = None


FULL_WINDOW: Final = Window()


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The selection of rows; each part applies to every table that has the columns for it.

    Attributes:
        max_row_count, depth: None: not given.
        window: applies to tables of a timeline.
    """

    filters: tuple[Filter, ...] = ()
    order_by: tuple[SortKey, ...] = ()
    max_row_count: int | None = None
    depth: int | None = None
    window: Window = FULL_WINDOW

    def queries(self, table_names: Iterable[str]) -> list[TableQuery]:
        """Return one query per table, without runs, each with those parts of the selection that its table has columns for.

        Raises:
            TableNotFoundError: there is no such table.
            UsageError: none of the tables has a column, depths or a window that was given.
        """
        from kernalyse.services.analyzer.queries.registry import has_depth
        from kernalyse.services.analyzer.tables.runs import find_table

        tables = [find_table(name) for name in dict.fromkeys(table_names)]
        if not tables:
            return []
        for filter_ in self.filters:
            _reject_unknown_column(f"option --filter {filter_.column}", filter_.column, tables)
        for key in self.order_by:
            _reject_unknown_column(f"option --sort {key.column}", key.column, tables)
        if self.depth is not None and not any(has_depth(table.table_name) for table in tables):
            raise UsageError(f"option --depth {self.depth}", found="no table that has depths", expected="layers", remedy="Leave it out.")
        if self.window != FULL_WINDOW and not any(table.table_name in WINDOW_TABLES for table in tables):
            raise UsageError(
                "options --window and --pixels", found="no table of a window", expected=" or ".join(WINDOW_TABLES), remedy="Leave them out."
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
        if table.table_name in WINDOW_TABLES:
            window = self.window
            query = replace(query, window_start_ns=window.start_ns, window_end_ns=window.end_ns, pixel_count=window.pixel_count)
        # A sweep measures its configurations in a shuffled order: the first of them are not the first rows.
        is_shuffled = query.limit and not query.order_by and "configuration_index" in table.column_names
        return replace(query, order_by=(SortKey("configuration_index"),)) if is_shuffled else query


def parse_rows(
    filters: Sequence[str], order_by: Sequence[str], max_row_count: int | None, depth: int | None, window: Window = FULL_WINDOW
) -> RowSelection:
    """Parse the options that select rows.

    Raises:
        UsageError: an option cannot be parsed, or a number is out of range.
    """
    for option, number, least in (("--top", max_row_count, 1), ("--depth", depth, 0)):
        if number is not None and number < least:
            raise UsageError(f"option {option}", found=str(number), expected=f"{least} or more")
    return RowSelection(tuple(map(parse_filter, filters)), tuple(map(parse_sort_key, order_by)), max_row_count, depth, window)


def parse_window(text: str | None, pixel_count: int | None) -> Window:
    """Parse `1.2s..1.3s`, of which either end may be missing.

    Raises:
        UsageError: the text is no range of time, or the number of pixels is not positive.
    """
    if pixel_count is not None and pixel_count < 1:
        raise UsageError("option --pixels", found=str(pixel_count), expected="1 or more")
    if text is None:
        return Window(pixel_count=pixel_count)
    start, dots, end = text.partition("..")
    if not dots or not (start or end):
        raise _window_error(text)
    window = Window(_parse_time_ns(text, start), _parse_time_ns(text, end), pixel_count)
    if window.start_ns is not None and window.end_ns is not None and window.start_ns >= window.end_ns:
        raise _window_error(text)
    return window


def _parse_time_ns(window: str, text: str) -> int | None:
    """Return nanoseconds since the start of the session; without a unit the number is in nanoseconds. Empty text gives None."""
    if not text:
        return None
    found = MOMENT.fullmatch(text.strip())
    if found is None or (found[2] or "ns") not in DURATIONS:
        raise _window_error(window)
    return int(Decimal(found[1]) * DURATIONS[found[2] or "ns"])


def _window_error(text: str) -> UsageError:
    return UsageError(
        f"option --window {text}", found="no range of time", expected="START..END, the end after the start", remedy="--window 1.2s..1.3s"
    )


def parse_filter(text: str) -> Filter:
    """Parse a condition such as `duration_sum_ns>10us` or `kernel_name~gemm`.

    Raises:
        UsageError: the text is no condition, or its unit does not fit the column.
    """
    found = CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"option --filter '{text}'",
            found="no condition",
            expected=f"a column, one of {' '.join(OPERATORS)} and a value",
            remedy="For example: --filter 'kernel_name~gemm' or --filter 'duration_sum_ns>10us'",
        )
    column, operator, value = found.groups()
    return Filter(column, value if operator == "~" else _value_in_column_unit(column, value), OPERATORS[operator])


def parse_sort_key(text: str) -> SortKey:
    """Parse `COLUMN` or `COLUMN:desc`.

    Raises:
        UsageError: the text is neither.
    """
    column, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc") or not column:
        raise UsageError(f"option --sort {text}", found=repr(text), expected="COLUMN, COLUMN:asc or COLUMN:desc")
    return SortKey(column, descending=direction == "desc")


def _value_in_column_unit(column: str, value: str) -> str:
    """Return a number with a unit in the unit of the column, and other text unchanged: the type of the column decides later."""
    quantity = QUANTITY.fullmatch(value)
    units = next((units for ending, units in UNITS.items() if f"_{column}".endswith(ending)), None)
    if quantity is None or units is None:
        return value
    number, unit = quantity.groups()
    if unit not in units:
        raise UsageError(f"option --filter, value {value} of {column}", found=f"the unit {unit}", expected=f"one of {' '.join(units)}")
    plain = Decimal(number) * units[unit]
    return str(int(plain)) if plain == plain.to_integral_value() else str(plain)


def _reject_unknown_column(subject: str, column: str, tables: Sequence[Table]) -> None:
    """Raise UsageError when none of the tables has the column."""
    if not any(column in table.column_names for table in tables):
        known = "; ".join(f"{', '.join(table.column_names[2:])} of {table.table_name}" for table in tables)
        raise UsageError(subject, found=f"no column {column}", expected=f"one of {known}", remedy="Choose one of them.")
