"""Every Kineto trace in the shared directory against answers that were computed without this project."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto.reader import FORMAT, KinetoReader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.traces import TIMELINE_TABLES
from tests.unit.trace_truth import SHARED, assert_kernels_and_layers, expected_of, shared_traces

FILES = shared_traces("kineto", ".json.gz")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_figures_are_those_of_the_answers(path: Path) -> None:
    expected = expected_of(path, f"kineto_{path.name.removesuffix('.gz')}")
    files = TraceFiles(path.name, path, arrived_unix_ns=0)
    assert select_reader(files).format == FORMAT
    read = KinetoReader().read(files)
    for table in TIMELINE_TABLES:
        assert read.frames[table.table_name].columns == list(table.column_names[2:]), table.table_name
    frames = {name: frame.lazy() for name, frame in read.frames.items()}
    launches = frames["kernel_launches"]

    assert f"Kineto trace of {expected['event_count']} events." in read.notes
    assert launches.filter(pl.col("layer_source") == "module").collect().height == expected["kernel_in_module_count"]
    assert_kernels_and_layers(frames, read.notes, expected, "module", "innermost_module")

    breakdown = trace_breakdown(launches, frames["memory_ops"], frames["trace_names"], frames["trace_devices"]).collect()
    launching = breakdown.filter(pl.col("launch_count") > 0)
    assert {str(row["device_index"]): row["busy_ns"] for row in launching.iter_rows(named=True)} == expected["busy_ns"]


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
