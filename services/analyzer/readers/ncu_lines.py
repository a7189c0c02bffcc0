"""The rows of a CSV table among whatever else was printed: progress of ncu, output of the program, marks of encodings."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CELL: Final = r'"[^"]*+(?:""[^"]*+)*+"'
ROW: Final = re.compile(rf"{_CELL}(?:,{_CELL})++")
CELL: Final = re.compile(_CELL)

MAX_LINES_PER_ROW: Final = 50  # of a text with line breaks in a cell; an unclosed quote must not swallow the rest of the file
MAX_SEARCHED_LENGTH: Final = 65_536  # of a line in which a row may begin anywhere: the search takes the square of it

KEY_COLUMNS: Final = ("ID", "Kernel Name")  # every table of launches has them


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table whose header came last; is_header: it is that header."""

    line_number: int  # from 1
    cells: tuple[str, ...]
    is_header: bool = False


@dataclass(frozen=True, slots=True)
class OtherLine:
    """What is no row. is_damaged: it looks like a part of one."""

    line_number: int
    text: str
    is_damaged: bool


def decode_report(data: bytes) -> str:
    """The text, without byte-order marks; what is not its encoding becomes U+FFFD. PowerShell's redirection writes UTF-16."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace").replace("\ufeff", "")
    return data.decode("utf-8", errors="replace").replace("\ufeff", "")


def report_lines(text: str) -> Iterator[Row | OtherLine]:
    """Every line, as a row or as something else. Rows have as many cells as the header before them."""
    lines = _Lines(text)
    header: _Header | None = None
    while (line := lines.next()) is not None:
        found = _row_in(line, header, lines)
        if found is not None and _is_header(found):
            header = _Header(len(found), is_quoted='"' in line)
            yield Row(lines.number, found, is_header=True)
        elif found is not None and header is not None and len(found) == header.width:
            yield Row(lines.number, found)
        else:
            yield OtherLine(lines.number, line, is_damaged=header is not None and _looks_damaged(line, header))


@dataclass(frozen=True, slots=True)
class _Header:
    width: int
    is_quoted: bool


class _Lines:
    """The lines one by one, with a look at those to come. number: of the last one taken, from 1."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.number = 0

    def next(self) -> str | None:
        if self.number >= len(self._lines):
            return None
        self.number += 1
        return self._lines[self.number - 1]

    def ahead(self, count: int) -> list[str]:
        return self._lines[self.number : self.number + count]

    def skip(self, count: int) -> None:
        self.number += count


def _row_in(line: str, header: _Header | None, lines: _Lines) -> tuple[str, ...] | None:
    """The cells of the row in this line, the lines that a cell of it goes on in included."""
    if '"' not in line:
        return _unquoted(line) if header is None or not header.is_quoted else None
    if header is not None and not header.is_quoted:
        return _unquoted(line)
    found = ROW.match(line) or (ROW.search(line) if len(line) <= MAX_SEARCHED_LENGTH else None)
    cells = None if found is None else _cells(found[0])
    if cells is not None and (header is None or len(cells) == header.width):
        return cells
    if header is not None and line.startswith('"') and line.count('"') % 2:
        return _row_of_several_lines(line, header, lines) or cells
    return cells


def _row_of_several_lines(line: str, header: _Header, lines: _Lines) -> tuple[str, ...] | None:
    joined = line
    for count, further in enumerate(lines.ahead(MAX_LINES_PER_ROW), start=1):
        whole = ROW.match(further)
        if whole is not None and len(CELL.findall(whole[0])) == header.width:
            return None  # a row of its own: the one before it is cut short
        joined += "\n" + further
        found = ROW.fullmatch(joined.rstrip())
        if found is not None and len(cells := _cells(found[0])) == header.width:
            lines.skip(count)
            return cells
    return None


def _cells(row: str) -> tuple[str, ...]:
    return tuple(cell[1:-1].replace('""', '"') for cell in CELL.findall(row))


def _unquoted(line: str) -> tuple[str, ...] | None:
    """A line of a table that some other program has written again, without the quotes of ncu."""
    if "," not in line:
        return None
    try:
        return tuple(next(csv.reader([line]), ()))
    except csv.Error:
        return None


def _is_header(cells: tuple[str, ...]) -> bool:
    return cells[0] == KEY_COLUMNS[0] and KEY_COLUMNS[1] in cells


def _looks_damaged(line: str, header: _Header) -> bool:
    """Whether a row was lost with it: it has the beginnings of several cells."""
    return line.count('","') >= 2 if header.is_quoted else line.count(",") >= header.width // 2
