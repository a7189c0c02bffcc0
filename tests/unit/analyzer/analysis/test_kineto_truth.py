"""Every Kineto trace in the shared folder against answers that were computed without this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.analysis.traces.kernels import trace_kernels
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto.reader import FORMAT, KinetoReader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.traces import TIMELINE_TABLES

SHARED = Path(__file__).parents[5] / "shared" / "data"
FILES = sorted((SHARED / "kineto").glob("*.json.gz")) or [SHARED / "kineto" / "none.json.gz"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_figures_are_those_of_the_answers(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the traces and their answers are not part of the project")
    answers = SHARED / "expected" / f"kineto_{path.name.removesuffix('.gz')}"
    expected: dict[str, Any] = json.loads(answers.read_text())
    files = TraceFiles(path.name, path, arrived_unix_ns=0)
    assert select_reader(files).format == FORMAT
    read = KinetoReader().read(files)
    for table in TIMELINE_TABLES:
        assert read.frames[table.table_name].columns == list(table.column_names[2:]), table.table_name
    frames = {name: frame.lazy() for name, frame in read.frames.items()}
    launches, names, ranges = frames["kernel_launches"], frames["trace_names"], frames["ranges"]

    assert f"Kineto trace of {expected['event_count']} events." in read.notes
    assert launches.collect().height == expected["kernel_count"]
    assert launches.filter(pl.col("api_call_index").is_not_null()).collect().height == expected["kernel_with_runtime_call_count"]
    in_module = launches.filter(pl.col("layer_source") == "module").collect()
    assert in_module.height == expected["kernel_in_module_count"]
    missing_count = expected["kernel_count"] - expected["kernel_with_runtime_call_count"]
    assert (f"{missing_count} of {expected['kernel_count']} kernels have no runtime call" in read.notes) == (missing_count > 0)

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

    layers = trace_layers(launches, ranges, names).filter(pl.col("source") == "module").collect()
    assert {
        row["layer"]: {"count": row["launch_count"], "kernel_ns": row["duration_sum_ns"]} for row in layers.iter_rows(named=True)
    } == expected["innermost_module"]

    breakdown = trace_breakdown(launches, frames["memory_ops"], names, frames["trace_devices"]).filter(pl.col("launch_count") > 0).collect()
    assert {str(row["device_index"]): row["busy_ns"] for row in breakdown.iter_rows(named=True)} == expected["busy_ns"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_rows_are_in_order_and_refer_to_rows_that_hold_them(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the traces and their answers are not part of the project")
    frames = KinetoReader().read(TraceFiles(path.name, path, arrived_unix_ns=0)).frames
    for table_name, index_name in (("kernel_launches", "launch_index"), ("api_calls", "call_index"), ("ranges", "range_index")):
        frame = frames[table_name]
        assert frame[index_name].to_list() == list(range(frame.height))
        assert frame["start_ns"].is_sorted()
        assert (frame["start_ns"] >= 0).all()
    launches, calls, ranges = frames["kernel_launches"], frames["api_calls"], frames["ranges"]
    called = launches.join(calls, left_on="api_call_index", right_on="call_index", suffix="_of_call")
    assert (called["launch_start_ns"] == called["start_ns_of_call"]).all()
    assert (called["correlation_id"] == called["correlation_id_of_call"]).all()
    assert (called["process_id"] == called["process_id_of_call"]).all()
    nested = ranges.join(ranges, left_on="parent_range_index", right_on="range_index", suffix="_of_parent")
    assert (nested["thread_id"] == nested["thread_id_of_parent"]).all()
    assert (nested["start_ns"] >= nested["start_ns_of_parent"]).all()
    ends_ns = [nested[f"start_ns{suffix}"] + nested[f"duration_ns{suffix}"] for suffix in ("", "_of_parent")]
    assert (ends_ns[0] <= ends_ns[1]).all()
    assert (nested["depth"] == nested["depth_of_parent"] + 1).all()
