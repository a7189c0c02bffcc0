"""What calls of run.sh have found, as results.json and as a draft of RESULTS.md, from the records.jsonl of each call.

`python -m tests.gpu.report begin OUT` records the machine, `... end OUT` writes the report of a call that has ended by itself.
`python -m tests.gpu.report merge OUT DIRECTORY...` writes one of several calls, or of one that was killed, into OUT.
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

from kernalyse.services.profiler.backends.cuda.compiler import toolkit_version
from tests.gpu.records import read_records, write_record

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


def write_report(directories: Sequence[Path], directory: Path) -> bool:
    """Write what the records of all directories say; return whether any test has passed: without a device all are skipped."""
    records = [record for one in directories for record in read_records(one)]
    results: dict[str, Any] = {
        "machine": next((record["machine"] for record in records if record["record"] == "begin"), {"name": "unknown"}),
        "duration_s": sum(record["duration_s"] for record in records if record["record"] == "end"),
        "tests": tests(records),
        "figures": [record["values"] for record in records if record["record"] == "figure"],
    }
    (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (directory / "RESULTS.md").write_text(document(results), encoding="utf-8")
    return any(case["outcome"] == "passed" for case in results["tests"])


def tests(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last record of each test, part by part; a part of which no test is known stands there itself."""
    found = {(record["part"], record["test"]): {**record} for record in records if record["record"] == "test"}
    for record in records:
        if record["record"] == "part" and not any(part == record["part"] for part, _ in found):
            message = "it has collected no test" if record["limit_s"] else "no time was left: call run.sh with its group's name"
            missing = {"part": record["part"], "test": record["part"], "outcome": "not run", "seconds": None, "message": message}
            found[record["part"], record["part"]] = missing
    names = ("part", "test", "outcome", "seconds", "message")
    return [{name: found[key][name] for name in names} for key in sorted(found, key=lambda key: key[0])]


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


def main(step: str, out: str, *directories: str) -> str | None:
    """Return what is wrong; None: nothing."""
    directory = Path(out)
    if step == "begin":
        write_record(directory, record="begin", machine=machine(), unix_s=time.time())
        return None
    if step == "end":
        begin_s = next(record["unix_s"] for record in read_records(directory) if record["record"] == "begin")
        write_record(directory, record="end", duration_s=round(time.time() - begin_s, 1))
    return None if write_report([Path(one) for one in directories] or [directory], directory) else "no test has passed"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
