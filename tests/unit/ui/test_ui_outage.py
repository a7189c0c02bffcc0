"""Pages whose analyzer is away for a while: what could not be answered is asked again, and nothing is shown for what it is not of."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, cast

import polars as pl
import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from kernalyse.services.core.errors import UnavailableError
from kernalyse.services.core.model import (
    Hardware,
    HardwareKey,
    ImportedTrace,
    KernelSelection,
    KernelSweep,
    Run,
    RunSpec,
    RunState,
    TableQuery,
    Thresholds,
)
from kernalyse.services.core.reruns import SPEC_ARTIFACT
from kernalyse.services.ui.components import compare
from kernalyse.services.ui.components.base import Text
from kernalyse.services.ui.components.hardware import HardwarePanel
from kernalyse.services.ui.components.kernel_detail import Chosen, Listings
from kernalyse.services.ui.components.live import TelemetryChart
from kernalyse.services.ui.components.roofline import PointPanel, RooflineChart, RooflineRows
from kernalyse.services.ui.data.chosen_row import Listing
from kernalyse.services.ui.data.client import AnalyzerClient, TablePage
from kernalyse.services.ui.data.diagnosis import point_key
from kernalyse.services.ui.data.memory import NodesMemory, RunMemory
from kernalyse.services.ui.data.roofline_rows import rows_of_run
from kernalyse.services.ui.pages import ComparePage, HistoryPage, LivePage, StartPage
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context, Tab, UpdatePace
from kernalyse.services.ui.uploads.imports import Extent, FileToImport, Imports, ImportState
from kernalyse.services.ui.view import CompareView, HistoryView, KernelsView, LiveView, RooflineView, StartView, View
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.unit.ui.test_charts import points
from tests.unit.ui.test_roofline_view import ROW
from tests.unit.ui.test_timeline_chart import kernel, tile

TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
TRACE: Final = Run("t", "", RunSpec(ImportedTrace("a.json", "sha256:1", "kineto")), RunState.SUCCEEDED, create_time=TIME)


class Client(AnalyzerClient):
    """An analyzer that is away, apart from the tables that a test puts there. asked: what for."""

    def __init__(self, *runs: Run, **tables: pl.DataFrame) -> None:
        self.nodes = NodesMemory()  # and no thread, nor a channel
        self.nodes.receive((), runs, (), True)
        self.tables = tables
        self.asked: list[str] = []
        self.known_hardware: dict[HardwareKey, Hardware] = {}
        self.artifacts: dict[str, bytes] = {}
        self.looked_at: dict[str, RunMemory] = {}

    def look_at(self, run_id: str) -> RunMemory:
        return self.looked_at.setdefault(run_id, RunMemory(run_id))

    def look_away(self, run_id: str) -> None:
        pass

    async def table(self, query: TableQuery, timeout_s: float = 0.0) -> TablePage:
        name = f"{query.table_name} of {query.window_end_ns}" if query.table_name == "timeline" else query.table_name
        if name not in self.tables:
            await self._refuse(name)
        return TablePage(self.tables[name], self.tables[name].height)

    async def hardware(self, key: HardwareKey) -> Hardware:
        if key not in self.known_hardware:
            await self._refuse("hardware")
        return self.known_hardware[key]

    async def artifact(self, run_id: str, artifact_name: str) -> bytes:
        if artifact_name not in self.artifacts:
            await self._refuse(f"{artifact_name} of {run_id}")
        return self.artifacts[artifact_name]

    async def call(self, work: Callable[[Any], Any]) -> Any:
        return await self._refuse("call")

    async def _refuse(self, name: str) -> Any:
        self.asked.append(name)
        raise UnavailableError("analyzer", found="no answer")


async def updated(update: Callable[[], Any], count: int = 6) -> Any:
    """What a page shows after some updates, with time for answers between them."""
    for _ in range(count):
        shown = update()
        await asyncio.sleep(0.01)
    return shown


async def asked_again(client: Client, update: Callable[[], Any]) -> list[str]:
    """What a page asks for when the analyzer is back."""
    await updated(update)
    before = list(client.asked)
    await updated(update)
    assert client.asked == before  # once is enough while nothing changes
    client.nodes.count_up()  # as a new stream does
    await updated(update)
    return sorted(set(client.asked[len(before) :]))


DEVICES: Final = pl.DataFrame({"process_id": [1], "device_index": [0], "device_name": ["NVIDIA H200"]})
PROCESSES: Final = pl.DataFrame(
    {"process_id": [1], "system_process_id": [11], "rank_index": [None]}, schema_overrides={"rank_index": pl.Int32}
)
OUTLINE: Final = {"timeline of None": tile(kernel(0, 1_000_000)), "trace_devices": DEVICES, "trace_processes": PROCESSES}


def words(layout: Any) -> str:
    """What is said in all texts of a layout."""
    return " ".join(str(text.object) for text in layout.select(Text))


def context_of(client: Client, *run_ids: str) -> Context:
    return Context(client, View(runs=list(run_ids)), Browser(), lambda: None)


async def test_a_comparison_asks_again_for_rows_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "REFRESH_INTERVAL_S", 0.0)
    sweep = RunSpec(KernelSweep((KernelSelection("saxpy"),)))
    client = Client(*(replace(TRACE, run_id=name, spec=sweep, total_configuration_count=1) for name in ("a", "b")))
    context = context_of(client)
    page = ComparePage(context, CompareView(baseline="a", candidate="b"))

    def update() -> None:
        context.begin_update()
        page.update()

    assert await asked_again(client, update) == ["comparison", f"{SPEC_ARTIFACT} of a", f"{SPEC_ARTIFACT} of b"]
    page.close()


async def test_the_form_of_sweeps_asks_again_for_the_catalogue() -> None:
    client = Client()
    page = StartPage(context_of(client), StartView())
    assert await asked_again(client, page.update) == ["call"]
    page.close()


async def test_a_point_of_a_trace_asks_again_for_its_occupancy() -> None:
    client = Client(TRACE)
    context = context_of(client, "t")
    point = points(ROW | {"run_id": "t", "configuration_index": None, "kernel_name": "gemm"})
    client.look_at("t").receive(TRACE, {"roofline": point.with_columns(variant=None, layer_path=None)}, 1)
    chart = RooflineChart(context, RooflineView(point=point_key(point.row(0, named=True))))
    panel = PointPanel(context, chart)

    def update() -> None:
        context.begin_update()
        chart.update()
        panel.update()

    assert "occupancy" in await asked_again(client, update)
    panel.close()


async def test_what_a_compiler_left_is_asked_for_again_and_stays_when_its_node_goes() -> None:
    client = Client(TRACE)
    context = Context(client, View(), Browser(), lambda: None)
    listings = Listings(context, Chosen(context, KernelsView()))
    listing = Listing("saxpy.ptx", "PTX", 10, is_own=True)

    def update() -> str:
        return listings._content("t", listing)

    assert await asked_again(client, update) == ["saxpy.ptx of t"]
    client.artifacts["saxpy.ptx"] = b".version 8.0"
    client.nodes.count_up()
    assert ".version 8.0" in await updated(update)
    del client.artifacts["saxpy.ptx"]
    client.nodes.count_up()
    assert ".version 8.0" in await updated(update)


async def test_histories_that_cannot_be_asked_for_are_not_those_of_the_filter_before() -> None:
    client = Client()
    context = context_of(client)
    context.view.kernel = "saxpy"
    page = HistoryPage(context, HistoryView())
    await updated(page.update)
    shown = words(page.layout)
    assert "no answer" in shown
    assert "No history matches" not in shown
    page.close()


async def test_the_peaks_of_one_device_are_never_shown_as_those_of_another() -> None:
    client = Client()
    memories = []
    for number in (1, 2):
        memory = RunMemory(f"r{number}")
        spec = RunSpec(KernelSweep((KernelSelection("saxpy"),)))
        run = Run(f"r{number}", f"n{number}", spec, RunState.SUCCEEDED, create_time=TIME, device_id="cuda:0", total_configuration_count=1)
        memory.receive(run, {}, 1)
        memories.append(memory)
    client.known_hardware[HardwareKey("n1", "cuda:0")] = Hardware(None, (), Thresholds(), "etag of the first")
    client.looked_at = {memory.run_id: memory for memory in memories}
    context = context_of(client, "r1", "r2")
    panel = HardwarePanel(context, RooflineRows(context, RooflineView()))

    def update() -> str:
        context.begin_update()
        panel.update()
        return words(panel.layout)

    shown = await updated(update)
    assert (len(panel._fields), "no answer" in shown) == (3, False)
    panel._device.value = HardwareKey("n2", "cuda:0")
    shown = await updated(update)
    assert (len(panel._fields), "no answer" in shown) == (0, True)
    panel.close()


async def test_the_heartbeat_outlives_an_import_whose_browser_and_analyzer_have_both_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = Imports(Client())
    upload = imports.begin((FileToImport("trace.json", 10, 1),))
    upload.last_arrival_s -= 3600
    monkeypatch.setattr(upload, "_stream", _Stream())
    await imports.leave_silent()
    assert (upload.state, "sends no more" in upload.problem) == (ImportState.FAILED, True)


async def test_an_import_goes_on_where_the_last_message_of_a_broken_line_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    upload = Imports(client).begin((FileToImport("trace.json", 10, 1), FileToImport("beside.txt", 10, 1)))

    async def resumed(work: Callable[[Any], Any]) -> Any:
        return messages.ResumeUploadResponse(whole_file_count=1)

    monkeypatch.setattr(client, "call", resumed)
    monkeypatch.setattr(upload, "_stream", _Stream())
    assert await upload.write(upload.claim(), Extent(), b"x" * 10) == Extent(1)
    assert upload.state is ImportState.RECEIVING


class _Stream:
    """On a line that breaks."""

    async def cancel(self) -> None:
        pass

    async def write(self, _request: Any) -> None:
        raise UnavailableError("analyzer", found="no answer")


async def test_another_run_on_the_live_page_is_not_drawn_where_the_user_looked_at_the_one_before() -> None:
    client = Client(TRACE, replace(TRACE, run_id="u"))
    context = context_of(client, "t")
    chart = TelemetryChart(context, LiveView())

    def update() -> None:
        context.begin_update()
        chart.update()

    update()
    chart.figure.follow("x", 1e9, 2e9)
    chart.figure.figure.x_range.end = 1.5e9
    context.view.runs = ["u"]
    update()
    chart.figure.follow("x", 5e9, 6e9)
    assert chart.figure.figure.x_range.end == 6e9
    chart.close()


async def test_what_fails_unexpectedly_is_answered_with_a_sentence() -> None:
    async def broken() -> None:
        raise LookupError

    context = context_of(Client(TRACE), "t")
    context.carry_out(broken())
    await asyncio.sleep(0.01)
    assert "This could not be done: LookupError" in context.problem


async def test_a_page_that_cannot_be_brought_up_to_date_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_page: LivePage) -> None:
        raise AttributeError

    monkeypatch.setattr(LivePage, "update", broken)
    pace = UpdatePace(0.1)
    document = Document()
    with set_curdoc(document):
        tab = Tab(document, Client(TRACE), "live", {"runs": "t"}, pace, lambda _tab: None)
    assert "could not be brought up to date: AttributeError" in words(tab.banner)
    assert pace.session_count == 1


async def test_what_somebody_waits_for_does_not_wait_for_the_next_update_of_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, document = UpdatePace(0.0), Document()
    with set_curdoc(document):
        tab = Tab(document, Client(TRACE), "live", {"runs": "t"}, pace, lambda _tab: None)
    monkeypatch.setattr(Tab, "is_served", True)
    await drawn(tab)
    for _ in range(100):
        pace.record(60.0)
    tab.wake()
    await asyncio.sleep(0.05)
    assert not document.session_callbacks  # in a minute
    tab.browser.visited = ["/roofline?runs=t", 1]
    await asyncio.sleep(0.05)
    assert len(document.session_callbacks) == 1


async def drawn(tab: Tab) -> None:
    """Until the browser has drawn all that there is."""
    for _ in range(20):
        await asyncio.sleep(0.02)
        for callback in list(tab.document.session_callbacks):
            await cast(Any, callback.callback)()
        tab.browser.acknowledged = tab.browser.sent


async def test_tabs_that_nobody_looks_at_slow_nobody_down() -> None:
    pace = UpdatePace(0.0)
    for _ in range(100):
        pace.record(0.1)
    with set_curdoc(document := Document()):
        tab = Tab(document, Client(TRACE), "live", {"runs": "t"}, pace, lambda _tab: None)
    assert pace.interval_s > 0  # it is about to be looked at
    tab.browser.acknowledged = 0
    assert pace.interval_s == 0


async def test_a_tab_whose_person_may_see_it_no_longer_shows_the_way_to_sign_in_alone() -> None:
    pace, document = UpdatePace(0.0), Document()
    closed: list[Tab] = []
    with set_curdoc(document):
        tab = Tab(document, Client(TRACE), "live", {"runs": "t"}, pace, closed.append)
    assert any(len(place) for place in tab.places.values())
    tab.end("Your session has ended.")
    for _ in range(200):
        if closed:
            break
        await asyncio.sleep(0.01)
        for callback in list(document.session_callbacks):
            await cast(Any, callback.callback)()
    assert (closed, pace.session_count) == ([tab], 0)
    assert not any(len(place) for place in tab.places.values())
    assert 'Your session has ended. <a href="/login">Sign in again</a>' in words(tab.banner)


def test_a_run_that_goes_on_is_not_kept_once_for_each_state_that_it_had() -> None:
    memory = RunMemory("r")
    made = []
    for number in range(20):
        memory.receive(None, {"roofline": points({"configuration_index": number}).with_columns(variant=None, layer_path=None)}, number + 1)
        rows = rows_of_run(memory, "kernel").rows
        assert rows is not None
        made.append(weakref.ref(rows))
    del rows
    gc.collect()
    assert sum(one() is not None for one in made) < 6
