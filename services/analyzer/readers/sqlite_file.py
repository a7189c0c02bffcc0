"""An SQLite file as columns: its tables and what they hold, decoded from its pages where nothing is unusual."""

from __future__ import annotations

import mmap
import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from services.analyzer.readers.interning import Bytes, Codes, Integers, InternedTexts
from services.analyzer.readers.sqlite_header import read_header
from services.analyzer.readers.sqlite_pages import NULL_INTEGER, count_rows, decode_rows, leaf_pages
from services.core.errors import InvalidTraceError

PART_BYTES: Final = 32 * 1024 * 1024
"""Of pages decoded at once. Less costs more in starting than in decoding; more keeps as much of the file in memory."""

MAX_SPILLED_ROWS: Final = 1024
"""Of one part. Each is fetched through SQLite by its id: past this, reading the whole table that way is no slower."""

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
    """

    row_count: int
    integers: Mapping[str, Integers]
    texts: Mapping[str, TextColumn]
    refused_count: int = 0


@dataclass(frozen=True, slots=True)
class _StoredTable:
    root_page: int
    column_names: tuple[str, ...]
    rowid_position: int  # -1: no column is the row's id
    is_plain: bool  # every column is stored in its place, and as what it is
    row_id_name: str | None  # what SQL calls the row's id; None: there is none, or columns have all of its names


@dataclass(frozen=True, slots=True)
class _Spilled:
    """Rows that go on beyond their page: places in the table and ids."""

    rows: Integers
    ids: Integers


@dataclass(frozen=True, slots=True)
class _TextBuffer:
    """Where the texts of a part lie, a row for each column; filled anew with each part."""

    offsets: Integers
    lengths: Codes


class _UnusualTableError(Exception):
    """To be read through SQLite."""


@dataclass(slots=True)
class SqliteFile:
    """Open for reading. decodes_pages: False reads everything through SQLite: slow, and what the pages are held against."""

    name: str
    decodes_pages: bool
    _connection: sqlite3.Connection
    _pages: mmap.mmap | None
    _page_size: int
    _usable_size: int
    _tables: dict[str, _StoredTable] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, name: str, *, decodes_pages: bool = True) -> Self:
        """Raises InvalidTraceError: it is no SQLite file, it is cut off, or its description of itself is damaged."""
        with path.open("rb") as file:
            header = read_header(file, name)
            # A file that another program still writes to has its newest pages in a second one.
            is_whole = not header.is_of_log or not path.with_name(path.name + "-wal").exists()
            is_plain = is_whole and header.is_utf_8 and header.is_full
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if decodes_pages and is_plain else None
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if is_whole else ''}", uri=True, check_same_thread=False
        )
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

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such.

        Raises InvalidTraceError when the table is damaged.
        """
        if self._pages is not None:
            try:
                return _PageReading(self._pages, self._page_size, self._usable_size, self._connection).read(
                    table_name, self._tables[table_name], integers, texts
                )
            except (_UnusualTableError, *DAMAGE):  # SQLite may pass damage by that looking up a row came upon
                pass
        try:
            return _read_through_sqlite(self._connection, table_name, self._tables[table_name], integers, texts)
        except DAMAGE as error:
            raise _damaged(f"{self.name}, table {table_name}", error) from error


def _damaged(place: str, error: Exception) -> InvalidTraceError:
    found = "malformed names of tables, which are no text" if isinstance(error, UnicodeDecodeError) else str(error)
    return InvalidTraceError(
        f"file {place}",
        found=found or "a row for which there is no memory",
        expected="an SQLite file that is whole",
        remedy="Copy or export it again.",
    )


def _stored_tables(connection: sqlite3.Connection) -> dict[str, _StoredTable]:
    rows = connection.execute("SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    return {name: _stored_table(connection, name, root_page or 0, sql or "") for name, root_page, sql in rows}


def _stored_table(connection: sqlite3.Connection, name: str, root_page: int, sql: str) -> _StoredTable:
    columns = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
    keys = [position for position, (*_, key_place, _hidden) in enumerate(columns) if key_place > 0]
    # An integer key is the row's id, unless it was declared in a way that gives it an index of its own (as with DESC).
    indexes = connection.execute(f"PRAGMA index_list({quoted(name)})").fetchall()
    is_rowid = len(keys) == 1 and str(columns[keys[0]][2]).upper() == "INTEGER" and all(index[3] != "pk" for index in indexes)
    is_without_row_ids = re.search(r"\)[^)]*\bwithout\s+rowid\b[^)]*$", sql, re.IGNORECASE) is not None
    names = {column[1].lower() for column in columns}
    return _StoredTable(
        root_page,
        tuple(column[1] for column in columns),
        keys[0] if is_rowid else -1,
        is_plain=root_page > 0 and all(column[6] == 0 and not _is_of_reals(column[2]) for column in columns),
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


def quoted(name: str) -> str:
    """As SQL wants an identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Columns of one table, and where they are decoded to: of texts the codes. Names are in the order of the table."""

    table: _StoredTable
    names: tuple[str, ...]
    numbers: Integers  # a row for each column of integers
    codes: Mapping[str, Codes]

    @property
    def integers(self) -> dict[str, Integers]:
        return dict(zip((name for name in self.names if name not in self.codes), self.numbers, strict=True))

    @property
    def positions(self) -> Integers:
        return np.array([self.table.column_names.index(name) for name in self.names], dtype=np.int64)

    @property
    def is_text(self) -> npt.NDArray[np.bool_]:
        return np.array([name in self.codes for name in self.names], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class _PageReading:
    pages: mmap.mmap
    page_size: int
    usable_size: int
    connection: sqlite3.Connection

    def read(self, table_name: str, table: _StoredTable, integers: Sequence[str], texts: Sequence[str]) -> TableColumns:
        names = tuple(sorted({*integers, *texts}, key=table.column_names.index))
        if not table.is_plain or table.row_id_name is None or not names or set(integers) & set(texts):
            raise _UnusualTableError
        data = np.frombuffer(self.pages, dtype=np.uint8)
        leaves = self._leaves(data, table.root_page)
        row_counts = self._row_counts(data, leaves)
        first_rows = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(row_counts)))
        row_count = int(first_rows[-1])
        wanted = _Wanted(
            table,
            names,
            np.empty((len(names) - len(texts), row_count), dtype=np.int64),
            {name: np.empty(row_count, dtype=np.int32) for name in names if name in texts},
        )
        worker_count = max(1, min(os.cpu_count() or 1, leaves.size * self.page_size // PART_BYTES))
        bounds = np.linspace(0, leaves.size, worker_count + 1).astype(np.int64).tolist()
        with ThreadPoolExecutor(worker_count) as pool:
            shares = list(pool.map(lambda first, end: self._share(data, wanted, leaves, first_rows, first, end), bounds[:-1], bounds[1:]))
        known = self._merged(wanted, [interned for interned, _spilled in shares], first_rows[bounds].tolist())
        for _interned, spilled in shares:
            self._fill_spilled(table_name, wanted, spilled, known)
        return TableColumns(row_count, wanted.integers, {name: TextColumn(wanted.codes[name], list(known[name])) for name in texts})

    def _leaves(self, data: Bytes, root_page: int) -> Integers:
        page_count = data.size // self.page_size
        leaves = np.empty(page_count, dtype=np.int64)
        count = leaf_pages(data, self.page_size, page_count, root_page, leaves)
        if count < 0:
            raise _UnusualTableError
        return leaves[:count]

    def _row_counts(self, data: Bytes, leaves: Integers) -> Integers:
        counts = np.empty(leaves.size, dtype=np.int64)
        step = max(1, PART_BYTES // self.page_size)
        for part in range(0, leaves.size, step):
            count_rows(data, self.page_size, leaves[part : part + step], counts[part : part + step])
            if leaves.size > step:  # a table of one part is decoded at once
                self._release(leaves[part : part + step])
        return counts

    def _share(
        self, data: Bytes, wanted: _Wanted, leaves: Integers, first_rows: Integers, first: int, end: int
    ) -> tuple[dict[str, InternedTexts], _Spilled]:
        """Decodes the leaves of one thread, part by part. Codes are of its own texts."""
        interned = {name: InternedTexts(data) for name in wanted.codes}
        step = max(1, PART_BYTES // self.page_size)
        parts = [(part, min(part + step, end)) for part in range(first, end, step)]
        most = max((int(first_rows[part_end] - first_rows[part]) for part, part_end in parts), default=0)
        texts = _TextBuffer(np.empty((len(interned), most), dtype=np.int64), np.empty((len(interned), most), dtype=np.int32))
        spilled = [_Spilled(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for part, part_end in parts:
            rows = slice(int(first_rows[part]), int(first_rows[part_end]))
            spilled.append(self._part(data, wanted, leaves[part:part_end], rows, texts, interned))
            self._release(leaves[part:part_end])
        return interned, _Spilled(np.concatenate([part.rows for part in spilled]), np.concatenate([part.ids for part in spilled]))

    def _part(
        self, data: Bytes, wanted: _Wanted, leaves: Integers, rows: slice, texts: _TextBuffer, interned: Mapping[str, InternedTexts]
    ) -> _Spilled:
        spilled_rows, spilled_ids = np.empty((2, MAX_SPILLED_ROWS), dtype=np.int64)
        spilled_count = decode_rows(
            data,
            self.page_size,
            self.usable_size,
            leaves,
            wanted.positions,
            wanted.is_text,
            wanted.table.rowid_position,
            wanted.numbers[:, rows],
            texts.offsets,
            texts.lengths,
            spilled_rows,
            spilled_ids,
        )
        if spilled_count < 0:
            raise _UnusualTableError
        row_count = rows.stop - rows.start
        for (name, codes), offsets, lengths in zip(wanted.codes.items(), texts.offsets, texts.lengths, strict=True):
            interned[name].add(offsets[:row_count], lengths[:row_count], codes[rows])
        return _Spilled(spilled_rows[:spilled_count] + rows.start, spilled_ids[:spilled_count])

    def _release(self, leaves: Integers) -> None:
        """Pages that were read need not stay in memory: a large file would take as much of it as it is long."""
        first, last = int(leaves.min()) - 1, int(leaves.max())
        start = first * self.page_size // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and (last - first) * self.page_size < 4 * PART_BYTES:
            self.pages.madvise(mmap.MADV_DONTNEED, start, last * self.page_size - start)

    @staticmethod
    def _merged(wanted: _Wanted, shares: Sequence[Mapping[str, InternedTexts]], bounds: Sequence[int]) -> dict[str, dict[str, int]]:
        """Makes the codes of all threads those of one list of texts; answers its texts with their codes."""
        known: dict[str, dict[str, int]] = {}
        for name, codes in wanted.codes.items():
            of_name = known[name] = {}
            for share, first, end in zip(shares, bounds[:-1], bounds[1:], strict=True):
                table = [of_name.setdefault(text, len(of_name)) for text in share[name].texts()]
                if table != list(range(len(table))):
                    codes[first:end] = np.array([*table, -1], dtype=np.int32)[codes[first:end]]  # -1 is the last
        return known

    def _fill_spilled(self, table_name: str, wanted: _Wanted, spilled: _Spilled, known: Mapping[str, dict[str, int]]) -> None:
        integers = wanted.integers
        query = f"SELECT {', '.join(map(quoted, wanted.names))} FROM {quoted(table_name)} WHERE {wanted.table.row_id_name} = ?"
        for row, row_id in zip(spilled.rows.tolist(), spilled.ids.tolist(), strict=True):
            values = self.connection.execute(query, (row_id,)).fetchone()
            if values is None:
                raise _UnusualTableError  # SQLite goes another way through a damaged tree
            for name, value in zip(wanted.names, values, strict=True):
                if name in integers:
                    if value is not None and (not isinstance(value, int) or value == NULL_INTEGER):
                        raise _UnusualTableError
                    integers[name][row] = NULL_INTEGER if value is None else value
                elif value is None or isinstance(value, str):
                    wanted.codes[name][row] = -1 if value is None else known[name].setdefault(value, len(known[name]))
                else:
                    raise _UnusualTableError


def _read_through_sqlite(
    connection: sqlite3.Connection, table_name: str, table: _StoredTable, integers: Sequence[str], texts: Sequence[str]
) -> TableColumns:
    names = [*integers, *texts]
    number_parts: list[npt.NDArray[np.int64]] = []
    codes: dict[str, list[int]] = {name: [] for name in texts}
    known: dict[str, dict[str, int]] = {name: {} for name in texts}
    row_count = refused_count = 0
    order = f" ORDER BY {table.row_id_name}" if table.row_id_name is not None else ""
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {', '.join(map(quoted, names)) or 'NULL'} FROM {quoted(table_name)}{order}")
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
        dict(zip(integers, numbers, strict=True)),
        {name: TextColumn(np.array(codes[name], dtype=np.int32), list(known[name])) for name in texts},
        refused_count,
    )


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
