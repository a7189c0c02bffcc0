"""An SQLite file as columns: its tables and what they hold, decoded from its pages where nothing is unusual."""

from __future__ import annotations

import mmap
import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from services.analyzer.correlation import Coded, coded
from services.analyzer.readers.interning import Codes, Integers
from services.analyzer.readers.page_reading import PageReading, StoredTable, TooManyKeysError, quoted
from services.analyzer.readers.sqlite_header import read_header
from services.analyzer.readers.sqlite_pages import NULL_INTEGER, UnusualPagesError
from services.core.errors import InvalidTraceError

FETCHED_ROWS: Final = 4096
"""Held at once: more is not faster, and each may have long texts."""

ROW_ID_NAMES: Final = ("rowid", "_rowid_", "oid")

DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError)
"""What SQLite says of a damaged schema may quote it, and is not always text then; of some rows it says that they need gigabytes."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """codes: row of `texts` for each row; -1: null."""

    codes: Codes
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Some columns of a table, in order of its row ids.

    integers: NULL_INTEGER is null; refused_count: values that are no integers, taken for null.
    coded: integers as codes of their keys, NULL_INTEGER among them.
    """

    row_count: int
    integers: Mapping[str, Integers]
    texts: Mapping[str, TextColumn]
    refused_count: int = 0
    coded: Mapping[str, Coded] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """Of one table. codes: integers of few values. See `SqliteFile.columns`."""

    table_name: str
    integers: tuple[str, ...]
    texts: tuple[str, ...]
    codes: tuple[str, ...]

    @classmethod
    def of(cls, table_name: str, integers: Iterable[str], texts: Iterable[str] = (), codes: Iterable[str] = ()) -> Self:
        """Each once."""
        return cls(table_name, *(tuple(dict.fromkeys(names)) for names in (integers, texts, codes)))

    def present(self, column_names: Collection[str]) -> Self:
        """Those that the table has."""
        kept = ([name for name in names if name in column_names] for names in (self.integers, self.texts, self.codes))
        return type(self).of(self.table_name, *kept)


@dataclass(slots=True)
class SqliteFile:
    """Open for reading. decodes_pages: False reads everything through SQLite: slow, and what the pages are held against."""

    name: str
    decodes_pages: bool
    _connection: sqlite3.Connection
    _pages: mmap.mmap | None
    _page_size: int
    _usable_size: int
    _tables: dict[str, StoredTable] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, name: str, *, decodes_pages: bool = True) -> Self:
        """Raises InvalidTraceError: it is no SQLite file, it is cut off, or its description of itself is damaged."""
        with path.open("rb") as file:
            header = read_header(file, name)
            # A file that another program still writes to has its newest pages in a second one.
            is_whole = not header.is_of_log or not path.with_name(path.name + "-wal").exists()
            is_plain = is_whole and header.is_utf_8 and header.is_full
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if decodes_pages and is_plain else None
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if is_whole else ''}", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        found = cls(name, pages is not None, connection, pages, header.page_size, header.usable_size)
        try:
            found._tables = _stored_tables(connection)
        except DAMAGE as error:
            found.close()
            raise _damaged(name, error) from error
        return found

    def close(self) -> None:
        self._connection.close()
        if self._pages is not None:
            with suppress(BufferError):  # an error on its way up still refers to the pages: they go with it
                self._pages.close()

    @property
    def table_names(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Of the table; none when there is no such table."""
        return self._tables[table_name].column_names if table_name in self._tables else ()

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """All of a small table through SQLite; none when there is no such table. Raises InvalidTraceError when it is damaged."""
        if table_name not in self._tables:
            return []
        try:
            found = self._connection.execute(f"SELECT * FROM {quoted(table_name)}").fetchall()
        except DAMAGE as error:
            raise _damaged(f"{self.name}, table {table_name}", error) from error
        return [dict(zip(self._tables[table_name].column_names, row, strict=True)) for row in found]

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such.

        Args:
            codes: integers of few values, as the ids of threads: they take half of the memory, and what depends on their
                values is found out once for each of these.

        Raises InvalidTraceError when the table is damaged.
        """
        table = self._tables[table_name]
        try:
            return self._decoded(table, integers, texts, codes) or _read_through_sqlite(self._connection, table, integers, texts, codes)
        except DAMAGE as error:
            raise _damaged(f"{self.name}, table {table_name}", error) from error

    def _decoded(self, table: StoredTable, integers: Sequence[str], texts: Sequence[str], codes: Sequence[str]) -> TableColumns | None:
        """None when there is anything unusual in the pages."""
        if self._pages is None:
            return None
        reading = PageReading(self._pages, self._page_size, self._usable_size, self._connection, table)
        try:
            try:
                found = reading.read(integers, texts, codes)
            except TooManyKeysError:
                found = reading.read([*integers, *codes], texts, [])
        except (UnusualPagesError, *DAMAGE):  # SQLite may pass damage by that looking up a row came upon
            return None
        return TableColumns(
            found.row_count,
            {name: found.integers[name] for name in integers},
            {name: TextColumn(codes_of_texts, known) for name, (codes_of_texts, known) in found.texts.items()},
            coded={name: found.coded[name] if name in found.coded else coded(found.integers[name])[0] for name in codes},
        )


def _damaged(place: str, error: Exception) -> InvalidTraceError:
    found = "malformed names of tables, which are no text" if isinstance(error, UnicodeDecodeError) else str(error)
    return InvalidTraceError(
        f"file {place}",
        found=found or "a row for which there is no memory",
        expected="an SQLite file that is whole",
        remedy="Copy or export it again.",
    )


def _stored_tables(connection: sqlite3.Connection) -> dict[str, StoredTable]:
    rows = connection.execute("SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    return {name: _stored_table(connection, name, root_page or 0, sql or "") for name, root_page, sql in rows}


def _stored_table(connection: sqlite3.Connection, name: str, root_page: int, sql: str) -> StoredTable:
    columns = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
    keys = [position for position, (*_, key_place, _hidden) in enumerate(columns) if key_place > 0]
    # An integer key is the row's id, unless it was declared in a way that gives it an index of its own (as with DESC).
    indexes = connection.execute(f"PRAGMA index_list({quoted(name)})").fetchall()
    is_rowid = len(keys) == 1 and str(columns[keys[0]][2]).upper() == "INTEGER" and all(index[3] != "pk" for index in indexes)
    is_without_row_ids = re.search(r"\)[^)]*\bwithout\s+rowid\b[^)]*$", sql, re.IGNORECASE) is not None
    names = {column[1].lower() for column in columns}
    return StoredTable(
        name,
        root_page,
        tuple(column[1] for column in columns),
        keys[0] if is_rowid else -1,
        is_plain=root_page > 0 and all(column[6] == 0 for column in columns),
        real_names=frozenset(column[1] for column in columns if _is_of_reals(column[2])),
        row_id_name=None if is_without_row_ids else next((name for name in ROW_ID_NAMES if name not in names), None),
    )


def _is_of_reals(declared_type: str) -> bool:
    """Whether numbers of a column are real ones, which are stored as whole ones where they can be.

    Source: https://www.sqlite.org/datatype3.html, section 3.1.
    """
    declared = declared_type.upper()
    return any(word in declared for word in ("REAL", "FLOA", "DOUB")) and not any(
        word in declared for word in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")
    )


def _read_through_sqlite(
    connection: sqlite3.Connection, table: StoredTable, whole: Sequence[str], texts: Sequence[str], few: Sequence[str]
) -> TableColumns:
    integers = [*whole, *few]
    names = [*integers, *texts]
    number_parts: list[npt.NDArray[np.int64]] = []
    codes: dict[str, list[int]] = {name: [] for name in texts}
    known: dict[str, dict[str, int]] = {name: {} for name in texts}
    row_count = refused_count = 0
    order = f" ORDER BY {table.row_id_name}" if table.row_id_name is not None else ""
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {', '.join(map(quoted, names)) or 'NULL'} FROM {quoted(table.name)}{order}")
        while rows := cursor.fetchmany(FETCHED_ROWS):
            row_count += len(rows)
            columns = list(zip(*rows, strict=True))
            part = np.empty((len(integers), len(rows)), dtype=np.int64)
            for index in range(len(integers)):
                values = columns[index]
                part[index] = [value if isinstance(value, int) else NULL_INTEGER for value in values]
                refused_count += sum(value is not None and not isinstance(value, int) for value in values)
            number_parts.append(part)
            for index, name in enumerate(texts, start=len(integers)):
                of_name = known[name]
                codes[name] += [-1 if value is None else of_name.setdefault(_text(value), len(of_name)) for value in columns[index]]
    numbers = np.concatenate(number_parts, axis=1) if number_parts else np.empty((len(integers), 0), dtype=np.int64)
    return TableColumns(
        row_count,
        dict(zip(whole, numbers, strict=False)),
        {name: TextColumn(np.array(codes[name], dtype=np.int32), list(known[name])) for name in texts},
        refused_count,
        {name: coded(values)[0] for name, values in zip(few, numbers[len(whole) :], strict=True)},
    )


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
