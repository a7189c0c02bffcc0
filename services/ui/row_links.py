"""Where else the chosen row of the Kernels page has a place: on other pages, and among the rows of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlencode

from kernalyse.services.core.formatting import REPEATED_WORDS
from kernalyse.services.core.model import Filter, FilterOperator, TableQuery
from kernalyse.services.ui.charts.performance_rows import configuration_key
from kernalyse.services.ui.chosen_row import ChosenRow
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.diagnosis import point_key
from kernalyse.services.ui.names_wanted import whole
from kernalyse.services.ui.question import Question

WHOLE_PASS: Final = "model"
"""Category of what is no kernel: a pass of a model, which calls many."""


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
        self._history: Question[str] = Question(wake)

    def stop(self) -> None:
        self._history.stop()

    def of(self, row: ChosenRow, reach: Hashable) -> list[RowLink]:
        """Those known by now. reach: of the overview."""
        self._history.ask(row.key, partial(self._ask_history, row), reach)
        links = [*_on_the_roofline(row), *_within_the_run(row)]
        if series := self._history.answer_to(row.key):
            chosen = series if row.kind == "configuration" else ""
            href = _href("history", kernel=whole(row.kernel_name), subject=_history_subject(row), series=chosen)
            links.append(RowLink("Its history", href))
        return links

    async def _ask_history(self, row: ChosenRow) -> str:
        """Key of the series where several runs have it; of a kernel of a sweep, of one of its configurations. Else empty."""
        of_configuration = (Filter("label", re.sub(REPEATED_WORDS, "", row.label)),) if row.kind == "configuration" else ()
        subject = (Filter("kernel_name", row.kernel_name), Filter("subject", _history_subject(row)))
        known = (*of_configuration, *subject, *_told_apart(row), Filter("run_count", "1", FilterOperator.GREATER))
        found = (await self._client.table(TableQuery("history_series", filters=known, limit=1))).rows
        return str(found["series"][0]) if found.height else ""


def artifact_href(run_id: str, artifact_name: str) -> str:
    return f"/download/artifact?{urlencode({'run': run_id, 'name': artifact_name})}"


def _on_the_roofline(row: ChosenRow) -> list[RowLink]:
    if row.configurations is not None:
        has_points = row.configurations["achieved_flop_per_s"].count() > 0
        return [RowLink("On the roofline", _href("roofline", runs=row.run_id, kernel=whole(row.kernel_name)))] if has_points else []
    if row.figures.get("achieved_flop_per_s") is None:
        return []
    point = point_key({name: row.figures.get(name) for name in ("run_id", "configuration_index", "label", "path", "device_id")})
    return [RowLink("On the roofline", _href("roofline", runs=row.run_id, point=point))]


def _within_the_run(row: ChosenRow) -> list[RowLink]:
    """Its layer, its kernel, its configurations, and when it ran."""
    links = []
    if layer := row.figures.get("layer_path"):
        links.append(RowLink(f"Layer {layer}", _href("layers", runs=row.run_id, layer=layer, variant=row.figures.get("variant") or "")))
    if row.kind == "configuration" and row.figures.get("category") != WHOLE_PASS:
        of_kernel = {"run_id": row.run_id, "configuration_index": None, "kernel_name": row.kernel_name}
        links.append(RowLink("Its kernel", row=configuration_key(of_kernel)))
    if row.kind == "swept kernel":
        href = _href("kernels", runs=row.run_id, table="measurements", kernel=whole(row.kernel_name), configuration=row.key)
        links.append(RowLink("All its configurations", href))
    if row.is_of_trace and row.samples["measured_unix_ns"].count() > 0:
        links.append(RowLink("On the timeline", _href("timeline", runs=row.run_id, search=whole(row.kernel_name))))
    return links


def _told_apart(row: ChosenRow) -> tuple[Filter, ...]:
    """Of configurations of one label: histories have those of a cache, a backend and a device apart, not those of processes."""
    names = ("cache_mode", "backend", "device_id") if row.kind == "configuration" else ()
    return tuple(Filter(name, str(value)) for name in names if (value := row.figures.get(name)))


def _history_subject(row: ChosenRow) -> str:
    return "kernel" if row.is_of_trace else "configuration"


def _href(page: str, **fields: str) -> str:
    return f"/{page}?{urlencode({name: text for name, text in fields.items() if text})}"
