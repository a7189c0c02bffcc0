"""Which columns of a trace somebody wants: reading all of a large one costs several times what an answer needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Self, runtime_checkable

from services.analyzer.readers.trace import ImportedTables, Reader, TraceFiles
from services.analyzer.table import Table
from services.analyzer.trace_tables import WORK_COLUMNS

WORK: Final = "work"
"""Stands among tables for the work of launches. A reader gives WORK_COLUMNS for it only where the trace has operators: columns of
ten million rows are read in vain where it has none."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns by table name. None: every column of every table."""

    columns: Mapping[str, frozenset[str]] | None = None

    @classmethod
    def of(cls, inputs: Iterable[Mapping[str, Iterable[str]]]) -> Self:
        """Those of several together."""
        columns: dict[str, frozenset[str]] = {}
        for tables in inputs:
            for table_name, names in tables.items():
                columns[table_name] = columns.get(table_name, frozenset()) | frozenset(names)
        return cls(columns)

    def with_columns(self, columns: Mapping[str, Iterable[str]]) -> Self:
        """The same and these."""
        return self if self.columns is None else type(self).of([self.columns, columns])

    @property
    def wants_work(self) -> bool:
        return self.columns is None or WORK in self.columns

    def with_work(self) -> Self:
        """With the columns that tell the work of launches."""
        return self if self.columns is None else type(self).of((self.columns, WORK_COLUMNS))

    def of_table(self, table: Table) -> tuple[str, ...]:
        """The wanted columns of a table, in its order. What is set when rows are stored is no reader's to give."""
        names = table.column_names[2:]
        if self.columns is None:
            return names
        return tuple(name for name in names if name in self.columns.get(table.table_name, ()))

    def wants(self, table: Table, *names: str) -> bool:
        """Any of the columns; without names any of the table."""
        wanted = self.of_table(table)
        return any(name in wanted for name in names) if names else bool(wanted)


EVERYTHING = Selection()


@runtime_checkable
class SelectiveReader(Reader, Protocol):
    """Reads no more than is wanted."""

    def read_columns(self, files: TraceFiles, selection: Selection) -> ImportedTables:
        """Frames have the wanted columns only, or a few more. Raises as `read` does."""
