"""A profiler service in a process of its own, as tests start, kill and restart it; and calls to it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from kernalyse.channel import Endpoint, open_async_channel
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import Axis, KernelSelection, KernelSweep, MeasuringOptions, Run, RunLimits, RunSpec
from kernalyse.services.core.rpc import translated_errors
from kernalyse.services.core.settings import find_service
from kernalyse.v1 import profiler_service_pb2 as messages
from kernalyse.v1 import profiler_service_pb2_grpc, run_pb2

START_TIME_LIMIT_S = 90.0  # a loaded machine with cold caches

_PROGRAM = """
import asyncio, json, sys
from kernalyse.services.core.settings import ProfilerSettings
from kernalyse.services.profiler.server import serve
settings, worker_command, probe_command = json.loads(sys.argv[1])
asyncio.run(serve(ProfilerSettings.load(**settings), worker_command=worker_command, probe_command=probe_command))
"""

STAND_IN_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("stand_in_worker.py")))

STAND_IN_DEVICE_ID = "opencl:pocl:0"
# Devices for tests of faults, which never open one: two that share the CPU, and a GPU.
_PROBE_TEXT = """
import sys
from kernalyse.services.core.model import BackendName, Device, DeviceKind
from kernalyse.services.profiler.backends.discovery import write_probe
devices = (
    Device("opencl:pocl:0", "CPU", DeviceKind.CPU, (BackendName.OPENCL,)),
    Device("opencl:intel:0", "CPU", DeviceKind.CPU, (BackendName.OPENCL,)),
    Device("opencl:gpu:0", "GPU", DeviceKind.GPU, (BackendName.OPENCL,)),
)
sys.stdout.write(write_probe(devices, ("a notice",)))
"""
STAND_IN_PROBE = (sys.executable, "-c", _PROBE_TEXT)


class ProfilerNode:
    """One service over one directory.

    Args:
        directory: for data, token and announcement; kept over restarts.
        stand_in: whether runs go to the stand-in worker; else to the real one.
        worker: command that runs go to instead of the real worker.
        probe: command that finds the devices instead of the real one.
        ceilings_file: what it is to know of its devices. Without, every sweep on a busy host measures them anew: seconds each.
        settings: of the service, beside those that follow from the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stand_in: bool = False,
        worker: Sequence[str] | None = None,
        probe: Sequence[str] | None = None,
        ceilings_file: Path | None = None,
        **settings: Any,
    ) -> None:
        self.data_directory = directory / "data"
        if ceilings_file is not None:
            (self.data_directory / "caches").mkdir(parents=True)
            shutil.copy2(ceilings_file, self.data_directory / "caches")
        self.tokens_file = directory / "tokens.json"
        self._announcement_file = directory / "profiler.json"
        self._log_file = directory / "log"
        self._settings = {
            "address": "127.0.0.1:0",
            "data_directory": str(self.data_directory),
            "token_file": str(directory / "token"),
            "tokens_file": str(self.tokens_file),
            "announcement_file": str(self._announcement_file),
            "grace_s": 0.3,
            **settings,
        }
        self._commands = (STAND_IN_WORKER, STAND_IN_PROBE) if stand_in else (worker, probe)
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint("", "")

    def spawned(self, *under: str) -> subprocess.Popen[bytes]:
        """The service as a process, which may not serve yet. under: a program that runs it."""
        self._announcement_file.unlink(missing_ok=True)
        with self._log_file.open("ab") as log:
            command = [*under, sys.executable, "-c", _PROGRAM, json.dumps([self._settings, *self._commands])]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=bool(under))

    def find(self) -> bool:
        """Take over the address of the service, if it serves, and answer whether it does."""
        found = find_service(self._announcement_file)
        if found is not None:
            self.endpoint = Endpoint(found.address, Path(found.token_file).read_text().strip())
        return found is not None

    def start(self) -> None:
        """Returns when it serves."""
        self.process = self.spawned()
        deadline = time.monotonic() + START_TIME_LIMIT_S
        while not self.find():
            assert self.process.poll() is None, f"the service ended: {self.log()}"
            assert time.monotonic() < deadline, f"the service does not come up: {self.log()}"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, time_limit_s: float = 60.0) -> int:
        """The exit status."""
        assert self.process is not None
        return self.process.wait(time_limit_s)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Ends it in any case, and whatever it has started with it."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGINT)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()

    def log(self) -> str:
        return self._log_file.read_text() if self._log_file.exists() else ""


class Calls:
    """The methods of ProfilerService, with models in and out and KernalyseErrors raised."""

    def __init__(self, channel: Any) -> None:
        self.stub: Any = profiler_service_pb2_grpc.ProfilerServiceStub(channel)  # type: ignore[no-untyped-call]

    async def start(self, spec: RunSpec, request_id: str = "") -> Run:
        with translated_errors():
            answer = await self.stub.StartRun(messages.ProfilerServiceStartRunRequest(spec=protobuf.encode(spec), request_id=request_id))
        return protobuf.decode(answer.run, Run)

    async def get(self, run_id: str) -> Run:
        with translated_errors():
            return protobuf.decode((await self.stub.GetRun(messages.ProfilerServiceGetRunRequest(run_id=run_id))).run, Run)

    async def runs(self) -> list[Run]:
        """The newest hundred, the newest first."""
        with translated_errors():
            return [protobuf.decode(run, Run) for run in (await self.stub.ListRuns(messages.ProfilerServiceListRunsRequest())).runs]

    async def cancel(self, run_id: str) -> Run:
        with translated_errors():
            return protobuf.decode((await self.stub.CancelRun(messages.ProfilerServiceCancelRunRequest(run_id=run_id))).run, Run)

    async def watch(self, run_id: str, next_event_index: int = 0) -> AsyncIterator[run_pb2.RunEvent]:
        request = messages.ProfilerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)
        with translated_errors():
            async for response in self.stub.WatchRun(request):
                for event in response.events:
                    yield event

    async def events(self, run_id: str, next_event_index: int = 0) -> list[run_pb2.RunEvent]:
        """All events from an index to the run's end."""
        return [event async for event in self.watch(run_id, next_event_index)]

    async def artifact(self, run_id: str, name: str) -> bytes:
        request = messages.ProfilerServiceReadArtifactRequest(run_id=run_id, artifact_name=name)
        with translated_errors():
            return b"".join([part.chunk async for part in self.stub.ReadArtifact(request)])

    async def finished(self, run_id: str) -> Run:
        """Waits for the run's end."""
        await self.events(run_id)
        return await self.get(run_id)

    async def node(self) -> Any:
        with translated_errors():
            return (await self.stub.GetNode(messages.GetNodeRequest())).node


@contextmanager
def running_node(directory: Path, **options: Any) -> Iterator[ProfilerNode]:
    """options: as `ProfilerNode` has them."""
    node = ProfilerNode(directory, **options)
    try:
        node.start()
        yield node
    finally:
        node.close()


@asynccontextmanager
async def calls_to(node: ProfilerNode, token: str | None = None) -> AsyncIterator[Calls]:
    endpoint = node.endpoint if token is None else Endpoint(node.endpoint.address, token)
    async with open_async_channel(endpoint) as channel:
        yield Calls(channel)


def behaving(title: str, *, device_id: str = STAND_IN_DEVICE_ID, limits: RunLimits | None = None) -> RunSpec:
    """A spec for the stand-in worker, which does what the title says."""
    sweep = KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", (1024,)),), device_id=device_id)
    return RunSpec(sweep, title=title, limits=limits or RunLimits())


def quick_sweep(kernel_name: str = "saxpy", values: Iterable[int] = (1024, 2048), **changes: Any) -> RunSpec:
    """A real sweep of some tenths of a second."""
    measuring = MeasuringOptions(min_duration_ns=10_000_000, max_duration_ns=100_000_000, max_sample_count=200)
    return RunSpec(KernelSweep((KernelSelection(kernel_name),), axes=(Axis("N", tuple(values)),), measuring=measuring, **changes))


def states(events: Iterable[run_pb2.RunEvent]) -> list[str]:
    changes = (event.state_changed.state for event in events if event.WhichOneof("payload") == "state_changed")
    return [run_pb2.RunState.Name(state).removeprefix("RUN_STATE_") for state in changes]


def payload_names(events: Iterable[run_pb2.RunEvent]) -> list[str | None]:
    return [event.WhichOneof("payload") for event in events]


async def until(is_true: Callable[[], bool], time_limit_s: float = 60.0) -> None:
    """Waits for something outside the service."""
    deadline = time.monotonic() + time_limit_s
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def is_alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def processes_with(text: str) -> list[int]:
    """Processes that have the text in a variable of theirs, as all of a run have the run's id in TMPDIR."""
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [process_id for process_id in found if process_id != os.getpid()]


def resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
