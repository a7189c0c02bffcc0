"""A run that continues another, asked for by itself: the rows of both, each configuration told of once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import ContinuedSweepSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import ConfigurationFailed, RunError, RunState, StateChanged, StopReason
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, started

CRASHED = ConfigurationFailed(0, RunError("ABORTED", "WORKER_CRASHED", "SIGSEGV"))


@pytest.fixture
def sweep(store: Store) -> Store:
    """run-1 measures 0 whole, is cut short at 1, fails at 2 and 3 and begins 4; run-2 measures 1, 2 and 4, and fails at 3 again."""
    node = ProfilerStandIn("unix:none")
    first = node.add_run("run-1")
    second = node.add_run("run-2", created_after_s=1)
    node.runs["run-2"] = replace(second, spec=replace(first.spec, continues_run_id="run-1"))
    cut_short = replace(measurement(1, duration_ns=900.0), stop_reason=StopReason.BUDGET_SPENT)
    node.journal("run-1", *started(), configuration(0), samples(0, 0, 3), measurement(0), configuration(1), samples(1, 0, 2), cut_short)
    node.journal("run-1", configuration(2), *(replace(CRASHED, configuration_index=index) for index in (2, 3)))
    node.journal("run-1", configuration(4), samples(4, 0, 2), StateChanged(RunState.CANCELLED))
    node.journal("run-2", *started(), configuration(1), samples(1, 0, 5), measurement(1, duration_ns=1000.0))
    node.journal("run-2", configuration(2), samples(2, 0, 4), measurement(2), configuration(4), samples(4, 0, 1), measurement(4))
    node.journal("run-2", replace(CRASHED, configuration_index=3, error=RunError("ABORTED", "TIME_LIMIT", "hung")))
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
    return store


def column(store: Store, table_name: str, name: str, *run_ids: str) -> list[object]:
    rows = resolve_table(find_table(table_name), ContinuedSweepSource(store, run_ids)).collect()
    return rows.sort("configuration_index")[name].to_list()


def test_the_later_run_tells_of_what_both_have_measured(sweep: Store) -> None:
    assert column(sweep, "measurements", "configuration_index", "run-2") == [0, 1, 2, 4]
    assert column(sweep, "measurements", "duration_median_ns", "run-2") == [5000, 1000, 5000, 5000]
    assert column(sweep, "configurations", "configuration_index", "run-2") == [0, 1, 2, 4]
    assert column(sweep, "samples", "configuration_index", "run-2") == [0] * 3 + [1] * 5 + [2] * 4 + [4]
    assert set(column(sweep, "samples", "run_id", "run-2")) == {"run-2"}


def test_of_what_failed_the_last_word_counts(sweep: Store) -> None:
    assert column(sweep, "failures", "reason", "run-2") == ["TIME_LIMIT"]
    assert column(sweep, "failures", "configuration_index", "run-1") == [2, 3]


def test_what_follows_from_the_rows_is_that_of_the_whole_sweep(sweep: Store) -> None:
    assert column(sweep, "roofline", "configuration_index", "run-2") == [0, 1, 2, 4]
    (kernel,) = resolve_table(find_table("kernels"), ContinuedSweepSource(sweep, ["run-2"])).collect().rows(named=True)
    assert (kernel["run_id"], kernel["configuration_count"], kernel["duration_median_min_ns"]) == ("run-2", 4, 1000)


def test_the_earlier_run_keeps_its_own_and_all_runs_together_have_every_row_once(sweep: Store) -> None:
    assert column(sweep, "measurements", "configuration_index", "run-1") == [0, 1]
    everything = resolve_table(find_table("measurements"), ContinuedSweepSource(sweep, None)).collect()
    assert sorted(everything["run_id"]) == ["run-1"] * 2 + ["run-2"] * 3
    both = resolve_table(find_table("measurements"), ContinuedSweepSource(sweep, ["run-1", "run-2"])).collect()
    assert sorted(both["run_id"]) == ["run-1"] * 2 + ["run-2"] * 4
