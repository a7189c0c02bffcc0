"""kill -9 at one write after another of a service's databases and files, by strace: nothing stored is lost or there twice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import RunState, StateChanged, TableQuery
from tests.integration.analyzer_under_test import AnalyzerProcess, add_node, connected, eventually, get_table, in_state
from tests.integration.profiler_node import STAND_IN_WORKER, ProfilerNode, behaving, calls_to, processes_with
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, standing_in, started

KILL_COUNT = int(os.environ.get("KILLS_AT_WRITES", "13"))
"""Of each service; `make soak` has more."""

MOST_WRITES = 60
"""Before a kill. A service writes as many in its first second: migrations, what an earlier kill has left, the first events."""

LIFE_S = 20.0
"""After which one that has written less is killed all the same."""

SEED = 20260501
BATCH_SAMPLE_COUNT = 20


def why_no_strace() -> str:
    """Why nothing can be traced here; empty: it can."""
    if shutil.which("strace") is None:
        return "needs strace"
    done = subprocess.run(("strace", "--output=/dev/null", "true"), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace() or "strace traces")]


def strace(write: int) -> tuple[str, ...]:
    """A command that kills what it runs at the write of that number to a database in one of its threads."""
    words = ("--follow-forks", "--quiet=all", "--output=/dev/null", "--trace=pwrite64")
    return "strace", *words, f"--inject=pwrite64:signal=SIGKILL:when={write}"


def wait_for_kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(LIFE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # strace alone would leave it
    process.wait()


def write_numbers() -> list[int]:
    numbers = random.Random(SEED)
    return [numbers.randint(1, MOST_WRITES) for _ in range(KILL_COUNT)]


# ---------------------------------------------------------------- the analyzer


async def test_an_analyzer_killed_at_its_writes_has_each_event_once(private_directories: Path) -> None:
    async with standing_in(private_directories) as node:
        analyzer = AnalyzerProcess(private_directories)
        await asyncio.to_thread(analyzer.start)
        async with connected(analyzer.endpoint) as stub:
            await add_node(stub, node.endpoint)
        await asyncio.to_thread(analyzer.stop)
        end = asyncio.Event()
        writing = asyncio.create_task(write_runs(node, end))
        try:
            for number in write_numbers():
                await asyncio.to_thread(wait_for_kill, analyzer.spawned(*strace(number)))
        finally:
            end.set()
        counts = await writing
        await asyncio.to_thread(analyzer.start)
        try:
            async with connected(analyzer.endpoint) as stub:
                await eventually(lambda: all_ended(stub, counts))
                for run_id, count in counts.items():
                    frame, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("sample_index",)))
                    assert frame["sample_index"].to_list() == list(range(count)), run_id
                assert (await get_table(stub, TableQuery("measurements")))[1] == len(counts)
        finally:
            assert await asyncio.to_thread(analyzer.stop) == 0


async def write_runs(node: ProfilerStandIn, end: asyncio.Event) -> dict[str, int]:
    """Journals one run after the other until the event: each is compacted while the next goes on. Answers with their samples."""
    counts: dict[str, int] = {}
    while not end.is_set() or not counts:
        run_id = f"run-{len(counts):03d}"
        node.add_run(run_id)
        node.journal(run_id, *started(), configuration(0))
        for place in range(20):
            node.journal(run_id, samples(0, place * BATCH_SAMPLE_COUNT, BATCH_SAMPLE_COUNT))
            await asyncio.sleep(0.05)
        node.journal(run_id, measurement(0), StateChanged(RunState.SUCCEEDED))
        counts[run_id] = 20 * BATCH_SAMPLE_COUNT
    return counts


async def all_ended(stub: Any, run_ids: Any) -> bool:
    for run_id in run_ids:
        await in_state(stub, run_id, RunState.SUCCEEDED)
    return True


# ---------------------------------------------------------------- the profiler


async def test_a_profiler_killed_at_its_writes_keeps_what_it_accepted(tmp_path: Path) -> None:
    node = ProfilerNode(tmp_path, stand_in=True)
    accepted: list[str] = []
    try:
        for number in write_numbers():
            process = node.spawned(*strace(number))
            waiting = asyncio.create_task(asyncio.to_thread(wait_for_kill, process))
            accepted += await submit(node, process)
            await waiting
        await asyncio.to_thread(node.start)
        assert accepted
        async with calls_to(node) as calls:
            for run_id in dict.fromkeys(accepted):
                run = await calls.finished(run_id)
                assert run.state in (RunState.SUCCEEDED, RunState.LOST), (run_id, run.state, run.error)
                events = await calls.events(run_id)
                indexes = [event.event_index for event in events]
                assert indexes == sorted(set(indexes))
                firsts = [event.sample_batch.first_sample_index for event in events if event.WhichOneof("payload") == "sample_batch"]
                assert firsts == sorted(set(firsts))
        deadline = time.monotonic() + 30
        while left := processes_with(STAND_IN_WORKER[-1]):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.1)
    finally:
        node.close()


async def submit(node: ProfilerNode, process: subprocess.Popen[bytes]) -> list[str]:
    """Submits runs for as long as the service lives; answers with those that it has accepted."""
    accepted: list[str] = []
    while process.poll() is None:
        if not node.find():
            await asyncio.sleep(0.05)
            continue
        try:
            async with calls_to(node) as calls:
                while process.poll() is None:
                    accepted.append((await asyncio.wait_for(calls.start(behaving("succeed")), 5)).run_id)
                    await asyncio.sleep(0.2)
        except (KernalyseError, TimeoutError):
            await asyncio.sleep(0.05)
    return accepted
