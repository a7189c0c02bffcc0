"""A ProfilerService that serves the events a test writes, and fails when the test says so.

It stands in for a node where a test has to choose the journal entry by entry: gaps, restarts, other journals, millions of
samples. Everything behind it is real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio

from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import ArtifactNotFoundError, EventExpiredError, RunNotFoundError, UnknownKernelError
from kernalyse.services.core.model import (
    BackendName,
    CacheMode,
    Configuration,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    EventPayload,
    KernelSelection,
    KernelSweep,
    Measurement,
    Node,
    ParameterValue,
    Progress,
    Run,
    RunEvent,
    RunSpec,
    RunState,
    SampleBatch,
    StateChanged,
    StopReason,
    Telemetry,
    Verification,
    VerificationState,
)
from kernalyse.services.core.rpc import ServerSecurity, build_server
from kernalyse.v1 import profiler_service_pb2 as messages
from kernalyse.v1.profiler_service_pb2_grpc import ProfilerServiceServicer, add_ProfilerServiceServicer_to_server

TOKEN = "token-of-the-node"
CREATED = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
H200 = Device("cuda:0", "NVIDIA H200", DeviceKind.GPU, (BackendName.PYCUDA,))
EVENTS_PER_RESPONSE = 50


@dataclass(slots=True)
class ProfilerStandIn(ProfilerServiceServicer):
    """events: the journal. expired_before: indexes under it answer EVENT_EXPIRED."""

    address: str
    node: Node = field(
        default_factory=lambda: Node("node-1", "stand-in", "0", "journal-1", CREATED, devices=(H200,)),
    )
    runs: dict[str, Run] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    idle_telemetry: list[Telemetry] = field(default_factory=list)
    expired_before: int = 0
    requested_indexes: list[int] = field(default_factory=list)
    cancelled_run_ids: list[str] = field(default_factory=list)
    uploaded: bytes = b""
    artifacts: dict[str, bytes] = field(default_factory=lambda: {"saxpy.cl": b"first second"})
    chunk_bytes: int = 6  # of artifacts
    stalls: bool = False  # after the first chunk of each
    answers_after_s: float = 0.0  # when asked what it is
    requested_offsets: list[int] = field(default_factory=list)  # of artifacts
    sent_bytes: int = 0  # of artifacts
    clock_ahead_s: int = 0  # of the analyzer's
    on_start: Callable[[Run], None] = lambda _: None
    server: grpc.aio.Server | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    # ------------------------------------------------------------ what a test does with it

    async def start(self) -> None:
        self.server, _ = build_server(self.address, ServerSecurity(TOKEN))
        add_ProfilerServiceServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, TOKEN)

    def add_run(self, run_id: str, *, created_after_s: int = 0) -> Run:
        spec = RunSpec(KernelSweep((KernelSelection("saxpy"),)))
        run = Run(run_id, self.node.node_id, spec, RunState.QUEUED, CREATED.replace(second=1 + created_after_s))
        self.runs[run_id] = run
        return run

    def journal(self, run_id: str, *payloads: EventPayload) -> None:
        """Appends events of a run and sends them."""
        for payload in payloads:
            index = self.events[-1].event_index + 1 if self.events else self.expired_before
            now_ns = time.time_ns() + self.clock_ahead_s * 1_000_000_000
            self.events.append(RunEvent(index, self.node.journal_id, run_id, now_ns, payload))
        self.news.set()
        self.news = asyncio.Event()

    def forget_events_before(self, event_index: int) -> None:
        self.expired_before = event_index
        self.events = [event for event in self.events if event.event_index >= event_index]

    def begin_anew(self, journal_id: str) -> None:
        """As after the loss of the data directory."""
        self.node = replace(self.node, journal_id=journal_id)
        self.events, self.runs, self.expired_before = [], {}, 0

    # ------------------------------------------------------------ the service

    async def GetNode(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(self.answers_after_s)
        return messages.GetNodeResponse(node=protobuf.encode(self.node))

    async def GetRun(self, request: Any, context: Any) -> Any:
        return messages.ProfilerServiceGetRunResponse(run=protobuf.encode(self._run(request.run_id)))

    async def StartRun(self, request: Any, context: Any) -> Any:
        spec = protobuf.decode(request.spec, RunSpec)
        if isinstance(spec.work, KernelSweep) and spec.work.kernels[0].kernel_name != "saxpy":
            raise UnknownKernelError("kernel nonsense", found="no such kernel", expected="saxpy", remedy="List the kernels.")
        if request.validate_only:
            run = Run("", self.node.node_id, spec, RunState.QUEUED, CREATED)
            return messages.ProfilerServiceStartRunResponse(run=protobuf.encode(run))
        run = self.add_run(f"started-{len(self.runs)}")
        if not isinstance(spec.work, KernelSweep):
            self.runs[run.run_id] = run = replace(run, spec=spec)
        self.on_start(run)
        return messages.ProfilerServiceStartRunResponse(run=protobuf.encode(run))

    async def CancelRun(self, request: Any, context: Any) -> Any:
        self.cancelled_run_ids.append(request.run_id)
        return messages.ProfilerServiceCancelRunResponse(run=protobuf.encode(self._run(request.run_id)))

    async def WatchNode(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.requested_indexes.append(request.next_event_index)
        position = request.next_event_index if request.journal_id in ("", self.node.journal_id) else 0
        if 0 < position < self.expired_before:
            raise EventExpiredError("event index", found=str(position), expected=str(self.expired_before), remedy="Begin there.")
        yield messages.WatchNodeResponse(node=protobuf.encode(self.node), idle_telemetry=[protobuf.encode(t) for t in self.idle_telemetry])
        while True:
            news = self.news
            events = [event for event in self.events if event.event_index >= position]
            for start in range(0, len(events), EVENTS_PER_RESPONSE):
                part = events[start : start + EVENTS_PER_RESPONSE]
                yield messages.WatchNodeResponse(events=[protobuf.encode(event) for event in part])
                position = part[-1].event_index + 1
            if not events:
                await news.wait()

    async def UploadBundle(self, request_iterator: Any, context: Any) -> Any:
        self.uploaded = b""
        async for part in request_iterator:
            self.uploaded += part.chunk
        return messages.ProfilerServiceUploadBundleResponse(digest="sha256:0", size_bytes=len(self.uploaded), file_count=1)

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.artifact_name not in self.artifacts:
            raise ArtifactNotFoundError("artifact", found=request.artifact_name, expected=", ".join(self.artifacts))
        self.requested_offsets.append(request.offset)
        content = self.artifacts[request.artifact_name][request.offset :]
        for start in range(0, len(content), self.chunk_bytes):
            chunk = content[start : start + self.chunk_bytes]
            yield messages.ProfilerServiceReadArtifactResponse(chunk=chunk)
            self.sent_bytes += len(chunk)
            if self.stalls:
                await asyncio.sleep(600)

    async def ListKernels(self, request: Any, context: Any) -> Any:
        return messages.ProfilerServiceListKernelsResponse(kernels=[])

    def _run(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise RunNotFoundError(f"run {run_id}", found="no such run", expected="one of this node")
        return self.runs[run_id]


# ---------------------------------------------------------------- literal events


def configuration(index: int, *, kernel_name: str = "saxpy", flop: float | None = 2e6, bytes_: float | None = 12e6) -> Configuration:
    parameters = (ParameterValue("N", 1000 + index),)
    return Configuration(index, kernel_name, parameters, Dim3(256), Dim3(4), 0, "elementwise", DataType.FLOAT32, flop, bytes_)


def samples(configuration_index: int, first: int, count: int) -> SampleBatch:
    """Sample number n lasts 1000 + n nanoseconds: a lost or doubled one shows."""
    return SampleBatch(configuration_index, first, tuple(1000.0 + n for n in range(first, first + count)), time.time_ns())


def measurement(
    configuration_index: int, *, duration_ns: float = 5000.0, state: VerificationState = VerificationState.PASSED
) -> Measurement:
    return Measurement(
        configuration_index=configuration_index,
        sample_count=20,
        discarded_sample_count=1,
        warm_up_count=2,
        duration_median_ns=duration_ns,
        duration_median_low_ns=duration_ns - 1,
        duration_median_high_ns=duration_ns + 1,
        duration_min_ns=duration_ns - 2,
        duration_max_ns=duration_ns + 2,
        duration_mean_ns=duration_ns,
        duration_lower_quartile_ns=duration_ns - 1,
        duration_upper_quartile_ns=duration_ns + 1,
        duration_p95_ns=duration_ns + 2,
        duration_p99_ns=duration_ns + 2,
        duration_standard_deviation_ns=1.0,
        noise_ratio=1.0 / duration_ns,
        stop_reason=StopReason.CONFIDENCE_REACHED,
        cache_mode=CacheMode.COLD,
        verification=Verification(state, max_absolute_error=0.0, max_relative_error=0.0),
        measured_unix_ns=1_700_000_000_000_000_000,
        elapsed_ns=10_000_000,
        compile_ns=1_000_000,
        throttle_reasons=(),
    )


def started() -> Sequence[EventPayload]:
    return StateChanged(RunState.QUEUED), StateChanged(RunState.RUNNING), Progress(0, 0, 3, "compiling", "cuda:0")


@asynccontextmanager
async def standing_in(directory: Path, kind: type[ProfilerStandIn] = ProfilerStandIn) -> AsyncIterator[ProfilerStandIn]:
    """One that listens in the directory."""
    stand_in = kind(f"unix:{directory}/p.sock")
    await stand_in.start()
    yield stand_in
    await stand_in.stop()
