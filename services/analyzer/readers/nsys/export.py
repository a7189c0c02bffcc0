"""The tables of an nsys export: access to them, its environment, processes and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs
from polars.exceptions import PanicException, PolarsError

from kernalyse.services.analyzer.numeric.correlation import (
    NULL_INDEX,
    Factorization,
    Indexes,
    Integers,
    factorize,
    range_order,
    start_order,
)
from kernalyse.services.analyzer.readers.base import TextColumn
from kernalyse.services.analyzer.readers.nsys.sqlite_file import RequestedColumns, TableColumns
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import NULL_INTEGER
from kernalyse.services.core.errors import InvalidTraceError

# ---------------------------------------------------------------- exported tables


class ExportedTables(Protocol):
    """The tables of an export, in whatever format. Any table and any column may be missing."""

    @property
    def name(self) -> str:
        """Name of the file or directory, for messages."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables, in no particular order."""

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Return the columns of a table; none if there is no such table."""

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """Return all rows of a small table; none if there is no such table. Raises InvalidTraceError if it is damaged."""

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """Return columns of a table, all of which must exist.

        Args:
            table_name: the table.
            integers: integer columns.
            texts: text columns.
            codes: integer columns with few distinct values, which are returned factorized.

        Raises:
            InvalidTraceError: the table is damaged.
        """


# ---------------------------------------------------------------- table directory
# A directory with one file per table, Parquet or Arrow.

PARQUET: Final = b"PAR1"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
ARROW_FILE: Final = b"ARROW1\0\0"
LONGEST_SIGN: Final = max(map(len, (PARQUET, ARROW_STREAM, ARROW_FILE)))

NO_TEXT: Final = -1


def is_table(head: bytes) -> bool:
    """Return whether a file with this beginning holds one table."""
    return head.startswith((PARQUET, ARROW_STREAM, ARROW_FILE))


@dataclass(frozen=True, slots=True)
class TableDirectory:
    """A directory of table files. paths: the file of each table, by table name."""

    name: str
    paths: Mapping[str, Path]

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.paths)

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Return the columns of a table; none if there is no such table. Raises InvalidTraceError if it is damaged."""
        if table_name not in self.paths:
            return ()
        with self._reading(table_name):
            return _column_names(self.paths[table_name])

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """Return all rows of a small table; none if there is no such table. Raises InvalidTraceError if it is damaged."""
        if table_name not in self.paths:
            return []
        with self._reading(table_name):
            return _frame(self.paths[table_name], None).rows(named=True)

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """Return columns of a table, all of which must exist, with rows in the order of the file.

        See ExportedTables.columns. Raises InvalidTraceError if the table is damaged.
        """
        with self._reading(table_name):
            frame = _frame(self.paths[table_name], [*integers, *texts, *codes])
            numbers = {name: _integers(frame[name]) for name in (*integers, *codes)}
            return TableColumns(
                frame.height,
                {name: numbers[name][0] for name in integers},
                {name: _texts(frame[name]) for name in texts},
                sum(refused_count for _values, refused_count in numbers.values()),
                {name: factorize(numbers[name][0])[0] for name in codes},
            )

    @contextmanager
    def _reading(self, table_name: str) -> Iterator[None]:
        try:
            yield
        except (PolarsError, PanicException, OSError) as error:
            raise InvalidTraceError(
                f"directory {self.name}, table {table_name}",
                found=str(error).split("\n", 1)[0],
                expected="a complete Parquet or Arrow file",
                remedy="Copy or export it again.",
            ) from error


def _sign(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LONGEST_SIGN)


def _column_names(path: Path) -> tuple[str, ...]:
    sign = _sign(path)
    if sign.startswith(PARQUET):
        return tuple(pl.read_parquet_schema(path))
    if sign.startswith(ARROW_FILE):
        return tuple(pl.read_ipc_schema(path))
    return tuple(pl.read_ipc_stream(path, n_rows=0).columns)


def _frame(path: Path, names: Sequence[str] | None) -> pl.DataFrame:
    """Return columns of a file, integers as signed 64 bits as in SQLite: ids use the uppermost bit. names: None for all columns."""
    columns = None if names is None else list(names)
    sign = _sign(path)
    if sign.startswith(PARQUET):
        frame = pl.read_parquet(path, columns=columns)
    elif sign.startswith(ARROW_FILE):
        frame = pl.read_ipc(path, columns=columns)
    else:
        frame = pl.read_ipc_stream(path, columns=columns)
    return frame.with_columns(
        cs.unsigned_integer().cast(pl.Int64, wrap_numerical=True), cs.signed_integer().cast(pl.Int64), cs.categorical().cast(pl.String)
    )


def _integers(column: pl.Series) -> tuple[Integers, int]:
    """Return the values with NULL_INTEGER for null, and the number of non-integers, which become null too."""
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    if column.dtype != pl.Int64:
        return np.full(len(column), NULL_INTEGER, dtype=np.int64), len(column) - column.null_count()
    return column.fill_null(NULL_INTEGER).to_numpy().copy(), 0


def _texts(column: pl.Series) -> TextColumn:
    texts = column.cast(pl.String, strict=False)
    different = texts.drop_nulls().unique(maintain_order=True)
    codes = texts.cast(pl.Enum(different)).to_physical().cast(pl.Int32).fill_null(NO_TEXT)
    return TextColumn(codes.to_numpy().copy(), different.to_list())


# ---------------------------------------------------------------- events

COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"


@dataclass(slots=True, eq=False)
class Events:
    """The rows of one table of events. A column that the file lacks is null throughout.

    Args:
        factorized: factorized columns of few distinct values.
        order: index in the file of each row, once the rows were sorted; None: they were not.
    """

    row_count: int
    integers: dict[str, Integers]
    texts: Mapping[str, TextColumn]
    factorized: dict[str, Factorization] = field(default_factory=dict)
    process: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # code of each row's process
    thread: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # code of each row's thread, if the table has one
    order: npt.NDArray[np.int64] | None = None
    untimed_count: int = 0  # skipped rows without a start or an end
    refused_count: int = 0  # values that are no integers
    missing: tuple[str, ...] = ()
    _absent: dict[str, Integers] = field(default_factory=dict)

    @classmethod
    def read(cls, file: ExportedTables, wanted: RequestedColumns) -> Self:
        """Read all rows in the order of the file; none if there is no such table.

        Raises InvalidTraceError if the table is damaged.
        """
        present = wanted.present(file.column_names(wanted.table_name))
        missing = tuple(
            name
            for names, found in ((wanted.integers, present.integers), (wanted.codes, present.codes), (wanted.texts, present.texts))
            for name in names
            if name not in found
        )
        found = (
            file.columns(wanted.table_name, present.integers, present.texts, present.codes)
            if present.integers or present.codes
            else TableColumns(0, {}, {})
        )
        return cls(
            found.row_count,
            dict(found.integers),
            found.texts,
            dict(found.factorized),
            refused_count=found.refused_count,
            missing=missing,
        )

    @classmethod
    def none(cls) -> Self:
        """Return no events."""
        return cls(0, {}, {})

    def column(self, name: str) -> Integers:
        """Return an integer column; NULL_INTEGER for null."""
        if name in self.integers:
            return self.integers[name]
        if name in self.factorized:
            return self.factorized[name].values
        if name not in self._absent:
            self._absent[name] = np.full(self.row_count, NULL_INTEGER, dtype=np.int64)
        return self._absent[name]

    def codes(self, name: str) -> Factorization:
        """Return an integer column factorized; its keys are exactly those of the rows."""
        return self.factorized[name] if name in self.factorized else factorize(self.column(name))[0]

    def text(self, name: str) -> TextColumn:
        """Return a text column."""
        return self.texts[name] if name in self.texts else TextColumn(np.full(self.row_count, -1, dtype=np.int32), ())

    def release(self, *names: str) -> None:
        """Release the memory of columns that are not needed any more."""
        for name in names:
            self.integers.pop(name, None)

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Self:
        """Return the rows that the mask selects. This object loses its columns unless all are selected."""
        if bool(is_kept.all()):
            return self
        found = self._at(np.flatnonzero(is_kept))
        found.factorized = {name: column.used() for name, column in found.factorized.items()}
        return found

    def timed(self, *, may_be_open: bool = False) -> Self:
        """Return the rows that have a start and, unless they may be open, an end. This object may lose its columns."""
        is_timed = self.column("start") != NULL_INTEGER
        if not may_be_open:
            is_timed &= self.column("end") != NULL_INTEGER
        found = self.where(is_timed)
        found.untimed_count = self.row_count - found.row_count
        return found

    def by_start(self) -> Self:
        """Return the rows in order of start, stable. This object may lose its columns."""
        return self._ordered(start_order(self.column("start")))

    def by_range(self, end_ns: Integers) -> Self:
        """Return the rows in order of start, of equal starts the later end first. This object may lose its columns."""
        return self._ordered(range_order(self.column("start"), end_ns))

    def to_rows(self, file_rows: Indexes) -> Indexes:
        """Return rows of the file as rows of this object. NONE stays NONE."""
        if self.order is None:
            return file_rows
        rows = np.empty(self.row_count + 1, dtype=np.int32)
        rows[self.order] = np.arange(self.row_count, dtype=np.int32)
        rows[-1] = NULL_INDEX
        found: Indexes = rows[file_rows]
        return found

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the concatenated rows of all parts, with their integer columns only."""
        names = dict.fromkeys(name for part in parts for name in (*part.integers, *part.factorized))
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
        for name in list(self.integers):  # one at a time, so that not all columns are in memory twice
            integers[name] = self.integers.pop(name)[rows]
        texts = {name: TextColumn(column.codes[rows], column.texts) for name, column in self.texts.items()}
        of_codes = {}
        for name in list(self.factorized):
            column = self.factorized.pop(name)
            of_codes[name] = Factorization(column.codes[rows], column.keys)
        process, thread = (codes[rows] if codes.size else codes for codes in (self.process, self.thread))
        return type(self)(rows.size, integers, texts, of_codes, process, thread, None, self.untimed_count, self.refused_count, self.missing)


# ---------------------------------------------------------------- environment
# Metadata of an export: its version, session, processes and devices.

KNOWN_SCHEMA: Final = (3, 30)
"""Newest schema that this reader was written for: https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html (2026.5)."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of the machine. None: not stated."""

    device_name: str | None
    compute_capability: str | None
    sm_count: int | None
    clock_hz: int | None
    memory_bandwidth_bytes_per_s: int | None
    memory_bytes: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """The metadata of an export.

    process_names: by process key. device_gpus: by process id (None: all processes) and the device's number in that process.
    """

    session_start_unix_ns: int | None
    first_ns: int | None  # of the recording, since the session's start
    last_ns: int | None
    host_name: str | None
    process_names: Mapping[int, str]
    device_gpus: Mapping[tuple[int | None, int], Gpu]
    notes: tuple[str, ...]

    def gpu(self, process_id: int, device_index: int) -> Gpu | None:
        """Return the device with this number in a process; None if it is not described."""
        return self.device_gpus.get((process_id, device_index)) or self.device_gpus.get((None, device_index))


def read_environment(file: ExportedTables) -> Environment:
    """Read the metadata of an export; any table of it may be missing."""
    session = next(iter(file.rows("TARGET_INFO_SESSION_START_TIME")), {})
    details = next(iter(file.rows("ANALYSIS_DETAILS")), {})
    system = {row.get("name"): row.get("value") for row in file.rows("TARGET_INFO_SYSTEM_ENV")}
    return Environment(
        session_start_unix_ns=_whole(session.get("utcEpochNs")),
        first_ns=_whole(details.get("startTime")),
        last_ns=_whole(details.get("stopTime")),
        host_name=_text(system.get("Hostname")),
        process_names={
            row["globalPid"] >> PROCESS_SHIFT: str(row["name"])
            for row in file.rows("PROCESSES")
            if _whole(row.get("globalPid")) is not None and row.get("name")
        },
        device_gpus=_device_gpus(file),
        notes=tuple(_version_notes(file)),
    )


def _version_notes(file: ExportedTables) -> list[str]:
    stated = {row.get("name"): row.get("value") for name in ("META_DATA_EXPORT", "EXPORT_META_DATA") for row in file.rows(name)}
    product, schema = _text(stated.get("EXPORT_PRODUCT_VERSION")), _text(stated.get("EXPORT_SCHEMA_VERSION"))
    if schema is None:
        return ["Nsight Systems; the file does not say which version wrote it."]
    notes = [f"Nsight Systems {product or 'of unknown version'}, schema {schema}."]
    numbers = tuple(int(part) for part in schema.split(".")[:2] if part.isdecimal())
    if numbers > KNOWN_SCHEMA:
        known = ".".join(map(str, KNOWN_SCHEMA))
        notes.append(f"Schema {schema} is newer than {known}, the newest known here: only known tables and columns are read.")
    return notes


def _device_gpus(file: ExportedTables) -> dict[tuple[int | None, int], Gpu]:
    rows = {row["id"]: row for row in file.rows("TARGET_INFO_GPU") if _whole(row.get("id")) is not None}
    gpus = {number: _gpu(row) for number, row in rows.items()}
    found: dict[tuple[int | None, int], Gpu] = {}
    for number, row in rows.items():  # without the table below, devices have the numbers that the driver gives them
        found[None, number if row.get("cuDevice") is None else row["cuDevice"]] = gpus[number]
    for row in file.rows("TARGET_INFO_CUDA_DEVICE"):  # CUDA_VISIBLE_DEVICES makes them differ by process
        if row.get("gpuId") in gpus and _whole(row.get("cudaId")) is not None:
            found[_whole(row.get("pid")), row["cudaId"]] = gpus[row["gpuId"]]
    return found


def _gpu(row: Row) -> Gpu:
    major, minor = _whole(row.get("computeMajor")), _whole(row.get("computeMinor"))
    return Gpu(
        device_name=_text(row.get("name")),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=_whole(row.get("smCount")),
        clock_hz=_whole(row.get("clockRate")),
        memory_bandwidth_bytes_per_s=_whole(row.get("memoryBandwidth")),
        memory_bytes=_whole(row.get("totalMemory")),
        uuid=_text(row.get("uuid")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# ---------------------------------------------------------------- processes


@dataclass(slots=True)
class Processes:
    """The processes and threads of an export, numbered in order of first use. NULL_INTEGER: not stated.

    named_keys: keys of the processes that the file names, with or without events.
    """

    named_keys: Collection[int]
    _codes: dict[int, int] = field(default_factory=dict)
    _threads: dict[int, int] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[int, ...]:
        """The key of each process, see `process_keys`."""
        return tuple(self._codes)

    @property
    def ids(self) -> Integers:
        """The system's process id of each process, or its key if two machines of a recording have processes of the same id."""
        counts = Counter(process_id(key) for key in {*self._codes, *self.named_keys} if key != NULL_INTEGER)
        ids = [key if key == NULL_INTEGER or counts[process_id(key)] > 1 else process_id(key) for key in self._codes]
        return np.array(ids, dtype=np.int64)

    def code_device_events(self, *parts: Events) -> None:
        """Set the process codes of device events."""
        for part in parts:
            found = part.codes("globalPid")
            part.process = self._coded(found)

    def code_host_events(self, *parts: Events) -> None:
        """Set the process and thread codes of host events."""
        for part in parts:
            found = part.codes("globalTid")
            part.thread = _translated(found.codes, [self._threads.setdefault(key, len(self._threads)) for key in found.keys.tolist()])
            part.process = self._coded(found)

    def _coded(self, found: Factorization) -> Indexes:
        keys = (key if key == NULL_INTEGER else key >> PROCESS_SHIFT for key in found.keys.tolist())
        return _translated(found.codes, [self._codes.setdefault(key, len(self._codes)) for key in keys])


def _translated(codes: Indexes, table: list[int]) -> Indexes:
    """Return table[code] for each code, without a copy if that changes nothing."""
    return codes if all(new == code for code, new in enumerate(table)) else np.array(table, dtype=np.int32)[codes]


# ---------------------------------------------------------------- ids and columns
# How Nsight Systems packs ids, and the conversion of arrays to columns of frames.

PROCESS_SHIFT: Final = 24
ID_MASK: Final = 0xFFFFFF
"""globalTid: hardware (8 bits), virtual machine (8), process (24), thread (24); globalPid is the same with thread 0."""


def process_keys(global_ids: Integers) -> Integers:
    """Return the key of each process, machine and process id, from globalPid or globalTid."""
    keys: Integers = global_ids >> PROCESS_SHIFT
    keys[global_ids == NULL_INTEGER] = NULL_INTEGER
    return keys


def process_id(process_key: int) -> int:
    """Return the system's process id of a key."""
    return process_key & ID_MASK


def numbers(values: Integers) -> pl.Series:
    """Return integers as a column, NULL_INTEGER as null."""
    return _nulled(pl.Series(values), values == NULL_INTEGER)


def indexes(values: Indexes) -> pl.Series:
    """Return indexes as a column, NONE as null."""
    return _nulled(pl.Series(values, dtype=pl.Int32), values == NULL_INDEX)


def small_numbers(values: Integers) -> pl.Series:
    """Return integers as a column of 32 bits; values that do not fit become null."""
    return numbers(values).cast(pl.Int32, strict=False)


def _nulled(series: pl.Series, is_null: npt.NDArray[np.bool_]) -> pl.Series:
    return series.set(pl.Series(is_null), None) if bool(is_null.any()) else series


def durations(start_ns: Integers, end_ns: Integers) -> Integers:
    """Return end minus start; NULL_INTEGER where one of them is."""
    found = end_ns - start_ns
    unknown = (start_ns == NULL_INTEGER) | (end_ns == NULL_INTEGER)
    if bool(unknown.any()):
        found[unknown] = NULL_INTEGER
    return found


def taken(values: Integers, indexes: Indexes) -> Integers:
    """Return the values at these indexes; NULL_INTEGER where the index is NONE."""
    if values.size == 0:
        return np.full(indexes.size, NULL_INTEGER, dtype=np.int64)
    found = values[indexes]  # NONE, -1, indexes the last value
    found[indexes == NULL_INDEX] = NULL_INTEGER
    return found
