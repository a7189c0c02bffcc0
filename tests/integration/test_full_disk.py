"""A full disk under a run, of its node or of the analyzer: who follows the run is told, and all goes on when there is room."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import kernalyse
from tests.integration.test_profiler_faults import fill, small_disk
from tests.integration.test_python_api import needs_opencl
from tests.service_processes import ServiceProcess, ServiceProcesses

__all__ = ["small_disk"]

pytestmark = needs_opencl

SWEEP = ("saxpy", "--no-verify", "--no-confirm", "--min-time", "0.2", "--max-time", "0.2")


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class FollowedSweep:
    """`kernalyse bench` in a process of its own, with what it says."""

    def __init__(self, analyzer: ServiceProcess, directory: Path, parameters: str) -> None:
        token_file = directory / "config" / "kernalyse" / "token"
        self.server = ("--server", analyzer.address, "--token-file", str(token_file))
        self._output = directory / "bench.log"
        command = (sys.executable, "-m", "kernalyse.services.cli.main", "bench", *SWEEP, "-p", parameters, *self.server)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def said(self) -> str:
        return " ".join(self._output.read_text().split())

    def run(self) -> dict[str, Any]:
        listed = kernalyse("runs", "--json", *self.server)
        assert listed.returncode == 0, listed.stderr
        (run,) = json.loads(listed.stdout) or [{}]
        return dict(run)


@contextmanager
def followed_sweep(
    services: ServiceProcesses, analyzer: ServiceProcess, profiler: ServiceProcess, parameters: str
) -> Iterator[FollowedSweep]:
    token_file = services.directory / "config" / "kernalyse" / "token"
    options = ("--node-token-file", token_file, "--server", analyzer.address, "--token-file", token_file)
    added = kernalyse("nodes", "add", profiler.address, *options)
    assert added.returncode == 0, added.stderr
    sweep = FollowedSweep(analyzer, services.directory, parameters)
    try:
        wait_for(lambda: sweep.run().get("completed_configuration_count", 0) > 0, sweep.said)
        yield sweep
    finally:
        sweep.process.kill()
        sweep.process.wait()


@pytest.mark.slow
def test_a_full_disk_of_the_analyzer_is_told_to_who_follows_and_nothing_is_lost(services: ServiceProcesses, small_disk: Path) -> None:
    profiler, analyzer = services.start("profiler"), services.start("analyzer", "--data-directory", str(small_disk / "store"))
    with followed_sweep(services, analyzer, profiler, "N=1024..40960:1024") as sweep:
        fill(small_disk / "ballast")
        wait_for(lambda: "waiting: store" in sweep.said(), sweep.said)
        assert "Free space on that disk or delete runs" in sweep.said()
        run = sweep.run()
        assert run["state"] == "RUNNING"
        assert "Free space on that disk" in run["problem"]
        assert f"{run['run_id']} is RUNNING for all the analyzer knows: store" in " ".join(kernalyse("runs", *sweep.server).stdout.split())
        (small_disk / "ballast").unlink()
        assert sweep.process.wait(90) == 0, sweep.said()
        run = sweep.run()
        assert (run["state"], run["completed_configuration_count"], run["problem"]) == ("SUCCEEDED", 40, None)


@pytest.mark.slow
def test_a_full_disk_of_the_node_is_told_to_who_follows_and_the_end_when_there_is_room(
    services: ServiceProcesses, small_disk: Path
) -> None:
    profiler, analyzer = services.start("profiler", "--data-directory", str(small_disk / "node")), services.start("analyzer")
    with followed_sweep(services, analyzer, profiler, "N=1024..409600:1024") as sweep:
        fill(small_disk / "ballast")
        wait_for(lambda: "waiting: journal" in sweep.said(), sweep.said)
        assert "Free space on that disk" in sweep.said()
        assert "Free space on that disk" in sweep.run()["problem"]
        (small_disk / "ballast").unlink()
        assert sweep.process.wait(90) == 1, sweep.said()
        run = sweep.run()
        assert (run["state"], run["error_reason"], run["problem"]) == ("FAILED", "STORAGE_FULL", None)
