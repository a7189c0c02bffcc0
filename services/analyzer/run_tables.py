"""Every canonical table of the runs in a store: stored as it came, or computed from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from services.analyzer.analyses.trace_timeline import Timeline, timeline_events
from services.analyzer.answer_tables import ANSWERED_TABLES
from services.analyzer.comparison_table import TRACE_COMPARISON_TABLES
from services.analyzer.counter_tables import COUNTED_WORK
from services.analyzer.event_rows import frame_of, unix_ns
from services.analyzer.model_tables import MODEL_TABLES
from services.analyzer.roofline_tables import COUNTED_LAYER_ROOFLINE, COUNTED_ROOFLINE, ROOFLINE
from services.analyzer.run_hardware import ceilings, thresholds, trace_hardware
from services.analyzer.run_records import RunRecord
from services.analyzer.runs_table import RUNS
from services.analyzer.schema import BEST, CEILINGS, CONFIGURATIONS, KERNELS, table_named
from services.analyzer.store import Store
from services.analyzer.sweep_tables import LAYERED_TABLES, sweep_table
from services.analyzer.table import Table, together
from services.analyzer.threshold_table import THRESHOLDS
from services.analyzer.timeline_tables import WINDOWED_TABLES
from services.analyzer.trace_answers import (
    PLAIN_QUESTION,
    SUMMARIES,
    TIMELINE_EVENTS,
    TRACE_ANALYSES,
    TRACE_COMPARISONS,
    TraceFrames,
    TraceQuestion,
    answer_name,
)
from services.analyzer.trace_tables import TRACE_TABLES
from services.core.errors import InvalidRequestError
from services.core.model import ModelRun, Run

TABLES_UNDER_CEILINGS: Final = (ROOFLINE, COUNTED_ROOFLINE, COUNTED_LAYER_ROOFLINE, *LAYERED_TABLES)
"""Of traces: other for other ceilings and thresholds."""

MEASURED_TABLES: Final = (KERNELS, ROOFLINE, COUNTED_ROOFLINE, *LAYERED_TABLES)
"""Of configurations as well as of launches in traces."""


def run_table(
    store: Store,
    table: Table,
    run_ids: Sequence[str] | None,
    question: TraceQuestion = PLAIN_QUESTION,
) -> pl.LazyFrame:
    """Rows of the table, apart from comparison.

    Args:
        run_ids: None for all runs.
        question: of tables that are worked out from traces.

    Raises:
        InvalidRequestError: a comparison of traces, and not two runs, or one that is no trace.
    """
    if table is COUNTED_WORK:
        return sweep_table(table, lambda part: run_table(store, part, run_ids))
    if table in (KERNELS, ROOFLINE, COUNTED_ROOFLINE):
        traces = _of_traces(store, table, run_ids, question)
        is_of_traces_alone = run_ids is not None and set(run_ids) <= set(store.trace_run_ids(run_ids, without=CONFIGURATIONS))
        of_sweeps = [] if is_of_traces_alone else [sweep_table(table, lambda part: _of_sweeps(store, part, run_ids))]
        return together(table, [*of_sweeps, *traces])
    if table in MODEL_TABLES:
        return _of_models(store, table, run_ids, question)
    if table in LAYERED_TABLES:
        return together(table, [_of_models(store, table, run_ids, question), *_of_traces(store, table, run_ids, question)])
    if table in (*ANSWERED_TABLES, COUNTED_LAYER_ROOFLINE):
        return together(table, _of_traces(store, table, run_ids, question))
    if table is BEST:
        return sweep_table(table, lambda part: _of_sweeps(store, part, run_ids))
    if table is CEILINGS:
        return pl.concat([ceilings(store, run_ids), *_of_traces(store, table, run_ids, question)])
    if table is THRESHOLDS:
        return thresholds(store, run_ids)
    if table in TRACE_COMPARISON_TABLES:
        return _trace_comparison(store, table, run_ids or (), question)
    if table is RUNS:
        return frame_of(RUNS, [_run_row(record) for record in store.runs.of(run_ids)]).lazy()
    return store.read(table, run_ids)


def _of_sweeps(store: Store, table: Table, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    """Without what is known of traces' devices: they have none in the store."""
    return ceilings(store, run_ids) if table is CEILINGS else run_table(store, table, run_ids)


def _of_models(store: Store, table: Table, run_ids: Sequence[str] | None, question: TraceQuestion) -> pl.LazyFrame:
    """The table worked out from the launches and passes of models."""
    model_run_ids = [record.run.run_id for record in store.runs.of(run_ids) if _may_be_of_model(record.run)]
    if not model_run_ids:
        return table.empty().lazy()
    return sweep_table(table, lambda part: _of_sweeps(store, part, model_run_ids), question.depth)


def _may_be_of_model(run: Run) -> bool:
    """Results that were exported and imported again may be those of a model."""
    return isinstance(run.spec.work, ModelRun) or (run.is_imported and bool(run.total_configuration_count))


def _of_traces(store: Store, table: Table, run_ids: Sequence[str] | None, question: TraceQuestion) -> list[pl.LazyFrame]:
    """The table worked out for each run that has a trace; what was measured is not told by its trace once more."""
    return [
        table.conform(
            _answer(store, table, record.run.run_id, question).with_columns(
                run_id=pl.lit(record.run.run_id), event_index=pl.lit(record.next_event_index - 1)
            )
        )
        for record in store.runs.of(store.trace_run_ids(run_ids))
        if table not in MEASURED_TABLES or record.run.is_trace
    ]


def _answer(store: Store, table: Table, run_id: str, question: TraceQuestion) -> pl.LazyFrame:
    if table in WINDOWED_TABLES:
        return question.of_timeline(table, timeline_of(store, run_id)).lazy()
    name = answer_name(table.table_name, question)
    if table.table_name in SUMMARIES:
        summarized, summary = SUMMARIES[table.table_name]
        return store.answer(run_id, name, lambda: summary(_answer(store, summarized, run_id, question)).collect())
    analysis = TRACE_ANALYSES[table.table_name]
    trace = _trace(store, run_id)
    if table in TABLES_UNDER_CEILINGS:
        known = trace_hardware(store, [run_id])
        trace, name = {**trace, **known.tables()}, f"{name}{known.digest}"
    return store.answer(run_id, name, lambda: analysis.answer(trace, question).collect())


def timeline_of(store: Store, run_id: str) -> Timeline:
    """Kept in memory: a window is to be drawn at once, and the next one is of the same run."""
    name = answer_name(TIMELINE_EVENTS, PLAIN_QUESTION)

    def read() -> Timeline:
        return Timeline.of(store.answer(run_id, name, lambda: timeline_events(_trace(store, run_id)).collect()).collect())

    return store.held.get((run_id, name), Timeline, read)


def _trace(store: Store, run_id: str) -> TraceFrames:
    return {table.table_name: store.read(table, [run_id]) for table in TRACE_TABLES}


def _trace_comparison(store: Store, table: Table, run_ids: Sequence[str], question: TraceQuestion) -> pl.LazyFrame:
    refuse_other_than_two(table, run_ids)
    others = set(run_ids) - set(store.trace_run_ids(run_ids))
    if others:
        raise InvalidRequestError(
            f"table {table.table_name}",
            found=f"run {' and run '.join(sorted(others))} without a trace",
            expected="two runs that are traces",
            remedy="Compare measurements with table comparison.",
        )
    comparison = TRACE_COMPARISONS[table.table_name]
    part = table_named(comparison.table_name)
    baseline, judged = (_answer(store, part, run_id, question) for run_id in run_ids)
    baseline_id, judged_id = run_ids
    event_index = store.runs.get(judged_id).next_event_index - 1
    compared = comparison.compare(judged, baseline)
    return table.conform(
        compared.with_columns(run_id=pl.lit(judged_id), baseline_run_id=pl.lit(baseline_id), event_index=pl.lit(event_index))
    )


def refuse_other_than_two(table: Table, run_ids: Sequence[str]) -> None:
    """Raises InvalidRequestError."""
    if len(set(run_ids)) != 2:
        raise InvalidRequestError(
            f"table {table.table_name}",
            found=f"{len(set(run_ids))} runs",
            expected="two different ones: the baseline, then the one to judge",
            remedy="Name both.",
        )


def _run_row(record: RunRecord) -> dict[str, object]:
    run, revision = record.run, record.run.spec.revision
    return {
        "run_id": run.run_id,
        "event_index": record.next_event_index - 1 if record.next_event_index > 0 else None,
        "node_id": run.node_id or None,
        "host_name": run.hostname or None,
        "title": run.title,
        "continues_run_id": run.spec.continues_run_id,
        "state": run.state.value,
        "create_unix_ns": unix_ns(run.create_time),
        "start_unix_ns": unix_ns(run.start_time),
        "end_unix_ns": unix_ns(run.end_time),
        "device_id": run.device_id,
        "completed_configuration_count": run.completed_configuration_count,
        "failed_configuration_count": run.failed_configuration_count,
        "total_configuration_count": run.total_configuration_count,
        "error_reason": None if run.error is None else run.error.reason,
        "error_message": None if run.error is None else run.error.message,
        "git_commit": None if revision is None else revision.commit,
        "git_is_dirty": None if revision is None else revision.is_dirty,
        "tags": ",".join(run.tags),
        "notes": run.notes,
    }
