"""What readers share: the files of a trace, what reading them yields, and the selection of columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, runtime_checkable

import numpy as np
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import NONE, Coded, Indexes
from kernalyse.services.analyzer.tables.base import INDEX, TEXT, Table
from kernalyse.services.analyzer.tables.traces import WORK_COLUMNS
from kernalyse.services.core.errors import InvalidTraceError

if TYPE_CHECKING:
    from kernalyse.services.core.model import Device, Revision


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts of a column, factorized. codes: row of `texts` for each row; -1: null."""

    codes: Indexes
    texts: Sequence[str]


# ---------------------------------------------------------------- trace
# What a reader is given and what it answers with.


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """A trace as it arrived.

    companions: files that belong to it, by their paths from the folder of the trace at its sender ("a.json-bin/0.bin").
    They lie elsewhere here, each under the path that it is mapped to.
    op_registry_folder: of op_registry.py, from the settings of the analyzer or its own command line and never from the sender,
    for it holds code; None: none.
    """

    file_name: str
    path: Path
    arrived_unix_ns: int
    companions: Mapping[str, Path] = field(default_factory=dict)
    op_registry_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class ImportedTables:
    """A trace as rows of the canonical tables.

    frames: by table name, with the columns of the table; run_id and event_index are set when the rows are stored.
    """

    frames: Mapping[str, pl.DataFrame]
    title: str = ""  # empty: the name of the file
    notes: str = ""  # for people: where it comes from, and what of it no table holds
    device_id: str | None = None  # when all of it is of one device
    start_time: datetime | None = None
    end_time: datetime | None = None
    revision: Revision | None = None
    tags: tuple[str, ...] = ()
    node_id: str | None = None  # where it was measured, if that is told
    devices: tuple[Device, ...] = ()  # that it was measured on, with what is told of them


class Reader(Protocol):
    """Reads one format."""

    @property
    def format(self) -> str:
        """Its name, kept with the run: "nvbench"."""

    @property
    def description(self) -> str:
        """Its name for people who gave a file that no reader takes."""

    def matches(self, head: bytes) -> bool:
        """Whether a file that begins so is of this format. head: the first HEAD_BYTES of it, or all."""

    def read(self, files: TraceFiles) -> ImportedTables:
        """Raises InvalidTraceError when the content is not what the beginning promised; names record, found and expected."""


# ---------------------------------------------------------------- selection
# Which columns of a trace somebody wants: reading all of a large one costs several times what an answer needs.

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


# ---------------------------------------------------------------- trace names
# The names of a trace, each once.


class TraceNames:
    """Names by index, in order of first use. texts: those that the file refers to by id."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts
        self._indexes: dict[str, int] = {}

    def index_of(self, name: str) -> int:
        return self._indexes.setdefault(name, len(self._indexes))

    def of_codes(self, column: Coded) -> Indexes:
        """Indexes of texts that are referred to by id; NONE where there is none of that id."""
        found = [self._texts.get(key) for key in column.keys.tolist()]
        table = np.array([*(NONE if text is None else self.index_of(text) for text in found), NONE], dtype=np.int32)
        return table[column.codes]

    def of_texts(self, column: TextColumn) -> Indexes:
        table = np.array([*(self.index_of(text) for text in column.texts), NONE], dtype=np.int32)
        return table[column.codes]  # of null, -1, the last

    def frame(self) -> pl.DataFrame:
        """Rows of trace_names."""
        names = list(self._indexes)
        return pl.DataFrame({"name_index": pl.Series(range(len(names)), dtype=INDEX), "name": pl.Series(names, dtype=TEXT)})


# ---------------------------------------------------------------- imported text
# Text out of files of others: bounded, and without what would steer a terminal.

MAX_TITLE_LENGTH: Final = 255
MAX_NOTES_LENGTH: Final = 20_000
MAX_TAG_COUNT: Final = 64
"""Lists carry title, notes and tags of a hundred runs in one message of at most 64 MiB: longer ones would keep every run from
being listed."""

MAX_CELL_LENGTH: Final = 1_000_000
"""Of a cell. A row travels in one message; NVBench's longest lines, the command and its axes, have thousands."""

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tab and line feed; an escape sequence in a title would clear the terminal that lists it, or worse."""


def bounded(tables: ImportedTables, file_name: str) -> ImportedTables:
    """The same with title, notes and tags as lists can carry them. Raises InvalidTraceError when a cell is longer than any is."""
    _refuse_long_cells(tables.frames, file_name)
    return replace(
        tables,
        title=shortened(tables.title, MAX_TITLE_LENGTH),
        notes=shortened(tables.notes, MAX_NOTES_LENGTH),
        tags=tuple(shortened(tag, MAX_TITLE_LENGTH) for tag in tables.tags[:MAX_TAG_COUNT]),
    )


def shortened(text: str, max_length: int) -> str:
    """Printable, and cut with an ellipsis where it is longer."""
    printable = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    return printable if len(printable) <= max_length else f"{printable[: max_length - 1]}…"


def _refuse_long_cells(frames: Mapping[str, pl.DataFrame], file_name: str) -> None:
    for table_name, frame in frames.items():
        longest = frame.select(pl.col(pl.String).str.len_chars().max())
        for column, length in longest.row(0, named=True).items() if longest.width and frame.height else ():
            if length is not None and length > MAX_CELL_LENGTH:
                raise InvalidTraceError(
                    f"file {file_name}: {column} of a row of {table_name}",
                    found=f"{length} characters",
                    expected=f"at most {MAX_CELL_LENGTH}",
                    remedy="The file is damaged, or holds what does not belong there.",
                )
