"""Whole models side by side: latency, throughput, percentiles, architecture, efficiency; and the passes of runs that these are drawn of."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import holoviews as hv
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, columns_of, frame_options, lie_flat, ramp, tick_formatter
from kernalyse.services.ui.theme import MARKERS, Palette, Ticks

BAR_WIDTH: Final = 0.62
"""Of the step from one model to the next; two sides share it."""

LABEL_ROTATION: Final = 30
STEEP_ROTATION: Final = 50  # of more names than FEW: beside each other on a phone's screen they would lie on each other
FEW: Final = 6
LABEL_DISTANCE: Final = 0.025  # of the largest x, from the middle of a point to its name
NS_PER_MS: Final = 1e6
WHISKER_SHARE: Final = 0.14  # of a bar's width, to each side of its whisker's ends
BOX_NUMBERS: Final = ("left", "bottom", "right", "top")
BOX_TEXTS: Final = ("color", "text")
WHISKER_NUMBERS: Final = ("x0", "y0", "x1", "y1")
DOT_NUMBERS: Final = ("x", "y")
DOT_TEXTS: Final = ("text", "color", "marker")


def milliseconds(value: float) -> str:
    return f"{value:.4g} ms"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. low, high: ends of the whisker; None: it has none. text: what hovering over it says."""

    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line over named places."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """One model among others. place: among all of them, drawn or not, which its colour and shape are chosen by."""

    name: str
    x: float
    y: float
    place: int


@dataclass(frozen=True, slots=True)
class Share:
    """One cell: a layer of a model. efficiency_ratio: None where it is not known. text: what hovering over it says."""

    model_name: str
    layer: str
    efficiency_ratio: float | None
    text: str


def bar_chart(
    names: Sequence[str],
    sides: Sequence[Sequence[Bar | None]],
    label: str,
    palette: Palette,
    height_px: int = 300,
    ticks: Ticks = theme.SI_TICKS,
    *,
    base: float = 0.0,
) -> hv.Overlay:
    """A group of bars for each name, one bar for each side, whiskers where they are known.

    Args:
        sides: each with a bar for every name, None where it has none.
        base: where bars begin; 1 for ratios.
    """
    boxes, whiskers = bar_columns(sides, palette, base=base)
    rectangles = hv.Rectangles(boxes, list(BOX_NUMBERS), list(BOX_TEXTS)).opts(
        color="color", line_color=None, tools=[HoverTool(tooltips="@text")], alpha=0.9
    )
    lines = hv.Segments(whiskers, list(WHISKER_NUMBERS)).opts(color=palette.text, line_width=1.4)
    layers: list[Any] = [rectangles, lines]
    known = [bar for bars in sides for bar in bars if bar is not None]
    highest = max((bar.high or bar.value for bar in known), default=1.0)
    lowest = min((bar.low if bar.low is not None else bar.value for bar in known), default=0.0)
    if base:
        layers.append(hv.HLine(base).opts(color=palette.muted, line_width=1))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **frame_options(palette, height_px),
            xticks=list(enumerate(names)),
            xlim=(-0.5, len(names) - 0.5),
            ylim=(min(base, lowest), top_of(highest, base)),
            xlabel="",
            ylabel=label,
            xrotation=LABEL_ROTATION if len(names) <= FEW else STEEP_ROTATION,
            yformatter=tick_formatter(ticks),
        )
    )


def bar_columns(sides: Sequence[Sequence[Bar | None]], palette: Palette, *, base: float = 0.0) -> tuple[Columns, Columns]:
    """Boxes and whiskers, each a stem and two ends. Arguments as of `bar_chart`."""
    width = BAR_WIDTH / max(1, len(sides))
    boxes: list[tuple[float, float, float, float, str, str]] = []
    whiskers: list[tuple[float, float, float, float]] = []
    for place, bars in enumerate(sides):
        for index, bar in enumerate(bars):
            if bar is None:
                continue
            left = index - BAR_WIDTH / 2 + place * width
            boxes.append((left, base, left + width * 0.92, bar.value, palette.series[place % len(palette.series)], bar.text))
            if bar.low is not None and bar.high is not None:
                middle, half = left + width * 0.46, width * WHISKER_SHARE
                whiskers.append((middle, bar.low, middle, bar.high))
                whiskers += [(middle - half, end, middle + half, end) for end in (bar.low, bar.high)]
    return columns_of(boxes, BOX_NUMBERS, BOX_TEXTS), columns_of(whiskers, WHISKER_NUMBERS)


def top_of(highest: float, base: float = 0.0) -> float:
    """Upper end of an axis of bars."""
    return base + (highest - base) * 1.06 if highest > base else base * 1.06 + (base == 0)


def line_chart(
    places: Sequence[str],
    lines: Sequence[Line],
    label: str,
    palette: Palette,
    height_px: int = 300,
    ticks: Ticks = theme.MILLISECOND_TICKS,
    show: Callable[[float], str] = milliseconds,
) -> hv.Overlay:
    """A line for each model over named places, on a logarithmic axis. show: writes a value for hovering over its point."""
    strokes, dots = line_columns(places, lines, palette, show)
    layers = [
        hv.Segments(strokes, list(WHISKER_NUMBERS), ["color"]).opts(color="color", line_width=2),
        hv.Scatter(dots, "x", ["y", *DOT_TEXTS]).opts(color="color", marker="marker", size=8, tools=[HoverTool(tooltips="@text")]),
    ]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **frame_options(palette, height_px),
            logy=True,
            xticks=list(enumerate(places)),
            yticks=round_values([value for line in lines for value in line.values if value]),
            xlim=(-0.3, len(places) - 0.7),
            xlabel="",
            ylabel=label,
            yformatter=tick_formatter(ticks),
        )
    )


def line_columns(places: Sequence[str], lines: Sequence[Line], palette: Palette, show: Callable[[float], str]) -> tuple[Columns, Columns]:
    """Strokes and dots. Arguments as of `line_chart`."""
    strokes: list[tuple[float, float, float, float, str]] = []
    dots: list[tuple[float, float, str, str, str]] = []
    for index, line in enumerate(lines):
        color, marker = palette.series[index % len(palette.series)], MARKERS[index % len(MARKERS)]
        known = [(float(place), value) for place, value in enumerate(line.values) if value]
        strokes += [(*start, *end, color) for start, end in pairwise(known)]
        dots += [(x, y, f"{line.name}, {places[int(x)]}: {show(y)}", color, marker) for x, y in known]
    return columns_of(strokes, WHISKER_NUMBERS, ("color",)), columns_of(dots, DOT_NUMBERS, DOT_TEXTS)


def scatter_chart(points: Sequence[Point], labels: tuple[str, str], palette: Palette, height_px: int = 300) -> hv.Overlay:
    """A named point for each model. labels: of both axes."""
    largest = max((point.x for point in points), default=1.0)
    highest = max((point.y for point in points), default=1.0)
    dots, names = scatter_columns(points, palette)
    layers = [
        hv.Scatter(dots, "x", ["y", *DOT_TEXTS]).opts(color="color", marker="marker", size=12, tools=[HoverTool(tooltips="@text")]),
        hv.Labels(names, ["x", "y"], "name").opts(
            text_color=palette.muted, text_font_size="11px", text_align="left", text_baseline="bottom"
        ),
    ]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **frame_options(palette, height_px),
            xlim=(0, largest * 1.5),
            ylim=(0, highest * 1.15),
            xlabel=labels[0],
            ylabel=labels[1],
            yformatter=tick_formatter(theme.SI_TICKS),
        )
    )


def scatter_columns(points: Sequence[Point], palette: Palette) -> tuple[Columns, Columns]:
    """Dots and their names."""
    distance = max((point.x for point in points), default=1.0) * LABEL_DISTANCE
    dots = [
        (
            point.x,
            point.y,
            f"{point.name}: {theme.digits(point.x)}, {theme.digits(point.y)}",
            palette.series[point.place % len(palette.series)],
            MARKERS[point.place % len(MARKERS)],
        )
        for point in points
    ]
    names = [(point.x + distance, point.y, point.name) for point in points]
    return columns_of(dots, DOT_NUMBERS, DOT_TEXTS), columns_of(names, DOT_NUMBERS, ("name",))


def layer_map(cells: Sequence[Share], palette: Palette) -> hv.Overlay:
    """Efficiency of each kind of layer in each model: the darker, the nearer to the roof."""
    models = list(dict.fromkeys(cell.model_name for cell in cells))
    kinds = list(dict.fromkeys(cell.layer for cell in cells))
    known = [cell for cell in cells if cell.efficiency_ratio is not None]
    rectangles = [
        (
            models.index(cell.model_name) - 0.48,
            len(kinds) - 1 - kinds.index(cell.layer) - 0.45,
            models.index(cell.model_name) + 0.48,
            len(kinds) - 1 - kinds.index(cell.layer) + 0.45,
            min(cell.efficiency_ratio or 0.0, 1.0) * 100,
            cell.text,
        )
        for cell in known
    ]
    numbers = [
        (models.index(cell.model_name), len(kinds) - 1 - kinds.index(cell.layer), f"{(cell.efficiency_ratio or 0.0) * 100:.0f}")
        for cell in known
    ]
    start = palette.surface if palette.name == "light" else palette.grid
    boxes = hv.Rectangles(rectangles, vdims=["efficiency", "text"]).opts(
        color="efficiency",
        cmap=ramp(start, palette.accent),
        clim=(0, 100),
        line_color=palette.grid,
        tools=[HoverTool(tooltips="@text")],
    )
    texts = hv.Labels(numbers, ["x", "y"], "number").opts(text_color=palette.text, text_font_size="11px")
    return hv.Overlay([boxes, texts]).opts(
        hv.opts.Overlay(
            **frame_options(palette, max(180, 26 * len(kinds) + 90)),
            xticks=list(enumerate(models)),
            yticks=[(len(kinds) - 1 - index, kind) for index, kind in enumerate(kinds)],
            xlim=(-0.5, len(models) - 0.5),
            ylim=(-0.5, len(kinds) - 0.5),
            xlabel="",
            ylabel="",
            xrotation=LABEL_ROTATION,
        )
    )


def figure_of(element: hv.Overlay) -> Any:
    """The Bokeh figure, wide as its place, its names slanted only where they have no room."""
    figure = hv.renderer("bokeh").get_plot(element).state
    axis = figure.xaxis[0]
    if axis.major_label_overrides and lie_flat(axis.major_label_overrides.values()):
        axis.major_label_orientation = "horizontal"
    return figure


def round_values(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, as far as the values reach: a decade alone would leave an axis of one label."""
    if not values:
        return [1.0]
    exponents = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    return [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]


COLUMNS: Final = (
    *("run_id", "model_name", "variant", "batch_size", "sequence_length", "layer_count", "head_count", "width", "sample_count"),
    *("duration_mean_ns", "duration_standard_deviation_ns", "duration_min_ns", "duration_median_ns"),
    *("duration_p95_ns", "duration_p99_ns", "duration_max_ns", "tokens_per_s", "memory_bytes", "disturbance"),
)
"""Of table models."""

PERCENTILES: Final[dict[str, str]] = {
    "min": "duration_min_ns",
    "median": "duration_median_ns",
    "p95": "duration_p95_ns",
    "p99": "duration_p99_ns",
    "max": "duration_max_ns",
}
MAX_PASSES: Final = 24
"""Names of more would not be readable under their bars."""

Value = Callable[[Mapping[str, Any]], Bar | None]
Sides = list[list[Bar | None]]


@dataclass(frozen=True, slots=True)
class Passes:
    """names: of models with variant and, where it tells them apart, size. rows: by name and run. run_ids: in order."""

    names: tuple[str, ...]
    run_ids: tuple[str, ...]
    rows: Mapping[tuple[str, str], Mapping[str, Any]]
    titles: Mapping[str, str]

    def without_runs(self, run_ids: Collection[str]) -> Passes:
        """The places of theirs stay empty: the others keep colours and places."""
        return replace(self, rows={key: row for key, row in self.rows.items() if key[1] not in run_ids}) if run_ids else self

    def sides(self, bar_of: Value) -> Sides:
        """Bars of each run, one for each name."""
        return [[None if (row := self.rows.get((name, run_id))) is None else bar_of(row) for name in self.names] for run_id in self.run_ids]

    def latency(self) -> Sides:
        """Mean with its standard deviation, ns."""
        return self.sides(lambda row: _latency(self.title(row), row))

    def figures(self, column: str, show: Callable[[float | None], str]) -> Sides:
        """A figure of each pass."""
        return self.sides(lambda row: _bar(self.title(row), row[column], show))

    def is_known(self, *columns: str) -> bool:
        """Whether some pass has a value in one of them."""
        return any(row[column] is not None for row in self.rows.values() for column in columns)

    def percentiles(self) -> list[Line]:
        """From the shortest pass to the longest, ns."""
        return [Line(self.title(row), [row[column] for column in PERCENTILES.values()]) for row in self.rows.values()]

    def throughput_of_layers(self) -> list[Point]:
        """Width of the embedding, and tokens a second over the count of layers: what one layer of this width costs."""
        return [
            Point(self.title(row), float(row["width"]), row["tokens_per_s"] / row["layer_count"], place)
            for place, row in enumerate(self.rows.values())
            if row["width"] and row["layer_count"] and row["tokens_per_s"]
        ]

    def title(self, row: Mapping[str, Any]) -> str:
        return row["name"] if len(self.run_ids) == 1 else f"{row['name']} ({theme.short_run_id(row['run_id'])})"


def passes_of(rows: pl.DataFrame, titles: Mapping[str, str]) -> Passes:
    """Input: rows of table models with COLUMNS. titles: of runs by run_id; those of one name are told apart by their number."""
    sizes = {(row["batch_size"], row["sequence_length"]) for row in rows.select("batch_size", "sequence_length").to_dicts()}
    run_ids = tuple(run_id for run_id in titles if run_id in set(rows["run_id"].to_list()))
    named: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows.filter(pl.col("run_id").is_in(run_ids)).to_dicts(), key=lambda row: run_ids.index(row["run_id"])):
        name = _name(row, with_size=len(sizes) > 1)
        named.setdefault((name, row["run_id"]), {**row, "name": name})
    names = tuple(dict.fromkeys(name for name, _ in named))[:MAX_PASSES]
    short = {run_id: f"{titles[run_id][:40]} ({theme.short_run_id(run_id)})" for run_id in run_ids}
    return Passes(names, run_ids, {key: row for key, row in named.items() if key[0] in names}, short)


def _name(row: Mapping[str, Any], *, with_size: bool) -> str:
    size = f"{row['batch_size'] or '?'} × {row['sequence_length'] or '?'}" if with_size else ""
    return " ".join(part for part in (row["model_name"] or "model", row["variant"], size) if part)


def _latency(title: str, row: Mapping[str, Any]) -> Bar | None:
    mean, deviation = row["duration_mean_ns"], row["duration_standard_deviation_ns"]
    if mean is None:
        return None
    passes = f"{theme.count(row['sample_count'])} passes"
    if deviation is None:
        return Bar(mean, text=f"{title}: {theme.duration(mean)} so far, {passes}")
    return Bar(
        mean, max(0.0, mean - deviation), mean + deviation, f"{title}: {theme.duration(mean)} ± {theme.duration(deviation)}, {passes}"
    )


def _bar(title: str, value: float | None, show: Callable[[float | None], str]) -> Bar | None:
    return None if value is None else Bar(float(value), text=f"{title}: {show(value)}")
