"""Kernels of all runs from their materialized view, held against those computed from every measurement."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kernalyse.services.analyzer.queries import materialized
from kernalyse.services.analyzer.queries.materialized import kernels_view
from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import KERNELS
from kernalyse.services.core.model import Ceiling, RunState, StateChanged, Thresholds
from tests.integration.profiler_stand_in import ProfilerStandIn, started
from tests.unit.analyzer.queries.test_history import add_runs


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[list[str] | None]:
    """Runs whose kernels were worked out from measurements, question by question."""
    asked: list[list[str] | None] = []

    def spied(store: Store, run_ids: list[str] | None) -> StoreSource:
        asked.append(run_ids)
        return StoreSource(store, run_ids)

    monkeypatch.setattr(materialized, "StoreSource", spied)
    return asked


def of_all(store: Store) -> pl.DataFrame:
    return resolve_table(KERNELS, StoreSource(store, None)).collect()


def test_rows_are_those_worked_out_and_a_settled_run_is_worked_out_once(store: Store, worked_out: list[list[str] | None]) -> None:
    add_runs(store, [100.0, 101.0])
    kept = kernels_view(store)
    assert_frame_equal(kept.rows().collect(), of_all(store))
    assert kept.rows().collect().height == 2
    add_runs(store, [102.0], first=2)
    assert_frame_equal(kept.rows().collect(), of_all(store))
    assert_frame_equal(kernels_view(store).rows().collect(), of_all(store))  # as after a restart
    assert [len(run_ids or []) for run_ids in worked_out] == [2, 1]


def test_a_run_that_goes_on_is_worked_out_each_time_and_one_without_kernels_once(store: Store, worked_out: list[list[str] | None]) -> None:
    add_runs(store, [100.0])
    add_runs(store, [101.0], first=1, is_compacted=False)
    node = ProfilerStandIn("unix:none", expired_before=store.nodes.next_event_index("node-1", "journal-1"))
    run = node.add_run("run-without-kernels")
    node.journal(run.run_id, *started(), StateChanged(RunState.SUCCEEDED))
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, [run])
    store.compact(run.run_id)
    kept = kernels_view(store)
    for _ in range(2):
        assert_frame_equal(kept.rows().collect(), of_all(store))
    assert [len(run_ids or []) for run_ids in worked_out] == [2, 1, 1]


def test_other_ceilings_and_a_deleted_run_change_the_answer(store: Store) -> None:
    add_runs(store, [100.0, 101.0])
    kept = kernels_view(store)
    before = kept.rows().collect()
    record = store.runs.of(None)[0]
    device_id = str(record.run.device_id)
    memory, compute = ("dram", "bytes_per_s", 7e16, "copy"), ("float32", "flop_per_s", 7e16, "fma")
    set_user_overrides = [Ceiling(device_id, *ceiling, source="user") for ceiling in (memory, compute)]
    store.hardware.set_user_overrides(record.run.node_id, device_id, set_user_overrides, Thresholds())
    after = kept.rows().collect()
    assert (before["bound"].to_list(), after["bound"].to_list()) == ([None, None], ["memory", "memory"])
    assert_frame_equal(after, of_all(store))
    store.delete_run(record.run.run_id)
    assert kept.rows().collect()["run_id"].to_list() == [other.run.run_id for other in store.runs.of(None)]


@pytest.mark.parametrize("damage", [b"PAR1 and no more", None])
def test_a_file_that_cannot_be_read_is_made_anew(store: Store, worked_out: list[list[str] | None], damage: bytes | None) -> None:
    add_runs(store, [100.0])
    rows = kernels_view(store).rows().collect()
    (path,) = store.summary_directory.rglob("*.parquet")
    content = path.read_bytes()
    path.write_bytes(damage or content[:4] + bytes(200) + content[204:])  # the rest of it can be read
    for _ in range(2):
        assert_frame_equal(kernels_view(store).rows().collect(), rows)
    assert len(worked_out) == 2


def test_rows_that_cannot_be_written_are_answered_and_computed_again(
    store: Store, worked_out: list[list[str] | None], caplog: pytest.LogCaptureFixture
) -> None:
    add_runs(store, [100.0, 101.0])
    store.summary_directory.write_bytes(b"no directory")
    view = kernels_view(store)
    for _ in range(2):
        assert_frame_equal(view.rows().collect(), of_all(store))
    assert len(worked_out) == 2
    assert "Rows of kernels are not kept" in caplog.text


def test_files_of_another_version_go(store: Store) -> None:
    add_runs(store, [100.0])
    for name in ("kernels-1-0.parquet", "0123456789ab/1.parquet"):
        path = store.summary_directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert kernels_view(store).rows().collect().height == 1
    assert [path.name for path in store.summary_directory.rglob("*.parquet")] == ["1.parquet"]
    assert len(list(store.summary_directory.iterdir())) == 1
