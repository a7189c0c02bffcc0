"""Every table that is worked out from a trace: what it needs, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from services.analyzer.analyses import trace_breakdown, trace_kernels, trace_layers
from services.analyzer.analyses.opportunities import opportunities
from services.analyzer.analyses.trace_ceilings import trace_ceilings
from services.analyzer.analyses.trace_roofline import layer_roofline, trace_roofline, with_layer_work
from services.analyzer.answer_tables import BREAKDOWN, LAYERS, OPPORTUNITIES
from services.analyzer.readers.selection import WORK
from services.analyzer.schema import CEILINGS, LAYER_ROOFLINE, ROOFLINE
from services.analyzer.table import Table
from services.analyzer.trace_tables import TRACE_TABLES, WORK_COLUMNS

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
    """input: columns of the tables of a trace that it needs, by table. answer: its rows, without run_id and event_index."""

    input: Input
    answer: Callable[[TraceFrames, TraceQuestion], pl.LazyFrame]


def _kernels(trace: TraceFrames) -> pl.LazyFrame:
    return trace_kernels.trace_kernels(trace["kernel_launches"], trace["trace_names"])


def _layers(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    return trace_layers.trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], depth)


def _breakdown(trace: TraceFrames) -> pl.LazyFrame:
    return trace_breakdown.trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"])


_OF_OPPORTUNITIES: Final = {
    **WORK_COLUMNS,
    **trace_breakdown.INPUT,
    "kernel_launches": (*WORK_COLUMNS["kernel_launches"], "start_ns"),
    "trace_devices": WORK_COLUMNS["trace_devices"],
    WORK: (),
}

TRACE_ANALYSES: Final[Mapping[str, TraceAnalysis]] = {
    KERNELS_NAME: TraceAnalysis(trace_kernels.INPUT, lambda trace, _: _kernels(trace)),
    LAYERS.table_name: TraceAnalysis(
        {**trace_layers.INPUT, "launch_work": WORK_COLUMNS["launch_work"], WORK: ()},
        lambda trace, question: with_layer_work(_layers(trace, question.depth), trace, question.depth),
    ),
    BREAKDOWN.table_name: TraceAnalysis(
        trace_breakdown.INPUT,
        lambda trace, _: _breakdown(trace),
    ),
    CEILINGS.table_name: TraceAnalysis(
        {"trace_devices": WORK_COLUMNS["trace_devices"]}, lambda trace, _: trace_ceilings(trace["trace_devices"])
    ),
    ROOFLINE.table_name: TraceAnalysis({**WORK_COLUMNS, WORK: ()}, lambda trace, _: trace_roofline(trace)),
    LAYER_ROOFLINE.table_name: TraceAnalysis({**WORK_COLUMNS, WORK: ()}, lambda trace, question: layer_roofline(trace, question.depth)),
    OPPORTUNITIES.table_name: TraceAnalysis(
        _OF_OPPORTUNITIES, lambda trace, _: opportunities(trace, _kernels(trace), _layers(trace), _breakdown(trace))
    ),
}
"""By the name of the table that they answer."""


def inputs(table_names: Iterable[str]) -> list[Input]:
    """Columns that these tables need of a trace: those of analyses, and of tables of traces themselves all."""
    stored = {table.table_name: table for table in TRACE_TABLES}
    return [
        TRACE_ANALYSES[name].input if name in TRACE_ANALYSES else {name: stored[name].column_names}
        for name in table_names
        if answerable(name)
    ]


def trace_frames(frames: Mapping[str, pl.DataFrame]) -> TraceFrames:
    """What a reader gave as tables of a trace: those that it did not give have no rows, columns that it did not give are null."""
    return {table.table_name: _conformed(table, frames.get(table.table_name)) for table in TRACE_TABLES}


def _conformed(table: Table, frame: pl.DataFrame | None) -> pl.LazyFrame:
    return table.empty().lazy() if frame is None else table.conform(frame.lazy())


def answerable(table_name: str) -> bool:
    """Whether a trace alone has the table."""
    return table_name in TRACE_ANALYSES or any(table.table_name == table_name for table in TRACE_TABLES)
