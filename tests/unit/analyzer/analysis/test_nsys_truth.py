"""Every export of Nsight Systems in the shared folder against answers that were computed without this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.analysis.traces.kernels import trace_kernels
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.readers.nsys.reader import read_tables
from kernalyse.services.analyzer.readers.nsys.sqlite_file import SqliteFile
from kernalyse.services.analyzer.tables.traces import TRACE_TABLES

SHARED = Path(__file__).parents[5] / "shared" / "data"
FILES = sorted((SHARED / "nsys").glob("*.sqlite")) or [SHARED / "nsys" / "none.sqlite"]


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
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the exports and their answers are not part of the project")
    expected: dict[str, Any] = json.loads((SHARED / "expected" / f"nsys_{path.stem}.json").read_text())
    frames, notes = tables(path, decodes_pages=decodes_pages)
    launches, names, ranges = frames["kernel_launches"], frames["trace_names"], frames["ranges"]

    assert launches.collect().height == expected["kernel_count"]
    assert launches.filter(pl.col("api_call_index").is_not_null()).collect().height == expected["kernel_with_runtime_call_count"]
    assert launches.filter(pl.col("range_index").is_not_null()).collect().height == expected["kernel_in_range_count"]
    assert ranges.filter(~pl.col("is_open")).collect().height == expected["range_count"]
    missing_count = expected["kernel_count"] - expected["kernel_with_runtime_call_count"]
    assert (f"{missing_count} of {expected['kernel_count']} kernels have no runtime call" in notes) == (missing_count > 0)

    kernels = trace_kernels(launches, names).collect()
    assert {
        row["kernel_name"]: {
            "count": row["launch_count"],
            "sum_ns": row["duration_sum_ns"],
            "min_ns": row["duration_min_ns"],
            "max_ns": row["duration_max_ns"],
        }
        for row in kernels.iter_rows(named=True)
    } == expected["kernels"]

    layers = trace_layers(launches, ranges, names).filter(pl.col("source") == "range").collect()
    assert {
        row["layer"]: {"count": row["launch_count"], "kernel_ns": row["duration_sum_ns"]} for row in layers.iter_rows(named=True)
    } == expected["innermost_range"]

    breakdown = trace_breakdown(launches, frames["memory_ops"], names, frames["trace_devices"]).collect()
    assert {
        f"{row['process_id']}/{row['device_index']}": row["busy_ns"] for row in breakdown.iter_rows(named=True) if row["launch_count"]
    } == expected["busy_ns"]
    assert (breakdown["busy_ns"] + breakdown["idle_ns"]).to_list() == breakdown["span_ns"].to_list()
