"""The pages of the dashboard and the charts that can be opened alone, by their URLs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kernalyse.services.ui.components.compare_charts import ChangeChart, ComparedRoofline, SpeedupChart
from kernalyse.services.ui.components.history import HistoryChart
from kernalyse.services.ui.components.kernel_charts import HeatmapChart, IntensityChart, PerformanceChart
from kernalyse.services.ui.components.kernel_detail import ClockChart, DistributionChart, OrderChart
from kernalyse.services.ui.components.layer_tree import LayerTree
from kernalyse.services.ui.components.layers import LayerKinds
from kernalyse.services.ui.components.live import LiveRoofline, SamplesChart, TelemetryChart
from kernalyse.services.ui.components.node_devices import METRIC_BY_NAME, MetricChart
from kernalyse.services.ui.components.passes import MEASURES, PassBars, PassEfficiency, PassPercentiles
from kernalyse.services.ui.components.roofline import RooflineChart
from kernalyse.services.ui.components.timeline import TimelineChart
from kernalyse.services.ui.pages import (
    ComparePage,
    FleetPage,
    HistoryPage,
    KernelsPage,
    LayersPage,
    LivePage,
    NodesPage,
    RooflinePage,
    StartPage,
    TimelinePage,
)
from kernalyse.services.ui.view import (
    CompareView,
    FleetView,
    HistoryView,
    KernelsView,
    LayersView,
    LiveView,
    NodesView,
    PageView,
    RooflineView,
    StartView,
    TimelineView,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a URL shows.

    Args:
        component: made of a tab's context and the view.
        view: parameters that the URL carries besides those of all pages.
    """

    title: str
    component: Any
    view: type[PageView]


PAGES: Final[dict[str, Entry]] = {
    "live": Entry("Live", LivePage, LiveView),
    "roofline": Entry("Roofline", RooflinePage, RooflineView),
    "kernels": Entry("Kernels", KernelsPage, KernelsView),
    "layers": Entry("Layers", LayersPage, LayersView),
    "timeline": Entry("Timeline", TimelinePage, TimelineView),
    "compare": Entry("Compare", ComparePage, CompareView),
    "history": Entry("History", HistoryPage, HistoryView),
    "nodes": Entry("Nodes", NodesPage, NodesView),
    "fleet": Entry("Fleet", FleetPage, FleetView),
    "start": Entry("Run / Import", StartPage, StartView),
}
"""By the path of their URL, in the order of the navigation."""

CHARTS: Final[dict[str, Entry]] = {
    "roofline": Entry("Roofline", RooflineChart, RooflineView),
    "live_roofline": Entry("Roofline of a run", LiveRoofline, LiveView),
    "samples": Entry("Samples", SamplesChart, LiveView),
    "telemetry": Entry("Telemetry", TelemetryChart, LiveView),
    "heatmap": Entry("Heatmap", HeatmapChart, KernelsView),
    "intensity": Entry("Arithmetic intensity", IntensityChart, KernelsView),
    "performance": Entry("Performance", PerformanceChart, KernelsView),
    "order": Entry("Samples of a row", OrderChart, KernelsView),
    "distribution": Entry("Distribution of a row", DistributionChart, KernelsView),
    "clocks": Entry("Clock of a row", ClockChart, KernelsView),
    "icicle": Entry("Model tree", LayerTree, LayersView),
    "layers": Entry("Time by kind of layer", LayerKinds, LayersView),
    **{name: Entry(measure.title, partial(PassBars, name=name), LayersView) for name, measure in MEASURES.items()},
    "percentiles": Entry("Percentiles of latency", PassPercentiles, LayersView),
    "efficiency": Entry("Efficiency of passes", PassEfficiency, LayersView),
    "speedups": Entry("Speed-up", SpeedupChart, CompareView),
    "changes": Entry("Largest changes", ChangeChart, CompareView),
    "compared_roofline": Entry("Roofline, before and after", ComparedRoofline, CompareView),
    "history": Entry("History", HistoryChart, HistoryView),
    "timeline": Entry("Timeline", TimelineChart, TimelineView),
    **{
        f"node_{name}": Entry(f"{metric.title} of a node", partial(MetricChart, metric=name), NodesView)
        for name, metric in METRIC_BY_NAME.items()
    },
}
"""By the name in the path /charts/NAME, which is that of the figure."""
