"""Checked input from JSON and CSV documents, and names of data types."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeGuard

from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.tables.base import COUNT, FLAG, TEXT
from kernalyse.services.core.errors import InvalidTraceError

# ---------------------------------------------------------------- json document
# JSON files whose structure is checked while they are read: what is missing or of another kind is refused by its place.

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
MAX_JSON_BYTES: Final = 256 * 1024 * 1024
"""A document is held as Python objects while it is read, about ten times its size: more could end the whole service."""

KINDS: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
SHOWN_LENGTH: Final = 60
SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character, or one of both halves."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object of a document and its place there, for errors: "benchmark saxpy, state 3".

    remedy: what errors advise about a field that is missing or does not fit, where that is known better than here.
    """

    place: str
    members: dict[str, Any]
    remedy: str = ""

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise InvalidTraceError about one member; one that is not there is told as missing."""
        if name in self.members:
            found, remedy = shown(self.members[name]), self.remedy or "The file is damaged or of another format: write it again."
        else:
            found, remedy = "nothing", f"The field {name} is missing. {self.remedy or 'Add it, or write the file again.'}"
        raise InvalidTraceError(f"{self.place}: {name}", found=found, expected=expected, remedy=remedy)

    def text(self, name: str) -> str:
        """Return a text member. Raises InvalidTraceError: it is missing or no text."""
        value = self.members.get(name)
        return value if isinstance(value, str) else self.refuse(name, KINDS[str])

    def optional_text(self, name: str) -> str | None:
        """Return a text member; None where it is missing."""
        return None if self.members.get(name) is None else self.text(name)

    def count(self, name: str) -> int:
        """A whole number that columns can hold."""
        value = self.members.get(name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_count(value) else self.refuse(name, f"{KINDS[int]} of 64 bits" if is_whole else KINDS[int])

    def optional_count(self, name: str) -> int | None:
        """Return an integer member of 64 bits; None where it is missing."""
        return None if self.members.get(name) is None else self.count(name)

    def optional_number(self, name: str) -> float | None:
        """Any finite number; its unit is the caller's to know."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            self.refuse(name, KINDS[float])
        return float(value)

    def optional_flag(self, name: str) -> bool | None:
        """Return a member that is true or false; None where it is missing."""
        value = self.members.get(name)
        return value if value is None or isinstance(value, bool) else self.refuse(name, KINDS[bool])

    def object(self, name: str) -> JsonObject:
        """Return a member that is an object. Raises InvalidTraceError."""
        value = self.members.get(name)
        return JsonObject(f"{self.place}: {name}", value) if isinstance(value, dict) else self.refuse(name, KINDS[dict])

    def optional_object(self, name: str) -> JsonObject:
        """One without members where there is none."""
        return JsonObject(f"{self.place}: {name}", {}) if self.members.get(name) is None else self.object(name)

    def objects(self, name: str) -> list[JsonObject]:
        """A list of objects."""
        return [
            JsonObject(f"{self.place}: {name}[{index}]", item) if isinstance(item, dict) else self.refuse(name, "a list of objects")
            for index, item in enumerate(self.values(name))
        ]

    def optional_objects(self, name: str) -> list[JsonObject]:
        """Return a list of objects; empty where the member is missing."""
        return [] if self.members.get(name) is None else self.objects(name)

    def values(self, name: str) -> list[Any]:
        """A list of whatever."""
        value = self.members.get(name)
        return value if isinstance(value, list) else self.refuse(name, KINDS[list])


def read_document(files: TraceFiles) -> JsonObject:
    """The whole file as one object.

    Raises:
        InvalidTraceError: as `_read_json`, or not an object.
    """
    subject = f"file {files.file_name}"
    value = _read_json(files, subject)
    if not isinstance(value, dict):
        raise InvalidTraceError(subject, found=KINDS[type(value)], expected=KINDS[dict])
    return JsonObject(subject, value)


def read_list(files: TraceFiles) -> list[Any]:
    """The whole file as a list. Raises InvalidTraceError as `_read_json`, or not a list."""
    subject = f"file {files.file_name}"
    value = _read_json(files, subject)
    if not isinstance(value, list):
        raise InvalidTraceError(subject, found=KINDS[type(value)], expected=KINDS[list])
    return value


def read_objects(files: TraceFiles) -> list[JsonObject]:
    """The whole file as a list of objects, with their places from 0.

    Raises:
        InvalidTraceError: as `_read_json`, or not a list of objects.
    """
    subject = f"file {files.file_name}"
    value = read_list(files)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidTraceError(f"{subject}, item {index}", found=shown(item), expected=KINDS[dict])
    return [JsonObject(f"{subject}, item {index}", item) for index, item in enumerate(value)]


def _read_json(files: TraceFiles, subject: str) -> Any:
    """NaN and Infinity, which JSON has not but some writers write, are read as null.

    Half of a character (a lone surrogate), which JSON can hold and tables cannot, becomes a replacement character.

    Raises:
        InvalidTraceError: too large, no UTF-8, no JSON, or broken off.
    """
    size_bytes = files.path.stat().st_size
    if size_bytes > MAX_JSON_BYTES:
        raise InvalidTraceError(
            subject, found=f"{size_bytes} bytes of JSON", expected=f"at most {MAX_JSON_BYTES}", remedy="Export fewer configurations a file."
        )
    try:
        data = files.path.read_bytes()
        value = json.loads(data, parse_constant=lambda _: None)
        if SURROGATE.search(data) is not None:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidTraceError(
            subject, found=f"JSON that cannot be read: {error}", expected="a whole JSON document", remedy="Write or copy the file again."
        ) from error


def fits(value: object, dtype: object) -> bool:
    """Whether a column of that type can hold a value of a document as it is; null is no value."""
    if dtype is TEXT:
        return isinstance(value, str)
    if dtype is FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return is_count(value) if dtype is COUNT else isinstance(value, int | float) and abs(value) <= sys.float_info.max


def is_count(value: object) -> TypeGuard[int]:
    """A whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and MIN_INT64 <= value <= MAX_INT64


def shown(value: object) -> str:
    """A value as errors show it."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


# ---------------------------------------------------------------- csv records
# Tables in CSV as records of text: with a byte-order mark or without, separated by comma, semicolon, tab or bar.

MAX_CSV_BYTES: Final = 256 * 1024 * 1024
"""Held whole while it is read, as Python objects: more could end the service."""

SEPARATORS: Final = (",", ";", "\t", "|")
BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True, slots=True)
class CsvTable:
    """header: as the file writes its columns. records: by column, empty cells as None; their places name the line."""

    header: tuple[str, ...]
    separator: str
    records: list[JsonObject]


def header_of(text: str) -> tuple[tuple[str, ...], str]:
    """Columns and separator of a text that begins with a header: the separator that makes the most columns of it."""
    lines = (line for line in text.removeprefix(BYTE_ORDER_MARK).splitlines() if line.strip())
    first = next(lines, "")
    cells = {separator: _cells(first, separator) for separator in SEPARATORS}
    separator = max(SEPARATORS, key=lambda candidate: len(cells[candidate]))
    return tuple(cell.strip() for cell in cells[separator]), separator


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:  # a field over the limit of the module, a NUL byte: no header
        return []


def read_csv(files: TraceFiles) -> CsvTable:
    """The whole file. Lines without any cell are passed over.

    Raises:
        InvalidTraceError: too large, no UTF-8, a column without a name or with that of another, a line with more cells or
            fewer than the header, a quote that never ends; names the line.
    """
    subject = f"file {files.file_name}"
    size_bytes = files.path.stat().st_size
    if size_bytes > MAX_CSV_BYTES:
        raise InvalidTraceError(
            subject, found=f"{size_bytes} bytes of CSV", expected=f"at most {MAX_CSV_BYTES}", remedy="Write fewer rows a file."
        )
    text = _decoded(files.path.read_bytes(), subject)
    header, separator = header_of(text)
    _check_header(header, subject)
    reader = csv.reader(io.StringIO(text.removeprefix(BYTE_ORDER_MARK), newline=""), delimiter=separator, strict=True)
    return CsvTable(header, separator, list(_records(reader, header, subject)))


def _decoded(data: bytes, subject: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidTraceError(
            f"{subject}, line {line}",
            found=f"byte {data[error.start]:#04x}, which is no UTF-8",
            expected="text in UTF-8",
            remedy="Save it as UTF-8.",
        ) from error


def _check_header(header: tuple[str, ...], subject: str) -> None:
    for index, name in enumerate(header):
        if not name or name in header[:index]:
            raise InvalidTraceError(
                f"{subject}, line 1, column {index + 1}",
                found=f"a second column {name!r}" if name else "a column without a name",
                expected="a name of its own for each column",
                remedy="Correct the header.",
            )


def _records(reader: Iterator[list[str]], header: tuple[str, ...], subject: str) -> Iterator[JsonObject]:
    is_header = True
    first_line = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InvalidTraceError(
                f"{subject}, line {first_line}", found=str(error), expected="cells as CSV quotes them", remedy="Correct that line."
            ) from error
        if cells is None:
            return
        place, first_line = f"{subject}, line {first_line}", reader.line_num + 1  # type: ignore[attr-defined]
        if not any(cell.strip() for cell in cells):
            continue
        if is_header:
            is_header = False
            continue
        if len(cells) != len(header):
            raise InvalidTraceError(
                place,
                found=f"{len(cells)} cells",
                expected=f"{len(header)}, one for each column of the header ({', '.join(header)})",
                remedy="Quote cells that contain the separator, or correct that line.",
            )
        yield JsonObject(place, {name: cell.strip() or None for name, cell in zip(header, cells, strict=True)})


# ---------------------------------------------------------------- dtypes
# Data types by the names that other tools give them.


@dataclass(frozen=True, slots=True)
class Dtype:
    """name: as tables have it. element_bytes: of one number; two of four bits share a byte."""

    name: str
    element_bytes: float


KNOWN: Final = (
    (Dtype("float64", 8), ("fp64", "f64", "double")),
    (Dtype("float32", 4), ("fp32", "f32", "float")),
    (Dtype("tfloat32", 4), ("tf32",)),
    (Dtype("float16", 2), ("fp16", "f16", "half")),
    (Dtype("bfloat16", 2), ("bf16",)),
    (Dtype("float8", 1), ("fp8", "f8", "e4m3", "e5m2")),
    (Dtype("float4", 0.5), ("fp4", "f4", "e2m1")),
    (Dtype("int4", 0.5), ("i4", "s4")),
    (Dtype("uint4", 0.5), ("u4",)),
    (Dtype("int8", 1), ("i8", "s8")),
    (Dtype("uint8", 1), ("u8",)),
    (Dtype("int16", 2), ("i16", "s16")),
    (Dtype("uint16", 2), ("u16",)),
    (Dtype("int32", 4), ("i32", "s32")),
    (Dtype("uint32", 4), ("u32",)),
    (Dtype("int64", 8), ("i64", "s64")),
    (Dtype("uint64", 8), ("u64",)),
)
DTYPE_NAMES: Final = tuple(dtype.name for dtype, _ in KNOWN)
BY_NAME: Final = {name: dtype for dtype, others in KNOWN for name in (dtype.name, *others)}


def dtype_of(text: str | None) -> Dtype | None:
    """Return the data type of a name; "FP16", "half" and "torch.float16" are one. None: not known."""
    return None if text is None else BY_NAME.get(text.strip().lower().removeprefix("torch."))
