"""`kernalyse profile --on`: one command on several nodes at the same time."""

from __future__ import annotations

import asyncio
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.model import LogLevel, LogLines, Progress, Run, RunState, StateChanged, TraceStored
from tests.command import Done, kernalyse
from tests.integration.analyzer_under_test import AnalyzerHere, add_node, connected, running_analyzer, serving
from tests.integration.profiler_node import running_node
from tests.integration.profiler_stand_in import ProfilerStandIn, standing_in, started
from tests.integration.recording_nsys import write_recording_nsys
from tests.integration.test_left_traces import kineto_trace, stored
from tests.unit.nsys_export import kernel, write_export

SHELL = ("--no-upload", "--", "sh", "-c")


@contextmanager
def running_nodes(directory: Path, **settings_of_second: Any) -> Iterator[None]:
    programs = []
    for number, name in enumerate("ab", start=1):
        (directory / name).mkdir()
        calls = [{"end": 500, "correlationId": 1}]
        export = write_export(directory / name / "export.sqlite", kernels=[kernel(1_000, 6_000 + number, 1)], gpus=[{}], calls=calls)
        programs.append(str(write_recording_nsys(directory / name, export)))
    with (
        running_node(directory / "a", node_name="gpu1", nsys_program=programs[0]) as first,
        running_node(directory / "b", node_name="gpu2", nsys_program=programs[1], **settings_of_second) as second,
        running_analyzer(),
    ):
        for node, name in ((first, "a"), (second, "b")):
            added = kernalyse("nodes", "add", node.endpoint.address, "--node-token-file", directory / name / "token")
            assert added.returncode == 0, added.stderr
        yield


@pytest.fixture
def two_nodes(private_directories: Path, tmp_path: Path) -> Iterator[None]:
    with running_nodes(tmp_path):
        yield


def profiled_on(which: str, script: str) -> Done:
    return kernalyse("profile", "--collector", "nsys", "--on", which, *SHELL, script)


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_each_node_has_its_rank_and_all_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other one, as torchrun does: alone neither ends."""
    script = (
        "echo {node_rank} {node_count} {first_host} $NODE_RANK $NODE_COUNT $MASTER_ADDR '{\"kept\": 1}' > DIRECTORY/rank{node_rank}; "
        "while [ ! -e DIRECTORY/rank0 ] || [ ! -e DIRECTORY/rank1 ]; do sleep 0.05; done"
    ).replace("DIRECTORY", str(tmp_path))
    done = profiled_on("gpu2,gpu1", script)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == [
        f'{rank} 2 gpu2 {rank} 2 gpu2 {{"kept": 1}}\n' for rank in (0, 1)
    ]
    assert "Starting on gpu2, gpu1." in done.stderr
    assert "after the instant set" not in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("gpu")]
    assert [(row[0], row[2]) for row in rows] == [("gpu2", "succeeded"), ("gpu1", "succeeded")]


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_a_node_that_fails_is_named_and_one_that_is_busy_is_waited_for(tmp_path: Path) -> None:
    busy = kernalyse("profile", "--collector", "nsys", "--node", "gpu2", "--detach", *SHELL, f"sleep 2; touch {tmp_path}/over")
    assert busy.returncode == 0, busy.stderr
    done = profiled_on("all", f"[ -e {tmp_path}/over ] && exit {{node_rank}}")
    assert done.returncode == 1
    assert "Waiting until gpu2 has nothing else to do" in done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("gpu")] == ["succeeded", "failed"]
    assert "found status 1" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("private_directories")
def test_nothing_starts_where_one_node_refuses_the_command(tmp_path: Path) -> None:
    with running_nodes(tmp_path, allow_commands=False):
        done = profiled_on("all", f"touch {tmp_path}/started")
        assert done.returncode == 1
        assert "Starting" not in done.stderr
        assert kernalyse("runs").stdout.count("gpu") == 0
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_control_c_cancels_the_run_of_every_node(tmp_path: Path) -> None:
    words = ["profile", "--collector", "nsys", "--on", "all", *SHELL, f"touch {tmp_path}/on{{node_rank}}; sleep 600"]
    with subprocess.Popen(
        [sys.executable, "-m", "kernalyse.services.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ
    ) as command:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"on{rank}").exists() for rank in (0, 1)):
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=60)
    assert command.returncode == 1, output
    assert output.decode().count("cancelled") >= 2, output


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_what_cannot_be_on_several_nodes_is_said(tmp_path: Path) -> None:
    assert "options --on and --node or --detach" in kernalyse("profile", "--on", "all", "--node", "gpu1", "true").stderr
    assert "option --on: found a model by --prompt" in kernalyse("profile", "--on", "all", "--prompt", "words").stderr
    assert "option --on gpu9" in kernalyse("profile", "--on", "gpu9", "true").stderr


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_traces_of_nsight_systems_become_the_ranks_of_one_run() -> None:
    done = profiled_on("gpu2,gpu1", "true")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("All ranks as one run: ")]
    run_id = line.split()[7]
    tables = {}
    for name in ("kernel_launches", "trace_processes"):
        shown = kernalyse("show", run_id, name, "--format", "csv")
        assert shown.returncode == 0, shown.stderr
        tables[name] = list(csv.DictReader(shown.stdout.splitlines()))
    ranks = {row["process_id"]: row["rank_index"] for row in tables["trace_processes"]}
    assert sorted((ranks[row["process_id"]], row["duration_ns"]) for row in tables["kernel_launches"]) == [("0", "5002"), ("1", "5001")]


# ---------------------------------------------------------------- joining, on stand-ins that leave traces of PyTorch's profiler


def leaves_trace(node: ProfilerStandIn, directory: Path, rank: int) -> Callable[[Run], None]:
    def leave(run: Run) -> None:
        trace = stored(node, "trace.json", kineto_trace(directory, rank))
        node.journal(run.run_id, *started()[:2], Progress(0, 0, 0, "torchrun"), LogLines(LogLevel.INFO, "program", ("over",)), trace)
        node.journal(run.run_id, TraceStored((trace.artifact_name,), "kineto"), StateChanged(RunState.SUCCEEDED))

    return leave


@pytest.fixture
async def two_stand_ins(private_directories: Path, tmp_path: Path) -> AsyncIterator[AnalyzerHere]:
    directories = [private_directories / name for name in ("one", "two")]
    for directory in directories:
        directory.mkdir()
    async with standing_in(directories[0]) as first, standing_in(directories[1]) as second:
        second.node = replace(second.node, node_id="node-2", hostname="stand-in-2", journal_id="journal-2")
        second.add_run("earlier")  # so that runs of both have ids of their own
        for rank, node in enumerate((first, second)):
            node.on_start = leaves_trace(node, tmp_path, rank)
        async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
            for node in (first, second):
                await add_node(stub, node.endpoint)
            yield analyzer


@pytest.mark.slow
@pytest.mark.usefixtures("two_stand_ins")
async def test_traces_of_pytorch_become_the_ranks_of_one_run() -> None:
    done = await asyncio.to_thread(kernalyse, "profile", "--on", "all", "--no-upload", "--", "torchrun", "train.py")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("All ranks as one run: ")]
    words = line.removeprefix("All ranks as one run: kernalyse ").split()
    shown = await asyncio.to_thread(kernalyse, *words, "--format", "csv")
    assert shown.returncode == 0, shown.stderr
    assert "collectives" in shown.stdout
