"""Directories of tables that Nsight Systems exports say the same as its SQLite export, or say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from kernalyse.services.analyzer.readers.registry import find_traces, select_reader, trace_files
from kernalyse.services.core.errors import InvalidTraceError
from tests.unit.nsys_directory import ENDINGS, write_directory, write_table
from tests.unit.nsys_export import call, global_id, kernel, nvtx, write_export

SHARED = Path(__file__).parents[5] / "shared" / "data" / "nsys"
TYPES = tuple(ENDINGS)


def read(path: Path) -> ReadResult:
    files = trace_files(path, 0)
    return select_reader(files).read(files)


def example(path: Path) -> Path:
    """A machine whose number uses the uppermost bit, texts of all kinds, rows in any order, what is open or of no name."""
    far = global_id(90, 91) | 200 << 56
    signed = far - 2**64
    return write_export(
        path,
        kernels=[kernel(500, 900, 1), kernel(400, 450, 2, globalPid=signed & ~0xFFFFFF), kernel(7, 8, gridX=None)],
        calls=[call(350, 360, 2, globalTid=signed), call(150, 160, 1)],
        ranges=[
            nvtx(100, 200, None, textId=3),
            nvtx(0, 1000, "step"),
            nvtx(300, None, "öffnet\0", globalTid=signed),
            nvtx(340, 380, "", globalTid=signed),
            nvtx(0, None, "NCCL", eventType=75, domainId=4),
            nvtx(1, 5, None, domainId=4, eventType=60),
        ],
        copies=[kernel(10, 30, 1, bytes=4096)],
        fills=[kernel(20, 25, 2, bytes=8)],
        gpus=[{}],
    )


def assert_same(found: ReadResult, expected: ReadResult, directory_name: str) -> None:
    assert found.notes == expected.notes
    assert (found.start_time, found.end_time) == (expected.start_time, expected.end_time)
    assert found.frames.keys() == expected.frames.keys()
    for name, frame in expected.frames.items():
        if name == "trace_processes":
            assert found.frames[name].equals(frame.with_columns(file_name=pl.lit(directory_name)))
        else:
            assert found.frames[name].equals(frame), name


@pytest.mark.parametrize("export_type", TYPES)
def test_a_directory_says_the_same_as_the_file(tmp_path: Path, export_type: str) -> None:
    export = example(tmp_path / "a.sqlite")
    found = read(write_directory(export, tmp_path / "directory", export_type))
    assert found.title == "directory"
    assert_same(found, read(export), "directory")
    assert found.frames["kernel_launches"]["process_id"].to_list() == [77, 90, 77]


@pytest.mark.parametrize("export_type", TYPES)
@pytest.mark.parametrize("name", ["h100x2_mfu_before", "h100x2_trimmed_1s", "a100_saxpy_mpi_2022", "tensorrt_nvtx_only_2022"])
def test_directories_made_of_real_exports_say_the_same(tmp_path: Path, name: str, export_type: str) -> None:
    export = SHARED / f"{name}.sqlite"
    if not export.exists():
        pytest.skip(f"{SHARED} is not there: the exports are not part of the project")
    expected = NsysSqliteReader().read(TraceFiles(export.name, export, 0))
    assert_same(read(write_directory(export, tmp_path / name, export_type)), expected, name)


def test_numbers_that_are_none_are_unknown_and_said(tmp_path: Path) -> None:
    directory = write_directory(example(tmp_path / "a.sqlite"), tmp_path / "directory", "parquetdir")
    path = directory / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pl.read_parquet(path).with_columns(gridX=pl.lit("many"), gridY=pl.lit(1.5), gridZ=pl.lit(True)).write_parquet(path)
    found = read(directory)
    assert found.frames["kernel_launches"].select("grid_x", "grid_y", "grid_z").rows() == [(None, None, 1)] * 3
    assert "6 values of table CUPTI_ACTIVITY_KIND_KERNEL are no integers" in found.notes


def test_texts_by_number_are_texts(tmp_path: Path) -> None:
    """Parquet files have dictionaries, and readers of them may see those."""
    directory = write_directory(example(tmp_path / "a.sqlite"), tmp_path / "directory", "parquetdir")
    path = directory / "StringIds.parquet"
    pl.read_parquet(path).with_columns(pl.col("value").cast(pl.Categorical)).write_parquet(path)
    assert read(directory).frames["trace_names"].equals(read(tmp_path / "a.sqlite").frames["trace_names"])


@pytest.mark.parametrize("export_type", TYPES)
def test_a_table_that_is_cut_off_is_named(tmp_path: Path, export_type: str) -> None:
    directory = write_directory(example(tmp_path / "a.sqlite"), tmp_path / "directory", export_type)
    path = directory / f"NVTX_EVENTS.{ENDINGS[export_type]}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidTraceError, match="directory directory, table NVTX_EVENTS"):
        read(directory)


def test_one_table_and_tables_of_others_are_refused(tmp_path: Path) -> None:
    directory = write_directory(example(tmp_path / "a.sqlite"), tmp_path / "directory", "arrowdir")
    with pytest.raises(InvalidTraceError, match="one table alone"):
        read(directory / "NVTX_EVENTS.arrow")
    others = tmp_path / "others"
    others.mkdir()
    for name in ("sales", "costs"):
        write_table(pl.DataFrame({"year": [2025]}), others / f"{name}.parquet")
    with pytest.raises(InvalidTraceError, match="no tables of an export"):
        read(others)
    files = TraceFiles("sales.parquet", others / "sales.parquet", 0, {"others/costs.parquet": others / "costs.parquet"})
    with pytest.raises(InvalidTraceError, match="the tables costs, sales"):
        select_reader(files).read(files)


def test_a_directory_is_a_trace_or_has_traces(tmp_path: Path) -> None:
    export = example(tmp_path / "a.sqlite")
    below = tmp_path / "below"
    below.mkdir()
    directory = write_directory(export, below / "report_pqtdir", "parquetdir")
    (below / "notes.txt").write_text("hello")
    (directory / "more").mkdir()
    (below / "around").symlink_to(tmp_path)
    assert find_traces(tmp_path) == [export, directory]
    assert find_traces(directory) == [directory]
    assert find_traces(below / "notes.txt") == [below / "notes.txt"]
    (below / "empty").mkdir()
    assert find_traces(below / "empty") == []
