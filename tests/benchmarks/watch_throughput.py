"""Samples a second through WatchRun, of profiler and analyzer: `python -m tests.benchmarks.watch_throughput`.

A stand-in worker sends batches of 500 made-up samples as fast as it can: what is measured are the services. Live means that
the clock starts with the run and every sample goes worker → journal → stream; for the analyzer → collector → store → stream.
All processes share this machine's cores, the subscribers included.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from kernalyse.channel import open_async_channel
from kernalyse.v1 import analyzer_service_pb2 as analyzer_messages
from kernalyse.v1 import analyzer_service_pb2_grpc
from kernalyse.v1 import profiler_service_pb2 as profiler_messages
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to
from tests.service_processes import ServiceProcess, ServiceProcesses

BATCH_COUNT = 8_000
SAMPLE_COUNT = 500 * BATCH_COUNT
SUBSCRIBER_COUNT = 20
ROUND_COUNT = 3
Count = Callable[[str], Awaitable[int]]
Open = Callable[[str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Watched:
    """One service's WatchRun. count: reads a run to its end and answers with its samples; open: a stream to be left unread."""

    name: str
    count: Count
    open: Open


async def measure(watched: Watched, calls: Calls) -> None:
    """Prints one line per figure."""
    rate, counts, run_id = await subscribed(watched, calls, 1)
    show(watched, "1 subscriber, live", rate, counts, "goal: at least 1 M")
    began = time.perf_counter()
    counts = [await watched.count(run_id)]
    show(watched, "1 subscriber, of a finished run", SAMPLE_COUNT / (time.perf_counter() - began), counts, "goal: at least 1 M")
    rate, counts, _ = await subscribed(watched, calls, SUBSCRIBER_COUNT)
    show(watched, f"{SUBSCRIBER_COUNT} subscribers, live, each", rate, counts, "goal: all have everything")
    await compare_stalled(watched, calls)


async def compare_stalled(watched: Watched, calls: Calls) -> None:
    """With and without a stalled subscriber in turns: the machine's own ups and downs fall on both alike."""
    others = SUBSCRIBER_COUNT - 1
    alone: list[float] = []
    beside: list[float] = []
    everybody: list[int] = []
    for _ in range(ROUND_COUNT):
        for rates, stalled_count in ((alone, 0), (beside, 1)):
            rate, counts, _ = await subscribed(watched, calls, others, stalled_count=stalled_count)
            rates.append(rate)
            everybody += counts if stalled_count else []
    rate = statistics.median(beside)
    note = f"{rate / statistics.median(alone):.2f} of that without it, medians of {ROUND_COUNT}"
    show(watched, f"{others} beside a stalled one, live, each", rate, everybody, note)


async def subscribed(watched: Watched, calls: Calls, count: int, *, stalled_count: int = 0) -> tuple[float, list[int], str]:
    """Samples a second that each subscriber of a new run got, how many each got in all, and the run's id."""
    began = time.perf_counter()
    run = await calls.start(behaving(f"succeed:{BATCH_COUNT}"))
    stalling = [asyncio.create_task(stalled_stream(watched, run.run_id)) for _ in range(stalled_count)]
    counts = await asyncio.gather(*(watched.count(run.run_id) for _ in range(count)))
    elapsed_s = time.perf_counter() - began
    for stream in await asyncio.gather(*stalling):
        stream.cancel()
    return SAMPLE_COUNT / elapsed_s, counts, run.run_id


async def stalled_stream(watched: Watched, run_id: str) -> Any:
    """A subscriber that reads once and then never again."""
    stream = await watched.open(run_id)
    with suppress(StopAsyncIteration):
        await anext(aiter(stream))
    return stream


def show(watched: Watched, what: str, rate: float, counts: list[int], note: str) -> None:
    complete = sum(count == SAMPLE_COUNT for count in counts)
    print(f"{watched.name:<9} {what:<38} {rate / 1e6:6.2f} M samples/s, {complete} of {len(counts)} have all {SAMPLE_COUNT} ({note})")


def watched_profiler(calls: Calls) -> Watched:
    async def open_stream(run_id: str) -> Any:
        return calls.stub.WatchRun(profiler_messages.ProfilerServiceWatchRunRequest(run_id=run_id))

    async def count(run_id: str) -> int:
        samples = 0
        async for response in await open_stream(run_id):
            samples += sum(len(event.sample_batch.duration_ns) for event in response.events)
        return samples

    return Watched("profiler", count, open_stream)


def watched_analyzer(stub: Any) -> Watched:
    async def open_stream(run_id: str) -> Any:
        await known(run_id)
        return stub.WatchRun(analyzer_messages.AnalyzerServiceWatchRunRequest(run_id=run_id))

    async def count(run_id: str) -> int:
        samples = 0
        async for response in await open_stream(run_id):
            samples += sum(
                pl.read_ipc_stream(BytesIO(chunk.arrow_ipc)).height for chunk in response.tables if chunk.table_name == "samples"
            )
        return samples

    async def known(run_id: str) -> None:
        """Until the collector has heard of the run."""
        while True:
            runs = await stub.ListRuns(analyzer_messages.AnalyzerServiceListRunsRequest(page_size=1))
            if runs.runs and runs.runs[0].run_id == run_id:
                return
            await asyncio.sleep(0.002)

    return Watched("analyzer", count, open_stream)


async def measure_profiler(node: ProfilerNode) -> None:
    async with calls_to(node) as calls:
        await measure(watched_profiler(calls), calls)


async def measure_analyzer(node: ProfilerNode, analyzer: ServiceProcess) -> None:
    async with calls_to(node) as calls, open_async_channel(analyzer.endpoint) as channel:
        stub: Any = analyzer_service_pb2_grpc.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.AddNode(analyzer_messages.AddNodeRequest(address=node.endpoint.address, token=node.endpoint.token))
        await measure(watched_analyzer(stub), calls)


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="kn-"))
    for name in ("config", "data", "run", "first", "second"):
        (directory / name).mkdir(mode=0o700)
    places = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_RUNTIME_DIR": "run"}
    os.environ |= {variable: str(directory / name) for variable, name in places.items()}
    services = ServiceProcesses(directory)
    # A node each: an analyzer would have to collect first what the profiler's own measurements left in the journal.
    nodes = [ProfilerNode(directory / name, stand_in=True) for name in ("first", "second")]
    try:
        with closing(nodes[0]) as node:
            node.start()
            asyncio.run(measure_profiler(node))
        with closing(nodes[1]) as node:
            node.start()
            asyncio.run(measure_analyzer(node, services.start("analyzer")))
    finally:
        services.stop_all()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
