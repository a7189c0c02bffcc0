"""Tables in CSV as records of text: with a byte-order mark or without, separated by comma, semicolon, tab or bar."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from services.analyzer.readers.json_document import JsonObject
from services.analyzer.readers.trace import TraceFiles
from services.core.errors import InvalidTraceError

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
