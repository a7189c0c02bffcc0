"""tests/gpu/run.sh as it runs on a node with a GPU: on Python 3.12, with the packages of prepare_wheels.sh, and without polars.

Here a device is announced that no backend can open; CuPy, PyCUDA, torch and triton are empty modules.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gpu import report
from tests.kept import alone_with

ROOT: Final = Path(__file__).parents[2]
GPU: Final = ROOT / "tests" / "gpu"
OF_THE_NODE: Final = ("numpy", "scipy")
EMPTY_MODULES: Final = ("cupy.py", "pycuda.py", "torch.py", "triton.py")
EMPTY_TOOLS: Final = ("ncu", "nsys")
TOTAL_S: Final = 460
ROOM_S: Final = 20  # for installing and reporting

NO_DEVICE: Final = re.compile(
    r"BackendUnavailableError: backend (PYCUDA|NVCC)|BACKEND_UNAVAILABLE|COLLECTOR_UNAVAILABLE|this node: found no device"
    r"|module 'torch' has no attribute|'triton' is not a package|hardware counters"
)
"""What tests end with: their fixtures have run, or a backend has said that there is no device."""


def output_of(*command: str) -> str:
    """Skips where the command cannot do its work."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip().rpartition("\n")[2])
    return done.stdout.strip()


@pytest.fixture(scope="module")
def python_of_the_node() -> Path:
    """A Python 3.12 with those packages and no others; kept until they change."""
    python = output_of("tests/tools/find_python.sh", "3.12")
    packages = [*output_of("tests/gpu/prepare_wheels.sh", "--list").split(), *OF_THE_NODE]
    with alone_with("gpu_environment") as kept:
        directory = kept / sha256("\0".join((python, *packages)).encode()).hexdigest()[:16]
        if not (directory / "complete").exists():
            shutil.rmtree(kept)
            output_of(python, "-m", "venv", str(directory))
            install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:")
            output_of(str(directory / "bin" / "python"), *install, *packages)
            (directory / "complete").touch()
    return directory / "bin" / "python"


def run_sh(*groups: str, python: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    named = {"PYTHON": str(python), "OUT": str(out), "WHEELS": str(out / "no wheels"), **environment}
    return subprocess.run([GPU / "run.sh", *groups], env={**os.environ, **named}, capture_output=True, text=True, check=False)


def executable(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o700)
    return file


@pytest.mark.slow
def test_every_part_gets_as_far_as_a_device_that_is_not_there(python_of_the_node: Path, tmp_path: Path) -> None:
    modules, tools, out = tmp_path / "modules", tmp_path / "tools", tmp_path / "out"
    modules.mkdir()
    for name in EMPTY_MODULES:
        (modules / name).touch()
    for name in EMPTY_TOOLS:
        executable(tools / name, "#!/bin/sh\nexit 1\n")
    done = run_sh(
        python=python_of_the_node,
        out=out,
        PYTHONPATH=str(modules),
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
        PYTEST_ADDOPTS="-p tests.gpu.announced",
        CUDA_VISIBLE_DEVICES="-1",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    ended = [case for case in results["tests"] if case["outcome"] in ("error", "failed", "skipped")]
    assert [case for case in results["tests"] if case not in ended and case["outcome"] != "passed"] == []
    assert [case for case in ended if not NO_DEVICE.search(case["message"])] == [], (out / "log.txt").read_text()
    assert {case["part"] for case in ended} == set(re.findall(r"^ +part (\w+)", (GPU / "run.sh").read_text(), re.MULTILINE))


@pytest.mark.parametrize("group", ["correctness", "timing", "tools"])
def test_the_limits_of_a_group_fit_into_a_call(group: str) -> None:
    """Of what runs side by side the longest counts."""
    (body,) = re.findall(rf"^{group}\(\) {{$(.*?)^}}$", (GPU / "run.sh").read_text(), re.MULTILINE | re.DOTALL)
    parts = re.findall(r"^ +part \w+ (\d+) .*?( &)?$", body, re.MULTILINE)
    assert len(parts) > 1
    together_s = [int(limit) for limit, is_compatible in parts if is_compatible]
    assert max(together_s, default=0) + sum(int(limit) for limit, is_compatible in parts if not is_compatible) <= TOTAL_S - ROOM_S


def test_a_python_that_pyenv_alone_has_is_found(tmp_path: Path) -> None:
    """Its shim on PATH answers only for versions that are switched on."""
    executable(tmp_path / "shims" / "python3.99", "#!/bin/sh\nexit 127\n")
    (tmp_path / "versions" / "3.99.1").mkdir(parents=True)
    executable(tmp_path / "versions" / "3.99.1" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    environment = {**os.environ, "PYENV_ROOT": str(tmp_path), "PATH": f"{tmp_path / 'shims'}{os.pathsep}{os.environ['PATH']}"}
    find = [ROOT / "tests" / "tools" / "find_python.sh"]
    found = subprocess.run([*find, "3.99"], env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, f"{sys.executable}\n")
    missing = subprocess.run([*find, "3.98"], env=environment, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "no Python 3.98 on PATH or in pyenv" in missing.stderr


def test_an_unknown_group_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = run_sh("timings", python=Path(sys.executable), out=tmp_path / "out")
    assert (done.returncode, done.stderr) == (2, "tests/gpu/run.sh: found timings; expected correctness, timing or tools\n")
    assert not (tmp_path / "out").exists()


def test_an_unknown_part_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = run_sh(python=Path(sys.executable), out=tmp_path / "out", PARTS="overhead medium")
    assert done.returncode == 2
    assert re.match(r"tests/gpu/run.sh: found part medium in PARTS; expected one of .*backends medians .*overhead", done.stderr)
    assert not (tmp_path / "out").exists()


def test_of_the_parts_those_that_are_named_are_run(tmp_path: Path) -> None:
    """Here with a Python that has no pytest: each part that is run fails."""
    executable(tmp_path / "bin" / "python", "#!/bin/sh\nexit 1\n")
    run_sh(python=tmp_path / "bin" / "python", out=tmp_path / "out", PARTS="overhead models")
    records = map(json.loads, (tmp_path / "out" / "records.jsonl").read_text().splitlines())
    assert [record["part"] for record in records if record["record"] == "part"] == ["overhead", "models"]


def test_a_part_that_is_killed_leaves_what_its_tests_have_found(tmp_path: Path) -> None:
    test_file = tmp_path / "test_part.py"
    test_file.write_text(
        textwrap.dedent("""
            import os, signal
            def test_right(): pass
            def test_wrong(): assert 1 + 1 == 3
            def test_hangs(): os.kill(os.getpid(), signal.SIGKILL)
            def test_later(): pass
        """)
    )
    environment = {**os.environ, "OUT": str(tmp_path), "KERNALYSE_TESTS_PART": "part", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.records", "--rootdir", str(tmp_path), "-c", os.devnull, str(test_file)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert report.main("merge", str(tmp_path), str(tmp_path)) is None
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    outcomes = {case["test"]: (case["outcome"], case["message"]) for case in tests}
    assert outcomes == {
        "test_right": ("passed", ""),
        "test_wrong": ("failed", "assert (1 + 1) == 3"),
        "test_hangs": ("not ended", "its part was killed meanwhile"),
        "test_later": ("not run", "the time of its part was over"),
    }
