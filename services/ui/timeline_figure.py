"""The figures of a timeline: the rows, the time axis over them, and all of the trace with a window on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from bokeh.events import SelectionGeometry, Tap
from bokeh.models import BoxSelectTool, PanTool, Range1d, RangeTool, WheelZoomTool

from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.theme import Palette
from kernalyse.services.ui.time_window import MIN_LENGTH_NS, TimeWindow

ASSUMED_WIDTH_PX: Final = 1100
"""Until the browser has told how wide the rows are drawn."""

MAX_WIDTH_PX: Final = 2400
EDGE_PX: Final = 14
"""On the right of the rows: room for half a number of the time axis."""


def _flush(part: Any) -> None:
    """The three lie on each other, without a gap."""
    part.update(margin=0, min_border=0, min_border_left=0, min_border_right=EDGE_PX, min_border_top=0, min_border_bottom=0)
    part.update(outline_line_color=None)


def _adjust_body(body: Any) -> None:
    _flush(body)
    body.ygrid.visible = False
    pan, wheel, mark = PanTool(dimensions="width"), WheelZoomTool(dimensions="width"), BoxSelectTool(dimensions="width", renderers=[])
    mark.name = "timeline-mark"
    pan.name = "timeline-pan"
    body.toolbar.update(tools=[*body.hover, pan, wheel, mark], active_drag=pan, active_scroll=wheel)


def _adjust_ruler(ruler: Any) -> None:
    _flush(ruler)
    ruler.xgrid.visible = ruler.ygrid.visible = False
    wheel, mark = WheelZoomTool(dimensions="width"), BoxSelectTool(dimensions="width", renderers=[])
    ruler.toolbar.update(tools=[wheel, mark], active_drag=mark, active_scroll=wheel)


def _adjust_overview(overview: Any) -> None:
    _flush(overview)
    overview.xgrid.visible = overview.ygrid.visible = False
    overview.toolbar.tools = [RangeTool(x_range=Range1d(start=0, end=1, min_interval=MIN_LENGTH_NS), start_gesture="pan")]


_body = EmptyChart(timeline.timeline_chart, adjust=_adjust_body)
_ruler = EmptyChart(timeline.ruler_chart, adjust=_adjust_ruler)
_overview = EmptyChart(timeline.overview_chart, adjust=_adjust_overview)


class TimelineFigure:
    """Of one tab.

    Args:
        on_move: the window was moved or zoomed in the browser.
        on_tap: time in nanoseconds and row of a click.
        on_stretch: start and end in nanoseconds of what was marked by dragging.
    """

    def __init__(
        self,
        palette: Palette,
        on_move: Callable[[], None],
        on_tap: Callable[[float, float], None],
        on_stretch: Callable[[float, float], None],
    ) -> None:
        self.body = LiveFigure("timeline", _body, palette, timeline.LAYERS)
        self.ruler = LiveFigure("timeline-ruler", _ruler, palette, ("none",))
        self.overview = LiveFigure("timeline-overview", _overview, palette, ("busy",))
        self._on_move = on_move
        self._on_tap = on_tap
        self._on_stretch = on_stretch
        self._is_moving_itself = False
        self._connect()

    def _connect(self) -> None:
        body, ruler = self.body.figure, self.ruler.figure
        self._range: Range1d = self.overview.figure.toolbar.tools[0].x_range
        body.x_range = ruler.x_range = self._range
        for part in (body, ruler):
            part.on_event(SelectionGeometry, self._marked)
        body.on_event(Tap, lambda event: self._on_tap(event.x, event.y))
        self._range.on_change("start", self._moved)
        self._range.on_change("end", self._moved)

    def _marked(self, event: SelectionGeometry) -> None:
        if event.final and event.geometry is not None and event.geometry["type"] == "rect":
            self._on_stretch(float(event.geometry["x0"]), float(event.geometry["x1"]))

    def _moved(self, _name: str, _old: float, _new: float) -> None:
        if not self._is_moving_itself:
            self._on_move()

    # ------------------------------------------------------------ the window

    @property
    def view(self) -> TimeWindow:
        start, end = (round(cast(float, edge)) for edge in (self._range.start, self._range.end))
        return TimeWindow(start, max(end, start + 1))

    @property
    def width_px(self) -> int:
        width_px, _ = self.body.frame_px or (ASSUMED_WIDTH_PX, 0)
        return min(width_px, MAX_WIDTH_PX)

    @property
    def pixel_ns(self) -> float:
        return self.view.length_ns / self.width_px

    def show(self, window: TimeWindow) -> None:
        self._is_moving_itself = True
        self._range.update(start=window.start_ns, end=window.end_ns)
        self._is_moving_itself = False

    def bound(self, whole: TimeWindow) -> None:
        """Lets nobody leave the trace."""
        outer = whole.widened(0.02)
        self._range.update(bounds=(outer.start_ns, outer.end_ns), reset_start=whole.start_ns, reset_end=whole.end_ns)
        self.overview.figure.x_range.update(start=whole.start_ns, end=whole.end_ns)

    # ------------------------------------------------------------ what is drawn

    def set_rows(self, titles: list[str]) -> None:
        count = max(len(titles), 1)
        figure = self.body.figure
        if (figure.y_range.start, figure.y_range.end) != (count, 0):
            figure.y_range.update(start=count, end=0)
            figure.update(height=count * timeline.ROW_PX, min_height=count * timeline.ROW_PX)
        self._texts("@row", titles)

    def set_tile(self, drawn: timeline.DrawnTile) -> None:
        self._texts("@name", [name[:400] for name in drawn.names])
        self.body.replace("pixels", drawn.pixels)
        self.body.replace("events", drawn.events)

    def _texts(self, field: str, texts: list[str]) -> None:
        """Of the hovers, by number."""
        for tool in self.body.figure.hover:
            source = tool.formatters[field].args["texts"]
            if source.data["text"] != texts:
                source.data = {"text": texts}
