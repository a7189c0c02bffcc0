"""services.analyzer.readers.nsys_ahead: what is decoded before anybody knows the question is what the question needs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from services.analyzer.readers.nsys_ahead import OF_KERNELS, OF_LAYERS, opened_ahead
from services.analyzer.readers.nsys_columns import CALLS, KERNELS, NVTX
from services.analyzer.readers.nsys_sqlite import NsysSqliteReader
from services.analyzer.readers.selection import Selection
from services.analyzer.readers.sqlite_file import SqliteFile, TableColumns, WantedColumns
from services.analyzer.readers.trace import TraceFiles
from services.analyzer.trace_answers import inputs
from tests.unit.nsys_export import call, kernel, nvtx, write_export


@pytest.fixture
def export(tmp_path: Path) -> Path:
    ranges = [nvtx(0, 90, "outer"), nvtx(5, 20, "aten::mm, seq = 1, op_id = 2, sizes = [[8, 4], [4, 2]]")]
    kernels = [kernel(30, 40, 1, graphNodeId=3), kernel(50, 60, 2, graphNodeId=0)]
    return write_export(tmp_path / "a.sqlite", kernels=kernels, calls=[call(10, 12, 1), call(25, 26, 2)], ranges=ranges, gpus=[{}])


@pytest.mark.parametrize("table_names", [*({name} for name in sorted(OF_KERNELS | OF_LAYERS)), OF_KERNELS, OF_LAYERS | OF_KERNELS])
def test_no_table_is_read_twice_or_in_vain(export: Path, table_names: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    read = SqliteFile._read

    def counted(file: SqliteFile, wanted: WantedColumns) -> TableColumns:
        reads[wanted.table_name] += 1
        return read(file, wanted)

    monkeypatch.setattr(SqliteFile, "_read", counted)
    opened = opened_ahead(export, table_names)
    assert opened is not None
    selection = Selection.of(inputs(table_names))
    found = NsysSqliteReader().read_columns(TraceFiles(export.name, export, 0, opened=opened), selection)
    assert not opened._begun
    large = {KERNELS} if table_names <= OF_KERNELS else {KERNELS, CALLS, NVTX}
    assert {name: count for name, count in reads.items() if name in (KERNELS, CALLS, NVTX)} == dict.fromkeys(large, 1)
    plain = NsysSqliteReader().read_columns(TraceFiles(export.name, export, 0), selection)
    assert set(found.frames) == set(plain.frames)
    assert all(found.frames[name].equals(frame) for name, frame in plain.frames.items())


def test_other_questions_and_other_files_are_left_to_their_readers(export: Path, tmp_path: Path) -> None:
    assert opened_ahead(export, ["kernels", "samples"]) is None
    text = tmp_path / "a.txt"
    text.write_text("SQLite")
    assert opened_ahead(text, ["kernels"]) is None
    assert opened_ahead(tmp_path, ["kernels"]) is None


def test_a_file_that_is_closed_while_it_is_read_waits_for_that(export: Path) -> None:
    for _ in range(20):
        opened = opened_ahead(export, ["layers"])
        assert opened is not None
        with closing(opened):
            pass


def test_it_begins_before_polars_is_loaded() -> None:
    """Else it would begin when most of the program is there."""
    code = "import sys, services.analyzer.readers.nsys_ahead; print(*(name for name in ('polars', 'numba', 'grpc') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == ""
