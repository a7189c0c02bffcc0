"""Load stays flat: slow watchers, thousands of queued runs, gigabytes of output; memory by slope, disk by size.

LOAD_SHARE is the share of the full size; `make soak` has all of it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pytest

from kernalyse.channel import Endpoint, open_channel
from kernalyse.services.analyzer.store.objects import DIGESTS
from kernalyse.services.core.errors import KernalyseError, ShuttingDownError, UnavailableError
from kernalyse.services.core.model import Run, RunState, TableQuery
from kernalyse.services.core.rpc import error_from_rpc
from kernalyse.services.profiler.processes.children import MAX_LOG_BYTES
from kernalyse.v1 import analyzer_service_pb2 as analyzer_messages
from kernalyse.v1 import analyzer_service_pb2_grpc, profiler_service_pb2_grpc, run_pb2
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.analyzer_under_test import AnalyzerProcess, add_node, connected, frame_of_bytes, get_run, get_table
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to, running_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SHARE: Final = float(os.environ.get("LOAD_SHARE", "0.1"))
EVENT_COUNT: Final = round(200_000 * SHARE)
SAMPLES_OF_EVENT: Final = 500  # of the stand-in worker
EVENT_BYTES: Final = 8 * SAMPLES_OF_EVENT

RUN_COUNT: Final = round(10_000 * SHARE)
OUTPUT_BYTES: Final = round(1_000_000_000 * SHARE)

MIB: Final = 2**20
LOOK_S: Final = 0.1
WAIT_S: Final = 1800.0
MAX_GROWTH_BYTES: Final = 16 * MIB
"""Within the second half of a load, beside MAX_GROWTH_RATIO of what has passed in it: allocators round up, caches with a limit fill."""

MAX_GROWTH_RATIO: Final = 0.02
MAX_COMPACTING_BYTES: Final = 512 * MIB
"""While a run becomes files. All of 100 million samples at once would take some ten GiB."""

MAX_QUEUED_BYTES: Final = 16_384
"""Memory of a queued run, with its spec, its request and its place in a queue; each is a few kilobytes."""


@dataclass(slots=True)
class Reading:
    time_s: float
    resident_bytes: int


@dataclass(slots=True)
class Memory:
    """Resident bytes of processes while the block runs. find: ids by name, asked at each look, for some come and go."""

    find: Callable[[], dict[str, int]]
    readings: dict[str, list[Reading]] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Memory:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(LOOK_S):
            for name, process_id in self.find().items():
                if (size := resident_bytes(process_id)) is not None:
                    self.readings.setdefault(name, []).append(Reading(time.monotonic(), size))

    def growth(self, name: str, passed_bytes: int) -> tuple[str, bool]:
        """A line on the growth by least squares over the second half, and whether it is flat. passed_bytes: in all of the block."""
        readings = self.readings[name]
        assert len(readings) >= 10, f"{name}: {len(readings)} looks"
        late = readings[len(readings) // 2 :]
        slope = statistics.linear_regression([one.time_s for one in late], [one.resident_bytes for one in late]).slope
        grown = slope * (late[-1].time_s - late[0].time_s)
        limit = MAX_GROWTH_BYTES + MAX_GROWTH_RATIO * passed_bytes / 2
        first, last, highest = (value / MIB for value in (readings[0].resident_bytes, late[-1].resident_bytes, self.highest(name)))
        text = (
            f"{name}: {first:.0f} to {last:.0f} MiB, at most {highest:.0f}; {grown / MIB:+.1f} MiB in the second half, in which "
            f"{passed_bytes / 2 / MIB:.0f} MiB passed; limit {limit / MIB:.0f}"
        )
        return text, grown < limit

    def highest(self, name: str) -> int:
        return max(one.resident_bytes for one in self.readings[name])


def resident_bytes(process_id: int) -> int | None:
    """None: it has ended."""
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def assert_flat(memory: Memory, passed_bytes: int, record_property: Callable[[str, object], None]) -> None:
    found = {name: memory.growth(name, passed_bytes) for name in memory.readings}
    for text, _ in found.values():
        record_property("told", text)
    assert all(is_flat for _, is_flat in found.values()), found


# ---------------------------------------------------------------- services


@dataclass(slots=True)
class Services:
    node: ProfilerNode
    analyzer: AnalyzerProcess

    def process_ids(self) -> dict[str, int]:
        assert self.node.process is not None
        assert self.analyzer.process is not None
        return {"profiler": self.node.process.pid, "analyzer": self.analyzer.process.pid, **self._supervisors()}

    def _supervisors(self) -> dict[str, int]:
        assert self.node.process is not None
        with suppress(psutil.Error):
            for child in psutil.Process(self.node.process.pid).children():
                if any(argument.endswith("supervisor.py") for argument in child.cmdline()):
                    return {"supervisor": child.pid}
        return {}


@asynccontextmanager
async def both(directory: Path, **settings: Any) -> AsyncIterator[tuple[Services, Calls, Any]]:
    """A node whose worker is a stand-in, an analyzer that has it, and calls to the two."""
    (directory / "node").mkdir()
    with running_node(directory / "node", stand_in=True, **settings) as node:
        analyzer = AnalyzerProcess(directory)
        try:
            await asyncio.to_thread(analyzer.start)
            async with calls_to(node) as calls, connected(analyzer.endpoint) as stub:
                await add_node(stub, node.endpoint)
                yield Services(node, analyzer), calls, stub
        finally:
            await asyncio.to_thread(analyzer.stop)


async def stored(stub: Any, run_id: str) -> Run:
    """The run once the analyzer has all of it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(KernalyseError):
                run: Run = await get_run(stub, run_id)
                if run.state.is_final:
                    return run
            await asyncio.sleep(LOOK_S)


# ---------------------------------------------------------------- slow watchers


class SlowWatcher(threading.Thread):
    """Reads one message a second, until it may go on as fast as it can.

    Args:
        call: begins the stream.
        see: is told each message.
    """

    def __init__(self, endpoint: Endpoint, call: Callable[[grpc.Channel], Iterator[Any]], see: Callable[[Any], None]) -> None:
        super().__init__(daemon=True)
        self._channel = open_channel(endpoint)
        self._call = call
        self._see = see
        self.may_hurry = threading.Event()
        self.message_count = 0
        self.problem: KernalyseError | None = None

    def run(self) -> None:
        try:
            for message in self._call(self._channel):
                self._see(message)
                self.message_count += 1
                self.may_hurry.wait(1.0)
        except grpc.RpcError as error:
            self.problem = error_from_rpc(error)
        self._channel.close()


@dataclass(slots=True)
class Seen:
    """What the watchers of a run were told: indexes of events of the node, and counts of samples of the analyzer."""

    indexes: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    sample_count: int = 0

    def event(self, event: Any) -> None:
        self.indexes.append(event.event_index)
        if event.WhichOneof("payload") == "sample_batch":
            self.batches.append(event.sample_batch.first_sample_index)


def slow_watchers(services: Services, run_id: str) -> tuple[list[SlowWatcher], Seen, list[int]]:
    """Of the run and of the node, at both services; what the watcher of the run at the node was told, and rows told by the analyzer."""
    seen, row_counts = Seen(), list[int]()

    def node_stub(channel: grpc.Channel) -> Any:
        return profiler_service_pb2_grpc.ProfilerServiceStub(channel)  # type: ignore[no-untyped-call]

    def stub(channel: grpc.Channel) -> Any:
        return analyzer_service_pb2_grpc.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]

    def see_events(message: Any) -> None:
        for event in message.events:
            seen.event(event)

    def see_rows(message: Any) -> None:
        row_counts.extend(frame_of_bytes(table.arrow_ipc).height for table in message.tables if table.table_name == "samples")

    watch_run = messages.ProfilerServiceWatchRunRequest(run_id=run_id)
    watch_stored = analyzer_messages.AnalyzerServiceWatchRunRequest(run_id=run_id)
    node, analyzer = services.node.endpoint, services.analyzer.endpoint
    watchers = [
        SlowWatcher(node, lambda channel: node_stub(channel).WatchRun(watch_run), see_events),
        SlowWatcher(node, lambda channel: node_stub(channel).WatchNode(messages.WatchNodeRequest()), lambda _message: None),
        SlowWatcher(analyzer, lambda channel: stub(channel).WatchRun(watch_stored), see_rows),
        SlowWatcher(analyzer, lambda channel: stub(channel).WatchNodes(analyzer_messages.WatchNodesRequest()), lambda _message: None),
    ]
    return watchers, seen, row_counts


async def test_memory_does_not_follow_a_run_that_watchers_cannot_keep_up_with(
    private_directories: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nor does that of the analyzer when the run becomes files."""
    async with both(private_directories) as (services, calls, stub):
        run_id = (await calls.start(behaving(f"succeed:{EVENT_COUNT}"))).run_id
        async with asyncio.timeout(WAIT_S):
            while not await is_known(stub, run_id):
                await asyncio.sleep(LOOK_S)
        watchers, seen, row_counts = slow_watchers(services, run_id)
        for watcher in watchers:
            watcher.start()
        with Memory(services.process_ids) as memory:
            run = await stored(stub, run_id)
        assert run.state is RunState.SUCCEEDED
        begin_s = time.monotonic()
        with Memory(services.process_ids) as compacting:
            async with asyncio.timeout(WAIT_S):
                while not list((private_directories / "store" / "runs").glob(f"{run_id}-*/{DIGESTS}")):
                    await asyncio.sleep(LOOK_S)
        duration_s = time.monotonic() - begin_s
        before, most = compacting.readings["analyzer"][0].resident_bytes, compacting.highest("analyzer")
        record_property(
            "told",
            f"{EVENT_COUNT * SAMPLES_OF_EVENT} samples become files in {duration_s:.0f} s: analyzer {before / MIB:.0f} MiB, at most "
            f"{most / MIB:.0f}; limit {MAX_COMPACTING_BYTES / MIB:.0f} more",
        )
        assert most - before < MAX_COMPACTING_BYTES
        assert all(watcher.is_alive() for watcher in watchers), [watcher.problem for watcher in watchers]
        assert_flat(memory, EVENT_COUNT * EVENT_BYTES, record_property)
        # Those that were behind get the rest, without a gap.
        for watcher in watchers:
            watcher.may_hurry.set()
        of_run = watchers[0], watchers[2]
        for watcher in of_run:
            await asyncio.to_thread(watcher.join, WAIT_S)
            assert not watcher.is_alive()
            assert watcher.problem is None
        assert seen.indexes == sorted(set(seen.indexes))
        assert seen.batches == list(range(0, EVENT_COUNT * SAMPLES_OF_EVENT, SAMPLES_OF_EVENT))
        assert sum(row_counts) == EVENT_COUNT * SAMPLES_OF_EVENT


async def is_known(stub: Any, run_id: str) -> bool:
    with suppress(KernalyseError):
        await get_run(stub, run_id)
        return True
    return False


# ---------------------------------------------------------------- queued runs


async def test_thousands_of_runs_may_wait(private_directories: Path, record_property: Callable[[str, object], None]) -> None:
    async with both(private_directories, max_queued_run_count=RUN_COUNT + 1) as (services, calls, stub):
        first = await calls.start(behaving("endless"))
        async with asyncio.timeout(WAIT_S):
            while (await calls.get(first.run_id)).state is not RunState.RUNNING:
                await asyncio.sleep(LOOK_S)
        run_ids, line = await queued(services, calls)
        record_property("told", line)
        begin_s = time.monotonic()
        assert await listed(calls) == [*reversed(run_ids), first.run_id]
        record_property("told", f"{RUN_COUNT} runs listed in {time.monotonic() - begin_s:.2f} s")
        assert len((await calls.node()).queued_run_ids) == RUN_COUNT
        begin_s = time.monotonic()
        await all_stored(stub, RUN_COUNT + 1)
        record_property("told", f"the analyzer has them {time.monotonic() - begin_s:.1f} s later")

        services.node.kill()
        begin_s = time.monotonic()
        await asyncio.to_thread(services.node.start)
        record_property("told", f"started again with {RUN_COUNT} queued runs in {time.monotonic() - begin_s:.2f} s")
        async with calls_to(services.node) as calls_again:  # at the address of the new process
            await ended_all(services, calls_again, run_ids, record_property)


async def queued(services: Services, calls: Calls) -> tuple[list[str], str]:
    """Start the runs; their ids, and a line on memory and time of each."""
    assert services.node.process is not None
    run_ids: list[str] = []
    durations_s: list[float] = []
    counts: list[int] = []
    sizes: list[int] = []
    for number in range(RUN_COUNT):
        begin_s = time.perf_counter()
        run_ids.append((await calls.start(behaving("succeed"), f"request-{number}")).run_id)
        durations_s.append(time.perf_counter() - begin_s)
        if number % max(1, RUN_COUNT // 100) == 0:
            counts.append(number)
            sizes.append(resident_bytes(services.node.process.pid) or 0)
    middle = len(counts) // 2
    slope = statistics.linear_regression(counts[middle:], sizes[middle:]).slope
    tenth = max(1, RUN_COUNT // 10)
    early_ms, late_ms = (1e3 * statistics.median(part) for part in (durations_s[:tenth], durations_s[-tenth:]))
    line = (
        f"{RUN_COUNT} queued runs: {slope / 1024:.2f} KiB of memory each, limit {MAX_QUEUED_BYTES / 1024:.0f}; "
        f"started in {early_ms:.2f} ms at first, {late_ms:.2f} ms at last"
    )
    assert slope < MAX_QUEUED_BYTES, line
    return run_ids, line


async def listed(calls: Calls) -> list[str]:
    """The ids of all runs, as ListRuns has them."""
    run_ids: list[str] = []
    token = ""
    while True:
        answer = await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest(page_size=1000, page_token=token))
        run_ids += [run.run_id for run in answer.runs]
        if not (token := answer.next_page_token):
            return run_ids


async def all_stored(stub: Any, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await get_table(stub, TableQuery("runs", limit=1)))[1] < count:
            await asyncio.sleep(LOOK_S)


async def ended_all(services: Services, calls: Calls, run_ids: list[str], record_property: Callable[[str, object], None]) -> None:
    """Cancel whatever still waits; each has ended then, once, and the service has let go of them."""
    assert services.node.process is not None
    watching = asyncio.create_task(counted_ends(calls))
    begin_s = time.monotonic()
    for run_id in reversed(run_ids):
        with suppress(UnavailableError, ShuttingDownError):
            await calls.cancel(run_id)
    record_property("told", f"{RUN_COUNT} runs cancelled in {time.monotonic() - begin_s:.2f} s")
    async with asyncio.timeout(WAIT_S):
        while (node := await calls.node()).queued_run_ids or node.running_run_ids:
            await asyncio.sleep(LOOK_S)
        ends = await watching
    assert set(ends) == set(await listed(calls))
    assert set(ends.values()) == {1}


async def counted_ends(calls: Calls) -> dict[str, int]:
    """How often each run of the node has come to an end, once all of them have."""
    begun: set[str] = set()
    ends: dict[str, int] = {}
    final = {state.value for state in RunState if state.is_final}
    async for answer in calls.stub.WatchNode(messages.WatchNodeRequest()):
        for event in answer.events:
            begun.add(event.run_id)
            if event.WhichOneof("payload") == "state_changed" and state_name(event) in final:
                ends[event.run_id] = ends.get(event.run_id, 0) + 1
        if len(begun) > RUN_COUNT and len(ends) == len(begun):
            break
    return ends


def state_name(event: Any) -> str:
    return str(run_pb2.RunState.Name(event.state_changed.state).removeprefix("RUN_STATE_"))


# ---------------------------------------------------------------- output without end


async def test_a_log_without_end_is_cut_and_told_and_takes_no_memory(
    private_directories: Path, record_property: Callable[[str, object], None]
) -> None:
    async with both(private_directories) as (services, calls, stub):
        before_bytes = directory_bytes(services.node.data_directory)
        with Memory(services.process_ids) as memory:
            run_id = (await calls.start(behaving(f"print_log:{OUTPUT_BYTES}"))).run_id
            assert (await stored(stub, run_id)).state is RunState.SUCCEEDED
        record_property("told", f"{OUTPUT_BYTES} bytes printed")
        for name in memory.readings:
            record_property("told", f"{name}: at most {memory.highest(name) / MIB:.0f} MiB")
        assert memory.highest("profiler") < memory.readings["profiler"][0].resident_bytes + 8 * MAX_LOG_BYTES
        assert memory.highest("supervisor") < 64 * MIB
        assert memory.highest("analyzer") < memory.readings["analyzer"][0].resident_bytes + 16 * MAX_LOG_BYTES
        grown_bytes = directory_bytes(services.node.data_directory) - before_bytes
        record_property("told", f"disk of the node: {grown_bytes / MIB:.1f} MiB more, limit {4 * MAX_LOG_BYTES / MIB:.0f}")
        assert grown_bytes < 4 * MAX_LOG_BYTES
        lines = [line for event in await calls.events(run_id) for line in event.log_lines.lines]
        assert f"Further output is left out: it has written {MAX_LOG_BYTES} bytes." in lines
        assert lines[-1] == "the last line"
        frame, _ = await get_table(stub, TableQuery("log_lines", (run_id,), columns=("line",)))
        assert frame["line"].to_list() == lines


def directory_bytes(directory: Path) -> int:
    """Of the disk, what its files take."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


async def test_a_large_file_of_a_run_passes_through_without_staying_in_memory(
    private_directories: Path, record_property: Callable[[str, object], None]
) -> None:
    async with both(private_directories) as (services, calls, stub):
        run_id = (await calls.start(behaving(f"leave_file:{OUTPUT_BYTES}"))).run_id
        assert (await stored(stub, run_id)).state is RunState.SUCCEEDED
        size_bytes = 0
        with Memory(services.process_ids) as memory:
            request = analyzer_messages.AnalyzerServiceReadArtifactRequest(run_id=run_id, artifact_name="large.bin")
            async for answer in stub.ReadArtifact(request):
                size_bytes += len(answer.chunk)
                await asyncio.sleep(2.0 * MIB / OUTPUT_BYTES)  # some seconds in all, whatever the size
        assert size_bytes == OUTPUT_BYTES
        assert_flat(memory, OUTPUT_BYTES, record_property)
