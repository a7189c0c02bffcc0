"""`kernalyse bench --on`: one sweep on several devices, on real nodes of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.profiler_node import ProfilerNode, running_node

QUICK = ("--max-time", "0.2", "--samples", "50")


@pytest.fixture
def two_nodes(private_directories: Path, tmp_path: Path, ceilings_file: Path) -> Iterator[tuple[ProfilerNode, ProfilerNode]]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        running_node(tmp_path / "a", node_name="gpu1", ceilings_file=ceilings_file) as first,
        running_node(tmp_path / "b", node_name="gpu2", ceilings_file=ceilings_file) as second,
        running_analyzer(),
    ):
        for node, name in ((first, "a"), (second, "b")):
            added = kernalyse("nodes", "add", node.endpoint.address, "--node-token-file", tmp_path / name / "token")
            assert added.returncode == 0, added.stderr
        yield first, second


def test_a_sweep_on_all_nodes_is_shown_side_by_side(two_nodes: tuple[ProfilerNode, ProfilerNode], tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    done = kernalyse("bench", "saxpy", "-p", "N=1024,2**14", *QUICK, "--timing", "single", "--on", "all", "--json", path)
    assert done.returncode == 0, done.stderr
    assert "Measuring on gpu1, gpu2." in done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines() if line.startswith("saxpy")] == [
        ["saxpy", "N=1024", "gpu1"],
        ["saxpy", "N=1024", "gpu2"],
        ["saxpy", "N=16384", "gpu1"],
        ["saxpy", "N=16384", "gpu2"],
    ]
    document = json.loads(path.read_text())
    assert document["schema"] == "kernalyse-devices/1"
    assert [device["node"] for device in document["devices"]] == ["gpu1", "gpu2"]
    assert [len(device["results"]["measurements"]) for device in document["devices"]] == [2, 2]
    first, second = (device["comparison_with_the_first"] for device in document["devices"])
    assert first is None
    assert [row["label"] for row in second] == ["saxpy N=1024", "saxpy N=16384"]
    assert all(row["duration_ratio"] > 0 for row in second)


def test_nodes_and_devices_are_chosen_by_name(two_nodes: tuple[ProfilerNode, ProfilerNode]) -> None:
    one = kernalyse("bench", "saxpy", "-p", "N=1024", *QUICK, "--on", "gpu2")
    assert one.returncode == 0, one.stderr
    assert "Measuring on gpu2." in one.stderr
    nothing = kernalyse("bench", "saxpy", *QUICK, "--on", "H100")
    assert nothing.returncode != 0
    assert "option --on H100: found no device of it that answers; expected all, nodes of gpu1 (serving), gpu2 (serving)" in " ".join(
        nothing.stderr.split()
    )
    two_nodes[1].kill()
    gone = kernalyse("bench", "saxpy", *QUICK, "--on", "gpu1,gpu2")
    assert gone.returncode != 0
    assert "option --on gpu2" in gone.stderr
    both = kernalyse("bench", "saxpy", *QUICK, "--on", "all", "--node", "gpu1")
    assert "options --on and --node or --device" in both.stderr
