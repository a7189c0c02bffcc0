"""The analyzer service: its parts are made, joined and served until it stops."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from kernalyse.channel import is_address
from kernalyse.discovery import runtime_directory
from kernalyse.services.analyzer.collect.joining import Joining, tunnel_target
from kernalyse.services.analyzer.collect.listed_nodes import lists_of
from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.nodes import Nodes
from kernalyse.services.analyzer.collect.peers import Peers
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.collect.trace_fetcher import TraceFetcher
from kernalyse.services.analyzer.forwarding import ForwardingInterceptor
from kernalyse.services.analyzer.ingest.imports import TraceImporter, UploadReader
from kernalyse.services.analyzer.ingest.worker_pool import TaskExecutor, WorkerPool
from kernalyse.services.analyzer.limits import PersonLimits, Usage
from kernalyse.services.analyzer.servicer import AnalyzerServicer
from kernalyse.services.analyzer.sign_in import IdTokens, SignIn
from kernalyse.services.analyzer.store.store import Store, open_store
from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.identity import Identities, Identity, Scope, TokenFile, parse_scope
from kernalyse.services.core.metrics import Metrics, device_metrics, served
from kernalyse.services.core.model import NodeHealth
from kernalyse.services.core.rpc import Endpoint, build_server, cancel_and_wait, serve_health
from kernalyse.services.core.settings import AnalyzerSettings, advertised
from kernalyse.services.core.short_tokens import ShortTokens
from kernalyse.v1.analyzer_service_pb2_grpc import add_AnalyzerServiceServicer_to_server

SERVICE_NAME: Final = "kernalyse.v1.AnalyzerService"
STOPPING_S: Final = 5.0
"""For calls in flight at the end."""

IN_USE_INTERVAL_S: Final = 0.02
CATALOGUE_STOPPING_S: Final = 10.0
"""For what is written to the catalogue at the end, and then once a second to cut what its server does not answer. Less, and what a slow one
would still have committed is collected again; more, and systemd and Kubernetes kill the service, which then says nothing."""

logger = logging.getLogger(__name__)


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
        _open_store(settings, executor) as (store, nodes, run_subscriptions, node_subscriptions, peers),
    ):
        security = settings.security()
        short_tokens = ShortTokens(security.token)
        identities = Identities(security.token, security.tokens_file, read_short=short_tokens.identity_of)
        metrics = Metrics("analyzer")
        metrics.add_blocking(partial(_store_figures, metrics, store))
        metrics.add(partial(_node_figures, metrics, nodes, node_subscriptions))
        forwarding = () if peers is None else (ForwardingInterceptor(peers, store),)
        server, address = build_server(settings.address, replace(security, identities=identities, metrics=metrics), forwarding)
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
    statuses = nodes.own_statuses()  # of several analyzers each tells of its own
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
) -> AsyncIterator[tuple[Store, Nodes, RunSubscriptions, NodeSubscriptions, Peers | None]]:
    """Yield the store, the nodes that are collected from, the subscriptions, and the other analyzers of the store, where it has several.

    Collecting ends before the store closes.
    """
    _check_peer_address(settings)
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
        peers = None
        if store.leases is not None:
            peers = Peers(store.leases, store, nodes, run_subscriptions, node_subscriptions, partial(_peer_endpoint, settings))
        going_on: list[asyncio.Task[None]] = []
        try:
            await nodes.start()
            if peers is not None:
                going_on.append(asyncio.create_task(peers.run(), name="peers"))
            going_on += [asyncio.create_task(found.follow(settings.nodes_look_interval_s)) for found in lists_of(settings, nodes)]
            yield store, nodes, run_subscriptions, node_subscriptions, peers
        finally:
            async with _catalogue_given_up(store):
                await cancel_and_wait(*going_on)
                await nodes.stop()
                if peers is not None:
                    await peers.leave()
                while store.catalogue.is_in_use:  # by threads whose tasks have been cancelled
                    await asyncio.sleep(IN_USE_INTERVAL_S)
    finally:
        await asyncio.to_thread(store.close)


@asynccontextmanager
async def _catalogue_given_up(store: Store) -> AsyncIterator[None]:
    """Cut the connections to the catalogue's server when the block takes too long: an answer that never comes must not keep it."""

    async def give_up() -> None:
        await asyncio.sleep(CATALOGUE_STOPPING_S)
        logger.warning(
            "The catalogue has not answered within %g s: connections to it are cut. What it has not taken is collected again.",
            CATALOGUE_STOPPING_S,
        )
        while True:
            store.catalogue.abandon()
            await asyncio.sleep(1.0)

    task = asyncio.create_task(give_up())
    try:
        yield
    finally:
        await cancel_and_wait(task)


def _check_peer_address(settings: AnalyzerSettings) -> None:
    """Check that the analyzer may share its store. Raises InvalidSettingError."""
    if settings.peer_address and not settings.catalogue:
        raise InvalidSettingError(
            "setting analyzer.peer_address",
            found="a catalogue in SQLite, which one analyzer alone can have open",
            expected="the setting catalogue with a PostgreSQL, the same for all analyzers of the store",
            remedy="Set it (`kernalyse store migrate` moves what there is), or leave peer_address out.",
        )
    if settings.peer_address and not is_address(settings.peer_address):
        raise InvalidSettingError(
            "setting analyzer.peer_address",
            found=repr(settings.peer_address),
            expected="host:port at which the other analyzers reach this one",
            remedy="Correct it.",
        )


def _peer_endpoint(settings: AnalyzerSettings, address: str) -> Endpoint:
    """Return how to reach another analyzer: all of a store have the same token, and certificates of the same CA."""
    ca = settings.contents("peer_ca_file") or settings.contents("certificate_file")
    pair = settings.certificate_pair() if settings.client_ca_file is not None else (None, None)
    return Endpoint(address, settings.token(), ca, *pair)
