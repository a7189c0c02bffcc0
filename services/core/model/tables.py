"""What is asked of the tables of the analyzer, and what they answer with; how far an import into them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FilterOperator(StrEnum):
    EQUAL = "EQUAL"
    NOT_EQUAL = "NOT_EQUAL"
    LESS = "LESS"
    LESS_EQUAL = "LESS_EQUAL"
    GREATER = "GREATER"
    GREATER_EQUAL = "GREATER_EQUAL"
    CONTAINS = "CONTAINS"


class ImportStage(StrEnum):
    RECEIVING = "RECEIVING"
    READING = "READING"
    STORING = "STORING"


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """trace_count: 0 before all have arrived."""

    stage: ImportStage = ImportStage.RECEIVING
    trace_count: int = 0
    read_trace_count: int = 0


@dataclass(frozen=True, slots=True)
class Filter:
    column: str
    value: str
    operator: FilterOperator = FilterOperator.EQUAL


@dataclass(frozen=True, slots=True)
class SortKey:
    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableChunk:
    table_name: str
    arrow_ipc: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What GetTable asks for. limit 0: all rows; columns empty: all columns; run_ids empty: all runs.

    allowed_differences: of table comparison, which takes two run_ids and refuses runs that differ in anything else.
    depth: of table layers: of the ranges that kernels count for, 0 for the outermost; None: the innermost.
    window_start_ns, window_end_ns, pixel_count: of table timeline. None: from the first start, to the last end, 1000.
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
