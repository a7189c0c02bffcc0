"""Launches, memory operations, collectives and ranks of traces that are written out here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.registry import read_trace
from tests.examples import examples
from tests.unit.trace_rows import names, trace_of

SHARED = Path(__file__).parents[5] / "shared" / "data"
GPU = {"process_id": 1, "device_index": 0, "device_name": "H100", "memory_bandwidth_bytes_per_s": 1_000_000_000_000}
REDUCE, GEMM, SENDRECV = range(3)
NCCL = names("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gemm", "ncclDevKernel_SendRecv")


def answer(name: str, trace: Frames) -> list[dict[str, Any]]:
    return TRACE_DERIVED[name].compute(trace, DEFAULT_QUERY).collect().to_dicts()


def columns(rows: list[dict[str, Any]], *wanted: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in wanted) for row in rows]


# ---------------------------------------------------------------- launches


def test_a_launch_is_measured_from_its_call() -> None:
    delays = [1000, 2000, 3000, 50_000]
    kernels = [
        {"name_index": 0, "start_ns": 100 * row + delay, "duration_ns": 9_999 + row, "api_call_index": row, "launch_start_ns": 100 * row}
        for row, delay in enumerate(delays)
    ]
    kernels.append({"name_index": 0, "start_ns": 999_999, "duration_ns": 5})  # nobody knows its call
    calls = [{"name_index": 1, "duration_ns": duration} for duration in (10, 20, 30, 100)]
    trace = trace_of(kernel_launches=kernels, api_calls=calls, trace_names=names("gemm", "cudaLaunchKernel"))
    (row,) = answer("launches", trace)
    assert (row["launch_count"], row["call_duration_median_ns"], row["queue_delay_median_ns"]) == (5, 25, 2500)
    assert (row["queue_delay_max_ns"], row["queue_delay_p95_ns"]) == (50_000, pytest.approx(3000 + 0.85 * 47_000))
    assert (row["short_count"], row["short_share_ratio"]) == (2, 0.4)
    assert (row["graph_kernel_count"], row["graph_launch_count"], row["launches_per_graph_count"]) == (0, 0, None)


def test_kernels_of_graphs_are_counted_by_graph() -> None:
    kernels = [{"name_index": 0, "start_ns": row, "duration_ns": 1, "api_call_index": row // 3} for row in range(6)]
    kernels += [{"name_index": 0, "start_ns": 9, "duration_ns": 1, "graph_node_id": 7}]
    kernels += [{"name_index": 0, "start_ns": 10, "duration_ns": 1, "api_call_index": 2}]
    calls = [{"name_index": 1}, {"name_index": 1}, {"name_index": 2}]
    trace = trace_of(kernel_launches=kernels, api_calls=calls, trace_names=names("gemm", "cudaGraphLaunch_v10000", "cudaLaunchKernel"))
    (row,) = answer("launches", trace)
    assert (row["graph_kernel_count"], row["graph_launch_count"], row["launches_per_graph_count"]) == (7, 2, 3.0)


# ---------------------------------------------------------------- memory


def operation(kind: str, direction: str | None, size: int | None, duration: int) -> dict[str, Any]:
    return {"process_id": 1, "device_index": 0, "kind": kind, "direction": direction, "bytes": size, "duration_ns": duration, "start_ns": 0}


def test_rates_are_of_the_operations_whose_bytes_and_time_are_known() -> None:
    ops = [
        operation("copy", "host_to_device", 1_000_000, 100_000),
        operation("copy", "host_to_device", 3_000_000, 100_000),
        operation("copy", "host_to_device", None, 900_000),
        operation("copy", "host_to_device", 64, 0),
        operation("copy", "device_to_device", 100_000_000, 400_000),
        operation("set", None, 65_535, 1000),
        operation("set", None, 65_536, 1000),
    ]
    rows = answer("memory", trace_of(memory_ops=ops, trace_devices=[GPU]))
    wanted = ("kind", "direction", "op_count", "bytes_sum", "duration_sum_ns", "small_op_count")
    assert columns(rows, *wanted) == [
        ("copy", "host_to_device", 4, 4_000_064, 1_100_000, 1),
        ("copy", "device_to_device", 1, 100_000_000, 400_000, 0),
        ("set", None, 2, 131_071, 2000, 1),
    ]
    assert [row["achieved_bytes_per_s"] for row in rows] == pytest.approx([2e10, 2.5e11, 6.55355e10])
    assert (rows[0]["bandwidth_ratio"], rows[1]["bandwidth_ratio"]) == (None, pytest.approx(0.5))  # read and written


def test_bytes_that_nobody_stated_are_not_none() -> None:
    (row,) = answer("memory", trace_of(memory_ops=[operation("copy", None, None, 10)]))
    assert (row["bytes_sum"], row["achieved_bytes_per_s"], row["device_name"]) == (None, None, None)


# ---------------------------------------------------------------- ranks


def rank(process: int, *kernels: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Kernels as name, start, end."""
    return [
        {"process_id": process, "device_index": 0, "name_index": name, "start_ns": start, "duration_ns": end - start}
        for name, start, end in kernels
    ]


def process(number: int, file: str, **others: Any) -> dict[str, Any]:
    return {"process_id": number, "rank_index": number, "file_name": file} | others


def job(processes: list[dict[str, Any]], *ranks: list[dict[str, Any]]) -> Frames:
    kernels = sorted((row for rows in ranks for row in rows), key=lambda row: row["start_ns"])
    return trace_of(kernel_launches=kernels, trace_processes=processes, trace_names=NCCL)


def test_who_comes_last_lets_the_others_wait() -> None:
    trace = job(
        [process(0, "a"), process(1, "a"), process(2, "a")],
        rank(0, (GEMM, 0, 50), (REDUCE, 100, 200), (REDUCE, 310, 400)),
        rank(1, (REDUCE, 150, 201), (REDUCE, 300, 400)),
        rank(2, (REDUCE, 120, 200), (REDUCE, 390, 404)),
    )
    rows = answer("collectives", trace)
    assert columns(rows, "collective_index", "rank_index", "late_ns", "wait_ns", "is_straggler", "end_spread_ns") == [
        (0, 0, 0, 50, False, 1),
        (0, 1, 50, 0, True, 1),
        (0, 2, 20, 30, False, 1),
        (1, 0, 10, 80, False, 4),
        (1, 1, 0, 90, False, 4),
        (1, 2, 90, 0, True, 4),
    ]
    assert [row["wait_ratio"] for row in rows[:2]] == [0.5, 0.0]
    ranks = answer("ranks", trace)
    assert columns(ranks, "rank_index", "collective_count", "wait_ns", "straggler_count", "clock_source", "clock_residual_ns") == [
        (0, 2, 130, 0, "shared", 2.5),
        (1, 2, 90, 1, "shared", 2.5),
        (2, 2, 30, 1, "shared", 2.5),
    ]
    assert columns(ranks, "busy_ns", "compute_ns", "communication_ns") == [(240, 50, 190), (151, 0, 151), (94, 0, 94)]


def test_clocks_of_two_machines_are_set_by_the_ends_of_collectives() -> None:
    """The second one's clock is 5 ms ahead, its session began 1 s later, and one of three ends is off."""
    second, ahead = 1_000_000_000, 5_000_000
    own = [(REDUCE, 2 * second + start, 2 * second + end) for start, end in ((1000, 9000), (20_000, 30_000), (40_000, 50_000))]
    others = [(REDUCE, second + ahead + start, second + ahead + end) for start, end in ((4000, 9000), (20_000, 30_100), (45_000, 50_000))]
    trace = job(
        [process(0, "a", session_start_unix_ns=7 * second), process(1, "b", session_start_unix_ns=8 * second)],
        rank(0, *own),
        rank(1, *others),
    )
    ranks = answer("ranks", trace)
    assert columns(ranks, "clock_source", "clock_offset_ns", "clock_residual_ns") == [("shared", 0, 0.0), ("collectives", ahead, 0.0)]
    rows = answer("collectives", trace)
    assert columns(rows, "rank_index", "late_ns")[1::2] == [(1, 3000), (1, 0), (1, 5000)]
    assert [row["end_spread_ns"] for row in rows] == [0, 0, 100, 100, 0, 0]


def test_groups_that_did_not_run_at_once_are_not_mixed() -> None:
    trace = job(
        [process(number, "a") for number in range(4)],
        rank(0, (REDUCE, 0, 10)),
        rank(1, (REDUCE, 5, 10)),
        rank(2, (REDUCE, 20, 30)),
        rank(3, (REDUCE, 21, 30)),
    )
    assert columns(answer("collectives", trace), "collective_index", "rank_index", "rank_count") == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 2, 2),
        (1, 3, 2),
    ]


def test_a_program_of_one_process_has_a_rank_and_no_collectives() -> None:
    trace = job([process(0, "a")], rank(0, (REDUCE, 0, 10)))
    assert answer("collectives", trace) == []
    assert columns(answer("ranks", trace), "communication_ns", "wait_ns") == [(10, None)]


@given(st.integers(-(10**12), 10**12), st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.data())
@examples(50)
def test_any_difference_of_clocks_is_found_again(ahead: int, waits: list[int], data: Any) -> None:
    starts = [10_000 * place for place in range(len(waits))]
    errors = data.draw(st.lists(st.integers(-20, 20), min_size=len(waits), max_size=len(waits)))
    first = [(REDUCE, start, start + 2000) for start in starts]
    second = [
        (REDUCE, start + ahead + wait, start + ahead + 2000 + error) for start, wait, error in zip(starts, waits, errors, strict=True)
    ]
    _, other = answer("ranks", job([process(0, "a"), process(1, "b")], rank(0, *first), rank(1, *second)))
    assert abs(other["clock_offset_ns"] - ahead) <= 20
    assert other["collective_count"] == len(waits)


def test_the_exchanges_of_two_real_ranks() -> None:
    path = SHARED / "nsys" / "h100x2_mfu_before.sqlite"
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: traces of others are not part of the project")
    trace = trace_frames(read_trace(TraceFiles(path.name, path, 0)).frames)
    found = TRACE_DERIVED["collectives"].compute(trace, DEFAULT_QUERY).collect()
    kernels = trace["kernel_launches"].join(trace["trace_names"].filter(pl.col("name").str.contains("nccl")), on="name_index").collect()
    by_process = [part.sort("start_ns") for _, part in kernels.group_by("process_id", maintain_order=True)]
    pairs = [(one, other) for one, other in zip(*(part.iter_rows(named=True) for part in by_process), strict=True)]
    together = [
        abs(one["start_ns"] - other["start_ns"])
        for one, other in pairs
        if max(one["start_ns"], other["start_ns"]) <= min(row["start_ns"] + row["duration_ns"] for row in (one, other))
    ]
    assert found.group_by("collective_index").agg(pl.col("wait_ns").max()).sort("collective_index")["wait_ns"].to_list() == together
    assert found["rank_count"].unique().to_list() == [2]
