"""KernelBenchmarker on a real OpenCL device, in this process."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from KernelBenchmarker import BenchmarkResult, KernelBenchmarker, benchmark, load_kernel

from kernalyse.services.compat.kernel_benchmarker.progress import forget_notices
from kernalyse.services.compat.kernel_benchmarker.results import read_results
from kernalyse.services.core.errors import BackendUnavailableError, CompileError, InvalidParameterError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName
from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
from kernalyse.services.profiler.collectors.ncu import metric_names
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from kernalyse.services.profiler.workloads.counters import CounterCollector
from tests.integration.test_counters import stand_in_program

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

ROOT = Path(__file__).parents[2]
EXAMPLES = catalog_directory() / "examples"
MATMUL = EXAMPLES / "matmul_kernels.cu"
VECTORS = EXAMPLES / "vector_kernels.cu"


@pytest.fixture(autouse=True)
def opencl_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is an NVIDIA GPU: tests/gpu has that side. Every notice can be said again."""
    monkeypatch.setattr(
        "kernalyse.services.compat.kernel_benchmarker.benchmark.PREFERRED_BACKENDS",
        {True: (BackendName.PYCUDA, BackendName.OPENCL), False: (BackendName.NVCC, BackendName.OPENCL)},
    )

    def opened(name: BackendName) -> OpenCLBackend:
        if name is BackendName.OPENCL:
            return OpenCLBackend()
        raise BackendUnavailableError(f"backend {name.value}", found="no NVIDIA GPU, as far as this test goes")

    monkeypatch.setattr("kernalyse.services.compat.kernel_benchmarker.benchmark.open_backend", opened)
    forget_notices()


def script_environment() -> dict[str, str]:
    """Of a script in a process of its own: the modules as they are here, and the test's private directories."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "proto/python", ROOT / "compat")))}


@pytest.fixture
def benchmarker() -> Iterator[KernelBenchmarker]:
    with KernelBenchmarker() as one:
        yield one


def states(results: list[BenchmarkResult]) -> list[str]:
    return [result.metrics["verification"]["state"] for result in results]


def product(a: npt.NDArray[Any], b: npt.NDArray[Any], res: npt.NDArray[Any], N: int, M: int, K: int) -> None:
    res[: N * M] = (a[: N * K].reshape(N, K).astype(np.float64) @ b[: K * M].reshape(K, M)).ravel()


def test_the_example_products_are_right_at_sizes_that_are_no_multiples_of_the_tile(benchmarker: KernelBenchmarker) -> None:
    sizes = [1, 16, 37]
    for reference in (product, "matmul_naive"):
        kernels = [load_kernel(MATMUL, name, reference=reference) for name in ("matmul_naive", "matmul_optimized")]
        results = benchmarker.benchmark(kernels, sizes, sizes, sizes, iterations=2)
        assert len(results) == 2 * len(sizes) ** 3
        assert set(states(results)) == {"PASSED"}
        assert all(result.metrics["recheck"]["state"] == "PASSED" for result in results)


def test_types_and_signatures_beyond_float_matrices(benchmarker: KernelBenchmarker) -> None:
    def histogram(values: npt.NDArray[Any], counts: npt.NDArray[Any], N: int) -> None:
        counts[:100] += np.bincount(values, minlength=100).astype(counts.dtype)

    def daxpy(N: int, alpha: float, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        assert x.dtype == y.dtype == np.float64
        y += alpha * x

    kernels = [
        load_kernel(VECTORS, "my_kernel", reference=lambda x, out, N: np.abs(x, out=out)),
        load_kernel(VECTORS, "daxpy", arguments={"alpha": 2.5}, reference=daxpy, relative_tolerance=1e-14),
        load_kernel(VECTORS, "histogram", reference=histogram),
    ]
    results = benchmarker.benchmark(kernels, N=[1_000, 4_096], iterations=3)
    assert states(results) == ["PASSED"] * 6
    assert {result.metrics["dtype"] for result in results} == {"float32", "float64"}
    softmax = load_kernel(VECTORS, "softmax_rows", (256,), lambda M: (M,), reference="softmax")
    (row_wise,) = benchmarker.benchmark([softmax], M=[20], N=[300], iterations=2)
    assert states([row_wise]) == ["PASSED"]
    assert (row_wise.metrics["grid"], row_wise.metrics["flop"]) == ((20, 1, 1), 5 * 20 * 300)


def test_wrong_results_are_measured_and_said_aloud(benchmarker: KernelBenchmarker, caplog: pytest.LogCaptureFixture) -> None:
    def something_else(a: Any, b: Any, res: npt.NDArray[Any], N: int, M: int, K: int) -> None:
        res[:] = -1

    kernel = load_kernel(MATMUL, "matmul_naive", reference=something_else)
    (result,) = benchmarker.benchmark([kernel], [8], iterations=2)
    assert states([result]) == ["FAILED"]
    assert result.execution_time_ms > 0
    assert "WRONG RESULTS: matmul_naive N=8 M=8 K=8" in caplog.text


RIVALS = """
__global__ void honest(const float *a, float *b, int N) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) b[i] = 2.0f * a[i]; }
__global__ void alike(const float *x, float *y, int N) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) y[i] = x[i] + x[i]; }
__global__ void nothing(const float *a, float *b, int N) { }
__global__ void another(const float *a, const float *b, float *c, int N) { int i = threadIdx.x; c[i] = a[i] + b[i]; }
"""


def test_kernels_of_one_benchmark_without_references_are_held_against_each_other(
    benchmarker: KernelBenchmarker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "rivals.cu"
    source.write_text(RIVALS)
    names = ("honest", "alike", "nothing", "another")
    results = benchmarker.benchmark([load_kernel(source, name) for name in names], N=[1_000, 4_096], iterations=2, profile=False)
    assert states(results) == ["NO_REFERENCE"] * 8
    found = {result.kernel_name: [(one["kernel"], one["state"]) for one in result.metrics.get("compared_with", ())] for result in results}
    assert found == {
        "honest": [("alike", "SAME"), ("nothing", "DIFFERENT")],
        "alike": [("honest", "SAME")],
        "nothing": [("honest", "DIFFERENT")],
        "another": [],  # no other kernel here takes what it takes
    }
    assert "nothing N=1000 and 1 more: other results than honest" in caplog.text
    benchmarker.generate_report(tmp_path / "report.txt")
    report = (tmp_path / "report.txt").read_text()
    assert re.search(r"^  nothing: [\d.]+x \(other results, not verified", report, re.MULTILINE)
    assert "  alike: not verified: no reference was given to load_kernel; the same results as honest" in report


def test_a_kernel_without_a_reference_is_held_against_one_that_was_verified(benchmarker: KernelBenchmarker, tmp_path: Path) -> None:
    source = tmp_path / "rivals.cu"
    source.write_text(RIVALS)

    def doubled(a: npt.NDArray[Any], b: npt.NDArray[Any], N: int) -> None:
        b[:N] = 2 * a[:N]

    kernels = [load_kernel(source, "nothing"), load_kernel(source, "alike"), load_kernel(source, "honest", reference=doubled)]
    nothing, alike, honest = benchmarker.benchmark(kernels, N=[512], iterations=2, profile=False)
    assert [one["kernel"] for one in alike.metrics["compared_with"]] == ["honest"]
    assert [(one["kernel"], one["state"]) for one in nothing.metrics["compared_with"]] == [("honest", "DIFFERENT")]
    assert states([nothing, alike, honest]) == ["NO_REFERENCE", "NO_REFERENCE", "PASSED"]


def test_a_kernel_that_claims_more_than_the_device_can_do_is_implausible(
    benchmarker: KernelBenchmarker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It computes nothing of what its formula says, whether that is the catalogue's or the caller's."""
    source = tmp_path / "products.cu"
    source.write_text("__global__ void none(const float *a, const float *b, float *c, int N, int M, int K) { }")
    ways: tuple[tuple[dict[str, Any], str], ...] = (({"reference": "matmul_naive"}, "FAILED"), ({"flop": "2*N*M*K"}, "NO_REFERENCE"))
    for described, state in ways:
        (result,) = benchmarker.benchmark([load_kernel(source, "none", **described)], [1_024], iterations=5, profile=False)
        assert states([result]) == [state]
        assert "times the float32 ceiling of the device" in result.metrics["implausible_reason"]
        assert "none N=1024 M=1024 K=1024: implausible: " in caplog.text
        caplog.clear()


def test_iterations_are_samples(benchmarker: KernelBenchmarker, caplog: pytest.LogCaptureFixture) -> None:
    kernel = load_kernel(MATMUL, "matmul_naive")
    for asked, taken in ((1, 2), (7, 7), (100, 100)):
        (result,) = benchmarker.benchmark([kernel], [32], iterations=asked)
        assert result.metrics["sample_count"] == taken
        assert result.metrics["stopping_criterion"] == "SAMPLE_COUNT"
    assert "iterations=1: 2 samples are taken" in caplog.text


def test_notices_say_what_runs_and_are_said_once(benchmarker: KernelBenchmarker, caplog: pytest.LogCaptureFixture) -> None:
    kernel = load_kernel(MATMUL, "matmul_naive")
    benchmarker.benchmark([kernel], [8], iterations=2)
    benchmarker.benchmark([kernel], [8], iterations=2)
    with KernelBenchmarker(use_pycuda=False) as other:
        (result,) = other.benchmark([kernel], [8], iterations=2)
    device = result.metrics["device_name"]
    assert result.metrics["backend"] == "OPENCL"
    for start in (
        f"use_pycuda=True: kernels run through OpenCL on {device}, because: backend PYCUDA: no NVIDIA GPU",
        f"use_pycuda=False: kernels run through OpenCL on {device}, because: backend NVCC: no NVIDIA GPU",
        f"compute_capability=sm_86: kernels are compiled for {device}",
        f"matmul_naive of {MATMUL}: taken for granted: a grid of (ceil_div(M, block_x), ceil_div(N, block_y), 1)",
        f"profile: Nsight Compute reads no counters of {device}",
    ):
        assert [record.getMessage().startswith(start) for record in caplog.records].count(True) == 1, start
    assert {record.name for record in caplog.records} == {"KernelBenchmarker"}


def test_profile_counts_with_ncu_and_keeps_every_counter_by_its_own_name(
    benchmarker: KernelBenchmarker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for ncu: no device is at hand that it could count on."""
    metrics = metric_names("9.0")
    counting = CounterCollector(str(stand_in_program(tmp_path)), metrics, has_ranges=False, silence_limit_s=60)
    monkeypatch.setattr("kernalyse.services.compat.kernel_benchmarker.benchmark.open_counting", lambda device, events: counting)
    results = benchmarker.benchmark([load_kernel(MATMUL, "matmul_naive")], [8, 16], iterations=2)
    for result, size in zip(results, (8, 16), strict=True):
        assert result.memory_throughput_pct == 88.0
        assert result.compute_throughput_pct == 12.25
        assert (result.occupancy_pct, result.metrics["occupancy_source"]) == (75.5, "achieved")
        assert result.metrics["dram__bytes.sum"] == 12 * size
        assert set(metrics) - set(result.metrics) == {"l1tex__t_sector_hit_rate.pct"}  # of which it says n/a


def test_counters_that_are_refused_are_nan_and_the_times_stay(
    benchmarker: KernelBenchmarker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting = CounterCollector(str(stand_in_program(tmp_path)), metric_names("9.0"), has_ranges=False, silence_limit_s=60)
    monkeypatch.setattr("kernalyse.services.compat.kernel_benchmarker.benchmark.open_counting", lambda device, events: counting)
    monkeypatch.setenv("STAND_IN_NCU", "permission")
    (result,) = benchmarker.benchmark([load_kernel(MATMUL, "matmul_naive")], [8], iterations=2)
    assert result.execution_time_ms > 0
    assert math.isnan(result.memory_throughput_pct)
    assert "ERR_NVGPUCTRPERM" in caplog.text


def test_without_profile_nothing_is_said_of_counters(benchmarker: KernelBenchmarker, caplog: pytest.LogCaptureFixture) -> None:
    (result,) = benchmarker.benchmark([load_kernel(MATMUL, "matmul_naive")], [8], iterations=2, profile=False)
    assert "profile" not in caplog.text
    for name in ("memory_throughput_pct", "compute_throughput_pct", "occupancy_pct", "sm_efficiency_pct"):
        assert math.isnan(getattr(result, name)), name


def test_progress_is_logged_for_those_who_ask(benchmarker: KernelBenchmarker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="KernelBenchmarker")
    benchmarker.benchmark([load_kernel(MATMUL, "matmul_naive")], [8, 16], iterations=2)
    assert "2 of 2: measuring matmul_naive N=16 M=16 K=16" in caplog.text


def test_what_cannot_be_measured_is_left_out_and_named(
    benchmarker: KernelBenchmarker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.cu"
    broken.write_text("__global__ void broken(float *a, int N) { a[threadIdx.x] = nothing; }")
    naive, bad = load_kernel(MATMUL, "matmul_naive"), load_kernel(broken, "broken")
    huge_only_once = 10**6  # a buffer of 4 TB
    results = benchmarker.benchmark([naive, bad], N=[8, huge_only_once], iterations=2)
    assert [result.parameters["N"] for result in results] == [8]
    assert f"Not measured: matmul_naive N={huge_only_once}" in caplog.text
    assert "Not measured: kernel broken of broken.cu" in caplog.text
    with pytest.raises(CompileError, match="nothing"):
        benchmarker.benchmark([bad], N=[8], iterations=2)


def test_an_error_of_the_callers_own_function_comes_through(benchmarker: KernelBenchmarker) -> None:
    kernel = load_kernel(MATMUL, "matmul_naive", grid_size_func=lambda N: (1 // (N - 16), 1, 1))
    with pytest.raises(ZeroDivisionError):
        benchmarker.benchmark([kernel], [8 + 8], iterations=2)
    with pytest.raises(InvalidParameterError, match="grid_size_func"):
        benchmarker.benchmark([kernel], [8], iterations=2)


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(N: int) -> tuple[int, ...]:
        if N == 16:
            raise KeyboardInterrupt
        return (1, 1, 1)

    monkeypatch.chdir(tmp_path)
    kernel = load_kernel(MATMUL, "matmul_naive", grid_size_func=interrupted)
    with KernelBenchmarker() as benchmarker:
        with pytest.raises(KeyboardInterrupt):
            benchmarker.benchmark([kernel], [8, 16], iterations=2)
        assert [result.parameters["N"] for result in benchmarker.results] == [8]
    with pytest.raises(KeyboardInterrupt):
        benchmark([kernel], [8, 16], iterations=2)
    assert "Parameters: N=8, M=8, K=8" in Path("benchmark_report.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "said", "file_name", "call"),
    [
        (signal.SIGINT, -signal.SIGINT, "Interrupted. ", "benchmark_results.json", "kb.benchmark"),
        (signal.SIGTERM, 128 + signal.SIGTERM, "Ended by SIGTERM. ", "benchmark_results.json", "kb.benchmark"),
        (
            signal.SIGTERM,
            128 + signal.SIGTERM,
            "Ended by SIGTERM. ",
            "benchmark_results.interrupted.json",
            "kb.KernelBenchmarker().benchmark",
        ),
    ],
)
def test_a_script_that_is_ended_keeps_what_it_has_and_prints_no_traceback(
    number: signal.Signals, status: int, said: str, file_name: str, call: str, tmp_path: Path
) -> None:
    """In the middle of a call that has told how far it is."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import KernelBenchmarker as kb
kernel = kb.load_kernel({str(MATMUL)!r}, "matmul_naive")
{call}([kernel], range(16, 8000), iterations=20, profile=False)
""")
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env=script_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = next((line for line in process.stderr if " of 7984 configurations after 0:00:0" in line), "")
        assert ", about " in told
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(60) == status
    assert "Traceback" not in rest
    assert f"{said}{len(read_results(tmp_path / file_name))} of 7984 configurations had been measured" in rest
    assert f"all results so far are in {file_name}." in rest


def test_a_program_that_handles_sigterm_itself_is_left_alone(benchmarker: KernelBenchmarker) -> None:
    came = list[int]()

    def grid(N: int) -> tuple[int, ...]:
        os.kill(os.getpid(), signal.SIGTERM)
        return (1, 1, 1)

    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        benchmarker.benchmark([load_kernel(MATMUL, "matmul_naive", grid_size_func=grid)], [8], iterations=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(came) == {signal.SIGTERM}


def test_results_add_up_and_outlive_the_device(tmp_path: Path) -> None:
    kernel = load_kernel(MATMUL, "matmul_naive")
    benchmarker = KernelBenchmarker()
    first = benchmarker.benchmark([kernel, kernel], [8], iterations=2)
    benchmarker.cleanup()
    second = benchmarker.benchmark([kernel], [16], iterations=2)
    benchmarker.cleanup()
    benchmarker.cleanup()
    assert benchmarker.results == [*first, *second]
    benchmarker.save_results(tmp_path / "own.json")
    benchmarker.generate_report(tmp_path / "own.txt")
    assert (tmp_path / "own.txt").read_text().count("matmul_naive ") == 3


@pytest.mark.slow
@pytest.mark.parametrize("script", ["example_usage.py", "advanced_examples.py"])
def test_the_example_scripts_run(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        cwd=tmp_path,
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    if script == "example_usage.py":
        assert "wrote visualizations/heatmap.png" in done.stdout
    else:
        assert done.stdout.count("passed") >= 10  # and two more on tensor cores


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc of the CUDA toolkit")
@pytest.mark.parametrize("source", sorted(EXAMPLES.glob("*.cu")), ids=lambda path: path.name)
def test_nvcc_takes_the_example_kernels(source: Path, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    shutil.copy(source, tmp_path)
    command = [nvcc, "--cubin", "-arch=sm_90", "-o", str(tmp_path / "kernel.cubin"), source.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
