"""A folder of tables as columns: one file for each table, Parquet or Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import polars.selectors as cs
from polars.exceptions import PanicException, PolarsError

from services.analyzer.correlation import Integers, coded
from services.analyzer.readers.sqlite_file import TableColumns, TextColumn
from services.analyzer.readers.sqlite_pages import NULL_INTEGER
from services.core.errors import InvalidTraceError

PARQUET: Final = b"PAR1"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
ARROW_FILE: Final = b"ARROW1\0\0"
LONGEST_SIGN: Final = max(map(len, (PARQUET, ARROW_STREAM, ARROW_FILE)))

NO_TEXT: Final = -1


def is_table(head: bytes) -> bool:
    """Whether a file that begins so holds one table."""
    return head.startswith((PARQUET, ARROW_STREAM, ARROW_FILE))


@dataclass(frozen=True, slots=True)
class TableFolder:
    """paths: of the files, by the name of the table that each holds."""

    name: str
    paths: Mapping[str, Path]

    @property
    def table_names(self) -> tuple[str, ...]:
        return tuple(self.paths)

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Of the table; none when there is no such table. Raises InvalidTraceError when it is damaged."""
        if table_name not in self.paths:
            return ()
        with self._reading(table_name):
            return _column_names(self.paths[table_name])

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """All of a small table; none when there is no such table. Raises InvalidTraceError when it is damaged."""
        if table_name not in self.paths:
            return []
        with self._reading(table_name):
            return _frame(self.paths[table_name], None).rows(named=True)

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such, in the order of the file.

        Raises InvalidTraceError when the table is damaged.
        """
        with self._reading(table_name):
            frame = _frame(self.paths[table_name], [*integers, *texts, *codes])
            numbers = {name: _integers(frame[name]) for name in (*integers, *codes)}
            return TableColumns(
                frame.height,
                {name: numbers[name][0] for name in integers},
                {name: _texts(frame[name]) for name in texts},
                sum(refused_count for _values, refused_count in numbers.values()),
                {name: coded(numbers[name][0])[0] for name in codes},
            )

    @contextmanager
    def _reading(self, table_name: str) -> Iterator[None]:
        try:
            yield
        except (PolarsError, PanicException, OSError) as error:
            raise InvalidTraceError(
                f"folder {self.name}, table {table_name}",
                found=str(error).split("\n", 1)[0],
                expected="a Parquet or Arrow file that is whole",
                remedy="Copy or export it again.",
            ) from error


def _sign(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LONGEST_SIGN)


def _column_names(path: Path) -> tuple[str, ...]:
    sign = _sign(path)
    if sign.startswith(PARQUET):
        return tuple(pl.read_parquet_schema(path))
    if sign.startswith(ARROW_FILE):
        return tuple(pl.read_ipc_schema(path))
    return tuple(pl.read_ipc_stream(path, n_rows=0).columns)


def _frame(path: Path, names: Sequence[str] | None) -> pl.DataFrame:
    """With whole numbers in 64 bits with a sign, as SQLite has them: ids use the uppermost bit. names: None for all columns."""
    columns = None if names is None else list(names)
    sign = _sign(path)
    if sign.startswith(PARQUET):
        frame = pl.read_parquet(path, columns=columns)
    elif sign.startswith(ARROW_FILE):
        frame = pl.read_ipc(path, columns=columns)
    else:
        frame = pl.read_ipc_stream(path, columns=columns)
    return frame.with_columns(
        cs.unsigned_integer().cast(pl.Int64, wrap_numerical=True), cs.signed_integer().cast(pl.Int64), cs.categorical().cast(pl.String)
    )


def _integers(column: pl.Series) -> tuple[Integers, int]:
    """The values, NULL_INTEGER for null, and how many are no whole numbers, which are taken for null too."""
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    if column.dtype != pl.Int64:
        return np.full(len(column), NULL_INTEGER, dtype=np.int64), len(column) - column.null_count()
    return column.fill_null(NULL_INTEGER).to_numpy().copy(), 0


def _texts(column: pl.Series) -> TextColumn:
    texts = column.cast(pl.String, strict=False)
    different = texts.drop_nulls().unique(maintain_order=True)
    codes = texts.cast(pl.Enum(different)).to_physical().cast(pl.Int32).fill_null(NO_TEXT)
    return TextColumn(codes.to_numpy().copy(), different.to_list())
