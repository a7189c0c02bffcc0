"""Exports of Nsight Systems that are damaged or strange: from pages and through SQLite they say the same, or both refuse.

What the fuzzer (tests/fuzzing/nsys.py) has found stands here in its smallest form.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.queries.registry import trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.core.errors import InvalidTraceError
from tests.fuzzing.nsys import REFUSED, difference, outcome
from tests.fuzzing.nsys_mutations import write_case
from tests.unit.nsys_export import call, kernel, nvtx, write_export

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
LARGEST: Final = 2**63 - 1
PAGE_BYTES: Final = 4096


def read(path: Path) -> ReadResult:
    return NsysSqliteReader().read(TraceFiles(path.name, path, 0))


def export(path: Path) -> Path:
    return write_export(
        path,
        kernels=[kernel(10 * n, 10 * n + 5, n, demangledName=3) for n in range(20)],
        calls=[call(10 * n - 5, 10 * n - 4, n) for n in range(20)],
        ranges=[nvtx(0, 1000, "step")],
        copies=[kernel(1, 2, 3)],
        gpus=[{}],
    )


def altered(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def row_places(path: Path, table: str) -> Iterator[tuple[int, int]]:
    """Places in the file of the id of each row of a table of one page, and of the types of its values."""
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    content = path.read_bytes()
    page = (root - 1) * PAGE_BYTES
    assert content[page] == 13, "a leaf"
    for cell in range(int.from_bytes(content[page + 3 : page + 5], "big")):
        place = page + int.from_bytes(content[page + 8 + 2 * cell : page + 10 + 2 * cell], "big")
        place += 2 if content[place] >= 0x80 else 1  # over the size of the row
        yield place, place + 2


def scribbled(path: Path, *changes: tuple[int, int]) -> Path:
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place] = value
    path.write_bytes(content)
    return path


# ---------------------------------------------------------------- damaged


def test_values_that_end_past_their_row_are_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    assert difference(path) == ""
    _row_id, types = list(row_places(path, KERNELS))[3]
    scribbled(path, (types + 2, 4))  # the device, which took no byte, takes four
    assert outcome(path, decodes_pages=False) == REFUSED
    assert outcome(path, decodes_pages=True) == REFUSED


def test_a_row_that_only_seems_to_go_on_elsewhere_is_not_looked_up(tmp_path: Path) -> None:
    """By its id, which is that of another row."""
    path = export(tmp_path / "a.sqlite")
    row_id, types = list(row_places(path, KERNELS))[3]
    scribbled(path, (row_id, 9), (types + 2, 127))
    assert outcome(path, decodes_pages=False) == REFUSED
    assert outcome(path, decodes_pages=True) == REFUSED


@pytest.mark.parametrize("row_id", [1, 100])
def test_long_rows_under_ids_of_others_or_of_none_are_read_in_their_order(tmp_path: Path, row_id: int) -> None:
    path = write_export(tmp_path / "a.sqlite", ranges=[nvtx(n, n + 5, f"{n}" * 5000) for n in range(3)])
    place, _types = list(row_places(path, "NVTX_EVENTS"))[1]
    scribbled(path, (place + 1, row_id))  # its size takes three bytes
    assert difference(path) == ""


@pytest.mark.parametrize("decodes_pages", [True, False])
def test_types_that_take_more_bytes_than_they_need_count(tmp_path: Path, decodes_pages: bool) -> None:
    """Type 1 in two bytes, the second of which was that of the end: each column is what the one before it was."""
    path = export(tmp_path / "a.sqlite")
    _row_id, types = list(row_places(path, KERNELS))[3]
    scribbled(path, (types, 0x80), (types + 1, 1))
    with closing(SqliteFile.open(path, "a.sqlite", decodes_pages=decodes_pages)) as file:
        columns = file.columns(KERNELS, ["start", "end", "deviceId"]).integers
    assert [columns[name][3] for name in ("start", "end", "deviceId")] == [30, 0, 35]


def test_a_page_that_lost_its_rows_is_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.sqlite", kernels=[kernel(n, n + 5, n) for n in range(500)])
    content = path.read_bytes()
    (root,) = (page for page in range(0, len(content), PAGE_BYTES) if content[page] == 5)
    first_cell = root + int.from_bytes(content[root + 12 : root + 14], "big")
    leaf = (int.from_bytes(content[first_cell : first_cell + 4], "big") - 1) * PAGE_BYTES
    assert difference(path) == ""
    scribbled(path, (leaf + 3, 0), (leaf + 4, 0))
    assert outcome(path, decodes_pages=False) == REFUSED
    assert outcome(path, decodes_pages=True) == REFUSED


def test_pages_past_the_stated_count_are_no_part_of_it(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    content = path.read_bytes()
    count = int.from_bytes(content[28:32], "big")
    scribbled(path, (31, count - 1))
    assert outcome(path, decodes_pages=False) == REFUSED
    assert outcome(path, decodes_pages=True) == REFUSED


def test_a_description_of_tables_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE TABLE \xff\xfe \xff_EVENTS"))
    with pytest.raises(InvalidTraceError, match="malformed"):
        read(path)


def test_of_short_and_empty_files_nothing_is_read(tmp_path: Path) -> None:
    whole = export(tmp_path / "a.sqlite").read_bytes()
    for size in (0, 1, 16, 99, 100, 101, 511, PAGE_BYTES, len(whole) - 1):
        path = tmp_path / f"{size}.sqlite"
        path.write_bytes(whole[:size])
        assert outcome(path, decodes_pages=True) == outcome(path, decodes_pages=False) == REFUSED, size


# ---------------------------------------------------------------- strange


def columns_called_rowid(path: Path) -> None:
    altered(path, f"ALTER TABLE {KERNELS} RENAME COLUMN gridX TO rowid", f"UPDATE {KERNELS} SET rowid = -rowid * correlationId")


def columns_with_all_names_of_row_ids(path: Path) -> None:
    names = zip(("gridX", "gridY", "gridZ"), ("rowid", "_ROWID_", "oid"), strict=True)
    altered(path, *(f"ALTER TABLE {KERNELS} RENAME COLUMN {old} TO {new}" for old, new in names))


def columns_of_real_numbers(path: Path) -> None:
    altered(path, f"CREATE TABLE fresh AS SELECT * FROM {KERNELS}", f"DROP TABLE {KERNELS}")
    altered(path, f"CREATE TABLE {KERNELS} (start INTEGER, end INTEGER, deviceId REAL, gridX DOUBLE, blockX FLOATING POINT)")
    altered(path, f"INSERT INTO {KERNELS} SELECT start, end, deviceId, gridX, blockX FROM fresh")


def without_ids_of_texts(path: Path) -> None:
    altered(path, "ALTER TABLE StringIds RENAME COLUMN id TO number")


def without_texts(path: Path) -> None:
    altered(path, "DROP TABLE StringIds")


def huge_numbers(path: Path) -> None:
    altered(
        path,
        f"UPDATE {KERNELS} SET deviceId = {LARGEST}, gridX = {LARGEST}, correlationId = {LARGEST} WHERE correlationId = 3",
        f"UPDATE {KERNELS} SET deviceId = -{LARGEST}, streamId = -{LARGEST} WHERE correlationId = 4",
        f"UPDATE {KERNELS} SET globalPid = {LARGEST} WHERE correlationId = 5",
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = -{LARGEST}, nameId = {LARGEST} WHERE correlationId = 6",
        f"UPDATE NVTX_EVENTS SET domainId = {LARGEST}, eventType = 60",
        f"UPDATE TARGET_INFO_GPU SET smCount = {LARGEST}, id = 0",
    )


def numbers_that_stand_for_null(path: Path) -> None:
    altered(path, f"UPDATE {KERNELS} SET gridX = -{LARGEST} - 1, correlationId = -{LARGEST} - 1 WHERE correlationId < 5")


def a_view_in_the_place_of_a_table(path: Path) -> None:
    altered(path, f"ALTER TABLE {KERNELS} RENAME TO hidden", f"CREATE VIEW {KERNELS} AS SELECT * FROM hidden")


def columns_that_are_worked_out(path: Path) -> None:
    altered(path, f"ALTER TABLE {KERNELS} DROP COLUMN graphNodeId", f"ALTER TABLE {KERNELS} ADD graphNodeId AS (gridX + 1) VIRTUAL")


def columns_that_came_later(path: Path) -> None:
    altered(path, f"ALTER TABLE {KERNELS} DROP COLUMN graphNodeId", f"ALTER TABLE {KERNELS} ADD graphNodeId INTEGER DEFAULT 7")


def texts_of_utf_16(path: Path) -> None:
    other = path.with_name("other.sqlite")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(other)) as copy:
        copy.execute("PRAGMA encoding = 'UTF-16'")
        copy.executescript("\n".join(connection.iterdump()))
        copy.commit()
    other.replace(path)


STRANGE: Final = (
    *(columns_called_rowid, columns_with_all_names_of_row_ids, columns_of_real_numbers, without_ids_of_texts, without_texts),
    *(huge_numbers, numbers_that_stand_for_null, a_view_in_the_place_of_a_table, columns_that_are_worked_out),
    *(columns_that_came_later, texts_of_utf_16),
)


@pytest.mark.parametrize("alter", STRANGE, ids=lambda alter: alter.__name__)
def test_what_is_strange_is_read_both_ways_alike(tmp_path: Path, alter: Callable[[Path], None]) -> None:
    path = export(tmp_path / "a.sqlite")
    alter(path)
    assert difference(path) == ""
    assert read(path).frames["kernel_launches"].height == (0 if alter is a_view_in_the_place_of_a_table else 20)


def test_numbers_that_fit_no_column_are_unknown(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    huge_numbers(path)
    tables = read(path)
    assert tables.frames["kernel_launches"]["device_index"].null_count() == 2
    assert set(tables.frames["trace_devices"]["device_index"]) == {0}
    assert tables.frames["trace_devices"]["sm_count"].to_list()[0] is None
    assert tables.frames["kernel_launches"]["grid_x"].max() == LARGEST


def test_texts_that_are_missing_are_said(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    without_ids_of_texts(path)
    tables = read(path)
    assert "It has no texts (table StringIds): kernels and calls have no names." in tables.notes
    assert tables.frames["kernel_launches"].height == 20


def test_tables_and_columns_of_newer_versions_do_no_harm(tmp_path: Path) -> None:
    path = write_export(
        tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)], calls=[call(1, 2, 1)], ranges=[nvtx(0, 3, "step")], schema_version="9.9"
    )
    altered(
        path,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_QUANTUM (start BLOB, qubits TEXT)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_QUANTUM VALUES (x'00', 'many')",
        f"ALTER TABLE {KERNELS} ADD COLUMN clusterX INTEGER",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN eventId TEXT DEFAULT 'new'",
    )
    tables = read(path)
    assert "newer than 3.30" in tables.notes
    assert tables.frames["kernel_launches"].select("duration_ns", "range_index", "layer_source").rows() == [(4, 0, "range")]


# ---------------------------------------------------------------- ranges


def names_of_kernels(tables: ReadResult) -> list[str | None]:
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index").select("range_index", "name")
    return tables.frames["kernel_launches"].join(ranges, on="range_index", how="left", maintain_order="left")["name"].to_list()


def test_ranges_ten_thousand_deep(tmp_path: Path) -> None:
    count = 10_000
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(10**6, 10**6 + 7, 1)],
        calls=[call(count, count + 1, 1)],
        ranges=[nvtx(n, 10**6 - n, f"level {n}") for n in range(count)],
    )
    tables = read(path)
    assert names_of_kernels(tables) == [f"level {count - 1}"]
    assert tables.frames["ranges"]["depth"].to_list() == list(range(count))
    trace = trace_frames(tables.frames)
    layers = trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], 5000).collect()
    assert layers.select("layer", "duration_sum_ns").rows() == [("level 5000", 7)]


def test_ranges_that_overlap_without_nesting(tmp_path: Path) -> None:
    """Of those that hold a moment the one that began last counts; only what holds all of a range is around it."""
    moments = {40: "first", 70: "second", 120: "second", 145: "third", 170: "third", 210: None}
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(1000 + moment, 1001 + moment, moment) for moment in moments],
        calls=[call(moment, moment + 1, moment) for moment in moments],
        ranges=[nvtx(0, 100, "first"), nvtx(50, 150, "second"), nvtx(140, 200, "third")],
    )
    tables = read(path)
    assert names_of_kernels(tables) == list(moments.values())
    assert tables.frames["ranges"]["parent_range_index"].to_list() == [None, None, None]


# ---------------------------------------------------------------- what chance makes


@pytest.mark.parametrize("first", [0, 1_000_000])
def test_what_chance_damages_is_read_both_ways_alike(tmp_path: Path, first: int) -> None:
    for number in range(first, first + 20):
        path = tmp_path / f"{number}.sqlite"
        made = write_case(number, path, [])
        assert difference(path) == "", f"case {number}: {made}"
