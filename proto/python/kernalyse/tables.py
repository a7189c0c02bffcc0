"""Rows of the analyzer's tables, and the filters and sort keys of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from kernalyse.errors import call_error
from kernalyse.v1 import table_pb2

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Operator = Literal["==", "!=", "<", "<=", ">", ">=", "contains"]
TableFilter = tuple[str, Operator, str | float | bool]
"""A filter: column, operator and value, such as ("duration_median_ns", ">", 1000)."""

OPERATORS: Final = {
    "==": table_pb2.FILTER_OPERATOR_EQUAL,
    "!=": table_pb2.FILTER_OPERATOR_NOT_EQUAL,
    "<": table_pb2.FILTER_OPERATOR_LESS,
    "<=": table_pb2.FILTER_OPERATOR_LESS_EQUAL,
    ">": table_pb2.FILTER_OPERATOR_GREATER,
    ">=": table_pb2.FILTER_OPERATOR_GREATER_EQUAL,
    "contains": table_pb2.FILTER_OPERATOR_CONTAINS,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one table, as complete Arrow IPC streams with the same schema."""

    name: str
    arrow_ipc: tuple[bytes, ...] = field(repr=False)

    def to_polars(self) -> polars.DataFrame:
        """Return a polars data frame.

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        pl = _module("polars")
        frames = [pl.read_ipc_stream(BytesIO(part)) for part in self.arrow_ipc]
        frame: polars.DataFrame = pl.concat(frames) if frames else pl.DataFrame()
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame.

        With polars alone, integer columns with nulls become floats, pandas' own representation.

        Raises:
            ModuleNotFoundError: pandas is not installed, or neither pyarrow nor polars is.
        """
        pd = _module("pandas")
        try:
            return self.to_arrow().to_pandas()
        except ModuleNotFoundError:
            frame = self.to_polars()
            converted: pandas.DataFrame = pd.DataFrame({column.name: column.to_numpy() for column in frame})
            return converted

    def to_arrow(self) -> pyarrow.Table:
        """Return a pyarrow table.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        ipc, pa = _module("pyarrow.ipc", "pyarrow"), _module("pyarrow")
        parts = [ipc.open_stream(part).read_all() for part in self.arrow_ipc]
        return pa.concat_tables(parts) if parts else pa.table({})


def filter_messages(filters: Iterable[TableFilter]) -> list[table_pb2.Filter]:
    """Return the messages for filters.

    Raises:
        RequestError: a filter has another form, or an unknown operator.
    """
    found = []
    for condition in filters:
        if isinstance(condition, str) or len(condition) != 3:
            raise call_error("filter of a table", found=repr(condition), expected='(column, operator, value), as ("flop", ">", 0)')
        column, operator, value = condition
        if operator not in OPERATORS:
            raise call_error(f"filter of column {column}", found=f"operator {operator!r}", expected=" ".join(OPERATORS))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found.append(table_pb2.Filter(column=column, operator=OPERATORS[operator], value=text))
    return found


def sort_keys(columns: Iterable[str]) -> list[table_pb2.SortKey]:
    """Return the messages for column names; a leading "-" sorts descending."""
    return [table_pb2.SortKey(column=name.removeprefix("-"), descending=name.startswith("-")) for name in columns]


def _module(name: str, package: str | None = None) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = package or name
        raise ModuleNotFoundError(
            f"{package} is not installed, and tables are asked for in its form: pip install {package}", name=package
        ) from error
