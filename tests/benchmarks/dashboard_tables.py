"""The Kernels page over a full store: `python -m tests.benchmarks.dashboard_tables [MEASUREMENTS] [RUNS]`.

Fills a store of its own with a million measurements (configurations and measurements of sweeps, with ceilings of a real
product), starts the analyzer on it and asks over gRPC what the page asks: pages of the table, sorted, searched, filtered and
far on, and what its charts stand on. Printed are the first answer and the median of the next five; the goal is about both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.channel import open_channel
from kernalyse.services.analyzer.store.parquet import write_frames
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, MEASUREMENTS
from kernalyse.services.core.model import Filter, FilterOperator, ImportedTrace, Run, RunSpec, RunState, SortKey, TableQuery
from kernalyse.services.core.protobuf import encode
from kernalyse.services.ui.charts.metrics import ANNOUNCED, FAILED, PLACED
from kernalyse.services.ui.components.kernel_charts import MAX_CHARTED_ROWS
from kernalyse.services.ui.data.filters import table_query
from kernalyse.services.ui.data.table_columns import COLUMNS
from kernalyse.services.ui.view import TableView, View
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from tests.benchmarks.warm_tables import timed
from tests.integration.analyzer_under_test import AnalyzerProcess
from tests.private_directory import private_directory

MEASUREMENT_COUNT: Final = 1_000_000
RUN_COUNT: Final = 500
GOAL_S: Final = 1.0
REPEATS: Final = 5
KERNELS_OF_ALL: Final = table_query("kernels", View(), TableView())
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
KERNEL_NAMES: Final = tuple(f"{kind}_{tile}" for kind in ("matmul", "softmax", "layernorm", "saxpy") for tile in range(25))
DTYPES: Final = ("float32", "float16", "bfloat16")


def run_rows(number: int, count: int) -> dict[str, pl.DataFrame]:
    """Configurations and measurements of one run."""
    random = np.random.default_rng(number)
    names = random.choice(KERNEL_NAMES, count)
    sizes = random.integers(1, 4096, count) * 64
    medians = random.lognormal(10, 2, count)
    index = np.arange(count)
    shared = pl.DataFrame(
        {
            "run_id": np.full(count, run_id(number)),
            "configuration_index": index,
            "kernel_name": names,
            "label": [f"{name} N={size}" for name, size in zip(names, sizes, strict=True)],
            "parameters": [f'{{"N": {size}}}' for size in sizes],
            "category": [name.partition("_")[0] for name in names],
            "dtype": random.choice(DTYPES, count),
            "block": np.full(count, "256x1x1"),
            "grid": np.full(count, "64x1x1"),
            "macros": np.full(count, "{}"),
            "flop": sizes * 2e6,
            "bytes": sizes * 12e4,
        }
    )
    measured = shared.with_columns(
        event_index=count + index,
        device_id=pl.lit("cuda:0"),
        backend=pl.lit("PYCUDA"),
        sample_count=pl.lit(100),
        verification_state=pl.lit("PASSED"),
        cache_mode=pl.lit("COLD"),
        noise_ratio=random.random(count) / 20,
        measured_unix_ns=pl.lit(int(created(number).timestamp() * 1e9)) + index,
        **{
            name: medians * factor
            for name, factor in (
                ("duration_median_ns", 1.0),
                ("duration_median_low_ns", 0.99),
                ("duration_median_high_ns", 1.01),
                ("duration_min_ns", 0.9),
                ("duration_mean_ns", 1.02),
                ("duration_max_ns", 2.0),
                ("duration_p95_ns", 1.2),
                ("duration_p99_ns", 1.4),
            )
        },
    )
    return {
        "configurations": _full(CONFIGURATIONS, shared.with_columns(event_index=index)),
        "measurements": _full(MEASUREMENTS, measured),
    }


def run_id(number: int) -> str:
    return f"imported-{number:08}"


def created(number: int) -> datetime:
    return BEGIN + timedelta(minutes=number)


def _full(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
    return table.conform(rows.lazy()).collect()


def fill(directory: Path, measurement_count: int, run_count: int) -> None:
    store = Store(directory)
    each = measurement_count // run_count
    try:
        for number in range(run_count):
            arrived = store.reserve_rows(run_id(number))
            arrived.mkdir()
            write_frames(arrived, run_rows(number, each))
            spec = RunSpec(ImportedTrace(f"sweep {number}", "results", ""), title=f"sweep {number}")
            run = Run(run_id(number), "", spec, RunState.SUCCEEDED, created(number), device_id="cuda:0", completed_configuration_count=each)
            store.add_imported(run, arrived, 2 * each)
    finally:
        store.close()


def questions(measurement_count: int) -> Iterator[tuple[str, TableQuery]]:
    """What the page asks, of all runs and of the newest."""
    shown = tuple(column.name for column in COLUMNS["measurements"] if column.is_default)
    every = tuple(column.name for column in COLUMNS["measurements"])

    def query(view: View | None = None, columns: tuple[str, ...] = shown, **page: Any) -> TableQuery:
        return table_query("measurements", view or View(), TableView(**page), columns)

    yield "first page", query()
    yield "a page far on", query(row=measurement_count * 9 // 10)
    yield "slowest first", query(sort="duration_median_ns", descending=True)
    yield "by name, far on", query(sort="label", row=measurement_count // 2)
    yield "search matmul_1", query(View(kernel="matmul_1"))
    yield "search, fastest first", query(View(kernel="MATMUL", dtype="float16"), sort="duration_median_ns")
    yield "all columns", query(columns=every)
    yield "kernels of all runs", KERNELS_OF_ALL
    runs = (run_id(0),)
    for name, columns in (("configurations", ANNOUNCED), ("roofline", PLACED), ("failures", FAILED)):
        yield f"charts of one run: {name}", TableQuery(name, runs, limit=MAX_CHARTED_ROWS, columns=columns)
    chosen = Filter("configuration_index", "7", FilterOperator.EQUAL)
    yield "a chosen row", TableQuery("roofline", runs, (chosen,), limit=1)
    yield "its samples", TableQuery("samples", runs, (chosen,), (SortKey("sample_index"),), limit=20_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="?", type=int, default=MEASUREMENT_COUNT, help=f"default: {MEASUREMENT_COUNT}")
    parser.add_argument("runs", nargs="?", type=int, default=RUN_COUNT, help=f"that they are spread over; default: {RUN_COUNT}")
    options = parser.parse_args()
    with private_directory(), tempfile.TemporaryDirectory(prefix="kn-bench-") as temporary:
        directory = Path(temporary)
        start = time.monotonic()
        fill(directory / "store", options.measurements, options.runs)
        print(f"{options.measurements} measurements of {options.runs} runs, stored in {time.monotonic() - start:.0f} s")
        process = AnalyzerProcess(directory)
        process.start()
        try:
            with open_channel(process.endpoint) as channel:
                stub = stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
                once_s, _ = timed(stub, encode(KERNELS_OF_ALL))
                print(f"  kernels of all runs, worked out once: {once_s * 1e3:.0f} ms")
                slowest_s = 0.0
                print(f"  {'':<34} {'first':>9} {'then':>9}")
                for title, query in questions(options.measurements):
                    request = encode(query)
                    first_s, size = timed(stub, request)
                    again_s = median(timed(stub, request)[0] for _ in range(REPEATS))
                    slowest_s = max(slowest_s, first_s, again_s)
                    print(f"  {title:<34} {first_s * 1e3:6.0f} ms {again_s * 1e3:6.0f} ms  {size / 1e6:5.2f} MB")
                print(f"  slowest answer {slowest_s * 1e3:.0f} ms (goal: at most {GOAL_S * 1e3:.0f})")
        finally:
            process.stop()


if __name__ == "__main__":
    main()
