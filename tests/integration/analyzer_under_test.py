"""The analyzer in a process of its own, and the calls that tests make of it."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import polars as pl
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from kernalyse.channel import Endpoint, open_async_channel
from kernalyse.services.analyzer.server import serve
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import RunNotFoundError
from kernalyse.services.core.model import Run, RunState, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.services.core.settings import AnalyzerSettings, find_service
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub

START_TIMEOUT_S = 90.0
WAIT_TIMEOUT_S = 90.0  # nothing waits as long unless it fails or the machine is loaded
PROGRAM = """
import asyncio, sys
from kernalyse.services.analyzer.server import serve
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.settings import AnalyzerSettings
try:
    asyncio.run(serve(AnalyzerSettings.load()))
except KernalyseError as error:
    sys.exit(error.message)
"""


@dataclass(slots=True)
class AnalyzerProcess:
    """Started on a store directory; listens on a Unix socket beside it. name: of one of several; settings: further ones, by name."""

    directory: Path
    name: str = "a"
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("", ""))

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def _log_path(self) -> Path:
        return self.directory / f"analyzer-{self.name}.log"

    @property
    def _announcement_path(self) -> Path:
        return self.directory / f"analyzer-{self.name}.json"

    def spawned(self, *under: str) -> subprocess.Popen[bytes]:
        """The service as a process, which may not serve yet. under: a program that runs it."""
        address = f"unix:{self.directory}/{self.name}.sock"
        settings = {"ADDRESS": address, "DATA_DIRECTORY": f"{self.directory}/store", "NODE_RETRY_S": "0.2", **self.settings}
        environment = {f"KERNALYSE_ANALYZER_{name}": value for name, value in settings.items()}
        environment |= {"KERNALYSE_ANALYZER_ANNOUNCEMENT_FILE": str(self._announcement_path)}
        self._announcement_path.unlink(missing_ok=True)
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [*under, sys.executable, "-c", PROGRAM], env=os.environ | environment, stdout=log, stderr=log, start_new_session=bool(under)
            )

    def start(self) -> None:
        self.process = self.spawned()
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := find_service(self._announcement_path)) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)
        self.endpoint = Endpoint(found.address, Path(found.token_file).read_text().strip())

    def kill(self) -> None:
        """kill -9, as a crash would be."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def stop(self) -> int | None:
        """SIGTERM; answers with the exit status."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.kill()


@dataclass(slots=True)
class AnalyzerHere:
    """The service in the test's own process: starts in no time, where a test needs no process of its own."""

    directory: Path
    endpoint: Endpoint


@asynccontextmanager
async def serving(directory: Path, **further: Any) -> AsyncIterator[AnalyzerHere]:
    given = {"address": f"unix:{directory}/a.sock", "data_directory": directory / "store", "node_retry_s": 0.2, **further}
    settings = AnalyzerSettings.load(**given)
    task = asyncio.create_task(serve(settings))
    while (found := find_service(settings.announcement_path())) is None:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    try:
        yield AnalyzerHere(directory, Endpoint(found.address, settings.token(), settings.contents("certificate_file")))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _LoopInThread(asyncio.SelectorEventLoop):
    """Signals are for the main thread; here the task is cancelled."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        pass


@contextmanager
def running_analyzer() -> Iterator[str]:
    """The user's analyzer, in a thread, where every command finds it: one of its own would cost each command seconds. Its address."""
    directory = Path(tempfile.mkdtemp(prefix="kn-"))
    settings = AnalyzerSettings.load(address=f"unix:{directory}/a.sock")
    with ThreadPoolExecutor(1) as pool, asyncio.Runner(loop_factory=_LoopInThread) as runner:
        loop = runner.get_loop()
        serving = asyncio.run_coroutine_threadsafe(serve(settings), loop)
        thread = pool.submit(loop.run_forever)
        try:
            while find_service(settings.announcement_path()) is None:
                assert not serving.done(), serving.exception()
                time.sleep(0.01)
            yield settings.address
        finally:
            serving.cancel()
            asyncio.run_coroutine_threadsafe(_ended(), loop).result(WAIT_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.result(WAIT_TIMEOUT_S)
            shutil.rmtree(directory)


async def _ended() -> None:
    """Waits until all that goes on in this loop has come to its end."""
    others = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
    await asyncio.gather(*others, return_exceptions=True)


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[Any]:
    channel = open_async_channel(endpoint)
    try:
        yield AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
    finally:
        await channel.close()


async def add_node(stub: Any, endpoint: Endpoint) -> None:
    with translated_errors():
        await stub.AddNode(messages.AddNodeRequest(address=endpoint.address, token=endpoint.token))


async def get_run(stub: Any, run_id: str) -> Run:
    with translated_errors():
        answer = await stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id=run_id))
    return protobuf.decode(answer.run, Run)


async def in_state(stub: Any, run_id: str, state: RunState) -> None:
    """Waits until the run is in it; until then it may be unknown."""

    async def check() -> bool:
        try:
            return (await get_run(stub, run_id)).state is state
        except RunNotFoundError:
            return False

    await eventually(check)


async def get_table(stub: Any, query: TableQuery) -> tuple[pl.DataFrame, int]:
    """The rows, and the count of rows before offset and limit."""
    with translated_errors():
        answers = [answer async for answer in stub.GetTable(protobuf.encode(query))]
    return pl.concat([frame_of_bytes(answer.chunk.arrow_ipc) for answer in answers]), answers[0].total_row_count


def frame_of_bytes(arrow_ipc: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(arrow_ipc))


async def watch_run(stub: Any, run_id: str, next_event_index: int = 0) -> AsyncIterator[Any]:
    with translated_errors():
        async for answer in stub.WatchRun(messages.AnalyzerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)):
            yield answer


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Waits until the check holds."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not await check():
            await asyncio.sleep(0.01)


async def no_request() -> AsyncIterator[Message]:
    """Sends nothing for as long as the call lasts."""
    await asyncio.Event().wait()
    yield Empty()


async def code_of(stub: Any, method: Any) -> grpc.StatusCode:
    """What a service answers to an empty request, or to a stream without one. method: of the contract's descriptor.

    A request that is sent while the service ends the call makes gRPC's client say INTERNAL, whatever the service said.
    """
    request = no_request() if method.client_streaming else GetMessageClass(method.input_type)()
    made = getattr(stub, method.name)(request, timeout=1)
    try:
        if method.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
