"""Charts in a browser tab: each is rendered once for all tabs, copied for one, then fed through its sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Final

import holoviews as hv
import numpy as np
import panel as pn
from bokeh.core.property.descriptors import UnsetValueError
from bokeh.document import Document
from bokeh.models import AllLabels, FixedTicker, NoOverlap, Range1d
from bokeh.models.tools import SelectTool
from bokeh.util.serialization import make_id

from kernalyse.services.ui.charts.elements import FLAT_LENGTH, Columns, bokeh_theme, lie_flat
from kernalyse.services.ui.components.base import on_loop
from kernalyse.services.ui.theme import Palette

_rendering: Final = threading.Lock()
"""HoloViews keeps its options in one place for the process."""


TICK_DISTANCE_PX: Final = 8
"""Between what an axis says at two ticks: closer they read as one, and Bokeh itself leaves out none of them."""

MAX_LISTED: Final = 200
"""Numbers of a column that travel as text: of more it takes longer to write them down than to send two more messages."""


class RenderedChart:
    """A chart without rows, rendered once for each palette: HoloViews takes half a second, a copy a twentieth.

    A copy is kept for the next who asks.

    Args:
        draw: makes it from a palette and the arguments.
        adjust: called once with the rendered figure.
    """

    known: ClassVar[list[RenderedChart]] = []

    def __init__(self, draw: Callable[..., hv.Overlay], *arguments: Any, adjust: Callable[[Any], None] | None = None) -> None:
        self._draw = draw
        self._arguments = arguments
        self._adjust = adjust
        self._rendered: dict[Palette, Any] = {}
        self._spares: dict[Palette, Any] = {}
        self.known.append(self)

    @property
    def key(self) -> str:
        """Return what tells it from all other charts, in every process."""
        return f"{self._draw.__module__}.{self._draw.__qualname__}{self._arguments}"

    def take(self, palette: Palette, rendered: Any) -> None:
        """Take over what another process has rendered; see `rendered`. On any thread."""
        with _rendering:
            self._rendered.setdefault(palette, rendered)

    def is_rendered(self, palette: Palette) -> bool:
        """Return whether it needs no rendering any more."""
        return palette in self._rendered

    def copy(self, palette: Palette) -> Any:
        """Return a figure that belongs to no document yet. Its models have ids of their own: a document may hold several copies."""
        return self._spares.pop(palette, None) or self._copied(palette)

    def prepare(self, palette: Palette) -> None:
        """Keep a copy for the next who asks. On any thread."""
        self._spares[palette] = self._copied(palette)

    def is_prepared(self, palette: Palette) -> bool:
        """Return whether a copy can be had at once."""
        return palette in self._spares

    def _copied(self, palette: Palette) -> Any:
        document = Document.from_json(_with_new_ids(self.rendered(palette)))
        figure = document.roots[0]
        document.remove_root(figure)
        return figure

    def rendered(self, palette: Palette) -> Any:
        """Return the document of the figure as JSON. On any thread."""
        with _rendering:
            if palette not in self._rendered:
                self._rendered[palette] = self._render(palette)
        return self._rendered[palette]

    def _render(self, palette: Palette) -> Any:
        # Without a theme of HoloViews' own, which would be set on the page that is just being opened.
        figure: Any = hv.renderer("bokeh").instance(theme=None).get_plot(self._draw(palette, *self._arguments)).state
        figure.toolbar_inner = True  # beside the plot it would take a column of a phone's screen
        for axis in figure.xaxis:
            axis.major_label_policy = NoOverlap(min_distance=TICK_DISTANCE_PX)
        if self._adjust is not None:
            self._adjust(figure)
        _leave_out_what_is_never_drawn(figure)
        document = Document(theme=bokeh_theme(palette))
        document.add_root(figure)
        return document.to_json(deferred=False)


def _leave_out_what_is_never_drawn(figure: Any) -> None:
    """HoloViews makes glyphs for every state of a mark, one of a legend's included that no chart has."""
    is_selected_from = any(isinstance(tool, SelectTool) and tool.renderers for tool in figure.tools)
    for renderer in figure.renderers:
        renderer.muted_glyph = None
        if not is_selected_from:
            renderer.selection_glyph = renderer.nonselection_glyph = None


def _with_new_ids(json: Any) -> Any:
    """Return the document's JSON with another id for each of its models."""
    ids: dict[str, str] = {}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ids.setdefault(part, make_id()) if key == "id" else renamed(part) for key, part in value.items()}
        return [renamed(part) for part in value] if isinstance(value, list | tuple) else value

    return renamed(json)


def _as_sent(column: Any) -> Any:
    """Return a short column of numbers as a list: each array travels in two messages of its own, a list in that of all changes."""
    is_short = isinstance(column, np.ndarray) and column.dtype.kind in "fiub" and len(column) <= MAX_LISTED
    return column.tolist() if is_short else column


class Figure:
    """A copy of a chart whose layers take rows by their position in the overlay.

    Args:
        name: no other figure of the tab has it; a layer's source is called "name:layer" in the document.
        layers: names of the chart's layers, in their order.
    """

    def __init__(self, name: str, chart: RenderedChart, palette: Palette, layers: tuple[str, ...]) -> None:
        self.name = name
        self.figure: Any = chart.copy(palette)
        self._renderers = dict(zip(layers, self.figure.renderers, strict=True))
        self._sources = {layer: renderer.data_source for layer, renderer in self._renderers.items()}
        for layer, source in self._sources.items():
            source.name = f"{name}:{layer}"
        self._set_spans: dict[str, tuple[float, float]] = {}
        self._slant = self.figure.xaxis[0].major_label_orientation
        pane = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)
        self.pane = pn.Column(pane, sizing_mode="stretch_width")  # is hidden in its place: the pane would take over the figure's settings

    def replace(self, layer: str, columns: Columns) -> None:
        source = self._sources[layer]
        source.data = {name: _as_sent(columns[name]) for name in source.data}

    def stream(self, layer: str, columns: Columns, kept_count: int | None = None) -> None:
        """Adds rows. Where there were none the layer may have been emptied in the same update: Bokeh would send the rows twice, for what
        was put in the place of others is written down when it is sent.

        Args:
            kept_count: rows that stay, the newest; None: all.
        """
        source = self._sources[layer]
        if self.row_count(layer):
            source.stream({name: _as_sent(columns[name]) for name in source.data}, kept_count)
        else:
            self.replace(layer, columns)

    def hide(self, layers: Collection[str]) -> None:
        """Draws the other layers alone."""
        for layer, renderer in self._renderers.items():
            if renderer.visible == (layer in layers):
                renderer.visible = layer not in layers

    def on_choice(self, layer: str, choose: Callable[[int], None]) -> None:
        """Calls with the row's place when somebody clicks on a mark of the layer."""

        def chosen(_name: str, _old: object, new: list[int]) -> None:
            if new:
                choose(new[0])

        self._sources[layer].selected.on_change("indices", on_loop(chosen))

    def choose(self, layer: str, column: str, value: str) -> None:
        """Outlines the layer's mark that has the value in the column; none when there is none."""
        source = self._sources[layer]
        places = [place for place, text in enumerate(source.data[column]) if text == value] if value else []
        if source.selected.indices != places[:1]:
            source.selected.indices = places[:1]

    def text(self, layer: str, column: str, place: int) -> str:
        return str(self._sources[layer].data[column][place])

    def row_count(self, layer: str) -> int:
        return len(next(iter(self._sources[layer].data.values())))

    @property
    def frame_px(self) -> tuple[int, int] | None:
        """Width and height within the axes; None: the browser has not told them yet."""
        try:
            width_px, height_px = self.figure.inner_width, self.figure.inner_height
        except UnsetValueError:
            return None
        return (width_px, height_px) if width_px and height_px else None

    def follow(self, axis: str, start: float, end: float) -> None:
        """Shows start to end on the axis ("x" or "y"); to a user who has moved it only when the chart is reset."""
        span: Range1d = self.figure.x_range if axis == "x" else self.figure.y_range
        last = self._set_spans.get(axis)
        if last == (start, end):
            return
        self._set_spans[axis] = (start, end)
        span.update(reset_start=start, reset_end=end)
        if last is None or (span.start, span.end) == last:
            span.update(start=start, end=end)

    def show(self, axis: str, start: float, end: float) -> None:
        """Shows start to end, whatever the user has moved: something else is drawn now."""
        self._set_spans.pop(axis, None)
        self.follow(axis, start, end)

    def forget_moves(self) -> None:
        """What is followed next is shown, although the user has moved the axes: something else is drawn now."""
        self._set_spans = {}

    def name_ticks(
        self, names: Mapping[int, str] | Mapping[float, str], *, leaves_none_out: bool = False, on: str = "x", room: int = FLAT_LENGTH
    ) -> None:
        """Ticks of an axis ("x" or "y") at the keys; those that would overlap are left out by the browser, unless all are wanted.

        Args:
            room: letters that have their place beside each other, as of `lie_flat`.
        """
        axis = (self.figure.xaxis if on == "x" else self.figure.yaxis)[0]
        if not isinstance(axis.ticker, FixedTicker):
            axis.update(ticker=FixedTicker(ticks=[], minor_ticks=[]), major_label_policy=AllLabels() if leaves_none_out else NoOverlap())
        # A new ticker each time would make Bokeh walk through the whole document; new ticks do not.
        if axis.ticker.ticks != list(names) or axis.major_label_overrides != names:
            axis.ticker.ticks = list(names)
            axis.major_label_overrides = dict(names)
            if on == "x":
                axis.major_label_orientation = "horizontal" if lie_flat(names.values(), room) else self._slant
