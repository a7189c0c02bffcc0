"""The analyzer service over gRPC: runs, tables, watching, hardware, forwarding."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import polars as pl
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import (
    ArtifactNotFoundError,
    DeviceNotFoundError,
    InvalidRequestError,
    NodeExistsError,
    NodeNotFoundError,
    NodeUnreachableError,
    RunNotFinishedError,
    RunNotFoundError,
    ShuttingDownError,
    TableNotFoundError,
    UnauthenticatedError,
    UnknownKernelError,
)
from kernalyse.services.core.model import (
    ArtifactStored,
    Ceiling,
    CeilingsMeasured,
    ConfigurationFailed,
    Filter,
    FilterOperator,
    KernelSelection,
    KernelSweep,
    LogLevel,
    LogLines,
    RunError,
    RunSpec,
    RunState,
    SortKey,
    StateChanged,
    TableQuery,
    Telemetry,
    Thresholds,
    VerificationState,
)
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.integration.analyzer_under_test import (
    AnalyzerHere,
    AnalyzerProcess,
    add_node,
    connected,
    eventually,
    frame_of_bytes,
    get_run,
    get_table,
    in_state,
    watch_run,
)
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, standing_in, started

NODE = "node-1"


@pytest.fixture
async def node(private_directories: Path) -> AsyncIterator[ProfilerStandIn]:
    async with standing_in(private_directories) as stand_in:
        yield stand_in


def journal_whole_run(node: ProfilerStandIn, run_id: str = "aaaa-1") -> None:
    node.add_run(run_id)
    node.journal(
        run_id,
        *started(),
        configuration(0),
        samples(0, 0, 10),
        samples(0, 10, 10),
        measurement(0, duration_ns=5000),
        configuration(1, kernel_name="copy", flop=0),
        samples(1, 0, 5),
        measurement(1, duration_ns=10_000, state=VerificationState.FAILED),
        configuration(2),
        ConfigurationFailed(2, RunError("FAILED_PRECONDITION", "COMPILE_FAILED", "line 3: expected ;")),
        LogLines(LogLevel.WARNING, "compiler", ("one", "two")),
        Telemetry(5, "cuda:0", utilization_ratio=0.5, throttle_reasons=("power", "heat")),
        ArtifactStored("saxpy.cl", "sha256:0", 12, "text/plain"),
        StateChanged(RunState.SUCCEEDED),
    )


async def test_a_finished_run_is_served_in_all_its_tables(stub: Any, node: ProfilerStandIn) -> None:
    journal_whole_run(node)
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    tables = {
        name: (await get_table(stub, TableQuery(name, ("last",))))[0]
        for name in (
            "configurations",
            "samples",
            "measurements",
            "roofline",
            "kernels",
            "ceilings",
            "telemetry",
            "failures",
            "artifacts",
            "runs",
        )
    }
    assert tables["samples"].filter(pl.col("configuration_index") == 0)["duration_ns"].to_list() == [1000.0 + n for n in range(20)]
    assert tables["measurements"].select("label", "device_id", "backend", "verification_state").rows() == [
        ("saxpy N=1000", "cuda:0", "PYCUDA", "PASSED"),
        ("copy N=1001", "cuda:0", "PYCUDA", "FAILED"),
    ]
    assert tables["failures"].select("label", "reason").rows() == [("saxpy N=1002", "COMPILE_FAILED")]
    assert tables["telemetry"]["throttle_reasons"].to_list() == ["power,heat"]
    assert tables["artifacts"]["artifact_name"].to_list() == ["saxpy.cl"]
    assert set(tables["ceilings"]["source"]) == {"datasheet"}
    saxpy, copy = tables["roofline"].rows(named=True)
    assert saxpy["memory_ceiling_bytes_per_s"] == 4.8e12
    assert saxpy["efficiency_ratio"] == pytest.approx((12e6 / 5e-6) / 4.8e12)
    assert (copy["bound"], copy["intensity_flop_per_byte"]) == ("memory", None)
    assert copy["efficiency_ratio"] == pytest.approx((12e6 / 1e-5) / 4.8e12)
    assert tables["kernels"].select("kernel_name", "configuration_count", "failed_configuration_count", "sample_count").rows() == [
        ("saxpy", 2, 1, 20),
        ("copy", 1, 0, 20),
    ]
    assert tables["kernels"]["verification_failed_count"].to_list() == [0, 1]
    assert tables["runs"].select("title", "state", "total_configuration_count").rows() == [("saxpy", "SUCCEEDED", 3)]


async def test_a_table_is_filtered_sorted_cut_and_counted(stub: Any, node: ProfilerStandIn) -> None:
    journal_whole_run(node)
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    query = TableQuery(
        "samples",
        ("aaaa",),
        filters=(Filter("duration_ns", "1004", FilterOperator.GREATER_EQUAL), Filter("configuration_index", "0")),
        order_by=(SortKey("sample_index", descending=True),),
        offset=1,
        limit=3,
        columns=("sample_index", "duration_ns"),
    )
    frame, total_row_count = await get_table(stub, query)
    assert frame.rows() == [(18, 1018.0), (17, 1017.0), (16, 1016.0)]
    assert total_row_count == 16
    named, _ = await get_table(stub, TableQuery("measurements", filters=(Filter("label", "SAXPY", FilterOperator.CONTAINS),)))
    assert named["kernel_name"].to_list() == ["saxpy"]


@pytest.mark.parametrize(
    ("query", "error", "text"),
    [
        (TableQuery("nonsense"), TableNotFoundError, "measurements"),
        (TableQuery("samples", ("zzz",)), RunNotFoundError, "zzz"),
        (TableQuery("samples", columns=("speed",)), InvalidRequestError, "duration_ns"),
        (TableQuery("samples", order_by=(SortKey("speed"),)), InvalidRequestError, "duration_ns"),
        (TableQuery("samples", filters=(Filter("duration_ns", "fast"),)), InvalidRequestError, "a number"),
        (TableQuery("samples", filters=(Filter("sample_index", str(2**70)),)), InvalidRequestError, "a whole number"),
        (TableQuery("samples", filters=(Filter("sample_index", "1", FilterOperator.CONTAINS),)), InvalidRequestError, "a text column"),
    ],
)
async def test_a_query_that_cannot_be_answered_says_what_could(stub: Any, query: TableQuery, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await get_table(stub, query)


async def test_a_run_is_named_by_its_beginning_or_as_last(stub: Any, node: ProfilerStandIn) -> None:
    for number, run_id in enumerate(("abcd-1", "abcd-2", "abxx-3")):
        node.add_run(run_id, created_after_s=number)
        node.journal(run_id, StateChanged(RunState.QUEUED))
    await in_state(stub, "abxx-3", RunState.QUEUED)
    assert (await get_run(stub, "last")).run_id == "abxx-3"
    assert (await get_run(stub, "abx")).run_id == "abxx-3"
    with pytest.raises(RunNotFoundError, match="abcd-2, abcd-1"):
        await get_run(stub, "abcd")
    with pytest.raises(RunNotFoundError):
        await get_run(stub, "")
    with pytest.raises(RunNotFoundError):
        await get_run(stub, "%")
    first = await stub.ListRuns(messages.AnalyzerServiceListRunsRequest(page_size=2))
    second = await stub.ListRuns(messages.AnalyzerServiceListRunsRequest(page_size=2, page_token=first.next_page_token))
    assert [run.run_id for run in (*first.runs, *second.runs)] == ["abxx-3", "abcd-2", "abcd-1"]
    assert second.next_page_token == ""
    with translated_errors(), pytest.raises(Exception, match="page_token"):
        await stub.ListRuns(messages.AnalyzerServiceListRunsRequest(page_token="nonsense"))


async def test_tags_and_notes_stay_with_the_run(stub: Any, node: ProfilerStandIn) -> None:
    journal_whole_run(node)
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    await stub.UpdateRun(messages.UpdateRunRequest(run_id="last", tags=["a", "b"], notes="why"))
    run = await get_run(stub, "aaaa-1")
    assert (run.tags, run.notes) == (("a", "b"), "why")


async def test_only_a_final_run_is_deleted_and_then_it_is_gone(stub: Any, analyzer: AnalyzerHere, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), samples(0, 0, 5))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    with pytest.raises(RunNotFinishedError), translated_errors():
        await stub.DeleteRun(messages.DeleteRunRequest(run_id="aaaa-1"))
    node.journal("aaaa-1", StateChanged(RunState.CANCELLED))
    await in_state(stub, "aaaa-1", RunState.CANCELLED)
    await stub.DeleteRun(messages.DeleteRunRequest(run_id="aaaa-1"))
    with pytest.raises(RunNotFoundError):
        await get_run(stub, "aaaa-1")
    assert (await get_table(stub, TableQuery("samples")))[1] == 0
    # Compaction may be writing files at this moment; it discards them as soon as it sees that the run is gone.
    await eventually(lambda: _true(not list((analyzer.directory / "store" / "runs").glob("aaaa-1-*"))))


# ---------------------------------------------------------------- watching


async def test_watching_shows_rows_as_they_arrive_and_ends_with_the_run(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started())
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    received: list[Any] = []

    async def watch() -> None:
        async for answer in watch_run(stub, "last"):
            received.append(answer)

    watching = asyncio.create_task(watch())
    await eventually(lambda: _true(bool(received)))
    node.journal("aaaa-1", configuration(0), samples(0, 0, 7), measurement(0))
    await eventually(lambda: _true("roofline" in _names(received)))
    node.journal("aaaa-1", StateChanged(RunState.SUCCEEDED))
    await asyncio.wait_for(watching, 90)
    assert _rows(received, "samples")["sample_index"].to_list() == list(range(7))
    assert _rows(received, "roofline")["bound"].to_list() == ["memory"]
    assert received[-1].run.state == protobuf.encode(await get_run(stub, "last")).state
    assert all(frame["event_index"].null_count() == 0 for frame in (_rows(received, name) for name in _names(received)))


async def test_a_watch_resumed_anywhere_has_neither_gap_nor_repeat(stub: Any, node: ProfilerStandIn) -> None:
    """Broken off after each response in turn, first while the run goes on, then from the store."""
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    received: list[Any] = []
    next_event_index = 0

    async def journal() -> None:
        for first in range(0, 400, 10):
            node.journal("aaaa-1", samples(0, first, 10))
            await asyncio.sleep(0.005)
        node.journal("aaaa-1", measurement(0), StateChanged(RunState.SUCCEEDED))

    writing = asyncio.create_task(journal())
    is_over = False
    while not is_over:
        stream = watch_run(stub, "aaaa-1", next_event_index)
        is_over = True
        async for answer in stream:
            received.append(answer)
            next_event_index = answer.next_event_index
            if answer.tables:
                is_over = False
                break
        await stream.aclose()  # type: ignore[attr-defined]
    await writing
    assert _rows(received, "samples")["sample_index"].to_list() == list(range(400))
    assert _rows(received, "measurements").height == 1
    from_store = [answer async for answer in watch_run(stub, "aaaa-1", 0)]
    assert _rows(from_store, "samples").equals(_rows(received, "samples"))
    assert _rows(from_store, "roofline").equals(_rows(received, "roofline"))
    assert [answer async for answer in watch_run(stub, "aaaa-1", next_event_index)][-1].tables == []


@pytest.mark.slow
async def test_a_stalled_watcher_holds_nobody_up_and_misses_nothing(stub: Any, analyzer: AnalyzerHere, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0))
    await in_state(stub, "aaaa-1", RunState.RUNNING)
    async with connected(analyzer.endpoint) as other:
        stalled = watch_run(other, "aaaa-1")
        first = await anext(stalled)
        watching = asyncio.create_task(_collected(watch_run(stub, "aaaa-1")))
        batch_count = 500
        for number in range(batch_count):
            node.journal("aaaa-1", samples(0, number * 4000, 4000))
            await asyncio.sleep(0)
        node.journal("aaaa-1", StateChanged(RunState.SUCCEEDED))
        received = await asyncio.wait_for(watching, 90)
        assert _rows(received, "samples").height == batch_count * 4000
        late = [first, *[answer async for answer in stalled]]
    assert _rows(late, "samples")["sample_index"].to_list() == list(range(batch_count * 4000))


async def test_watching_nodes_begins_with_everything_and_goes_on_with_changes(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", StateChanged(RunState.QUEUED))
    await in_state(stub, "aaaa-1", RunState.QUEUED)
    stream = stub.WatchNodes(messages.WatchNodesRequest())
    answers = aiter(stream)
    first = await anext(answers)
    assert [(status.address, status.node.node_id) for status in first.nodes] == [(node.address, NODE)]
    assert [run.run_id for run in first.runs] == ["aaaa-1"]
    node.journal("aaaa-1", StateChanged(RunState.RUNNING))
    assert [run.state for run in (await anext(answers)).runs] == [protobuf.encode(await get_run(stub, "last")).state]
    await node.stop()
    answer = await anext(answers)
    lost = answer.nodes[0]
    assert lost.health == messages.NODE_HEALTH_UNREACHABLE
    assert lost.problem
    (run,) = answer.runs or (await anext(answers)).runs  # it would look as if it went on
    assert (run.run_id, run.problem) == ("aaaa-1", lost.problem)
    assert (await get_run(stub, "aaaa-1")).problem == lost.problem
    stream.cancel()


# ---------------------------------------------------------------- nodes and forwarding


async def test_nodes_are_added_once_and_removed(stub: Any, analyzer: AnalyzerHere, node: ProfilerStandIn) -> None:
    await eventually(lambda: _serves(stub))
    with pytest.raises(NodeExistsError):
        await add_node(stub, node.endpoint)
    with pytest.raises(NodeUnreachableError):
        await add_node(stub, Endpoint(f"unix:{analyzer.directory}/nobody.sock", "x"))
    with pytest.raises(InvalidRequestError, match="TLS"):
        await add_node(stub, Endpoint("example.invalid:1", "x"))
    with pytest.raises(InvalidRequestError, match="host:port"):
        await add_node(stub, Endpoint("nonsense", "x"))
    with pytest.raises(InvalidRequestError, match="with a port from 1 to 65535"):
        await add_node(stub, Endpoint("127.0.0.1:99999", "x"))
    secrets = analyzer.directory / "store" / "node_tokens.json"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert node.endpoint.token.encode() not in (analyzer.directory / "store" / "catalogue.sqlite").read_bytes()
    await stub.RemoveNode(messages.RemoveNodeRequest(address=node.address))
    assert not (await stub.ListNodes(messages.ListNodesRequest())).nodes
    assert node.endpoint.token not in secrets.read_text()
    with pytest.raises(NodeNotFoundError), translated_errors():
        await stub.RemoveNode(messages.RemoveNodeRequest(address=node.address))
    with pytest.raises(UnauthenticatedError):
        await add_node(stub, Endpoint(node.address, "wrong"))


async def test_a_run_starts_on_a_node_that_was_added_a_moment_ago(stub: Any, node: ProfilerStandIn) -> None:
    await stub.RemoveNode(messages.RemoveNodeRequest(address=node.address))
    node.answers_after_s = 0.3  # to AddNode, and once more before it is collected from
    await add_node(stub, node.endpoint)
    assert not await _serves(stub)
    request = messages.AnalyzerServiceStartRunRequest(spec=protobuf.encode(RunSpec(KernelSweep((KernelSelection("saxpy"),)))), node_id=NODE)
    run = (await stub.StartRun(request)).run
    assert run.run_id in node.runs


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("UploadBundle", messages.AnalyzerServiceUploadBundleRequest(chunk=b"ab")),
        ("ImportTrace", messages.ImportTraceRequest(file_name="trace.json", chunk=b"ab")),
    ],
)
async def test_an_upload_with_a_message_that_does_not_parse_is_refused(analyzer: AnalyzerHere, stub: Any, method: str, first: Any) -> None:
    await eventually(lambda: _serves(stub))
    async with grpc.aio.insecure_channel(analyzer.endpoint.address) as channel:
        upload = channel.stream_unary(f"/kernalyse.v1.AnalyzerService/{method}")
        metadata = (("authorization", f"Bearer {analyzer.endpoint.token}"),)
        for _ in range(10):
            with pytest.raises(InvalidRequestError, match=f"{method}: found 3 bytes that do not parse"), translated_errors():
                await upload(iter([first.SerializeToString(), b"\xff\xff\xff"]), metadata=metadata, timeout=10)


async def test_a_transfer_whose_node_is_removed_is_ended_and_told_why(stub: Any, node: ProfilerStandIn) -> None:
    journal_whole_run(node)
    await in_state(stub, "aaaa-1", RunState.SUCCEEDED)
    node.stalls = True

    async def bundle() -> AsyncIterator[Any]:
        yield messages.AnalyzerServiceUploadBundleRequest(node_id=NODE, chunk=b"ab")
        await asyncio.Event().wait()

    async def has_begun() -> bool:
        return node.uploaded == b"ab"

    upload = stub.UploadBundle(bundle(), timeout=30)
    download = stub.ReadArtifact(_artifact("aaaa-1", "saxpy.cl"), timeout=30)
    assert (await download.read()).chunk == b"first "
    await eventually(has_begun)
    await stub.RemoveNode(messages.RemoveNodeRequest(address=node.address))
    with pytest.raises(NodeUnreachableError, match=r"connection was closed.*removed"), translated_errors():
        await upload
    with pytest.raises(NodeUnreachableError, match=r"connection was closed.*removed"), translated_errors():
        await download.read()


async def test_health_can_be_watched(analyzer: AnalyzerHere) -> None:
    async with grpc.aio.insecure_channel(analyzer.endpoint.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="kernalyse.v1.AnalyzerService"), timeout=30)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING


async def test_requests_are_forwarded_and_errors_come_back_as_they_were(stub: Any, node: ProfilerStandIn) -> None:
    await eventually(lambda: _serves(stub))
    spec = protobuf.encode(RunSpec(KernelSweep((KernelSelection("saxpy"),))))
    run = (await stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=spec))).run
    assert (await get_run(stub, run.run_id)).state is RunState.QUEUED
    await stub.CancelRun(messages.AnalyzerServiceCancelRunRequest(run_id="last"))
    assert node.cancelled_run_ids == [run.run_id]
    artifact = [part.chunk async for part in stub.ReadArtifact(_artifact(run.run_id, "saxpy.cl"))]
    assert b"".join(artifact) == b"first second"

    async def bundle() -> AsyncIterator[Any]:
        yield messages.AnalyzerServiceUploadBundleRequest(node_id=NODE, chunk=b"ab")
        yield messages.AnalyzerServiceUploadBundleRequest(chunk=b"cd")

    assert (await stub.UploadBundle(bundle())).size_bytes == 4
    assert node.uploaded == b"abcd"
    assert list((await stub.ListKernels(messages.AnalyzerServiceListKernelsRequest())).kernels) == []
    unknown = protobuf.encode(RunSpec(KernelSweep((KernelSelection("nonsense"),))))
    with pytest.raises(UnknownKernelError, match="List the kernels"), translated_errors():
        await stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=unknown))
    with pytest.raises(ArtifactNotFoundError), translated_errors():
        [part async for part in stub.ReadArtifact(_artifact(run.run_id, "other"))]
    with pytest.raises(NodeNotFoundError), translated_errors():
        await stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=spec, node_id="elsewhere"))
    await node.stop()
    with pytest.raises(NodeUnreachableError), translated_errors():
        await stub.CancelRun(messages.AnalyzerServiceCancelRunRequest(run_id="last"))


async def test_a_wrong_token_is_refused(analyzer: AnalyzerHere) -> None:
    async with connected(Endpoint(analyzer.endpoint.address, "wrong")) as stranger:
        with pytest.raises(UnauthenticatedError):
            await get_run(stranger, "last")


async def test_a_second_analyzer_on_the_store_is_refused_and_says_who_has_it(analyzer: AnalyzerHere) -> None:
    second = AnalyzerProcess(analyzer.directory)
    with pytest.raises(AssertionError, match=f"process {os.getpid()}"):
        await asyncio.to_thread(second.start)


async def test_the_service_ends_in_good_order_with_watchers_on(private_directories: Path, node: ProfilerStandIn) -> None:
    analyzer = AnalyzerProcess(private_directories)
    await asyncio.to_thread(analyzer.start)
    async with connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        node.add_run("aaaa-1")
        node.journal("aaaa-1", *started())
        await in_state(stub, "aaaa-1", RunState.RUNNING)
        stream = watch_run(stub, "aaaa-1")
        await anext(stream)
        assert await asyncio.to_thread(analyzer.stop) == 0, analyzer.log
        with pytest.raises(ShuttingDownError):
            await _collected(stream)


# ---------------------------------------------------------------- hardware


async def test_ceilings_set_by_hand_win_and_reach_who_watches(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), measurement(0))
    received: list[Any] = []
    await in_state(stub, "aaaa-1", RunState.RUNNING)

    async def watch() -> None:
        async for answer in watch_run(stub, "aaaa-1"):
            received.append(answer)

    watching = asyncio.create_task(watch())
    await eventually(lambda: _true(_sources(received) == ["datasheet"]))
    node.journal("aaaa-1", CeilingsMeasured((Ceiling("cuda:0", "dram", "bytes_per_s", 4e12, "copy", "measured"),)))
    await eventually(lambda: _true(_sources(received) == ["datasheet", "measured"]))
    by_hand = Ceiling("cuda:0", "dram", "bytes_per_s", 3e12, "copy", "x")
    answer = await stub.UpdateHardware(_update(ceilings=[by_hand], thresholds=Thresholds(0.6, 0.7)))
    assert {ceiling.source for ceiling in answer.ceilings} == {"user", "measured", "datasheet"}
    await eventually(lambda: _true(_sources(received) == ["datasheet", "measured", "user"]))
    hardware = await stub.GetHardware(messages.GetHardwareRequest(node_id=NODE, device_id="cuda:0"))
    assert hardware.device.name == "NVIDIA H200"
    assert hardware.thresholds.compute_inefficient_ratio == 0.7
    assert not any(ceiling.source == "user" for ceiling in (await stub.UpdateHardware(_update())).ceilings)
    assert (await stub.GetHardware(messages.GetHardwareRequest(node_id=NODE, device_id="cuda:0"))).thresholds == hardware.thresholds
    node.journal("aaaa-1", StateChanged(RunState.SUCCEEDED))
    await asyncio.wait_for(watching, 90)


async def test_what_one_run_measures_of_a_device_reaches_who_watches_another_run_on_it(stub: Any, node: ProfilerStandIn) -> None:
    node.add_run("aaaa-1")
    node.journal("aaaa-1", *started(), configuration(0), measurement(0))
    received: list[Any] = []
    changed: list[tuple[str, str]] = []
    await in_state(stub, "aaaa-1", RunState.RUNNING)

    async def watch() -> None:
        async for answer in watch_run(stub, "aaaa-1"):
            received.append(answer)

    async def watch_nodes() -> None:
        async for answer in stub.WatchNodes(messages.WatchNodesRequest()):
            changed.extend((key.node_id, key.device_id) for key in answer.changed_hardware)

    watching, listening = asyncio.create_task(watch()), asyncio.create_task(watch_nodes())
    await eventually(lambda: _true(_sources(received) == ["datasheet"]))
    node.add_run("aaaa-2")
    ceilings = CeilingsMeasured((Ceiling("cuda:0", "dram", "bytes_per_s", 4e12, "copy", "measured"),))
    node.journal("aaaa-2", *started(), ceilings, ceilings)
    await eventually(lambda: _true(_sources(received) == ["datasheet", "measured"]))
    await eventually(lambda: _true(changed == [(NODE, "cuda:0")]))  # once: the second time they say nothing new
    listening.cancel()
    node.journal("aaaa-1", StateChanged(RunState.SUCCEEDED))
    await asyncio.wait_for(watching, 90)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
async def test_ceilings_and_thresholds_that_nothing_can_have_are_refused(stub: Any, value: float) -> None:
    await eventually(lambda: _serves(stub))
    with pytest.raises(InvalidRequestError, match="dram"), translated_errors():
        await stub.UpdateHardware(_update(ceilings=[Ceiling("cuda:0", "dram", "bytes_per_s", value, "copy", "user")]))
    with pytest.raises(InvalidRequestError, match="compute_inefficient_ratio"), translated_errors():
        await stub.UpdateHardware(_update(thresholds=Thresholds(0.5, value)))
    with pytest.raises(DeviceNotFoundError, match="cuda:0"), translated_errors():
        await stub.GetHardware(messages.GetHardwareRequest(node_id=NODE, device_id="cuda:9"))


# ---------------------------------------------------------------- small parts


def _update(ceilings: list[Ceiling] | None = None, thresholds: Thresholds | None = None) -> Any:
    return messages.UpdateHardwareRequest(
        node_id=NODE,
        device_id="cuda:0",
        ceilings=[protobuf.encode(ceiling) for ceiling in ceilings or ()],
        thresholds=None if thresholds is None else protobuf.encode(thresholds),
    )


def _artifact(run_id: str, name: str) -> Any:
    return messages.AnalyzerServiceReadArtifactRequest(run_id=run_id, artifact_name=name)


def _names(answers: list[Any]) -> list[str]:
    return list(dict.fromkeys(chunk.table_name for answer in answers for chunk in answer.tables))


def _rows(answers: list[Any], table_name: str) -> pl.DataFrame:
    chunks = [chunk for answer in answers for chunk in answer.tables if chunk.table_name == table_name]
    return pl.concat([frame_of_bytes(chunk.arrow_ipc) for chunk in chunks])


def _sources(answers: list[Any]) -> list[str]:
    """Where the ceilings of the successive roofline rows come from."""
    return _rows(answers, "roofline")["ceiling_source"].to_list() if "roofline" in _names(answers) else []


async def _collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [answer async for answer in stream]


async def _serves(stub: Any) -> bool:
    nodes = (await stub.ListNodes(messages.ListNodesRequest())).nodes
    return bool(nodes) and nodes[0].health == messages.NODE_HEALTH_SERVING


async def _true(condition: bool) -> bool:
    return condition
