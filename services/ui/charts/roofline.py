"""The roofline: achieved flop rate over arithmetic intensity, under the device's ceilings, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import HoverTool

from services.ui import theme
from services.ui.charts.ceiling_choice import BEST, sources_of
from services.ui.charts.elements import Columns, empty_columns, frame_options, tick_formatter
from services.ui.state import CeilingChoice
from services.ui.theme import CATEGORIES, FAILED_MARKERS, IMPLAUSIBLE_MARKER, IMPLAUSIBLE_SYMBOL, SYMBOL_MARKERS, Palette, style_of

POINT_NUMBERS: Final = ("intensity", "rate", "fill_alpha", "size")
POINT_TEXTS: Final = (
    "color",
    "marker",
    "label",
    "run",
    "category",
    "dtype",
    "intensity_text",
    "achieved",
    "achieved_bytes",
    "attainable",
    "efficiency",
    "bound",
    "duration",
    "flop",
    "bytes",
    "work_source",
    "ceiling_source",
    "memory_level",
    "verification",
)
CEILING_NUMBERS: Final = ("x0", "y0", "x1", "y1", "line_width")
CEILING_TEXTS: Final = ("color", "line_dash", "name", "value", "source", "note")

MEMORY_LEVELS: Final = {"dram": "DRAM", "l2": "L2 cache"}
"""What the chart calls the memories it draws a slope for; a CPU's last-level cache counts as L2."""

WORK_SOURCES: Final[dict[str | None, str]] = {
    "formula": "by formula",
    "counters": "by hardware counters",
    "recorded": "as recorded",
    "op model": "by op model",
    None: "source not known",
}

POINT_SIZE: Final = 9.0
LARGEST_POINT_SIZE: Final = 36.0
"""Pixels across, of a point without a share of time, and of one with all of it. Larger ones would hide their neighbours; the
smallest one has to be hit with a mouse."""

CLOSE_RATIO: Final = 1.3
"""Lines closer than this lie within the height of a name: a sixth of a decade's 90 to 150 pixels."""

NO_POINT_SPAN: Final = (1e-2, 1e3, 1e8, 1e12)
"""Ranges of an empty chart: intensity low and high, rate low and high."""

VERIFICATION_TEXTS: Final[dict[str | None, str]] = {
    "PASSED": "correct",
    "FAILED": "WRONG RESULT",
    "NO_REFERENCE": "no reference",
    "SWITCHED_OFF": "not checked",
    None: "not known",
}


CeilingRow = dict[str, Any]
"""A row of the table ceilings with is_preferred (see shown_ceilings)."""


@dataclass(frozen=True, slots=True)
class Span:
    """What both axes show: intensity in flop/B, rate in flop/s."""

    x_start: float
    x_end: float
    y_start: float
    y_end: float


_IDENTITY: Final = ["run_id", "configuration_index", "label", "path", "device_id"]
"""Of a configuration the first two; a point of a trace has none and goes by the others."""


def newest_rows(roofline: pl.DataFrame) -> pl.DataFrame:
    """The last row of each configuration: earlier ones were computed with fewer ceilings known."""
    return roofline.unique(subset=_IDENTITY, keep="last", maintain_order=True)


def drawable(roofline: pl.DataFrame) -> pl.DataFrame:
    """Rows that have a place on the chart: with an intensity and a flop rate."""
    figures = [pl.col(name) for name in ("intensity_flop_per_byte", "achieved_flop_per_s")]
    return roofline.filter(*((figure > 0) & figure.is_finite() for figure in figures))


def point_columns(roofline: pl.DataFrame, palette: Palette, color_by: str = "category", values: tuple[str, ...] = CATEGORIES) -> Columns:
    """One point a row of the table roofline (those of `drawable`), with every figure as text for its hover.

    Args:
        color_by: column that decides colour and, where the row asks for no symbol of its own, shape.
        values: what occurs in it, in the order of the palette.
    """
    rows = drawable(roofline)
    kinds = rows[color_by].cast(pl.String).fill_null("").to_list()
    styles = {kind: style_of(kind, values, palette) for kind in set(kinds)}
    markers = [SYMBOL_MARKERS.get(symbol, styles[kind].marker) for kind, symbol in zip(kinds, rows["symbol"], strict=True)]
    has_failed = (rows["verification_state"] == "FAILED").fill_null(False).to_list()
    is_implausible = rows["is_implausible"].fill_null(False).to_list()
    columns: Columns = {
        "intensity": rows["intensity_flop_per_byte"].to_numpy(),
        "rate": rows["achieved_flop_per_s"].to_numpy(),
        # Wrong results are hollow, and crossed where the shape can be.
        "fill_alpha": np.where(has_failed, 0.0, 0.85),
        # The area of a point of a trace says how much of the time is its own.
        "size": np.maximum(POINT_SIZE, LARGEST_POINT_SIZE * np.sqrt(rows["share_ratio"].fill_null(0.0).to_numpy())),
    }
    texts = {
        "color": [palette.bad if marked else styles[kind].color for kind, marked in zip(kinds, is_implausible, strict=True)],
        "marker": [
            IMPLAUSIBLE_MARKER if marked else FAILED_MARKERS.get(marker, marker) if failed else marker
            for marker, failed, marked in zip(markers, has_failed, is_implausible, strict=True)
        ],
        "label": rows["label"].to_list(),
        "run": [theme.short_run_id(run_id) for run_id in rows["run_id"]],
        "category": [value or theme.UNKNOWN for value in rows["category"]],
        "dtype": [value or "" for value in rows["dtype"]],
        "intensity_text": [theme.intensity(value) for value in rows["intensity_flop_per_byte"]],
        "achieved": [theme.flop_rate(value) for value in rows["achieved_flop_per_s"]],
        "achieved_bytes": [theme.byte_rate(value) for value in rows["achieved_bytes_per_s"]],
        "attainable": [theme.flop_rate(value) for value in rows["attainable_flop_per_s"]],
        "efficiency": [theme.percent(value) for value in rows["efficiency_ratio"]],
        "bound": [category or _bound(bound) for category, bound in zip(rows["efficiency_category"], rows["bound"], strict=True)],
        "duration": [_duration(*values) for values in rows.select("duration_median_ns", "duration_mean_ns", "launch_count").iter_rows()],
        "flop": [theme.si(value, "flop") for value in rows["flop"]],
        "bytes": [theme.memory(value) for value in rows["bytes"]],
        "work_source": [WORK_SOURCES.get(value, value) for value in rows["work_source"]],
        "ceiling_source": [value or theme.UNKNOWN for value in rows["ceiling_source"]],
        "memory_level": [MEMORY_LEVELS.get(value, value) for value in rows["memory_level"]],
        "verification": [
            f"{VERIFICATION_TEXTS.get(value, value)}{', FASTER THAN THE DEVICE CAN BE' if marked else ''}"
            for value, marked in zip(rows["verification_state"], is_implausible, strict=True)
        ],
    }
    columns.update({name: np.array(values, dtype=np.str_) for name, values in texts.items()})
    return columns


def shown_ceilings(ceilings: pl.DataFrame | None, dtypes: tuple[str, ...], choice: CeilingChoice = BEST) -> tuple[CeilingRow, ...]:
    """The newest memory and compute ceilings of the table, each with is_preferred: of the source that counts most.

    Args:
        ceilings: the table of that name, or None.
        dtypes: compute ceilings to show; empty: all there are.
        choice: sources that may be preferred.
    """
    if ceilings is None or ceilings.is_empty():
        return ()
    kept = ceilings.filter(
        (pl.col("value") > 0)
        & (
            pl.col("ceiling_name").is_in(list(MEMORY_LEVELS))
            | ((pl.col("unit") == "flop_per_s") & (pl.lit(not dtypes) | pl.col("ceiling_name").is_in(dtypes)))
        )
    ).unique(subset=["device_id", "ceiling_name", "unit", "path", "source"], keep="last", maintain_order=True)
    rows: list[CeilingRow] = kept.to_dicts()
    is_known = choice == BEST or any(row["source"] == choice for row in rows)  # else nothing is held against what it borrows
    best: dict[tuple[str, ...], str] = {}
    for row in rows:
        sources = sources_of(choice, row["unit"])
        known = best.get(_ceiling_key(row))
        if is_known and row["source"] in sources and (known is None or sources.index(row["source"]) < sources.index(known)):
            best[_ceiling_key(row)] = row["source"]
    return tuple({**row, "is_preferred": best.get(_ceiling_key(row)) == row["source"]} for row in rows)


def _ceiling_key(row: CeilingRow) -> tuple[str, ...]:
    return (row["device_id"], row["unit"], row["ceiling_name"], row["path"])


def ceiling_columns(rows: Sequence[CeilingRow], span: Span, palette: Palette) -> Columns:
    """One line a ceiling: a slope for each memory up to the highest compute ceiling, and a flat line for each dtype.

    A flat line begins where the steepest slope of its source reaches it. What is preferred is drawn solid, dotted for the
    cache; the others dashed.
    """
    if not rows:
        return empty_columns(CEILING_NUMBERS, CEILING_TEXTS)
    slopes = [row for row in rows if row["unit"] == "bytes_per_s"]
    roofs = [row for row in rows if row["unit"] == "flop_per_s"]
    lines: list[dict[str, Any]] = []
    for row in slopes:
        peak = max(
            (roof["value"] for roof in roofs if roof["source"] == row["source"]), default=max((r["value"] for r in roofs), default=None)
        )
        x_end = span.x_end if peak is None else min(span.x_end, peak / row["value"])
        lines.append(_line(row, (span.x_start, span.x_start * row["value"]), (x_end, x_end * row["value"]), palette))
    for row in roofs:
        steepest = max((slope["value"] for slope in slopes if slope["source"] == row["source"]), default=None)
        steepest = max((slope["value"] for slope in slopes), default=None) if steepest is None else steepest
        x_start = span.x_start if steepest is None else max(span.x_start, row["value"] / steepest)
        lines.append(_line(row, (x_start, row["value"]), (span.x_end, row["value"]), palette))
    names = (*CEILING_NUMBERS, *CEILING_TEXTS)
    return {name: np.array([line[name] for line in lines]) for name in names}


def label_columns(ceilings: Columns) -> Columns:
    """A name for each ceiling that counts: flat ones at their right end, slopes near their upper end.

    The steepest slope has its name on the left, the others on the right, so that close ones do not cover each other's. A
    name that a line close by would strike through goes to the other side of its own line, or past the other slope.
    """
    named = np.flatnonzero(ceilings["line_dash"] != "dashed") if len(ceilings["x0"]) else np.empty(0, dtype=np.int64)
    x0, y0, x1, y1 = (ceilings[name][named] for name in ("x0", "y0", "x1", "y1"))
    is_flat = y0 == y1
    steepness = np.where(is_flat, 0.0, y0 / x0)
    is_right = ~is_flat & (steepness < steepness.max(initial=0.0))
    place = np.where(is_flat, 1.0, np.where(is_right, 0.6, 0.9))  # along the line, 0 its lower and 1 its upper end
    all_flat = ceilings["y0"] == ceilings["y1"]
    roofs, slopes = ceilings["y0"][all_flat], (ceilings["y0"] / ceilings["x0"])[~all_flat]
    is_crowded = np.array(
        [flat and bool(np.any((roofs > y) & (roofs < y * CLOSE_RATIO))) for flat, y in zip(is_flat, y0, strict=True)], bool
    )
    close_slopes = [slopes[(slopes <= own) & (slopes * CLOSE_RATIO > own)].min(initial=own) for own in steepness]
    past = np.where(is_right, steepness / np.maximum(close_slopes, np.finfo(float).tiny), 1.0)
    return {
        "x": x0 ** (1 - place) * x1**place * past,
        "y": y0 ** (1 - place) * y1**place,
        "text": np.array([f" {ceilings['name'][row]} {ceilings['value'][row]} " for row in named], dtype=np.str_),
        "text_align": np.where(is_right, "left", "right"),
        "text_baseline": np.where(is_right | is_crowded, "top", "bottom"),
    }


def marks_of(points: Columns) -> dict[str, bool]:
    """What besides colours and shapes the legend has to explain: has_failed, has_implausible."""
    return {
        "has_failed": bool(np.any(points["fill_alpha"] == 0)),
        "has_implausible": bool(np.any(points["marker"] == IMPLAUSIBLE_MARKER)),
    }


def ridges(rows: Sequence[CeilingRow]) -> tuple[tuple[str, float], ...]:
    """Ridge point in flop/B, against DRAM, of each compute ceiling drawn solid, by name."""
    solid = [row for row in rows if row["is_preferred"]]
    slope = next((row["value"] for row in solid if row["ceiling_name"] == "dram"), None)
    return () if slope is None else tuple((row["ceiling_name"], row["value"] / slope) for row in solid if row["unit"] == "flop_per_s")


def over_ceiling_note(roofline: pl.DataFrame) -> str:
    """What to know of points above DRAM's ceiling or above their own, and of counted ones; empty without any."""
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
            f"{over_count} above their ceiling: their data stays in a nearer cache, or the ceiling was measured on a busy host."
        )
    if is_counted.any():
        sentences.append(f"{is_counted.sum()} without formulas: their work is by hardware counters.")
    return " ".join(sentences)


def span_of(points: Columns, rows: Sequence[CeilingRow]) -> Span:
    """Ranges that show all points and every ridge, to whole and half decades outwards."""
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


def roofline_chart(points: Columns, ceilings: Columns, span: Span, palette: Palette, height_px: int = 380) -> hv.Overlay:
    """Three layers, in this order: ceilings, their labels, points. Their sources take new columns of the same names."""
    labels = label_columns(ceilings)
    point_hover = HoverTool(
        tooltips=[
            ("", "@label"),
            ("Achieved", "@achieved · @achieved_bytes"),
            ("Attainable", "@attainable"),
            ("Efficiency", "@efficiency (@bound)"),
            ("Intensity", "@intensity_text"),
            ("Time", "@duration"),
            ("Work", "@flop · @bytes, @work_source"),
            ("Kind", "@category · @dtype"),
            ("Result", "@verification"),
            ("Ceilings", "@memory_level · @ceiling_source"),
            ("Run", "@run"),
        ]
    )
    ceiling_hover = HoverTool(
        tooltips=[("Ceiling", "@name"), ("Value", "@value"), ("Source", "@source"), ("", "@note")], line_policy="interp"
    )
    lines = hv.Segments(ceilings, ["x0", "y0", "x1", "y1"], ["line_width", *CEILING_TEXTS]).opts(
        color="color", line_dash="line_dash", line_width="line_width", tools=[ceiling_hover]
    )
    names = hv.Labels(labels, ["x", "y"], ["text", "text_align", "text_baseline"]).opts(
        text_color=palette.muted, text_font_size="8pt", text_align="text_align", text_baseline="text_baseline", padding=0
    )
    marks = hv.Points(points, ["intensity", "rate"], [*POINT_TEXTS, "fill_alpha", "size"]).opts(
        color="color", marker="marker", fill_alpha="fill_alpha", size="size", line_width=1.5, tools=[point_hover]
    )
    return hv.Overlay([lines, names, marks]).opts(
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


def _extremes(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return (float(values.min()), float(values.max())) if len(values) else ()


def _line(row: CeilingRow, start: tuple[float, float], end: tuple[float, float], palette: Palette) -> dict[str, Any]:
    is_memory = row["unit"] == "bytes_per_s"
    return {
        "x0": start[0],
        "y0": start[1],
        "x1": end[0],
        "y1": end[1],
        "line_width": 2.0 if row["is_preferred"] else 1.2,
        "color": palette.muted,
        "line_dash": "dashed" if not row["is_preferred"] else "dotted" if row["ceiling_name"] == "l2" else "solid",
        "name": MEMORY_LEVELS[row["ceiling_name"]] if is_memory else f"{row['ceiling_name']}{' tensor' if row['path'] == 'tensor' else ''}",
        "value": theme.byte_rate(row["value"]) if is_memory else theme.flop_rate(row["value"]),
        "source": row["source"] + (f" ({row['confidence']} confidence)" if row["confidence"] else ""),
        "note": row["note"] or "",
    }


def _duration(median_ns: float | None, mean_ns: float | None, launch_count: int | None) -> str:
    if median_ns is not None or mean_ns is None:
        return f"{theme.duration(median_ns)} median"
    return f"{theme.duration(mean_ns)} mean" + (f" of {theme.count(launch_count)} launches" if launch_count is not None else "")


def _bound(value: str | None) -> str:
    return f"{value}-bound" if value else "bound not known"


def _outwards(value: float, up: bool = False) -> float:
    """The next half decade: 10^(n/2)."""
    exponent = math.log10(value) * 2
    return float(10 ** ((math.ceil(exponent) if up else math.floor(exponent)) / 2))
