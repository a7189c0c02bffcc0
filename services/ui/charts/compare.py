"""Two runs beside each other: speed-ups with their intervals, what changes of time add up to, and points that move on the roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.elements import OUTSIDE, Columns, elided_apart, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.theme import Palette, Style

MAX_CHARTED: Final = 20
"""Rows of one chart: with more, a row would be lower than its name; the table has them all."""

ROW_HEIGHT_PX: Final = 22
NAME_LENGTH: Final = 26
"""Characters of a name beside the axis: half of a phone's width."""

VERDICTS: Final = ("SLOWER", "FASTER", "SAME", "UNDECIDED")  # worst news first
VERDICT_MARKERS: Final = {"SLOWER": "inverted_triangle", "FASTER": "triangle", "SAME": "square", "UNDECIDED": "circle"}

SPEEDUP_NUMBERS: Final = ("speedup", "place", "fill_alpha")
SPEEDUP_TEXTS: Final = ("color", "marker", "label", "verdict", "speedup_text", "change", "interval", "before", "after", "reason")
WHISKER_NUMBERS: Final = ("low", "place", "high", "end")
CHANGE_NUMBERS: Final = ("left", "bottom", "right", "top")
CHANGE_TEXTS: Final = ("color", "label", "delta", "before", "after", "launches")
MOVE_NUMBERS: Final = ("x0", "y0", "x1", "y1")
MOVE_TEXTS: Final = ("color", "label", "moved")


def verdict_style(verdict: str | None, palette: Palette) -> Style:
    """Colour and shape; undecided ones are drawn hollow besides."""
    colors = {"SLOWER": palette.bad, "FASTER": palette.good, "SAME": palette.muted, "UNDECIDED": palette.accent}
    known = verdict or "UNDECIDED"
    return Style(colors[known], VERDICT_MARKERS[known])


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """How many rows of table comparison say what. mean_ratio: geometric mean of the ratios of time, None without any.

    low, high: the geometric means of the lower and of the upper ends. Errors of one run's rows go together (it had one process, one
    clock, one neighbour), so that they must not be taken to cancel out: this interval is wider than that of independent errors.
    """

    by_verdict: dict[str, int]
    new: int
    gone: int
    mean_ratio: float | None
    low: float | None
    high: float | None


def verdict_counts(rows: pl.DataFrame) -> VerdictCounts:
    """Input: table comparison."""
    ratios = rows.filter(pl.col("duration_ratio") > 0).select(
        pl.col("duration_ratio", "duration_ratio_low", "duration_ratio_high").log().mean().exp()
    )
    return VerdictCounts(
        {verdict: rows.filter(pl.col("verdict") == verdict).height for verdict in VERDICTS},
        rows.filter(pl.col("occurrence") == "NEW").height,
        rows.filter(pl.col("occurrence") == "GONE").height,
        *ratios.row(0),
    )


# ---------------------------------------------------------------- speed-ups


def legend_of(rows: pl.DataFrame, palette: Palette) -> list[tuple[str, str, str]]:
    """Name, colour and character of the verdicts that occur."""
    present = rows["verdict"].drop_nulls().unique().to_list()
    shown = ((verdict, verdict_style(verdict, palette)) for verdict in VERDICTS if verdict in present)
    return [(verdict.lower(), style.color, verdict_symbol(verdict, style)) for verdict, style in shown]


def verdict_symbol(verdict: str, style: Style) -> str:
    return "○" if verdict == "UNDECIDED" else theme.SYMBOLS[style.marker]


def charted(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of table comparison that have a ratio, the largest changes of all, from the slowest to the fastest."""
    known = rows.filter(pl.col("duration_ratio") > 0)
    return known.sort(pl.col("duration_ratio").log().abs(), descending=True).head(MAX_CHARTED).sort("duration_ratio")


def speedup_columns(rows: pl.DataFrame, palette: Palette, name_length: int = NAME_LENGTH) -> tuple[Columns, Columns, dict[int, str]]:
    """Points, their whiskers, and the names of places on the vertical axis. Input: `charted` rows; the fastest is on top."""
    if rows.is_empty():
        return no_speedups(), empty_columns(WHISKER_NUMBERS), {}
    styles = [verdict_style(verdict, palette) for verdict in rows["verdict"]]
    place = -np.arange(rows.height, dtype=np.float64)
    texts = {
        "color": [style.color for style in styles],
        "marker": [style.marker for style in styles],
        "label": rows["label"].to_list(),
        "verdict": [(verdict or "undecided").lower() for verdict in rows["verdict"]],
        "speedup_text": [f"×{theme.digits(1 / ratio)}" for ratio in rows["duration_ratio"]],
        "change": [
            change(ratio) for ratio in rows.select(pl.col("duration_median_ns") / pl.col("baseline_duration_median_ns")).to_series()
        ],
        "interval": [interval(*ends) for ends in rows.select("duration_ratio_low", "duration_ratio_high").iter_rows()],
        "before": [theme.duration(value) for value in rows["baseline_duration_median_ns"]],
        "after": [theme.duration(value) for value in rows["duration_median_ns"]],
        "reason": [value or "" for value in rows["reason"]],
    }
    points: Columns = {
        "speedup": 1 / rows["duration_ratio"].to_numpy(),
        "place": place,
        "fill_alpha": np.where((rows["verdict"] == "UNDECIDED").fill_null(True).to_numpy(), 0.0, 0.9),
        **{name: text_column(values) for name, values in texts.items()},
    }
    low, high = rows["duration_ratio_high"].fill_null(math.nan), rows["duration_ratio_low"].fill_null(math.nan)
    whiskers = {"low": 1 / low.to_numpy(), "place": place, "high": 1 / high.to_numpy(), "end": place}
    return points, whiskers, {-index: name for index, name in enumerate(elided_apart(rows["label"].to_list(), name_length))}


def speedup_span(points: Columns, whiskers: Columns) -> tuple[float, float]:
    """Of the horizontal axis, with 1 in it: what is equal has its place."""
    values = np.concatenate([points["speedup"], whiskers["low"], whiskers["high"], [1.0]])
    known = values[np.isfinite(values) & (values > 0)]
    margin = max(1.03, (float(known.max()) / float(known.min())) ** 0.06)
    return float(known.min()) / margin, float(known.max()) * margin


def speedup_chart(points: Columns, whiskers: Columns, palette: Palette, height_px: int = 240) -> hv.Overlay:
    """Layers, in this order: the line of equal times, whiskers, points."""
    hover = HoverTool(
        tooltips=[
            ("", "@label"),
            ("Verdict", "@verdict"),
            ("Speed-up", "@speedup_text"),
            ("Medians", "@before → @after (@change)"),
            ("Interval, 99 %", "@interval"),
            ("", "@reason"),
        ]
    )
    start, end = speedup_span(points, whiskers)
    even = hv.Segments(even_columns(len(points["place"])), ["low", "place", "high", "end"]).opts(
        color=palette.muted, line_dash="dashed", line_width=1.2
    )
    lines = hv.Segments(whiskers, list(WHISKER_NUMBERS)).opts(color=palette.text, line_width=1.3)
    marks = hv.Points(points, ["speedup", "place"], [*SPEEDUP_TEXTS, "fill_alpha"]).opts(
        color="color", marker="marker", fill_alpha="fill_alpha", size=10, line_width=1.6, tools=[hover]
    )
    return hv.Overlay([even, lines, marks]).opts(
        hv.opts.Overlay(
            logx=True,
            xlim=(start, end),
            ylim=place_span(len(points["place"])),
            xlabel="Speed-up (before ÷ after)",
            ylabel="",
            xformatter=tick_formatter(theme.RATIO_TICKS),
            **frame_options(palette, height_px),
        )
    )


def no_speedups() -> Columns:
    return empty_columns(SPEEDUP_NUMBERS, SPEEDUP_TEXTS)


def even_columns(row_count: int) -> Columns:
    bottom, top = place_span(row_count)
    return {name: np.array([value]) for name, value in zip(WHISKER_NUMBERS, (1.0, bottom, 1.0, top), strict=True)}


def place_span(row_count: int) -> tuple[float, float]:
    return -max(row_count, 1) + 0.4, 0.6


def chart_height_px(row_count: int) -> int:
    return 92 + ROW_HEIGHT_PX * max(row_count, 3)


# ---------------------------------------------------------------- changes of time, of traces


def change_columns(
    rows: pl.DataFrame, name_column: str, palette: Palette, name_length: int = NAME_LENGTH
) -> tuple[Columns, dict[int, str]]:
    """A bar for each of the largest changes of device time, and the names of places. Input: kernel_comparison or layer_comparison."""
    largest = rows.sort(pl.col("duration_delta_ns").abs(), descending=True).head(MAX_CHARTED).sort("duration_delta_ns", descending=True)
    if largest.is_empty():
        return empty_columns(CHANGE_NUMBERS, CHANGE_TEXTS), {}
    labels = compared_names(largest, name_column)
    place = -np.arange(largest.height, dtype=np.float64)
    delta = largest["duration_delta_ns"].fill_null(0).to_numpy().astype(np.float64)
    texts = {
        "color": [palette.bad if value > 0 else palette.good for value in delta],
        "label": labels,
        "delta": [signed_duration(value) for value in delta],
        "before": [theme.duration(value) for value in largest["baseline_duration_sum_ns"]],
        "after": [theme.duration(value) for value in largest["duration_sum_ns"]],
        "launches": [
            f"{theme.count(before)} → {theme.count(after)}"
            for before, after in largest.select("baseline_launch_count", "launch_count").rows()
        ],
    }
    bars: Columns = {
        "left": np.minimum(delta, 0.0),
        "bottom": place - 0.36,
        "right": np.maximum(delta, 0.0),
        "top": place + 0.36,
        **{name: text_column(values) for name, values in texts.items()},
    }
    return bars, {-index: name for index, name in enumerate(elided_apart(labels, name_length))}


def change_chart(bars: Columns, palette: Palette, height_px: int = 240) -> hv.Overlay:
    """One layer: bars left of zero for what takes less time, right of it for what takes more."""
    hover = HoverTool(tooltips=[("", "@label"), ("Change", "@delta"), ("Time", "@before → @after"), ("Launches", "@launches")])
    rectangles = hv.Rectangles(bars, list(CHANGE_NUMBERS), list(CHANGE_TEXTS)).opts(
        color="color", line_color=None, alpha=0.85, tools=[hover]
    )
    return hv.Overlay([rectangles]).opts(
        hv.opts.Overlay(
            xlim=change_span(bars),
            ylim=place_span(len(bars["top"])),
            xlabel="Change of device time",
            ylabel="",
            xformatter=tick_formatter(theme.DURATION_TICKS),
            **frame_options(palette, height_px),
        )
    )


def change_span(bars: Columns) -> tuple[float, float]:
    low = float(bars["left"].min(initial=0.0))
    high = float(bars["right"].max(initial=0.0))
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin


def compared_names(rows: pl.DataFrame, name_column: str) -> list[str]:
    """Of the second trace, or of the first where only it has the row; layers without a name are outside of every one."""
    names = rows.select(pl.coalesce(pl.col(name_column), pl.col(f"baseline_{name_column}"))).to_series()
    return [name if name is not None else OUTSIDE for name in names]


# ---------------------------------------------------------------- on the roofline


def move_columns(before: pl.DataFrame, after: pl.DataFrame, matches: pl.DataFrame, palette: Palette) -> Columns:
    """A line from where a configuration was to where it is.

    Args:
        before, after: tables roofline of both runs.
        matches: key_before and key of what is the same, name of the column in both tables as key_name, verdict.
    """
    nothing = empty_columns(MOVE_NUMBERS, MOVE_TEXTS)
    if matches.is_empty():
        return nothing
    key = pl.col(str(matches["key_name"][0])).alias("side_key")
    sides = [
        roofline.drawable(roofline.newest_rows(rows))
        .select(key, "intensity_flop_per_byte", "achieved_flop_per_s", "label")
        .unique(subset="side_key", keep="last", maintain_order=True)
        for rows in (before, after)
    ]
    moved = matches.join(sides[0], left_on="key_before", right_on="side_key").join(
        sides[1], left_on="key", right_on="side_key", suffix="_after"
    )
    if moved.is_empty():
        return nothing
    rates = moved.select("achieved_flop_per_s", "achieved_flop_per_s_after").rows()
    return {
        "x0": moved["intensity_flop_per_byte"].to_numpy(),
        "y0": moved["achieved_flop_per_s"].to_numpy(),
        "x1": moved["intensity_flop_per_byte_after"].to_numpy(),
        "y1": moved["achieved_flop_per_s_after"].to_numpy(),
        "color": text_column(verdict_style(verdict, palette).color for verdict in moved["verdict"]),
        "label": text_column(moved["label_after"]),
        "moved": text_column(f"{theme.flop_rate(first)} → {theme.flop_rate(second)}" for first, second in rates),
    }


def moves_layer(moves: Columns) -> hv.Segments:
    hover = HoverTool(tooltips=[("", "@label"), ("Achieved", "@moved")], line_policy="interp")
    return hv.Segments(moves, list(MOVE_NUMBERS), list(MOVE_TEXTS)).opts(color="color", line_width=2, alpha=0.8, tools=[hover])


# ---------------------------------------------------------------- words


def change(ratio: float | None) -> str:
    """1.0512 → "+5.12 %"; from twice as long on, a factor."""
    if ratio is None or not math.isfinite(ratio):
        return theme.UNKNOWN
    return f"×{theme.digits(ratio)}" if ratio >= 2 else f"{(ratio - 1) * 100:+.2f} %"


def interval(low: float | None, high: float | None) -> str:
    return theme.UNKNOWN if low is None or high is None else f"{change(low)} to {change(high)}"


def signed_duration(value_ns: float | None) -> str:
    return f"{'+' if value_ns is not None and value_ns > 0 else ''}{theme.duration(value_ns)}"
