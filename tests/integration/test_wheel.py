"""The wheels: what is in them, and that they work installed, without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the checkout")


TOP_LEVEL_NAMES = {
    "KernelBenchmarker.py",
    "interface",
    "kernel_benchmark_visualizer.py",
    "roofline_analysis_tool.py",
    "visualize.py",
    "visualize_comparison.py",
    "visualize_performance.py",
}
"""What scripts import that were written for other programs; nothing else of ours is importable beside `kernalyse`."""


def built(source: Path, directory: Path, target: str = "wheel") -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (found,) = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def compat_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "compat", tmp_path_factory.mktemp("dist-compat"))


@pytest.fixture(scope="module")
def installed(wheel: Path, compat_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin directory of a fresh environment that has the wheels, and this one's libraries but not its editable kernalyse."""
    directory = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, capture_output=True)
    site_packages = next((directory / "lib").glob("python*/site-packages"))
    # A directory named in a .pth file is put on the path, but .pth files inside it are not read: the editable install stays out.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--force-reinstall", str(wheel), str(compat_wheel)], check=True, capture_output=True)
    return directory / "bin"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=150, check=False)


def names_in(wheel: Path) -> set[str]:
    """Return the files of a wheel without those that describe it."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def tracked(*directories: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *directories], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if not (ROOT / name).is_symlink()}


def test_the_wheel_has_the_client_the_services_and_the_kernels_and_nothing_else(wheel: Path) -> None:
    client = {name.removeprefix("proto/python/") for name in tracked("proto/python/kernalyse")}
    services = {f"kernalyse/{name}" for name in tracked("services")}
    kernels = {f"kernalyse/services/{name}" for name in tracked("kernels")}
    assert names_in(wheel) == client | services | kernels
    assert {"kernalyse/services/kernels/catalog.toml", "kernalyse/services/analyzer/server.py", "kernalyse/py.typed"} <= names_in(wheel)
    assert any(name.endswith("/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_names_from_elsewhere_are_a_distribution_of_their_own(wheel: Path, compat_wheel: Path) -> None:
    assert {name.partition("/")[0] for name in names_in(wheel)} == {"kernalyse"}
    assert {name.partition("/")[0] for name in names_in(compat_wheel)} == TOP_LEVEL_NAMES


def test_a_wheel_made_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = built(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    again = built(tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "again")
    assert names_in(again) == names_in(wheel)


def test_a_package_of_the_user_called_services_stays_the_users(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("OWNER = 'the user'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import kernalyse, services\n"
        "quick = kernalyse.Measuring(min_duration_s=0.05, max_duration_s=0.2)\n"
        "print(kernalyse.bench(lambda: sum(range(1000)), timer='host', measuring=quick))\n"
        "print(services.OWNER, services.__path__)\n"
    )
    done = run(installed / "python", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"the user {[str(tmp_path / 'services')]}"


@pytest.mark.slow
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
    code = "import sys, kernalyse; kernalyse.connect; print(sorted({'kernalyse.services', 'polars', 'numpy'} & set(sys.modules)))"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout.strip() == "[]"


@pytest.mark.slow
def test_the_compatible_modules_benchmark_and_draw_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    examples = next(installed.parent.glob("lib/python*/site-packages/kernalyse/services/kernels/examples"))
    done = run(installed / "python", examples / "example_usage.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "matmul_optimized" in (tmp_path / "benchmark_report.txt").read_text()
    assert {path.name for path in (tmp_path / "visualizations").iterdir()} >= {"heatmap.png", "kernel_comparison.png", "speedup.png"}
    where = run(installed / "python", "-c", "import KernelBenchmarker, visualize; print(KernelBenchmarker.__file__)", cwd=tmp_path)
    assert where.stdout.strip() == str(examples.parents[3] / "KernelBenchmarker.py"), where.stderr
