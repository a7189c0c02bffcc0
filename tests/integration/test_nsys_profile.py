"""A real nsys around a small program with NVTX ranges, through a real service. tests/tools/install_nsys.sh installs one."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.core.model import CommandProfile, Run, RunSpec, RunState
from tests.integration.profiler_node import ProfilerNode, calls_to, payload_names, processes_with
from tests.unit.installed_nsys import FOUND, MISSING, UNPACKED

HEADERS = (*(path.parent / "nvtx" / "include" for path in UNPACKED), *Path("/usr/local").glob("cuda*/include"))
HEADER = next((directory for directory in HEADERS if (directory / "nvtx3" / "nvToolsExt.h").is_file()), None)

pytestmark = [
    pytest.mark.skipif(not FOUND, reason=MISSING),
    pytest.mark.skipif(HEADER is None or shutil.which("cc") is None, reason="needs a C compiler and NVTX's headers"),
]

# One step lasts 10 ms. COUNT STATUS: steps to take, exit status.
PROGRAM = r"""
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argument_count, char **arguments) {
    for (int step = 0; step < atoi(arguments[1]); step++) {
        char name[32];
        snprintf(name, sizeof name, "step %d", step);
        nvtxRangePushA(name);
        nvtxRangePushA("forward");
        usleep(10000);
        nvtxRangePop();
        nvtxRangePop();
        printf("%s\n", name);
        fflush(stdout);
    }
    return atoi(arguments[2]);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("program")
    (directory / "steps.c").write_text(PROGRAM)
    subprocess.run(["cc", f"-I{HEADER}", "-o", directory / "steps", directory / "steps.c", "-ldl"], check=True)
    return directory / "steps"


@pytest.fixture(scope="module", params=FOUND, ids=lambda path: Path(path).parts[3])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    node = ProfilerNode(tmp_path_factory.mktemp("node"), nsys_program=request.param)
    try:
        node.start()
        yield node
    finally:
        node.close()


def profiled(node: ProfilerNode, *works: CommandProfile) -> list[tuple[Run, list[Any]]]:
    async def all_of_them() -> list[tuple[Run, list[Any]]]:
        async with calls_to(node) as calls:
            runs = [await calls.start(RunSpec(work)) for work in works]
            return [(await calls.finished(run.run_id), await calls.events(run.run_id)) for run in runs]

    return asyncio.run(all_of_them())


def range_names(node: ProfilerNode, run: Run, events: list[Any]) -> list[str]:
    """Of the trace that the run has left, in the order of their starts."""
    (trace,) = [event.trace_stored for event in events if event.WhichOneof("payload") == "trace_stored"]
    artifacts = node.data_directory / "runs" / run.run_id / "work" / "artifacts"
    if list(trace.artifact_names) == ["export.sqlite"]:
        with sqlite3.connect(artifacts / "export.sqlite") as database:
            rows = database.execute("SELECT text FROM NVTX_EVENTS WHERE text IS NOT NULL AND eventType = 59 ORDER BY start")
            return [name for (name,) in rows]
    pushed = pl.read_parquet(artifacts / "export.parquetdir" / "NVTX_EVENTS.parquet").filter(eventType=59)
    return list(pushed.sort("start")["text"])


@pytest.mark.slow
def test_ranges_of_a_program_and_of_a_captured_part_reach_the_trace(node: ProfilerNode, program: Path) -> None:
    whole, part, endless = profiled(
        node,
        CommandProfile((str(program), "3", "0"), "nsys"),
        CommandProfile((str(program), "40", "7"), "nsys", capture_range="nvtx:step 2"),
        CommandProfile((str(program), "1000000", "0"), "nsys", max_duration_ns=1_500_000_000),
    )
    run, events = whole
    assert run.error is None
    assert range_names(node, run, events) == ["step 0", "forward", "step 1", "forward", "step 2", "forward"]
    assert "report.nsys-rep" in [event.artifact_stored.artifact_name for event in events]
    run, events = part
    assert run.error is not None
    assert run.error.reason == "COMMAND_FAILED", "the program went on after its range, to its own end"
    assert "status 7" in run.error.message
    assert "forward" in range_names(node, run, events)
    assert "step 0" not in range_names(node, run, events)
    run, events = endless
    assert run.state is RunState.SUCCEEDED
    assert "trace_stored" in payload_names(events)
    assert [processes_with(run.run_id) for run, _ in (whole, part, endless)] == [[], [], []]
    left = [path.name for path in (node.data_directory / "runs" / run.run_id / "work").iterdir()]
    assert left == ["artifacts"]
