"""Several analyzers over one store, on a real PostgreSQL: shares of the nodes, forwarded calls, and one that is killed or stopped."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.server import serve
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InvalidSettingError, ScopeMissingError, StoreLockedError, UnavailableError
from kernalyse.services.core.identity import Kind, Scope, TokenFile
from kernalyse.services.core.model import KernelSelection, KernelSweep, NodeStatus, RunSpec, RunState, StateChanged, TableQuery
from kernalyse.services.core.rpc import Endpoint, translated_errors
from kernalyse.services.core.settings import AnalyzerSettings
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.certificates import make_certificate
from tests.integration.analyzer_under_test import (
    AnalyzerProcess,
    add_node,
    connected,
    eventually,
    frame_of_bytes,
    get_run,
    get_table,
    in_state,
    serving,
    watch_run,
)
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, started
from tests.postgresql import PostgresqlServer, running_postgresql

pytestmark = pytest.mark.slow

NAMES = ("a", "b")
TAKEOVER_S = 15.0
BATCH_SAMPLE_COUNT = 20


@pytest.fixture
def postgresql() -> Iterator[PostgresqlServer]:
    with running_postgresql() as server:
        yield server


@pytest.fixture
def settings(postgresql: PostgresqlServer) -> dict[str, str]:
    return {"CATALOGUE": postgresql.new_database()}


@pytest.fixture
async def nodes(private_directories: Path) -> AsyncIterator[list[ProfilerStandIn]]:
    stand_ins = []
    for number in range(2):
        stand_in = ProfilerStandIn(f"unix:{private_directories}/p{number}.sock")
        stand_in.node = replace(stand_in.node, node_id=f"node-{number}", hostname=f"stand-in-{number}", journal_id=f"journal-{number}")
        await stand_in.start()
        stand_ins.append(stand_in)
    yield stand_ins
    for stand_in in stand_ins:
        await stand_in.stop()


def process_of(directory: Path, settings: dict[str, str], name: str) -> AnalyzerProcess:
    return AnalyzerProcess(directory, name, {**settings, "PEER_ADDRESS": f"unix:{directory}/{name}.sock"})


@pytest.fixture
async def analyzers(private_directories: Path, settings: dict[str, str]) -> AsyncIterator[list[AnalyzerProcess]]:
    processes = [process_of(private_directories, settings, name) for name in NAMES]
    await asyncio.gather(*(asyncio.to_thread(process.start) for process in processes))
    yield processes
    for process in processes:
        if process.process is not None:
            process.process.send_signal(signal.SIGCONT)
    await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes))


@asynccontextmanager
async def stubs_of(analyzers: Sequence[AnalyzerProcess], nodes: Sequence[ProfilerStandIn]) -> AsyncIterator[list[Any]]:
    """Stubs of the analyzers, each of which follows one of the nodes; both nodes were added at the first."""
    async with AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(connected(analyzer.endpoint)) for analyzer in analyzers]
        for node in nodes:
            await add_node(stubs[0], node.endpoint)
        await eventually(lambda: are_shared(stubs))
        yield stubs


async def statuses(stub: Any, *, own: bool = False) -> list[NodeStatus]:
    """Of all nodes, or as another analyzer is told of those that this one follows."""
    if not own:
        answer = await stub.ListNodes(messages.ListNodesRequest())
        return [protobuf.decode(node, NodeStatus) for node in answer.nodes]
    call = stub.WatchNodes(messages.WatchNodesRequest(), metadata=(("kernalyse-peer", "1"),))
    first = await call.read()
    call.cancel()
    return [protobuf.decode(node, NodeStatus) for node in first.nodes]


async def are_shared(stubs: Sequence[Any]) -> bool:
    each = [await statuses(stub, own=True) for stub in stubs]
    whole = [await statuses(stub) for stub in stubs]
    is_serving = all(status.health.name == "SERVING" for listed in whole for status in listed)
    return is_serving and [len(own) for own in each] == [1, 1] and [len(listed) for listed in whole] == [2, 2]


async def followed(stubs: Sequence[Any], nodes: Sequence[ProfilerStandIn]) -> list[ProfilerStandIn]:
    """The node that each of the analyzers follows."""
    found = []
    for stub in stubs:
        (own,) = await statuses(stub, own=True)
        found += [node for node in nodes if node.address == own.address]
    return found


async def sample_indexes(stub: Any, run_id: str) -> list[int]:
    frame, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("sample_index",)))
    return frame["sample_index"].to_list()


def sample_count(answer: Any) -> int:
    return sum(frame_of_bytes(table.arrow_ipc).height for table in answer.tables if table.table_name == "samples")


async def within(limit_s: float, check: Callable[[], Awaitable[bool]]) -> None:
    """Waits until the check holds, at most so long."""
    async with asyncio.timeout(limit_s):
        while not await check():
            await asyncio.sleep(0.05)


async def is_followed(stub: Any, node: ProfilerStandIn) -> bool:
    return any(status.address == node.address and status.health.name == "SERVING" for status in await statuses(stub, own=True))


# ---------------------------------------------------------------- shares and forwarded calls


async def test_each_follows_a_share_and_shows_everything(analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        own = await followed(stubs, nodes)
        assert own[0] is not own[1]
        for node, run_id in zip(own, ("aaaa-1", "bbbb-1"), strict=True):
            node.add_run(run_id)
            node.journal(run_id, *started(), configuration(0), samples(0, 0, 10))
        for stub in stubs:
            for run_id in ("aaaa-1", "bbbb-1"):
                await in_state(stub, run_id, RunState.RUNNING)
                assert await sample_indexes(stub, run_id) == list(range(10))


async def test_a_run_of_another_analyzers_node_is_watched_live(analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        _, far = await followed(stubs, nodes)
        far.add_run("bbbb-1")
        far.journal("bbbb-1", *started(), configuration(0), samples(0, 0, 10))
        await in_state(stubs[0], "bbbb-1", RunState.RUNNING)
        rows, states = 0, []
        async for answer in watch_run(stubs[0], "bbbb-1"):
            rows += sample_count(answer)
            if answer.HasField("run"):
                states.append(answer.run.state)
            if rows == 10:
                far.journal("bbbb-1", samples(0, 10, 10))
            if rows == 20:
                far.journal("bbbb-1", measurement(0), StateChanged(RunState.SUCCEEDED))
                rows += 1
        assert rows == 21
        assert await sample_indexes(stubs[0], "bbbb-1") == list(range(20))


async def test_changes_made_at_one_are_told_by_the_other(analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        near, far = await followed(stubs, nodes)
        watching = stubs[0].WatchNodes(messages.WatchNodesRequest())
        await watching.read()
        far.add_run("bbbb-1")
        far.journal("bbbb-1", *started(), configuration(0), measurement(0), StateChanged(RunState.SUCCEEDED))
        await in_state(stubs[1], "bbbb-1", RunState.SUCCEEDED)
        await stubs[1].UpdateRun(messages.UpdateRunRequest(run_id="bbbb-1", tags=["kept"]))
        await stubs[1].DeleteRun(messages.DeleteRunRequest(run_id="bbbb-1"))
        tags, deleted = set[str](), list[str]()
        async with asyncio.timeout(30):
            while not deleted:
                update = await watching.read()
                tags |= {tag for run in update.runs for tag in run.tags}
                deleted += update.deleted_run_ids
        assert (tags, deleted) == ({"kept"}, ["bbbb-1"])
        await stubs[0].RemoveNode(messages.RemoveNodeRequest(address=far.address))
        await eventually(lambda: _lists(stubs[1], [near.address]))
        await eventually(lambda: _lists(stubs[0], [near.address]))


async def _lists(stub: Any, addresses: list[str]) -> bool:
    return [status.address for status in await statuses(stub)] == addresses


async def test_calls_to_a_node_pass_through_its_analyzer_with_the_callers_scopes(
    analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]
) -> None:
    tokens = TokenFile(AnalyzerSettings.load().tokens_path())
    _, reader = tokens.issue("reader", Scope.READ, Kind.PERSON)
    _, measurer = tokens.issue("measurer", Scope.MEASURE, Kind.PERSON)
    spec = protobuf.encode(RunSpec(KernelSweep((KernelSelection("saxpy"),))))
    async with stubs_of(analyzers, nodes) as stubs:
        _, far = await followed(stubs, nodes)
        request = messages.AnalyzerServiceStartRunRequest(node_id=far.node.node_id, spec=spec)
        async with connected(Endpoint(analyzers[0].endpoint.address, reader)) as stub:
            with pytest.raises(ScopeMissingError, match="reader"), translated_errors():
                await stub.StartRun(request)
        async with connected(Endpoint(analyzers[0].endpoint.address, measurer)) as stub:
            started_run = (await stub.StartRun(request)).run
            assert started_run.node_id == far.node.node_id
            cancel = messages.AnalyzerServiceCancelRunRequest(run_id=started_run.run_id)
            with pytest.raises(ScopeMissingError, match=r"measurer via owner"), translated_errors():
                await stub.CancelRun(cancel)  # the stand-in's runs are the owner's
        await stubs[0].CancelRun(cancel)
        assert far.cancelled_run_ids == [started_run.run_id]
        chunks = [messages.AnalyzerServiceUploadBundleRequest(node_id=far.node.node_id, chunk=part) for part in (b"first ", b"second")]
        assert (await stubs[0].UploadBundle(iter(chunks))).size_bytes == 12
        read = messages.AnalyzerServiceReadArtifactRequest(run_id=started_run.run_id, artifact_name="saxpy.cl")
        assert b"".join([part.chunk async for part in stubs[0].ReadArtifact(read)]) == b"first second"


async def test_a_call_that_is_passed_on_takes_at_most_50_ms_more(analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        near, far = await followed(stubs, nodes)
        taken_s: dict[str, list[float]] = {"near": [], "far": []}
        for _ in range(30):
            for where, node in (("near", near), ("far", far)):
                begin_s = time.perf_counter()
                await stubs[0].ListKernels(messages.AnalyzerServiceListKernelsRequest(node_id=node.node.node_id))
                taken_s[where].append(time.perf_counter() - begin_s)
        more_s = statistics.median(taken_s["far"]) - statistics.median(taken_s["near"])
        assert more_s <= 0.05


async def test_they_find_each_other_by_tls_and_show_client_certificates(
    private_directories: Path, settings: dict[str, str], nodes: list[ProfilerStandIn], tmp_path: Path
) -> None:
    """All with one certificate, which is also what clients have to show."""
    files = make_certificate(tmp_path / "analyzers")
    tls = {"CERTIFICATE_FILE": str(files.certificate), "KEY_FILE": str(files.key), "CLIENT_CA_FILE": str(files.certificate)}
    processes = [process_of(private_directories, settings | tls, name) for name in NAMES]
    pem = files.certificate.read_bytes()
    try:
        for process in processes:
            await asyncio.to_thread(process.start)
            process.endpoint = replace(process.endpoint, ca_certificate=pem, client_certificate=pem, client_key=files.key.read_bytes())
        async with stubs_of(processes, nodes) as stubs:
            for node in await followed(stubs, nodes):
                await stubs[0].ListKernels(messages.AnalyzerServiceListKernelsRequest(node_id=node.node.node_id))
    finally:
        for process in processes:
            await asyncio.to_thread(process.stop)


# ---------------------------------------------------------------- one goes


async def write_run(node: ProfilerStandIn, run_id: str, end: asyncio.Event) -> int:
    """Journals samples until the event, then the run's end; answers with how many."""
    node.add_run(run_id)
    node.journal(run_id, *started(), configuration(0))
    count = 0
    while not end.is_set():
        node.journal(run_id, samples(0, count, BATCH_SAMPLE_COUNT))
        count += BATCH_SAMPLE_COUNT
        await asyncio.sleep(0.02)
    node.journal(run_id, measurement(0), StateChanged(RunState.SUCCEEDED))
    return count


async def test_one_is_killed_and_the_other_takes_over_with_nothing_lost_or_doubled(
    analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]
) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        _, far = await followed(stubs, nodes)
        end = asyncio.Event()
        writing = asyncio.create_task(write_run(far, "bbbb-1", end))
        await in_state(stubs[0], "bbbb-1", RunState.RUNNING)
        await asyncio.to_thread(analyzers[1].kill)
        with pytest.raises(UnavailableError, match="Try again"), translated_errors():
            await stubs[0].ListKernels(messages.AnalyzerServiceListKernelsRequest(node_id=far.node.node_id))
        await within(TAKEOVER_S, lambda: is_followed(stubs[0], far))
        await asyncio.to_thread(analyzers[1].start)
        async with connected(analyzers[1].endpoint) as again:
            await eventually(lambda: are_shared([stubs[0], again]))
            end.set()
            count = await writing
            for stub in (stubs[0], again):
                await in_state(stub, "bbbb-1", RunState.SUCCEEDED)
                assert await sample_indexes(stub, "bbbb-1") == list(range(count))
                assert (await get_table(stub, TableQuery("measurements")))[1] == 1


async def test_one_that_hangs_and_comes_back_stores_nothing_twice(analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        _, far = await followed(stubs, nodes)
        end = asyncio.Event()
        writing = asyncio.create_task(write_run(far, "bbbb-1", end))
        await in_state(stubs[0], "bbbb-1", RunState.RUNNING)
        hung = analyzers[1].process
        assert hung is not None
        hung.send_signal(signal.SIGSTOP)
        try:
            await within(TAKEOVER_S, lambda: is_followed(stubs[0], far))
        finally:
            hung.send_signal(signal.SIGCONT)  # in any case: nothing that waits for it would end
        await eventually(lambda: are_shared(stubs))
        end.set()
        count = await writing
        for stub in stubs:
            await in_state(stub, "bbbb-1", RunState.SUCCEEDED)
            assert await sample_indexes(stub, "bbbb-1") == list(range(count))


async def test_one_that_stops_leaves_its_nodes_at_once_and_its_watchers_go_on_with_the_other(
    analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn]
) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        _, far = await followed(stubs, nodes)
        far.add_run("bbbb-1")
        far.journal("bbbb-1", *started(), configuration(0), samples(0, 0, 10))
        await in_state(stubs[0], "bbbb-1", RunState.RUNNING)
        seen = asyncio.create_task(_watched_rows(stubs[0], "bbbb-1"))
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(analyzers[1].stop) == 0
        await within(5, lambda: is_followed(stubs[0], far))
        far.journal("bbbb-1", samples(0, 10, 10), measurement(0), StateChanged(RunState.SUCCEEDED))
        assert await seen == 20


async def _watched_rows(stub: Any, run_id: str) -> int:
    """Watches as clients do: again from where it was, whenever the stream ends as unavailable."""
    rows = position = 0
    while True:
        with suppress(UnavailableError):
            async for answer in watch_run(stub, run_id, position):
                rows += sample_count(answer)
                position = answer.next_event_index
            return rows
        await asyncio.sleep(0.2)


async def test_with_the_database_gone_for_a_while_nothing_is_lost(
    analyzers: list[AnalyzerProcess], nodes: list[ProfilerStandIn], postgresql: PostgresqlServer
) -> None:
    async with stubs_of(analyzers, nodes) as stubs:
        end = asyncio.Event()
        writing = [asyncio.create_task(write_run(node, f"{node.node.node_id}-run", end)) for node in nodes]
        for node in nodes:
            await in_state(stubs[0], f"{node.node.node_id}-run", RunState.RUNNING)
        await asyncio.to_thread(postgresql.stop)
        await asyncio.sleep(10)
        await asyncio.to_thread(postgresql.start)
        end.set()
        for node, count in zip(nodes, await asyncio.gather(*writing), strict=True):
            for stub in stubs:
                await eventually(partial(_has_ended, stub, f"{node.node.node_id}-run"))
                assert await sample_indexes(stub, f"{node.node.node_id}-run") == list(range(count))


async def _has_ended(stub: Any, run_id: str) -> bool:
    try:
        return (await get_run(stub, run_id)).state is RunState.SUCCEEDED
    except UnavailableError:
        return False


# ---------------------------------------------------------------- bad input


async def test_an_analyzer_that_thinks_it_is_alone_is_refused(private_directories: Path, settings: dict[str, str]) -> None:
    shared = {"catalogue": settings["CATALOGUE"], "peer_address": f"unix:{private_directories}/a.sock"}
    async with serving(private_directories, **shared):
        alone = {"catalogue": settings["CATALOGUE"], "data_directory": private_directories / "store"}
        with pytest.raises(StoreLockedError, match="peer_address"):
            await serve(AnalyzerSettings.load(address=f"unix:{private_directories}/b.sock", **alone))
    assert (private_directories / "store" / "analyzers").is_dir()


@pytest.mark.parametrize(
    ("further", "message"),
    [({}, "catalogue in SQLite"), ({"catalogue": "postgresql://postgres@127.0.0.1:1/x", "peer_address": "nowhere"}, "host:port")],
)
async def test_a_wrong_peer_address_is_told(private_directories: Path, further: dict[str, str], message: str) -> None:
    given = {"peer_address": "10.0.0.1:7002", **further}
    with pytest.raises(InvalidSettingError, match=message):
        await serve(AnalyzerSettings.load(address=f"unix:{private_directories}/a.sock", **given))


async def test_another_token_is_told(private_directories: Path, settings: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    other_token = private_directories / "other-token"
    other_token.write_text("another-token-of-32-characters-aa")
    other_token.chmod(0o600)
    processes = [process_of(private_directories, settings, name) for name in NAMES]
    processes[1].settings["TOKEN_FILE"] = str(other_token)
    try:
        for process in processes:
            await asyncio.to_thread(process.start)
        await within(15, lambda: _says(processes[1], "authorization"))
    finally:
        for process in processes:
            await asyncio.to_thread(process.stop)


async def _says(process: AnalyzerProcess, text: str) -> bool:
    return text in process.log
