"""What empty pages offer, without a browser."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.demo import demo_spec
from kernalyse.services.core.model import NodeHealth, NodeStatus, Run, RunSpec, RunState
from kernalyse.services.core.protobuf import decode, encode
from kernalyse.services.ui.components.first_visit import EXAMPLES, FUSED, OFFERS, WRITTEN_OUT, FirstVisit
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.uploads.handlers import Uploads
from kernalyse.services.ui.uploads.imports import Imports
from kernalyse.services.ui.view import View
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.unit.ui.test_compare_components import TIME, trace
from tests.unit.ui.test_ui_outage import Client, updated

DEMO = Run("demo", "", demo_spec(), RunState.RUNNING, TIME)


class Starting(Client):
    """An analyzer with a node, which starts what it is asked to."""

    def __init__(self, *runs: Run, health: NodeHealth = NodeHealth.SERVING) -> None:
        super().__init__(*runs)
        self.nodes.receive((NodeStatus("gpu-7:7001", health),), (), (), False)
        self.started: list[RunSpec] = []

    async def call(self, work: Any) -> Any:
        return await work(self)

    async def ListRuns(self, request: Any, timeout: float) -> Any:
        return messages.AnalyzerServiceListRunsResponse(runs=[encode(DEMO)] if self.started else [])

    async def StartRun(self, request: Any, timeout: float) -> Any:
        self.started.append(decode(request.spec, RunSpec))
        return messages.AnalyzerServiceStartRunResponse(run=encode(DEMO))


class Read(Imports):
    """Imports that are read at once. sent: what was imported."""

    def __init__(self, client: AnalyzerClient) -> None:
        super().__init__(client)
        self.sent: list[str] = []

    async def _send(self, path: Path, client: AnalyzerClient | None) -> Run:
        self.sent.append(path.name)
        await asyncio.sleep(0.01)
        del self._own[path]
        return replace(trace("example", 1), run_id=path.name)


def context_of(client: Client, uploads: Uploads | None = None) -> Context:
    return Context(client, View(), Browser(), lambda: None, uploads)


def uploads_of(client: Client) -> tuple[Uploads, Read]:
    uploads, imports = Uploads(client), Read(client)
    uploads.imports = imports
    return uploads, imports


@pytest.mark.parametrize("page", OFFERS)
async def test_each_page_says_what_it_will_show_until_there_is_a_run(page: str) -> None:
    first = FirstVisit(context_of(Starting()), page)
    shown = []
    for runs in ([], ["r"]):
        first.context.view.runs = runs
        first.update()
        shown.append(first.is_shown)
    assert shown == [True, False]
    assert first._load.label.startswith("Load ")
    assert first._start.visible
    first.close()


async def test_a_trace_is_loaded_once_however_often_and_by_whomever() -> None:
    client = Client()
    uploads, imports = uploads_of(client)
    mine, yours = (FirstVisit(context_of(client, uploads), "timeline") for _ in range(2))
    for first in (mine, mine, yours):
        first._load.clicks += 1
    await asyncio.sleep(0)
    yours.update()
    assert (yours._load.label, yours._load.disabled) == ("Loading an example trace…", True)
    await updated(mine.update)
    assert imports.sent == [FUSED.name]
    assert mine.context.view.runs == yours.context.view.runs == [FUSED.name]
    assert not mine.context.problem


async def test_for_a_comparison_two_are_loaded() -> None:
    client = Client()
    uploads, imports = uploads_of(client)
    first = FirstVisit(context_of(client, uploads), "compare")
    first._load.clicks += 1
    await updated(first.update)
    assert imports.sent == first.context.view.runs == [WRITTEN_OUT.name, FUSED.name]


async def test_what_the_analyzer_refuses_is_said_and_can_be_tried_again() -> None:
    first = FirstVisit(context_of(Client()), "live")
    first._load.clicks += 1
    await updated(first.update, 60)
    assert "no answer" in first.context.problem
    assert (first._load.label, first._load.disabled) == ("Load an example trace", False)
    assert first.context.view.runs == []


async def test_the_demo_sweep_is_started_once() -> None:
    client = Starting()
    first = FirstVisit(context_of(client), "live")
    for _ in range(2):
        first._start.clicks += 1
    first.update()
    assert (first._start.label, first._start.disabled) == ("Starting the demo sweep…", True)
    await updated(first.update)
    first._start.clicks += 1  # as the second of a double click, which comes when the first has been answered
    await updated(first.update)
    assert client.started == [demo_spec()]
    assert first.context.view.runs == ["demo"]
    client.nodes.receive((), (DEMO,), (), False)
    first.update()
    client.nodes.forget_run("demo")  # it is cancelled, and deleted
    first.context.view.runs = []
    first.update()
    assert (first._start.label, first._start.disabled) == ("Start the demo sweep", False)


async def test_while_the_demo_sweep_runs_it_is_not_started_again() -> None:
    first = FirstVisit(context_of(Starting(DEMO)), "history", lambda: True)
    first.update()
    assert (first._start.label, first._start.disabled) == ("The demo sweep runs", True)
    assert '<a href="/live?runs=demo">look at it</a>' in str(first._note.object)


async def test_whoever_starts_the_demo_sweep_second_is_led_to_the_one_that_runs() -> None:
    client = Starting()
    mine, yours = (FirstVisit(context_of(client), "live") for _ in range(2))
    mine._start.clicks += 1
    await updated(mine.update)
    yours._start.clicks += 1  # the list of runs, which both pages show, has it a little later
    await updated(yours.update)
    assert client.started == [demo_spec()]
    assert mine.context.view.runs == yours.context.view.runs == ["demo"]
    assert "no second one" in yours.context.problem
    assert not mine.context.problem


async def test_without_a_node_that_serves_the_demo_sweep_is_not_offered() -> None:
    first = FirstVisit(context_of(Starting(health=NodeHealth.UNREACHABLE)), "live")
    first.update()
    assert not first._start.visible
    assert "none serves" in str(first._note.object)


def test_the_examples_are_small_and_name_no_machine() -> None:
    for path in (WRITTEN_OUT, FUSED):
        assert path.stat().st_size < 100_000
        text = gzip.decompress(path.read_bytes()).decode()
        assert json.loads(text)["traceEvents"]
        assert not any(name in text for name in ("host_name", "traceName", "/home", "/root", "/tmp", "/usr"))
    assert {path.name for path in EXAMPLES.glob("*.gz")} == {WRITTEN_OUT.name, FUSED.name}
