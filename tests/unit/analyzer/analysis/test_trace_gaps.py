"""Stretches without a kernel and their reasons, held against counting every nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.registry import read_trace
from tests.examples import examples
from tests.unit.trace_rows import Rows, names, trace_of

SHARED = Path(__file__).parents[5] / "shared" / "data"
FILES = sorted(path for kind in ("nsys/*.sqlite", "kineto/*.json.gz") for path in SHARED.glob(kind))
NAMES = ("gemm", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaMemcpy_v3020", "cudaMemcpyAsync", "forward")
LAUNCH, SYNC, MALLOC, COPY, COPY_ASYNC, FORWARD = range(1, 7)
WAITING = (SYNC, COPY)


def gaps(trace: Frames) -> pl.DataFrame:
    return TRACE_DERIVED["gaps"].compute(trace, DEFAULT_QUERY).collect()


def kernel(start: int, duration: int, call: int | None = None, device: int = 0, **others: Any) -> dict[str, Any]:
    return {
        "start_ns": start,
        "duration_ns": duration,
        "api_call_index": call,
        "device_index": device,
        "process_id": 1,
        "name_index": 0,
    } | others


def copy(start: int, duration: int, device: int = 0) -> dict[str, Any]:
    return {"start_ns": start, "duration_ns": duration, "device_index": device, "process_id": 1, "kind": "copy"}


def call(start: int, duration: int, name: int = LAUNCH, thread: int = 5) -> dict[str, Any]:
    return {"start_ns": start, "duration_ns": duration, "name_index": name, "thread_id": thread, "process_id": 1}


def one_gap(calls: Rows, copies: Rows = (), launching: int | None = 0) -> dict[str, Any]:
    """Of two kernels with nothing between 100 and 200; the second one was launched by that call."""
    trace = trace_of(
        kernel_launches=[kernel(0, 100), kernel(200, 50, launching)], api_calls=calls, memory_ops=copies, trace_names=names(*NAMES)
    )
    (row,) = gaps(trace).to_dicts()
    assert (row["start_ns"], row["duration_ns"], row["kernel_before"], row["kernel_after"]) == (100, 100, "gemm", "gemm")
    return row


def test_work_that_was_there_waited_for_the_device() -> None:
    row = one_gap([call(90, 5)])
    assert (row["reason"], row["call"], row["host_ns"]) == ("launch_latency", "cudaLaunchKernel", 0)
    assert one_gap([call(150, 5)])["reason"] == "launch_latency"
    assert one_gap([call(151, 5)])["reason"] == "host_busy"


def test_a_host_between_two_calls_is_busy() -> None:
    row = one_gap([call(95, 30, SYNC), call(120, 10, MALLOC), call(190, 5)], launching=2)
    assert (row["reason"], row["call"], row["thread_id"]) == ("host_busy", "cudaLaunchKernel", 5)
    assert (row["host_ns"], row["sync_ns"], row["api_ns"]) == (90, 25, 5)


def test_a_host_in_a_call_is_named_with_the_call() -> None:
    row = one_gap([call(80, 80, SYNC), call(165, 5, MALLOC), call(190, 5)], launching=2)
    assert (row["reason"], row["call"]) == ("sync", "cudaStreamSynchronize")
    assert one_gap([call(80, 80, COPY), call(190, 5)], launching=1)["call"] == "cudaMemcpy_v3020"
    row = one_gap([call(80, 80, COPY_ASYNC), call(190, 5)], launching=1)
    assert (row["reason"], row["call"]) == ("api_call", "cudaMemcpyAsync")


def test_calls_of_other_threads_do_not_count() -> None:
    assert one_gap([call(80, 100, SYNC, thread=6), call(190, 5)], launching=1)["reason"] == "host_busy"


def test_memory_counts_from_half_of_the_time_on() -> None:
    late = [call(190, 5)]
    assert one_gap(late, [copy(50, 99)])["reason"] == "host_busy"
    row = one_gap(late, [copy(50, 80), copy(120, 30)])
    assert (row["reason"], row["memory_ns"]) == ("memory", 50)


def test_copies_of_another_device_do_not_count() -> None:
    trace = trace_of(kernel_launches=[kernel(0, 100), kernel(200, 50)], memory_ops=[copy(100, 100, device=1)], trace_names=names(*NAMES))
    assert gaps(trace).filter(pl.col("device_index") == 0)["memory_ns"].to_list() == [0]


def test_without_a_call_nothing_is_claimed() -> None:
    row = one_gap([call(190, 5)], launching=None)
    assert (row["reason"], row["call"], row["host_ns"], row["thread_id"]) == ("unknown", None, None, None)


def test_the_layer_is_that_of_the_next_kernel() -> None:
    trace = trace_of(
        kernel_launches=[kernel(0, 10), kernel(20, 10, range_index=0)], ranges=[{"name_index": FORWARD}], trace_names=names(*NAMES)
    )
    assert gaps(trace)["layer"].to_list() == ["forward"]


def by_counting(kernels: Rows, copies: Rows, calls: Rows) -> list[tuple[object, ...]]:
    """The definition, nanosecond by nanosecond."""
    found = []
    for device in sorted({row["device_index"] for row in [*kernels, *copies]}):
        own = [row for row in kernels if row["device_index"] == device]
        moved = [row for row in copies if row["device_index"] == device]
        both = [*own, *moved]
        first, last = min(row["start_ns"] for row in both), max(row["start_ns"] + max(row["duration_ns"], 0) for row in both)
        starts = {row["start_ns"] for row in own}
        idle = set(range(first, last)) - moments(own)
        begins = [moment for moment in sorted(idle) if moment - 1 not in idle or moment in starts]
        for begin in begins:
            end = begin + 1
            while end in idle and end not in begins:
                end += 1
            following = next((row for row in own if row["start_ns"] == end), None)
            found.append((device, begin, end - begin, *explained(begin, end, following, moved, calls)))
    return sorted(found, key=lambda row: (-int(row[2]), row[1], row[0]))


def explained(begin: int, end: int, following: Any, moved: Rows, calls: Rows) -> tuple[object, ...]:
    gap = set(range(begin, end))
    memory_ns = len(gap & moments(moved))
    launch = None if following is None or following["api_call_index"] is None else calls[following["api_call_index"]]
    if launch is None:
        return ("memory" if 2 * memory_ns >= len(gap) else "unknown", memory_ns, None, None, None)
    host = {moment for moment in gap if moment < launch["start_ns"]}
    own = [row for row in calls if row["thread_id"] == launch["thread_id"]]
    sync_ns = len(host & moments([row for row in own if row["name_index"] in WAITING]))
    api_ns = len(host & moments(own)) - sync_ns
    outside_ns = len(host) - sync_ns - api_ns
    if 2 * memory_ns >= len(gap):
        reason = "memory"
    elif 2 * len(host) <= len(gap):
        reason = "launch_latency"
    else:
        reason = max((sync_ns, 2, "sync"), (api_ns, 1, "api_call"), (outside_ns, 0, "host_busy"))[2]
    return reason, memory_ns, len(host), sync_ns, api_ns


def moments(rows: Rows) -> set[int]:
    return {moment for row in rows for moment in range(row["start_ns"], row["start_ns"] + row["duration_ns"])}


times = st.integers(0, 40)
lengths = st.integers(-2, 9)
devices = st.integers(0, 1)
calls_strategy = st.lists(st.builds(call, times, st.integers(0, 12), st.integers(1, 5), st.integers(5, 6)), min_size=1, max_size=12)
kernels_strategy = st.lists(st.tuples(times, lengths, st.integers(-1, 11), devices), max_size=12)
copies_strategy = st.lists(st.builds(copy, times, lengths, devices), max_size=6)


@pytest.mark.slow
@given(kernels_strategy, copies_strategy, calls_strategy)
@examples(300)
def test_the_passes_say_what_counting_says(some: list[tuple[int, int, int, int]], copies: list[Any], calls: list[Any]) -> None:
    calls.sort(key=lambda row: row["start_ns"])
    copies.sort(key=lambda row: row["start_ns"])
    kernels = [kernel(start, length, cause if 0 <= cause < len(calls) else None, device) for start, length, cause, device in sorted(some)]
    trace = trace_of(kernel_launches=kernels, memory_ops=copies, api_calls=calls, trace_names=names(*NAMES))
    columns = ("device_index", "start_ns", "duration_ns", "reason", "memory_ns", "host_ns", "sync_ns", "api_ns")
    found = gaps(trace).select(columns).rows()
    assert sorted(found, key=str) == sorted(by_counting(kernels, copies, calls), key=str)
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)

    reasons = TRACE_DERIVED["gap_reasons"].compute({"gaps": TRACE_DERIVED["gaps"].compute(trace, DEFAULT_QUERY)}, DEFAULT_QUERY).collect()
    breakdown = trace_breakdown(*(trace[name] for name in ("kernel_launches", "memory_ops", "trace_names", "trace_devices"))).collect()
    idle = {row["device_index"]: row["idle_ns"] for row in breakdown.iter_rows(named=True) if row["idle_ns"]}
    assert dict(reasons.group_by("device_index").agg(pl.col("duration_sum_ns").sum()).rows()) == idle
    assert reasons["gap_count"].sum() == len(found)


@pytest.mark.parametrize("path", FILES or [SHARED / "none"], ids=lambda path: path.name)
def test_gaps_of_real_traces_are_their_idle_time(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: traces of others are not part of the project")
    trace = trace_frames(read_trace(TraceFiles(path.name, path, 0)).frames)
    of_devices = gaps(trace).group_by("process_id", "device_index").agg(pl.col("duration_ns").sum(), moved_ns=pl.col("memory_ns").sum())
    breakdown = trace_breakdown(*(trace[name] for name in ("kernel_launches", "memory_ops", "trace_names", "trace_devices"))).collect()
    joined = breakdown.join(of_devices, on=["process_id", "device_index"], how="left", nulls_equal=True).fill_null(0)
    assert joined["duration_ns"].to_list() == joined["idle_ns"].to_list()
    assert joined["moved_ns"].to_list() == joined["memory_only_ns"].to_list()
