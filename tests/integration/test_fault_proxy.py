"""Lines between services that are slow, cut, half open or narrow during a sweep: every event is stored once, and nothing hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernalyse import Client, RequestError
from kernalyse.channel import Endpoint
from kernalyse.services.analyzer.server import CATALOGUE_STOPPING_S, STOPPING_S
from kernalyse.services.core import protobuf
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.browser.socket_viewer import ask, log_in
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.integration.analyzer_under_test import AnalyzerProcess, frame_of_bytes
from tests.integration.profiler_node import ProfilerNode, behaving, running_node
from tests.postgresql import running_postgresql
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = pytest.mark.slow

BATCH_COUNT, SAMPLE_COUNT = 24, 500
"""Of the stand-in worker: batches, one each 50 ms, and samples of each."""

FAULT_S = 1.0
LIMIT_S = 20.0
"""From the end of the fault until the run has ended and all of it is stored. Nodes are tried again within seconds."""

PAGE_LIMIT_S = 15.0
"""For a page of the dashboard while the line to the analyzer is disturbed."""

Fault = Callable[[FaultProxy], None]


def _slow(proxy: FaultProxy) -> None:
    proxy.delay_s = 0.1


def _cut(proxy: FaultProxy) -> None:
    proxy.is_down = True


def _half_open(proxy: FaultProxy) -> None:
    proxy.is_half_open = True


def _narrow(proxy: FaultProxy) -> None:
    proxy.bytes_per_s = 20_000


FAULTS: dict[str, Fault] = {"delay": _slow, "cut": _cut, "half-open": _half_open, "throttle": _narrow}


def healed(proxy: FaultProxy) -> None:
    proxy.delay_s, proxy.bytes_per_s = 0.0, None
    proxy.is_down = proxy.is_half_open = False


@dataclass(slots=True)
class Lines:
    """All services, each line between two of them through a proxy.

    endpoint: of the analyzer, undisturbed. called, tunnelled: ids of nodes.
    """

    endpoint: Endpoint
    to_analyzer: FaultProxy
    ui_to_analyzer: FaultProxy
    to_profiler: FaultProxy
    tunnel: FaultProxy
    to_database: FaultProxy
    called: str
    tunnelled: str
    ui: ServiceProcess


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        database = stack.enter_context(running_postgresql())
        name = database.new_database().partition("@/")[2].partition("?")[0]
        to_database = stack.enter_context(fault_proxy(f"unix:{database.directory}/.s.PGSQL.5432"))
        settings = {"CATALOGUE": f"postgresql://postgres@{to_database.address}/{name}"}
        analyzer = AnalyzerProcess(directory, settings=settings)
        stack.callback(analyzer.stop)
        analyzer.start()
        proxies = [stack.enter_context(fault_proxy(analyzer.endpoint.address)) for _ in range(3)]
        services = ServiceProcesses(directory)
        stack.callback(services.stop_all)
        with Client(analyzer.endpoint) as client:
            join_file = directory / "join"
            join_file.write_text(client.create_join_token()[0])
            node = stack.enter_context(running_node(made(directory / "called"), stand_in=True))
            to_profiler = stack.enter_context(fault_proxy(node.endpoint.address))
            client.add_node(Endpoint(to_profiler.address, node.endpoint.token))
            further = {"join": proxies[2].address, "join_token_file": str(join_file), "tunnel": True, "node_name": "far"}
            far: ProfilerNode = stack.enter_context(running_node(made(directory / "far"), stand_in=True, **further))
            within(LIMIT_S, lambda: len(serving_nodes(client)) == 2, far.log)
            found = serving_nodes(client)
        ui = services.start("ui", "--analyzer-address", proxies[1].address)
        to_analyzer, ui_to_analyzer, tunnel = proxies
        called, tunnelled = found[to_profiler.address], found["tunnel:far"]
        yield Lines(analyzer.endpoint, to_analyzer, ui_to_analyzer, to_profiler, tunnel, to_database, called, tunnelled, ui)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def serving_nodes(client: Client) -> dict[str, str]:
    """Ids of the nodes that answer, by address."""
    return {status.address: status.node.node_id for status in client.nodes() if status.health == messages.NODE_HEALTH_SERVING}


def within(limit_s: float, check: Callable[[], bool], said: Callable[[], object] = str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline_s, said()
        time.sleep(0.05)


def started(client: Client, node_id: str) -> str:
    spec = protobuf.encode(behaving(f"paced:{BATCH_COUNT}"))
    return client.start_run(messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=spec)).run_id


def disturb(proxy: FaultProxy, fault: str) -> None:
    """Let the line be disturbed for a while."""
    FAULTS[fault](proxy)
    time.sleep(FAULT_S)
    healed(proxy)


def is_whole(client: Client, run_id: str) -> bool:
    """Whether the run has succeeded and all its samples are stored, each once."""
    run = client.run(run_id)
    assert run.state in ("QUEUED", "RUNNING", "SUCCEEDED"), run
    indexes = client.table(run_id, "samples", columns=("sample_index",))["sample_index"].to_list()
    assert sorted(set(indexes)) == sorted(indexes), "samples that are stored twice"
    return run.state == "SUCCEEDED" and sorted(indexes) == list(range(BATCH_COUNT * SAMPLE_COUNT))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("line", ["to_profiler", "tunnel"])
def test_a_disturbed_line_to_a_node_loses_no_event(lines: Lines, line: str, fault: str) -> None:
    with Client(lines.endpoint) as client:
        run_id = started(client, lines.called if line == "to_profiler" else lines.tunnelled)
        disturb(getattr(lines, line), fault)
        within(LIMIT_S, lambda: is_whole(client, run_id), lambda: client.run(run_id))
        within(LIMIT_S, lambda: len(serving_nodes(client)) == 2, client.nodes)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disturbed_line_to_the_catalogue_loses_no_event(lines: Lines, fault: str) -> None:
    with Client(lines.endpoint) as client:
        run_id = started(client, lines.called)
        disturb(lines.to_database, fault)
        within(LIMIT_S, lambda: is_answered_whole(client, run_id))


def is_answered_whole(client: Client, run_id: str) -> bool:
    """As is_whole, of an analyzer that may not reach its catalogue yet."""
    try:
        return is_whole(client, run_id)
    except RequestError as error:
        if error.code != "UNAVAILABLE":
            raise
        return False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_behind_a_disturbed_line_is_told_everything_once(lines: Lines, fault: str) -> None:
    told: list[int] = []
    ended = threading.Event()
    with Client(lines.endpoint) as near, Client(Endpoint(lines.to_analyzer.address, lines.endpoint.token)) as client:
        run_id = started(near, lines.called)

        def watch() -> None:
            for message in client.watch_messages(run_id):
                for part in message.tables:
                    if part.table_name == "samples":
                        told.extend(frame_of_bytes(part.arrow_ipc)["sample_index"].to_list())
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        disturb(lines.to_analyzer, fault)
        assert ended.wait(LIMIT_S)
        assert told == list(range(BATCH_COUNT * SAMPLE_COUNT))
        assert is_whole(near, run_id)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_dashboard_behind_a_disturbed_line_answers_and_comes_back(lines: Lines, fault: str) -> None:
    address = lines.ui.address
    cookie = log_in(address, lines.ui.token)
    with Client(lines.endpoint) as client:
        run_id = started(client, lines.called)
        FAULTS[fault](lines.ui_to_analyzer)
        begin_s = time.monotonic()
        assert ask(f"http://{address}/live/", Cookie=cookie).status == 200
        assert time.monotonic() - begin_s < PAGE_LIMIT_S
        healed(lines.ui_to_analyzer)
        within(LIMIT_S, lambda: is_whole(client, run_id), lambda: client.run(run_id))
        within(LIMIT_S, lambda: ask(f"http://{address}/export/{run_id}.text", Cookie=cookie).status == 200)


# ---------------------------------------------------------------- the other end vanishes, and nothing ever says so

VANISHED_LIMIT_S = 50.0
"""A connection is found dead within half a minute; then the node is tried again."""


@pytest.mark.skipif("VANISHED_LINES" not in os.environ, reason="takes half a minute each: part vanished-lines of `make soak`")
@pytest.mark.parametrize("line", ["to_profiler", "tunnel"])
def test_connections_that_nobody_ends_are_found_dead(lines: Lines, line: str) -> None:
    with Client(lines.endpoint) as client:
        run_id = started(client, lines.tunnelled if line == "tunnel" else lines.called)
        getattr(lines, line).strand()
        within(VANISHED_LIMIT_S, lambda: is_answered_whole(client, run_id))


# ---------------------------------------------------------------- a stop while the catalogue does not answer

STOP_LIMIT_S = STOPPING_S + CATALOGUE_STOPPING_S + 15.0
"""For calls, for the catalogue, and for what a loaded machine takes."""


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_analyzer_stops_although_its_catalogue_never_answers(
    private_directories: Path, is_shared: bool, record_property: Callable[[str, object], None]
) -> None:
    """The kernel of the server's machine acknowledges what is sent, so no timeout of TCP ends it."""
    with running_postgresql() as database, running_node(made(private_directories / "node"), stand_in=True) as node:
        name = database.new_database().partition("@/")[2].partition("?")[0]
        with fault_proxy(f"unix:{database.directory}/.s.PGSQL.5432") as proxy:
            settings = {"CATALOGUE": f"postgresql://postgres@{proxy.address}/{name}"}
            if is_shared:
                settings["PEER_ADDRESS"] = f"unix:{private_directories}/a.sock"
            analyzer = AnalyzerProcess(private_directories, settings=settings)
            try:
                analyzer.start()
                with Client(analyzer.endpoint) as client:
                    client.add_node(node.endpoint)
                    within(LIMIT_S, lambda: len(serving_nodes(client)) == 1, client.nodes)
                    run_id = started(client, next(iter(serving_nodes(client).values())))
                    within(LIMIT_S, lambda: client.run(run_id).state == "RUNNING")
                    proxy.is_half_open = True
                    time.sleep(1.0)  # events come every 50 ms: one of them is being stored
                begin_s = time.monotonic()
                assert analyzer.stop() == 0
                duration_s = time.monotonic() - begin_s
                record_property("told", f"stopped after {duration_s:.1f} s")
                assert duration_s < STOP_LIMIT_S
                if not is_shared:  # else PostgreSQL may end a transaction by itself that it hears nothing of
                    assert "connections to it are cut" in analyzer.log
                assert "Traceback" not in analyzer.log, analyzer.log
                proxy.is_half_open = False
                analyzer.start()
                with Client(analyzer.endpoint) as client:
                    within(LIMIT_S, lambda: is_answered_whole(client, run_id))
            finally:
                analyzer.kill()
