"""An analyzer whose files of runs are objects of a real service: a sweep, an emptied cache, a restart, and a storage that goes away."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernalyse.services.analyzer.collect import trace_fetcher
from kernalyse.services.core.errors import RunNotFoundError
from kernalyse.services.core.model import TraceStored
from tests.command import kernalyse
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.integration.analyzer_under_test import add_node, connected, eventually, get_run, running_analyzer, serving
from tests.integration.profiler_stand_in import standing_in
from tests.integration.test_full_disk import SWEEP, FollowedSweep, wait_for
from tests.integration.test_left_traces import KERNELS, RUN_ID, kernels, kineto_trace, profile, settled, stored
from tests.integration.test_postgresql import listed, measurements, started_pair
from tests.integration.test_python_api import needs_opencl
from tests.integration.test_store_upkeep import imported, trace_file
from tests.object_storage import KEYS, ObjectStorage, running_object_storage
from tests.service_processes import ServiceProcesses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with running_object_storage() as running:
        yield running


@pytest.fixture
def line(storage: ObjectStorage) -> Iterator[FaultProxy]:
    with fault_proxy(storage.endpoint) as line:
        yield line


@pytest.fixture
def url(storage: ObjectStorage, line: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    url = storage.new_bucket()
    settings = {"KERNALYSE_ANALYZER_OBJECTS": url, "KERNALYSE_ANALYZER_OBJECTS_ENDPOINT": line.endpoint}
    for name, value in (settings | KEYS).items():
        monkeypatch.setenv(name, value)
    return url


@pytest.fixture
def services(private_directories: Path, url: str) -> Iterator[ServiceProcesses]:
    started = ServiceProcesses(private_directories)
    try:
        yield started
    finally:
        started.stop_all()


def store_directory(services: ServiceProcesses) -> Path:
    return services.directory / "data" / "kernalyse" / "store"


def has_objects(storage: ObjectStorage, url: str, run_id: str) -> bool:
    return any(key.startswith(f"runs/{run_id}") and key.endswith("/digests.json") for key in storage.keys(url))


@needs_opencl
def test_a_sweep_is_answered_from_objects_after_a_restart_with_an_empty_cache(
    services: ServiceProcesses, storage: ObjectStorage, url: str
) -> None:
    analyzer, server = started_pair(services)
    done = kernalyse("bench", *SWEEP, "-p", "N=1024,2048", *server)
    assert done.returncode == 0, done.stderr
    (run,) = listed(server)
    run_id = run["run_id"]
    wait_for(lambda: has_objects(storage, url, run_id), analyzer.log_path.read_text)
    expected = measurements(run_id, server)
    assert len(expected) == 2
    (directory,) = (store_directory(services) / "runs").iterdir()
    shutil.rmtree(directory)
    assert measurements(run_id, server) == expected
    assert directory.is_dir()
    analyzer.stop()
    for name in ("runs", "traces", "history", "summary"):
        shutil.rmtree(store_directory(services) / name, ignore_errors=True)
    again = services.start("analyzer")
    server = ("--server", again.address, *server[2:])
    assert measurements(run_id, server) == expected
    checked = kernalyse("store", "verify")
    assert (checked.returncode, " of 1 runs checked, 0 damaged." in checked.stdout) == (0, True), checked.stderr
    saved = kernalyse("store", "backup", services.directory / "backup")
    assert saved.stdout.startswith("1 runs, "), saved.stderr
    cleaned = kernalyse("store", "gc", "--older-than", "1", *server)
    assert "0 directories of objects that no run names were deleted." in cleaned.stdout, cleaned.stderr
    assert kernalyse("delete", run_id, "--yes", *server).returncode == 0
    assert storage.keys(url) == ["store_id"]


@needs_opencl
def test_a_storage_that_goes_away_during_a_sweep_loses_nothing(
    services: ServiceProcesses, storage: ObjectStorage, url: str, line: FaultProxy
) -> None:
    analyzer, server = started_pair(services)
    sweep = FollowedSweep(analyzer, services.directory, "N=1024..10240:1024")
    wait_for(lambda: (sweep.run().get("completed_configuration_count") or 0) >= 2, sweep.said)
    line.is_down = True
    assert sweep.process.wait(60) == 0, sweep.said()
    (run,) = listed(server)
    assert (run["state"], run["completed_configuration_count"]) == ("SUCCEEDED", 10)
    wait_for(lambda: "cannot be reached" in analyzer.log_path.read_text(), analyzer.log_path.read_text)
    time.sleep(6.0)  # more than one attempt
    assert analyzer.log_path.read_text().count("cannot be reached") == 1
    assert not has_objects(storage, url, run["run_id"])
    assert len(measurements(run["run_id"], server)) == 10
    line.is_down = False
    wait_for(lambda: has_objects(storage, url, run["run_id"]), analyzer.log_path.read_text)
    wait_for(lambda: bool(list((store_directory(services) / "runs").iterdir())), analyzer.log_path.read_text)
    shutil.rmtree(next((store_directory(services) / "runs").iterdir()))
    line.is_down = True
    asked = kernalyse("show", run["run_id"], "measurements", *server)
    assert asked.returncode == 1
    assert "Look after the object storage" in " ".join(asked.stderr.split()), asked.stderr
    assert url in asked.stderr.replace("\n", "")
    line.is_down = False
    time.sleep(3.5)  # longer than the pause after a failure
    assert sorted(row["configuration_index"] for row in measurements(run["run_id"], server)) == list(range(10))


@needs_opencl
def test_an_analyzer_that_is_killed_while_it_puts_a_run_puts_it_anew(
    services: ServiceProcesses, storage: ObjectStorage, url: str, line: FaultProxy
) -> None:
    analyzer, server = started_pair(services)
    line.cut_at = b"/digests.json"  # the last of its objects
    done = kernalyse("bench", *SWEEP, "-p", "N=1024,2048", *server)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: any("/measurements.parquet" in key for key in storage.keys(url)), analyzer.log_path.read_text)
    run_id = listed(server)[0]["run_id"]
    analyzer.kill()
    line.cut_at = None
    again = services.start("analyzer")
    server = ("--server", again.address, *server[2:])
    wait_for(lambda: has_objects(storage, url, run_id), again.log_path.read_text)
    shutil.rmtree(next((store_directory(services) / "runs").iterdir()))
    assert len(measurements(run_id, server)) == 2
    checked = kernalyse("store", "verify")
    assert "of 1 runs checked, 0 damaged" in checked.stdout, checked.stderr


def test_an_analyzer_whose_keys_are_refused_says_so_and_ends(services: ServiceProcesses) -> None:
    with running_object_storage() as strict:
        url = strict.new_bucket()
        strict.refuse_unknown_keys()
        with pytest.raises(AssertionError, match=r"the credentials are refused[\s\S]*AWS_ACCESS_KEY_ID"):
            services.start("analyzer", "--objects", url, "--objects-endpoint", strict.endpoint)


# ---------------------------------------------------------------- traces


async def test_traces_that_a_run_left_wait_for_a_storage_that_is_away(
    private_directories: Path, tmp_path: Path, storage: ObjectStorage, url: str, line: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_fetcher, "RETRY_S", 0.5)

    async def is_waiting() -> bool:
        try:
            return (await get_run(stub, RUN_ID)).activity == "its trace waits for the object storage that takes its rows"
        except RunNotFoundError:  # not collected yet
            return False

    async with standing_in(private_directories) as node, serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        profile(node, stored(node, "trace.json", kineto_trace(tmp_path)), TraceStored(("trace.json",), "kineto"))
        line.is_down = True
        await add_node(stub, node.endpoint)
        await eventually(is_waiting)
        assert not [key for key in storage.keys(url) if key.startswith("traces/")]
        line.is_down = False
        await settled(stub)
        assert [key for key in storage.keys(url) if key.startswith(f"traces/{RUN_ID}-")]
        for directory in (private_directories / "store" / "traces").iterdir():
            shutil.rmtree(directory)
        assert await kernels(stub) == KERNELS


def test_an_import_that_the_storage_does_not_take_is_refused_and_can_be_repeated(
    private_directories: Path, tmp_path: Path, storage: ObjectStorage, url: str, line: FaultProxy
) -> None:
    file = trace_file(tmp_path, "gemm")
    with running_analyzer():
        line.is_down = True
        refused = kernalyse("import", file)
        assert refused.returncode == 1
        assert "Look after the object storage" in " ".join(refused.stderr.split())
        assert list((private_directories / "data" / "kernalyse" / "store" / "runs").iterdir()) == []
        line.is_down = False
        time.sleep(3.5)  # longer than the pause after a failure
        assert kernalyse("import", file).returncode == 0
        (run,) = json.loads(kernalyse("runs", "--json").stdout)
        assert has_objects(storage, url, run["run_id"])


def test_the_files_of_a_store_move_into_objects(
    private_directories: Path, tmp_path: Path, storage: ObjectStorage, url: str, line: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.delenv("KERNALYSE_ANALYZER_OBJECTS")
        run_ids = [imported(tmp_path, name) for name in ("first", "second")]
        nothing = kernalyse("store", "migrate")
        assert "expected --to or --objects" in nothing.stderr
        with running_analyzer():
            assert "in use by process" in kernalyse("store", "migrate", "--objects", url, "--objects-endpoint", line.endpoint).stderr
        moved = kernalyse("store", "migrate", "--objects", url, "--objects-endpoint", line.endpoint)
        assert moved.stdout.startswith("2 of 2 directories put."), moved.stderr
    store = private_directories / "data" / "kernalyse" / "store"
    shown = kernalyse("show", run_ids[0], "kernels", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    for directory in (store / "runs").iterdir():
        shutil.rmtree(directory)
    assert kernalyse("show", run_ids[0], "kernels", "--format", "json").stdout == shown.stdout
    assert "0 damaged" in kernalyse("store", "verify").stdout
    by_directory = kernalyse("store", "verify", "--data-directory", store)
    assert "of 2 runs checked, 0 damaged" in by_directory.stdout, by_directory.stderr
    with monkeypatch.context() as without:
        without.delenv("KERNALYSE_ANALYZER_OBJECTS")
        forgotten = kernalyse("runs")
        assert forgotten.returncode == 1
        assert f"found files of runs that are in {url}" in " ".join(forgotten.stderr.split())
