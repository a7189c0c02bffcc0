"""Heatmap and split charts of the Kernels page: asked for, drawn, and explained in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import holoviews as hv
import polars as pl
from bokeh.models.annotations import ColorBar

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.model import Filter, FilterOperator, TableQuery
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import heatmap, split
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.charts.metrics import METRICS, Metric, metric_of
from kernalyse.services.ui.charts.performance_rows import ANNOUNCED, FAILED, PLACED, axis_values, performance_rows
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.state import ViewState
from kernalyse.services.ui.theme import SYMBOLS, Palette, style_of, values_with

MAX_CHARTED_ROWS: Final = 20_000
"""Configurations asked for: a heatmap of more would have dozens in each cell, and take seconds to put together."""

NO_AXES: Final = (
    "A heatmap needs something that varies: a sweep over parameters (kernalyse bench matmul_tiled -p N=256,512 -p M=256,512), "
    "several kernels, or several models."
)
NO_ROWS: Final = "No configuration of these runs matches the filters."
ALL_HIDDEN: Final = "The legend hides all that has this figure: a click on a name shows it again."
OF_TRACE: Final = "A trace has no parameters to lay out: a heatmap needs a sweep, or kernels of several models."


@dataclass(frozen=True, slots=True)
class ChartRows:
    """rows: what `performance_rows` says. total_row_count: configurations that match, of which at most MAX_CHARTED_ROWS are here."""

    rows: pl.DataFrame
    total_row_count: int


@EmptyChart
def _heatmap_chart(palette: Palette) -> hv.Overlay:
    return heatmap.heatmap_chart(*heatmap.no_cells(), palette)


@EmptyChart
def _intensity_chart(palette: Palette) -> hv.Overlay:
    return split.intensity_chart(split.no_bars(), palette)


@EmptyChart
def _performance_chart(palette: Palette) -> hv.Overlay:
    return split.performance_chart(split.no_bars(), split.no_roofs(), palette)


async def ask_rows(client: AnalyzerClient, state: ViewState, run_ids: tuple[str, ...]) -> ChartRows:
    """What the charts of these runs stand on, filtered as the view is. Raises KernalyseError."""

    def query(table_name: str, columns: tuple[str, ...], *further: Filter) -> TableQuery:
        wanted = (*filters.query_filters(state, columns), *further)
        return TableQuery(table_name, run_ids, filters=wanted, limit=MAX_CHARTED_ROWS, columns=columns)

    launched = Filter("launch_count", "0", FilterOperator.GREATER)
    announced, placed, failed, kernels = await asyncio.gather(
        client.table(query("configurations", ANNOUNCED)),
        client.table(query("roofline", PLACED)),
        client.table(TableQuery("failures", run_ids, limit=MAX_CHARTED_ROWS, columns=FAILED)),
        client.table(
            query("kernels", ("run_id", "kernel_name", "category", "duration_sum_ns", "duration_median_ns", "launch_count"), launched)
        ),
    )
    rows = performance_rows(announced.rows, placed.rows, failed.rows, kernels.rows)
    return ChartRows(rows, max(announced.total_row_count, placed.total_row_count))


class KernelCharts:
    """The three figures.

    Args:
        choose: called with the key of a configuration that was clicked on.
    """

    def __init__(self, palette: Palette, choose: Callable[[str], None]) -> None:
        self._palette = palette
        self.heatmap = LiveFigure("heatmap", _heatmap_chart, palette, heatmap.LAYERS)
        self.intensity = LiveFigure("intensity", _intensity_chart, palette, ("bars",))
        self.performance = LiveFigure("performance", _performance_chart, palette, ("bars", "roofs"))
        self._color_bar: Any = self.heatmap.figure.select_one(ColorBar)
        self._drawn: tuple[object, ...] = ()
        self._answer: ChartRows | None = None
        self._fragments: dict[str, str] = {}
        self._choosable = ((self.heatmap, "cells"), (self.intensity, "bars"), (self.performance, "bars"))
        for figure, layer in self._choosable:
            figure.on_choice(layer, lambda place, figure=figure, layer=layer: choose(figure.text(layer, "configuration", place)))  # type: ignore[misc]

    def roots(self) -> dict[str, Any]:
        return {"heatmap": self.heatmap.figure, "intensity": self.intensity.figure, "performance": self.performance.figure}

    def draw(self, answer: ChartRows | None, state: ViewState, title: str, *, is_over: bool, is_trace: bool) -> dict[str, str]:
        """Brings the figures up to date; answers with what is said beside them. title: of the runs."""
        wanted = (state.figure, state.heat_x, state.heat_y, title, state.hidden, is_over)
        if answer is None:
            return {"heat_axes": "", "heat_note": "Asking the analyzer.", "split_note": "Asking the analyzer.", "split_legend": ""}
        if wanted != self._drawn or answer is not self._answer:
            if wanted[:-2] != self._drawn[:-2]:
                for figure in (self.heatmap, self.intensity, self.performance):
                    figure.forget_moves()
            self._drawn, self._answer = wanted, answer
            metric = METRICS[metric_of(state.figure, answer.rows)]
            self._fragments = {
                **self._draw_heatmap(answer.rows, state, metric, is_over=is_over, is_trace=is_trace),
                **self._draw_split(answer.rows, state, metric, title),
            }
            note = disturbance_note(answer.rows.filter("is_measured")["disturbance"])
            if note:
                self._fragments["heat_note"] += f" {note}"
                self._fragments["split_note"] += f" {note}"
            if answer.total_row_count > answer.rows.height:
                all_of_them, here = theme.count(answer.total_row_count), theme.count(answer.rows.height)
                left_out = f" Of {all_of_them} configurations the first {here}: filter for others."
                self._fragments["heat_note"] += left_out
                self._fragments["split_note"] += left_out
        for figure, layer in self._choosable:
            figure.choose(layer, "configuration", state.configuration)
        return self._fragments

    def _draw_heatmap(self, rows: pl.DataFrame, state: ViewState, metric: Metric, *, is_over: bool, is_trace: bool) -> dict[str, str]:
        values = axis_values(rows)
        axes = heatmap.chosen_axes(values, state.heat_x, state.heat_y)
        if axes is None or (is_trace and axes == ("kernel", "run") and len(set(values["run"])) == 1):
            for layer, columns in zip(("cells", "gaps", "marks"), heatmap.no_cells(), strict=True):
                self.heatmap.replace(layer, columns)
            note = NO_ROWS if rows.is_empty() else OF_TRACE if is_trace else NO_AXES
            return {"heat_axes": "", "heat_note": fragment("said.html", sentence=note)}
        made = heatmap.heatmap(rows, values, axes, metric, is_over=is_over)
        for layer, columns in (("cells", made.cells), ("gaps", made.gaps), ("marks", made.marks)):
            self.heatmap.replace(layer, columns)
        for on, axis in (("x", made.x), ("y", made.y)):
            self.heatmap.follow(on, -0.5, len(axis.places) - 0.5)
            self.heatmap.name_ticks(dict(enumerate(axis.labels)), on=on, room=heatmap.NAME_ROOM)
        self.heatmap.figure.xaxis[0].axis_label, self.heatmap.figure.yaxis[0].axis_label = made.x.name, made.y.name
        self._color_bar.title = metric.title
        self._color_bar.major_label_overrides = made.scale.labels(metric) if made.scale else dict.fromkeys(heatmap.SCALE_PLACES, "")
        return {
            "heat_axes": fragment("heat_axes.html", names=list(values), x=made.x.name, y=made.y.name),
            "heat_note": _heat_note(made) if made.scale else fragment("said.html", sentence=_missing_text(rows, metric)),
        }

    def _draw_split(self, rows: pl.DataFrame, state: ViewState, metric: Metric, title: str) -> dict[str, str]:
        present = split.categories_of(rows)
        hidden = hidden_names(present, state.hidden)
        made = split.split_bars(rows, metric, self._palette, hidden)
        self.intensity.replace("bars", made.intensities)
        self.performance.replace("bars", made.performances)
        self.performance.replace("roofs", made.roofs)
        axis = self.performance.figure.yaxis[0]
        axis.axis_label, axis.formatter.code = metric.axis_label, tick_formatter(metric.ticks).code
        for figure, heights in (
            (self.intensity, made.intensities["top"]),
            (self.performance, [*made.performances["top"], *made.roofs["y0"]]),
        ):
            figure.name_ticks(made.names, leaves_none_out=True)
            figure.follow("x", -0.5, max(1, len(made.names)) - 0.5)
            figure.follow("y", *split.height_range(heights))
        missing = ALL_HIDDEN if hidden else _missing_text(rows, metric)
        entries = [
            LegendEntry(category, style_of(category, values_with(present), self._palette).color, SYMBOLS["square"]) for category in present
        ]
        return {
            "split_legend": legend_fragment(hideable(entries, state.hidden)),
            "split_note": fragment("split_note.html", text=_split_note(made, metric, title), has_intensities=len(made.intensities["top"]))
            if made.names
            else fragment("said.html", sentence=missing),
        }


def _missing_text(rows: pl.DataFrame, metric: Metric) -> str:
    """Why nothing can be drawn."""
    return NO_ROWS if rows.is_empty() else f"No figure to draw: {metric.missing}."


def _heat_note(made: heatmap.Heatmap) -> str:
    notes = [f"{heatmap.BEST_MARK} is the best. Hover or arrow keys tell exact values and why a cell is empty; click or Enter its samples."]
    if made.scale is not None and made.scale.is_logarithmic:
        notes.append("Colours are logarithmic.")
    texts = set(made.marks["text"].tolist())
    notes += [f"{mark} {meaning}." for mark, meaning in heatmap.MARK_MEANINGS.items() if mark in texts]
    dropped = made.x.dropped_count + made.y.dropped_count
    if dropped:
        notes.append(f"{theme.count(dropped)} names have no place: filter for them.")
    return " ".join(notes)


def _split_note(made: split.SplitBars, metric: Metric, title: str) -> str:
    what = "configurations of one kernel" if made.is_of_configurations else "the best configuration of each kernel"
    order = f"{what}, {'shortest' if metric.is_lower_better else 'highest'} first"
    notes = [f"{title}: {'kernels that take longest in all first' if made.is_of_trace else order}."]
    if len(made.roofs["y0"]):
        notes.append("▬ is what the device could reach.")
    notes.append("Axes are logarithmic.")
    if made.left_out:
        notes.append(split.left_out_text(made))
    if not len(made.intensities["top"]):
        notes.append("No intensity: how many flop and bytes they need is not known.")
    return " ".join(notes)
