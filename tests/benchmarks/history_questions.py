"""A store of a million measurements: how long its histories take, first and afterwards. Goal of the latter: at most 1 s.

python -m tests.benchmarks.history_questions [RUNS] [CONFIGURATIONS]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from kernalyse.services.analyzer.queries.service import TableAnswers
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS, find_table
from kernalyse.services.core.model import Filter, FilterOperator, KernelSelection, KernelSweep, Revision, Run, RunSpec, RunState, TableQuery

GOAL_S = 1.0
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
KERNEL_COUNT = 50


def fill(store: Store, run_count: int, configuration_count: int) -> None:
    """Nightly runs of the same sweep; every seventh configuration has become slower half way."""
    random = np.random.default_rng(0)
    index = np.arange(configuration_count)
    base_ns = 1e4 * (1 + index % 97)
    columns = {
        "configuration_index": index,
        "kernel_name": [f"kernel_{number % KERNEL_COUNT}" for number in index],
        "label": [f"kernel_{number % KERNEL_COUNT} N={number}" for number in index],
        "process_index": np.zeros(configuration_count, dtype=np.int64),
        "flop": base_ns * 100,
        "bytes": base_ns * 10,
    }
    for number in range(run_count):
        run_id, created = f"run-{number:05}", FIRST + timedelta(hours=number)
        slower = np.where((index % 7 == 0) & (number >= run_count // 2), 1.08, 1.0)
        median_ns = base_ns * slower * np.exp(random.normal(0, 0.005, configuration_count))
        rows = pl.DataFrame(columns | {"duration_median_ns": median_ns}).with_columns(
            run_id=pl.lit(run_id),
            event_index=pl.col("configuration_index"),
            duration_median_low_ns=pl.col("duration_median_ns") * 0.998,
            duration_median_high_ns=pl.col("duration_median_ns") * 1.002,
            duration_p95_ns=pl.col("duration_median_ns") * 1.05,
            measured_unix_ns=pl.lit(int(created.timestamp() * 1e9)),
            device_id=pl.lit("cuda:0"),
            backend=pl.lit("PYCUDA"),
            cache_mode=pl.lit("COLD"),
            dtype=pl.lit("float32"),
            category=pl.lit("matmul"),
        )
        directory = store.reserve_rows(run_id)
        directory.mkdir()
        write_frames(directory, {"measurements": MEASUREMENTS.conform(rows.lazy()).collect()})
        spec = RunSpec(KernelSweep((KernelSelection("kernel_0"),)), revision=Revision(f"{number:040x}", False))
        run = Run(run_id, "node-1", spec, RunState.SUCCEEDED, created, created, created, device_id="cuda:0")
        store.add_imported(run, directory, configuration_count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=1000)
    parser.add_argument("configurations", nargs="?", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kn-bench-") as temporary:
        store = Store(Path(temporary))
        try:
            fill(store, options.runs, options.configurations)
            print(f"  {options.runs * options.configurations:,} measurements of {options.runs} runs")
            answers = TableAnswers(store)
            start = time.monotonic()
            answers.answer(find_table("history_series"), None, TableQuery("history_series", limit=25), frozenset())
            print(f"  {'collected, once for all runs':<44} {time.monotonic() - start:6.2f} s")
            questions = {
                "all series": TableQuery("history_series", limit=25),
                "series of one kernel": TableQuery("history_series", filters=(Filter("kernel_name", "kernel_7"),)),
                "one configuration": TableQuery("history", filters=(Filter("label", "kernel_7 N=7"),)),
                "one configuration, by its rate": TableQuery(
                    "history", filters=(Filter("label", "kernel_7 N=7"), Filter("metric", "achieved_flop_per_s"))
                ),
                "changes of all configurations of one kernel": TableQuery(
                    "history", filters=(Filter("kernel_name", "kernel_7"), Filter("verdict", "", FilterOperator.CONTAINS))
                ),
            }
            slowest_s = 0.0
            for title, query in questions.items():
                times = []
                for _ in range(3):
                    start = time.monotonic()
                    found = answers.answer(find_table(query.table_name), None, query, frozenset())
                    times.append(time.monotonic() - start)
                slowest_s = max(slowest_s, min(times))
                print(f"  {title:<44} {min(times):6.2f} s  {found.total_row_count:,} rows")
            start = time.monotonic()
            TableAnswers(store).answer(find_table("history_series"), None, TableQuery("history_series", limit=25), frozenset())
            print(f"  {'the first question after a restart':<44} {time.monotonic() - start:6.2f} s")
            print(f"  slowest question {slowest_s:.2f} s (goal: at most {GOAL_S:.0f})")
        finally:
            store.close()


if __name__ == "__main__":
    main()
