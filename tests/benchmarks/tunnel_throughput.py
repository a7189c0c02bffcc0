"""Bytes a second of an artifact of 256 MiB, directly and through a tunnel: `python -m tests.benchmarks.tunnel_throughput`.

One analyzer has two nodes of this machine, one that it calls and one that has joined by a tunnel. A client reads the same file of
either through the analyzer, in turns, without TLS: what differs is the way from the node to the analyzer. All processes share this
machine's cores.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from kernalyse.channel import open_async_channel
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import NodeHealth, NodeStatus
from kernalyse.services.profiler.runs.files import RunDirectory
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc
from tests.integration.profiler_node import ProfilerNode, behaving
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

ARTIFACT_BYTES = 256 * 1024 * 1024
ARTIFACT_NAME = "large.bin"
ROUND_COUNT = 5


async def serving_node(stub: Any, hostname: str) -> NodeStatus:
    """The node, once it serves."""
    while True:
        nodes = [protobuf.decode(node, NodeStatus) for node in (await stub.ListNodes(messages.ListNodesRequest())).nodes]
        for status in nodes:
            if status.health is NodeHealth.SERVING and status.node is not None and status.node.hostname == hostname:
                return status
        await asyncio.sleep(0.05)


async def run_with_artifact(stub: Any, node: ProfilerNode, hostname: str, data: bytes) -> str:
    """The id of a run that has left the file."""
    status = await serving_node(stub, hostname)
    assert status.node is not None
    request = messages.AnalyzerServiceStartRunRequest(node_id=status.node.node_id, spec=protobuf.encode(behaving("succeed")))
    run_id: str = (await stub.StartRun(request)).run.run_id
    async for _ in stub.WatchRun(messages.AnalyzerServiceWatchRunRequest(run_id=run_id)):
        pass
    artifacts = RunDirectory(node.data_directory / "runs", run_id).working_directory / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    (artifacts / ARTIFACT_NAME).write_bytes(data)
    return run_id


async def bytes_per_s(stub: Any, run_id: str) -> float:
    began_s, read_bytes = time.perf_counter(), 0
    async for part in stub.ReadArtifact(messages.AnalyzerServiceReadArtifactRequest(run_id=run_id, artifact_name=ARTIFACT_NAME)):
        read_bytes += len(part.chunk)
    assert read_bytes == ARTIFACT_BYTES
    return read_bytes / (time.perf_counter() - began_s)


async def measure(directory: Path, analyzer: ServiceProcess) -> None:
    """Prints one line per way."""
    data = os.urandom(1024 * 1024) * (ARTIFACT_BYTES // (1024 * 1024))
    async with open_async_channel(analyzer.endpoint) as channel:
        stub: Any = analyzer_service_pb2_grpc.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        token_file = directory / "join"
        token_file.write_text((await stub.CreateJoinToken(messages.CreateJoinTokenRequest(use_count=1, lifetime_s=3600))).join_token)
        for name in ("called", "tunnel"):
            (directory / name).mkdir()
        joins: dict[str, Any] = {"join": analyzer.address, "join_token_file": str(token_file), "tunnel": True}
        with (
            closing(ProfilerNode(directory / "called", stand_in=True, node_name="called")) as called,
            closing(ProfilerNode(directory / "tunnel", stand_in=True, node_name="tunnelled", **joins)) as tunnelled,
        ):
            await asyncio.to_thread(called.start)
            await stub.AddNode(messages.AddNodeRequest(address=called.endpoint.address, token=called.endpoint.token))
            await asyncio.to_thread(tunnelled.start)
            runs = {
                "directly": await run_with_artifact(stub, called, "called", data),
                "through the tunnel": await run_with_artifact(stub, tunnelled, "tunnelled", data),
            }
            rates: dict[str, list[float]] = {way: [] for way in runs}
            for _ in range(ROUND_COUNT):
                for way, run_id in runs.items():
                    rates[way].append(await bytes_per_s(stub, run_id))
    for way, found in rates.items():
        each = ", ".join(f"{rate / 1e6:.0f}" for rate in found)
        print(f"{way:<20} {statistics.median(found) / 1e6:6.0f} MB/s, the median of {each}")
    share = statistics.median(rates["through the tunnel"]) / statistics.median(rates["directly"])
    print(f"{'':<20} through the tunnel {share:.2f} of that directly")


def main() -> None:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            asyncio.run(measure(directory, services.start("analyzer", address="127.0.0.1:0")))
        finally:
            services.stop_all()


if __name__ == "__main__":
    main()
