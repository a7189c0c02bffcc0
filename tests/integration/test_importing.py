"""Imports over gRPC: whole or not at all, once, and everything that is done with runs works on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from kernalyse import Client, RequestError
from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import ArtifactNotFoundError, DeviceNotFoundError, InvalidTraceError, LimitReachedError
from kernalyse.services.core.model import ImportedTrace, Run, RunState, TableQuery
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
    serving,
    watch_run,
)
from tests.integration.profiler_stand_in import ProfilerStandIn
from tests.unit.analyzer.readers.test_nvbench import BATCH, COLD, TIMES, TIMES_DATA, axis, document, state

FILE_NAME = "nightly.json"
CONTENT = json.dumps(
    document(
        state(*COLD, *BATCH, axes=[axis("N", "int64", "64")]),
        state(*COLD, TIMES, device=1),
        state(is_skipped=True, skip_reason="Narrowing conversion."),
    )
).encode()
RUN_ID = f"imported-{sha256(CONTENT).hexdigest()[:20]}"


@pytest.fixture
async def stub(analyzer: AnalyzerHere) -> AsyncIterator[Any]:
    async with connected(analyzer.endpoint) as stub:
        yield stub


def requests(content: bytes, *, name: str = FILE_NAME, digest: str | None = None, chunk_bytes: int = 700) -> Iterator[Any]:
    yield messages.ImportTraceRequest(file_name=name)
    for start in range(0, len(content), chunk_bytes):
        yield messages.ImportTraceRequest(chunk=content[start : start + chunk_bytes])
    yield messages.ImportTraceRequest(digest=digest or f"sha256:{sha256(content).hexdigest()}", is_last=True)


async def imported(stub: Any, content: bytes = CONTENT, **options: Any) -> Any:
    """Import a file. grpc.aio loses the status of a stream that the server ends while a message is being sent; then it is sent again."""
    with translated_errors():
        for _ in range(3):
            with suppress(_StatusLostError):
                return await _answer(stub, requests(content, **options))
        return await stub.ImportTrace(requests(content, **options))


class _StatusLostError(Exception):
    """grpc.aio knows only that sending failed."""


async def _answer(stub: Any, sent: Iterator[Any]) -> Any:
    try:
        return await stub.ImportTrace(sent)
    except grpc.aio.AioRpcError as error:
        if error.details() == "Internal error from Core":
            raise _StatusLostError from error
        raise


async def listed(stub: Any) -> list[Run]:
    answer = await stub.ListRuns(messages.AnalyzerServiceListRunsRequest())
    return [protobuf.decode(run, Run) for run in answer.runs]


async def test_a_file_becomes_a_run_with_all_its_tables(stub: Any) -> None:
    answer = await imported(stub)
    run = protobuf.decode(answer.run, Run)
    assert not answer.is_known
    assert (run.run_id, run.node_id, run.state) == (RUN_ID, "", RunState.SUCCEEDED)
    assert run.spec.work == ImportedTrace(FILE_NAME, f"sha256:{sha256(CONTENT).hexdigest()}", "nvbench")
    assert (run.spec.title, run.is_imported) == (FILE_NAME, True)
    assert (run.completed_configuration_count, run.failed_configuration_count, run.total_configuration_count) == (4, 1, 4)
    assert await get_run(stub, "last") == run == await get_run(stub, "imported-")

    tables = {
        name: (await get_table(stub, TableQuery(name, ("last",))))[0]
        for name in ("configurations", "measurements", "failures", "ceilings", "log_lines", "kernels", "roofline", "samples", "runs")
    }
    assert tables["measurements"].select("run_id", "label", "device_id").rows() == [
        (RUN_ID, "copy N=64 cold", "GV100"),
        (RUN_ID, "copy N=64 hot", "GV100"),
        (RUN_ID, "copy", "GP100"),
    ]
    assert all(frame["event_index"].null_count() == 0 for frame in tables.values())
    assert tables["failures"]["message"].to_list() == ["Narrowing conversion."]
    assert tables["runs"].select("node_id", "title", "state", "notes").rows() == [(None, FILE_NAME, "SUCCEEDED", run.notes)]
    cold, hot, other = tables["roofline"].rows(named=True)
    assert cold["achieved_bytes_per_s"] == pytest.approx(4e9)  # over the mean: the file has no median
    assert (cold["efficiency_ratio"], cold["bound"], cold["ceiling_source"]) == (pytest.approx(1.0), "memory", "clock")
    assert hot["efficiency_ratio"] > cold["efficiency_ratio"]
    assert [other[name] for name in ("efficiency_ratio", "memory_ceiling_bytes_per_s", "duration_median_ns", "bound")] == [None] * 4
    assert tables["kernels"].select("kernel_name", "configuration_count", "failed_configuration_count").rows() == [("copy", 4, 1)]


async def test_the_same_file_under_any_name_is_the_same_run(stub: Any) -> None:
    first = await imported(stub)
    again = await imported(stub, name="copy of it.json")
    assert (again.is_known, again.run) == (True, first.run)
    together = await asyncio.gather(*(imported(stub, CONTENT + b" ") for _ in range(4)))
    assert len({answer.run.run_id for answer in together}) == 1
    assert sum(not answer.is_known for answer in together) == 1
    assert len(await listed(stub)) == 2


async def test_an_imported_run_is_watched_deleted_and_imported_anew(stub: Any, analyzer: AnalyzerHere) -> None:
    await imported(stub)
    received = [answer async for answer in watch_run(stub, RUN_ID)]
    names = [chunk.table_name for answer in received for chunk in answer.tables]
    assert {"configurations", "measurements", "roofline", "ceilings", "failures", "log_lines"} <= set(names)
    assert names.index("configurations") < names.index("measurements")
    frames = [frame_of_bytes(chunk.arrow_ipc) for answer in received for chunk in answer.tables if chunk.table_name == "roofline"]
    assert pl.concat(frames).height == 3
    assert received[0].run.state == protobuf.encode(await get_run(stub, RUN_ID)).state
    await stub.UpdateRun(messages.UpdateRunRequest(run_id=RUN_ID, tags=["nightly"], notes="kept"))
    assert (await get_run(stub, RUN_ID)).tags == ("nightly",)
    await stub.DeleteRun(messages.DeleteRunRequest(run_id=RUN_ID))
    assert await listed(stub) == []
    assert list((analyzer.directory / "store" / "runs").iterdir()) == []
    assert not (await imported(stub)).is_known


async def test_what_a_node_would_be_asked_for_is_answered_without_one(stub: Any, analyzer: AnalyzerHere) -> None:
    """With a node at hand too, which knows nothing of the run."""
    node = ProfilerStandIn(f"unix:{analyzer.directory}/p.sock")
    await node.start()
    try:
        await add_node(stub, node.endpoint)
        await eventually(lambda: _serves(stub))
        await imported(stub)
        cancelled = await stub.CancelRun(messages.AnalyzerServiceCancelRunRequest(run_id="last"))
        assert protobuf.decode(cancelled.run, Run).state is RunState.SUCCEEDED
        assert node.cancelled_run_ids == []
        request = messages.AnalyzerServiceReadArtifactRequest(run_id="last", artifact_name="a")
        with pytest.raises(ArtifactNotFoundError, match="an imported run, which has none"), translated_errors():
            [part async for part in stub.ReadArtifact(request)]
        with pytest.raises(DeviceNotFoundError), translated_errors():
            await stub.GetHardware(messages.GetHardwareRequest(node_id="", device_id="GV100"))
    finally:
        await node.stop()


async def test_a_device_is_known_after_its_node_was_removed(stub: Any, analyzer: AnalyzerHere) -> None:
    node = ProfilerStandIn(f"unix:{analyzer.directory}/p.sock")
    await node.start()
    try:
        await add_node(stub, node.endpoint)
        await eventually(lambda: _serves(stub))
        await stub.RemoveNode(messages.RemoveNodeRequest(address=node.address))
        answer = await stub.GetHardware(messages.GetHardwareRequest(node_id="node-1", device_id="cuda:0"))
        assert answer.device.name == "NVIDIA H200"
    finally:
        await node.stop()


async def test_who_watches_the_runs_sees_an_import_arrive(stub: Any) -> None:
    stream = stub.WatchNodes(messages.WatchNodesRequest())
    answers = aiter(stream)
    assert list((await anext(answers)).runs) == []
    await imported(stub)
    assert [run.run_id for run in (await anext(answers)).runs] == [RUN_ID]
    stream.cancel()


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (
            CONTENT,
            {"digest": f"sha256:{'0' * 64}"},
            InvalidTraceError,
            r"nightly.json: found bytes with the digest sha256:.*; expected sha256:0",
        ),
        (CONTENT[:-30], {}, InvalidTraceError, "JSON that cannot be read"),
        (b"", {}, InvalidTraceError, "found nothing in it"),
        (bytes(range(256)) * 100, {}, InvalidTraceError, "begins with"),
        (CONTENT, {"chunk_bytes": 2**21, "name": "big"}, None, ""),
        (CONTENT + b" " * 2**21, {"chunk_bytes": 2**20 + 1}, LimitReachedError, "chunk of file nightly.json: found 1048577 bytes"),
        (CONTENT + b" " * 2**21, {"chunk_bytes": 2**21}, LimitReachedError, "ImportTrace: found 2097.* bytes; expected at most 1114112"),
    ],
)
async def test_a_file_that_cannot_be_imported_leaves_nothing(
    stub: Any, analyzer: AnalyzerHere, content: bytes, options: dict[str, Any], error: type[Exception] | None, message: str
) -> None:
    if error is None:
        await imported(stub, content, **options)
    else:
        with pytest.raises(error, match=message):
            await imported(stub, content, **options)
        assert await listed(stub) == []
        assert list((analyzer.directory / "store" / "runs").iterdir()) == []
    assert list((analyzer.directory / "store" / "arriving").iterdir()) == []


async def test_half_a_character_becomes_a_replacement_character(stub: Any) -> None:
    await imported(stub, CONTENT.replace(b"GV100", b"\\ud800"))
    measured = (await get_table(stub, TableQuery("measurements", ("last",))))[0]
    assert set(measured["device_id"]) == {"\N{REPLACEMENT CHARACTER}", "GP100"}


@pytest.mark.slow
async def test_text_of_others_neither_steers_a_terminal_nor_fills_the_lists(stub: Any) -> None:
    content = document(state(*COLD))
    content["meta"]["argv"] = ["\x1b[2J", "x" * 30_000]
    run = protobuf.decode((await imported(stub, json.dumps(content).encode(), name="a\x1b]0;b\x07.json")).run, Run)
    assert run.spec.title == "a\N{REPLACEMENT CHARACTER}]0;b\N{REPLACEMENT CHARACTER}.json"
    assert "Command: \N{REPLACEMENT CHARACTER}[2J xxx" in run.notes
    assert len(run.notes) == 20_000
    assert run.notes.endswith("…")
    content["benchmarks"][0]["name"] = "k" * 1_000_001
    with pytest.raises(InvalidTraceError, match=r"nightly\.json: kernel_name of a row of configurations: found 1000001 characters"):
        await imported(stub, json.dumps(content).encode())


async def test_the_setting_limits_what_is_accepted(private_directories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNALYSE_ANALYZER_IMPORT_MAX_BYTES", "1000")
    async with serving(private_directories) as here, connected(here.endpoint) as stub:
        with pytest.raises(LimitReachedError, match=r"more than 1000 bytes.*import_max_bytes"):
            await imported(stub)


async def test_a_break_between_files_and_record_leaves_no_run(stub: Any, analyzer: AnalyzerHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are there and the row that names them is not: as kill -9 at the worst moment leaves it."""

    def broken(_connection: object, run: Run, _next_event_index: int) -> None:
        assert list((analyzer.directory / "store" / "runs").glob(f"{run.run_id}-*/measurements.parquet"))
        raise RuntimeError("power cut")

    monkeypatch.setattr("kernalyse.services.analyzer.store.store.insert_compacted_run", broken)
    with pytest.raises(Exception, match="power cut"):
        await imported(stub)
    monkeypatch.undo()
    assert await listed(stub) == []
    assert (await get_table(stub, TableQuery("measurements")))[1] == 0
    assert not (await imported(stub)).is_known
    assert (await get_table(stub, TableQuery("measurements")))[1] == 3


# ---------------------------------------------------------------- kill -9, and the client library


@pytest.fixture
def process(private_directories: Path) -> Iterator[AnalyzerProcess]:
    own = AnalyzerProcess(private_directories)
    own.start()
    yield own
    own.stop()


@pytest.mark.slow
async def test_kill_between_two_chunks_leaves_nothing_and_the_import_can_be_repeated(process: AnalyzerProcess) -> None:
    arriving = process.directory / "store" / "arriving"
    is_half_there = asyncio.Event()

    async def half() -> AsyncIterator[Any]:
        parts = list(requests(CONTENT))
        for part in parts[: len(parts) // 2]:
            yield part
        await eventually(lambda: _true(any(path.is_dir() and any(path.iterdir()) for path in arriving.iterdir())))
        is_half_there.set()
        await asyncio.sleep(60)

    async with connected(process.endpoint) as stub:
        sending = asyncio.ensure_future(stub.ImportTrace(half()))
        await asyncio.wait_for(is_half_there.wait(), 90)
        await asyncio.to_thread(process.kill)
        with pytest.raises(Exception, match="UNAVAILABLE"):
            await sending
    assert list(arriving.iterdir()) != []
    await asyncio.to_thread(process.start)
    assert list(arriving.iterdir()) == []
    async with connected(process.endpoint) as stub:
        assert await listed(stub) == []
        assert not (await imported(stub)).is_known
        assert (await get_run(stub, RUN_ID)).state is RunState.SUCCEEDED


@pytest.mark.slow
def test_the_client_library_sends_a_file_with_what_lies_beside_it(process: AnalyzerProcess, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(CONTENT)
    (tmp_path / "a.json-bin").mkdir()
    (tmp_path / "a.json-bin" / "0.bin").write_bytes(TIMES_DATA)
    sent: list[int] = []
    with Client(process.endpoint) as client:
        answer = client.import_trace(path, on_sent=sent.append)
        assert sum(sent) == len(CONTENT) + len(TIMES_DATA)
        assert client.import_trace(path).is_known
        found = client.table(answer.run, "samples")
        assert found["duration_ns"].to_list() == pytest.approx((np.frombuffer(TIMES_DATA, "<f4") * 1e9).tolist())
        (tmp_path / "a.json-bin" / "0.bin").unlink()
        assert client.import_trace(path).run.run_id == RUN_ID != answer.run.run_id
        with pytest.raises(FileNotFoundError):
            client.import_trace(tmp_path / "nothing.json")
        with pytest.raises(FileNotFoundError, match="no table in the directory"):
            client.import_trace(tmp_path)
        path.write_bytes(b"nonsense")
        with pytest.raises(RequestError, match=r"INVALID_TRACE: file a\.json"):
            client.import_trace(path)
    with Client(Endpoint(f"unix:{tmp_path}/nobody.sock", "x")) as stranger, pytest.raises(RequestError, match="UNAVAILABLE"):
        stranger.import_trace(path)


@pytest.mark.slow
async def test_a_line_that_breaks_is_taken_up_again_where_it_broke(process: AnalyzerProcess, tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(CONTENT + b" " * 40 * 2**20)
    arriving = process.directory / "store" / "arriving"
    line = BreakingLine(
        process.endpoint.address.removeprefix("unix:"),
        tmp_path / "line.sock",
        is_breaking=lambda: sum(file.stat().st_size for file in arriving.glob("*/*")) >= 2 * 2**20,
    )
    sent: list[int] = []
    async with line.open():
        with Client(replace(process.endpoint, address=f"unix:{line.path}")) as client:
            answer = await asyncio.to_thread(client.import_trace, path, on_sent=sent.append)
    assert (answer.run.state, answer.is_known) == ("SUCCEEDED", False)
    assert sum(sent) == path.stat().st_size
    assert len(line.carried_bytes) >= 3
    assert sum(line.carried_bytes[1:]) < path.stat().st_size - 2**20  # two of forty MiB at least were there, and not sent again


class BreakingLine:
    """Passes bytes from one Unix socket to another.

    The first connection breaks once a condition holds, the next as soon as it is asked what has arrived.
    """

    def __init__(self, target: str, path: Path, is_breaking: Callable[[], bool]) -> None:
        self.path = path
        self.carried_bytes: list[int] = []  # by connection, towards the target
        self._target = target
        self._is_breaking = is_breaking

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._carry, self.path)
        try:
            yield
        finally:
            server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.carried_bytes)
        self.carried_bytes.append(0)
        there_reader, there_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.ensure_future(self._pass_back(there_reader, writer))
        try:
            while (data := await reader.read(2**16)) and not self._breaks(number, data):
                self.carried_bytes[number] += len(data)
                there_writer.write(data)
                await there_writer.drain()
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            back.cancel()
            there_writer.close()
            writer.close()

    def _breaks(self, number: int, data: bytes) -> bool:
        return (number == 0 and self._is_breaking()) or (number == 1 and b"ResumeUpload" in data)

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()


async def _serves(stub: Any) -> bool:
    nodes = (await stub.ListNodes(messages.ListNodesRequest())).nodes
    return bool(nodes) and nodes[0].health == messages.NODE_HEALTH_SERVING


async def _true(condition: bool) -> bool:
    return condition
