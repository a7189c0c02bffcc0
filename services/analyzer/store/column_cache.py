"""An in-memory cache of the columns of large tables, and of small tables that take long to compute.

Decoding a column of ten million rows takes longer than a query may, so columns stay decoded after their first use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import polars as pl

MAX_CACHE_BYTES: Final = 3 * 2**30
"""All columns of ten million kernels are 1.4 GB, of their calls 1 GB: with less, one would evict the other at every page of a
table. With more, an analyzer that has been asked about many traces would fill a machine of 16 GB."""


@dataclass(frozen=True, slots=True)
class CachedColumn:
    """A decoded column in compact form.

    values: one value per row; a column whose rows are all equal has one row here. Where texts is set, values are positions in it.
    height: rows of the column.
    """

    values: pl.Series
    texts: pl.Series | None
    height: int

    @classmethod
    def of(cls, series: pl.Series) -> CachedColumn:
        """Return the compact form of a series: constant, as positions in its distinct strings, or as it is."""
        height = series.len()
        if series.dtype == pl.String:
            texts = series.unique()
            if texts.len() == 1:
                return cls(texts, None, height)
            if texts.len() <= height // MIN_REPEATS:
                texts = texts.drop_nulls()
                return cls(series.cast(pl.Enum(texts)).to_physical().cast(pl.Int32), texts, height)
        elif series.null_count() in (0, height) and series.min() == series.max():
            return cls(series.head(1), None, height)
        return cls(series.rechunk(), None, height)

    @property
    def size_bytes(self) -> int:
        """Memory that the column takes."""
        return int(self.values.estimated_size() + (0 if self.texts is None else self.texts.estimated_size()))

    @property
    def is_of_one_value(self) -> bool:
        """Whether all rows have the same value, which is then stored once."""
        return self.values.len() < self.height

    def at(self, rows: pl.Series) -> pl.Series:
        """Return the values of these rows, given by row number."""
        if self.is_of_one_value:
            return self.values.new_from_index(0, rows.len())
        found = self.values.gather(rows)
        return found if self.texts is None else self.texts.gather(found).alias(self.values.name)

    def where(self, condition: pl.Expr) -> pl.Series:
        """Return for each row whether the condition, on the column by its name, holds. It is evaluated once per distinct string."""
        name = self.values.name
        if self.is_of_one_value:
            return _evaluate(self.values, condition).new_from_index(0, self.height)
        if self.texts is None:
            return _evaluate(self.values, condition)
        by_text = _evaluate(pl.concat([self.texts.alias(name), pl.Series(name, [None], dtype=pl.String)]), condition)
        selected = by_text.arg_true()
        if selected.len() <= 1 and not by_text[-1]:  # mostly one string: comparing numbers takes a tenth of looking each up
            return (self.values == (selected.item() if selected.len() else NULL_POSITION)).fill_null(False)
        return by_text.gather(self.values.fill_null(self.texts.len()))

    def sort_key(self) -> pl.Series:
        """Return numbers, or strings, that sort as the values do."""
        if self.is_of_one_value:
            return self.values.new_from_index(0, self.height)
        if self.texts is None:
            return self.values
        return self.texts.rank("ordinal").gather(self.values).alias(self.values.name)


NULL_POSITION: Final = -1  # in a list of texts

MIN_REPEATS: Final = 4
"""Average repetitions of a string, below which storing positions in a list of distinct strings saves no memory."""


def _evaluate(values: pl.Series, condition: pl.Expr) -> pl.Series:
    return values.to_frame().select(condition.fill_null(False)).to_series()


@dataclass(frozen=True, slots=True)
class CachedRows:
    """All rows of a small table."""

    frame: pl.DataFrame

    @property
    def size_bytes(self) -> int:
        """Memory that the rows take."""
        return int(self.frame.estimated_size())


class CacheEntry(Protocol):
    """An entry of the cache: a column, the rows of a small table, or the intervals of a timeline."""

    @property
    def size_bytes(self) -> int:
        """Memory that the entry takes."""


EntryT = TypeVar("EntryT", bound=CacheEntry)


class ColumnCache:
    """A cache of the most recently used entries by key, of at most max_bytes together. It may be used from several threads."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._columns: OrderedDict[Hashable, CacheEntry] = OrderedDict()
        self._size_bytes = 0
        self._forget_count = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, kind: type[EntryT], make: Callable[[], EntryT]) -> EntryT:
        """Return the entry of the key, made if there is none. Two threads that ask at once may both make it.

        Args:
            kind: type of the entry.
            make: called without the lock.
        """
        with self._lock:
            found = self._columns.get(key)
            if isinstance(found, kind):
                self._columns.move_to_end(key)
                return found
            forget_count = self._forget_count
        made = make()
        with self._lock:
            if key not in self._columns and forget_count == self._forget_count:  # else its rows may have changed meanwhile
                self._columns[key] = made
                self._size_bytes += made.size_bytes
            while self._size_bytes > self._max_bytes:
                _, dropped = self._columns.popitem(last=False)
                self._size_bytes -= dropped.size_bytes
        return made

    def forget(self, run_id: str) -> None:
        """Drop the entries whose keys contain this run_id, because its rows have changed."""
        with self._lock:
            self._forget_count += 1
            for key in [key for key in self._columns if _contains_run(key, run_id)]:
                self._size_bytes -= self._columns.pop(key).size_bytes

    @property
    def size_bytes(self) -> int:
        """Memory that all entries take."""
        return self._size_bytes


def _contains_run(key: Hashable, run_id: str) -> bool:
    return any(_contains_run(part, run_id) for part in key) if isinstance(key, tuple) else key == run_id
