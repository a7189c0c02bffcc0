"""The Live page between the end of a program and the tables of its trace, with a stand-in for the node, whose files can wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from playwright.sync_api import expect

from kernalyse.services.core.model import TraceStored
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.browser.conftest import Visit, see_that_it_fits
from tests.integration.profiler_stand_in import TOKEN, ProfilerStandIn
from tests.integration.test_left_traces import RUN_ID, kineto_trace, profile, stored

pytestmark = pytest.mark.browser


class NodeInThread:
    """A stand-in on a loop of its own: Playwright's runs in the thread of the tests."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.stand_in = ProfilerStandIn(f"unix:{directory}/p.sock")
        self.do(self.stand_in.start())

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.do(self.stand_in.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture
def node(visit: Visit) -> Iterator[NodeInThread]:
    """Known to the analyzer while the test runs, and its run with it."""
    stub = visit.dashboard.stub
    with TemporaryDirectory(prefix="kn-") as directory:  # the path of a Unix socket has 107 bytes at most
        node = NodeInThread(Path(directory))
        try:
            stub.AddNode(messages.AddNodeRequest(address=node.stand_in.address, token=TOKEN))
            yield node
            stub.RemoveNode(messages.RemoveNodeRequest(address=node.stand_in.address))
            visit.dashboard.delete(RUN_ID)
        finally:
            node.close()


@pytest.mark.slow
def test_the_page_says_that_a_trace_is_read_and_waits_and_then_leads_to_it(visit: Visit, node: NodeInThread, tmp_path: Path) -> None:
    stand_in = node.stand_in

    async def ends() -> None:
        stand_in.stalls = True
        trace = stored(stand_in, "trace.json", kineto_trace(tmp_path))
        profile(stand_in, trace, TraceStored(("trace.json",), "kineto"))

    node.do(ends())
    page = visit.open(f"/live?runs={RUN_ID}")
    expect(page.locator(".run-name")).to_contain_text("succeeded")
    expect(page.locator(".facts > div", has_text="Now")).to_contain_text("reading the trace")
    run = page.locator(".run-card")
    expect(run).to_contain_text("follow when its trace has been read")
    expect(run.get_by_role("link", name="kernels")).to_have_count(0)
    see_that_it_fits(page, 390, 1280)
    node.do(stand_in.stop())
    expect(page.locator(".facts > div", has_text="Now")).to_contain_text("its trace waits for the node")
    stand_in.stalls = False
    node.do(stand_in.start())
    expect(run.get_by_role("link", name="kernels")).to_be_visible()
    expect(run).to_contain_text("Trace of kineto read: 2 launches of kernels.")
    page.goto(f"{visit.dashboard.url}/kernels?runs={RUN_ID}")
    expect(page.locator(".listed")).to_contain_text("gemm")
