"""The batch script of deploy/slurm, run by Slurm: Debian's daemons, on a login host and two nodes in network namespaces of this machine.

It installs packages and takes minutes, so that only `make soak` runs it, by SLURM=1.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from distributed import Client

from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import NodeOrigin, NodeStatus, Run, RunState, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.certificates import make_certificate
from tests.integration.analyzer_under_test import connected, get_run, get_table
from tests.integration.profiler_node import quick_sweep
from tests.integration.test_hosts import Hosts, is_gone, name_of, own_hosts
from tests.integration.test_joining import id_of, serves, statuses
from tests.integration.test_reading_processes import joined
from tests.service_processes import ServiceProcesses
from tests.unit.rank_traces import write_rank

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
SCRIPT, README = DEPLOY / "slurm" / "profiler.sbatch", DEPLOY / "README.md"
PACKAGES: Final = ("munge", "slurmctld", "slurmd", "slurm-client")
DAEMONS: Final = ("munged", "slurmctld", "slurmd", "sbatch")
LOGIN, NODES = "login01", ("gpu1", "gpu2")
SESSION: Final = "/proc/none"
"""A directory of the session at the login host, which the nodes lack, and where nobody can make one."""

START_TIMEOUT_S: Final = 60.0
JOB_TIMEOUT_S: Final = 330.0  # one of the jobs lasts four minutes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.environ.get("SLURM") != "1", reason="installs Slurm, and takes minutes: SLURM=1 runs it, as `make soak` does"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run Slurm's daemons for hosts in network namespaces"),
    pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the checkout"),
]

CONFIGURATION: Final = """
ClusterName=test
SlurmctldHost={login}({login_address})
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/socket/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=2048
GresTypes=gpu
SlurmdParameters=config_overrides
{nodes}
PartitionName=gpu Nodes={names} Default=YES State=UP
"""
"""Nodes have the cores and the memory that is written here, whatever this machine has: two jobs of the script fit on each."""

GPUS: Final = "Name=gpu File=/dev/null,/dev/zero\n"
"""Two GPUs a node. These devices stand for /dev/nvidia0 and /dev/nvidia1: Slurm counts and grants them, and nothing opens them."""

CGROUPS: Final = "CgroupPlugin=cgroup/v1\n"
"""slurmd 22.05 loads a plugin in any case, and the one of version 2 wants the machine's mounted. None is used."""

ENTER: Final = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


@dataclass(slots=True)
class Cluster:
    """Slurm on a login host and two nodes: each has its network, its name and the same /etc/hosts, and all have one file system."""

    directory: Path
    hosts: Hosts
    commands: dict[str, list[str]] = field(default_factory=dict)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self) -> None:
        self.directory.chmod(0o755)  # munged refuses a socket below a directory that others may not enter
        for name in ("key", "state", "jobs", *(f"spool-{node}" for node in NODES)):
            (self.directory / name).mkdir(mode=0o700)
        (self.directory / "socket").mkdir(mode=0o755)
        hosts_file, addresses = self.directory / "hosts", {}
        for name in (LOGIN, *NODES):
            inside, addresses[name] = self.hosts.add()
            self.commands[name] = [*inside, "unshare", "--uts", "sh", "-c", ENTER, name, str(hosts_file)]
        hosts_file.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
        nodes = (f"NodeName={name} NodeAddr={addresses[name]} CPUs=8 RealMemory=65536 Gres=gpu:2 State=UNKNOWN" for name in NODES)
        self.configuration_file.write_text(
            CONFIGURATION.format(
                login=LOGIN, login_address=addresses[LOGIN], directory=self.directory, nodes="\n".join(nodes), names=",".join(NODES)
            )
        )
        (self.directory / "gres.conf").write_text(GPUS)
        (self.directory / "cgroup.conf").write_text(CGROUPS)
        self._start_daemons()

    def _start_daemons(self) -> None:
        key_file = self.directory / "key" / "munge.key"
        key_file.write_bytes(os.urandom(1024))
        key_file.chmod(0o400)
        munge = {"key-file": key_file, "socket": self.directory / "socket" / "munge"}
        munge |= {f"{name}-file": self.directory / "key" / name for name in ("pid", "log", "seed")}
        self._start(LOGIN, "munged", "--foreground", *(f"--{name}={path}" for name, path in munge.items()))
        self._wait(munge["socket"].is_socket, "munged")
        self._start(LOGIN, "slurmctld", "-D")
        for node in NODES:
            self._start(node, "slurmd", "-D")
        self._wait(lambda: self.on(LOGIN, "sinfo", "--noheader", "--Node", "--format=%T", check=False).split() == ["idle"] * 2, "slurmd")

    @property
    def configuration_file(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        own = {"SLURM_CONF": str(self.configuration_file), "PATH": path, "TMPDIR": str(self.directory / "jobs")}
        return os.environ | own

    def _start(self, host: str, *words: str) -> None:
        with (self.directory / f"{words[0]}-{host}.out").open("wb") as out:
            self.daemons.append(
                subprocess.Popen([*self.commands[host], *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )

    def _wait(self, is_so: Any, what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_so():
            paths = (path for path in sorted(self.directory.iterdir()) if path.suffix in (".log", ".out"))
            logs = "\n".join(path.read_text(errors="replace")[-4000:] for path in paths)
            assert time.monotonic() < deadline, f"{what} does not come up:\n{logs}"
            time.sleep(0.2)

    def on(self, host: str, *words: str | Path, check: bool = True) -> str:
        """Run a command there and return what it prints."""
        command = [*self.commands[host], *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 or not check, f"{words}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, *options: str, job: tuple[str, ...] = (str(SCRIPT),)) -> str:
        """Return the job's id."""
        output = f"--output={self.directory}/job-%j.out"
        return self.on(LOGIN, "env", f"XDG_RUNTIME_DIR={SESSION}", "sbatch", "--parsable", output, *options, *job).strip()

    def log(self, job: str) -> str:
        path = self.directory / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it holds; fail after minutes with what the jobs have said."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not await is_so():
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-4000:]}" for path in sorted(self.directory.glob("job-*.out")))
            assert time.monotonic() < deadline, f"{self.on(LOGIN, 'squeue')}\n{logs}"
            await asyncio.sleep(0.2)

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.on(LOGIN, "scontrol", "show", "job", job))
        assert found is not None
        return found[1]

    async def ended(self, job: str) -> str:
        """Wait for the job's end and return its last state."""

        async def has_ended() -> bool:
            return self.state(job) not in ("PENDING", "RUNNING", "COMPLETING")

        await self.until(has_ended)
        return self.state(job)

    def directories(self) -> list[str]:
        """Return the names of what jobs have in the temporary directory."""
        return sorted(path.name for path in (self.directory / "jobs").iterdir())

    def processes(self) -> list[psutil.Process]:
        """Return the processes on all hosts."""
        names = [command[3] for command in self.commands.values()]
        listed = (subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout for name in names)
        found = []
        for process_id in (int(word) for text in listed for word in text.split()):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                found.append(psutil.Process(process_id))
        return found

    def end(self) -> None:
        """End the jobs, then the daemons, and fail when a process is left."""
        if self.daemons:
            self.on(LOGIN, "scancel", "--user=root", check=False)
            deadline = time.monotonic() + JOB_TIMEOUT_S
            while self.on(LOGIN, "squeue", "--noheader", check=False).strip() and time.monotonic() < deadline:
                time.sleep(0.5)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(30)
        _, alive = psutil.wait_procs(self.processes(), timeout=10)
        names = [" ".join(process.cmdline()) for process in alive]
        for process in alive:
            process.kill()
        for daemon in self.daemons:
            daemon.wait(30)
        assert not alive, f"processes left behind: {names}"


@pytest.fixture(scope="module")
def installed() -> None:
    if all(shutil.which(program) for program in DAEMONS):
        return
    for words in (("update",), ("install", "--yes", "--no-install-recommends", *PACKAGES)):
        try:
            done = subprocess.run(
                ["apt-get", "--quiet", "--quiet", *words],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            )
        except FileNotFoundError:
            pytest.skip(f"needs {', '.join(DAEMONS)}, or apt-get that installs {', '.join(PACKAGES)}")
        if done.returncode:
            pytest.skip(f"apt-get {words[0]} cannot get {', '.join(PACKAGES)}: {done.stderr.strip()}")


@pytest.fixture
def cluster(installed: None) -> Iterator[Cluster]:
    with own_hosts() as hosts, tempfile.TemporaryDirectory(prefix="kn-") as directory:
        made = Cluster(Path(directory), hosts)
        try:
            made.begin()
            yield made
        finally:
            made.end()


@dataclass(frozen=True, slots=True)
class Login:
    """The analyzer on the login host, and the commands of a person there."""

    cluster: Cluster
    endpoint: Endpoint
    options: tuple[str, ...]

    def kernalyse(self, *words: str | Path) -> str:
        return self.cluster.on(LOGIN, "kernalyse", *words, *self.options)


@contextmanager
def analyzer_on(cluster: Cluster, private_directories: Path, *options: str) -> Iterator[Login]:
    services = ServiceProcesses(private_directories)
    files = make_certificate(private_directories / "tls", LOGIN)
    try:
        analyzer = services.start(
            *("analyzer", "--certificate-file", str(files.certificate), "--key-file", str(files.key)),
            *options,
            address="0.0.0.0:7002",
            host=cluster.commands[LOGIN],
        )
        token_file = private_directories / "admin-token"
        token_file.write_text(analyzer.token)
        token_file.chmod(0o600)
        endpoint = Endpoint(f"{cluster.hosts.subnet}.1:7002", analyzer.token, files.certificate.read_bytes(), server_name="localhost")
        yield Login(cluster, endpoint, ("--server", f"{LOGIN}:7002", "--token-file", str(token_file), "--ca-file", str(files.certificate)))
    finally:
        services.stop_all()


@pytest.fixture
def login(cluster: Cluster, private_directories: Path) -> Iterator[Login]:
    with analyzer_on(cluster, private_directories) as login:
        yield login


MANY: Final = 20_000
"""Configurations of a run that is still going on when its job ends."""


async def nodes_until(cluster: Cluster, stub: Any, is_so: Callable[[list[NodeStatus]], bool]) -> dict[str, NodeStatus]:
    """Wait until it holds of the nodes, and return them by name."""
    found: list[NodeStatus] = []

    async def check() -> bool:
        found[:] = await statuses(stub)
        return is_so(found)

    await cluster.until(check)
    return {name_of(status): status for status in found}


async def under_way(cluster: Cluster, stub: Any, status: NodeStatus) -> str:
    """Start a run that takes many minutes and return its id once it has measured."""
    sweep = quick_sweep(values=range(1024, 1024 + MANY))
    with translated_errors():
        answer = await stub.StartRun(messages.AnalyzerServiceStartRunRequest(node_id=id_of(status), spec=protobuf.encode(sweep)))
    run_id = str(answer.run.run_id)

    async def has_measured() -> bool:
        return (await get_run(stub, run_id)).completed_configuration_count >= 5

    await cluster.until(has_measured)
    return run_id


async def recorded(cluster: Cluster, stub: Any, run_id: str) -> Run:
    """Wait for the run's end, check that everything it measured is in the store, and return it."""

    async def has_ended() -> bool:
        return (await get_run(stub, run_id)).state.is_final

    await cluster.until(has_ended)
    run = await get_run(stub, run_id)
    count = run.completed_configuration_count
    assert 5 <= count < MANY
    rows, _ = await get_table(stub, TableQuery("measurements", (run_id,)))
    failed, _ = await get_table(stub, TableQuery("failures", (run_id,)))  # Slurm signals workers too: one that it has ended costs one
    assert sorted([*rows["configuration_index"], *failed["configuration_index"]]) == list(range(count))
    assert failed.height <= 1
    samples, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("configuration_index",)))
    complete = samples.filter(samples["configuration_index"].is_in(rows["configuration_index"].implode()))
    assert complete.height == sum(rows["sample_count"]) + sum(rows["discarded_sample_count"])
    return run


async def test_jobs_join_measure_and_go_when_they_are_cancelled(cluster: Cluster, login: Login, tmp_path: Path) -> None:
    token_file = tmp_path / "join-token"
    token_file.write_text(login.kernalyse("nodes", "join-token", "--uses", "0", "--hours", "720"))
    exports = f"--export=ALL,ANALYZER={LOGIN}:7002,JOIN_TOKEN={token_file}"
    first, second = (cluster.submit(exports, f"--nodelist={node}") for node in NODES)
    async with connected(login.endpoint) as stub:
        found = await nodes_until(cluster, stub, serves(2))
        assert {name: status.origin for name, status in found.items()} == dict.fromkeys(
            (f"gpu1-{first}", f"gpu2-{second}"), NodeOrigin.JOINED
        )
        assert {status.address.rpartition(":")[0] for status in found.values()} == {f"{cluster.hosts.subnet}.{number}" for number in (2, 3)}

        path = tmp_path / "devices.json"
        measuring = ("-p", "N=1024,2**14", "--timing", "single", "--max-time", "0.2", "--samples", "50")
        login.kernalyse("bench", "saxpy", *measuring, "--on", "all", "--json", path)
        devices = json.loads(path.read_text())["devices"]
        assert sorted(device["node"] for device in devices) == sorted(found)
        for device in devices:
            rows, _ = await get_table(stub, TableQuery("measurements", (device["results"]["run"]["run_id"],)))
            assert rows.height == len(device["results"]["measurements"]) == 2

        third = cluster.submit(exports, "--nodelist=gpu1")  # on the other GPU of a node that has a profiler
        found = await nodes_until(cluster, stub, serves(3))
        name = f"gpu1-{first}"
        run_id = await under_way(cluster, stub, found[name])
        assert cluster.directories() == sorted(f"kernalyse-{name}" for name in found)

        cluster.on(LOGIN, "scancel", first)
        run = await recorded(cluster, stub, run_id)
        assert run.state is RunState.CANCELLED
        assert await cluster.ended(first) == "CANCELLED"
        gone = await nodes_until(cluster, stub, lambda found: [name_of(status) for status in found if is_gone(status)] == [name])
        assert gone[name].unreachable_since_time is not None
        assert cluster.directories() == [f"kernalyse-gpu1-{third}", f"kernalyse-gpu2-{second}"]


async def test_jobs_that_nobody_can_call_end_and_what_they_measured_stays(cluster: Cluster, login: Login) -> None:
    token_file = Path(os.environ["XDG_CONFIG_HOME"]) / "kernalyse" / "join-token"
    token_file.write_text(login.kernalyse("nodes", "join-token", "--uses", "0", "--hours", "720"))
    exports = f"--export=ALL,ANALYZER={LOGIN}:7002,TUNNEL=1"
    # Slurm looks every half minute whether the signal is due that the script asks for a minute before the end.
    timed = cluster.submit(exports, "--nodelist=gpu1", "--time=5")
    signalled, cancelled = cluster.submit(exports, "--nodelist=gpu1"), cluster.submit(exports, "--nodelist=gpu2")
    names = {timed: f"gpu1-{timed}", signalled: f"gpu1-{signalled}", cancelled: f"gpu2-{cancelled}"}
    async with connected(login.endpoint) as stub:
        found = await nodes_until(cluster, stub, serves(3))
        assert {name: (status.address, status.origin) for name, status in found.items()} == {
            name: (f"tunnel:{name}", NodeOrigin.TUNNEL) for name in names.values()
        }
        runs = {job: await under_way(cluster, stub, found[name]) for job, name in names.items()}

        cluster.on(LOGIN, "scancel", cancelled)
        assert (await recorded(cluster, stub, runs[cancelled])).state is RunState.CANCELLED
        assert await cluster.ended(cancelled) == "CANCELLED"
        assert f"kernalyse-{names[cancelled]}" not in cluster.directories()

        assert (await recorded(cluster, stub, runs[timed])).state is RunState.CANCELLED
        assert await cluster.ended(timed) == "COMPLETED", cluster.log(timed)
        assert "Waiting for 1 run(s), 10 s at most." in cluster.log(timed)  # the profiler heard of it in time
        assert cluster.directories() == [f"kernalyse-{names[signalled]}"]

        for _ in range(2):  # as before the end of its time, and at the end
            cluster.on(LOGIN, "scancel", "--signal=TERM", "--batch", signalled)
            await asyncio.sleep(1)
        assert cluster.directories() == [f"kernalyse-{names[signalled]}"]  # the second came while the profiler let its run go on
        assert (await recorded(cluster, stub, runs[signalled])).state is RunState.CANCELLED
        assert await cluster.ended(signalled) == "COMPLETED", cluster.log(signalled)
        await nodes_until(cluster, stub, lambda found: all(is_gone(status) for status in found))
        assert cluster.directories() == []


async def test_a_job_that_may_not_join_fails_and_says_why(cluster: Cluster, login: Login, tmp_path: Path) -> None:
    token_file = tmp_path / "join-token"
    token_file.write_text("not a token")
    job = cluster.submit(f"--export=ALL,ANALYZER={LOGIN}:7002,JOIN_TOKEN={token_file}")
    assert await cluster.ended(job) == "FAILED"
    assert "letters that are no join token" in " ".join(cluster.log(job).split())
    assert cluster.directories() == []


async def test_the_workers_of_a_dask_cluster_are_the_tasks_of_a_job(cluster: Cluster, private_directories: Path, tmp_path: Path) -> None:
    """The jobs are those of deploy/README.md, with fewer tasks on fewer nodes."""
    text = README.read_text().replace("/shared", str(tmp_path)).replace("--nodes 4 --ntasks-per-node 16", "--nodes 2 --ntasks-per-node 2")
    scheduler, workers = (tuple(shlex.split(line)) for line in re.findall(r"^\$ sbatch (.*--wrap .*)$", text, re.MULTILINE))
    cluster.submit(job=scheduler)
    file = tmp_path / "dask.json"

    async def is_there() -> bool:
        return file.exists()

    await cluster.until(is_there)
    address = json.loads(file.read_text())["address"]
    job = cluster.submit(job=workers)
    async with Client(address, asynchronous=True, set_as_default=False) as client:
        await client.wait_for_workers(4, timeout=JOB_TIMEOUT_S)
        assert sorted((await client.run(socket.gethostname)).values()) == ["gpu1", "gpu1", "gpu2", "gpu2"], cluster.log(job)
        await client.get_task_stream()  # the scheduler remembers tasks from here on
        with analyzer_on(cluster, private_directories, "--dask", address, "--data-directory", str(tmp_path / "store")) as login:
            async with connected(login.endpoint) as stub:
                answer = await joined(stub, [write_rank(tmp_path / f"rank{rank}.json", rank, world_size=8) for rank in range(8)])
                found, _ = await get_table(stub, TableQuery("ranks", (answer.run.run_id,)))
                assert found["rank_index"].to_list() == list(range(8))
        tasks = await client.get_task_stream()
        assert len(tasks) >= 8
        assert len({task["worker"] for task in tasks}) > 1
