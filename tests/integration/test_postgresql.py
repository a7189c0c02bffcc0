"""An analyzer whose catalogue is on a real PostgreSQL: a sweep, lists, a restart, and a server that goes away in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import kernalyse
from tests.integration.test_full_disk import SWEEP, FollowedSweep, wait_for
from tests.integration.test_python_api import needs_opencl
from tests.postgresql import PostgresqlServer, running_postgresql
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = [needs_opencl, pytest.mark.slow]


@pytest.fixture
def postgresql() -> Iterator[PostgresqlServer]:
    with running_postgresql() as server:
        yield server


@pytest.fixture
def services(private_directories: Path, postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcesses]:
    monkeypatch.setenv("KERNALYSE_ANALYZER_CATALOGUE", postgresql.new_database())
    started = ServiceProcesses(private_directories)
    try:
        yield started
    finally:
        started.stop_all()


def started_pair(services: ServiceProcesses) -> tuple[ServiceProcess, tuple[str, ...]]:
    """An analyzer that collects from a profiler, and the options by which commands find it."""
    profiler, analyzer = services.start("profiler"), services.start("analyzer")
    token_file = services.directory / "config" / "kernalyse" / "token"
    server = ("--server", analyzer.address, "--token-file", str(token_file))
    added = kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *server)
    assert added.returncode == 0, added.stderr
    return analyzer, server


def listed(server: tuple[str, ...]) -> list[dict[str, Any]]:
    answer = kernalyse("runs", "--json", *server)
    assert answer.returncode == 0, answer.stderr
    return list(json.loads(answer.stdout))


def measurements(run_id: str, server: tuple[str, ...]) -> list[dict[str, Any]]:
    answer = kernalyse("show", run_id, "measurements", "--format", "json", *server)
    assert answer.returncode == 0, answer.stderr
    return list(json.loads(answer.stdout)["measurements"])


def test_a_sweep_is_stored_listed_found_after_a_restart_and_deleted(services: ServiceProcesses) -> None:
    analyzer, server = started_pair(services)
    done = kernalyse("bench", *SWEEP, "-p", "N=1024,2048", *server)
    assert done.returncode == 0, done.stderr
    (run,) = listed(server)
    assert (run["state"], run["completed_configuration_count"]) == ("SUCCEEDED", 2)
    assert not list((services.directory / "data").rglob("catalogue.sqlite"))
    analyzer.stop()
    again = services.start("analyzer")
    server = ("--server", again.address, *server[2:])
    assert [found["run_id"] for found in listed(server)] == [run["run_id"]]
    assert len(measurements(run["run_id"], server)) == 2
    assert kernalyse("delete", run["run_id"], "--yes", *server).returncode == 0
    assert listed(server) == []


def test_a_server_that_goes_away_during_a_sweep_loses_nothing(services: ServiceProcesses, postgresql: PostgresqlServer) -> None:
    analyzer, server = started_pair(services)
    sweep = FollowedSweep(analyzer, services.directory, "N=1024..20480:1024")
    wait_for(lambda: bool(sweep.run()) and (sweep.run()["completed_configuration_count"] or 0) >= 3, sweep.said)
    postgresql.stop()
    asked = kernalyse("runs", *server)
    assert asked.returncode == 1
    assert "found connection" in asked.stderr or "found server closed" in asked.stderr or "found terminating" in asked.stderr, asked.stderr
    assert "Look after the server" in asked.stderr
    time.sleep(2)
    postgresql.start()
    wait_for(lambda: listed(server)[0]["state"] == "SUCCEEDED", analyzer.log_path.read_text)
    (run,) = listed(server)
    assert (run["completed_configuration_count"], run["failed_configuration_count"]) == (20, 0)
    assert sorted(row["configuration_index"] for row in measurements(run["run_id"], server)) == list(range(20))
    assert sweep.process.wait(60) == 0, sweep.said()
