"""Queries to the analyzer's tables, their results, and the progress of imports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FilterOperator(StrEnum):
    """How a filter compares a column with its value."""

    EQUAL = "EQUAL"
    NOT_EQUAL = "NOT_EQUAL"
    LESS = "LESS"
    LESS_EQUAL = "LESS_EQUAL"
    GREATER = "GREATER"
    GREATER_EQUAL = "GREATER_EQUAL"
    CONTAINS = "CONTAINS"


class ImportStage(StrEnum):
    """The stages of an import."""

    RECEIVING = "RECEIVING"
    READING = "READING"
    STORING = "STORING"


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """The progress of an import; trace_count is 0 until all traces have arrived."""

    stage: ImportStage = ImportStage.RECEIVING
    trace_count: int = 0
    read_trace_count: int = 0


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one column."""

    column: str
    value: str
    operator: FilterOperator = FilterOperator.EQUAL


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by, and the direction."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Consecutive rows of a table."""

    table_name: str
    arrow_ipc: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The parameters of GetTable. limit 0: all rows; columns empty: all columns; run_ids empty: all runs.

    allowed_differences: for the table comparison, which takes two run_ids and rejects runs that differ in anything else.
    depth: for the table layers, of the ranges that kernels are attributed to, 0 for the outermost; None: the innermost.
    window_start_ns, window_end_ns, pixel_count: for the table timeline. None: from the first start, to the last end, 1000.
    """

    table_name: str
    run_ids: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    order_by: tuple[SortKey, ...] = ()
    offset: int = 0
    limit: int = 0
    columns: tuple[str, ...] = ()
    allowed_differences: tuple[str, ...] = ()
    depth: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    pixel_count: int | None = None
