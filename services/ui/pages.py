"""The pages: each lays out its components, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import panel as pn

from kernalyse.services.ui.charts.node_telemetry import METRICS
from kernalyse.services.ui.components.base import Component, Text, card, html, lay_out
from kernalyse.services.ui.components.compare import NO_PAIR, ComparedTable, CompareFilters, Difference, Pair, SideChoice, Sources, Tiles
from kernalyse.services.ui.components.compare_charts import ChangeChart, ComparedRoofline, SpeedupChart
from kernalyse.services.ui.components.first_visit import FirstVisit, has_no_runs
from kernalyse.services.ui.components.fleet import Fleet, FleetSummary, FleetTable
from kernalyse.services.ui.components.hardware import HardwarePanel
from kernalyse.services.ui.components.history import Histories, HistoryChart, HistoryFilters, HistoryTable
from kernalyse.services.ui.components.kernel_charts import ChartedRows, HeatmapChart, IntensityChart, PerformanceChart
from kernalyse.services.ui.components.kernel_detail import Chosen, ClockChart, DistributionChart, Listings, OrderChart, RowHead
from kernalyse.services.ui.components.kernels import KernelFilters, KernelTable
from kernalyse.services.ui.components.layer_tree import LayerRun, LayerTree, out_of
from kernalyse.services.ui.components.layers import (
    LayerFilters,
    LayerKinds,
    LayerTable,
    LayerText,
    kernel_layers,
    layer_facts,
    layer_kernels,
    layers_inside,
)
from kernalyse.services.ui.components.live import LiveResults, LiveRoofline, LiveRun, Log, SamplesChart, TelemetryChart
from kernalyse.services.ui.components.node_devices import Devices, MetricChart, NodeReadings
from kernalyse.services.ui.components.nodes import AddNode, NodeCards, NodeFacts, NodeList, NodeRuns, shown_node
from kernalyse.services.ui.components.passes import (
    ARCHITECTURE,
    PassBars,
    PassEfficiency,
    PassHead,
    PassPercentiles,
    PassRows,
    is_of_model,
)
from kernalyse.services.ui.components.roofline import PointPanel, PointTable, RooflineChart, RooflineFilters, RooflineRows
from kernalyse.services.ui.components.runs import RunHeader, RunList
from kernalyse.services.ui.components.start import KINDS, FormCard, Repeats, Starter
from kernalyse.services.ui.components.timeline import TimelineChart
from kernalyse.services.ui.components.timeline_panels import ChosenEvent, MarkedStretch, TimelineFilters
from kernalyse.services.ui.components.uploads import FilePicker, ImportList
from kernalyse.services.ui.forms.command_form import CommandForm
from kernalyse.services.ui.forms.model_form import ModelForm, PromptForm
from kernalyse.services.ui.forms.sweep_form import CeilingsForm, SweepForm
from kernalyse.services.ui.view import (
    CompareView,
    FleetView,
    HistoryView,
    KernelsView,
    LayersView,
    LiveView,
    NodesView,
    RooflineView,
    StartView,
    TimelineView,
    to_query,
)

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


def beside(aside: Any, stage: Any) -> pn.Column:
    """Return a page with a list at the left of its charts. The grid is within: Bokeh hides no column that has a display of its own."""
    return pn.Column(pn.Column(aside, stage, css_classes=["two"], sizing_mode="stretch_width"), sizing_mode="stretch_width")


class LivePage(Component):
    """Lays out what the page shows; what a run does not have is left out."""

    def __init__(self, context: Context, view: LiveView) -> None:
        super().__init__(context)
        run = LiveRun(context, view)
        runs = RunList(
            context,
            lambda run_id: f"/live?{to_query(context.view, view, runs=[run_id])}",
            lambda: () if run.memory is None else (run.memory.run_id,),
        )
        nodes = NodeCards(context)
        self._samples = SamplesChart(context, view, run)
        self._roofline = LiveRoofline(context, view, run)
        self._telemetry = TelemetryChart(context, view, run)
        self._log = Log(context, view, run)
        self._results = LiveResults(context, self._roofline)
        header = RunHeader(context, view, run, self._roofline)
        self._first = FirstVisit(context, "live")
        self._run = run
        charts = (self._samples, self._roofline, self._telemetry, self._log)
        self.parts = (run, *charts, self._results, header, self._first, runs, nodes)
        grid = pn.Column(*charts, css_classes=["charts"], sizing_mode="stretch_width")
        self._always = [header.layout, grid, self._results.layout]
        self._stage: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")
        aside = pn.Column(runs, nodes, css_classes=["aside"], sizing_mode="stretch_width")
        self.layout = beside(aside, self._stage)

    def update(self) -> None:
        super().update()
        run = self._run.run
        has_points = run is not None and (not run.is_trace or self._roofline.points.count > 0)
        shown = {
            self._samples: run is not None and not run.is_trace,
            self._roofline: has_points,
            self._results: has_points,
            self._telemetry: run is not None and not (run.is_trace and run.is_imported),
            self._log: run is not None and not (run.is_trace and run.is_imported),
        }
        for part, is_shown in shown.items():
            if part.layout.visible != is_shown:
                part.layout.visible = is_shown
        lay_out(self.context, self._stage, [self._first.layout] if self._first.is_shown else self._always)


class RooflinePage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: RooflineView) -> None:
        super().__init__(context)
        rows = RooflineRows(context, view)

        def href(run_id: str) -> str:
            # The newest run is shown without being named; choosing another adds to it.
            runs = (
                context.view.runs_with(run_id)
                if context.view.runs
                else [run for run in context.shown_run_ids() if run != run_id] + [run_id]
            )
            return f"/roofline?{to_query(context.view, view, runs=runs)}"

        runs = RunList(context, href, context.shown_run_ids, "Choose one or several to lay over each other.")
        choices = RooflineFilters(context, rows)
        chart = RooflineChart(context, view, rows)
        point = PointPanel(context, chart)
        points = PointTable(context, chart)
        hardware = HardwarePanel(context, rows)
        self._first = FirstVisit(context, "roofline")
        self.parts = (runs, choices, chart, point, hardware, points, self._first)
        self._point = point
        self._diagnosed = pn.Column(chart, point, css_classes=["diagnosed"], sizing_mode="stretch_width")
        self._always = [choices.layout, self._diagnosed, hardware.layout, points.layout]
        self._stage = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")
        self.layout = beside(runs, self._stage)

    def update(self) -> None:
        super().update()
        lay_out(self.context, self._stage, [self._first.layout] if self._first.is_shown else self._always)
        classes = ["diagnosed", "with-point"] if self._point.layout.visible else ["diagnosed"]
        if self._diagnosed.css_classes != classes:
            self._diagnosed.css_classes = classes


class KernelsPage(Component):
    """Lays out what the page shows; charts without anything to draw, and parts that the chosen row does not have, are left out."""

    def __init__(self, context: Context, view: KernelsView) -> None:
        super().__init__(context)
        charted, chosen = ChartedRows(context, view), Chosen(context, view)
        self._view = view
        self._chosen = chosen
        choices, heatmap = KernelFilters(context, view, charted), HeatmapChart(context, view, charted)
        table = KernelTable(context, view, charted)
        self._intensity, self._performance = IntensityChart(context, view, charted), PerformanceChart(context, view, charted)
        self._detail: KernelDetail | None = None  # made with the first choice: three figures that many visitors never see
        self._first = FirstVisit(context, "kernels")
        self.parts = (charted, choices, heatmap, self._intensity, self._performance, table, chosen, self._first)
        self._split = pn.Column(self._intensity, self._performance, css_classes=["charts"], sizing_mode="stretch_width")
        self._always = (choices.layout, heatmap.layout, self._split, table.layout)
        self.layout: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        if self._view.configuration and self._detail is None:
            self._detail = KernelDetail(self.context, self._view, self._chosen)
            self.parts = (*self.parts, self._detail)
        super().update()
        if self._intensity.layout.visible != self._intensity.has_rows:
            self._intensity.layout.visible = self._intensity.has_rows
        classes = ["charts"] if self._intensity.has_rows else ["charts", "of-one"]
        if self._split.css_classes != classes:
            self._split.css_classes = classes
        detail = [self._detail.layout] if self._detail is not None and self._view.configuration else []
        lay_out(self.context, self.layout, [self._first.layout] if self._first.is_shown else [*self._always, *detail])


class KernelDetail(Component):
    """Lays out what is known of the chosen row; parts that it does not have are left out."""

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen) -> None:
        super().__init__(context)
        self._head, self._listings = RowHead(context, chosen), Listings(context, chosen)
        self._samples = (OrderChart(context, view, chosen), DistributionChart(context, view, chosen), ClockChart(context, view, chosen))
        self.parts = (self._head, *self._samples, self._listings)
        self._grid = pn.Column(*self._samples, css_classes=["charts"], sizing_mode="stretch_width")
        self.layout: Any = pn.Column(self._head, css_classes=["stage", "detail"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        for chart in self._samples:
            if chart.layout.visible != chart.has_rows:
                chart.layout.visible = chart.has_rows
        samples = [self._grid] if any(chart.has_rows for chart in self._samples) else []
        listings = [self._listings.layout] if self._listings.has_rows else []
        lay_out(self.context, self.layout, [self._head.layout, *samples, *listings])


class LayersPage(Component):
    """Lays out what the page shows; what tells of layers and of whole passes is left out where the run has none."""

    def __init__(self, context: Context, view: LayersView) -> None:
        super().__init__(context)
        self._view = view
        self._layers = layers = LayerRun(context, view)
        choices, tree, kinds = LayerFilters(context, view, layers), LayerTree(context, view, layers), LayerKinds(context, view, layers)
        runners, facts = LayerText(layers, kernel_layers), LayerText(layers, layer_facts)
        inside, kernels = LayerText(layers, layers_inside), LayerText(layers, layer_kernels)
        table = LayerTable(context, view, layers)
        self._passes: pn.Column | None = None
        self._first = FirstVisit(context, "layers", lambda: layers.has_none and not any(map(is_of_model, layers.runs)))
        self.parts = (layers, choices, tree, runners, facts, inside, kernels, kinds, table, self._first)
        of_layer = pn.Column(inside, kernels, css_classes=["of-layer"], sizing_mode="stretch_width")
        self._always = (choices, tree)
        self._of_layers = (runners, facts, of_layer, kinds)
        self._table = table
        self._stage = self.layout = pn.Column(*self._always, table, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        self.out = out_of(self._layers.place, self.context.view, self._view)
        has_passes = any(map(is_of_model, self._layers.runs))
        if has_passes and self._passes is None:
            self._passes = self._made_passes()
        has_layers = self._layers.place is not None and not self._layers.missing
        wanted = [*self._always, *(self._of_layers if has_layers else ()), *([self._passes] if has_passes else ()), self._table]
        if self._first.is_shown:
            wanted = [*([] if has_no_runs(self.context) else self._always), self._first]
        lay_out(self.context, self._stage, [getattr(part, "layout", part) for part in wanted])

    def _made_passes(self) -> pn.Column:
        """Made where they are needed: seven figures of which a trace has none."""
        context, view = self.context, self._view
        rows = PassRows(context, view, self._layers)
        head = PassHead(context, view, rows)
        latency, throughput, memory, *architecture = (
            PassBars(context, view, name, rows) for name in ("latency", "throughput", "memory", *ARCHITECTURE)
        )
        percentiles, efficiency = PassPercentiles(context, view, rows), PassEfficiency(context, view, rows)
        charts = (latency, throughput, percentiles, efficiency, memory, *architecture)
        for part in (rows, head, *charts):
            part.update()
        self.parts = (*self.parts, rows, head, *charts)
        grid = pn.Column(*charts[:5], css_classes=["charts"], sizing_mode="stretch_width")
        thirds = pn.Column(*architecture, css_classes=["thirds"], sizing_mode="stretch_width")
        return pn.Column(head, grid, thirds, css_classes=["stage", "passes"], sizing_mode="stretch_width")


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


class ComparePage(Component):
    """Lays out what the page shows; what two runs do not have, or must not be compared by, is left out."""

    def __init__(self, context: Context, view: CompareView) -> None:
        super().__init__(context)
        pair = self._pair = Pair(context, view)
        sides, difference = SideChoice(context, pair), Difference(context, pair)
        self._tiles = Tiles(context, pair)
        self._filters = CompareFilters(context, pair)
        self._charts = (SpeedupChart(context, view, pair), ChangeChart(context, view, pair), ComparedRoofline(context, view, pair))
        table = ComparedTable(context, pair)
        self._first = FirstVisit(context, "compare", lambda: pair.problem == NO_PAIR)
        self._sources = Sources(context, pair)
        self.parts = (pair, sides, difference, self._tiles, self._filters, *self._charts, table, self._sources, self._first)
        self._grid = pn.Column(*self._charts, css_classes=["charts"], sizing_mode="stretch_width")
        self._sides = card(sides, difference)
        self._always = [self._tiles.layout, self._filters.layout, self._grid, table.layout, self._sources.layout]
        self.layout: Any = pn.Column(self._sides, *self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        is_shown = self._pair.shown is not None
        drawn = [chart for chart in self._charts if chart.has_rows]
        shown = {part.layout: is_shown for part in (self._tiles, self._sources)}
        has_choices = self._pair.answer is not None and (not self._pair.answer.is_of_nothing or self._pair.can_have_layers)
        shown |= {self._filters.layout: has_choices, self._grid: bool(drawn)}
        shown |= {chart.layout: chart in drawn for chart in self._charts}
        for layout, is_visible in shown.items():
            if layout.visible != is_visible:
                layout.visible = is_visible
        classes = ["charts"] if len(drawn) > 1 else ["charts", "of-one"]
        if self._grid.css_classes != classes:
            self._grid.css_classes = classes
        sides = [] if has_no_runs(self.context) else [self._sides]
        lay_out(self.context, self.layout, [*sides, *([self._first.layout] if self._first.is_shown else self._always)])


class HistoryPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: HistoryView) -> None:
        super().__init__(context)
        histories = Histories(context, view)
        shown = (HistoryFilters(context, histories), HistoryChart(context, view, histories), HistoryTable(context, histories))
        self._first = FirstVisit(context, "history", lambda: histories.has_none)
        self.parts = (histories, *shown, self._first)
        self._always = [part.layout for part in shown]
        self.layout: Any = pn.Column(*self._always, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        lay_out(self.context, self.layout, [self._first.layout] if self._first.is_shown else self._always)


class NodesPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context)
        self._view = view
        add = AddNode(context, view)
        nodes, facts = NodeList(context, view), NodeFacts(context, view, add.tell)
        self._readings = readings = NodeReadings(context, view)
        self._charts: dict[str, MetricChart] = {}  # of figures that some reading has: few machines have all
        runs, devices = NodeRuns(context, view), Devices(context, view)
        self.parts = (nodes, add, facts, runs, devices, readings)
        self._grid = pn.Column(css_classes=["charts"], sizing_mode="stretch_width")
        self._of_node = pn.Column(runs, devices, readings, self._grid, css_classes=["stage"], sizing_mode="stretch_width")
        aside = pn.Column(nodes, add, css_classes=["aside"], sizing_mode="stretch_width")
        stage = pn.Column(facts, self._of_node, css_classes=["stage"], sizing_mode="stretch_width")
        self._stage = stage
        self._facts = facts
        self.layout = beside(aside, stage)

    def update(self) -> None:
        super().update()
        for metric in METRICS:
            if metric.name not in self._charts and any(len(line["time"]) for line in self._readings.lines[metric.name]):
                chart = self._charts[metric.name] = MetricChart(self.context, self._view, metric.name, self._readings)
                chart.update()
                self.parts = (*self.parts, chart)
        lay_out(self.context, self._grid, [self._charts[metric.name].layout for metric in METRICS if metric.name in self._charts])
        is_any = shown_node(self.context, self._view) is not None
        shown = [self._facts.layout, self._of_node] if is_any else [self._facts.layout]
        lay_out(self.context, self._stage, shown)


class FleetPage(Component):
    """Lays out what the page shows."""

    def __init__(self, context: Context, view: FleetView) -> None:
        super().__init__(context)
        fleet = Fleet(context, view)
        self.parts = (fleet, FleetSummary(context, fleet), FleetTable(context, fleet))
        self.layout = pn.Column(*self.parts[1:], css_classes=["stage"], sizing_mode="stretch_width")


FORMS: Final = (SweepForm, CommandForm, ModelForm, PromptForm, CeilingsForm)
DROP: Final = html("<p><strong>Drop a trace anywhere on this page</strong>, or choose one or several files:</p>")
READABLE: Final = html(
    '<p class="note">Nsight Systems (.sqlite, .nsys-rep, parquetdir), Nsight Compute (.ncu-rep, CSV), '
    "PyTorch's profiler (.json, .json.gz), Triton's Proton, ONNX Runtime, NVBench, kernalyse's own results. "
    "The reader is chosen by the content.</p>"
)
TOGETHER: Final = {
    "runs of their own": "apart",
    "traces of one job's processes: one run": "job",
    "one trace and what belongs to it": "trace",
}
IMPORT_BUTTONS: Final = [
    {"text": "Choose files", "label": "Choose files", "accept": "", "of_directories": False},
    {"text": "Choose a folder", "label": "Choose a folder", "accept": "", "of_directories": True},
]


class StartPage(Component):
    """Lays out what the page shows. A form is shown when its tab is chosen first, and stays: what is clicked on is never drawn anew."""

    def __init__(self, context: Context, view: StartView) -> None:
        super().__init__(context)
        self._view = view
        starter = Starter(context)
        self._repeats = Repeats(context, starter)
        self._imports = ImportList(context)
        self._forms = {form.key: FormCard(context, form(), starter, self._said) for form in FORMS}
        self._names = [*self._forms, "import"]
        self._layouts = [*(form.layout for form in self._forms.values()), self._import_card()]
        self._places: list[Any] = [pn.Column(sizing_mode="stretch_width") for _ in self._names]
        self._fill()
        self._tabs = pn.Tabs(
            *zip((*(form.heading for form in FORMS), "Import a trace"), self._places, strict=True),
            active=self._names.index(view.form),
            css_classes=["start-tabs"],
            sizing_mode="stretch_width",
        )
        self._tabs.param.watch(self._turned, "active")
        self.parts = (self._repeats, *self._forms.values(), self._imports)
        self.layout = pn.Column(self._repeats, self._tabs, self._imports, css_classes=["stage"], sizing_mode="stretch_width")

    def _import_card(self) -> pn.Column:
        picker = FilePicker(self._said, form="import", kinds=KINDS, buttons=IMPORT_BUTTONS)
        together = pn.widgets.RadioBoxGroup(options=TOGETHER, value="apart", inline=True, margin=0, css_classes=["radios"])
        together.jslink(picker, value="together")  # before files can be dropped
        zone = pn.Column(Text(DROP), picker, Text(READABLE), css_classes=["drop-zone"], sizing_mode="stretch_width")
        return card(zone, Text(html("<h2>Several files are</h2>")), together)

    def update(self) -> None:
        self._repeats.update()
        if self._view.form in self._forms:
            self._forms[self._view.form].update()
        self._imports.update()
        self._fill()
        active = self._names.index(self._view.form)
        if self._tabs.active != active:
            self._tabs.active = active

    def _fill(self) -> None:
        """Last: what is changed in the update in which it is first shown loads its styles from elsewhere."""
        at = self._names.index(self._view.form)
        if not self._places[at].objects:
            self._places[at].append(self._layouts[at])
            self.context.has_new_inputs = True

    def _turned(self, event: Any) -> None:
        self._view.form = self._names[event.new]

    def _said(self, message: dict[str, Any]) -> None:
        """The browser tells of files."""
        form = str(message.get("form", ""))
        if message.get("show") in self._names:
            self._view.form = message["show"]
        if "problem" in message:
            self._imports.tell(str(message["problem"]))
        file = self.context.uploads.files.find(str(message.get("file_id", "")))
        if file is not None and form in self._forms:
            self._forms[form].take(file)
        self.context.wake()
