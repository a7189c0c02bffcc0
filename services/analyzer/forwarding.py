"""Calls about a node, or about a run that goes on there, are answered by the analyzer that follows the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from kernalyse.services.analyzer.collect.peers import PEER_KEY, Peer, Peers
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core.access import ANALYZER
from kernalyse.services.core.errors import UnavailableError

OF_NODE: Final = ("StartRun", "ListKernels", "UploadBundle")
OF_RUN: Final = ("CancelRun", "ReadArtifact", "WatchRun")
OF_ADDRESS: Final = ("RemoveNode",)


class ForwardingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that passes such calls on, with the caller's name and scopes, unless this analyzer follows the node itself.

    Everything else is answered from the store, which all analyzers share. A call that has been passed on is not passed on again.
    """

    def __init__(self, peers: Peers, store: Store) -> None:
        self._peers = peers
        self._store = store

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the method's handler, with the choice of the analyzer before it."""
        handler = await continuation(details)
        name = details.method.removeprefix(ANALYZER)
        is_passed_on = any(key == PEER_KEY for key, _ in details.invocation_metadata)
        if handler is None or name not in (*OF_NODE, *OF_RUN, *OF_ADDRESS):
            return handler

        async def choose(request: Any) -> Peer | None:
            peer = await self._peer(name, request)
            if peer is not None and is_passed_on:
                raise UnavailableError(
                    name,
                    found=f"the node is followed by the analyzer {peer.address} now",
                    expected="a node of this one",
                    remedy="Try again.",
                )
            return peer

        codec = {"request_deserializer": handler.request_deserializer, "response_serializer": handler.response_serializer}
        if handler.response_streaming:

            async def answer_stream(request: Any, context: Any) -> AsyncIterator[Any]:
                peer = await choose(request)
                async for answer in handler.unary_stream(request, context) if peer is None else peer.stream(name, request):
                    yield answer

            return grpc.unary_stream_rpc_method_handler(answer_stream, **codec)
        if handler.request_streaming:

            async def answer_to_stream(requests: AsyncIterator[Any], context: Any) -> Any:
                first = await anext(requests, None)
                peer = None if first is None else await choose(first)
                whole = _with_first(first, requests)
                return await (handler.stream_unary(whole, context) if peer is None else peer.call(name, whole))

            return grpc.stream_unary_rpc_method_handler(answer_to_stream, **codec)

        async def answer_once(request: Any, context: Any) -> Any:
            peer = await choose(request)
            return await (handler.unary_unary(request, context) if peer is None else peer.call(name, request))

        return grpc.unary_unary_rpc_method_handler(answer_once, **codec)

    async def _peer(self, name: str, request: Any) -> Peer | None:
        """Return the analyzer that a call is for; None: this one. Raises RunNotFoundError."""
        if name in OF_ADDRESS:
            return await self._peers.of_address(request.address)
        if name in OF_NODE:
            return await self._peers.of_node(request.node_id)
        run = await asyncio.to_thread(lambda: self._store.runs.get(self._store.runs.resolve(request.run_id)).run)
        is_answered_here = run.is_imported or (name == "WatchRun" and run.is_settled)
        return None if is_answered_here else await self._peers.of_node(run.node_id)


async def _with_first(first: Any, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield a message that has been read already, then the others."""
    if first is not None:
        yield first
    async for request in requests:
        yield request
