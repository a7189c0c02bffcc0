"""Which rows of tables are shown, as the command line says it: conditions, order, count, depth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from services.core.model import Filter, FilterOperator, SortKey, TableQuery
from services.core.words.usage import UsageError

if TYPE_CHECKING:
    from services.analyzer.table import Table

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
        from services.analyzer.schema import table_named
        from services.analyzer.trace_answers import has_depth

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
        from services.analyzer.trace_answers import has_depth

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
