"""A run with --counters from the submission to the tables: the real worker and analyzer, a stand-in for ncu."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.core import protobuf
from kernalyse.services.core.model import KernelSweep, RunEvent, RunSpec, RunState, TableQuery
from kernalyse.v1 import run_pb2
from tests.integration.analyzer_under_test import add_node, connected, eventually, get_run, get_table, serving
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to, payload_names, quick_sweep
from tests.integration.test_counters import stand_in_program
from tests.integration.test_worker import KEPT_BYTES_PER_S, own_kernel, prepared_ceilings

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

REAL_WORKER = (sys.executable, "-P", "-m", "kernalyse.services.profiler.worker")
COUNTING_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("counting_worker.py")))
DURATION_NS = 5000  # of every launch, by the stand-in
TEXT = """extern "C" __global__ void scale(const float* a, float* b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) b[i] = 2.0f * a[i];
}
"""


@pytest.fixture
def ncu(private_directories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = stand_in_program(private_directories)
    monkeypatch.setenv("CUDA_HOME", str(program.parents[1]))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))


@pytest.fixture
def counting_node(private_directories: Path, ncu: None) -> Iterator[ProfilerNode]:
    """Its worker believes that ncu can count on OpenCL devices."""
    kept = ("--ceilings-file", str(prepared_ceilings(private_directories)), "--cache-directory", str(private_directories / "cubins"))
    node = ProfilerNode(private_directories, worker=(*COUNTING_WORKER, *kept))
    yield node
    node.close()


@pytest.fixture
async def stub(private_directories: Path) -> AsyncIterator[Any]:
    (private_directories / "analyzer").mkdir()
    async with serving(private_directories / "analyzer") as analyzer, connected(analyzer.endpoint) as stub:
        yield stub


def counted_sweep(**changes: Any) -> RunSpec:
    spec = quick_sweep(with_counters=True)
    assert isinstance(spec.work, KernelSweep)
    return replace(spec, work=replace(spec.work, **changes))


def warnings_of(events: list[run_pb2.RunEvent]) -> str:
    logs = (event.log_lines for event in events if event.WhichOneof("payload") == "log_lines")
    return "\n".join(line for lines in logs if lines.level == run_pb2.LOG_LEVEL_WARNING for line in lines.lines)


async def collected(calls: Calls, stub: Any, node: ProfilerNode, spec: RunSpec) -> str:
    """The run's id, when the analyzer has all of it."""
    await add_node(stub, node.endpoint)
    run = await calls.finished((await calls.start(spec)).run_id)
    assert run.state is RunState.SUCCEEDED, run.error

    async def is_there() -> bool:
        return (await get_run(stub, run.run_id)).state is RunState.SUCCEEDED

    await eventually(is_there)
    return run.run_id


async def rows(stub: Any, table_name: str, run_id: str) -> pl.DataFrame:
    return (await get_table(stub, TableQuery(table_name, (run_id,))))[0]


@pytest.mark.slow
async def test_counters_come_to_the_tables_under_their_own_names(counting_node: ProfilerNode, stub: Any) -> None:
    counting_node.start()
    async with calls_to(counting_node) as calls:
        run_id = await collected(calls, stub, counting_node, counted_sweep())
        (event,) = [
            protobuf.decode(event, RunEvent) for event in await calls.events(run_id) if event.WhichOneof("payload") == "counters_stored"
        ]
        reports = await rows(stub, "counter_reports", run_id)
        counters = await rows(stub, "counters", run_id)
        work = await rows(stub, "counted_work", run_id)
        artifacts = await rows(stub, "artifacts", run_id)
    assert reports.select("event_index", "artifact_name", "launch_count", "cache_control", "clock_control").rows() == [
        (event.event_index, "counters.csv", 2, "none", "none")
    ]
    assert "counters.csv" in artifacts["artifact_name"].to_list()
    clocks = counters.filter(pl.col("metric_name") == "sm__cycles_elapsed.avg.per_second")
    assert clocks.select("configuration_index", "kernel_name", "grid", "unit", "value").rows() == [
        (0, "saxpy(int, float, const float *, float *)", "4x1x1", "cycle/nsecond", 1.98),
        (1, "saxpy(int, float, const float *, float *)", "8x1x1", "cycle/nsecond", 1.98),
    ]
    columns = ("label", "duration_ns", "sm_clock_hz", "flop", "dtype", "path", "dram_bytes", "l2_bytes", "achieved_occupancy_ratio")
    assert work.select(columns).rows() == [
        ("saxpy N=1024", DURATION_NS, 1.98e9, 2 * 1024, "float32", "fma", 12 * 1024, 32 * 1024, 0.755),
        ("saxpy N=2048", DURATION_NS, 1.98e9, 2 * 2048, "float32", "fma", 12 * 2048, 32 * 2048, 0.755),
    ]
    assert work.select("sm_throughput_ratio", "memory_throughput_ratio").row(0) == (0.1225, 0.88)


@pytest.mark.slow
async def test_a_kernel_without_formulas_gets_its_place_under_the_roofline(counting_node: ProfilerNode, stub: Any) -> None:
    counting_node.start()
    async with calls_to(counting_node) as calls:
        run_id = await collected(calls, stub, counting_node, counted_sweep(kernels=(own_kernel(TEXT),)))
        points = await rows(stub, "roofline", run_id)
        levels = await rows(stub, "counted_roofline", run_id)
        kernels = await rows(stub, "kernels", run_id)
    columns = ("label", "work_source", "flop", "bytes", "dtype", "memory_level", "memory_ceiling_bytes_per_s", "intensity_flop_per_byte")
    assert points.select(columns).rows() == [
        ("scale N=1024", "counters", 2 * 1024, 12 * 1024, "float32", "dram", KEPT_BYTES_PER_S, 1 / 6),
        ("scale N=2048", "counters", 2 * 2048, 12 * 2048, "float32", "dram", KEPT_BYTES_PER_S, 1 / 6),
    ]
    assert levels["memory_level"].to_list() == ["dram", "l2", "l1"] * 2  # the stand-in counts no byte of L1: a level without a rate
    assert levels.filter(pl.col("memory_level") == "l2")["bytes"].to_list() == [32 * 1024, 32 * 2048]
    assert kernels["achieved_flop_per_s_max"][0] == points["achieved_flop_per_s"].max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "words"), [("short", "it has 1 launches where the run profiled 2"), ("half", "is not a complete row")]
)
async def test_a_report_that_does_not_fit_the_run_belongs_to_no_configuration(
    counting_node: ProfilerNode, stub: Any, private_directories: Path, behaviour: str, words: str
) -> None:
    stand_in_program(private_directories, behaviour)
    counting_node.start()
    async with calls_to(counting_node) as calls:
        run_id = await collected(calls, stub, counting_node, counted_sweep())
        counters = await rows(stub, "counters", run_id)
        lines = await rows(stub, "log_lines", run_id)
    assert counters["configuration_index"].unique().to_list() == [None]
    told = lines.filter(pl.col("source") == "analyzer")["line"].to_list()
    assert any(words in line for line in told), told


async def test_refused_counters_leave_the_timings_and_a_run_that_succeeded(counting_node: ProfilerNode, private_directories: Path) -> None:
    stand_in_program(private_directories, "permission")
    counting_node.start()
    async with calls_to(counting_node) as calls:
        run = await calls.finished((await calls.start(counted_sweep())).run_id)
        events = await calls.events(run.run_id)
    assert run.state is RunState.SUCCEEDED
    assert payload_names(events).count("measurement") == 2
    assert "counters_stored" not in payload_names(events)
    assert "ERR_NVGPUCTRPERM" in warnings_of(events)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in warnings_of(events)


@pytest.mark.slow
async def test_a_device_without_counters_is_told_before_anything_is_measured(private_directories: Path, ncu: None) -> None:
    node = ProfilerNode(private_directories, worker=(*REAL_WORKER, "--ceilings-file", str(prepared_ceilings(private_directories))))
    node.start()
    try:
        async with calls_to(node) as calls:
            run = await calls.finished((await calls.start(counted_sweep())).run_id)
            events = await calls.events(run.run_id)
    finally:
        node.close()
    assert run.state is RunState.SUCCEEDED
    names = payload_names(events)
    before = events[: names.index("configuration")]
    assert "No counters, timings alone: hardware counters: found opencl:" in warnings_of(before)
    assert "Choose a device cuda:…, or leave out --counters." in warnings_of(before)
    assert names.count("measurement") == 2
    assert "counters_stored" not in names
