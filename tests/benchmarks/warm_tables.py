"""Questions about a large run that is stored already: `python -m tests.benchmarks.warm_tables [COPIES]`.

Imports h100x2_mfu_before.sqlite in so many copies (2500 are 10 M kernels) into a store of its own, then asks the analyzer for
every table of the trace twice over gRPC, at most 10^4 rows each, and for tiles of the timeline. Printed are the first time,
which may have to work the answer out, and the second one, which the goals are about.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

import polars as pl

from kernalyse.channel import open_channel
from kernalyse.client import Client
from kernalyse.services.analyzer.queries.registry import DERIVED, is_of_traces
from kernalyse.services.analyzer.tables.traces import TRACE_TABLES
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from kernalyse.v1 import table_pb2
from tests.benchmarks.trace_reading import LARGE_COPIES, SHARED, SOURCE, run
from tests.integration.analyzer_under_test import AnalyzerProcess

COPIES = 2500
ROW_COUNT = 10_000
PIXEL_COUNT = 1500
TILE_LEVELS = 8
TILES_PER_LEVEL = 6
WARM_GOAL_S = 0.3
TILE_GOAL_S = 0.15
IMPORT_MAX_BYTES = 8 * 2**30

Question = messages.GetTableRequest


def questions() -> Iterator[tuple[str, Question]]:
    for name in [*(name for name in DERIVED if is_of_traces(name) and name != "timeline"), *(table.table_name for table in TRACE_TABLES)]:
        yield name, Question(table_name=name, limit=ROW_COUNT)
    longest_first = table_pb2.SortKey(column="duration_ns", descending=True)
    for name in ("kernel_launches", "api_calls", "ranges"):
        yield f"{name}, longest first", Question(table_name=name, limit=ROW_COUNT, order_by=[longest_first])
    yield "kernel_launches, far on", Question(table_name="kernel_launches", offset=5_000_000, limit=ROW_COUNT)
    over = table_pb2.Filter(column="duration_ns", operator=table_pb2.FILTER_OPERATOR_GREATER, value="2000000")
    yield "kernel_launches, over 2 ms", Question(table_name="kernel_launches", limit=ROW_COUNT, filters=[over])
    syncs = table_pb2.Filter(column="reason", value="sync")
    yield "gaps, of sync", Question(table_name="gaps", limit=ROW_COUNT, filters=[syncs])
    by_start = table_pb2.SortKey(column="start_ns")
    yield "gaps, by start", Question(table_name="gaps", limit=ROW_COUNT, order_by=[by_start])


@contextmanager
def analyzer(directory: Path) -> Iterator[AnalyzerProcess]:
    os.environ["KERNALYSE_ANALYZER_IMPORT_MAX_BYTES"] = str(IMPORT_MAX_BYTES)
    process = AnalyzerProcess(directory)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def timed(stub: stubs.AnalyzerServiceStub, question: Question) -> tuple[float, int]:
    """Seconds until the last row was there, and bytes of rows."""
    start = time.monotonic()
    size = sum(len(answer.chunk.arrow_ipc) for answer in stub.GetTable(question))
    return time.monotonic() - start, size


def ask(process: AnalyzerProcess, run_id: str) -> None:
    with open_channel(process.endpoint) as channel:
        stub = stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        slowest_s = 0.0
        print(f"  {'at most 10^4 rows of':<32} {'first':>8} {'second':>8}")
        for title, question in questions():
            question.run_ids.append(run_id)
            first_s, _ = timed(stub, question)
            second_s, size = timed(stub, question)
            slowest_s = max(slowest_s, second_s)
            print(f"  {title:<32} {first_s:6.2f} s {second_s * 1e3:5.0f} ms  {size / 1e6:5.2f} MB")
        print(f"  slowest second answer {slowest_s * 1e3:.0f} ms (goal: at most {WARM_GOAL_S * 1e3:.0f})")
        draw(stub, run_id)


def draw(stub: stubs.AnalyzerServiceStub, run_id: str) -> None:
    """Tiles of windows of all lengths, each asked for once."""
    everything = Question(run_ids=[run_id], table_name="timeline", pixel_count=PIXEL_COUNT)
    first_s, _ = timed(stub, everything)
    again_s, size = timed(stub, everything)
    print(f"  timeline, {PIXEL_COUNT} pixels: first {first_s:.1f} s; all of it {again_s * 1e3:.0f} ms, {size / 1e6:.2f} MB")
    answers = [pl.read_ipc_stream(answer.chunk.arrow_ipc) for answer in stub.GetTable(everything)]
    bounds = pl.concat(answers).select(first="start_ns", last=pl.col("start_ns") + pl.col("duration_ns"))
    first_ns, last_ns = bounds["first"].min(), bounds["last"].max()
    assert isinstance(first_ns, int)
    assert isinstance(last_ns, int)
    random, times = Random(1), []
    for level in range(1, TILE_LEVELS):
        length_ns = (last_ns - first_ns) // 8**level
        for _ in range(TILES_PER_LEVEL):
            start_ns = random.randrange(first_ns, last_ns - length_ns)
            window = Question(window_start_ns=start_ns, window_end_ns=start_ns + length_ns)
            window.MergeFrom(everything)
            times.append(timed(stub, window)[0])
    print(f"  {len(times)} windows of an eighth to {8 ** (TILE_LEVELS - 1)}th: median {median(times) * 1e3:.0f} ms, slowest ", end="")
    print(f"{max(times) * 1e3:.0f} ms (goal: at most {TILE_GOAL_S * 1e3:.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("copies", nargs="?", type=int, default=COPIES, help=f"of the trace; default: {COPIES}")
    parser.add_argument(
        "--directory", type=Path, help="where the large file is made, and found again; default: a new one, deleted afterwards"
    )
    parser.add_argument("--store", type=Path, help="where the store is made, and found again; default: a new one, deleted afterwards")
    options = parser.parse_args()
    if not SOURCE.exists():
        print(f"   skipped: {SOURCE} is not there, nor are the tools beside it")
        return
    with tempfile.TemporaryDirectory(prefix="kn-bench-") as temporary:
        directory, store = options.directory or Path(temporary), options.store or Path(temporary)
        path = directory / f"traces_{options.copies}.sqlite"
        if not path.exists():
            short = ["--min-range-ns", "100000"] if options.copies >= LARGE_COPIES else []
            run(["python", str(SHARED / "tools" / "scale_nsys.py"), str(SOURCE), str(options.copies), str(path), *short])
        for name in ("config", "data", "run"):
            (store / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ |= {
            f"XDG_{kind}": str(store / name) for kind, name in (("CONFIG_HOME", "config"), ("DATA_HOME", "data"), ("RUNTIME_DIR", "run"))
        }
        with analyzer(store) as process, Client(process.endpoint) as client:
            start = time.monotonic()
            imported = client.import_trace(path)
            known = " (it was there)" if imported.is_known else ""
            print(f"{options.copies} copies, {path.stat().st_size / 1e6:.0f} MB: imported in {time.monotonic() - start:.1f} s{known}")
            ask(process, imported.run.run_id)


if __name__ == "__main__":
    main()
