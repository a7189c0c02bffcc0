"""The rules of the house that machines can check: style, types, imports, contract."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kept import alone_with

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
MAX_LINES = 600
HEAVY_MODULES = ("polars", "panel", "pandas", "holoviews", "bokeh", "numpy", "pyopencl", "pycuda", "sqlalchemy", "matplotlib")

pytestmark = pytest.mark.skipif(not (ROOT / "proto").is_dir(), reason="needs the checkout")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=290)


def test_ruff_finds_nothing() -> None:
    done = run(str(BIN / "ruff"), "check", ".")
    assert done.returncode == 0, done.stdout


def test_the_format_is_ruffs() -> None:
    done = run(str(BIN / "ruff"), "format", "--check", ".")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_types_are_strict() -> None:
    with alone_with("mypy") as directory:
        done = run(str(BIN / "mypy"), "--cache-dir", str(directory))
    assert done.returncode == 0, done.stdout


def test_imports_keep_the_rules() -> None:
    done = run(str(BIN / "lint-imports"))
    assert done.returncode == 0, done.stdout


def test_the_contract_passes_buf() -> None:
    done = run(str(BIN / "buf"), "lint", "proto")
    assert done.returncode == 0, done.stdout + done.stderr


def test_generated_code_is_fresh() -> None:
    done = run(sys.executable, "proto/generate.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("kernalyse.services.profiler.server", HEAVY_MODULES),
        ("kernalyse.services.profiler.processes.supervisor", (*HEAVY_MODULES, "grpc", "google")),
        ("kernalyse.services.core.model", (*HEAVY_MODULES, "grpc", "google")),
        ("kernalyse.services.core.errors", (*HEAVY_MODULES, "grpc", "google")),
        ("kernalyse.services.core.protobuf", (*HEAVY_MODULES, "grpc")),
        ("kernalyse.services.core.settings", HEAVY_MODULES),
        ("kernalyse.client", HEAVY_MODULES),
        ("kernalyse.services.cli.bench_request", ("tree_sitter", "tree_sitter_cuda")),  # which the dashboard's image lacks
    ],
)
def test_imports_stay_light_in_a_fresh_interpreter(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & {set(forbidden)!r}))"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def python_files() -> list[Path]:
    directories = ("services", "tests", "proto/python/kernalyse")
    return [path for directory in directories for path in (ROOT / directory).rglob("*.py") if "v1" not in path.parts]


def test_no_module_is_longer_than_600_lines() -> None:
    shipped = [path for path in python_files() if "tests" not in path.relative_to(ROOT).parts]
    long = {str(path.relative_to(ROOT)): count for path in shipped if (count := len(path.read_text().splitlines())) > MAX_LINES}
    allowed = {"services/core/model.py"}  # one list of the nouns, read from top to bottom
    assert long.keys() - allowed == set()
    assert not [path.name for path in python_files() if path.stem in ("utils", "util", "helpers", "helper", "manager", "common", "misc")]


def test_no_file_names_a_package_host_or_a_machine() -> None:
    listed = run("git", "ls-files")
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    pattern = re.compile(r"https?://[\w.]*(pypi|pythonhosted|npmjs|conda|artifactory)[\w.]*|--index-url|--extra-index-url|--find-links")
    offending = [
        name
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file() and Path(name).suffix in ("", ".py", ".toml", ".md", ".lock", ".yaml", ".yml", ".txt")
        and name != "tests/unit/project/test_architecture.py"
        and pattern.search((ROOT / name).read_text(errors="ignore"))
    ]  # fmt: skip
    assert offending == []


def test_every_pinned_dependency_has_a_hash() -> None:
    for name in ("requirements.lock", "requirements-cuda.lock", "requirements-bench.lock"):
        blocks = re.split(r"\n(?=\S)", (ROOT / name).read_text())
        pins = [block for block in blocks if "==" in block.splitlines()[0]]
        assert pins
        assert [pin.splitlines()[0] for pin in pins if "--hash=sha256:" not in pin] == []


@pytest.mark.slow
def test_no_child_process_imports_from_the_directory_where_the_user_stands() -> None:
    """`python -m` looks there first: a directory named `services`, or a random.py, would take the place of what is meant."""
    unsafe = []
    for path in [path for path in python_files() if path.relative_to(ROOT).parts[0] in ("services", "proto")]:
        for node in ast.walk(ast.parse(path.read_text())):
            words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            for word, following in pairwise(words):
                is_python = isinstance(word, ast.Attribute) and word.attr == "executable"
                if is_python and not (isinstance(following, ast.Constant) and following.value in ("-P", "-I")):
                    unsafe.append(f"{path.relative_to(ROOT)}:{word.lineno}")
    assert unsafe == [], "put -P after sys.executable"


def test_make_knows_its_targets() -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for target in ("setup", "run", "test", "smoke", "soak", "bench", "lint", "format", "types", "proto", "lock", "wheel", "clean"):
        assert run("make", "--dry-run", target).returncode == 0, target
