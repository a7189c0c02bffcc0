"""The Layers page: layers of traces and of models, as a tree, as bars and as a table, while a model's run goes on too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import ModelRun, Run, SortKey, TableQuery
from kernalyse.services.ui import filters
from kernalyse.services.ui.charts import icicle, layers
from kernalyse.services.ui.client import AnalyzerClient, TablePage
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.layer_tree import LayerTree, ShownRun
from kernalyse.services.ui.pages.passes import PassCharts, is_of_model
from kernalyse.services.ui.pages.shell import filters_fragment, fragment
from kernalyse.services.ui.pages.tabled import DTYPES, REFRESH_INTERVAL_S, TabledPage
from kernalyse.services.ui.state import Page, TableName, ViewState
from kernalyse.services.ui.table_columns import NAME_COLUMNS
from kernalyse.services.ui.theme import MARKERS, SYMBOLS, Palette

MAX_CHARTED_LAYERS: Final = 20_000
"""Rows asked for to sum them by kind; those beyond the longest ones are too short for a bar."""

TABLES: Final[dict[TableName, str]] = {
    "layers": "layers",
    "layer_kernels": "kernels of each layer",
    "layer_variants": "variants side by side",
    "models": "whole passes",
}
CHARTED: Final = ("layer", "variant", "launch_count", "duration_sum_ns", "share_ratio", "efficiency_ratio", "pass_duration_median_ns")


PASS_CHARTS: Final = (
    ("latency", "Latency of a pass"),
    ("throughput", "Throughput"),
    ("percentiles", "Percentiles of latency"),
    ("efficiency", "Efficiency: throughput for each layer"),
    ("memory", "Memory"),
)


@EmptyChart
def _chart(palette: Palette) -> hv.Overlay:
    return layers.layer_chart(layers.no_bars(), palette)


class LayersPage(TabledPage):
    """The table of the Kernels page with rows of its own, over a chart of the shown run's layers."""

    page: Page = "layers"
    row_choice = TABLES

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        self._is_chosen = state.table in TABLES
        super().__init__(client, state if self._is_chosen else replace(state, table="layers"))
        self.tree = LayerTree(client, self.palette, self.wake, self._look_into)
        self.chart = LiveFigure("layers", _chart, self.palette, ("bars",))
        shown = self._shown_runs(self.with_older_runs(client.nodes.overview()))
        self.passes = PassCharts(client, self.palette, self.wake) if any(map(is_of_model, shown)) else None
        self._charted: Run | None = None
        self._kinds: pl.DataFrame | None = None
        self._drawn: pl.DataFrame | None = None
        self._drawn_without: tuple[str, ...] = ()  # keys of series that were hidden then

    def roots(self) -> dict[str, Any]:
        passes = {} if self.passes is None else self.passes.roots()
        return {"icicle": self.tree.figure.figure, "layers": self.chart.figure, **passes}

    def template_values(self) -> dict[str, Any]:
        return {"layer_colors": icicle.COLOR_TITLES, "has_passes": self.passes is not None, "pass_charts": PASS_CHARTS}

    def close(self) -> None:
        self.tree.close()
        if self.passes is not None:
            self.passes.close()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        if name == "toggle-run" and not self.state.runs:
            # The newest run is shown without being named; choosing another adds to it.
            self.state = replace(self.state, runs=tuple(run.run_id for run in self._shown_runs(self.client.nodes.overview())))
        if name == "all-kernels":
            self.state = replace(self.state, kernel="", category="", dtype="", row=0)
        if name == "set" and value.startswith("table="):
            self._is_chosen = True
        return super().handle(name, value)

    def _look_into(self, layer: str) -> None:
        self.state = replace(self.state, layer=layer)
        self.wake()

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        overview = self.with_older_runs(overview)
        shown = self._shown_runs(overview)
        self._charted = shown[0] if shown else None
        work = None if self._charted is None else self._charted.spec.work
        if not self._is_chosen:
            has_variants = isinstance(work, ModelRun) and len(work.variants) > 1
            wanted: TableName = "layer_kernels" if self.state.kernel else "layer_variants" if has_variants else "layers"
            self.state = self.state if self.state.table == wanted else replace(self.state, table=wanted, columns=(), sort="")
        if self._kinds is not self._drawn or self.state.hidden != self._drawn_without:
            self._draw(self._kinds)
        return {
            **super().own_fragments(overview),
            **self.tree.fragments(self._shown_run(overview), self.state),
            "layers_legend": self._legend(),
            "layers_note": self._note(),
            **self._passes(shown, overview),
        }

    def _shown_runs(self, overview: Overview) -> list[Run]:
        """In the order in which they were chosen."""
        by_id = {run.run_id: run for run in overview.runs}
        return [by_id[run_id] for run_id in self.shown_run_ids(overview) if run_id in by_id]

    def _passes(self, shown: list[Run], overview: Overview) -> dict[str, str]:
        """Figures cannot be added to a page: where there are passes to show and no figures for them, it has to be opened anew."""
        if self.passes is None:
            return {"reload": fragment("reload.html", is_wanted=any(map(is_of_model, shown)))}
        return self.passes.fragments(shown, overview, self.state, (self.progress(overview), overview.problem))

    def _filters(self, overview: Overview) -> str:
        """Those that a layer's kernels have, and passes."""
        of_trace = self._charted is not None and self._charted.is_trace
        values = filters.together([filters.values_of(frame) for frame in self._configurations()])
        values["category"] = self.tree.categories or values.get("category", ())
        if of_trace:
            values["dtype"] = DTYPES
        return filters_fragment(self.state, values)

    def _configurations(self) -> list[pl.DataFrame]:
        shown = self.memories(self.shown_run_ids(self.client.nodes.overview()))
        return [frame for memory in shown if (frame := memory.table("configurations")) is not None]

    def asked_view(self) -> ViewState:
        """Rows of layers are filtered by the layer's name, which is no kernel's."""
        return replace(self.state, kernel=self.state.layer_name) if self.state.table in NAME_COLUMNS else self.state

    def _shown_run(self, overview: Overview) -> ShownRun | None:
        run = self._charted
        if run is None:
            return None
        is_being_read = run.state.is_final and not run.is_settled
        hope = "The trace is being read: its layers appear here." if is_being_read else ""
        if isinstance(run.spec.work, ModelRun) and not run.state.is_final:
            hope = "No layer has been timed yet: each appears here with its first sample."
        return ShownRun(run.run_id, (self.progress(overview), overview.problem), hope, run.spec.work)

    def progress(self, overview: Overview) -> tuple[object, ...]:
        """A model's layers change with every pass, not only when one of them is done."""
        is_going_on = any(isinstance(run.spec.work, ModelRun) and not run.state.is_final for run in overview.runs)
        return (*super().progress(overview), self._charted and self._charted.run_id, is_going_on and int(time.time() / REFRESH_INTERVAL_S))

    async def ask(self, query: TableQuery) -> TablePage:
        answer = await super().ask(query)
        self._kinds = None if self._charted is None else layers.kinds_of(await self._layers_of(self._charted.run_id))
        return answer

    async def _layers_of(self, run_id: str) -> pl.DataFrame:
        order = (SortKey("duration_sum_ns", True),)
        query = TableQuery("layers", run_ids=(run_id,), order_by=order, limit=MAX_CHARTED_LAYERS, columns=CHARTED)
        return (await self.client.table(query)).rows

    def _draw(self, kinds: pl.DataFrame | None) -> None:
        """Puts other bars into the figure that there is."""
        self._drawn, self._drawn_without = kinds, self.state.hidden
        hidden = set() if kinds is None else hidden_names(layers.variants_of(kinds), self.state.hidden)
        bars, names = (layers.no_bars(), {}) if kinds is None else layers.bar_columns(kinds, self.palette, hidden)
        self.chart.replace("bars", bars)
        self.chart.name_ticks(names, leaves_none_out=True)
        self.chart.follow("x", -0.5, max(1, len(names)) - 0.5)
        if len(bars["top"]):
            self.chart.follow("y", 0.0, float(bars["top"].max()) * 1.08)

    def _legend(self) -> str:
        variants = [] if self._kinds is None else [name for name in layers.variants_of(self._kinds) if name]
        colors = self.palette.series
        entries = (LegendEntry(name, colors[place % len(colors)], SYMBOLS[MARKERS[1]]) for place, name in enumerate(variants))
        return legend_fragment(hideable(entries, self.state.hidden))

    def _note(self) -> str:
        if self._kinds is None or self._kinds.is_empty():
            return "Choose a run of a model or a trace, or start one: kernalyse model gpt-nano --variant baseline --variant fused"
        if self._charted is None:
            return ""
        is_model = isinstance(self._charted.spec.work, ModelRun)
        what = "one pass, each launch at its median" if is_model else "those that take longest"
        notes = [f"{self._charted.title}: {what}; layers that differ by a number alone together.", *self._sums(self._charted)]
        return " ".join(notes)

    def _sums(self, run: Run) -> Iterator[str]:
        """What the layers of each variant take beside its whole passes."""
        if self._kinds is None:
            return
        for part in self._kinds.partition_by("variant", maintain_order=True):
            note = layers_note(run.spec.work, part["duration_sum_ns"].sum(), part["pass_duration_median_ns"].max())  # type: ignore[arg-type]
            if note:
                yield f"{part['variant'][0]}: {note}" if part["variant"][0] else note
