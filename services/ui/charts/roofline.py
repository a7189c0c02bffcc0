"""The roofline: achieved flop rate over arithmetic intensity, under the device's ceilings, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import CustomJSHover, HoverTool

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, tick_formatter
from kernalyse.services.ui.charts.roofline_ceilings import (
    CEILING_NUMBERS,
    CEILING_TEXTS,
    CeilingRow,
    ceiling_columns,
    label_columns,
    ridges,
    shown_ceilings,
)
from kernalyse.services.ui.charts.roofline_points import (
    LARGEST_POINT_SIZE,
    POINT_NUMBERS,
    POINT_SIZE,
    POINT_TEXTS,
    VERIFICATION_TEXTS,
    Span,
    drawable,
    marks_of,
    newest_rows,
    point_columns,
    thinned,
)
from kernalyse.services.ui.theme import IMPLAUSIBLE_SYMBOL, Palette

__all__ = [
    "CEILING_NUMBERS",
    "CEILING_TEXTS",
    "LARGEST_POINT_SIZE",
    "POINT_NUMBERS",
    "POINT_SIZE",
    "POINT_TEXTS",
    "VERIFICATION_TEXTS",
    "CeilingRow",
    "Span",
    "ceiling_columns",
    "drawable",
    "label_columns",
    "marks_of",
    "newest_rows",
    "point_columns",
    "ridges",
    "roofline_chart",
    "shown_ceilings",
    "span_of",
    "thinned",
]

NO_POINT_SPAN: Final = (1e-2, 1e3, 1e8, 1e12)
"""Ranges of an empty chart: intensity low and high, rate low and high."""

RING_MARGIN_PX: Final = 9.0
"""Between the chosen point and the ring around it."""


def over_ceiling_note(roofline: pl.DataFrame) -> str:
    """What to know of points above DRAM's ceiling or above their own, and of disturbed and counted ones; empty without any."""
    is_implausible = roofline["is_implausible"].fill_null(False)
    is_counted = (roofline["work_source"] == "counters").fill_null(False)
    cached_count = ((roofline["memory_level"] == "l2") & ~is_counted).sum()
    over_count = ((roofline["efficiency_ratio"] > 1.05).fill_null(False) & ~is_implausible).sum()
    sentences = []
    if is_implausible.any():
        sentences.append(f"{is_implausible.sum()} implausible ({IMPLAUSIBLE_SYMBOL}): faster than the device can be; the table says why.")
    if cached_count:
        sentences.append(
            f"{cached_count} faster than DRAM: their data stays in the cache between launches, so its ceiling counts (dotted)."
        )
    if over_count:
        sentences.append(
            f"{over_count} above their ceiling: their data stays in a nearer cache, or the ceiling is lower than what the device can do."
        )
    sentences.append(disturbance_note(roofline["disturbance"]))
    if is_counted.any():
        sentences.append(f"{is_counted.sum()} without formulas: their work is by hardware counters.")
    return " ".join(sentence for sentence in sentences if sentence)


def span_of(points: Columns, rows: Sequence[CeilingRow]) -> Span:
    """Ranges that show all points and every ridge, to whole and half decades outwards. points: with intensity and rate."""
    slopes = [row["value"] for row in rows if row["unit"] == "bytes_per_s"]
    roofs = [row["value"] for row in rows if row["unit"] == "flop_per_s"]
    ridge_points = [roof / slope for roof in roofs for slope in slopes]
    # Left of the first ridge there must be room for the name of its slope.
    x = [*_extremes(points["intensity"]), *ridge_points, *(ridge / 30 for ridge in ridge_points)]
    if not x:
        return Span(*NO_POINT_SPAN)
    x_start, x_end = _outwards(min(x) / 2), _outwards(max(x) * 4, up=True)
    floor = [x_start * 3 * slope for slope in slopes]
    y = [*_extremes(points["rate"]), *roofs, *floor]
    return Span(x_start, x_end, _outwards(min(y) / 2), _outwards(max(y) * 2, up=True))


def no_points() -> Columns:
    """Return no rows of points."""
    return empty_columns(POINT_NUMBERS, POINT_TEXTS)


def no_ring() -> Columns:
    return {name: np.empty(0, dtype=np.float64) for name in ("intensity", "rate", "size")}


def ring_columns(points: Columns) -> Columns:
    """A ring around each of the points."""
    return {"intensity": points["intensity"], "rate": points["rate"], "size": points["size"] + 2 * RING_MARGIN_PX}


def roofline_chart(
    points: Columns,
    ceilings: Columns,
    span: Span,
    palette: Palette,
    height_px: int = 380,
    rings: Columns | None = None,
    under_points: Sequence[hv.Element] = (),
) -> hv.Overlay:
    """Layers, in this order: ceilings, their labels, those given, points and, with rings, those around the chosen points. Their
    sources take new columns of the same names."""
    labels = label_columns(ceilings)
    lines = hv.Segments(ceilings, ["x0", "y0", "x1", "y1"], ["line_width", *CEILING_TEXTS]).opts(
        color="color", line_dash="line_dash", line_width="line_width", tools=[_ceiling_hover()]
    )
    names = hv.Labels(labels, ["x", "y"], ["text", "text_align", "text_baseline"]).opts(
        text_color=palette.muted, text_font_size="8pt", text_align="text_align", text_baseline="text_baseline", padding=0
    )
    described = [name for name in (*POINT_NUMBERS, *POINT_TEXTS) if name not in ("intensity", "rate")]
    marks = hv.Points(points, ["intensity", "rate"], described).opts(
        color="color",
        line_color="line_color",
        line_dash="line_dash",
        line_width="line_width",
        marker="marker",
        fill_alpha="fill_alpha",
        size="size",
        tools=[_point_hover()],
    )
    layers = [lines, names, *under_points, marks]
    if rings is not None:
        layers.append(
            hv.Points(rings, ["intensity", "rate"], ["size"]).opts(size="size", fill_alpha=0.0, line_color=palette.accent, line_width=2.5)
        )
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            logx=True,
            logy=True,
            xlim=(span.x_start, span.x_end),
            ylim=(span.y_start, span.y_end),
            xlabel="Arithmetic intensity (flop/B)",
            ylabel="Achieved (flop/s)",
            xformatter=tick_formatter(theme.PLAIN_TICKS),
            yformatter=tick_formatter(theme.SI_TICKS),
            **frame_options(palette, height_px),
        )
    )


def _point_hover() -> HoverTool:
    """Numbers are put into words by the browser: thousands of points would take the server a second."""
    rate, time, memory = (CustomJSHover(code=code) for code in (theme.SI_HOVER, theme.DURATION_HOVER, theme.MEMORY_HOVER))
    plain, percent = CustomJSHover(code=theme.PLAIN_HOVER), CustomJSHover(code=theme.PERCENT_HOVER)
    return HoverTool(
        tooltips=[
            ("", "@label"),
            ("Achieved", "@rate{custom}@operation/s · @byte_rate{custom}B/s"),
            ("Attainable", "@attainable_rate{custom}@operation/s"),
            ("Efficiency", "@efficiency_ratio{custom} (@bound)"),
            ("Intensity", "@intensity{custom} flop/B"),
            ("Time", "@duration_ns{custom} @timing"),
            ("Work", "@flop{custom}@operation · @bytes{custom}, @work_source"),
            ("Kind", "@kind"),
            ("Result", "@verification"),
            ("Ceilings", "@ceiling"),
            ("Run", "@run"),
        ],
        formatters={
            **{f"@{name}": rate for name in ("rate", "byte_rate", "attainable_rate", "flop")},
            "@duration_ns": time,
            "@bytes": memory,
            "@intensity": plain,
            "@efficiency_ratio": percent,
        },
    )


def _ceiling_hover() -> HoverTool:
    figures = [("Ceiling", "@name"), ("Value", "@value"), ("Source", "@source"), ("Device", "@device"), ("", "@note")]
    return HoverTool(tooltips=figures, line_policy="interp")


def _extremes(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return (float(values.min()), float(values.max())) if len(values) else ()


def _outwards(value: float, up: bool = False) -> float:
    """The next half decade: 10^(n/2)."""
    exponent = math.log10(value) * 2
    return float(10 ** ((math.ceil(exponent) if up else math.floor(exponent)) / 2))
