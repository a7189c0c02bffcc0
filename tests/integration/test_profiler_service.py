"""The profiler service with its real worker: a sweep from request to measurement, and what is refused."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kernalyse.channel import open_async_channel
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import (
    ArtifactNotFoundError,
    BackendUnavailableError,
    BundleTooLargeError,
    DeviceNotFoundError,
    ForbiddenError,
    InvalidBundleError,
    InvalidParameterError,
    InvalidRequestError,
    InvalidSourceError,
    RunNotFoundError,
    TooManyConfigurationsError,
    UnauthenticatedError,
    UnknownKernelError,
    UnknownModelError,
    UnknownParameterError,
)
from kernalyse.services.core.model import (
    Axis,
    BackendName,
    CommandProfile,
    KernelSelection,
    KernelSource,
    KernelSweep,
    ModelRun,
    Node,
    Revision,
    RunLimits,
    RunSpec,
    RunState,
)
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import kernel_pb2, run_pb2
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.profiler_node import (
    Calls,
    ProfilerNode,
    calls_to,
    payload_names,
    processes_with,
    quick_sweep,
    resident_bytes,
    running_node,
    states,
)

IDLE_MEMORY_LIMIT_BYTES = 90 * 1000**2
SERVICE_VARIABLES = {
    "DATABASE_URL": "secret",
    "NVIDIA_API_KEY": "secret",
    "KERNALYSE_TOKEN": "secret",
    "CUDA_CACHE_PATH": "/var/cache/cuda",
}


@contextmanager
def refused(error: type[Exception], match: str) -> Iterator[None]:
    """Expects a call inside to end with this error."""
    with pytest.raises(error, match=match), translated_errors():
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, ceilings_file: Path) -> Iterator[ProfilerNode]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in SERVICE_VARIABLES.items():
            monkeypatch.setenv(name, value)
        with running_node(tmp_path_factory.mktemp("node"), ceilings_file=ceilings_file, bundle_max_bytes=100_000) as node:
            yield node


@pytest.fixture
async def restricted(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Calls]:
    """A service with the policy switches of the indirect parameter."""
    with running_node(tmp_path, stand_in=True, **request.param) as node:
        async with calls_to(node) as calls:
            yield calls


async def test_an_idle_service_is_small(node: ProfilerNode, calls: Calls) -> None:
    """First of all: later tests may leave more in its memory."""
    await calls.node()
    assert node.process is not None
    assert resident_bytes(node.process.pid) < IDLE_MEMORY_LIMIT_BYTES
    maps = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert not [name for name in ("numpy", "pyopencl", "libOpenCL", "pycuda") if name in maps]


async def test_a_sweep_runs_from_request_to_measurements(calls: Calls) -> None:
    spec = replace(quick_sweep(values=(1024, 4096)), title="two sizes", revision=Revision("0" * 40, True))
    queued = await calls.start(spec)
    assert (queued.state, queued.spec) == (RunState.QUEUED, spec)
    events = await calls.events(queued.run_id)
    run = await calls.get(queued.run_id)
    assert run.state is RunState.SUCCEEDED, run.error
    assert states(events) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert payload_names(events)[-1] == "state_changed"
    assert [event.event_index for event in events] == sorted({event.event_index for event in events})
    measurements = [event.measurement for event in events if event.WhichOneof("payload") == "measurement"]
    assert [measurement.configuration_index for measurement in measurements] == [0, 1]
    for measurement in measurements:
        samples = [
            duration
            for event in events
            if event.WhichOneof("payload") == "sample_batch" and event.sample_batch.configuration_index == measurement.configuration_index
            for duration in event.sample_batch.duration_ns
        ]
        assert len(samples) == measurement.sample_count + measurement.discarded_sample_count >= 10
        assert min(samples) <= measurement.duration_median_ns <= max(samples)
        assert measurement.verification.state == run_pb2.VERIFICATION_STATE_PASSED
    counts = (run.completed_configuration_count, run.failed_configuration_count, run.total_configuration_count)
    assert counts == (2, 0, 2)
    assert run.device_id is not None
    assert run.spec == spec
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.create_time <= run.start_time <= run.end_time


async def test_a_running_sweep_is_cancelled_promptly(calls: Calls) -> None:
    measuring = replace(quick_sweep().work.measuring, min_duration_ns=10**11, max_sample_count=None, max_duration_ns=10**11)  # type: ignore[union-attr]
    run = await calls.start(RunSpec(KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", (1024,)),), measuring=measuring)))
    async for event in calls.watch(run.run_id):
        if event.WhichOneof("payload") == "sample_batch":
            await calls.cancel(run.run_id)
            break
    async with asyncio.timeout(60):
        assert (await calls.finished(run.run_id)).state is RunState.CANCELLED


async def test_what_runs_kernels_gets_what_compilers_and_runtimes_need_of_the_services_environment(calls: Calls) -> None:
    measuring = replace(quick_sweep().work.measuring, min_duration_ns=10**11, max_sample_count=None, max_duration_ns=10**11)  # type: ignore[union-attr]
    run = await calls.start(RunSpec(KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", (1024,)),), measuring=measuring)))
    async for event in calls.watch(run.run_id):
        if event.WhichOneof("payload") == "sample_batch":
            break
    environments = [Path(f"/proc/{process_id}/environ").read_bytes().decode() for process_id in processes_with(f"/{run.run_id}/")]
    await calls.cancel(run.run_id)
    assert len(environments) == 2  # supervisor and worker
    for text in environments:
        got = dict(variable.partition("=")[::2] for variable in text.split("\0"))
        assert {"PATH", "HOME", "TMPDIR"} <= got.keys()
        assert got["CUDA_CACHE_PATH"] == SERVICE_VARIABLES["CUDA_CACHE_PATH"]
        assert not {"DATABASE_URL", "NVIDIA_API_KEY", "KERNALYSE_TOKEN"} & got.keys()


async def test_the_node_describes_itself(calls: Calls) -> None:
    described = protobuf.decode(await calls.node(), Node)
    assert described.devices
    assert described.journal_id
    assert described.cpu_count
    assert described.policy.allow_inline_source


async def test_the_catalogue_is_listed(calls: Calls) -> None:
    with translated_errors():
        answer = await calls.stub.ListKernels(messages.ProfilerServiceListKernelsRequest())
    assert {"saxpy", "matmul_naive", "softmax"} <= {kernel.kernel_name for kernel in answer.kernels}


async def test_the_kernels_of_a_source_are_told_with_what_is_assumed_of_them(calls: Calls) -> None:
    text = "__global__ void scale(float* a, float s, int N) {}\ntemplate <class T> __global__ void other(T* a, int N) {}"
    source = kernel_pb2.KernelSource(file_name="mine.cu", text=text)
    with translated_errors():
        answer = await calls.stub.ListKernels(messages.ProfilerServiceListKernelsRequest(source=source))
    (kernel,) = answer.kernels
    assert (kernel.kernel_name, [parameter.name for parameter in kernel.parameters]) == ("scale", ["N"])
    assert "scale: s: taken to be 1.0" in " ".join(answer.notices)
    assert "Name one instance, for example other<float>." in " ".join(answer.notices)
    with refused(InvalidSourceError, "mine.cu"):
        empty = kernel_pb2.KernelSource(file_name="mine.cu")
        await calls.stub.ListKernels(messages.ProfilerServiceListKernelsRequest(source=empty))


async def test_a_request_that_is_only_checked_starts_nothing(calls: Calls) -> None:
    before = (await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest())).runs
    request = messages.ProfilerServiceStartRunRequest(spec=protobuf.encode(quick_sweep(values=(1024, 2048))), validate_only=True)
    run = (await calls.stub.StartRun(request)).run
    assert (run.run_id, run.total_configuration_count, bool(run.device_id)) == ("", 2, True)
    request = messages.ProfilerServiceStartRunRequest(spec=protobuf.encode(quick_sweep("saxpi")), validate_only=True)
    with refused(UnknownKernelError, "saxpy"):
        await calls.stub.StartRun(request)
    assert (await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest())).runs == before


@pytest.mark.slow
async def test_runs_are_listed_newest_first_in_pages(calls: Calls) -> None:
    runs = [await calls.start(quick_sweep(values=(1024,))) for _ in range(3)]
    names: list[str] = []
    page_token = ""
    for _ in range(2):
        answer = await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest(page_size=2, page_token=page_token))
        names += [run.run_id for run in answer.runs]
        page_token = answer.next_page_token
    assert names[:3] == [run.run_id for run in reversed(runs)]
    for run in runs:
        await calls.finished(run.run_id)


# ---------------------------------------------------------------- refused requests


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (quick_sweep("saxpi"), UnknownKernelError, "saxpy"),
        (quick_sweep(values=(0,)), InvalidParameterError, "N"),
        (quick_sweep(values=(-4,)), InvalidParameterError, "-4"),
        (RunSpec(KernelSweep((KernelSelection("saxpy"),), axes=(Axis("Q", (1,)),))), UnknownParameterError, "Q"),
        (
            RunSpec(KernelSweep((KernelSelection("matmul_naive"),), axes=tuple(Axis(name, tuple(range(1, 217))) for name in "NMK"))),
            TooManyConfigurationsError,
            "10077696",
        ),
        (quick_sweep(device_id="cuda:99"), DeviceNotFoundError, "cuda:99"),
        (replace(quick_sweep(), limits=RunLimits(time_limit_ns=-1)), InvalidParameterError, "time_limit_ns"),
        (RunSpec(CommandProfile(("ls",), "perf")), InvalidParameterError, "one of nsys, ncu, kineto, proton"),
        (RunSpec(ModelRun("gpt-nona")), UnknownModelError, "gpt-nano"),
        (RunSpec(ModelRun("nano", ("baseline", "fussed"))), InvalidParameterError, "one of baseline, fused"),
        (RunSpec(ModelRun("gpt_nano", sequence_length=0)), InvalidParameterError, "sequence_length"),
        (RunSpec(ModelRun("gpt-nano", backend=BackendName.NVCC)), BackendUnavailableError, "pycuda, opencl"),
    ],
    ids=["kernel", "zero", "negative", "parameter", "too many", "device", "limit", "command", "model", "variant", "length", "backend"],
)
async def test_a_request_that_cannot_run_is_refused_at_once(calls: Calls, spec: RunSpec, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await calls.start(spec)


async def test_a_request_without_work_is_refused(calls: Calls) -> None:
    with refused(InvalidRequestError, "no work"):
        await calls.stub.StartRun(messages.ProfilerServiceStartRunRequest())


async def test_odd_arguments_are_refused(calls: Calls) -> None:
    with refused(RunNotFoundError, "nowhere"):
        await calls.stub.GetRun(messages.ProfilerServiceGetRunRequest(run_id="nowhere"))
    with refused(RunNotFoundError, "nowhere"):
        await calls.stub.WatchRun(messages.ProfilerServiceWatchRunRequest(run_id="nowhere")).read()
    with refused(RunNotFoundError, "nowhere"):
        await calls.stub.CancelRun(messages.ProfilerServiceCancelRunRequest(run_id="nowhere"))
    with refused(InvalidRequestError, "page_token"):
        await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest(page_token="x"))
    with refused(InvalidRequestError, "next_event_index"):
        await calls.stub.WatchNode(messages.WatchNodeRequest(next_event_index=-1)).read()
    with refused(InvalidRequestError, "request_id"):
        await calls.start(quick_sweep(), "x" * 101)


SOURCE = KernelSource("own.cu", "__global__ void own(float *a, int N) { a[threadIdx.x] = 1.0f; }")


@pytest.mark.parametrize(
    ("restricted", "spec"),
    [
        ({"allow_commands": False}, RunSpec(CommandProfile(("ls",), "nsys"))),
        ({"allow_inline_source": False}, RunSpec(KernelSweep((KernelSelection("own", source=SOURCE),)))),
        ({"allow_catalog_only": True}, RunSpec(KernelSweep((KernelSelection("own", source=SOURCE),)))),
    ],
    indirect=["restricted"],
    ids=["commands", "inline source", "catalogue only"],
)
async def test_what_the_policy_switches_off_is_forbidden(restricted: Calls, spec: RunSpec) -> None:
    with pytest.raises(ForbiddenError, match="switched off on this node"):
        await restricted.start(spec)


@pytest.mark.parametrize("restricted", [{"allow_catalog_only": True}], indirect=True)
async def test_a_node_for_catalogue_kernels_takes_no_bundle(restricted: Calls) -> None:
    with refused(ForbiddenError, "bundles"):
        await upload(restricted, b"")


# ---------------------------------------------------------------- files


async def upload(calls: Calls, data: bytes, chunk_bytes: int = 10_000) -> Any:
    async def chunks() -> AsyncIterator[Any]:
        for place in range(0, len(data), chunk_bytes):
            yield messages.ProfilerServiceUploadBundleRequest(chunk=data[place : place + chunk_bytes])

    return await calls.stub.UploadBundle(chunks())


def archive(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


async def test_a_bundle_is_uploaded_in_chunks(calls: Calls, node: ProfilerNode) -> None:
    data = archive("include/own.h", b"#define TWO 2\n" * 3000)
    answer = await upload(calls, data, 100)
    assert (answer.size_bytes, answer.file_count) == (len(data), 1)
    directory = node.data_directory / "bundles" / answer.digest.removeprefix("sha256:")
    assert (directory / "include" / "own.h").read_bytes().startswith(b"#define TWO 2")


async def test_bundles_that_must_not_be_taken_are_refused(calls: Calls) -> None:
    with refused(InvalidBundleError, r"\.\./own\.h"):
        await upload(calls, archive("../own.h", b""))
    with refused(BundleTooLargeError, "100000"):
        await upload(calls, bytes(200_000))


async def test_a_run_with_4_mib_of_source_is_taken(calls: Calls) -> None:
    text = SOURCE.text.ljust(4 * 1024**2)
    spec = protobuf.encode(RunSpec(KernelSweep((KernelSelection("own", source=replace(SOURCE, text=text)),), axes=(Axis("N", (1024,)),))))
    with translated_errors():
        answer = await calls.stub.StartRun(messages.ProfilerServiceStartRunRequest(spec=spec, validate_only=True))
    assert answer.run.total_configuration_count == 1


async def test_requests_without_the_token_take_no_memory(tmp_path: Path) -> None:
    request = bytes(7 * 1024**2)
    with running_node(tmp_path, stand_in=True) as node:
        assert node.process is not None
        before_bytes = peak_resident_bytes(node.process.pid)

        async def is_refused() -> None:
            options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
            async with grpc.aio.insecure_channel(node.endpoint.address, options) as channel:
                with refused(UnauthenticatedError, "no token"):
                    await channel.unary_unary("/kernalyse.v1.ProfilerService/GetNode")(request)

        await asyncio.gather(*(is_refused() for _ in range(32)))
        assert peak_resident_bytes(node.process.pid) - before_bytes < 64 * 1024**2


def peak_resident_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("name", ["../../spec.pb", "/etc/passwd", "nothing", "", "."])
async def test_only_artifacts_can_be_read(calls: Calls, name: str) -> None:
    run = await calls.start(quick_sweep(values=(1024,)), "for artifacts")
    await calls.finished(run.run_id)
    with refused(ArtifactNotFoundError, "artifact"):
        await calls.stub.ReadArtifact(messages.ProfilerServiceReadArtifactRequest(run_id=run.run_id, artifact_name=name)).read()


# ---------------------------------------------------------------- standard services


async def test_health_needs_no_token_and_reflection_names_the_service(node: ProfilerNode) -> None:
    async with grpc.aio.insecure_channel(node.endpoint.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "kernalyse.v1.ProfilerService"):
            request = health_pb2.HealthCheckRequest(service=name)
            assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            assert (await health.Watch(request, timeout=30).read()).status == health_pb2.HealthCheckResponse.SERVING
    async with open_async_channel(node.endpoint) as channel:
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="kernalyse.v1.ProfilerService")
        metadata = (("authorization", f"Bearer {node.endpoint.token}"),)
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), metadata=metadata)
        answer = await stream.read()
        stream.cancel()
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        assert [service.name for service in file.service] == ["ProfilerService"]
