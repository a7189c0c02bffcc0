"""A large export of Nsight Systems: this project beside sqlite3 with pandas, each a process of its own, in turns.

python -m tests.benchmarks.trace_reading [COPIES...]

From the cold process to the kernels, busy times and innermost ranges of h100x2_mfu_before.sqlite in so many copies (250 are
1.0 M kernels). The file is in the page cache for both. The figures of both have to be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

SHARED = Path(os.environ.get("KERNALYSE_SHARED", Path(__file__).parents[3] / "shared"))
SOURCE = SHARED / "data" / "nsys" / "h100x2_mfu_before.sqlite"
ROUND_COUNT = 3
LARGE_COPIES = 1000
"""From here on short ranges are left out, as in the figures that the goals were set by, and one round has to do."""

TIME_GOALS = {250: 9, 2500: 14}
MEMORY_GOAL_RATIO = 0.6
FIRST_RUN_GOAL_S = 12
SHOWN = ("kernels", "layers", "breakdown")


@dataclass(frozen=True, slots=True)
class Run:
    """cpu_seconds: of all its threads; on a busy machine it says more than the wall clock does."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def run(arguments: list[str], **environment: str) -> Run:
    """Raises SystemExit when the process fails."""
    with tempfile.TemporaryFile("w+") as output:
        start = time.monotonic()
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.DEVNULL, env=os.environ | environment)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)}: status {process.returncode}")
        output.seek(0)
        return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read())


def own(path: Path, **environment: str) -> Run:
    return run([sys.executable, "-m", "kernalyse.services.cli.main", "show", str(path), *SHOWN, "--format", "json"], **environment)


def baseline(path: Path) -> Run:
    return run([sys.executable, str(SHARED / "tools" / "baseline_pandas.py"), str(path)])


def own_figures(output: str) -> dict[str, int]:
    tables: dict[str, list[dict[str, Any]]] = json.loads(output)
    return {
        "kernel_count": sum(row["launch_count"] for row in tables["kernels"]),
        "kernel_ns": sum(row["duration_sum_ns"] for row in tables["kernels"]),
        "busy_ns": sum(row["busy_ns"] for row in tables["breakdown"]),
        "kernel_in_range_count": sum(row["launch_count"] for row in tables["layers"] if row["source"] == "range"),
    }


def compare(path: Path, copies: int, directory: Path) -> None:
    first = own(path, NUMBA_CACHE_DIR=str(directory / "no_code_yet"))
    rounds = [(own(path), baseline(path)) for _ in range(1 if copies >= LARGE_COPIES else ROUND_COUNT)]
    figures = own_figures(rounds[0][0].output)
    theirs = json.loads(rounds[0][1].output)
    if any(theirs[name] != value for name, value in figures.items()):
        raise SystemExit(f"figures differ: {figures}, with pandas {theirs}")
    time_ratio = median(other.seconds / this.seconds for this, other in rounds)
    memory_ratio = median(this.peak_bytes / other.peak_bytes for this, other in rounds)
    print(f"{copies} copies, {figures['kernel_count'] / 1e6:.2f} M kernels, {path.stat().st_size / 1e6:.0f} MB; all figures are the same")
    for name, place in (("show FILE kernels layers breakdown", 0), ("sqlite3 + pandas", 1)):
        of_one = [pair[place] for pair in rounds]
        seconds, cpu_seconds = (median(getattr(run, field) for run in of_one) for field in ("seconds", "cpu_seconds"))
        print(f"  {name:<36} {seconds:7.2f} s ({cpu_seconds:.2f} s CPU) {median(r.peak_bytes for r in of_one) / 1e6:7.0f} MB")
    goal = f" (goal: at least {TIME_GOALS[copies]})" if copies in TIME_GOALS else ""
    print(f"  {time_ratio:.1f} x faster{goal}, with {memory_ratio:.2f} x the memory (goal: at most {MEMORY_GOAL_RATIO})")
    print(f"  compiled code was on disk from an earlier run; the first one ever: {first.seconds:.1f} s (goal: at most {FIRST_RUN_GOAL_S})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("copies", nargs="*", type=int, help="of the trace; default: 250")
    parser.add_argument(
        "--directory", type=Path, help="where the large files are made, and found again; default: a new one, deleted afterwards"
    )
    options = parser.parse_args()
    if not SOURCE.exists():
        print(f"   skipped: {SOURCE} is not there, nor are the tools beside it")
        return
    with tempfile.TemporaryDirectory(prefix="kn-bench-") as temporary:
        directory = options.directory or Path(temporary)
        for copies in options.copies or [250]:
            path = directory / f"traces_{copies}.sqlite"
            if not path.exists():
                short = ["--min-range-ns", "100000"] if copies >= LARGE_COPIES else []
                run([sys.executable, str(SHARED / "tools" / "scale_nsys.py"), str(SOURCE), str(copies), str(path), *short])
            compare(path, copies, Path(temporary))


if __name__ == "__main__":
    main()
