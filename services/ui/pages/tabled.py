"""What pages with a table share: rows that the analyzer filters, sorts and pages, chosen columns, and the download of all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kernalyse.services.core.model import TableQuery
from kernalyse.services.ui import filters
from kernalyse.services.ui.client import AnalyzerClient, TablePage
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.pager import gone_to_page, pager_fragment, sorted_by
from kernalyse.services.ui.pages.shell import PageBase, filters_fragment, fragment, run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import TABLE_TITLES, TableName, ViewState
from kernalyse.services.ui.table_columns import COLUMNS, TEXT_FORMATS, Column
from kernalyse.services.ui.table_query import csv_query, table_query
from kernalyse.services.ui.theme import CATEGORIES

REFRESH_INTERVAL_S: Final = 1.5
"""Between questions while runs go on; each costs the analyzer a sort of its table."""


DTYPES: Final = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64")


class TabledPage(PageBase):
    """A page with a table. Pages name themselves, and may add charts and wishes."""

    row_choice: Mapping[TableName, str] = TABLE_TITLES
    name_title = "Kernel"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self._rows: Question[TablePage] = Question(self.wake)
        self._is_reading = False  # a trace of the runs that are shown

    def close(self) -> None:
        self._rows.stop()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "sort":
                self.state = sorted_by(self.state, value)
            case "column":
                shown = [column.name for column in self._columns()]
                shown = [other for other in shown if other != value] if value in shown else [*shown, value]
                order = [column.name for column in COLUMNS[self.state.table]]
                self.state = replace(self.state, columns=tuple(sorted((c for c in shown if c in order), key=order.index)))
            case "set" if value.startswith("table="):
                self.state = replace(_assigned(self.state, value), columns=(), sort="", descending=False)
            case "set" if value.startswith("page="):
                self.state = gone_to_page(self.state, value.removeprefix("page="), self._total_row_count)
            case "columns":
                self.state = replace(self.state, columns=() if value == "default" else _all_columns(self.state.table))
            case _:
                return super().handle(name, value)
        return None

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        self._show_kernels_of_traces(overview)
        self._is_reading = any(run.state.is_final and not run.is_settled for run in overview.runs if run.run_id in self.state.runs)
        self._ask_where_needed(overview)
        now_unix_s = time.time()
        shown = {column.name for column in self._columns()}
        choice = [{"name": column.name, "title": column.title, "is_shown": column.name in shown} for column in COLUMNS[self.state.table]]
        runs = [run_card(run, overview, now_unix_s) for run in self.listed_runs(overview.runs)]
        return {
            "row_choice": fragment("row_choice.html", tables=self.row_choice, chosen=self.state.table),
            "filters": self._filters(overview),
            "run_choice": fragment("run_choice.html", runs=runs, selected=self.state.runs),
            "columns": fragment("columns.html", columns=choice),
            "download": fragment("download.html", href=f"/download/{self.state.table}.csv?{csv_query(self.asked_view())}"),
            "pager": self._pager(),
            "table": self._table(),
        }

    def _show_kernels_of_traces(self, overview: Overview) -> None:
        """Traces have no measurements, which are shown where nobody has chosen."""
        chosen = [run for run in overview.runs if run.run_id in self.state.runs]
        if self.state.table == "measurements" and chosen and all(run.is_trace for run in chosen):
            self.state = replace(self.state, table="launched", columns=(), sort="", descending=False)

    def _filters(self, overview: Overview) -> str:
        """Of the shown runs' own words: a table of a million rows is not searched for what there is to choose."""
        shown = self.memories(self.state.runs)
        rows = [frame for memory in shown for name in ("configurations", "roofline") if (frame := memory.table(name)) is not None]
        devices = {"device": tuple(device.device_id for status in overview.nodes if status.node for device in status.node.devices)}
        fixed = {"category": CATEGORIES, "dtype": DTYPES}
        values = filters.together([filters.values_of(frame) for frame in rows] if shown else [fixed, devices])
        return filters_fragment(self.state, values, self.name_title)

    # ------------------------------------------------------------ asking

    def _ask_where_needed(self, overview: Overview) -> None:
        """Asks when the view changed, or when runs have gone on since the last answer."""
        query = table_query(self.asked_view(), tuple(column.name for column in self._columns()))
        self._rows.ask(query, partial(self.ask, query), (self.progress(overview), overview.problem), REFRESH_INTERVAL_S)

    def asked_view(self) -> ViewState:
        """What the table and its download are asked for by."""
        return self.state

    def progress(self, overview: Overview) -> tuple[object, ...]:
        """What changes with the rows of the runs that are shown."""
        of_runs = tuple(
            (run.run_id, run.state, run.is_settled, run.completed_configuration_count)
            for run in overview.runs
            if not self.state.runs or run.run_id in self.state.runs
        )
        return (*of_runs, overview.revision)

    async def ask(self, query: TableQuery) -> TablePage:
        """Asks the analyzer for what the page shows. Raises KernalyseError."""
        return await self.client.table(query)

    # ------------------------------------------------------------ showing

    def row_key(self, row: Mapping[str, Any]) -> str:
        """What choosing a row of the table says; empty: it cannot be chosen."""
        return ""

    def _columns(self) -> tuple[Column, ...]:
        known = COLUMNS[self.state.table]
        chosen = tuple(column for column in known if column.name in self.state.columns)
        return chosen or tuple(column for column in known if column.is_default)

    def _table(self) -> str:
        columns = self._columns()
        heads = [
            {
                "name": column.name,
                "title": column.title,
                "is_number": column.show not in TEXT_FORMATS,
                "order": ("descending" if self.state.descending else "ascending") if column.name == self.state.sort else "none",
            }
            for column in columns
        ]
        rows = []
        if self._rows.answer is not None:
            for row in self._rows.answer.rows.to_dicts():
                key = self.row_key(row)
                cells = [_cell(column, row.get(column.name), row.get("dtype")) for column in columns]
                rows.append({"cells": cells, "key": key, "is_chosen": bool(key) and key == self.state.configuration})
        has_filter = filters.has_any(self.state) or bool(self.state.runs)
        empty = "No row matches these filters." if has_filter else "Nothing has been measured yet. Start with: kernalyse bench saxpy"
        if self._is_reading:
            empty = "The trace is being read: its rows appear here."
        elif self.state.runs:
            empty += " Sweeps and traces have other rows: choose them under Rows."
        return fragment(
            "table.html",
            columns=heads,
            rows=rows,
            problem=self._rows.problem,
            is_loading=self._rows.answer is None and not self._rows.problem,
            empty=empty,
        )

    def _pager(self) -> str:
        return pager_fragment(self.state, self._total_row_count)

    @property
    def _total_row_count(self) -> int:
        return 0 if self._rows.answer is None else self._rows.answer.total_row_count


def _assigned(state: ViewState, assignment: str) -> ViewState:
    field, _, text = assignment.partition("=")
    return state.changed(field, text)


def _all_columns(table: TableName) -> tuple[str, ...]:
    return tuple(column.name for column in COLUMNS[table])


def _cell(column: Column, value: Any, dtype: str | None) -> dict[str, Any]:
    return {"text": column.text(value, dtype), "is_bad": column.is_bad(value)}
