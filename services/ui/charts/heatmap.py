"""Heatmap: one figure of every configuration over two chosen axes, the best one where several share a cell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import FixedTicker, HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, chosen_style, empty_columns, frame_options, text_column
from kernalyse.services.ui.charts.metrics import (
    TICK_LENGTH,
    Metric,
    best_place,
    configuration_key,
    counts,
    figures_text,
    remark_of,
    shortened,
    tick_name,
)
from kernalyse.services.ui.theme import Palette

MAX_PLACES: Final = 48
"""Of an axis: more columns than that are narrower than a finger, and their names no longer fit."""

LOG_RATIO: Final = 20.0
"""Of the largest value over the smallest from which on shades are logarithmic: on a linear scale all small ones would look alike."""

SCALE_PLACES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
COLOR_MAP: Final = "cividis"  # its brightness alone tells the order, with every common colour vision
CELL_NUMBERS: Final = ("left", "bottom", "right", "top", "color")
CELL_TEXTS: Final = ("label", "figure", "place", "others", "remark", "configuration")
GAP_NUMBERS: Final = ("left", "bottom", "right", "top")
GAP_TEXTS: Final = ("place", "reason")
MARK_NUMBERS: Final = ("x", "y")
MARK_TEXTS: Final = ("text",)
LAYERS: Final = ("cells", "gaps", "marks", "pointed")
"""The last one outlines the cell that the keyboard is at. The browser alone fills it."""

BEST_MARK: Final = "★"
FAILED_MARK: Final = "✕"
WRONG_MARK: Final = "≠"
NAME_ROOM: Final = 20  # letters of names side by side below it on a phone, where its scale takes half of the width
MARK_MEANINGS: Final = {FAILED_MARK: "failed", WRONG_MARK: "wrong result", theme.IMPLAUSIBLE_SYMBOL: "implausible"}
HALF: Final = 0.48  # of a cell's width: a thin line of the background tells neighbours of one shade apart


@dataclass(frozen=True, slots=True)
class Axis:
    """places: what each says, in order; labels: the same for people."""

    name: str
    places: tuple[Any, ...]
    labels: tuple[str, ...]
    dropped_count: int = 0  # values that have no place: there are too many

    def places_by_value(self) -> dict[Any, int]:
        return {value: place for place, group in enumerate(self.places) for value in group}


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to shades between 0 and 1."""

    low: float
    high: float

    @property
    def is_logarithmic(self) -> bool:
        return self.low > 0 and self.high / self.low >= LOG_RATIO

    def shade(self, value: float) -> float:
        if self.high <= self.low:
            return 1.0
        if self.is_logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, shade: float) -> float:
        if self.is_logarithmic:
            return float(self.low * (self.high / self.low) ** shade)
        return self.low + (self.high - self.low) * shade

    def labels(self, metric: Metric) -> dict[float, str]:
        """What stands beside the colours."""
        return {place: metric.show(self.value(place)) for place in SCALE_PLACES}


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Everything that the chart draws. cells: those with a figure; gaps: those without, and why; marks: characters on them."""

    x: Axis
    y: Axis
    cells: Columns
    gaps: Columns
    marks: Columns
    scale: Scale | None


def chosen_axes(values: Mapping[str, Sequence[Any]], x: str, y: str) -> tuple[str, str] | None:
    """The two axes of the chart; None: there is nothing that varies.

    Of those that nobody chose, kernels lie on the x axis where there are several, models beside them; else the parameter
    with the most values does.

    Args:
        values: what `axis_values` says.
        x, y: as chosen; empty, or one that these rows lack: not chosen.
    """
    counts = {name: len({value for value in some if value not in (None, "")}) for name, some in values.items()}
    varying = sorted((name for name, count in counts.items() if count > 1), key=lambda name: (name in LAST_CHOICES, -counts[name]))
    if not varying:
        return None
    first = x if x in counts else "kernel" if "kernel" in varying and y != "kernel" else next((n for n in varying if n != y), varying[0])
    if y in counts and y != first:
        return first, y
    rest = [name for name in varying if name != first]
    if first == "kernel" and "model" in rest:
        return first, "model"
    return first, next(iter(rest), "run" if first == "kernel" else "kernel")


LAST_CHOICES: Final = ("kernel", "run", "device", "block", "cache", "dtype", "variant")
"""Axes that are only taken by themselves where no parameter, macro or extent of the block varies."""


def axis_of(name: str, values: Sequence[Any]) -> Axis:
    """Numbers in their order, everything else by name. More numbers than places share them, neighbours with neighbours."""
    known = {value for value in values if value not in (None, "")}
    if all(isinstance(value, int | float) for value in known):
        ordered = sorted(known)
        size = math.ceil(len(ordered) / MAX_PLACES) or 1
        groups = [tuple(ordered[first : first + size]) for first in range(0, len(ordered), size)]
        labels = [_number(group[0]) if len(group) == 1 else f"{_number(group[0])} to {_number(group[-1])}" for group in groups]
        return Axis(name, tuple(groups), tuple(labels))
    names = sorted(map(str, known))
    show = theme.short_run_id if name == "run" else tick_name if name == "kernel" else partial(shortened, length=TICK_LENGTH)
    return Axis(
        name, tuple((text,) for text in names[:MAX_PLACES]), tuple(show(text) for text in names[:MAX_PLACES]), len(names[MAX_PLACES:])
    )


def heatmap(
    rows: pl.DataFrame, values: Mapping[str, Sequence[Any]], axes: tuple[str, str], metric: Metric, is_over: bool = True
) -> Heatmap:
    """Cells of the best configuration at each place.

    Args:
        rows: what `performance_rows` says. values: what `axis_values` says of them.
        is_over: nothing more will be measured.
    """
    x, y = (axis_of(name, values[name]) for name in axes)
    x_places, y_places = x.places_by_value(), y.places_by_value()
    at: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row, x_value, y_value in zip(rows.iter_rows(named=True), values[x.name], values[y.name], strict=True):
        if x_value in x_places and y_value in y_places:
            at[x_places[x_value], y_places[y_value]].append(row)
    figures = {place: _with_figure(found, metric) for place, found in at.items()}
    best = {place: _best(found, metric) for place, found in figures.items() if found}
    shown = [row[metric.column] for row in best.values()]
    scale = Scale(min(shown), max(shown)) if shown else None
    counted = {place: row[metric.column] for place, row in best.items() if counts(row)}
    record = None if not counted else list(counted)[best_place(list(counted.values()), metric)]
    cells = [_cell(place, row, figures[place], x, y, scale, metric) for place, row in best.items() if scale]
    gaps = [
        (*_corners(a, b), _place_text(x, y, a, b), _reason(at.get((a, b), []), metric, is_over))
        for a in range(len(x.places))
        for b in range(len(y.places))
        if (a, b) not in best
    ]
    marks = [
        (a, b, _mark(best.get((a, b)), at.get((a, b), []), (a, b) == record)) for a in range(len(x.places)) for b in range(len(y.places))
    ]
    return Heatmap(
        x,
        y,
        _columns(cells, CELL_NUMBERS, CELL_TEXTS),
        _columns(gaps, GAP_NUMBERS, GAP_TEXTS),
        _columns([mark for mark in marks if mark[2]], MARK_NUMBERS, MARK_TEXTS),
        scale,
    )


def no_cells() -> tuple[Columns, Columns, Columns]:
    """Of cells, gaps and marks."""
    return (
        empty_columns(CELL_NUMBERS, CELL_TEXTS),
        empty_columns(GAP_NUMBERS, GAP_TEXTS),
        empty_columns(MARK_NUMBERS, MARK_TEXTS),
    )


def heatmap_chart(cells: Columns, gaps: Columns, marks: Columns, palette: Palette, height_px: int = 360) -> hv.Overlay:
    """Layers of LAYERS, in this order. Axes and colour scale are named by who shows it: they change with the rows."""
    hover = HoverTool(tooltips=[("", "@label"), ("Figure", "@figure"), ("At", "@place"), ("Here", "@others"), ("", "@remark")])
    reasons = HoverTool(tooltips=[("At", "@place"), ("No figure", "@reason")])
    colored = hv.Rectangles(cells, list(CELL_NUMBERS[:4]), ["color", *CELL_TEXTS]).opts(
        color="color",
        cmap=COLOR_MAP,
        clim=(0.0, 1.0),
        **chosen_style(palette),
        colorbar=True,
        colorbar_opts={"ticker": FixedTicker(ticks=list(SCALE_PLACES)), "bar_line_color": None, **_bar_texts(palette)},
        tools=[hover, "tap"],
    )
    empty = hv.Rectangles(gaps, list(GAP_NUMBERS), list(GAP_TEXTS)).opts(
        color=palette.grid, alpha=0.35, line_color=palette.muted, line_dash="dotted", line_alpha=0.5, tools=[reasons]
    )
    signs = hv.Labels(marks, list(MARK_NUMBERS), "text").opts(text_color=palette.bad, text_font_size="13px")
    pointed = hv.Rectangles(empty_columns(GAP_NUMBERS), list(GAP_NUMBERS)).opts(
        fill_alpha=0, line_color=palette.bad, line_width=4, line_dash="dashed"
    )
    return hv.Overlay([colored, empty, signs, pointed]).opts(
        hv.opts.Overlay(
            **{**frame_options(palette, height_px), "show_grid": False},
            xlim=(-0.5, 0.5),
            ylim=(-0.5, 0.5),
            xlabel="",
            ylabel="",
            xrotation=45,
        )
    )


def _bar_texts(palette: Palette) -> dict[str, Any]:
    return {
        "background_fill_color": palette.surface,
        "major_label_text_color": palette.muted,
        "major_label_text_font_size": "11px",
        "title_text_color": palette.muted,
        "title_text_font_size": "12px",
        "title_text_font_style": "normal",
        "width": 12,
    }


# ---------------------------------------------------------------- one cell


def _with_figure(found: Sequence[dict[str, Any]], metric: Metric) -> list[dict[str, Any]]:
    return [row for row in found if row[metric.column] is not None and math.isfinite(row[metric.column])]


def _best(found: list[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """The best of those that can be believed, else of all."""
    believed = [row for row in found if counts(row)] or found
    return believed[best_place([row[metric.column] for row in believed], metric)]


def _cell(
    place: tuple[int, int], row: Mapping[str, Any], here: Sequence[Mapping[str, Any]], x: Axis, y: Axis, scale: Scale, metric: Metric
) -> tuple[Any, ...]:
    worst = (max if metric.is_lower_better else min)(other[metric.column] for other in here)
    others = "one configuration" if len(here) == 1 else f"best of {len(here)} configurations, the worst {metric.show(worst)}"
    return (
        *_corners(*place),
        scale.shade(row[metric.column]),
        shortened(row["label"]),
        figures_text(row, metric),
        _place_text(x, y, *place),
        others,
        remark_of(row),
        configuration_key(row),
    )


def _reason(found: Sequence[Mapping[str, Any]], metric: Metric, is_over: bool) -> str:
    """Why a cell is empty."""
    if not found:
        return "no configuration of these runs lies here"
    failed = next((row for row in found if row["reason"] is not None), None)
    if failed is not None:
        return shortened(f"{failed['label']}: {failed['reason']}: {failed['message']}")
    if any(row["is_measured"] for row in found):
        return metric.missing
    return "announced, but not measured before the run ended" if is_over else "not measured yet"


def _mark(best: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]], is_record: bool) -> str:
    if best is None:
        return FAILED_MARK if any(row["reason"] is not None for row in found) else ""
    if not counts(best):
        return WRONG_MARK if best["verification_state"] == "FAILED" else theme.IMPLAUSIBLE_SYMBOL
    return BEST_MARK if is_record else ""


def _corners(x: int, y: int) -> tuple[float, float, float, float]:
    return x - HALF, y - HALF, x + HALF, y + HALF


def _place_text(x: Axis, y: Axis, x_place: int, y_place: int) -> str:
    parts = [f"{axis.name} {axis.labels[place]}" for axis, place in ((x, x_place), (y, y_place))]
    return parts[0] if x.name == y.name else ", ".join(parts)


def _columns(rows: Sequence[tuple[Any, ...]], numbers: tuple[str, ...], texts: tuple[str, ...]) -> Columns:
    if not rows:
        return empty_columns(numbers, texts)
    columns = list(zip(*rows, strict=True))
    made: Columns = {name: np.array(values, dtype=np.float64) for name, values in zip(numbers, columns, strict=False)}
    made.update({name: text_column(values) for name, values in zip(texts, columns[len(numbers) :], strict=True)})
    return made


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
