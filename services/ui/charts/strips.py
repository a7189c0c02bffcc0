"""Sample strips: every sample of each configuration beside its neighbours, with median and confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import CustomJSHover, HoverTool

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.data.sample_strips import SampleRows
from kernalyse.services.ui.theme import CATEGORIES, Palette, style_of

STRIP_WIDTH: Final = 0.6
"""Of the distance between two configurations."""

EMPTY_RANGE_NS: Final = (1e3, 1e6)

MARK_MARKERS: Final = text_column(("square", "inverted_triangle", "x"))
"""By a sample's mark. At four pixels a square looks like a dot, and a browser fills it in half the time."""

MARK_SIZES_PX: Final = np.array((4.0, 6.0, 6.0))
"""By a sample's mark: the few that are special have to be found among the many."""

OUTLINE_ALPHAS: Final = np.array((0.0, 0.0, 1.0))
"""By a sample's mark: a cross is nothing but outline, and the others' would take as long to draw as what it surrounds."""

MARK_WORDS: Final = "return {inverted_triangle: 'outlier', x: 'discarded: the clock was throttled'}[value] ?? 'counts'"

MEDIAN_TEXTS: Final = ("label", "median", "interval", "extremes", "noise", "samples", "stop")
STOP_TEXTS: Final[dict[str | None, str]] = {
    "CONFIDENCE_REACHED": "interval narrow enough",
    "NO_IMPROVEMENT": "interval no longer narrowed",
    "TIME_LIMIT": "time limit",
    "SAMPLE_LIMIT": "sample limit",
    None: "not known",
}


def sample_columns(samples: SampleRows, colors: npt.NDArray[np.object_]) -> Columns:
    """One point a sample. colors: by configuration_index (see configuration_colors); beyond its end the last one counts.

    Samples lie side by side within their strip: by their index, folded, so that a strip keeps its width as it fills.
    """
    configuration, index = samples.configuration_index, samples.sample_index
    # Steps of the golden ratio spread any number of points evenly and put neighbours in time apart.
    offset = (np.modf(index * 0.6180339887498949)[0] - 0.5) * STRIP_WIDTH
    return {
        "x": configuration + offset,
        "duration": samples.duration_ns,
        "color": colors[np.minimum(configuration, len(colors) - 1)],
        "marker": MARK_MARKERS[samples.mark],
        "size": MARK_SIZES_PX[samples.mark],
        "line_alpha": OUTLINE_ALPHAS[samples.mark],
        "configuration": configuration.astype(np.float64),
        "sample": index.astype(np.float64),
        # Milliseconds: nanoseconds since 1970 do not fit a browser's numbers.
        "measured_unix_ms": samples.measured_unix_ns / 1e6,
    }


def configuration_colors(categories: Sequence[str | None], palette: Palette) -> npt.NDArray[np.object_]:
    """The category's colour of each configuration, by its index."""
    return text_column([style_of(category or "other", CATEGORIES, palette).color for category in categories] or [palette.accent])


def median_columns(measurements: pl.DataFrame) -> Columns:
    """One mark a measurement: median, its 95 % interval, and figures for the hover."""
    x = measurements["configuration_index"].to_numpy().astype(np.float64)
    low, high = measurements["duration_median_low_ns"], measurements["duration_median_high_ns"]
    texts = {
        "label": measurements["label"].to_list(),
        "median": [theme.duration(value) for value in measurements["duration_median_ns"]],
        "interval": [f"{theme.duration(a)} to {theme.duration(b)}" for a, b in zip(low, high, strict=True)],
        "extremes": [
            f"{theme.duration(a)} to {theme.duration(b)}"
            for a, b in zip(measurements["duration_min_ns"], measurements["duration_max_ns"], strict=True)
        ],
        "noise": [theme.percent(value) for value in measurements["noise_ratio"]],
        "samples": [
            f"{theme.count(kept)}" + (f" ({theme.count(left)} discarded)" if left else "")
            for kept, left in zip(measurements["sample_count"], measurements["discarded_sample_count"], strict=True)
        ],
        "stop": [STOP_TEXTS.get(value, value) for value in measurements["stop_reason"]],
    }
    return {
        "x0": x - STRIP_WIDTH / 2,
        "x1": x + STRIP_WIDTH / 2,
        "y0": measurements["duration_median_ns"].to_numpy(),
        "y1": measurements["duration_median_ns"].to_numpy(),
        **{name: text_column(values) for name, values in texts.items()},
    }


def interval_columns(measurements: pl.DataFrame) -> Columns:
    """One box a measurement: the 95 % interval of its median."""
    x = measurements["configuration_index"].to_numpy().astype(np.float64)
    return {
        "left": x - STRIP_WIDTH / 2,
        "right": x + STRIP_WIDTH / 2,
        "bottom": measurements["duration_median_low_ns"].to_numpy(),
        "top": measurements["duration_median_high_ns"].to_numpy(),
    }


def tick_labels(labels: Sequence[str], limit: int = 6) -> dict[int, str]:
    """Names for the axis, by configuration_index: all of them when they are few, else evenly chosen ones."""
    step = max(1, math.ceil(len(labels) / limit))
    return {index: _tick(labels[index]) for index in range(0, len(labels), step)}


def duration_range(samples: Columns) -> tuple[float, float] | None:
    """Of the axis, nanoseconds: all samples and a margin. None when there are none."""
    durations = samples["duration"]
    positive = durations[durations > 0]
    return (float(positive.min()) / 1.3, float(positive.max()) * 1.3) if len(positive) else None


def strip_chart(
    finished: Columns, samples: Columns, medians: Columns, intervals: Columns, palette: Palette, height_px: int = 390
) -> hv.Overlay:
    """Four layers, in this order: samples of measured configurations, of those that go on, intervals, medians."""
    sample_hover = HoverTool(
        tooltips=[
            ("Configuration", "#@configuration"),
            ("Sample", "@sample, @marker{custom}"),
            ("Duration", "@duration{0,0} ns"),
        ],
        formatters={"@marker": CustomJSHover(code=MARK_WORDS)},
    )
    median_hover = HoverTool(
        tooltips=[
            ("", "@label"),
            ("Median", "@median"),
            ("95 % interval", "@interval"),
            ("Fastest to slowest", "@extremes"),
            ("Noise", "@noise"),
            ("Samples", "@samples"),
            ("Stopped by", "@stop"),
        ],
        line_policy="interp",
    )
    dots = [
        hv.Points(
            columns, ["x", "duration"], ["color", "marker", "size", "line_alpha", "configuration", "sample", "measured_unix_ms"]
        ).opts(color="color", marker="marker", size="size", fill_alpha=0.55, line_alpha="line_alpha", tools=[sample_hover])
        for columns in (finished, samples)
    ]
    boxes = hv.Rectangles(intervals, ["left", "bottom", "right", "top"]).opts(color=palette.text, alpha=0.25, line_alpha=0)
    marks = hv.Segments(medians, ["x0", "y0", "x1", "y1"], list(MEDIAN_TEXTS)).opts(
        color=palette.text, line_width=2.5, tools=[median_hover]
    )
    return hv.Overlay([*dots, boxes, marks]).opts(
        hv.opts.Overlay(
            logy=True,
            xlim=(-0.5, 0.5),
            ylim=duration_range(samples) or EMPTY_RANGE_NS,
            xlabel="",
            ylabel="Duration of one launch",
            yformatter=tick_formatter(theme.DURATION_TICKS),
            xrotation=0,
            **frame_options(palette, height_px),
        )
    )


def no_samples() -> Columns:
    return sample_columns(SampleRows.none(), text_column(["gray"]))


def no_medians() -> tuple[Columns, Columns]:
    """Of medians and of intervals."""
    medians: dict[str, npt.NDArray[Any]] = {name: np.empty(0) for name in ("x0", "y0", "x1", "y1")}
    medians.update({name: text_column(()) for name in MEDIAN_TEXTS})
    return medians, {name: np.empty(0) for name in ("left", "bottom", "right", "top")}


def _tick(label: str, length: int = 18) -> str:
    """Kernel and parameters on a line each, both cut where they are long."""
    kernel, _, parameters = label.partition(" ")
    lines = [part if len(part) <= length else part[: length - 1] + "…" for part in (kernel, parameters) if part]
    return "\n".join(lines)
