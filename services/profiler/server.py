"""The profiler service: puts its parts together, serves, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from kernalyse.v1 import profiler_service_pb2, profiler_service_pb2_grpc
from services.core.discovery import announced
from services.core.model import Node, NodePolicy
from services.core.rpc import build_server, serve_health
from services.core.settings import ProfilerSettings
from services.profiler.admission import Admission, NodeLimits
from services.profiler.bundles import BundleLimits, BundleStore
from services.profiler.catalog import load_catalog
from services.profiler.disk_keeping import keep_disk
from services.profiler.journal import Journal, News
from services.profiler.journal_writer import JournalLimits
from services.profiler.node import describe_node, probe_devices
from services.profiler.run_folder import RunFolder
from services.profiler.runs import Runs, RunsSettings
from services.profiler.servicer import ProfilerServicer
from services.profiler.telemetry import TelemetrySampler, open_readers

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = profiler_service_pb2.DESCRIPTOR.services_by_name["ProfilerService"].full_name

# -P: the working folder of a run holds foreign files, and must not be a place to import from.
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "services.profiler.worker")

CLOSE_GRACE_S: Final = 2.0
"""For calls in flight at the very end, when every watch stream has been told."""


async def serve(
    settings: ProfilerSettings, *, worker_command: Sequence[str] | None = None, probe_command: Sequence[str] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; then drain and return. A second signal cancels what still runs.

    Args:
        worker_command: runs instead of the worker; for tests of what a worker can do wrong.
        probe_command: runs instead of the search for devices.

    Raises:
        InvalidSettingError: a setting cannot be used, or the address is taken.
        StoreLockedError: another service uses the data folder.
        StorageFullError: the journal cannot be opened.
    """
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signals = _Signals()
    server, address = build_server(settings.address, settings.security())
    async with _open_service(settings, worker_command, probe_command) as service:
        profiler_service_pb2_grpc.add_ProfilerServiceServicer_to_server(service.servicer, server)  # type: ignore[no-untyped-call]
        health = serve_health(server, SERVICE_NAME)
        await server.start()
        health.set_serving(True)
        with announced(settings.announcement_path(), settings.section, address, settings.token_file, settings.certificate_file):
            logger.info("Serving on %s with %s.", address, ", ".join(device.device_id for device in service.node.devices) or "no device")
            await signals.first.wait()
            logger.info("Shutting down.")
            health.set_serving(False)
            await service.runs.drain(settings.drain_s, signals.second)
        service.servicer.close_watches()
        await server.stop(CLOSE_GRACE_S)


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


@contextlib.asynccontextmanager
async def _open_service(
    settings: ProfilerSettings, worker_command: Sequence[str] | None, probe_command: Sequence[str] | None
) -> AsyncIterator[_Service]:
    """Yield all parts of the service, at work; closed in the opposite order."""
    news = News()
    runs_folder = settings.data_folder / "runs"
    limits = JournalLimits(settings.journal_max_bytes, settings.journal_max_age_s)
    journal = await Journal.open(settings.data_folder, limits, news, forget=lambda run_id: RunFolder(runs_folder, run_id).delete())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(journal.close)
        probed = await probe_devices(probe_command)
        for notice in probed.notices:
            logger.info(notice)
        policy = NodePolicy(settings.allow_inline_source, settings.allow_commands, settings.allow_catalog_only)
        node = describe_node(settings.data_folder, journal.journal_id, probed, policy)
        catalog = load_catalog()
        bundles = BundleStore(
            settings.data_folder / "bundles",
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
        admission = Admission(policy, node_limits, node.devices, node.notices, catalog, bundles, settings.allowed_commands)
        runs_settings = RunsSettings(
            runs_folder,
            tuple(worker_command or _worker_command(settings)),
            settings.max_queued_run_count,
            settings.configuration_time_limit_s,
            settings.grace_s,
            settings.command_grace_s,
        )
        runs = Runs(runs_settings, journal, admission, node)
        telemetry = TelemetrySampler(
            open_readers(node.devices),
            interval_s=settings.telemetry_interval_s,
            idle_interval_s=settings.idle_telemetry_interval_s,
            running=lambda: bool(runs.running_run_ids),
            record=runs.record_telemetry,
            announce=news.announce,
        )
        await _background(stack, await runs.recover())
        await _background(stack, asyncio.create_task(telemetry.sample()))
        await _background(stack, asyncio.create_task(keep_disk(runs, bundles, runs_folder, settings.artifacts_max_bytes)))
        servicer = ProfilerServicer(node=node, runs=runs, journal=journal, news=news, telemetry=telemetry, bundles=bundles, catalog=catalog)
        yield _Service(node, runs, servicer)


async def _background(stack: contextlib.AsyncExitStack, task: asyncio.Task[None]) -> None:
    """Have the task cancelled when the stack closes, and wait until it has ended."""

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)


def _worker_command(settings: ProfilerSettings) -> tuple[str, ...]:
    runtime = ("--opencl-runtime", settings.opencl_runtime) if settings.opencl_runtime else ()
    kept = ("--ceilings-file", str(settings.ceilings_file), "--cache-folder", str(settings.data_folder / "cubins"))
    nsys = ("--nsys-program", str(settings.nsys_program)) if settings.nsys_program else ()
    grace = ("--command-grace-s", str(settings.command_grace_s))
    return (*WORKER_COMMAND, *runtime, *kept, *nsys, *grace)
