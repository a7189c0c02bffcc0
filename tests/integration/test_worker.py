"""The worker as a process of its own, on a real OpenCL device, read through its event pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kernalyse.services.core.model import (
    ArgumentDefinition,
    ArtifactStored,
    Axis,
    BackendName,
    BufferDefinition,
    BufferRole,
    CeilingsMeasured,
    Configuration,
    ConfigurationFailed,
    DataType,
    Dim3,
    EventPayload,
    ImportedTrace,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    Measurement,
    MeasuringOptions,
    ParameterDefinition,
    Progress,
    RunEvent,
    RunSpec,
    RunState,
    SampleBatch,
    StateChanged,
    StopReason,
    Tie,
    VerificationState,
    Work,
)
from kernalyse.services.core.protobuf import decode, encode_bytes
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.v1 import run_pb2
from tests.integration.quick_worker import QUICK_WORKER

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

T = TypeVar("T")
KEPT_BYTES_PER_S = 1e9  # of the ceilings that most tests find measured
ROOT = Path(__file__).parents[2]
REAL_WORKER = (sys.executable, "-m", "kernalyse.services.profiler.worker")
QUICK = MeasuringOptions(min_duration_ns=20_000_000, max_duration_ns=300_000_000)
ENDLESS = MeasuringOptions(min_duration_ns=60_000_000_000, max_duration_ns=60_000_000_000, max_sample_count=1_000_000_000)
SAXPY = KernelSweep(
    (KernelSelection("saxpy"),), (Axis("N", (1_024, 65_536)),), backend=BackendName.OPENCL, measuring=QUICK
)  # quick, so that the tests are


@dataclass(frozen=True)
class Ended:
    """A worker that has ended, and all it said."""

    exit_code: int
    payloads: list[EventPayload]
    stderr: str

    def of(self, cls: type[T]) -> list[T]:
        return [payload for payload in self.payloads if isinstance(payload, cls)]


@contextmanager
def started(
    work: Work, directory: Path, *, ceilings_file: Path | None = None, worker: Sequence[str] = REAL_WORKER
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running worker and the read end of its event pipe; killed at the end if still alive."""
    spec_file = directory / "spec"
    spec_file.write_bytes(encode_bytes(RunSpec(work)))
    read_fd, write_fd = os.pipe()
    command = [*worker, "--spec", str(spec_file), "--events-fd", str(write_fd), "--directory", str(directory)]
    command += ["--ceilings-file", str(ceilings_file or prepared_ceilings(directory))]
    python_path = os.pathsep.join((str(ROOT), str(ROOT / "proto/python"), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": python_path}
    process = subprocess.Popen(
        command, cwd=directory, env=environment, pass_fds=(write_fd,), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    os.close(write_fd)
    try:
        yield process, read_fd
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(read_fd)


def run_worker(work: Work, directory: Path, **options: Any) -> Ended:
    """options: as `started` has them."""
    with started(work, directory, **options) as (process, read_fd):
        payloads = list(read_payloads(read_fd))
        assert process.stderr is not None
        stderr = process.stderr.read().decode()
        return Ended(process.wait(timeout=90), payloads, stderr)


def read_payloads(read_fd: int) -> Iterator[EventPayload]:
    """Every whole frame until the pipe closes. A frame cut short fails the test."""
    with os.fdopen(os.dup(read_fd), "rb") as pipe:
        while header := pipe.read(4):
            size = int.from_bytes(header, "big")
            data = pipe.read(size)
            assert len(data) == size, "the last frame is incomplete"
            yield decode(run_pb2.RunEvent.FromString(data), RunEvent).payload


def prepared_ceilings(directory: Path) -> Path:
    """A file with fresh ceilings for every device there is, so that only the test of ceilings waits for a measurement."""
    from kernalyse.services.core.model import Ceiling
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
    from kernalyse.services.profiler.workloads.ceilings import write_ceilings

    file = directory / "ceilings.json"
    for device in OpenCLBackend().devices():
        write_ceilings(file, device, (Ceiling(device.device_id, "dram", "bytes_per_s", KEPT_BYTES_PER_S, "copy", "measured"),), 0.0)
    return file


def own_kernel(text: str, kernel_name: str = "scale", **changes: object) -> KernelSelection:
    """`kernel_name(const float *a, float *b, int N)` with a definition that expects b = 2 a, as the copy of STREAM would not."""
    definition = KernelDefinition(
        kernel_name=kernel_name,
        source_file_name="own.cu",
        launch=LaunchDefinition(block=("64",), grid=("ceil_div(N, block_x)",)),
        parameters=(ParameterDefinition("N", (1_000,)),),
        buffers=(
            BufferDefinition("a", ("N",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("b", ("N",), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
    )
    return KernelSelection(kernel_name, KernelSource("own.cu", text), replace(definition, **changes))  # type: ignore[arg-type]


def sweep_of(*kernels: KernelSelection, **changes: object) -> KernelSweep:
    sweep = KernelSweep(kernels, backend=BackendName.OPENCL, measuring=QUICK)
    return replace(sweep, **changes)  # type: ignore[arg-type]


COPY_TEXT = (
    "__global__ void scale(const float *a, float *b, int N) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) b[i] = a[i]; }"
)


# ---------------------------------------------------------------- what goes well


def test_sweep_tells_everything_in_order_and_verifies(tmp_path: Path) -> None:
    matmul = (KernelSelection("matmul_naive"), KernelSelection("matmul_tiled"))
    axes, ties = (Axis("N", (64, 128)),), (Tie("M", "N"), Tie("K", "N"))
    ended = run_worker(sweep_of(KernelSelection("saxpy"), *matmul, axes=axes, ties=ties, skip_confirmation=True), tmp_path)
    assert (ended.exit_code, ended.stderr) == (0, "")
    measurements, configurations = ended.of(Measurement), ended.of(Configuration)
    assert [one.configuration_index for one in measurements] == list(range(6))
    assert [one.label for one in configurations] == [
        "saxpy N=64",
        "saxpy N=128",
        "matmul_naive M=64 N=64 K=64",
        "matmul_naive M=128 N=128 K=128",
        "matmul_tiled M=64 N=64 K=64",
        "matmul_tiled M=128 N=128 K=128",
    ]
    assert {one.verification.state for one in measurements} == {VerificationState.PASSED}
    assert [one.flop for one in configurations[2:]] == [2 * 64**3, 2 * 128**3] * 2
    for index, measurement in enumerate(measurements):
        assert_told_in_order(ended.payloads, index)
        samples_ns = [duration for batch in ended.of(SampleBatch) if batch.configuration_index == index for duration in batch.duration_ns]
        assert len(samples_ns) == measurement.sample_count >= 10
        assert min(samples_ns) == measurement.duration_min_ns > 0
        assert measurement.duration_median_low_ns <= measurement.duration_median_ns <= measurement.duration_median_high_ns
        assert measurement.driver_version
    last = ended.of(Progress)[-1]
    assert (last.completed_configuration_count, last.failed_configuration_count, last.total_configuration_count) == (6, 0, 6)


def assert_told_in_order(payloads: list[EventPayload], index: int) -> None:
    """Configuration, then batches numbered without gap, then the measurement, all within the configuration."""
    mine = [one for one in payloads if getattr(one, "configuration_index", None) == index and not isinstance(one, Progress)]
    assert isinstance(mine[0], Configuration)
    assert isinstance(mine[-1], Measurement)
    expected_index = 0
    for batch in mine[1:-1]:
        assert isinstance(batch, SampleBatch)
        assert batch.first_sample_index == expected_index
        assert batch.measured_unix_ns <= mine[-1].measured_unix_ns
        expected_index += len(batch.duration_ns)
    position = payloads.index(mine[-1])
    progress = payloads[position + 1]
    assert isinstance(progress, Progress)
    assert progress.completed_configuration_count == index + 1


def test_generated_source_is_kept_as_an_artifact(tmp_path: Path) -> None:
    ended = run_worker(SAXPY, tmp_path)
    specification, artifact = ended.of(ArtifactStored)
    assert specification.artifact_name == "run_spec.json"
    assert artifact.media_type == "text/plain"  # whatever this system takes .cl for
    data = (tmp_path / "artifacts" / artifact.artifact_name).read_bytes()
    assert (artifact.size_bytes, artifact.digest) == (len(data), f"sha256:{sha256(data).hexdigest()}")
    assert b"__kernel" in data


def test_arguments_of_the_request_reach_the_kernel(tmp_path: Path) -> None:
    ended = run_worker(replace(SAXPY, arguments=(ArgumentDefinition("alpha", "-3.5"),)), tmp_path)
    assert {one.verification.state for one in ended.of(Measurement)} == {VerificationState.PASSED}


@pytest.mark.slow
def test_ceilings_are_measured_before_a_sweep_on_a_cpu(tmp_path: Path) -> None:
    ended = run_worker(SAXPY, tmp_path, ceilings_file=tmp_path / "deep" / "ceilings.json", worker=QUICK_WORKER)
    measured = ended.of(CeilingsMeasured)
    assert len(measured) in (1, 2)  # a busy host's are measured again after the sweep
    assert ended.payloads.index(measured[0]) < ended.payloads.index(ended.of(Configuration)[0])
    assert {one.ceiling_name: one.unit for one in measured[-1].ceilings} == {
        "dram": "bytes_per_s",
        "l2": "bytes_per_s",
        "l1": "bytes_per_s",
        "float32": "flop_per_s",
        "float64": "flop_per_s",
    }
    assert all(one.value > 1e8 and one.source == "measured" for one in measured[-1].ceilings)


def test_kept_ceilings_are_told_without_measuring(tmp_path: Path) -> None:
    (told,) = run_worker(SAXPY, tmp_path).of(CeilingsMeasured)
    assert [(one.ceiling_name, one.value) for one in told.ceilings] == [("dram", KEPT_BYTES_PER_S)]


# ---------------------------------------------------------------- what goes wrong


def test_wrong_kernel_is_marked_and_measured_all_the_same(tmp_path: Path) -> None:
    right = load_catalog().definition("vector_add")
    text = load_catalog().source("vector_add").text
    wrong = KernelSource("wrong.cu", text.replace("a[i] + b[i]", "a[i] - b[i]"))
    assert wrong.text != text
    ended = run_worker(sweep_of(KernelSelection("vector_add", wrong, right), axes=(Axis("N", (1_000,)),)), tmp_path)
    assert ended.exit_code == 0
    (measurement,) = ended.of(Measurement)
    assert measurement.verification.state is VerificationState.FAILED
    assert "expected" in measurement.verification.message
    assert measurement.sample_count >= 10


def test_kernel_without_reference_says_so(tmp_path: Path) -> None:
    (measurement,) = run_worker(sweep_of(own_kernel(COPY_TEXT)), tmp_path).of(Measurement)
    assert measurement.verification.state is VerificationState.NO_REFERENCE


def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    ended = run_worker(replace(SAXPY, measuring=replace(QUICK, skip_verification=True)), tmp_path)
    assert {one.verification.state for one in ended.of(Measurement)} == {VerificationState.SWITCHED_OFF}


def test_source_that_does_not_compile_fails_its_configurations_with_the_compilers_lines_and_the_others_go_on(tmp_path: Path) -> None:
    broken = own_kernel("__global__ void broken(const float *a, float *b, int N) { b[0] = undeclared_name; }", "broken")
    ended = run_worker(sweep_of(broken, own_kernel(COPY_TEXT), axes=(Axis("N", (100, 200)),)), tmp_path)
    assert ended.exit_code == 0
    failed = ended.of(ConfigurationFailed)
    assert [one.configuration_index for one in failed] == [0, 1]
    assert {one.error.reason for one in failed} == {"COMPILE_FAILED"}
    assert "undeclared_name" in failed[0].error.message
    assert [one.configuration_index for one in ended.of(Measurement)] == [2, 3]
    assert ended.of(Progress)[-1].failed_configuration_count == 2


def test_run_fails_with_the_first_error_when_nothing_could_be_measured(tmp_path: Path) -> None:
    ended = run_worker(sweep_of(own_kernel(COPY_TEXT), blocks=(Dim3(1 << 20),)), tmp_path)
    assert ended.exit_code == 1
    last = ended.payloads[-1]
    assert isinstance(last, StateChanged)
    assert last.state is RunState.FAILED
    assert last.error is not None
    assert (last.error.code, last.error.reason) == ("INVALID_ARGUMENT", "LAUNCH_LIMIT_EXCEEDED")
    assert [one.error for one in ended.of(ConfigurationFailed)] == [last.error]


def test_array_larger_than_the_device_fails_by_its_size_before_allocation(tmp_path: Path) -> None:
    selection = own_kernel(COPY_TEXT.replace("int N", "long N"), launch=LaunchDefinition(("64",), ("1",)))
    ended = run_worker(sweep_of(selection, axes=(Axis("N", (100, 2**42)),)), tmp_path)
    (failed,) = ended.of(ConfigurationFailed)
    assert failed.error.reason == "MEMORY_LIMIT"
    assert str(2**44) in failed.error.message
    assert len(ended.of(Measurement)) == 1


def test_grid_that_no_device_takes_fails_its_configuration(tmp_path: Path) -> None:
    ended = run_worker(sweep_of(own_kernel(COPY_TEXT, buffers=own_buffers("64")), axes=(Axis("N", (64, 2**42)),)), tmp_path)
    (failed,) = ended.of(ConfigurationFailed)
    assert failed.error.reason == "LAUNCH_LIMIT_EXCEEDED"
    assert f"grid.x = {2**36}" in failed.error.message
    assert len(ended.of(Measurement)) == 1


def test_block_that_the_source_is_not_written_for_fails_its_configuration(tmp_path: Path) -> None:
    sizes = (Axis("N", (64,)), Axis("M", (64,)), Axis("K", (64,)))
    ended = run_worker(
        sweep_of(KernelSelection("matmul_naive"), KernelSelection("matmul_tiled"), axes=sizes, blocks=(Dim3(8, 8),)), tmp_path
    )
    (failed,) = ended.of(ConfigurationFailed)
    assert failed.error.reason == "LAUNCH_LIMIT_EXCEEDED"
    assert "found TILE=16, block_x=8, block_y=8; expected block_x == TILE and block_y == TILE" in failed.error.message
    (measured,) = ended.of(Measurement)
    assert measured.verification.state is VerificationState.PASSED


def test_constants_of_a_catalogue_kernel_are_swept_with_the_blocks_that_they_ask_for(tmp_path: Path) -> None:
    sizes = (Axis("N", (40,)), Axis("M", (40,)), Axis("K", (40,)))
    ended = run_worker(sweep_of(KernelSelection("matmul_tiled"), axes=sizes, macro_axes=(Axis("TILE", (8, 32)),)), tmp_path)
    found = {(configuration.label, configuration.block, configuration.grid) for configuration in ended.of(Configuration)}
    label = "matmul_tiled M=40 N=40 K=40 TILE="
    assert found == {(f"{label}8", Dim3(8, 8), Dim3(5, 5)), (f"{label}32", Dim3(32, 32), Dim3(2, 2))}
    assert [measured.verification.state for measured in ended.of(Measurement)] == [VerificationState.PASSED] * 2


def test_parameter_that_the_source_cannot_hold_fails_its_configuration(tmp_path: Path) -> None:
    selection = own_kernel(COPY_TEXT, buffers=own_buffers("1000"), launch=LaunchDefinition(("64",), ("1",)))
    ended = run_worker(sweep_of(selection, axes=(Axis("N", (100, 2**31)),)), tmp_path)
    (failed,) = ended.of(ConfigurationFailed)
    assert failed.error.reason == "INVALID_PARAMETER"
    assert "2147483648" in failed.error.message


def own_buffers(extent: str) -> tuple[BufferDefinition, ...]:
    return (
        BufferDefinition("a", (extent,), DataType.FLOAT32, BufferRole.INPUT),
        BufferDefinition("b", (extent,), DataType.FLOAT32, BufferRole.OUTPUT),
    )


def test_unknown_device_fails_the_run(tmp_path: Path) -> None:
    ended = run_worker(replace(SAXPY, device_id="opencl:none:7"), tmp_path)
    assert ended.exit_code == 1
    last = ended.payloads[-1]
    assert isinstance(last, StateChanged)
    assert last.error is not None
    assert last.error.reason == "DEVICE_NOT_FOUND"


def test_kind_of_run_without_workload_is_refused_by_name(tmp_path: Path) -> None:
    ended = run_worker(ImportedTrace("trace.json", "sha256:0", "kineto"), tmp_path)
    assert ended.exit_code == 1
    last = ended.payloads[-1]
    assert isinstance(last, StateChanged)
    assert last.error is not None
    assert (last.error.code, last.error.reason) == ("UNIMPLEMENTED", "NOT_BUILT_YET")
    assert "ImportedTrace" in last.error.message


# ---------------------------------------------------------------- being ended


def test_sigterm_ends_promptly_with_every_sample_taken_so_far_and_whole_frames(tmp_path: Path) -> None:
    with started(replace(SAXPY, measuring=ENDLESS), tmp_path) as (process, read_fd):
        payloads = read_payloads(read_fd)
        seen: list[EventPayload] = []
        while sum(isinstance(one, SampleBatch) for one in seen) < 5:
            seen.append(next(payloads))
        process.send_signal(signal.SIGTERM)
        seen += payloads
        assert process.wait(timeout=60) == 143
    assert isinstance(seen[-1], SampleBatch)
    assert time.time_ns() - seen[-1].measured_unix_ns < 30_000_000_000


def test_sigterm_ends_a_worker_that_is_inside_an_endless_kernel(tmp_path: Path) -> None:
    spin = "__global__ void scale(const float *a, float *b, int N) { volatile int x = 1; while (x) { b[0] = a[0]; } }"
    with started(sweep_of(own_kernel(spin)), tmp_path) as (process, read_fd):
        for payload in read_payloads(read_fd):
            if isinstance(payload, Progress) and payload.activity.startswith("measuring scale"):
                break
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_stop_reason_is_recorded(tmp_path: Path) -> None:
    options = replace(QUICK, max_sample_count=10, min_duration_ns=10_000_000_000)
    ended = run_worker(replace(SAXPY, measuring=options), tmp_path)
    assert {(one.stop_reason, one.sample_count) for one in ended.of(Measurement)} == {(StopReason.SAMPLE_LIMIT, 10)}
