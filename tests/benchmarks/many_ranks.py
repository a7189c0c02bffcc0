"""Traces of sixteen ranks read as one run by a Dask cluster of two workers, beside sixteen imports of one of them.

python -m tests.benchmarks.many_ranks [--copies 25] [--directory PLACE]

Each rank is h100x2_mfu_before.sqlite in so many copies (25 are 100 000 kernels, 250 are 1.0 M), and differs in a number of its header
alone. The imports one by one run on one core, client and analyzer; half of their time is what two cores could take at best. The same run is
imported by two processes of the analyzer as well: what Dask costs beside these is its share.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from distributed import Client as DaskClient
from distributed import LocalCluster

from kernalyse.client import Client
from tests.benchmarks.trace_reading import SHARED, SOURCE, run
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses

RANK_COUNT: Final = 16
WORKER_COUNT: Final = 2
GOAL_RATIO: Final = 1.15
GOAL_BYTES: Final = 3 * 10**9
MEMORY_LIMIT: Final = "12GB"  # of a worker, beyond the goal, so that it is measured and not killed


def rank_files(directory: Path, copies: int) -> list[Path]:
    """Traces of one content and one digest each: the same file twice would be refused."""
    first = directory / "rank0.sqlite"
    run([sys.executable, str(SHARED / "tools" / "scale_nsys.py"), str(SOURCE), str(copies), str(first)])
    paths = [first, *(directory / f"rank{rank}.sqlite" for rank in range(1, RANK_COUNT))]
    for rank, path in enumerate(paths[1:], 1):
        shutil.copyfile(first, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {rank}")
    return paths


@contextmanager
def on_one_core() -> Iterator[None]:
    """Everything that this process starts meanwhile stays on that core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def analyzer(*options: str) -> Iterator[Client]:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            with Client(services.start("analyzer", *options).endpoint) as client:
                yield client
        finally:
            services.stop_all()


def imported_s(client: Client, paths: Sequence[Path]) -> float:
    start = time.monotonic()
    client.import_trace(*paths)
    return time.monotonic() - start


def one_by_one_s(paths: Sequence[Path], warm_up: Path) -> float:
    with on_one_core(), analyzer() as client:
        imported_s(client, [warm_up])
        return sum(imported_s(client, [path]) for path in paths)


def together_s(paths: Sequence[Path], warm_up: Path, *options: str) -> float:
    with analyzer(*options) as client:
        imported_s(client, [warm_up])
        return imported_s(client, paths)


def peak_bytes() -> int:
    """Most resident memory of this process so far, mapped files included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def report(paths: Sequence[Path], warm_up: Path) -> None:
    single_s = one_by_one_s(paths, warm_up)
    pool_s = together_s(paths, warm_up, "--import-process-count", str(WORKER_COUNT))
    with LocalCluster(n_workers=WORKER_COUNT, threads_per_worker=1, memory_limit=MEMORY_LIMIT, dashboard_address=":0") as cluster:
        dask_s = together_s(paths, warm_up, "--dask", cluster.scheduler_address)
        with DaskClient(cluster) as client:
            peaks = client.run(peak_bytes).values()
    ideal_s = single_s / WORKER_COUNT
    print(f"{RANK_COUNT} imports, one by one on one core: {single_s:.1f} s; half of it {ideal_s:.1f} s")
    print(f"as one run, by {WORKER_COUNT} processes of the analyzer: {pool_s:.1f} s")
    print(f"as one run, by {WORKER_COUNT} workers of Dask: {dask_s:.1f} s; lost to Dask: {100 * (dask_s / pool_s - 1):.1f} %")
    print(f"ratio {dask_s / ideal_s:.2f} (goal: at most {GOAL_RATIO})")
    print(f"most memory of a worker: {max(peaks) / 1e9:.2f} GB (goal: at most {GOAL_BYTES / 1e9:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=25, help="of the trace in each rank; default: 25")
    parser.add_argument("--directory", type=Path, help="where the large files are made; default: the system's for temporary files")
    options = parser.parse_args()
    if not SOURCE.exists():
        print(f"   skipped: {SOURCE} is not there, nor are the tools beside it")
        return
    with tempfile.TemporaryDirectory(prefix="kn-bench-", dir=options.directory) as directory:
        paths = rank_files(Path(directory), options.copies)
        print(f"{RANK_COUNT} ranks of {paths[0].stat().st_size / 1e6:.0f} MB each")
        report(paths, SOURCE)


if __name__ == "__main__":
    main()
