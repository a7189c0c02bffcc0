"""Figures of benchmark results: which results they show, what they say where there is nothing, and their files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from visualize import BenchmarkVisualizer, visualize

from kernalyse.services.compat.kernel_benchmarker.results import BenchmarkResult
from kernalyse.services.compat.visualizing import charts, visualizer
from kernalyse.services.compat.visualizing.charts import slice_along
from kernalyse.services.core.errors import InvalidParameterError, UnknownKernelError

SIZES = (64, 128, 256)
METRICS = {"device_name": "NVIDIA H200", "sample_count": 100, "occupancy_source": "theoretical"}


def entry(kernel: str, parameters: dict[str, int], time_ms: float, **others: Any) -> dict[str, Any]:
    return {"kernel": kernel, "parameters": parameters, "execution_time_ms": time_ms, "metrics": METRICS, **others}


PRODUCTS = [
    entry(
        kernel,
        {"N": n, "M": m, "K": k},
        n * m * k * 1e-6 / speed,
        metrics=METRICS | {"duration_median_low_ns": n * m * k * 0.9 / speed, "duration_median_high_ns": n * m * k * 1.1 / speed},
    )
    for kernel, speed in (("naive", 1.0), ("tiled", 4.0))
    for n in SIZES
    for m in SIZES
    for k in SIZES
]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures themselves, as they are saved."""
    figures: list[Figure] = []
    save: Callable[[Figure, str | Path], Path] = visualizer._save

    def keep(figure: Figure, path: str | Path) -> Path:
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(visualizer, "_save", keep)
    return figures


def of(entries: list[dict[str, Any]]) -> BenchmarkVisualizer:
    Path("results.json").write_text(json.dumps({"benchmarks": entries}))
    return BenchmarkVisualizer("results.json")


def results(entries: list[dict[str, Any]]) -> list[BenchmarkResult]:
    return list(of(entries).results)


def words(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)).replace("\n", " ")


# ---------------------------------------------------------------- what is shown


def test_other_parameters_are_held_at_the_largest_values() -> None:
    measured = slice_along(results(PRODUCTS), "N", {"M": 128})
    assert {name: [result.parameters["N"] for result in group] for name, group in measured.results.items()} == {
        "naive": list(SIZES),
        "tiled": list(SIZES),
    }
    assert {(result.parameters["M"], result.parameters["K"]) for group in measured.results.values() for result in group} == {(128, 256)}
    assert measured.note == "M = 128, K = 256"


def test_tied_parameters_follow() -> None:
    squares = [entry("naive", {"N": n, "M": n, "K": 7}, 1.0) for n in SIZES]
    measured = slice_along(results(squares), "N", {})
    assert len(measured.results["naive"]) == 3
    assert measured.note == "M = N, K = 7"


def test_all_kernels_are_shown_at_the_same_problems() -> None:
    without_largest = [one for one in PRODUCTS if not (one["kernel"] == "tiled" and one["parameters"]["K"] == 256)]
    measured = slice_along(results(without_largest), "N", {})
    assert measured.note == "M = 256, K = 128"
    assert {result.parameters["K"] for group in measured.results.values() for result in group} == {128}


def test_of_several_results_for_one_problem_the_fastest_counts() -> None:
    measured = slice_along(results([entry("a", {"N": 1}, 3.0), entry("a", {"N": 1}, 2.0), entry("a", {"N": 1}, 4.0)]), "N", {})
    assert [result.execution_time_ms for result in measured.results["a"]] == [2.0]


@pytest.mark.parametrize(
    ("name", "fixed", "expected"),
    [("P", {}, "one of N, M, K"), ("N", {"P": 1}, "one of N, M, K"), ("N", {"M": 1000}, "M of 64, 128, 256")],
)
def test_names_and_values_that_were_not_measured_are_refused(name: str, fixed: dict[str, int], expected: str) -> None:
    with pytest.raises(InvalidParameterError, match=expected):
        of(PRODUCTS).plot_kernel_comparison(name, fixed)


def test_kernels_that_were_not_measured_are_refused() -> None:
    one = of(PRODUCTS)
    with pytest.raises(UnknownKernelError, match="naive, tiled"):
        one.plot_speedup_comparison("cublas", "N")
    with pytest.raises(UnknownKernelError, match="naive, tiled"):
        one.plot_performance_metrics("cublas", "N")
    with pytest.raises(UnknownKernelError, match="naive, tiled"):
        one.plot_execution_time_heatmap("N", "M", "cublas")


# ---------------------------------------------------------------- figures


def test_the_heat_map_has_a_panel_for_each_kernel_with_the_times_in_its_cells(drawn: list[Figure]) -> None:
    holes = [one for one in PRODUCTS if not (one["parameters"]["N"] == 64 and one["parameters"]["M"] == 256)]
    assert of(holes).plot_execution_time_heatmap("N", "M") == Path("heatmap.png")
    (figure,) = drawn
    naive, tiled = (axes for axes in figure.axes if axes.images)
    assert (naive.get_ylabel(), naive.get_xlabel(), naive.get_title(), tiled.get_title()) == ("N", "M", "naive", "tiled")
    cells = np.asarray(naive.images[0].get_array(), float)
    assert cells[2, 2] == 256**3 * 1e-6
    assert math.isnan(cells[0, 2])
    assert [text.get_text() for text in naive.texts][:3] == ["1.05", "2.10", "–"]
    assert "K = 256" in words(figure)
    assert "execution time (ms)" in words(figure)


def test_lines_have_logarithmic_axes_units_and_a_shape_of_their_own(drawn: list[Figure]) -> None:
    of(PRODUCTS).plot_kernel_comparison("N", {"M": 128})
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("N", "execution time (ms)")
    assert [line.get_label() for line in axes.lines] == ["naive", "tiled"]
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == len({line.get_marker() for line in axes.lines}) == 2
    assert [float(tick) for tick in axes.get_xticks()] == list(SIZES)
    assert "95 % interval of the median" in words(drawn[0])


def test_speed_up_is_over_the_baseline(drawn: list[Figure]) -> None:
    of(PRODUCTS).plot_speedup_comparison("naive", "N", {"M": 128, "K": 64})
    baseline, tiled = drawn[0].axes[0].lines
    assert baseline.get_label() == "naive (baseline)"
    assert np.asarray(tiled.get_ydata(), float) == pytest.approx([4.0] * 3)


def test_percentages_that_nobody_measured_are_explained(drawn: list[Figure]) -> None:
    of(PRODUCTS).plot_performance_metrics("naive", "N")
    assert words(drawn[0]).count("Not measured. It takes hardware counters") == 3


def test_measured_percentages_are_drawn_and_theoretical_occupancy_is_called_so(drawn: list[Figure]) -> None:
    counted = [one | {"memory_throughput_pct": 80.0 if one["parameters"]["N"] > 64 else None, "occupancy_pct": 75.0} for one in PRODUCTS]
    of(counted).plot_performance_metrics("naive", "N")
    _, throughput, occupancy, efficiency = drawn[0].axes
    (memory,) = throughput.lines
    assert np.isnan(np.asarray(memory.get_ydata(), float)).tolist() == [True, False, False]
    assert throughput.get_ylabel() == "throughput (% of the peak)"
    assert occupancy.get_ylabel() == "theoretical occupancy (%)"
    assert not efficiency.lines


def test_a_single_value_is_drawn_as_bars(drawn: list[Figure]) -> None:
    one = of([entry("naive", {"N": 64}, 3.0), entry("tiled", {"N": 64}, 1.0)])
    one.plot_kernel_comparison("N")
    one.plot_speedup_comparison("naive", "N")
    assert [bar.get_width() for bar in drawn[0].axes[0].patches] == [3.0, 1.0]  # type: ignore[attr-defined]
    assert [bar.get_width() for bar in drawn[1].axes[0].patches] == [1.0, 3.0]  # type: ignore[attr-defined]


def test_a_kernel_alone_has_nobody_to_be_faster_than(drawn: list[Figure]) -> None:
    of([entry("naive", {"N": n}, float(n)) for n in SIZES]).plot_speedup_comparison("naive", "N")
    assert "No other kernel was measured" in words(drawn[0])


# ---------------------------------------------------------------- dashboard


@pytest.mark.slow
def test_the_dashboard_has_every_figure_under_its_name() -> None:
    of([*PRODUCTS, entry("scale<float, 4>", {"N": 64}, 1.0)])
    files = visualize("results.json", output_dir="figures")
    assert [path.name for path in files] == [
        "heatmap.png", "kernel_comparison.png", "speedup.png", "metrics_naive.png", "metrics_tiled.png", "metrics_scale_float_4.png",
    ]  # fmt: skip
    for path in files:
        assert path.parent == Path("figures")
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[:, :, :3].std() > 0.02, f"{path} is blank"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([entry("alone", {}, 1.0)], "without any parameter"),
        ([entry("alone", {"N": n}, 1.0) for n in SIZES], "A heat map takes two parameters"),
        ([entry("a", {"N": 1}, 1.0), entry("b", {"M": 1}, 1.0), entry("c", {}, 1.0)], "without any parameter"),
    ],
)
def test_the_dashboard_explains_what_it_cannot_draw(drawn: list[Figure], entries: list[dict[str, Any]], said: str) -> None:
    files = of(entries).create_dashboard("figures")
    assert all(path.is_file() for path in files)
    assert said in " ".join(map(words, drawn))


def test_no_results_are_no_figures() -> None:
    with pytest.raises(InvalidParameterError, match="no benchmark"):
        of([])


def test_figures_need_neither_a_display_nor_the_engine() -> None:
    code = (
        "import sys, visualize as v;"
        "print(sorted({'matplotlib.pyplot', 'seaborn', 'tree_sitter', 'kernalyse.services.profiler', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_metric_panel_shows_attributes_that_results_have() -> None:
    fields = BenchmarkResult.__dataclass_fields__
    assert all(attribute in fields for lines in charts.METRIC_PANELS.values() for attribute in lines.values())


def test_every_figure_names_the_kernels_whose_times_nobody_should_believe(drawn: list[Figure]) -> None:
    unlike: dict[str, Any] = {"verification": {"state": "NO_REFERENCE"}, "compared_with": [{"kernel": "honest", "state": "DIFFERENT"}]}
    sure: dict[str, Any] = {"verification": {"state": "PASSED"}, "host_busy_ratio": 0.98}
    times = [("nothing", 0.001, unlike), ("honest", 0.3, sure)]
    of([entry(name, {"N": n}, time, metrics=METRICS | told) for name, time, told in times for n in SIZES]).create_dashboard()
    assert len(drawn) == 5
    for figure in drawn[1:]:  # the first says why there is no heat map of one parameter
        text = " ".join(words(figure).split())
        for mark in ("other results: nothing", "not verified: nothing", "disturbed: honest"):
            assert mark in text
