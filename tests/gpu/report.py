"""`python -m tests.gpu.report PARTS OUT`: what a run of run.sh found, as results.json and as a draft of RESULTS.md in OUT.

Reads pytest's JUnit files in PARTS, one beside each log, and OUT's figures.jsonl.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from services.profiler.backends.nvcc_compiler import toolkit_version

FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.sm",
    "clocks.mem",
    "power.limit",
    "temperature.gpu",
)
ROOT = Path(__file__).parents[2]
MAX_WORDS = 400  # of a failure's message


def write_report(parts: Path, folder: Path) -> bool:
    """Answers whether any test has passed: without a device all are skipped, and nothing is proven."""
    results: dict[str, Any] = {"machine": machine(), "duration_s": duration_s(), "tests": tests(parts), "figures": figures(folder)}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "RESULTS.md").write_text(document(results), encoding="utf-8")
    return any(case["outcome"] == "passed" for case in results["tests"])


def machine() -> dict[str, str]:
    gpu = said(("nvidia-smi", "-i", "0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader")).split(", ")
    return {
        **(dict(zip(FIELDS, gpu, strict=True)) if len(gpu) == len(FIELDS) else {"name": "no NVIDIA device"}),
        "cuda_toolkit": toolkit_version() or "none",
        "python": platform.python_version(),
        "system": platform.platform(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": os.environ.get("COMMIT") or said(("git", "-C", str(ROOT), "describe", "--always", "--dirty")) or "unknown",
    }


def said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def duration_s() -> float | None:
    start = os.environ.get("KERNALYSE_TESTS_START")
    return round(time.time() - float(start), 1) if start else None


def tests(folder: Path) -> list[dict[str, Any]]:
    found = list[dict[str, Any]]()
    logs = {file.stem for file in folder.glob("*.log")}
    for part in sorted(logs):
        cases = cases_of(folder / f"{part}.xml")
        if cases is None:
            found.append({"part": part, "test": part, "outcome": "not ended", "seconds": None, "message": "it was ended by its time limit"})
            continue
        for case in cases:
            problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            found.append(
                {
                    "part": part,
                    "test": case.get("name"),
                    "outcome": "passed" if problem is None else {"failure": "failed"}.get(problem.tag, problem.tag),
                    "seconds": float(case.get("time", 0)),
                    "message": "" if problem is None else (problem.get("message") or "")[:MAX_WORDS],
                }
            )
    return found


def cases_of(file: Path) -> list[ElementTree.Element] | None:
    """None: pytest was ended before it had written all of it."""
    try:
        return list(ElementTree.parse(file).getroot().iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        return None


def figures(folder: Path) -> list[dict[str, Any]]:
    file = folder / "figures.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def document(results: dict[str, Any]) -> str:
    facts, cases = results["machine"], results["tests"]
    outcomes = [case["outcome"] for case in cases]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)) or "no test ran"
    lines = ["# Results on an NVIDIA device", "", "Written by tests/gpu/run.sh.", ""]
    lines += [f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()]
    lines += [f"- all of it took: {results['duration_s']} s", f"- tests: {counts}", ""]
    lines += section("Not passed", [case for case in cases if case["outcome"] != "passed"], ("part", "test", "outcome", "message"))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for figure in results["figures"]:
        by_name.setdefault(figure["figure"], []).append(figure)
    for name, rows in by_name.items():
        columns = tuple(dict.fromkeys(column for row in rows for column in row if column not in ("figure", "test")))
        lines += section(name[:1].upper() + name[1:], rows, columns)
    return "\n".join(lines)


def section(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    if not rows:
        return []
    table = [" | ".join(words(row.get(column)) for column in columns) for row in rows]
    return [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {row} |" for row in table), ""]


def words(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return " ".join(words(one) for one in value)
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(0 if write_report(Path(sys.argv[1]), Path(sys.argv[2])) else "no test has passed")
