"""Collects the journal of one profiler for as long as the node is known.

Responses are prefetched while the previous batch is committed. The cursor moves with the commit, so responses that were read
but not committed when the process dies are read again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import grpc

from kernalyse.services.analyzer.collect.node_client import NodeClient, unreachable_error, version_note
from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.collect.trace_fetcher import TraceFetcher
from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.analyzer.readers.ncu.run_counters import CounterReport, counter_report, missing_report
from kernalyse.services.analyzer.store.repositories import NodeRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import (
    EventExpiredError,
    InvalidRequestError,
    KernalyseError,
    ObjectsUnavailableError,
    RunNotFoundError,
    UnavailableError,
)
from kernalyse.services.core.logs import logging_about
from kernalyse.services.core.model import CountersStored, HardwareKey, Node, NodeHealth, NodeStatus, NodeTelemetry, Run, RunEvent, Telemetry
from kernalyse.services.core.rpc import Endpoint
from kernalyse.services.core.tracing import span
from kernalyse.v1 import profiler_service_pb2 as messages

PREFETCH_COUNT: Final = 16
"""Most responses, of a MiB each at most, that wait for the commit before them. It bounds memory; beyond it, flow control holds the node
back, whose next responses are larger then."""

COMMIT_BYTES: Final = 1024 * 1024
"""Of events after which no further response joins a commit. In memory they take twenty times as much until they are stored, and again what
watchers of the run are sent of them at once; less would cost a sync to disk more often."""

MAX_REPORT_BYTES: Final = 256 * 1024 * 1024
"""Largest report of counters: enough for thousands of configurations with every metric. A larger one could fill the memory."""

FIRST_RETRY_S: Final = 0.1
"""A profiler that restarts is back within a second; waiting longer at first would only delay its events."""

RUN_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""A run_id names a directory of the store: one with a slash or leading dot must not come in from outside."""

logger = logging.getLogger(__name__)


class Collector:
    """The collector of one node. `status` describes the node; `client` is open while the node answers."""

    def __init__(
        self,
        *,
        store: Store,
        run_subscriptions: RunSubscriptions,
        node_subscriptions: NodeSubscriptions,
        trace_fetcher: TraceFetcher,
        record: NodeRecord,
        endpoint: Endpoint,
        retry_s: float,
    ) -> None:
        self._store = store
        self._run_subscriptions = run_subscriptions
        self._node_subscriptions = node_subscriptions
        self._trace_fetcher = trace_fetcher
        self._record = record
        self._endpoint = endpoint
        self._retry_s = retry_s
        self._compactions: set[asyncio.Task[None]] = set()
        self.status = NodeStatus(
            *(record.address, NodeHealth.CONNECTING, record.node),
            origin=record.origin,
            unreachable_since_time=record.unreachable_since_time,
            version_note=version_note(record.node),
        )
        self.client: NodeClient | None = None
        self.lag_s = 0.0  # from the last event's happening to its commit
        self.first_attempt_done = asyncio.Event()
        """Set once it is known whether the node answers: until then `status` is CONNECTING."""

    async def run(self) -> None:
        """Collect until cancelled, reconnecting whenever the node is lost."""
        pause_s = FIRST_RETRY_S
        try:
            while True:
                self.client = NodeClient(self._endpoint, self._record.address)
                begin_s = time.monotonic()
                try:
                    await self._collect(self.client)
                    problem = unreachable_error(self._record.address, "the node closed the stream").message
                except KernalyseError as error:
                    problem = error.message
                except Exception as error:
                    # Whatever one node sends must stop neither the other collectors nor this one's next attempt.
                    logger.exception("Collecting from %s failed", self._record.address)
                    problem = f"{type(error).__name__}: {error}"
                finally:
                    client, self.client = self.client, None
                    await client.close()
                # Only a connection that lasted resets the pause: a node may answer and yet fail its stream every time.
                has_held = time.monotonic() - begin_s > self._retry_s
                pause_s = FIRST_RETRY_S if has_held else min(2 * pause_s, self._retry_s)
                await self._set_status(NodeHealth.UNREACHABLE, problem)
                await asyncio.sleep(pause_s)
        finally:
            await asyncio.gather(*self._compactions)

    async def _collect(self, client: NodeClient) -> None:
        node = await client.describe()
        await self._describe(node)
        await self._mark_forgotten_runs_lost(client, node.node_id)
        for run_id in await asyncio.to_thread(self._store.runs.to_compact, node.node_id):  # left by an outage of the catalogue
            self._compact(run_id)
        await self._trace_fetcher.begin(client, node.node_id)
        next_event_index = await asyncio.to_thread(self._store.nodes.next_event_index, node.node_id, node.journal_id)
        with logging_about(node_id=node.node_id):
            try:
                await self._follow(client, node, next_event_index)
            except EventExpiredError as error:
                await self._note_gap(node.node_id, next_event_index, error)
                await self._follow(client, node, 0)

    async def _follow(self, client: NodeClient, node: Node, next_event_index: int) -> None:
        request = messages.WatchNodeRequest(next_event_index=next_event_index, journal_id=node.journal_id)
        stream = client.stub.WatchNode(request)
        queue: asyncio.Queue[Any] = asyncio.Queue(PREFETCH_COUNT)
        reader = asyncio.create_task(_read_ahead(stream, queue))
        try:
            while True:
                responses: list[Any] = []
                size_bytes, end = 0, None
                while end is None and (not responses or (size_bytes < COMMIT_BYTES and not queue.empty())):
                    item = await queue.get()
                    if isinstance(item, _StreamEnd):
                        end = item
                    else:
                        responses.append(item)
                        size_bytes += item.ByteSize()
                await self._take(client, node.node_id, responses)
                if end is not None:
                    end.raise_error(client)
                    return
        finally:
            reader.cancel()
            stream.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    async def _take(self, client: NodeClient, node_id: str, responses: Sequence[Any]) -> None:
        for response in responses:
            if response.HasField("node"):
                await self._describe(protobuf.decode(response.node, Node))
        events = list(_decoded(event for response in responses for event in response.events))
        for journal_id, part in itertools.groupby(events, lambda event: event.journal_id):
            await self._commit(client, node_id, journal_id, list(part))
        idle = [protobuf.decode(reading, Telemetry) for response in responses for reading in response.idle_telemetry]
        busy = [event.payload for event in events if isinstance(event.payload, Telemetry)]
        self._node_subscriptions.publish(telemetry=[NodeTelemetry(node_id, reading) for reading in (*busy, *idle)])

    async def _commit(self, client: NodeClient, node_id: str, journal_id: str, events: list[RunEvent]) -> None:
        new_runs = await self._unknown_runs(client, node_id, {event.run_id for event in events})
        reports = {event.event_index: await _report(client, event) for event in events if isinstance(event.payload, CountersStored)}
        begin_unix_ns = time.time_ns()
        try:
            commits = await asyncio.to_thread(self._store.commit_events, node_id, journal_id, events, new_runs, reports)
            self.lag_s = max(0.0, (time.time_ns() - events[-1].event_unix_ns) / 1e9)
            await self._run_subscriptions.publish(commits)
        except UnavailableError:  # of the catalogue, which may have taken the events nevertheless
            self._run_subscriptions.restart({event.run_id for event in events})
            raise
        changed = {HardwareKey(node_id, device_id): None for commit in commits for device_id in sorted(commit.changed_device_ids)}
        informed = {commit.run_id for commit in commits if commit.has_new_ceilings}
        for key in changed:
            await self._run_subscriptions.publish_ceilings(key.node_id, key.device_id, informed)
        self._node_subscriptions.publish(runs=[commit.run for commit in commits if commit.run is not None], changed_hardware=changed)
        finished = [commit.run for commit in commits if commit.run is not None and commit.run.state.is_final]
        for run in finished:
            with span("collect", {"run_id": run.run_id}, parent=run.traceparent, begin_unix_ns=begin_unix_ns):
                self._compact(run.run_id)
        if finished:
            await self._trace_fetcher.begin(client, node_id)

    async def _unknown_runs(self, client: NodeClient, node_id: str, run_ids: set[str]) -> list[Run]:
        """Return the runs that the store lacks, as the node describes them."""
        found = []
        for run_id in run_ids - await asyncio.to_thread(self._store.runs.known, sorted(run_ids)):
            if RUN_ID_PATTERN.fullmatch(run_id) is None:
                logger.warning("Events of a run %r from %s are left out: no such name can be stored.", run_id, client.address)
                continue
            try:
                found.append(replace(await client.run(run_id), node_id=node_id))
            except RunNotFoundError:
                logger.warning("Events of run %s from %s are left out: the node no longer knows it.", run_id, client.address)
        return found

    async def _describe(self, node: Node) -> None:
        """Store the node's description, and the datasheet ceilings of its devices."""
        if self.status.health is NodeHealth.SERVING and node == self.status.node:
            return
        self._record = replace(self._record, node=node)
        await asyncio.to_thread(self._store.nodes.put, self._record)
        for device in node.devices:
            peaks = device_peaks(device)
            logger.info("%s %s: %s", node.hostname, device.device_id, peaks.explanation)
            await asyncio.to_thread(self._store.hardware.publish, node.node_id, device, peaks.ceilings)
        await self._set_status(NodeHealth.SERVING, "")

    async def _mark_forgotten_runs_lost(self, client: NodeClient, node_id: str) -> None:
        """Mark runs as lost that the node no longer knows: their last events will never come."""
        for record in await asyncio.to_thread(self._store.runs.unfinished, node_id):
            try:
                await client.run(record.run.run_id)
            except RunNotFoundError:
                await self._change_run(partial(self._store.runs.mark_lost, record.run.run_id, datetime.now(UTC)))
                self._compact(record.run.run_id)

    async def _note_gap(self, node_id: str, next_event_index: int, error: EventExpiredError) -> None:
        """Add a note to every run that may miss events."""
        line = f"Events from {next_event_index} on had expired on the node before they were collected ({error.found})."
        logger.warning("%s: %s", self._record.address, line)
        for record in await asyncio.to_thread(self._store.runs.unfinished, node_id):
            run = record.run
            notes = f"{run.notes}\n{line}".lstrip()
            await self._change_run(partial(self._store.runs.annotate, run.run_id, run.tags, notes))

    async def _change_run(self, change: Callable[[], Run]) -> None:
        await self._show_run(await asyncio.to_thread(change))

    async def _show_run(self, run: Run) -> None:
        await self._run_subscriptions.publish_run(run)
        self._node_subscriptions.publish(runs=[run])

    def _compact(self, run_id: str) -> None:
        """Compact in the background: writing a long run takes seconds."""
        task = asyncio.create_task(asyncio.to_thread(compact, self._store, run_id))
        self._compactions.add(task)
        task.add_done_callback(self._compactions.discard)

    async def _set_status(self, health: NodeHealth, problem: str) -> None:
        before, since = self.status, self._record.unreachable_since_time
        if (health is NodeHealth.UNREACHABLE) != (since is not None):
            since = None if since is not None else datetime.now(UTC)
            self._record = replace(self._record, unreachable_since_time=since)
            try:
                await asyncio.to_thread(self._store.nodes.put, self._record)
            except Exception as error:  # a full disk: a restarted analyzer then counts from its own first attempt
                logger.warning("Since when %s is gone cannot be stored: %s", self._record.address, error)
        node, note = self._record.node, version_note(self._record.node)
        status = NodeStatus(self._record.address, health, node, problem, self._record.origin, since, note)
        self.first_attempt_done.set()
        if status == before:
            return
        self.status = status
        self._node_subscriptions.publish(nodes=[status])
        if status.collecting_problem != before.collecting_problem:
            await self._show_unfinished_runs()

    async def _show_unfinished_runs(self) -> None:
        """Publish the node's unfinished runs again, as a problem has appeared or gone."""
        try:
            for record in await asyncio.to_thread(self._store.runs.unfinished, self._record.node.node_id):
                await self._show_run(record.run)
        except Exception:  # only a display: collecting goes on
            logger.exception("Runs of %s could not be shown anew", self._record.address)


async def _report(client: NodeClient, event: RunEvent) -> CounterReport:
    """Return the counters of a run's report, read before its event is committed: both are stored together, or both are fetched again.

    Raises:
        UnavailableError: the node went away; the event comes again with the next connection.
    """
    stored = event.payload
    assert isinstance(stored, CountersStored)
    try:
        data = await client.artifact(event.run_id, stored.artifact_name, MAX_REPORT_BYTES)
    except UnavailableError:
        raise
    except KernalyseError as error:  # gone, too large, unreadable: asking again would get the same answer for ever
        return missing_report(stored, error.message)
    return await asyncio.to_thread(counter_report, event, stored, data)


class _StreamEnd:
    """The last item in the queue, behind all responses."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def raise_error(self, client: NodeClient) -> None:
        if self._error is not None:
            with client.errors():
                raise self._error


async def _read_ahead(stream: Any, queue: asyncio.Queue[Any]) -> None:
    error: Exception | None = None
    try:
        async for response in stream:
            await queue.put(response)
    except grpc.RpcError as caught:
        error = caught
    await queue.put(_StreamEnd(error))


def _decoded(events: Iterable[Any]) -> Iterable[RunEvent]:
    for event in events:
        try:
            yield protobuf.decode(event, RunEvent)
        except InvalidRequestError as error:
            logger.warning("Event %d of a newer version is left out: %s", event.event_index, error.message)


def compact(store: Store, run_id: str) -> None:
    """Compact a run. Failures are only logged: the rows stay in the database, and the next start tries again."""
    with logging_about(run_id=run_id):
        try:
            with span("compact", {"run_id": run_id}):
                store.compact(run_id)
        except RunNotFoundError:
            pass  # deleted meanwhile
        except ObjectsUnavailableError:
            pass  # which the log has once, and not for each run; `catch_up` tries again
        except Exception:
            logger.exception("Run %s stays in the database: it could not be written to Parquet", run_id)


def catch_up(store: Store, node_ids: Sequence[str] | None) -> None:
    """Do what an outage of the objects has prevented: compact runs, put and delete files. Failures are only logged.

    Args:
        node_ids: whose runs; None: those of all.
    """
    try:
        store.catch_up()
        for run_id in store.runs.to_compact() if node_ids is None else itertools.chain.from_iterable(map(store.runs.to_compact, node_ids)):
            compact(store, run_id)
    except ObjectsUnavailableError:
        pass  # which the log has
    except UnavailableError as error:  # of the catalogue
        logger.info("Nothing is put into the objects now: %s", error.message)
    except Exception:
        logger.exception("Files could not be put into the objects, or deleted there")
