"""How the figures look: one place for colours, shapes, axes and the words on an empty figure.

Figures are made without pyplot, so they need no display and leave no state behind.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from services.ui.theme import LIGHT, digits

MARKERS: Final = ("o", "s", "^", "D", "v", "h", "*")
"""A shape beside each colour of the palette, which is told apart with every common colour vision: neither stands alone."""

BAND_ALPHA: Final = 0.18  # of shaded intervals: two on top of each other still show the lines
LOG_SPAN: Final = 8.0  # from here on a linear axis presses the small values together
MAX_TICK_COUNT: Final = 12  # more values than that get ticks of their own choice, or labels would touch
WRAP_WIDTH: Final = 58
CHARACTERS_PER_INCH: Final = 13.5  # of the note, in its size
TITLE_INCHES: Final = 0.5  # that the title takes from the top of a figure, its margin included
NOTE_LINE_INCHES: Final = 0.2
MARGIN_INCHES: Final = 0.15


def new_figure(width_inches: float, height_inches: float, title: str, note: str) -> Figure:
    """note: smaller, under the title: what is held still, how it was measured, on which device."""
    lines = textwrap.wrap(note, int(width_inches * CHARACTERS_PER_INCH))
    head_inches = TITLE_INCHES + NOTE_LINE_INCHES * len(lines)
    figure = Figure(figsize=(width_inches, height_inches), facecolor=LIGHT.surface)
    figure.set_layout_engine("constrained", rect=(0.01, 0.01, 0.98, 0.99 - head_inches / height_inches), w_pad=0.1, h_pad=0.08)
    left = MARGIN_INCHES / width_inches
    figure.text(left, 1 - MARGIN_INCHES / height_inches, title, fontsize=14, fontweight="bold", color=LIGHT.text, va="top")
    note_top = 1 - (TITLE_INCHES - 0.02) / height_inches
    figure.text(left, note_top, "\n".join(lines), fontsize=9.5, color=LIGHT.muted, va="top", linespacing=1.35)
    return figure


def color(index: int) -> str:
    return LIGHT.series[index % len(LIGHT.series)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def style_axes(axes: Axes) -> None:
    axes.set_facecolor(LIGHT.surface)
    axes.grid(visible=True, color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=LIGHT.muted, labelsize=9.5, length=3)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LIGHT.grid)
    axes.xaxis.label.set_color(LIGHT.text)
    axes.yaxis.label.set_color(LIGHT.text)


def scale_sizes(axes: Axes, values: Sequence[int]) -> None:
    """An x axis for sizes: logarithmic where they are powers of two or far apart, with a tick at each."""
    if is_logarithmic(values):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    if len(values) <= MAX_TICK_COUNT:
        axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def is_logarithmic(values: Sequence[int]) -> bool:
    are_powers = all(value > 0 and value & (value - 1) == 0 for value in values)
    return len(values) > 1 and min(values) > 0 and (are_powers or max(values) / min(values) >= LOG_SPAN)


def scale_quantity(axes: Axes, values: Sequence[float]) -> None:
    """A y axis for positive quantities: logarithmic where they are far apart, else from zero."""
    if min(values) > 0 and max(values) / min(values) >= LOG_SPAN:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, max(values) * 1.08)


def explain(axes: Axes, text: str) -> None:
    """Words in place of a chart that has nothing to show."""
    axes.clear()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(LIGHT.grid)
    axes.set_facecolor("#f6f8fa")
    wrapped = "\n".join(textwrap.wrap(text, WRAP_WIDTH))
    axes.text(0.5, 0.5, wrapped, transform=axes.transAxes, ha="center", va="center", color=LIGHT.muted, fontsize=10.5, linespacing=1.5)


def three_digits(value: float) -> str:
    return digits(value) if math.isfinite(value) else ""


def legend_beside(axes: Axes, bands: Sequence[str]) -> None:
    """Outside, where it covers no line. bands: labels of shaded areas, which are named once for all colours."""
    axes.legend(handles=_handles(axes, bands), loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=LIGHT.text)


def legend_inside(axes: Axes, bands: Sequence[str]) -> None:
    axes.legend(handles=_handles(axes, bands), frameon=False, fontsize=9.5, labelcolor=LIGHT.text)


def _handles(axes: Axes, bands: Sequence[str]) -> list[Artist]:
    lines, _ = axes.get_legend_handles_labels()
    return [*lines, *(Patch(color=LIGHT.muted, alpha=BAND_ALPHA, linewidth=0, label=band) for band in bands)]
