"""The methods of ProfilerService: each decodes, calls, encodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from kernalyse.v1 import profiler_service_pb2 as messages
from kernalyse.v1 import profiler_service_pb2_grpc
from services.core import wire
from services.core.errors import ForbiddenError, InvalidRequestError, ShuttingDownError
from services.core.model import KernelSource, Node, Run, RunSpec
from services.profiler.bundles import MAX_CHUNK_BYTES, BundleStore
from services.profiler.catalog import Catalog
from services.profiler.journal import Journal, News
from services.profiler.node import with_state
from services.profiler.runs import Runs
from services.profiler.source_kernels import kernels_of_source
from services.profiler.telemetry import TelemetrySampler

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
        news: News,
        telemetry: TelemetrySampler,
        bundles: BundleStore,
        catalog: Catalog,
    ) -> None:
        self._node = node
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
        self._news.announce()

    async def GetNode(self, request: messages.GetNodeRequest, context: Any) -> messages.GetNodeResponse:
        return messages.GetNodeResponse(node=wire.encode(self._described_node()))

    async def ListKernels(
        self, request: messages.ProfilerServiceListKernelsRequest, context: Any
    ) -> messages.ProfilerServiceListKernelsResponse:
        if not request.HasField("source"):
            return messages.ProfilerServiceListKernelsResponse(
                kernels=[wire.encode(kernel) for kernel in self._catalog.definitions.values()]
            )
        policy = self._node.policy
        if policy.allow_catalog_only or not policy.allow_inline_source:
            raise ForbiddenError("sources that travel with a request", found="switched off on this node", remedy="Ask its owner.")
        listed = await asyncio.to_thread(kernels_of_source, wire.decode(request.source, KernelSource))
        return messages.ProfilerServiceListKernelsResponse(
            kernels=[wire.encode(definition) for definition in listed.definitions], notices=listed.notices
        )

    # ------------------------------------------------------------ runs

    async def StartRun(self, request: messages.ProfilerServiceStartRunRequest, context: Any) -> messages.ProfilerServiceStartRunResponse:
        spec = wire.decode(request.spec, RunSpec)
        run = await (self._runs.checked(spec) if request.validate_only else self._runs.start(spec, request.request_id))
        return messages.ProfilerServiceStartRunResponse(run=wire.encode(run))

    async def GetRun(self, request: messages.ProfilerServiceGetRunRequest, context: Any) -> messages.ProfilerServiceGetRunResponse:
        return messages.ProfilerServiceGetRunResponse(run=wire.encode(await self._runs.get(request.run_id)))

    async def ListRuns(self, request: messages.ProfilerServiceListRunsRequest, context: Any) -> messages.ProfilerServiceListRunsResponse:
        page = await self._runs.list(_run_number(request.page_token), min(request.page_size, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE)
        return messages.ProfilerServiceListRunsResponse(
            runs=[wire.encode(run) for run in page.runs],
            next_page_token="" if page.next_run_number is None else str(page.next_run_number),
        )

    async def CancelRun(self, request: messages.ProfilerServiceCancelRunRequest, context: Any) -> messages.ProfilerServiceCancelRunResponse:
        return messages.ProfilerServiceCancelRunResponse(run=wire.encode(await self._runs.cancel(request.run_id)))

    # ------------------------------------------------------------ watching

    async def WatchRun(
        self, request: messages.ProfilerServiceWatchRunRequest, context: Any
    ) -> AsyncIterator[messages.ProfilerServiceWatchRunResponse]:
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
        is_other_journal = request.journal_id not in ("", self._journal.journal_id)
        cursor = await self._journal.cursor(0 if is_other_journal else _event_index(request.next_event_index))
        telemetry_position = 0
        told_problem: str | None = None  # None: nothing of the node has been told
        while True:
            news = self._news.next()
            node = None if self._journal.problem == told_problem else self._described_node()
            frames = await self._journal.read(cursor, WATCH_RESPONSE_BYTES)
            idle_telemetry, telemetry_position = self._telemetry.idle_after(telemetry_position)
            if frames or idle_telemetry or node is not None:
                response = messages.WatchNodeResponse.FromString(frames)
                response.idle_telemetry.extend(wire.encode(reading) for reading in idle_telemetry)
                if node is not None:
                    response.node.CopyFrom(wire.encode(node))
                    told_problem = node.storage_problem
                yield response
            else:
                await self._wait_for(news)

    async def _wait_for(self, news: asyncio.Event) -> None:
        if self._is_closing:
            raise ShuttingDownError("this node", found="it is shutting down", remedy="Watch on from the next index when it has restarted.")
        await news.wait()

    # ------------------------------------------------------------ files

    async def UploadBundle(self, requests: AsyncIterator[Any], context: Any) -> messages.ProfilerServiceUploadBundleResponse:
        policy = self._node.policy
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
        await self._runs.get(request.run_id)
        path = self._runs.folder(request.run_id).artifact(request.artifact_name)
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            if request.offset > size_bytes:
                raise InvalidRequestError(
                    f"offset into artifact {request.artifact_name}", found=str(request.offset), expected=f"at most {size_bytes}"
                )
            file.seek(request.offset)
            while chunk := await asyncio.to_thread(file.read, MAX_CHUNK_BYTES):
                yield messages.ProfilerServiceReadArtifactResponse(chunk=chunk)

    def _described_node(self) -> Node:
        return with_state(self._node, self._runs.running_run_ids, self._runs.queued_run_ids, self._journal.problem)


def _event_index(value: int) -> int:
    if value < 0:
        raise InvalidRequestError("next_event_index", found=str(value), expected="0 or more", remedy="0 asks for the oldest event kept.")
    return value


def _run_number(page_token: str) -> int | None:
    if not page_token:
        return None
    if not page_token.isdecimal() or len(page_token) > 18:
        raise InvalidRequestError("page_token", found=page_token, expected="next_page_token of the answer before, or nothing")
    return int(page_token)
