"""Reports of Nsight Compute as `ncu --csv` prints them, pages raw and details.

Raw has a row for each launch, a column for each metric and a second line with their units. Details has a row for each
launch and metric, with a column for the unit. Both come among progress lines of ncu and output of the program. Columns
that this version does not know are kept under their own names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from services.analyzer.readers.ncu_lines import OtherLine, Row, decode_report, report_lines
from services.analyzer.readers.ncu_numbers import NumberReader, NumberStyle
from services.core.errors import InvalidRequestError

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
