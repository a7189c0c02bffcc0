"""Columns of one table of an SQLite file from its pages, part by part and on several threads."""

from __future__ import annotations

import mmap
import os
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from services.analyzer.correlation import Coded
from services.analyzer.readers.interning import Bytes, Codes, Integers, InternedTexts
from services.analyzer.readers.sqlite_pages import (
    CODE,
    NULL_INTEGER,
    NUMBER,
    SKIPPED,
    TEXT,
    TOO_MANY_KEYS,
    UnusualPagesError,
    decode_rows,
    leaf_pages,
)
from services.analyzer.readers.sqlite_pages import row_counts as rows_of_pages

Key = TypeVar("Key", int, str)

PART_BYTES: Final = 32 * 1024 * 1024
"""Of pages decoded at once. Less costs more in starting than in decoding; more keeps as much of the file in memory."""

MAX_SPILLED_ROWS: Final = 1024
"""Of one part. Each is fetched through SQLite by its id: past this, reading the whole table that way is no slower."""

MAX_KEYS: Final = 2**15
"""Of a column read as codes. With more, threads spend their time merging what each of them found: it is read as numbers."""


class TooManyKeysError(Exception):
    """A column read as codes has so many values that it is none of few."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    name: str
    root_page: int
    column_names: tuple[str, ...]
    rowid_position: int  # -1: no column is the row's id
    is_plain: bool  # every column is stored in its place
    real_names: frozenset[str]  # of columns that hold real numbers, as whole ones where they can
    row_id_name: str | None  # what SQL calls the row's id; None: there is none, or columns have all of its names


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """texts: codes, -1 for null, and the texts that these are places of."""

    row_count: int
    integers: Mapping[str, Integers]
    texts: Mapping[str, tuple[Codes, Sequence[str]]]
    coded: Mapping[str, Coded]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Columns of the table and where they are decoded to, a row for each; names of a kind are in the order of these rows."""

    integers: tuple[str, ...]
    texts: tuple[str, ...]
    coded: tuple[str, ...]
    numbers: Integers
    text_codes: Codes
    codes: Codes

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Kind and row of each."""
        kinds = ((NUMBER, self.integers), (TEXT, self.texts), (CODE, self.coded))
        return {name: (kind, row) for kind, names in kinds for row, name in enumerate(names)}


class _Keys:
    """What the codes of a thread stand for: a hash table for each column."""

    def __init__(self, column_count: int) -> None:
        self.slots = np.full((column_count, 2 * MAX_KEYS), -1, dtype=np.int32)
        self.slot_keys = np.empty((column_count, 2 * MAX_KEYS), dtype=np.int64)
        self.keys = np.empty((column_count, MAX_KEYS), dtype=np.int64)
        self.counts = np.zeros(column_count, dtype=np.int64)

    def of_column(self, row: int) -> list[int]:
        found: list[int] = self.keys[row, : self.counts[row]].tolist()
        return found


@dataclass(frozen=True, slots=True)
class _TextBuffer:
    """Where the texts of a part lie, a row for each column; filled anew with each part."""

    offsets: Integers
    lengths: Codes


@dataclass(frozen=True, slots=True)
class _Share:
    """What one thread found. spilled: rows that go on beyond their page, by place in the table, and their ids."""

    texts: tuple[InternedTexts, ...]
    keys: _Keys
    spilled: dict[int, int]


@dataclass(frozen=True, slots=True)
class PageReading:
    pages: mmap.mmap
    page_size: int
    usable_size: int
    connection: sqlite3.Connection
    table: StoredTable

    def read(self, integers: Sequence[str], texts: Sequence[str], coded: Sequence[str]) -> DecodedColumns:
        """Columns as numbers, as texts and as codes of numbers.

        Raises:
            UnusualPagesError: they have to be read through SQLite.
            TooManyKeysError: one of `coded` has to be read as numbers.
            sqlite3.DatabaseError, MemoryError: damaged, says SQLite, or so that the rows would need more memory than there is.
        """
        names = (*integers, *texts, *coded)
        if not self.table.is_plain or self.table.row_id_name is None or not self.table.real_names.isdisjoint(names):
            raise UnusualPagesError
        if not names or len(set(names)) < len(names):
            raise UnusualPagesError
        data = np.frombuffer(self.pages, dtype=np.uint8)
        leaves = leaf_pages(data, self.page_size, self.table.root_page)
        first_rows = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self._row_counts(data, leaves))))
        row_count = int(first_rows[-1])
        wanted = _Wanted(
            tuple(integers),
            tuple(texts),
            tuple(coded),
            np.empty((len(integers), row_count), dtype=np.int64),
            np.empty((len(texts), row_count), dtype=np.int32),
            np.empty((len(coded), row_count), dtype=np.int32),
        )
        worker_count = max(1, min(os.cpu_count() or 1, leaves.size * self.page_size // PART_BYTES))
        bounds = np.linspace(0, leaves.size, worker_count + 1).astype(np.int64).tolist()
        with ThreadPoolExecutor(worker_count) as pool:
            shares = list(pool.map(lambda first, end: self._share(data, wanted, leaves, first_rows, first, end), bounds[:-1], bounds[1:]))
        row_bounds = first_rows[bounds].tolist()
        known_texts = [
            _merged([share.texts[row].texts() for share in shares], wanted.text_codes[row], row_bounds) for row in range(len(texts))
        ]
        known_keys = [_merged([share.keys.of_column(row) for share in shares], wanted.codes[row], row_bounds) for row in range(len(coded))]
        for share in shares:
            self._fill_spilled(wanted, share.spilled, known_texts, known_keys)
        return DecodedColumns(
            row_count,
            dict(zip(integers, wanted.numbers, strict=True)),
            {name: (codes, list(known)) for name, codes, known in zip(texts, wanted.text_codes, known_texts, strict=True)},
            {
                name: Coded(codes, np.array(list(known), dtype=np.int64))
                for name, codes, known in zip(coded, wanted.codes, known_keys, strict=True)
            },
        )

    def _row_counts(self, data: Bytes, leaves: Integers) -> Integers:
        counts = np.empty(leaves.size, dtype=np.int64)
        step = max(1, PART_BYTES // self.page_size)
        for part in range(0, leaves.size, step):
            counts[part : part + step] = rows_of_pages(data, self.page_size, leaves[part : part + step])
            if leaves.size > step:  # a table of one part is decoded at once
                self._release(leaves[part : part + step])
        if leaves.size > 1 and not bool(counts.all()):
            raise UnusualPagesError  # a root alone may be empty, says SQLite
        return counts

    def _share(self, data: Bytes, wanted: _Wanted, leaves: Integers, first_rows: Integers, first: int, end: int) -> _Share:
        """Decodes the leaves of one thread, part by part. Codes are of its own texts and keys."""
        share = _Share(tuple(InternedTexts(data) for _ in wanted.texts), _Keys(len(wanted.coded)), {})
        step = max(1, PART_BYTES // self.page_size)
        parts = [(part, min(part + step, end)) for part in range(first, end, step)]
        most = max((int(first_rows[part_end] - first_rows[part]) for part, part_end in parts), default=0)
        texts = _TextBuffer(np.empty((len(share.texts), most), dtype=np.int64), np.empty((len(share.texts), most), dtype=np.int32))
        for part, part_end in parts:
            rows = slice(int(first_rows[part]), int(first_rows[part_end]))
            self._part(data, wanted, leaves[part:part_end], rows, texts, share)
            self._release(leaves[part:part_end])
        return share

    def _part(self, data: Bytes, wanted: _Wanted, leaves: Integers, rows: slice, texts: _TextBuffer, share: _Share) -> None:
        spilled_rows, spilled_ids = np.empty((2, MAX_SPILLED_ROWS), dtype=np.int64)
        places = wanted.places
        last = max(self.table.column_names.index(name) for name in places)
        of_positions = [places.get(name, (SKIPPED, 0)) for name in self.table.column_names[: last + 1]]
        spilled_count = decode_rows(
            data,
            self.page_size,
            self.usable_size,
            leaves,
            np.array([kind for kind, _row in of_positions], dtype=np.int64),
            np.array([row for _kind, row in of_positions], dtype=np.int64),
            self.table.rowid_position,
            rows.start,
            wanted.numbers,
            wanted.codes,
            share.keys.slots,
            share.keys.slot_keys,
            share.keys.keys,
            share.keys.counts,
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
        for interned, codes, offsets, lengths in zip(share.texts, wanted.text_codes, texts.offsets, texts.lengths, strict=True):
            interned.add(offsets[:row_count], lengths[:row_count], codes[rows])
        share.spilled.update(zip(spilled_rows[:spilled_count].tolist(), spilled_ids[:spilled_count].tolist(), strict=True))

    def _release(self, leaves: Integers) -> None:
        """Pages that were read need not stay in memory: a large file would take as much of it as it is long."""
        first, last = int(leaves.min()) - 1, int(leaves.max())
        start = first * self.page_size // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and (last - first) * self.page_size < 4 * PART_BYTES:
            self.pages.madvise(mmap.MADV_DONTNEED, start, last * self.page_size - start)

    def _fill_spilled(
        self, wanted: _Wanted, spilled: Mapping[int, int], texts: Sequence[dict[str, int]], keys: Sequence[dict[int, int]]
    ) -> None:
        places = wanted.places
        query = f"SELECT {', '.join(map(quoted, places))} FROM {quoted(self.table.name)} WHERE {self.table.row_id_name} = ?"
        for row, row_id in spilled.items():
            values = self.connection.execute(query, (row_id,)).fetchone()
            if values is None:
                raise UnusualPagesError  # SQLite goes another way through a damaged tree
            for (kind, place), value in zip(places.values(), values, strict=True):
                if kind == TEXT:
                    if value is not None and not isinstance(value, str):
                        raise UnusualPagesError
                    wanted.text_codes[place, row] = -1 if value is None else texts[place].setdefault(value, len(texts[place]))
                    continue
                if value is not None and (not isinstance(value, int) or value == NULL_INTEGER):
                    raise UnusualPagesError
                number = NULL_INTEGER if value is None else value
                if kind == NUMBER:
                    wanted.numbers[place, row] = number
                else:
                    wanted.codes[place, row] = keys[place].setdefault(number, len(keys[place]))


def _merged(shares: Sequence[Sequence[Key]], codes: Codes, bounds: Sequence[int]) -> dict[Key, int]:
    """Makes the codes of all threads those of one list of keys; answers the keys with their codes."""
    known: dict[Key, int] = {}
    for keys, first, end in zip(shares, bounds[:-1], bounds[1:], strict=True):
        places: list[int] = [known.setdefault(key, len(known)) for key in keys]
        if any(place != code for code, place in enumerate(places)):
            codes[first:end] = np.array([*places, -1], dtype=np.int32)[codes[first:end]]  # -1 is the last
    return known


def quoted(name: str) -> str:
    """As SQL wants an identifier."""
    return '"' + name.replace('"', '""') + '"'
