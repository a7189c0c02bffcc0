"""Tiles of the timeline, held against counting every nanosecond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.traces.timeline import Matches, Timeline, timeline_events
from kernalyse.services.analyzer.numeric import timeline as tiles
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames, QueryParameters
from kernalyse.services.analyzer.tables.traces import TIMELINE, TIMELINE_MATCHES, WINDOW_SUMMARY
from kernalyse.services.core.errors import InvalidRequestError
from tests.examples import examples
from tests.unit.trace_rows import names, trace_of

NAMES = ("gemm", "reduce", "forward", "step")


def tile(trace: Frames, question: QueryParameters = DEFAULT_QUERY) -> pl.DataFrame:
    found = TRACE_DERIVED["timeline"].compute(trace, question).collect()
    assert found.schema == pl.Schema({column.name: column.dtype for column in TIMELINE.columns[2:]})
    return found


def kernel(start: int, duration: int, name: int = 0, stream: int = 7) -> dict[str, Any]:
    return {"process_id": 1, "device_index": 0, "stream_index": stream, "start_ns": start, "duration_ns": duration, "name_index": name}


def test_few_are_shown_one_by_one_with_where_to_find_them() -> None:
    copy = {
        "process_id": 1,
        "device_index": 0,
        "stream_index": 7,
        "start_ns": 5,
        "duration_ns": 2,
        "kind": "copy",
        "direction": "host_to_device",
    }
    ranges = [
        {"process_id": 1, "thread_id": 9, "depth": depth, "start_ns": depth, "duration_ns": 100, "name_index": 2 + depth}
        for depth in (0, 1)
    ]
    trace = trace_of(
        kernel_launches=[kernel(0, 10), kernel(3, 4, stream=8), kernel(20, 10, name=1)],
        memory_ops=[copy | {"kind": "set", "direction": None, "start_ns": 1}, copy],
        ranges=ranges,
        api_calls=[{"process_id": 1, "thread_id": 9, "start_ns": start, "duration_ns": 3, "name_index": 4} for start in (2, 6)],
        trace_names=names(*NAMES, "cudaLaunchKernel"),
    )
    columns = ("track", "stream_index", "thread_id", "depth", "start_ns", "duration_ns", "name", "row_index", "begun_count", "busy_ratio")
    assert tile(trace).select(columns).rows() == [
        ("kernels", 7, None, None, 0, 10, "gemm", 0, 1, 1.0),
        ("kernels", 7, None, None, 20, 10, "reduce", 2, 1, 1.0),
        ("kernels", 8, None, None, 3, 4, "gemm", 1, 1, 1.0),
        ("memory", 7, None, None, 1, 2, "set", 0, 1, 1.0),
        ("memory", 7, None, None, 5, 2, "copy host_to_device", 1, 1, 1.0),
        ("ranges", None, 9, 0, 0, 100, "forward", 0, 1, 1.0),
        ("ranges", None, 9, 1, 1, 100, "step", 1, 1, 1.0),
        ("calls", None, 9, None, 2, 3, "cudaLaunchKernel", 0, 1, 1.0),
        ("calls", None, 9, None, 6, 3, "cudaLaunchKernel", 1, 1, 1.0),
    ]
    assert set(tile(trace).filter(track="calls")["category"]) == {None}  # no kernel's, whatever the name
    part = tile(trace, QueryParameters(window_start_ns=10, window_end_ns=20, pixel_count=10))
    assert part["track"].to_list() == ["ranges", "ranges"]  # what ends as the window begins is not in it


def test_many_are_summed_by_pixel() -> None:
    kernels = [kernel(10 * place, 5, name=int(place % 10 == 0)) for place in range(1000)]
    found = tile(trace_of(kernel_launches=kernels, trace_names=names(*NAMES)), QueryParameters(pixel_count=10))
    assert found["start_ns"].to_list() == [place * 9995 // 10 for place in range(10)]
    assert found["busy_ratio"].to_list() == pytest.approx([0.5] * 10, abs=0.01)
    assert found["begun_count"].sum() == 1000
    assert (found["name"].unique().to_list(), found["row_index"].null_count()) == (["gemm"], 10)


@pytest.mark.parametrize(
    ("start", "end", "pixels"), [(10, 10, 5), (10, 5, 5), (0, 10, 0), (0, 10, 100_000), (-(2**62), 10, 5), (0, 2**63 - 1, 5)]
)
def test_windows_that_are_none_are_refused(start: int, end: int, pixels: int) -> None:
    trace = trace_of(kernel_launches=[kernel(0, 10)], trace_names=names(*NAMES))
    with pytest.raises(InvalidRequestError, match=r"of (the|table) timeline"):
        tile(trace, QueryParameters(window_start_ns=start, window_end_ns=end, pixel_count=pixels))


@pytest.mark.parametrize("length_ns", [10**6 + 7, 2**58 + 12345, 2**62])
def test_pixels_of_windows_of_any_length_follow_each_other(length_ns: int) -> None:
    """Numbers of 64 bits that overflow would put pixels where nothing is, and rows past the last one."""
    edges = tiles.Window(-(2**61), length_ns - 2**61, 16_000).edges().tolist()
    assert edges == [-(2**61) + place * length_ns // 16_000 for place in range(16_001)]


def test_a_trace_of_nothing_draws_nothing() -> None:
    assert tile(trace_of()).height == 0
    assert tile(trace_of(kernel_launches=[kernel(5, 0)], trace_names=names(*NAMES)))["start_ns"].to_list() == [5]


starts = st.integers(0, 600)
kernels_strategy = st.lists(
    st.builds(kernel, starts, st.integers(-2, 60) | st.integers(0, 3), st.integers(0, 1), st.integers(0, 1)), max_size=150
)


@pytest.mark.slow
@given(kernels_strategy, st.integers(-10, 600), st.integers(1, 700), st.integers(1, 12))
@examples(300)
def test_pixels_say_what_counting_says(kernels: list[Any], start: int, length: int, pixel_count: int) -> None:
    check_by_counting(kernels, start, length, pixel_count)


@pytest.mark.parametrize("seed", range(6))
def test_sums_of_many_say_what_counting_says(seed: int) -> None:
    random = Random(seed)
    kernels = [
        kernel(random.randrange(20_000), random.choice((1, 3, 9, 400)), random.randrange(4), random.randrange(2)) for _ in range(4000)
    ]
    check_by_counting(kernels, random.randrange(-50, 3000), random.randrange(9000, 20_000), random.choice((3, 17, 60)))


def check_by_counting(kernels: list[Any], start: int, length: int, pixel_count: int) -> None:
    kernels.sort(key=lambda row: row["start_ns"])
    question = QueryParameters(window_start_ns=start, window_end_ns=start + length, pixel_count=pixel_count)
    found = tile(trace_of(kernel_launches=kernels, trace_names=names(*NAMES)), question)
    pixel_count = min(pixel_count, length)
    edges = [start + place * length // pixel_count for place in range(pixel_count + 1)]
    for stream in (0, 1):
        own = [
            (row["start_ns"], row["start_ns"] + max(row["duration_ns"], 0), row["name_index"])
            for row in kernels
            if row["stream_index"] == stream
        ]
        shown = found.filter(pl.col("stream_index") == stream)
        owner: dict[int, int] = {}
        for first, last, name in own:
            owner |= {moment: name for moment in range(first, last) if moment not in owner}
        if shown["row_index"].null_count() == 0:
            inside = [row for row in own if row[0] < start + length and (row[1] > start or row[0] >= start)]
            assert shown.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns")).rows() == [row[:2] for row in inside]
            continue
        wanted = {}
        for place in range(pixel_count):
            pixel = range(edges[place], edges[place + 1])
            names_in = Counter(owner[moment] for moment in pixel if moment in owner)
            begun = sum(first in pixel for first, _, _ in own)
            if names_in or begun:
                wanted[pixel.start] = (sum(names_in.values()) / len(pixel), begun, names_in)
        assert shown["start_ns"].to_list() == list(wanted)
        for row, (busy, begun, names_in) in zip(shown.iter_rows(named=True), wanted.values(), strict=True):
            assert (row["busy_ratio"], row["begun_count"]) == (pytest.approx(busy), begun)
            if begun <= tiles.BLOCK and names_in:
                assert names_in[NAMES.index(row["name"])] == max(names_in.values())
            elif names_in:
                assert NAMES.index(row["name"]) in names_in


def copy(start: int, duration: int, stream: int = 7) -> dict[str, Any]:
    return {k: v for k, v in kernel(start, duration, stream=stream).items() if k != "name_index"} | {"kind": "copy", "direction": None}


@pytest.mark.parametrize("seed", range(4))
def test_a_window_is_summed_as_counting_says(seed: int) -> None:
    random = Random(seed)
    kernels = [kernel(random.randrange(2000), random.choice((0, 2, 7, 90)), random.randrange(3), random.randrange(3)) for _ in range(300)]
    copies = [copy(random.randrange(2000), random.randrange(12)) for _ in range(60)]
    for rows in (kernels, copies):
        rows.sort(key=lambda row: row["start_ns"])
    trace = trace_of(kernel_launches=kernels, memory_ops=copies, trace_names=names("gemm", "ncclAllReduce", "relu"))
    start, end = random.randrange(0, 900), random.randrange(1000, 2100)
    found = TRACE_DERIVED["window_summary"].compute(trace, QueryParameters(window_start_ns=start, window_end_ns=end)).collect()
    assert found.schema == pl.Schema({column.name: column.dtype for column in WINDOW_SUMMARY.columns[2:]})

    def moments(rows: list[Any], is_wanted: Callable[[Any], bool]) -> set[int]:
        parts = [range(max(row["start_ns"], start), min(row["start_ns"] + row["duration_ns"], end)) for row in rows if is_wanted(row)]
        return {moment for part in parts for moment in part}

    busy, copying = moments(kernels, lambda _: True), moments(copies, lambda _: True)
    computing, communicating = moments(kernels, lambda row: row["name_index"] != 1), moments(kernels, lambda row: row["name_index"] == 1)
    device = found.row(0, named=True)
    assert (device["subject_kind"], device["duration_sum_ns"]) == ("device", end - start)
    assert (device["busy_ns"], device["idle_ns"]) == (len(busy), end - start - len(busy))
    assert (device["compute_ns"], device["communication_ns"], device["overlap_ns"]) == (
        len(computing),
        len(communicating),
        len(computing & communicating),
    )
    assert (device["memory_ns"], device["memory_only_ns"]) == (len(copying), len(copying - busy))
    for name_index, name in enumerate(("gemm", "ncclAllReduce", "relu")):
        inside = [
            min(row["start_ns"] + row["duration_ns"], end) - max(row["start_ns"], start)
            for row in kernels
            if row["name_index"] == name_index and row["start_ns"] < end and row["start_ns"] + row["duration_ns"] >= start
        ]
        row = found.row(by_predicate=pl.col("subject") == name, named=True)
        assert row["duration_sum_ns"] == sum(inside)
    assert found.filter(subject_kind="kernel")["share_ratio"].sum() == pytest.approx(1)


def test_matches_come_in_order_of_start_with_their_place_among_all() -> None:
    ranges = [{"process_id": 1, "thread_id": 9, "depth": 0, "start_ns": 4, "duration_ns": 100, "name_index": 0}]
    kernels = [kernel(0, 3), kernel(2, 3, 1, stream=8), kernel(5, 3, stream=8), kernel(5, 3)]
    trace = trace_of(kernel_launches=kernels, ranges=ranges, trace_names=names("gemm", "relu"))
    timeline = Timeline.of(timeline_events(trace).collect())
    matches = Matches.of(timeline, pl.col("name").str.contains("gem"))
    found = matches.frame(timeline, 0, 9)
    assert found.schema == pl.Schema({column.name: column.dtype for column in TIMELINE_MATCHES.columns[2:]})
    assert found.select("match_index", "track", "stream_index", "start_ns", "row_index").rows() == [
        (0, "kernels", 7, 0, 0),
        (1, "ranges", None, 4, 0),
        (2, "kernels", 7, 5, 3),
        (3, "kernels", 8, 5, 2),
    ]
    assert matches.between(1, 5) == (1, 2)
    assert Matches.of(timeline, (pl.col("name") == "gemm") & (pl.col("track") == "ranges")).rows.size == 1
    assert Matches.of(timeline, pl.col("name") == "none").frame(timeline, 0, 1).is_empty()
