"""`kernalyse bench --mode split`: one sweep shared out to four nodes whose devices are stand-ins with a set measuring time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.profiler_node import ProfilerNode, running_node
from tests.integration.stand_in_timed_worker import timed_worker

SECONDS: Final = 0.1
"""Of each configuration."""

FACTORS: Final = (1.0, 1.0, 1.03, 1.0)
"""Of durations: the third device is 3 % slower."""

CONFIGURATION_COUNT: Final = 120
COMMON_COUNT: Final = 8
SWEEP: Final = ("bench", "saxpy", "-p", f"N=1024..{1024 * CONFIGURATION_COUNT}:1024", "--on", "all", "--mode", "split")


@pytest.fixture
def nodes(private_directories: Path, tmp_path: Path) -> Iterator[list[ProfilerNode]]:
    with ExitStack() as stack:
        started = []
        for number, factor in enumerate(FACTORS):
            directory = tmp_path / f"gpu{number}"
            directory.mkdir()
            worker = timed_worker(SECONDS, factor)
            started.append(stack.enter_context(running_node(directory, worker=worker, node_name=directory.name)))
        stack.enter_context(running_analyzer())
        for number, node in enumerate(started):
            added = kernalyse("nodes", "add", node.endpoint.address, "--node-token-file", tmp_path / f"gpu{number}" / "token")
            assert added.returncode == 0, added.stderr
        yield started


def counting(document: dict[str, Any]) -> list[int]:
    return [row["configuration_index"] for row in document["measurements"] if row["counts"]]


@pytest.mark.slow
def test_every_configuration_is_measured_once_some_on_all_and_the_slow_device_is_found(nodes: list[ProfilerNode], tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    done = kernalyse(*SWEEP, "--json", path)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert (
        f"{COMMON_COUNT} of {CONFIGURATION_COUNT} configurations are measured on each of 4 devices, 112 on one each, in 16 shares." in told
    )
    document = json.loads(path.read_text())
    assert counting(document) == list(range(CONFIGURATION_COUNT))
    assert len(document["measurements"]) == CONFIGURATION_COUNT + 3 * COMMON_COUNT
    slow = {effect["label"]: effect for effect in document["device_effects"]}["gpu2"]
    assert slow["low"] < 1.03**0.75 < slow["high"]  # beside the geometric mean of all four
    assert slow["low"] > 1.01
    # The same command once more finds what was measured.
    run_count = len(json.loads(kernalyse("runs", "--json", "--count", "100").stdout))
    again = kernalyse(*SWEEP, "--json", tmp_path / "again.json")
    assert again.returncode == 0, again.stderr
    assert len(json.loads(kernalyse("runs", "--json", "--count", "100").stdout)) == run_count
    assert json.loads((tmp_path / "again.json").read_text())["measurements"] == document["measurements"]


@pytest.mark.slow
def test_what_a_node_had_that_went_away_is_measured_by_others(nodes: list[ProfilerNode], tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    killer = threading.Timer(4.0, nodes[1].kill)
    killer.start()
    try:
        done = kernalyse(*SWEEP, "--json", path)
    finally:
        killer.cancel()
    assert done.returncode == 0, done.stderr
    assert "gpu1: does not answer" in done.stderr
    document = json.loads(path.read_text())
    assert sorted(counting(document)) == list(range(CONFIGURATION_COUNT))
    assert {row["node"] for row in document["measurements"]} >= {"gpu0", "gpu2", "gpu3"}
