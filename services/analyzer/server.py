"""The analyzer service: it decodes requests, calls the parts that answer them, and encodes the responses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import gc
import hashlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from prometheus_client.core import Metric

from kernalyse.discovery import runtime_directory
from kernalyse.services.analyzer.collect.joining import Joining, tunnel_target
from kernalyse.services.analyzer.collect.listed_nodes import lists_of
from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.nodes import Nodes
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.collect.trace_fetcher import TraceFetcher
from kernalyse.services.analyzer.ingest.imports import TraceImporter, UploadReader
from kernalyse.services.analyzer.ingest.uploads import UploadMessage
from kernalyse.services.analyzer.ingest.worker_pool import TaskExecutor, WorkerPool
from kernalyse.services.analyzer.limits import PersonLimits, Usage
from kernalyse.services.analyzer.queries.filters import MAX_CHUNK_BYTES, chunks
from kernalyse.services.analyzer.sign_in import IdTokens, SignIn
from kernalyse.services.analyzer.store.repositories import RunPosition
from kernalyse.services.analyzer.store.store import Store, open_store
from kernalyse.services.analyzer.tables.event_rows import initial_run, unix_ns
from kernalyse.services.core import protobuf
from kernalyse.services.core.access import caller_metadata, require, require_for_run, require_own
from kernalyse.services.core.errors import ArtifactNotFoundError, InvalidRequestError, InvalidSettingError, NodeUnreachableError
from kernalyse.services.core.identity import Identities, Identity, Scope, TokenFile, highest, parse_scope
from kernalyse.services.core.metrics import Metrics, device_metrics, served
from kernalyse.services.core.model import Ceiling, HardwareKey, NodeHealth, Run, RunSpec, TableQuery, Thresholds
from kernalyse.services.core.rpc import Endpoint, build_server, serve_health
from kernalyse.services.core.settings import AnalyzerSettings, advertised
from kernalyse.services.core.short_tokens import ShortToken, ShortTokens
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import profiler_service_pb2 as profiler
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceServicer, add_AnalyzerServiceServicer_to_server

if TYPE_CHECKING:
    from kernalyse.services.analyzer.queries.hardware_settings import HardwareSettings
    from kernalyse.services.analyzer.queries.service import TableAnswers

SERVICE_NAME: Final = "kernalyse.v1.AnalyzerService"
MAX_PAGE_SIZE: Final = 1000
DEFAULT_PAGE_SIZE: Final = 100
STOPPING_S: Final = 5.0

logger = logging.getLogger(__name__)


class AnalyzerServicer(AnalyzerServiceServicer):
    """Every method of the contract; the error interceptor turns what they raise into a status.

    Analyses are imported by the methods that need them, so that an analyzer started only to list runs does without.
    """

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        importer: TraceImporter,
        run_subscriptions: RunSubscriptions,
        node_subscriptions: NodeSubscriptions,
        sign_in: SignIn,
        usage: Usage,
        joining: Joining,
    ) -> None:
        self._usage = usage
        self._joining = joining
        self._store = store
        self._sign_in = sign_in
        self._nodes = nodes
        self._importer = importer
        self._run_subscriptions = run_subscriptions
        self._node_subscriptions = node_subscriptions

    @cached_property
    def _tables(self) -> TableAnswers:
        from kernalyse.services.analyzer.queries.service import TableAnswers

        return TableAnswers(self._store)

    @cached_property
    def _hardware(self) -> HardwareSettings:
        from kernalyse.services.analyzer.queries.hardware_settings import HardwareSettings

        return HardwareSettings(self._store, self._nodes.device)

    # ------------------------------------------------------------ people

    async def SignIn(self, request: Any, context: Any) -> Any:
        """Give out a short token for a credential."""
        given = request.password
        issued = await self._sign_in.sign_in(token=request.token, id_token=request.id_token, name=given.name, password=given.password)
        return messages.SignInResponse(signed_in=_signed_in(*issued))

    async def RenewToken(self, request: Any, context: Any) -> Any:
        """Give out another short token for the same person."""
        return messages.RenewTokenResponse(signed_in=_signed_in(*self._sign_in.renew(request.short_token)))

    # ------------------------------------------------------------ nodes

    async def AddNode(self, request: Any, context: Any) -> Any:
        """Start collecting from a node."""
        endpoint = Endpoint(
            request.address,
            request.token,
            request.ca_certificate or None,
            request.client_certificate or None,
            request.client_key or None,
        )
        return messages.AddNodeResponse(node=protobuf.encode(await self._nodes.add(endpoint)))

    async def ListNodes(self, request: Any, context: Any) -> Any:
        """Return every node with its status, and its newest telemetry."""
        statuses = self._nodes.statuses()
        newest = (reading for status in statuses if status.node for reading in self._node_subscriptions.newest(status.node.node_id))
        return messages.ListNodesResponse(nodes=map(protobuf.encode, statuses), telemetry=map(protobuf.encode, newest))

    async def RemoveNode(self, request: Any, context: Any) -> Any:
        """Stop collecting from a node; one that has joined may not come again with its token."""
        status = next((status for status in self._nodes.statuses() if status.address == request.address), None)
        await self._nodes.remove(request.address)
        if status is not None:
            await asyncio.to_thread(self._joining.forget, status)
        return messages.RemoveNodeResponse()

    async def CreateJoinToken(self, request: Any, context: Any) -> Any:
        """Make a join token."""
        token, token_id = await asyncio.to_thread(self._joining.create_token, request.use_count, request.lifetime_s)
        return messages.CreateJoinTokenResponse(join_token=token, token_id=token_id)

    async def Join(self, request: Any, context: Any) -> Any:
        """Collect from the profiler that calls."""
        return await self._joining.join(request)

    async def Tunnel(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        """Collect from the profiler that calls, through its stream."""
        async for response in self._joining.tunnel(aiter(request_iterator)):
            yield response

    async def WatchNodes(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream nodes, newest runs and telemetry, then their changes."""
        async for update in self._node_subscriptions.watch(self._nodes.statuses, self._newest_runs):
            yield messages.WatchNodesResponse(
                nodes=[protobuf.encode(status) for status in update.nodes],
                runs=[protobuf.encode(self._nodes.with_problem(run)) for run in update.runs],
                telemetry=[protobuf.encode(reading) for reading in update.telemetry],
                changed_hardware=[protobuf.encode(key) for key in update.changed_hardware],
                removed_addresses=update.removed_addresses,
                deleted_run_ids=update.deleted_run_ids,
            )

    def _newest_runs(self) -> Sequence[Run]:
        return [record.run for record in self._store.runs.newest(DEFAULT_PAGE_SIZE)]

    # ------------------------------------------------------------ forwarded to a node

    async def StartRun(self, request: Any, context: Any) -> Any:
        """Start or validate a run on a node."""
        require_for_run(protobuf.decode(request.spec, RunSpec))
        if not request.validate_only:
            await asyncio.to_thread(self._usage.check_start)
            await asyncio.to_thread(self._usage.check_store)
        client = await self._nodes.client(request.node_id)
        with client.errors():
            response = await client.stub.StartRun(
                profiler.ProfilerServiceStartRunRequest(
                    spec=request.spec, request_id=request.request_id, validate_only=request.validate_only
                ),
                metadata=caller_metadata(),
            )
        if request.validate_only:
            return messages.AnalyzerServiceStartRunResponse(run=response.run)
        run = protobuf.decode(response.run, Run)
        # Stored at once: a client that starts a run watches it next, perhaps before its first event has been collected.
        await asyncio.to_thread(self._store.runs.add, initial_run(run))
        self._node_subscriptions.publish(runs=[run])
        return messages.AnalyzerServiceStartRunResponse(run=response.run)

    async def CancelRun(self, request: Any, context: Any) -> Any:
        """Cancel a run on its node; an imported run has ended already."""
        run = await self._run(request.run_id)
        require_own(run.owner, f"run {run.run_id}")
        if run.is_imported:
            return messages.AnalyzerServiceCancelRunResponse(run=protobuf.encode(run))  # it has ended, and no node knows it
        client = await self._nodes.client(run.node_id)
        with client.errors():
            response = await client.stub.CancelRun(profiler.ProfilerServiceCancelRunRequest(run_id=run.run_id), metadata=caller_metadata())
        return messages.AnalyzerServiceCancelRunResponse(run=response.run)

    async def UploadBundle(self, request_iterator: Any, context: Any) -> Any:
        """Forward a source bundle to a node."""
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise InvalidRequestError("UploadBundle", found="no message", expected="at least one chunk", remedy="Send the bundle.")
        client = await self._nodes.client(first.node_id)
        problems: list[Exception] = []  # of the request stream: gRPC hides them, and ends the call to the node

        async def forward_chunks() -> AsyncIterator[Any]:
            yield profiler.ProfilerServiceUploadBundleRequest(chunk=first.chunk)
            try:
                async for part in request_iterator:
                    yield profiler.ProfilerServiceUploadBundleRequest(chunk=part.chunk)
            except Exception as problem:
                problems.append(problem)
                raise

        try:
            with client.errors():
                response = await client.stub.UploadBundle(forward_chunks(), metadata=caller_metadata())
        except NodeUnreachableError:
            if problems:
                raise problems[0] from None
            raise
        return messages.AnalyzerServiceUploadBundleResponse(
            digest=response.digest, size_bytes=response.size_bytes, file_count=response.file_count
        )

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Forward a file that a run left on its node."""
        run = await self._run(request.run_id)
        if run.is_imported:
            raise ArtifactNotFoundError(
                f"artifact {request.artifact_name!r} of run {run.run_id}",
                found="an imported run, which has none",
                expected="a run of a node",
                remedy="What was read from its file is in the tables.",
            )
        client = await self._nodes.client(run.node_id)
        forwarded = profiler.ProfilerServiceReadArtifactRequest(
            run_id=run.run_id, artifact_name=request.artifact_name, offset=request.offset
        )
        with client.errors():
            async for part in client.stub.ReadArtifact(forwarded):
                yield messages.AnalyzerServiceReadArtifactResponse(chunk=part.chunk)

    async def ListKernels(self, request: Any, context: Any) -> Any:
        """Forward the kernel catalog of a node, or the kernels that it finds in a source."""
        if request.HasField("source"):
            require(Scope.SOURCE, "kernels of a source that travels with a request")
        client = await self._nodes.client(request.node_id)
        with client.errors():
            response = await client.stub.ListKernels(
                profiler.ProfilerServiceListKernelsRequest(source=request.source if request.HasField("source") else None),
                metadata=caller_metadata(),
            )
        return messages.AnalyzerServiceListKernelsResponse(kernels=response.kernels, notices=response.notices)

    # ------------------------------------------------------------ runs

    async def GetRun(self, request: Any, context: Any) -> Any:
        """Return a run."""
        return messages.AnalyzerServiceGetRunResponse(run=protobuf.encode(self._nodes.with_problem(await self._run(request.run_id))))

    async def ListRuns(self, request: Any, context: Any) -> Any:
        """Return a page of runs, newest first."""
        size = _page_size(request.page_size)
        before = _parse_page_token(request.page_token) if request.page_token else None
        records = await asyncio.to_thread(self._store.runs.newest, size + 1, before)
        runs = [record.run for record in records[:size]]
        return messages.AnalyzerServiceListRunsResponse(
            runs=[protobuf.encode(self._nodes.with_problem(run)) for run in runs],
            next_page_token=_page_token(runs[-1]) if len(records) > size else "",
        )

    async def UpdateRun(self, request: Any, context: Any) -> Any:
        """Replace a run's tags and notes."""
        run_id = await self._resolve(request.run_id)
        run = await asyncio.to_thread(self._store.runs.annotate, run_id, tuple(request.tags), request.notes)
        await self._run_subscriptions.publish_run(run)
        self._node_subscriptions.publish(runs=[run])
        return messages.UpdateRunResponse(run=protobuf.encode(run))

    async def DeleteRun(self, request: Any, context: Any) -> Any:
        """Delete a run that has ended."""
        run = await self._run(request.run_id)
        require_own(run.owner, f"run {run.run_id}")
        run_id = run.run_id
        await asyncio.to_thread(self._store.delete_run, run_id)
        self._node_subscriptions.publish(deleted_run_ids=[run_id])
        return messages.DeleteRunResponse()

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream a run and its rows, then their changes."""
        run_id = await self._resolve(request.run_id)
        async for update in self._run_subscriptions.watch(run_id, request.next_event_index):
            yield messages.AnalyzerServiceWatchRunResponse(
                next_event_index=update.next_event_index,
                run=None if update.run is None else protobuf.encode(self._nodes.with_problem(update.run)),
                tables=[protobuf.encode(chunk) for chunk in update.tables],
            )

    async def ImportTrace(self, request_iterator: Any, context: Any) -> Any:
        """Import uploaded traces as a run."""
        await asyncio.to_thread(self._usage.check_store)
        parts = (
            UploadMessage(
                *(part.file_name, part.chunk, part.digest, part.upload_id, part.offset_bytes),
                *(part.is_last, part.is_further_trace, part.source_id),
            )
            async for part in request_iterator
        )
        result = await self._importer.receive(parts)
        if not result.is_known:
            self._node_subscriptions.publish(runs=[result.run])
        return messages.ImportTraceResponse(run=protobuf.encode(result.run), is_known=result.is_known)

    async def ResumeUpload(self, request: Any, context: Any) -> Any:
        """Return where an interrupted upload continues."""
        extent = self._importer.resume_position(request.upload_id)
        return messages.ResumeUploadResponse(whole_file_count=extent.whole_file_count, offset_bytes=extent.offset_bytes)

    async def WatchImport(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream the progress of an import."""
        async for progress in self._importer.progress(request.upload_id):
            yield messages.WatchImportResponse(progress=protobuf.encode(progress))

    async def CancelImport(self, request: Any, context: Any) -> Any:
        """Cancel an import."""
        self._importer.cancel(request.upload_id)
        return messages.CancelImportResponse()

    async def _resolve(self, text: str) -> str:
        return await asyncio.to_thread(self._store.runs.resolve, text)

    async def _run(self, text: str) -> Run:
        return (await asyncio.to_thread(self._store.runs.get, await self._resolve(text))).run

    # ------------------------------------------------------------ tables

    async def GetTable(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream the rows of a table, with filters, order and page applied."""
        from kernalyse.services.analyzer.analysis.comparison import parse_differences
        from kernalyse.services.analyzer.tables.runs import find_table

        query = protobuf.decode(request, TableQuery)
        table = find_table(query.table_name)
        run_ids = [await self._resolve(text) for text in query.run_ids] or None
        allowed = parse_differences(query.allowed_differences)
        result = await asyncio.to_thread(self._tables.answer, table, run_ids, query, allowed)
        parts = chunks(query.table_name, result.frame)
        total_row_count = result.total_row_count
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield messages.GetTableResponse(chunk=protobuf.encode(part), total_row_count=total_row_count)
            total_row_count = 0

    # ------------------------------------------------------------ hardware

    async def GetHardware(self, request: Any, context: Any) -> Any:
        """Return a device's ceilings and thresholds."""
        key = HardwareKey(request.node_id, request.device_id, request.run_id)
        return protobuf.encode(await asyncio.to_thread(self._hardware.get, key))

    async def UpdateHardware(self, request: Any, context: Any) -> Any:
        """Replace the user's ceilings and thresholds of a device."""
        key = HardwareKey(request.node_id, request.device_id, request.run_id)
        ceilings = [protobuf.decode(message, Ceiling) for message in request.ceilings]
        thresholds = protobuf.decode(request.thresholds, Thresholds) if request.HasField("thresholds") else None
        current = await asyncio.to_thread(self._hardware.update, key, ceilings, thresholds, request.etag)
        await self._run_subscriptions.publish_ceilings(key.node_id, key.device_id)
        self._node_subscriptions.publish(changed_hardware=[key])
        return messages.UpdateHardwareResponse(
            ceilings=[protobuf.encode(ceiling) for ceiling in current.ceilings],
            thresholds=protobuf.encode(current.thresholds),
            etag=current.etag,
        )

    # ------------------------------------------------------------ reports

    async def ExportReport(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream a report of a run, or of its comparison with a baseline."""
        from kernalyse.services.analyzer.analysis.comparison import parse_differences
        from kernalyse.services.analyzer.export.report_files import report_format
        from kernalyse.services.analyzer.export.run_reports import ReportRequest, run_report

        formats = tuple(dict.fromkeys(map(report_format, (request.format, *request.further_formats))))
        run = await self._run(request.run_id)
        baseline = await self._run(request.baseline_run_id) if request.baseline_run_id else None
        report_request = ReportRequest(run, formats, baseline, parse_differences(request.allowed_differences))
        files = await asyncio.to_thread(run_report, self._store, report_request, self._tables.history_of_run)
        for chosen, content in files.items():
            for start in range(0, len(content), MAX_CHUNK_BYTES):
                yield messages.ExportReportResponse(chunk=content[start : start + MAX_CHUNK_BYTES], format=chosen)


def _signed_in(text: str, short: ShortToken) -> Any:
    end, session_end = Timestamp(), Timestamp()
    end.FromNanoseconds(int(short.end_unix_s * 1e9))
    session_end.FromNanoseconds(int(short.session_end_unix_s * 1e9))
    identity = short.identity
    return messages.SignedIn(
        name=identity.name, scope=highest(identity.scopes), short_token=text, end_time=end, session_end_time=session_end
    )


def _page_size(page_size: int) -> int:
    if not 0 <= page_size <= MAX_PAGE_SIZE:
        raise InvalidRequestError(
            "page_size", found=str(page_size), expected=f"0 to {MAX_PAGE_SIZE}", remedy="Read the rest with next_page_token."
        )
    return page_size or DEFAULT_PAGE_SIZE


def _page_token(run: Run) -> str:
    return base64.urlsafe_b64encode(f"{unix_ns(run.create_time)} {run.run_id}".encode()).decode()


def _parse_page_token(page_token: str) -> RunPosition:
    try:
        create_unix_ns, run_id = base64.urlsafe_b64decode(page_token).decode().split(" ")
        return RunPosition(int(create_unix_ns), run_id)
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise InvalidRequestError(
            "page_token", found=repr(page_token), expected="next_page_token of a response", remedy="Begin with the first page."
        ) from error


async def serve(settings: AnalyzerSettings) -> None:
    """Run the service until SIGTERM or SIGINT. Raises what `serve_until` raises."""
    _load_analyses()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    await serve_until(settings, stop_requested)


def _load_analyses() -> None:
    """Import at start what the servicer imports on demand, so that the first responses of a lasting service need not wait for it."""
    for name in ("export.run_reports", "queries.hardware_settings", "queries.service"):
        import_module(f"kernalyse.services.analyzer.{name}")


async def serve_until(settings: AnalyzerSettings, stop_requested: asyncio.Event, on_serving: Callable[[], None] = lambda: None) -> None:
    """Run the service until a stop is requested, then end streams, collecting and calls, in this order.

    Args:
        stop_requested: set to stop the service.
        on_serving: called once the service is advertised and answers.

    Raises:
        StoreLockedError: another analyzer has the store open.
        InvalidSettingError: the address cannot be listened on.
    """
    async with (
        _task_executor(settings) as executor,
        _open_store(settings, executor) as (store, nodes, run_subscriptions, node_subscriptions),
    ):
        security = settings.security()
        short_tokens = ShortTokens(security.token)
        identities = Identities(security.token, security.tokens_file, read_short=short_tokens.identity_of)
        metrics = Metrics("analyzer")
        metrics.add_blocking(partial(_store_figures, metrics, store))
        metrics.add(partial(_node_figures, metrics, nodes, node_subscriptions))
        server, address = build_server(settings.address, replace(security, identities=identities, metrics=metrics))
        importer = TraceImporter(store, settings.import_max_bytes, executor, settings.op_registry_directory)
        limits = PersonLimits(
            settings.max_active_runs_per_person, settings.max_device_s_per_person_and_day, settings.max_stored_bytes_per_person
        )
        sign_in = SignIn(identities, short_tokens, _id_token_check(settings))
        tokens = TokenFile(settings.tokens_path())
        joining = Joining(nodes, tokens, identities, lambda: settings.contents("certificate_file"), _tunnel_sockets(settings))
        usage = Usage(store, limits)
        servicer = AnalyzerServicer(store, nodes, importer, run_subscriptions, node_subscriptions, sign_in, usage, joining)
        add_AnalyzerServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        health = serve_health(server, SERVICE_NAME)
        # Modules loaded so far stay for ever. Frozen, they do not slow down full collections, which every request waits for.
        gc.collect()
        gc.freeze()
        await server.start()
        try:
            with (
                served(
                    settings.metrics_address,
                    metrics,
                    identities.may_read,
                    settings.certificate_files,
                    is_insecure_allowed=settings.insecure,
                ) as where,
                advertised(settings.announcement_path(), settings.section, address, settings.token_file, settings.certificate_file),
            ):
                if where:
                    logger.info("Figures for Prometheus on %s/metrics.", where)
                health.set_serving(True)
                logger.info("Analyzer serves on %s", address)
                on_serving()
                await stop_requested.wait()
        finally:
            logger.info("Analyzer stops")
            health.set_serving(False)
            run_subscriptions.close()
            node_subscriptions.close()
            joining.close()
            await server.stop(STOPPING_S)


def _store_figures(metrics: Metrics, store: Store) -> Iterator[Metric]:
    """Yield what Prometheus is told of the store."""
    ended, going_on, size_bytes = store.runs.totals()
    yield metrics.gauges("runs", "Runs of the store.", "state", (("ended", ended), ("unfinished", going_on)))
    yield metrics.gauge("stored_bytes", "Of the Parquet files of all runs.", size_bytes)


def _node_figures(metrics: Metrics, nodes: Nodes, node_subscriptions: NodeSubscriptions) -> Iterator[Metric]:
    """Yield what Prometheus is told of the nodes and their devices."""
    statuses = nodes.statuses()
    healths = ((str(health).lower(), sum(status.health is health for status in statuses)) for health in NodeHealth)
    yield metrics.gauges("nodes", "Nodes by their health.", "health", healths)
    yield metrics.gauges("event_lag_seconds", "From the last event of a node to its commit.", "node", nodes.lags_s().items())
    known = [status.node for status in statuses if status.node is not None]
    names = {(node.node_id, device.device_id): device.name for node in known for device in node.devices}
    yield from device_metrics(
        (node.hostname, names.get((node.node_id, reading.telemetry.device_id), ""), reading.telemetry)
        for node in known
        for reading in node_subscriptions.newest(node.node_id)
        if reading.telemetry.device_id is not None
    )


def _id_token_check(settings: AnalyzerSettings) -> Callable[[str], Identity] | None:
    if not settings.oidc_issuer:
        return None
    claims = settings.oidc_name_claim, settings.oidc_groups_claim
    scopes: dict[str, Scope] = {}
    for text in settings.oidc_scopes:
        group, separator, scope = text.rpartition("=")
        if not separator:
            raise InvalidSettingError(
                "setting analyzer.oidc_scopes", found=repr(text), expected="GROUP=SCOPE", remedy="As gpu-team=source."
            )
        scopes[group] = parse_scope(scope)
    return IdTokens(settings.oidc_issuer, settings.oidc_client_id, *claims, scopes).check


def _tunnel_sockets(settings: AnalyzerSettings) -> Path:
    """Return the directory of the near ends of tunnels, apart from those of other analyzers of this user."""
    return runtime_directory() / f"tunnels-{hashlib.sha256(str(settings.data_directory.absolute()).encode()).hexdigest()[:8]}"


@asynccontextmanager
async def _task_executor(settings: AnalyzerSettings) -> AsyncIterator[TaskExecutor]:
    if settings.dask:
        from kernalyse.services.analyzer.ingest.dask_cluster import DaskCluster, Versions

        yield DaskCluster(settings.dask, Versions.here())
        return
    processes = WorkerPool(settings.import_process_count, settings.import_memory_bytes)
    try:
        yield processes
    finally:
        await processes.close()


@asynccontextmanager
async def _open_store(
    settings: AnalyzerSettings, executor: TaskExecutor
) -> AsyncIterator[tuple[Store, Nodes, RunSubscriptions, NodeSubscriptions]]:
    """Yield the store, the nodes that are collected from, and the subscriptions. Collecting ends before the store closes."""
    store = await asyncio.to_thread(open_store, settings)
    try:
        run_subscriptions, node_subscriptions = RunSubscriptions(store), NodeSubscriptions()
        trace_fetcher = TraceFetcher(store, UploadReader(executor), settings.import_max_bytes, run_subscriptions, node_subscriptions)
        nodes = Nodes(
            store,
            run_subscriptions,
            node_subscriptions,
            trace_fetcher,
            retry_s=settings.node_retry_s,
            is_insecure_allowed=settings.insecure,
            tunnel_target=partial(tunnel_target, _tunnel_sockets(settings)),
            forget_after_s=settings.forget_joined_nodes_after_s,
        )
        lists: list[asyncio.Task[None]] = []
        try:
            await nodes.start()
            lists += [asyncio.create_task(found.follow(settings.nodes_look_interval_s)) for found in lists_of(settings, nodes)]
            yield store, nodes, run_subscriptions, node_subscriptions
        finally:
            for task in lists:
                task.cancel()
            await asyncio.gather(*lists, return_exceptions=True)
            await nodes.stop()
    finally:
        await asyncio.to_thread(store.close)
