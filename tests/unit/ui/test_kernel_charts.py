"""Charts of the Kernels page: which cells and bars there are, what they say, and how samples are told apart."""

from __future__ import annotations

from typing import Any

import holoviews as hv
import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.kernel_categories import infer_category
from kernalyse.services.core.model import KernelSource
from kernalyse.services.core.statistics import median_interval
from kernalyse.services.profiler.kernel_sources.catalog import derive_definition
from kernalyse.services.ui.charts import distribution, heatmap, split
from kernalyse.services.ui.charts.metrics import (
    ANNOUNCED,
    FAILED,
    METRICS,
    PLACED,
    axis_values,
    configuration_key,
    metric_of,
    name_digest,
    performance_rows,
    tick_name,
)
from kernalyse.services.ui.data.chosen_row import best_first, listings_of
from kernalyse.services.ui.theme import LIGHT

RUN = "20260102-101500-6ca949ef"
FLOP_RATE, DURATION = METRICS["flop_rate"], METRICS["duration"]
SHAPE: dict[str, Any] = {"kernel_name": "matmul", "block": "16x8x1", "macros": '{"TILE": 16}', "category": "matmul", "dtype": "float32"}


def frame(table_name: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> pl.DataFrame:
    """As the analyzer answers."""
    return (
        find_table(table_name).frame([tuple(row.get(name) for name in find_table(table_name).column_names) for row in rows]).select(columns)
    )


def announced(index: int, n: int, m: int, **changes: Any) -> dict[str, Any]:
    row = {"run_id": RUN, "configuration_index": index, "parameters": f'{{"N": {n}, "M": {m}}}', "label": f"matmul N={n} M={m}"}
    return SHAPE | row | changes


def placed(index: int | None, flop_per_s: float | None = None, **changes: Any) -> dict[str, Any]:
    figures = {"achieved_flop_per_s": flop_per_s, "duration_median_ns": 1000.0, "efficiency_ratio": 0.5, "intensity_flop_per_byte": 2.0}
    return (
        {"run_id": RUN, "configuration_index": index, "kernel_name": "matmul", "dtype": "float32", "is_implausible": False}
        | figures
        | changes
    )


NO_LAUNCHES = pl.DataFrame(
    schema={"run_id": pl.String, "kernel_name": pl.String, "duration_sum_ns": pl.Int64, "duration_median_ns": pl.Float64}
)


def rows_of(
    configurations: list[dict[str, Any]], roofline: list[dict[str, Any]], failures: list[dict[str, Any]] | None = None
) -> pl.DataFrame:
    return performance_rows(
        frame("configurations", ANNOUNCED, configurations),
        frame("roofline", PLACED, roofline),
        frame("failures", FAILED, failures or []),
        NO_LAUNCHES,
    )


SWEEP = rows_of(
    [announced(0, 64, 64), announced(1, 128, 64), announced(2, 64, 128), announced(3, 64, 64, block="32x8x1"), announced(4, 256, 64)],
    [placed(0, 1e9), placed(1, 4e10), placed(3, 2e9), placed(4, None)],
    [{"run_id": RUN, "configuration_index": 2, "reason": "COMPILE_FAILED", "message": "line 3"}],
)


def drawn(rows: pl.DataFrame, axes: tuple[str, str], is_over: bool = True) -> heatmap.Heatmap:
    return heatmap.heatmap(rows, axis_values(rows), axes, FLOP_RATE, is_over=is_over)


def test_parameters_macros_and_extents_of_the_block_are_axes() -> None:
    values = axis_values(SWEEP)
    assert (values["N"], values["M"]) == ([64, 128, 64, 64, 256], [64, 64, 128, 64, 64])
    assert (values["TILE"], values["block_x"], values["block_y"]) == ([16] * 5, [16, 16, 16, 32, 16], [8] * 5)
    assert "model" not in values


def test_a_cell_is_the_best_of_its_place_with_exact_figures() -> None:
    made = drawn(SWEEP, ("N", "M"))
    assert (made.x.labels, made.y.labels) == (("64", "128", "256"), ("64", "128"))
    at = dict(zip(made.cells["place"].tolist(), range(9), strict=False))
    here = at["N 64, M 64"]
    assert made.cells["figure"][here] == "2.00 Gflop/s, 50.0 % of attainable, 1.00 µs"
    assert made.cells["others"][here] == "best of 2 configurations, the worst 1.00 Gflop/s"
    assert made.cells["configuration"][here] == f"{RUN}.3"
    # 2 to 40 Gflop/s: logarithmic.
    assert made.cells["color"].tolist() == [0.0, 1.0]
    assert made.scale is not None
    assert made.scale.labels(FLOP_RATE)[0.5] == "8.94 Gflop/s"
    assert [(x, y) for x, y, text in zip(*(made.marks[name].tolist() for name in ("x", "y", "text")), strict=True) if text == "★"] == [
        (1, 0)
    ]


def test_an_empty_cell_says_why() -> None:
    made = drawn(SWEEP, ("N", "M"))
    reasons = dict(zip(made.gaps["place"].tolist(), made.gaps["reason"].tolist(), strict=True))
    assert reasons["N 64, M 128"] == "matmul N=64 M=128: COMPILE_FAILED: line 3"
    assert reasons["N 128, M 128"] == "no configuration of these runs lies here"
    assert reasons["N 256, M 64"] == "measured, but how many flop it does is not known"
    waiting = rows_of([announced(0, 64, 64), announced(1, 128, 64)], [placed(0, 1e9)])
    assert drawn(waiting, ("N", "M"), is_over=False).gaps["reason"].tolist() == ["not measured yet"]
    assert drawn(waiting, ("N", "M")).gaps["reason"].tolist() == ["announced, but not measured before the run ended"]


def test_what_cannot_be_believed_is_never_the_best() -> None:
    rows = rows_of(
        [announced(index, size, 64) for index, size in enumerate((1, 2, 3))],
        [placed(0, 9e9, verification_state="FAILED"), placed(1, 8e9, is_implausible=True), placed(2, 1e9)],
    )
    made = drawn(rows, ("N", "kernel"))
    assert dict(zip(made.marks["x"].tolist(), made.marks["text"].tolist(), strict=True)) == {0: "≠", 1: "✱", 2: "★"}
    assert made.cells["remark"].tolist() == ["WRONG RESULT", "IMPLAUSIBLE: faster than its device can be", ""]


@pytest.mark.parametrize(
    ("counts", "x", "y", "expected"),
    [
        ({"kernel": 1, "run": 1, "N": 3}, "", "", ("N", "kernel")),
        ({"kernel": 2, "run": 1, "N": 3, "M": 2}, "", "", ("kernel", "N")),
        ({"kernel": 2, "run": 1, "N": 3, "model": 2}, "", "", ("kernel", "model")),
        ({"kernel": 1, "run": 1, "N": 3, "M": 2}, "M", "", ("M", "N")),
        ({"kernel": 2, "run": 1, "N": 3}, "N", "kernel", ("N", "kernel")),
        ({"kernel": 2, "run": 1}, "gone", "", ("kernel", "run")),
        ({"kernel": 1, "run": 1}, "", "", None),
    ],
)
def test_axes_are_chosen_where_nobody_has(counts: dict[str, int], x: str, y: str, expected: tuple[str, str] | None) -> None:
    assert heatmap.chosen_axes({name: list(range(count)) for name, count in counts.items()}, x, y) == expected


def test_more_values_than_places_share_them_with_their_neighbours() -> None:
    axis = heatmap.axis_of("N", list(range(100)))
    assert len(axis.places) <= heatmap.MAX_PLACES
    assert (axis.labels[0], axis.places_by_value()[99]) == ("0 to 2", len(axis.places) - 1)
    names = heatmap.axis_of("kernel", [f"kernel_{number:03}" for number in range(60)])
    assert (len(names.places), names.dropped_count) == (heatmap.MAX_PLACES, 60 - heatmap.MAX_PLACES)


def test_split_charts_have_one_order_and_each_kernels_best() -> None:
    rows = rows_of(
        [announced(0, 1, 1, kernel_name="a"), announced(1, 2, 1, kernel_name="a"), announced(2, 1, 1, kernel_name="b")],
        [placed(0, 1e9), placed(1, 3e9, intensity_flop_per_byte=None), placed(2, 2e9, attainable_flop_per_s=5e9)],
    )
    bars = split.split_bars(rows, FLOP_RATE, LIGHT)
    assert bars.names == {0: "a", 1: "b"}
    assert bars.performances["top"].tolist() == [3e9, 2e9]
    assert bars.performances["figure"][0] == "3.00 Gflop/s, 50.0 % of attainable, 1.00 µs"
    # a's best has no intensity: its place stays empty, b stays where it is.
    assert (bars.intensities["left"] + split.BAR_WIDTH / 2).tolist() == [1.0]
    assert bars.intensities["figure"].tolist() == ["2.00 flop/B"]
    assert bars.roofs["roof"].tolist() == ["5.00 Gflop/s"]
    assert split.split_bars(rows, FLOP_RATE, LIGHT, {rows["category"][0]}).names == {}


def test_bars_of_one_kernel_are_its_configurations() -> None:
    bars = split.split_bars(SWEEP, FLOP_RATE, LIGHT)
    assert (bars.is_of_configurations, list(bars.names.values())) == (True, ["N=128 M=64", "N=64 M=64 32x8x1", "N=64 M=64 16x8x1"])


def test_kernels_of_a_trace_come_in_the_order_of_their_time_though_their_work_is_unknown() -> None:
    launched = pl.DataFrame(
        {"run_id": [RUN] * 2, "kernel_name": ["short", "long"], "duration_sum_ns": [10, 90], "duration_median_ns": [5.0, 1.0]}
    )
    rows = performance_rows(frame("configurations", ANNOUNCED, []), frame("roofline", PLACED, []), frame("failures", FAILED, []), launched)
    assert metric_of("", rows) == "duration"
    bars = split.split_bars(rows, DURATION, LIGHT)
    assert (list(bars.names.values()), bars.performances["top"].tolist()) == (["long", "short"], [1.0, 5.0])
    assert bars.performances["configuration"][0] == f"{RUN}.k{name_digest('long')}"


def test_kernels_with_one_short_name_are_told_apart() -> None:
    names = ("void gemm<float, 64, 64>(float*)", "void gemm<float, 128, 64>(float*)", "copy", "copy", "softmax")
    kernels = [
        placed(None, 1e9 - index, kernel_name=name, dtype=dtype)
        for index, (name, dtype) in enumerate(zip(names, ("float32", "float32", "float16", "int8", None), strict=True))
    ]
    rows = performance_rows(
        frame("configurations", ANNOUNCED, []), frame("roofline", PLACED, kernels), frame("failures", FAILED, []), NO_LAUNCHES
    )
    bars = split.split_bars(rows, FLOP_RATE, LIGHT)
    assert list(bars.names.values()) == ["gemm 64", "gemm 128", "copy float16", "copy int8", "softmax"]


def test_small_kernels_can_be_seen_beside_large_ones_and_what_has_no_bar_is_named() -> None:
    many = [announced(index, 1, 1, kernel_name=f"kernel_{index:02}") for index in range(20)]
    rows = rows_of(many, [placed(index, 10.0 ** (12 - index % 6), kernel_name=f"kernel_{index:02}") for index in range(20)])
    bars = split.split_bars(rows, FLOP_RATE, LIGHT)
    low, high = split.height_range(bars.performances["top"])
    assert low < min(bars.performances["top"]) / 2
    assert high > max(bars.performances["top"])
    assert len(bars.left_out) == 4
    assert split.left_out_text(bars) == f"Without a bar, for want of room: {', '.join(bars.left_out)}."
    chart = split.performance_chart(bars.performances, bars.roofs, LIGHT)
    assert hv.render(chart).y_scale.__class__.__name__ == "LogScale"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("gemm", "matmul"),
        ("my_sgemm_64x64", "matmul"),
        ("attention", "attention"),
        ("flash_attention_fwd", "attention"),
        ("softmax", "normalization"),
        ("layernorm_kernel", "normalization"),
        ("conv2d_nhwc", "convolution"),
        ("transpose_tiled", "transpose"),
        ("reduce_sum", "reduction"),
        ("gelu_forward", "elementwise"),
        ("my_kernel", "other"),
    ],
)
def test_kernels_that_nobody_has_described_have_the_category_that_their_names_tell(name: str, category: str) -> None:
    assert infer_category(name) == category
    source = KernelSource("own.cu", f'extern "C" __global__ void {name}(const float* a, float* b, int N) {{ b[0] = a[0]; }}')
    assert derive_definition(source, name)[0].category == category


def test_a_long_name_is_told_by_what_is_its_own() -> None:
    assert tick_name("void at::native::(anonymous namespace)::max_pool<float, 4>(int)") == "max_pool"
    assert tick_name("x" * 10_000) == "x" * 21 + "…"
    assert configuration_key({"run_id": "r", "configuration_index": 7}) == "r.7"


def samples(durations: list[float], discarded: tuple[int, ...] = ()) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_index": range(len(durations)),
            "duration_ns": durations,
            "sm_clock_hz": [1_500_000_000, *([None] * (len(durations) - 1))],
            "is_discarded": [index in discarded for index in range(len(durations))],
        },
        schema_overrides={"sm_clock_hz": pl.Int64},
    )


def test_outliers_and_discarded_samples_are_told_apart() -> None:
    made = distribution.distribution(samples([10, 11, 12, 11, 10, 12, 11, 90, 5000], discarded=(8,)), LIGHT)
    assert made.counts == {"kept": 7, "outlier": 1, "discarded": 1}
    assert made.samples["marker"].tolist()[-2:] == ["triangle", "x"]
    assert made.samples["clock"].tolist()[:2] == ["1.50 GHz", "–"]
    assert made.clocks["clock"].tolist() == [1.5e9]
    assert (made.beyond_count, made.steps["share"][-1]) == (1, 1.0)
    assert float(made.bins["top"].sum()) == pytest.approx(7 / 8)  # the outlier counts, and lies beyond the edges
    assert made.interval == median_interval(np.array([10, 11, 12, 11, 10, 12, 11, 90.0]))


def test_one_sample_or_equal_ones_have_a_distribution() -> None:
    for durations in ([7.0], [7.0] * 50):
        made = distribution.distribution(samples(durations), LIGHT)
        assert float(made.bins["top"].sum()) == pytest.approx(1.0)
        assert made.span_ns[0] < 7.0 < made.span_ns[1]
        assert made.counts["kept"] == len(durations)


def test_the_best_configuration_of_a_kernel_comes_first_and_what_was_not_measured_last() -> None:
    rows = rows_of(
        [announced(index, 1, 1) for index in range(5)],
        [
            placed(0, 1e12, efficiency_ratio=0.3),
            placed(1, 9e12, efficiency_ratio=7.0, is_implausible=True),
            placed(2, 2e12, efficiency_ratio=0.6),
            placed(4, None, efficiency_ratio=None),
        ],
    )
    assert best_first(rows)["configuration_index"].to_list() == [2, 0, 4, 1, 3]


def test_listings_of_a_kernel_come_with_its_own_constants_first() -> None:
    names = ["run_spec.json", "gemm.TILE8.ptx", "gemm.TILE16.ptx", "gemm.ptxas.txt", "gemm.sass", "gemm_other.ptx", "scale_float_4.cl"]
    artifacts = pl.DataFrame({"artifact_name": names, "size_bytes": [10] * len(names)})
    assert [listing.title for listing in listings_of("gemm", '{"TILE": 16}', artifacts)] == [
        "PTX · TILE16", "PTX · TILE8", "SASS", "ptxas report",
    ]  # fmt: skip
    assert [listing.artifact_name for listing in listings_of("scale<float, 4>", None, artifacts)] == ["scale_float_4.cl"]
