"""Data and labels of the charts, not their pixels."""

from __future__ import annotations

from typing import Any

import holoviews as hv
import numpy as np
import polars as pl
import pytest
from bokeh.core.enums import MarkerType

from kernalyse.services.ui.charts import roofline, strips, telemetry
from kernalyse.services.ui.charts.roofline_ceilings import CeilingChoice, at_clock_of, choice_note, held_against
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.data.sample_strips import SampleRows
from kernalyse.services.ui.theme import (
    CATEGORIES,
    DARK,
    EFFICIENCY_CATEGORIES,
    IMPLAUSIBLE_MARKER,
    LIGHT,
    MARKERS,
    SYMBOL_MARKERS,
    style_of,
    values_with,
)

POINT: dict[str, Any] = {
    "run_id": "20260102-101500-6ca949ef",
    "configuration_index": 0,
    "kernel_name": "saxpy",
    "label": "saxpy N=1024",
    "category": "elementwise",
    "dtype": "float32",
    "path": "fma",
    "device_id": "cuda:0",
    "memory_level": "dram",
    "duration_median_ns": 1500.0,
    "duration_mean_ns": 1600.0,
    "launch_count": None,
    "share_ratio": None,
    "flop": 2048.0,
    "bytes": 12288.0,
    "intensity_flop_per_byte": 1 / 6,
    "achieved_flop_per_s": 2.0e9,
    "achieved_bytes_per_s": 12.0e9,
    "attainable_flop_per_s": 4.0e9,
    "efficiency_ratio": 0.5,
    "bound": "memory",
    "work_source": "formula",
    "ceiling_source": "measured",
    "is_implausible": False,
    "implausible_reason": None,
    "sm_clock_hz": None,
    "verification_state": "PASSED",
    "symbol": None,
    "efficiency_category": None,
    "disturbance": None,
}


def points(*changes: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([POINT | change for change in changes], infer_schema_length=None)


def ceiling(name: str, value: float, source: str = "measured") -> dict[str, Any]:
    unit = "bytes_per_s" if name in ("dram", "l2") else "flop_per_s"
    return {
        "device_id": "d", "ceiling_name": name, "unit": unit, "value": value,
        "path": "copy" if unit == "bytes_per_s" else "fma", "source": source, "confidence": "", "note": "",
        "host_busy_ratio": None,
    }  # fmt: skip


CEILINGS = pl.DataFrame([ceiling("dram", 24e9), ceiling("float32", 240e9), ceiling("float64", 120e9)])
SPAN = roofline.Span(0.1, 1000.0, 1e9, 1e12)


def test_a_point_tells_every_figure() -> None:
    columns = roofline.point_columns(points({}), LIGHT)
    told = {name: column[0] for name, column in columns.items()}
    assert (told["rate"], told["byte_rate"], told["attainable_rate"]) == (2.0e9, 12.0e9, 4.0e9)
    assert (told["efficiency_ratio"], told["duration_ns"], told["flop"], told["bytes"]) == (0.5, 1500.0, 2048.0, 12288.0)
    assert (told["bound"], told["timing"], told["work_source"]) == ("memory-bound", "median", "by formula")
    assert (told["kind"], told["ceiling"], told["run"]) == ("elementwise · float32", "DRAM · measured", "6ca949ef")
    assert set(columns) == {*roofline.POINT_NUMBERS, *roofline.POINT_TEXTS}


def test_seed_002_green_is_bound_red_inefficient_blue_normal_and_the_outline_says_so_too() -> None:
    names = ("compute bound", "memory bound", "compute inefficient", "memory inefficient", "normal", None)
    rows = points(*({"efficiency_category": name, "configuration_index": place} for place, name in enumerate(names)))
    columns = roofline.point_columns(rows, LIGHT, "efficiency_category", EFFICIENCY_CATEGORIES)
    assert columns["color"].tolist() == [LIGHT.good, LIGHT.good, LIGHT.bad, LIGHT.bad, LIGHT.accent, LIGHT.muted]
    outlines = list(zip(columns["line_width"].tolist(), columns["line_dash"].tolist(), strict=True))
    assert outlines[0] == outlines[1] != outlines[2] == outlines[3] != outlines[4] == outlines[5]
    assert set(columns["marker"]) == {roofline.point_columns(points({}), LIGHT)["marker"][0]}  # the shape stays that of the kind
    by_kind = roofline.point_columns(rows, LIGHT)
    assert by_kind["line_dash"].tolist() == columns["line_dash"].tolist()


def test_seed_002_every_symbol_of_plotly_that_operations_use_has_a_marker() -> None:
    for symbol in ("circle", "square", "diamond", "cross", "x", "triangle-up", "star"):
        assert roofline.point_columns(points({"symbol": symbol}), LIGHT)["marker"][0] == SYMBOL_MARKERS[symbol]
    assert set(SYMBOL_MARKERS.values()) <= set(MarkerType)


def test_a_symbol_that_a_row_asks_for_is_drawn_and_the_category_of_its_efficiency_told() -> None:
    rows = points(
        {"symbol": "triangle-up", "efficiency_category": "memory inefficient"},
        {"symbol": "star"},
        {"symbol": "no-shape-of-this-name"},
        {"symbol": "star", "is_implausible": True},
        {"symbol": "square", "verification_state": "FAILED"},
    )
    columns = roofline.point_columns(rows, LIGHT)
    own = roofline.point_columns(points({}), LIGHT)["marker"][0]
    assert columns["marker"].tolist() == ["triangle", "star", own, IMPLAUSIBLE_MARKER, "square_x"]
    assert columns["bound"].tolist()[:2] == ["memory inefficient", "memory-bound"]


def test_a_kernel_without_flop_has_no_place_and_unknown_figures_are_dashes() -> None:
    rows = points({"intensity_flop_per_byte": None, "achieved_flop_per_s": None}, {"attainable_flop_per_s": None, "bound": None})
    columns = roofline.point_columns(rows, LIGHT)
    assert len(columns["rate"]) == 1
    assert np.isnan(columns["attainable_rate"][0])
    assert columns["bound"][0] == "bound not known"


def test_wrong_results_are_hollow_and_crossed() -> None:
    columns = roofline.point_columns(points({}, {"verification_state": "FAILED", "configuration_index": 1}), LIGHT)
    assert columns["fill_alpha"].tolist() == [0.85, 0.0]
    assert columns["marker"].tolist() == ["square", "square_x"]
    assert columns["verification"][1] == "WRONG RESULT"


def test_implausible_points_have_a_shape_of_their_own_and_are_named() -> None:
    rows = points({}, {"is_implausible": True, "configuration_index": 1}, {"is_implausible": None, "configuration_index": 2})
    columns = roofline.point_columns(rows, LIGHT)
    assert columns["marker"].tolist() == ["square", "asterisk", "square"]
    assert "asterisk" not in MARKERS
    assert columns["color"][1] == LIGHT.bad
    assert columns["verification"][1] == "passed, FASTER THAN THE DEVICE CAN BE"
    assert roofline.marks_of(columns) == {"has_failed": False, "has_implausible": True}
    assert roofline.over_ceiling_note(rows.with_columns(efficiency_ratio=pl.lit(3.0))).startswith("1 implausible (✱): faster than")


BY_SOURCE = {
    "efficiency_datasheet_ratio": 0.2, "efficiency_clock_ratio": 0.25, "efficiency_measured_ratio": None,
    "bound_datasheet": "compute", "bound_clock": "memory", "bound_measured": None,
    "efficiency_category_datasheet": None, "efficiency_category_clock": "memory inefficient", "efficiency_category_measured": None,
}  # fmt: skip


def test_points_are_held_against_the_source_that_is_chosen() -> None:
    rows = points(BY_SOURCE)
    assert held_against(rows, "best") is rows
    assert held_against(rows, "clock")["efficiency_category"].to_list() == ["memory inefficient"]
    told = [held_against(rows, choice).row(0, named=True) for choice in ("datasheet", "clock", "measured")]
    assert [row["efficiency_ratio"] for row in told] == [0.2, 0.25, None]
    assert [row["bound"] for row in told] == ["compute", "memory", None]
    assert [row["ceiling_source"] for row in told] == ["datasheet", "clock", None]
    assert [row["attainable_flop_per_s"] for row in told] == [1.0e10, 8.0e9, None]


THREE_SOURCES = pl.DataFrame(
    [
        *(ceiling("dram", 30e9, "datasheet"), ceiling("float32", 400e9, "datasheet")),
        ceiling("float32", 500e9, "clock") | {"clock_hz": 2_000_000_000},
        *(ceiling("dram", 24e9), ceiling("float32", 300e9)),
    ]
)


@pytest.mark.parametrize(
    ("choice", "solid"),
    [
        ("best", [("dram", "measured"), ("float32", "measured")]),
        ("datasheet", [("dram", "datasheet"), ("float32", "datasheet")]),
        ("clock", [("dram", "datasheet"), ("float32", "clock")]),  # the SM clock says nothing of device memory
        ("measured", [("dram", "measured"), ("float32", "measured")]),
    ],
)
def test_the_chosen_source_is_drawn_solid(choice: CeilingChoice, solid: list[tuple[str, str]]) -> None:
    rows = roofline.shown_ceilings(THREE_SOURCES, (), choice)
    assert len(rows) == 5
    assert sorted((row["ceiling_name"], row["source"]) for row in rows if row["is_preferred"]) == solid


def test_a_source_that_knows_nothing_leaves_every_ceiling_dashed_and_says_so() -> None:
    rows = roofline.shown_ceilings(CEILINGS, (), "clock")
    assert not any(row["is_preferred"] for row in rows)
    assert choice_note("clock", points({}), False).startswith("No ceilings of this device are known from this source (at the clock")
    assert choice_note("best", points({}), False) == ""


def test_ceilings_at_the_clock_follow_the_highest_clock_of_the_points() -> None:
    rows = points({"sm_clock_hz": 1_000_000_000}, {"sm_clock_hz": 1_500_000_000}, {})
    values = dict(at_clock_of(THREE_SOURCES, rows).filter(pl.col("ceiling_name") == "float32").select("source", "value").rows())
    assert values == {"datasheet": 400e9, "clock": 375e9, "measured": 300e9}
    assert "1.50 GHz" in choice_note("clock", rows, True)
    assert at_clock_of(THREE_SOURCES, points({})) is THREE_SOURCES
    assert "maximum clock" in choice_note("clock", points({}), True)


def test_paths_of_one_data_type_are_preferred_apart() -> None:
    both = pl.DataFrame([ceiling("float16", 1e12), ceiling("float16", 9e12, "datasheet") | {"path": "tensor"}])
    assert [row["is_preferred"] for row in roofline.shown_ceilings(both, ())] == [True, True]


def test_the_last_row_of_a_configuration_counts() -> None:
    rows = points({"efficiency_ratio": None}, {"configuration_index": 1}, {"efficiency_ratio": 0.7})
    newest = roofline.newest_rows(rows)
    assert newest.height == 2
    assert newest.filter(pl.col("configuration_index") == 0)["efficiency_ratio"].to_list() == [0.7]


def test_points_of_a_trace_go_by_their_kernels_and_are_as_large_as_their_share() -> None:
    of_trace = {"configuration_index": None, "category": None, "duration_median_ns": None, "duration_mean_ns": 2000.0, "launch_count": 40}
    rows = points(
        of_trace | {"label": "gemm float16", "share_ratio": 0.25}, of_trace | {"label": "add float16", "share_ratio": 0.0001}, of_trace
    )
    assert roofline.newest_rows(rows).height == 3
    columns = roofline.point_columns(rows, LIGHT)
    assert columns["size"].tolist() == [roofline.LARGEST_POINT_SIZE / 2, roofline.POINT_SIZE, roofline.POINT_SIZE]
    assert (columns["duration_ns"][0], columns["timing"][0]) == (2000.0, "mean of 40 launches")
    assert roofline.point_columns(rows, LIGHT, sizes="same")["size"].tolist() == [roofline.POINT_SIZE] * 3


def test_other_categories_take_the_places_of_absent_ones() -> None:
    values = values_with({"matmul", "convolution"})
    assert (values[0], values[1]) == ("matmul", "convolution")
    assert len(values) == len(CATEGORIES)
    assert values_with(set(CATEGORIES)) == CATEGORIES


def test_categories_differ_in_colour_and_in_shape() -> None:
    for palette in (LIGHT, DARK):
        styles = [style_of(category, CATEGORIES, palette) for category in CATEGORIES]
        assert len({style.color for style in styles}) == len({style.marker for style in styles}) == len(CATEGORIES)


def test_the_slope_ends_at_the_highest_roof_and_roofs_begin_at_their_ridges() -> None:
    lines = roofline.ceiling_columns(roofline.shown_ceilings(CEILINGS, ()), SPAN, LIGHT)
    assert lines["name"].tolist() == ["DRAM", "float32", "float64"]
    assert (lines["x0"].tolist(), lines["x1"].tolist()) == ([0.1, 10.0, 5.0], [10.0, 1000.0, 1000.0])
    assert lines["y1"].tolist() == [240e9, 240e9, 120e9]
    assert lines["value"].tolist() == ["24.0 GB/s", "240 Gflop/s", "120 Gflop/s"]
    assert roofline.ridges(roofline.shown_ceilings(CEILINGS, ())) == (("float32", 10.0), ("float64", 5.0))


def test_a_ceiling_of_a_busy_host_says_so_beside_its_line() -> None:
    busy, quiet = ceiling("dram", 11.5e9) | {"host_busy_ratio": 0.98}, ceiling("float32", 240e9) | {"host_busy_ratio": 0.2}
    lines = roofline.ceiling_columns(roofline.shown_ceilings(pl.DataFrame([busy, quiet]), ()), SPAN, LIGHT)
    assert lines["value"].tolist() == ["11.5 GB/s ⚠ busy", "240 Gflop/s"]
    assert roofline.label_columns(lines)["text"].tolist() == [" DRAM 11.5 GB/s ⚠ ", " float32 240 Gflop/s "]


def test_what_was_disturbed_is_said_below_the_chart_and_at_its_points() -> None:
    rows = points({}, {"disturbance": "host 31 % busy"}, {"disturbance": "host 98 % busy"})
    assert roofline.over_ceiling_note(rows) == "⚠ 2 of 3 disturbed: host 98 % busy."
    told = roofline.point_columns(rows, LIGHT)["verification"].tolist()
    assert told[:2] == ["passed", "passed, ⚠ host 31 % busy"]


def test_only_the_wanted_dtypes_are_drawn_and_other_sources_are_dashed() -> None:
    both = pl.concat([CEILINGS, pl.DataFrame([ceiling("dram", 40e9, "datasheet")])])
    lines = roofline.ceiling_columns(roofline.shown_ceilings(both, ("float32",)), SPAN, LIGHT)
    assert lines["name"].tolist() == ["DRAM", "DRAM", "float32"]
    assert lines["line_dash"].tolist() == ["solid", "dashed", "solid"]
    assert roofline.label_columns(lines)["text"].tolist() == [" DRAM 24.0 GB/s ", " float32 240 Gflop/s "]


def test_the_span_shows_all_points_and_ridges() -> None:
    columns = roofline.point_columns(points({}), LIGHT)
    span = roofline.span_of(columns, roofline.shown_ceilings(CEILINGS, ("float32",)))
    assert span.x_start < 1 / 6
    assert span.x_end > 10
    assert span.y_start < 2.0e9
    assert span.y_end > 240e9
    assert roofline.span_of(roofline.point_columns(points({}).clear(), LIGHT), ()) == roofline.Span(*roofline.NO_POINT_SPAN)


def test_points_above_the_ceiling_are_explained() -> None:
    assert roofline.over_ceiling_note(points({})) == ""
    assert roofline.over_ceiling_note(points({"efficiency_ratio": 3.9})).startswith("1 above their ceiling")
    assert roofline.over_ceiling_note(points({"memory_level": "l2"})).startswith("1 faster than DRAM")


def test_points_by_counters_say_so() -> None:
    counted = points({"work_source": "counters", "memory_level": "l2"}, {"work_source": None})
    assert roofline.point_columns(counted, LIGHT)["work_source"].tolist() == ["by hardware counters", "source not known"]
    assert roofline.over_ceiling_note(counted) == "1 without formulas: their work is by hardware counters."


def test_the_caches_slope_is_dotted_and_roofs_begin_where_it_ends() -> None:
    with_cache = pl.concat([CEILINGS, pl.DataFrame([ceiling("l2", 48e9)])])
    lines = roofline.ceiling_columns(roofline.shown_ceilings(with_cache, ("float32",)), SPAN, LIGHT)
    assert lines["name"].tolist() == ["DRAM", "L2 cache", "float32"]
    assert lines["line_dash"].tolist() == ["solid", "dotted", "solid"]
    assert (lines["x1"].tolist()[:2], lines["x0"].tolist()[2]) == ([10.0, 5.0], 5.0)
    labels = roofline.label_columns(lines)
    assert labels["text_align"].tolist() == ["left", "right", "right"]  # DRAM's name right of its line, away from the cache's
    assert roofline.ridges(roofline.shown_ceilings(with_cache, ("float32",))) == (("float32", 10.0),)


def test_a_name_keeps_clear_of_the_lines_of_other_sources() -> None:
    datasheet = [ceiling("dram", 20e9, "datasheet"), ceiling("float32", 280e9, "datasheet")]
    lines = roofline.ceiling_columns(
        roofline.shown_ceilings(pl.concat([CEILINGS, pl.DataFrame([*datasheet, ceiling("l2", 90e9)])]), ()), SPAN, LIGHT
    )
    labels = roofline.label_columns(lines)
    side = dict(zip([text.split()[0] for text in labels["text"]], labels["text_baseline"], strict=True))
    assert side == {"DRAM": "top", "L2": "bottom", "float32": "top", "float64": "bottom"}  # 280 Gflop/s lies just above float32
    (dram,) = (place for place, text in enumerate(labels["text"]) if text.startswith(" DRAM"))
    assert labels["y"][dram] / labels["x"][dram] == pytest.approx(20e9)  # right of the datasheet's slope too


def test_roofs_of_one_height_share_a_short_name_and_the_slopes_name_stays_below_it() -> None:
    roofs = [
        ceiling("float32", 240e9) | {"ceiling_name": name, "path": "tensor"} for name in ("float16", "tfloat32_of_long_name", "bfloat16")
    ]
    lines = roofline.ceiling_columns(roofline.shown_ceilings(pl.DataFrame([ceiling("dram", 24e9), *roofs]), ()), SPAN, LIGHT)
    labels = roofline.label_columns(lines)
    assert labels["text"].tolist() == [" DRAM 24.0 GB/s ", " float16 tensor, bfloat16 tensor +1 240 Gflop/s "]
    assert labels["y"][0] < labels["y"][1] / 2


def test_names_of_three_slopes_stand_below_each_other_and_begin_at_their_own() -> None:
    caches = [ceiling("l2", 48.7e9), ceiling("l2", 236e9) | {"ceiling_name": "l1"}]
    ceilings = pl.DataFrame([ceiling("dram", 23.1e9), *caches, ceiling("float32", 246e9)])
    labels = roofline.label_columns(
        roofline.ceiling_columns(roofline.shown_ceilings(ceilings, (), levels=("dram", "l2", "l1")), SPAN, LIGHT)
    )
    y = {text.split()[0]: (x, y) for text, x, y in zip(labels["text"], labels["x"], labels["y"], strict=True)}
    assert [y[name][1] / y[name][0] for name in ("DRAM", "L2", "L1")] == pytest.approx([23.1e9, 48.7e9, 236e9])
    assert y["DRAM"][1] <= y["L2"][1] / 1.4


def test_the_name_of_a_slope_far_to_the_right_goes_down_along_it_until_it_has_room() -> None:
    ceilings = pl.DataFrame([ceiling("dram", 2e9), ceiling("l2", 45e9), ceiling("float32", 380e9)])
    lines = roofline.ceiling_columns(roofline.shown_ceilings(ceilings, ()), roofline.Span(0.01, 300.0, 1e8, 1e12), LIGHT)
    labels = roofline.label_columns(lines)
    (dram,) = (place for place, text in enumerate(labels["text"]) if text.startswith(" DRAM"))
    assert labels["x"][dram] == pytest.approx(0.01**0.4 * 300**0.6)
    assert labels["y"][dram] / labels["x"][dram] == pytest.approx(2e9)


def test_names_of_close_roofs_lie_below_each_other() -> None:
    roofs = [
        ceiling("float32", value) | {"ceiling_name": name} for name, value in (("int8", 250e9), ("float16", 230e9), ("float32", 210e9))
    ]
    lines = roofline.ceiling_columns(roofline.shown_ceilings(pl.DataFrame([ceiling("dram", 24e9), *roofs]), ()), SPAN, LIGHT)
    labels = roofline.label_columns(lines)
    named = sorted(zip(labels["y"], labels["text_baseline"], labels["text"], strict=True), reverse=True)
    assert [text.split()[0] for _, _, text in named] == ["int8", "float16", "float32", "DRAM"]
    assert [baseline for _, baseline, _ in named[:3]] == ["bottom", "top", "top"]
    assert named[2][0] <= named[1][0] / 1.4
    assert named[3][0] < named[2][0] / 1.4


def test_samples_stay_within_their_strip() -> None:
    index = np.arange(1000)
    rows = SampleRows(index % 4, index // 4, (1000.0 + index).astype(np.float64), np.full(1000, 1_700_000_000_000_000_000), index % 3)
    columns = strips.sample_columns(rows, np.array(["#111"] * 4))
    assert columns["marker"][:3].tolist() == ["square", "inverted_triangle", "x"]  # plain, outlier, discarded
    assert np.all(np.abs(columns["x"] - columns["configuration"]) <= strips.STRIP_WIDTH / 2 + 1e-9)
    assert columns["measured_unix_ms"][0] == 1_700_000_000_000.0


def test_axis_names_are_few_and_short() -> None:
    labels = strips.tick_labels([f"a_kernel_with_a_very_long_name N={n}" for n in range(40)])
    assert len(labels) <= 6
    assert labels[0] == "a_kernel_with_a_v…\nN=0"
    assert strips.tick_labels([]) == {}


def test_telemetry_lines_part_host_and_device() -> None:
    readings = pl.DataFrame(
        {
            "measured_unix_ns": [10**9, 10**9, 2 * 10**9],
            "device_id": [None, "cuda:0", None],
            "utilization_ratio": [0.5, 0.9, None],
            "memory_used_bytes": [1, 3, 2],
            "memory_total_bytes": [4, 4, 4],
        }
    )
    assert telemetry.line_columns(readings, "host_busy")["share"].tolist() == [50.0]
    assert telemetry.line_columns(readings, "device_busy")["share"].tolist() == [90.0]
    assert telemetry.line_columns(readings, "memory_used")["share"].tolist() == [75.0]
    assert telemetry.line_columns(readings.filter(pl.col("device_id").is_null()), "memory_used")["share"].tolist() == [25.0, 50.0]


def empty_charts() -> dict[str, tuple[hv.Overlay, tuple[str, ...]]]:
    point_columns = roofline.point_columns(points({}).clear(), LIGHT)
    lines = roofline.ceiling_columns(roofline.shown_ceilings(None, ()), SPAN, LIGHT)
    medians, intervals = strips.no_medians()
    return {
        "roofline": (roofline.roofline_chart(point_columns, lines, SPAN, LIGHT), ("ceilings", "names", "points")),
        "strips": (
            strips.strip_chart(strips.no_samples(), strips.no_samples(), medians, intervals, LIGHT),
            ("finished", "samples", "intervals", "medians"),
        ),
        "telemetry": (telemetry.telemetry_chart({line: telemetry.no_line() for line in telemetry.LINES}, LIGHT), telemetry.LINES),
    }


@pytest.mark.parametrize("name", ["roofline", "strips", "telemetry"])
def test_an_empty_chart_renders_with_its_layers_in_order(name: str) -> None:
    element, layers = empty_charts()[name]
    figure = Figure(name, RenderedChart(lambda _: element), LIGHT, layers)
    assert [renderer.data_source.name for renderer in figure.figure.renderers] == [f"{name}:{layer}" for layer in layers]


def test_rows_reach_a_chart_that_was_rendered_empty() -> None:
    element, layers = empty_charts()["roofline"]
    figure = Figure("roofline", RenderedChart(lambda _: element), LIGHT, layers)
    figure.stream("points", roofline.point_columns(points({}), LIGHT))
    figure.stream("points", roofline.point_columns(points({"configuration_index": 1}), LIGHT))
    lines = roofline.ceiling_columns(roofline.shown_ceilings(CEILINGS, ()), SPAN, LIGHT)
    figure.replace("ceilings", lines)
    figure.replace("names", roofline.label_columns(lines))
    assert (figure.row_count("points"), figure.row_count("ceilings"), figure.row_count("names")) == (2, 3, 3)


def test_an_axis_follows_the_data_until_the_user_moves_it() -> None:
    element, layers = empty_charts()["roofline"]
    figure = Figure("roofline", RenderedChart(lambda _: element), LIGHT, layers)
    figure.follow("x", 1.0, 10.0)
    figure.follow("x", 1.0, 100.0)
    assert (figure.figure.x_range.start, figure.figure.x_range.end) == (1.0, 100.0)
    figure.figure.x_range.end = 50.0
    figure.follow("x", 1.0, 1000.0)
    assert figure.figure.x_range.end == 50.0
    assert figure.figure.x_range.reset_end == 1000.0  # a reset shows all that there is by now, and the axis follows again
    figure.figure.x_range.end = 1000.0
    figure.follow("x", 1.0, 2000.0)
    assert figure.figure.x_range.end == 2000.0
