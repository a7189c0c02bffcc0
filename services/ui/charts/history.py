"""One figure of one configuration over its runs: each with its interval, the levels that they keep to, and where these change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import DatetimeTicker, DatetimeTickFormatter, HoverTool, OpenURL, TapTool

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.theme import Palette, Style, Ticks

Across = Literal["time", "runs"]

NS_PER_MS: Final = 1e6
COMMIT_LENGTH: Final = 10
DAY_MS: Final = 86_400_000.0

BAND_NUMBERS: Final = ("left", "bottom", "right", "top")
LINE_NUMBERS: Final = ("x0", "y0", "x1", "y1")
POINT_NUMBERS: Final = ("x", "y", "size", "fill_alpha")
POINT_TEXTS: Final = ("color", "marker", "what", "value", "interval", "level", "moment", "commit", "run_id", "baseline", "driver")

LAYERS: Final = ("bands", "levels", "whiskers", "runs")
NO_COLUMNS: Final[dict[str, Columns]] = {
    "bands": empty_columns(BAND_NUMBERS),
    "levels": empty_columns(LINE_NUMBERS),
    "whiskers": empty_columns(LINE_NUMBERS),
    "runs": empty_columns(POINT_NUMBERS, POINT_TEXTS),
}

Shown = Callable[[float | None], str]

PERCENT_TICKS: Final = Ticks("return String(parseFloat((tick * 100).toPrecision(3))) + ' %'", lambda value: f"{value * 100:.3g} %")

METRICS: Final[dict[str, tuple[str, Shown, Ticks]]] = {
    "duration_median_ns": ("Median time", theme.duration, theme.DURATION_TICKS),
    "duration_mean_ns": ("Mean time", theme.duration, theme.DURATION_TICKS),
    "duration_min_ns": ("Shortest time", theme.duration, theme.DURATION_TICKS),
    "duration_p95_ns": ("95th percentile of time", theme.duration, theme.DURATION_TICKS),
    "duration_p99_ns": ("99th percentile of time", theme.duration, theme.DURATION_TICKS),
    "duration_sum_ns": ("Time in all", theme.duration, theme.DURATION_TICKS),
    "noise_ratio": ("Noise", theme.percent, PERCENT_TICKS),
    "achieved_flop_per_s": ("Flop rate (flop/s)", theme.flop_rate, theme.SI_TICKS),
    "achieved_bytes_per_s": ("Byte rate (B/s)", theme.byte_rate, theme.SI_TICKS),
    "efficiency_ratio": ("Efficiency", theme.percent, PERCENT_TICKS),
    "tokens_per_s": ("Tokens/s", lambda value: theme.si(value, "tokens/s"), theme.SI_TICKS),
}
"""Of each figure: how axes call it, how a value is shown, ticks."""


def change_style(verdict: str | None, palette: Palette) -> Style:
    """Of a run: the first of a level has the shape of its change."""
    if verdict == "REGRESSION":
        return Style(palette.bad, "inverted_triangle")
    return Style(palette.good, "triangle") if verdict == "IMPROVEMENT" else Style(palette.accent, "circle")


def positions(rows: pl.DataFrame, across: Across) -> np.ndarray[Any, Any]:
    """Of the runs on the horizontal axis: when, in milliseconds since 1970, or which, from 0."""
    if across == "runs":
        return np.arange(rows.height, dtype=np.float64)
    return rows["measured_unix_ns"].to_numpy().astype(np.float64) / NS_PER_MS


def point_columns(rows: pl.DataFrame, metric: str, across: Across, palette: Palette) -> Columns:
    """One point a run. Input: table history of one series, oldest first."""
    if rows.is_empty():
        return empty_columns(POINT_NUMBERS, POINT_TEXTS)
    show = METRICS[metric][1]
    styles = [change_style(verdict, palette) for verdict in rows["verdict"]]
    texts = {
        "color": [style.color for style in styles],
        "marker": [style.marker for style in styles],
        "what": [
            what(*values) + (f" {DISTURBED_SYMBOL} {disturbance}" if disturbance else "")
            for *values, disturbance in rows.select("verdict", "change_ratio", "is_confirmed", "disturbance").iter_rows()
        ],
        "value": [show(value) for value in rows["value"]],
        "interval": [
            theme.UNKNOWN if low is None else f"{show(low)} to {show(high)}" for low, high in rows.select("value_low", "value_high").rows()
        ],
        "level": [
            theme.UNKNOWN if level is None else f"{show(level)} ({show(low)} to {show(high)})"
            for level, low, high in rows.select("level_value", "level_low", "level_high").rows()
        ],
        "moment": [theme.moment(value) for value in rows["measured_unix_ns"]],
        "commit": [commit_text(*values) for values in rows.select("git_commit", "git_is_dirty").iter_rows()],
        "run_id": rows["run_id"].to_list(),
        "baseline": baselines(rows),
        "driver": [value or theme.UNKNOWN for value in rows["driver_version"]],
    }
    is_change = rows["verdict"].is_not_null().to_numpy()
    is_sure = rows["is_confirmed"].fill_null(True).to_numpy()
    return {
        "x": positions(rows, across),
        "y": rows["value"].to_numpy(),
        "size": np.where(is_change, 13.0, 7.0),
        "fill_alpha": np.where(is_sure, 0.9, 0.0),  # hollow: it is not known yet whether the change lasts
        **{name: text_column(values) for name, values in texts.items()},
    }


def whisker_columns(rows: pl.DataFrame, across: Across) -> Columns:
    """The interval of each run that tells one."""
    x = positions(rows, across) if rows.height else np.empty(0)
    return {
        "x0": x,
        "y0": rows["value_low"].fill_null(np.nan).to_numpy() if rows.height else x,
        "x1": x,
        "y1": rows["value_high"].fill_null(np.nan).to_numpy() if rows.height else x,
    }


def level_columns(rows: pl.DataFrame, across: Across) -> tuple[Columns, Columns]:
    """Of each level the band that runs at it keep to, and its middle; from half way to the level before up to half way to the next."""
    known = rows.filter(pl.col("level_index").is_not_null())
    if known.is_empty():
        return no_levels()
    x = positions(rows, across)[rows.height - known.height :]
    index = known["level_index"].to_numpy()
    begins = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    ends = np.append(begins[1:], len(index))
    middle = (x[begins[1:]] + x[begins[1:] - 1]) / 2
    margin = 0.5 if across == "runs" else max(DAY_MS / 24, float(x[-1] - x[0]) * 0.01)
    left, right = np.append(x[0] - margin, middle), np.append(middle, x[-1] + margin)
    low, high, value = (known[name].to_numpy()[ends - 1] for name in ("level_low", "level_high", "level_value"))
    return {"left": left, "bottom": low, "right": right, "top": high}, {"x0": left, "y0": value, "x1": right, "y1": value}


def no_levels() -> tuple[Columns, Columns]:
    return empty_columns(BAND_NUMBERS), empty_columns(LINE_NUMBERS)


def span_of(points: Columns, whiskers: Columns, bands: Columns, across: Across) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of both axes. A history that hardly changes fills the chart: 0 is shown only where it is near."""
    if not len(points["x"]):
        return (0.0, DAY_MS), (0.0, 1.0)
    margin = 0.8 if across == "runs" else max(DAY_MS / 12, float(np.ptp(points["x"])) * 0.02)
    heights = np.concatenate([points["y"], whiskers["y0"], whiskers["y1"], bands["bottom"], bands["top"]])
    known = heights[np.isfinite(heights)]
    low, high = float(known.min()), float(known.max())
    room = max((high - low) * 0.08, high * 0.02)
    return (float(points["x"].min()) - margin, float(points["x"].max()) + margin), (max(0.0, low - room), high + room)


def history_chart(palette: Palette, shown: Mapping[str, Columns] | None = None, height_px: int = 340) -> hv.Overlay:
    """Layers of LAYERS, in this order, of the median time.

    Args:
        shown: columns of every layer. None: there are no rows yet; they come to a page, where a click on a run compares it with the
            level before.
    """
    hover = HoverTool(
        tooltips=[
            ("", "@what"),
            ("Value", "@value"),
            ("Interval, 95 %", "@interval"),
            ("Level", "@level"),
            ("Measured (UTC)", "@moment"),
            ("Commit", "@commit"),
            ("Driver", "@driver"),
            ("Run", "@run_id"),
        ]
    )
    tap = TapTool(callback=OpenURL(url=f"/compare?theme={palette.name}&baseline=@baseline&candidate=@run_id", same_tab=True))
    given = NO_COLUMNS if shown is None else shown
    bands = hv.Rectangles(given["bands"], list(BAND_NUMBERS)).opts(color=palette.accent, alpha=0.12, line_color=None)
    middles = hv.Segments(given["levels"], list(LINE_NUMBERS)).opts(color=palette.accent, line_width=1.5, line_dash="dashed")
    whiskers = hv.Segments(given["whiskers"], list(LINE_NUMBERS)).opts(color=palette.muted, line_width=1)
    names = [name for name in (*POINT_NUMBERS, *POINT_TEXTS) if name not in ("x", "y")]
    runs = hv.Points(given["runs"], ["x", "y"], names).opts(
        color="color",
        marker="marker",
        size="size",
        fill_alpha="fill_alpha",
        line_width=1.6,
        nonselection_alpha=0.9,
        tools=[hover, tap] if shown is None else [hover],
    )
    title, _, ticks = METRICS["duration_median_ns"]
    return hv.Overlay([bands, middles, whiskers, runs]).opts(
        hv.opts.Overlay(
            xlim=(0.0, DAY_MS),
            ylim=(0.0, 1.0),
            xlabel="Measured (UTC)",
            ylabel=title,
            xticks=DatetimeTicker(),
            xformatter=DatetimeTickFormatter(),
            yformatter=tick_formatter(ticks),
            **frame_options(palette, height_px),
        )
    )


def what(verdict: str | None, ratio: float | None, is_confirmed: bool | None) -> str:
    """Of a run, in words: "Regression, +12.0 %, to be confirmed"."""
    if verdict is None or ratio is None:
        return "Run"
    return f"{verdict.capitalize()}, {(ratio - 1) * 100:+.1f} %{'' if is_confirmed else ', to be confirmed'}"


def commit_text(commit: str | None, is_dirty: bool | None) -> str:
    return theme.UNKNOWN if not commit else commit[:COMMIT_LENGTH] + (" with changes" if is_dirty else "")


def run_names(rows: pl.DataFrame) -> dict[int, str]:
    """Ticks of the axis of runs: their commits, or the days of those without."""
    return {
        place: commit[:7] if commit else theme.moment(unix_ns)[5:10]
        for place, (commit, unix_ns) in enumerate(rows.select("git_commit", "measured_unix_ns").iter_rows())
    }


def baselines(rows: pl.DataFrame) -> list[str]:
    """What each run is to be compared with: the last run of the level before its own, in the first level the run before."""
    run_ids, found = rows["run_id"].to_list(), []
    last_of_level = ""
    for place, index in enumerate(rows["level_index"].to_list()):
        before = run_ids[place - 1] if place else ""
        if place and index != rows["level_index"][place - 1]:
            last_of_level = before
        found.append(last_of_level or before or run_ids[place])
    return found
