"""Tables of the runs in a store: stored as they came, or computed from what is stored; and of sweeps that several runs measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, Difference, compare_runs
from kernalyse.services.analyzer.analysis.traces.timeline import Timeline, timeline_events
from kernalyse.services.analyzer.queries.registry import (
    DEFAULT_QUERY,
    DERIVED,
    TRACE_COMPARISONS,
    TRACE_DERIVED,
    Derived,
    QueryParameters,
    RunKind,
    TableSource,
    derived_rows,
    resolve_table,
    timeline_events_name,
    timeline_table,
)
from kernalyse.services.analyzer.store.repositories import MEASURED, USER, RunRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table, concat_frames
from kernalyse.services.analyzer.tables.derived import COMPARISON, PAIRED_COMPARISONS
from kernalyse.services.analyzer.tables.event_rows import Row, ceiling_row, frame_from_rows
from kernalyse.services.analyzer.tables.runs import (
    CEILINGS,
    CONFIGURATIONS,
    COUNTER_REPORTS,
    COUNTERS,
    FAILURES,
    MEASUREMENTS,
    RUNS,
    SAMPLES,
    THRESHOLDS,
)
from kernalyse.services.analyzer.tables.traces import HOST_DEVICE, TRACE_DEVICES, TRACE_TABLES, WINDOWED_TABLES
from kernalyse.services.core.disturbance import MAX_HOST_BUSY_RATIO
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Ceiling, CommandProfile, DeviceKind, ModelRun, Run, Thresholds

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
    """Return ceilings and thresholds that imported traces state themselves, or that a user set for their devices."""
    found = store.hardware.of_runs(run_ids)
    records = store.runs.of(sorted(found)) if found else []
    known = [(record, device_id, *of_device) for record in records for device_id, of_device in found[record.run.run_id].items()]
    by_hand = [ceiling_row(record.run.run_id, _known_from(record), part) for record, _, parts, _ in known for part in parts]
    return TraceHardware(
        frame_from_rows(CEILINGS, [*_of_nodes(store, run_ids), *by_hand]),
        frame_from_rows(THRESHOLDS, [_threshold_row(record, device_id, limits) for record, device_id, _, limits in known]),
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
    return frame_from_rows(
        CEILINGS,
        [ceiling_row(record.run.run_id, record.device_event_index, ceiling) for record in records for ceiling in found[_device_of(record)]],
    )


def _thresholds_of_devices(store: Store, run_ids: Sequence[str] | None) -> pl.DataFrame:
    records = [record for record in store.runs.of(run_ids) if record.run.device_id is not None]
    found = {device: store.hardware.thresholds(*device) for device in {_device_of(record) for record in records}}
    return frame_from_rows(
        THRESHOLDS, [_threshold_row(record, record.run.device_id or "", found[_device_of(record)]) for record in records]
    )


def rows_state(store: Store, records: Sequence[RunRecord]) -> Hashable:
    """Return what stays equal as long as the stored rows of runs that have ended and what is known of their devices do."""
    run_ids = [record.run.run_id for record in records]
    of_runs = tuple((record.run.run_id, record.run.imported_digest, record.next_event_index) for record in records)
    of_devices = tuple(int(frame(store, run_ids).hash_rows().sum()) for frame in (_of_devices, _thresholds_of_devices))
    return of_runs, of_devices, trace_hardware(store, run_ids).digest


def _threshold_row(record: RunRecord, device_id: str, limits: Thresholds) -> Row:
    return {"run_id": record.run.run_id, "event_index": _known_from(record), "device_id": device_id} | asdict(limits)


def _known_from(record: RunRecord) -> int | None:
    """The event from which on the run's device was known; of a trace of a node's run, which names its devices itself, the last."""
    return record.device_event_index if record.device_event_index is not None else record.next_event_index - 1


def _device_of(record: RunRecord) -> tuple[str, str]:
    """node_id and device_id."""
    return record.run.node_id, record.run.device_id or ""


# ---------------------------------------------------------------- run tables

TABLES_OF_CONFIGURATIONS: Final = (CONFIGURATIONS, SAMPLES, MEASUREMENTS, FAILURES, COUNTERS)
CONTINUED_TABLES: Final = (*TABLES_OF_CONFIGURATIONS, PAIRED_COMPARISONS, COUNTER_REPORTS)
"""Stored tables of which a run that continues others has the rows of these too."""


def _run_rows(store: Store, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    event_index = pl.when(pl.col("next_event_index") > 0).then(pl.col("next_event_index") - 1)
    node_id = pl.when(pl.col("node_id") != "").then("node_id")
    return store.runs.listing(run_ids).lazy().with_columns(event_index=event_index, node_id=node_id).select(RUNS.column_names)


RECORDED_TABLES: Final[Mapping[str, Callable[[Store, Sequence[str] | None], pl.LazyFrame]]] = {
    CEILINGS.table_name: ceilings,
    THRESHOLDS.table_name: thresholds,
    RUNS.table_name: _run_rows,
}
"""Tables that stand on what is recorded of runs and devices besides the events."""


@dataclass(frozen=True)
class StoreSource:
    """Rows of runs, each its own. run_ids: None for all runs."""

    store: Store
    run_ids: Sequence[str] | None

    def rows(self, table: Table, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame | None:
        """Return rows as they are stored; ceilings are without what traces tell of their devices.

        Raises:
            InvalidRequestError: a comparison of traces, and not two runs, or one that is no trace.
        """
        if table.table_name in TRACE_COMPARISONS:
            return self._trace_comparison(table, parameters)
        if table.table_name in RECORDED_TABLES:
            return RECORDED_TABLES[table.table_name](self.store, self.run_ids)
        return None if table.table_name in DERIVED else self.store.read(table, self.run_ids)

    def parts(self, derived: Derived) -> Sequence[TableSource]:
        """Return the sources that a derived table is computed from one by one."""
        match derived.kind:
            case RunKind.ANY:
                return [self]
            case RunKind.MEASUREMENTS:
                traces = self.store.trace_run_ids(self.run_ids, without=CONFIGURATIONS)
                return [] if self.run_ids is not None and set(self.run_ids) <= set(traces) else [self]
            case RunKind.MODEL:
                model_run_ids = [record.run.run_id for record in self.store.runs.of(self.run_ids) if _may_be_of_model(record.run)]
                return [StoreSource(self.store, model_run_ids)] if model_run_ids else []
            case RunKind.TRACE:
                records = self.store.runs.of(self.store.trace_run_ids(self.run_ids))
                # What was measured is not told by its trace once more.
                is_measured = len(DERIVED[derived.table.table_name]) > 1
                return [TraceSource(self.store, record) for record in records if record.run.is_trace or not is_measured]

    def result(self, derived: Derived, parameters: QueryParameters, compute: Callable[[], pl.LazyFrame]) -> pl.LazyFrame:
        """Return the result of a computation, from the cache where it is kept there."""
        return compute()

    def finished(self, table: Table, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows as the source's callers expect them."""
        return rows

    def _trace_comparison(self, table: Table, parameters: QueryParameters) -> pl.LazyFrame:
        run_ids = _two_runs(table, self.run_ids)
        if others := set(run_ids) - set(self.store.trace_run_ids(run_ids)):
            raise InvalidRequestError(
                f"table {table.table_name}",
                found=f"run {' and run '.join(sorted(others))} without a trace",
                expected="two runs that are traces",
                remedy="Compare measurements with table comparison.",
            )
        comparison = TRACE_COMPARISONS[table.table_name]
        derived = TRACE_DERIVED[comparison.table_name]
        traces = [TraceSource(self.store, self.store.runs.get(run_id)) for run_id in run_ids]
        baseline, candidate = (derived_rows(derived, trace, parameters) for trace in traces)
        return traces[1].finished(table, comparison.compare(candidate, baseline).with_columns(baseline_run_id=pl.lit(run_ids[0])))


@dataclass(frozen=True)
class TraceSource:
    """The trace of one run. What is computed of it is cached beside it."""

    store: Store
    record: RunRecord

    @property
    def run_id(self) -> str:
        """Return the trace's run_id."""
        return self.record.run.run_id

    @cached_property
    def hardware(self) -> TraceHardware:
        """Return ceilings and thresholds of the trace's devices."""
        return trace_hardware(self.store, [self.run_id])

    def rows(self, table: Table, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame | None:
        """Return the trace's rows of a stored table."""
        if table in (CEILINGS, THRESHOLDS):
            return self.hardware.tables()[table.table_name]
        return self.store.read(table, [self.run_id])

    def parts(self, derived: Derived) -> Sequence[TableSource]:
        """Return the sources that a derived table is computed from one by one."""
        return [self]

    def result(self, derived: Derived, parameters: QueryParameters, compute: Callable[[], pl.LazyFrame]) -> pl.LazyFrame:
        """Return the result of a computation, from the cache where it is kept there."""
        if derived.table in WINDOWED_TABLES:
            return timeline_table(derived.table, timeline_of(self.store, self.run_id), parameters).lazy()
        name = derived.cached_result_name(parameters)
        if derived.needs_hardware:
            name += self.hardware.digest
        return self.store.answer(self.run_id, name, lambda: compute().collect())

    def finished(self, table: Table, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows as the source's callers expect them."""
        event_index = pl.lit(self.record.next_event_index - 1)
        return table.conform(rows.with_columns(run_id=pl.lit(self.run_id), event_index=event_index))


def timeline_of(store: Store, run_id: str) -> Timeline:
    """Return the timeline of a trace, cached in memory: a window is to be drawn at once, and the next one is of the same run."""
    name = timeline_events_name()

    def compute() -> pl.DataFrame:
        return timeline_events({table.table_name: store.read(table, [run_id]) for table in TRACE_TABLES}).collect()

    return store.held.get((run_id, name), Timeline, lambda: Timeline.of(store.answer(run_id, name, compute).collect()))


# ---------------------------------------------------------------- continued sweeps


@dataclass(frozen=True)
class ContinuedSweepSource(StoreSource):
    """As StoreSource; a run that continues others has their rows too, as its own, for together they are one sweep.

    Of all runs, each keeps its own: together they have every row once.

    allowed_differences: of table comparison.
    """

    allowed_differences: frozenset[Difference] = frozenset()

    @cached_property
    def chains(self) -> Mapping[str, Sequence[str]]:
        """The runs that a run continues, the latest first, by its run_id; none that continues nothing."""
        records = [] if self.run_ids is None else self.store.runs.of(self.run_ids)
        found = {record.run.run_id: continued_run_ids(self.store, record.run) for record in records}
        return {run_id: earlier for run_id, earlier in found.items() if earlier}

    def rows(self, table: Table, parameters: QueryParameters = DEFAULT_QUERY) -> pl.LazyFrame | None:
        """Return rows as StoreSource does, or table comparison.

        Raises:
            InvalidRequestError: as StoreSource; and table comparison, and not two runs, or two that cannot be compared.
        """
        if table is COMPARISON:
            baseline, candidate = (self._compared_run(run_id) for run_id in _two_runs(table, self.run_ids))
            return compare_runs(baseline, candidate, self.allowed_differences).lazy()
        if table not in CONTINUED_TABLES or self.run_ids is None or not self.chains:
            return super().rows(table, parameters)
        others = [run_id for run_id in self.run_ids if run_id not in self.chains]
        own = [self.store.read(table, others)] if others else []
        return concat_frames(table, [*own, *(self._rows_of_chain(table, (run_id, *earlier)) for run_id, earlier in self.chains.items())])

    def _rows_of_chain(self, table: Table, chain: Sequence[str]) -> pl.LazyFrame:
        rows = self.store.read(table, chain)
        if table in TABLES_OF_CONFIGURATIONS:
            rows = rows.join(_runs_that_tell(self.store, chain), on=["run_id", "configuration_index"], how="semi")
        return rows.with_columns(run_id=pl.lit(chain[0]))

    def _compared_run(self, run_id: str) -> ComparisonOperand:
        run, source = self.store.runs.get(run_id).run, ContinuedSweepSource(self.store, [run_id])
        measurements, samples = (resolve_table(table, source).collect() for table in (MEASUREMENTS, SAMPLES))
        device_ids = measurements["device_id"].drop_nulls().unique()
        devices = {device_id: self.store.hardware.device(run.node_id, device_id) for device_id in device_ids}
        return ComparisonOperand(
            run_id=run.run_id,
            measurements=measurements,
            samples=samples,
            node_id=run.node_id or None,
            devices={device_id: device for device_id, device in devices.items() if device is not None},
        )


def continued_run_ids(store: Store, run: Run) -> list[str]:
    """Return those that the run continues, the latest first; ends where one has been deleted."""
    found: list[str] = []
    waiting = [run.spec.continues_run_id]
    while waiting and waiting[0] is not None and waiting[0] not in found:
        found.append(waiting[0])
        waiting = [record.run.spec.continues_run_id for record in store.runs.of(found[-1:])]
    return found


def _runs_that_tell(store: Store, chain: Sequence[str]) -> pl.LazyFrame:
    """Return which run tells of which configuration: the latest that has measured it, else the latest that knows it.

    One that was tried again, or went on after the end of a budget, is told of by both.
    """
    place = pl.col("run_id").replace_strict(list(chain), range(len(chain)), return_dtype=pl.Int64)
    told = pl.concat(
        store.read(table, chain).select("run_id", "configuration_index", is_measured=pl.lit(table is MEASUREMENTS))
        for table in (MEASUREMENTS, CONFIGURATIONS, FAILURES)
    )
    return told.sort(~pl.col("is_measured"), place).unique("configuration_index", keep="first", maintain_order=True)


def _two_runs(table: Table, run_ids: Sequence[str] | None) -> Sequence[str]:
    """Raises InvalidRequestError."""
    found = run_ids or ()
    if len(set(found)) != 2:
        raise InvalidRequestError(
            f"table {table.table_name}",
            found=f"{len(set(found))} runs",
            expected="two different ones: the baseline, then the one to judge",
            remedy="Name both.",
        )
    return found


def _may_be_of_model(run: Run) -> bool:
    """Results that were exported and imported again may be those of a model."""
    return isinstance(run.spec.work, ModelRun) or (run.is_imported and bool(run.total_configuration_count))
