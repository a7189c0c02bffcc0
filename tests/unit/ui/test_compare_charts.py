"""What the Compare and History pages draw and say: data and words, not pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.tables.derived import COMPARISON, HISTORY
from kernalyse.services.ui.charts import compare, history
from kernalyse.services.ui.charts.elements import elided_apart
from kernalyse.services.ui.data.compared_rows import MAX_SHOWN_LINES, source_difference
from kernalyse.services.ui.theme import LIGHT
from tests.unit.ui.test_charts import points


def compared(label: str, ratio: float | None, verdict: str | None, occurrence: str = "MATCHED") -> dict[str, Any]:
    ends = {} if ratio is None else {"duration_ratio_low": ratio / 1.1, "duration_ratio_high": ratio * 1.1}
    return {"label": label, "duration_ratio": ratio, "verdict": verdict, "occurrence": occurrence, "reason": "so", **ends}


ROWS = pl.DataFrame(
    [
        compared("a", 0.5, "FASTER"),
        compared("b", 2.0, "SLOWER"),
        compared("c", 1.0, "SAME"),
        compared("d", 1.02, "UNDECIDED"),
        compared("e", None, None, "NEW"),
        compared("f", None, None, "GONE"),
    ],
    schema=COMPARISON.schema,
)


def test_verdicts_are_counted_and_their_mean_is_geometric() -> None:
    counts = compare.verdict_counts(ROWS)
    assert counts.by_verdict == {"SLOWER": 1, "FASTER": 1, "SAME": 1, "UNDECIDED": 1}
    assert (counts.new, counts.gone) == (1, 1)
    mean_ratio = (0.5 * 2.0 * 1.0 * 1.02) ** 0.25
    assert counts.mean_ratio == pytest.approx(mean_ratio)
    # Errors of one run go together: the interval is as wide as that of a single row.
    assert counts.low == pytest.approx(mean_ratio / 1.1)
    assert counts.high == pytest.approx(mean_ratio * 1.1)
    nothing = compare.verdict_counts(ROWS.filter(pl.col("occurrence") != "MATCHED"))
    assert nothing.mean_ratio is None


def test_layers_move_on_the_roofline_by_their_names() -> None:
    before, after = points({"label": "layer"}), points({"label": "layer", "achieved_flop_per_s": 3e9})
    matches = pl.DataFrame({"key_before": ["layer"], "key": ["layer"], "key_name": ["label"], "verdict": ["FASTER"]})
    moves = compare.move_columns(before, after, matches, LIGHT)
    assert (moves["y0"].tolist(), moves["y1"].tolist(), moves["label"].tolist()) == ([2e9], [3e9], ["layer"])


def test_nothing_moves_where_a_filter_leaves_nothing_that_both_runs_have() -> None:
    numbers = pl.Series([], dtype=pl.Int64)
    matches = pl.DataFrame({"key_before": numbers, "key": numbers, "key_name": pl.Series([], dtype=pl.String), "verdict": []})
    assert len(compare.move_columns(points({}), points({}), matches, LIGHT)["x0"]) == 0


def test_speedup_visualization_sorts_by_speedup_and_says_the_verdict_by_colour_and_shape() -> None:
    points, whiskers, names = compare.speedup_columns(compare.charted(ROWS), LIGHT)
    assert list(names.values()) == ["a", "c", "d", "b"]  # the fastest on top
    assert points["speedup"].tolist() == pytest.approx([2.0, 1.0, 1 / 1.02, 0.5])
    assert points["marker"].tolist() == ["triangle", "square", "circle", "inverted_triangle"]
    assert len(set(points["color"].tolist())) == 4
    assert points["fill_alpha"].tolist() == [0.9, 0.9, 0.0, 0.9]  # what is not decided is hollow
    assert (whiskers["low"] < points["speedup"]).all()
    assert (whiskers["high"] > points["speedup"]).all()
    start, end = compare.speedup_span(points, whiskers)
    assert start < whiskers["low"].min()
    assert end > whiskers["high"].max()


def test_the_largest_changes_are_charted_when_there_are_too_many() -> None:
    many = pl.DataFrame([compared(f"k{index}", 1 + index / 1000, "SAME") for index in range(100)], schema=COMPARISON.schema)
    assert compare.charted(many)["label"].to_list() == [f"k{index}" for index in range(100 - compare.MAX_CHARTED, 100)]


def test_changes_of_traces_lie_left_of_zero_when_they_save_time() -> None:
    rows = pl.DataFrame(
        {
            "kernel_name": ["gemm", None, "copy"],
            "baseline_kernel_name": ["gemm", "old", None],
            "duration_delta_ns": [-500, -2_000, 300],
            "duration_sum_ns": [500, None, 300],
            "baseline_duration_sum_ns": [1_000, 2_000, None],
            "launch_count": [1, None, 1],
            "baseline_launch_count": [1, 2, None],
        }
    )
    bars, names = compare.change_columns(rows, "kernel_name", LIGHT)
    assert list(names.values()) == ["copy", "gemm", "old"]
    assert bars["right"].tolist() == [300, 0, 0]
    assert bars["left"].tolist() == [0, -500, -2_000]
    assert bars["delta"].tolist() == ["+300 ns", "-500 ns", "-2.00 µs"]


@pytest.mark.parametrize(("ratio", "text"), [(1.0512, "+5.12 %"), (0.5, "-50.00 %"), (2.5, "×2.50"), (None, "–"), (float("nan"), "–")])
def test_changes_are_said_in_percent_and_large_ones_as_factors(ratio: float | None, text: str) -> None:
    assert compare.change(ratio) == text


def test_source_difference_numbers_the_lines_of_both_sides() -> None:
    before = "\n".join(f"line {number}" for number in range(40))
    after = before.replace("line 20", "line twenty\nand more").replace("line 39", "<script>")
    (changed,) = source_difference({"k.cu": before}, {"k.cu": after})
    assert (changed.added_count, changed.removed_count) == (3, 2)
    assert [(line.number_before, line.number_after, line.text) for line in changed.lines if line.kind == "removed"] == [
        (21, None, "line 20"),
        (40, None, "line 39"),
    ]
    assert [line.kind for line in changed.lines].count("gap") == 1
    assert [line.number_after for line in changed.lines if line.kind == "added"] == [21, 22, 41]


def test_source_difference_of_files_that_one_side_lacks_and_of_one_that_was_renamed() -> None:
    new, same = source_difference({"b.cu": "x"}, {"a.cu": "1\n2", "b.cu": "x"})
    assert (new.name, new.added_count, new.is_same) == ("a.cu", 2, False)
    assert same.is_same
    assert same.lines == ()
    (renamed,) = source_difference({"old.cu": "x"}, {"new.cu": "x"})
    assert (renamed.name, renamed.is_same) == ("old.cu → new.cu", True)
    (long,) = source_difference({}, {"big.cu": "\n".join(map(str, range(5_000)))})
    assert (len(long.lines), long.hidden_count) == (MAX_SHOWN_LINES, 3_000)


# ---------------------------------------------------------------- history


def told(day: int, value: float, level: int, verdict: str | None = None) -> dict[str, Any]:
    return {
        "run_id": f"run-{day}",
        "measured_unix_ns": day * 86_400_000_000_000,
        "value": value,
        "value_low": value - 1,
        "value_high": value + 1,
        "level_index": level,
        "level_value": (100.0, 110.0)[level],
        "level_low": (95.0, 105.0)[level],
        "level_high": (105.0, 115.0)[level],
        "verdict": verdict,
        "change_ratio": 1.1 if verdict else None,
        "is_confirmed": False if verdict else None,
        "git_commit": f"{day:040x}",
    }


RUNS = pl.DataFrame([told(0, 100, 0), told(1, 101, 0), told(2, 110, 1, "REGRESSION"), told(3, 111, 1)], schema=HISTORY.schema)


def test_historical_tracking_marks_regressions_by_shape_and_hollow_until_they_are_confirmed() -> None:
    points = history.point_columns(RUNS, "duration_median_ns", "time", LIGHT)
    assert points["marker"].tolist() == ["circle", "circle", "inverted_triangle", "circle"]
    assert points["fill_alpha"].tolist() == [0.9, 0.9, 0.0, 0.9]
    assert points["what"].tolist()[2] == "Regression, +10.0 %, to be confirmed"
    assert points["value"].tolist()[0] == "100 ns"
    assert points["x"].tolist() == [day * 86_400_000.0 for day in range(4)]
    # Of the second level each run is held against the last run of the first.
    assert points["baseline"].tolist() == ["run-0", "run-0", "run-1", "run-1"]


def test_bands_of_levels_meet_half_way() -> None:
    bands, middles = history.level_columns(RUNS, "runs")
    assert bands["left"].tolist() == [-0.5, 1.5]
    assert bands["right"].tolist() == [1.5, 3.5]
    assert (bands["bottom"].tolist(), bands["top"].tolist()) == ([95, 105], [105, 115])
    assert middles["y0"].tolist() == [100, 110]
    points, whiskers = history.point_columns(RUNS, "duration_median_ns", "runs", LIGHT), history.whisker_columns(RUNS, "runs")
    (x_start, x_end), (y_start, y_end) = history.span_of(points, whiskers, bands, "runs")
    assert (x_start < 0, x_end > 3, y_start < 95, y_end > 115) == (True, True, True, True)


def test_a_history_without_runs_or_levels_is_an_empty_chart() -> None:
    empty = RUNS.clear()
    assert len(history.point_columns(empty, "tokens_per_s", "time", LIGHT)["x"]) == 0
    assert len(history.level_columns(empty, "time")[0]["left"]) == 0
    unjudged = RUNS.with_columns(level_index=pl.lit(None, dtype=pl.Int64))
    assert len(history.level_columns(unjudged, "time")[0]["left"]) == 0
    assert np.isfinite(history.span_of(history.point_columns(RUNS, "noise_ratio", "time", LIGHT), *history.no_levels()[::-1], "time")).all()


def test_long_names_that_differ_in_the_middle_are_told_apart() -> None:
    names = [f"matmul_naive M={size} N=256 K=64" for size in (64, 164)]
    assert elided_apart(names, 26) == ["…mul_naive M=64 N=256 K=64", "…ul_naive M=164 N=256 K=64"]
    assert elided_apart(["matmul_naive N=1024 K=1024 M=1", "softmax"], 26) == ["matmul_naive …4 K=1024 M=1", "softmax"]
