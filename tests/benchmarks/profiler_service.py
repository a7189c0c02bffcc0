"""The profiler service by itself: `python -m tests.benchmarks.profiler_service`.

Resident memory when idle; samples a second to one watcher, live (worker → journal → gRPC → here) and from the journal; 20
watchers at once; and the way of a sample from the worker's stamp to the watcher. A stand-in worker sends batches of 500
made-up samples as fast as it can: what is measured is the service, not a kernel. All processes share this machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to, resident_bytes

BATCH_COUNT = 8_000
WATCHER_COUNT = 20
LATENCY_BATCH_COUNT = 1_000
SETTLING_S = 2.0


async def _measure_all() -> None:
    with tempfile.TemporaryDirectory() as name:
        real = ProfilerNode(Path(name) / "real")
        Path(name, "real").mkdir()
        try:
            real.start()
            await asyncio.sleep(SETTLING_S)
            assert real.process is not None
            print(f"idle service, resident: {resident_bytes(real.process.pid) / 1e6:.1f} MB (goal: at most 90)")
        finally:
            real.close()
        node = ProfilerNode(Path(name), stand_in=True)
        try:
            node.start()
            async with calls_to(node) as calls:
                await _measure(calls)
        finally:
            node.close()


async def _measure(calls: Calls) -> None:
    run = await calls.start(behaving(f"succeed:{BATCH_COUNT}"))
    print(f"one watcher, live, start of the worker included: {await _rate(_count(calls, run.run_id)):.1f} M samples/s (goal: at least 1)")
    print(f"one watcher, from the journal: {await _rate(_count(calls, run.run_id)):.1f} M samples/s")
    everybody = asyncio.gather(*(_count(calls, run.run_id) for _ in range(WATCHER_COUNT)))
    began = time.perf_counter()
    counts = await everybody
    total = sum(counts) / (time.perf_counter() - began) / 1e6
    print(f"{WATCHER_COUNT} watchers at once: {total:.1f} M samples/s together; all have everything: {len(set(counts)) == 1}")
    latencies_ms = await _latencies_ms(calls)
    median, p95 = statistics.median(latencies_ms), statistics.quantiles(latencies_ms, n=20)[-1]
    print(f"worker's stamp to watcher: median {median:.2f} ms, p95 {p95:.2f} ms")


async def _rate(counting: Awaitable[int]) -> float:
    began = time.perf_counter()
    return await counting / (time.perf_counter() - began) / 1e6


async def _count(calls: Calls, run_id: str) -> int:
    count = 0
    async for response in calls.stub.WatchRun(messages.ProfilerServiceWatchRunRequest(run_id=run_id)):
        count += sum(len(event.sample_batch.duration_ns) for event in response.events)
    return count


async def _latencies_ms(calls: Calls) -> list[float]:
    run = await calls.start(behaving("stream:0.002"))
    latencies_ms: list[float] = []
    async for event in calls.watch(run.run_id):
        if event.WhichOneof("payload") == "sample_batch":
            latencies_ms.append((time.time_ns() - event.sample_batch.measured_unix_ns) / 1e6)
        if len(latencies_ms) == LATENCY_BATCH_COUNT:
            break
    await calls.cancel(run.run_id)
    await calls.finished(run.run_id)
    return latencies_ms


def main() -> None:
    asyncio.run(_measure_all())


if __name__ == "__main__":
    main()
