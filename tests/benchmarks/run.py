"""Every figure of `make bench`, one script after the other, each in a process of its own.

python -m tests.benchmarks.run [NAME...]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

BENCHMARKS = {
    "idle_memory": "Memory of idle services",
    "watch_throughput": "Samples a second through WatchRun",
    "tunnel_throughput": "Bytes a second of an artifact, directly and through a tunnel",
    "live_latency": "From a sample's measurement to its drawing in a browser",
    "many_points": "A filter on the Roofline page with 100 000 points",
    "dashboard_pages": "The first page of a visitor and switches of page, in a browser",
    "dashboard_sessions": "Twenty tabs on one server process",
    "split_sweep": "One sweep shared out to four stand-in devices",
    "many_runs": "A store of 100,000 runs: lists, filters, one history, a backup",
    "many_nodes": "A hundred stand-in profilers at one analyzer, and a thousand stand-in devices on the page Fleet",
    "fleet_check": "How often a slow device of a fleet is found, and a sound one named",
    "configuration_overhead": "Time per configuration beyond the kernel's own, beside Kernel Tuner's",
    "beside_kernel_tuner": "Medians beside Kernel Tuner's, block by block",
    "kineto_reading": "Reading a Kineto trace of a million events, beside Holistic Trace Analysis",
    "trace_reading": "A trace of Nsight Systems to kernels, layers and busy times, beside sqlite3 with pandas",
    "many_ranks": "Traces of sixteen ranks read as one run by a Dask cluster",
    "dashboard_tables": "The Kernels page over a store of a million measurements",
    "warm_tables": "Questions of an imported trace of millions of kernels",
    "timeline": "The Timeline page over ten million kernels, from wish to columns and from wheel to pixels",
    "history_questions": "Histories in a store of a million measurements",
    "gpt_kernels": "Products of the GPT workload beside NumPy's, and its fused variant beside the baseline",
    "verdicts": "How often paired comparisons are right, on each OpenCL CPU runtime",
}


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}; none: all")
    names = parser.parse_args().names or list(BENCHMARKS)
    print(f"{cpu_model()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}", flush=True)
    failed = []
    for name in names:
        print(f"\n== {BENCHMARKS[name]}", flush=True)
        start = time.monotonic()
        status = subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=False).returncode
        print(f"   ({name}, {time.monotonic() - start:.0f} s{f', status {status}' if status else ''})", flush=True)
        if status:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
