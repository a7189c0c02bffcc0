"""Telemetry lines: how busy host and device are, and how full the memory is, over time."""

from __future__ import annotations

from typing import Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.theme import Palette

LINES: Final = ("host_busy", "device_busy", "memory_used")
"""Each is a layer of the chart, in this order."""

TITLES: Final[dict[str, str]] = {"host_busy": "Host busy", "device_busy": "Device busy", "memory_used": "Memory used"}
DASHES: Final[dict[str, str]] = {"host_busy": "solid", "device_busy": "dashed", "memory_used": "dotted"}

SHOWN_S: Final = 180.0
"""Seconds of a run that the chart shows: its newest."""


def line_columns(telemetry: pl.DataFrame, line: str) -> Columns:
    """time: milliseconds since 1970; share: percent. Readings that lack the figure are left out.

    In NumPy: every page asks for a handful of rows twice a second, and a polars query costs more than they do.
    """
    is_host = telemetry["device_id"].is_null().to_numpy()
    used, total, busy = (
        telemetry[name].cast(pl.Float64).to_numpy() for name in ("memory_used_bytes", "memory_total_bytes", "utilization_ratio")
    )
    match line:
        case "host_busy":
            is_meant, share = is_host, busy
        case "device_busy":
            is_meant, share = ~is_host, busy
        case _:
            has_device_memory = bool(np.any(~is_host & ~np.isnan(used)))
            is_meant, share = ~is_host if has_device_memory else is_host, used / total
    times = telemetry["measured_unix_ns"].to_numpy()
    kept = np.flatnonzero(is_meant & ~np.isnan(share))
    kept = kept[np.argsort(times[kept], kind="stable")]
    return {
        "time": times[kept] / 1e6,
        "share": share[kept] * 100,
        "text": text_column(theme.percent(value) for value in share[kept].tolist()),
    }


def no_line() -> Columns:
    return {"time": np.empty(0), "share": np.empty(0), "text": text_column(())}


def time_range(lines: dict[str, Columns]) -> tuple[float, float] | None:
    """Of the axis, milliseconds since 1970; None without readings."""
    times = np.concatenate([columns["time"] for columns in lines.values()])
    return shown_span(float(times.min()), float(times.max())) if len(times) else None


def shown_span(first: float, last: float) -> tuple[float, float]:
    """Of the axis, for readings from first to last: their newest part."""
    return max(first, last - SHOWN_S * 1000), last


def line_color(line: str, palette: Palette) -> str:
    return palette.series[LINES.index(line)]


def telemetry_chart(lines: dict[str, Columns], palette: Palette, height_px: int = 200) -> hv.Overlay:
    """One layer a line, in the order of LINES; shares from 0 to 100 %."""
    curves = [
        hv.Curve(lines[line], "time", ["share", "text"]).opts(
            color=line_color(line, palette),
            line_dash=DASHES[line],
            line_width=2,
            tools=[
                HoverTool(tooltips=[(TITLES[line], "@text"), ("At", "@time{%H:%M:%S}")], formatters={"@time": "datetime"}, mode="vline")
            ],
        )
        for line in LINES
    ]
    start, end = time_range(lines) or (0.0, 1000.0)
    return hv.Overlay(curves).opts(
        hv.opts.Overlay(
            xlim=(start, max(end, start + 1000)),
            ylim=(0, 104),
            xticks=4,
            xlabel="",
            ylabel="",
            yformatter=tick_formatter(theme.PERCENT_TICKS),
            xformatter=tick_formatter(theme.CLOCK_TICKS),
            **frame_options(palette, height_px),
        )
    )
