"""Tables decoded from pages, column by column against SQLite itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kernalyse.services.analyzer.readers.nsys import sqlite_file
from kernalyse.services.analyzer.readers.nsys import sqlite_file as page_reading
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile, TableColumns
from kernalyse.services.core.errors import InvalidTraceError
from tests.examples import examples

SHARED = Path(__file__).parents[5] / "shared" / "data" / "nsys"
FILES = sorted(SHARED.glob("*.sqlite")) or [SHARED / "none.sqlite"]
numbers = count()


def both(path: Path) -> Iterator[SqliteFile]:
    for decodes_pages in (True, False):
        with closing(SqliteFile.open(path, path.name, decodes_pages=decodes_pages)) as file:
            yield file


def values(columns: TableColumns) -> dict[str, list[Any]]:
    """With texts and keys in the place of codes."""
    coded = {name: column.keys[column.codes].tolist() for name, column in columns.factorized.items()}
    texts = {name: [None if code < 0 else column.texts[code] for code in column.codes.tolist()] for name, column in columns.texts.items()}
    return {name: column.tolist() for name, column in columns.integers.items()} | coded | texts


def assert_equal(path: Path, table_name: str, integers: list[str], texts: list[str]) -> None:
    """Whichever of the integers are read as codes."""
    with closing(SqliteFile.open(path, path.name, decodes_pages=False)) as file:
        expected = file.columns(table_name, integers, texts)
    with closing(SqliteFile.open(path, path.name)) as file:
        for numbers, codes in ((integers, []), (integers[::2], integers[1::2])):
            found = file.columns(table_name, numbers, texts, codes)
            assert found.row_count == expected.row_count
            assert found.refused_count == expected.refused_count
            assert values(found) == values(expected)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_table_of_real_exports(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the exports are not part of the project")
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        types = {name: connection.execute(f'PRAGMA table_info("{name}")').fetchall() for name in tables}
    for name, columns in types.items():
        integers = [column[1] for column in columns if column[2] == "INTEGER"]
        texts = [column[1] for column in columns if column[2] == "TEXT"]
        assert_equal(path, name, integers, texts)


integers = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([127, 128, -129, 2**15, 2**23, -(2**23) - 1, 2**31, 2**47, -(2**47), -(2**63)]),
)
unusual = st.one_of(integers, integers, integers, st.floats(allow_nan=False), st.text(max_size=4), st.binary(max_size=4))
texts = st.one_of(
    st.none(), st.text(max_size=12), st.sampled_from(["forward", "backward"]), st.integers(0, 3000).map(lambda size: "é" * size)
)


@given(
    rows=st.lists(st.tuples(unusual, texts, integers, texts, integers), max_size=60),
    page_size=st.sampled_from([512, 1024, 4096]),
    deleted=st.integers(0, 5),
    adds_column=st.booleans(),
    kind=st.sampled_from(["", "id INTEGER PRIMARY KEY, ", "id INTEGER PRIMARY KEY DESC, "]),
)
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_of_any_rows(
    tmp_path: Path, rows: list[tuple[Any, ...]], page_size: int, deleted: int, adds_column: bool, kind: str
) -> None:
    path = tmp_path / f"{next(numbers)}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute(f"CREATE TABLE t ({kind}a INTEGER, b TEXT, c INTEGER, d TEXT, e INTEGER)")
        connection.executemany("INSERT INTO t (a, b, c, d, e) VALUES (?, ?, ?, ?, ?)", rows)
        if deleted:
            connection.execute(f"DELETE FROM t WHERE rowid % 6 = {deleted}")
        if adds_column:
            connection.execute("ALTER TABLE t ADD COLUMN f INTEGER DEFAULT 7")
        connection.commit()
    wanted = ["a", "c", "e", *(["f"] if adds_column else []), *(["id"] if kind else [])]
    assert_equal(path, "t", wanted, ["b", "d"])
    assert_equal(path, "t", ["c"], [])
    assert_equal(path, "t", ["e"], ["d"])


def test_many_parts_on_several_threads_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, None if n % 7 == 0 else f"name {n * n % 5003}") for n in range(30_000)])
        connection.commit()
    monkeypatch.setattr(page_reading, "PART_BYTES", 16 * 4096)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert_equal(path, "t", ["a"], ["b"])


def test_a_column_of_too_many_values_for_codes_is_read_as_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n * n, n % 5) for n in range(100)])
        connection.commit()
    monkeypatch.setattr(page_reading, "MAX_KEYS", 64)
    with closing(SqliteFile.open(path, path.name)) as file:
        monkeypatch.setattr(sqlite_file, "_read_through_sqlite", None)  # is not called
        columns = file.columns("t", [], [], ["a", "b"])
    assert values(columns) == {"a": [n * n for n in range(100)], "b": [n % 5 for n in range(100)]}
    assert columns.factorized["b"].keys.tolist() == [0, 1, 2, 3, 4]


def test_columns_beside_real_ones_are_decoded_from_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of NVTX events are. A real number that is whole lies in the file as a whole one: these are SQLite's to read."""
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b REAL, c TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 2, 'three')")
        connection.commit()
    with closing(SqliteFile.open(path, path.name)) as file:
        assert file.columns("t", ["a", "b"]).refused_count == 1
        monkeypatch.setattr(sqlite_file, "_read_through_sqlite", None)  # is not called
        assert values(file.columns("t", ["a"], ["c"])) == {"a": [1], "c": ["three"]}


def test_tables_of_other_kinds_are_read_through_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT) WITHOUT ROWID")
        connection.execute("CREATE TABLE g (a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1) VIRTUAL, c INTEGER)")
        connection.execute("INSERT INTO t VALUES (5, 'five'), (3, NULL)")
        connection.execute("INSERT INTO g (a, c) VALUES (1, 10), (2, 20)")
        connection.commit()
    for file in both(path):
        assert values(file.columns("g", ["a", "b", "c"])) == {"a": [1, 2], "b": [2, 3], "c": [10, 20]}
        assert values(file.columns("t", ["a"], ["b"])) == {"a": [3, 5], "b": [None, "five"]}


def test_a_text_encoding_of_two_bytes_is_read_through_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16'")
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'één')")
        connection.commit()
    for file in both(path):
        assert values(file.columns("t", ["a"], ["b"])) == {"a": [1], "b": ["één"]}


@given(places=st.lists(st.tuples(st.integers(100, 12 * 4096 - 1), st.integers(0, 255)), min_size=1, max_size=12), cut=st.integers(0, 4096))
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pages_are_refused_or_read_as_sqlite_reads_them(tmp_path: Path, places: list[tuple[int, int]], cut: int) -> None:
    """Whatever the bytes say: no crash, and no other answer than SQLite's where both answer and the file is as long as it says."""
    original = tmp_path / "original.sqlite"
    if not original.exists():
        with closing(sqlite3.connect(original)) as connection:
            connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", [(n * 977, f"name {n}" * (n % 9)) for n in range(1200)])
            connection.commit()
    content = bytearray(original.read_bytes())
    for place, value in places:
        content[place] = value
    path = tmp_path / f"{next(numbers)}.sqlite"
    path.write_bytes(content[: len(content) - cut])
    try:
        with closing(SqliteFile.open(path, path.name)) as file:
            columns = file.columns("t", ["a"], ["b"]) if "t" in file.table_names and file.column_names("t") == ("a", "b") else None
    except InvalidTraceError:
        return
    assert columns is None or columns.integers["a"].dtype == np.int64
