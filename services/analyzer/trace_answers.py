"""Every table that is worked out from a trace: what it needs, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from services.analyzer.analyses import trace_breakdown, trace_kernels, trace_layers
from services.analyzer.analyses.trace_comparison import kernel_comparison, layer_comparison
from services.analyzer.answer_tables import BREAKDOWN, LAYERS
from services.analyzer.comparison_table import KERNEL_COMPARISON, LAYER_COMPARISON
from services.analyzer.table import Table
from services.analyzer.trace_tables import TRACE_TABLES
from services.core.errors import InvalidRequestError
from services.core.model import TableQuery

TraceFrames = Mapping[str, pl.LazyFrame]
Input = Mapping[str, Sequence[str]]

KERNELS_NAME: Final = "kernels"
"""Shared with what sweeps say of their kernels, hence no table of its own."""


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """What of a table is asked. depth: of the ranges that kernels count for, 0 for the outermost; None: the innermost."""

    depth: int | None = None


PLAIN_QUESTION: Final = TraceQuestion()


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """One table.

    input: columns of the tables of a trace that it needs, by table.
    answer: its rows, without run_id and event_index.
    depth_input: columns that it needs besides when a depth is asked for; None: it has none.
    """

    input: Input
    answer: Callable[[TraceFrames, TraceQuestion], pl.LazyFrame]
    depth_input: Input | None = None


TRACE_ANALYSES: Final[Mapping[str, TraceAnalysis]] = {
    KERNELS_NAME: TraceAnalysis(
        trace_kernels.INPUT, lambda trace, _: trace_kernels.trace_kernels(trace["kernel_launches"], trace["trace_names"])
    ),
    LAYERS.table_name: TraceAnalysis(
        trace_layers.INPUT,
        lambda trace, question: trace_layers.trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], question.depth),
        trace_layers.DEPTH_INPUT,
    ),
    BREAKDOWN.table_name: TraceAnalysis(
        trace_breakdown.INPUT,
        lambda trace, _: trace_breakdown.trace_breakdown(
            trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"]
        ),
    ),
}
"""By the name of the table that they answer."""


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """table_name: of what is worked out of each trace. compare: the judged one's rows and the baseline's, without the store's columns."""

    table_name: str
    compare: Callable[[pl.LazyFrame, pl.LazyFrame], pl.LazyFrame]


TRACE_COMPARISONS: Final[Mapping[str, TraceComparison]] = {
    KERNEL_COMPARISON.table_name: TraceComparison(KERNELS_NAME, kernel_comparison),
    LAYER_COMPARISON.table_name: TraceComparison(LAYERS.table_name, layer_comparison),
}
"""By the name of the table that they answer."""


def question_of(query: TableQuery) -> TraceQuestion:
    """What a query asks of a trace. Raises InvalidRequestError when its table has nothing of that kind."""
    if query.depth is not None and not has_depth(query.table_name):
        raise InvalidRequestError(
            f"depth {query.depth} of table {query.table_name}",
            found="a table without depths",
            expected=" or ".join(name for name in (*TRACE_ANALYSES, *TRACE_COMPARISONS) if has_depth(name)),
            remedy="Ask without a depth.",
        )
    return TraceQuestion(query.depth)


def has_depth(table_name: str) -> bool:
    compared = TRACE_COMPARISONS.get(table_name)
    name = table_name if compared is None else compared.table_name
    return name in TRACE_ANALYSES and TRACE_ANALYSES[name].depth_input is not None


def inputs(table_names: Iterable[str], question: TraceQuestion = PLAIN_QUESTION) -> list[Input]:
    """Columns that these tables need of a trace: those of analyses, and of tables of traces themselves all."""
    return [needed for name in table_names if answerable(name) for needed in _inputs_of(name, question)]


def _inputs_of(table_name: str, question: TraceQuestion) -> list[Input]:
    if table_name not in TRACE_ANALYSES:
        stored = {table.table_name: table for table in TRACE_TABLES}
        return [{table_name: stored[table_name].column_names}]
    analysis = TRACE_ANALYSES[table_name]
    return [analysis.input] if question.depth is None or analysis.depth_input is None else [analysis.input, analysis.depth_input]


def trace_frames(frames: Mapping[str, pl.DataFrame]) -> TraceFrames:
    """What a reader gave as tables of a trace: those that it did not give have no rows, columns that it did not give are null."""
    return {table.table_name: _conformed(table, frames.get(table.table_name)) for table in TRACE_TABLES}


def _conformed(table: Table, frame: pl.DataFrame | None) -> pl.LazyFrame:
    return table.empty().lazy() if frame is None else table.conform(frame.lazy())


def answerable(table_name: str) -> bool:
    """Whether a trace alone has the table."""
    return table_name in TRACE_ANALYSES or any(table.table_name == table_name for table in TRACE_TABLES)
