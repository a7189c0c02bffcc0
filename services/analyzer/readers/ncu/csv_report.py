"""Parse CSV reports of Nsight Compute: lines, numbers of any locale, pages."""

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

# ---------------------------------------------------------------- ncu
# Reports of Nsight Compute as `ncu --csv` prints them, pages raw and details.
#
# Raw has a row for each launch, a column for each metric and a second line with their units. Details has a row for each launch and
# metric, with a column for the unit. Both come among progress lines of ncu and output of the program. Columns that this version does
# not know are kept under their own names.

METRIC_COLUMNS: Final = ("Metric Name", "Metric Value")  # of page details; page raw has neither
MAX_NOTE_COUNT: Final = 20  # one damaged line is worth a word; a thousand of them are one word more
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
"""What ncu says of a launch as a whole, and the columns of `NcuReport.launches` that it becomes."""

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
    """What a report says.

    launches: one row per profiled launch in the report's order, all text but launch_index; null: not told. counters: one
    row per launch and metric, in the report's order, units and values as ncu gives them. notes: what could not be
    understood, and what ncu itself warned of, one sentence each.
    """

    launches: pl.DataFrame
    counters: pl.DataFrame
    notes: tuple[str, ...]


def read_ncu_report(data: bytes) -> NcuReport:
    """Reads the output of `ncu --csv`, whatever else was printed along with it.

    Raises:
        InvalidRequestError: no table of launches is in it.
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
    return draft.finished()


@dataclass(slots=True)
class _Table:
    """The table that a header line begins. position: of each column, by name; the first of several of one name."""

    number: int
    header: tuple[str, ...]
    units: tuple[str, ...]
    position: dict[str, int]

    @classmethod
    def begun_by(cls, number: int, header: tuple[str, ...]) -> _Table:
        position: dict[str, int] = {}
        for index, name in enumerate(header):
            position.setdefault(name, index)
        return cls(number, header, ("",) * len(header), position)

    @property
    def is_details(self) -> bool:
        return all(name in self.position for name in METRIC_COLUMNS)

    def cell(self, row: Row, name: str) -> str:
        return row.cells[self.position[name]] if name in self.position else ""

    def is_units_row(self, row: Row) -> bool:
        return not self.is_details and not self.cell(row, "ID").strip() and not self.cell(row, "Kernel Name").strip()

    def further_columns(self) -> list[int]:
        """Positions of what is neither the launch's identity nor, on page details, part of a metric."""
        known = {"ID", *LAUNCH_COLUMNS, "Section Name", "Metric Name", "Metric Unit", "Metric Value"}
        return [index for index, name in enumerate(self.header) if name not in known]


@dataclass(slots=True)
class _Draft:
    """A report on its way: cells are still text, for how its numbers are written shows at the end."""

    table: _Table | None = None
    launches: dict[tuple[int, str, str], tuple[str | None, ...]] = field(default_factory=dict)
    launch_indexes: dict[tuple[int, str, str], int] = field(default_factory=dict)
    counters: list[tuple[int, str | None, str, str | None, str]] = field(default_factory=list)
    seen: set[tuple[int, str | None, str, str]] = field(default_factory=set)
    repeated_ids: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def take(self, line: Row | OtherLine) -> None:
        if isinstance(line, OtherLine):
            self._note_other(line)
        elif line.is_header:
            self.table = _Table.begun_by(0 if self.table is None else self.table.number + 1, line.cells)
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
                return  # said of the launch, and repeated beside each of its metrics
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
            self.notes.append(f"Line {line.line_number} is no whole row of the table: {_quoted(text)}.")
        elif text.startswith(("==ERROR==", "==WARNING==")):
            self.notes.append(f"ncu says: {_quoted(text.split('== ', 1)[-1])}.")

    def finished(self) -> NcuReport:
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
        extents = re.findall(r"\d+", text)
        return "x".join(extents) if len(extents) == 3 else text or None
    return text.replace(",", ".") or None if name == "CC" else text or None


def _limited(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= MAX_NOTE_COUNT:
        return tuple(notes)
    return (*notes[:MAX_NOTE_COUNT], f"And {len(notes) - MAX_NOTE_COUNT} more of the like.")


def _quoted(text: str) -> str:
    shown = text if len(text) <= MAX_QUOTED_LENGTH else text[:MAX_QUOTED_LENGTH] + "…"
    return repr(shown)


# ---------------------------------------------------------------- ncu lines
# The rows of a CSV table among whatever else was printed: progress of ncu, output of the program, marks of encodings.

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


# ---------------------------------------------------------------- ncu numbers
# Numbers as ncu prints them: with separators of thousands, by the rules of whatever locale it ran in.
#
# One report is in one style. Which one, its unambiguous numbers say: "54,207,744" and "97.32" are of one, "54.207.744" and "97,32" of
# the other, and without any such evidence "1.234" is read as ncu writes it by default.

SPACES_IN_NUMBERS: Final = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
"""Separators of thousands that cannot be anything else: blanks of several widths (French), apostrophes (Swiss)."""

HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
ANNOTATION: Final = re.compile(r"^\(!\)\s*")  # ncu's mark of a value that something is to be said about
INSTANCES: Final = re.compile(r"\s*\(.*\)$", re.DOTALL)  # "5.2 (1; 2; 3)": the values of single instances behind their sum


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    # Groups of two are India's; the last one has three everywhere, and no grouped number begins with 0.
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{2,3}})*{thousands}\d{{3}}"
    return re.compile(rf"[+-]?(?:{grouped}|\d+)(?:{decimal}\d*)?(?:[eE][+-]?\d+)?|[+-]?{decimal}\d+(?:[eE][+-]?\d+)?")


class NumberStyle(Enum):
    """What stands before the fraction."""

    POINT = "."
    COMMA = ","


PATTERNS: Final = {NumberStyle.POINT: _pattern(",", r"\."), NumberStyle.COMMA: _pattern(r"\.", ",")}


@dataclass(frozen=True, slots=True)
class NumberReader:
    """Reads the cells of one report. is_mixed: its numbers are evidence for both styles."""

    style: NumberStyle
    is_mixed: bool = False

    @classmethod
    def of(cls, cells: Iterable[str]) -> NumberReader:
        """The reader for a report with these cells."""
        votes = {NumberStyle.POINT: 0, NumberStyle.COMMA: 0}
        for cell in cells:
            evidence = _evidence(cell)
            if evidence is not None:
                votes[evidence] += 1
        style = NumberStyle.COMMA if votes[NumberStyle.COMMA] > votes[NumberStyle.POINT] else NumberStyle.POINT
        return cls(style, min(votes.values()) > 0)

    def read(self, cell: str) -> tuple[float | None, str | None]:
        """Value and text of a cell: of a plain number the value alone, of "n/a" the text alone, of an annotated number both."""
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
    """The style that this cell alone proves."""
    points, commas = cell.count("."), cell.count(",")
    if points + commas == 0 or not cell.strip()[-1:].isdigit():
        return None
    fits = [style for style, pattern in PATTERNS.items() if pattern.fullmatch(SPACES_IN_NUMBERS.sub("", cell.strip()))]
    if len(fits) != 1:
        return None  # "1.234" is a number in both, "1.2.3" in none
    return fits[0]
