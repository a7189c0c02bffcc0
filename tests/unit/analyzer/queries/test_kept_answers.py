"""Answers kept beside a run: found again under the version that they are of only, and not where there is no room or no run."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.ingest.reading import with_event_indexes
from kernalyse.services.analyzer.queries import registry
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, QueryParameters
from kernalyse.services.analyzer.store.column_cache import CachedColumn
from kernalyse.services.analyzer.store.parquet import cached_result_path, write_cached_result, write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core.model import ImportedTrace, Run, RunSpec, RunState

RUN_ID = "imported-1"
FRAME = pl.DataFrame({"gap_count": [1, 2, 3]})


@pytest.fixture
def store(store: Store) -> Store:
    add(store, "sha256:0")
    return store


def add(store: Store, digest: str) -> None:
    frames, next_event_index = with_event_indexes(RUN_ID, {"trace_names": pl.DataFrame({"name_index": [0], "name": ["gemm"]})})
    spec = RunSpec(ImportedTrace("a.sqlite", digest, "nsys"))
    run = Run(run_id=RUN_ID, node_id="", spec=spec, state=RunState.SUCCEEDED, create_time=datetime(2026, 1, 1, tzinfo=UTC))
    rows = store.reserve_rows(RUN_ID)
    rows.mkdir()
    write_frames(rows, frames)
    store.add_imported(run, rows, next_event_index)


def asked(store: Store, name: str = "gaps-1") -> int:
    """How many times it was worked out for two questions."""
    count = 0

    def work_out() -> pl.DataFrame:
        nonlocal count
        count += 1
        return FRAME

    for _ in range(2):
        assert store.answer(RUN_ID, name, work_out).collect().equals(FRAME)
    return count


def test_the_second_question_finds_the_answer_of_the_first(store: Store, tmp_path: Path) -> None:
    assert asked(store) == 1
    assert asked(store) == 0
    assert asked(store, "gaps-2") == 1
    store.delete_run(RUN_ID)
    assert list((tmp_path / "store" / "runs").iterdir()) == []


def test_an_answer_of_rows_that_were_replaced_meanwhile_is_not_kept(store: Store) -> None:
    def replaced() -> pl.DataFrame:
        add(store, "sha256:1")
        return FRAME

    assert store.answer(RUN_ID, "gaps-1", replaced).collect().equals(FRAME)
    assert asked(store) == 1
    column = CachedColumn.of(pl.Series([1, 2]))

    def column_of_replaced() -> CachedColumn:
        add(store, "sha256:2")
        return column

    assert store.held.get((RUN_ID, "gaps"), CachedColumn, column_of_replaced) is column
    assert store.held.get((RUN_ID, "gaps"), CachedColumn, lambda: CachedColumn.of(pl.Series([3]))).height == 1
    store.delete_run(RUN_ID)
    assert store.held.size_bytes == 0


def test_another_version_other_hardware_tables_and_another_depth_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = TRACE_DERIVED["layers"]
    name = layers.cached_result_name(DEFAULT_QUERY)
    assert name.startswith("layers-")
    assert layers.cached_result_name(QueryParameters(depth=1)) != name
    assert replace(layers, version=2).cached_result_name(DEFAULT_QUERY) != name
    monkeypatch.setattr(registry, "tables_digest", lambda: "other")
    assert layers.cached_result_name(DEFAULT_QUERY) != name


def test_without_room_the_answer_is_given_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with caplog.at_level(logging.WARNING):
        assert asked(store) == 2
    assert "No space left on device" in caplog.text
    (directory,) = (tmp_path / "store" / "runs").iterdir()
    assert list((directory / "results").iterdir()) == []


def test_nothing_is_kept_of_a_run_that_is_deleted_meanwhile(store: Store, tmp_path: Path) -> None:
    def work_out() -> pl.DataFrame:
        store.delete_run(RUN_ID)
        return FRAME

    assert store.answer(RUN_ID, "gaps-1", work_out).collect().equals(FRAME)
    assert list((tmp_path / "store" / "runs").iterdir()) == []


def test_half_a_result_is_none(tmp_path: Path) -> None:
    path = cached_result_path(tmp_path, "gaps-1")
    path.parent.mkdir()
    half = path.with_suffix(".part")
    half.write_bytes(b"PAR1")
    os.utime(half, (0, 0))
    assert not path.exists()
    write_cached_result(path, FRAME)
    assert pl.read_parquet(path).equals(FRAME)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
