"""Fast reading of columns from an SQLite file: decoded from its pages, or through SQLite where the file is unusual."""

from __future__ import annotations

import mmap
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from kernalyse.services.analyzer.numeric.correlation import Factorization, factorize
from kernalyse.services.analyzer.readers.base import TextColumn
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import (
    CODE,
    NULL_INTEGER,
    NUMBER,
    SKIPPED,
    TEXT,
    TOO_MANY_KEYS,
    Bytes,
    Codes,
    Integers,
    InternedTexts,
    UnusualPagesError,
    decode_rows,
    leaf_pages,
)
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import row_counts as rows_of_pages
from kernalyse.services.core.errors import InvalidTraceError

FETCHED_ROWS: Final = 4096
"""Rows fetched from SQLite at once: more is not faster, and rows may have long texts."""

ROW_ID_NAMES: Final = ("rowid", "_rowid_", "oid")

DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError)
"""Errors of damaged files. SQLite may quote a damaged schema in its message, which is not always text then, and may claim gigabytes
for a damaged row."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Some columns of a table, in order of its row ids.

    integers: integer columns, NULL_INTEGER for null. factorized: factorized integer columns, NULL_INTEGER among their keys.
    refused_count: number of values that are no integers and became null.
    """

    row_count: int
    integers: Mapping[str, Integers]
    texts: Mapping[str, TextColumn]
    refused_count: int = 0
    factorized: Mapping[str, Factorization] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedColumns:
    """The requested columns of one table. codes: integer columns of few distinct values. See `SqliteFile.columns`."""

    table_name: str
    integers: tuple[str, ...]
    texts: tuple[str, ...]
    codes: tuple[str, ...]

    @classmethod
    def of(cls, table_name: str, integers: Iterable[str], texts: Iterable[str] = (), codes: Iterable[str] = ()) -> Self:
        """Return the request without duplicates."""
        return cls(table_name, *(tuple(dict.fromkeys(names)) for names in (integers, texts, codes)))

    def present(self, column_names: Collection[str]) -> Self:
        """Return the request reduced to columns that the table has."""
        present = ([name for name in names if name in column_names] for names in (self.integers, self.texts, self.codes))
        return type(self).of(self.table_name, *present)


@dataclass(slots=True)
class SqliteFile:
    """An SQLite file that is open for reading. decodes_pages: False reads everything through SQLite, slowly, as a reference."""

    name: str
    decodes_pages: bool
    _connection: sqlite3.Connection
    _pages: mmap.mmap | None
    _page_size: int
    _usable_size: int
    _tables: dict[str, StoredTable] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, name: str, *, decodes_pages: bool = True) -> Self:
        """Open a file.

        Raises:
            InvalidTraceError: it is no SQLite file, truncated, or its schema is damaged.
        """
        with path.open("rb") as file:
            header = read_header(file, name)
            # The newest pages may be in a write-ahead log, as while another program writes to the file.
            is_complete = not header.is_of_log or not path.with_name(path.name + "-wal").exists()
            is_plain = is_complete and header.is_utf_8 and header.is_full
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if decodes_pages and is_plain else None
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if is_complete else ''}", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        found = cls(name, pages is not None, connection, pages, header.page_size, header.usable_size)
        try:
            found._tables = _stored_tables(connection)
        except DAMAGE as error:
            found.close()
            raise _damaged(name, error) from error
        return found

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._pages is not None:
            with suppress(BufferError):  # a propagating error may still refer to the pages, which are freed with it
                self._pages.close()

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Return the columns of a table; none if there is no such table."""
        return self._tables[table_name].column_names if table_name in self._tables else ()

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """Return all rows of a small table; none if there is no such table. Raises InvalidTraceError if it is damaged."""
        if table_name not in self._tables:
            return []
        try:
            found = self._connection.execute(f"SELECT * FROM {quoted(table_name)}").fetchall()
        except DAMAGE as error:
            raise _damaged(f"{self.name}, table {table_name}", error) from error
        return [dict(zip(self._tables[table_name].column_names, row, strict=True)) for row in found]

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """Return columns of a table, all of which must exist.

        Args:
            table_name: the table.
            integers: integer columns.
            texts: text columns.
            codes: integer columns with few distinct values, such as ids of threads. Factorized they take half of the memory, and
                what depends on a value is computed once per value.

        Raises:
            InvalidTraceError: the table is damaged.
        """
        table = self._tables[table_name]
        try:
            return self._decoded(table, integers, texts, codes) or _read_through_sqlite(self._connection, table, integers, texts, codes)
        except DAMAGE as error:
            raise _damaged(f"{self.name}, table {table_name}", error) from error

    def _decoded(self, table: StoredTable, integers: Sequence[str], texts: Sequence[str], codes: Sequence[str]) -> TableColumns | None:
        """Return the columns decoded from pages; None if anything in them is unusual."""
        if self._pages is None:
            return None
        reader = PageReader(self._pages, self._page_size, self._usable_size, self._connection, table)
        try:
            try:
                found = reader.read(integers, texts, codes)
            except TooManyKeysError:
                found = reader.read([*integers, *codes], texts, [])
        except (UnusualPagesError, *DAMAGE):  # a full scan through SQLite may still succeed where looking up a row failed
            return None
        return TableColumns(
            found.row_count,
            {name: found.integers[name] for name in integers},
            {name: TextColumn(codes_of_texts, known) for name, (codes_of_texts, known) in found.texts.items()},
            factorized={name: found.factorized[name] if name in found.factorized else factorize(found.integers[name])[0] for name in codes},
        )


def _damaged(subject: str, error: Exception) -> InvalidTraceError:
    found = "malformed names of tables, which are no text" if isinstance(error, UnicodeDecodeError) else str(error)
    return InvalidTraceError(
        f"file {subject}",
        found=found or "a row for which there is no memory",
        expected="an intact SQLite file",
        remedy="Copy or export it again.",
    )


def _stored_tables(connection: sqlite3.Connection) -> dict[str, StoredTable]:
    rows = connection.execute("SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    return {name: _stored_table(connection, name, root_page or 0, sql or "") for name, root_page, sql in rows}


def _stored_table(connection: sqlite3.Connection, name: str, root_page: int, sql: str) -> StoredTable:
    columns = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
    keys = [position for position, (*_, key_position, _hidden) in enumerate(columns) if key_position > 0]
    # An integer key is the row's id, unless its declaration gives it an index of its own (as DESC does).
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
        real_names=frozenset(column[1] for column in columns if _has_real_affinity(column[2])),
        row_id_name=None if is_without_row_ids else next((name for name in ROW_ID_NAMES if name not in names), None),
    )


def _has_real_affinity(declared_type: str) -> bool:
    """Return whether numbers of a column are real, which SQLite stores as integers where it can.

    Source: https://www.sqlite.org/datatype3.html, section 3.1.
    """
    declared = declared_type.upper()
    return any(word in declared for word in ("REAL", "FLOA", "DOUB")) and not any(
        word in declared for word in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")
    )


def _read_through_sqlite(
    connection: sqlite3.Connection, table: StoredTable, plain: Sequence[str], texts: Sequence[str], coded_names: Sequence[str]
) -> TableColumns:
    integers = [*plain, *coded_names]
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
        dict(zip(plain, numbers, strict=False)),
        {name: TextColumn(np.array(codes[name], dtype=np.int32), list(known[name])) for name in texts},
        refused_count,
        {name: factorize(values)[0] for name, values in zip(coded_names, numbers[len(plain) :], strict=True)},
    )


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------- file header
# The header is the first hundred bytes of an SQLite file.
#
# Source of the layout: https://www.sqlite.org/fileformat2.html, section 1.3.

HEADER: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100
UTF_8: Final = 1
LEAST_PAGE_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class SqliteHeader:
    """The header of an SQLite file.

    usable_size: page_size less the bytes reserved at the end of each page. is_of_log: the newest pages may be in a write-ahead log.
    is_full: the file has exactly the stated number of pages; SQLite ignores pages beyond it.
    """

    page_size: int
    usable_size: int
    is_of_log: bool
    is_utf_8: bool
    is_full: bool


def read_header(file: IO[bytes], name: str) -> SqliteHeader:
    """Read the header of a file.

    Raises:
        InvalidTraceError: it is no SQLite file, or shorter than its header states, which SQLite itself notices late.
    """
    data = file.read(HEADER_BYTES)
    size = os.fstat(file.fileno()).st_size
    if len(data) < HEADER_BYTES or not data.startswith(HEADER):
        raise InvalidTraceError(f"file {name}", found="no header of SQLite", expected="an SQLite file", remedy="Export it again.")
    page_size = int.from_bytes(data[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    is_stated = data[24:28] == data[92:96]
    stated_size = int.from_bytes(data[28:32], "big") * page_size if is_stated else 0  # 0: the last writer did not state it
    if size < stated_size:
        raise InvalidTraceError(
            f"file {name}",
            found=f"{size} bytes",
            expected=f"{stated_size}, as its header says: its end is missing",
            remedy="Copy or export it again.",
        )
    return SqliteHeader(
        page_size,
        page_size - data[20],
        is_of_log=data[18] != 1,
        is_utf_8=data[56:60] == UTF_8.to_bytes(4, "big"),
        is_full=page_size >= LEAST_PAGE_SIZE and size == (stated_size or size // page_size * page_size),
    )


# ---------------------------------------------------------------- pages of a table
# Columns of one table are decoded from its pages, chunk by chunk and on several threads.

Key = TypeVar("Key", int, str)

PART_BYTES: Final = 32 * 1024 * 1024
"""Size of a chunk of pages. With less the overhead of each chunk outweighs the decoding; with more, as much of the file stays in
memory."""

MAX_SPILLED_ROWS: Final = 1024
"""Limit of overflowing rows in a chunk. Each is fetched through SQLite by its id: beyond this, reading the complete table through SQLite
is no slower."""

MAX_KEYS: Final = 2**15
"""Limit of distinct values of a factorized column. With more, threads would spend their time merging dictionaries, so the column is
read as numbers."""


class TooManyKeysError(Exception):
    """A column to be factorized has more than MAX_KEYS distinct values."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The schema of a table as far as decoding its pages needs it."""

    name: str
    root_page: int
    column_names: tuple[str, ...]
    rowid_position: int  # -1: no column is the row's id
    is_plain: bool  # every column is stored, none is generated
    real_names: frozenset[str]  # columns of real numbers, which SQLite stores as integers where it can
    row_id_name: str | None  # name of the row's id in SQL; None: there is none, or columns use all of its names


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Decoded columns of a table. texts: codes, -1 for null, and the strings that they index."""

    row_count: int
    integers: Mapping[str, Integers]
    texts: Mapping[str, tuple[Codes, Sequence[str]]]
    factorized: Mapping[str, Factorization]


@dataclass(frozen=True, slots=True)
class _Output:
    """The requested columns and the arrays they are decoded to, one row per column, in the order of the names of each kind."""

    integers: tuple[str, ...]
    texts: tuple[str, ...]
    factorized: tuple[str, ...]
    numbers: Integers
    text_codes: Codes
    codes: Codes

    @property
    def rows_by_name(self) -> dict[str, tuple[int, int]]:
        """Kind and row of each column."""
        kinds = ((NUMBER, self.integers), (TEXT, self.texts), (CODE, self.factorized))
        return {name: (kind, row) for kind, names in kinds for row, name in enumerate(names)}


class _Keys:
    """The keys of the codes that one thread assigned: a hash table for each column."""

    def __init__(self, column_count: int) -> None:
        self.slots = np.full((column_count, 2 * MAX_KEYS), -1, dtype=np.int32)
        self.slot_keys = np.empty((column_count, 2 * MAX_KEYS), dtype=np.int64)
        self.keys = np.empty((column_count, MAX_KEYS), dtype=np.int64)
        self.counts = np.zeros(column_count, dtype=np.int64)

    def of_column(self, row: int) -> list[int]:
        """Return the keys of a column, by code."""
        found: list[int] = self.keys[row, : self.counts[row]].tolist()
        return found


@dataclass(frozen=True, slots=True)
class _TextBuffer:
    """Offsets and lengths of the texts of a chunk, one row per column; overwritten for each chunk."""

    offsets: Integers
    lengths: Codes


@dataclass(frozen=True, slots=True)
class _ThreadResult:
    """The results of one thread. spilled: the ids of rows that overflow their page, by row of the table."""

    texts: tuple[InternedTexts, ...]
    keys: _Keys
    spilled: dict[int, int]


@dataclass(frozen=True, slots=True)
class PageReader:
    """A reader of the columns of one table from the pages of the file."""

    pages: mmap.mmap
    page_size: int
    usable_size: int
    connection: sqlite3.Connection
    table: StoredTable

    def read(self, integers: Sequence[str], texts: Sequence[str], factorized: Sequence[str]) -> DecodedColumns:
        """Decode columns as integers, as texts, and as factorized integers.

        Raises:
            UnusualPagesError: they have to be read through SQLite.
            TooManyKeysError: one of `factorized` has to be read as integers.
            sqlite3.DatabaseError, MemoryError: SQLite found damage, or a damaged row claims more memory than there is.
        """
        names = (*integers, *texts, *factorized)
        if not self.table.is_plain or self.table.row_id_name is None or not self.table.real_names.isdisjoint(names):
            raise UnusualPagesError
        if not names or len(set(names)) < len(names):
            raise UnusualPagesError
        data = np.frombuffer(self.pages, dtype=np.uint8)
        leaves = leaf_pages(data, self.page_size, self.table.root_page)
        first_rows = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self._row_counts(data, leaves))))
        row_count = int(first_rows[-1])
        output = _Output(
            tuple(integers),
            tuple(texts),
            tuple(factorized),
            np.empty((len(integers), row_count), dtype=np.int64),
            np.empty((len(texts), row_count), dtype=np.int32),
            np.empty((len(factorized), row_count), dtype=np.int32),
        )
        worker_count = max(1, min(os.cpu_count() or 1, leaves.size * self.page_size // PART_BYTES))
        bounds = np.linspace(0, leaves.size, worker_count + 1).astype(np.int64).tolist()
        with ThreadPoolExecutor(worker_count) as pool:
            results = list(
                pool.map(lambda first, end: self._decode_leaves(data, output, leaves, first_rows, first, end), bounds[:-1], bounds[1:])
            )
        row_bounds = first_rows[bounds].tolist()
        known_texts = [
            _merge([result.texts[row].texts() for result in results], output.text_codes[row], row_bounds) for row in range(len(texts))
        ]
        known_keys = [
            _merge([result.keys.of_column(row) for result in results], output.codes[row], row_bounds) for row in range(len(factorized))
        ]
        for result in results:
            self._fill_spilled(output, result.spilled, known_texts, known_keys)
        return DecodedColumns(
            row_count,
            dict(zip(integers, output.numbers, strict=True)),
            {name: (codes, list(known)) for name, codes, known in zip(texts, output.text_codes, known_texts, strict=True)},
            {
                name: Factorization(codes, np.array(list(known), dtype=np.int64))
                for name, codes, known in zip(factorized, output.codes, known_keys, strict=True)
            },
        )

    def _row_counts(self, data: Bytes, leaves: Integers) -> Integers:
        counts = np.empty(leaves.size, dtype=np.int64)
        step = max(1, PART_BYTES // self.page_size)
        for part in range(0, leaves.size, step):
            counts[part : part + step] = rows_of_pages(data, self.page_size, leaves[part : part + step])
            if leaves.size > step:  # the pages of a single chunk are needed again at once
                self._release(leaves[part : part + step])
        if leaves.size > 1 and not bool(counts.all()):
            raise UnusualPagesError  # only a root may be an empty leaf
        return counts

    def _decode_leaves(self, data: Bytes, output: _Output, leaves: Integers, first_rows: Integers, first: int, end: int) -> _ThreadResult:
        """Decode the leaves of one thread, chunk by chunk. Codes refer to the thread's own texts and keys."""
        result = _ThreadResult(tuple(InternedTexts(data) for _ in output.texts), _Keys(len(output.factorized)), {})
        step = max(1, PART_BYTES // self.page_size)
        parts = [(part, min(part + step, end)) for part in range(first, end, step)]
        most = max((int(first_rows[part_end] - first_rows[part]) for part, part_end in parts), default=0)
        texts = _TextBuffer(np.empty((len(result.texts), most), dtype=np.int64), np.empty((len(result.texts), most), dtype=np.int32))
        for part, part_end in parts:
            rows = slice(int(first_rows[part]), int(first_rows[part_end]))
            self._decode_chunk(data, output, leaves[part:part_end], rows, texts, result)
            self._release(leaves[part:part_end])
        return result

    def _decode_chunk(self, data: Bytes, output: _Output, leaves: Integers, rows: slice, texts: _TextBuffer, result: _ThreadResult) -> None:
        spilled_rows, spilled_ids = np.empty((2, MAX_SPILLED_ROWS), dtype=np.int64)
        rows_by_name = output.rows_by_name
        last = max(self.table.column_names.index(name) for name in rows_by_name)
        of_positions = [rows_by_name.get(name, (SKIPPED, 0)) for name in self.table.column_names[: last + 1]]
        spilled_count = decode_rows(
            data,
            self.page_size,
            self.usable_size,
            leaves,
            np.array([kind for kind, _row in of_positions], dtype=np.int64),
            np.array([row for _kind, row in of_positions], dtype=np.int64),
            self.table.rowid_position,
            rows.start,
            output.numbers,
            output.codes,
            result.keys.slots,
            result.keys.slot_keys,
            result.keys.keys,
            result.keys.counts,
            texts.offsets,
            texts.lengths,
            spilled_rows,
            spilled_ids,
        )
        if spilled_count == TOO_MANY_KEYS:
            raise TooManyKeysError
        if spilled_count < 0:
            raise UnusualPagesError
        row_count = rows.stop - rows.start
        for interned, codes, offsets, lengths in zip(result.texts, output.text_codes, texts.offsets, texts.lengths, strict=True):
            interned.add(offsets[:row_count], lengths[:row_count], codes[rows])
        result.spilled.update(zip(spilled_rows[:spilled_count].tolist(), spilled_ids[:spilled_count].tolist(), strict=True))

    def _release(self, leaves: Integers) -> None:
        """Release pages that were read from memory: else a large file would take as much memory as its size."""
        first, last = int(leaves.min()) - 1, int(leaves.max())
        start = first * self.page_size // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and (last - first) * self.page_size < 4 * PART_BYTES:
            self.pages.madvise(mmap.MADV_DONTNEED, start, last * self.page_size - start)

    def _fill_spilled(
        self, output: _Output, spilled: Mapping[int, int], texts: Sequence[dict[str, int]], keys: Sequence[dict[int, int]]
    ) -> None:
        rows_by_name = output.rows_by_name
        query = f"SELECT {', '.join(map(quoted, rows_by_name))} FROM {quoted(self.table.name)} WHERE {self.table.row_id_name} = ?"
        for row, row_id in spilled.items():
            values = self.connection.execute(query, (row_id,)).fetchone()
            if values is None:
                raise UnusualPagesError  # in a damaged tree SQLite finds other rows
            for (kind, column), value in zip(rows_by_name.values(), values, strict=True):
                if kind == TEXT:
                    if value is not None and not isinstance(value, str):
                        raise UnusualPagesError
                    output.text_codes[column, row] = -1 if value is None else texts[column].setdefault(value, len(texts[column]))
                    continue
                if value is not None and (not isinstance(value, int) or value == NULL_INTEGER):
                    raise UnusualPagesError
                number = NULL_INTEGER if value is None else value
                if kind == NUMBER:
                    output.numbers[column, row] = number
                else:
                    output.codes[column, row] = keys[column].setdefault(number, len(keys[column]))


def _merge(key_lists: Sequence[Sequence[Key]], codes: Codes, bounds: Sequence[int]) -> dict[Key, int]:
    """Translate the codes of all threads to one common dictionary, and return it: the code of each key."""
    known: dict[Key, int] = {}
    for keys, first, end in zip(key_lists, bounds[:-1], bounds[1:], strict=True):
        new_codes: list[int] = [known.setdefault(key, len(known)) for key in keys]
        if any(new != code for code, new in enumerate(new_codes)):
            codes[first:end] = np.array([*new_codes, -1], dtype=np.int32)[codes[first:end]]  # -1 indexes the last entry
    return known


def quoted(name: str) -> str:
    """Return a name quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
