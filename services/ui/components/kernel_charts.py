"""The charts of the page Kernels: a heatmap over parameters, and intensity and performance of each kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import panel as pn
import param
import polars as pl
from bokeh.models.annotations import ColorBar
from panel.viewable import Child

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.model import Filter, FilterOperator, Run, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import heatmap, split
from kernalyse.services.ui.charts.elements import Columns, tick_formatter
from kernalyse.services.ui.charts.metrics import (
    ANNOUNCED,
    FAILED,
    LAUNCHED,
    METRICS,
    PLACED,
    Metric,
    axis_values,
    metric_of,
    performance_rows,
)
from kernalyse.services.ui.components.base import Component, flow, html, locked
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.table import ASKING, REFRESH_INTERVAL_S, progress_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.client import AnalyzerClient, TablePage
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.view import KernelsView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette

MAX_CHARTED_ROWS: Final = 20_000
"""Configurations asked for: a heatmap of more would have dozens in each cell, and take seconds to put together."""

NO_AXES: Final = (
    "A heatmap needs something that varies: a sweep over parameters (kernalyse bench matmul_tiled -p N=256,512 -p M=256,512), "
    "several kernels, or several models."
)
NO_ROWS: Final = "No configuration of these runs matches the filters."
ALL_HIDDEN: Final = "The legend hides all that has this figure: a click on a name shows it again."
OF_TRACE: Final = "A trace has no parameters to lay out: a heatmap needs a sweep, or kernels of several models."
NO_INTENSITY: Final = "No intensity: how many flop and bytes they need is not known."
STEPS: Final = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}


def _empty_heatmap(palette: Palette) -> hv.Overlay:
    return heatmap.heatmap_chart(*heatmap.no_cells(), palette)


def _empty_intensities(palette: Palette) -> hv.Overlay:
    return split.intensity_chart(split.no_bars(), palette)


def _empty_performances(palette: Palette) -> hv.Overlay:
    return split.performance_chart(split.no_bars(), split.no_roofs(), palette)


HEATMAP: Final = RenderedChart(_empty_heatmap)
INTENSITIES: Final = RenderedChart(_empty_intensities)
PERFORMANCES: Final = RenderedChart(_empty_performances)


@dataclass(frozen=True, slots=True)
class ChartRows:
    """rows: what `performance_rows` says. total_row_count: configurations that match, of which at most MAX_CHARTED_ROWS are here."""

    rows: pl.DataFrame
    total_row_count: int


def ask_rows(client: AnalyzerClient, queries: Sequence[TableQuery]) -> Awaitable[ChartRows]:
    """Ask at once for what the charts stand on. Raises KernalyseError."""
    return _joined([client.table(query) for query in queries])


async def _joined(answers: Sequence[Awaitable[TablePage]]) -> ChartRows:
    announced, placed, failed, *launched = await asyncio.gather(*answers)
    rows = performance_rows(announced.rows, placed.rows, failed.rows, *(page.rows for page in launched))
    return ChartRows(rows, max(announced.total_row_count, placed.total_row_count))


class ChartedRows(Component):
    """What the charts stand on: the configurations of the shown runs that the filters leave.

    Attributes:
        known_runs: the newest, and older ones that are shown.
        runs: those that are shown.
        answer: None: it has not come.
        problem: why it has not; empty: it has been asked for.
        metric_name: figure that is drawn; empty: there are no rows yet.
        version: another when any of these is.
    """

    def __init__(self, context: Context, view: KernelsView) -> None:
        super().__init__(context)
        self.view = view
        self.known_runs: tuple[Run, ...] = ()
        self.runs: tuple[Run, ...] = ()
        self.answer: ChartRows | None = None
        self.problem = ""
        self.metric_name = ""
        self.version = 0
        self._rows: Question[ChartRows] = Question(context.wake)
        self._update_count = -1
        self._shown: object = None
        self._split: tuple[object, split.SplitBars] | None = None

    @property
    def metric(self) -> Metric:
        return METRICS[self.metric_name]  # type: ignore[index]

    def close(self) -> None:
        self._rows.stop()

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        overview, run_ids = self.context.overview, tuple(self.context.shown_run_ids())
        self.known_runs = (*overview.runs, *self._older(overview, run_ids))
        self.runs = tuple(run for run in self.known_runs if run.run_id in run_ids)
        queries = self._queries(run_ids)
        self._rows.ask(queries, partial(ask_rows, self.context.client, queries), progress_of(self.runs, overview), REFRESH_INTERVAL_S)
        answer, self.problem = self._rows.answer, self._rows.problem
        shown = (run_ids, tuple(run.state for run in self.runs), self.problem, self.view.figure)
        if answer is not self.answer or shown != self._shown:
            self._shown, self.answer = shown, answer
            self.metric_name = "" if answer is None else metric_of(self.view.figure, answer.rows)
            self.version += 1

    def _older(self, overview: Overview, run_ids: Sequence[str]) -> list[Run]:
        """Only the newest runs are in the overview: older ones that are named are looked at for their own sake."""
        older = sorted(set(run_ids) - {run.run_id for run in overview.runs})
        return [memory.run for memory in self.context.memories(older) if memory.run is not None]

    def _queries(self, run_ids: tuple[str, ...]) -> tuple[TableQuery, ...]:
        def query(table_name: str, columns: tuple[str, ...], *further: Filter) -> TableQuery:
            wanted = (*filters.query_filters(self.context.view, columns), *further)
            return TableQuery(table_name, run_ids, filters=wanted, limit=MAX_CHARTED_ROWS, columns=columns)

        launched = Filter("launch_count", "0", FilterOperator.GREATER)
        may_have_launches = len(self.runs) < len(run_ids) or any(run.is_trace for run in self.runs)
        return (
            query("configurations", ANNOUNCED),
            query("roofline", PLACED),
            TableQuery("failures", run_ids, limit=MAX_CHARTED_ROWS, columns=FAILED),
            *((query("kernels", LAUNCHED, launched),) if may_have_launches else ()),  # of sweeps as much work for nothing
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be measured."""
        return all(run.state.is_final for run in self.runs)

    @property
    def is_of_traces(self) -> bool:
        return bool(self.runs) and all(run.is_trace for run in self.runs)

    def notes(self, answer: ChartRows) -> str:
        """Return what is to be said of all charts of these rows."""
        notes = [disturbance_note(answer.rows.filter("is_measured")["disturbance"])]
        if answer.total_row_count > answer.rows.height:
            all_of_them, here = theme.count(answer.total_row_count), theme.count(answer.rows.height)
            notes.append(f"Of {all_of_them} configurations the first {here}: filter for others.")
        return " ".join(note for note in notes if note)

    def bars_of(self, answer: ChartRows) -> split.SplitBars:
        """Return the bars of both split charts, which are made once for them."""
        made_of = (self.version, tuple(self.view.hidden))
        if self._split is None or self._split[0] != made_of:
            hidden = hidden_names(split.categories_of(answer.rows), self.view.hidden)
            self._split = (made_of, split.split_bars(answer.rows, self.metric, self.context.palette, hidden))
        return self._split[1]


class KernelChart(Component):
    """A chart of configurations; a click on a mark chooses its row.

    Args:
        charted: None: its own, where the chart stands alone.
        choosable: layer of these marks.

    Attributes:
        has_rows: whether there is something to draw.
    """

    def __init__(
        self,
        context: Context,
        view: KernelsView,
        charted: ChartedRows | None,
        title: str,
        figure: Figure,
        choosable: str,
    ) -> None:
        super().__init__(context)
        self.view = view
        self.charted = charted or ChartedRows(context, view)
        self.has_rows = False
        self.figure = figure
        self.card = ChartCard(title, figure)
        self.layout: Any = self.card.layout
        self._choosable = choosable
        self._drawn: object = None
        self._drawn_of: object = None
        figure.on_choice(choosable, lambda place: self.choose(figure.text(choosable, "configuration", place)))

    def choose(self, configuration: str) -> None:
        """Choose the row of this key."""
        self.view.configuration = configuration

    def close(self) -> None:
        self.charted.close()

    def update(self) -> None:
        self.charted.update()
        view, charted = self.view, self.charted
        drawn = (charted.version, view.heat_x, view.heat_y, tuple(view.hidden))
        if drawn != self._drawn:
            self._drawn = drawn
            drawn_of = (charted.metric_name, view.heat_x, view.heat_y, tuple(run.run_id for run in charted.runs))
            if drawn_of != self._drawn_of:
                self._drawn_of = drawn_of
                self.figure.forget_moves()
            self._draw()
        self.figure.choose(self._choosable, "configuration", view.configuration)

    def _draw(self) -> None:
        answer, problem = self.charted.answer, self.charted.problem
        missing = problem or (ASKING if answer is None else self.draw(answer))
        self.has_rows = not missing
        self.show_figure(self.has_rows)
        notes = "" if answer is None else self.charted.notes(answer)
        said = html('<p class="empty">{}</p>', missing) if missing else html("{}", self.note())
        self.card.note.show(html("{} {}", said, notes) if notes else said)

    def show_figure(self, is_shown: bool) -> None:
        """Show the figure, or what is said of it alone."""
        self.card.show_figure(is_shown=is_shown)

    def draw(self, answer: ChartRows) -> str:
        """Draw the rows, or return why there is nothing to draw."""
        raise NotImplementedError

    def note(self) -> str:
        """Return what is said of that which was drawn."""
        return ""


def missing_text(rows: pl.DataFrame, metric: Metric) -> str:
    """Return why nothing can be drawn."""
    return NO_ROWS if rows.is_empty() else f"No figure to draw: {metric.missing}."


class WalkedFigure(pn.custom.JSComponent):
    """A figure that is focused, and sends a message for each key. Panel has no part for it."""

    figure = Child()
    said = param.String(doc="Of the cell that the keyboard is at.")

    _esm = Path(__file__).with_name("heatmap.js")


class HeatmapChart(KernelChart):
    """One figure of every configuration over two axes. Arrow keys go from cell to cell."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows | None = None) -> None:
        figure = Figure("heatmap", HEATMAP, context.palette, heatmap.LAYERS)
        super().__init__(context, view, charted, "Heatmap", figure, "cells")
        self._made: heatmap.Heatmap | None = None
        self._at: tuple[int, int] | None = None  # of the cell; None: the keyboard has not been there
        self._is_walked = False  # the chart has the focus
        self._color_bar: Any = figure.figure.select_one(ColorBar)
        self._axes = {
            name: pn.widgets.Select(label=label, options=[], sizing_mode="fixed", width=150, margin=0)
            for name, label in (("heat_x", "X axis"), ("heat_y", "Y axis"))
        }
        for name, choice in self._axes.items():
            choice.param.watch(partial(self._choose_axis, name), "value")
        self._axis_row = flow(*self._axes.values(), visible=False)
        self._walked = WalkedFigure(figure=figure.pane, sizing_mode="stretch_width", margin=0)
        self._walked.on_msg(locked(lambda event: self.walk(str(event.data))))
        parts = [self._walked if part is figure.pane else part for part in self.layout]
        self.layout[:] = [parts[0], self._axis_row, *parts[1:]]

    def _choose_axis(self, name: str, event: Any) -> None:
        shown = None if self._made is None else (self._made.x.name if name == "heat_x" else self._made.y.name)
        if event.new and event.new != shown:
            self.view.param.update(**{name: event.new})

    def show_figure(self, is_shown: bool) -> None:
        super().show_figure(is_shown)
        self._walked.visible = is_shown
        self._axis_row.visible = is_shown or self._made is not None

    def draw(self, answer: ChartRows) -> str:
        charted, rows, view = self.charted, answer.rows, self.view
        values = axis_values(rows)
        axes = heatmap.chosen_axes(values, view.heat_x, view.heat_y)
        if axes is None or (charted.is_of_traces and axes == ("kernel", "run") and len(set(values["run"])) == 1):
            self._made = None
            for layer, columns in zip(("cells", "gaps", "marks"), heatmap.no_cells(), strict=True):
                self.figure.replace(layer, columns)
            return NO_ROWS if rows.is_empty() else OF_TRACE if charted.is_of_traces else NO_AXES
        made = self._made = heatmap.heatmap(rows, values, axes, charted.metric, is_over=charted.is_over)
        for layer, columns in (("cells", made.cells), ("gaps", made.gaps), ("marks", made.marks)):
            self.figure.replace(layer, columns)
        drawn = self.figure.figure
        for on, name, axis, bokeh_axis in (("x", "heat_x", made.x, drawn.xaxis[0]), ("y", "heat_y", made.y, drawn.yaxis[0])):
            self.figure.follow(on, -0.5, len(axis.places) - 0.5)
            self.figure.name_ticks(dict(enumerate(axis.labels)), on=on, room=heatmap.NAME_ROOM)
            bokeh_axis.axis_label = axis.name
            self._axes[name].param.update(options=list(values), value=axis.name)
        labels = made.scale.labels(charted.metric) if made.scale else dict.fromkeys(heatmap.SCALE_PLACES, "")
        self._color_bar.update(title=charted.metric.title, major_label_overrides=labels)
        if self._is_walked and self._at is not None:
            self._point(self._at if self._at in self._cells() else None)
        return "" if made.scale else missing_text(rows, charted.metric)

    def note(self) -> str:
        made = self._made
        if made is None:
            return ""
        keys = "Hover or arrow keys tell exact values and why a cell is empty; click or Enter its samples."
        notes = [f"{heatmap.BEST_MARK} is the best. {keys}"]
        if made.scale is not None and made.scale.is_logarithmic:
            notes.append("Colours are logarithmic.")
        texts = set(made.marks["text"].tolist())
        notes += [f"{mark} {meaning}." for mark, meaning in heatmap.MARK_MEANINGS.items() if mark in texts]
        dropped = made.x.dropped_count + made.y.dropped_count
        if dropped:
            notes.append(f"{theme.count(dropped)} names have no place: filter for them.")
        return " ".join(notes)

    # ------------------------------------------------------------ the keyboard

    def walk(self, key: str) -> None:
        """Go on to the next cell, or choose the one that the keyboard is at.

        Args:
            key: one of STEPS, "choose", "here" where the chart has got the focus, or "away".
        """
        cells = self._cells()
        self._is_walked = key != "away"
        if key == "away" or not cells:
            self._point(None)
            return
        here = self._at if self._at in cells else self._first(cells)
        if key == "choose":
            if cells[here][0]:
                self.choose(cells[here][0])
            return
        x, y = STEPS.get(key, (0, 0))
        beside = (here[0] + x, here[1] + y)
        self._at = beside if beside in cells else here
        self._point(self._at)

    def _cells(self) -> dict[tuple[int, int], tuple[str, str]]:
        """Return key and text of every cell by its place; the key is empty where there is no figure."""
        made = self._made
        if made is None:
            return {}
        found = {}
        for columns in (made.cells, made.gaps):
            names = list(columns)
            for values in zip(*(columns[name].tolist() for name in names), strict=True):
                row = dict(zip(names, values, strict=True))
                told = "; ".join(row[name] for name in ("figure", "label", "others", "remark") if row.get(name))
                text = f"{row['place']}: {told or 'no figure, ' + row.get('reason', '')}."
                found[round((row["left"] + row["right"]) / 2), round((row["bottom"] + row["top"]) / 2)] = (
                    row.get("configuration", ""),
                    text,
                )
        return found

    def _first(self, cells: dict[tuple[int, int], tuple[str, str]]) -> tuple[int, int]:
        """Return where the keyboard begins: at the chosen cell, else at the best."""
        chosen = next((place for place, (key, _) in cells.items() if key and key == self.view.configuration), None)
        marks = self._made.marks if self._made else {}
        best = next((place for *place, text in zip(*marks.values(), strict=True) if text == heatmap.BEST_MARK), None) if marks else None
        return chosen or ((round(best[0]), round(best[1])) if best else next(iter(cells)))

    def _point(self, place: tuple[int, int] | None) -> None:
        """Outline the cell, and tell of it."""
        half = heatmap.HALF
        corners = [] if place is None else [(place[0] - half, place[1] - half, place[0] + half, place[1] + half)]
        columns = np.array(corners, dtype=np.float64).reshape(-1, 4).T
        self.figure.replace("pointed", dict(zip(heatmap.GAP_NUMBERS, columns, strict=True)))
        self._walked.said = "" if place is None else self._cells()[place][1]


class SplitChart(KernelChart):
    """A bar for each kernel, or for each configuration of one."""

    def bars(self, made: split.SplitBars) -> Columns:
        """Return the chart's own."""
        raise NotImplementedError

    def draw(self, answer: ChartRows) -> str:
        made, palette, hidden = self.charted.bars_of(answer), self.context.palette, self.view.hidden
        present = split.categories_of(answer.rows)
        known = theme.values_with(present)
        styles = {category: theme.style_of(category, known, palette) for category in present}
        entries = [LegendEntry(category, style.color, theme.SYMBOLS["square"]) for category, style in styles.items()]
        self.card.show_legend(hideable(entries, hidden))
        bars = self.bars(made)
        self.figure.replace("bars", bars)
        self.figure.name_ticks(made.names, leaves_none_out=True)
        self.figure.follow("x", -0.5, max(1, len(made.names)) - 0.5)
        self.figure.follow("y", *split.height_range([*bars["top"], *self.further(made)]))
        if made.names:
            return ""
        return ALL_HIDDEN if hidden_names(present, hidden) else missing_text(answer.rows, self.charted.metric)

    def further(self, made: split.SplitBars) -> Iterable[float]:
        """Draw what is not bars, and return how high it reaches."""
        return ()


class IntensityChart(SplitChart):
    """Arithmetic intensities."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows | None = None) -> None:
        figure = Figure("intensity", INTENSITIES, context.palette, ("bars",))
        super().__init__(context, view, charted, "Arithmetic intensity", figure, "bars")

    def bars(self, made: split.SplitBars) -> Columns:
        return made.intensities

    def draw(self, answer: ChartRows) -> str:
        missing = super().draw(answer)
        return missing or ("" if len(self.charted.bars_of(answer).intensities["top"]) else NO_INTENSITY)

    def note(self) -> str:
        return "In the order of their performance. The axis is logarithmic."


class PerformanceChart(SplitChart):
    """The chosen figure, with what the devices could reach."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows | None = None) -> None:
        figure = Figure("performance", PERFORMANCES, context.palette, ("bars", "roofs"))
        super().__init__(context, view, charted, "Performance", figure, "bars")

    def bars(self, made: split.SplitBars) -> Columns:
        return made.performances

    def further(self, made: split.SplitBars) -> Iterable[float]:
        metric, axis = self.charted.metric, self.figure.figure.yaxis[0]
        axis.axis_label, axis.formatter.code = metric.axis_label, tick_formatter(metric.ticks).code
        self.figure.replace("roofs", made.roofs)
        return list(made.roofs["y0"])

    def note(self) -> str:
        answer, metric = self.charted.answer, self.charted.metric
        if answer is None:
            return ""
        made = self.charted.bars_of(answer)
        title = " + ".join(run.title for run in self.charted.runs)
        what = "configurations of one kernel" if made.is_of_configurations else "the best configuration of each kernel"
        order = f"{what}, {'shortest' if metric.is_lower_better else 'highest'} first"
        notes = [f"{title}: {'kernels that take longest in all first' if made.is_of_trace else order}."]
        if len(made.roofs["y0"]):
            notes.append("▬ is what the device could reach.")
        notes.append("The axis is logarithmic.")
        if made.left_out:
            notes.append(split.left_out_text(made))
        if not len(made.intensities["top"]):
            notes.append(NO_INTENSITY)
        return " ".join(notes)
