"""Figures of benchmark results: a heat map, kernels side by side, speed-ups, and one kernel's figures in detail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from services.compat.benchmarking.results import BenchmarkResult
from services.compat.visualizing import figure_style as style
from services.compat.visualizing.measured_slice import MeasuredSlice, describe_others, fastest_by_problem
from services.ui.theme import LIGHT

COLOR_MAP: Final = "cividis"  # looks the same with every common colour vision, and grows evenly in lightness
MAX_LABELLED_CELLS: Final = 12  # along one axis: in smaller cells the numbers would run into each other
MAX_COLUMNS: Final = 3
TIME_LABEL: Final = "execution time (ms)"
SPEEDUP_LABEL: Final = "speed-up (times as fast)"
INTERVAL_LABEL: Final = "95 % interval of the median"
NOT_COUNTED: Final = (
    "Not measured. It takes hardware counters of NVIDIA Nsight Compute: benchmark with profile=True on an NVIDIA GPU "
    "whose counters may be read."
)


# ---------------------------------------------------------------- heat map


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Execution times in ms over two parameters. times: shape (rows, columns), NaN where nothing was measured."""

    kernel_name: str
    rows: Sequence[int]
    columns: Sequence[int]
    times_ms: npt.NDArray[np.float64]
    note: str


def heat_map_of(kernel_name: str, results: Sequence[BenchmarkResult], row_name: str, column_name: str) -> HeatMap:
    """At each cell the largest other parameters count, the fastest of several results."""

    def others(result: BenchmarkResult) -> list[int]:
        return [value for name, value in result.parameters.items() if name not in (row_name, column_name)]

    smallest_first = sorted(fastest_by_problem(results).values(), key=others)
    cells = {(result.parameters[row_name], result.parameters[column_name]): result for result in smallest_first}
    rows, columns = (sorted({key[index] for key in cells}) for index in (0, 1))
    times_ms = np.full((len(rows), len(columns)), np.nan)
    for (row, column), result in cells.items():
        times_ms[rows.index(row), columns.index(column)] = result.execution_time_ms
    return HeatMap(kernel_name, rows, columns, times_ms, describe_others(list(cells.values()), [row_name, column_name]))


def draw_heat_maps(maps: Sequence[HeatMap], row_name: str, column_name: str, note: str) -> Figure:
    """One panel for each kernel, all with one scale of colours."""
    column_count = min(len(maps), MAX_COLUMNS)
    row_count = math.ceil(len(maps) / column_count)
    figure = style.new_figure(1.6 + 4.3 * column_count, 1.0 + 3.9 * row_count, "Execution time across the parameters", note)
    panels = figure.subplots(row_count, column_count, squeeze=False).flatten()
    times_ms = np.concatenate([one.times_ms.flatten() for one in maps])
    low, high = float(np.nanmin(times_ms)), float(np.nanmax(times_ms))
    norm = LogNorm(low, high if high > low else low * 1.01)
    for axes, one in zip(panels, maps, strict=False):
        mesh = axes.imshow(one.times_ms, norm=norm, cmap=COLOR_MAP, origin="lower", aspect="auto")
        axes.set_title(one.kernel_name, fontsize=11, color=LIGHT.text)
        axes.set_xticks(range(len(one.columns)), [str(value) for value in one.columns])
        axes.set_yticks(range(len(one.rows)), [str(value) for value in one.rows])
        axes.set_xlabel(column_name)
        axes.set_ylabel(row_name)
        axes.tick_params(colors=LIGHT.muted, length=0, labelsize=9.5)
        axes.set_facecolor("#eef1f4")
        for spine in axes.spines.values():
            spine.set_visible(False)
        if max(one.times_ms.shape) <= MAX_LABELLED_CELLS:
            _label_cells(axes, one, norm)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    bar = figure.colorbar(mesh, ax=list(panels), pad=0.02)
    bar.set_label(TIME_LABEL, color=LIGHT.text)
    bar.ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.tick_params(colors=LIGHT.muted, labelsize=9.5)
    bar.outline.set_visible(False)
    return figure


def _label_cells(axes: Axes, one: HeatMap, norm: LogNorm) -> None:
    for row in range(len(one.rows)):
        for column in range(len(one.columns)):
            time_ms = float(one.times_ms[row, column])
            if math.isnan(time_ms):
                axes.text(column, row, "–", ha="center", va="center", color=LIGHT.muted, fontsize=9)
            else:
                ink = "#ffffff" if float(norm(time_ms)) < 0.5 else "#111111"
                axes.text(column, row, style.three_digits(time_ms), ha="center", va="center", color=ink, fontsize=9)


# ---------------------------------------------------------------- several kernels


def draw_comparison(measured: MeasuredSlice, note: str) -> Figure:
    figure = style.new_figure(8.8, 5.4, f"Execution time by {measured.param_name}", note)
    axes = figure.subplots()
    style.style_axes(axes)
    if len(measured.values) == 1:
        times_ms = {name: results[0].execution_time_ms for name, results in measured.results.items()}
        _draw_bars(axes, measured, times_ms, TIME_LABEL)
        return figure
    has_intervals = [_plot_times(axes, index, name, measured) for index, name in enumerate(measured.results)]
    _finish(axes, measured, TIME_LABEL, [result.execution_time_ms for group in measured.results.values() for result in group])
    style.legend_beside(axes, [INTERVAL_LABEL] if any(has_intervals) else [])
    return figure


def draw_speedup(measured: MeasuredSlice, baseline_kernel: str, note: str) -> Figure:
    """How many times as fast as the baseline each other kernel is."""
    figure = style.new_figure(8.8, 5.4, f"Speed-up over {baseline_kernel} by {measured.param_name}", note)
    axes = figure.subplots()
    style.style_axes(axes)
    speedups = {name: _speedups(measured, name, baseline_kernel) for name in measured.results}
    ratios = [ratio for name, group in speedups.items() if name != baseline_kernel for ratio in group.values()]
    if not ratios:
        style.explain(axes, f"No other kernel was measured at the parameters of {baseline_kernel}.")
        return figure
    if len(measured.values) == 1:
        _draw_bars(axes, measured, {name: next(iter(group.values())) for name, group in speedups.items() if group}, SPEEDUP_LABEL)
        return figure
    axes.axhline(1.0, color=LIGHT.muted, linestyle="--", linewidth=1.4, label=f"{baseline_kernel} (baseline)")
    for index, (name, group) in enumerate(speedups.items()):
        if group and name != baseline_kernel:
            _plot_line(axes, index, name, list(group), list(group.values()))
    _finish(axes, measured, SPEEDUP_LABEL, [1.0, *ratios])
    style.legend_beside(axes, [])
    return figure


def _speedups(measured: MeasuredSlice, kernel_name: str, baseline_kernel: str) -> dict[int, float]:
    """By value of the parameter, where both were measured."""
    baseline = measured.at(baseline_kernel)
    return {
        value: baseline[value].execution_time_ms / result.execution_time_ms
        for value, result in measured.at(kernel_name).items()
        if value in baseline
    }


def _draw_bars(axes: Axes, measured: MeasuredSlice, quantities: Mapping[str, float], label: str) -> None:
    """For a single value of the parameter: a line of one point would say nothing."""
    names = list(quantities)
    bars = axes.barh(names, list(quantities.values()), color=[style.color(index) for index in range(len(names))], height=0.6)
    axes.bar_label(bars, [style.three_digits(quantity) for quantity in quantities.values()], padding=4, color=LIGHT.text)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    axes.set_ylabel(f"{measured.param_name} = {measured.values[0]}")


def _plot_times(axes: Axes, index: int, kernel_name: str, measured: MeasuredSlice) -> bool:
    """Answers whether the interval of the median was drawn with them."""
    results = measured.results[kernel_name]
    values = [result.parameters[measured.param_name] for result in results]
    _plot_line(axes, index, kernel_name, values, [result.execution_time_ms for result in results])
    lows_ms, highs_ms = ([_interval_ms(result, side) for result in results] for side in ("low", "high"))
    has_intervals = not any(math.isnan(bound) for bound in (*lows_ms, *highs_ms))
    if has_intervals:
        axes.fill_between(values, lows_ms, highs_ms, color=style.color(index), alpha=style.BAND_ALPHA, linewidth=0)
    return has_intervals


def _plot_line(axes: Axes, index: int, name: str, values: Sequence[float], quantities: Sequence[float]) -> None:
    axes.plot(values, quantities, color=style.color(index), marker=style.marker(index), markersize=7, linewidth=2, label=name)


def _interval_ms(result: BenchmarkResult, side: str) -> float:
    """Of the median's confidence interval; NaN where the file has none."""
    bound_ns = result.metrics.get(f"duration_median_{side}_ns")
    return math.nan if bound_ns is None else float(bound_ns) / 1e6


def _finish(axes: Axes, measured: MeasuredSlice, label: str, quantities: Sequence[float]) -> None:
    style.scale_sizes(axes, measured.values)
    style.scale_quantity(axes, quantities)
    axes.set_xlabel(measured.param_name)
    axes.set_ylabel(label)


# ---------------------------------------------------------------- one kernel


METRIC_PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "throughput (% of the peak)": {"memory": "memory_throughput_pct", "compute": "compute_throughput_pct"},
    "occupancy (%)": {"occupancy": "occupancy_pct"},
    "SM efficiency (%)": {"SM efficiency": "sm_efficiency_pct"},
}
"""By the label of the axis: what each line is called, and the attribute that it shows."""


def draw_metrics(measured: MeasuredSlice, kernel_name: str, note: str) -> Figure:
    """Time, throughput, occupancy and SM efficiency; a panel without a measured value says why."""
    results = measured.results[kernel_name]
    figure = style.new_figure(11, 7.2, f"{kernel_name} by {measured.param_name}", note)
    panels = figure.subplots(2, 2).flatten()
    for axes in panels:
        style.style_axes(axes)
    has_intervals = _plot_times(panels[0], 0, kernel_name, measured)
    _finish(panels[0], measured, TIME_LABEL, [result.execution_time_ms for result in results])
    _head(panels[0], TIME_LABEL)
    style.legend_inside(panels[0], [INTERVAL_LABEL] if has_intervals else [])
    for axes, (label, lines) in zip(panels[1:], METRIC_PANELS.items(), strict=True):
        _plot_percentages(axes, measured, results, label, lines)
    return figure


def _plot_percentages(
    axes: Axes, measured: MeasuredSlice, results: Sequence[BenchmarkResult], label: str, lines: Mapping[str, str]
) -> None:
    is_empty = True
    for index, (name, attribute) in enumerate(lines.items()):
        percentages = [getattr(result, attribute) for result in results]
        if all(math.isnan(percentage) for percentage in percentages):
            continue
        is_empty = False
        values = [result.parameters[measured.param_name] for result in results]
        _plot_line(axes, index, name, values, percentages)
    if is_empty:
        style.explain(axes, NOT_COUNTED)
    else:
        style.scale_sizes(axes, measured.values)
        axes.set_xlabel(measured.param_name)
        axes.set_ylim(0, 105)
        axes.set_ylabel(_with_source(label, results))
        if len(lines) > 1:
            style.legend_inside(axes, [])
    _head(axes, label)


def _head(axes: Axes, label: str) -> None:
    """The axis label without its unit, as the panel's heading."""
    words = label.partition(" (")[0]
    axes.set_title(words[0].upper() + words[1:], fontsize=11, color=LIGHT.text, loc="left")


def _with_source(label: str, results: Sequence[BenchmarkResult]) -> str:
    """Occupancy worked out from registers and shared memory is not one that was counted."""
    sources = {str(result.metrics.get("occupancy_source")) for result in results}
    return label.replace("occupancy", "theoretical occupancy") if sources == {"theoretical"} else label


def draw_explanation(title: str, text: str) -> Figure:
    """A figure whose only content is why there is no chart."""
    figure = style.new_figure(8.4, 3.4, title, "")
    style.explain(figure.subplots(), text)
    return figure
