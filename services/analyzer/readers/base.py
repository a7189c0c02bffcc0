"""Types that all readers share: the files of a trace, the tables read from them, and the selection of columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, runtime_checkable

import numpy as np
import polars as pl

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Factorization, Indexes
from kernalyse.services.analyzer.tables.base import INDEX, TEXT, Table
from kernalyse.services.analyzer.tables.traces import COST_INPUT_COLUMNS
from kernalyse.services.core.errors import InvalidTraceError

if TYPE_CHECKING:
    from kernalyse.services.core.model import Device, Revision

GZIP_MAGIC: Final = b"\x1f\x8b"
"""The first bytes of a gzip file."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A factorized text column. codes: index in `texts` for each row, -1 for null."""

    codes: Indexes
    texts: Sequence[str]


# ---------------------------------------------------------------- reader interface
# The input and the result of a reader.


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The files of one uploaded or local trace.

    companions: files that belong to it. Keys are their paths at the sender, relative to the directory of the trace
    ("a.json-bin/0.bin"); values are where each file is stored here.
    op_registry_directory: directory of op_registry.py, None without one. It comes from the settings of the analyzer or its own
    command line and never from the sender, since that file is code.
    """

    file_name: str
    path: Path
    arrived_unix_ns: int
    companions: Mapping[str, Path] = field(default_factory=dict)
    op_registry_directory: Path | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A trace as rows of the canonical tables.

    frames: rows by table name, with the columns of the table except run_id and event_index, which are set when rows are stored.
    """

    frames: Mapping[str, pl.DataFrame]
    title: str = ""  # empty: the name of the file is the title
    notes: str = ""  # for people: the origin of the trace, and what of its content no table holds
    device_id: str | None = None  # if the whole trace is of one device
    start_time: datetime | None = None
    end_time: datetime | None = None
    revision: Revision | None = None
    tags: tuple[str, ...] = ()
    node_id: str | None = None  # where it was measured, if the trace states it
    devices: tuple[Device, ...] = ()  # the devices it was measured on, as far as the trace describes them


class Reader(Protocol):
    """A reader of one trace format."""

    @property
    def format(self) -> str:
        """Name of the format, stored with the run: "nvbench"."""

    @property
    def description(self) -> str:
        """Name of the format in error messages, such as the one for a file that no reader accepts."""

    def matches(self, head: bytes) -> bool:
        """Return whether a file with this beginning is of this format. head: its first HEAD_BYTES, or all of it."""

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the trace.

        Raises:
            InvalidTraceError: the content is not what the beginning promised; it names the record, what was found and expected.
        """


# ---------------------------------------------------------------- column selection
# The columns that a query needs: reading a large trace completely costs several times as much as most queries need.

WORK: Final = "work"
"""A pseudo-table that requests what the cost of launches (flop, bytes) is computed from. A reader provides WORK_COLUMNS for it
only if the trace has operators: without any, columns of ten million rows would be read in vain."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The requested columns by table name. None: every column of every table."""

    columns: Mapping[str, frozenset[str]] | None = None

    @classmethod
    def of(cls, inputs: Iterable[Mapping[str, Iterable[str]]]) -> Self:
        """Return the union of several requests."""
        columns: dict[str, frozenset[str]] = {}
        for tables in inputs:
            for table_name, names in tables.items():
                columns[table_name] = columns.get(table_name, frozenset()) | frozenset(names)
        return cls(columns)

    def with_columns(self, columns: Mapping[str, Iterable[str]]) -> Self:
        """Return the selection with these columns added."""
        return self if self.columns is None else type(self).of([self.columns, columns])

    @property
    def wants_costs(self) -> bool:
        """Whether the cost of launches is requested."""
        return self.columns is None or WORK in self.columns

    def with_work(self) -> Self:
        """Return the selection with the columns added that the cost of launches is computed from."""
        return self if self.columns is None else type(self).of((self.columns, COST_INPUT_COLUMNS))

    def of_table(self, table: Table) -> tuple[str, ...]:
        """Return the requested columns of a table in its order, without run_id and event_index, which no reader provides."""
        names = table.column_names[2:]
        if self.columns is None:
            return names
        return tuple(name for name in names if name in self.columns.get(table.table_name, ()))

    def wants(self, table: Table, *names: str) -> bool:
        """Return whether any of these columns is requested; without names, whether any column of the table is."""
        requested = self.of_table(table)
        return any(name in requested for name in names) if names else bool(requested)


ALL_COLUMNS = Selection()


@runtime_checkable
class SelectiveReader(Reader, Protocol):
    """A reader that can read the requested columns only."""

    def read_columns(self, files: TraceFiles, selection: Selection) -> ReadResult:
        """Read the requested columns; frames may have a few more. Raises the errors of `read`."""


# ---------------------------------------------------------------- trace names


class TraceNames:
    """The distinct names of a trace, numbered in order of first use.

    Args:
        texts: the file's own string table, for names that it refers to by id.
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts
        self._indexes: dict[str, int] = {}

    def index_of(self, name: str) -> int:
        """Return the index of a name, which is added if it is new."""
        return self._indexes.setdefault(name, len(self._indexes))

    def of_codes(self, column: Factorization) -> Indexes:
        """Return name indexes for a column of string ids; NONE where the file has no string of that id."""
        found = [self._texts.get(key) for key in column.keys.tolist()]
        table = np.array([*(NULL_INDEX if text is None else self.index_of(text) for text in found), NULL_INDEX], dtype=np.int32)
        return table[column.codes]

    def of_texts(self, column: TextColumn) -> Indexes:
        """Return name indexes for a text column; NONE for null."""
        table = np.array([*(self.index_of(text) for text in column.texts), NULL_INDEX], dtype=np.int32)
        return table[column.codes]  # the code of null, -1, indexes the last entry

    def frame(self) -> pl.DataFrame:
        """Return the rows of table trace_names."""
        names = list(self._indexes)
        return pl.DataFrame({"name_index": pl.Series(range(len(names)), dtype=INDEX), "name": pl.Series(names, dtype=TEXT)})


# ---------------------------------------------------------------- imported text
# Text from foreign files is limited in length and stripped of control characters that would steer a terminal.

MAX_TITLE_LENGTH: Final = 255
MAX_NOTES_LENGTH: Final = 20_000
MAX_TAG_COUNT: Final = 64
"""Lists carry title, notes and tags of a hundred runs in one message of at most 64 MiB: with longer ones no run could be listed
any more."""

MAX_CELL_LENGTH: Final = 1_000_000
"""Characters of a table cell. A row must fit one message; NVBench's longest lines, the command and its axes, have thousands."""

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and line feed. An escape sequence in a title would clear the terminal that lists it, or worse."""


def limit_texts(tables: ReadResult, file_name: str) -> ReadResult:
    """Return the tables with title, notes and tags cut to lengths that lists can carry.

    Raises:
        InvalidTraceError: a cell is longer than MAX_CELL_LENGTH.
    """
    _check_cell_lengths(tables.frames, file_name)
    return replace(
        tables,
        title=shorten_text(tables.title, MAX_TITLE_LENGTH),
        notes=shorten_text(tables.notes, MAX_NOTES_LENGTH),
        tags=tuple(shorten_text(tag, MAX_TITLE_LENGTH) for tag in tables.tags[:MAX_TAG_COUNT]),
    )


def shorten_text(text: str, max_length: int) -> str:
    """Return the text with control characters replaced, cut with an ellipsis if it is longer."""
    printable = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    return printable if len(printable) <= max_length else f"{printable[: max_length - 1]}…"


def _check_cell_lengths(frames: Mapping[str, pl.DataFrame], file_name: str) -> None:
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
