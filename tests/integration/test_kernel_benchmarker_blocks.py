"""Every code block of KernelBenchmarker's description, run word for word on a real device (tests/integration/described_blocks.py)."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import math
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from KernelBenchmarker import BenchmarkResult, KernelBenchmarker, benchmark, load_kernel

from kernalyse.services.compat.kernel_benchmarker.results import report_text
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from tests.integration.described_blocks import FEW_ITERATIONS, SMALL_SIZES, described_blocks

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

MODULES = Path(__file__).parents[2] / "services" / "compat"
EXAMPLES = catalog_directory() / "examples"
BLOCKS = described_blocks()
PNG_SIGNATURE = b"\x89PNG"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user who has the example kernels, and whose Python finds both modules."""
    monkeypatch.syspath_prepend(MODULES)
    for source in EXAMPLES.glob("*.cu"):
        shutil.copy(source, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"__name__": "described"}


@pytest.fixture
def measured(namespace: dict[str, Any]) -> dict[str, Any]:
    """The namespace after "2. Benchmark Them", with its files in the working directory."""
    BLOCKS["2. Benchmark Them (benchmark.py)"].run(namespace)
    return namespace


def is_png(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith(PNG_SIGNATURE)


def test_every_block_is_run_here() -> None:
    assert len(BLOCKS) == 17
    here = Path(__file__).read_text(encoding="utf-8")
    assert [heading for heading in BLOCKS if f'BLOCKS["{heading}"]' not in here] == []


def test_installation_names_what_comes_with_the_extras() -> None:
    """Installing is not for a test; seaborn's part is done by matplotlib alone."""
    named = set(re.findall(r"pip install (.+)", BLOCKS["Installation"].text)[0].split())
    assert [name for name in named - {"seaborn"} if find_spec(name) is None] == []


def test_basic_usage(namespace: dict[str, Any], directory: Path) -> None:
    BLOCKS["Basic Usage"].run(namespace)
    results: list[BenchmarkResult] = namespace["results"]
    sizes = list(SMALL_SIZES.values())
    expected = [{"N": n, "M": m, "K": k} for n in sizes for m in sizes for k in sizes]
    for name in ("matmul_naive", "matmul_optimized"):
        assert [result.parameters for result in results if result.kernel_name == name] == expected
    assert all(result.execution_time_ms > 0 and result.metrics["sample_count"] == FEW_ITERATIONS for result in results)
    assert len(json.loads((directory / "benchmark_results.json").read_text())["benchmarks"]) == len(results)
    assert (directory / "benchmark_report.txt").read_text().count("Parameters: ") == len(expected)


def test_the_described_kernels_are_taken_as_they_stand(namespace: dict[str, Any], directory: Path) -> None:
    (directory / "matmul_kernels.cu").write_text(BLOCKS["1. Create Your Kernels (matmul_kernels.cu)"].text)
    BLOCKS["2. Benchmark Them (benchmark.py)"].run(namespace)
    assert {result.kernel_name for result in namespace["results"]} == {"matmul_naive", "matmul_optimized"}
    naive = load_kernel("matmul_kernels.cu", "matmul_naive", reference="matmul_naive")
    with KernelBenchmarker() as benchmarker:
        (result,) = benchmarker.benchmark([naive], [20], [30], [40], iterations=2)
    assert result.metrics["verification"]["state"] == "PASSED"


def test_benchmark_and_visualize(measured: dict[str, Any], directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for result in measured["results"] for name in result.parameters} == {"N", "M", "K"}
    BLOCKS["3. Visualize Results"].run(measured)
    for path in (directory / "kernel_comparison.png", directory / "speedup.png", *(directory / "visualizations" / name for name in (
        "heatmap.png", "kernel_comparison.png", "speedup.png", "metrics_matmul_naive.png", "metrics_matmul_optimized.png"
    ))):  # fmt: skip
        assert is_png(path), path


def test_custom_block_and_grid(namespace: dict[str, Any]) -> None:
    namespace |= {"kb": importlib.import_module("KernelBenchmarker")}
    BLOCKS["Custom Block/Grid Configuration"].run(namespace)
    (result,) = namespace["kb"].benchmark([namespace["kernel"]], [40], [100], [8], iterations=2)
    assert result.metrics["block"] == (32, 32, 1)
    assert result.metrics["grid"] == namespace["my_grid_func"](40, 100, 8) == (4, 2, 1)


def test_pycuda_mode(namespace: dict[str, Any], directory: Path) -> None:
    namespace |= {"kb": importlib.import_module("KernelBenchmarker")}
    BLOCKS["Using PyCUDA Mode (Faster)"].run(namespace)
    results: list[BenchmarkResult] = namespace["results"]
    assert [(result.parameters["N"], result.parameters["M"]) for result in results] == [(32, 32), (32, 40), (40, 32), (40, 40)]
    assert (directory / "benchmark_results.json").is_file()
    assert (directory / "benchmark_report.txt").is_file()
    namespace["benchmarker"].cleanup()


def test_analyzing_results(measured: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    measured |= {"kernel1": measured["naive"], "kernel2": measured["optimized"]}
    BLOCKS["Analyzing Results"].run(measured)
    assert all(result.parameters["K"] == result.parameters["M"] for result in measured["results"])
    printed = capsys.readouterr().out
    assert printed.count("Kernel: ") == printed.count(" GFLOPS") == 2 * 3 * 3
    assert "Params: {'N': 8, 'M': 16, 'K': 16}" in printed


def test_parameter_sweep(namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    namespace |= {"kb": importlib.import_module("KernelBenchmarker")}
    BLOCKS["Parameter Sweeps for Optimization"].run(namespace)
    assert [result.metrics["block"] for result in namespace["results_all"]] == [(8, 8, 1), (16, 16, 1), (32, 32, 1)]
    assert capsys.readouterr().out.startswith("Best block size: ")


def test_the_file_has_the_described_layout(measured: dict[str, Any], directory: Path) -> None:
    text = BLOCKS["benchmark_results.json"].text.replace("{ ... }", "{}")
    (described,) = json.loads(text)["benchmarks"]
    document = json.loads((directory / "benchmark_results.json").read_text())
    assert list(document) == ["benchmarks"]
    for entry in document["benchmarks"]:
        assert [name for name in entry if name in described] == list(described)
        assert entry["parameters"].keys() == described["parameters"].keys()
        assert entry["metrics"]["sample_count"] == FEW_ITERATIONS


def test_the_report_has_the_described_layout() -> None:
    parameters = {"N": 1024, "M": 1024, "K": 1024}
    naive = BenchmarkResult("matmul_naive", parameters, 45.234, 65.3, 45.2)
    optimized = BenchmarkResult("matmul_optimized", parameters, 12.345, 85.2, 78.9)
    # 45.234 / 12.345 is 3.664: the description has not rounded it right.
    described = BLOCKS["benchmark_report.txt"].text.replace("3.67x", "3.66x")
    assert report_text([naive, optimized]) == described


def described_parameters(text: str) -> list[tuple[str, str]]:
    """Names and defaults of `name: type = default,  # comment` lines, in their order; "*name" without any."""
    found = re.finditer(r"^\s+(?P<name>\*?\w+)(: [^=\n#]+?)?( = (?P<default>.+?))?,?\s*(#.*)?$", text, re.MULTILINE)
    return [(one["name"], one["default"] or "") for one in found]


def actual_parameters(function: Any) -> list[tuple[str, str]]:
    """In the same form; `self`, and what goes beyond the description, left out."""
    parameters = inspect.signature(function).parameters.values()
    return [
        (f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name, "" if one.default is one.empty else repr(one.default))
        for one in parameters
        if one.name != "self" and one.kind is not one.VAR_KEYWORD
    ]


@pytest.mark.parametrize(
    ("text", "function", "names"),
    [
        (BLOCKS["load_kernel()"].text, load_kernel, ["source_file", "kernel_name", "block_size", "grid_size_func"]),
        (BLOCKS["benchmark()"].text, benchmark, ["kernels", "*param_ranges", "iterations", "profile"]),
        (BLOCKS["KernelBenchmarker Class"].text.partition("# Methods")[0], KernelBenchmarker, ["use_pycuda", "compute_capability"]),
    ],
)
def test_signatures_begin_as_described(text: str, function: Any, names: list[str]) -> None:
    described = described_parameters(text)
    assert [name for name, _ in described] == names
    for (name, default), (actual_name, actual_default) in zip(described, actual_parameters(function), strict=False):
        assert name == actual_name
        assert (ast.literal_eval(default) if default else "") == (ast.literal_eval(actual_default) if actual_default else "")


def test_methods_are_there_as_described() -> None:
    methods = re.findall(r"^benchmarker\.(\w+)\((.*?)\)", BLOCKS["KernelBenchmarker Class"].text, re.MULTILINE)
    assert [name for name, _ in methods] == ["load_kernel", "benchmark", "save_results", "generate_report", "cleanup"]
    for name, arguments in methods:
        parameters = list(inspect.signature(getattr(KernelBenchmarker(), name)).parameters)
        assert arguments in ("...", *parameters[:1], "")


def test_result_attributes(measured: dict[str, Any]) -> None:
    text = BLOCKS["BenchmarkResult Object"].text
    result = measured["results"][0]
    BLOCKS["BenchmarkResult Object"].run({"result": result})
    for name, kind in re.findall(r"^result\.(\w+)\s+# (\w+):", text, re.MULTILINE):
        assert isinstance(getattr(result, name), getattr(builtins, kind)), name
    assert math.isnan(result.memory_throughput_pct)  # nothing counts on this device


@pytest.mark.slow
def test_visualization_api(measured: dict[str, Any], directory: Path) -> None:
    BLOCKS["Visualization API"].run(measured)
    for name in ("heatmap.png", "kernel_comparison.png", "speedup.png", "metrics_matmul_optimized.png"):
        assert is_png(directory / name), name
        assert is_png(directory / "visualizations" / name), name


def test_described_signatures_are_valid(directory: Path) -> None:
    prototypes = BLOCKS["Kernel Requirements"].text.splitlines()
    expected = [("N",), ("N", "M"), ("N", "M", "K")]
    for prototype, names in zip(prototypes, expected, strict=True):
        (directory / "own.cu").write_text(prototype + " {}\n")
        assert load_kernel("own.cu", "my_kernel").parameter_names == names
