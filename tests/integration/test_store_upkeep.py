"""`kernalyse store`: digests checked, backups made while the analyzer goes on and put back, what is old deleted."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from kernalyse.services.analyzer.store import upkeep
from kernalyse.services.analyzer.store.upkeep import StorePlace
from kernalyse.services.core.errors import UnmetConditionError
from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.unit.analyzer.readers.test_kineto import call, kernel


def trace_file(directory: Path, name: str) -> Path:
    path = directory / f"{name}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [call(10, 1), kernel(name, 20, 5, 1)]}))
    return path


def imported(directory: Path, name: str) -> str:
    """Imports a trace of a kernel of that name into the user's store; its run_id."""
    done = kernalyse("import", trace_file(directory, name))
    assert done.returncode == 0, done.stderr
    newest = json.loads(kernalyse("runs", "--json", "--count", "1").stdout)[0]
    return str(newest["run_id"])


@pytest.fixture
def store(private_directories: Path) -> Path:
    return private_directories / "data" / "kernalyse" / "store"


def titles(directory: Path) -> list[str]:
    return [stored.run.title for stored in upkeep.stored_runs(StorePlace(directory))]


def test_digests_are_checked_and_the_damaged_file_is_named(store: Path, tmp_path: Path) -> None:
    run_id = imported(tmp_path, "gemm")
    whole = kernalyse("store", "verify")
    assert whole.returncode == 0, whole.stderr
    assert "of 1 runs checked, 0 damaged." in whole.stdout
    damaged = next((store / "runs").glob("*/*.parquet"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with running_analyzer():
        found = kernalyse("store", "verify", "--json")
    assert found.returncode == 1
    [damage] = json.loads(found.stdout)["damages"]
    assert (damage["run_id"], damage["path"]) == (run_id, str(damaged))
    assert "was written" in damage["found"]
    damaged.unlink()
    assert "No such file" in kernalyse("store", "verify").stdout


def test_runs_of_versions_without_digests_are_read_instead(store: Path, tmp_path: Path) -> None:
    imported(tmp_path, "gemm")
    for path in (store / "runs").glob("*/digests.json"):
        path.unlink()
    assert "1 directories have no digests" in kernalyse("store", "verify").stdout
    next((store / "runs").glob("*/*.parquet")).write_bytes(b"PAR1")
    assert kernalyse("store", "verify").returncode == 1


def test_a_backup_is_made_while_the_analyzer_goes_on_and_put_back(store: Path, tmp_path: Path) -> None:
    imported(tmp_path, "first")
    with running_analyzer():
        done = kernalyse("store", "backup", tmp_path / "backup")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1 runs, ")
        later = imported(tmp_path, "second")
        locked = kernalyse("store", "restore", tmp_path / "backup")
        assert locked.returncode != 0
        assert "in use by process" in locked.stderr
    again = kernalyse("store", "backup", tmp_path / "backup")
    assert "something there already" in again.stderr
    restored = kernalyse("store", "restore", tmp_path / "backup")
    assert restored.returncode == 0, restored.stderr
    assert titles(store) == ["first.json"]
    assert "0 damaged" in kernalyse("store", "verify").stdout
    [before] = store.parent.glob("store.before-*")
    assert later in {stored.run.run_id for stored in upkeep.stored_runs(StorePlace(before))}
    shown = json.loads(kernalyse("show", "last", "kernels", "--format", "json").stdout)
    assert [row["kernel_name"] for row in shown["kernels"]] == ["first"]


def test_a_restore_that_is_cut_leaves_the_old_store_whole(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(tmp_path, "first")
    upkeep.backup(StorePlace(store), tmp_path / "backup", "1")
    imported(tmp_path, "second")

    def cut(_source: Path, target: Path, **_: object) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", cut)
        with pytest.raises(OSError, match="No space left"):
            upkeep.restore(tmp_path / "backup", store)
    assert sorted(titles(store)) == ["first.json", "second.json"]
    assert "0 damaged" in kernalyse("store", "verify").stdout
    upkeep.restore(tmp_path / "backup", store)
    assert titles(store) == ["first.json"]


def test_a_damaged_backup_is_not_put_back(store: Path, tmp_path: Path) -> None:
    imported(tmp_path, "first")
    upkeep.backup(StorePlace(store), tmp_path / "backup", "1")
    next((tmp_path / "backup" / "runs").glob("*/*.parquet")).write_bytes(b"")
    with pytest.raises(UnmetConditionError, match="expected all files as they were written"):
        upkeep.restore(tmp_path / "backup", store)
    (tmp_path / "backup" / "backup.json").write_text('{"version": 99}')
    with pytest.raises(UnmetConditionError, match="version 99"):
        upkeep.restore(tmp_path / "backup", store)
    assert "no backup.json" in kernalyse("store", "restore", tmp_path).stderr
    assert titles(store) == ["first.json"]


def test_a_run_that_is_deleted_while_it_is_copied_is_in_no_part_of_the_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(tmp_path, "first")
    gone = imported(tmp_path, "second")
    copy_file = upkeep._copy_file

    def copy(source: str, target: str) -> int:
        if gone in source:
            raise FileNotFoundError(source)
        return copy_file(source, target)

    monkeypatch.setattr(upkeep, "_copy_file", copy)
    upkeep.backup(StorePlace(store), tmp_path / "backup", "1")
    assert titles(tmp_path / "backup") == ["first.json"]
    with sqlite3.connect(tmp_path / "backup" / "catalogue.sqlite") as connection:
        assert connection.execute("SELECT COUNT(*) FROM parquet_prefixes WHERE run_id = ?", (gone,)).fetchone() == (0,)
    connection.close()
    assert upkeep.verify(StorePlace(tmp_path / "backup")).damages == ()


def test_a_backup_of_a_store_that_is_written_all_the_time_is_whole(store: Path, tmp_path: Path) -> None:
    imported(tmp_path, "first")
    with running_analyzer():
        failures: list[str] = []

        def write() -> None:
            for number in range(6):
                done = kernalyse("import", trace_file(tmp_path, f"n{number}"))
                failures.extend([done.stderr] if done.returncode else [])

        writer = threading.Thread(target=write)
        writer.start()
        for number in range(3):
            upkeep.backup(StorePlace(store), tmp_path / f"backup{number}", "1")
        writer.join()
    assert failures == []
    for number in range(3):
        assert upkeep.verify(StorePlace(tmp_path / f"backup{number}")).damages == ()


def test_what_is_old_or_too_much_is_deleted_except_what_is_kept(store: Path, tmp_path: Path) -> None:
    run_ids = [imported(tmp_path, name) for name in ("first", "second", "third")]
    kept = kernalyse("annotate", run_ids[0], "--tag", "keep")
    assert kept.returncode == 0, kept.stderr
    unlimited = kernalyse("store", "gc")
    assert "expected --older-than or --max-size" in unlimited.stderr
    dry = kernalyse("store", "gc", "--max-size", "0", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "2 of 3 runs" in dry.stdout
    assert len(titles(store)) == 3
    assert "0 of 3 runs" in kernalyse("store", "gc", "--older-than", "1").stdout
    done = kernalyse("store", "gc", "--older-than", "0")
    assert done.returncode == 0, done.stderr
    assert titles(store) == ["first.json"]
