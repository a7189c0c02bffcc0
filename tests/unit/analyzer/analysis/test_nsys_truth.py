"""Every export of Nsight Systems in the shared directory against answers that were computed without this project."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.readers.nsys.reader import read_tables
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.analyzer.tables.traces import TRACE_TABLES
from tests.unit.trace_truth import assert_kernels_and_layers, expected_of, shared_traces

FILES = shared_traces("nsys", ".sqlite")


def tables(path: Path, *, decodes_pages: bool) -> tuple[dict[str, pl.LazyFrame], str]:
    file = SqliteFile.open(path, path.name, decodes_pages=decodes_pages)
    try:
        read = read_tables(file)
    finally:
        file.close()
    frames = {table.table_name: table.conform(read.frames.get(table.table_name, pl.DataFrame()).lazy()) for table in TRACE_TABLES}
    return frames, read.notes


@pytest.mark.parametrize("decodes_pages", [True, False], ids=["pages", "sqlite3"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_are_those_of_the_answers(path: Path, decodes_pages: bool) -> None:
    expected = expected_of(path, f"nsys_{path.stem}.json")
    frames, notes = tables(path, decodes_pages=decodes_pages)
    launches, ranges = frames["kernel_launches"], frames["ranges"]

    assert launches.filter(pl.col("range_index").is_not_null()).collect().height == expected["kernel_in_range_count"]
    assert ranges.filter(~pl.col("is_open")).collect().height == expected["range_count"]
    assert_kernels_and_layers(frames, notes, expected, "range", "innermost_range")

    breakdown = trace_breakdown(launches, frames["memory_ops"], frames["trace_names"], frames["trace_devices"]).collect()
    assert {
        f"{row['process_id']}/{row['device_index']}": row["busy_ns"] for row in breakdown.iter_rows(named=True) if row["launch_count"]
    } == expected["busy_ns"]
    assert (breakdown["busy_ns"] + breakdown["idle_ns"]).to_list() == breakdown["span_ns"].to_list()
