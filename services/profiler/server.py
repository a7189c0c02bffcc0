"""The profiler service: its parts, its RPCs, and its orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import Metric

from kernalyse.discovery import config_directory, runtime_directory
from kernalyse.services.core import protobuf
from kernalyse.services.core.access import require, require_for_run
from kernalyse.services.core.errors import ForbiddenError, InvalidRequestError, KernalyseError, ShuttingDownError, observing_error
from kernalyse.services.core.identity import Identities, Scope
from kernalyse.services.core.metrics import Metrics, device_metrics, served
from kernalyse.services.core.model import Device, KernelSource, Node, NodePolicy, Run, RunSpec
from kernalyse.services.core.rpc import build_server, cancel_and_wait, serve_health
from kernalyse.services.core.settings import ProfilerSettings, advertised, data_directory
from kernalyse.services.profiler.joining import Joiner, prepared
from kernalyse.services.profiler.journal.journal import ChangeNotifier, Journal
from kernalyse.services.profiler.journal.writer import JournalLimits
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, catalog_directory, load_catalog, source_kernels
from kernalyse.services.profiler.node import ProbedDevices, TelemetrySampler, describe_node, open_readers, probe_devices, with_state
from kernalyse.services.profiler.pod_resources import PodDevices
from kernalyse.services.profiler.processes.sandbox import Sandbox, open_sandbox
from kernalyse.services.profiler.runs.admission import Admission, NodeLimits
from kernalyse.services.profiler.runs.device_watch import DeviceWatch
from kernalyse.services.profiler.runs.files import MAX_CHUNK_BYTES, BundleLimits, BundleStore, RunDirectory
from kernalyse.services.profiler.runs.scheduler import Runs, RunsSettings
from kernalyse.services.profiler.workloads.recording import Recording
from kernalyse.v1 import profiler_service_pb2, profiler_service_pb2_grpc
from kernalyse.v1 import profiler_service_pb2 as messages

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = profiler_service_pb2.DESCRIPTOR.services_by_name["ProfilerService"].full_name

# -P: the working directory of a run holds foreign files, and must not be a place to import from.
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "kernalyse.services.profiler.worker")

CLOSE_GRACE_S: Final = 2.0
"""For calls in flight at the very end, when every watch stream has been told."""


async def serve(
    settings: ProfilerSettings, *, worker_command: Sequence[str] | None = None, probe_command: Sequence[str] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully. A second signal cancels the runs that are left.

    Args:
        worker_command: runs instead of the worker; for tests of what a worker can do wrong.
        probe_command: runs instead of the search for devices.

    Raises:
        InvalidSettingError: a setting cannot be used, or the address is taken.
        StoreLockedError: another service uses the data directory.
        StorageFullError: the journal cannot be opened.
        KernalyseError: the analyzer that it is to join does not take it.
    """
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signals = _Signals()
    if settings.join:
        settings = prepared(settings)
    metrics, security = Metrics("profiler"), settings.security()
    identities = Identities(security.token, security.tokens_file)
    server, address = build_server(settings.address, replace(security, identities=identities, metrics=metrics))
    local_address = _open_local(server, settings) if settings.join and settings.tunnel else ""
    async with _open_service(settings, worker_command, probe_command) as service:
        profiler_service_pb2_grpc.add_ProfilerServiceServicer_to_server(service.servicer, server)  # type: ignore[no-untyped-call]
        health = serve_health(server, SERVICE_NAME)
        await server.start()
        health.set_serving(True)
        devices = ", ".join(device.device_id for device in service.node.devices) or "no device"
        metrics.add(partial(service.figures, metrics))
        async with _joining(settings, service.node, address, local_address) as joining:
            with (
                advertised(settings.announcement_path(), settings.section, address, settings.token_file, settings.certificate_file),
                served(
                    settings.metrics_address,
                    metrics,
                    identities.may_read,
                    settings.certificate_files,
                    is_insecure_allowed=settings.insecure,
                ) as where,
            ):
                logger.info("Serving on %s with %s.", address, devices)
                if where:
                    logger.info("Figures for Prometheus on %s/metrics.", where)
                refusal = await _until(signals.first, joining)
                logger.info("Shutting down.")
                health.set_serving(False)
                if settings.replay is not None:  # they begin anew at the next start
                    for run_id in service.runs.queued_run_ids:
                        await service.runs.cancel(run_id)
                await service.runs.drain(settings.drain_s, signals.second)
            service.servicer.close_watches()
            await server.stop(CLOSE_GRACE_S)
    if refusal is not None:
        raise refusal


def _open_local(server: Any, settings: ProfilerSettings) -> str:
    """Have the server listen for the tunnel too, where this user alone reaches it, and return that address."""
    directory = runtime_directory()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    address = f"unix:{directory}/profiler-{os.getpid()}.sock"
    server.add_insecure_port(address)
    return address


@contextlib.asynccontextmanager
async def _joining(settings: ProfilerSettings, node: Node, address: str, local_address: str) -> AsyncIterator[asyncio.Task[None] | None]:
    """Have the node join the analyzer of the settings, and yield the task that does; the tunnel lasts as long as the block."""
    task = asyncio.create_task(Joiner(settings, node, address, local_address).run()) if settings.join else None
    try:
        yield task
    finally:
        if task is not None:
            await cancel_and_wait(task)
        if local_address:
            Path(local_address.removeprefix("unix:")).unlink(missing_ok=True)


async def _until(stop: asyncio.Event, joining: asyncio.Task[None] | None) -> KernalyseError | None:
    """Return when it is time to stop, and why: the node may not join; None: somebody wants it to."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *([joining] if joining else [])], return_when=asyncio.FIRST_COMPLETED)
        if joining is not None and joining.done():
            if isinstance(error := joining.exception(), KernalyseError):
                return error
            joining.result()
            await stopping
        return None
    finally:
        stopping.cancel()


class _Signals:
    """Shutdown signals. first and second: set by the first and second SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._receive)

    def _receive(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@dataclass(frozen=True, slots=True)
class _Service:
    node: Node
    runs: Runs
    servicer: ProfilerServicer
    journal: Journal
    telemetry: TelemetrySampler

    def figures(self, metrics: Metrics) -> Iterator[Metric]:
        """Yield what Prometheus is told of this node."""
        counts = (("queued", len(self.runs.queued_run_ids)), ("running", len(self.runs.running_run_ids)))
        yield metrics.gauges("runs", "Runs that wait or run.", "state", counts)
        yield metrics.gauge("storage_problem", "1: the journal cannot be written.", float(bool(self.journal.problem)))
        names = {device.device_id: device.name for device in self.node.devices}
        readings = (reading for reading in self.telemetry.latest if reading.device_id is not None)
        yield from device_metrics((self.node.hostname, names.get(reading.device_id or "", ""), reading) for reading in readings)


@contextlib.asynccontextmanager
async def _open_service(
    settings: ProfilerSettings, worker_command: Sequence[str] | None, probe_command: Sequence[str] | None
) -> AsyncIterator[_Service]:
    """Start all parts of the service and yield them; they are closed in the opposite order."""
    recording = None if settings.replay is None else Recording.open(settings.replay)
    probe = partial(probe_devices, probe_command) if recording is None else partial(_recorded_devices, recording)
    news = ChangeNotifier()
    runs_directory = settings.data_directory / "runs"
    limits = JournalLimits(settings.journal_max_bytes, settings.journal_max_age_s)
    journal = await Journal.open(settings.data_directory, limits, news, forget=lambda run_id: RunDirectory(runs_directory, run_id).delete())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(journal.close)
        probed = await probe()
        for notice in probed.notices:
            logger.info(notice)
        observes_only = settings.observe_only or recording is not None
        policy = NodePolicy(settings.allow_inline_source, settings.allow_commands, settings.allow_catalog_only, observes_only)
        sandbox = _open_sandbox(settings)
        node = describe_node(settings.data_directory, journal.journal_id, probed, policy, settings.node_name)
        node = replace(node, sandbox=sandbox.explanation)
        catalog = load_catalog()
        bundles = BundleStore(
            settings.data_directory / "bundles",
            BundleLimits(
                max_bytes=settings.bundle_max_bytes,
                max_unpacked_bytes=settings.bundle_max_unpacked_bytes,
                max_file_count=settings.bundle_max_file_count,
                max_age_s=settings.bundle_max_age_s,
                max_total_bytes=settings.bundles_max_bytes,
            ),
        )
        node_limits = NodeLimits(
            int(settings.run_time_limit_s * 1_000_000_000), settings.run_memory_limit_bytes, settings.max_configuration_count
        )
        watch = DeviceWatch(node.devices, partial(_probed, probe))
        admission = Admission(
            policy, node_limits, node.devices, node.notices, catalog, bundles, settings.allowed_commands, watch, node.hostname, recording
        )
        settings.caches_directory.mkdir(exist_ok=True)
        runs_settings = RunsSettings(
            sandbox,
            runs_directory,
            tuple(worker_command or _worker_command(settings)),
            settings.max_queued_run_count,
            settings.configuration_time_limit_s,
            settings.grace_s,
            settings.command_grace_s,
        )
        runs = Runs(runs_settings, journal, admission, node, watch)
        pods = PodDevices(settings.pod_resources_socket)
        stack.callback(pods.close)
        telemetry = TelemetrySampler(
            open_readers(node.devices if recording is None else (), hear_xid=watch.hear_xid, pods=pods),
            interval_s=settings.telemetry_interval_s,
            idle_interval_s=settings.idle_telemetry_interval_s,
            running=lambda: bool(runs.running_run_ids),
            record=runs.record_telemetry,
            notify=news.notify,
        )
        await _background(stack, await runs.recover())
        if recording is not None:
            for run in recording.runs:
                await runs.start(run.spec, request_id="")
        await _background(stack, asyncio.create_task(telemetry.sample()))
        await _background(stack, asyncio.create_task(watch.look(news.notify)))
        await _background(stack, asyncio.create_task(enforce_disk_limits(runs, bundles, runs_directory, settings.artifacts_max_bytes)))
        servicer = ProfilerServicer(
            node=node, runs=runs, journal=journal, news=news, telemetry=telemetry, bundles=bundles, catalog=catalog, watch=watch
        )
        yield _Service(node, runs, servicer, journal, telemetry)


async def _recorded_devices(recording: Recording) -> ProbedDevices:
    return ProbedDevices(recording.devices, ())


async def _probed(probe: Callable[[], Awaitable[ProbedDevices]]) -> tuple[Sequence[Device], Sequence[str]]:
    """Return the devices there are now, and what is missing."""
    found = await probe()
    return found.devices, found.notices


async def _background(stack: contextlib.AsyncExitStack, task: asyncio.Task[None]) -> None:
    """Have the task cancelled when the stack closes, and wait until it has ended."""

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)


def _worker_command(settings: ProfilerSettings) -> tuple[str, ...]:
    runtime = ("--opencl-runtime", settings.opencl_runtime) if settings.opencl_runtime else ()
    caches = ("--ceilings-file", str(settings.ceilings_file), "--cache-directory", str(settings.caches_directory / "cubins"))
    nsys = ("--nsys-program", str(settings.nsys_program)) if settings.nsys_program else ()
    grace = ("--command-grace-s", str(settings.command_grace_s))
    replay = ("--replay", str(settings.replay)) if settings.replay else ()
    return (*WORKER_COMMAND, *runtime, *caches, *nsys, *grace, *replay)


def _open_sandbox(settings: ProfilerSettings) -> Sandbox:
    """Return what keeps runs from the service's own files. Raises UnmetConditionError."""
    hidden = (Path.home(), data_directory(), config_directory(), runtime_directory(), settings.data_directory)
    secrets = (settings.token_file, settings.tokens_path(), settings.audit_path(), settings.key_file, settings.join_token_file)
    programs = () if settings.nsys_program is None else (settings.nsys_program.parent,)
    return open_sandbox(
        settings.sandbox if settings.replay is None else "off",  # nothing of others runs
        is_required=settings.sandbox_required,
        hidden=(*hidden, *(path for path in secrets if path is not None)),
        readable=(*settings.sandbox_readable, *programs, catalog_directory()),
        caches=settings.caches_directory,
        user_name=settings.sandbox_user,
        process_count=settings.sandbox_process_count,
    )


# ---------------------------------------------------------------- servicer
# Each RPC decodes, calls and encodes.

WATCH_RESPONSE_BYTES: Final = 1024 * 1024
"""Of events in one response. Smaller ones cost more calls; larger ones hold more memory for each stalled watcher."""

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1000


class ProfilerServicer(profiler_service_pb2_grpc.ProfilerServiceServicer):
    """The RPCs of ProfilerService."""

    def __init__(
        self,
        *,
        node: Node,
        runs: Runs,
        journal: Journal,
        news: ChangeNotifier,
        telemetry: TelemetrySampler,
        bundles: BundleStore,
        catalog: Catalog,
        watch: DeviceWatch,
    ) -> None:
        self._node = node
        self._watch = watch
        self._runs = runs
        self._journal = journal
        self._news = news
        self._telemetry = telemetry
        self._bundles = bundles
        self._catalog = catalog
        self._is_closing = False

    def close_watches(self) -> None:
        """End every watch stream that has nothing left to send."""
        self._is_closing = True
        self._news.notify()

    async def GetNode(self, request: messages.GetNodeRequest, context: Any) -> messages.GetNodeResponse:
        """Return the node with its devices, limits and the state of its queues."""
        return messages.GetNodeResponse(node=protobuf.encode(self._described_node()))

    async def ListKernels(
        self, request: messages.ProfilerServiceListKernelsRequest, context: Any
    ) -> messages.ProfilerServiceListKernelsResponse:
        """Return the kernels of the catalog or, where the request has a source, those of the source."""
        if not request.HasField("source"):
            return messages.ProfilerServiceListKernelsResponse(
                kernels=[protobuf.encode(kernel) for kernel in self._catalog.definitions.values()]
            )
        require(Scope.SOURCE, "kernels of a source that travels with a request")
        policy = self._node.policy
        if policy.allow_catalog_only or not policy.allow_inline_source:
            raise ForbiddenError("sources that travel with a request", found="switched off on this node", remedy="Ask its owner.")
        listed = await asyncio.to_thread(source_kernels, protobuf.decode(request.source, KernelSource))
        return messages.ProfilerServiceListKernelsResponse(
            kernels=[protobuf.encode(definition) for definition in listed.definitions], notices=listed.notices
        )

    # ------------------------------------------------------------ runs

    async def StartRun(self, request: messages.ProfilerServiceStartRunRequest, context: Any) -> messages.ProfilerServiceStartRunResponse:
        """Queue a run, or only check its spec, and return the run."""
        spec = protobuf.decode(request.spec, RunSpec)
        require_for_run(spec)
        run = await (self._runs.checked(spec) if request.validate_only else self._runs.start(spec, request.request_id))
        return messages.ProfilerServiceStartRunResponse(run=protobuf.encode(run))

    async def GetRun(self, request: messages.ProfilerServiceGetRunRequest, context: Any) -> messages.ProfilerServiceGetRunResponse:
        """Return one run."""
        return messages.ProfilerServiceGetRunResponse(run=protobuf.encode(await self._runs.get(request.run_id)))

    async def ListRuns(self, request: messages.ProfilerServiceListRunsRequest, context: Any) -> messages.ProfilerServiceListRunsResponse:
        """Return one page of runs, newest first."""
        page = await self._runs.list(_run_number(request.page_token), min(request.page_size, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE)
        return messages.ProfilerServiceListRunsResponse(
            runs=[protobuf.encode(run) for run in page.runs],
            next_page_token="" if page.next_run_number is None else str(page.next_run_number),
        )

    async def CancelRun(self, request: messages.ProfilerServiceCancelRunRequest, context: Any) -> messages.ProfilerServiceCancelRunResponse:
        """Cancel a run that has not ended, and return it."""
        return messages.ProfilerServiceCancelRunResponse(run=protobuf.encode(await self._runs.cancel(request.run_id)))

    # ------------------------------------------------------------ watching

    async def WatchRun(
        self, request: messages.ProfilerServiceWatchRunRequest, context: Any
    ) -> AsyncIterator[messages.ProfilerServiceWatchRunResponse]:
        """Stream the events of one run, from an index on, until its final state."""
        cursor = await self._journal.cursor(_event_index(request.next_event_index), request.run_id)
        run: Run | None = None
        while True:
            news = self._news.next()
            if run is None or not run.state.is_final:
                run = await self._runs.get(request.run_id)
            # The journal has a run's last event before its final state shows: final and nothing to read means all was read.
            frames = await self._journal.read(cursor, WATCH_RESPONSE_BYTES)
            if frames:
                yield messages.ProfilerServiceWatchRunResponse.FromString(frames)
            elif run.state.is_final:
                self._runs.check_complete(run.run_id)
                return
            else:
                await self._wait_for(news)

    async def WatchNode(self, request: messages.WatchNodeRequest, context: Any) -> AsyncIterator[messages.WatchNodeResponse]:
        """Stream the events of all runs, from an index on, the telemetry of the idle node and changes of the node itself."""
        is_other_journal = request.journal_id not in ("", self._journal.journal_id)
        cursor = await self._journal.cursor(0 if is_other_journal else _event_index(request.next_event_index))
        telemetry_position = 0
        reported_problem: str | None = None  # None: the node has not been reported yet
        while True:
            news = self._news.next()
            node = None if self._journal.problem == reported_problem else self._described_node()
            frames = await self._journal.read(cursor, WATCH_RESPONSE_BYTES)
            idle_telemetry, telemetry_position = self._telemetry.idle_after(telemetry_position)
            if frames or idle_telemetry or node is not None:
                response = messages.WatchNodeResponse.FromString(frames)
                response.idle_telemetry.extend(protobuf.encode(reading) for reading in idle_telemetry)
                if node is not None:
                    response.node.CopyFrom(protobuf.encode(node))
                    reported_problem = node.storage_problem
                yield response
            else:
                await self._wait_for(news)

    async def _wait_for(self, news: asyncio.Event) -> None:
        if self._is_closing:
            raise ShuttingDownError("this node", found="it is shutting down", remedy="Watch on from the next index when it has restarted.")
        await news.wait()

    # ------------------------------------------------------------ files

    async def UploadBundle(self, requests: AsyncIterator[Any], context: Any) -> messages.ProfilerServiceUploadBundleResponse:
        """Store an uploaded archive, and return its digest."""
        policy = self._node.policy
        if policy.observe_only:
            raise observing_error(self._node.hostname)
        if policy.allow_catalog_only or not (policy.allow_inline_source or policy.allow_commands):
            raise ForbiddenError("bundles", found="switched off on this node", remedy="Ask its owner, or use another node.")
        bundle = await self._bundles.receive(request.chunk async for request in requests)
        await asyncio.to_thread(self._bundles.expire, self._runs.bundle_digests)
        return messages.ProfilerServiceUploadBundleResponse(
            digest=bundle.digest, size_bytes=bundle.size_bytes, file_count=bundle.file_count
        )

    async def ReadArtifact(
        self, request: messages.ProfilerServiceReadArtifactRequest, context: Any
    ) -> AsyncIterator[messages.ProfilerServiceReadArtifactResponse]:
        """Stream one artifact of a run in chunks."""
        await self._runs.get(request.run_id)
        with self._runs.directory(request.run_id).open_artifact(request.artifact_name) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if request.offset > size_bytes:
                raise InvalidRequestError(
                    f"offset into artifact {request.artifact_name}", found=str(request.offset), expected=f"at most {size_bytes}"
                )
            file.seek(request.offset)
            while chunk := await asyncio.to_thread(file.read, MAX_CHUNK_BYTES):
                yield messages.ProfilerServiceReadArtifactResponse(chunk=chunk)

    def _described_node(self) -> Node:
        node = replace(self._node, notices=(*self._watch.notices, *self._node.notices))
        return with_state(node, self._runs.running_run_ids, self._runs.queued_run_ids, self._journal.problem)


def _event_index(value: int) -> int:
    if value < 0:
        raise InvalidRequestError("next_event_index", found=str(value), expected="0 or more", remedy="0 asks for the oldest stored event.")
    return value


def _run_number(page_token: str) -> int | None:
    if not page_token:
        return None
    if not page_token.isdecimal() or len(page_token) > 18:
        raise InvalidRequestError("page_token", found=page_token, expected="next_page_token of the answer before, or nothing")
    return int(page_token)


# ---------------------------------------------------------------- disk limits
# Artifacts and bundles are kept within the node's limits on disk; the journal has its own limits.

INTERVAL_S: Final = 600.0
"""Between looks. What arrives in ten minutes may be over the limits for as long; looking walks over every file."""


async def enforce_disk_limits(runs: Runs, bundles: BundleStore, runs_directory: Path, artifacts_max_bytes: int) -> None:
    """Enforce the disk limits at intervals, without end."""
    while True:
        for digest in await asyncio.to_thread(bundles.expire, runs.bundle_digests):
            logger.info("Bundle %s is deleted: it is long unused, or others need the space.", digest)
        active = (*runs.running_run_ids, *runs.queued_run_ids)
        for run_id in await asyncio.to_thread(drop_artifacts, runs_directory, artifacts_max_bytes, active):
            logger.info("Run %s loses its artifacts: all runs' together are over their limit.", run_id)
        await asyncio.sleep(INTERVAL_S)


def drop_artifacts(runs_directory: Path, max_bytes: int, active_run_ids: Collection[str]) -> tuple[str, ...]:
    """Delete artifacts of finished runs, the oldest first, until all together are within the limit; return their ids."""
    directories = sorted((path for path in runs_directory.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = {path.name: RunDirectory(runs_directory, path.name).artifacts_size_bytes() for path in directories}
    total_bytes = sum(sizes.values())
    dropped: list[str] = []
    for run_id, size_bytes in sizes.items():
        if total_bytes > max_bytes and size_bytes > 0 and run_id not in active_run_ids:
            RunDirectory(runs_directory, run_id).delete_artifacts()
            total_bytes -= size_bytes
            dropped.append(run_id)
    return tuple(dropped)
