"""The other analyzers of a shared store: which of them follows which node, what they tell of their nodes, and calls to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import grpc

from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.nodes import Nodes
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.store.leases import RENEWAL_S, Leases, Shares
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core import protobuf
from kernalyse.services.core.access import caller_metadata
from kernalyse.services.core.errors import KernalyseError, UnavailableError
from kernalyse.services.core.model import HardwareKey, NodeHealth, NodeStatus, NodeTelemetry, Run
from kernalyse.services.core.rpc import Endpoint, cancel_and_wait, error_from_rpc, open_async_channel
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub

PEER_KEY: Final = "kernalyse-peer"
"""Metadata of calls of one analyzer to another, which answers for itself alone."""

RETRY_S: Final = 0.5

logger = logging.getLogger(__name__)


class Peer:
    """A connection to another analyzer, from construction to `close`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.address = endpoint.address
        self._channel = open_async_channel(endpoint)
        self._stub: Any = AnalyzerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def call(self, method_name: str, request: Any) -> Any:
        """Return the answer to a call that the present caller has made here.

        Args:
            method_name: of the contract, with one answer.
            request: a message, or an iterator of messages.

        Raises:
            UnavailableError: the other analyzer does not answer.
            KernalyseError: whatever it answers.
        """
        with self._errors():
            return await getattr(self._stub, method_name)(request, metadata=(*caller_metadata(), (PEER_KEY, "1")))

    async def stream(self, method_name: str, request: Any, *, is_for_caller: bool = True) -> AsyncIterator[Any]:
        """Yield the answers to a call, as `call`.

        Args:
            is_for_caller: it is the present caller's, not this analyzer's own.
        """
        metadata = (*(caller_metadata() if is_for_caller else ()), (PEER_KEY, "1"))
        answers = getattr(self._stub, method_name)(request, metadata=metadata)
        try:
            with self._errors():
                async for answer in answers:
                    yield answer
        finally:
            answers.cancel()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            translated = error_from_rpc(error)
            if type(translated) is not UnavailableError:
                raise translated from error
            raise UnavailableError(
                f"analyzer {self.address}, which follows the node",
                found=error.details() or error.code().name,
                expected="an answer",
                remedy="Try again: where it is gone, another one takes over within seconds.",
            ) from error


class Peers:
    """Keeps this analyzer's leases, and what the others tell, for as long as `run` does.

    Args:
        endpoint_of: returns how to reach the analyzer at an address.
    """

    def __init__(
        self,
        leases: Leases,
        store: Store,
        nodes: Nodes,
        run_subscriptions: RunSubscriptions,
        node_subscriptions: NodeSubscriptions,
        endpoint_of: Callable[[str], Endpoint],
    ) -> None:
        self._leases = leases
        self._store = store
        self._nodes = nodes
        self._run_subscriptions = run_subscriptions
        self._node_subscriptions = node_subscriptions
        self._endpoint_of = endpoint_of
        self._shares = Shares({}, {}, ())
        self._peers: dict[str, Peer] = {}  # by id, of those that live
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, str] = {}
        self._meeting = asyncio.Lock()

    async def run(self) -> None:
        """Renew the leases, and listen to the others, until cancelled; then leave the nodes to them."""
        try:
            while True:
                try:
                    self._shares = await self._nodes.follow_share(self._leases)
                    self._tell("", "")
                    await self._meet()
                except UnavailableError as error:
                    self._tell("", error.message)
                except Exception:  # a renewal that is left out costs this analyzer its nodes
                    logger.exception("The leases could not be renewed")
                await asyncio.sleep(RENEWAL_S)
        finally:
            self._shares = Shares({}, {}, ())
            await self._meet()

    async def leave(self) -> None:
        """Give up all leases, once nothing is collected any more."""
        with suppress(UnavailableError):  # they end by themselves
            await asyncio.to_thread(self._leases.leave)

    # ------------------------------------------------------------ who follows a node

    async def of_node(self, node_id: str) -> Peer | None:
        """Return the analyzer that follows a node; None: this one does, or the node is not known.

        Args:
            node_id: empty: any node that serves, one of this analyzer's own before others.

        Raises:
            UnavailableError: nobody follows it at present.
        """
        own = self._nodes.own_statuses()
        wanted: tuple[Callable[[NodeStatus], bool], ...] = (lambda status: _is_of(status, node_id),)
        if not node_id:  # a node that only observes comes last: it says so itself
            wanted = (lambda status: status.can_take_runs, lambda status: status.health is NodeHealth.SERVING)
        for is_wanted in wanted:
            if any(map(is_wanted, own)):
                return None
            for status in self._nodes.elsewhere.values():
                if is_wanted(status):
                    return await self.of_address(status.address)
        return None

    async def of_address(self, address: str) -> Peer | None:
        """Return the analyzer that follows the node of an address; as `of_node`."""
        if address not in self._nodes.elsewhere:
            return None
        if self._shares.followers.get(address, "") not in self._peers:  # it has changed hands since the last renewal
            self._shares = await asyncio.to_thread(self._leases.read)
            await self._meet()
        peer = self._peers.get(self._shares.followers.get(address, ""))
        if peer is None:
            raise UnavailableError(
                f"node {address}",
                found="no analyzer that follows it at present",
                expected="one of those that share the store",
                remedy="Try again: one of them takes over within seconds.",
            )
        return peer

    # ------------------------------------------------------------ what they tell

    async def _meet(self) -> None:
        """Listen to the analyzers that live, and to no others."""
        async with self._meeting:
            await self._listen_to_those_that_live()

    async def _listen_to_those_that_live(self) -> None:
        others = {key: address for key, address in self._shares.analyzers.items() if key != self._leases.analyzer_id}
        for key in [key for key in self._peers if key not in others]:
            task, peer = self._listening.pop(key), self._peers.pop(key)
            await cancel_and_wait(task)
            await peer.close()
        for key, address in others.items():
            if key not in self._peers:
                peer = self._peers[key] = Peer(await asyncio.to_thread(self._endpoint_of, address))
                self._listening[key] = asyncio.create_task(self._listen(peer), name=f"analyzer {address}")

    async def _listen(self, peer: Peer) -> None:
        while True:
            try:
                async for update in peer.stream("WatchNodes", messages.WatchNodesRequest(), is_for_caller=False):
                    self._tell(peer.address, "")
                    await self._take(update)
            except KernalyseError as error:
                self._tell(peer.address, error.message)
            except Exception:  # whatever one of them sends must not end this
                logger.exception("What analyzer %s tells cannot be used", peer.address)
            await asyncio.sleep(RETRY_S)

    async def _take(self, update: Any) -> None:
        """Show what another analyzer tells of its nodes, and of what was changed there."""
        followed = {status.address for status in self._nodes.own_statuses()}
        statuses = [status for status in (protobuf.decode(node, NodeStatus) for node in update.nodes) if status.address not in followed]
        self._nodes.elsewhere.update({status.address: status for status in statuses})
        removed = [address for address in update.removed_addresses if address not in followed]
        for address in removed:
            self._nodes.elsewhere.pop(address, None)
        runs = [protobuf.decode(run, Run) for run in update.runs]
        for run_id in (*(run.run_id for run in runs if run.is_settled), *update.deleted_run_ids):
            self._store.held.forget(run_id)
        for run in runs:
            await self._run_subscriptions.publish_run(run)
        changed = [protobuf.decode(key, HardwareKey) for key in update.changed_hardware]
        for key in changed:
            await self._run_subscriptions.publish_ceilings(key.node_id, key.device_id)
        self._node_subscriptions.publish(
            nodes=statuses,
            runs=runs,
            telemetry=[protobuf.decode(reading, NodeTelemetry) for reading in update.telemetry],
            changed_hardware=changed,
            removed_addresses=removed,
            deleted_run_ids=update.deleted_run_ids,
            is_of_peer=True,
        )

    def _tell(self, address: str, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._problems.get(address):
            logger.warning("%s", problem)
        self._problems[address] = problem


def _is_of(status: NodeStatus, node_id: str) -> bool:
    return status.node is not None and status.node.node_id == node_id
