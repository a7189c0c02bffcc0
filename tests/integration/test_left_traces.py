"""Traces that runs leave on their nodes: fetched and read once, whatever breaks in between, and never in the way of other runs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.core.model import (
    ArtifactStored,
    CommandProfile,
    EventPayload,
    Run,
    RunSpec,
    RunState,
    StateChanged,
    TableQuery,
    TraceStored,
)
from kernalyse.services.core.protobuf import decode
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.integration.analyzer_under_test import (
    AnalyzerProcess,
    add_node,
    connected,
    eventually,
    frame_of_bytes,
    get_run,
    get_table,
    watch_run,
)
from tests.integration.profiler_stand_in import CREATED, ProfilerStandIn, samples, standing_in, started
from tests.unit.ncu_report import launch, report_text
from tests.unit.rank_traces import write_rank

RUN_ID = "profile"
WRITTEN_BYTES = 64 * 1024  # more than a file holds back in memory
READING = "reading the trace"


@pytest.fixture
async def node(private_directories: Path) -> AsyncIterator[ProfilerStandIn]:
    async with standing_in(private_directories) as stand_in:
        yield stand_in


def stored(node: ProfilerStandIn, artifact_name: str, content: bytes) -> ArtifactStored:
    node.artifacts[artifact_name] = content
    return ArtifactStored(artifact_name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), "application/json")


def profile(node: ProfilerStandIn, *payloads: EventPayload, state: RunState = RunState.SUCCEEDED) -> None:
    """A run of a command that has left this and ended."""
    spec = RunSpec(CommandProfile(("python", "train.py"), "kineto"))
    node.runs[RUN_ID] = Run(RUN_ID, node.node.node_id, spec, RunState.QUEUED, CREATED)
    node.journal(RUN_ID, *started()[:2], *payloads, StateChanged(state))


def kineto_trace(directory: Path, rank: int = 0) -> bytes:
    """Of one module that launches gemm and, longer on each further rank, a collective."""
    return write_rank(directory / f"rank{rank}.json", rank).read_bytes()


async def settled(stub: Any, run_id: str = RUN_ID) -> Run:
    """The run when its stream has ended: a first reading on a busy machine takes longer than `eventually` waits."""

    async def is_known() -> bool:
        frame, _ = await get_table(stub, TableQuery("runs", columns=("run_id",)))
        return run_id in frame["run_id"].to_list()

    await eventually(is_known)
    async for _ in watch_run(stub, run_id):
        pass
    return await get_run(stub, run_id)


async def rows(stub: Any, table_name: str, *columns: str) -> list[tuple[Any, ...]]:
    return (await get_table(stub, TableQuery(table_name, (RUN_ID,), columns=columns)))[0].rows()


KERNELS = [(RUN_ID, "gemm", 1, 5_000), (RUN_ID, "ncclDevKernel_AllReduce", 1, 10_000)]


async def kernels(stub: Any) -> list[tuple[Any, ...]]:
    return sorted(await rows(stub, "kernels", "run_id", "kernel_name", "launch_count", "duration_sum_ns"))


@pytest.mark.slow
async def test_a_run_has_the_tables_of_its_trace_until_it_is_deleted_and_who_watches_it_is_told(
    stub: Any, node: ProfilerStandIn, private_directories: Path, tmp_path: Path
) -> None:
    trace = stored(node, "trace.json", kineto_trace(tmp_path))
    profile(node, trace, TraceStored(("trace.json",), "kineto"), state=RunState.FAILED)
    await settled(stub)
    told = [answer async for answer in watch_run(stub, RUN_ID)]
    runs = [decode(answer.run, Run) for answer in told if answer.HasField("run")]
    assert (runs[-1].state, runs[-1].activity) == (RunState.FAILED, "")  # whatever the program came to
    assert "Trace of kineto read: 2 launches of kernels." in runs[-1].notes
    tables = [frame_of_bytes(chunk.arrow_ipc) for answer in told for chunk in answer.tables if chunk.table_name == "log_lines"]
    assert pl.concat(tables)["line"].to_list() == ["Trace of kineto read: 2 launches of kernels."]
    assert await kernels(stub) == KERNELS
    assert await rows(stub, "layers", "layer", "launch_count") == [("nn.Module: Model_0", 2)]
    assert [name for (name,) in await rows(stub, "artifacts", "artifact_name")] == ["trace.json"]
    store = private_directories / "store"
    assert list((store / "traces").glob(f"{RUN_ID}-*"))
    await stub.DeleteRun(messages.DeleteRunRequest(run_id=RUN_ID))
    assert not list((store / "traces").iterdir())
    assert list((store / "arriving").iterdir()) == list((store / "fetched").iterdir()) == []


async def test_a_transfer_that_breaks_off_goes_on_where_it_broke_and_holds_up_no_other_run(
    stub: Any, node: ProfilerStandIn, tmp_path: Path
) -> None:
    trace = stored(node, "trace.json", kineto_trace(tmp_path))
    node.stalls = True
    profile(node, trace, TraceStored(("trace.json",), "kineto"))

    async def has_begun() -> bool:
        return node.requested_offsets == [0]

    await eventually(has_begun)
    node.add_run("other")
    node.journal("other", *started(), samples(0, 0, 20), StateChanged(RunState.SUCCEEDED))
    assert (await settled(stub, "other")).state is RunState.SUCCEEDED
    reading = await get_run(stub, RUN_ID)
    assert (reading.state, reading.activity) == (RunState.SUCCEEDED, READING)
    assert await kernels(stub) == []
    await node.stop()

    async def is_waiting() -> bool:
        return (await get_run(stub, RUN_ID)).activity == "its trace waits for the node"

    await eventually(is_waiting)
    node.stalls = False
    await node.start()
    await settled(stub)
    assert node.requested_offsets == [0, node.chunk_bytes]
    assert await kernels(stub) == KERNELS


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "stopped", "damaged"])
async def test_an_analyzer_that_ends_in_the_middle_goes_on_with_the_bytes_that_are_there(
    private_directories: Path, node: ProfilerStandIn, tmp_path: Path, end: str
) -> None:
    trace = stored(node, "trace.json", kineto_trace(tmp_path) + b" " * WRITTEN_BYTES)
    node.chunk_bytes = WRITTEN_BYTES
    node.stalls = True
    profile(node, trace, TraceStored(("trace.json",), "kineto"))
    analyzer = AnalyzerProcess(private_directories)
    try:
        analyzer.start()
        async with connected(analyzer.endpoint) as stub:
            await add_node(stub, node.endpoint)

            async def has_begun() -> bool:
                return node.requested_offsets == [0]

            await eventually(has_begun)
            left = private_directories / "store" / "fetched" / RUN_ID / "0"

            async def is_written() -> bool:
                return left.exists() and left.stat().st_size == WRITTEN_BYTES

            await eventually(is_written)
        analyzer.stop() if end == "stopped" else analyzer.kill()
        if end == "damaged":
            left.write_bytes(bytes(WRITTEN_BYTES))  # as after a loss of power
        node.stalls = False
        analyzer.start()
        async with connected(analyzer.endpoint) as stub:
            await settled(stub)
            assert await kernels(stub) == KERNELS
        assert node.requested_offsets == ([0, WRITTEN_BYTES, 0] if end == "damaged" else [0, WRITTEN_BYTES])
        assert list((private_directories / "store" / "fetched").iterdir()) == []
        assert node.requested_indexes[-1] > node.events[-1].event_index  # no event came twice
    finally:
        analyzer.stop()


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "unannounced"])
async def test_what_cannot_be_read_is_said_in_the_log_and_the_run_stays_what_it_is(
    stub: Any, node: ProfilerStandIn, tmp_path: Path, damage: str
) -> None:
    content = kineto_trace(tmp_path)
    trace = stored(node, "trace.json", content[:-40] if damage == "cut" else content)
    if damage == "changed":
        node.artifacts["trace.json"] = content.replace(b"gemm", b"gemv")
    if damage == "missing":
        del node.artifacts["trace.json"]
    profile(node, *([] if damage == "unannounced" else [trace]), TraceStored(("trace.json",), "kineto"))
    run = await settled(stub)
    words = {
        "cut": "file trace.json",
        "changed": "bytes with the digest",
        "missing": "artifact",
        "unannounced": "artifact trace.json of run profile: found no such file of the run",
    }
    assert run.state is RunState.SUCCEEDED
    assert run.notes.startswith("The trace could not be read: ")
    assert words[damage] in run.notes
    assert await rows(stub, "log_lines", "level", "source", "line") == [("WARNING", "analyzer", run.notes)]
    assert await kernels(stub) == []


async def test_a_program_that_launched_nothing_is_no_fault(stub: Any, node: ProfilerStandIn) -> None:
    trace = stored(node, "trace.json", b'{"schemaVersion": 1, "traceEvents": []}')
    profile(node, trace, TraceStored(("trace.json",), "kineto"))
    await settled(stub)
    assert await rows(stub, "log_lines", "level", "line") == [("INFO", "Trace of kineto read: nothing was recorded.")]
    assert await kernels(stub) == []


@pytest.mark.slow
async def test_traces_of_several_processes_are_one_without_those_that_cannot_be_read(
    stub: Any, node: ProfilerStandIn, tmp_path: Path
) -> None:
    contents = {f"rank{rank}.json": kineto_trace(tmp_path, rank) for rank in range(3)}
    contents["rank2.json"] = contents["rank2.json"][:-40]
    files = [stored(node, name, content) for name, content in contents.items()]
    profile(node, *files, *(TraceStored((file.artifact_name,), "kineto") for file in files))
    notes = (await settled(stub)).notes
    assert sorted(await rows(stub, "ranks", "rank_index", "communication_ns")) == [(0, 10_000), (1, 20_000)]
    assert notes.startswith("Trace of kineto read, without 1 of 3 files: 4 launches of kernels.\nfile rank2.json: ")
    assert "2 files, read as one trace" in notes


async def test_counters_of_a_trace_are_there_once_before_and_after_the_run_is_written_to_parquet(
    stub: Any, node: ProfilerStandIn, private_directories: Path
) -> None:
    report = stored(node, "report.csv", report_text([launch("gemm", ffma=1e6, bytes=4096)]).encode())
    profile(node, report, TraceStored(("report.csv",), "ncu"))
    await settled(stub)

    async def is_compacted() -> bool:
        return bool(list((private_directories / "store" / "runs").glob(f"{RUN_ID}-*/*.parquet")))

    await eventually(is_compacted)
    counted = await rows(stub, "counters", "metric_name")
    assert len(counted) == len(set(counted)) > 10
    ((name, flop),) = await rows(stub, "roofline", "kernel_name", "flop")
    assert (name, flop) == ("gemm", 2e6)
