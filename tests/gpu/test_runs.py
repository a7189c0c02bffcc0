"""Runs on a real device that are right or wrong, however long they take: every kernel of the catalogue, and every kind of fault.

Other programs on the device do no harm here: run.sh runs this beside the conformance test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from kernalyse.services.core.model import (
    BackendName,
    BufferDefinition,
    BufferRole,
    DataType,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    ParameterDefinition,
    Run,
    RunSpec,
    RunState,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from tests.gpu.conftest import RecordFigure
from tests.gpu.sweeps import swept
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to, running_node

QUICK = MeasuringOptions(min_duration_ns=50_000_000, max_duration_ns=1_000_000_000)


# ---------------------------------------------------------------- results


@pytest.mark.timeout(200)
def test_every_catalogue_kernel_is_verified_and_measured(session: DeviceSession, cuda_backend: BackendName, figure: RecordFigure) -> None:
    kernels = tuple(KernelSelection(name) for name in load_catalog().kernel_names)
    kept = swept(session, KernelSweep(kernels, backend=cuda_backend, measuring=QUICK))
    assert [failure.error.message for failure in kept.failures] == []
    assert {one.verification.state for one in kept.measurements} == {VerificationState.PASSED}
    assert {one.recheck.state for one in kept.measurements if one.recheck is not None} == {VerificationState.PASSED}
    assert all(one.is_blocked for one in kept.measurements), "launch overhead is in the samples"
    assert all(one.resources is not None and one.resources.register_count for one in kept.measurements)
    figure(
        "catalogue",
        backend=cuda_backend,
        configuration_count=len(kept.measurements),
        compile_s=sum(one.compile_ns for one in kept.measurements) / 1e9,
        elapsed_s=sum(one.elapsed_ns for one in kept.measurements) / 1e9,
    )


# ---------------------------------------------------------------- faults

HANG_LIMIT_S = 12.0  # of silence; a backend that runs programs of its own ends one of them after half of it

SCALE = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) b[i] = 2.0f * a[i];"
BODIES = {
    "good": SCALE,
    "out_of_bounds": "b[(size_t)1 << 40] = a[0];",
    "hang": "volatile float *w = b; while (w[0] != 12345.0f) w[1] = a[0]; " + SCALE,
    "trap": "__trap();",
    "shared": "__shared__ float s[100000]; s[threadIdx.x] = a[0]; __syncthreads(); b[0] = s[5];",
}
REASONS = {"out_of_bounds": "WORKER_CRASHED", "hang": "TIME_LIMIT", "trap": "WORKER_CRASHED", "shared": "COMPILE_FAILED"}


def faulty_sweep(name: str, backend: BackendName) -> RunSpec:
    definition = KernelDefinition(
        kernel_name=name,
        source_file_name=f"{name}.cu",
        launch=LaunchDefinition(block=("64",), grid=("ceil_div(N, block_x)",)),
        parameters=(ParameterDefinition("N", (1_000,)),),
        buffers=(
            BufferDefinition("a", ("N",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("b", ("N",), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
    )
    text = f'extern "C" __global__ void {name}(const float *a, float *b, int N) {{ {BODIES[name]} }}'
    kernel = KernelSelection(name, KernelSource(f"{name}.cu", text), definition)
    return RunSpec(KernelSweep((kernel,), backend=backend, measuring=QUICK), title=name)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    with running_node(tmp_path_factory.mktemp("node"), configuration_time_limit_s=HANG_LIMIT_S) as node:
        yield node


@pytest.fixture
async def calls(node: ProfilerNode) -> AsyncIterator[Calls]:
    async with calls_to(node) as calls:
        yield calls


async def ended(calls: Calls, name: str, backend: BackendName) -> Run:
    return await calls.finished((await calls.start(faulty_sweep(name, backend))).run_id)


@pytest.mark.timeout(120)
async def test_a_fault_costs_its_run_only(calls: Calls, cuda_backend: BackendName, node: ProfilerNode, figure: RecordFigure) -> None:
    """One fault after the other: each is told as what it is, and in the end a good run succeeds."""
    for name, reason in REASONS.items():
        failed = await ended(calls, name, cuda_backend)
        assert failed.error is not None, f"{failed.state}: {node.log()[-2000:]}"
        assert failed.start_time is not None
        assert failed.end_time is not None
        seconds = (failed.end_time - failed.start_time).total_seconds()
        figure("fault", backend=cuda_backend, fault=name, reason=failed.error.reason, message=failed.error.message[:300], seconds=seconds)
        assert failed.state is RunState.FAILED
        assert failed.error.reason == reason
        assert name in failed.error.message
    good = await ended(calls, "good", cuda_backend)
    assert good.state is RunState.SUCCEEDED, good.error


def test_a_sweep_goes_on_after_what_leaves_the_device_alone(session: DeviceSession, cuda_backend: BackendName) -> None:
    """A kernel that does not compile, between two that run."""
    kernels = []
    for name in ("good", "shared"):
        work = faulty_sweep(name, cuda_backend).work
        assert isinstance(work, KernelSweep)
        kernels.append(work.kernels[0])
    last = replace(kernels[0], kernel_name="saxpy", source=None, definition=None)
    kept = swept(session, KernelSweep((*kernels, last), backend=cuda_backend, measuring=QUICK))
    assert [failure.error.reason for failure in kept.failures] == ["COMPILE_FAILED"]
    assert {one.configuration_index for one in kept.measurements} >= {0, 2}
