"""KernelBenchmarker without a device: kernels as they are loaded, ranges, launches, counters, files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from KernelBenchmarker import KernelBenchmarker, KernelConfig, load_kernel

from kernalyse.services.compat.kernel_benchmarker.checks import implausible_reason
from kernalyse.services.compat.kernel_benchmarker.kernels import ParameterRanges
from kernalyse.services.compat.kernel_benchmarker.progress import CallProgress
from kernalyse.services.compat.kernel_benchmarker.results import (
    ACHIEVED_OCCUPANCY,
    COMPUTE_THROUGHPUT,
    MEMORY_THROUGHPUT,
    SM_EFFICIENCY,
    BenchmarkResult,
    Percentages,
    build_result,
    read_results,
    report_text,
    write_results,
)
from kernalyse.services.core.errors import (
    InvalidParameterError,
    InvalidSourceError,
    KernalyseError,
    NotBuiltYetError,
    UnknownKernelError,
    UnknownParameterError,
    UnsupportedConstructError,
)
from kernalyse.services.core.model import (
    BackendName,
    BufferRole,
    CacheMode,
    Ceiling,
    Configuration,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    KernelResources,
    Measurement,
    ParameterValue,
    StopReason,
    Tie,
    Verification,
    VerificationState,
)

TWO_DIMENSIONS = "int r = blockIdx.y * blockDim.y + threadIdx.y; int c = blockIdx.x * blockDim.x + threadIdx.x;"
ONE_DIMENSION = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def loaded(tmp_path: Path, parameters: str, body: str = "", **options: Any) -> KernelConfig:
    path = tmp_path / "own.cu"
    path.write_text(f"__global__ void own({parameters}) {{ {body} }}\n")
    return load_kernel(path, "own", **options)


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("parameters", "body", "block", "grid"),
    [
        ("float *a, int N, int M, int K", TWO_DIMENSIONS, "16x16x1", ("ceil_div(M, block_x)", "ceil_div(N, block_y)", "1")),
        ("float *a, int N", TWO_DIMENSIONS, "16x16x1", ("ceil_div(N, block_x)", "ceil_div(N, block_y)", "1")),
        ("float *a, int N", ONE_DIMENSION, "256x1x1", ("ceil_div(N, block_x)", "1", "1")),
        ("float *a, int N, int M", ONE_DIMENSION, "256x1x1", ("ceil_div(N, block_x)", "1", "1")),
        ("float *a, int N, int M", "int r = blockIdx.y; " + ONE_DIMENSION, "256x1x1",
         ("ceil_div(M, block_x)", "ceil_div(N, block_y)", "1")),
        ("float *a, int D, int H, int W", TWO_DIMENSIONS + "int d = blockIdx.z;", "16x16x1",
         ("ceil_div(W, block_x)", "ceil_div(H, block_y)", "ceil_div(D, block_z)")),
        ("float *a, int N, int M", "uint3 whole = threadIdx; int b = blockIdx.x;", "16x16x1", ("ceil_div(N, block_x)", "1", "1")),
    ],
)  # fmt: skip
def test_the_launch_follows_the_indices_that_the_source_reads(
    tmp_path: Path, parameters: str, body: str, block: str, grid: tuple[str, ...]
) -> None:
    kernel = loaded(tmp_path, parameters, body)
    assert "x".join(kernel.definition.launch.block) == block
    assert kernel.definition.launch.grid == grid
    assert kernel.block_size == (16, 16, 1)
    assert grid[0] in kernel.assumptions


def test_a_device_function_beside_the_kernel_reads_indices_too(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text("__device__ int row() { return threadIdx.y; }\n__global__ void own(float *a, int N) { a[row() + threadIdx.x] = N; }\n")
    assert load_kernel(path, "own").definition.launch.block == ("16", "16", "1")


def test_an_own_grid_keeps_the_block_as_it_is(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "float *a, int N", ONE_DIMENSION, block_size=(32, 8), grid_size_func=lambda N: (N // 32,))
    assert kernel.definition.launch.block == ("32", "8", "1")
    assert kernel.callables.grid is not None
    assert kernel.callables.grid({"N": 64, "block_x": 32}) == Dim3(2)


@pytest.mark.parametrize(
    "function",
    [lambda M, N: (M, N), lambda *sizes: (sizes[1], sizes[0]), lambda first, second, third: (second, first, 1), lambda N, *, M: [M, N]],
)
def test_a_grid_function_takes_sizes_by_name_or_in_order(tmp_path: Path, function: object) -> None:
    kernel = loaded(tmp_path, "float *a, int N, int M, int K", grid_size_func=function)
    assert kernel.callables.grid is not None
    assert kernel.callables.grid({"N": 5, "M": 3, "K": 2}) == Dim3(3, 5)


@pytest.mark.parametrize("extents", [(), (1, 2, 3, 4), (0,), (1.5, 1), 7, "16"])
def test_a_block_that_cannot_be_one_is_refused(tmp_path: Path, extents: object) -> None:
    with pytest.raises(InvalidParameterError, match="block_size of kernel own"):
        loaded(tmp_path, "float *a, int N", block_size=extents)


def test_a_grid_that_cannot_be_one_is_refused_by_name(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "float *a, int N", grid_size_func=lambda N: (N / 2, 1))
    assert kernel.callables.grid is not None
    with pytest.raises(InvalidParameterError, match="grid_size_func of kernel own"):
        kernel.callables.grid({"N": 8})


# ---------------------------------------------------------------- loading


def test_types_sizes_and_arguments_of_the_signature(tmp_path: Path) -> None:
    kernel = loaded(
        tmp_path, "const double *x, int *counts, float scale, double alpha, int N, int M",
        buffers={"counts": 100, "x": "N*M + 1"}, arguments={"alpha": 2.5},
    )  # fmt: skip
    buffers = {buffer.name: buffer for buffer in kernel.definition.buffers}
    assert (buffers["x"].dtype, buffers["x"].shape, buffers["x"].role) == (DataType.FLOAT64, ("N*M + 1",), BufferRole.INPUT)
    assert (buffers["counts"].dtype, buffers["counts"].shape, buffers["counts"].role) == (
        DataType.INT32, ("100",), BufferRole.INPUT_OUTPUT,
    )  # fmt: skip
    assert {one.name: one.expression for one in kernel.definition.arguments} == {"scale": "1.0", "alpha": "2.5"}
    assert kernel.parameter_names == ("N", "M")
    assert "scale is 1.0" in kernel.assumptions
    assert "elements" not in kernel.assumptions


def test_tensor_core_kernels_say_type_and_path(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "const half *a, float *b, int N", dtype="float16", path="tensor")
    assert (kernel.definition.dtype, kernel.definition.path) == (DataType.FLOAT16, "tensor")
    assert kernel.definition.buffers[0].dtype is DataType.FLOAT16


def test_a_catalogue_kernel_describes_one_with_other_names(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "const float *a, const float *b, float *res, int N, int M, int K", reference="matmul_naive")
    shapes = {buffer.name: (buffer.shape, buffer.role) for buffer in kernel.definition.buffers}
    assert shapes == {
        "a": (("N", "K"), BufferRole.INPUT), "b": (("K", "M"), BufferRole.INPUT), "res": (("N", "M"), BufferRole.OUTPUT),
    }  # fmt: skip
    assert kernel.definition.flop == "2*N*M*K"
    assert kernel.callables.reference is not None
    a, b = np.ones((2, 3), np.float32), np.full((3, 4), 2, np.float32)
    assert kernel.callables.reference({"a": a, "b": b}, {"N": 2, "M": 4, "K": 3})["res"].tolist() == [[6.0] * 4] * 2


def test_a_function_sees_what_the_kernel_sees_and_writes_what_it_should_write(tmp_path: Path) -> None:
    def doubled(x: np.ndarray, y: np.ndarray, N: int) -> None:
        assert N == 2
        assert not x.flags.writeable
        y[:N] = 2 * x[:N]

    kernel = loaded(tmp_path, "const float *x, float *y, int N", reference=doubled)
    x, y = np.array([1, 2], np.float32), np.array([7, 8, 9], np.float32)
    assert kernel.callables.reference is not None
    expected = kernel.callables.reference({"x": x, "y": y}, {"N": 2})
    assert {name: array.tolist() for name, array in expected.items()} == {"y": [2.0, 4.0, 9.0]}
    assert y.tolist() == [7.0, 8.0, 9.0]


@pytest.mark.parametrize(
    ("parameters", "options", "error", "words"),
    [
        ("float *a, int N", {"reference": "matmul_naive"}, InvalidParameterError, "float \\*A, float \\*B"),
        ("float *a, int N", {"reference": "matmul_naiv"}, UnknownKernelError, "matmul_naive"),
        (
            "const float *x, float *y, int M, int N",
            {"reference": "softmax", "buffers": {"x": "N"}},
            InvalidParameterError,
            "one of the two",
        ),
        ("float *a, int N", {"buffers": {"b": "N"}}, UnknownParameterError, "buffer b"),
        ("float *a, int N", {"arguments": {"alpha": 1.0}}, UnknownParameterError, "argument alpha"),
        ("float *a, int N", {"dtype": "float31"}, InvalidParameterError, "float31"),
        ("float *a, int N", {"path": "fast"}, KernalyseError, "fma or tensor"),
        ("float **a, int N", {}, UnsupportedConstructError, "parameter a"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_once(
    tmp_path: Path, parameters: str, options: dict[str, Any], error: type[KernalyseError], words: str
) -> None:
    with pytest.raises(error, match=words):
        loaded(tmp_path, parameters, **options)


def test_files_and_kernels_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSourceError, match=r"nowhere\.cu"):
        load_kernel(tmp_path / "nowhere.cu", "own")
    loaded(tmp_path, "float *a, int N")
    with pytest.raises(UnknownKernelError, match="own"):
        load_kernel(tmp_path / "own.cu", "other")


# ---------------------------------------------------------------- ranges


def test_ranges_by_position_go_to_the_integer_parameters_in_order(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "float *a, int N, float s, int M, int K")
    axes, ties = ParameterRanges.read([[1, 2], range(3, 5), np.array([6])], {}).of(kernel)
    assert [(axis.name, axis.values) for axis in axes] == [("N", (1, 2)), ("M", (3, 4)), ("K", (6,))]
    assert ties == ()


def test_a_parameter_without_a_range_copies_the_last_one_given(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, "float *a, int N, int M, int K")
    assert ParameterRanges.read([[1, 2]], {}).of(kernel)[1] == (Tie("M", "N"), Tie("K", "N"))
    assert ParameterRanges.read([], {"N": [1], "M": [2]}).of(kernel)[1] == (Tie("K", "M"),)
    assert ParameterRanges.read([], {"M": [1], "N": [2]}).of(kernel)[1] == (Tie("K", "N"),)
    assert ParameterRanges.read([[1]], {"K": [2]}).of(kernel)[1] == (Tie("M", "K"),)


def test_a_kernel_takes_the_named_ranges_that_it_has(tmp_path: Path) -> None:
    wide, narrow = loaded(tmp_path, "float *a, int N, int M"), loaded(tmp_path, "float *a, int M, int L")
    ranges = ParameterRanges.read([], {"M": [2], "N": [1]})
    ranges.check([wide, narrow])
    axes, ties = ranges.of(narrow)
    assert [axis.name for axis in axes] == ["M"]
    assert ties == (Tie("L", "M"),)
    with pytest.raises(UnknownParameterError, match="range P"):
        ParameterRanges.read([], {"P": [1]}).check([wide, narrow])


@pytest.mark.parametrize(
    ("positional", "named", "words"),
    [
        ([[1], [2], [3]], {}, "3 by position"),
        ([[1]], {"N": [2]}, "one by position and one by name"),
        ([], {}, "none for its integer parameters N, M"),
        ([[]], {}, "range 1"),
        ([1024], {}, "a list of whole numbers"),
        ([], {"N": [1.5]}, "range N"),
        ([], {"N": "12"}, "range N"),
    ],
)
def test_ranges_that_cannot_be_used(tmp_path: Path, positional: list[object], named: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        ParameterRanges.read(positional, named).of(loaded(tmp_path, "float *a, int N, int M"))  # type: ignore[arg-type]


# ---------------------------------------------------------------- arguments of benchmark


def test_arguments_are_refused_before_a_device_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.services.compat.kernel_benchmarker.benchmark.open_device", None)
    kernel, benchmarker = loaded(tmp_path, "float *a, int N"), KernelBenchmarker()
    for kernels in ([], kernel, ["own"]):
        with pytest.raises(InvalidParameterError, match="kernels"):
            benchmarker.benchmark(kernels, [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="iterations"):
        benchmarker.benchmark([kernel], [1], iterations=0)
    for profiler in ("nsys", "kineto"):
        with pytest.raises(NotBuiltYetError, match=profiler):
            benchmarker.benchmark([kernel], [1], profile=profiler)
    with pytest.raises(InvalidParameterError, match="at least 1"):
        benchmarker.benchmark([kernel], [0])


def test_an_architecture_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="compute_capability"):
        KernelBenchmarker(compute_capability="8.6").benchmark([loaded(tmp_path, "float *a, int N")], [1])


# ---------------------------------------------------------------- results


DEVICE = Device("cuda:0", "NVIDIA H200", DeviceKind.GPU, (BackendName.PYCUDA,), compute_capability="9.0")
CONFIGURATION = Configuration(0, "own", (ParameterValue("N", 8),), Dim3(16, 16), Dim3(2), 0, "other", DataType.FLOAT32, None, None)


def measurement(resources: KernelResources | None = None) -> Measurement:
    return Measurement(
        configuration_index=0, sample_count=10, discarded_sample_count=0, warm_up_count=1, duration_median_ns=1.5e6,
        duration_median_low_ns=1.4e6, duration_median_high_ns=1.6e6, duration_min_ns=1.0e6, duration_max_ns=2.0e6,
        duration_mean_ns=1.5e6, duration_lower_quartile_ns=1.4e6, duration_upper_quartile_ns=1.6e6, duration_p95_ns=1.9e6,
        duration_p99_ns=2.0e6, duration_standard_deviation_ns=1e5, noise_ratio=0.07, stop_reason=StopReason.SAMPLE_LIMIT,
        cache_mode=CacheMode.COLD, verification=Verification(VerificationState.PASSED), measured_unix_ns=1, elapsed_ns=2,
        compile_ns=3, resources=resources,
    )  # fmt: skip


def test_counters_become_percentages_and_stay_under_their_own_names() -> None:
    counters = {MEMORY_THROUGHPUT: 80.5, COMPUTE_THROUGHPUT: 40.0, ACHIEVED_OCCUPANCY: 55.5, SM_EFFICIENCY: 99.0, "dram__bytes.sum": 1e9}
    result = build_result(
        CONFIGURATION, measurement(KernelResources(theoretical_occupancy_ratio=0.75)), counters, DEVICE, BackendName.PYCUDA
    )
    assert (result.memory_throughput_pct, result.compute_throughput_pct) == (80.5, 40.0)
    assert (result.occupancy_pct, result.sm_efficiency_pct) == (55.5, 99.0)
    assert result.metrics["occupancy_source"] == "achieved"
    assert result.metrics["dram__bytes.sum"] == 1e9
    assert result.execution_time_ms == 1.5


def test_without_counters_occupancy_is_the_theoretical_one_and_says_so() -> None:
    result = build_result(CONFIGURATION, measurement(KernelResources(theoretical_occupancy_ratio=0.75)), {}, DEVICE, BackendName.PYCUDA)
    assert (result.occupancy_pct, result.metrics["occupancy_source"]) == (75.0, "theoretical")
    assert math.isnan(result.memory_throughput_pct)
    unknown = build_result(CONFIGURATION, measurement(), {}, DEVICE, BackendName.PYCUDA)
    assert math.isnan(unknown.occupancy_pct)
    assert unknown.metrics["occupancy_source"] is None
    assert Percentages.of({}) == Percentages()


def test_what_was_not_measured_is_null_in_the_file_and_nan_when_read_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results([build_result(CONFIGURATION, measurement(), {SM_EFFICIENCY: 90.0}, DEVICE, BackendName.PYCUDA)], path)
    (entry,) = json.loads(path.read_text())["benchmarks"]
    assert entry["memory_throughput_pct"] is entry["occupancy_pct"] is None
    assert entry["sm_efficiency_pct"] == 90.0
    assert entry["metrics"]["block"] == [16, 16, 1]
    assert entry["metrics"]["verification"]["state"] == "PASSED"
    (again,) = read_results(path)
    assert math.isnan(again.occupancy_pct)
    assert (again.kernel_name, again.parameters, again.sm_efficiency_pct) == ("own", {"N": 8}, 90.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[]", "benchmarks"),
        ('{"benchmarks": 3}', "benchmarks"),
        ('{"benchmarks": [{"kernel": "a"}]}', r"benchmarks\[0\] without 'parameters'"),
        ('{"benchmarks": [{"kernel": "a", "parameters": [], "execution_time_ms": 1}]}', r"benchmarks\[0\]"),
        ('{"benchmarks": [{"kernel": "a", "parameters": {}, "execution_time_ms": null}]}', r"benchmarks\[0\]"),
    ],
)
def test_a_file_of_another_layout_is_refused_by_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(InvalidParameterError, match=words):
        read_results(path)


def test_the_report_sorts_by_time_and_marks_wrong_results() -> None:
    wrong = {"verification": {"state": "FAILED", "message": "res[0]: found 1, expected 2"}}
    long_name = "a_kernel_with_a_name_longer_than_its_column"
    text = report_text([
        BenchmarkResult("slow", {"N": 1}, 3.0), BenchmarkResult(long_name, {"N": 1}, 1.0, 50.0, metrics=wrong),
        BenchmarkResult("slow", {"N": 2}, 5.0), BenchmarkResult("alone", {}, 1.0),
    ])  # fmt: skip
    lines = text.splitlines()
    assert lines[8] == f"{long_name} 1.000           50.0      n/a"
    assert lines[9] == "slow                           3.000           n/a       n/a"
    assert lines[11:14] == ["Speedup vs slowest:", f"  {long_name}: 3.00x (WRONG RESULTS)", "  slow: 1.00x"]
    assert lines[14] == f"  {long_name}: WRONG RESULTS: res[0]: found 1, expected 2"
    assert [line for line in lines if line.startswith("Parameters")] == ["Parameters: N=1", "Parameters: N=2", "Parameters: none"]


def compared(kernel: str, state: str) -> dict[str, Any]:
    return {"verification": {"state": "NO_REFERENCE"}, "compared_with": [{"kernel": kernel, "state": state}]}


def test_report_and_file_mark_what_nobody_should_believe(tmp_path: Path) -> None:
    sure = {"verification": {"state": "PASSED"}, "host_busy_ratio": 0.9, "implausible_reason": "4500 Gflop/s is 12 times the ceiling."}
    results = [
        BenchmarkResult("nothing", {"N": 1}, 0.001, metrics=compared("naive", "DIFFERENT")),
        BenchmarkResult("naive", {"N": 1}, 0.276, metrics=compared("nothing", "DIFFERENT")),
        BenchmarkResult("tiled", {"N": 2}, 0.1, metrics=compared("naive", "SAME")),
        BenchmarkResult("sure", {"N": 2}, 0.2, metrics=sure),
    ]
    lines = report_text(results).splitlines()
    assert "  nothing: 276.00x (other results, not verified)" in lines
    assert "  nothing: other results than naive: they compute different things, or one is wrong" in lines
    assert "  nothing, naive: not verified: no reference was given to load_kernel" in lines
    assert "  tiled: not verified: no reference was given to load_kernel; the same results as naive" in lines
    assert "  sure: 1.00x (implausible, disturbed)" in lines
    assert lines[-2:] == ["  sure: implausible: 4500 Gflop/s is 12 times the ceiling.", "  sure: disturbed: host 90 % busy"]
    path = tmp_path / "results.json"
    write_results(results, path)
    entries = json.loads(path.read_text())["benchmarks"]
    assert [entry["is_verified"] for entry in entries] == [False, False, False, True]
    assert entries[0]["remarks"] == [line.removeprefix("  nothing: ") for line in lines if line.startswith("  nothing: other")] + [
        "not verified: no reference was given to load_kernel"
    ]
    assert read_results(path) == results


CPU_CEILINGS = (
    Ceiling("opencl:0", "float32", "flop_per_s", 100e9, "fma", "measured"),
    Ceiling("opencl:0", "dram", "bytes_per_s", 20e9, "copy", "measured"),
    Ceiling("opencl:0", "l2", "bytes_per_s", 200e9, "copy", "measured"),
)


@pytest.mark.parametrize(
    ("flop", "bytes", "busy_ratio", "cache", "words"),
    [
        (100e9 * 1.5e-3, None, 0.0, CacheMode.HOT, None),
        (120e9 * 1.5e-3, None, 0.0, CacheMode.HOT, "120 Gflop/s is 1.2 times the float32 ceiling of the device (100 Gflop/s)"),
        (120e9 * 1.5e-3, None, 0.5, CacheMode.HOT, None),  # half of the host went to other programs while the ceiling was measured
        (None, 150e9 * 1.5e-3, 0.0, CacheMode.HOT, None),
        (None, 300e9 * 1.5e-3, 0.0, CacheMode.HOT, "300 GB/s is 1.5 times the l2 ceiling of the device (200 GB/s)"),
        (None, None, 0.0, CacheMode.HOT, None),
    ],
)
def test_rates_over_the_device_are_implausible(
    flop: float | None, bytes: float | None, busy_ratio: float, cache: CacheMode, words: str | None
) -> None:
    ceilings = [replace(ceiling, host_busy_ratio=busy_ratio) for ceiling in CPU_CEILINGS]
    found = implausible_reason(replace(CONFIGURATION, flop=flop, bytes=bytes), replace(measurement(), cache_mode=cache), ceilings)
    assert (found or "").partition(":")[0] == (words or "")
    assert implausible_reason(replace(CONFIGURATION, flop=flop, bytes=bytes), measurement(), ()) is None


def test_the_report_names_each_device_and_what_ran_kernels_on_it() -> None:
    on_cpu, on_gpu = ({"device_name": name, "backend": backend} for name, backend in (("A CPU", "OPENCL"), ("NVIDIA H100", "PYCUDA")))
    results = [BenchmarkResult("k", {"N": size}, 1.0, metrics=metrics) for size, metrics in enumerate((on_cpu, on_cpu, on_gpu))]
    lines = report_text(results).splitlines()
    assert lines[3] == "Device: A CPU (opencl), NVIDIA H100 (pycuda)"
    assert "Device" not in report_text([BenchmarkResult("k", {}, 1.0)])


def test_a_percentage_that_is_not_known_is_printed_as_such_by_every_format(tmp_path: Path) -> None:
    write_results([BenchmarkResult("k", {}, 1.0)], tmp_path / "results.json")
    (read,) = read_results(tmp_path / "results.json")
    for result in (BenchmarkResult("k", {}, 1.0), read):
        value = result.memory_throughput_pct
        assert f"Memory Throughput: {value:.1f}%" == "Memory Throughput: n/a%"
        assert f"{value}|{value:8.2f}|{value:<6}|{value:^7.1f}|{value:+08.1f}|{value!s}" == "n/a|     n/a|n/a   |  n/a  |     n/a|n/a"
        assert math.isnan(value + 1.0)
        assert math.isnan(np.array([value], dtype=np.float64)[0])


def test_a_long_call_tells_how_far_it_is_and_a_short_one_says_nothing() -> None:
    now_s, said = [0.0], list[str]()
    progress = CallProgress(40, lambda: now_s[0], said.append)

    def update_at(time_s: float, done_count: int, activity: str = "") -> None:
        now_s[0] = time_s
        progress.update(done_count, activity)

    update_at(2.9, 1, "measuring a N=1")
    assert said == []
    update_at(3.0, 2)
    assert said == ["2 of 40 configurations after 0:00:03, about 0:00:57 left: measuring a N=1"]
    update_at(12.9, 9)
    progress.end_kernel(10)
    update_at(13.0, 0, "compiling b N=1")
    now_s[0] = 600.0
    progress.tick()  # of one that takes long
    assert said[1:] == [
        "10 of 40 configurations after 0:00:13, about 0:00:39 left: compiling b N=1",
        "10 of 40 configurations after 0:10:00, about 0:30:00 left: compiling b N=1",
    ]


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("KernelBenchmarker", "tree_sitter", "profiler,opencl"), ("visualize", "matplotlib", "ui")],
)
def test_a_missing_library_is_named_with_its_extra(module: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert f"{module} needs the Python module {missing}" in done.stderr
    assert f"pip install 'kernalyse[{extra}]'" in done.stderr
