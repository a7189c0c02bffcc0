"""Files of finished runs as objects of a real service: put before they are visible, fetched when asked for, and nothing is lost."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.collect.collector import catch_up, compact
from kernalyse.services.analyzer.ingest.worker import execute
from kernalyse.services.analyzer.ingest.worker_pool import ReadingTask
from kernalyse.services.analyzer.queries.service import TableAnswers
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.store import object_cache, objects
from kernalyse.services.analyzer.store.object_cache import IN_USE_S, ObjectCache
from kernalyse.services.analyzer.store.objects import ObjectStore
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.store.upkeep import StorePlace, backup, delete_orphans, migrate_objects, restore, verify
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS, SAMPLES, find_table
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_NAMES
from kernalyse.services.core.errors import (
    InvalidSettingError,
    ObjectsUnavailableError,
    StoredRunDamagedError,
    UnmetConditionError,
)
from kernalyse.services.core.model import ImportedTrace, Run, RunSpec, RunState, TableQuery
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.object_storage import KEYS, ObjectStorage, running_object_storage
from tests.postgresql import PostgresqlServer
from tests.unit.analyzer.queries.test_history import add_runs
from tests.unit.rank_traces import write_rank


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with running_object_storage() as running:
        yield running


@pytest.fixture
def line(storage: ObjectStorage) -> Iterator[FaultProxy]:
    with fault_proxy(storage.endpoint) as line:
        yield line


@dataclass(frozen=True, slots=True)
class Place:
    """A store whose files are objects. endpoint: of the line to them."""

    directory: Path
    url: str
    endpoint: str
    storage: ObjectStorage

    def objects(self) -> ObjectStore:
        return ObjectStore(self.url, self.endpoint)

    def open(self, max_cache_bytes: int = 2**30) -> Store:
        return Store(self.directory, "", self.objects(), max_cache_bytes)

    def object_keys(self, root: str = "") -> list[str]:
        return [key for key in self.storage.keys(self.url) if key.startswith(root)]

    def empty_cache(self) -> None:
        for root in ("runs", "traces"):
            for path in (self.directory / root).iterdir():
                shutil.rmtree(path)


@pytest.fixture
def place(storage: ObjectStorage, line: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(objects, "PAUSE_S", 0.0)  # a test asks again at once
    return Place(tmp_path / "store", storage.new_bucket(), line.endpoint, storage)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with closing(place.open()) as opened:
        yield opened


def medians(store: Store, run_ids: list[str] | None = None) -> list[float]:
    return store.read(MEASUREMENTS, run_ids).collect()["duration_median_ns"].to_list()


def random_rows(row_count: int) -> dict[str, pl.DataFrame]:
    """They do not get smaller by packing."""
    rows = SAMPLES.frame([]).clear(row_count)
    return {
        SAMPLES.table_name: rows.with_columns(run_id=pl.lit("large"), duration_ns=pl.Series(np.random.default_rng(1).random(row_count)))
    }


def add_large(store: Store, row_count: int = 2_000_000, digest: str = "sha256:0") -> Path:
    """A run whose one file is put in several parts; its directory."""
    directory = store.reserve_rows("large")
    directory.mkdir()
    write_frames(directory, random_rows(row_count))
    spec = RunSpec(ImportedTrace("a.json", digest, "results"))
    store.add_imported(Run("large", "", spec, RunState.SUCCEEDED, datetime(2026, 1, 1, tzinfo=UTC)), directory, 1)
    return directory


# ---------------------------------------------------------------- put and fetched


def test_finished_runs_are_objects_and_are_answered_when_the_directory_has_lost_them(place: Place) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0, 101.0])
        before = medians(store)
        assert len([key for key in place.object_keys("runs/") if key.endswith("/digests.json")]) == 2
        assert "store_id" in place.object_keys()
        place.empty_cache()
        assert medians(store, ["run-001"]) == before[2:]
        assert len(list((place.directory / "runs").iterdir())) == 1
        assert medians(store) == before
    shutil.rmtree(place.directory / "runs")
    shutil.rmtree(place.directory / "history", ignore_errors=True)
    with closing(place.open()) as store:
        assert list((place.directory / "runs").iterdir()) == []
        answer = TableAnswers(store).answer(find_table("history"), None, TableQuery("history"), frozenset())
        assert answer.total_row_count > 0
        assert medians(store) == before


def test_a_directory_is_not_fetched_for_a_table_that_it_lacks(place: Place, store: Store) -> None:
    add_runs(store, [100.0])
    place.empty_cache()
    assert store.trace_run_ids(None) == []
    assert store.read(TRACE_NAMES, None).collect().is_empty()
    assert list((place.directory / "runs").iterdir()) == []


def test_traces_that_were_read_after_the_end_of_their_run_are_objects_too(place: Place, store: Store) -> None:
    add_runs(store, [100.0])
    directory = store.reserve_trace("run-000")
    directory.mkdir()
    rows = TRACE_NAMES.frame([]).clear(3).with_columns(run_id=pl.lit("run-000"))
    write_frames(directory, {TRACE_NAMES.table_name: rows})
    assert store.complete_traces("run-000", directory, "read") is not None
    assert place.object_keys("traces/") == [
        f"traces/{directory.name}/digests.json",
        f"traces/{directory.name}/{TRACE_NAMES.table_name}.parquet",
    ]
    place.empty_cache()
    assert store.trace_run_ids(None) == ["run-000"]
    assert store.read(TRACE_NAMES, ["run-000"]).collect().height == 3
    answered = store.answer("run-000", "answer-1", lambda: pl.DataFrame({"a": [1]})).collect()
    assert answered["a"].to_list() == [1]
    assert (directory / "results" / "answer-1.parquet").exists()


def test_a_trace_of_several_files_is_fetched_with_the_files_of_each(place: Place, store: Store, tmp_path: Path) -> None:
    staged = []
    for rank in (0, 1):
        path = write_rank(tmp_path / f"rank{rank}.json", rank)
        staged.append(tmp_path / f"staged{rank}")
        execute(ReadingTask(staged[-1], (TraceFiles(path.name, path, 0, {}),), file_name=path.name))
    directory = store.reserve_rows("joined")
    result = execute(ReadingTask(directory, staged=tuple(staged), run_id="joined", file_name="rank0.json"))
    assert result.run is not None
    store.add_imported(result.run, directory, result.next_event_index)
    assert f"runs/{directory.name}/kernel_launches.1.parquet" in place.object_keys()
    before = store.read(KERNEL_LAUNCHES, ["joined"]).collect()
    assert before["launch_index"].to_list() == [0, 1, 2, 3]
    place.empty_cache()
    page = store.page_of_parts(KERNEL_LAUNCHES, "joined", 1, 2)
    assert page is not None
    assert (page[0].collect().equals(before.slice(1, 2)), page[1]) == (True, 4)
    place.empty_cache()
    assert store.read(KERNEL_LAUNCHES, ["joined"]).collect().equals(before)
    assert store.page_of_parts(TRACE_NAMES, "joined", 0, 1) is None


def test_many_questions_at_once_fetch_a_directory_once(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(store, [100.0])
    expected = medians(store)
    place.empty_cache()
    fetched: list[Path] = []
    fetch_directory = ObjectStore.fetch_directory
    all_ask = threading.Barrier(8)

    def fetch(self: ObjectStore, directory: Path, target: Path) -> int:
        fetched.append(directory)
        return fetch_directory(self, directory, target)

    def ask() -> None:
        all_ask.wait()
        answers.append(medians(store))

    monkeypatch.setattr(ObjectStore, "fetch_directory", fetch)
    answers: list[list[float]] = []
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 8
    assert len(fetched) == 1


def test_a_file_that_is_not_what_was_put_is_named_and_nothing_of_it_is_kept(place: Place, store: Store) -> None:
    add_runs(store, [100.0, 101.0])
    (key,) = (key for key in place.object_keys("runs/run-000") if key.endswith("measurements.parquet"))
    place.storage.client(place.url).put(key, b"PAR1")
    place.empty_cache()
    with pytest.raises(StoredRunDamagedError, match=rf"object {place.url}/{key}: found SHA-256 \w+…, where \w+… was written; .* a backup"):
        medians(store)
    place.storage.client(place.url).delete(key)
    with pytest.raises(StoredRunDamagedError, match=rf"object {place.url}/{key}: found no such object"):
        medians(store)
    assert not list((place.directory / "runs").glob("*run-000*"))
    assert len(medians(store, ["run-001"])) == 2


def test_a_local_copy_that_is_damaged_is_fetched_anew(place: Place, store: Store) -> None:
    add_runs(store, [100.0])
    (file,) = (place.directory / "runs").glob("*/measurements.parquet")
    file.write_bytes(file.read_bytes()[:4] + bytes(96) + file.read_bytes()[100:])
    query = TableQuery(MEASUREMENTS.table_name)
    with pytest.raises(StoredRunDamagedError, match="Ask again: it is fetched anew from the objects"):
        TableAnswers(store).answer(MEASUREMENTS, None, query, frozenset())
    assert TableAnswers(store).answer(MEASUREMENTS, None, query, frozenset()).total_row_count == 2


# ---------------------------------------------------------------- the cache


def test_what_was_used_least_recently_is_dropped_but_not_what_is_in_use_or_not_put(place: Place, tmp_path: Path) -> None:
    clock = [1_000.0]
    root = tmp_path / "store" / "runs"
    with closing(ObjectCache(place.objects(), 250_000, lambda: clock[0])) as cache:
        directories = [root / f"run-{number}" for number in range(4)]
        for directory in directories:
            directory.mkdir(parents=True)
            (directory / "samples.parquet").write_bytes(bytes(100_000))
        for directory in directories[:3]:
            cache.put(directory)
        assert all(directory.is_dir() for directory in directories)  # too much, but in use
        clock[0] += IN_USE_S
        cache.provide(directories[:1])
        cache.measure(directories[3])
        assert [directory.is_dir() for directory in directories] == [True, False, False, True]
        clock[0] += IN_USE_S
        cache.provide(directories[1:2])
        assert [directory.is_dir() for directory in directories] == [False, True, False, True]
        assert (directories[1] / "samples.parquet").stat().st_size == 100_000
        assert cache.has_file(directories[2], "samples.parquet")
        assert not cache.has_file(directories[2], "counters.parquet")
        assert sorted(path.name for path in root.iterdir()) == ["run-1", "run-3"]


def test_a_small_cache_is_used_again_after_a_restart(place: Place) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0, 101.0, 102.0])
        before = medians(store)
    with closing(place.open(max_cache_bytes=0)) as store:
        assert len(list((place.directory / "runs").iterdir())) == 3
        store.catch_up()
        assert len(list((place.directory / "runs").iterdir())) == 3  # used a moment ago
        assert medians(store) == before


# ---------------------------------------------------------------- deleted


def test_a_deleted_run_leaves_no_objects_and_an_outage_only_delays_that(place: Place, store: Store, line: FaultProxy) -> None:
    add_runs(store, [100.0, 101.0])
    store.delete_run("run-000")
    assert place.object_keys("runs/run-000") == []
    line.is_down = True
    store.delete_run("run-001")
    assert place.object_keys("runs/run-001") != []
    with pytest.raises(ObjectsUnavailableError):
        store.catch_up()
    line.is_down = False
    store.catch_up()
    assert place.object_keys() == ["store_id"]


def test_objects_that_no_row_names_are_deleted_when_they_are_a_day_old(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0])
    client = place.storage.client(place.url)
    client.put("runs/killed-1/samples.parquet", b"half")
    client.put("traces/killed-2/digests.json", b"{}")
    upkeep_place = StorePlace(place.directory, "", place.objects())
    now = datetime.now(UTC).timestamp()
    assert delete_orphans(upkeep_place, now) == 0
    assert delete_orphans(upkeep_place, now + 90_000, is_dry=True) == 2
    with closing(place.open()) as store:
        store.catch_up()
        assert "runs/killed-1/samples.parquet" in place.object_keys()
    monkeypatch.setattr(object_cache, "ORPHAN_AGE_S", -3_600.0)
    with closing(place.open()) as store:
        store.catch_up()
        assert [key for key in place.object_keys() if "killed" in key] == []
        assert len(medians(store)) == 2
    client.put("runs/killed-1/samples.parquet", b"half")
    assert delete_orphans(upkeep_place, now + 90_000) == 1
    assert [key for key in place.object_keys() if "killed" in key] == []


def test_of_the_states_of_a_run_that_is_imported_again_the_last_two_are_there(place: Place, store: Store) -> None:
    for number in range(4):
        add_large(store, row_count=10, digest=f"sha256:{number}")
        assert store.read(SAMPLES, ["large"]).collect().height == 10
        assert len([key for key in place.object_keys("runs/") if key.endswith("/digests.json")]) == min(number + 1, 2)
    store.catch_up()
    assert len(list((place.directory / "runs").iterdir())) == 2
    store.delete_run("large")
    assert place.object_keys() == ["store_id"]
    assert list((place.directory / "runs").iterdir()) == []


# ---------------------------------------------------------------- of which store they are


def test_objects_of_another_store_or_none_are_refused(place: Place, tmp_path: Path) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0])
    with pytest.raises(InvalidSettingError, match=f"setting objects: found objects of another store under {place.url}"):
        Store(tmp_path / "other", "", place.objects())
    elsewhere = ObjectStore(f"{place.url}-2", place.endpoint)
    with pytest.raises(InvalidSettingError, match=rf"found nothing under {place.url}-2, while the catalogue names files"):
        Store(place.directory, "", elsewhere)
    with pytest.raises(InvalidSettingError, match=f"found files of runs that are in {place.url}; expected the setting objects"):
        Store(place.directory)
    assert len([key for key in place.object_keys() if key.endswith("measurements.parquet")]) == 1
    with closing(place.open()) as store:
        assert len(medians(store)) == 2


def test_another_machine_goes_on_with_the_catalogue_on_postgresql_and_the_objects(
    place: Place, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    catalogue = postgresql.new_database()
    with closing(Store(place.directory, catalogue, place.objects())) as store:
        add_runs(store, [100.0])
        before = medians(store)
    with pytest.raises(InvalidSettingError, match="found files of runs that are in another directory, or an object storage"):
        Store(tmp_path / "new", catalogue)
    with closing(Store(tmp_path / "new", catalogue, place.objects())) as store:
        assert medians(store) == before


@pytest.mark.parametrize(
    ("url", "endpoint", "found"),
    [
        ("measurements", "", "found 'measurements'; expected s3://BUCKET/PREFIX"),
        ("gs://bucket/a", "", "expected s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/a", "", "found a URL with credentials"),
        ("s3://bucket/a", "minio:9000", "setting objects_endpoint: found 'minio:9000'"),
    ],
)
def test_settings_that_name_no_objects_are_refused(url: str, endpoint: str, found: str) -> None:
    with pytest.raises(InvalidSettingError, match=found):
        ObjectStore(url, endpoint)


def test_a_bucket_that_is_not_there_is_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="setting objects: found no bucket kn-nothing"):
        Store(tmp_path / "other", "", ObjectStore("s3://kn-nothing/a", place.endpoint))


def test_refused_credentials_are_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with running_object_storage() as strict:
        url = strict.new_bucket()
        strict.refuse_unknown_keys()
        with pytest.raises(InvalidSettingError, match=f"{url}.*: found the credentials are refused .*AWS_ACCESS_KEY_ID"):
            Store(tmp_path / "store", "", ObjectStore(url, strict.endpoint))


def test_keys_come_from_the_files_of_aws_too(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = a\n[gpu]\naws_access_key_id = b\naws_secret_access_key = c\n")
    (tmp_path / "config").write_text("[profile gpu]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "gpu")
    assert objects._config_of_files({"AWS_PROFILE": "gpu", **_files(tmp_path)}) == {
        "access_key_id": "b",
        "secret_access_key": "c",
        "region": "eu-west-1",
    }
    assert objects._config_of_files({"AWS_ACCESS_KEY_ID": "x", "AWS_REGION": "y", **_files(tmp_path)}) == {}
    with closing(place.open()) as store:
        add_runs(store, [100.0])
    (tmp_path / "credentials").write_text("no section")
    with pytest.raises(InvalidSettingError, match="expected a file of settings of AWS"):
        place.objects()


def _files(directory: Path) -> dict[str, str]:
    return {"AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"), "AWS_CONFIG_FILE": str(directory / "config")}


# ---------------------------------------------------------------- outages


def test_runs_that_end_in_an_outage_stay_in_the_database_and_are_put_when_it_is_over(
    place: Place, store: Store, line: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    add_runs(store, [100.0])
    line.is_down = True
    add_runs(store, [101.0, 102.0], first=1, is_compacted=False)
    before = medians(store)
    with caplog.at_level(logging.INFO):
        for run_id in ("run-001", "run-002"):
            compact(store, run_id)
        catch_up(store, None)
        assert caplog.text.count("cannot be reached") == 1
        assert "stays in the database" not in caplog.text
        assert (store.runs.to_compact(), medians(store)) == (["run-001", "run-002"], before)
        assert len(list((place.directory / "runs").iterdir())) == 1
        line.is_down = False
        catch_up(store, None)
        assert caplog.text.count("can be reached again") == 1
    assert (store.runs.to_compact(), medians(store)) == ([], before)
    place.empty_cache()
    assert medians(store) == before


def test_a_run_whose_files_cannot_be_fetched_is_unavailable_and_what_is_local_is_answered(
    place: Place, store: Store, line: FaultProxy
) -> None:
    add_runs(store, [100.0, 101.0])
    shutil.rmtree(next((place.directory / "runs").glob("run-000-*")))
    line.is_down = True
    with pytest.raises(
        ObjectsUnavailableError, match=rf"object.* {place.url}/runs/.*expected a service that answers.*Look after the object"
    ):
        medians(store, ["run-000"])
    assert len(medians(store, ["run-001"])) == 2
    line.is_down = False
    assert len(medians(store)) == 4


@pytest.mark.slow
def test_a_run_may_be_deleted_while_its_files_are_put_over_a_slow_line(place: Place, store: Store, line: FaultProxy) -> None:
    """Nobody waits for an upload, and what nobody has a run for any more goes."""
    add_runs(store, [100.0])
    add_runs(store, [101.0, 102.0], first=1, is_compacted=False)
    line.delay_s = 0.5
    putting = threading.Thread(target=store.compact, args=("run-001",))
    putting.start()
    while not (directories := list((place.directory / "runs").glob("run-001-*"))):
        time.sleep(0.001)
    start = time.monotonic()
    store.runs.delete("run-002")  # rows alone: what a deletion asks of the objects would go over the slow line, too
    store.delete_run("run-001")
    duration_s = time.monotonic() - start
    assert putting.is_alive()
    putting.join()
    line.delay_s = 0.0
    assert duration_s < 0.5
    store.catch_up()
    assert [record.run.run_id for record in store.runs.of(None)] == ["run-000"]
    assert not directories[0].exists()
    assert place.object_keys("runs/run-001") == []


def test_a_storage_that_is_away_at_the_start_is_named(place: Place, line: FaultProxy) -> None:
    line.is_down = True
    with pytest.raises(ObjectsUnavailableError, match=f"objects {place.url}"):
        place.open()
    line.is_down = False
    place.open().close()


def test_an_upload_in_parts_that_is_cut_is_invisible_and_deleted(place: Place, store: Store, line: FaultProxy) -> None:
    line.cut_at = b"partNumber=2"
    with pytest.raises(ObjectsUnavailableError, match=r"object .*/runs/large-\w+/samples\.parquet"):
        add_large(store)
    assert line.cut_count > 0
    assert store.runs.known(["large"]) == set()
    assert list((place.directory / "runs").iterdir()) == []
    line.cut_at = None
    store.catch_up()
    assert place.object_keys() == ["store_id"]
    directory = add_large(store)
    shutil.rmtree(directory)
    assert store.read(SAMPLES, ["large"]).collect()["duration_ns"].to_list() == random_rows(2_000_000)["samples"]["duration_ns"].to_list()


def test_a_fetch_that_is_cut_leaves_nothing_and_the_next_one_is_whole(place: Place, store: Store, line: FaultProxy) -> None:
    directory = add_large(store)
    shutil.rmtree(directory)
    line.cut_at = b"bytes=10485760-"  # of its third request
    with pytest.raises(ObjectsUnavailableError):
        store.read(SAMPLES, ["large"]).collect()
    assert list((place.directory / "runs").iterdir()) == []
    line.cut_at = None
    assert store.read(SAMPLES, ["large"]).collect().height == 2_000_000


def test_a_slow_line_only_takes_longer(place: Place, store: Store, line: FaultProxy) -> None:
    line.delay_s = 0.1
    add_runs(store, [100.0])
    place.empty_cache()
    assert len(medians(store)) == 2


def test_after_a_failure_questions_fail_at_once(place: Place, store: Store, line: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(store, [100.0])
    place.empty_cache()
    monkeypatch.setattr(objects, "PAUSE_S", 60.0)
    line.is_down = True
    with pytest.raises(ObjectsUnavailableError):
        medians(store)
    line.is_down = False
    with pytest.raises(ObjectsUnavailableError):
        medians(store)
    with pytest.raises(ObjectsUnavailableError):
        store.compact("run-000")
    monkeypatch.setattr(objects, "PAUSE_S", 0.0)
    assert len(medians(store)) == 2


# ---------------------------------------------------------------- upkeep


def test_verify_reads_objects_and_names_the_damaged_one(place: Place) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0, 101.0])
    place.empty_cache()
    upkeep_place = StorePlace(place.directory, "", place.objects())
    whole = verify(upkeep_place)
    assert (whole.run_count, whole.damages, whole.undigested_count) == (2, (), 0)
    assert whole.file_count == len([key for key in place.object_keys("runs/") if key.endswith(".parquet")])
    (key,) = (key for key in place.object_keys("runs/run-000") if key.endswith("measurements.parquet"))
    place.storage.client(place.url).put(key, b"PAR1")
    (damage,) = verify(upkeep_place).damages
    assert (damage.run_id, damage.path) == ("run-000", f"{place.url}/{key}")
    assert "was written" in damage.found
    client = place.storage.client(place.url)
    client.delete(place.object_keys("runs/run-000"))
    assert [damage.found for damage in verify(upkeep_place).damages] == ["no such object"]


def test_a_backup_fetches_what_is_not_local_and_is_put_back_into_the_objects(place: Place, tmp_path: Path) -> None:
    with closing(place.open()) as store:
        add_runs(store, [100.0, 101.0])
        before = medians(store)
        shutil.rmtree(next((place.directory / "runs").glob("run-000-*")))
        assert backup(StorePlace(place.directory, "", place.objects()), tmp_path / "backup", "1")[0] == 2
    with closing(Store(tmp_path / "backup")) as copy:
        assert medians(copy) == before
    with closing(place.open()) as store:
        store.delete_run("run-001")
        assert place.object_keys("runs/run-001") == []
    restore(tmp_path / "backup", place.directory)
    with closing(place.open(max_cache_bytes=0)) as store:
        store.catch_up()
        assert place.object_keys("runs/run-001") != []
        place.empty_cache()
        assert medians(store) == before


def test_a_directory_moves_into_objects_and_goes_on_where_it_broke_off(place: Place, line: FaultProxy) -> None:
    with closing(Store(place.directory)) as store:
        add_runs(store, [100.0, 101.0])
        before = medians(store)
    next((place.directory / "runs").glob("run-001-*/digests.json")).unlink()  # written by an earlier version
    upkeep_place = StorePlace(place.directory)
    with pytest.raises(InvalidSettingError, match=r"while the catalogue names files of runs; .*kernalyse store migrate --objects"):
        place.open()
    line.cut_at = b"run-001"
    with pytest.raises(ObjectsUnavailableError):
        migrate_objects(upkeep_place, place.objects())
    line.cut_at = None
    assert migrate_objects(upkeep_place, place.objects()) == (1, 2)
    assert migrate_objects(upkeep_place, place.objects()) == (0, 2)
    with closing(place.open()) as store:
        place.empty_cache()
        assert medians(store) == before
    other = ObjectStore(place.storage.new_bucket(), place.endpoint)
    place.empty_cache()
    assert migrate_objects(StorePlace(place.directory, "", place.objects()), other) == (2, 2)
    with closing(Store(place.directory, "", ObjectStore(other.url, place.endpoint))) as store:
        place.empty_cache()
        assert medians(store) == before


def test_a_damaged_file_is_not_moved_into_objects(place: Place) -> None:
    with closing(Store(place.directory)) as store:
        add_runs(store, [100.0])
    next((place.directory / "runs").glob("*/measurements.parquet")).write_bytes(b"PAR1")
    with pytest.raises(UnmetConditionError, match=r"run run-000: found .*measurements\.parquet: SHA-256"):
        migrate_objects(StorePlace(place.directory), place.objects())
    assert place.object_keys("runs/") == []
