"""Split charts: arithmetic intensity and performance of each kernel, side by side in one order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from services.ui import theme
from services.ui.charts.elements import Columns, chosen_style, empty_columns, frame_options, text_column, tick_formatter
from services.ui.charts.metrics import Metric, counts, figures_text, remark_of
from services.ui.charts.performance_rows import configuration_key, shortened, tick_name
from services.ui.theme import CATEGORIES, Palette, Ticks, style_of

MAX_BARS: Final = 16
"""Names of more would not be readable under their bars."""

BAR_WIDTH: Final = 0.72
NAME_LENGTH: Final = 18
BAR_NUMBERS: Final = ("left", "bottom", "right", "top")
BAR_TEXTS: Final = ("color", "label", "figure", "other", "remark", "configuration")
ROOF_NUMBERS: Final = ("x0", "y0", "x1", "y1")
ROOF_TEXTS: Final = ("roof",)


@dataclass(frozen=True, slots=True)
class SplitBars:
    """Both charts. names: of the bars, by their place. roofs: what each could reach. left_out_count: kernels without a bar."""

    intensities: Columns
    performances: Columns
    roofs: Columns
    names: dict[int, str]
    left_out_count: int = 0
    is_of_configurations: bool = False  # of one kernel: there is only one
    is_of_trace: bool = False  # those that take longest, in that order


def split_bars(rows: pl.DataFrame, metric: Metric, palette: Palette, hidden: Collection[str] = ()) -> SplitBars:
    """One bar a kernel, its best configuration; of a single kernel one a configuration. Best first, of traces longest in all first.

    Args:
        rows: what `performance_rows` says.
        hidden: categories without bars.
    """
    known = rows.filter(pl.col(metric.column).is_not_null() & pl.col(metric.column).is_not_nan()).sort(
        metric.column, descending=not metric.is_lower_better, maintain_order=True
    )
    is_of_trace = known["duration_sum_ns"].count() > 0
    kernel_count = known["kernel_name"].n_unique()
    is_of_configurations = kernel_count == 1 and known["configuration_index"].null_count() == 0
    ordered = sorted(known.to_dicts(), key=counts, reverse=True)  # stable: what cannot be believed is never the best
    by_name: dict[object, dict[str, Any]] = {}
    for row in ordered:
        by_name.setdefault(configuration_key(row) if is_of_configurations else (row["kernel_name"], row["dtype"]), row)
    if is_of_trace:
        bars = sorted(by_name.values(), key=lambda row: row["duration_sum_ns"] or 0, reverse=True)
    else:
        bars = sorted(by_name.values(), key=lambda row: float(row[metric.column]), reverse=not metric.is_lower_better)
    bars = [row for row in bars if (row["category"] or "other") not in hidden]
    shown = bars[:MAX_BARS]
    prefix = f"{shown[0]['kernel_name']} " if is_of_configurations and shown else ""
    return SplitBars(
        intensities=_bars(shown, "intensity_flop_per_byte", palette, metric),
        performances=_bars(shown, metric.column, palette, metric),
        roofs=_roofs(shown, metric),
        names={place: _name(row, prefix) for place, row in enumerate(shown)},
        left_out_count=len(bars) - len(shown),
        is_of_configurations=is_of_configurations,
        is_of_trace=is_of_trace,
    )


def no_bars() -> Columns:
    return empty_columns(BAR_NUMBERS, BAR_TEXTS)


def no_roofs() -> Columns:
    return empty_columns(ROOF_NUMBERS, ROOF_TEXTS)


def intensity_chart(bars: Columns, palette: Palette, height_px: int = 300) -> hv.Overlay:
    hover = HoverTool(tooltips=[("", "@label"), ("Intensity", "@figure"), ("Performance", "@other"), ("", "@remark")])
    return _chart([_rectangles(bars, hover, palette)], "Arithmetic intensity (flop/B)", theme.PLAIN_TICKS, palette, height_px)


def performance_chart(bars: Columns, roofs: Columns, palette: Palette, height_px: int = 300) -> hv.Overlay:
    """Bars and, over each, what is attainable. The metric names the axis: who shows the chart sets it."""
    hover = HoverTool(tooltips=[("", "@label"), ("Performance", "@figure"), ("Intensity", "@other"), ("", "@remark")])
    over = HoverTool(tooltips=[("Attainable", "@roof")], line_policy="interp")
    lines = hv.Segments(roofs, list(ROOF_NUMBERS), list(ROOF_TEXTS)).opts(color=palette.text, line_width=2.5, tools=[over])
    return _chart([_rectangles(bars, hover, palette), lines], "flop/s", theme.SI_TICKS, palette, height_px)


def _chart(layers: list[Any], label: str, ticks: Ticks, palette: Palette, height_px: int) -> hv.Overlay:
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            xlim=(-0.5, 0.5),
            ylim=(0, 1),
            xlabel="",
            ylabel=label,
            xrotation=45,
            yformatter=tick_formatter(ticks),
            **frame_options(palette, height_px),
        )
    )


def _rectangles(bars: Columns, hover: HoverTool, palette: Palette) -> hv.Rectangles:
    return hv.Rectangles(bars, list(BAR_NUMBERS), list(BAR_TEXTS)).opts(color="color", **chosen_style(palette), tools=[hover, "tap"])


def _bars(rows: list[dict[str, Any]], column: str, palette: Palette, metric: Metric) -> Columns:
    """Bars of those that have the figure, at the places of all."""
    placed = [(place, row) for place, row in enumerate(rows) if row[column] is not None]
    if not placed:
        return no_bars()
    texts = [_texts(row, column, palette, metric) for _, row in placed]
    middles = np.array([float(place) for place, _ in placed])
    columns: Columns = {
        "left": middles - BAR_WIDTH / 2,
        "bottom": np.zeros(len(placed)),
        "right": middles + BAR_WIDTH / 2,
        "top": np.array([float(row[column]) for _, row in placed]),
    }
    columns.update({name: text_column(values) for name, values in zip(BAR_TEXTS, zip(*texts, strict=True), strict=True)})
    return columns


def _texts(row: Mapping[str, Any], column: str, palette: Palette, metric: Metric) -> tuple[str, ...]:
    intensity = theme.intensity(row["intensity_flop_per_byte"])
    performance = figures_text(row, metric)
    is_of_intensity = column == "intensity_flop_per_byte"
    return (
        style_of(row["category"] or "other", CATEGORIES, palette).color,
        shortened(row["label"] or row["kernel_name"]),
        intensity if is_of_intensity else performance,
        performance if is_of_intensity else intensity,
        remark_of(row),
        configuration_key(row),
    )


def _roofs(rows: list[dict[str, Any]], metric: Metric) -> Columns:
    """Over each bar what the device could reach at that intensity, in the metric's unit; a time has none."""
    roofs = [(place, roof) for place, row in enumerate(rows) if (roof := _roof(row, metric)) is not None]
    if not roofs:
        return no_roofs()
    middles, heights = (np.array(values, dtype=np.float64) for values in zip(*roofs, strict=True))
    return {
        "x0": middles - BAR_WIDTH / 2,
        "y0": heights,
        "x1": middles + BAR_WIDTH / 2,
        "y1": heights,
        "roof": text_column(metric.show(value) for value in heights.tolist()),
    }


def _roof(row: Mapping[str, Any], metric: Metric) -> float | None:
    roof: float | None = row["attainable_flop_per_s"]
    bytes_roof: float | None = row["memory_ceiling_bytes_per_s"]
    intensity: float | None = row["intensity_flop_per_byte"]
    match metric.column:
        case "achieved_flop_per_s":
            return roof
        case "achieved_bytes_per_s":
            return roof / intensity if roof and intensity else bytes_roof
        case "efficiency_ratio":
            return 1.0
        case _:
            return None


def _name(row: Mapping[str, Any], prefix: str) -> str:
    """prefix: what the labels of all bars begin with; empty: bars are kernels."""
    return shortened(row["label"].removeprefix(prefix), NAME_LENGTH) if prefix else tick_name(row["kernel_name"], NAME_LENGTH)
