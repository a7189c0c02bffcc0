"""`kernalyse fleet check` over real nodes of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.profiler_node import ProfilerNode, running_node

CHECKS = ["copy", "device to host", "host to device", "multiply-adds", "small launches"]


@pytest.fixture
def two_nodes(private_directories: Path, tmp_path: Path, ceilings_file: Path) -> Iterator[list[ProfilerNode]]:
    with ExitStack() as stack:
        stack.enter_context(running_analyzer())
        nodes = []
        for name in ("gpu1", "gpu2"):
            (tmp_path / name).mkdir()
            node = stack.enter_context(running_node(tmp_path / name, node_name=name, ceilings_file=ceilings_file))
            added = kernalyse("nodes", "add", node.endpoint.address, "--node-token-file", tmp_path / name / "token")
            assert added.returncode == 0, added.stderr
            nodes.append(node)
        yield nodes


@pytest.mark.slow
def test_every_device_is_checked_and_what_cannot_be_judged_is_said(two_nodes: list[ProfilerNode]) -> None:
    done = kernalyse("fleet", "check", "--blocks", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "2 of 2 devices: nothing found."
    assert said[1].endswith(": 0 earlier checks of its own, too few to judge by.")
    for _ in range(3):
        done = kernalyse("fleet", "check", "--blocks", "4", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["missing"]) == ("kernalyse-fleet/1", [])
    assert [(device["node"], device["state"]) for device in document["devices"]] == [("gpu1", "SUCCEEDED"), ("gpu2", "SUCCEEDED")]
    for device in document["devices"]:
        assert sorted(row["check"] for row in device["judgements"]) == CHECKS
        assert {row["baseline"] for row in device["judgements"]} == {"3 earlier checks of its own"}
        assert all(row["rate_ratio_low"] < row["rate_ratio"] < row["rate_ratio_high"] for row in device["judgements"])

    two_nodes[1].kill()
    gone = kernalyse("fleet", "check", "--blocks", "4")
    assert gone.returncode == 1
    assert "gpu2: not checked, it does not answer" in gone.stdout
    assert "of 1 device: nothing found." in gone.stdout
