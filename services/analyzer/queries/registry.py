"""Derived tables by name: their inputs and what computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from typing import Final, Protocol

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import kernel_comparison, layer_comparison
from kernalyse.services.analyzer.analysis.counters import counted_work
from kernalyse.services.analyzer.analysis.models import (
    layer_variants,
    live_measurements,
    model_layer_kernels,
    model_layer_roofline,
    model_layer_tree,
    model_layers,
    model_opportunities,
    models,
)
from kernalyse.services.analyzer.analysis.roofline import counted_roofline, roofline
from kernalyse.services.analyzer.analysis.sweeps import best, kernel_summary
from kernalyse.services.analyzer.analysis.traces import activity, collectives, kernels, layer_tree, layers
from kernalyse.services.analyzer.analysis.traces import timeline as trace_timeline
from kernalyse.services.analyzer.analysis.traces.layers import infer_category
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
from kernalyse.services.analyzer.tables.base import Table, concat_frames
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
)
from kernalyse.services.analyzer.tables.runs import (
    BEST,
    CEILINGS,
    CONFIGURATIONS,
    COUNTED_WORK,
    COUNTER_REPORTS,
    COUNTERS,
    FAILURES,
    IMPORTED_TABLES,
    KERNELS,
    MEASUREMENTS,
    SAMPLES,
    STORED_TABLES,
    THRESHOLDS,
    find_table,
)
from kernalyse.services.analyzer.tables.traces import (
    COLLECTIVES,
    COST_INPUT_COLUMNS,
    GAP_REASONS,
    GAPS,
    LAUNCHES,
    MEMORY,
    OCCUPANCY,
    RANK_CLOCKS,
    RANKS,
    TIMELINE,
    TIMELINE_MATCHES,
    TRACE_TABLES,
    WINDOW_SUMMARY,
)
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import TableQuery

# ---------------------------------------------------------------- derived tables
# Every derived table: what it is computed from, and how; for runs and files of measurements, of models, and of traces.
#
# `table_sources.resolve_table` applies these definitions to a source of rows.

Frames = Mapping[str, pl.LazyFrame]
Inputs = Mapping[str, Sequence[str]]

FILE_TABLES: Final = (*TRACE_TABLES, COUNTERS)
"""What readers of traces give."""


@dataclass(frozen=True, slots=True)
class QueryParameters:
    """What a query asks of how a table is computed.

    depth: of the ranges that kernels count for, 0 for the outermost; None: the innermost.
    window_start_ns, window_end_ns: of tables of a timeline; None: all of the trace. pixel_count: of table timeline; None: 1000.
    """

    depth: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    pixel_count: int | None = None


DEFAULT_QUERY: Final = QueryParameters()


class RunKind(Enum):
    """The runs, or files, that a definition is for."""

    ANY = auto()
    MEASUREMENTS = auto()
    """Of configurations: a sweep, a benchmark, imported results. Computed for all runs at once."""
    MODEL = auto()
    """Of a model's launches and passes, which are configurations too. Computed for all runs at once."""
    TRACE = auto()
    """What a program launched. Computed for each run, and cached."""


@dataclass(frozen=True, slots=True)
class Derived:
    """How a table is computed for one kind of runs: a trace's, unless `kind` says another.

    inputs: columns of stored tables that it needs, by table. depth_inputs: those that it needs besides when a depth is asked for;
        None: it has no depths.
    compute: its rows from these and from derived_inputs, by table; of a trace without run_id and event_index.
    derived_inputs: derived tables of the same kind of runs that it is computed from.
    needs_hardware: it has other rows under other ceilings and thresholds, which it is given besides.
    version: of its rows, where these are cached: of traces, and of kernels. Without a new one, rows that were cached before a change
        of the code stay; with a needless one, they are computed again. tests/unit/analyzer/queries/test_table_versions.py says when a
        table needs it.
    """

    table: Table
    inputs: Inputs
    compute: Callable[[Frames, QueryParameters], pl.LazyFrame]
    depth_inputs: Inputs | None = None
    derived_inputs: tuple[Table, ...] = ()
    needs_hardware: bool = False
    kind: RunKind = RunKind.TRACE
    version: int = 1

    def cached_result_name(self, parameters: QueryParameters) -> str:
        """Return what its rows are cached under: another version, other hardware tables or another depth do not find them."""
        return _cached_name(self.table.table_name, self.version, parameters)


def timeline_events_name() -> str:
    """Return what the events of a timeline are cached under: its tables are computed from them, and nobody can ask for them."""
    return _cached_name("timeline_events", EVENTS_VERSION, DEFAULT_QUERY)


def _cached_name(name: str, version: int, parameters: QueryParameters) -> str:
    depth = "" if parameters.depth is None else f"-depth{parameters.depth}"
    return f"{name}{depth}-{version}-{tables_digest()}"


# ---------------------------------------------------------------- runs of measurements and of models


def _all_columns(*tables: Table) -> Inputs:
    return {table.table_name: table.column_names for table in tables}


def _counted_work(frames: Frames) -> pl.LazyFrame:
    counters = frames[COUNTERS.table_name]
    if counters.head(1).collect().is_empty():  # mostly; all configurations would be read for nothing
        return COUNTED_WORK.empty().lazy()
    # A trace's file has counters alone.
    reports, configurations = (frames.get(table.table_name, table.empty().lazy()) for table in (COUNTER_REPORTS, CONFIGURATIONS))
    return counted_work(counters, reports, configurations)


Points = Callable[[pl.LazyFrame, pl.LazyFrame, pl.LazyFrame, pl.LazyFrame], pl.LazyFrame]


def _roofline(table: Table, points: Points) -> Derived:
    return Derived(
        table,
        _all_columns(MEASUREMENTS, CEILINGS, THRESHOLDS),
        lambda frames, _: points(frames["measurements"], frames["ceilings"], frames["counted_work"], frames["thresholds"]),
        derived_inputs=(COUNTED_WORK,),
        kind=RunKind.MEASUREMENTS,
    )


_MEASUREMENT_TABLES: Final = (
    Derived(
        COUNTED_WORK, _all_columns(COUNTERS, COUNTER_REPORTS, CONFIGURATIONS), lambda frames, _: _counted_work(frames), kind=RunKind.ANY
    ),
    _roofline(ROOFLINE, roofline),
    _roofline(COUNTED_ROOFLINE, counted_roofline),
    Derived(
        KERNELS,
        _all_columns(CONFIGURATIONS, MEASUREMENTS, FAILURES),
        lambda frames, _: kernel_summary(frames["configurations"], frames["measurements"], frames["failures"], frames["roofline"]),
        derived_inputs=(ROOFLINE,),
        kind=RunKind.MEASUREMENTS,
    ),
    Derived(
        BEST,
        _all_columns(MEASUREMENTS, PAIRED_COMPARISONS),
        lambda frames, _: best(frames["measurements"], frames["paired_comparisons"], frames["roofline"]),
        derived_inputs=(ROOFLINE,),
        kind=RunKind.MEASUREMENTS,
    ),
)

ModelRows = Callable[[pl.LazyFrame, Frames, int | None], pl.LazyFrame]


def _of_models(table: Table, rows_of: ModelRows) -> Derived:
    """Return the definition of a table of models. rows_of: from launches and passes, the inputs, and the depth."""

    def compute(frames: Frames, parameters: QueryParameters) -> pl.LazyFrame:
        timed = live_measurements(frames["configurations"], frames["measurements"], frames["samples"], frames["ceilings"])
        return rows_of(timed, frames, parameters.depth)

    return Derived(table, _all_columns(CONFIGURATIONS, MEASUREMENTS, SAMPLES, CEILINGS, THRESHOLDS), compute, kind=RunKind.MODEL)


def _limits(frames: Frames) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    return frames["ceilings"], frames["thresholds"]


def _layer_variants(timed: pl.LazyFrame, frames: Frames, depth: int | None) -> pl.LazyFrame:
    return layer_variants(model_layers(timed, *_limits(frames), depth), timed, frames["samples"], depth)


_MODEL_TABLES: Final = (
    _of_models(MODELS, lambda timed, frames, _: models(timed, *_limits(frames))),
    _of_models(LAYERS, lambda timed, frames, depth: model_layers(timed, *_limits(frames), depth)),
    _of_models(LAYER_VARIANTS, _layer_variants),
    _of_models(LAYER_ROOFLINE, lambda timed, frames, depth: model_layer_roofline(timed, *_limits(frames), depth)),
    _of_models(OPPORTUNITIES, lambda timed, frames, _: model_opportunities(timed, *_limits(frames))),
    _of_models(LAYER_TREE, lambda timed, frames, _: model_layer_tree(timed, *_limits(frames))),
    _of_models(LAYER_KERNELS, lambda timed, frames, _: model_layer_kernels(timed, *_limits(frames))),
)

# ---------------------------------------------------------------- traces


def _kernels(trace: Frames) -> pl.LazyFrame:
    return layers.with_totals(
        kernels.trace_kernels(trace["kernel_launches"], trace["trace_names"]),
        layers.kernels_from_totals(trace["kernel_totals"], trace["trace_names"]),
        ("kernel_name",),
    ).with_columns(category=infer_category(pl.col("kernel_name")))


def _layers(trace: Frames, depth: int | None = None) -> pl.LazyFrame:
    return layers.with_totals(
        layers.trace_layers(trace["kernel_launches"], trace["ranges"], trace["trace_names"], depth),
        layers.layers_from_totals(trace["kernel_totals"], trace["scopes"], trace["trace_names"], depth),
        ("layer", "source"),
    )


def _gaps(trace: Frames) -> pl.LazyFrame:
    return activity.trace_gaps(trace["kernel_launches"], trace["memory_ops"], trace["api_calls"], trace["ranges"], trace["trace_names"])


def _breakdown(trace: Frames) -> pl.LazyFrame:
    return activity.trace_breakdown(trace["kernel_launches"], trace["memory_ops"], trace["trace_names"], trace["trace_devices"])


def _collectives(trace: Frames) -> pl.LazyFrame:
    return collectives.trace_collectives(trace["kernel_launches"], trace["trace_names"], trace["trace_processes"])


def timeline_table(table: Table, timeline: Timeline, parameters: QueryParameters) -> pl.DataFrame:
    """Return one of WINDOWED_TABLES. Raises InvalidRequestError: see Timeline.tile."""
    if table is TIMELINE:
        return timeline.tile(parameters.window_start_ns, parameters.window_end_ns, parameters.pixel_count)
    if table is WINDOW_SUMMARY:
        return window_summary(timeline, parameters.window_start_ns, parameters.window_end_ns)
    matches = Matches.of(timeline, None)
    return matches.frame(timeline, *matches.between(parameters.window_start_ns, parameters.window_end_ns))


def _of_timeline(table: Table, version: int = 1) -> Derived:
    def compute(trace: Frames, parameters: QueryParameters) -> pl.LazyFrame:
        return timeline_table(table, Timeline.of(timeline_events(trace).collect()), parameters).lazy()

    return Derived(table, trace_timeline.INPUT, compute, version=version)


def _together(*parts: Inputs) -> Inputs:
    """Columns of several analyses, by table."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: tuple(dict.fromkeys(column for part in parts for column in part.get(name, ()))) for name in names}


_OF_OPPORTUNITIES: Final = {
    **COST_INPUT_COLUMNS,
    **activity.BREAKDOWN_INPUT,
    "kernel_launches": (*COST_INPUT_COLUMNS["kernel_launches"], "start_ns"),
    "trace_devices": COST_INPUT_COLUMNS["trace_devices"],
    WORK: (),
}

_OF_LEVELS: Final = {
    **{name: COST_INPUT_COLUMNS[name] for name in ("kernel_launches", "trace_names", "trace_devices")},
    "launch_work": tuple(dict.fromkeys((*COST_INPUT_COLUMNS["launch_work"], *LEVEL_BYTES.values()))),
}

_OF_LAYERS_AT_LEVELS: Final = {**COST_INPUT_COLUMNS, "launch_work": _OF_LEVELS["launch_work"]}

_TRACE_TABLES: Final = (
    Derived(KERNELS, {**kernels.KERNELS_INPUT, **layers.KERNELS_INPUT}, lambda trace, _: _kernels(trace)),
    Derived(
        LAYERS,
        {**layers.INPUT, **layers.LAYERS_INPUT, "launch_work": COST_INPUT_COLUMNS["launch_work"], WORK: ()},
        lambda trace, parameters: with_layer_work(_layers(trace, parameters.depth), trace, parameters.depth),
        layers.DEPTH_INPUT,
        needs_hardware=True,
    ),
    Derived(LAYER_TREE, layer_tree.INPUT, lambda trace, _: layer_tree.layer_tree(trace), needs_hardware=True),
    Derived(LAYER_KERNELS, layer_tree.INPUT, lambda trace, _: layer_tree.layer_kernels(trace), needs_hardware=True),
    Derived(BREAKDOWN, activity.BREAKDOWN_INPUT, lambda trace, _: _breakdown(trace)),
    Derived(CEILINGS, {"trace_devices": COST_INPUT_COLUMNS["trace_devices"]}, lambda trace, _: trace_ceilings(trace["trace_devices"])),
    Derived(ROOFLINE, {**COST_INPUT_COLUMNS, WORK: ()}, lambda trace, _: trace_roofline(trace), needs_hardware=True),
    Derived(COUNTED_ROOFLINE, _OF_LEVELS, lambda trace, _: trace_counted_roofline(trace), needs_hardware=True),
    Derived(
        LAYER_ROOFLINE,
        {**COST_INPUT_COLUMNS, WORK: ()},
        lambda trace, parameters: layer_roofline(trace, parameters.depth),
        layers.DEPTH_INPUT,
        needs_hardware=True,
    ),
    Derived(
        COUNTED_LAYER_ROOFLINE,
        _OF_LAYERS_AT_LEVELS,
        lambda trace, parameters: counted_layer_roofline(trace, parameters.depth),
        layers.DEPTH_INPUT,
        needs_hardware=True,
    ),
    Derived(
        OPPORTUNITIES,
        _OF_OPPORTUNITIES,
        lambda trace, _: opportunities(trace, _kernels(trace), _layers(trace), _breakdown(trace)),
        needs_hardware=True,
    ),
    Derived(
        COUNTER_COVERAGE,
        kernels.COVERAGE_INPUT,
        lambda trace, _: kernels.counter_coverage(trace["kernel_launches"], trace["launch_work"]),
    ),
    Derived(GAPS, activity.GAPS_INPUT, lambda trace, _: _gaps(trace)),
    Derived(GAP_REASONS, {}, lambda trace, _: activity.trace_gap_reasons(trace["gaps"]), derived_inputs=(GAPS,)),
    Derived(
        LAUNCHES,
        kernels.LAUNCHES_INPUT,
        lambda trace, _: kernels.trace_launches(trace["kernel_launches"], trace["api_calls"], trace["trace_names"]),
    ),
    Derived(MEMORY, kernels.MEMORY_INPUT, lambda trace, _: kernels.trace_memory(trace["memory_ops"], trace["trace_devices"])),
    Derived(
        OCCUPANCY,
        kernels.OCCUPANCY_INPUT,
        lambda trace, _: kernels.trace_occupancy(trace["kernel_launches"], trace["trace_names"], trace["trace_devices"]),
    ),
    Derived(COLLECTIVES, collectives.COLLECTIVES_INPUT, lambda trace, _: _collectives(trace), version=2),
    _of_timeline(TIMELINE),
    _of_timeline(TIMELINE_MATCHES),
    _of_timeline(WINDOW_SUMMARY),
    Derived(
        RANKS,
        _together(collectives.COLLECTIVES_INPUT, activity.BREAKDOWN_INPUT),
        lambda trace, _: collectives.trace_ranks(
            trace["kernel_launches"], trace["trace_names"], trace["trace_processes"], _collectives(trace), _breakdown(trace)
        ),
        version=2,
    ),
    Derived(
        RANK_CLOCKS,
        collectives.COLLECTIVES_INPUT,
        lambda trace, _: collectives.rank_clocks(trace["kernel_launches"], trace["trace_names"], trace["trace_processes"]),
    ),
)

TRACE_DERIVED: Final[Mapping[str, Derived]] = {derived.table.table_name: derived for derived in _TRACE_TABLES}
"""Those of traces, by table."""

_ALL: Final = (*_MEASUREMENT_TABLES, *_MODEL_TABLES, *_TRACE_TABLES)

DERIVED: Final[Mapping[str, tuple[Derived, ...]]] = {
    name: tuple(derived for derived in _ALL if derived.table.table_name == name) for name in (derived.table.table_name for derived in _ALL)
}
"""By table. Tables that say the same of configurations, or of models, and of launches in traces have a definition for each."""


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """table_name: of what is computed of each trace. compare: the candidate's rows and the baseline's, without the store's columns."""

    table_name: str
    compare: Callable[[pl.LazyFrame, pl.LazyFrame], pl.LazyFrame]


TRACE_COMPARISONS: Final[Mapping[str, TraceComparison]] = {
    KERNEL_COMPARISON.table_name: TraceComparison(KERNELS.table_name, kernel_comparison),
    LAYER_COMPARISON.table_name: TraceComparison(LAYERS.table_name, layer_comparison),
}
"""By the name of the table that they give."""

# ---------------------------------------------------------------- what a table can be asked


def parameters_of(query: TableQuery) -> QueryParameters:
    """Return what a query asks of how its table is computed. Raises InvalidRequestError when the table has nothing of that kind."""
    if query.depth is not None and not has_depth(query.table_name):
        raise InvalidRequestError(
            f"depth {query.depth} of table {query.table_name}",
            found="a table without depths",
            expected=" or ".join(name for name in (*TRACE_DERIVED, *TRACE_COMPARISONS) if has_depth(name)),
            remedy="Ask without a depth.",
        )
    return QueryParameters(query.depth, query.window_start_ns, query.window_end_ns, query.pixel_count)


def has_depth(table_name: str) -> bool:
    """Return whether kernels can be summed at a chosen depth of their ranges."""
    compared = TRACE_COMPARISONS.get(table_name)
    derived = TRACE_DERIVED.get(table_name if compared is None else compared.table_name)
    return derived is not None and derived.depth_inputs is not None


def is_of_traces(table_name: str) -> bool:
    """Return whether a trace alone has the table."""
    is_derived = any(derived.kind in (RunKind.TRACE, RunKind.ANY) for derived in DERIVED.get(table_name, ()))
    return is_derived or any(table.table_name == table_name for table in FILE_TABLES)


def trace_inputs(table_names: Iterable[str], parameters: QueryParameters = DEFAULT_QUERY) -> list[Inputs]:
    """Return the columns that these tables need of a trace: of derived tables their inputs, of tables of traces themselves all."""
    return list(chain.from_iterable(_trace_inputs(name, parameters) for name in table_names if is_of_traces(name)))


def _trace_inputs(table_name: str, parameters: QueryParameters) -> list[Inputs]:
    own = {table.table_name: table for table in FILE_TABLES}
    derived = TRACE_DERIVED.get(table_name)
    if derived is None:
        names = [name for other in DERIVED.get(table_name, ()) for name in other.inputs] or [table_name]
        return [{name: own[name].column_names for name in names if name in own}]
    of_depth = [] if parameters.depth is None or derived.depth_inputs is None else [derived.depth_inputs]
    return [derived.inputs, *of_depth, *trace_inputs((table.table_name for table in derived.derived_inputs), parameters)]


# ---------------------------------------------------------------- table sources
# Tables by name: rows that a source has, or what is computed from them.

RUN_ID: Final = "file"
"""Of results of a file: analyses join on it, and no run has it."""


class TableSource(Protocol):
    """Where rows come from: runs of a store, or a file."""

    def rows(self, table: Table, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame | None:
        """Return rows that need no definition of a derived table; None: the source has no such table."""

    def parts(self, derived: Derived) -> Sequence[TableSource]:
        """Return the sources that the definition is applied to, each by itself; none where it has nothing to say."""

    def result(self, derived: Derived, parameters: QueryParameters, compute: Callable[[], pl.LazyFrame]) -> pl.LazyFrame:
        """Return what `compute` gives, or what it gave before."""

    def finished(self, table: Table, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return rows as those who ask get them."""


def resolve_table(table: Table, source: TableSource, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame:
    """Return the rows that a source has of the table, then those computed from what it has.

    Raises:
        InvalidRequestError: a comparison of runs that cannot be compared; a window that the timeline does not have.
    """
    own = source.rows(table, parameters)
    found = [] if own is None else [source.finished(table, own)]
    for derived in DERIVED.get(table.table_name, ()):
        found += [part.finished(table, derived_rows(derived, part, parameters)) for part in source.parts(derived)]
    return concat_frames(table, found) if found else source.finished(table, table.empty().lazy())


def derived_rows(derived: Derived, source: TableSource, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame:
    """Return what one definition says of one source; of a trace without run_id and event_index."""

    def compute() -> pl.LazyFrame:
        names = [table.table_name for table in TRACE_TABLES] if derived.kind is RunKind.TRACE else [*derived.inputs]
        tables = [*map(find_table, names), *([CEILINGS, THRESHOLDS] if derived.needs_hardware else [])]
        frames = {table.table_name: rows for table in tables if (rows := source.rows(table)) is not None}
        for table in derived.derived_inputs:
            of_kind = next(other for other in DERIVED[table.table_name] if other.kind in (derived.kind, RunKind.ANY))
            frames[table.table_name] = derived_rows(of_kind, source, parameters)
        return derived.compute(frames, parameters)

    return source.result(derived, parameters, compute)


@dataclass(frozen=True, slots=True)
class FileSource:
    """What a reader gave, stored nowhere: results of benchmarks, or a trace.

    frames: by table; tables that the reader did not give have no rows, columns that it did not give are null. Ceilings are those of the
        file alone: nothing is known of its devices.
    """

    frames: Mapping[str, pl.DataFrame]

    @property
    def has_results(self) -> bool:
        """Whether a reader gave results of benchmarks; a trace has none."""
        return MEASUREMENTS.table_name in self.frames

    def rows(self, table: Table, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame | None:
        """Return the file's own rows of the table; None: the table is derived, or files have none of it."""
        if not self.has_results:
            return trace_rows(self.frames, table) if table in FILE_TABLES else None
        if table not in (*STORED_TABLES, *IMPORTED_TABLES):
            return None
        # Of several ceilings of one kind the later one counts, by this index.
        return _conformed(self.frames, table).with_columns(run_id=pl.lit(RUN_ID), event_index=pl.int_range(pl.len(), dtype=pl.Int64))

    def parts(self, derived: Derived) -> Sequence[TableSource]:
        """Return the file itself where the derived table is of its kind."""
        kinds = (RunKind.MEASUREMENTS, RunKind.MODEL) if self.has_results else (RunKind.TRACE,)
        return [self] if derived.kind in (RunKind.ANY, *kinds) else []

    def result(self, derived: Derived, parameters: QueryParameters, compute: Callable[[], pl.LazyFrame]) -> pl.LazyFrame:
        """Return what is computed; results of files are not cached."""
        return compute()

    def finished(self, table: Table, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows without the columns of a store; of a table that traces share with other runs the columns of traces alone."""
        return rows.drop("run_id", "event_index", strict=False)


def trace_frames(frames: Mapping[str, pl.DataFrame]) -> Frames:
    """Return what a reader gave as tables of a trace."""
    return {table.table_name: trace_rows(frames, table) for table in FILE_TABLES}


def trace_rows(frames: Mapping[str, pl.DataFrame], table: Table) -> pl.LazyFrame:
    """Return one of FILE_TABLES."""
    rows = _conformed(frames, table)
    # Launches of a report are told apart by where it is stored: here there is one, nowhere.
    return rows.with_columns(run_id=pl.lit(""), event_index=pl.lit(0)) if table is COUNTERS else rows


def _conformed(frames: Mapping[str, pl.DataFrame], table: Table) -> pl.LazyFrame:
    frame = frames.get(table.table_name)
    return table.empty().lazy() if frame is None else table.conform(frame.lazy())
