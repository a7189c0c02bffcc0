"""What all charts share: HoloViews elements from columns, how they look, and names that have room in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import holoviews as hv
import holoviews.plotting.bokeh  # registers the backend that the options below belong to
import numpy as np
import numpy.typing as npt
from bokeh.models import CustomJSTickFormatter
from bokeh.themes import Theme

from kernalyse.services.ui.theme import Palette, Ticks

MAX_NAME_LENGTH: Final = 40
FLAT_LENGTH: Final = 40
"""Letters side by side below a chart on a phone. Slanted names take a third of the chart, flat ones without room lie on each other."""

OUTSIDE: Final = "(outside of every layer)"
"""What kernels count for that no layer has launched."""


def lie_flat(names: Collection[str], room: int = FLAT_LENGTH) -> bool:
    """Whether names fit beside each other below an axis, in one line and not slanted. room: in letters."""
    return len(names) * max(map(len, names), default=0) <= room


def elided(name: str, length: int = MAX_NAME_LENGTH) -> str:
    """Both ends of a long name: templates begin alike."""
    line = plain(name)
    return line if len(line) <= length else f"{line[: length // 2]}…{line[1 - (length - length // 2) :]}"


def elided_apart(names: Sequence[str], length: int = MAX_NAME_LENGTH) -> list[str]:
    """Long names of one axis: their ends alone, parameters and variants, where both ends would make different ones alike."""
    both_ends = [elided(name, length) for name in names]
    if len(set(both_ends)) == len(set(names)):
        return both_ends
    return [line if len(line) <= length else f"…{line[1 - length :]}" for line in map(plain, names)]


def plain(text: str) -> str:
    """On one line, and without control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)


hv.Store.set_current_backend("bokeh")
# The canvas draws 20 000 points in a few milliseconds; WebGL contexts are few, and slow where the browser emulates them.
hv.renderer("bokeh").webgl = False

Columns = dict[str, npt.NDArray[Any]]
"""Columns of one Bokeh source: NumPy arrays of one length. Live sources take these, never frames."""


_printed_ticks: dict[str, Callable[[float], str]] = {}


def tick_formatter(ticks: Ticks | str) -> CustomJSTickFormatter:
    """For the browser, with the unit as its tag; `printed_ticks` knows it again, unless only code is given."""
    if isinstance(ticks, str):
        return CustomJSTickFormatter(code=ticks)
    _printed_ticks[ticks.code] = ticks.text
    return CustomJSTickFormatter(code=ticks.code, tags=[ticks.unit])


def printed_ticks(formatter: object) -> Callable[[float], str] | None:
    """The same figures without a browser. None: that is no formatter of `tick_formatter`."""
    return _printed_ticks.get(formatter.code) if isinstance(formatter, CustomJSTickFormatter) else None


def empty_columns(numbers: tuple[str, ...], texts: tuple[str, ...] = ()) -> Columns:
    """No rows, of the right types: what a chart starts with."""
    columns: Columns = {name: np.empty(0, dtype=np.float64) for name in numbers}
    columns.update({name: text_column(()) for name in texts})
    return columns


def text_column(texts: Iterable[str]) -> npt.NDArray[np.object_]:
    """References, which the tabs that show the same rows share: an array of letters is as wide as its longest text, in each tab."""
    return np.array([*texts], dtype=np.object_)


def columns_of(rows: Sequence[tuple[Any, ...]], numbers: tuple[str, ...], texts: tuple[str, ...] = ()) -> Columns:
    """rows: of values, numbers first, in the order of the names."""
    if not rows:
        return empty_columns(numbers, texts)
    values = dict(zip((*numbers, *texts), zip(*rows, strict=True), strict=True))
    return {name: np.array(column, dtype=np.float64) if name in numbers else text_column(column) for name, column in values.items()}


def frame_options(palette: Palette, height_px: int) -> dict[str, Any]:
    """Size and lines of every chart; it fills its card's width."""
    return {
        "responsive": True,
        "min_height": height_px,
        "height": height_px,
        "fontscale": 1.0,
        "show_legend": False,
        "toolbar": "above",
        "bgcolor": palette.surface,
        "gridstyle": {"grid_line_color": palette.grid, "minor_grid_line_color": None},
        "show_grid": True,
    }


@dataclass(frozen=True, slots=True)
class Hatched:
    """Hook of a layer whose bars have a pattern: HoloViews has no option for that. pattern: by Bokeh's and Matplotlib's sign for it."""

    pattern: str
    color: str

    def __call__(self, plot: Any, _element: Any) -> None:
        glyph = plot.handles["glyph"]
        glyph.update(hatch_pattern=self.pattern, hatch_color=self.color, hatch_alpha=0.5, hatch_scale=7.0, hatch_weight=0.8)


def chosen_style(palette: Palette) -> dict[str, Any]:
    """Of marks that a click chooses: the chosen one has an outline, the others stay as they are."""
    return {
        "line_color": None,
        "selection_line_color": palette.text,
        "selection_line_width": 3,
        "nonselection_alpha": 1.0,
        "nonselection_line_color": None,
    }


@cache
def bokeh_theme(palette: Palette) -> Theme:
    """What the elements' own options leave open."""
    font = "system-ui, sans-serif"
    attributes = {
        "attrs": {
            "Plot": {
                "background_fill_color": palette.surface,
                "border_fill_color": palette.surface,
                "outline_line_color": None,
                "min_border_right": 12,
            },
            "Axis": {
                "axis_line_color": palette.muted,
                "axis_label_text_color": palette.muted,
                "axis_label_text_font": font,
                "axis_label_text_font_style": "normal",
                "major_label_text_color": palette.muted,
                "major_label_text_font": font,
                "major_tick_line_color": palette.muted,
                "minor_tick_line_color": None,
            },
            "Grid": {"grid_line_color": palette.grid},
            "Toolbar": {"logo": None, "autohide": True},
        }
    }
    return Theme(json=attributes)


def ramp(start: str, end: str, step_count: int = 64) -> list[str]:
    """Colours from one to the other, the end not quite reached so that text stays readable on it."""
    first, last = (tuple(int(color[place : place + 2], 16) for place in (1, 3, 5)) for color in (start, end))
    shares = [0.75 * step / (step_count - 1) for step in range(step_count)]
    return ["#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(first, last, strict=True)) for share in shares]
