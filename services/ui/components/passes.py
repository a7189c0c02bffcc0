"""Whole passes of models: latency, throughput, percentiles, architecture, efficiency and memory, run over run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from bokeh.models import AdaptiveTicker

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.model import ModelRun, Run, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import models
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.components.base import Component, Text, card, fold, html
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, ended, hidden_names, hideable, legend_html
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.layer_tree import LayerRun
from kernalyse.services.ui.components.runs import MAX_LISTED_RUNS
from kernalyse.services.ui.components.table import REFRESH_INTERVAL_S
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.theme import MARKERS, SYMBOLS, Ticks
from kernalyse.services.ui.view import LayersView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette

MAX_ROWS: Final = 200
FILTERED: Final = ("model_name", "batch_size", "device_id")
"""Columns of table models that the page's filters hold for."""

ASKING: Final = "Asking the analyzer for the passes."
NO_MATCH: Final = "No pass of a model matches: choose a run of a model, or fewer filters."
NO_WHISKERS: Final = " Passes of a run that goes on have no whiskers yet."
NO_PASSES: Final = models.Passes((), (), {}, {})


@dataclass(frozen=True, slots=True)
class Measure:
    """What a chart of bars shows of each pass.

    Args:
        column: of table models; duration_mean_ns is drawn with its standard deviation.
        axis: label of the vertical axis.
    """

    title: str
    column: str
    axis: str
    ticks: Ticks
    height_px: int = 280

    def sides(self, found: models.Passes) -> models.Sides:
        """Return the bars of each run, one for each name."""
        if self.column == "duration_mean_ns":
            return found.latency()
        return found.figures(self.column, _shown_as[self.ticks])


_shown_as: Final[dict[Ticks, Any]] = {
    theme.SI_TICKS: lambda value: theme.si(value, "tokens/s"),
    theme.MEMORY_TICKS: theme.memory,
    theme.PLAIN_TICKS: theme.count,
}
MEASURES: Final = {
    "latency": Measure("Latency of a pass", "duration_mean_ns", "mean of the passes", theme.DURATION_TICKS),
    "throughput": Measure("Throughput", "tokens_per_s", "tokens/s of the median", theme.SI_TICKS),
    "memory": Measure("Memory", "memory_bytes", "device memory", theme.MEMORY_TICKS),
    "layer_count": Measure("Architecture: layers", "layer_count", "layers", theme.PLAIN_TICKS, 220),
    "head_count": Measure("Architecture: heads", "head_count", "heads", theme.PLAIN_TICKS, 220),
    "width": Measure("Architecture: width of the embedding", "width", "width", theme.PLAIN_TICKS, 220),
}
"""By the name of the chart."""

ARCHITECTURE: Final = ("layer_count", "head_count", "width")


def _empty_bars(palette: Palette, _name: str) -> hv.Overlay:
    return models.bar_chart([""], [[]], "", palette)


def _as_bars_of(measure: Measure, figure: Any) -> None:
    axis = figure.yaxis[0]
    axis.update(axis_label=measure.axis, formatter=tick_formatter(measure.ticks))
    if measure.ticks is theme.MEMORY_TICKS:
        axis.ticker = AdaptiveTicker(base=2, mantissas=[1])  # at whole KiB and MiB
    figure.update(height=measure.height_px, min_height=measure.height_px)


def _empty_percentiles(palette: Palette) -> hv.Overlay:
    places = tuple(models.PERCENTILES)
    return models.line_chart(places, [], "time of a pass", palette, 280, theme.DURATION_TICKS, theme.duration)


def _empty_efficiency(palette: Palette) -> hv.Overlay:
    return models.scatter_chart([], ("width of the embedding", "tokens/s of the median ÷ layers"), palette, 280)


BARS: Final = {name: RenderedChart(_empty_bars, name, adjust=partial(_as_bars_of, measure)) for name, measure in MEASURES.items()}
PERCENTILES: Final = RenderedChart(_empty_percentiles)
EFFICIENCY: Final = RenderedChart(_empty_efficiency)


def is_of_model(run: Run) -> bool:
    """Return whether it is of a model here, or of results that were imported and may be those of one."""
    return isinstance(run.spec.work, ModelRun) or (run.is_imported and bool(run.total_configuration_count))


class PassRows(Component):
    """What the charts of passes stand on: rows of table models of the runs that are shown.

    Attributes:
        found: the passes.
        shown: without those of runs that the legend hides.
        missing: why there are none; empty: there are some.
        version: another when any of these is.
    """

    def __init__(self, context: Context, view: LayersView, layers: LayerRun) -> None:
        super().__init__(context)
        self.view = view
        self.layers = layers
        self.found = self.shown = NO_PASSES
        self.missing = ASKING
        self.version = 0
        self._rows: Question[pl.DataFrame] = Question(context.wake)
        self._update_count = -1
        self._made: object = None

    def close(self) -> None:
        self.layers.close()
        self._rows.stop()

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        self.layers.update()
        runs = self.layers.runs
        if not any(map(is_of_model, runs)):
            self.found = self.shown = NO_PASSES
            self.missing = NO_MATCH
            return
        run_ids, conditions = tuple(run.run_id for run in runs), filters.query_filters(self.context.view, FILTERED)
        query = TableQuery("models", run_ids=run_ids, filters=conditions, limit=MAX_ROWS, columns=models.COLUMNS)
        self._rows.ask(query, partial(self._ask, query), self.layers.progress, REFRESH_INTERVAL_S)
        rows, hidden = self._rows.answer_to(query), self.view.hidden
        made = (id(rows), tuple(run.title for run in runs), tuple(hidden), self._rows.problem)
        if made == self._made:
            return
        self._made = made
        self.version += 1
        self.found = NO_PASSES if rows is None else models.passes_of(rows, {run.run_id: run.title for run in runs})
        hidden_runs = hidden_names(self.found.run_ids, hidden) if len(self.found.run_ids) > 1 else set()
        self.shown = self.found.without_runs(hidden_runs)
        self.missing = self._rows.problem or (ASKING if rows is None else "" if self.found.rows else NO_MATCH)

    async def _ask(self, query: TableQuery) -> pl.DataFrame:
        return (await self.context.client.table(query)).rows

    def entries(self, names: Sequence[str], symbols: Sequence[str]) -> list[LegendEntry]:
        """Return an entry for each name in the order of the colours."""
        colors = self.context.palette.series
        return [LegendEntry(name, colors[place % len(colors)], symbols[place % len(symbols)]) for place, name in enumerate(names)]


class PassHead(Component):
    """Which runs are shown beside each other, and what is to be said of all charts."""

    def __init__(self, context: Context, view: LayersView, rows: PassRows) -> None:
        super().__init__(context)
        self._rows = rows
        self._version = -1
        self._runs = pn.widgets.CheckBoxGroup(options={}, margin=0, css_classes=["column-boxes"], sizing_mode="stretch_width")
        self._runs.param.watch(self._choose, "value")
        self._fold = fold(Text(html("Runs"), sizing_mode=None), self._runs)
        self._legend = Text()
        self._note = Text(classes=("note",))
        self.layout = card(Text(html("<h2>Whole passes</h2>")), self._fold, self._legend, self._note)

    def update(self) -> None:
        self._rows.update()
        shown = [run.run_id for run in self._rows.layers.runs]
        newest = self.context.overview.runs[:MAX_LISTED_RUNS]
        listed = [run for run in newest if isinstance(run.spec.work, ModelRun) or run.run_id in shown]
        options = {f"{run.title[:60]} · {theme.short_run_id(run.run_id)}": run.run_id for run in listed}
        value = [run.run_id for run in listed if run.run_id in shown]
        if (self._runs.options, self._runs.value) != (options, value):
            self._runs.param.update(options=options, value=value)
        if self._fold.visible != (len(listed) > 1):
            self._fold.visible = len(listed) > 1
        if self._version == self._rows.version:
            return
        self._version = self._rows.version
        found = self._rows.found
        runs = self._rows.entries(list(found.titles.values()), (SYMBOLS["square"],))
        entries = hideable(runs, self._rows.view.hidden, found.run_ids) if len(found.run_ids) > 1 else ()
        self._legend.show(legend_html(ended(entries)))
        self._note.show(self._rows.missing or _note(found.rows.values()))

    def _choose(self, event: Any) -> None:
        """The newest run is shown without being named; choosing another adds to it."""
        shown = [run.run_id for run in self._rows.layers.runs]
        wanted = [run_id for run_id in shown if run_id in event.new or run_id not in self._runs.options.values()]
        wanted += [run_id for run_id in event.new if run_id not in shown]
        if wanted != shown:
            self.context.view.runs = wanted


def _note(rows: Iterable[Any]) -> str:
    listed = list(rows)
    so_far = NO_WHISKERS if any(row["duration_standard_deviation_ns"] is None for row in listed) else ""
    disturbed = disturbance_note(row["disturbance"] for row in listed)
    return f"Latency is the mean of the passes with one standard deviation.{so_far} {disturbed}".rstrip()


class PassChart(Component):
    """A chart of passes. It takes no room where no pass has what it shows.

    Args:
        rows: None: its own, where the chart stands alone.
    """

    def __init__(self, context: Context, view: LayersView, rows: PassRows | None, title: str, figure: Figure) -> None:
        super().__init__(context)
        self.view = view
        self.rows = rows or PassRows(context, view, LayerRun(context, view))
        self.figure = figure
        self.card = ChartCard(title, figure)
        self.layout: Any = self.card.layout
        self._version = -1

    def close(self) -> None:
        self.rows.close()

    def update(self) -> None:
        self.rows.update()
        if self._version != self.rows.version:
            self._version = self.rows.version
            is_known = self.draw()
            if self.layout.visible != is_known:
                self.layout.visible = is_known

    def draw(self) -> bool:
        """Draw the passes that are shown, and return whether some pass has what the chart shows."""
        raise NotImplementedError


class PassBars(PassChart):
    """A bar for each pass.

    Args:
        name: of MEASURES.
    """

    def __init__(self, context: Context, view: LayersView, name: str, rows: PassRows | None = None) -> None:
        self._measure = MEASURES[name]
        figure = Figure(name, BARS[name], context.palette, ("boxes", "whiskers"))
        super().__init__(context, view, rows, self._measure.title, figure)

    def draw(self) -> bool:
        found, figure = self.rows.shown, self.figure
        boxes, whiskers = models.bar_columns(self._measure.sides(found), self.context.palette)
        figure.replace("boxes", boxes)
        figure.replace("whiskers", whiskers)
        figure.name_ticks(dict(enumerate(found.names)), leaves_none_out=len(found.names) <= models.FEW)
        figure.follow("x", -0.5, max(1, len(found.names)) - 0.5)
        figure.follow("y", 0.0, models.top_of(max((*boxes["top"].tolist(), *whiskers["y1"].tolist()), default=0.0)))
        return self.rows.found.is_known(self._measure.column)


class PassPercentiles(PassChart):
    """From the shortest pass to the longest."""

    def __init__(self, context: Context, view: LayersView, rows: PassRows | None = None) -> None:
        figure = Figure("percentiles", PERCENTILES, context.palette, ("strokes", "dots"))
        super().__init__(context, view, rows, "Percentiles of latency", figure)

    def draw(self) -> bool:
        found, shown = self.rows.found, self.rows.shown
        lines = found.percentiles()
        entries, drawn = drawn_of(self.rows)
        kept = [line if line.name in drawn else models.Line(line.name, ()) for line in lines]  # colours stay
        strokes, dots = models.line_columns(tuple(models.PERCENTILES), kept, self.context.palette, theme.duration)
        self.figure.replace("strokes", strokes)
        self.figure.replace("dots", dots)
        values = dots["y"].tolist()
        if values:
            self.figure.follow("y", min(values) / 1.15, max(values) * 1.15)
            self.figure.name_ticks({value: theme.duration(value) for value in models.round_values(values)}, on="y")
        self.card.show_legend(entries)
        return bool(shown.run_ids) and found.is_known("duration_median_ns")


class PassEfficiency(PassChart):
    """What a layer of some width costs."""

    def __init__(self, context: Context, view: LayersView, rows: PassRows | None = None) -> None:
        figure = Figure("efficiency", EFFICIENCY, context.palette, ("dots", "names"))
        super().__init__(context, view, rows, "Efficiency: throughput for each layer", figure)

    def draw(self) -> bool:
        points = self.rows.found.throughput_of_layers()
        entries, drawn = drawn_of(self.rows)
        dots, names = models.scatter_columns([point for point in points if point.name in drawn], self.context.palette)
        self.figure.replace("dots", dots)
        self.figure.replace("names", names)
        if len(dots["x"]):
            self.figure.follow("x", 0.0, float(dots["x"].max()) * 1.5)
            self.figure.follow("y", 0.0, float(dots["y"].max()) * 1.15)
        placed = {point.name for point in points}
        self.card.show_legend(entry for entry in entries if entry.name in placed)
        return bool(points)


def drawn_of(rows: PassRows) -> tuple[list[LegendEntry], set[str]]:
    """Return the legend of passes by their names, and the names of those that it does not hide."""
    hidden, shown = rows.view.hidden, rows.shown
    titles = [line.name for line in rows.found.percentiles()]
    listed = {shown.title(row) for row in shown.rows.values()}
    entries = hideable(rows.entries(titles, tuple(SYMBOLS[marker] for marker in MARKERS)), hidden)
    return [entry for entry in entries if entry.name in listed], listed - hidden_names(titles, hidden)
