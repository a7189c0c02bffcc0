"""Filters and table of the page Kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import panel as pn

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.metrics import METRICS
from kernalyse.services.ui.components.base import field
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.kernel_charts import ChartedRows
from kernalyse.services.ui.components.runs import MAX_LISTED_RUNS
from kernalyse.services.ui.components.table import TableRows, progress_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.runs import run_card
from kernalyse.services.ui.data.table_columns import TableName
from kernalyse.services.ui.theme import CATEGORIES
from kernalyse.services.ui.view import KernelsView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

FIGURES: Final = {metric.title: name for name, metric in METRICS.items()}
DTYPES: Final = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64")


class RunChoice:
    """The choice of one run.

    Args:
        of_none: what is said where none is chosen.
    """

    def __init__(self, context: Context, of_none: str) -> None:
        self._context = context
        self._none = {of_none: ""}
        self._listed: object = None
        self.widget = pn.widgets.Select(label="Run", options=self._none, sizing_mode="stretch_width", min_width=0, margin=0)
        self.widget.param.watch(self._choose, "value")

    def update(self, known_runs: Sequence[Run]) -> None:
        """Offer the newest runs, and what is chosen. known_runs: those that may be older."""
        overview, shown = self._context.overview, self._context.view.runs
        newest = overview.runs[:MAX_LISTED_RUNS]
        listed = [*newest, *(run for run in known_runs if run.run_id in shown and run not in newest)]
        made = ([(run.run_id, run.title) for run in listed], tuple(shown))
        if made == self._listed:
            return
        self._listed = made
        cards = [run_card(run, overview, time.time()) for run in listed]
        runs = {f"{told.title[:40]} · {told.create_text[5:16]} · {theme.short_run_id(told.run_id)}": told.run_id for told in cards}
        if len(shown) > 1 or not set(shown) <= set(runs.values()):
            runs[f"{len(shown)} runs" if len(shown) > 1 else theme.short_run_id(shown[0])] = ",".join(shown)
        self.widget.param.update(options=self._none | runs, value=",".join(shown))

    def _choose(self, event: Any) -> None:
        if event.new != ",".join(self._context.view.runs):
            self._context.view.runs = [run_id for run_id in event.new.split(",") if run_id]


class KernelFilters(Filters):
    """Filters with the choice of a run, and of the figure that charts show."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows) -> None:
        self._run = RunChoice(context, "all")
        self._figure = pn.widgets.Select(label="Charts show", options=FIGURES, sizing_mode="stretch_width", min_width=0, margin=0)
        super().__init__(context, self._run.widget, self._figure)
        self._view = view
        self._charted = charted
        self._figure.param.watch(self._choose_figure, "value")

    def update(self) -> None:
        self._charted.update()
        self.offer(self._values())
        self._figure.value = self._drawn_figure
        self._run.update(self._charted.known_runs)

    @property
    def _drawn_figure(self) -> str:
        return self._charted.metric_name or self._view.figure or next(iter(METRICS))

    def _values(self) -> dict[str, tuple[str, ...]]:
        """Of the shown runs' own words: a table of a million rows is not searched for what there is to choose."""
        chosen = self.context.view.runs
        if not chosen:
            devices = tuple(device.device_id for status in self.context.overview.nodes if status.node for device in status.node.devices)
            return {"category": tuple(CATEGORIES), "dtype": DTYPES, "device": tuple(dict.fromkeys(devices))}
        memories = self.context.memories(chosen)
        tables = [memory.table(name) for memory in memories for name in ("configurations", "roofline")]
        return filters.together(filters.values_of(table) for table in tables if table is not None)

    def _choose_figure(self, event: Any) -> None:
        if event.new != self._drawn_figure:
            self._view.figure = event.new


class KernelTable(TableRows):
    """Rows of the chosen table of the chosen runs, of all runs where none is chosen."""

    def __init__(self, context: Context, view: KernelsView, charted: ChartedRows) -> None:
        choice = field(pn.widgets.Select, view.param.table)
        choice.param.update(sizing_mode="fixed", width=230)
        super().__init__(context, view, "kernels", (choice,))
        self._kernels = view
        self._charted = charted

    def prepare(self) -> None:
        self._charted.update()
        runs = self.runs()
        if self._kernels.table == "measurements" and runs and all(run.is_trace for run in runs):
            self._kernels.table = "launched"  # traces have no measurements, which are shown where nobody has chosen

    @property
    def table(self) -> TableName:
        table: TableName = self._kernels.table
        return table

    def progress(self) -> object:
        overview = self.context.overview
        return progress_of(self.runs() if self.context.view.runs else overview.runs, overview)

    def runs(self) -> list[Run]:
        return [run for run in self._charted.known_runs if run.run_id in self.context.view.runs]

    def choose(self, key: str) -> None:
        self._kernels.configuration = key

    def chosen(self) -> str:
        return self._kernels.configuration
