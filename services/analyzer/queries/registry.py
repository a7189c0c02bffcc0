"""Derived tables by name: their inputs and what computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import kernel_comparison, layer_comparison
from kernalyse.services.analyzer.analysis.counters import counted_work
from kernalyse.services.analyzer.analysis.models import (
    layer_variants,
    model_layer_kernels,
    model_layer_roofline,
    model_layer_tree,
    model_layers,
    model_opportunities,
    models,
    timed_so_far,
)
from kernalyse.services.analyzer.analysis.roofline import counted_roofline, roofline
from kernalyse.services.analyzer.analysis.sweeps import best, kernel_summary
from kernalyse.services.analyzer.analysis.traces import activity, kernels, layer_tree, layers
from kernalyse.services.analyzer.analysis.traces import timeline as trace_timeline
from kernalyse.services.analyzer.analysis.traces.layers import guessed_category
from kernalyse.services.analyzer.analysis.traces.roofline import (
    counted_layer_roofline,
    layer_roofline,
    opportunities,
    trace_ceilings,
    trace_counted_roofline,
    trace_roofline,
    with_layer_work,
)
from kernalyse.services.analyzer.analysis.traces.timeline import EVENTS_VERSION, Matches, Timeline, timeline_events, window_summary
from kernalyse.services.analyzer.analysis.traces.work import LEVEL_BYTES
from kernalyse.services.analyzer.hardware import tables_digest
from kernalyse.services.analyzer.readers.base import WORK
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.derived import (
    BREAKDOWN,
    COUNTED_LAYER_ROOFLINE,
    COUNTED_ROOFLINE,
    COUNTER_COVERAGE,
    KERNEL_COMPARISON,
    LAYER_COMPARISON,
    LAYER_KERNELS,
    LAYER_ROOFLINE,
    LAYER_TREE,
    LAYER_VARIANTS,
    LAYERS,
    MODELS,
    OPPORTUNITIES,
    PAIRED_COMPARISONS,
    ROOFLINE,
    TREE_TABLES,
)
from kernalyse.services.analyzer.tables.runs import (
    BEST,
    CEILINGS,
    CONFIGURATIONS,
    COUNTED_WORK,
    COUNTER_REPORTS,
    COUNTERS,
    FAILURES,
    KERNELS,
    MEASUREMENTS,
    SAMPLES,
    THRESHOLDS,
)
from kernalyse.services.analyzer.tables.traces import (
    COLLECTIVES,
    GAP_REASONS,
    GAPS,
    LAUNCHES,
    MEMORY,
    OCCUPANCY,
    RANKS,
    TIMELINE,
    TIMELINE_MATCHES,
    TRACE_TABLES,
    WINDOW_SUMMARY,
    WORK_COLUMNS,
)
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import TableQuery

# ---------------------------------------------------------------- trace answers
# Every table that is worked out from a trace: what it needs, and how.

TraceFrames = Mapping[str, pl.LazyFrame]
Input = Mapping[str, Sequence[str]]

KERNELS_NAME: Final = "kernels"
"""Shared with what sweeps say of their kernels, hence no table of its own."""


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """What of a table is asked.

    depth: of the ranges that kernels count for, 0 for the outermost; None: the innermost.
    window_start_ns, window_end_ns: of tables of a timeline; None: all of the trace. pixel_count: of table timeline; None: 1000.
    """

    depth: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    pixel_count: int | None = None

    def of_timeline(self, table: Table, timeline: Timeline) -> pl.DataFrame:
        """One of WINDOWED_TABLES. Raises InvalidRequestError: see Timeline.tile."""
        if table is TIMELINE:
            return timeline.tile(self.window_start_ns, self.window_end_ns, self.pixel_count)
        if table is WINDOW_SUMMARY:
            return window_summary(timeline, self.window_start_ns, self.window_end_ns)
        matches = Matches.of(timeline, None)
        return matches.frame(timeline, *matches.between(self.window_start_ns, self.window_end_ns))


PLAIN_QUESTION: Final = TraceQuestion()


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """One table.

    input: columns of the tables of a trace that it needs, by table.
    answer: its rows, without run_id and event_index.
    depth_input: columns that it needs besides when a depth is asked for; None: it has none.
    version: of its rows. Without a new one, rows that were cached before a change of the code stay; with a needless one, they are
        computed again. tests/unit/test_table_versions.py says when a table needs it.
    """

    input: Input
    answer: Callable[[TraceFrames, TraceQuestion], pl.LazyFrame]
    depth_input: Input | None = None
    version: int = field(kw_only=True)


def _kernels(trace: TraceFrames) -> pl.LazyFrame:
    return layers.with_totals(
        kernels.trace_kernels(trace["kernel_launches"], trace["trace_names"]),
        layers.kernels_of_totals(trace["kernel_totals"], trace["trace_names"]),
        ("kernel_name",),
    ).with_columns(category=guessed_category(pl.col("kernel_name")))


def _layers(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    return layers.with_totals(
        layers.trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], depth),
        layers.layers_of_totals(trace["kernel_totals"], trace["scopes"], trace["trace_names"], depth),
        ("layer", "source"),
    )


def _gaps(trace: TraceFrames) -> pl.LazyFrame:
    return activity.trace_gaps(trace["kernel_launches"], trace["memory_ops"], trace["api_calls"], trace["ranges"], trace["trace_names"])


def _breakdown(trace: TraceFrames) -> pl.LazyFrame:
    return activity.trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"])


def _collectives(trace: TraceFrames) -> pl.LazyFrame:
    return activity.trace_collectives(trace["kernel_launches"], trace["trace_names"], trace["trace_processes"])


def _of_timeline(table: Table, *, version: int) -> TraceAnalysis:
    def answer(trace: TraceFrames, question: TraceQuestion) -> pl.LazyFrame:
        return question.of_timeline(table, Timeline.of(timeline_events(trace).collect())).lazy()

    return TraceAnalysis(trace_timeline.INPUT, answer, version=version)


def _together(*parts: Input) -> Input:
    """Columns of several analyses, by table."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: tuple(dict.fromkeys(column for part in parts for column in part.get(name, ()))) for name in names}


_OF_OPPORTUNITIES: Final = {
    **WORK_COLUMNS,
    **activity.BREAKDOWN_INPUT,
    "kernel_launches": (*WORK_COLUMNS["kernel_launches"], "start_ns"),
    "trace_devices": WORK_COLUMNS["trace_devices"],
    WORK: (),
}

_OF_LEVELS: Final = {
    **{name: WORK_COLUMNS[name] for name in ("kernel_launches", "trace_names", "trace_devices")},
    "launch_work": tuple(dict.fromkeys((*WORK_COLUMNS["launch_work"], *LEVEL_BYTES.values()))),
}

_OF_LAYERS_AT_LEVELS: Final = {**WORK_COLUMNS, "launch_work": _OF_LEVELS["launch_work"]}

TRACE_ANALYSES: Final[Mapping[str, TraceAnalysis]] = {
    KERNELS_NAME: TraceAnalysis({**kernels.KERNELS_INPUT, **layers.KERNELS_INPUT}, lambda trace, _: _kernels(trace), version=1),
    LAYERS.table_name: TraceAnalysis(
        {**layers.INPUT, **layers.LAYERS_INPUT, "launch_work": WORK_COLUMNS["launch_work"], WORK: ()},
        lambda trace, question: with_layer_work(_layers(trace, question.depth), trace, question.depth),
        layers.DEPTH_INPUT,
        version=1,
    ),
    LAYER_TREE.table_name: TraceAnalysis(layer_tree.INPUT, lambda trace, _: layer_tree.layer_tree(trace), version=1),
    LAYER_KERNELS.table_name: TraceAnalysis(layer_tree.INPUT, lambda trace, _: layer_tree.layer_kernels(trace), version=1),
    BREAKDOWN.table_name: TraceAnalysis(activity.BREAKDOWN_INPUT, lambda trace, _: _breakdown(trace), version=1),
    CEILINGS.table_name: TraceAnalysis(
        {"trace_devices": WORK_COLUMNS["trace_devices"]},
        lambda trace, _: trace_ceilings(trace["trace_devices"]),
        version=1,
    ),
    ROOFLINE.table_name: TraceAnalysis({**WORK_COLUMNS, WORK: ()}, lambda trace, _: trace_roofline(trace), version=1),
    COUNTED_ROOFLINE.table_name: TraceAnalysis(_OF_LEVELS, lambda trace, _: trace_counted_roofline(trace), version=1),
    LAYER_ROOFLINE.table_name: TraceAnalysis(
        {**WORK_COLUMNS, WORK: ()},
        lambda trace, question: layer_roofline(trace, question.depth),
        layers.DEPTH_INPUT,
        version=1,
    ),
    COUNTED_LAYER_ROOFLINE.table_name: TraceAnalysis(
        _OF_LAYERS_AT_LEVELS,
        lambda trace, question: counted_layer_roofline(trace, question.depth),
        layers.DEPTH_INPUT,
        version=1,
    ),
    OPPORTUNITIES.table_name: TraceAnalysis(
        _OF_OPPORTUNITIES,
        lambda trace, _: opportunities(trace, _kernels(trace), _layers(trace), _breakdown(trace)),
        version=1,
    ),
    COUNTER_COVERAGE.table_name: TraceAnalysis(
        kernels.COVERAGE_INPUT,
        lambda trace, _: kernels.counter_coverage(trace["kernel_launches"], trace["launch_work"]),
        version=1,
    ),
    COUNTED_WORK.table_name: TraceAnalysis(
        {COUNTERS.table_name: COUNTERS.column_names},
        lambda trace, _: counted_work(trace["counters"], COUNTER_REPORTS.empty().lazy(), CONFIGURATIONS.empty().lazy()),
        version=1,
    ),
    GAPS.table_name: TraceAnalysis(activity.GAPS_INPUT, lambda trace, _: _gaps(trace), version=1),
    GAP_REASONS.table_name: TraceAnalysis(activity.GAPS_INPUT, lambda trace, _: activity.trace_gap_reasons(_gaps(trace)), version=1),
    LAUNCHES.table_name: TraceAnalysis(
        kernels.LAUNCHES_INPUT,
        lambda trace, _: kernels.trace_launches(trace["kernel_launches"], trace["api_calls"], trace["trace_names"]),
        version=1,
    ),
    MEMORY.table_name: TraceAnalysis(
        kernels.MEMORY_INPUT,
        lambda trace, _: kernels.trace_memory(trace["memory_ops"], trace["trace_devices"]),
        version=1,
    ),
    OCCUPANCY.table_name: TraceAnalysis(
        kernels.OCCUPANCY_INPUT,
        lambda trace, _: kernels.trace_occupancy(trace["kernel_launches"], trace["trace_names"], trace["trace_devices"]),
        version=1,
    ),
    COLLECTIVES.table_name: TraceAnalysis(activity.COLLECTIVES_INPUT, lambda trace, _: _collectives(trace), version=1),
    TIMELINE.table_name: _of_timeline(TIMELINE, version=1),
    TIMELINE_MATCHES.table_name: _of_timeline(TIMELINE_MATCHES, version=1),
    WINDOW_SUMMARY.table_name: _of_timeline(WINDOW_SUMMARY, version=1),
    RANKS.table_name: TraceAnalysis(
        _together(activity.COLLECTIVES_INPUT, activity.BREAKDOWN_INPUT),
        lambda trace, _: activity.trace_ranks(
            trace["kernel_launches"], trace["trace_names"], trace["trace_processes"], _collectives(trace), _breakdown(trace)
        ),
        version=1,
    ),
}
"""By the name of the table that they answer. Counted work of runs stands on their reports too: this is that of a file."""

FILE_TABLES: Final = (*TRACE_TABLES, COUNTERS)
"""What readers of traces give."""

SUMMARIES: Final[Mapping[str, tuple[Table, Callable[[pl.LazyFrame], pl.LazyFrame]]]] = {
    GAP_REASONS.table_name: (GAPS, activity.trace_gap_reasons),
}
"""Of tables that are worked out from another such table alone: that table, and how."""


TIMELINE_EVENTS: Final = "timeline_events"
"""What the tables of a timeline are computed from, cached as they are but no table that can be asked for."""


def answer_name(table_name: str, question: TraceQuestion) -> str:
    """Return what an answer is cached under: another version of the table, other hardware tables or another depth do not find it."""
    version = EVENTS_VERSION if table_name == TIMELINE_EVENTS else TRACE_ANALYSES[table_name].version
    asked = "" if question.depth is None else f"-depth{question.depth}"
    return f"{table_name}{asked}-{version}-{tables_digest()}"


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
    return TraceQuestion(query.depth, query.window_start_ns, query.window_end_ns, query.pixel_count)


def has_depth(table_name: str) -> bool:
    compared = TRACE_COMPARISONS.get(table_name)
    name = table_name if compared is None else compared.table_name
    return name in TRACE_ANALYSES and TRACE_ANALYSES[name].depth_input is not None


def inputs(table_names: Iterable[str], question: TraceQuestion = PLAIN_QUESTION) -> list[Input]:
    """Columns that these tables need of a trace: those of analyses, and of tables of traces themselves all."""
    return [needed for name in table_names if answerable(name) for needed in _inputs_of(name, question)]


def _inputs_of(table_name: str, question: TraceQuestion) -> list[Input]:
    if table_name not in TRACE_ANALYSES:
        stored = {table.table_name: table for table in FILE_TABLES}
        return [{table_name: stored[table_name].column_names}]
    analysis = TRACE_ANALYSES[table_name]
    return [analysis.input] if question.depth is None or analysis.depth_input is None else [analysis.input, analysis.depth_input]


def trace_frames(frames: Mapping[str, pl.DataFrame]) -> TraceFrames:
    """What a reader gave as tables of a trace: those that it did not give have no rows, columns that it did not give are null."""
    conformed = {table.table_name: _conformed(table, frames.get(table.table_name)) for table in FILE_TABLES}
    # Launches of a report are told apart by where it is stored: here there is one, nowhere.
    return conformed | {COUNTERS.table_name: conformed[COUNTERS.table_name].with_columns(run_id=pl.lit(""), event_index=pl.lit(0))}


def _conformed(table: Table, frame: pl.DataFrame | None) -> pl.LazyFrame:
    return table.empty().lazy() if frame is None else table.conform(frame.lazy())


def answerable(table_name: str) -> bool:
    """Whether a trace alone has the table."""
    return table_name in TRACE_ANALYSES or any(table.table_name == table_name for table in FILE_TABLES)


# ---------------------------------------------------------------- sweep tables
# The tables that are worked out from measurements, wherever their rows lie: in a store, or in a file just read.

RowsOf = Callable[[Table], pl.LazyFrame]

LAYERED_TABLES: Final = (LAYERS, LAYER_ROOFLINE, OPPORTUNITIES, LAYER_VARIANTS, *TREE_TABLES)
"""Of runs of models; of traces there are such tables too."""

SWEEP_TABLES: Final = (ROOFLINE, COUNTED_ROOFLINE, KERNELS, BEST, COUNTED_WORK, MODELS, *LAYERED_TABLES)


def sweep_table(table: Table, rows_of: RowsOf, depth: int | None = None) -> pl.LazyFrame:
    """Rows of one of SWEEP_TABLES, or what `rows_of` says of any other table.

    Args:
        rows_of: of a table that is not worked out here, every row of the runs asked for.
        depth: of the layers of models; None: the innermost.
    """
    if table in (MODELS, *LAYERED_TABLES):
        return _model_table(table, rows_of, depth)
    if table in (ROOFLINE, COUNTED_ROOFLINE):
        place = roofline if table is ROOFLINE else counted_roofline
        return place(rows_of(MEASUREMENTS), rows_of(CEILINGS), sweep_table(COUNTED_WORK, rows_of), rows_of(THRESHOLDS))
    if table is KERNELS:
        return kernel_summary(rows_of(CONFIGURATIONS), rows_of(MEASUREMENTS), rows_of(FAILURES), sweep_table(ROOFLINE, rows_of))
    if table is BEST:
        return best(rows_of(MEASUREMENTS), rows_of(PAIRED_COMPARISONS), sweep_table(ROOFLINE, rows_of))
    if table is COUNTED_WORK:
        return _counted_work(rows_of)
    return rows_of(table)


def _counted_work(rows_of: RowsOf) -> pl.LazyFrame:
    counters = rows_of(COUNTERS)
    if counters.head(1).collect().is_empty():  # mostly; all configurations would be read for nothing
        return COUNTED_WORK.empty().lazy()
    return counted_work(counters, rows_of(COUNTER_REPORTS), rows_of(CONFIGURATIONS))


def _model_table(table: Table, rows_of: RowsOf, depth: int | None) -> pl.LazyFrame:
    known = (rows_of(CEILINGS), rows_of(THRESHOLDS))
    timed = timed_so_far(rows_of(CONFIGURATIONS), rows_of(MEASUREMENTS), rows_of(SAMPLES), known[0])
    if table is MODELS:
        return models(timed, *known)
    if table is LAYER_ROOFLINE:
        return model_layer_roofline(timed, *known, depth)
    if table is OPPORTUNITIES:
        return model_opportunities(timed, *known)
    if table is LAYER_TREE:
        return model_layer_tree(timed, *known)
    if table is LAYER_KERNELS:
        return model_layer_kernels(timed, *known)
    layers = model_layers(timed, *known, depth)
    return layers if table is LAYERS else layer_variants(layers, timed, rows_of(SAMPLES), depth)


# ---------------------------------------------------------------- file tables
# Tables of results that were read from a file and are stored nowhere.

RUN_ID = "file"
"""Analyses join on it; no run has it."""


def has_results(frames: Mapping[str, pl.DataFrame]) -> bool:
    """Whether a reader gave results of benchmarks; a trace has none."""
    return MEASUREMENTS.table_name in frames


def results_table(frames: Mapping[str, pl.DataFrame], table: Table) -> pl.LazyFrame:
    """A stored table as the reader gave it, or one that is worked out from these, without run_id and event_index of a store.

    Ceilings are those of the file alone: nothing is known of its devices.
    """

    def rows_of(part: Table) -> pl.LazyFrame:
        frame = frames.get(part.table_name)
        rows = part.empty().lazy() if frame is None else part.conform(frame.lazy())
        # Of several ceilings of one kind the later one counts, by this index.
        return rows.with_columns(run_id=pl.lit(RUN_ID), event_index=pl.int_range(pl.len(), dtype=pl.Int64))

    return sweep_table(table, rows_of).drop("run_id", "event_index")
