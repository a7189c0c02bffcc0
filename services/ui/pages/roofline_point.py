"""The panel of the Roofline page that explains the chosen point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from kernalyse.services.core.model import Filter, ImportedTrace, Run, SortKey, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.roofline_points import LEVEL_TITLES
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.diagnosis import diagnosis, rows_of_point
from kernalyse.services.ui.memory import RunMemory
from kernalyse.services.ui.pages.results import result_rows
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.theme import Outline, Palette, efficiency_style


class PointPanel:
    """Asks for the occupancy of a trace's kernel when one is chosen. on_answer: called when it has come."""

    def __init__(self, client: AnalyzerClient, palette: Palette, on_answer: Callable[[], None]) -> None:
        self._client = client
        self._palette = palette
        self._occupancy: Question[pl.DataFrame] = Question(on_answer)

    def stop(self) -> None:
        self._occupancy.stop()

    def html(
        self, chosen: pl.DataFrame, memories: Sequence[RunMemory], placed: pl.DataFrame, neighbours: Sequence[str], revision: int
    ) -> str:
        """Of the chosen point.

        Args:
            chosen: its rows, one for each memory level shown; none: it is not shown.
            placed: rows that have a place on the chart.
            neighbours: keys of the points under the same click.
            revision: of the overview.
        """
        if chosen.is_empty():
            return fragment("point_gone.html")
        row = chosen.row(0, named=True)
        memory = next(memory for memory in memories if memory.run_id == row["run_id"])
        told = diagnosis(row, _measurement_of(row, memory), self._occupancy_of(row, revision), in_macs=_is_in_macs(memory.run))
        return fragment(
            "point.html",
            told=told,
            badge=self._palette.bad if row["is_implausible"] else efficiency_style(told.category, self._palette).color,
            symbol=theme.IMPLAUSIBLE_SYMBOL if row["is_implausible"] else Outline.of(told.category).symbol,
            run_title=memory.run.title if memory.run else theme.short_run_id(row["run_id"]),
            levels=result_rows(chosen) if chosen.height > 1 else [],
            level_names=[LEVEL_TITLES.get(level, level) for level in chosen["memory_level"]],
            neighbours=_named(neighbours, placed),
        )

    def _occupancy_of(self, row: dict[str, Any], revision: int) -> dict[str, Any] | None:
        """Of a trace's kernel: its launch configuration that took longest."""
        if row["configuration_index"] is not None or not row["kernel_name"]:
            return None
        subject = (row["run_id"], row["kernel_name"])
        of_kernel = (Filter("kernel_name", row["kernel_name"]),)
        query = TableQuery("occupancy", (row["run_id"],), filters=of_kernel, order_by=(SortKey("duration_sum_ns", True),), limit=1)

        async def longest() -> pl.DataFrame:
            return (await self._client.table(query)).rows

        self._occupancy.ask(subject, longest, revision)
        answer = self._occupancy.answer_to(subject)
        return None if answer is None or answer.is_empty() else answer.row(0, named=True)


def _named(keys: Sequence[str], placed: pl.DataFrame) -> list[dict[str, str]]:
    found = [(key, rows_of_point(placed, key)) for key in keys]
    return [{"key": key, "label": rows["label"][0]} for key, rows in found if rows.height]


def _measurement_of(row: dict[str, Any], memory: RunMemory) -> dict[str, Any] | None:
    measurements = memory.table("measurements")
    if row["configuration_index"] is None or measurements is None:
        return None
    found = measurements.filter(pl.col("configuration_index") == row["configuration_index"])
    return None if found.is_empty() else found.row(-1, named=True)


def _is_in_macs(run: Run | None) -> bool:
    """Operations of an accelerator are counted so."""
    return run is not None and isinstance(run.spec.work, ImportedTrace) and run.spec.work.format == "commands"
