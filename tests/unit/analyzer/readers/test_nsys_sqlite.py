"""Exports of Nsight Systems: each trap that a reader can fall into, in a few rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.queries.registry import trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, Selection, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader, read_tables
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.traces import TIMELINE_TABLES
from kernalyse.services.core.errors import InvalidTraceError
from tests.unit.nsys_export import THREAD, call, global_id, kernel, nvtx, write_export


def read(path: Path) -> ReadResult:
    return NsysSqliteReader().read(TraceFiles(path.name, path, 0))


def named(tables: ReadResult, table_name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows with names in the place of name_index."""
    names = tables.frames["trace_names"]
    frame = tables.frames[table_name].join(names, on="name_index", how="left", maintain_order="left")
    return frame.select(columns).rows()


def layers_of_kernels(tables: ReadResult) -> list[str | None]:
    """Name of the range of each kernel."""
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index", how="left").select("range_index", "name")
    return tables.frames["kernel_launches"].join(ranges, on="range_index", how="left", maintain_order="left")["name"].to_list()


def test_a_kernel_has_its_call_thread_and_innermost_range(tmp_path: Path) -> None:
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(500, 900, 1)],
        calls=[call(150, 160, 1)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, None, textId=3), nvtx(170, 180, "later")],
        copies=[kernel(10, 30, 1, bytes=4096)],
        gpus=[{}],
    )
    tables = read(path)
    launch = tables.frames["kernel_launches"].row(0, named=True)
    assert (launch["launch_thread_id"], launch["launch_start_ns"], launch["duration_ns"]) == (THREAD, 150, 400)
    assert (launch["process_id"], launch["device_index"], launch["stream_index"], launch["layer_source"]) == (77, 0, 7, "range")
    assert (launch["grid_x"], launch["block_x"], launch["registers_per_thread"], launch["dynamic_shared_bytes"]) == (8, 256, 32, 1024)
    assert layers_of_kernels(tables) == ["forward"]
    assert named(tables, "ranges", "name", "depth", "parent_range_index") == [("step", 0, None), ("forward", 1, 0), ("later", 2, 1)]
    assert named(tables, "api_calls", "name", "duration_ns", "return_value") == [("cudaLaunchKernel_v7000", 10, 0)]
    assert tables.frames["memory_ops"].select("kind", "direction", "bytes", "launch_start_ns").rows() == [
        ("copy", "host_to_device", 4096, 150)
    ]
    device = tables.frames["trace_devices"].row(0, named=True)
    assert (device["device_name"], device["compute_capability"], device["clock_hz"]) == ("NVIDIA H200", "9.0", 1_980_000_000)


def test_correlation_ids_are_those_of_their_process(tmp_path: Path) -> None:
    other = 90
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(500, 900, 1), kernel(600, 900, 1, globalPid=global_id(other))],
        calls=[call(350, 360, 1, globalTid=global_id(other, 91)), call(150, 160, 1)],
        ranges=[nvtx(100, 400, "of 77"), nvtx(100, 400, "of 90", globalTid=global_id(other, 91))],
    )
    tables = read(path)
    assert layers_of_kernels(tables) == ["of 77", "of 90"]
    assert tables.frames["kernel_launches"]["launch_start_ns"].to_list() == [150, 350]
    assert tables.frames["trace_processes"]["process_id"].to_list() == [77, 90]


def test_calls_in_any_order_and_the_last_of_equal_ids(tmp_path: Path) -> None:
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(500, 900, 1), kernel(400, 450, 2)],
        calls=[call(350, 360, 2), call(250, 260, 1), call(150, 160, 1)],
        ranges=[nvtx(100, 200, "early"), nvtx(240, 270, "middle"), nvtx(340, 370, "late")],
    )
    tables = read(path)
    assert tables.frames["kernel_launches"]["start_ns"].to_list() == [400, 500]  # in order of start, whatever the file's
    assert layers_of_kernels(tables) == ["late", "early"]
    calls = tables.frames["api_calls"]["start_ns"].to_list()
    assert [calls[index] for index in tables.frames["kernel_launches"]["api_call_index"]] == [350, 150]


def test_kernels_without_a_call_are_counted_and_kept(tmp_path: Path) -> None:
    tables = read(write_export(tmp_path / "a.sqlite", kernels=[kernel(1, 2, 5), kernel(3, 4)], calls=[call(0, 1, 6)], ranges=[]))
    assert tables.frames["kernel_launches"].height == 2
    assert "2 of 2 kernels have no runtime call" in tables.notes
    assert "no NVTX ranges" in tables.notes


def test_a_range_that_never_ended_is_there_and_holds_no_kernel(tmp_path: Path) -> None:
    tables = read(
        write_export(
            tmp_path / "a.sqlite",
            kernels=[kernel(500, 900, 1)],
            calls=[call(150, 160, 1)],
            ranges=[nvtx(0, 1000, "step"), nvtx(100, None, "open")],
        )
    )
    assert layers_of_kernels(tables) == ["step"]
    assert named(tables, "ranges", "name", "is_open", "duration_ns") == [("step", False, 1000), ("open", True, 900)]
    assert "1 ranges had not ended" in tables.notes


def test_start_end_ranges_overlap_and_domains_have_names(tmp_path: Path) -> None:
    tables = read(
        write_export(
            tmp_path / "a.sqlite",
            kernels=[kernel(500, 900, 1)],
            calls=[call(150, 160, 1)],
            ranges=[
                nvtx(0, None, "NCCL", eventType=75, domainId=4),
                nvtx(0, 155, "first", eventType=60, domainId=4),
                nvtx(100, 400, "second", eventType=60),
                nvtx(120, None, "a mark", eventType=34),
            ],
        )
    )
    assert layers_of_kernels(tables) == ["second"]
    names = tables.frames["trace_names"]["name"].to_list()
    rows = tables.frames["ranges"].select("kind", "domain_name_index", "parent_range_index").rows()
    assert [(kind, names[domain] if domain is not None else None, parent) for kind, domain, parent in rows] == [
        ("start_end", "NCCL", None),
        ("start_end", None, None),
    ]
    assert "1 other NVTX events" in tables.notes


def test_what_overlaps_counts_once_and_copies_are_not_busy(tmp_path: Path) -> None:
    nccl = {"demangledName": 3}
    tables = read(
        write_export(
            tmp_path / "a.sqlite",
            strings={1: "gemm", 2: "cudaLaunchKernel", 3: "ncclDevKernel_AllReduce"},
            kernels=[kernel(0, 100), kernel(50, 150, **nccl), kernel(60, 70), kernel(300, 310, **nccl)],
            copies=[kernel(140, 200, bytes=1)],
            fills=[kernel(400, 420, bytes=1)],
        )
    )
    trace = trace_frames(tables.frames)
    row = (
        trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"])
        .collect()
        .row(0, named=True)
    )
    assert {name: row[name] for name in row if name.endswith("_ns")} == {
        "span_ns": 420, "busy_ns": 160, "idle_ns": 260, "compute_ns": 100, "communication_ns": 110, "overlap_ns": 50, "memory_ns": 80,
        "memory_only_ns": 70,
    }  # fmt: skip


def test_layers_are_summed_at_a_depth(tmp_path: Path) -> None:
    tables = read(
        write_export(
            tmp_path / "a.sqlite",
            kernels=[kernel(500, 900, 1), kernel(900, 1000, 2), kernel(1000, 1007, 3)],
            calls=[call(150, 160, 1), call(250, 260, 2), call(990, 995, 3)],
            ranges=[nvtx(0, 600, "step"), nvtx(100, 200, "a"), nvtx(140, 190, "b"), nvtx(240, 290, "a")],
        )
    )
    trace = trace_frames(tables.frames)

    def layers(depth: int | None) -> list[tuple[Any, ...]]:
        found = trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], depth).collect()
        return found.select("layer", "call_count", "launch_count", "duration_sum_ns", "source").rows()

    assert layers(None) == [("b", 1, 1, 400, "range"), ("a", 1, 1, 100, "range"), (None, 0, 1, 7, None)]
    assert layers(1) == [("a", 2, 2, 500, "range"), (None, 0, 1, 7, None)]
    assert layers(0) == [("step", 1, 2, 500, "range"), (None, 0, 1, 7, None)]


def test_columns_that_a_version_lacks_are_null_and_said(tmp_path: Path) -> None:
    path = write_export(
        tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)], calls=[call(1, 2, 1)], ranges=[], without=("graphNodeId", "gridX")
    )
    tables = read(path)
    assert tables.frames["kernel_launches"].select("graph_node_id", "grid_x", "grid_y").row(0) == (None, None, 1)
    assert "Its kernels have no graphNodeId, gridX" in tables.notes


def test_a_newer_schema_is_read_with_a_warning(tmp_path: Path) -> None:
    tables = read(write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9)], schema_version="4.1.0"))
    assert tables.frames["kernel_launches"].height == 1
    assert "newer than 3.30" in tables.notes


def test_only_what_is_wanted_is_read_and_it_is_the_same(tmp_path: Path) -> None:
    path = write_export(
        tmp_path / "a.sqlite",
        kernels=[kernel(5, 9, 1)],
        calls=[call(1, 2, 1)],
        ranges=[nvtx(0, 3, "all")],
        copies=[kernel(1, 2)],
        gpus=[{}],
    )
    everything = read(path)
    for table in TIMELINE_TABLES[1:]:
        for column in everything.frames[table.table_name].columns:
            wanted = {table.table_name: (column,), "trace_names": ("name_index", "name")}
            part = NsysSqliteReader().read_columns(TraceFiles(path.name, path, 0), Selection.of([wanted]))
            if column == "name_index":  # names are numbered in the order of their use
                assert named(part, table.table_name, "name") == named(everything, table.table_name, "name")
            else:
                assert part.frames[table.table_name][column].to_list() == everything.frames[table.table_name][column].to_list(), column


# ---------------------------------------------------------------- what is no export, or a damaged one


def truncated(path: Path) -> None:
    write_export(path, kernels=[kernel(n, n + 1) for n in range(5000)])
    path.write_bytes(path.read_bytes()[:30_000])


def truncated_unnoticed(path: Path) -> None:
    """The header does not say how long the file is, as those of old versions of SQLite."""
    write_export(path, kernels=[kernel(n, n + 1) for n in range(5000)])
    content = bytearray(path.read_bytes()[: 4096 * 8])
    content[24:28] = b"\0\0\0\7"
    content[92:96] = b"\0\0\0\6"
    path.write_bytes(content)


def scribbled(path: Path) -> None:
    write_export(path, kernels=[kernel(n, n + 1) for n in range(5000)])
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 4096):
        content[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    path.write_bytes(content)


def of_another_kind(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
        connection.commit()


def without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
        connection.commit()


def header_alone(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "its end is missing"),
        (truncated_unnoticed, "malformed"),
        (scribbled, "malformed"),
        (of_another_kind, "moz_places"),
        (without_tables, "without tables"),
        (header_alone, "no header of SQLite"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_file_that_cannot_be_read_says_what_it_is(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "bad.sqlite"
    damage(path)
    with pytest.raises(InvalidTraceError, match=said):
        read(path)


def test_an_empty_file_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    with pytest.raises(InvalidTraceError, match="nothing in it"):
        select_reader(TraceFiles(path.name, path, 0))


def test_an_export_without_kernels_says_so(tmp_path: Path) -> None:
    tables = read(write_export(tmp_path / "a.sqlite", ranges=[nvtx(1, 2, "alone")]))
    assert "no kernels" in tables.notes
    assert tables.frames["ranges"].height == 1
    assert tables.frames["kernel_launches"].height == 0


def test_negative_durations_and_rows_without_times_are_said(tmp_path: Path) -> None:
    tables = read(
        write_export(
            tmp_path / "a.sqlite",
            kernels=[kernel(10, 4, 1), kernel(20, 25, 2), {"start": None, "end": 3}],
            calls=[call(1, 2, 1), call(3, 4, 2)],
            ranges=[nvtx(0, 9, "good"), nvtx(2, 1, "backwards")],
        )
    )
    assert "1 kernels end before they start" in tables.notes
    assert "1 kernels without start or end are skipped" in tables.notes
    assert layers_of_kernels(tables) == ["good", "good"]
    trace = trace_frames(tables.frames)
    breakdown = trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"]).collect()
    assert breakdown["busy_ns"].to_list() == [5]


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)], calls=[call(1, 2, 1)], ranges=[nvtx(0, 3, "half")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(x'61ff0062' AS TEXT)")
        connection.execute("UPDATE StringIds SET value = CAST(x'c328' AS TEXT) WHERE id = 1")
        connection.commit()
    tables = read(path)
    assert layers_of_kernels(tables) == ["a\N{REPLACEMENT CHARACTER}\0b"]
    assert named(tables, "kernel_launches", "name") == [("\N{REPLACEMENT CHARACTER}(",)]


def test_a_number_that_is_text_is_unknown_and_said(tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1, gridX="many"), kernel(15, 19, 1, gridX=3)], calls=[call(1, 2, 1)])
    tables = read(path)
    assert tables.frames["kernel_launches"]["grid_x"].to_list() == [None, 3]
    assert "1 values of table CUPTI_ACTIVITY_KIND_KERNEL are no integers" in tables.notes


def test_both_ways_of_reading_are_one(tmp_path: Path) -> None:
    """Long texts spill past their pages; the columns after them too."""
    ranges = [nvtx(n, n + 5, ("x" * (n * 37 % 9000)) or None, textId=3 if n % 3 else None, domainId=n % 2) for n in range(400)]
    path = write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)], calls=[call(1, 2, 1)], ranges=ranges)
    found = []
    for decodes_pages in (True, False):
        with closing(SqliteFile.open(path, path.name, decodes_pages=decodes_pages)) as file:
            found.append(read_tables(file))
    assert found[0].notes == found[1].notes
    for name, frame in found[0].frames.items():
        # Names are numbered in the order that their rows were read in.
        assert frame.drop("name_index", "name", strict=False).equals(found[1].frames[name].drop("name_index", "name", strict=False)), name
    for name in ("kernel_launches", "api_calls", "ranges"):
        assert named(found[0], name, "name") == named(found[1], name, "name")
    assert found[0].frames["trace_names"].sort("name")["name"].equals(found[1].frames["trace_names"].sort("name")["name"])
    assert pl.Series(layers_of_kernels(found[0])).null_count() == 0
