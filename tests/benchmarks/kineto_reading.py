"""Reading a large Kineto trace beside Holistic Trace Analysis: `python -m tests.benchmarks.kineto_reading`.

The trace is made by the shared directory's scale_kineto.py: eight copies of h100_owlv2, 1.06 million events, 316 MB. Both sides are cold
processes that take turns; each answers with a summary of the kernels and the busy time, this project also with the kernels by
innermost module. The figures are the ratios of the shortest times, on all cores (two processes read the trace) and on one. Where
other programs keep the cores busy the first is too low; the ratio of the processors' time beside it then says more.

The machine code of what is compiled is kept on disk from an earlier run, except in the line "first ever". The peer runs in a
virtual environment of its own, made at the first call with `pip install HolisticTraceAnalysis orjson`.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

PEER = "HolisticTraceAnalysis==0.5.0"
COPIES = 8
ROUNDS = 3
MIN_RATIO = 9.0
MIN_RATIO_OF_ONE_CORE = 6.0
MAX_GZIP_SECONDS = 1.5
MAX_FIRST_SECONDS = 5.0
CHECKOUT = Path(__file__).parents[2]
SHARED = CHECKOUT.parent / "shared"

OWN_ANSWER = """
import sys
from pathlib import Path
from kernalyse.services.analyzer.analysis.traces.activity import trace_breakdown
from kernalyse.services.analyzer.analysis.traces.kernels import trace_kernels
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.readers.base import TraceFiles
path = Path(sys.argv[1])
frames = {name: frame.lazy() for name, frame in KinetoReader().read(TraceFiles(path.name, path, 0)).frames.items()}
launches, names = frames["kernel_launches"], frames["trace_names"]
kernels = trace_kernels(launches, names).collect()
busy = trace_breakdown(launches, frames["memory_ops"], names, frames["trace_devices"]).collect()
layers = trace_layers(launches, frames["ranges"], names).collect()
print(kernels["launch_count"].sum(), busy["busy_ns"].sum(), layers.height)
"""

PEER_ANSWER = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
busy = analysis.get_temporal_breakdown(visualize=False)
print(len(kernels), len(busy))
"""


def peer_python(directory: Path) -> Path | None:
    """Of an environment with the peer; None when it cannot be installed."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    found = subprocess.run([python, "-c", "import hta, orjson"], capture_output=True, check=False)
    if found.returncode:
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", PEER, "orjson"], capture_output=True, text=True, check=False)
        if installed.returncode:
            print(f"skipped: {PEER} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
            return None
    return python


@dataclass(frozen=True, slots=True)
class Took:
    """A process: by the clock, and of all processors together."""

    wall_s: float
    cpu_s: float


def took(command: list[str | Path], environment: dict[str, str] | None = None) -> Took:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return Took(wall_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def own(path: Path, *prefix: str, cache: Path | None = None) -> Took:
    return took([*prefix, sys.executable, "-c", OWN_ANSWER, path], None if cache is None else {"NUMBA_CACHE_DIR": str(cache)})


def least(runs: list[Took]) -> Took:
    return Took(min(run.wall_s for run in runs), min(run.cpu_s for run in runs))


def compare(trace: Path, python: Path, rounds: int, work: Path) -> bool:
    first = own(trace, cache=work / "empty_cache")
    own(trace)
    packed_trace = work / "trace.json.gz"
    with trace.open("rb") as source, gzip.open(packed_trace, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    plain_runs, single_runs, packed_runs, peer_runs = [], [], [], []
    for _ in range(rounds):
        plain_runs.append(own(trace))
        single_runs.append(own(trace, "taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))))
        packed_runs.append(own(packed_trace))
        peer_runs.append(took([python, "-c", PEER_ANSWER, trace]))
    plain, single, packed, peer = least(plain_runs), least(single_runs), least(packed_runs), least(peer_runs)
    ratio, cpu_ratio, single_ratio = peer.wall_s / plain.wall_s, peer.cpu_s / plain.cpu_s, peer.wall_s / single.wall_s
    print(f"kernalyse       {plain.wall_s:6.2f} s, {plain.cpu_s:6.2f} s of processors  (compiled code from an earlier run)")
    more = f"{first.wall_s - plain.wall_s:+.2f} s; at most {MAX_FIRST_SECONDS:.0f} s"
    print(f"  first ever    {first.wall_s:6.2f} s, {first.cpu_s:6.2f} s  ({more})")
    print(f"  one core      {single.wall_s:6.2f} s, {single.cpu_s:6.2f} s")
    print(f"  .json.gz      {packed.wall_s:6.2f} s  ({packed.wall_s - plain.wall_s:+.2f} s; at most {MAX_GZIP_SECONDS} s)")
    print(f"HTA 0.5.0       {peer.wall_s:6.2f} s, {peer.cpu_s:6.2f} s")
    print(f"ratio           {ratio:6.1f}, {cpu_ratio:.1f} of processors  (at least {MIN_RATIO:.0f}; load {os.getloadavg()[0]:.1f})")
    print(f"  one core      {single_ratio:6.1f}  (at least {MIN_RATIO_OF_ONE_CORE:.0f})")
    return ratio >= MIN_RATIO and single_ratio >= MIN_RATIO_OF_ONE_CORE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="directory with data and tools")
    parser.add_argument("--environment", type=Path, default=CHECKOUT / "build" / "peer-hta", help="virtual environment of the peer")
    parser.add_argument("--trace", type=Path, help="an uncompressed trace to read instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    source = arguments.shared / "data" / "kineto" / "h100_owlv2.json.gz"
    if arguments.trace is None and not source.exists():
        print(f"skipped: {source} is not there")
        return 0
    python = peer_python(arguments.environment)
    if python is None:
        return 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        trace = arguments.trace or work / "trace.json"
        if arguments.trace is None:
            took([python, arguments.shared / "tools" / "scale_kineto.py", source, str(COPIES), trace])
        return 0 if compare(trace, python, arguments.rounds, work) else 1


if __name__ == "__main__":
    sys.exit(main())
