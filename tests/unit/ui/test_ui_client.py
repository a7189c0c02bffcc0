"""What the dashboard's client makes of runs that go and come back. The analyzer is a stand-in that deletes and breaks off at will."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import polars as pl
import pytest

from kernalyse.channel import Endpoint
from kernalyse.services.core.errors import NotFoundError, UnavailableError
from kernalyse.services.core.model import HardwareKey, ImportedTrace, Run, RunSpec, RunState
from kernalyse.services.core.protobuf import encode
from kernalyse.services.ui.data import client as client_module
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.memory import FIRST_RUN_COUNT, NodesMemory, RunMemory
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.table_pb2 import TableChunk

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def a_run(number: int) -> Run:
    spec = RunSpec(ImportedTrace("trace.json", f"sha256:{number}", "kineto"))
    return Run(f"imported-{number}", "", spec, RunState.SUCCEEDED, create_time=BEGIN + timedelta(minutes=number))


class Analyzer:
    """Its stub: runs that there are, and streams that a test breaks off."""

    def __init__(self, *runs: Run) -> None:
        self.runs = {run.run_id: run for run in runs}
        self.responses: asyncio.Queue[Any] = asyncio.Queue()

    def newest(self) -> Any:
        return messages.WatchNodesResponse(runs=[encode(run) for run in self.runs.values()])

    async def WatchNodes(self, _request: Any) -> AsyncIterator[Any]:
        yield self.newest()
        while (response := await self.responses.get()) is not None:
            yield response
        raise UnavailableError("analyzer", found="its end")

    async def WatchRun(self, request: Any) -> AsyncIterator[Any]:
        if request.run_id not in self.runs:
            raise NotFoundError(f"run {request.run_id}", found="none")
        yield messages.AnalyzerServiceWatchRunResponse(run=encode(self.runs[request.run_id]), next_event_index=1)


class SlowAnalyzer(Analyzer):
    """The first question for a table is answered last."""

    def __init__(self, *runs: Run) -> None:
        super().__init__(*runs)
        self.asked = 0
        self.first_may_come = asyncio.Event()

    async def GetTable(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        assert timeout > 0
        self.asked += 1
        number = self.asked
        if number == 1:
            await self.first_may_come.wait()
        buffer = io.BytesIO()
        pl.DataFrame({"event_index": [0], "device_id": ["d"], "value": [number]}).write_ipc_stream(buffer)
        yield messages.GetTableResponse(chunk=TableChunk(table_name=request.table_name, arrow_ipc=buffer.getvalue()), total_row_count=1)


class Client(AnalyzerClient):
    """Of a stand-in."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__(Endpoint("unix:/nowhere", "token", None), lambda: None)
        self._analyzer = analyzer

    async def _open(self) -> None:
        await super()._open()
        self._stub = self._analyzer

    async def tell(self, response: Any) -> None:
        """None: the stream of nodes breaks."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._analyzer.responses.put(response), self._loop))


async def eventually(check: Any) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


@pytest.fixture
async def analyzer() -> Analyzer:
    return Analyzer(a_run(1), a_run(2))


@pytest.fixture
async def client(analyzer: Analyzer) -> AsyncIterator[Client]:
    made = Client(analyzer)
    made.start()
    await eventually(lambda: made.nodes.overview().is_known)
    yield made
    await asyncio.to_thread(made.stop)


async def test_a_run_that_was_deleted_while_the_analyzer_was_away_is_listed_no_more(client: Client, analyzer: Analyzer) -> None:
    memory = client.look_at("imported-1")
    await eventually(lambda: memory.is_complete)
    del analyzer.runs["imported-1"]
    await client.tell(None)
    await eventually(lambda: len(client.nodes.overview().runs) == 1)
    assert memory.problem == "It has been deleted."


async def test_a_deleted_trace_that_is_imported_again_is_shown_again(client: Client, analyzer: Analyzer) -> None:
    memory = client.look_at("imported-1")
    await eventually(lambda: memory.is_complete)
    again = analyzer.runs.pop("imported-1")
    await client.tell(messages.WatchNodesResponse(deleted_run_ids=["imported-1"]))
    await eventually(lambda: memory.problem)
    analyzer.runs["imported-1"] = again
    await client.tell(analyzer.newest())
    await eventually(lambda: memory.run == again)
    assert memory.problem == ""


async def test_a_run_that_was_asked_for_too_early_is_shown_once_it_is_there(client: Client, analyzer: Analyzer) -> None:
    memory = client.look_at("imported-3")
    await eventually(lambda: memory.problem)
    analyzer.runs["imported-3"] = a_run(3)
    await client.tell(analyzer.newest())
    await eventually(lambda: memory.run is not None)
    assert memory.problem == ""


async def test_ceilings_that_were_set_twice_are_not_overtaken_by_those_set_first() -> None:
    run = replace(a_run(1), device_id="d")
    analyzer = SlowAnalyzer(run)
    client = Client(analyzer)
    client.start()
    await eventually(lambda: client.nodes.overview().is_known)
    memory = client.look_at(run.run_id)
    await eventually(lambda: memory.is_complete)
    changed = messages.WatchNodesResponse(changed_hardware=[encode(HardwareKey("", "d", run.run_id))])
    await client.tell(changed)
    await eventually(lambda: analyzer.asked == 1)
    await client.tell(changed)
    await eventually(lambda: memory.table("layer_roofline") is not None)
    newest = memory.table("ceilings")
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_set(analyzer.first_may_come), client._loop))
    await asyncio.sleep(0.05)
    assert memory.table("ceilings") is newest
    await asyncio.to_thread(client.stop)


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_runs_older_than_the_newest_that_a_stream_begins_with_are_kept() -> None:
    nodes = NodesMemory()
    runs = [a_run(number) for number in range(FIRST_RUN_COUNT + 2)]
    nodes.receive((), tuple(runs), (), True)
    newest = (*runs[2:-2], runs[-1], a_run(FIRST_RUN_COUNT + 2))
    assert nodes.receive((), newest, (), True) == (runs[-2].run_id,)


def test_rows_that_were_worked_out_anew_end_what_was_said_of_the_attempt_before() -> None:
    memory = RunMemory("run")
    memory.fail("The analyzer does not answer.")
    memory.replace({"roofline": pl.DataFrame({"event_index": [1]})}, 2)
    assert memory.problem == ""


@pytest.mark.parametrize(("wall_step_s", "passed_s"), [(-3600.0, 301.0), (3600.0, 0.0)])
def test_a_token_is_renewed_in_time_although_the_clock_is_set(monkeypatch: pytest.MonkeyPatch, wall_step_s: float, passed_s: float) -> None:
    clock = {"wall": 1.8e9, "monotonic": 50.0}
    clocks = SimpleNamespace(time=lambda: clock["wall"], monotonic=lambda: clock["monotonic"])
    monkeypatch.setattr(client_module, "time", clocks)
    session = client_module.Session("ann", "read", "short", end_unix_s=1.8e9 + 600, session_end_unix_s=1.8e9 + 86_400)
    due = [session.is_renewal_due]
    clock["wall"] += wall_step_s + passed_s
    clock["monotonic"] += passed_s
    due.append(session.is_renewal_due)
    assert due == [False, True]
    assert session.is_valid
