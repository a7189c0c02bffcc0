"""The elements of all charts as Matplotlib draws them: their options for Bokeh, in its words.

A chart function builds its element once, with options for the browser. What is drawn without one takes the same element
from here, so no chart says twice how it looks. Needs HoloViews' Matplotlib backend, which takes a second to load.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import holoviews as hv
import holoviews.plotting.mpl  # registers the backend
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from kernalyse.services.ui.charts.elements import Hatched, elided, lie_flat, printed_ticks
from kernalyse.services.ui.theme import LIGHT, SI_TICKS

hv.Store.set_current_backend("bokeh")  # that of options which name none; loading the other one has changed it

FONT_PT: Final = 8.5
SMALL_FONT_PT: Final = 8.0
"""The smallest that a printed page is read with."""

PX_PER_PT: Final = 96 / 72
MAX_NAME_LENGTH: Final = 44
"""Of text within a chart: more is wider than its place. Tables have whole names."""

MAX_SLANTED_LENGTH: Final = 24  # of names under a chart, which take its height

MAX_TWO_LINE_COUNT: Final = 16
"""Of slanted names beside each other: two lines of more of them would lie on each other."""

MARKERS: Final[Mapping[str, str]] = {
    "circle": "o",
    "circle_x": "o",
    "square": "s",
    "square_x": "s",
    "triangle": "^",
    "inverted_triangle": "v",
    "diamond": "D",
    "diamond_cross": "D",
    "hex": "h",
    "star": "*",
    "star_dot": "*",
    "asterisk": (6, 2, 0),  # type: ignore[dict-item]
    "cross": "+",
    "plus": "P",
    "x": "x",
    "dash": "_",
}
"""Of Bokeh, as Matplotlib calls them."""

DASHES: Final[Mapping[str, str]] = {"solid": "-", "dashed": "--", "dotted": ":", "dotdash": "-.", "dashdot": "-."}
BASELINES: Final[Mapping[str, str]] = {"top": "top", "bottom": "bottom", "middle": "center", "alphabetic": "baseline"}

FEW_DECADES: Final = 10**2.5
"""Of an axis, as a ratio: powers of ten alone would leave it one or two figures."""

TEXT_OFFSET_PT: Final = 2.0
HATCH_DENSITY: Final = 3  # of Matplotlib's patterns; sparser ones do not show in rows of a sixth of an inch
GRID_ZORDER: Final = 3
"""What is measured lies over the grid, which Matplotlib draws at 2.5."""

Style = dict[str, Any]


def draw(figure: Figure, element: Any, place: tuple[float, float, float, float] = (0, 0, 1, 1)) -> Axes:
    """Draws the chart into a figure, beside what is there.

    Args:
        element: of a chart function.
        place: of the chart with all its labels in the figure, shares: left, bottom, right, top.
    """
    overlay = element if isinstance(element, hv.Overlay) else hv.Overlay([element])
    frame = _frame(overlay, element)
    layers = [layer for part in overlay for layer in _printed(part)]
    printed = hv.Overlay(layers or [hv.Curve([])]).opts(
        hv.opts.Overlay(
            backend="matplotlib",
            show_legend=False,
            show_grid=False,
            sublabel_format="",
            **{name: frame[name] for name in ("logx", "logy", "xlim", "ylim", "invert_yaxis", "invert_axes") if name in frame},
        )
    )
    grid = GridSpec(1, 1, figure=figure)
    axes: Axes = figure.add_subplot(grid[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty layers, limits that are the same, other charts in the figure
        hv.renderer("matplotlib").get_plot(printed, fig=figure, axis=axes)
        _dress(axes, frame)
        if "colorbar_opts" in frame:
            _add_color_bar(figure, axes, frame["colorbar_opts"])
        _place(figure, grid, place)
    return axes


# ---------------------------------------------------------------- axes


def _place(figure: Figure, grid: GridSpec, place: tuple[float, float, float, float]) -> None:
    """As large as leaves room for all labels. Matplotlib moves axes by itself only in figures that it manages."""
    grid.tight_layout(figure, pad=0.4, rect=place)
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        if spec is not None and spec.get_topmost_subplotspec().get_gridspec() is grid:
            axes.set_position(spec.get_position(figure))


def _frame(overlay: hv.Overlay, element: Any) -> Style:
    """Options of the axes: those of the layers, and over them the chart's own."""
    found: Style = {}
    for part in (*overlay, element):
        found |= _options(part, "plot")
    return found


def _dress(axes: Axes, frame: Style) -> None:
    """Axes, grid and names in the colours and sizes of a document."""
    axes.set_title("")
    axes.set_aspect("auto")
    for artist in (*axes.collections, *axes.lines, *axes.texts, *axes.images, *axes.patches):
        artist.set_zorder(artist.get_zorder() + GRID_ZORDER)
    for named in axes.texts:
        # A name above a line or below it does not stand on it.
        up_pt = {"bottom": TEXT_OFFSET_PT, "top": -TEXT_OFFSET_PT}.get(named.get_verticalalignment(), 0.0)
        named.set_transform(named.get_transform() + ScaledTranslation(0, up_pt / 72, axes.figure.dpi_scale_trans))
    axes.set_facecolor(LIGHT.surface)
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        if frame.get("show_grid", True) and frame.get("gridstyle", {}).get(f"{name}grid_line_color", LIGHT.grid):
            axis.grid(visible=True, color=LIGHT.grid, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LIGHT.muted)
    if frame.get("yaxis", "left") is None:
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
    rotation = _rotation(frame)
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        axis.set_label_text(str(frame.get(f"{name}label", "")), color=LIGHT.muted, fontsize=FONT_PT)
        axis.set_tick_params(which="both", colors=LIGHT.muted, labelsize=SMALL_FONT_PT)
        axis.set_minor_formatter(NullFormatter())
        text = printed_ticks(frame.get(f"{name}formatter")) or SI_TICKS.text
        axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
        _place_ticks(axis, frame.get(f"{name}ticks"), MAX_NAME_LENGTH if name == "y" or not rotation else MAX_SLANTED_LENGTH)
    if rotation:
        for label in axes.get_xticklabels():
            label.set(rotation=rotation, ha="right", rotation_mode="anchor")


def _rotation(frame: Style) -> int:
    """Of the names below the chart, in degrees."""
    ticks = frame.get("xticks")
    names = [str(tick[1]) for tick in ticks if isinstance(tick, tuple)] if isinstance(ticks, list) else []
    return 0 if lie_flat(names) else frame.get("xrotation") or 0


def _add_color_bar(figure: Figure, axes: Axes, wanted: Style) -> None:
    """wanted: what the browser's is made with."""
    shaded = next((artist for artist in axes.collections if artist.get_array() is not None), None)
    if shaded is None:
        return
    names = wanted.get("major_label_overrides") or {}
    bar = figure.colorbar(shaded, ax=axes, fraction=0.04, pad=0.02, ticks=list(names) or None)
    bar.outline.set_visible(False)
    bar.set_label(wanted.get("title", ""), color=LIGHT.muted, fontsize=FONT_PT)
    bar.ax.tick_params(colors=LIGHT.muted, labelsize=SMALL_FONT_PT)
    if names:
        bar.set_ticklabels(list(names.values()))


def _place_ticks(axis: Any, wanted: Any, length: int) -> None:
    """wanted: values, pairs of value and name, or how many there should be at most."""
    if isinstance(wanted, int):
        axis.get_major_locator().set_params(nbins=wanted)
    elif isinstance(wanted, list) and wanted and isinstance(wanted[0], tuple):
        axis.set_major_locator(FixedLocator([value for value, _ in wanted]))
        fit = elided if length == MAX_SLANTED_LENGTH and len(wanted) > MAX_TWO_LINE_COUNT else _lines
        axis.set_ticklabels([fit(str(name), length) for _, name in wanted])
    elif isinstance(wanted, list) and wanted:
        axis.set_major_locator(FixedLocator(wanted))
    elif axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        if high < low * FEW_DECADES:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _lines(text: str, length: int) -> str:
    return "\n".join(elided(line, length) for line in text.splitlines())


# ---------------------------------------------------------------- layers


def _printed(element: Any) -> Iterator[Any]:
    """The element with options for Matplotlib; several where those are of its rows and Matplotlib takes one of each."""
    style, plot = _options(element, "style"), _options(element, "plot")
    kind = type(element).__name__
    translate = TRANSLATIONS.get(kind)
    if translate is None:
        yield element
        return
    of_rows = [name for name in ONE_EACH if isinstance(style.get(name), str) and style[name] in element]
    for part, values in _parts(element, {name: style[name] for name in of_rows}):
        if not len(part):
            continue
        if kind == "Labels":
            part = _with_short_names(part)  # noqa: PLW2901
        options = translate(style | values, part) | {name: plot[name] for name in ("clim",) if name in plot and "cmap" in style}
        options |= _pattern(plot)
        yield part.opts(getattr(hv.opts, kind)(backend="matplotlib", **options))


ONE_EACH: Final = ("marker", "line_dash", "text_align", "text_baseline", "text_color", "fill_alpha", "alpha")
"""Options that Matplotlib takes for a whole layer only."""


def _parts(element: Any, columns: Mapping[str, str]) -> Iterator[tuple[Any, Style]]:
    """The rows that agree in these columns, with their values by option."""
    if not columns:
        yield element.clone(), {}
        return
    rows = {dimension.name: np.asarray(element.dimension_values(dimension)) for dimension in element.dimensions()}
    choices = [list(dict.fromkeys(rows[column].tolist())) for column in columns.values()]
    for values in itertools.product(*choices):
        kept = np.logical_and.reduce([rows[column] == value for column, value in zip(columns.values(), values, strict=True)])
        if kept.any():
            yield element.clone({name: column[kept] for name, column in rows.items()}), dict(zip(columns, values, strict=True))


def _with_short_names(labels: Any) -> Any:
    rows = {dimension.name: np.asarray(labels.dimension_values(dimension)) for dimension in labels.dimensions()}
    name = labels.vdims[0].name
    return labels.clone(rows | {name: np.array([elided(str(text), MAX_NAME_LENGTH) for text in rows[name]])})


def _options(element: Any, group: str) -> Style:
    return dict(hv.Store.lookup_options("bokeh", element, group).kwargs)


def _points(style: Style, element: Any) -> Style:
    size = style.get("size", 6)
    is_named = isinstance(size, str)
    # Bokeh measures points across in pixels, Matplotlib by their area in square points.
    area = (hv.dim(size) / PX_PER_PT) ** 2 if is_named else (float(size) / PX_PER_PT) ** 2
    color = style.get("color", LIGHT.accent)
    marker = MARKERS.get(style.get("marker", "circle"), "o")
    is_hollow = style.get("fill_alpha") == 0
    is_line = marker in ("+", "x", "_") or not isinstance(marker, str)
    edge = {} if style.get("line_alpha") == 0 or is_line else {"edgecolors": color}
    shown: Style = {"facecolors": "none"} if is_hollow and not is_line else {"color": color}
    alpha = style.get("alpha", style.get("fill_alpha", 1.0))
    width = 1.4 if is_line else 1.0 if edge else 0.0
    return {**shown, **edge, "s": area, "marker": marker, "alpha": 1.0 if is_hollow else alpha, "linewidth": width}


def _line(style: Style, element: Any) -> Style:
    color = style.get("line_color") or style.get("color") or LIGHT.accent
    width = style.get("line_width", 1.5)
    dash = DASHES.get(style.get("line_dash", "solid"), "-")
    return {"color": color, "linewidth": width, "linestyle": dash, "alpha": style.get("alpha", 1.0)}


def _area(style: Style, element: Any) -> Style:
    color = style.get("fill_color") or style.get("color") or LIGHT.accent
    edge = style.get("line_color", color) if style.get("line_alpha", 1) and style.get("line_width", 1) else None
    found: Style = {"facecolor": color, "edgecolor": edge or "none", "linewidth": 0.6 if edge else 0.0}
    if color in element and np.asarray(element.dimension_values(color)).dtype.kind in "iuf":
        # A figure, shown by a colour map.
        found = {"color": color, "edgecolor": edge or "none", "linewidth": 0.6 if edge else 0.0, "cmap": _colors(style)}
    return found | {"alpha": style.get("alpha", style.get("fill_alpha", 1.0))}


def _pattern(plot: Style) -> Style:
    """Of a layer that consists of a pattern alone, which has the colour of edges here."""
    hatched = next((hook for hook in plot.get("hooks", ()) if isinstance(hook, Hatched)), None)
    return (
        {} if hatched is None else {"facecolor": "none", "edgecolor": hatched.color, "hatch": hatched.pattern * HATCH_DENSITY, "alpha": 0.5}
    )


def _text(style: Style, element: Any) -> Style:
    return {
        "color": style.get("text_color", LIGHT.text),
        "size": SMALL_FONT_PT,
        "horizontalalignment": style.get("text_align", "center"),
        "verticalalignment": BASELINES.get(style.get("text_baseline", "middle"), "center"),
    }


def _whiskers(style: Style, element: Any) -> Style:
    return {"edgecolor": style.get("line_color", LIGHT.text), "elinewidth": style.get("line_width", 1.2), "capsize": 3}


def _raster(style: Style, element: Any) -> Style:
    return {"cmap": _colors(style)}


def _colors(style: Style) -> Any:
    colors = style.get("cmap", "viridis")
    return ListedColormap(colors) if isinstance(colors, list | tuple) else colors


TRANSLATIONS: Final[Mapping[str, Any]] = {
    "Points": _points,
    "Scatter": _points,
    "Curve": _line,
    "Segments": _line,
    "HLine": _line,
    "VLine": _line,
    "Path": _line,
    "Rectangles": _area,
    "Polygons": _area,
    "Area": _area,
    "Spread": _area,
    "Labels": _text,
    "ErrorBars": _whiskers,
    "HeatMap": _raster,
    "QuadMesh": _raster,
    "Image": _raster,
}
"""How the style of each kind of layer is said to Matplotlib, of that for Bokeh. Other kinds look as HoloViews draws them."""

mpl.use("agg")  # no window, whatever the machine has
mpl.rcParams["text.parse_math"] = False  # names of kernels have dollars in them
mpl.rcParams["font.family"] = ["DejaVu Sans"]  # comes with Matplotlib: the same page on every machine
