"""The Kernels page: measurements or kernels as a table that the analyzer filters, sorts and pages."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from services.core.errors import KernalyseError
from services.core.model import Filter, FilterOperator, SortKey, TableQuery
from services.ui import theme
from services.ui.client import AnalyzerClient, TablePage
from services.ui.memory import Overview
from services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, fragment, run_card
from services.ui.state import PAGE_ROW_COUNT, Page, ViewState

REFRESH_INTERVAL_S: Final = 1.5
"""Between questions while runs go on; each costs the analyzer a sort of its table."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as people read it. show: one of the formats below."""

    name: str
    title: str
    show: str = "text"
    is_default: bool = False


FORMATS: Final[dict[str, Any]] = {
    "text": lambda value: theme.UNKNOWN if value in (None, "") else str(value),
    "run": theme.short_run_id,
    "duration": theme.duration,
    "flop_rate": theme.flop_rate,
    "byte_rate": theme.byte_rate,
    "ratio": theme.percent,
    "count": theme.count,
    "hertz": theme.frequency,
    "flop": lambda value: theme.si(value, "flop"),
    "bytes": theme.memory,
    "celsius": theme.temperature,
    "watts": theme.power,
    "number": lambda value: theme.UNKNOWN if value is None else f"{value:.2g}",
    "moment": theme.moment,
    "words": lambda value: theme.UNKNOWN if not value else str(value).replace("_", " ").lower(),
}

COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "measurements": (
        Column("run_id", "Run", "run", True),
        Column("label", "Configuration", "text", True),
        Column("kernel_name", "Kernel"),
        Column("category", "Category", "text", True),
        Column("dtype", "Data type", "text", True),
        Column("device_id", "Device"),
        Column("backend", "Backend", "words"),
        Column("duration_median_ns", "Median", "duration", True),
        Column("duration_median_low_ns", "Median, low end", "duration"),
        Column("duration_median_high_ns", "Median, high end", "duration"),
        Column("duration_min_ns", "Fastest", "duration", True),
        Column("duration_mean_ns", "Mean", "duration", True),
        Column("duration_max_ns", "Slowest", "duration"),
        Column("duration_lower_quartile_ns", "Lower quartile", "duration"),
        Column("duration_upper_quartile_ns", "Upper quartile", "duration"),
        Column("duration_p95_ns", "95th percentile", "duration", True),
        Column("duration_p99_ns", "99th percentile", "duration"),
        Column("duration_standard_deviation_ns", "Standard deviation", "duration"),
        Column("noise_ratio", "Noise", "ratio", True),
        Column("sample_count", "Samples", "count", True),
        Column("discarded_sample_count", "Discarded", "count"),
        Column("warm_up_count", "Warm-ups", "count"),
        Column("flop", "Flop a launch", "flop"),
        Column("bytes", "Bytes a launch", "bytes"),
        Column("stop_reason", "Stopped by", "words"),
        Column("cache_mode", "Cache", "words"),
        Column("verification_state", "Result", "words", True),
        Column("verification_max_relative_error", "Relative error", "number"),
        Column("verification_message", "Result, in words"),
        Column("compile_ns", "Compiling", "duration"),
        Column("elapsed_ns", "Took in all", "duration"),
        Column("sm_clock_hz", "Clock", "hertz"),
        Column("memory_clock_hz", "Memory clock", "hertz"),
        Column("temperature_celsius", "Temperature", "celsius"),
        Column("power_watts", "Power", "watts"),
        Column("throttle_reasons", "Throttled by"),
        Column("compiler_options", "Compiler options"),
        Column("driver_version", "Driver"),
        Column("toolkit_version", "Toolkit"),
        Column("measured_unix_ns", "Measured (UTC)", "moment"),
    ),
    "kernels": (
        Column("run_id", "Run", "run", True),
        Column("kernel_name", "Kernel", "text", True),
        Column("category", "Category", "text", True),
        Column("dtype", "Data type", "text", True),
        Column("device_id", "Device"),
        Column("configuration_count", "Configurations", "count", True),
        Column("failed_configuration_count", "Failed", "count", True),
        Column("sample_count", "Samples", "count"),
        Column("duration_median_min_ns", "Fastest median", "duration", True),
        Column("duration_median_max_ns", "Slowest median", "duration"),
        Column("achieved_flop_per_s_max", "Best flop rate", "flop_rate", True),
        Column("achieved_bytes_per_s_max", "Best byte rate", "byte_rate", True),
        Column("efficiency_ratio_max", "Best efficiency", "ratio", True),
        Column("best_label", "Best configuration", "text", True),
        Column("bound", "Bound", "text", True),
        Column("verification_failed_count", "Wrong results", "count", True),
        Column("implausible_count", "Implausible", "count", True),
    ),
    "launched": (
        Column("run_id", "Run", "run", True),
        Column("kernel_name", "Kernel", "text", True),
        Column("launch_count", "Launches", "count", True),
        Column("duration_sum_ns", "Time in all", "duration", True),
        Column("share_ratio", "Share", "ratio", True),
        Column("duration_min_ns", "Shortest", "duration", True),
        Column("duration_median_ns", "Median", "duration", True),
        Column("duration_max_ns", "Longest", "duration", True),
    ),
    "layers": (
        Column("run_id", "Run", "run", True),
        Column("layer", "Layer", "text", True),
        Column("call_count", "Calls", "count", True),
        Column("launch_count", "Kernels", "count", True),
        Column("duration_sum_ns", "Time in all", "duration", True),
        Column("share_ratio", "Share", "ratio", True),
        Column("source", "Told by", "words", True),
        Column("flop", "Flop", "flop"),
        Column("bytes", "Bytes", "bytes"),
        Column("intensity_flop_per_byte", "Intensity (flop/B)", "number"),
        Column("achieved_flop_per_s", "Flop rate", "flop_rate", True),
        Column("achieved_bytes_per_s", "Byte rate", "byte_rate", True),
        Column("attainable_flop_per_s", "Attainable", "flop_rate"),
        Column("efficiency_ratio", "Efficiency", "ratio", True),
        Column("bound", "Bound", "text", True),
        Column("work_source", "Work by", "text"),
        Column("worked_share_ratio", "Work known", "ratio", True),
    ),
    "opportunities": (
        Column("run_id", "Run", "run", True),
        Column("subject_kind", "Kind", "text", True),
        Column("subject", "Name", "text", True),
        Column("lost_ns", "Could be saved", "duration", True),
        Column("duration_sum_ns", "Time in all", "duration", True),
        Column("share_ratio", "Share", "ratio", True),
        Column("efficiency_ratio", "Efficiency", "ratio", True),
        Column("bound", "Bound", "text", True),
        Column("launch_count", "Kernels", "count"),
        Column("reason", "Why", "text", True),
    ),
    "breakdown": (
        Column("run_id", "Run", "run", True),
        Column("process_id", "Process", "text", True),
        Column("device_index", "Device", "text", True),
        Column("device_name", "Name", "text", True),
        Column("span_ns", "Span", "duration", True),
        Column("busy_ns", "Busy", "duration", True),
        Column("idle_ns", "Idle", "duration", True),
        Column("compute_ns", "Computing", "duration", True),
        Column("communication_ns", "Communicating", "duration", True),
        Column("overlap_ns", "Both", "duration", True),
        Column("memory_ns", "Copying", "duration", True),
        Column("memory_only_ns", "Copying alone", "duration", True),
        Column("launch_count", "Kernels", "count"),
        Column("memory_op_count", "Copies and fills", "count"),
    ),
}
NAME_COLUMNS: Final = {"layers": "layer", "opportunities": "subject"}
"""What the filter by name looks into, where it is not kernel_name."""

_TEXT_FORMATS: Final = ("text", "run", "words", "moment")


class KernelsPage(PageBase):
    page: Page = "kernels"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self._answer: TablePage | None = None
        self._answered: TableQuery | None = None
        self._asked: object = None
        self._asked_time = 0.0
        self._question_problem = ""
        self._question: asyncio.Task[None] | None = None

    def roots(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self._question is not None:
            self._question.cancel()
        super().close()

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "sort":
                descending = self.state.sort == value and not self.state.descending
                self.state = replace(self.state, sort=value, descending=descending, row=0)
            case "column":
                shown = [column.name for column in self._columns()]
                shown = [other for other in shown if other != value] if value in shown else [*shown, value]
                order = [column.name for column in COLUMNS[self.state.table]]
                self.state = replace(self.state, columns=tuple(sorted((c for c in shown if c in order), key=order.index)))
            case "set" if value.startswith("table="):
                self.state = replace(_assigned(self.state, value), columns=(), sort="", descending=False)
            case _:
                return super().handle(name, value)
        return None

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        self._ask_where_needed(overview)
        now_unix_s = time.time()
        shown = {column.name for column in self._columns()}
        choice = [{"name": column.name, "title": column.title, "is_shown": column.name in shown} for column in COLUMNS[self.state.table]]
        runs = [run_card(run, overview, now_unix_s) for run in overview.runs[:MAX_LISTED_RUNS]]
        return {
            "run_choice": fragment("run_choice.html", runs=runs, selected=self.state.runs),
            "columns": fragment("columns.html", columns=choice),
            "download": fragment("download.html", href=f"/download/{self.state.table}.csv?{csv_query(self.state)}"),
            "pager": self._pager(),
            "table": self._table(),
        }

    # ------------------------------------------------------------ asking

    def _ask_where_needed(self, overview: Overview) -> None:
        """Asks when the view changed, or when runs have gone on since the last answer."""
        query = table_query(self.state, tuple(column.name for column in self._columns()))
        progress = tuple(
            (run.run_id, run.state, run.completed_configuration_count)
            for run in overview.runs
            if not self.state.runs or run.run_id in self.state.runs
        )
        wanted = (query, progress, overview.problem)
        now = time.monotonic()
        is_other_view = self._answered != query
        if wanted == self._asked or (not is_other_view and now - self._asked_time < REFRESH_INTERVAL_S):
            return
        if self._question is not None and not self._question.done():
            if not is_other_view:
                return
            self._question.cancel()
        self._asked, self._asked_time = wanted, now
        self._question = asyncio.ensure_future(self._ask(query))

    async def _ask(self, query: TableQuery) -> None:
        try:
            self._answer = await self.client.table(query)
            self._question_problem = ""
        except KernalyseError as error:
            self._question_problem = error.message
        self._answered = query
        self.on_answer()

    def on_answer(self) -> None:
        """Replaced by the session's wake."""

    # ------------------------------------------------------------ showing

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
                "is_number": column.show not in _TEXT_FORMATS,
                "order": ("descending" if self.state.descending else "ascending") if column.name == self.state.sort else "none",
            }
            for column in columns
        ]
        rows = []
        if self._answer is not None:
            for row in self._answer.rows.to_dicts():
                rows.append([_cell(column, row.get(column.name)) for column in columns])
        has_filter = bool(self.state.kernel or self.state.category or self.state.dtype or self.state.runs)
        empty = "No row matches these filters." if has_filter else "Nothing has been measured yet. Start with: kernalyse bench saxpy"
        if self.state.runs and self.state.table in ("measurements", "kernels"):
            empty += " Of a trace, choose its kernels, layers, breakdown or opportunities under Rows."
        return fragment(
            "table.html",
            columns=heads,
            rows=rows,
            problem=self._question_problem,
            is_loading=self._answer is None and not self._question_problem,
            empty=empty,
        )

    def _pager(self) -> str:
        total = 0 if self._answer is None else self._answer.total_row_count
        first, last = self.state.row, min(self.state.row + PAGE_ROW_COUNT, total)
        return fragment(
            "pager.html",
            text=f"{theme.count(first + 1)} to {theme.count(last)} of {theme.count(total)}" if total and last > first else "",
            previous=max(0, first - PAGE_ROW_COUNT) if first > 0 else None,
            following=first + PAGE_ROW_COUNT if last < total else None,
        )


def _assigned(state: ViewState, assignment: str) -> ViewState:
    field, _, text = assignment.partition("=")
    return state.changed(field, text)


def table_query(state: ViewState, columns: tuple[str, ...] = (), limit: int = PAGE_ROW_COUNT) -> TableQuery:
    """What the analyzer is asked for. limit 0: all rows from the first on."""
    known = {column.name for column in COLUMNS[state.table]}
    name_column = NAME_COLUMNS.get(state.table, "kernel_name")
    filters = [Filter("launch_count", "0", FilterOperator.GREATER)] if state.table == "launched" else []
    if state.kernel and name_column in known:
        filters.append(Filter(name_column, state.kernel, FilterOperator.CONTAINS))
    filters += [Filter(name, value) for name, value in (("category", state.category), ("dtype", state.dtype)) if value and name in known]
    return TableQuery(
        "kernels" if state.table == "launched" else state.table,
        run_ids=state.runs,
        filters=tuple(filters),
        order_by=(SortKey(state.sort, state.descending),) if state.sort in known else (),
        offset=state.row if limit else 0,
        limit=limit,
        columns=columns,
    )


def csv_query(state: ViewState) -> str:
    """Query of the download: the same rows, all of them, with every column."""
    pairs = [(name, getattr(state, name)) for name in ("kernel", "category", "dtype", "sort") if getattr(state, name)]
    pairs += [("runs", ",".join(state.runs))] if state.runs else []
    pairs += [("descending", "1")] if state.descending else []
    return urlencode(pairs, safe=",")


def _cell(column: Column, value: Any) -> dict[str, Any]:
    is_bad = (column.name == "verification_state" and value == "FAILED") or (
        column.name in ("verification_failed_count", "failed_configuration_count", "implausible_count") and bool(value)
    )
    return {"text": FORMATS[column.show](value), "is_bad": is_bad}
