"""Collecting: every event is stored exactly once, whatever dies in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import (
    Axis,
    KernelSelection,
    KernelSweep,
    MeasuringOptions,
    RunSpec,
    RunState,
    StateChanged,
    TableQuery,
    Telemetry,
)
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.integration.analyzer_under_test import (
    AnalyzerProcess,
    add_node,
    connected,
    eventually,
    get_run,
    get_table,
    in_state,
    serving,
    watch_run,
)
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, standing_in, started
from tests.service_processes import ServiceProcesses

BATCH_SAMPLE_COUNT = 20


@pytest.fixture
async def node(private_directories: Path) -> AsyncIterator[ProfilerStandIn]:
    async with standing_in(private_directories) as stand_in:
        yield stand_in


async def sample_indexes(stub: Any, run_id: str) -> list[int]:
    frame, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("sample_index",)))
    return frame["sample_index"].to_list()


@pytest.mark.slow
async def test_an_analyzer_killed_again_and_again_stores_each_sample_once(private_directories: Path, node: ProfilerStandIn) -> None:
    """Killed mid-run, then right at the run's end, when its rows may be on their way to Parquet."""
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0))
    analyzer = AnalyzerProcess(private_directories)
    await asyncio.to_thread(analyzer.start)
    async with connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
    batch_count = 0

    async def journal_until(event: asyncio.Event) -> None:
        nonlocal batch_count
        while not event.is_set():
            node.journal("aaaa-1", samples(0, batch_count * BATCH_SAMPLE_COUNT, BATCH_SAMPLE_COUNT))
            batch_count += 1
            await asyncio.sleep(0.001)

    killed = asyncio.Event()
    writing = asyncio.create_task(journal_until(killed))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(analyzer.kill)
    await asyncio.to_thread(analyzer.start)
    await asyncio.sleep(0.3)
    killed.set()
    await writing
    node.journal("aaaa-1", measurement(0), StateChanged(RunState.SUCCEEDED))
    await asyncio.to_thread(analyzer.kill)
    await asyncio.to_thread(analyzer.start)
    try:
        async with connected(analyzer.endpoint) as stub:
            await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
            assert await sample_indexes(stub, "aaaa-1") == list(range(batch_count * BATCH_SAMPLE_COUNT))
            await eventually(lambda: _exists(private_directories / "store" / "runs", "aaaa-1-*/samples.parquet"))
            assert await sample_indexes(stub, "aaaa-1") == list(range(batch_count * BATCH_SAMPLE_COUNT))
            assert (await get_table(stub, TableQuery("measurements")))[1] == 1
    finally:
        await asyncio.to_thread(analyzer.stop)
    assert node.requested_indexes[0] == 0
    assert all(index > 0 for index in node.requested_indexes[1:])


async def test_a_node_that_restarts_is_collected_from_where_it_was_left(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), samples(0, 0, 10))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    await node.stop()
    await eventually(lambda: _health_is(stub, messages.NODE_HEALTH_UNREACHABLE))
    node.journal("aaaa-1", samples(0, 10, 10), StateChanged(RunState.SUCCEEDED))
    await node.start()
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    assert await sample_indexes(stub, "aaaa-1") == list(range(20))
    assert await _health_is(stub, messages.NODE_HEALTH_SERVING)


async def test_another_journal_begins_anew_and_ends_the_runs_of_the_old_one(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), samples(0, 0, 10))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    await node.stop()
    node.begin_anew("journal-2")
    node.add_run("bbbb-1", created_after_s=1)
    node.journal("bbbb-1", *started(), configuration(0), samples(0, 0, 5), StateChanged(RunState.SUCCEEDED))
    await node.start()
    await in_state(stub, "bbbb-1", RunState.SUCCEEDED)
    lost = await get_run(stub, "aaaa-1")
    assert lost.state is RunState.LOST
    assert lost.error is not None
    assert lost.error.reason == "RUN_LOST"
    assert await sample_indexes(stub, "aaaa-1") == list(range(10))
    assert await sample_indexes(stub, "bbbb-1") == list(range(5))


async def test_expired_events_are_passed_over_and_the_run_says_so(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), samples(0, 0, 10))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    await node.stop()
    node.journal("aaaa-1", samples(0, 10, 10), samples(0, 20, 10), StateChanged(RunState.SUCCEEDED))
    node.forget_events_before(6)
    await node.start()
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    assert await sample_indexes(stub, "aaaa-1") == [*range(10), *range(20, 30)]
    assert "expired" in (await get_run(stub, "aaaa-1")).notes


@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_a_node_whose_clock_is_set_is_collected_and_no_duration_is_below_zero(stub: Any, node: ProfilerStandIn, step_s: int) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0))
    node.clock_ahead_s = step_s
    node.journal("aaaa-1", samples(0, 0, 20), StateChanged(RunState.SUCCEEDED))
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    run = await get_run(stub, "aaaa-1")
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.end_time >= run.start_time
    assert await sample_indexes(stub, "aaaa-1") == list(range(20))
    node.add_run("aaaa-2")
    node.journal("aaaa-2", *started(), configuration(0), samples(0, 0, 20), StateChanged(RunState.SUCCEEDED))
    await in_state(stub, "aaaa-2", RunState.SUCCEEDED)


async def test_events_of_a_run_with_a_name_no_directory_may_have_are_left_out(stub: Any, node: ProfilerStandIn) -> None:
    for run_id in ("../../outside", "aaaa-1"):
        node.add_run(run_id)
        node.journal(run_id, *started(), StateChanged(RunState.SUCCEEDED))
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    assert (await get_table(stub, TableQuery("runs")))[0]["run_id"].to_list() == ["aaaa-1"]


async def test_telemetry_of_an_idle_node_is_shown_once_and_not_stored(stub: Any, node: ProfilerStandIn) -> None:
    now_ns = time.time_ns()
    node.idle_telemetry = [Telemetry(now_ns - age_s * 1_000_000_000, load_average=float(age_s)) for age_s in (3600, 2, 1)]
    for _ in range(2):
        await node.stop()
        await node.start()
        await eventually(lambda: _health_is(stub, messages.NODE_HEALTH_SERVING))
        await asyncio.sleep(0.1)
    stream = stub.WatchNodes(messages.WatchNodesRequest())
    first = await anext(aiter(stream))
    stream.cancel()
    assert [reading.telemetry.load_average for reading in first.telemetry] == [2.0, 1.0]
    assert (await get_table(stub, TableQuery("telemetry")))[1] == 0


async def test_watchers_are_told_of_the_address_that_a_node_has_left(stub: Any, node: ProfilerStandIn) -> None:
    await eventually(lambda: _health_is(stub, messages.NODE_HEALTH_SERVING))
    left, node.address = node.address, f"{node.address}.moved"
    await node.stop()
    await eventually(lambda: _health_is(stub, messages.NODE_HEALTH_UNREACHABLE))
    stream = stub.WatchNodes(messages.WatchNodesRequest())
    shown: set[str] = set()
    answers = aiter(stream)
    shown.update(status.address for status in (await anext(answers)).nodes)
    await node.start()
    await add_node(stub, node.endpoint)
    async with asyncio.timeout(10):
        while shown != {node.address}:
            answer = await anext(answers)
            shown -= set(answer.removed_addresses)
            shown |= {status.address for status in answer.nodes}
    stream.cancel()
    assert left != node.address


@pytest.mark.slow
async def test_a_real_sweep_travels_from_kernel_to_roofline(services: ServiceProcesses, private_directories: Path) -> None:
    """Real profiler, real OpenCL device: what the worker measured is what the analyzer serves."""
    profiler = services.start("profiler")
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        await add_node(stub, Endpoint(profiler.address, profiler.token))
        await eventually(lambda: _health_is(stub, messages.NODE_HEALTH_SERVING))
        options = MeasuringOptions(min_duration_ns=20_000_000, max_duration_ns=200_000_000)
        sweep = KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", (4096, 65536)),), measuring=options)
        run_id = await _start(stub, RunSpec(sweep))
        async with asyncio.timeout(90):
            answers = [answer async for answer in watch_run(stub, run_id)]
        run = await get_run(stub, run_id)
        assert run.state is RunState.SUCCEEDED, run.error
        measurements = (await get_table(stub, TableQuery("measurements", (run_id,))))[0]
        counts = (
            (await get_table(stub, TableQuery("samples", (run_id,))))[0].group_by("configuration_index").len().sort("configuration_index")
        )
        assert measurements.height == 2
        assert counts["len"].to_list() == measurements["sample_count"].to_list()
        roofline = (await get_table(stub, TableQuery("roofline", (run_id,))))[0]
        assert roofline["ceiling_source"].to_list() == ["measured", "measured"]
        assert roofline.select(pl.col("efficiency_ratio").is_between(0, 20).all()).item()
        assert "samples" in {chunk.table_name for answer in answers for chunk in answer.tables}


async def _start(stub: Any, spec: RunSpec) -> str:
    answer = await stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=protobuf.encode(spec)))
    run_id: str = answer.run.run_id
    return run_id


async def _health_is(stub: Any, health: int) -> bool:
    nodes = (await stub.ListNodes(messages.ListNodesRequest())).nodes
    return [status.health for status in nodes] == [health]


async def _exists(directory: Path, pattern: str) -> bool:
    return bool(list(directory.glob(pattern)))
