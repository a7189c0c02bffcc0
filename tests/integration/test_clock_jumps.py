"""The host's clock is set forward and back while runs are measured and wait, and while tokens and leases live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from kernalyse import Client, RequestError
from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.identity import Scope, TokenFile
from kernalyse.services.core.model import Run, RunLimits, RunState, StateChanged
from kernalyse.services.core.settings import AnalyzerSettings
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import run_pb2
from tests.browser.socket_viewer import ask, log_in
from tests.clock import Clock, settable_clock
from tests.integration.analyzer_under_test import AnalyzerProcess, in_state
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to, quick_sweep, running_node, states
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, started
from tests.integration.test_fault_proxy import made, serving_nodes, within
from tests.integration.test_python_api import needs_opencl
from tests.integration.test_several_analyzers import TAKEOVER_S, is_followed, process_of, sample_indexes, stubs_of
from tests.integration.test_several_analyzers import within as awaited_within
from tests.postgresql import running_postgresql
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = pytest.mark.slow

HOUR_S: Final = 3600.0
JUMPS_S: Final = (HOUR_S, -HOUR_S, 1.0, -1.0)
LIMIT_S: Final = 30.0
SAMPLE_COUNT: Final = 500  # of a batch of the stand-in worker
SLACK_S: Final = 0.5
"""Between the clock of this test and a service that does what it is told to."""


@dataclass(slots=True)
class Services:
    """tokens: of the analyzer."""

    clock: Clock
    node: ProfilerNode
    analyzer: AnalyzerProcess
    tokens: TokenFile


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        clock = stack.enter_context(settable_clock(directory))
        idle = {
            "idle_telemetry_interval_s": 0.5,
            "telemetry_interval_s": 0.1,
            "address": f"unix:{directory}/p.sock",
        }  # it stays over restarts
        node = stack.enter_context(running_node(made(directory / "node"), stand_in=True, **idle))
        analyzer = AnalyzerProcess(directory)
        stack.callback(analyzer.stop)
        analyzer.start()
        with Client(analyzer.endpoint) as client:
            client.add_node(node.endpoint)
            within(LIMIT_S, lambda: len(serving_nodes(client)) == 1, client.nodes)
        yield Services(clock, node, analyzer, TokenFile(AnalyzerSettings.load().tokens_path()))


@pytest.fixture(autouse=True)
def no_offset(services: Services) -> Iterator[None]:
    """Each test begins and ends at the host's time."""
    services.clock.set(0)
    yield
    services.clock.set(0)


async def in_state_of_node(calls: Calls, run_id: str, state: RunState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await calls.get(run_id)).state is not state:
            await asyncio.sleep(0.02)


def assert_in_order(events: Sequence[run_pb2.RunEvent]) -> None:
    indexes = [event.event_index for event in events]
    assert indexes == sorted(set(indexes))
    times_ns = [event.event_unix_ns for event in events]
    assert times_ns == sorted(times_ns)
    readings_ns = [event.telemetry.measured_unix_ns for event in events if event.WhichOneof("payload") == "telemetry"]
    assert len(readings_ns) > 1
    assert all(earlier <= later for earlier, later in pairwise(readings_ns)), readings_ns


def assert_times(run: Run, most_s: float) -> None:
    """most_s: by a clock that nobody sets, from before its start to after its end."""
    assert run.create_time is not None
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.create_time <= run.start_time <= run.end_time
    assert (run.end_time - run.start_time).total_seconds() <= most_s


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_run_goes_on_evenly_while_the_clock_is_set_and_set_back(services: Services, jump_s: float) -> None:
    batch_count = 40

    async def measure() -> tuple[Run, list[run_pb2.RunEvent], float]:
        async with calls_to(services.node) as calls:
            begin_s = time.monotonic()
            run_id = (await calls.start(behaving(f"paced:{batch_count}"))).run_id
            await in_state_of_node(calls, run_id, RunState.RUNNING)
            await asyncio.sleep(0.4)
            services.clock.set(jump_s)
            await asyncio.sleep(0.6)
            services.clock.set(0)
            events = await calls.events(run_id)
            return await calls.get(run_id), events, time.monotonic() - begin_s

    run, events, duration_s = asyncio.run(measure())
    assert run.state is RunState.SUCCEEDED
    assert_in_order(events)
    assert_times(run, duration_s)
    assert run.end_time is not None
    assert run.start_time is not None
    assert (run.end_time - run.start_time).total_seconds() >= 0.05 * (batch_count - 1)  # of the stand-in's pauses
    with Client(services.analyzer.endpoint) as client:
        within(LIMIT_S, lambda: client.run(run.run_id).state == "SUCCEEDED", lambda: client.run(run.run_id))
        frame = client.table(run.run_id, "samples", columns=("sample_index",))
        assert sorted(frame["sample_index"].to_list()) == list(range(batch_count * SAMPLE_COUNT))
        shown = client.table(run.run_id, "runs", columns=("start_unix_ns", "end_unix_ns"))
        (start_ns,), (end_ns,) = shown["start_unix_ns"].to_list(), shown["end_unix_ns"].to_list()
        assert 0 <= end_ns - start_ns <= duration_s * 1e9


@needs_opencl
def test_durations_are_measured_by_a_clock_that_nobody_sets(services: Services, ceilings_file: Path, tmp_path: Path) -> None:
    """A real sweep, whose worker sees the clock jump as well."""

    async def measure(node: ProfilerNode) -> list[run_pb2.RunEvent]:
        async with calls_to(node) as calls:
            run_id = (await calls.start(quick_sweep(values=(1024, 2048, 4096, 8192)))).run_id
            watching = asyncio.create_task(calls.events(run_id))
            while not watching.done():
                for offset_s in (HOUR_S, 0, -HOUR_S, 1.0, -1.0):
                    services.clock.set(offset_s)
                    await asyncio.sleep(0.02)
            assert (await calls.get(run_id)).error is None
            return await watching

    with running_node(tmp_path, ceilings_file=ceilings_file) as node:
        begin_s = time.monotonic()
        events = asyncio.run(measure(node))
        elapsed_ns = (time.monotonic() - begin_s) * 1e9
    durations_ns = [ns for event in events for ns in event.sample_batch.duration_ns]
    assert durations_ns
    assert all(0 < ns < elapsed_ns for ns in durations_ns)
    assert sum(durations_ns) < elapsed_ns
    assert sum(event.WhichOneof("payload") == "measurement" for event in events) == 4


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_time_limit_is_kept_by_a_clock_that_nobody_sets(services: Services, jump_s: float) -> None:
    limit_s = 3.0

    async def limited() -> tuple[Run, list[run_pb2.RunEvent], float]:
        async with calls_to(services.node) as calls:
            run_id = (await calls.start(behaving("endless", limits=RunLimits(time_limit_ns=int(limit_s * 1e9))))).run_id
            await in_state_of_node(calls, run_id, RunState.RUNNING)
            begin_s = time.monotonic()
            services.clock.set(jump_s)
            await asyncio.sleep(limit_s / 2)
            assert (await calls.get(run_id)).state is RunState.RUNNING
            events = await calls.events(run_id)
            return await calls.get(run_id), events, time.monotonic() - begin_s

    run, events, duration_s = asyncio.run(limited())
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert run.error.reason == "TIME_LIMIT"
    assert limit_s - SLACK_S < duration_s < limit_s + LIMIT_S
    assert_in_order(events)
    assert_times(run, duration_s + SLACK_S)


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_runs_that_wait_are_run_once_although_the_clock_was_set_and_the_service_killed(services: Services, jump_s: float) -> None:
    async def waiting() -> list[str]:
        async with calls_to(services.node) as calls:
            run_ids = [(await calls.start(behaving(title), f"{title}{jump_s}")).run_id for title in ("endless", "succeed", "succeed:4")]
            await in_state_of_node(calls, run_ids[0], RunState.RUNNING)
            await asyncio.sleep(0.3)
            return run_ids

    async def ended(run_ids: Sequence[str]) -> list[tuple[Run, list[run_pb2.RunEvent]]]:
        async with calls_to(services.node) as calls:
            again = await calls.start(behaving("succeed"), f"succeed{jump_s}")
            assert again.run_id == run_ids[1]
            return [(await calls.finished(run_id), await calls.events(run_id)) for run_id in run_ids]

    begin_s = time.monotonic()
    run_ids = asyncio.run(waiting())
    services.clock.set(jump_s)
    services.node.kill()
    services.node.start()
    outcomes = asyncio.run(ended(run_ids))
    assert [run.state for run, _ in outcomes] == [RunState.LOST, RunState.SUCCEEDED, RunState.SUCCEEDED]
    # Whoever reads it sees when the host said it was; a run whose service has died cannot know how long that was.
    duration_s = time.monotonic() - begin_s + max(0.0, jump_s)
    for run, events in outcomes:
        assert_times(run, duration_s)
        indexes = [event.event_index for event in events]
        assert indexes == sorted(set(indexes))
        times_ns = [event.event_unix_ns for event in events]
        assert times_ns == sorted(times_ns)
    assert [states(events) for _, events in outcomes] == [["QUEUED", "RUNNING", "LOST"], *2 * [["QUEUED", "RUNNING", "SUCCEEDED"]]]
    with Client(Endpoint(services.analyzer.endpoint.address, services.analyzer.endpoint.token)) as client:
        for run, _ in outcomes:
            within(LIMIT_S, partial(is_stored, client, run), partial(client.run, run.run_id))


def is_stored(client: Client, run: Run) -> bool:
    try:
        stored = client.run(run.run_id)
    except RequestError:  # not yet
        return False
    return stored.state == run.state.value


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_telemetry_of_an_idle_node_goes_on_in_order(services: Services, jump_s: float) -> None:
    with Client(services.analyzer.endpoint) as client:
        seen_ns = [newest_ns(client)]
        for offset_s in (jump_s, 0.0):
            services.clock.set(offset_s)
            for _ in range(2):
                within(LIMIT_S, lambda: newest_ns(client) > seen_ns[-1], lambda: seen_ns)
                seen_ns.append(newest_ns(client))
        readings_ns = [
            reading.telemetry.measured_unix_ns
            for reading in next(iter(client.watch_nodes())).telemetry
            if not reading.telemetry.HasField("device_id")
        ]
    assert readings_ns == sorted(set(readings_ns))


def newest_ns(client: Client) -> int:
    return max((reading.telemetry.measured_unix_ns for reading in client.newest_telemetry()), default=0)


# ---------------------------------------------------------------- tokens


async def test_a_token_ends_by_the_hosts_clock_and_is_back_with_it(services: Services) -> None:
    _, token = services.tokens.issue("person", Scope.READ, lifetime_s=HOUR_S / 2)
    endpoint = Endpoint(services.analyzer.endpoint.address, token)
    for offset_s, is_let_in in ((0.0, True), (HOUR_S, False), (-HOUR_S, True), (0.0, True)):
        services.clock.set(offset_s)
        with Client(endpoint) as client:
            assert asks(client) is is_let_in, offset_s


def asks(client: Client) -> bool:
    try:
        client.nodes()
    except RequestError as error:
        if error.code != "UNAUTHENTICATED":
            raise
        return False
    return True


@pytest.fixture(scope="module")
def dashboard(services: Services) -> Iterator[ServiceProcess]:
    started_here = ServiceProcesses(services.analyzer.directory)
    try:
        yield started_here.start("ui", "--analyzer-address", services.analyzer.endpoint.address)
    finally:
        started_here.stop_all()


def test_who_is_signed_in_goes_on_whatever_the_hosts_clock_says(services: Services, dashboard: ServiceProcess) -> None:
    """What the dashboard asks for a person carries a token of ten minutes, which has ended for an analyzer whose clock is set forward."""
    _, token = services.tokens.issue("signed in", Scope.READ)
    cookie = log_in(dashboard.address, token)
    with Client(services.analyzer.endpoint) as client:
        run_id = client.start_run(
            messages.AnalyzerServiceStartRunRequest(
                spec=protobuf.encode(behaving("succeed")), node_id=next(iter(serving_nodes(client).values()))
            )
        ).run_id
        within(LIMIT_S, lambda: client.run(run_id).state == "SUCCEEDED", lambda: client.run(run_id))
    for offset_s in (0.0, *JUMPS_S, 0.0):
        services.clock.set(offset_s)
        assert ask(f"http://{dashboard.address}/export/{run_id}.text", Cookie=cookie).status == 200, offset_s


def test_a_join_token_ends_by_the_hosts_clock(services: Services, tmp_path: Path) -> None:
    join_file = tmp_path / "join"
    with Client(services.analyzer.endpoint) as client:
        join_file.write_text(client.create_join_token(lifetime_s=HOUR_S / 2)[0])
        further: dict[str, Any] = {
            "join": services.analyzer.endpoint.address,
            "join_token_file": str(join_file),
            "tunnel": True,
            "node_name": "late",
        }
        services.clock.set(HOUR_S)
        refused = ProfilerNode(made(tmp_path / "refused"), stand_in=True, **further)
        try:
            assert refused.spawned().wait(LIMIT_S) != 0
            assert "ended" in refused.log()
        finally:
            refused.close()
        services.clock.set(-HOUR_S)
        with running_node(made(tmp_path / "taken"), stand_in=True, **further) as node:
            within(LIMIT_S, lambda: "tunnel:late" in serving_nodes(client), node.log)
            client.remove_node("tunnel:late")


# ---------------------------------------------------------------- leases


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_several_analyzers_store_each_event_once_and_take_over_in_time(private_directories: Path, jump_s: float) -> None:
    """The clock of PostgreSQL counts for leases; it is set as well."""
    nodes: list[ProfilerStandIn] = []
    processes: list[AnalyzerProcess] = []
    private_directories.chmod(0o711)  # the server runs as another user, and has to load the clock
    with settable_clock(private_directories) as clock, running_postgresql() as server:
        settings = {"CATALOGUE": server.new_database()}
        clock.set(jump_s)
        assert abs(unix_s_of(settings["CATALOGUE"]) - time.time() - jump_s) < HOUR_S / 2
        clock.set(0)
        try:
            for number in range(2):
                node = ProfilerStandIn(f"unix:{private_directories}/p{number}.sock")
                node.node = replace(node.node, node_id=f"node-{number}", hostname=f"stand-in-{number}", journal_id=f"journal-{number}")
                await node.start()
                nodes.append(node)
            processes = [process_of(private_directories, settings, name) for name in ("a", "b")]
            await asyncio.gather(*(asyncio.to_thread(process.start) for process in processes))
            async with stubs_of(processes, nodes) as stubs:
                for place, node in enumerate(nodes):
                    node.add_run(f"run-{place}")
                    node.journal(f"run-{place}", *started(), configuration(0), samples(0, 0, 10))
                clock.set(jump_s)
                for count in range(1, 20):
                    for place, node in enumerate(nodes):
                        node.journal(f"run-{place}", samples(0, count * 10, 10))
                    await asyncio.sleep(0.2)
                for place, node in enumerate(nodes):
                    node.journal(f"run-{place}", measurement(0), StateChanged(RunState.SUCCEEDED))
                    await in_state(stubs[0], f"run-{place}", RunState.SUCCEEDED)
                    assert await sample_indexes(stubs[0], f"run-{place}") == list(range(200))
                # A lease of one that dies now is of before the clock is set back.
                await asyncio.to_thread(processes[0].kill)
                clock.set(jump_s - HOUR_S)
                await awaited_within(TAKEOVER_S, lambda: follows_all(stubs[1], nodes))
        finally:
            clock.set(0)
            await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes))
            for node in nodes:
                await node.stop()


def unix_s_of(database: str) -> float:
    """By the clock of its server."""
    with psycopg.connect(database) as connection:
        (unix_s,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone() or (0,)
        return float(unix_s)


async def follows_all(stub: Any, nodes: Sequence[ProfilerStandIn]) -> bool:
    return all([await is_followed(stub, node) for node in nodes])
