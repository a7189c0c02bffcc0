"""Nodes that come by themselves: with a join token at first, from then on with a token of their own; directly, or by a tunnel."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernalyse.services.analyzer.collect.nodes import Nodes
from kernalyse.services.core import protobuf
from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import (
    ForbiddenError,
    InvalidParameterError,
    InvalidRequestError,
    NodeExistsError,
    NodeUnreachableError,
    NotFoundError,
    TlsHandshakeError,
)
from kernalyse.services.core.identity import Identities, Identity, Kind, Scope, TokenFile
from kernalyse.services.core.join_tokens import JoinToken, key_digest
from kernalyse.services.core.model import Node, NodeHealth, NodeOrigin, NodeStatus
from kernalyse.services.core.rpc import Endpoint, cancel_and_wait
from kernalyse.services.core.tunnel import WAITING_COUNT, TunnelEnd
from kernalyse.v1 import analyzer_service_pb2 as messages

TUNNEL_PREFIX: Final = "tunnel:"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tunnel:
    """The stream of one node that tunnels."""

    end: TunnelEnd
    closed: asyncio.Event = field(default_factory=asyncio.Event)


def tunnel_target(sockets: Path, address: str) -> str:
    """Return where to connect to for a node that tunnels.

    Args:
        sockets: directory of the near ends of tunnels.
        address: by which the node is known.
    """
    return f"unix:{sockets / hashlib.sha256(address.encode()).hexdigest()[:16]}"  # paths of sockets are short


class Joining:
    """What profilers ask for when they come.

    Args:
        nodes: that they become some of.
        tokens: of the analyzer: join tokens, and those of nodes.
        identities: of the analyzer, which is told of changes to the tokens.
        certificates: returns the analyzer's chain as PEM; None: it serves no TLS.
        sockets: directory of this user alone for the near ends of tunnels.
    """

    def __init__(
        self, nodes: Nodes, tokens: TokenFile, identities: Identities, certificates: Callable[[], bytes | None], sockets: Path
    ) -> None:
        self._nodes = nodes
        self._identities = identities
        self._tokens = tokens
        self._certificates = certificates
        self._sockets = sockets
        self._tunnels: dict[str, _Tunnel] = {}  # by address of the node

    def create_token(self, use_count: int, lifetime_s: float) -> tuple[str, str]:
        """Return a join token and the id of its entry. Raises InvalidParameterError."""
        if use_count < 0:
            raise InvalidParameterError("use_count of a join token", found=str(use_count), expected="0 or more", remedy="0: any number.")
        entry, secret = self._tokens.issue("join token", Scope.JOIN, Kind.JOIN, lifetime_s or None, use_count or None)
        certificates = self._certificates()
        digest = "" if certificates is None else key_digest(certificates)
        return str(JoinToken(secret, digest, entry.end_unix_s, use_count)), entry.token_id

    async def join(self, request: Any) -> Any:
        """Collect from the profiler that calls, and return the JoinResponse.

        Raises:
            InvalidRequestError: the request lacks something.
            ForbiddenError: the caller is no profiler, or another one.
            NodeExistsError: another node of that name is there.
            NodeUnreachableError, TlsHandshakeError: the way back does not work.
        """
        if not request.address:
            raise InvalidRequestError("address of the profiler", found="none", expected="host:port", remedy="Or join with --tunnel.")
        node = self._checked(request)
        endpoint = Endpoint(request.address, request.token, request.ca_certificate or None)
        return await self._admit(node, endpoint, NodeOrigin.JOINED, request.address)

    async def tunnel(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Carry calls to the profiler whose requests these are, and yield TunnelResponses. Raises what `join` raises."""
        first = await anext(requests, None)
        if first is None or first.WhichOneof("content") != "join":
            raise InvalidRequestError(
                "Tunnel", found="another beginning", expected="a JoinRequest", remedy="Use a profiler of this version."
            )
        node = self._checked(first.join)
        address = f"{TUNNEL_PREFIX}{node.hostname}"
        tunnel = self._opened(address)
        target = tunnel_target(self._sockets, address)
        path = Path(target.removeprefix("unix:"))
        answers: asyncio.Queue[Any] = asyncio.Queue(WAITING_COUNT)
        self._sockets.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        listener = await asyncio.start_unix_server(tunnel.end.accept, path)
        tasks = [
            asyncio.create_task(self._answer(answers, node, Endpoint(target, first.join.token), address)),
            asyncio.create_task(_send(tunnel.end, answers)),
            asyncio.create_task(_receive(tunnel.end, requests, answers)),
            asyncio.create_task(_end(tunnel.closed, answers)),
        ]
        try:
            while not isinstance(answer := await answers.get(), BaseException):
                yield answer
            if not isinstance(answer, _TunnelEnd):
                raise answer
        finally:
            await cancel_and_wait(*tasks)
            if self._tunnels.get(address) is tunnel:
                del self._tunnels[address]
                path.unlink(missing_ok=True)
            listener.close()
            await tunnel.end.close()
            tunnel.closed.set()

    def forget(self, status: NodeStatus) -> None:
        """Revoke the token of a node that somebody has removed, and end its tunnel."""
        if status.node is not None:
            with suppress(NotFoundError):
                self._tokens.revoke(_token_name(status.node))
            self._identities.look()
        if (tunnel := self._tunnels.get(status.address)) is not None:
            tunnel.closed.set()

    def close(self) -> None:
        """End all tunnels."""
        for tunnel in self._tunnels.values():
            tunnel.closed.set()

    def _checked(self, request: Any) -> Node:
        """Return the profiler that asks, if it is one."""
        node = protobuf.decode(request.node, Node)
        identity = caller()
        if not node.node_id or not node.hostname:
            raise InvalidRequestError(
                "node that joins", found="no id or no name", expected="both", remedy="Use a profiler of this version."
            )
        is_other = identity.kind is Kind.NODE and identity.name != _token_name(node)
        if is_other or not (identity.kind in (Kind.NODE, Kind.JOIN) or Scope.ADMIN in identity.scopes):
            raise ForbiddenError(
                f"node {node.hostname}",
                found=f"a token of {identity}",
                expected="a join token, or the one that this node was given",
                remedy="Make one beside the analyzer: kernalyse nodes join-token",
            )
        for status in self._nodes.statuses():
            known = status.node
            if known is None or status.health is not NodeHealth.SERVING:
                continue
            if known.node_id == node.node_id and identity.kind is Kind.JOIN:  # whoever has a join token must not take another's place
                raise NodeExistsError(
                    f"node {node.hostname}",
                    found=f"it is collected from at {status.address}",
                    expected="a node that is not known, or its own token",
                    remedy="Remove it first: kernalyse nodes remove",
                )
            if known.node_id != node.node_id and known.hostname == node.hostname:
                raise NodeExistsError(
                    f"node {node.hostname}",
                    found=f"another node of that name at {status.address}, which answers",
                    expected="one of each name",
                    remedy="Give one of them another with the profiler's setting node_name.",
                )
        return node

    def _opened(self, address: str) -> _Tunnel:
        """Return a new tunnel of the node; one that it had before ends first: the node knows which of its connections are alive."""
        before = self._tunnels.get(address)
        tunnel = self._tunnels[address] = _Tunnel(TunnelEnd())
        if before is not None:
            before.closed.set()
        return tunnel

    async def _answer(self, answers: asyncio.Queue[Any], node: Node, endpoint: Endpoint, address: str) -> None:
        try:
            joined = await self._admit(node, endpoint, NodeOrigin.TUNNEL, address)
            await answers.put(messages.TunnelResponse(joined=joined))
        except Exception as error:
            await answers.put(error)

    async def _admit(self, node: Node, endpoint: Endpoint, origin: NodeOrigin, address: str) -> Any:
        identity = caller()
        is_own = identity.kind is Kind.NODE or Scope.ADMIN in identity.scopes
        if identity.kind is Kind.JOIN:
            await asyncio.to_thread(self._tokens.use, identity.token_id)
        try:
            status = await self._nodes.add(endpoint, origin, address=address, replaced_node_id=node.node_id if is_own else "")
        except BaseException as error:
            if identity.kind is Kind.JOIN:
                await asyncio.to_thread(self._tokens.use, identity.token_id, -1)
            if isinstance(error, NodeUnreachableError | TlsHandshakeError):
                raise _way_back(error, node, address) from error
            raise
        logger.info("Node %s has joined from %s with a token of %s.", node.hostname, address, identity)
        node_token = "" if identity.kind is Kind.NODE else await asyncio.to_thread(self._new_token, node, identity)
        return messages.JoinResponse(node=protobuf.encode(status), node_token=node_token, certificates=self._certificates() or b"")

    def _new_token(self, node: Node, identity: Identity) -> str:
        name = _token_name(node)
        with suppress(NotFoundError):
            self._tokens.revoke(name)
        return self._tokens.issue(name, Scope.JOIN, Kind.NODE)[1]


def _token_name(node: Node) -> str:
    return f"{node.hostname} {node.node_id}"


def _way_back(error: NodeUnreachableError | TlsHandshakeError, node: Node, address: str) -> NodeUnreachableError | TlsHandshakeError:
    return type(error)(
        f"the way back, from the analyzer to {node.hostname} at {address}",
        found=error.found,
        expected=error.expected,
        remedy="Let the analyzer reach that port, name an address that it can reach (advertised_address), or join with --tunnel.",
    )


class _TunnelEnd(Exception):
    """The tunnel has ended in order."""


async def _send(end: TunnelEnd, answers: asyncio.Queue[Any]) -> None:
    async for connection, data in end.sent():
        await answers.put(messages.TunnelResponse(bytes=messages.TunnelBytes(connection=connection, data=data)))


async def _receive(end: TunnelEnd, requests: AsyncIterator[Any], answers: asyncio.Queue[Any]) -> None:
    try:
        async for request in requests:
            await end.take(request.bytes.connection, request.bytes.data)
        await answers.put(_TunnelEnd())
    except Exception as error:
        await answers.put(error)


async def _end(closed: asyncio.Event, answers: asyncio.Queue[Any]) -> None:
    await closed.wait()
    await answers.put(_TunnelEnd())
