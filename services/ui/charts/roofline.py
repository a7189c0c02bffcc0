"""The roofline: achieved flop rate over arithmetic intensity, under the device's ceilings, both axes logarithmic.

Rows of the table roofline become points; of many, `thinned` picks those that are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import CustomJSHover, HoverTool

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL, disturbance_note
from kernalyse.services.core.formatting import operation
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.charts.roofline_ceilings import (
    CEILING_NUMBERS,
    CEILING_TEXTS,
    LEVEL_TITLES,
    CeilingRow,
    Span,
    ceiling_columns,
    label_columns,
    ridges,
    shown_ceilings,
)
from kernalyse.services.ui.theme import (
    CATEGORIES,
    FAILED_MARKERS,
    IMPLAUSIBLE_MARKER,
    IMPLAUSIBLE_SYMBOL,
    LINE_MARKERS,
    SYMBOL_MARKERS,
    Outline,
    Palette,
    Style,
    efficiency_style,
    style_of,
)

__all__ = [
    "CEILING_NUMBERS",
    "CEILING_TEXTS",
    "LARGEST_POINT_SIZE",
    "LEVEL_TITLES",
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

PointSize = Literal["share", "same"]
PointsOf = Literal["kernel", "layer"]

POINT_NUMBERS: Final = (
    *("intensity", "rate", "byte_rate", "attainable_rate", "efficiency_ratio", "duration_ns", "flop", "bytes"),
    *("fill_alpha", "size", "line_width"),
)
POINT_TEXTS: Final = (
    *("color", "line_color", "line_dash", "marker", "label", "run", "kind", "dtype", "operation"),
    *("bound", "timing", "work_source", "ceiling", "verification"),
)

WORK_SOURCES: Final[dict[str | None, str]] = {
    "formula": "by formula",
    "counters": "by hardware counters",
    "recorded": "as recorded",
    "op model": "by op model",
    None: "source not known",
}

VERIFICATION_TEXTS: Final[dict[str | None, str]] = {
    "PASSED": "passed",
    "FAILED": "WRONG RESULT",
    "NO_REFERENCE": "no reference",
    "SWITCHED_OFF": "not checked",
    None: "not known",
}

POINT_SIZE: Final = 11.0
LARGEST_POINT_SIZE: Final = 36.0
"""Pixels across, of a point without a share of time, and of one with all of it. Larger ones would hide their neighbours; the
smallest one has to be hit with a mouse."""

MAX_DRAWN_POINTS: Final = 4_000
"""A browser draws these in some 20 ms, and they travel in as many. More lie on top of each other: at 900 x 400 pixels one point of
11 pixels hides a hundred others."""

FINEST_CELLS: Final = (192, 96)
"""Cells across and up, of one of which one point of each series is drawn when there are too many: less than a point's own size."""

IDENTITY: Final = ("run_id", "configuration_index", "label", "path", "device_id")
"""Of a configuration the first two; a point of a trace has none and goes by the others."""

_MEMBERS: Final = {
    "intensity": "intensity_flop_per_byte",
    "rate": "achieved_flop_per_s",
    "byte_rate": "achieved_bytes_per_s",
    "attainable_rate": "attainable_flop_per_s",
    "efficiency_ratio": "efficiency_ratio",
    "flop": "flop",
    "bytes": "bytes",
}
"""Numbers of a point by the columns of the table that they are; NaN where those are null."""


def newest_rows(roofline: pl.DataFrame) -> pl.DataFrame:
    """The last row of each configuration: earlier ones were computed with fewer ceilings known."""
    return roofline.unique(subset=list(IDENTITY), keep="last", maintain_order=True)


def drawable(roofline: pl.DataFrame) -> pl.DataFrame:
    """Rows that have a place on the chart: with an intensity and a flop rate."""
    intensity, rate = pl.col("intensity_flop_per_byte"), pl.col("achieved_flop_per_s")
    return roofline.filter((intensity > 0) & (rate > 0) & intensity.is_finite() & rate.is_finite())


def point_columns(
    roofline: pl.DataFrame,
    palette: Palette,
    color_by: str = "category",
    values: tuple[str, ...] = CATEGORIES,
    sizes: PointSize = "share",
) -> Columns:
    """One point a row of the table roofline (those of `drawable`), with the figures and words of its hover.

    The outline doubles the category of its efficiency: thick where a limit of the hardware is reached, dashed where the point is
    far below it.

    Args:
        color_by: column that decides colour and, where the row asks for no symbol of its own, shape; of "efficiency_category" the
            shape is that of the kernel's category.
        values: what occurs in it, in the order of the palette.
        sizes: "share": the area of a point of a trace or of a model says how much of the time is its own.
    """
    rows = drawable(roofline)
    kinds = rows[color_by].cast(pl.String).fill_null("").to_list()
    colors = {kind: point_style(kind, color_by, values, palette).color for kind in set(kinds)}
    shaping = rows["category"].fill_null("").to_list() if color_by == "efficiency_category" else kinds
    shape_values = CATEGORIES if color_by == "efficiency_category" else values
    shapes = {kind: point_style(kind, "category", shape_values, palette).marker for kind in set(shaping)}
    has_failed = (rows["verification_state"] == "FAILED").fill_null(False).to_list()
    is_implausible = rows["is_implausible"].fill_null(False).to_list()
    outlines = [Outline.of(category) for category in rows["efficiency_category"]]
    share = rows["share_ratio"].fill_null(0.0).to_numpy() if sizes == "share" else np.zeros(rows.height)
    columns: Columns = {name: rows[column].cast(pl.Float64).fill_null(np.nan).to_numpy() for name, column in _MEMBERS.items()}
    columns["duration_ns"] = rows.select(pl.coalesce("duration_median_ns", "duration_mean_ns").fill_null(np.nan)).to_series().to_numpy()
    # Wrong results are hollow, and crossed where the shape can be.
    columns["fill_alpha"] = np.where(has_failed, 0.0, 0.85)
    columns["size"] = np.maximum(POINT_SIZE, LARGEST_POINT_SIZE * np.sqrt(share))
    columns["line_width"] = np.array([outline.width_px for outline in outlines], dtype=np.float64)
    fills = [palette.bad if marked else colors[kind] for kind, marked in zip(kinds, is_implausible, strict=True)]
    wanted = (SYMBOL_MARKERS.get(symbol, shapes[kind]) for kind, symbol in zip(shaping, rows["symbol"], strict=True))
    markers = [
        IMPLAUSIBLE_MARKER if marked else FAILED_MARKERS.get(marker, marker) if failed else marker
        for marker, failed, marked in zip(wanted, has_failed, is_implausible, strict=True)
    ]
    texts: dict[str, list[str]] = {
        "color": fills,
        "line_color": [
            palette.text if outline.is_marked and marker not in LINE_MARKERS else fill
            for fill, outline, marker in zip(fills, outlines, markers, strict=True)
        ],
        "line_dash": [outline.dash for outline in outlines],
        "marker": markers,
        "label": rows["label"].fill_null(theme.UNKNOWN).to_list(),
        "run": [theme.short_run_id(run_id) for run_id in rows["run_id"]],
        "kind": [_joined(*values) for values in rows.select("category", "dtype").iter_rows()],
        "dtype": rows["dtype"].fill_null("").to_list(),
        "operation": [operation(dtype) for dtype in rows["dtype"]],
        "bound": [category or _bound(bound) for category, bound in zip(rows["efficiency_category"], rows["bound"], strict=True)],
        "timing": [_timing(*values) for values in rows.select("duration_median_ns", "duration_mean_ns", "launch_count").iter_rows()],
        "work_source": [WORK_SOURCES.get(value, value or "") for value in rows["work_source"]],
        "ceiling": [_held_against(*values) for values in rows.select("memory_level", "ceiling_source").iter_rows()],
        "verification": [
            f"{VERIFICATION_TEXTS.get(value, value)}{', FASTER THAN THE DEVICE CAN BE' if marked else ''}"
            + (f", {DISTURBED_SYMBOL} {disturbance}" if disturbance else "")
            for value, marked, disturbance in zip(rows["verification_state"], is_implausible, rows["disturbance"], strict=True)
        ],
    }
    columns.update({name: text_column(values) for name, values in texts.items()})
    return columns


def point_style(kind: str, color_by: str, values: tuple[str, ...], palette: Palette) -> Style:
    """Of points with this value in the column color_by; empty: none is known. values: see `point_columns`."""
    if color_by == "efficiency_category":
        return efficiency_style(kind, palette)
    return style_of(kind, values, palette) if kind else Style(palette.muted, "circle")


def marks_of(points: Columns) -> dict[str, bool]:
    """What besides colours and shapes the legend has to explain: has_failed, has_implausible."""
    return {
        "has_failed": bool(np.any(points["fill_alpha"] == 0)),
        "has_implausible": bool(np.any(points["marker"] == IMPLAUSIBLE_MARKER)),
    }


# ---------------------------------------------------------------- many points


def thinned(rows: pl.DataFrame, view: Span, series: str, limit: int = MAX_DRAWN_POINTS) -> pl.DataFrame:
    """At most about `limit` rows of `drawable` that look the same in the view: of those in one cell of a grid, and of one series, the
    first. Rows outside the view are left out, unless all fit.

    Args:
        series: column that colours points.
    """
    if rows.height <= limit:
        return rows
    x, y = _places(rows, view)
    is_inside = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    inside = rows.filter(pl.Series(is_inside)).with_columns(_x=pl.Series(x[is_inside]), _y=pl.Series(y[is_inside]))
    across, up = FINEST_CELLS
    kept = inside
    while kept.height > limit and across > 1:
        cell = ((pl.col("_x") * across).cast(pl.Int32) * (up + 1) + (pl.col("_y") * up).cast(pl.Int32)).alias("_cell")
        kept = kept.with_columns(cell).unique(["_cell", series], keep="first", maintain_order=True)
        across, up = across * 3 // 4, max(1, up * 3 // 4)
    return kept.select(rows.columns)


def near(rows: pl.DataFrame, view: Span, x: float, y: float, width_px: float, height_px: float, reach_px: float) -> list[int]:
    """Rows of `drawable` around a place of the view, the nearest first, by their position.

    Args:
        x, y: the place, in flop/B and flop/s.
        width_px, height_px: of the view on the screen.
        reach_px: how far from the place a point may be.
    """
    if rows.is_empty() or x <= 0 or y <= 0:
        return []
    (here_x,), (here_y,) = _scaled(np.array([x]), view.x_start, view.x_end), _scaled(np.array([y]), view.y_start, view.y_end)
    place_x, place_y = _places(rows, view)
    distance = np.hypot((place_x - here_x) * width_px, (place_y - here_y) * height_px)
    inside = np.flatnonzero(distance <= reach_px)
    return [int(row) for row in inside[np.argsort(distance[inside], kind="stable")]]


def _places(rows: pl.DataFrame, view: Span) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Where rows lie in the view: 0 is its left or lower edge, 1 the other."""
    return (
        _scaled(rows["intensity_flop_per_byte"].to_numpy(), view.x_start, view.x_end),
        _scaled(rows["achieved_flop_per_s"].to_numpy(), view.y_start, view.y_end),
    )


def _scaled(values: npt.NDArray[Any], start: float, end: float) -> npt.NDArray[np.float64]:
    low, high = np.log10(start), np.log10(end)
    scaled: npt.NDArray[np.float64] = (np.log10(values) - low) / (high - low)
    return scaled


# ---------------------------------------------------------------- words and colours


def _timing(median_ns: float | None, mean_ns: float | None, launch_count: int | None) -> str:
    if median_ns is not None or mean_ns is None:
        return "median"
    return "mean" + (f" of {theme.count(launch_count)} launches" if launch_count is not None else "")


def _joined(category: str | None, dtype: str | None) -> str:
    return " · ".join(value for value in (category, dtype) if value) or theme.UNKNOWN


def _held_against(level: str | None, source: str | None) -> str:
    return f"{LEVEL_TITLES.get(level or '', level or theme.UNKNOWN)} · {source or 'not known'}"


def _bound(value: str | None) -> str:
    return f"{value}-bound" if value else "bound not known"


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
        text_color=palette.muted,
        text_font_size="8pt",
        text_align="text_align",
        text_baseline="text_baseline",
        padding=0,
        background_fill_color=palette.surface,
        background_fill_alpha=0.8,
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
