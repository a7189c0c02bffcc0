"""The figures of a timeline: the rows, the time axis over them, and all of the trace with a window on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import panel as pn
import param
from bokeh.events import SelectionGeometry, Tap
from bokeh.models import BoxSelectTool, PanTool, Range1d, RangeTool, WheelZoomTool
from panel.viewable import Child

from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.timeline_rows import Row
from kernalyse.services.ui.components.base import locked, on_loop
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.data.timeline_questions import MIN_LENGTH_NS, TimeWindow
from kernalyse.services.ui.theme import Palette

ASSUMED_WIDTH_PX: Final = 1100
"""Until the browser has told how wide the rows are drawn."""

MAX_WIDTH_PX: Final = 2400
MAX_NAME_LENGTH: Final = 400
"""Of what a hover shows."""

EDGE_PX: Final = 14
"""On the right of the rows: room for half a number of the time axis."""


def _flush(part: Any) -> None:
    """Let the three lie on each other, without a gap."""
    part.update(margin=0, min_border=0, min_border_left=0, min_border_right=EDGE_PX, min_border_top=0, min_border_bottom=0)
    part.update(outline_line_color=None)


def _adjust_bars(bars: Any) -> None:
    _flush(bars)
    bars.ygrid.visible = False
    pan, wheel, mark = PanTool(dimensions="width"), WheelZoomTool(dimensions="width"), BoxSelectTool(dimensions="width", renderers=[])
    bars.toolbar.update(tools=[*bars.hover, pan, wheel, mark], active_drag=pan, active_scroll=wheel)


def _adjust_ruler(ruler: Any) -> None:
    _flush(ruler)
    ruler.xgrid.visible = ruler.ygrid.visible = False
    wheel, mark = WheelZoomTool(dimensions="width"), BoxSelectTool(dimensions="width", renderers=[])
    ruler.toolbar.update(tools=[wheel, mark], active_drag=mark, active_scroll=wheel)


def _adjust_overview(overview: Any) -> None:
    _flush(overview)
    overview.xgrid.visible = overview.ygrid.visible = False
    overview.toolbar.tools = [RangeTool(x_range=Range1d(start=0, end=1, min_interval=MIN_LENGTH_NS), start_gesture="pan")]


BARS: Final = RenderedChart(timeline.timeline_chart, adjust=_adjust_bars)
RULER: Final = RenderedChart(timeline.ruler_chart, adjust=_adjust_ruler)
OVERVIEW: Final = RenderedChart(timeline.overview_chart, adjust=_adjust_overview)


class Frame(pn.custom.JSComponent):
    """The three figures with the rows' names beside them. Panel has no part for it: keys, and buttons that fold rows where they are drawn.

    Messages of it are {"fold": group} and {"match": "next" or "previous"}.
    """

    overview = Child()
    ruler = Child()
    bars = Child()
    rows = param.List(default=[], item_type=dict, doc="From the top: title, head, group (empty: it cannot be folded), folded.")
    range_id = param.String(doc="Of what keys and buttons move.")
    pan_id = param.String(doc="Of the tool that a drag uses.")
    mark_id = param.String(doc="Of the tool that a drag with Shift uses.")

    _esm = Path(__file__).with_suffix(".js")


class TimelineFigure:
    """The figures of one tab, and the window that they share.

    Args:
        on_move: the window was moved or zoomed in the browser, or is drawn at another width.
        on_tap: time in nanoseconds and row of a click.
        on_stretch: start and end in nanoseconds of what was marked by dragging.
        on_message: see Frame.
    """

    def __init__(
        self,
        palette: Palette,
        on_move: Callable[[], None],
        on_tap: Callable[[float, float], None],
        on_stretch: Callable[[float, float], None],
        on_message: Callable[[dict[str, str]], None],
    ) -> None:
        self.bars = Figure("timeline", BARS, palette, timeline.LAYERS)
        self.ruler = Figure("timeline-ruler", RULER, palette, ("none",))
        self.overview = Figure("timeline-overview", OVERVIEW, palette, ("busy",))
        self._on_move = on_move
        self._on_stretch = on_stretch
        self._is_moving_itself = False
        bars, ruler = self.bars.figure, self.ruler.figure
        self._range: Range1d = self.overview.figure.toolbar.tools[0].x_range
        bars.x_range = ruler.x_range = self._range
        for part in (bars, ruler):
            part.on_event(SelectionGeometry, on_loop(self._marked))
        bars.on_event(Tap, on_loop(lambda event: on_tap(event.x, event.y)))
        self._range.on_change("start", on_loop(self._moved))
        self._range.on_change("end", on_loop(self._moved))
        bars.on_change("inner_width", on_loop(self._moved))  # names and pixels were for an assumed width until then
        pan, _, mark = bars.toolbar.tools[-3:]
        self.frame = Frame(
            overview=self.overview.pane, ruler=self.ruler.pane, bars=self.bars.pane, range_id=self._range.id, pan_id=pan.id,
            mark_id=mark.id, sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        self.frame.on_msg(locked(lambda event: on_message(event.data)))

    def _marked(self, event: SelectionGeometry) -> None:
        if event.final and event.geometry is not None and event.geometry["type"] == "rect":
            self._on_stretch(float(event.geometry["x0"]), float(event.geometry["x1"]))

    def _moved(self, _name: str, _old: float, _new: float) -> None:
        if not self._is_moving_itself:
            self._on_move()

    # ------------------------------------------------------------ the window

    @property
    def view(self) -> TimeWindow:
        """What is shown, or a little beyond the trace."""
        start, end = (round(cast(float, edge)) for edge in (self._range.start, self._range.end))
        return TimeWindow(start, max(end, start + 1))

    @property
    def width_px(self) -> int:
        """How wide the rows are drawn."""
        width_px, _ = self.bars.frame_px or (ASSUMED_WIDTH_PX, 0)
        return min(width_px, MAX_WIDTH_PX)

    @property
    def pixel_ns(self) -> float:
        return self.view.length_ns / self.width_px

    def show(self, window: TimeWindow) -> None:
        """Move the window there."""
        self._is_moving_itself = True
        self._range.update(start=window.start_ns, end=window.end_ns)
        self._is_moving_itself = False

    def bound(self, whole: TimeWindow) -> None:
        """Let nobody leave the trace."""
        outer = whole.widened(0.02)
        self._range.update(bounds=(outer.start_ns, outer.end_ns), reset_start=whole.start_ns, reset_end=whole.end_ns)
        self.overview.figure.x_range.update(start=whole.start_ns, end=whole.end_ns)

    # ------------------------------------------------------------ what is drawn

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Make room for the rows, and name them."""
        self.frame.rows = [{"title": row.title, "head": row.is_head, "group": row.group_id, "folded": row.is_folded} for row in rows]
        count = max(len(rows), 1)
        figure = self.bars.figure
        if (figure.y_range.start, figure.y_range.end) != (count, 0):
            figure.y_range.update(start=count, end=0)
            figure.update(height=count * timeline.ROW_PX, min_height=count * timeline.ROW_PX)
        self._set_texts("@row", [row.title for row in rows])

    def set_tile(self, drawn: timeline.DrawnTile) -> None:
        """Draw the bars of a tile."""
        self._set_texts("@name", [name[:MAX_NAME_LENGTH] for name in drawn.names])
        self.bars.replace("pixels", drawn.pixels)
        self.bars.replace("events", drawn.events)

    def _set_texts(self, field: str, texts: list[str]) -> None:
        """Set what hovers show for the numbers in the field."""
        for tool in self.bars.figure.hover:
            source = tool.formatters[field].args["texts"]
            if source.data["text"] != texts:
                source.data = {"text": texts}
