"""Tables of events as Nsight Systems exports them: what of their columns is there, in order of start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from services.analyzer.correlation import NONE, Coded, Indexes, Integers, coded, range_order, start_order
from services.analyzer.readers.exported_tables import ExportedTables
from services.analyzer.readers.sqlite_file import TableColumns, TextColumn, WantedColumns
from services.analyzer.readers.sqlite_pages import NULL_INTEGER

COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"


@dataclass(slots=True, eq=False)
class Events:
    """Rows of one table in order of start. A column that the file lacks is null throughout.

    Args:
        coded: columns of few values, as codes.
        order: place in the file of each row, once they were sorted; None: the same.
    """

    row_count: int
    integers: dict[str, Integers]
    texts: Mapping[str, TextColumn]
    coded: dict[str, Coded] = field(default_factory=dict)
    process: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # code of each row's process
    thread: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # the same of its thread, as far as it has one
    order: npt.NDArray[np.int64] | None = None
    untimed_count: int = 0  # left out: without a start or an end
    refused_count: int = 0  # values that are no whole numbers
    missing: tuple[str, ...] = ()
    _absent: dict[str, Integers] = field(default_factory=dict)

    @classmethod
    def read(cls, file: ExportedTables, wanted: WantedColumns) -> Self:
        """All rows in the order of the file. No rows when there is no such table.

        Raises InvalidTraceError when the table is damaged.
        """
        there = wanted.present(file.column_names(wanted.table_name))
        missing = tuple(
            name
            for names, found in ((wanted.integers, there.integers), (wanted.codes, there.codes), (wanted.texts, there.texts))
            for name in names
            if name not in found
        )
        found = (
            file.columns(wanted.table_name, there.integers, there.texts, there.codes)
            if there.integers or there.codes
            else TableColumns(0, {}, {})
        )
        return cls(
            found.row_count,
            dict(found.integers),
            found.texts,
            dict(found.coded),
            refused_count=found.refused_count,
            missing=missing,
        )

    @classmethod
    def none(cls) -> Self:
        return cls(0, {}, {})

    def column(self, name: str) -> Integers:
        if name in self.integers:
            return self.integers[name]
        if name in self.coded:
            return self.coded[name].values
        if name not in self._absent:
            self._absent[name] = np.full(self.row_count, NULL_INTEGER, dtype=np.int64)
        return self._absent[name]

    def codes(self, name: str) -> Coded:
        """The column as codes. Its keys are those of its rows."""
        return self.coded[name] if name in self.coded else coded(self.column(name))[0]

    def text(self, name: str) -> TextColumn:
        return self.texts[name] if name in self.texts else TextColumn(np.full(self.row_count, -1, dtype=np.int32), ())

    def release(self, *names: str) -> None:
        """Columns that are not asked for again."""
        for name in names:
            self.integers.pop(name, None)

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Self:
        """The rows of a mask. These rows here lose their columns."""
        if bool(is_kept.all()):
            return self
        found = self._at(np.flatnonzero(is_kept))
        found.coded = {name: column.used() for name, column in found.coded.items()}
        return found

    def timed(self, *, may_be_open: bool = False) -> Self:
        """Without rows that have no start or, unless they may be open, no end. These rows here lose their columns."""
        is_timed = self.column("start") != NULL_INTEGER
        if not may_be_open:
            is_timed &= self.column("end") != NULL_INTEGER
        found = self.where(is_timed)
        found.untimed_count = self.row_count - found.row_count
        return found

    def by_start(self) -> Self:
        """In order of start, of equal starts in that of the file. These rows here lose their columns."""
        return self._ordered(start_order(self.column("start")))

    def by_range(self, end_ns: Integers) -> Self:
        """In order of start, of equal starts the later end first."""
        return self._ordered(range_order(self.column("start"), end_ns))

    def moved(self, places: Indexes) -> Indexes:
        """Places in the file as rows. NONE stays what it is."""
        if self.order is None:
            return places
        rows = np.empty(self.row_count + 1, dtype=np.int32)
        rows[self.order] = np.arange(self.row_count, dtype=np.int32)
        rows[-1] = NONE
        found: Indexes = rows[places]
        return found

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, one part after the other."""
        names = dict.fromkeys(name for part in parts for name in (*part.integers, *part.coded))
        integers = {name: np.concatenate([part.column(name) for part in parts]) for name in names}
        return cls(sum(part.row_count for part in parts), integers, {})

    def _ordered(self, order: npt.NDArray[np.int64] | None) -> Self:
        if order is None:
            return self
        found = self._at(order)
        found.order = order
        return found

    def _at(self, rows: npt.NDArray[np.int64]) -> Self:
        integers = {}
        for name in list(self.integers):  # one at a time: both copies of all of them would be twice the memory
            integers[name] = self.integers.pop(name)[rows]
        texts = {name: TextColumn(column.codes[rows], column.texts) for name, column in self.texts.items()}
        of_codes = {}
        for name in list(self.coded):
            column = self.coded.pop(name)
            of_codes[name] = Coded(column.codes[rows], column.keys)
        process, thread = (codes[rows] if codes.size else codes for codes in (self.process, self.thread))
        return type(self)(rows.size, integers, texts, of_codes, process, thread, None, self.untimed_count, self.refused_count, self.missing)
