"""Samples of one configuration, or launches of one kernel: in the order they were taken, and how they are distributed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.core.statistics import MedianInterval, median_interval
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.theme import Palette

FENCE_RATIO: Final = 1.5
"""Interquartile ranges beyond the quartiles from which on a sample is an outlier, after Tukey, Exploratory Data Analysis, 1977."""

MAX_BINS: Final = 60
MAX_STEPS: Final = 2_000
"""Of the cumulative line: more are finer than a screen's pixels."""

KEPT, OUTLIER, DISCARDED = "kept", "outlier", "discarded"
MARKERS: Final = {KEPT: "circle", OUTLIER: "triangle", DISCARDED: "x"}
SYMBOLS: Final = {KEPT: "●", OUTLIER: "▲", DISCARDED: "✕"}
SAMPLE_NUMBERS: Final = ("sample", "duration")
SAMPLE_TEXTS: Final = ("color", "marker", "kind", "figure", "clock")
BIN_NUMBERS: Final = ("left", "bottom", "right", "top")
BIN_TEXTS: Final = ("text",)
PERCENT_TICKS: Final = "return Math.round(tick * 100) + ' %'"
STEP_NUMBERS: Final = ("duration", "share")
LINE_NUMBERS: Final = ("x0", "y0", "x1", "y1")
BOX_NUMBERS: Final = ("left", "bottom", "right", "top")
CLOCK_NUMBERS: Final = ("sample", "clock")
CLOCK_TEXTS: Final = ("figure",)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Columns of every layer. span_ns: of the distribution's axis, which leaves out the outliers beyond it."""

    samples: Columns
    bins: Columns
    steps: Columns
    clocks: Columns
    interval: MedianInterval | None
    counts: dict[str, int]  # by kind
    span_ns: tuple[float, float]
    beyond_count: int

    def samples_without(self, kinds: Collection[str]) -> Columns:
        is_shown = ~np.isin(self.samples["kind"], list(kinds))
        return {name: column[is_shown] for name, column in self.samples.items()}


def kinds_of(durations_ns: npt.NDArray[np.float64], is_discarded: npt.NDArray[np.bool_]) -> npt.NDArray[np.str_]:
    """What each sample is: discarded, an outlier of those that were kept, or just kept."""
    kinds = np.full(len(durations_ns), KEPT, dtype="<U9")
    kept = durations_ns[~is_discarded]
    if len(kept) >= 4:
        lower, upper = np.percentile(kept, (25, 75))
        reach = FENCE_RATIO * (upper - lower)
        kinds[(durations_ns < lower - reach) | (durations_ns > upper + reach)] = OUTLIER
    kinds[is_discarded] = DISCARDED
    return kinds


def distribution(
    samples: pl.DataFrame, palette: Palette, interval: MedianInterval | None = None, hidden: Collection[str] = ()
) -> Distribution:
    """Everything that both charts draw.

    Args:
        samples: sample_index, duration_ns, sm_clock_hz and is_discarded, in order; at least one row.
        interval: of the median, as measured; None: worked out here of the samples that were kept.
        hidden: kinds that shares are not of; the median and the counts stay those of all.
    """
    durations = samples["duration_ns"].cast(pl.Float64).to_numpy()
    is_discarded = samples["is_discarded"].fill_null(False).to_numpy()
    kinds = kinds_of(durations, is_discarded)
    kept = durations[~is_discarded]
    usual = durations[kinds == KEPT]
    shown = durations[~is_discarded & ~np.isin(kinds, list(hidden))]
    span = _span(usual if len(usual) else durations)
    clocks = samples["sm_clock_hz"].cast(pl.Float64).to_numpy()
    return Distribution(
        samples=_sample_columns(samples["sample_index"].cast(pl.Float64).to_numpy(), durations, kinds, clocks, palette),
        bins=_bin_columns(shown, span),
        steps=_step_columns(shown),
        clocks=_clock_columns(samples["sample_index"].cast(pl.Float64).to_numpy(), clocks),
        interval=interval or (median_interval(kept) if len(kept) > 1 else None),
        counts={kind: int((kinds == kind).sum()) for kind in MARKERS},
        span_ns=span,
        beyond_count=int(((shown < span[0]) | (shown > span[1])).sum()),
    )


def kind_colors(palette: Palette) -> dict[str, str]:
    return {KEPT: palette.series[0], OUTLIER: palette.series[1], DISCARDED: palette.bad}


def median_columns(interval: MedianInterval | None, *, is_upright: bool, start: float, end: float) -> tuple[Columns, Columns]:
    """Line of the median and box of its interval, from start to end of the other axis. is_upright: durations are on the x axis."""
    if interval is None:
        return empty_columns(LINE_NUMBERS), empty_columns(BOX_NUMBERS)
    line = (interval.median, start, interval.median, end) if is_upright else (start, interval.median, end, interval.median)
    box = (interval.low, start, interval.high, end) if is_upright else (start, interval.low, end, interval.high)
    return (
        {name: np.array([value]) for name, value in zip(LINE_NUMBERS, line, strict=True)},
        {name: np.array([value]) for name, value in zip(BOX_NUMBERS, box, strict=True)},
    )


def order_chart(samples: Columns, line: Columns, box: Columns, palette: Palette, height_px: int = 280) -> hv.Overlay:
    """Three layers: interval, median, samples in the order they were taken."""
    hover = HoverTool(tooltips=[("Sample", "@sample"), ("Duration", "@figure"), ("", "@kind"), ("SM clock", "@clock")])
    dots = hv.Points(samples, list(SAMPLE_NUMBERS), list(SAMPLE_TEXTS)).opts(
        color="color", marker="marker", size=6, alpha=0.7, tools=[hover]
    )
    return _chart([*_median_layers(line, box, palette), dots], "Sample, in order", "Duration of one launch", palette, height_px).opts(
        hv.opts.Overlay(
            logy=True, ylim=(1.0, 10.0), yformatter=tick_formatter(theme.DURATION_TICKS), xformatter=tick_formatter(theme.PLAIN_TICKS)
        )
    )


def distribution_chart(bins: Columns, steps: Columns, line: Columns, box: Columns, palette: Palette, height_px: int = 280) -> hv.Overlay:
    """Four layers: histogram, interval, median, cumulative share. Both shares have one axis."""
    bars = hv.Rectangles(bins, list(BIN_NUMBERS), list(BIN_TEXTS)).opts(
        color=palette.series[0], alpha=0.45, line_color=None, tools=[HoverTool(tooltips="@text")]
    )
    cumulative = hv.Curve(steps, "duration", "share").opts(color=palette.series[1], line_width=2, interpolation="linear")
    layers = [bars, *_median_layers(line, box, palette), cumulative]
    return _chart(layers, "Duration of one launch", "Share of samples", palette, height_px).opts(
        hv.opts.Overlay(
            ylim=(0, 1.02),
            xformatter=tick_formatter(theme.DURATION_TICKS),
            yformatter=tick_formatter(PERCENT_TICKS),
        )
    )


def clock_chart(clocks: Columns, palette: Palette, height_px: int = 150) -> hv.Overlay:
    dots = hv.Points(clocks, list(CLOCK_NUMBERS), list(CLOCK_TEXTS)).opts(
        color=palette.series[2], marker="square", size=4, tools=[HoverTool(tooltips=[("Sample", "@sample"), ("SM clock", "@figure")])]
    )
    return _chart([dots], "Sample, in order", "SM clock (Hz)", palette, height_px).opts(
        hv.opts.Overlay(yformatter=tick_formatter(theme.SI_TICKS), xformatter=tick_formatter(theme.PLAIN_TICKS))
    )


def no_samples() -> Columns:
    return empty_columns(SAMPLE_NUMBERS, SAMPLE_TEXTS)


def no_bins() -> Columns:
    return empty_columns(BIN_NUMBERS, BIN_TEXTS)


def no_steps() -> Columns:
    return empty_columns(STEP_NUMBERS)


def no_clocks() -> Columns:
    return empty_columns(CLOCK_NUMBERS, CLOCK_TEXTS)


def _median_layers(line: Columns, box: Columns, palette: Palette) -> list[Any]:
    return [
        hv.Rectangles(box, list(BOX_NUMBERS)).opts(color=palette.text, alpha=0.2, line_alpha=0),
        hv.Segments(line, list(LINE_NUMBERS)).opts(color=palette.text, line_width=2),
    ]


def _chart(layers: list[Any], xlabel: str, ylabel: str, palette: Palette, height_px: int) -> hv.Overlay:
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel, **frame_options(palette, height_px))
    )


def _span(durations_ns: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(durations_ns.min()), float(durations_ns.max())
    margin = (high - low) * 0.04 or max(high * 0.01, 1.0)
    return max(0.0, low - margin), high + margin


def _sample_columns(
    index: npt.NDArray[np.float64],
    durations: npt.NDArray[np.float64],
    kinds: npt.NDArray[np.str_],
    clocks: npt.NDArray[np.float64],
    palette: Palette,
) -> Columns:
    colors = kind_colors(palette)
    return {
        "sample": index,
        "duration": durations,
        "color": np.array([colors[kind] for kind in kinds.tolist()]),
        "marker": np.array([MARKERS[kind] for kind in kinds.tolist()]),
        "kind": kinds,
        "figure": np.array([theme.duration(value) for value in durations.tolist()]),
        "clock": np.array([theme.frequency(value) for value in clocks.tolist()]),
    }


def _bin_columns(kept: npt.NDArray[np.float64], span: tuple[float, float]) -> Columns:
    """Shares of all samples that were kept; those beyond the span are in none."""
    inside = kept[(kept >= span[0]) & (kept <= span[1])]
    if not len(inside):
        return no_bins()
    count = min(MAX_BINS, len(np.histogram_bin_edges(inside, "fd")) - 1) if len(inside) > 1 else 1
    counts, edges = np.histogram(inside, bins=max(1, count), range=span)
    texts = [
        f"{theme.duration(low)} to {theme.duration(high)}: {theme.count(found)} samples, {theme.percent(found / len(kept))}"
        for low, high, found in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]
    return {
        "left": edges[:-1],
        "bottom": np.zeros(len(counts)),
        "right": edges[1:],
        "top": counts / len(kept),
        "text": np.array(texts),
    }


def _step_columns(kept: npt.NDArray[np.float64]) -> Columns:
    """The empirical distribution function, thinned."""
    ordered = np.sort(kept)
    shares = np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    if len(ordered) > MAX_STEPS:
        places = np.unique(np.linspace(0, len(ordered) - 1, MAX_STEPS).astype(int))
        ordered, shares = ordered[places], shares[places]
    return {"duration": ordered, "share": shares}


def _clock_columns(index: npt.NDArray[np.float64], clocks: npt.NDArray[np.float64]) -> Columns:
    known = ~np.isnan(clocks)
    return {
        "sample": index[known],
        "clock": clocks[known],
        "figure": text_column(theme.frequency(value) for value in clocks[known].tolist()),
    }
