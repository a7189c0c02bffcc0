"""`python -m tests.gpu.timed_by_nvbench CASES RESULTS`: medians of NVBench's cold samples, by its Python package, in nanoseconds."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.cubin_launches import CubinLaunch, read_cases

SAMPLES_TAG = "nv/json/bin:nv/cold/sample_times"
OPTIONS = ("--devices", "0", "--min-time", "0.2", "--timeout", "1.5")


def main(cases_file: str, results_file: str) -> None:
    bench: Any = importlib.import_module("cuda.bench")
    cases = {case.label: case for case in read_cases(Path(cases_file))}

    def measure(state: Any) -> None:
        launch = CubinLaunch(cases[state.get_string("Case")])
        state.exec(lambda one: launch.launch(one.get_stream().addressof()), batched=False)
        launch.close()

    benchmark = bench.register(measure)
    benchmark.add_string_axis("Case", list(cases))
    with tempfile.TemporaryDirectory() as directory:
        document_file = Path(directory) / "nvbench.json"
        bench.run_all_benchmarks([sys.argv[0], *OPTIONS, "--jsonbin", str(document_file)])
        document = json.loads(document_file.read_text())
        states = document["benchmarks"][0]["states"]
        medians_ns = {state["axis_values"][0]["value"]: _median_ns(state, document_file.parent) for state in states}
    Path(results_file).write_text(json.dumps(medians_ns))


def _median_ns(state: dict[str, Any], directory: Path) -> float:
    (summary,) = (summary for summary in state["summaries"] if summary["tag"] == SAMPLES_TAG)
    name = next(entry["value"] for entry in summary["data"] if entry["name"] == "filename")
    file = next(path for path in (Path(name), directory / name) if path.is_file())
    return float(np.median(np.fromfile(file, "<f4").astype(np.float64))) * 1e9


if __name__ == "__main__":
    main(*sys.argv[1:])
