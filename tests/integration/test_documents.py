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

import jsonschema
import pytest
from KernelBenchmarker import KernelBenchmarker, benchmark, load_kernel

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.analyzer.tables.results_document import DERIVED_TABLES, json_schema
from kernalyse.services.compat.visualizing.visualizer import BenchmarkVisualizer
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from tests.command import kernalyse
from tests.unit.run_results import sweep_results

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


@pytest.mark.slow
@needs_opencl
def test_the_page_about_kernel_benchmarker_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MODULES)
    for source in (catalog_directory() / "examples").glob("*.cu"):
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


# ---------------------------------------------------------------- the results document


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(results_document(sweep_results(tmp_path / "store")))
    return loaded


def test_every_example_row_is_valid(document: dict[str, Any]) -> None:
    text, schema = page("results_json.md"), json_schema()
    examples = {None: blocks(text, "json"), **{name: blocks(text, f"json {name}") for name in schema["$defs"]}}
    for name, found in examples.items():
        properties = (schema["$defs"][name] if name else schema)["properties"]
        part = {"$defs": schema["$defs"], "type": "object", "properties": properties, "additionalProperties": False}
        for example in found:
            jsonschema.Draft202012Validator(part).validate(json.loads(example))
    shown = {name for name, found in examples.items() if found}
    assert {"measurements", "samples", "failures", "paired_comparisons", "best", "counters"} <= shown
    assert sum(map(len, examples.values())) == len(re.findall(r"^```json", text, re.MULTILINE))


def test_every_member_is_named_and_what_follows_from_others_says_so() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page("results_json.md"), re.MULTILINE))
    assert list(rows) == [name for name in json_schema()["properties"] if name not in ("schema", "kernalyse_version")]
    derived = {table.table_name for table in DERIVED_TABLES}
    assert {name for name, text in rows.items() if "follows from the others" in text} == derived


def test_the_reading_scripts_run(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(document))
    namespace: dict[str, Any] = {}
    for block in blocks(page("results_json.md"), "python"):
        exec(compile(block, "results_json.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert printed.startswith("saxpy N=1000 TILE=16                5.000 us ± 0.001")
    assert "shape: (2, " in printed
    (tmp_path / "results.json").write_text(json.dumps(document | {"schema": "kernalyse-results/2"}))
    with pytest.raises(SystemExit, match="kernalyse-results/2, and this script reads"):
        exec(compile(blocks(page("results_json.md"), "python")[0], "results_json.md", "exec"), {})


def test_the_commands_have_the_options_that_the_page_gives_them() -> None:
    (commands,) = blocks(page("results_json.md"), "console")
    for command, path in re.findall(r"^\$ kernalyse (\w+) (?:last|\S+)(.*?)(?: +#.*)?$", commands, re.MULTILINE):
        options = re.findall(r"--?[a-z]+", path)
        done = kernalyse(command, "--help")
        assert done.returncode == 0
        assert all(option in done.stdout for option in options), (command, options)
