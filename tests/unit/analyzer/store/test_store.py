"""The store on a real directory: exactly once, compacted without loss, opened once, full disks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa

from kernalyse.services.analyzer.store.parquet import RunFiles, write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, LOG_LINES, MEASUREMENTS, SAMPLES
from kernalyse.services.core.errors import RunNotFinishedError, RunNotFoundError, StorageFullError, StoreLockedError
from kernalyse.services.core.model import ImportedTrace, LogLevel, LogLines, Run, RunSpec, RunState, StateChanged
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, samples, started


@pytest.fixture
def node() -> ProfilerStandIn:
    """Nothing listens: only its journal is used."""
    node = ProfilerStandIn("unix:none")
    node.add_run("run-1")
    node.journal(
        "run-1", *started(), configuration(0), samples(0, 0, 10), samples(0, 10, 10), LogLines(LogLevel.INFO, "worker", ("a", "b"))
    )
    return node


def commit(store: Store, node: ProfilerStandIn, first: int = 0) -> None:
    store.commit_events(node.node.node_id, node.node.journal_id, node.events[first:], list(node.runs.values()))


def sample_indexes(store: Store) -> list[int]:
    return store.read(SAMPLES, ["run-1"]).collect()["sample_index"].to_list()


def test_events_sent_again_are_stored_once(store: Store, node: ProfilerStandIn) -> None:
    commit(store, node)
    commit(store, node)
    commit(store, node, first=3)
    assert sample_indexes(store) == list(range(20))
    assert store.read(LOG_LINES, None).collect()["line"].to_list() == ["a", "b"]
    assert store.nodes.next_event_index("node-1", "journal-1") == len(node.events)


@pytest.mark.parametrize("catalogue", ["sqlite"], indirect=True)  # PostgreSQL's disk is full when its machine's is
def test_a_batch_that_fails_leaves_neither_rows_nor_cursor(store: Store, node: ProfilerStandIn) -> None:
    commit(store, node)
    size = len(node.events)
    node.journal("run-1", *(samples(0, 20 + n * 5000, 5000) for n in range(20)))
    with store._database._writer.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(StorageFullError, match="Free space"):
        commit(store, node, first=size)
    assert sample_indexes(store) == list(range(20))
    assert store.nodes.next_event_index("node-1", "journal-1") == size
    with store._database._writer.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    commit(store, node, first=size)
    assert len(sample_indexes(store)) == 20 + 20 * 5000


def test_a_compacted_run_reads_as_before(store: Store, node: ProfilerStandIn, tmp_path: Path) -> None:
    node.journal("run-1", StateChanged(RunState.SUCCEEDED))
    commit(store, node)
    before = {table.table_name: store.read(table, ["run-1"]).collect() for table in (SAMPLES, CONFIGURATIONS, LOG_LINES)}
    counts = store.row_counts("run-1", 4)
    assert store.runs.to_compact() == ["run-1"]
    store.compact("run-1")
    store.compact("run-1")
    assert store.runs.to_compact() == []
    for table in (SAMPLES, CONFIGURATIONS, LOG_LINES):
        assert store.read(table, ["run-1"]).collect().equals(before[table.table_name])
        assert store.read(table, None, 5, 6).collect().equals(before[table.table_name].filter(pl.col("event_index") == 5))
    assert store.row_counts("run-1", 4).equals(counts)
    (directory,) = (tmp_path / "store" / "runs").glob("run-1-*")
    assert (directory / "samples.parquet").exists()


@pytest.mark.parametrize("row_count", [1, 7, 15, 30])
def test_a_long_run_becomes_files_in_parts(
    store: Store, node: ProfilerStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_count: int
) -> None:
    monkeypatch.setattr("kernalyse.services.analyzer.store.store.COMPACTED_ROW_COUNT", row_count)
    node.journal("run-1", *(samples(0, 20 + 10 * place, 10) for place in range(5)), StateChanged(RunState.SUCCEEDED))
    commit(store, node)
    before = store.read(SAMPLES, ["run-1"]).collect()
    store.compact("run-1")
    assert store.read(SAMPLES, ["run-1"]).collect().equals(before)
    assert sample_indexes(store) == list(range(70))
    assert list((tmp_path / "store" / "arriving").iterdir()) == []


def test_an_event_after_compaction_is_kept_beside_the_files(store: Store, node: ProfilerStandIn) -> None:
    node.journal("run-1", StateChanged(RunState.SUCCEEDED))
    commit(store, node)
    store.compact("run-1")
    node.journal("run-1", LogLines(LogLevel.INFO, "service", ("late",)))
    commit(store, node, first=len(node.events) - 1)
    assert store.read(LOG_LINES, ["run-1"]).collect()["line"].to_list() == ["a", "b", "late"]


@pytest.mark.parametrize("moment", ["while files are written", "before the row that names them"])
def test_a_compaction_that_breaks_off_loses_and_doubles_nothing(
    store: Store, node: ProfilerStandIn, tmp_path: Path, catalogue: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    node.journal("run-1", StateChanged(RunState.SUCCEEDED))
    commit(store, node)

    class PowerCut(Exception):
        pass

    write = RunFiles.write

    def broken(files: RunFiles, run_id: str, frames: dict[str, pl.DataFrame]) -> None:
        if moment == "before the row that names them":
            write(files, run_id, frames)
        raise PowerCut

    monkeypatch.setattr(RunFiles, "write", broken)
    with pytest.raises(PowerCut):
        store.compact("run-1")
    monkeypatch.undo()
    assert sample_indexes(store) == list(range(20))
    store.close()
    again = Store(tmp_path / "store", catalogue)
    try:
        assert list((tmp_path / "store" / "runs").iterdir()) == []
        assert sample_indexes(again) == list(range(20))
        again.compact("run-1")
        assert sample_indexes(again) == list(range(20))
    finally:
        again.close()


@pytest.mark.parametrize("catalogue", ["sqlite"], indirect=True)  # the trigger is SQLite's
def test_a_database_that_fails_leaves_no_files(store: Store, node: ProfilerStandIn, tmp_path: Path) -> None:
    node.journal("run-1", StateChanged(RunState.SUCCEEDED))
    commit(store, node)
    with store._database.writing() as connection:
        connection.exec_driver_sql("CREATE TRIGGER full BEFORE INSERT ON parquet_prefixes BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(sa.exc.SQLAlchemyError):
        store.compact("run-1")
    assert list((tmp_path / "store" / "runs").iterdir()) == []
    assert sample_indexes(store) == list(range(20))


def test_files_of_an_import_that_was_killed_before_its_record_are_gone_at_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    directory = store.reserve_rows("imported-1")
    directory.mkdir()
    write_frames(directory, {"measurements": pl.DataFrame({"run_id": ["imported-1"]})})
    store.close()
    store = Store(tmp_path / "store")
    assert not directory.exists()
    assert store.read(MEASUREMENTS, None).collect().height == 0
    store.close()


def test_of_states_that_a_run_has_had_the_last_two_are_kept(store: Store, tmp_path: Path) -> None:
    """A list that is followed for a day has thousands; a query that has begun finds its files to its end."""
    spec = RunSpec(ImportedTrace("a.json", "sha256:0", "results"))
    run = Run(run_id="imported-1", node_id="", spec=spec, state=RunState.SUCCEEDED, create_time=datetime(2026, 1, 1, tzinfo=UTC))
    for number in range(6):
        begun = store.read(MEASUREMENTS, ["imported-1"])
        directory = store.reserve_rows("imported-1")
        directory.mkdir()
        write_frames(directory, {"measurements": MEASUREMENTS.frame([]).clear(1).with_columns(run_id=pl.lit("imported-1"))})
        assert store.add_imported(replace(run, spec=RunSpec(ImportedTrace("a.json", f"sha256:{number}", "results"))), directory, 1)
        assert begun.collect().height == min(number, 1)
        assert store.read(MEASUREMENTS, ["imported-1"]).collect().height == 1
        assert len(store._files._schemas) <= 2, number
        assert len(list((tmp_path / "store" / "runs").iterdir())) <= 2
    store.delete_run("imported-1")
    assert not store._files._schemas
    assert list((tmp_path / "store" / "runs").iterdir()) == []


def test_a_run_is_deleted_with_all_it_has_once_it_is_final(store: Store, node: ProfilerStandIn, tmp_path: Path) -> None:
    commit(store, node)
    with pytest.raises(RunNotFinishedError, match="Cancel"):
        store.delete_run("run-1")
    node.journal("run-1", StateChanged(RunState.CANCELLED))
    commit(store, node, first=len(node.events) - 1)
    store.compact("run-1")
    store.delete_run("run-1")
    with pytest.raises(RunNotFoundError):
        store.runs.get("run-1")
    assert list((tmp_path / "store" / "runs").iterdir()) == []
    assert sample_indexes(store) == []


def test_events_of_an_unknown_run_move_the_cursor_only(store: Store, node: ProfilerStandIn) -> None:
    assert store.commit_events("node-1", "journal-1", node.events) == []
    assert store.nodes.next_event_index("node-1", "journal-1") == len(node.events)


def test_a_second_process_is_refused_and_told_who_has_the_store(store: Store, tmp_path: Path) -> None:
    program = (
        f"from kernalyse.services.analyzer.store.store import Store; from pathlib import Path; Store(Path({str(tmp_path / 'store')!r}))"
    )
    second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "StoreLockedError" in second.stderr
    assert "in use by process" in second.stderr
    with pytest.raises(StoreLockedError):
        Store(tmp_path / "store")
