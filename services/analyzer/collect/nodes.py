"""The nodes that the analyzer collects from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from kernalyse.channel import is_address
from kernalyse.services.analyzer.collect.collector import Collector, catch_up, compact
from kernalyse.services.analyzer.collect.node_client import NodeClient, unreachable_error
from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.collect.trace_fetcher import TraceFetcher
from kernalyse.services.analyzer.store.leases import Leases, Shares
from kernalyse.services.analyzer.store.node_secrets import NodeSecret
from kernalyse.services.analyzer.store.repositories import NodeRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core.errors import DeviceNotFoundError, InvalidRequestError, NodeExistsError, NodeNotFoundError
from kernalyse.services.core.model import Device, Node, NodeHealth, NodeOrigin, NodeStatus, Run
from kernalyse.services.core.rpc import Endpoint, cancel_and_wait, is_local
from kernalyse.tls import ca_problem, pair_problem

FIRST_ANSWER_TIMEOUT_S: Final = 5.0
MAX_LOOK_INTERVAL_S: Final = 60.0
"""Between looks for nodes that are gone for good."""

CATCH_UP_INTERVAL_S: Final = 5.0
"""Between attempts to put into the objects what waits. It is longer than the pause after a failure, in which all attempts fail."""

logger = logging.getLogger(__name__)


class Nodes:
    """One collector per node, from `start` or `add` on until `remove` or `stop`.

    Args:
        retry_s: between attempts to reach a node.
        is_insecure_allowed: nodes on other machines need no TLS.
        tunnel_target: returns where to connect to for a node that comes by a tunnel, by its address.
        forget_after_s: how long a node that came by itself may be gone; None: for ever.

    Where several analyzers share the store, each follows the nodes that it has a lease of (`follow_share`), and shows the others as their
    analyzers tell of them (`elsewhere`).
    """

    def __init__(
        self,
        store: Store,
        run_subscriptions: RunSubscriptions,
        node_subscriptions: NodeSubscriptions,
        trace_fetcher: TraceFetcher,
        *,
        retry_s: float,
        is_insecure_allowed: bool,
        tunnel_target: Callable[[str], str] = lambda address: address,
        forget_after_s: float | None = None,
    ) -> None:
        self._tunnel_target = tunnel_target
        self._forget_after_s = forget_after_s
        self._leaving: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # of which nodes there are
        self._store = store
        self._run_subscriptions = run_subscriptions
        self._node_subscriptions = node_subscriptions
        self._trace_fetcher = trace_fetcher
        self._retry_s = retry_s
        self._is_insecure_allowed = is_insecure_allowed
        self._leases = store.leases
        self.elsewhere: dict[str, NodeStatus] = {}  # by address, of nodes that other analyzers follow
        self._collectors: dict[str, Collector] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._compactions: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start collecting from every node of the store; compact runs that an earlier process left in the database."""
        for run_id in await asyncio.to_thread(self._store.runs.to_compact):
            self._compactions.append(asyncio.create_task(asyncio.to_thread(compact, self._store, run_id)))
        if self._leases is None:
            for record in await asyncio.to_thread(self._store.nodes.all):
                await self._take_up(record)
        if self._forget_after_s is not None:
            self._leaving = asyncio.create_task(self._forget_those_gone(self._forget_after_s))
        if self._store.has_objects:
            self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while True:
            await asyncio.sleep(CATCH_UP_INTERVAL_S)  # first: the analyzer of one command looks for nothing that was left
            own = [status.node.node_id for status in self.own_statuses() if status.node is not None]
            working = asyncio.create_task(asyncio.to_thread(catch_up, self._store, None if self._leases is None else own))
            try:
                await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait({working})  # the store must not close under it
                raise

    async def _take_up(self, record: NodeRecord) -> None:
        """Collect from a node that the store knows."""
        secret = await asyncio.to_thread(self._store.secrets.secret, record.address)
        client_key = None if secret.client_key is None else secret.client_key.encode("latin-1")
        target = self._tunnel_target(record.address) if record.origin is NodeOrigin.TUNNEL else record.address
        certificates = record.ca_certificate, record.client_certificate, client_key
        self._collect(record, Endpoint(target, secret.token, *certificates, record.server_name))

    async def follow_share(self, leases: Leases) -> Shares:
        """Renew this analyzer's leases, collect from the nodes that it has one of, and from no others. Return who follows what.

        Nodes that nobody follows are claimed up to a fair count. Of more than that one at a time is given up, for an analyzer that came.
        Raises UnavailableError.
        """
        async with self._changing:
            shares = await asyncio.to_thread(leases.renew)
            own = shares.followed_by(leases.analyzer_id)
            free = [address for address in shares.node_addresses if address not in shares.followers]
            if claimed := free[: max(0, shares.fair_count - len(own))]:
                await asyncio.to_thread(leases.claim, claimed)
                shares = await asyncio.to_thread(leases.renew)
                own = shares.followed_by(leases.analyzer_id)
            elif len(own) > shares.fair_count and (surplus := self._movable()) is not None:
                await self._give_up(surplus)
                await asyncio.to_thread(leases.release, [surplus])
                own.discard(surplus)
            for address in set(self._collectors) - own:
                await self._give_up(address)
            if missing := own - set(self._collectors):
                for record in await asyncio.to_thread(self._store.nodes.all):
                    if record.address in missing:
                        await self._take_up(record)
                        self.elsewhere.pop(record.address, None)
            forgotten = [address for address in self.elsewhere if address not in shares.node_addresses]
            for address in forgotten:
                del self.elsewhere[address]
        self._node_subscriptions.publish(removed_addresses=forgotten, is_of_peer=True)
        return shares

    def _movable(self) -> str | None:
        """Return a node that another analyzer can follow as well: the far end of a tunnel is here."""
        return max((status.address for status in self.own_statuses() if status.origin is not NodeOrigin.TUNNEL), default=None)

    async def _give_up(self, address: str) -> None:
        """Leave a node to another analyzer."""
        logger.info("Node %s is left to another analyzer.", address)
        status = self.elsewhere[address] = self._collectors[address].status
        await self._end(address)
        if status.node is not None:
            self._run_subscriptions.leave(status.node.node_id)

    async def stop(self) -> None:
        """Stop collecting. Commits stay; everything else is collected again after the next start."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._catching_up is not None:
            await cancel_and_wait(self._catching_up)
        for address in list(self._tasks):
            await self._end(address)
        await self._trace_fetcher.close()
        await asyncio.gather(*self._compactions)

    async def add(
        self, endpoint: Endpoint, origin: NodeOrigin = NodeOrigin.ADDED, *, address: str = "", replaced_node_id: str = ""
    ) -> NodeStatus:
        """Start collecting from a node that answers, and return its status.

        A node that has moved to a new address, or has a new token, replaces its earlier entry.

        Args:
            endpoint: the node.
            origin: how it has become known.
            address: by which it is known from now on; empty: that of the endpoint.
            replaced_node_id: the node that comes again, and is replaced although it answers; empty: none.

        Raises:
            InvalidRequestError: the address or a certificate cannot be used.
            NodeExistsError: the node is being collected from.
            NodeUnreachableError: the node does not answer.
            TlsHandshakeError: the node does not accept these certificates, or has another one.
            UnauthenticatedError: the node rejects the token.
        """
        self._check(endpoint)
        address = address or endpoint.address
        client = NodeClient(endpoint, address)
        try:
            node = await client.describe(FIRST_ANSWER_TIMEOUT_S)
        finally:
            await client.close()
        async with self._changing:
            status = await self._add(node, endpoint, origin, address, replaced_node_id)
        self._node_subscriptions.publish(nodes=[status])
        return status

    async def _add(self, node: Node, endpoint: Endpoint, origin: NodeOrigin, address: str, replaced_node_id: str) -> NodeStatus:
        """Collect from the node in the place of what is known of it. Raises NodeExistsError."""
        known = [
            status
            for status in self.statuses()
            if status.address == address or (status.node is not None and status.node.node_id == node.node_id)
        ]
        for status in known:
            is_itself = status.node is not None and status.node.node_id == replaced_node_id
            if status.health is NodeHealth.SERVING and not is_itself:
                raise NodeExistsError(
                    f"node {node.node_id} at {address}",
                    found=f"it is collected from at {status.address}",
                    expected="a node that is not known yet",
                    remedy="Remove it first to add it with another address or token.",
                )
        for status in known:
            await self._forget(status.address)
        certificates = endpoint.ca_certificate, endpoint.client_certificate
        record = NodeRecord(address, node, *certificates, origin=origin, server_name=endpoint.server_name)
        secret = NodeSecret(endpoint.token, None if endpoint.client_key is None else endpoint.client_key.decode("latin-1"))
        await asyncio.to_thread(self._store.secrets.put, address, secret)
        await asyncio.to_thread(self._store.nodes.put, record)
        if self._leases is not None:
            await asyncio.to_thread(self._leases.claim, [address], is_taken_over=True)
        return self._collect(record, endpoint).status

    async def remove(self, address: str) -> None:
        """Stop collecting from the node; its runs stay. Raises NodeNotFoundError."""
        async with self._changing:
            if address not in self._collectors:
                raise NodeNotFoundError(
                    f"node at {address!r}",
                    found="no such node",
                    expected=f"one of {', '.join(self._collectors) or 'none: there is no node'}",
                    remedy="List the nodes.",
                )
            await self._forget(address)

    async def _forget_those_gone(self, after_s: float) -> None:
        """Forget nodes that came by themselves and have not answered for that long; their runs stay. Without end."""
        while True:
            await asyncio.sleep(min(after_s / 4, MAX_LOOK_INTERVAL_S))
            now = datetime.now(UTC)
            for status in self.own_statuses():
                since, is_own = status.unreachable_since_time, status.origin in (NodeOrigin.JOINED, NodeOrigin.TUNNEL)
                if is_own and since is not None and (now - since).total_seconds() > after_s:
                    logger.info("Node %s is forgotten: it has been gone since %s.", status.address, since.isoformat(timespec="seconds"))
                    with suppress(NodeNotFoundError):
                        await self.remove(status.address)

    def statuses(self) -> Sequence[NodeStatus]:
        """Return the status of every node, in order of address, whichever analyzer follows it."""
        return sorted(
            {**self.elsewhere, **{status.address: status for status in self.own_statuses()}}.values(), key=lambda status: status.address
        )

    def own_statuses(self) -> Sequence[NodeStatus]:
        """Return the status of every node that this analyzer follows, in order of address."""
        return [collector.status for _, collector in sorted(self._collectors.items())]

    def lags_s(self) -> dict[str, float]:
        """Return how late the last events of each node were stored, by its address."""
        return {address: collector.lag_s for address, collector in self._collectors.items()}

    def with_problem(self, run: Run) -> Run:
        """Return the run with the problem that keeps this analyzer from collecting it; a final run as it is."""
        if run.state.is_final:
            return run
        of_node = (status for status in self.statuses() if status.node is not None and status.node.node_id == run.node_id)
        return replace(run, problem=next((status.collecting_problem for status in of_node), ""))

    async def client(self, node_id: str) -> NodeClient:
        """Return the client of a node; for an empty node_id, of the first that serves and does not only observe.

        Waits for a node that is just being connected to.

        Raises:
            NodeNotFoundError: there is no such node, or none at all.
            NodeUnreachableError: it does not answer at present.
        """
        candidates = [
            collector
            for collector in self._collectors.values()
            if not node_id or (collector.status.node is not None and collector.status.node.node_id == node_id)
        ]
        if not candidates:
            raise NodeNotFoundError(
                f"node {node_id!r}" if node_id else "nodes",
                found="no such node" if node_id else "none",
                expected="a node that this analyzer collects from",
                remedy="Add the node first.",
            )
        measuring = [collector for collector in candidates if not collector.status.observes_only] or candidates
        if (client := _serving(measuring)) is not None:
            return client
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_TIMEOUT_S):
                for collector in candidates:
                    await collector.first_attempt_done.wait()
        # Where only such nodes serve as observe, one of them says so itself, with the remedy.
        if (client := _serving(measuring) or _serving(candidates)) is not None:
            return client
        status = candidates[0].status
        raise unreachable_error(status.address, status.problem or f"no answer within {FIRST_ANSWER_TIMEOUT_S:g} s")

    def device(self, node_id: str, device_id: str) -> Device:
        """Return a device of a node. Raises DeviceNotFoundError."""
        devices = [
            device
            for status in self.statuses()
            if status.node is not None and status.node.node_id == node_id
            for device in status.node.devices
        ]
        for device in devices:
            if device.device_id == device_id:
                return device
        raise DeviceNotFoundError(
            f"device {device_id!r} of node {node_id!r}",
            found="no such device",
            expected=f"one of {', '.join(device.device_id for device in devices)}" if devices else "a node of this analyzer",
            remedy="List the nodes to see their devices.",
        )

    def _check(self, endpoint: Endpoint) -> None:
        if not is_address(endpoint.address):
            raise InvalidRequestError(
                "address of the node",
                found=repr(endpoint.address),
                expected="host:port, with a port from 1 to 65535, or unix:PATH",
                remedy="Correct the address.",
            )
        if endpoint.ca_certificate is not None and (found := ca_problem(endpoint.ca_certificate)) is not None:
            raise InvalidRequestError(
                "ca_certificate of the node", found=found, expected="PEM text", remedy="Pass the CA's certificate file."
            )
        if (found := pair_problem(endpoint.client_certificate, endpoint.client_key)) is not None:
            raise InvalidRequestError(
                "client_certificate and client_key of the node",
                found=found,
                expected="a PEM certificate and its PEM key, without password",
                remedy="Pass both files of one pair.",
            )
        if endpoint.ca_certificate is None and not is_local(endpoint.address) and not self._is_insecure_allowed:
            raise InvalidRequestError(
                f"node at {endpoint.address}",
                found="an address of another machine, without TLS",
                expected="a CA certificate, so that token and results travel encrypted",
                remedy="Pass the CA certificate, or start the analyzer with --insecure.",
            )

    def _collect(self, record: NodeRecord, endpoint: Endpoint) -> Collector:
        collector = Collector(
            store=self._store,
            run_subscriptions=self._run_subscriptions,
            node_subscriptions=self._node_subscriptions,
            trace_fetcher=self._trace_fetcher,
            record=record,
            endpoint=endpoint,
            retry_s=self._retry_s,
        )
        self._collectors[record.address] = collector
        # In a context of its own: what it does from now on has nothing to do with the call that has added the node.
        self._tasks[record.address] = asyncio.create_task(collector.run(), name=f"collect {record.address}", context=Context())
        return collector

    async def _forget(self, address: str) -> None:
        if address in self._collectors:
            await self._end(address)
        self.elsewhere.pop(address, None)
        if self._leases is not None:
            await asyncio.to_thread(self._leases.release, [address])
        await asyncio.to_thread(self._store.nodes.delete, address)
        await asyncio.to_thread(self._store.secrets.delete, address)
        self._node_subscriptions.publish(removed_addresses=[address])

    async def _end(self, address: str) -> None:
        del self._collectors[address]
        task = self._tasks.pop(address)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _serving(collectors: Sequence[Collector]) -> NodeClient | None:
    return next((collector.client for collector in collectors if collector.status.health is NodeHealth.SERVING and collector.client), None)
