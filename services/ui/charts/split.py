"""Split charts: arithmetic intensity and performance of each kernel, side by side in one order."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, chosen_style, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.charts.metrics import Metric, configuration_key, counts, figures_text, remark_of, shortened, tick_name
from kernalyse.services.ui.theme import Palette, Ticks, style_of, values_with

MAX_BARS: Final = 16
"""Names of more would not be readable under their bars."""

BAR_WIDTH: Final = 0.72
LOWEST: Final = 1e-30
"""Where bars begin: below every axis, however far it is zoomed out; zero has no place on a logarithmic one."""

MAX_NAMED: Final = 24
NAMED_LENGTH: Final = 40
"""Of kernels without a bar, which a sentence names: the table has them all."""

NAME_LENGTH: Final = 18
BAR_NUMBERS: Final = ("left", "bottom", "right", "top")
BAR_TEXTS: Final = ("color", "label", "figure", "other", "remark", "configuration")
TELLING: Final = ("kernel_name", "label", "dtype", "macros", "block", "cache_mode", "device_id", "run_id")
WORD: Final = re.compile(r"\w+|\W")
ROOF_NUMBERS: Final = ("x0", "y0", "x1", "y1")
ROOF_TEXTS: Final = ("roof",)


@dataclass(frozen=True, slots=True)
class SplitBars:
    """Both charts. names: of the bars, by their place. roofs: what each could reach. left_out: names of kernels without a bar."""

    intensities: Columns
    performances: Columns
    roofs: Columns
    names: dict[int, str]
    left_out: tuple[str, ...] = ()
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
    values = values_with(categories_of(rows))
    prefix = f"{shown[0]['kernel_name']} " if is_of_configurations and shown else ""
    return SplitBars(
        intensities=_bars(shown, "intensity_flop_per_byte", palette, metric, values),
        performances=_bars(shown, metric.column, palette, metric, values),
        roofs=_roofs(shown, metric),
        names=dict(enumerate(_names(shown, prefix))),
        left_out=tuple(row["label"] if is_of_configurations else row["kernel_name"] for row in bars[MAX_BARS:]),
        is_of_configurations=is_of_configurations,
        is_of_trace=is_of_trace,
    )


def categories_of(rows: pl.DataFrame) -> tuple[str, ...]:
    """Return the categories of the rows, in the order of the legend."""
    present = set(rows["category"].fill_null("other").to_list())
    return tuple(category for category in values_with(present) if category in present)


def height_range(heights: Iterable[float]) -> tuple[float, float]:
    """Return the ends of the axis for bars of these heights: the lowest one begins at a whole decade and can be seen."""
    found = list(heights)
    if not found:
        return (1.0, 10.0)
    return (10.0 ** math.floor(math.log10(min(found) / 2)), max(found) * 2.0)


def left_out_text(bars: SplitBars) -> str:
    """Return the sentence that names the kernels, or configurations, without a bar."""
    named = [shortened(name, NAMED_LENGTH) for name in bars.left_out[:MAX_NAMED]]
    more = len(bars.left_out) - len(named)
    return f"Without a bar, for want of room: {', '.join(named)}{f' and {theme.count(more)} more of the table' if more else ''}."


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
            ylim=(1.0, 10.0),
            logy=True,
            xlabel="",
            ylabel=label,
            xrotation=45,
            yformatter=tick_formatter(ticks),
            **frame_options(palette, height_px),
        )
    )


def _rectangles(bars: Columns, hover: HoverTool, palette: Palette) -> hv.Rectangles:
    return hv.Rectangles(bars, list(BAR_NUMBERS), list(BAR_TEXTS)).opts(color="color", **chosen_style(palette), tools=[hover, "tap"])


def _bars(rows: list[dict[str, Any]], column: str, palette: Palette, metric: Metric, values: tuple[str, ...]) -> Columns:
    """Bars of those that have the figure, at the places of all. What is zero has no place on a logarithmic axis."""
    placed = [(place, row) for place, row in enumerate(rows) if row[column] is not None and row[column] > 0]
    if not placed:
        return no_bars()
    texts = [_texts(row, column, palette, metric, values) for _, row in placed]
    middles = np.array([float(place) for place, _ in placed])
    columns: Columns = {
        "left": middles - BAR_WIDTH / 2,
        "bottom": np.full(len(placed), LOWEST),
        "right": middles + BAR_WIDTH / 2,
        "top": np.array([float(row[column]) for _, row in placed]),
    }
    columns.update({name: text_column(values) for name, values in zip(BAR_TEXTS, zip(*texts, strict=True), strict=True)})
    return columns


def _texts(row: Mapping[str, Any], column: str, palette: Palette, metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
    intensity = theme.intensity(row["intensity_flop_per_byte"])
    performance = figures_text(row, metric)
    is_of_intensity = column == "intensity_flop_per_byte"
    return (
        style_of(row["category"] or "other", values, palette).color,
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


def _names(rows: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """Return what stands below each bar, no two alike. prefix: what the labels of all begin with; empty: bars are kernels.

    Where short names are alike, what differs in the whole ones, data types and blocks tells them apart; failing that, a number.
    """
    names = [
        shortened(row["label"].removeprefix(prefix), NAME_LENGTH) if prefix else tick_name(row["kernel_name"], NAME_LENGTH) for row in rows
    ]
    for name in [name for name, count in Counter(names).items() if count > 1]:
        places = [place for place, other in enumerate(names) if other == name]
        whole = [" ".join(str(rows[place].get(column) or "") for column in TELLING) for place in places]
        for number, (place, difference) in enumerate(zip(places, _differences(whole), strict=True), 1):
            told = f"{name[: NAME_LENGTH - len(difference) - 1]} {difference}"
            is_short = 0 < len(difference) <= NAME_LENGTH // 2
            names[place] = told if is_short and told not in names else f"{name[: NAME_LENGTH - 3]} #{number}"
    return names


def _differences(names: Sequence[str]) -> list[str]:
    """Return what of each name is not the same in all of them, in whole words."""
    words = [WORD.findall(name) for name in names]
    begin = _shared_count(words)
    end = _shared_count([some[begin:][::-1] for some in words])
    return ["".join(some[begin : len(some) - end]).strip() for some in words]


def _shared_count(lists: Sequence[Sequence[str]]) -> int:
    """Return with how many words all lists begin."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False)))
