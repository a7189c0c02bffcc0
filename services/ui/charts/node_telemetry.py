"""The last hour of a node: what its host and devices did, a line each, a chart for each kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import holoviews as hv
import numpy as np
from bokeh.models import HoverTool

from kernalyse.services.core.model import Telemetry
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, tick_formatter
from kernalyse.services.ui.theme import Palette

MAX_SERIES: Final = 9
"""A host and eight devices; lines of more could not be told apart."""

DASHES: Final = ("solid", "dashed", "dotted", "dotdash", "dashdot")
DASH_SYMBOLS: Final = {"solid": "━", "dashed": "╍", "dotted": "┅", "dotdash": "┉", "dashdot": "╌"}
HOUR_MS: Final = 3600.0 * 1000
MAX_GAP_MS: Final = 30_000.0
"""Between two readings that a line joins: a node that was away has a hole there, not a straight line."""

LAYERS: Final = tuple(f"series{number}" for number in range(MAX_SERIES))


@dataclass(frozen=True, slots=True)
class Metric:
    """One chart. of: the figure of a reading; ticks: JavaScript; text: the figure for people."""

    name: str
    title: str
    of: Callable[[Telemetry], float | None]
    ticks: str
    text: Callable[[float], str]
    top: float | None = None  # of the axis; None: what the readings reach


def _memory_gib(reading: Telemetry) -> float | None:
    return None if reading.memory_used_bytes is None else reading.memory_used_bytes / 2**30


METRICS: Final = (
    Metric("utilization", "Utilization", lambda r: r.utilization_ratio, 'return Math.round(tick * 100) + " %"', theme.percent, 1.04),
    Metric("memory", "Memory used", _memory_gib, 'return parseFloat(tick.toPrecision(3)) + " GiB"', lambda gib: f"{theme.digits(gib)} GiB"),
    Metric("clock", "Clock", lambda r: r.clock_hz, 'return parseFloat((tick / 1e9).toPrecision(3)) + " GHz"', theme.frequency),
    Metric("temperature", "Temperature", lambda r: r.temperature_celsius, 'return tick + " °C"', theme.temperature),
    Metric("power", "Power", lambda r: r.power_watts, 'return tick + " W"', theme.power),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line. device_id: None for the host."""

    device_id: str | None
    color: str
    dash: str

    @property
    def title(self) -> str:
        return self.device_id or "host"


def series_of(device_ids: Sequence[str | None], palette: Palette) -> tuple[Series, ...]:
    """The host first, then devices by their ids."""
    ordered = sorted(device_ids, key=lambda device_id: (device_id is not None, device_id or ""))[:MAX_SERIES]
    return tuple(_series(device_id, place, palette) for place, device_id in enumerate(ordered))


def _series(device_id: str | None, place: int, palette: Palette) -> Series:
    return Series(device_id, palette.series[place % len(palette.series)], DASHES[place % len(DASHES)])


def line_columns(readings: Sequence[Telemetry], metric: Metric, title: str = "") -> Columns:
    """time: milliseconds since 1970; value: of the metric, NaN where the line has a hole; text: series and figure.

    Args:
        readings: of one device, in order of time. Those without the figure are left out.
    """
    known = [(reading.measured_unix_ns / 1e6, float(value)) for reading in readings if (value := metric.of(reading)) is not None]
    if not known:
        return no_line()
    times, values = np.array(known).T
    texts = np.array([f"{title} {metric.text(value)}".strip() for value in values.tolist()])
    holes = np.flatnonzero(np.diff(times) > MAX_GAP_MS) + 1
    return {
        "time": np.insert(times, holes, times[holes - 1]),
        "value": np.insert(values, holes, np.nan),
        "text": np.insert(texts, holes, ""),
    }


def no_line() -> Columns:
    return empty_columns(("time", "value"), ("text",))


def value_range(lines: Sequence[Columns], metric: Metric) -> tuple[float, float]:
    """Of the axis: from zero to above the highest reading."""
    highest = max((float(np.nanmax(columns["value"])) for columns in lines if len(columns["value"])), default=0.0)
    return 0.0, metric.top if metric.top is not None else highest * 1.08 or 1.0


def time_range(lines: Sequence[Columns]) -> tuple[float, float]:
    """The hour that ends with the newest reading, milliseconds since 1970; from the first reading on while there is less."""
    times = [columns["time"] for columns in lines if len(columns["time"])]
    if not times:
        return 0.0, HOUR_MS
    end = max(float(part[-1]) for part in times)
    return max(min(float(part[0]) for part in times), end - HOUR_MS), end


def empty_metric_chart(palette: Palette, name: str) -> hv.Overlay:
    """name: of the metric."""
    return metric_chart(next(metric for metric in METRICS if metric.name == name), (), (), palette)


def metric_chart(metric: Metric, lines: Sequence[Columns], series: Sequence[Series], palette: Palette, height_px: int = 190) -> hv.Overlay:
    """One layer a series, in the order of LAYERS; what has no series is empty."""
    curves = []
    for place in range(MAX_SERIES):
        columns = lines[place] if place < len(lines) else no_line()
        look = series[place] if place < len(series) else _series(None, place, palette)
        curves.append(
            hv.Curve(columns, "time", ["value", "text"]).opts(
                color=look.color,
                line_dash=look.dash,
                line_width=2,
                tools=[HoverTool(tooltips=[(metric.title, "@text"), ("At", "@time{%H:%M:%S}")], formatters={"@time": "datetime"})],
            )
        )
    start, end = time_range(lines)
    return hv.Overlay(curves).opts(
        hv.opts.Overlay(
            xlim=(start, max(end, start + 1000)),
            ylim=value_range(lines, metric),
            xticks=4,
            xlabel="",
            ylabel="",
            yformatter=tick_formatter(metric.ticks),
            xformatter=tick_formatter(theme.CLOCK_TICKS),
            **frame_options(palette, height_px),
        )
    )
