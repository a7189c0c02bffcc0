"""Tables by name: every one is found in a store, in results of a file and in a trace of a file, with the columns that it says."""

from __future__ import annotations

import pytest

from kernalyse.services.analyzer.queries.registry import DERIVED, FileSource, QueryParameters, RunKind, is_of_traces, resolve_table
from kernalyse.services.analyzer.queries.run_tables import ContinuedSweepSource, StoreSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.derived import COMPARISON, HISTORY_TABLES, LAYERS, ROOFLINE, TRACE_COMPARISON_TABLES
from kernalyse.services.analyzer.tables.runs import BEST, CONFIGURATIONS, FLEET, KERNELS, MEASUREMENTS, TABLES
from tests.unit.analyzer.analysis.test_hardware_settings import add
from tests.unit.analyzer.analysis.test_trace_roofline import model_trace
from tests.unit.analyzer.queries.test_history import add_runs

STORE_COLUMNS = ("run_id", "event_index")
OF_ONE_SOURCE = [table for table in TABLES if table not in (COMPARISON, *TRACE_COMPARISON_TABLES, *HISTORY_TABLES, FLEET)]


@pytest.fixture
def mixed(store: Store) -> Store:
    """Two sweeps and a trace."""
    add_runs(store, [100.0, 101.0])
    add(store, "imported-1", {name: frame.collect() for name, frame in model_trace().items()})
    return store


@pytest.mark.parametrize("table", OF_ONE_SOURCE, ids=lambda table: table.table_name)
def test_of_all_runs_a_table_has_its_columns_and_of_some_runs_their_rows(mixed: Store, table: Table) -> None:
    whole = resolve_table(table, StoreSource(mixed, None)).collect()
    assert tuple(whole.columns) == table.column_names
    for run_ids in (["run-000"], ["imported-1"], ["run-001", "imported-1"], []):
        for source in (StoreSource(mixed, run_ids), ContinuedSweepSource(mixed, run_ids)):
            rows = resolve_table(table, source).collect()
            assert rows.schema == whole.schema
            assert set(rows["run_id"]) == set(whole["run_id"]) & set(run_ids)


def test_a_table_that_sweeps_and_traces_have_says_both(mixed: Store) -> None:
    rows = resolve_table(KERNELS, StoreSource(mixed, None)).collect()
    assert rows.filter(run_id="run-000")["configuration_count"].to_list() == [2]
    assert rows.filter(run_id="imported-1")["launch_count"].sum() == model_trace()["kernel_launches"].collect().height


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.table_name)
def test_a_file_of_results_has_the_tables_of_a_run_without_columns_of_a_store(mixed: Store, table: Table) -> None:
    stored = {part.table_name: mixed.read(part, ["run-000"]).collect() for part in (CONFIGURATIONS, MEASUREMENTS)}
    source = FileSource({name: frame.drop(STORE_COLUMNS) for name, frame in stored.items()})
    rows = resolve_table(table, source).collect()
    assert tuple(rows.columns) == table.column_names[2:]
    kinds = {derived.kind for derived in DERIVED.get(table.table_name, ())}
    if table in (CONFIGURATIONS, MEASUREMENTS, ROOFLINE, KERNELS, BEST):
        assert rows.height > 0
    elif RunKind.TRACE in kinds:
        assert rows.is_empty()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.table_name)
def test_a_file_of_a_trace_has_what_is_computed_of_traces(table: Table) -> None:
    rows = resolve_table(table, FileSource({name: frame.collect() for name, frame in model_trace().items()})).collect()
    assert set(rows.columns) <= set(table.column_names) - set(STORE_COLUMNS)
    assert is_of_traces(table.table_name) or rows.is_empty()
    assert rows.height > 0 or table not in (KERNELS, LAYERS)


def test_layers_of_a_trace_in_a_file_are_those_of_the_depth(mixed: Store) -> None:
    source = FileSource({name: frame.collect() for name, frame in model_trace().items()})
    for depth in (None, 0, 1):
        stored = resolve_table(LAYERS, StoreSource(mixed, ["imported-1"]), QueryParameters(depth)).collect()
        found = resolve_table(LAYERS, source, QueryParameters(depth)).collect()
        assert found.equals(stored.select(found.columns))
