"""kill -9 of either service in the middle of a real sweep: what was measured stays, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.model import Axis, KernelSelection, KernelSweep, MeasuringOptions, RunSpec, RunState, TableQuery
from tests.integration.analyzer_under_test import AnalyzerProcess, add_node, connected, eventually, get_run, get_table
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

SIZES = (1024, 2048, 4096)


@pytest.fixture
def node(private_directories: Path, ceilings_file: Path) -> Iterator[ProfilerNode]:
    directory = private_directories / "node"
    directory.mkdir()
    own = ProfilerNode(directory, ceilings_file=ceilings_file)
    own.start()
    yield own
    own.close()


@pytest.fixture
def analyzer(private_directories: Path) -> Iterator[AnalyzerProcess]:
    own = AnalyzerProcess(private_directories)
    own.start()
    yield own
    own.stop()


def sweep() -> RunSpec:
    measuring = MeasuringOptions(min_duration_ns=600_000_000, max_duration_ns=600_000_000)
    return RunSpec(KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", SIZES),), measuring=measuring))


async def measured_durations(calls: Calls, run_id: str) -> list[float]:
    """Every sample of the run as the profiler's journal has it, in order."""
    return [ns for event in await calls.events(run_id) for ns in event.sample_batch.duration_ns]


async def stored_durations(stub: Any, run_id: str) -> list[float]:
    frame, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("duration_ns",)))
    durations: list[float] = frame["duration_ns"].to_list()
    return durations


async def has_samples(stub: Any, run_id: str) -> bool:
    return bool(await stored_durations(stub, run_id))


async def has_ended(stub: Any, run_id: str) -> bool:
    return (await get_run(stub, run_id)).state.is_final


@pytest.mark.slow
async def test_a_killed_analyzer_has_every_sample_once(node: ProfilerNode, analyzer: AnalyzerProcess) -> None:
    async with calls_to(node) as calls:
        async with connected(analyzer.endpoint) as stub:
            await add_node(stub, node.endpoint)
            run = await calls.start(sweep())
            await eventually(lambda: _known(stub, run.run_id))
        await asyncio.to_thread(analyzer.kill)
        await asyncio.to_thread(analyzer.start)
        async with connected(analyzer.endpoint) as stub:
            await eventually(lambda: has_ended(stub, run.run_id))
            assert (await get_run(stub, run.run_id)).state is RunState.SUCCEEDED
            measured = await measured_durations(calls, run.run_id)
            assert len(measured) > 4 * len(SIZES)
            assert await stored_durations(stub, run.run_id) == measured
            assert (await get_table(stub, TableQuery("measurements", (run.run_id,))))[1] == len(SIZES)


@pytest.mark.slow
async def test_a_killed_profiler_loses_the_run_and_no_sample(node: ProfilerNode, analyzer: AnalyzerProcess) -> None:
    async with connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        async with calls_to(node) as calls:
            run = await calls.start(sweep())
            await eventually(lambda: _known(stub, run.run_id))
        seen = await stored_durations(stub, run.run_id)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await add_node(stub, node.endpoint)  # it listens on another port now
        await eventually(lambda: has_ended(stub, run.run_id))
        assert (await get_run(stub, run.run_id)).state is RunState.LOST
        async with calls_to(node) as calls:
            measured = await measured_durations(calls, run.run_id)
        stored = await stored_durations(stub, run.run_id)
        assert stored == measured
        assert stored[: len(seen)] == seen
        assert seen


async def _known(stub: Any, run_id: str) -> bool:
    """Whether samples of the run have arrived, which it may not have heard of yet."""
    found, _ = await get_table(stub, TableQuery("runs", columns=("run_id",)))
    return run_id in found["run_id"].to_list() and await has_samples(stub, run_id)
