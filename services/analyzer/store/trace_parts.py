"""Traces of several files as one run: tables with most of the rows stay as each file gave them, and become one as they are read.

Row numbers, names, process ids and times of a file are its own. What makes them those of the whole is stored beside the files: to write
ten million rows once more would take as long as to read them from what a recorder has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Self

import polars as pl

from kernalyse.services.analyzer.tables.base import COUNT, INDEX, TEXT, Table
from kernalyse.services.analyzer.tables.traces import API_CALLS, KERNEL_LAUNCHES, MEMORY_OPS, RANGES, SCOPES

TABLES_IN_PARTS: Final = (RANGES, KERNEL_LAUNCHES, API_CALLS, MEMORY_OPS)
"""Tables of a joined trace that are stored as each of its files gave them."""

PARTS: Final = "parts"
"""Name of the file, as that of a table, that says how parts become the whole."""

REFERENCES: Final = {
    "operator_index": RANGES,
    "api_call_index": API_CALLS,
    "range_index": RANGES,
    "parent_range_index": RANGES,
    "launch_index": KERNEL_LAUNCHES,
    "scope_index": SCOPES,
    "parent_scope_index": SCOPES,
    "call_index": API_CALLS,
    "op_index": MEMORY_OPS,
}
"""Columns that hold row numbers of other tables than trace_names, or of their own."""

NAMES: Final = ("name_index", "domain_name_index")
TIMES: Final = ("start_ns", "launch_start_ns")


@dataclass(frozen=True, slots=True)
class PartMap:
    """How the rows of one part become rows of the whole, in which the parts' rows follow one another.

    first_rows: row of the part's first one, by table name. name_indexes: row of trace_names of the whole for each of the part.
    process_ids: new by old, of those that change. shift_ns: added to times.
    """

    first_rows: Mapping[str, int]
    name_indexes: pl.Series
    process_ids: Mapping[int | None, int | None]
    shift_ns: int

    def rows(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return rows of any table but trace_names as those of the whole. Each row stays where it is."""
        present = rows.collect_schema()
        changed = [pl.col(name) + pl.lit(first, dtype=INDEX) for name, first in self._first_rows(present) if first]
        if not self.name_indexes.equals(pl.Series(range(self.name_indexes.len()), dtype=INDEX)):
            changed += [pl.col(name).map_batches(self.names, INDEX, is_elementwise=True) for name in NAMES if name in present]
        if self.process_ids and "process_id" in present:
            changed.append(pl.col("process_id").replace(list(self.process_ids), list(self.process_ids.values())))
        if self.shift_ns:
            changed += [pl.col(name) + self.shift_ns for name in TIMES if name in present]
        return rows.with_columns(changed) if changed else rows

    def names(self, name_indexes: pl.Series) -> pl.Series:
        """Return rows of trace_names of the part as those of the whole; null stays null."""
        return self.name_indexes.gather(name_indexes)

    def _first_rows(self, present: pl.Schema) -> Iterator[tuple[str, int]]:
        for name, table in REFERENCES.items():
            if name in present:
                yield name, self.first_rows[table.table_name]


@dataclass(frozen=True, slots=True)
class TraceParts:
    """The parts of a stored trace. event_indexes, row_counts: by table name; each of row_counts has a value for each part."""

    run_id: str
    event_indexes: Mapping[str, int]
    row_counts: Mapping[str, Sequence[int]]
    maps: Sequence[PartMap]

    def frame(self) -> pl.DataFrame:
        """Return what is stored of them: a row for each part."""
        tables = {
            f"{name}_{of}": values
            for name, counts in self.row_counts.items()
            for of, values in (("row_count", counts), ("event_index", [self.event_indexes.get(name)] * len(self.maps)))
        }
        columns = {
            "run_id": [self.run_id] * len(self.maps),
            "shift_ns": [part.shift_ns for part in self.maps],
            "old_process_ids": [list(part.process_ids) for part in self.maps],
            "new_process_ids": [list(part.process_ids.values()) for part in self.maps],
            "name_indexes": [part.name_indexes for part in self.maps],
            **tables,
        }
        lists = {"old_process_ids": pl.List(COUNT), "new_process_ids": pl.List(COUNT), "name_indexes": pl.List(INDEX)}
        return pl.DataFrame(columns, schema_overrides={"run_id": TEXT, "shift_ns": COUNT, **dict.fromkeys(tables, COUNT), **lists})

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Self:
        """Return the parts of what is stored."""
        names = [table.table_name for table in TABLES_IN_PARTS]
        row_counts = {name: frame[f"{name}_row_count"].to_list() for name in names}
        first_rows = {name: list(accumulate(counts, initial=0)) for name, counts in row_counts.items()}
        ids = zip(frame["old_process_ids"].to_list(), frame["new_process_ids"].to_list(), strict=True)
        maps = [
            PartMap(
                # No table that is stored in parts refers to scopes.
                {name: first_rows[name][number] for name in names} | {SCOPES.table_name: 0},
                frame["name_indexes"][number],
                dict(zip(old, new, strict=True)),
                frame["shift_ns"][number],
            )
            for number, (old, new) in enumerate(ids)
        ]
        return cls(frame["run_id"][0], {name: frame[f"{name}_event_index"][0] for name in names}, row_counts, maps)

    def rows(self, table: Table, directory: Path, first_row: int = 0, end_row: int | None = None) -> pl.LazyFrame:
        """Return the rows of a table of the whole from one row to before another; None: all from there on."""
        counts = self.row_counts[table.table_name]
        end_row = sum(counts) if end_row is None else end_row
        event_index = pl.lit(self.event_indexes[table.table_name], dtype=COUNT)
        frames = []
        with_rows = (part for part, count in zip(self.maps, counts, strict=True) if count)
        for number, (part, (begin, end)) in enumerate(zip(with_rows, pairwise(accumulate(filter(None, counts), initial=0)), strict=True)):
            first, stop = max(first_row, begin), min(end_row, end)
            if first < stop:
                file = pl.scan_parquet(part_path(directory, table, number))
                # All columns first: a process that is not known may have got a number.
                rows = table.conform(file if (first, stop) == (begin, end) else file.slice(first - begin, stop - first))
                frames.append(part.rows(rows).with_columns(run_id=pl.lit(self.run_id), event_index=event_index))
        return pl.concat(frames) if frames else table.empty().lazy()


def part_path(directory: Path, table: Table, number: int) -> Path:
    """Return a file of a table that is stored in parts. number: among the parts that have rows of it."""
    return directory / f"{table.table_name}.{number}.parquet"


@lru_cache(maxsize=32)
def stored_parts(directory: Path) -> TraceParts:
    """Return the parts of the trace in a directory, which never change."""
    return TraceParts.of(pl.read_parquet(directory / f"{PARTS}.parquet"))
