"""The timeline's rows, bars, names and windows: data and labels, not pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.timeline_rows import (
    CATEGORIES,
    HATCHES,
    LANE,
    MAX_OPEN_ROW_COUNT,
    MUTED_CODE,
    Looks,
    TimelineRows,
    gap_columns,
    legend_entries,
    short_name,
    timeline_rows,
)
from kernalyse.services.ui.components.timeline_figure import TimelineFigure
from kernalyse.services.ui.data.timeline_questions import TileRequest, TimeWindow, event_of
from kernalyse.services.ui.theme import DARK, LIGHT

SCHEMA = {
    "track": pl.String, "process_id": pl.Int64, "device_index": pl.Int32, "stream_index": pl.Int64, "thread_id": pl.Int64,
    "depth": pl.Int32, "start_ns": pl.Int64, "duration_ns": pl.Int64, "busy_ratio": pl.Float64, "begun_count": pl.Int64,
    "name": pl.String, "row_index": pl.Int32, "category": pl.String,
}  # fmt: skip


def kernel(start: int, duration: int, name: str = "gemm", **others: Any) -> dict[str, Any]:
    of_device = {"track": "kernels", "process_id": 1, "device_index": 0, "stream_index": 7, "thread_id": None, "depth": None}
    row = {"start_ns": start, "duration_ns": duration, "busy_ratio": 1.0, "begun_count": 1, "name": name, "row_index": 5}
    return of_device | row | {"category": "matmul"} | others


def nested(depth: int, **others: Any) -> dict[str, Any]:
    of_thread = {"track": "ranges", "device_index": None, "stream_index": None, "thread_id": 9, "depth": depth}
    return kernel(0, 1000, f"range {depth}") | of_thread | {"category": None} | others


def api_call(start: int, duration: int, **others: Any) -> dict[str, Any]:
    of_thread = {"track": "calls", "device_index": None, "stream_index": None, "thread_id": 9}
    return kernel(start, duration, "cudaLaunchKernel") | of_thread | {"category": None} | others


def tile(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA)


def rows_of(found: pl.DataFrame, toggled: tuple[str, ...] = (), device_name: str = "NVIDIA H200", **processes: Any) -> TimelineRows:
    devices = pl.DataFrame({"process_id": [1], "device_index": [0], "device_name": [device_name]})
    known = {"process_id": [1, 2], "system_process_id": [11, 22], "rank_index": [None, None]} | processes
    lanes = found.select(LANE).unique(maintain_order=True)
    return timeline_rows(lanes, devices, pl.DataFrame(known, schema_overrides={"rank_index": pl.Int32}), toggled)


def test_rows_are_devices_with_streams_and_threads_with_depths_process_by_process() -> None:
    lanes = tile(kernel(0, 1), kernel(0, 1, track="memory"), nested(0), nested(1), kernel(0, 1, process_id=2), nested(0, process_id=2))
    titles = [row.title for row in rows_of(lanes, rank_index=[1, 0]).rows]
    assert titles == [
        *("GPU 0 · rank 0", "stream 7 · kernels", "Thread 9 · rank 0"),
        *("GPU 0 · rank 1 · NVIDIA H200", "stream 7 · kernels", "stream 7 · copies", "Thread 9 · rank 1", "depth 1"),
    ]


def test_a_cpu_is_not_called_a_gpu() -> None:
    assert [rows_of(tile(kernel(0, 1)), device_name=name).rows[0].title for name in ("CPU", "CPUExecutionProvider")] == [
        "CPU",
        "CPU · CPUExecutionProvider",
    ]


def test_a_folded_device_draws_its_kernels_in_one_row() -> None:
    lanes = tile(kernel(0, 1), kernel(0, 1, stream_index=8), kernel(0, 1, track="memory"), nested(0))
    rows = rows_of(lanes, ("d1.0",))
    assert [(row.title, row.is_folded) for row in rows.rows] == [("GPU 0 · NVIDIA H200", True), ("Thread 9", False)]
    assert rows.places.filter(track="kernels")["row"].to_list() == [0, 0]
    assert rows.places.filter(track="memory").is_empty()


def test_calls_have_a_row_of_their_thread_that_folds_with_its_ranges() -> None:
    lanes = tile(kernel(0, 1), nested(0), nested(1), api_call(0, 1), api_call(0, 1, thread_id=4))
    rows = rows_of(lanes)
    assert [row.title for row in rows.rows[2:]] == ["Thread 9", "depth 1", "API calls", "Thread 4 · API calls"]
    assert rows.call_rows == {(1, 9): 4, (1, 4): 5}
    folded = rows_of(lanes, ("t1.9",))
    assert [row.title for row in folded.rows[2:]] == ["Thread 9", "Thread 4 · API calls"]
    assert folded.places.filter(track="calls", thread_id=9).is_empty()
    assert folded.call_rows[1, 9] == 2  # where lines to its calls end


def test_calls_are_coloured_as_what_is_no_kernel_and_tell_more_where_they_are_few() -> None:
    found = tile(nested(0), api_call(0, 100, row_index=3), api_call(200, 100, row_index=4), api_call(400, 2, row_index=9))
    drawn = timeline.drawn_tile(found, rows_of(found), Looks(), pixel_ns=1.0)
    assert len(set(drawn.events["color"].tolist())) == 1
    assert len(set(drawn.events["fill_alpha"].tolist())) == 2  # told apart from ranges
    assert drawn.spans(10) == (("calls", 3, 4),)
    assert drawn.spans(1) == ()
    detailed = timeline.with_details(drawn, {"calls": {4: "returned 0"}, "kernels": {4: "wrong"}})
    assert detailed["detail"].tolist() == ["", "", "returned 0"]


def test_threads_that_would_not_fit_are_folded_until_they_are_opened() -> None:
    lanes = tile(*(nested(depth, thread_id=thread) for thread in range(6) for depth in range(20)))
    folded = rows_of(lanes)
    assert len(folded.rows) <= MAX_OPEN_ROW_COUNT + 6
    assert [row.is_folded for row in folded.rows if row.group_id] == [False, False, True, True, True, True]
    assert len(rows_of(lanes, ("t1.5",)).rows) == len(folded.rows) + 19


def test_wide_bars_have_names_and_patterns_and_narrow_ones_are_a_pixel_at_least() -> None:
    found = tile(kernel(0, 1000, "void ns::softmax_kernel<4>(float*)", category="softmax"), kernel(2000, 2), kernel(3000, 0, row_index=6))
    drawn = timeline.drawn_tile(found, rows_of(found), Looks(), pixel_ns=10.0)
    assert drawn.events["left"].tolist() == [0.0]
    assert CATEGORIES[drawn.events["color"][0]] == "normalization"
    assert (drawn.pixels["right"] - drawn.pixels["left"]).tolist() == [10.0, 10.0]
    assert drawn.pixels["duration"].tolist() == [2.0, 0.0]  # what hovers tell is not what is drawn
    labels = timeline.label_columns(drawn, 500.0, 4000.0, 10.0)
    assert (labels["text"].tolist(), labels["x"].tolist()) == (["softm…"], [530.0])
    hatches = timeline.hatch_columns(drawn, timeline.no_gaps(), Looks())
    assert [len(hatches[hatch]["left"]) for hatch in HATCHES] == [0, 0, 1, 0, 0, 0]
    detailed = timeline.with_details(drawn, {"kernels": {5: "grid 8×1×1"}})
    assert detailed["detail"].tolist() == ["grid 8×1×1"]


def test_pixels_are_as_high_as_they_are_busy() -> None:
    found = tile(kernel(0, 10, busy_ratio=0.25, row_index=None), kernel(10, 10, busy_ratio=1.0, row_index=None))
    drawn = timeline.drawn_tile(found, rows_of(found), Looks(), pixel_ns=10.0)
    heights = drawn.pixels["bottom"] - drawn.pixels["top"]
    assert heights[0] / heights[1] == pytest.approx(0.25)
    assert drawn.pixels["busy"].tolist() == [25.0, 100.0]


def test_what_a_search_leaves_out_is_muted_and_names_can_colour() -> None:
    found = tile(kernel(0, 100, "gemm"), kernel(200, 100, "relu", category=None))
    drawn = timeline.drawn_tile(found, rows_of(found), Looks(part="RELU"), pixel_ns=1.0)
    assert drawn.events["color"].tolist() == [MUTED_CODE, CATEGORIES.index("other")]
    by_name = timeline.drawn_tile(found, rows_of(found), Looks(by_name=True), pixel_ns=1.0).events["color"]
    assert by_name[0] != by_name[1]
    assert [name for name, *_ in legend_entries(LIGHT, ["sync"], by_name=True)] == ["gap: host waited"]


def test_hidden_categories_are_neither_drawn_nor_clicked_and_ranges_stay() -> None:
    found = tile(kernel(0, 100, "gemm"), kernel(200, 100, "relu", category=None), nested(0))
    hidden = frozenset({CATEGORIES.index("other")})
    drawn = timeline.drawn_tile(found, rows_of(found), Looks(hidden=hidden), pixel_ns=1.0)
    assert drawn.placed["name"].to_list() == ["gemm", nested(0)["name"]]
    assert len(drawn.events["left"]) == 2


def test_gaps_are_drawn_in_the_row_of_their_device() -> None:
    found = tile(kernel(0, 1), kernel(0, 1, device_index=1))
    gap = {"start_ns": 5, "duration_ns": 7, "reason": "sync", "kernel_before": "a", "kernel_after": None, "call": "cudaStreamSynchronize"}
    gaps = pl.DataFrame([gap | {"process_id": 1, "device_index": device} for device in (1, 3)])
    columns = gap_columns(gaps, rows_of(found))
    assert columns["top"].tolist() == [2.12]  # of the device that there is
    assert [columns[name][0] for name in ("left", "right", "reason", "after")] == [5.0, 12.0, "host waited", "–"]


def test_the_chosen_launch_is_outlined_and_tied_to_the_thread_that_launched_it() -> None:
    found = tile(kernel(100, 50), nested(0))
    event = {"track": "kernels", "process_id": 1, "device_index": 0, "stream_index": 7, "start_ns": 100, "duration_ns": 50}
    call = {"track": "calls", "process_id": 1, "thread_id": 9, "start_ns": 40, "duration_ns": 5}
    outline, link = timeline.chosen_columns(rows_of(found), event, call, event)
    assert (outline["left"].tolist(), outline["right"].tolist()) == ([100.0], [150.0])
    assert [link[name][0] for name in ("x0", "y0", "x1", "y1")] == [40.0, 2.5, 100.0, 1.5]  # from the thread's head: its calls have no row
    with_calls = rows_of(tile(kernel(100, 50), nested(0), nested(1), api_call(40, 5)))
    outline, link = timeline.chosen_columns(with_calls, call, call, event)
    assert (outline["left"].tolist(), outline["top"].tolist()) == ([40.0], [4.05])
    assert [link[name][0] for name in ("y0", "y1")] == [4.5, 1.5]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::(anonymous namespace)::norm_kernel<float, 4>(int, float*)", "norm_kernel"),
        ("saxpy(float *)", "saxpy"),
        ("copy host_to_device", "copy host_to_device"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_a_name_in_a_bar_is_what_tells_kernels_apart(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_window_survives_its_text_and_what_is_none_is_refused() -> None:
    assert TimeWindow.of(str(TimeWindow(-5, 10))) == TimeWindow(-5, 10)
    assert [TimeWindow.of(text) for text in ("", "5..5", "9..3", "a..b", "1..2..3", "1..²")] == [None] * 6
    assert [event_of(text) for text in ("kernels.17", "kernels.x", "secrets.1", "ranges")] == [("kernels", 17), None, None, None]


def test_a_tile_serves_until_the_view_leaves_it_or_is_too_fine_for_it() -> None:
    whole, view = TimeWindow(0, 100_000), TimeWindow(40_000, 50_000)
    request = TileRequest.for_view(view, whole, 1000)
    assert (request.window, request.pixel_count) == (TimeWindow(37_500, 52_500), 1500)
    assert request.serves(TimeWindow(38_000, 48_000), whole, 10.0)
    assert not request.serves(TimeWindow(30_000, 40_000), whole, 10.0)
    assert not request.serves(TimeWindow(44_000, 46_000), whole, 2.0)
    assert TimeWindow(0, 10).around(500, 504) == TimeWindow(492, 512)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_layer_takes_its_columns_and_clicks_drags_and_moves_are_told(palette: Any) -> None:
    found = tile(kernel(0, 1000), nested(0))
    rows = rows_of(found)
    drawn = timeline.drawn_tile(found, rows, Looks(), 1.0)
    moves: list[TimeWindow] = []
    figure = TimelineFigure(palette, lambda: moves.append(figure.view), lambda *_: None, lambda *_: None, lambda _: None)
    figure.set_rows(rows.rows)
    figure.set_tile(drawn)
    columns = {"names": timeline.label_columns(drawn, 0, 1000, 1.0), "stretch": timeline.stretch_columns((1, 2), rows)}
    for layer, of_layer in {**columns, **timeline.hatch_columns(drawn, timeline.no_gaps(), Looks())}.items():
        figure.bars.replace(layer, of_layer)
    assert figure.bars.row_count("events") == 2
    assert {tuple(tool.formatters["@name"].args["texts"].data["text"]) for tool in figure.bars.figure.hover} == {("gemm", "range 0")}
    figure.show(TimeWindow(5, 50))
    assert moves == []  # by itself
    figure.bars.figure.x_range.update(start=7, end=70)
    assert moves[-1] == TimeWindow(7, 70)
    assert np.all(timeline.overview_columns(found, rows)["bottom"] <= 1)
