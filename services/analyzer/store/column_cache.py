"""Columns of large tables, kept in memory once they were asked for: to decode one of ten million rows takes longer than a question may."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import polars as pl

MAX_HELD_BYTES: Final = 3 * 2**30
"""All columns of ten million kernels are 1.4 GB, of their calls 1 GB: with less the one would push out the other at every
page of a table. With more, an analyzer that has been asked about many traces would fill a machine of 16 GB."""


@dataclass(frozen=True, slots=True)
class HeldColumn:
    """values: of the rows; of text, places in texts. A column of one value alone has one row."""

    values: pl.Series
    texts: pl.Series | None
    height: int

    @classmethod
    def of(cls, series: pl.Series) -> HeldColumn:
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
        return int(self.values.estimated_size() + (0 if self.texts is None else self.texts.estimated_size()))

    @property
    def is_of_one_value(self) -> bool:
        return self.values.len() < self.height

    def at(self, rows: pl.Series) -> pl.Series:
        """The values of some rows."""
        if self.is_of_one_value:
            return self.values.new_from_index(0, rows.len())
        found = self.values.gather(rows)
        return found if self.texts is None else self.texts.gather(found).alias(self.values.name)

    def where(self, condition: pl.Expr) -> pl.Series:
        """Whether the condition, on the column by its name, holds in each row. Of text it is asked once for each that there is."""
        name = self.values.name
        if self.is_of_one_value:
            return _held_by(self.values, condition).new_from_index(0, self.height)
        if self.texts is None:
            return _held_by(self.values, condition)
        of_texts = _held_by(pl.concat([self.texts.alias(name), pl.Series(name, [None], dtype=pl.String)]), condition)
        chosen = of_texts.arg_true()
        if chosen.len() <= 1 and not of_texts[-1]:  # one text, as mostly: to compare numbers takes a tenth of looking each up
            return (self.values == (chosen.item() if chosen.len() else NO_PLACE)).fill_null(False)
        return of_texts.gather(self.values.fill_null(self.texts.len()))

    def sort_key(self) -> pl.Series:
        """Numbers, or texts, in the order of the values."""
        if self.is_of_one_value:
            return self.values.new_from_index(0, self.height)
        if self.texts is None:
            return self.values
        return self.texts.rank("ordinal").gather(self.values).alias(self.values.name)


NO_PLACE: Final = -1  # in a list of texts

MIN_REPEATS: Final = 4
"""Texts that come back less often than that take no less room as places in a list of them."""


def _held_by(values: pl.Series, condition: pl.Expr) -> pl.Series:
    return values.to_frame().select(condition.fill_null(False)).to_series()


class Held(Protocol):
    """What can be kept: a column, or the intervals of a timeline."""

    @property
    def size_bytes(self) -> int: ...


Kept = TypeVar("Kept", bound=Held)


class HeldColumns:
    """By key, those asked for last; at most max_bytes of them. Safe to use from several threads."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._columns: OrderedDict[Hashable, Held] = OrderedDict()
        self._size_bytes = 0
        self._forget_count = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
        """What is kept under the key, made when nothing is. Two who ask at once may both make it.

        Args:
            kind: of what the key stands for.
        """
        with self._lock:
            found = self._columns.get(key)
            if isinstance(found, kind):
                self._columns.move_to_end(key)
                return found
            forget_count = self._forget_count
        made = make()
        with self._lock:
            if key not in self._columns and forget_count == self._forget_count:  # else of rows that may be others by now
                self._columns[key] = made
                self._size_bytes += made.size_bytes
            while self._size_bytes > self._max_bytes:
                _, dropped = self._columns.popitem(last=False)
                self._size_bytes -= dropped.size_bytes
        return made

    def forget(self, run_id: str) -> None:
        """What is kept under keys of this run, which has other rows now."""
        with self._lock:
            self._forget_count += 1
            for key in [key for key in self._columns if _is_of(key, run_id)]:
                self._size_bytes -= self._columns.pop(key).size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes


def _is_of(key: Hashable, run_id: str) -> bool:
    return any(_is_of(part, run_id) for part in key) if isinstance(key, tuple) else key == run_id
