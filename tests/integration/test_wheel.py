"""The wheel works installed, without the checkout: it carries kernels and finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the checkout")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("kernalyse-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment that has the wheel, and this one's libraries but not its editable kernalyse."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    site_packages = next((folder / "lib").glob("python*/site-packages"))
    # A folder named in a .pth file is put on the path, but .pth files inside it are not read: the editable install stays out.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--force-reinstall", str(wheel)], check=True, capture_output=True)
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=150, check=False)


def test_the_wheel_carries_sources_and_kernels_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "services/kernels/catalog.toml" in names
    assert "services/kernels/saxpy.cu" in names
    assert "services/kernels/examples/matmul_kernels.cu" in names
    assert "services/kernels/examples/example_usage.py" in names
    assert {"kernalyse/v1/run_pb2.py", "kernalyse/py.typed", "services/callables/benchmark.py"} <= set(names)
    modules = {"KernelBenchmarker.py", "visualize.py", "visualize_comparison.py", "visualize_performance.py", "interface/cli/main.py"}
    assert {*modules, "roofline_analysis_tool.py", "kernel_benchmark_visualizer.py"} <= set(names)
    assert "services/cli/main.py" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "proto/"))]


def test_the_installed_command_measures_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import services, kernalyse; print(services.__file__, kernalyse.__file__)", cwd=tmp_path)
    assert str(ROOT / "services") not in where.stdout
    assert str(ROOT / "proto") not in where.stdout

    results = tmp_path / "results.json"
    done = run(installed / "kernalyse", "bench", "saxpy", "-p", "N=1024", "--max-time", "0.2", "--json", results, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (measurement,) = json.loads(results.read_text())["measurements"]
    assert measurement["label"] == "saxpy N=1024"
    assert measurement["verification_state"] == "PASSED"


def test_the_installed_client_library_stands_alone(installed: Path, tmp_path: Path) -> None:
    code = "import sys, kernalyse; kernalyse.connect; print(sorted({'services', 'polars', 'numpy'} & set(sys.modules)))"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout.strip() == "[]"


def test_the_compatible_modules_benchmark_and_draw_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    examples = next(installed.parent.glob("lib/python*/site-packages/services/kernels/examples"))
    done = run(installed / "python", examples / "example_usage.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "matmul_optimized" in (tmp_path / "benchmark_report.txt").read_text()
    assert {path.name for path in (tmp_path / "visualizations").iterdir()} >= {"heatmap.png", "kernel_comparison.png", "speedup.png"}
    where = run(installed / "python", "-c", "import KernelBenchmarker, visualize; print(KernelBenchmarker.__file__)", cwd=tmp_path)
    assert where.stdout.strip() == str(examples.parents[2] / "KernelBenchmarker.py"), where.stderr
