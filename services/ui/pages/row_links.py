"""Where else the chosen row of the Kernels page has a place: on other pages, and among the rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlencode

from services.core.model import Filter, FilterOperator, TableQuery
from services.ui.charts.performance_rows import configuration_key
from services.ui.chosen_row import ChosenRow
from services.ui.client import AnalyzerClient
from services.ui.diagnosis import point_key
from services.ui.question import Question
from services.ui.state import Page

WHOLE_PASS: Final = "model"
"""Category of what is no kernel: a pass of a model, which calls many."""

MAX_FILTER_LENGTH: Final = 200  # what the URL's fields take


@dataclass(frozen=True, slots=True)
class RowLink:
    """To a page; without one, row is the key of another row to choose."""

    title: str
    href: str = ""
    row: str = ""


class RowLinks:
    """On the server's loop; asks whether there is a history."""

    def __init__(self, client: AnalyzerClient, wake: Callable[[], None]) -> None:
        self._client = client
        self._has_history: Question[bool] = Question(wake)

    def stop(self) -> None:
        self._has_history.stop()

    def of(self, row: ChosenRow, reach: Hashable) -> list[RowLink]:
        """Those known by now. reach: of the overview."""
        self._has_history.ask(row.key, partial(self._ask_history, row), reach)
        links = [*_on_the_roofline(row), *_within_the_run(row)]
        if self._has_history.answer_to(row.key):
            links.append(RowLink("Its history", _href("history", kernel=row.label, subject=_history_subject(row))))
        return links

    async def _ask_history(self, row: ChosenRow) -> bool:
        """Whether several runs have it."""
        name = Filter("label" if row.kind == "configuration" else "kernel_name", row.label)
        filters = (name, Filter("subject", _history_subject(row)), Filter("run_count", "1", FilterOperator.GREATER))
        return (await self._client.table(TableQuery("history_series", filters=filters, limit=1))).rows.height > 0


def artifact_href(run_id: str, artifact_name: str) -> str:
    return f"/download/artifact?{urlencode({'run': run_id, 'name': artifact_name})}"


def _on_the_roofline(row: ChosenRow) -> list[RowLink]:
    if row.configurations is not None:
        has_points = row.configurations["achieved_flop_per_s"].count() > 0
        return [RowLink("On the roofline", _href("roofline", runs=row.run_id, kernel=row.kernel_name))] if has_points else []
    if row.figures.get("achieved_flop_per_s") is None:
        return []
    point = point_key({name: row.figures.get(name) for name in ("run_id", "configuration_index", "label", "path", "device_id")})
    return [RowLink("On the roofline", _href("roofline", runs=row.run_id, point=point))]


def _within_the_run(row: ChosenRow) -> list[RowLink]:
    """Its layer, its kernel, its configurations, and when it ran."""
    links = []
    if layer := row.figures.get("layer_path"):
        links.append(RowLink(f"Layer {layer}", _href("layers", runs=row.run_id, kernel=layer)))
    if row.kind == "configuration" and row.figures.get("category") != WHOLE_PASS:
        of_kernel = {"run_id": row.run_id, "configuration_index": None, "kernel_name": row.kernel_name}
        links.append(RowLink("Its kernel", row=configuration_key(of_kernel)))
    if row.kind == "swept kernel":
        href = _href("kernels", runs=row.run_id, table="measurements", kernel=row.kernel_name, configuration=row.key)
        links.append(RowLink("All its configurations", href))
    if row.is_of_trace and row.samples["measured_unix_ns"].count() > 0:
        links.append(RowLink("On the timeline", _href("timeline", runs=row.run_id, search=row.kernel_name)))
    return links


def _history_subject(row: ChosenRow) -> str:
    return "kernel" if row.is_of_trace else "configuration"


def _href(page: Page, **fields: str) -> str:
    return f"/{page}?{urlencode({name: text[:MAX_FILTER_LENGTH] for name, text in fields.items()})}"
