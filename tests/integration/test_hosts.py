"""Hosts of their own, in network namespaces with TLS between them: profilers join, one through a tunnel, and a network parts and heals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from kernalyse.channel import Endpoint
from kernalyse.services.analyzer.store import database
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import UnavailableError
from kernalyse.services.core.model import NodeHealth, NodeOrigin, NodeStatus, RunState, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.certificates import make_certificate
from tests.integration.analyzer_under_test import connected, get_run, get_table, in_state
from tests.integration.profiler_node import quick_sweep
from tests.integration.test_joining import id_of, join_token, serves, until_nodes
from tests.postgresql import running_postgresql
from tests.service_processes import ServiceProcess, ServiceProcesses

ROOT: Final = Path(__file__).parents[2]


class Hosts:
    """Network namespaces on one bridge; this process is on it too."""

    def __init__(self) -> None:
        self._bridge = f"kn{os.getpid() % 100_000}"
        self.subnet: Final = f"10.213.{os.getpid() % 250}"  # another one beside this process has its own
        self._names: list[str] = []

    def begin(self) -> None:
        """Raises CalledProcessError where this user may not."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.subnet}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def add(self) -> tuple[list[str], str]:
        """The command that runs others on a new host, and its address."""
        name = f"{self._bridge}-{len(self._names)}"
        self._names.append(name)
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        inside = ["ip", "netns", "exec", name]
        address = f"{self.subnet}.{len(self._names)}"
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
            subprocess.run([*inside, "ip", *words], check=True, capture_output=True)
        return inside, address

    def part(self, place: int) -> None:
        """Cuts the host off: what is sent arrives nowhere, and nobody is told."""
        _ip("link", "set", self._names[place], "down")

    def heal(self, place: int) -> None:
        _ip("link", "set", self._names[place], "up")

    def end(self) -> None:
        for name in self._names:
            _ip("netns", "del", name)
        _ip("link", "del", self._bridge)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def own_hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("needs ip (iproute2) for hosts of its own")
    made = Hosts()
    try:
        made.begin()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make network namespaces: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with own_hosts() as made:
        yield made


@pytest.mark.slow
async def test_three_hosts_join_and_a_network_that_parts_and_heals_loses_nothing(hosts: Hosts, tmp_path: Path) -> None:
    services = ServiceProcesses(tmp_path)
    login, login_address = hosts.add()
    files = make_certificate(tmp_path / "tls")
    try:
        analyzer = services.start(
            *("analyzer", "--certificate-file", str(files.certificate), "--key-file", str(files.key)),
            *("--data-directory", str(tmp_path / "store"), "--tokens-file", str(tmp_path / "tokens.json")),
            address="0.0.0.0:7002",
            host=login,
        )
        endpoint = Endpoint(f"{login_address}:7002", analyzer.token, files.certificate.read_bytes(), server_name="localhost")
        async with connected(endpoint) as stub:
            token_file = await join_token(stub, tmp_path / "join", uses=3)
            for number in range(3):
                start_profiler(services, hosts, endpoint.address, token_file, tmp_path / f"gpu{number}", is_tunnelled=number == 2)
            found = {status.node.hostname: status for status in await until_nodes(stub, serves(3)) if status.node}
            assert {name: status.origin for name, status in found.items()} == {
                "gpu0": NodeOrigin.JOINED,
                "gpu1": NodeOrigin.JOINED,
                "gpu2": NodeOrigin.TUNNEL,
            }
            run_ids = [await started(stub, id_of(status)) for status in found.values()]
            for place in (1, 3):  # gpu0, and gpu2 behind its tunnel
                hosts.part(place)
            gone = await until_nodes(stub, lambda statuses: [name_of(status) for status in statuses if is_gone(status)] == ["gpu0", "gpu2"])
            assert all(status.unreachable_since_time is not None for status in gone if is_gone(status))
            for place in (1, 3):
                hosts.heal(place)
            await until_nodes(stub, serves(3))
            for run_id in run_ids:
                await in_state(stub, run_id, RunState.SUCCEEDED)
                assert (await get_run(stub, run_id)).completed_configuration_count == CONFIGURATION_COUNT
                for table in ("configurations", "measurements"):
                    rows, _ = await get_table(stub, TableQuery(table, (run_id,)))
                    assert sorted(rows["configuration_index"]) == list(range(CONFIGURATION_COUNT)), table
                samples, _ = await get_table(stub, TableQuery("samples", (run_id,)))
                told, _ = await get_table(stub, TableQuery("measurements", (run_id,), columns=("sample_count", "discarded_sample_count")))
                assert samples.height == sum(told["sample_count"]) + sum(told["discarded_sample_count"])
    finally:
        services.stop_all()


CONFIGURATION_COUNT: Final = 60


def start_profiler(
    services: ServiceProcesses, hosts: Hosts, analyzer: str, token_file: Path, directory: Path, *, is_tunnelled: bool
) -> ServiceProcess:
    host, address = hosts.add()
    directory.mkdir()
    return services.start(
        *("profiler", "--join", analyzer, "--join-token-file", str(token_file), "--node-name", directory.name),
        *("--data-directory", str(directory), "--token-file", str(directory / "token"), "--tokens-file", str(directory / "tokens.json")),
        "--tunnel" if is_tunnelled else "--no-tunnel",
        address="127.0.0.1:0" if is_tunnelled else f"{address}:7001",
        host=host,
    )


async def started(stub: Any, node_id: str) -> str:
    sweep = quick_sweep(values=range(1024, 1024 * (CONFIGURATION_COUNT + 1), 1024))
    with translated_errors():
        answer = await stub.StartRun(messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=protobuf.encode(sweep)))
    return str(answer.run.run_id)


def is_gone(status: NodeStatus) -> bool:
    return status.health is NodeHealth.UNREACHABLE


def name_of(status: NodeStatus) -> str:
    return status.node.hostname if status.node else ""


# ---------------------------------------------------------------- a catalogue whose machine vanishes

USER_TIMEOUT_S: Final = 4.0
"""Instead of a minute."""

NOTICE_LIMIT_S: Final = 25.0
"""Before the first keepalive, which none of bytes on their way waits for; left to the kernel, it would be a quarter of an hour."""

PROXY: Final = """
import sys
from tests.fault_proxy import FaultProxy
proxy = FaultProxy(sys.argv[1], sys.argv[2])
print(proxy.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_statement_to_a_machine_that_vanishes_is_given_up(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "USER_TIMEOUT_MS", round(1000 * USER_TIMEOUT_S))
    with running_postgresql() as server, ThreadPoolExecutor(1) as pool:
        name = server.new_database().partition("@/")[2].partition("?")[0]
        inside, address = hosts.add()
        command = [*inside, sys.executable, "-c", PROXY, f"unix:{server.directory}/.s.PGSQL.5432", address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as proxy:
            assert proxy.stdout is not None
            listening = proxy.stdout.readline().strip()
            catalogue = database.Database(database.catalogue_url(Path(), f"postgresql://postgres@{listening}/{name}"))
            try:
                begin_s = time.monotonic()
                with pytest.raises(UnavailableError, match="PostgreSQL server that answers"):
                    pool.submit(read, catalogue, lambda: hosts.part(0)).result(NOTICE_LIMIT_S)
                assert time.monotonic() - begin_s > USER_TIMEOUT_S / 2  # nobody has said that there is no way
                hosts.heal(0)
                deadline = time.monotonic() + NOTICE_LIMIT_S
                while not is_answered(catalogue):  # the first connection after it may be cut with the one that was lost
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            finally:
                hosts.heal(0)
                catalogue.close()
                proxy.terminate()


def read(catalogue: database.Database, between: Callable[[], None]) -> Any:
    """Ask twice on one connection."""
    with catalogue.reading() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        between()
        return connection.scalar(sa.text("SELECT 1"))


def is_answered(catalogue: database.Database) -> bool:
    try:
        return bool(read(catalogue, lambda: None) == 1)
    except UnavailableError:
        return False
