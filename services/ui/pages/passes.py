"""Whole passes of models on the Layers page: latency, throughput, percentiles, architecture, efficiency and memory, run over run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import holoviews as hv
import polars as pl
from bokeh.models import AdaptiveTicker

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.model import ModelRun, Run, TableQuery
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import models, passes
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.shell import MAX_LISTED_RUNS, fragment
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import ViewState
from kernalyse.services.ui.theme import MARKERS, SYMBOLS, Palette, Ticks

REFRESH_INTERVAL_S: Final = 1.5
MAX_ROWS: Final = 200
BARS: Final[dict[str, tuple[str, Ticks, int]]] = {
    "latency": ("mean of the passes", theme.DURATION_TICKS, 280),
    "throughput": ("tokens/s of the median", theme.SI_TICKS, 280),
    "memory": ("device memory", theme.MEMORY_TICKS, 280),
    "layer_count": ("layers", theme.PLAIN_TICKS, 220),
    "head_count": ("heads", theme.PLAIN_TICKS, 220),
    "width": ("width", theme.PLAIN_TICKS, 220),
}
"""Figures of bars: what they show, how it is written, and height in pixels."""


FILTERED: Final = ("model_name", "batch_size", "device_id")
"""Columns of table models that the page's filters hold for."""


def _bars(palette: Palette, _name: str) -> hv.Overlay:
    return models.bar_chart([""], [[]], "", palette)


def _as_bars_of(name: str, figure: Any) -> None:
    label, ticks, height_px = BARS[name]
    axis = figure.yaxis[0]
    axis.update(axis_label=label, formatter=tick_formatter(ticks))
    if ticks is theme.MEMORY_TICKS:
        axis.ticker = AdaptiveTicker(base=2, mantissas=[1])  # at whole KiB and MiB
    figure.update(height=height_px, min_height=height_px)


_bar_charts = {name: EmptyChart(_bars, name, adjust=partial(_as_bars_of, name)) for name in BARS}


@EmptyChart
def _percentiles(palette: Palette) -> hv.Overlay:
    places = tuple(passes.PERCENTILES)
    return models.line_chart(places, [], "time of a pass", palette, 280, theme.DURATION_TICKS, theme.duration)


@EmptyChart
def _efficiency(palette: Palette) -> hv.Overlay:
    return models.scatter_chart([], ("width of the embedding", "tokens/s of the median ÷ layers"), palette, 280)


def is_of_model(run: Run) -> bool:
    """Of a model here, or of results that were imported and may be those of one."""
    return isinstance(run.spec.work, ModelRun) or (run.is_imported and bool(run.total_configuration_count))


class PassCharts:
    """Figures and fragments. On the server's loop."""

    def __init__(self, client: AnalyzerClient, palette: Palette, wake: Callable[[], None]) -> None:
        self._client = client
        self._palette = palette
        self._rows: Question[pl.DataFrame] = Question(wake)
        self._drawn: tuple[object, ...] = ()
        self._notes = dict.fromkeys(("passes_legend", "percentiles_legend", "efficiency_legend", "passes_note"), "")
        self._bars = {name: LiveFigure(name, chart, palette, ("boxes", "whiskers")) for name, chart in _bar_charts.items()}
        self._percentiles = LiveFigure("percentiles", _percentiles, palette, ("strokes", "dots"))
        self._efficiency = LiveFigure("efficiency", _efficiency, palette, ("dots", "names"))

    def roots(self) -> dict[str, Any]:
        figures = {**self._bars, "percentiles": self._percentiles, "efficiency": self._efficiency}
        return {name: figure.figure for name, figure in figures.items()}

    def close(self) -> None:
        self._rows.stop()

    def fragments(self, runs: Sequence[Run], overview: Overview, state: ViewState, progress: tuple[object, ...]) -> dict[str, str]:
        """runs: those shown. progress: what changes when they have more to tell."""
        run_ids = tuple(run.run_id for run in runs)
        conditions = filters.query_filters(state, FILTERED)
        query = TableQuery("models", run_ids=run_ids, filters=conditions, limit=MAX_ROWS, columns=passes.COLUMNS)
        self._rows.ask(query, partial(self._ask, query), progress, REFRESH_INTERVAL_S)
        listed = [run for run in overview.runs[:MAX_LISTED_RUNS] if isinstance(run.spec.work, ModelRun) or run.run_id in run_ids]
        choice = [{"run_id": run.run_id, "title": run.title, "is_shown": run.run_id in run_ids} for run in listed]
        rows = self._rows.answer_to(query)
        if rows is not None and (query, id(rows), state.hidden) != self._drawn:
            self._drawn = (query, id(rows), state.hidden)
            self._draw(passes.passes_of(rows, {run.run_id: run.title for run in runs}), state.hidden)
        waiting = "Asking the analyzer for the passes." if self._rows.answered != query else ""
        note = self._rows.problem or waiting or self._notes["passes_note"]
        return {"reload": "", "pass_runs": fragment("pass_runs.html", runs=choice), **self._notes, "passes_note": note}

    async def _ask(self, query: TableQuery) -> pl.DataFrame:
        return (await self._client.table(query)).rows

    # ------------------------------------------------------------ drawing

    def _draw(self, found: passes.Passes, hidden: Collection[str]) -> None:
        """hidden: keys of runs and of passes."""
        hidden_runs = hidden_names(found.run_ids, hidden) if len(found.run_ids) > 1 else set()
        shown = found.without_runs(hidden_runs)
        self._draw_bars("latency", shown, shown.latency())
        self._draw_bars("throughput", shown, shown.figures("tokens_per_s", lambda value: theme.si(value, "tokens/s")))
        self._draw_bars("memory", shown, shown.figures("memory_bytes", theme.memory))
        for name in ("layer_count", "head_count", "width"):
            self._draw_bars(name, shown, shown.figures(name, theme.count))
        lines, points = found.percentiles(), found.throughput_of_layers()
        titles = [line.name for line in lines]
        listed = {shown.title(row) for row in shown.rows.values()}
        drawn = listed - hidden_names(titles, hidden)
        self._draw_percentiles([line if line.name in drawn else models.Line(line.name, ()) for line in lines])  # colours stay
        self._draw_efficiency([point for point in points if point.name in drawn])
        runs = hideable(self._entries(list(found.titles.values()), (SYMBOLS["square"],)), hidden, found.run_ids)
        entries = hideable(self._entries(titles, tuple(SYMBOLS[marker] for marker in MARKERS)), hidden)
        placed = {point.name for point in points}
        self._notes = {
            "passes_legend": _unknown(found) + (legend_fragment(runs) if len(found.run_ids) > 1 else ""),
            "percentiles_legend": legend_fragment(entry for entry in entries if entry.name in listed),
            "efficiency_legend": legend_fragment(entry for entry in entries if entry.name in listed & placed),
            "passes_note": _note(found),
        }

    def _draw_bars(self, name: str, found: passes.Passes, sides: passes.Sides) -> None:
        figure = self._bars[name]
        boxes, whiskers = models.bar_columns(sides, self._palette)
        figure.replace("boxes", boxes)
        figure.replace("whiskers", whiskers)
        figure.name_ticks(dict(enumerate(found.names)), leaves_none_out=len(found.names) <= models.FEW)
        figure.follow("x", -0.5, max(1, len(found.names)) - 0.5)
        highest = max((*boxes["top"].tolist(), *whiskers["y1"].tolist()), default=0.0)
        figure.follow("y", 0.0, models.top_of(highest))

    def _draw_percentiles(self, lines: Sequence[models.Line]) -> None:
        strokes, dots = models.line_columns(tuple(passes.PERCENTILES), lines, self._palette, theme.duration)
        self._percentiles.replace("strokes", strokes)
        self._percentiles.replace("dots", dots)
        values = dots["y"].tolist()
        if values:
            self._percentiles.follow("y", min(values) / 1.15, max(values) * 1.15)
            self._percentiles.name_ticks({value: theme.duration(value) for value in models.round_values(values)}, on="y")

    def _draw_efficiency(self, points: Sequence[models.Point]) -> None:
        dots, names = models.scatter_columns(points, self._palette)
        self._efficiency.replace("dots", dots)
        self._efficiency.replace("names", names)
        if len(dots["x"]):
            self._efficiency.follow("x", 0.0, float(dots["x"].max()) * 1.5)
            self._efficiency.follow("y", 0.0, float(dots["y"].max()) * 1.15)

    def _entries(self, names: Sequence[str], symbols: Sequence[str]) -> list[LegendEntry]:
        colors = self._palette.series
        return [LegendEntry(name, colors[place % len(colors)], symbols[place % len(symbols)]) for place, name in enumerate(names)]


def _unknown(found: passes.Passes) -> str:
    """Which charts have nothing to show, as marks that the style sheet goes by: a model that takes no tokens has no throughput of them."""
    columns = {"throughput": ("tokens_per_s",), "memory": ("memory_bytes",), "architecture": ("layer_count", "head_count", "width")}
    without = [name for name, names in columns.items() if not found.is_known(*names)]
    if not found.throughput_of_layers():
        without.append("efficiency")
    return fragment("without.html", without=without if found.rows else ())


def _note(found: passes.Passes) -> str:
    if not found.rows:
        return "No pass of a model matches: choose a run of a model, or fewer filters."
    is_going_on = any(row["duration_standard_deviation_ns"] is None for row in found.rows.values())
    so_far = " Passes of a run that goes on have no whiskers yet." if is_going_on else ""
    disturbed = disturbance_note(row["disturbance"] for row in found.rows.values())
    return f"Latency is the mean of the passes with one standard deviation.{so_far} {disturbed}".rstrip()
