"""A hundred stand-in profilers that send fifty events a second each to one analyzer, and a thousand stand-in devices on the page Fleet.

python -m tests.benchmarks.many_nodes [--nodes 100] [--seconds 30]

The stand-ins speak the real protocol from a process of their own. Printed are how late the analyzer passes on what it has stored, what it
takes of a core, whether anything is missing, and how long the page takes with 125 nodes of eight devices.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from playwright.sync_api import expect, sync_playwright

from kernalyse.channel import Endpoint, open_channel
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import Node, NodeTelemetry, RunState, SampleBatch, StateChanged, Telemetry
from kernalyse.v1 import analyzer_service_pb2 as analyzer_messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, chromium
from tests.integration.analyzer_under_test import AnalyzerProcess
from tests.integration.profiler_stand_in import CREATED, H200, TOKEN, ProfilerStandIn, configuration, measurement, started
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses

NODE_COUNT: Final = 100
EVENTS_PER_S: Final = 50
READINGS_PER_S: Final = 2  # of these; the others are batches of samples
TICKS_PER_S: Final = 10
SAMPLES_PER_BATCH: Final = 10
GOAL_LAG_S: Final = 2.0
GOAL_CORES: Final = 1.0
FLEET_NODE_COUNT: Final = 125
DEVICES_PER_NODE: Final = 8


class Sender(ProfilerStandIn):
    """A stand-in that sends only what is new: the journal is long."""

    async def WatchNode(self, request: Any, context: Any) -> AsyncIterator[Any]:
        position = request.next_event_index
        yield messages.WatchNodeResponse(node=protobuf.encode(self.node), idle_telemetry=[protobuf.encode(t) for t in self.idle_telemetry])
        while True:
            news, part = self.news, self.events[position:]
            for begin in range(0, len(part), 500):
                yield messages.WatchNodeResponse(events=[protobuf.encode(event) for event in part[begin : begin + 500]])
            position += len(part)
            if not part:
                await news.wait()


def send(directory: Path, node_count: int, device_count: int, orders: Connection) -> None:
    """Be the nodes: listen, then send for as many seconds as the other side orders; answer with the number of samples of each node."""
    asyncio.run(_send(directory, node_count, device_count, orders))


async def _send(directory: Path, node_count: int, device_count: int, orders: Connection) -> None:
    devices = tuple(replace(H200, device_id=f"cuda:{number}") for number in range(device_count))
    nodes = []
    for number in range(node_count):
        node = Node(f"node-{number}", f"stand-in-{number}", "0", f"journal-{number}", CREATED, devices=devices)
        sender = Sender(f"unix:{directory}/{number}.sock", node)
        await sender.start()
        sender.idle_telemetry = [_reading(f"cuda:{place}") for place in range(device_count)]
        nodes.append(sender)
    orders.send("ready")
    seconds = await asyncio.to_thread(orders.recv)
    for sender in nodes:
        sender.add_run(f"run-{sender.node.node_id}")
        sender.journal(f"run-{sender.node.node_id}", *started(), configuration(0))
    begin, count = time.monotonic(), 0
    batches = EVENTS_PER_S - READINGS_PER_S
    for tick in range(int(seconds * TICKS_PER_S)):
        await asyncio.sleep(max(0.0, begin + tick / TICKS_PER_S - time.monotonic()))
        due = batches * (tick + 1) // TICKS_PER_S - batches * tick // TICKS_PER_S
        is_read = tick * READINGS_PER_S // TICKS_PER_S != (tick + 1) * READINGS_PER_S // TICKS_PER_S
        for sender in nodes:
            sent = [_batch((count + place) * SAMPLES_PER_BATCH) for place in range(due)]
            sender.journal(f"run-{sender.node.node_id}", *sent, *([_reading("cuda:0")] if is_read else []))
        count += due
    for sender in nodes:
        sender.journal(f"run-{sender.node.node_id}", measurement(0), StateChanged(RunState.SUCCEEDED))
    orders.send((count * SAMPLES_PER_BATCH, time.monotonic() - begin))
    await asyncio.to_thread(orders.recv)
    for sender in nodes:
        await sender.stop()


def _batch(first: int) -> SampleBatch:
    return SampleBatch(0, first, tuple(1000.0 + place for place in range(SAMPLES_PER_BATCH)), time.time_ns())


def _reading(device_id: str) -> Telemetry:
    return Telemetry(time.time_ns(), device_id, 0.5, 2**34, 2**36, 1_980_000_000, 3_201_000_000, 55.0, 400.0, ())


@contextmanager
def nodes_of(directory: Path, node_count: int, device_count: int) -> Iterator[Connection]:
    """Run the stand-ins in a process, and yield the pipe to it once they listen."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=send, args=(directory, node_count, device_count, theirs), daemon=True)
    process.start()
    assert ours.recv() == "ready"
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def add_nodes(stub: Any, directory: Path, count: int) -> None:
    """Have the analyzer collect from all of them."""
    calls = [
        stub.AddNode.future(analyzer_messages.AddNodeRequest(address=f"unix:{directory}/{number}.sock", token=TOKEN))
        for number in range(count)
    ]
    for call in calls:
        call.result(timeout=120)


def measure_lag(directory: Path, node_count: int, seconds: float) -> None:
    """Print how the analyzer keeps up."""
    analyzer = AnalyzerProcess(directory)
    analyzer.start()
    assert analyzer.process is not None
    process = psutil.Process(analyzer.process.pid)
    with nodes_of(directory, node_count, 1) as orders, open_channel(analyzer.endpoint) as channel:
        stub = stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        add_nodes(stub, directory, node_count)
        stream = stub.WatchNodes(analyzer_messages.WatchNodesRequest())
        next(iter(stream))
        before, begin = process.cpu_times(), time.monotonic()
        orders.send(seconds)
        lags_s: list[float] = []
        ended: set[str] = set()
        for response in stream:
            now_ns = time.time_ns()
            readings = (protobuf.decode(reading, NodeTelemetry).telemetry for reading in response.telemetry)
            lags_s += [
                (now_ns - reading.measured_unix_ns) / 1e9 for reading in readings if reading.measured_unix_ns > CREATED.timestamp() * 1e9
            ]
            ended |= {run.run_id for run in response.runs if run.state and run.HasField("end_time")}
            if len(ended) == node_count:
                break
        stream.cancel()
        took_s, after = time.monotonic() - begin, process.cpu_times()
        sent_count, sending_s = orders.recv()
        cores = (after.user + after.system - before.user - before.system) / took_s
        stored = _stored_counts(stub, node_count)
    analyzer.stop()
    lag_s = float(np.quantile(lags_s, 0.95))
    print(f"{node_count} stand-in profilers, {EVENTS_PER_S} events/s each for {sending_s:.0f} s, all stored after {took_s:.0f} s")
    print(f"lag p95 {lag_s:.2f} s (goal {GOAL_LAG_S:g}), {cores:.2f} cores (goal {GOAL_CORES:g})")
    different_count = sum(count != sent_count for count in stored)
    print(f"samples sent {node_count * sent_count}, stored {sum(stored)}, nodes with another number {different_count}")


def _stored_counts(stub: Any, node_count: int) -> list[int]:
    found = []
    for number in range(node_count):
        query = analyzer_messages.GetTableRequest(table_name="samples", run_ids=[f"run-node-{number}"], limit=1)
        found.append(next(iter(stub.GetTable(query, timeout=60))).total_row_count)
    return found


def measure_page(directory: Path) -> None:
    """Print how long the page Fleet takes to show its first rows, and what it costs while it is looked at."""
    services = ServiceProcesses(directory)
    try:
        analyzer = services.start("analyzer")
        with nodes_of(directory, FLEET_NODE_COUNT, DEVICES_PER_NODE) as orders:
            with open_channel(Endpoint(analyzer.address, analyzer.token)) as channel:
                stub = stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
                add_nodes(stub, directory, FLEET_NODE_COUNT)
            ui = services.start("ui", "--analyzer-address", analyzer.address)
            orders.send(60.0)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(f"http://{ui.address}/nodes?token={ui.token}")
                page.wait_for_selector("[data-ready]", state="attached")
                page.wait_for_timeout(10_000)
                begin = time.monotonic()
                page.get_by_role("link", name="Fleet").click()
                expect(page.locator(".tile", has_text="Devices")).to_contain_text("000", timeout=20_000)
                expect(page.locator(".tabulator-row").nth(20)).to_be_visible()
                shown_s = time.monotonic() - begin
                server = psutil.Process(ui.process.pid)
                before = server.cpu_times()
                page.wait_for_timeout(10_000)
                after = server.cpu_times()
        cores = (after.user + after.system - before.user - before.system) / 10
        device_count = FLEET_NODE_COUNT * DEVICES_PER_NODE
        print(f"page Fleet, {device_count} devices: rows after {shown_s * 1000:.0f} ms, {cores:.2f} cores while looked at")
    finally:
        services.stop_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODE_COUNT)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with private_directory() as directory:
        measure_lag(directory, arguments.nodes, arguments.seconds)
    with private_directory() as directory:
        measure_page(directory)


if __name__ == "__main__":
    main()
