"""Charts of benchmark results: heat map, comparison of kernels, speedup, and metrics of one kernel."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from kernalyse.services.compat.kernel_benchmarker.results import BenchmarkResult
from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.ui.theme import LIGHT, digits

COLOR_MAP: Final = "cividis"  # suits every common colour vision, and increases evenly in lightness
MAX_LABELLED_CELLS: Final = 12  # along one axis; in smaller cells the numbers would overlap
MAX_COLUMNS: Final = 3
TIME_LABEL: Final = "execution time (ms)"
SPEEDUP_LABEL: Final = "speed-up (times as fast)"
INTERVAL_LABEL: Final = "95 % interval of the median"
NOT_COUNTED: Final = (
    "Not measured. It takes hardware counters of NVIDIA Nsight Compute: benchmark with profile=True on an NVIDIA GPU "
    "whose counters may be read."
)

# ---------------------------------------------------------------- slices of results
# A chart varies one parameter and keeps the others constant.

Problem = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class MeasuredSlice:
    """Results by kernel in increasing order of the parameter, and a description of the other parameters."""

    param_name: str
    results: Mapping[str, Sequence[BenchmarkResult]]
    note: str

    @property
    def values(self) -> list[int]:
        """Return all values of the parameter, in increasing order."""
        return sorted({result.parameters[self.param_name] for group in self.results.values() for result in group})

    def at(self, kernel_name: str) -> dict[int, BenchmarkResult]:
        """Return the results of a kernel by value of the parameter."""
        return {result.parameters[self.param_name]: result for result in self.results[kernel_name]}


def slice_along(results: Sequence[BenchmarkResult], param_name: str, fixed_params: Mapping[str, int]) -> MeasuredSlice:
    """Return one result for each kernel and value of `param_name`.

    Parameters that are neither `param_name` nor fixed have the largest values that every kernel was measured at, so
    that all points at one value of `param_name` are of the same problem. Of several results for one problem, for instance
    with different blocks, the fastest counts.

    Raises:
        InvalidParameterError: no result has that parameter, or those fixed values; names what there is.
    """
    selected = select(results, [param_name], fixed_params)
    fastest = {name: fastest_by_problem(group) for name, group in by_kernel(selected).items()}
    shared = set.intersection(*(set(group) for group in fastest.values()))
    points: dict[str, list[BenchmarkResult]] = {}
    for name, group in fastest.items():
        problems = [problem for problem in group if problem in shared] if shared else list(group)
        points[name] = _largest_at_each_value([group[problem] for problem in problems], param_name)
    shown = [result for group in points.values() for result in group]
    return MeasuredSlice(param_name, points, describe_others(shown, [param_name]))


def select(results: Sequence[BenchmarkResult], param_names: Sequence[str], fixed_params: Mapping[str, int]) -> list[BenchmarkResult]:
    """Return the results that have all these parameters and these fixed values.

    Raises:
        InvalidParameterError: as of `slice_along`.
    """
    _check_names(results, [*param_names, *fixed_params])
    selected = [
        result
        for result in results
        if all(name in result.parameters for name in param_names)
        and all(result.parameters.get(name) == value for name, value in fixed_params.items())
    ]
    if not selected:
        raise _nothing_there(results, param_names, fixed_params)
    return selected


def by_kernel(results: Iterable[BenchmarkResult]) -> dict[str, list[BenchmarkResult]]:
    """Return the results grouped by kernel name."""
    groups: dict[str, list[BenchmarkResult]] = {}
    for result in results:
        groups.setdefault(result.kernel_name, []).append(result)
    return groups


def fastest_by_problem(results: Iterable[BenchmarkResult]) -> dict[Problem, BenchmarkResult]:
    """Return the fastest result for each combination of parameter values."""
    slowest_first = sorted(results, key=lambda result: -result.execution_time_ms)
    return {frozenset(result.parameters.items()): result for result in slowest_first}


def parameter_names(results: Iterable[BenchmarkResult]) -> list[str]:
    """Return the parameter names in the order of their first occurrence."""
    return list(dict.fromkeys(name for result in results for name in result.parameters))


def varying_names(results: Sequence[BenchmarkResult]) -> list[str]:
    """Return the parameters with more than one value."""
    return [name for name in parameter_names(results) if len({result.parameters.get(name) for result in results} - {None}) > 1]


def _largest_at_each_value(results: list[BenchmarkResult], param_name: str) -> list[BenchmarkResult]:
    def others(result: BenchmarkResult) -> tuple[int, ...]:
        return tuple(value for name, value in result.parameters.items() if name != param_name)

    largest: dict[int, BenchmarkResult] = {}
    for result in sorted(results, key=others):
        largest[result.parameters[param_name]] = result
    return [largest[value] for value in sorted(largest)]


def describe_others(shown: Sequence[BenchmarkResult], param_names: Sequence[str]) -> str:
    """Return the values of the parameters other than `param_names` in words, such as: M = 1024, K = N."""
    parts = []
    for name in parameter_names(shown):
        having = [result.parameters for result in shown if name in result.parameters]
        values = {parameters[name] for parameters in having}
        followed = [other for other in param_names if all(parameters[name] == parameters.get(other) for parameters in having)]
        if name not in param_names:
            parts.append(f"{name} = {followed[0] if followed else values.pop()}" if followed or len(values) == 1 else f"{name} varies")
    return ", ".join(parts)


def _check_names(results: Sequence[BenchmarkResult], names: Iterable[str]) -> None:
    known = parameter_names(results)
    for name in names:
        if name not in known:
            raise InvalidParameterError(
                f"parameter {name}",
                found="no such parameter in the results",
                expected=f"one of {', '.join(known)}" if known else "none, for the results have none",
                remedy="Check the spelling.",
            )


def _nothing_there(
    results: Sequence[BenchmarkResult], param_names: Sequence[str], fixed_params: Mapping[str, int]
) -> InvalidParameterError:
    measured = [
        f"{name} of {', '.join(map(str, sorted({result.parameters[name] for result in results if name in result.parameters})))}"
        for name in fixed_params
    ]
    request = " ".join((f"by {' and '.join(param_names)}", *(f"{name}={value}" for name, value in fixed_params.items())))
    return InvalidParameterError(
        f"results {request}",
        found="none",
        expected=f"what was measured: {'; '.join(measured)}" if measured else f"a kernel with {' and '.join(param_names)}",
        remedy="Choose other parameters or values.",
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


def build_heat_map(kernel_name: str, results: Sequence[BenchmarkResult], row_name: str, column_name: str) -> HeatMap:
    """Return the heat map of one kernel.

    Each cell has the result at the largest values of the other parameters, the fastest if there are several.
    """

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
    """Return a figure with one panel per kernel, all with the same colour scale."""
    column_count = min(len(maps), MAX_COLUMNS)
    row_count = math.ceil(len(maps) / column_count)
    figure = new_figure(1.6 + 4.3 * column_count, 1.0 + 3.9 * row_count, "Execution time across the parameters", note)
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
                axes.text(column, row, three_digits(time_ms), ha="center", va="center", color=ink, fontsize=9)


# ---------------------------------------------------------------- several kernels


def draw_comparison(measured: MeasuredSlice, note: str) -> Figure:
    """Return a figure of the execution times of all kernels: bars for a single value of the parameter, else lines."""
    figure = new_figure(8.8, 5.4, f"Execution time by {measured.param_name}", note)
    axes = figure.subplots()
    style_axes(axes)
    if len(measured.values) == 1:
        times_ms = {name: results[0].execution_time_ms for name, results in measured.results.items()}
        _draw_bars(axes, measured, times_ms, TIME_LABEL)
        return figure
    has_intervals = [_plot_times(axes, index, name, measured) for index, name in enumerate(measured.results)]
    _finish(axes, measured, TIME_LABEL, [result.execution_time_ms for group in measured.results.values() for result in group])
    draw_outer_legend(axes, [INTERVAL_LABEL] if any(has_intervals) else [])
    return figure


def draw_speedup(measured: MeasuredSlice, baseline_kernel: str, note: str) -> Figure:
    """Return a figure of the speedup of each kernel over the baseline."""
    figure = new_figure(8.8, 5.4, f"Speed-up over {baseline_kernel} by {measured.param_name}", note)
    axes = figure.subplots()
    style_axes(axes)
    speedups = {name: _speedups(measured, name, baseline_kernel) for name in measured.results}
    ratios = [ratio for name, group in speedups.items() if name != baseline_kernel for ratio in group.values()]
    if not ratios:
        explain(axes, f"No other kernel was measured at the parameters of {baseline_kernel}.")
        return figure
    if len(measured.values) == 1:
        _draw_bars(axes, measured, {name: next(iter(group.values())) for name, group in speedups.items() if group}, SPEEDUP_LABEL)
        return figure
    axes.axhline(1.0, color=LIGHT.muted, linestyle="--", linewidth=1.4, label=f"{baseline_kernel} (baseline)")
    for index, (name, group) in enumerate(speedups.items()):
        if group and name != baseline_kernel:
            _plot_line(axes, index, name, list(group), list(group.values()))
    _finish(axes, measured, SPEEDUP_LABEL, [1.0, *ratios])
    draw_outer_legend(axes, [])
    return figure


def _speedups(measured: MeasuredSlice, kernel_name: str, baseline_kernel: str) -> dict[int, float]:
    """Return speedups by value of the parameter, where both kernels were measured."""
    baseline = measured.at(baseline_kernel)
    return {
        value: baseline[value].execution_time_ms / result.execution_time_ms
        for value, result in measured.at(kernel_name).items()
        if value in baseline
    }


def _draw_bars(axes: Axes, measured: MeasuredSlice, quantities: Mapping[str, float], label: str) -> None:
    """Draw bars for a single value of the parameter, where a line would have only one point."""
    names = list(quantities)
    bars = axes.barh(names, list(quantities.values()), color=[color(index) for index in range(len(names))], height=0.6)
    axes.bar_label(bars, [three_digits(quantity) for quantity in quantities.values()], padding=4, color=LIGHT.text)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    axes.set_ylabel(f"{measured.param_name} = {measured.values[0]}")


def _plot_times(axes: Axes, index: int, kernel_name: str, measured: MeasuredSlice) -> bool:
    """Draw a kernel's times, and return whether the interval of the median was drawn with them."""
    results = measured.results[kernel_name]
    values = [result.parameters[measured.param_name] for result in results]
    _plot_line(axes, index, kernel_name, values, [result.execution_time_ms for result in results])
    lows_ms, highs_ms = ([_interval_ms(result, side) for result in results] for side in ("low", "high"))
    has_intervals = not any(math.isnan(bound) for bound in (*lows_ms, *highs_ms))
    if has_intervals:
        axes.fill_between(values, lows_ms, highs_ms, color=color(index), alpha=BAND_ALPHA, linewidth=0)
    return has_intervals


def _plot_line(axes: Axes, index: int, name: str, values: Sequence[float], quantities: Sequence[float]) -> None:
    axes.plot(values, quantities, color=color(index), marker=marker(index), markersize=7, linewidth=2, label=name)


def _interval_ms(result: BenchmarkResult, side: str) -> float:
    """Return one end of the median's confidence interval; NaN where the file has none."""
    bound_ns = result.metrics.get(f"duration_median_{side}_ns")
    return math.nan if bound_ns is None else float(bound_ns) / 1e6


def _finish(axes: Axes, measured: MeasuredSlice, label: str, quantities: Sequence[float]) -> None:
    scale_sizes(axes, measured.values)
    scale_quantity(axes, quantities)
    axes.set_xlabel(measured.param_name)
    axes.set_ylabel(label)


# ---------------------------------------------------------------- one kernel


METRIC_PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "throughput (% of the peak)": {"memory": "memory_throughput_pct", "compute": "compute_throughput_pct"},
    "occupancy (%)": {"occupancy": "occupancy_pct"},
    "SM efficiency (%)": {"SM efficiency": "sm_efficiency_pct"},
}
"""For each axis label, the names of its lines and the attributes that they show."""


def draw_metrics(measured: MeasuredSlice, kernel_name: str, note: str) -> Figure:
    """Return a figure of time, throughput, occupancy and SM efficiency; a panel without a measured value says why."""
    results = measured.results[kernel_name]
    figure = new_figure(11, 7.2, f"{kernel_name} by {measured.param_name}", note)
    panels = figure.subplots(2, 2).flatten()
    for axes in panels:
        style_axes(axes)
    has_intervals = _plot_times(panels[0], 0, kernel_name, measured)
    _finish(panels[0], measured, TIME_LABEL, [result.execution_time_ms for result in results])
    _head(panels[0], TIME_LABEL)
    draw_inner_legend(panels[0], [INTERVAL_LABEL] if has_intervals else [])
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
        explain(axes, NOT_COUNTED)
    else:
        scale_sizes(axes, measured.values)
        axes.set_xlabel(measured.param_name)
        axes.set_ylim(0, 105)
        axes.set_ylabel(_with_source(label, results))
        if len(lines) > 1:
            draw_inner_legend(axes, [])
    _head(axes, label)


def _head(axes: Axes, label: str) -> None:
    """Set the axis label, without its unit, as the panel's heading."""
    words = label.partition(" (")[0]
    axes.set_title(words[0].upper() + words[1:], fontsize=11, color=LIGHT.text, loc="left")


def _with_source(label: str, results: Sequence[BenchmarkResult]) -> str:
    """Return the label with the source of the occupancy: a theoretical one is not a counted one."""
    sources = {str(result.metrics.get("occupancy_source")) for result in results}
    return label.replace("occupancy", "theoretical occupancy") if sources == {"theoretical"} else label


def draw_explanation(title: str, text: str) -> Figure:
    """Return a figure whose only content is why there is no chart."""
    figure = new_figure(8.4, 3.4, title, "")
    explain(figure.subplots(), text)
    return figure


# ---------------------------------------------------------------- style
# Figures are created without pyplot, so they need no display and leave no global state.

MARKERS: Final = ("o", "s", "^", "D", "v", "h", "*")
"""One shape for each colour of the palette, so that nothing depends on colour alone."""

BAND_ALPHA: Final = 0.18  # of shaded intervals: lines remain visible under two of them
LOG_SPAN: Final = 8.0  # above this ratio, a linear axis compresses small values
MAX_TICK_COUNT: Final = 12  # for more values the library chooses the ticks, else labels would touch
WRAP_WIDTH: Final = 58
CHARACTERS_PER_INCH: Final = 13.5  # of the note, at its font size
TITLE_INCHES: Final = 0.5  # of the figure's height for the title, with its margin
NOTE_LINE_INCHES: Final = 0.2
MARGIN_INCHES: Final = 0.15


def new_figure(width_inches: float, height_inches: float, title: str, note: str) -> Figure:
    """Return an empty figure with title and note.

    Args:
        width_inches, height_inches: its size.
        title: above everything.
        note: smaller, under the title: which parameters are constant, how it was measured, on which device.
    """
    lines = textwrap.wrap(note, int(width_inches * CHARACTERS_PER_INCH))
    head_inches = TITLE_INCHES + NOTE_LINE_INCHES * len(lines)
    figure = Figure(figsize=(width_inches, height_inches), facecolor=LIGHT.surface)
    figure.set_layout_engine("constrained", rect=(0.01, 0.01, 0.98, 0.99 - head_inches / height_inches), w_pad=0.1, h_pad=0.08)
    left = MARGIN_INCHES / width_inches
    figure.text(left, 1 - MARGIN_INCHES / height_inches, title, fontsize=14, fontweight="bold", color=LIGHT.text, va="top")
    note_top = 1 - (TITLE_INCHES - 0.02) / height_inches
    figure.text(left, note_top, "\n".join(lines), fontsize=9.5, color=LIGHT.muted, va="top", linespacing=1.35)
    return figure


def color(index: int) -> str:
    """Return the colour of the series with this index."""
    return LIGHT.series[index % len(LIGHT.series)]


def marker(index: int) -> str:
    """Return the marker of the series with this index."""
    return MARKERS[index % len(MARKERS)]


def style_axes(axes: Axes) -> None:
    """Set colours, grid and ticks of the axes."""
    axes.set_facecolor(LIGHT.surface)
    axes.grid(visible=True, color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=LIGHT.muted, labelsize=9.5, length=3)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LIGHT.grid)
    axes.xaxis.label.set_color(LIGHT.text)
    axes.yaxis.label.set_color(LIGHT.text)


def scale_sizes(axes: Axes, values: Sequence[int]) -> None:
    """Scale the x axis for sizes: logarithmic where they are powers of two or far apart, with a tick at each."""
    if is_logarithmic(values):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    if len(values) <= MAX_TICK_COUNT:
        axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def is_logarithmic(values: Sequence[int]) -> bool:
    """Return whether these sizes need a logarithmic axis."""
    are_powers = all(value > 0 and value & (value - 1) == 0 for value in values)
    return len(values) > 1 and min(values) > 0 and (are_powers or max(values) / min(values) >= LOG_SPAN)


def scale_quantity(axes: Axes, values: Sequence[float]) -> None:
    """Scale the y axis for positive quantities: logarithmic where they are far apart, else from zero."""
    if min(values) > 0 and max(values) / min(values) >= LOG_SPAN:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, max(values) * 1.08)


def explain(axes: Axes, text: str) -> None:
    """Write a text in place of a chart that has nothing to show."""
    axes.clear()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(LIGHT.grid)
    axes.set_facecolor("#f6f8fa")
    wrapped = "\n".join(textwrap.wrap(text, WRAP_WIDTH))
    axes.text(0.5, 0.5, wrapped, transform=axes.transAxes, ha="center", va="center", color=LIGHT.muted, fontsize=10.5, linespacing=1.5)


def three_digits(value: float) -> str:
    """Return a tick label with three digits; empty for infinity and NaN."""
    return digits(value) if math.isfinite(value) else ""


def draw_outer_legend(axes: Axes, bands: Sequence[str]) -> None:
    """Draw the legend outside, where it covers no line.

    bands: labels of shaded areas, which are named once for all colours.
    """
    axes.legend(handles=_handles(axes, bands), loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=LIGHT.text)


def draw_inner_legend(axes: Axes, bands: Sequence[str]) -> None:
    """Draw the legend inside the axes."""
    axes.legend(handles=_handles(axes, bands), frameon=False, fontsize=9.5, labelcolor=LIGHT.text)


def _handles(axes: Axes, bands: Sequence[str]) -> list[Artist]:
    lines, _ = axes.get_legend_handles_labels()
    return [*lines, *(Patch(color=LIGHT.muted, alpha=BAND_ALPHA, linewidth=0, label=band) for band in bands)]
