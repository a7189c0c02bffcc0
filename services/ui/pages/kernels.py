"""The Kernels page: how the configurations of a run did, over its parameters, kernel by kernel, row by row, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kernalyse.services.ui.charts.metrics import METRICS, metric_of
from kernalyse.services.ui.charts.performance_rows import configuration_key
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.kernel_charts import ChartRows, KernelCharts, ask_rows
from kernalyse.services.ui.pages.row_detail import RowDetail
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.pages.tabled import REFRESH_INTERVAL_S, TabledPage
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import Page, ViewState


class KernelsPage(TabledPage):
    page: Page = "kernels"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.charts = KernelCharts(self.palette, self._choose)
        self.detail = RowDetail(client, self.palette, self.wake)
        self._chart_rows: Question[ChartRows] = Question(self.wake)

    def roots(self) -> dict[str, Any]:
        return {**self.charts.roots(), **self.detail.roots()}

    def close(self) -> None:
        self._chart_rows.stop()
        self.detail.stop()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        if name == "choose":
            self._choose("" if value == self.state.configuration else value)
            return None
        return super().handle(name, value)

    def _choose(self, configuration: str) -> None:
        self.state = replace(self.state, configuration=configuration, listing="")
        self.wake()

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        overview = self.with_older_runs(overview)
        run_ids = self.shown_run_ids(overview)
        shown = [run for run in overview.runs if run.run_id in run_ids]
        view = replace(ViewState(), **{name: getattr(self.state, name) for name in CHART_FIELDS})
        self._chart_rows.ask((view, run_ids), partial(ask_rows, self.client, view, run_ids), self.progress(overview), REFRESH_INTERVAL_S)
        drawn = self.charts.draw(
            self._chart_rows.answer,
            self.state,
            " + ".join(run.title for run in shown),
            is_over=all(run.state.is_final for run in shown),
            is_trace=bool(shown) and all(run.is_trace for run in shown),
        )
        if self._chart_rows.problem:
            said = fragment("said.html", sentence=self._chart_rows.problem)
            drawn = {**drawn, "heat_note": said, "split_note": said}
        detail = self.detail.fragments(self.state, self._progress_of_choice(overview), overview.reach)
        return {**super().own_fragments(overview), **drawn, **detail, "figure_choice": self._figure_choice()}

    def _progress_of_choice(self, overview: Overview) -> object:
        """What changes with the chosen row: its own run alone."""
        run_id = self.state.configuration.rpartition(".")[0]
        of_run = ((run.state, run.is_settled, run.completed_configuration_count) for run in overview.runs if run.run_id == run_id)
        return next(of_run, None), overview.revision

    def _figure_choice(self) -> str:
        titles = {name: metric.title for name, metric in METRICS.items()}
        answer = self._chart_rows.answer
        chosen = metric_of(self.state.figure, answer.rows) if answer else self.state.figure
        return fragment("figure_choice.html", titles=titles, chosen=chosen)

    def row_key(self, row: Mapping[str, Any]) -> str:
        match self.state.table:
            case "measurements" | "kernels" | "launched":
                return configuration_key({"configuration_index": None, **row})
            case _:
                return ""


CHART_FIELDS: Final = ("kernel", "category", "dtype", "model", "batch_size", "device")
"""Filters, which the charts' rows depend on."""
