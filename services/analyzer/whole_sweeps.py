"""Sweeps that were measured by several runs: who asks for the last of them gets the rows of all, for together they are one sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from services.analyzer.analyses.compare import ComparedRun, Difference, compare_runs
from services.analyzer.comparison_table import COMPARISON, PAIRED_COMPARISONS
from services.analyzer.counter_tables import COUNTED_WORK, COUNTER_REPORTS, COUNTERS
from services.analyzer.roofline_tables import COUNTED_ROOFLINE, ROOFLINE
from services.analyzer.run_tables import refuse_other_than_two, run_table
from services.analyzer.schema import BEST, CONFIGURATIONS, FAILURES, KERNELS, MEASUREMENTS, SAMPLES
from services.analyzer.store import Store
from services.analyzer.sweep_tables import sweep_table
from services.analyzer.table import Table, together
from services.analyzer.trace_answers import PLAIN_QUESTION, TraceQuestion
from services.core.model import Run

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
