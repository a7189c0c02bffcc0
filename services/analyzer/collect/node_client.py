"""A connection to one profiler, whose failures name the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Final

import grpc
import grpc.aio

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import LimitReachedError, NodeUnreachableError, NotBuiltYetError, UnavailableError
from kernalyse.services.core.model import Node, Run
from kernalyse.services.core.rpc import Endpoint, error_from_rpc, is_cancelled, open_async_channel
from kernalyse.v1 import profiler_service_pb2 as messages
from kernalyse.v1.profiler_service_pb2_grpc import ProfilerServiceStub

RESPONSE_TIMEOUT_S = 10.0
"""Deadline of calls that only read. A busy node answers within tenths of a second; one that takes longer is treated as gone."""

STALL_TIMEOUT_S = 30.0
"""Longest pause between two chunks of an artifact: 1 MiB takes seconds over the slowest line that anybody measures on."""

CLOSE_GRACE_S = 2.0

OWN_VERSION: Final = metadata.version("kernalyse")


class NodeClient:
    """A client of one profiler, connected from construction to `close`.

    Args:
        endpoint: the profiler.
        address: by which it is known; empty: that of the endpoint.

    Attributes:
        version: of kernalyse on the node; empty: it has not been asked.
    """

    def __init__(self, endpoint: Endpoint, address: str = "") -> None:
        self.address = address or endpoint.address
        self.version = ""
        self._channel = open_async_channel(endpoint)
        self.stub: Any = ProfilerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def describe(self, timeout_s: float = RESPONSE_TIMEOUT_S) -> Node:
        """Return the node's description of itself.

        Raises:
            NodeUnreachableError: the node does not answer in time.
            UnauthenticatedError: the node rejects the token.
        """
        with self.errors():
            response = await self.stub.GetNode(messages.GetNodeRequest(), timeout=timeout_s)
        node = protobuf.decode(response.node, Node)
        self.version = node.version
        return node

    async def run(self, run_id: str) -> Run:
        """Return a run as its node knows it. Raises RunNotFoundError, NodeUnreachableError."""
        with self.errors():
            response = await self.stub.GetRun(messages.ProfilerServiceGetRunRequest(run_id=run_id), timeout=RESPONSE_TIMEOUT_S)
        return protobuf.decode(response.run, Run)

    async def artifact(self, run_id: str, artifact_name: str, max_bytes: int) -> bytes:
        """Return a complete file that the run left.

        Raises:
            RunNotFoundError: the node does not know the run.
            ArtifactNotFoundError: the run left no such file.
            LimitReachedError: the file has more than max_bytes.
            NodeUnreachableError: as of `artifact_chunks`.
        """
        data = bytearray()
        async for chunk in self.artifact_chunks(run_id, artifact_name):
            data += chunk
            if len(data) > max_bytes:
                raise LimitReachedError(
                    f"artifact {artifact_name} of run {run_id}",
                    found=f"more than {max_bytes} bytes",
                    expected=f"at most {max_bytes}",
                    remedy="Fetch it by itself, or profile fewer configurations at a time.",
                )
        return bytes(data)

    async def artifact_chunks(self, run_id: str, artifact_name: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield a file that the run left, from byte `offset` on, in chunks of at most 1 MiB.

        Raises:
            RunNotFoundError: the node does not know the run.
            ArtifactNotFoundError: the run left no such file.
            NodeUnreachableError: the node is gone or stalls, or this client is closed.
        """
        request = messages.ProfilerServiceReadArtifactRequest(run_id=run_id, artifact_name=artifact_name, offset=offset)
        call = self.stub.ReadArtifact(request)
        try:
            while True:
                with self.errors():
                    async with asyncio.timeout(STALL_TIMEOUT_S):
                        part = await call.read()
                if part is grpc.aio.EOF:
                    return
                yield part.chunk
        except TimeoutError as error:
            raise unreachable_error(self.address, f"no byte of {artifact_name} in {STALL_TIMEOUT_S:g} s") from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection; calls that are in progress end after CLOSING_S."""
        await self._channel.close(CLOSE_GRACE_S)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the error of the node unchanged, but for those of the connection and those of a method that the node does not have.

        Raises:
            NodeUnreachableError: the node cannot be reached, or the connection ends.
            NotBuiltYetError: names both versions: the node is older than this analyzer.
        """
        try:
            yield
        except asyncio.CancelledError as error:  # as the calls of a closed channel end
            if is_cancelled():
                raise
            raise unreachable_error(self.address, "that its connection was closed, as it is when the node is removed") from error
        except grpc.RpcError as error:
            translated = error_from_rpc(error)
            if type(translated) is UnavailableError or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise unreachable_error(self.address, error.details() or error.code().name) from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and _minor(self.version) != _minor(OWN_VERSION):
                raise self._too_old(translated.found) from error
            raise translated from error

    def _too_old(self, found: str) -> NotBuiltYetError:
        return NotBuiltYetError(
            f"call to node {self.address}",
            found=f"kernalyse {self.version or 'of unknown version'} there ({found})",
            expected=f"what this analyzer of version {OWN_VERSION} calls",
            remedy=f"Install kernalyse {OWN_VERSION} on the node, and restart its profiler.",
        )


def version_note(node: Node | None) -> str:
    """Return what to know of a node whose minor version is another than this analyzer's; empty: nothing."""
    if node is None or _minor(node.version) == _minor(OWN_VERSION):
        return ""
    return (
        f"{node.hostname} has kernalyse {node.version}, and this analyzer {OWN_VERSION}: one may not know what the other asks for. "
        "Install the same version on both."
    )


def _minor(version: str) -> tuple[str, ...]:
    """Return the parts of a version within which services understand each other."""
    return tuple(version.split(".")[:2])


def unreachable_error(address: str, found: str) -> NodeUnreachableError:
    """Return the error for a node that does not answer."""
    return NodeUnreachableError(
        f"node {address}",
        found=found,
        expected="a profiler that answers",
        remedy="Check that it runs, that the address is right and that nothing between blocks it.",
    )
