"""A store of 100,000 runs, 100 of them real sweeps: lists, filters, one history, and a backup beside `cp -r`.

python -m tests.benchmarks.many_runs [--runs 100000] [--real 100] [--postgresql]

The others are written by the store's own writer: nightly runs of a hundred sweeps of four configurations.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.channel import open_channel
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.store.upkeep import StorePlace, backup
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS
from kernalyse.services.core.model import (
    Filter,
    KernelSelection,
    KernelSweep,
    MeasuringOptions,
    Run,
    RunSpec,
    RunState,
    SortKey,
    TableQuery,
)
from kernalyse.services.core.protobuf import encode
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from tests.benchmarks.warm_tables import timed
from tests.integration.analyzer_under_test import AnalyzerProcess
from tests.postgresql import running_postgresql
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses

RUN_COUNT: Final = 100_000
REAL_COUNT: Final = 100
SWEEP_COUNT: Final = 100
CONFIGURATION_COUNT: Final = 4
GOAL_MS: Final = 300.0
GOAL_BACKUP_RATIO: Final = 2.0  # of the time of cp -r
REPEATS: Final = 5
FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)


def fill(directory: Path, run_count: int, catalogue: str) -> None:
    """Write the runs, the oldest first."""
    random = np.random.default_rng(0)
    index = np.arange(CONFIGURATION_COUNT)
    store = Store(directory, catalogue)
    try:
        for number in range(run_count):
            sweep, run_id, created = number % SWEEP_COUNT, f"run-{number:07}", FIRST + timedelta(minutes=number)
            median_ns = 1e4 * (1 + index) * np.exp(random.normal(0, 0.005, CONFIGURATION_COUNT))
            rows = pl.DataFrame(
                {
                    "run_id": [run_id] * CONFIGURATION_COUNT,
                    "event_index": index,
                    "configuration_index": index,
                    "kernel_name": [f"kernel_{sweep}"] * CONFIGURATION_COUNT,
                    "label": [f"kernel_{sweep} N={place}" for place in index],
                    "duration_median_ns": median_ns,
                    "duration_median_low_ns": median_ns * 0.998,
                    "duration_median_high_ns": median_ns * 1.002,
                    "measured_unix_ns": [int(created.timestamp() * 1e9)] * CONFIGURATION_COUNT,
                    "device_id": ["cuda:0"] * CONFIGURATION_COUNT,
                    "backend": ["PYCUDA"] * CONFIGURATION_COUNT,
                    "cache_mode": ["COLD"] * CONFIGURATION_COUNT,
                    "dtype": ["float32"] * CONFIGURATION_COUNT,
                }
            )
            place = store.reserve_rows(run_id)
            place.mkdir()
            write_frames(place, {"measurements": MEASUREMENTS.conform(rows.lazy()).collect()})
            spec = RunSpec(KernelSweep((KernelSelection(f"kernel_{sweep}"),)), title=f"sweep {sweep}")
            run = Run(run_id, "node-1", spec, RunState.SUCCEEDED, created, created, created, device_id="cuda:0")
            store.add_imported(run, place, CONFIGURATION_COUNT)
    finally:
        store.close()


def measure_real(directory: Path, stub: Any, count: int) -> None:
    """Have a profiler of this machine measure this many sweeps."""
    services = ServiceProcesses(directory)
    try:
        profiler = services.start("profiler")
        stub.AddNode(messages.AddNodeRequest(address=profiler.address, token=profiler.token))
        node_id = next(node.node.node_id for node in stub.ListNodes(messages.ListNodesRequest()).nodes if node.address == profiler.address)
        options = MeasuringOptions(min_duration_ns=1, max_duration_ns=20_000_000)
        spec = encode(RunSpec(KernelSweep((KernelSelection("saxpy"),), measuring=options)))
        started = [stub.StartRun(messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=spec)).run.run_id for _ in range(count)]
        for run_id in started:
            while not stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id=run_id)).run.HasField("end_time"):
                time.sleep(0.2)
    finally:
        services.stop_all()


def show(title: str, ask: Callable[[], object]) -> float:
    """Print how long the first answer takes and the median of the next ones; return the latter in ms."""
    times_ms = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        ask()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    then_ms = median(times_ms[1:])
    print(f"  {title:<36} {times_ms[0]:8.0f} ms {then_ms:8.0f} ms", flush=True)
    return then_ms


def ask_questions(stub: Any) -> None:
    """Print what lists, filters and one history take."""
    slow = Filter("title", "sweep 17")
    queries = {
        "table runs, newest 25": TableQuery("runs", limit=25, order_by=(SortKey("create_unix_ns", descending=True),)),
        "table runs, one title": TableQuery("runs", filters=(slow,), limit=25),
        "history of one series": TableQuery("history", filters=(Filter("label", "kernel_17 N=3"),)),
    }
    print(f"  {'':<36} {'first':>11} {'then':>11}")
    slowest_ms = show("ListRuns, newest 100", lambda: stub.ListRuns(messages.AnalyzerServiceListRunsRequest(page_size=100)))
    for title, query in queries.items():
        request = encode(query)
        slowest_ms = max(slowest_ms, show(title, lambda request=request: timed(stub, request)))  # type: ignore[misc]
    print(f"  slowest {slowest_ms:.0f} ms (goal {GOAL_MS:.0f})")


def compare_backup(store: Path, place: Path, catalogue: str) -> None:
    """Print how long a backup takes beside a copy of the same files; both are on the disk at the end."""
    begin = time.monotonic()
    subprocess.run(["cp", "-r", str(store), str(place / "copy")], check=True)
    os.sync()
    copy_s = time.monotonic() - begin
    shutil.rmtree(place / "copy")
    begin = time.monotonic()
    backup(StorePlace(store, catalogue), place / "backup", "benchmark")
    backup_s = time.monotonic() - begin
    print(f"  backup {backup_s:.1f} s, cp -r and sync {copy_s:.1f} s: ratio {backup_s / copy_s:.2f} (goal {GOAL_BACKUP_RATIO:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUN_COUNT)
    parser.add_argument("--real", type=int, default=REAL_COUNT)
    parser.add_argument("--postgresql", action="store_true", help="the catalogue on a server of its own")
    arguments = parser.parse_args()
    with private_directory() as private, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kn-bench-")))
        catalogue = stack.enter_context(running_postgresql()).new_database() if arguments.postgresql else ""
        begin = time.monotonic()
        fill(directory / "store", arguments.runs - arguments.real, catalogue)
        print(f"{arguments.runs - arguments.real} runs written in {time.monotonic() - begin:.0f} s", flush=True)
        process = AnalyzerProcess(directory, settings={"CATALOGUE": catalogue})
        process.start()
        try:
            with open_channel(process.endpoint) as channel:
                stub = stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
                measure_real(private, stub, arguments.real)
                ask_questions(stub)
        finally:
            process.stop()
        compare_backup(directory / "store", directory, catalogue)


if __name__ == "__main__":
    main()
