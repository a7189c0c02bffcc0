"""The parser of Nsight Compute's CSV reports: pages raw and details, lines among other output, numbers of any locale."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import polars as pl

from kernalyse.services.core.errors import InvalidRequestError

# ---------------------------------------------------------------- reports
# Reports as `ncu --csv` prints them, pages raw and details.
#
# Page raw has a row per launch, a column per metric and a second line with units. Page details has a row per launch and metric, with a
# column for the unit. Both come among progress lines of ncu and output of the profiled program. Unknown columns become metrics under
# their own names.

METRIC_COLUMNS: Final = ("Metric Name", "Metric Value")  # of page details; page raw has neither
MAX_NOTE_COUNT: Final = 20  # single damaged lines are worth a note each; of a thousand, the count is enough
MAX_QUOTED_LENGTH: Final = 120
MAX_NAMED_IDS: Final = 5

LAUNCH_COLUMNS: Final = {
    "Process ID": "process_id",
    "Process Name": "process_name",
    "Host Name": "host_name",
    "Kernel Name": "kernel_name",
    "Kernel Time": "kernel_time",
    "Context": "context_id",
    "Stream": "stream_id",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device_index",
    "CC": "compute_capability",
}
"""Columns that describe a launch, and the columns of `NcuReport.launches` that they become."""

LAUNCH_SCHEMA: Final = {"launch_index": pl.Int64, **dict.fromkeys(LAUNCH_COLUMNS.values(), pl.String)}
COUNTER_SCHEMA: Final = {
    "launch_index": pl.Int64,
    "section_name": pl.String,
    "metric_name": pl.String,
    "unit": pl.String,
    "value": pl.Float64,
    "text": pl.String,
}


@dataclass(frozen=True, slots=True)
class NcuReport:
    """A parsed report.

    launches: one row per profiled launch in the report's order, LAUNCH_SCHEMA; null where the report states nothing.
    counters: one row per launch and metric in the report's order, COUNTER_SCHEMA, with ncu's own units and values.
    notes: lines that could not be parsed and warnings of ncu, one sentence each.
    """

    launches: pl.DataFrame
    counters: pl.DataFrame
    notes: tuple[str, ...]


def read_ncu_report(data: bytes) -> NcuReport:
    """Read the output of `ncu --csv`, whatever else was printed along with it.

    Raises:
        InvalidRequestError: it has no table of launches.
    """
    draft = _Draft()
    for line in report_lines(decode_report(data)):
        draft.take(line)
    if draft.table is None:
        raise InvalidRequestError(
            "report of ncu",
            found=f"no table of launches; it begins {_quoted(decode_report(data[:400]).strip())}",
            expected='a line that begins "ID","Process ID" and has a column "Kernel Name"',
            remedy="Write it with: ncu --csv --page raw. A .ncu-rep file becomes one with: ncu --import FILE --csv --page raw.",
        )
    return draft.report()


@dataclass(slots=True)
class _Table:
    """A table of the report. position: index of each column by name, the first of several with one name."""

    number: int
    header: tuple[str, ...]
    units: tuple[str, ...]
    position: dict[str, int]

    @classmethod
    def with_header(cls, number: int, header: tuple[str, ...]) -> _Table:
        """Return an empty table with this header line."""
        position: dict[str, int] = {}
        for index, name in enumerate(header):
            position.setdefault(name, index)
        return cls(number, header, ("",) * len(header), position)

    @property
    def is_details(self) -> bool:
        """Whether it is a table of page details."""
        return all(name in self.position for name in METRIC_COLUMNS)

    def cell(self, row: Row, name: str) -> str:
        """Return the row's cell in a column; empty if there is no such column."""
        return row.cells[self.position[name]] if name in self.position else ""

    def is_units_row(self, row: Row) -> bool:
        """Return whether the row holds the units of page raw."""
        return not self.is_details and not self.cell(row, "ID").strip() and not self.cell(row, "Kernel Name").strip()

    def further_columns(self) -> list[int]:
        """Return the indexes of columns that neither describe the launch nor, on page details, belong to a metric."""
        known = {"ID", *LAUNCH_COLUMNS, "Section Name", "Metric Name", "Metric Unit", "Metric Value"}
        return [index for index, name in enumerate(self.header) if name not in known]


@dataclass(slots=True)
class _Draft:
    """A report while it is parsed. Cells stay text, since the number format is known only at the end."""

    table: _Table | None = None
    launches: dict[tuple[int, str, str], tuple[str | None, ...]] = field(default_factory=dict)
    launch_indexes: dict[tuple[int, str, str], int] = field(default_factory=dict)
    counters: list[tuple[int, str | None, str, str | None, str]] = field(default_factory=list)
    seen: set[tuple[int, str | None, str, str]] = field(default_factory=set)
    repeated_ids: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def take(self, line: Row | OtherLine) -> None:
        """Add the next line."""
        if isinstance(line, OtherLine):
            self._note_other(line)
        elif line.is_header:
            self.table = _Table.with_header(0 if self.table is None else self.table.number + 1, line.cells)
        elif self.table is not None and self.table.is_units_row(line):
            self.table.units = line.cells
        elif self.table is not None:
            self._take_values(self.table, line)

    def _take_values(self, table: _Table, row: Row) -> None:
        launch_index = self._launch_index(table, row)
        section_name = table.cell(row, "Section Name").strip() or None
        if table.is_details:
            metric_name, unit = table.cell(row, "Metric Name").strip(), table.cell(row, "Metric Unit").strip() or None
            if metric_name:
                self.counters.append((launch_index, section_name, metric_name, unit, table.cell(row, "Metric Value")))
        for position in table.further_columns():
            self._take_further(table, row, position, launch_index, section_name)

    def _take_further(self, table: _Table, row: Row, position: int, launch_index: int, section_name: str | None) -> None:
        name, cell = table.header[position].strip() or f"column {position + 1}", row.cells[position]
        if not cell.strip():
            return  # this launch has no such metric
        if table.is_details:
            key = (launch_index, section_name, name, cell)
            if key in self.seen:
                return  # a value of the launch, repeated in the row of each of its metrics
            self.seen.add(key)
        self.counters.append((launch_index, section_name, name, table.units[position].strip() or None, cell))

    def _launch_index(self, table: _Table, row: Row) -> int:
        launch_id = table.cell(row, "ID")
        key = (table.number, table.cell(row, "Process ID"), launch_id)
        if not table.is_details and key in self.launch_indexes:
            self.repeated_ids.add(launch_id)
            key = (table.number, table.cell(row, "Process ID"), f"{launch_id} in line {row.line_number}")
        if key not in self.launch_indexes:
            self.launch_indexes[key] = len(self.launch_indexes)
            self.launches[key] = tuple(_launch_cell(name, table.cell(row, name)) for name in LAUNCH_COLUMNS)
        return self.launch_indexes[key]

    def _note_other(self, line: OtherLine) -> None:
        text = line.text.strip()
        if line.is_damaged:
            self.notes.append(f"Line {line.line_number} is not a complete row of the table: {_quoted(text)}.")
        elif text.startswith(("==ERROR==", "==WARNING==")):
            self.notes.append(f"ncu says: {_quoted(text.split('== ', 1)[-1])}.")

    def report(self) -> NcuReport:
        """Return the report of all lines."""
        numbers = NumberReader.of(cell for *_, cell in self.counters)
        if numbers.is_mixed:
            written = "1,234.5" if numbers.style is NumberStyle.POINT else "1.234,5"
            self.notes.append(f"Its numbers are written in two ways; those that are not written as {written} are kept as text.")
        if self.repeated_ids:
            ids = ", ".join(sorted(self.repeated_ids)[:MAX_NAMED_IDS])
            self.notes.append(f"Several rows of its page raw have the ID {ids}: each counts as a launch of its own.")
        if not self.counters:
            self.notes.append("Its table has no metric of any launch.")
        launches = [(index, *self.launches[key]) for key, index in self.launch_indexes.items()]
        counters = [(*keys, *numbers.read(cell)) for *keys, cell in self.counters]
        return NcuReport(
            pl.DataFrame(launches, schema=LAUNCH_SCHEMA, orient="row"),
            pl.DataFrame(counters, schema=COUNTER_SCHEMA, orient="row"),
            _limited(self.notes),
        )


def _launch_cell(name: str, cell: str) -> str | None:
    text = cell.strip()
    if name in ("Block Size", "Grid Size"):
        dimensions = re.findall(r"\d+", text)
        return "x".join(dimensions) if len(dimensions) == 3 else text or None
    return text.replace(",", ".") or None if name == "CC" else text or None


def _limited(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= MAX_NOTE_COUNT:
        return tuple(notes)
    return (*notes[:MAX_NOTE_COUNT], f"And {len(notes) - MAX_NOTE_COUNT} more like these.")


def _quoted(text: str) -> str:
    shown = text if len(text) <= MAX_QUOTED_LENGTH else text[:MAX_QUOTED_LENGTH] + "…"
    return repr(shown)


# ---------------------------------------------------------------- lines
# Rows of the CSV table are found among other lines: progress of ncu, output of the profiled program, byte-order marks.

_CELL: Final = r'"[^"]*+(?:""[^"]*+)*+"'
ROW: Final = re.compile(rf"{_CELL}(?:,{_CELL})++")
CELL: Final = re.compile(_CELL)

MAX_LINES_PER_ROW: Final = 50  # cells may contain line breaks, but an unclosed quote must not swallow the rest of the file
MAX_SEARCHED_LENGTH: Final = 65_536  # longer lines are not searched for a row in their middle: that takes quadratic time

KEY_COLUMNS: Final = ("ID", "Kernel Name")  # every table of launches has them


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table whose header came last. is_header: the row is that header."""

    line_number: int  # from 1
    cells: tuple[str, ...]
    is_header: bool = False


@dataclass(frozen=True, slots=True)
class OtherLine:
    """A line that is no row. is_damaged: it looks like part of one."""

    line_number: int
    text: str
    is_damaged: bool


def decode_report(data: bytes) -> str:
    """Return the text without byte-order marks; invalid bytes become U+FFFD. PowerShell's redirection writes UTF-16."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace").replace("\ufeff", "")
    return data.decode("utf-8", errors="replace").replace("\ufeff", "")


def report_lines(text: str) -> Iterator[Row | OtherLine]:
    """Yield every line as a row or as something else. Rows have as many cells as the header before them."""
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
    """An iterator over lines that can look ahead. number: number of the last line returned, from 1."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.number = 0

    def next(self) -> str | None:
        """Return the next line; None at the end."""
        if self.number >= len(self._lines):
            return None
        self.number += 1
        return self._lines[self.number - 1]

    def peek(self, count: int) -> list[str]:
        """Return the next lines without consuming them."""
        return self._lines[self.number : self.number + count]

    def skip(self, count: int) -> None:
        """Consume lines."""
        self.number += count


def _row_in(line: str, header: _Header | None, lines: _Lines) -> tuple[str, ...] | None:
    """Return the cells of the row that begins in this line, which may continue in the following lines."""
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
    for count, further in enumerate(lines.peek(MAX_LINES_PER_ROW), start=1):
        own_row = ROW.match(further)
        if own_row is not None and len(CELL.findall(own_row[0])) == header.width:
            return None  # a complete row of its own: the one before it is truncated
        joined += "\n" + further
        found = ROW.fullmatch(joined.rstrip())
        if found is not None and len(cells := _cells(found[0])) == header.width:
            lines.skip(count)
            return cells
    return None


def _cells(row: str) -> tuple[str, ...]:
    return tuple(cell[1:-1].replace('""', '"') for cell in CELL.findall(row))


def _unquoted(line: str) -> tuple[str, ...] | None:
    """Return the cells of a line that another program has rewritten without ncu's quotes."""
    if "," not in line:
        return None
    try:
        return tuple(next(csv.reader([line]), ()))
    except csv.Error:
        return None


def _is_header(cells: tuple[str, ...]) -> bool:
    return cells[0] == KEY_COLUMNS[0] and KEY_COLUMNS[1] in cells


def _looks_damaged(line: str, header: _Header) -> bool:
    """Return whether the line looks like a damaged row: it has the beginnings of several cells."""
    return line.count('","') >= 2 if header.is_quoted else line.count(",") >= header.width // 2


# ---------------------------------------------------------------- numbers
# ncu prints numbers with thousands separators, by the rules of the locale that it ran in.
#
# A report uses one style, which its unambiguous numbers reveal: "54,207,744" and "97.32" are of one style, "54.207.744" and "97,32" of
# the other. Without such evidence "1.234" is read as ncu writes it by default.

SPACES_IN_NUMBERS: Final = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
"""Unambiguous thousands separators: spaces of several widths (French), apostrophes (Swiss)."""

HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
ANNOTATION: Final = re.compile(r"^\(!\)\s*")  # ncu's mark of a value that it has a remark on
INSTANCES: Final = re.compile(r"\s*\(.*\)$", re.DOTALL)  # "5.2 (1; 2; 3)": the values of single instances after their sum


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    # India groups by two digits, but the last group has three everywhere; no grouped number begins with 0.
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{2,3}})*{thousands}\d{{3}}"
    return re.compile(rf"[+-]?(?:{grouped}|\d+)(?:{decimal}\d*)?(?:[eE][+-]?\d+)?|[+-]?{decimal}\d+(?:[eE][+-]?\d+)?")


class NumberStyle(Enum):
    """The decimal separator."""

    POINT = "."
    COMMA = ","


PATTERNS: Final = {NumberStyle.POINT: _pattern(",", r"\."), NumberStyle.COMMA: _pattern(r"\.", ",")}


@dataclass(frozen=True, slots=True)
class NumberReader:
    """A reader of the numbers of one report. is_mixed: its numbers are evidence for both styles."""

    style: NumberStyle
    is_mixed: bool = False

    @classmethod
    def of(cls, cells: Iterable[str]) -> NumberReader:
        """Return the reader for a report with these cells."""
        votes = {NumberStyle.POINT: 0, NumberStyle.COMMA: 0}
        for cell in cells:
            evidence = _evidence(cell)
            if evidence is not None:
                votes[evidence] += 1
        style = NumberStyle.COMMA if votes[NumberStyle.COMMA] > votes[NumberStyle.POINT] else NumberStyle.POINT
        return cls(style, min(votes.values()) > 0)

    def read(self, cell: str) -> tuple[float | None, str | None]:
        """Return value and text of a cell: only the value of a plain number, only the text of "n/a", both of an annotated number."""
        body = INSTANCES.sub("", ANNOTATION.sub("", cell.strip()))
        value = self._number(body)
        return value, None if value is not None and body == cell.strip() and not HEXADECIMAL.fullmatch(body) else cell.strip() or None

    def _number(self, body: str) -> float | None:
        plain = SPACES_IN_NUMBERS.sub("", body)
        if HEXADECIMAL.fullmatch(plain):
            return float(int(plain, 16))
        if not PATTERNS[self.style].fullmatch(plain):
            return None
        thousands = "," if self.style is NumberStyle.POINT else "."
        value = float(plain.replace(thousands, "").replace(",", "."))
        return value if abs(value) != float("inf") else None


def _evidence(cell: str) -> NumberStyle | None:
    """Return the style that this cell alone proves; None if it proves none."""
    points, commas = cell.count("."), cell.count(",")
    if points + commas == 0 or not cell.strip()[-1:].isdigit():
        return None
    fits = [style for style, pattern in PATTERNS.items() if pattern.fullmatch(SPACES_IN_NUMBERS.sub("", cell.strip()))]
    if len(fits) != 1:
        return None  # "1.234" is a number in both, "1.2.3" in none
    return fits[0]
