"""The dashboard's only way to the analyzer.

All calls run on one thread with an asyncio loop of its own, so no RPC and no decoding of tables ever holds up a page. One
WatchNodes stream serves the whole process and one WatchRun stream each run that somebody looks at; both reconnect for
ever and go on where they stopped.
"""

from __future__ import annotations

import asyncio
import copy
import io
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
import polars as pl

from kernalyse.channel import Endpoint, open_async_channel
from kernalyse.services.core.access import IDENTITY_KEY, SCOPES_KEY
from kernalyse.services.core.errors import KernalyseError, NotFoundError, UnauthenticatedError, UnavailableError, UnmetConditionError
from kernalyse.services.core.model import Ceiling, Hardware, HardwareKey, NodeStatus, NodeTelemetry, Run, SortKey, TableQuery, Thresholds
from kernalyse.services.core.protobuf import decode, encode
from kernalyse.services.core.report import ReportFormat
from kernalyse.services.core.rpc import translated_errors
from kernalyse.services.ui.data.memory import NodesMemory, RunMemory
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub
from kernalyse.v1.table_pb2 import TableChunk

RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Pauses before the first, second, … attempt to reconnect; the last one from then on."""

CALL_TIMEOUT_S: Final = 20.0
RENEWAL_RETRY_S: Final = 15.0
"""Until a short token is tried to be renewed once more."""

REPORT_TIMEOUT_S: Final = 330.0
MAX_REMEMBERED_RUNS: Final = 24
"""Runs kept although nobody looks at them any more: going back to one is immediate."""

TABLES_UNDER_CEILINGS: Final = ("ceilings", "roofline", "layer_roofline")
"""Of those that a run's memory holds."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class TablePage:
    """Some rows of a table and how many match in all."""

    rows: pl.DataFrame
    total_row_count: int


class Session:
    """A person who has signed in, and the short token that the person's calls carry.

    Args:
        name: of the person.
        scope: the highest that the person has.
        short_token: empty: whoever has the dashboard's own token; calls carry that.
        end_unix_s: of the short token, seconds since the epoch.
        session_end_unix_s: then the person signs in again.
    """

    def __init__(self, name: str, scope: str, short_token: str = "", end_unix_s: float = 0.0, session_end_unix_s: float = math.inf) -> None:
        self.name = name
        self.scope = scope
        self.short_token = short_token
        self.session_end_unix_s = session_end_unix_s
        self._renew_in((end_unix_s - time.time()) / 2)
        self._is_revoked = False

    @classmethod
    def of(cls, signed_in: messages.SignedIn) -> Session:
        """Return the session that the analyzer's answer begins."""
        end, session_end = (moment.ToNanoseconds() / 1e9 for moment in (signed_in.end_time, signed_in.session_end_time))
        return cls(signed_in.name, signed_in.scope, signed_in.short_token, end, session_end)

    def _renew_in(self, seconds: float) -> None:
        """By both clocks: set back, the host's alone would be late, and set forward, the token has ended for an analyzer beside it."""
        self.renew_unix_s, self.renew_s = time.time() + seconds, time.monotonic() + seconds

    @property
    def is_renewal_due(self) -> bool:
        return bool(self.short_token) and (time.time() >= self.renew_unix_s or time.monotonic() >= self.renew_s)

    @property
    def is_valid(self) -> bool:
        return not self._is_revoked and time.time() < self.session_end_unix_s

    async def metadata(self, stub: Any) -> tuple[tuple[str, str], ...]:
        """Return what calls for the person carry. Raises RpcError where the analyzer renews the token no more."""
        if not self.short_token:
            return ()
        if self.is_renewal_due:
            self._renew_in(RENEWAL_RETRY_S)  # others go on with the token there is
            request = messages.RenewTokenRequest(short_token=self.short_token)
            try:
                renewed = self.of((await stub.RenewToken(request, timeout=CALL_TIMEOUT_S)).signed_in)
            except grpc.RpcError as error:
                self._is_revoked = error.code() is grpc.StatusCode.UNAUTHENTICATED
                raise
            self.short_token, self.renew_unix_s, self.renew_s = renewed.short_token, renewed.renew_unix_s, renewed.renew_s
        return (("authorization", f"Bearer {self.short_token}"),)


OWN_SESSION: Final = Session("owner", "admin")
"""Of whoever has given the dashboard's own token."""

VISITOR: Final = Session("", "read")
"""Of whoever looks at one chart by a link that was made for it."""


class _Stub:
    """The analyzer's stub, all calls of which carry metadata."""

    def __init__(self, stub: Any, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._stub = stub
        self._metadata = tuple(metadata)

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), metadata=self._metadata)


class AnalyzerClient:
    """See the module. Every public method may be called from any thread.

    Streams that all tabs share carry the dashboard's own token; what somebody asks or changes carries the person's.

    Args:
        endpoint: the analyzer.
        on_news: called on the client's thread after something has arrived; must be quick.
    """

    def __init__(self, endpoint: Endpoint, on_news: Callable[[], None]) -> None:
        self.session = OWN_SESSION
        self.nodes = NodesMemory()
        self._endpoint = endpoint
        self._on_news = on_news
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="analyzer-client", daemon=True)
        self._stub: Any = None
        self._has_opened = threading.Event()
        self._lock = threading.Lock()
        self._memories: dict[str, RunMemory] = {}
        self._viewer_counts: dict[str, int] = {}
        self._watches: dict[str, Future[None]] = {}
        self._reworks: dict[str, asyncio.Task[None]] = {}  # by run

    def start(self) -> None:
        self._thread.start()
        self._has_opened.wait()
        self._spawn(self._forever(self._watch_nodes, self.nodes.fail))

    def stop(self) -> None:
        """Ends all streams and the thread."""
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def acting_for(self, session: Session) -> AnalyzerClient:
        """Return this client as the person uses it: what is known is shared, calls carry the person's token."""
        acting = copy.copy(self)
        acting.session = session
        return acting

    async def renew_session(self) -> None:
        """Have the person's short token renewed where that is due. Raises KernalyseError: the session has ended, or nobody answers."""

        async def nothing(_stub: Any) -> None:
            """Every call renews the token before."""

        await self.call(nothing)

    async def sign_in(self, *, token: str = "", name: str = "", password: str = "", id_token: str = "") -> Session:
        """Return the session of whom the credential is about. Raises KernalyseError."""
        request = messages.SignInRequest(token=token) if token else messages.SignInRequest(id_token=id_token)
        if password:
            request = messages.SignInRequest(password=messages.Password(name=name, password=password))
        try:
            return Session.of((await self.call(lambda stub: stub.SignIn(request, timeout=CALL_TIMEOUT_S))).signed_in)
        except UnauthenticatedError as error:
            if error.subject == "sign-in":
                raise
            raise UnmetConditionError(
                "this dashboard",
                found="a token that its analyzer does not know",
                expected="the analyzer's, or one of kind dashboard",
                remedy="Set ui.analyzer_token_file.",
            ) from error

    # ------------------------------------------------------------ runs being looked at

    def look_at(self, run_id: str) -> RunMemory:
        """The run's memory, kept up to date until as many `look_away` have followed."""
        with self._lock:
            memory = self._memories.pop(run_id, None) or RunMemory(run_id)
            self._memories[run_id] = memory
            self._viewer_counts[run_id] = self._viewer_counts.get(run_id, 0) + 1
            if not self._is_watched(run_id) and not memory.is_complete:
                self._watches[run_id] = self._spawn(self._watch_run_to_its_end(memory))
            return memory

    def look_away(self, run_id: str) -> None:
        with self._lock:
            self._viewer_counts[run_id] -= 1
            if self._viewer_counts[run_id] > 0:
                return
            del self._viewer_counts[run_id]
            watch = self._watches.pop(run_id, None)
            idle = [other for other in self._memories if other not in self._viewer_counts]
            for other in idle[: max(0, len(idle) - MAX_REMEMBERED_RUNS)]:
                del self._memories[other]
        if watch is not None:
            watch.cancel()

    # ------------------------------------------------------------ questions

    def call(self, work: Callable[[Any], Awaitable[T]]) -> Awaitable[T]:
        """Carries out work on the client's thread with the analyzer's stub, from now on. Raises KernalyseError for every refusal."""

        async def translated() -> T:
            with translated_errors():
                return await work(_Stub(self._stub, await self._metadata()))

        return self._ask(translated())

    async def _metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        if self.session is VISITOR:
            return ((IDENTITY_KEY, b"visitor"), (SCOPES_KEY, VISITOR.scope))
        return await self.session.metadata(self._stub)

    async def cancel_run(self, run_id: str) -> Run:
        """Raises KernalyseError."""
        request = messages.AnalyzerServiceCancelRunRequest(run_id=run_id)
        response = await self.call(lambda stub: stub.CancelRun(request, timeout=CALL_TIMEOUT_S))
        return decode(response.run, Run)

    async def annotate_run(self, run_id: str, tags: tuple[str, ...], notes: str) -> None:
        """Raises KernalyseError."""
        request = messages.UpdateRunRequest(run_id=run_id, tags=tags, notes=notes)
        await self.call(lambda stub: stub.UpdateRun(request, timeout=CALL_TIMEOUT_S))

    async def delete_run(self, run_id: str) -> None:
        """Raises KernalyseError."""
        request = messages.DeleteRunRequest(run_id=run_id)
        await self.call(lambda stub: stub.DeleteRun(request, timeout=CALL_TIMEOUT_S))

    async def add_node(self, address: str, token: str, ca_certificate: bytes) -> NodeStatus:
        """Raises KernalyseError."""
        request = messages.AddNodeRequest(address=address, token=token, ca_certificate=ca_certificate)
        response = await self.call(lambda stub: stub.AddNode(request, timeout=CALL_TIMEOUT_S))
        return decode(response.node, NodeStatus)

    async def remove_node(self, address: str) -> None:
        """Raises KernalyseError."""
        request = messages.RemoveNodeRequest(address=address)
        await self.call(lambda stub: stub.RemoveNode(request, timeout=CALL_TIMEOUT_S))

    async def hardware(self, key: HardwareKey) -> Hardware:
        """Raises KernalyseError."""
        request = messages.GetHardwareRequest(node_id=key.node_id, device_id=key.device_id, run_id=key.run_id)
        return decode(await self.call(lambda stub: stub.GetHardware(request, timeout=CALL_TIMEOUT_S)), Hardware)

    async def update_hardware(self, key: HardwareKey, ceilings: Sequence[Ceiling], thresholds: Thresholds, etag: str) -> None:
        """Sets what holds for every page of everybody. Raises KernalyseError."""
        request = messages.UpdateHardwareRequest(
            node_id=key.node_id,
            device_id=key.device_id,
            run_id=key.run_id,
            ceilings=[encode(ceiling) for ceiling in ceilings],
            thresholds=encode(thresholds),
            etag=etag,
        )
        await self.call(lambda stub: stub.UpdateHardware(request, timeout=CALL_TIMEOUT_S))

    def table(self, query: TableQuery, timeout_s: float = CALL_TIMEOUT_S) -> Awaitable[TablePage]:
        """A page of a table, asked for at once: a page that is being made asks first. Raises KernalyseError."""
        return self.call(lambda stub: self._table(stub, query, timeout_s))

    async def _table(self, stub: Any, query: TableQuery, timeout_s: float = CALL_TIMEOUT_S) -> TablePage:
        frames: list[pl.DataFrame] = []
        total_row_count = 0
        with translated_errors():
            async for response in stub.GetTable(encode(query), timeout=timeout_s):
                total_row_count = total_row_count or response.total_row_count
                frames.append(await asyncio.to_thread(_frame, response.chunk.arrow_ipc))
        rows = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()
        return TablePage(rows, total_row_count)

    async def run_table(self, table_name: str, run_ids: tuple[str, ...], order_by: tuple[SortKey, ...] = ()) -> pl.DataFrame:
        """All rows of a table of the runs. Raises KernalyseError."""
        return (await self.table(TableQuery(table_name, run_ids, order_by=order_by))).rows

    async def report(self, run_id: str, chosen: ReportFormat, baseline_run_id: str, allowed_differences: tuple[str, ...]) -> bytes:
        """A report of the run, or of its comparison with the baseline where one is named, as a file. Raises KernalyseError."""
        request = messages.ExportReportRequest(
            run_id=run_id, format=chosen.value, baseline_run_id=baseline_run_id, allowed_differences=allowed_differences
        )
        return await self.call(lambda stub: _joined(stub.ExportReport(request, timeout=REPORT_TIMEOUT_S)))

    async def artifact(self, run_id: str, artifact_name: str) -> bytes:
        """A file that the run has left on its node. Raises KernalyseError."""
        return b"".join([part async for part in self.artifact_parts(run_id, artifact_name)])

    async def artifact_parts(self, run_id: str, artifact_name: str) -> AsyncGenerator[bytes, None]:
        """The same, part by part: the next is fetched when somebody asks for it. Raises KernalyseError."""
        request = messages.AnalyzerServiceReadArtifactRequest(run_id=run_id, artifact_name=artifact_name)

        async def begin(stub: Any) -> Any:
            return stub.ReadArtifact(request)

        stream = await self.call(begin)
        try:
            while (part := await self.call(lambda _: _next_part(stream))) is not None:
                yield part
        finally:
            self._loop.call_soon_threadsafe(stream.cancel)

    def _ask(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    # ------------------------------------------------------------ the client's own thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._loop.run_forever()
        self._loop.close()

    async def _open(self) -> None:
        self._channel = open_async_channel(self._endpoint)
        self._stub = AnalyzerServiceStub(self._channel)
        self._has_opened.set()

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._channel.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _forever(self, watch: Callable[[], Awaitable[None]], fail: Callable[[str], None]) -> None:
        """Watches again and again; returns when `watch` returns."""
        failure_count = 0
        while True:
            began = self._loop.time()
            try:
                return await watch()
            except KernalyseError as error:
                if isinstance(error, NotFoundError):
                    fail(error.message)
                    self._on_news()
                    return None
                fail(_problem(error))
            except Exception as error:
                logger.exception("A stream of the analyzer could not be read")
                fail(f"The analyzer's answer could not be read: {type(error).__name__}: {error}")
            self._on_news()
            failure_count = 0 if self._loop.time() - began > 10 else failure_count + 1
            await asyncio.sleep(RETRY_S[min(failure_count, len(RETRY_S) - 1)])

    async def _watch_nodes(self) -> None:
        with translated_errors():
            is_first = True
            async for response in self._stub.WatchNodes(messages.WatchNodesRequest()):
                gone = self.nodes.receive(
                    tuple(decode(node, NodeStatus) for node in response.nodes),
                    tuple(decode(run, Run) for run in response.runs),
                    tuple(decode(reading, NodeTelemetry) for reading in response.telemetry),
                    is_first,
                )
                for run in response.runs:
                    self._start_over_where_replaced(decode(run, Run))
                for address in response.removed_addresses:
                    self.nodes.forget(address)
                for run_id in (*gone, *response.deleted_run_ids):
                    self._take_in_deletion(run_id)
                changed = {decode(key, HardwareKey) for key in response.changed_hardware}
                if changed or is_first:
                    self._take_in_hardware(None if is_first else changed)
                is_first = False
                self._on_news()
        raise _StreamEndedError("stream of nodes", found="its end")

    def _take_in_deletion(self, run_id: str) -> None:
        self.nodes.forget_run(run_id)
        with self._lock:
            memory = self._memories.get(run_id)
            watch = self._watches.pop(run_id, None)
        if memory is not None:
            memory.end("It has been deleted.")
        if watch is not None:
            watch.cancel()

    def _is_watched(self, run_id: str) -> bool:
        watch = self._watches.get(run_id)
        return watch is not None and not watch.done()

    def _start_over_where_replaced(self, run: Run) -> None:
        """A file that is followed has changed: its run is the same, its rows are others. Or a run that was not there is there now."""
        with self._lock:
            memory = self._memories.get(run.run_id)
            if memory is None:
                return
            known = memory.run
            is_replaced = known is not None and run.is_imported and known.spec.work != run.spec.work
            is_back = known is None and memory.problem and not self._is_watched(run.run_id)
            if not is_replaced and not is_back:
                return
            memory.start_over()
            watch = self._watches.pop(run.run_id, None)
            if watch is not None:
                watch.cancel()
            if run.run_id in self._viewer_counts:
                self._watches[run.run_id] = self._spawn(self._watch_run_to_its_end(memory))
        self.nodes.count_up()

    def _take_in_hardware(self, changed: set[HardwareKey] | None) -> None:
        """Has everything worked out anew for these devices; None: for all, of which some may have changed unseen."""
        self.nodes.count_up()
        with self._lock:
            concerned = [memory for memory in self._memories.values() if changed is None or memory.hardware_keys & changed]
            for memory in concerned:
                if memory.run_id not in self._viewer_counts:
                    del self._memories[memory.run_id]
        for memory in concerned:
            if memory.run is not None:  # else its stream is about to bring it all
                older = self._reworks.get(memory.run_id)
                if older is not None:
                    older.cancel()  # its answers may come last, and are those of before
                self._reworks[memory.run_id] = asyncio.get_running_loop().create_task(self._work_out_anew(memory))

    async def _work_out_anew(self, memory: RunMemory) -> None:
        next_event_index = memory.next_event_index
        try:
            answers = [await self._table(self._stub, TableQuery(name, (memory.run_id,))) for name in TABLES_UNDER_CEILINGS]
        except KernalyseError as error:
            memory.fail(error.message)
        else:
            memory.replace({name: answer.rows for name, answer in zip(TABLES_UNDER_CEILINGS, answers, strict=True)}, next_event_index)
        self._on_news()

    async def _watch_run_to_its_end(self, memory: RunMemory) -> None:
        async def watch() -> None:
            request = messages.AnalyzerServiceWatchRunRequest(run_id=memory.run_id, next_event_index=memory.next_event_index)
            with translated_errors():
                async for response in self._stub.WatchRun(request):
                    frames = await asyncio.to_thread(frames_of, response.tables)
                    run = decode(response.run, Run) if response.HasField("run") else None
                    memory.receive(run, frames, response.next_event_index)
                    self._on_news()
            if memory.run is None or not memory.run.is_settled:
                raise _StreamEndedError(f"stream of run {memory.run_id}", found="its end before the run's")
            memory.is_complete = True
            self._on_news()

        with suppress(asyncio.CancelledError):
            await self._forever(watch, memory.fail)


class _StreamEndedError(KernalyseError):
    """A stream without end has ended, as when its server stops."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


def _problem(error: KernalyseError) -> str:
    words = "refuses the dashboard's token" if isinstance(error, UnauthenticatedError) else "does not answer"
    return f"The analyzer {words}: {error.message if isinstance(error, UnmetConditionError | UnauthenticatedError) else error.found}"


async def _joined(parts: AsyncIterable[Any]) -> bytes:
    return b"".join([part.chunk async for part in parts])


async def _next_part(stream: Any) -> bytes | None:
    """None: that was all. A node that has stopped sending is not waited for."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            response = await stream.read()
    except TimeoutError as error:
        raise UnavailableError("the file's node", found=f"nothing for {CALL_TIMEOUT_S:.0f} s") from error
    return None if response is grpc.aio.EOF else response.chunk


def frames_of(chunks: Iterable[TableChunk]) -> dict[str, pl.DataFrame]:
    """By name of the table; a large one comes in several chunks."""
    parts: dict[str, list[pl.DataFrame]] = {}
    for chunk in chunks:
        parts.setdefault(chunk.table_name, []).append(_frame(chunk.arrow_ipc))
    return {name: pl.concat(frames, how="vertical_relaxed", rechunk=False) for name, frames in parts.items()}


def _frame(arrow_ipc: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(arrow_ipc))
