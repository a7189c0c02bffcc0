"""Every table that is worked out from a trace: what it needs, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from services.analyzer import analyses
from services.analyzer.activity_tables import COLLECTIVES, GAP_REASONS, GAPS, LAUNCHES, MEMORY, OCCUPANCY, RANKS, TIMELINE
from services.analyzer.analyses import (
    trace_breakdown,
    trace_collectives,
    trace_gaps,
    trace_kernels,
    trace_launches,
    trace_layers,
    trace_memory,
    trace_occupancy,
    trace_timeline,
)
from services.analyzer.analyses.trace_timeline import Timeline
from services.analyzer.answer_tables import BREAKDOWN, LAYERS
from services.analyzer.compiled import sources_digest
from services.analyzer.table import Table
from services.analyzer.trace_tables import TRACE_TABLES

TraceFrames = Mapping[str, pl.LazyFrame]
Input = Mapping[str, Sequence[str]]

KERNELS_NAME: Final = "kernels"
"""Shared with what sweeps say of their kernels, hence no table of its own."""


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """What of a table is asked.

    depth: of the ranges that kernels count for, 0 for the outermost; None: the innermost.
    window_start_ns, window_end_ns, pixel_count: of table timeline; None: all of the trace, 1000 pixels.
    """

    depth: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    pixel_count: int | None = None

    def tile(self, timeline: Timeline) -> pl.DataFrame:
        return timeline.tile(self.window_start_ns, self.window_end_ns, self.pixel_count)


PLAIN_QUESTION: Final = TraceQuestion()


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """input: columns of the tables of a trace that it needs, by table. answer: its rows, without run_id and event_index."""

    input: Input
    answer: Callable[[TraceFrames, TraceQuestion], pl.LazyFrame]


def _gaps(trace: TraceFrames) -> pl.LazyFrame:
    return trace_gaps.trace_gaps(trace["kernel_launches"], trace["memory_ops"], trace["api_calls"], trace["ranges"], trace["trace_names"])


def _breakdown(trace: TraceFrames) -> pl.LazyFrame:
    return trace_breakdown.trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"])


def _collectives(trace: TraceFrames) -> pl.LazyFrame:
    return trace_collectives.trace_collectives(trace["kernel_launches"], trace["trace_names"], trace["trace_processes"])


def timeline_events(trace: TraceFrames) -> pl.LazyFrame:
    """What every window of table timeline is drawn from."""
    return trace_timeline.timeline_events(trace["kernel_launches"], trace["memory_ops"], trace["ranges"], trace["trace_names"])


def _together(*parts: Input) -> Input:
    """Columns of several analyses, by table."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: tuple(dict.fromkeys(column for part in parts for column in part.get(name, ()))) for name in names}


TRACE_ANALYSES: Final[Mapping[str, TraceAnalysis]] = {
    KERNELS_NAME: TraceAnalysis(
        trace_kernels.INPUT, lambda trace, _: trace_kernels.trace_kernels(trace["kernel_launches"], trace["trace_names"])
    ),
    LAYERS.table_name: TraceAnalysis(
        trace_layers.INPUT,
        lambda trace, question: trace_layers.trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], question.depth),
    ),
    BREAKDOWN.table_name: TraceAnalysis(trace_breakdown.INPUT, lambda trace, _: _breakdown(trace)),
    GAPS.table_name: TraceAnalysis(trace_gaps.INPUT, lambda trace, _: _gaps(trace)),
    GAP_REASONS.table_name: TraceAnalysis(trace_gaps.INPUT, lambda trace, _: trace_gaps.trace_gap_reasons(_gaps(trace))),
    LAUNCHES.table_name: TraceAnalysis(
        trace_launches.INPUT,
        lambda trace, _: trace_launches.trace_launches(trace["kernel_launches"], trace["api_calls"], trace["trace_names"]),
    ),
    MEMORY.table_name: TraceAnalysis(
        trace_memory.INPUT, lambda trace, _: trace_memory.trace_memory(trace["memory_ops"], trace["trace_devices"])
    ),
    OCCUPANCY.table_name: TraceAnalysis(
        trace_occupancy.INPUT,
        lambda trace, _: trace_occupancy.trace_occupancy(trace["kernel_launches"], trace["trace_names"], trace["trace_devices"]),
    ),
    COLLECTIVES.table_name: TraceAnalysis(trace_collectives.INPUT, lambda trace, _: _collectives(trace)),
    TIMELINE.table_name: TraceAnalysis(
        trace_timeline.INPUT, lambda trace, question: question.tile(Timeline.of(timeline_events(trace).collect())).lazy()
    ),
    RANKS.table_name: TraceAnalysis(
        _together(trace_collectives.INPUT, trace_breakdown.INPUT),
        lambda trace, _: trace_collectives.trace_ranks(
            trace["kernel_launches"], trace["trace_names"], trace["trace_processes"], _collectives(trace), _breakdown(trace)
        ),
    ),
}
"""By the name of the table that they answer."""

SUMMARIES: Final[Mapping[str, tuple[Table, Callable[[pl.LazyFrame], pl.LazyFrame]]]] = {
    GAP_REASONS.table_name: (GAPS, trace_gaps.trace_gap_reasons),
}
"""Of tables that are worked out from another such table alone: that table, and how."""


def answer_name(table_name: str, question: TraceQuestion) -> str:
    """What an answer is kept under: other code, or another question, does not find it."""
    modules = sorted(name for name in sys.modules if name.startswith(f"{analyses.__name__}.trace_"))
    asked = "" if question.depth is None else f"-depth{question.depth}"
    return f"{table_name}{asked}-{sources_digest(__name__, *modules)}"


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
