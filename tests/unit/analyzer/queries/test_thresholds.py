"""What counts as inefficient on the device of a run: by default, by hand, and as an imported file says."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pytest

from kernalyse.services.analyzer.queries import service
from kernalyse.services.analyzer.queries.registry import QueryParameters, resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.queries.service import TableAnswers
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.derived import ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS, THRESHOLDS
from kernalyse.services.core.model import Ceiling, CeilingsMeasured, Filter, Run, RunState, StateChanged, TableQuery, Thresholds
from tests.integration.profiler_stand_in import H200, ProfilerStandIn, configuration, measurement, samples, started


def measured_run(store: Store) -> Run:
    """At 60 % of the device's memory ceiling."""
    node = ProfilerStandIn("unix:none")
    node.add_run("run-1")
    known = configuration(0)
    duration_ns = 1000
    assert known.bytes is not None
    memory = Ceiling("cuda:0", "dram", "bytes_per_s", known.bytes / (duration_ns / 1e9) / 0.6, "copy", "measured")
    compute = Ceiling("cuda:0", known.dtype.value, "flop_per_s", 1e30, "fma", "measured")
    events = (known, samples(0, 0, 3), measurement(0, duration_ns=duration_ns), CeilingsMeasured((memory, compute)))
    node.journal("run-1", *started(), *events, StateChanged(RunState.SUCCEEDED))
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
    return store.runs.get("run-1").run


def category(store: Store) -> str | None:
    found: str | None = resolve_table(ROOFLINE, StoreSource(store, ["run-1"])).collect()["efficiency_category"][-1]
    return found


def ratios(store: Store, run_id: str) -> list[tuple[str, float, float]]:
    return resolve_table(THRESHOLDS, StoreSource(store, [run_id])).collect().select(pl.exclude("run_id", "event_index")).rows()


def test_thresholds_by_hand_change_the_category(store: Store) -> None:
    run = measured_run(store)
    assert ratios(store, "run-1") == [("cuda:0", 0.5, 0.5)]
    assert category(store) == "normal"
    store.hardware.set_user_overrides(
        run.node_id, H200.device_id, [], Thresholds(memory_inefficient_ratio=0.65, compute_inefficient_ratio=0.1)
    )
    assert ratios(store, "run-1") == [("cuda:0", 0.65, 0.1)]
    assert category(store) == "memory inefficient"


def test_a_table_of_a_run_that_has_ended_is_computed_once_for_what_is_known_of_its_device(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, answers, computed = measured_run(store), TableAnswers(store), []

    def resolve(table: Table, source: StoreSource, parameters: QueryParameters) -> pl.LazyFrame:
        computed.append(table.table_name)
        return resolve_table(table, source, parameters)

    def asked(*run_ids: str) -> tuple[list[str | None], int]:
        query = TableQuery("roofline", run_ids, filters=(Filter("device_id", "cuda:0"),))
        found = answers.answer(ROOFLINE, run_ids, query, frozenset())
        return found.frame["efficiency_category"].to_list(), len(computed)

    monkeypatch.setattr(service, "resolve_table", resolve)
    assert (asked("run-1"), asked("run-1")) == ((["normal"], 1), (["normal"], 1))
    store.hardware.set_user_overrides(run.node_id, H200.device_id, [], Thresholds(0.65, 0.1))
    assert (asked("run-1"), asked("run-1")) == ((["memory inefficient"], 2), (["memory inefficient"], 2))
    store.delete_run("run-1")
    assert asked("run-1") == ([], 3)


def imported(store: Store, frames: Mapping[str, pl.DataFrame]) -> None:
    run = measured_run(store)
    keyed = {name: frame.with_columns(run_id=pl.lit("imported-1"), event_index=pl.lit(0, dtype=pl.Int64)) for name, frame in frames.items()}
    directory = store.reserve_rows("imported-1")
    directory.mkdir()
    write_frames(directory, keyed)
    store.add_imported(Run("imported-1", "", run.spec, RunState.SUCCEEDED, run.create_time, device_id="npu"), directory, 1)


def test_thresholds_that_came_with_a_run_are_its_own(store: Store) -> None:
    stated = frame_from_rows(THRESHOLDS, [{"device_id": "npu", "memory_inefficient_ratio": 0.4, "compute_inefficient_ratio": 0.3}])
    imported(store, {MEASUREMENTS.table_name: frame_from_rows(MEASUREMENTS, [{"configuration_index": 0}]), THRESHOLDS.table_name: stated})
    assert ratios(store, "imported-1") == [("npu", 0.4, 0.3)]
    assert ratios(store, "run-1") == [("cuda:0", 0.5, 0.5)]


def test_an_imported_run_that_states_none_has_the_defaults(store: Store) -> None:
    imported(store, {MEASUREMENTS.table_name: frame_from_rows(MEASUREMENTS, [{"configuration_index": 0}])})
    assert ratios(store, "imported-1") == [("npu", 0.5, 0.5)]
