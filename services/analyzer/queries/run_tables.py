"""Every canonical table of the runs in a store: stored as it came, or computed from what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import ComparedRun, Difference, compare_runs
from kernalyse.services.analyzer.analysis.traces.timeline import Timeline, timeline_events
from kernalyse.services.analyzer.queries.registry import (
    LAYERED_TABLES,
    PLAIN_QUESTION,
    SUMMARIES,
    TIMELINE_EVENTS,
    TRACE_ANALYSES,
    TRACE_COMPARISONS,
    TraceFrames,
    TraceQuestion,
    answer_name,
    sweep_table,
)
from kernalyse.services.analyzer.store.repositories import MEASURED, USER, RunRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table, together
from kernalyse.services.analyzer.tables.derived import (
    ANSWERED_TABLES,
    COMPARISON,
    COUNTED_LAYER_ROOFLINE,
    COUNTED_ROOFLINE,
    MODEL_TABLES,
    PAIRED_COMPARISONS,
    ROOFLINE,
    TRACE_COMPARISON_TABLES,
)
from kernalyse.services.analyzer.tables.event_rows import Row, ceiling_row, frame_of, unix_ns
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
    RUNS,
    SAMPLES,
    THRESHOLDS,
    table_named,
)
from kernalyse.services.analyzer.tables.traces import HOST_DEVICE, TRACE_DEVICES, TRACE_TABLES, WINDOWED_TABLES
from kernalyse.services.core.disturbance import MAX_HOST_BUSY_RATIO
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Ceiling, CommandProfile, DeviceKind, ModelRun, Run, Thresholds

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


# ---------------------------------------------------------------- run hardware
# Ceilings and thresholds of runs: what they measured or state themselves, what is known of their devices, what was set by hand.

DEVICE_KEYS: Final = ["run_id", "device_id"]
CEILING_KEYS: Final = [*DEVICE_KEYS, "ceiling_name", "unit", "path", "source"]


@dataclass(frozen=True, slots=True)
class TraceHardware:
    """What is known of devices that runs alone know, beside what their traces tell: rows of the tables of these names.

    Set by hand, or measured on the node that ran the traced program.
    """

    ceilings: pl.DataFrame
    thresholds: pl.DataFrame

    def tables(self) -> dict[str, pl.LazyFrame]:
        """As tables of a trace: it knows of no runs."""
        frames = {CEILINGS.table_name: self.ceilings, THRESHOLDS.table_name: self.thresholds}
        alone = [pl.lit("").alias("run_id"), pl.lit(None, dtype=pl.Int64).alias("event_index")]
        return {name: frame.lazy().with_columns(alone) for name, frame in frames.items()}

    @property
    def digest(self) -> str:
        """Other for other values; empty when there are none."""
        if self.ceilings.is_empty() and self.thresholds.is_empty():
            return ""
        rows = (*self.ceilings.drop("event_index", "measured_unix_ns").rows(), *self.thresholds.drop("event_index").rows())
        return f"-{hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


def ceilings(store: Store, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    """What the runs measured themselves and, where they did not or it is better, what is known of their devices from every source."""
    of_devices, of_traces = _of_devices(store, run_ids).lazy(), trace_hardware(store, run_ids)
    own = _without_worse(store.read(CEILINGS, run_ids), of_devices)
    # What a file states of its device counts until somebody has set something else.
    is_stated = pl.col("source") == USER
    stated = own.filter(is_stated).join(of_traces.thresholds.lazy(), on=DEVICE_KEYS, how="anti", maintain_order="left")
    known = pl.concat([own.filter(~is_stated), stated, of_traces.ceilings.lazy()])
    return pl.concat([known, of_devices.join(known, on=CEILING_KEYS, how="anti")])


def _without_worse(own: pl.LazyFrame, of_devices: pl.LazyFrame) -> pl.LazyFrame:
    """Leave out measured ceilings that their device is known to exceed: a ceiling is a maximum, whenever it was reached.

    A run that was first on its device, on a busy host, would else be held against what that host left of it for ever. What
    was measured on a quiet host takes the place of what was not.
    """
    known = of_devices.filter(source=MEASURED).select(*CEILING_KEYS, known_value="value", is_known_busy=_is_busy())
    newest = own.sort("event_index", maintain_order=True).group_by(CEILING_KEYS).agg(pl.col("value", "host_busy_ratio").last())
    is_better = (pl.col("known_value") > pl.col("value")) | (_is_busy() & ~pl.col("is_known_busy"))
    worse = newest.join(known, on=CEILING_KEYS).filter(is_better)
    return own.join(worse, on=CEILING_KEYS, how="anti", maintain_order="left")


def _is_busy() -> pl.Expr:
    return (pl.col("host_busy_ratio") > MAX_HOST_BUSY_RATIO).fill_null(value=False)


def thresholds(store: Store, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    """What was set by hand, what imported runs state themselves and, for other devices, the default."""
    by_hand = trace_hardware(store, run_ids).thresholds.lazy()
    known = pl.concat([by_hand, store.read(THRESHOLDS, run_ids).join(by_hand, on=DEVICE_KEYS, how="anti", maintain_order="left")])
    return pl.concat([known, _thresholds_of_devices(store, run_ids).lazy().join(known, on=DEVICE_KEYS, how="anti")])


def trace_hardware(store: Store, run_ids: Sequence[str] | None) -> TraceHardware:
    found = store.hardware.of_runs(run_ids)
    records = store.runs.of(sorted(found)) if found else []
    known = [(record, device_id, *of_device) for record in records for device_id, of_device in found[record.run.run_id].items()]
    by_hand = [ceiling_row(record.run.run_id, _known_from(record), part) for record, _, parts, _ in known for part in parts]
    return TraceHardware(
        frame_of(CEILINGS, [*_of_nodes(store, run_ids), *by_hand]),
        frame_of(THRESHOLDS, [_threshold_row(record, device_id, limits) for record, device_id, _, limits in known]),
    )


def _of_nodes(store: Store, run_ids: Sequence[str] | None) -> list[Row]:
    """Of traces of programs that a node ran: what was measured of its devices that they name."""
    traced = [record for record in store.runs.of(store.trace_run_ids(run_ids)) if isinstance(record.run.spec.work, CommandProfile)]
    return [
        ceiling_row(record.run.run_id, _known_from(record), ceiling)
        for record in traced
        for name in _device_names(store, record.run.run_id)
        for ceiling in _measured(store, record.run.node_id, name)
    ]


def _device_names(store: Store, run_id: str) -> list[str]:
    return store.read(TRACE_DEVICES, [run_id]).select(pl.col("device_name").drop_nulls().unique().sort()).collect()["device_name"].to_list()


def _measured(store: Store, node_id: str, name: str) -> list[Ceiling]:
    """Of the node's devices of this name, as of the device that a trace names so.

    They are alike, or several runtimes' views of one processor: the highest of each kind counts.
    """
    is_host = name == HOST_DEVICE
    alike = [device for device in store.hardware.devices(node_id) if (device.kind is DeviceKind.CPU if is_host else device.name == name)]
    measured = [part for device in alike for part in store.hardware.ceilings(node_id, device.device_id) if part.source == MEASURED]
    highest = {(part.ceiling_name, part.unit, part.path): part for part in sorted(measured, key=lambda part: part.value)}
    return [replace(part, device_id=name) for part in highest.values()]


def _of_devices(store: Store, run_ids: Sequence[str] | None) -> pl.DataFrame:
    """Ceilings of each run's device from every source, with the event at which it was known."""
    records = [record for record in store.runs.of(run_ids) if record.run.device_id is not None]
    found = {device: store.hardware.ceilings(*device) for device in {_device_of(record) for record in records}}
    return frame_of(
        CEILINGS,
        [ceiling_row(record.run.run_id, record.device_event_index, ceiling) for record in records for ceiling in found[_device_of(record)]],
    )


def _thresholds_of_devices(store: Store, run_ids: Sequence[str] | None) -> pl.DataFrame:
    records = [record for record in store.runs.of(run_ids) if record.run.device_id is not None]
    found = {device: store.hardware.thresholds(*device) for device in {_device_of(record) for record in records}}
    return frame_of(THRESHOLDS, [_threshold_row(record, record.run.device_id or "", found[_device_of(record)]) for record in records])


def _threshold_row(record: RunRecord, device_id: str, limits: Thresholds) -> Row:
    return {"run_id": record.run.run_id, "event_index": _known_from(record), "device_id": device_id} | asdict(limits)


def _known_from(record: RunRecord) -> int | None:
    """The event from which on the run's device was known; of a trace of a node's run, which names its devices itself, the last."""
    return record.device_event_index if record.device_event_index is not None else record.next_event_index - 1


def _device_of(record: RunRecord) -> tuple[str, str]:
    """node_id and device_id."""
    return record.run.node_id, record.run.device_id or ""


# ---------------------------------------------------------------- whole sweeps
# Sweeps that were measured by several runs: who asks for the last of them gets the rows of all, for together they are one sweep.

OF_CONFIGURATIONS: Final = (CONFIGURATIONS, SAMPLES, MEASUREMENTS, FAILURES, COUNTERS)
STORED: Final = (*OF_CONFIGURATIONS, PAIRED_COMPARISONS, COUNTER_REPORTS)
WORKED_OUT: Final = (ROOFLINE, COUNTED_ROOFLINE, COUNTED_WORK, KERNELS, BEST)

Chains = Mapping[str, Sequence[str]]
"""The runs that a run continues, the latest first, by its run_id; none that continues nothing."""


def whole_table(
    store: Store,
    table: Table,
    run_ids: Sequence[str] | None,
    allowed_differences: frozenset[Difference] = frozenset(),
    question: TraceQuestion = PLAIN_QUESTION,
) -> pl.LazyFrame:
    """As run_table; a run that continues others has their rows too, as its own.

    Of all runs, each keeps its own: together they have every row once.

    Args:
        allowed_differences: of table comparison.

    Raises:
        InvalidRequestError: as run_table; and table comparison, and not two runs, or two that cannot be compared.
    """
    if table is COMPARISON:
        return _comparison(store, run_ids or (), allowed_differences)
    chains = _chains(store, run_ids) if run_ids is not None and table in (*STORED, *WORKED_OUT) else {}
    if run_ids is None or not chains:
        return run_table(store, table, run_ids, question)
    others = [run_id for run_id in run_ids if run_id not in chains]
    own = [run_table(store, table, others, question)] if others else []
    return together(table, [*own, sweep_table(table, lambda part: _rows(store, part, chains))])


def continued_run_ids(store: Store, run: Run) -> list[str]:
    """Those that the run continues, the latest first; ends where one has been deleted."""
    found: list[str] = []
    waiting = [run.spec.continues_run_id]
    while waiting and waiting[0] is not None and waiting[0] not in found:
        found.append(waiting[0])
        waiting = [record.run.spec.continues_run_id for record in store.runs.of(found[-1:])]
    return found


def _comparison(store: Store, run_ids: Sequence[str], allowed_differences: frozenset[Difference]) -> pl.LazyFrame:
    refuse_other_than_two(COMPARISON, run_ids)
    baseline, judged = (_compared_run(store, store.runs.get(run_id).run) for run_id in run_ids)
    return compare_runs(baseline, judged, allowed_differences).lazy()


def _compared_run(store: Store, run: Run) -> ComparedRun:
    measurements, samples = (whole_table(store, table, [run.run_id]).collect() for table in (MEASUREMENTS, SAMPLES))
    devices = {device_id: store.hardware.device(run.node_id, device_id) for device_id in measurements["device_id"].drop_nulls().unique()}
    return ComparedRun(
        run_id=run.run_id,
        measurements=measurements,
        samples=samples,
        node_id=run.node_id or None,
        devices={device_id: device for device_id, device in devices.items() if device is not None},
    )


def _chains(store: Store, run_ids: Sequence[str]) -> Chains:
    found = {record.run.run_id: continued_run_ids(store, record.run) for record in store.runs.of(run_ids)}
    return {run_id: earlier for run_id, earlier in found.items() if earlier}


def _rows(store: Store, table: Table, chains: Chains) -> pl.LazyFrame:
    """Of a table that is stored. Ceilings and thresholds are those of the run that was asked for."""
    if table not in STORED:
        return run_table(store, table, list(chains))
    return together(table, [_rows_of_chain(store, table, (run_id, *earlier)) for run_id, earlier in chains.items()])


def _rows_of_chain(store: Store, table: Table, chain: Sequence[str]) -> pl.LazyFrame:
    rows = store.read(table, chain)
    if table in OF_CONFIGURATIONS:
        rows = rows.join(_sources(store, chain), on=["run_id", "configuration_index"], how="semi")
    return rows.with_columns(run_id=pl.lit(chain[0]))


def _sources(store: Store, chain: Sequence[str]) -> pl.LazyFrame:
    """Which run tells of which configuration: the latest that has measured it, else the latest that knows it.

    One that was tried again, or went on after the end of a budget, is told of by both.
    """
    place = pl.col("run_id").replace_strict(list(chain), range(len(chain)), return_dtype=pl.Int64)
    told = pl.concat(
        store.read(table, chain).select("run_id", "configuration_index", is_measured=pl.lit(table is MEASUREMENTS))
        for table in (MEASUREMENTS, CONFIGURATIONS, FAILURES)
    )
    return told.sort(~pl.col("is_measured"), place).unique("configuration_index", keep="first", maintain_order=True)
