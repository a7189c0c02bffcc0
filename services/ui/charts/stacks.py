"""Bars that lie: one for each name, of one stretch or of several beside each other. Long names have room on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import holoviews as hv
from bokeh.models import HoverTool

from kernalyse.services.ui.charts.elements import frame_options, tick_formatter
from kernalyse.services.ui.charts.names import elided
from kernalyse.services.ui.theme import Palette, Ticks

BAR_HEIGHT: Final = 0.7  # of the distance between two names
ROW_PX: Final = 24
AXIS_PX: Final = 70


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of one bar. text: what hovering over it says."""

    value: float
    color: str
    text: str


def stacked_bars(names: Sequence[str], stacks: Sequence[Sequence[Stretch]], label: str, palette: Palette, ticks: Ticks) -> hv.Overlay:
    """The first name on top.

    Args:
        stacks: stretches for every name, from the left; those without length are left out.
        label: of the axis.
    """
    rectangles = []
    longest = 0.0
    for place, stack in enumerate(stacks):
        y, end = len(names) - 1 - place, 0.0
        for stretch in stack:
            if stretch.value > 0:
                start, end = end, end + stretch.value
                rectangles.append((start, y - BAR_HEIGHT / 2, end, y + BAR_HEIGHT / 2, stretch.color, stretch.text))
        longest = max(longest, end)
    bars = hv.Rectangles(rectangles, vdims=["color", "text"]).opts(
        color="color", line_color=palette.surface, line_width=0.5, tools=[HoverTool(tooltips="@text")]
    )
    return hv.Overlay([bars]).opts(
        hv.opts.Overlay(
            **frame_options(palette, AXIS_PX + ROW_PX * max(2, len(names))),
            yticks=[(len(names) - 1 - place, elided(name)) for place, name in enumerate(names)],
            xlim=(0, longest * 1.04 or 1.0),
            ylim=(-0.6, max(1, len(names)) - 0.4),
            xlabel=label,
            ylabel="",
            xformatter=tick_formatter(ticks),
        )
    )
