"""The wheels in empty environments: the client alone, analyzer with dashboard, and everything; each does its main job there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses
from tests.unit.analyzer.readers.test_kineto import call, kernel, module

ROOT = Path(__file__).parents[2]
INSTALL_TIMEOUT_S = 900
COMMAND_TIMEOUT_S = 180

Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheels by the names of their distributions."""
    directory = tmp_path_factory.mktemp("dist")
    for source in (ROOT, ROOT / "compat"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
    return {path.name.partition("-")[0]: path for path in directory.glob("*.whl")}


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the versions of the lock without hashes: pip wants these of every package or of none, and the wheels have none."""
    pins = re.findall(r"^([\w.-]+==[^\s\\]+(?: ;[^\\\n]+)?)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) > 50
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    path.write_text("\n".join(pins) + "\n")
    return path


@pytest.fixture(scope="module")
def install(wheels: dict[str, Path], constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    def installed(extras: str) -> Path:
        """Return the bin directory of a new environment with kernalyse, these extras, and nothing else."""
        directory = tmp_path_factory.mktemp("environment") / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True, capture_output=True)
        requirements = [f"kernalyse{extras} @ {wheels['kernalyse'].as_uri()}"]
        if "compat" in extras:
            requirements.append(f"kernalyse-compat @ {wheels['kernalyse_compat'].as_uri()}")
        pip = [
            str(directory / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--constraint",
            str(constraints),
        ]
        done = subprocess.run([*pip, *requirements], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        if "No matching distribution found" in done.stderr or "Could not fetch" in done.stderr:
            pytest.skip(f"needs a package registry: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        return directory / "bin"

    return installed


@contextmanager
def services(directory: Path, python: Path | str = sys.executable) -> Iterator[ServiceProcesses]:
    running = ServiceProcesses(directory, str(python))
    try:
        yield running
    finally:
        running.stop_all()


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [*map(str, command)]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages(binaries: Path, cwd: Path) -> set[str]:
    listed = json.loads(run(binaries / "python", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check", cwd=cwd))
    return {package["name"].lower() for package in listed}


def trace_file(directory: Path) -> Path:
    events = [module("fc", 0, 100), call(10, 1), kernel("gemm", 20, 30, 1)]
    path = directory / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_the_client_alone_reads_what_another_machine_has_measured(install: Install, tmp_path: Path) -> None:
    binaries = install("")
    assert not packages(binaries, tmp_path) & {"numpy", "polars", "panel", "numba", "sqlalchemy"}
    with private_directory() as directory, services(directory) as running:
        analyzer = running.start("analyzer")
        script = (
            "import kernalyse, pathlib, sys\n"
            f"with kernalyse.connect({analyzer.address!r}, token={analyzer.token!r}) as client:\n"
            "    run = client.import_trace(pathlib.Path(sys.argv[1])).run\n"
            "    print(run.state)\n"
        )
        assert run(binaries / "python", "-c", script, trace_file(tmp_path), cwd=tmp_path).strip() == "SUCCEEDED"


def test_analyzer_and_dashboard_need_nothing_of_a_gpu_host(install: Install, tmp_path: Path) -> None:
    binaries = install("[analyzer,ui]")
    assert not packages(binaries, tmp_path) & {"pyopencl", "pycuda", "tree-sitter", "scipy", "datashader"}
    shown = run(binaries / "kernalyse", "show", trace_file(tmp_path), "kernels", "--format", "json", cwd=tmp_path)
    assert [row["kernel_name"] for row in json.loads(shown)["kernels"]] == ["gemm"]
    with private_directory() as directory, services(directory, binaries / "python") as running:
        analyzer = running.start("analyzer")
        dashboard = running.start("ui", "--analyzer-address", analyzer.address)
        with pytest.raises(urllib.error.HTTPError) as refused:  # without its token, but it serves
            urllib.request.urlopen(f"http://{dashboard.address}/", timeout=60)
        refused.value.close()
        assert refused.value.code in (401, 403)


def test_all_of_it_measures_and_has_the_names_from_elsewhere(install: Install, tmp_path: Path) -> None:
    binaries = install("[all,compat]")
    results = tmp_path / "results.json"
    with private_directory():
        run(binaries / "kernalyse", "bench", "saxpy", "-p", "N=1024", "--max-time", "0.2", "--json", results, cwd=tmp_path)
    (measurement,) = json.loads(results.read_text())["measurements"]
    assert measurement["verification_state"] == "PASSED"
    assert (
        run(binaries / "python", "-c", "import KernelBenchmarker, visualize; print(visualize.visualize.__name__)", cwd=tmp_path)
        == "visualize\n"
    )
