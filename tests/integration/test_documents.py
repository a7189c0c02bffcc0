"""Every code block of the pages in docs/ about KernelBenchmarker and the results document does what the page says."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from services.compat.KernelBenchmarker import KernelBenchmarker, benchmark, load_kernel
from services.compat.visualizing.visualizer import BenchmarkVisualizer
from services.profiler.catalog import catalog_folder

DOCS = Path(__file__).parents[2] / "docs"
MODULES = Path(__file__).parents[2] / "services" / "compat"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="needs the checkout")
needs_opencl = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def argument_tables(text: str) -> dict[str, dict[str, str]]:
    """Defaults by argument, by the function in the heading of the table; empty: the table gives none."""
    found = {}
    for table in re.finditer(r"^\| `(?P<function>\w+)\([^`]*\)` \| default \| \|\n\| --- .*\n(?P<rows>(\|.*\n)+)", text, re.MULTILINE):
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table["rows"].splitlines()]
        found[table["function"]] = {name: row[1].strip("`") for row in rows for name in re.findall(r"`\*?(\w+)`", row[0])}
    return found


@needs_opencl
def test_the_page_about_kernel_benchmarker_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MODULES)
    for source in (catalog_folder() / "examples").glob("*.cu"):
        shutil.copy(source, tmp_path)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    namespace: dict[str, Any] = {"__name__": "described"}
    text = page("kernel_benchmarker.md")
    seen = []
    for block in blocks(text, "python"):
        exec(compile(block, "kernel_benchmarker.md", "exec"), namespace)
        if "result" in namespace:
            seen.append((namespace["result"].kernel_name, (namespace["result"].metrics["verification"] or {}).get("state")))
    assert ("matmul_naive", "PASSED") in seen
    assert ("daxpy", "PASSED") in seen
    assert namespace["results"][1].parameters == {"N": 32, "M": 64, "K": 64}
    assert (tmp_path / "benchmark_report.txt").is_file()
    for name in re.findall(r"`(\w+\.png)`", text):
        assert (tmp_path / name).is_file()
        assert (tmp_path / "figures" / name).is_file()
    assert (tmp_path / "visualizations" / "metrics_daxpy.png").is_file()

    (described,) = (json.loads(block) for block in blocks(text, "json"))
    written = json.loads((tmp_path / "benchmark_results.json").read_text())
    assert written.keys() == described.keys()
    assert list(written["benchmarks"][0]) == list(described["benchmarks"][0])


def test_the_tables_name_every_argument_with_its_default() -> None:
    tables = argument_tables(page("kernel_benchmarker.md"))
    for function, name in ((benchmark, "benchmark"), (load_kernel, "load_kernel"), (KernelBenchmarker, "KernelBenchmarker")):
        parameters = {
            one.name: one
            for one in inspect.signature(function).parameters.values()
            if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        }
        described = {argument: default for argument, default in tables[name].items() if argument not in ("ranges", "NAME")}
        assert described.keys() == parameters.keys()
        for argument, default in described.items():
            if default:
                assert default.replace('"', "'") == repr(parameters[argument].default), argument


def test_the_methods_of_the_visualizer_are_named_with_their_arguments() -> None:
    described = dict(re.findall(r"^\| `(\w+)\(([^)]*)\)` \| ", page("kernel_benchmarker.md"), re.MULTILINE))
    methods = {name: method for name, method in inspect.getmembers(BenchmarkVisualizer, inspect.isfunction) if not name.startswith("_")}
    assert {name: described[name].split(", ") for name in methods} == {
        name: [argument for argument in inspect.signature(method).parameters if argument != "self"] for name, method in methods.items()
    }
