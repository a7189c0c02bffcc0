"""Tables of an nsys export: environment, processes, events."""

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

from kernalyse.services.analyzer.numeric.correlation import NONE, Coded, Indexes, Integers, coded, range_order, start_order
from kernalyse.services.analyzer.readers.base import TextColumn
from kernalyse.services.analyzer.readers.nsys.sqlite_file import TableColumns, WantedColumns
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import NULL_INTEGER
from kernalyse.services.core.errors import InvalidTraceError

# ---------------------------------------------------------------- exported tables
# What the tables of an export can be asked, whatever they are stored as.


class ExportedTables(Protocol):
    """Tables by name, any of which and any of whose columns may be missing."""

    @property
    def name(self) -> str:
        """Of the file or the folder, for people."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """In no certain order."""

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Of the table; none when there is no such table."""

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """All of a small table; none when there is no such table. Raises InvalidTraceError when it is damaged."""

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such. Raises InvalidTraceError when the table is damaged.

        Args:
            codes: integers of few values.
        """


# ---------------------------------------------------------------- table folder
# A folder of tables as columns: one file for each table, Parquet or Arrow.

PARQUET: Final = b"PAR1"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
ARROW_FILE: Final = b"ARROW1\0\0"
LONGEST_SIGN: Final = max(map(len, (PARQUET, ARROW_STREAM, ARROW_FILE)))

NO_TEXT: Final = -1


def is_table(head: bytes) -> bool:
    """Whether a file that begins so holds one table."""
    return head.startswith((PARQUET, ARROW_STREAM, ARROW_FILE))


@dataclass(frozen=True, slots=True)
class TableFolder:
    """paths: of the files, by the name of the table that each holds."""

    name: str
    paths: Mapping[str, Path]

    @property
    def table_names(self) -> tuple[str, ...]:
        return tuple(self.paths)

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Of the table; none when there is no such table. Raises InvalidTraceError when it is damaged."""
        if table_name not in self.paths:
            return ()
        with self._reading(table_name):
            return _column_names(self.paths[table_name])

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """All of a small table; none when there is no such table. Raises InvalidTraceError when it is damaged."""
        if table_name not in self.paths:
            return []
        with self._reading(table_name):
            return _frame(self.paths[table_name], None).rows(named=True)

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such, in the order of the file.

        Raises InvalidTraceError when the table is damaged.
        """
        with self._reading(table_name):
            frame = _frame(self.paths[table_name], [*integers, *texts, *codes])
            numbers = {name: _integers(frame[name]) for name in (*integers, *codes)}
            return TableColumns(
                frame.height,
                {name: numbers[name][0] for name in integers},
                {name: _texts(frame[name]) for name in texts},
                sum(refused_count for _values, refused_count in numbers.values()),
                {name: coded(numbers[name][0])[0] for name in codes},
            )

    @contextmanager
    def _reading(self, table_name: str) -> Iterator[None]:
        try:
            yield
        except (PolarsError, PanicException, OSError) as error:
            raise InvalidTraceError(
                f"folder {self.name}, table {table_name}",
                found=str(error).split("\n", 1)[0],
                expected="a Parquet or Arrow file that is whole",
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
    """With whole numbers in 64 bits with a sign, as SQLite has them: ids use the uppermost bit. names: None for all columns."""
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
    """The values, NULL_INTEGER for null, and how many are no whole numbers, which are taken for null too."""
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


# ---------------------------------------------------------------- nsys events
# Tables of events as Nsight Systems exports them: what of their columns is there, in order of start.

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


# ---------------------------------------------------------------- nsys environment
# What an export of Nsight Systems says of itself: its version, its session, processes and devices.

KNOWN_SCHEMA: Final = (3, 30)
"""Newest that was read for this reader: https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html (2026.5)."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of the machine; None: not stated."""

    device_name: str | None
    compute_capability: str | None
    sm_count: int | None
    clock_hz: int | None
    memory_bandwidth_bytes_per_s: int | None
    memory_bytes: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """process_names: by process key. device_gpus: by process id, or None for all, and the number that the process gives the device."""

    session_start_unix_ns: int | None
    first_ns: int | None  # of the recording, since the session's start
    last_ns: int | None
    host_name: str | None
    process_names: Mapping[int, str]
    device_gpus: Mapping[tuple[int | None, int], Gpu]
    notes: tuple[str, ...]

    def gpu(self, process_id: int, device_index: int) -> Gpu | None:
        return self.device_gpus.get((process_id, device_index)) or self.device_gpus.get((None, device_index))


def read_environment(file: ExportedTables) -> Environment:
    """Every table of it may be missing."""
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
        notes.append(f"Schema {schema} is newer than {known}, the newest known here: what has the names known so far is read.")
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


# ---------------------------------------------------------------- nsys processes
# Processes and threads of an export of Nsight Systems: their ids, and which one each event is of.


@dataclass(slots=True)
class Processes:
    """By code, in order of first mention. NULL_INTEGER: not stated.

    named_keys: processes that the file names, with or without events.
    """

    named_keys: Collection[int]
    _codes: dict[int, int] = field(default_factory=dict)
    _threads: dict[int, int] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[int, ...]:
        """As events have them."""
        return tuple(self._codes)

    @property
    def ids(self) -> Integers:
        """The system's number, unless two machines of one recording have processes of the same."""
        counts = Counter(process_id(key) for key in {*self._codes, *self.named_keys} if key != NULL_INTEGER)
        ids = [key if key == NULL_INTEGER or counts[process_id(key)] > 1 else process_id(key) for key in self._codes]
        return np.array(ids, dtype=np.int64)

    def tell_device(self, *parts: Events) -> None:
        """Tells events the code of their process."""
        for part in parts:
            found = part.codes("globalPid")
            part.process = self._coded(found)

    def tell_host(self, *parts: Events) -> None:
        """Tells events the codes of their process and thread."""
        for part in parts:
            found = part.codes("globalTid")
            part.thread = _translated(found.codes, [self._threads.setdefault(key, len(self._threads)) for key in found.keys.tolist()])
            part.process = self._coded(found)

    def _coded(self, found: Coded) -> Indexes:
        keys = (key if key == NULL_INTEGER else key >> PROCESS_SHIFT for key in found.keys.tolist())
        return _translated(found.codes, [self._codes.setdefault(key, len(self._codes)) for key in keys])


def _translated(codes: Indexes, table: list[int]) -> Indexes:
    """table[code]; the codes themselves where that changes nothing."""
    return codes if all(place == code for code, place in enumerate(table)) else np.array(table, dtype=np.int32)[codes]


# ---------------------------------------------------------------- nsys numbers
# How Nsight Systems packs numbers, and columns of numbers as columns of frames.

PROCESS_SHIFT: Final = 24
ID_MASK: Final = 0xFFFFFF
"""globalTid: hardware (8 bits), virtual machine (8), process (24), thread (24); globalPid is the same with thread 0."""


def process_keys(global_ids: Integers) -> Integers:
    """What names a process, of globalPid or globalTid: machine and process id."""
    keys: Integers = global_ids >> PROCESS_SHIFT
    keys[global_ids == NULL_INTEGER] = NULL_INTEGER
    return keys


def process_id(process_key: int) -> int:
    return process_key & ID_MASK


def numbers(values: Integers) -> pl.Series:
    """NULL_INTEGER as null."""
    return _nulled(pl.Series(values), values == NULL_INTEGER)


def indexes(values: Indexes) -> pl.Series:
    """NONE as null."""
    return _nulled(pl.Series(values, dtype=pl.Int32), values == NONE)


def small_numbers(values: Integers) -> pl.Series:
    """Whole numbers in four bytes; what does not fit is null."""
    return numbers(values).cast(pl.Int32, strict=False)


def _nulled(series: pl.Series, is_null: npt.NDArray[np.bool_]) -> pl.Series:
    return series.set(pl.Series(is_null), None) if bool(is_null.any()) else series


def durations(start_ns: Integers, end_ns: Integers) -> Integers:
    """End less start; NULL_INTEGER where one of them is."""
    found = end_ns - start_ns
    unknown = (start_ns == NULL_INTEGER) | (end_ns == NULL_INTEGER)
    if bool(unknown.any()):
        found[unknown] = NULL_INTEGER
    return found


def taken(values: Integers, places: Indexes) -> Integers:
    """values[place]; NULL_INTEGER where the place is NONE."""
    if values.size == 0:
        return np.full(places.size, NULL_INTEGER, dtype=np.int64)
    found = values[places]  # of NONE, -1, the last
    found[places == NONE] = NULL_INTEGER
    return found
