"""The page Timeline: the timeline of one trace, and what was chosen and marked on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit, has_no_runs
from kernalyse.services.ui.components.timeline import TimelineChart
from kernalyse.services.ui.components.timeline_panels import ChosenEvent, MarkedStretch, TimelineFilters
from kernalyse.services.ui.view import TimelineView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class TimelinePage(Component):
    """Lays out what the page shows; what was chosen and marked is left out where there is no timeline."""

    def __init__(self, context: Context, view: TimelineView) -> None:
        super().__init__(context)
        self._chart = TimelineChart(context, view)
        choices = TimelineFilters(context, self._chart)
        panels = (ChosenEvent(context, self._chart), MarkedStretch(context, self._chart))
        self._first = FirstVisit(context, "timeline", lambda: self._chart.has_none)
        self.parts = (self._chart, choices, *panels, self._first)
        self._always = [choices.layout, self._chart.layout]
        self._panels = pn.Column(*panels, css_classes=["timeline-panels"], sizing_mode="stretch_width")
        self.layout: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        above = [] if has_no_runs(self.context) else self._always
        panels = [self._panels] if self._chart.figure.frame.visible else []
        lay_out(self.context, self.layout, [*above, *([self._first.layout] if self._first.is_shown else panels)])
