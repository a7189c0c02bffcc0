"""The Timeline page of a trace of two devices, from all of it down to one launch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from kernalyse.services.core.model import MeasuringOptions, ModelRun, Run, RunSpec
from kernalyse.services.core.protobuf import decode, encode
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.browser.charts import SOURCE, column, drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually, settled
from tests.unit.nsys_export import call, global_id, kernel, nvtx, write_export

pytestmark = pytest.mark.browser

STEP_NS = 100_000
COUNT = 2_000
OTHER = {"deviceId": 1, "streamId": 9, "globalPid": global_id(79)}
NAMES = {1: "void gemm_tile<4>(float*)", 2: "cudaLaunchKernel_v7000", 3: "forward", 4: "ncclAllReduce(int)", 5: "<b>relu</b>"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 2000 steps: a long kernel launched within a range, a collective on the other device; one launch bears another name."""
    starts = [place * STEP_NS for place in range(COUNT)]
    kernels = [kernel(start + 20_000, start + 80_000, place + 1) for place, start in enumerate(starts)]
    kernels[1_500]["demangledName"] = 5
    kernels += [kernel(start + 30_000, start + 60_000, place + 1, demangledName=4, **OTHER) for place, start in enumerate(starts)]
    return write_export(
        tmp_path_factory.mktemp("trace") / "steps.sqlite",
        kernels=kernels,
        calls=[call(start + 5_000, start + 9_000, place + 1) for place, start in enumerate(starts)],
        ranges=[nvtx(start, start + 90_000, None, textId=3) for start in starts],
        copies=[kernel(5_000, 15_000, 9_999, bytes=1 << 20)],
        gpus=[{}, {"id": 1, "cuDevice": 1}],
        strings=NAMES,
    )


@pytest.fixture
def run_id(visit: Visit, trace: Path) -> str:
    return visit.dashboard.import_file(trace)


FIGURE = f"""(() => {{
  const source = ({SOURCE})("timeline:pixels")
  const models = Bokeh.documents.flatMap((document) => document.roots().flatMap((root) => [...root.references()]))
  return models.find(({{renderers}}) => renderers?.some?.(({{data_source}}) => data_source === source))
}})()"""
"""The figure of the rows."""


def window(page: Page) -> tuple[float, float]:
    page.wait_for_function(f"{FIGURE} !== undefined")
    found: list[float] = page.evaluate(f"(({{start, end}}) => [start, end])({FIGURE}.x_range)")
    return found[0], found[1]


def place(page: Page, time_ns: float, row: int) -> dict[str, Any]:
    """Where on the screen a moment of a row is drawn."""
    box = page.locator(".timeline .bars").bounding_box()
    assert box is not None
    start, end = window(page)
    width = page.evaluate(f"{FIGURE}.inner_width")
    return {"x": box["x"] + (time_ns - start) / (end - start) * width, "y": box["y"] + row * 24 + 12}


def most_begun(page: Page) -> int:
    """In one pixel, or in what is drawn as narrow as one."""
    return int(max(column(page, "timeline:pixels", "begun"), default=0))


def test_wheel_drag_and_keys_lead_from_all_of_a_trace_to_one_launch(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/timeline?runs={run_id}")
    rows = page.locator(".timeline .row")
    expect(rows.filter(has_text="stream 9 · kernels")).to_have_count(1)
    eventually(lambda: drawn_count(page, "timeline:pixels") > 1_000)  # pixel by pixel
    whole = window(page)
    at = place(page, 1_234 * STEP_NS, 1)
    page.mouse.move(**at)
    for _ in range(4):
        page.mouse.wheel(0, -400)
    eventually(lambda: drawn_count(page, "timeline:events") > 0 and most_begun(page) == 1)  # one by one
    page.wait_for_url(re.compile(r"window=\d+\.\.\d+"))
    before = window(page)
    assert before[1] - before[0] < (whole[1] - whole[0]) / 20
    page.mouse.down()
    page.mouse.move(at["x"] - 200, at["y"], steps=4)
    page.mouse.up()
    eventually(lambda: window(page)[0] > before[0])
    dragged = window(page)
    page.locator(".rows-and-bars").focus()
    page.keyboard.press("a")
    eventually(lambda: window(page)[0] < dragged[0])
    page.keyboard.press("Home")
    eventually(lambda: window(page) == pytest.approx(whole))


@pytest.mark.slow
def test_a_search_jumps_and_the_chosen_launch_tells_all_and_leads_on(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/timeline?runs={run_id}")
    page.get_by_label("Search").fill("RELU")
    expect(page.locator(".matches")).to_contain_text("1 match")
    page.get_by_role("button", name="Next match").click()
    chosen = page.locator(".chosen")
    expect(chosen.locator("code")).to_have_text("<b>relu</b>")
    expect(chosen).to_contain_text("150\u202f020\u202f000 ns")
    expect(chosen).to_contain_text("60.0 µs")
    expect(chosen).to_contain_text("8 × 1 × 1")
    expect(chosen).to_contain_text("forward (told by range)")
    expect(chosen).to_contain_text("cudaLaunchKernel")
    expect(page.locator(".matches")).to_contain_text("1 of 1")
    eventually(lambda: drawn_count(page, "timeline:chosen") == 1)
    assert window(page)[1] - window(page)[0] < 10_000_000
    shown = visit.open(page.url.removeprefix(visit.dashboard.url))  # the link shows a colleague the same
    expect(shown.locator(".chosen code")).to_have_text("<b>relu</b>")
    assert window(shown) == pytest.approx(window(page), abs=2)
    eventually(lambda: drawn_count(shown, "timeline:events") > 0)
    at = place(shown, 1_501 * STEP_NS + 50_000, 1)
    shown.mouse.click(**at)
    expect(shown.locator(".chosen code")).to_have_text(NAMES[1])
    shown.get_by_role("button", name="Next launch").click()
    expect(shown.locator(".chosen")).to_contain_text("150\u202f220\u202f000 ns")
    shown.get_by_role("link", name="This kernel").click()
    shown.wait_for_url(re.compile("/kernels"))


@pytest.mark.slow
def test_a_call_leads_to_what_it_started_and_back(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/timeline?runs={run_id}&window=250000..450000")
    eventually(lambda: drawn_count(page, "timeline:events") > 5)
    titles = page.locator(".timeline .row").all_inner_texts()
    calls, kernels = titles.index("API calls"), next(row for row, title in enumerate(titles) if title.endswith("kernels"))
    at = place(page, 307_000, calls)
    chosen = page.locator(".chosen")
    page.mouse.move(**at)
    expect(page.get_by_text("correlation 4 · returned 0")).to_be_visible()
    page.mouse.click(**at)
    expect(chosen.locator("code")).to_have_text(NAMES[2])
    expect(chosen).to_contain_text("4.00 µs")
    expect(chosen).to_contain_text("0 (success)")
    expect(chosen).to_contain_text("gemm_tile")
    eventually(lambda: drawn_count(page, "timeline:links") == 1)
    chosen.get_by_role("button", name="What it started").click()
    expect(chosen.locator("code")).to_have_text(NAMES[1])
    expect(chosen).to_contain_text(f"{NAMES[2]}, 4.00 µs")
    page.wait_for_url(re.compile(r"event=kernels\."))
    chosen.get_by_role("button", name="Its call").click()
    page.wait_for_url(re.compile(r"event=calls\.3"))
    page.mouse.click(**place(page, 350_000, kernels))
    page.wait_for_url(re.compile(r"event=kernels\."))
    page.get_by_label("Search").fill("cudalaunch")
    expect(page.locator(".matches")).to_contain_text("2\u202f000 matches")
    page.locator(".timeline button.row", has_text="Thread").first.click()
    expect(page.locator(".timeline .row", has_text="API calls")).to_have_count(0)


@pytest.mark.slow
def test_all_rows_of_api_calls_are_hidden_by_one_switch(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/timeline?runs={run_id}&window=250000..450000&search=cudalaunch")
    rows = page.locator(".timeline .row")
    calls = rows.filter(has_text="API calls")
    expect(calls).to_have_count(1)
    expect(page.locator(".matches")).to_contain_text("2\u202f000 matches")
    eventually(lambda: drawn_count(page, "timeline:events") > 0)
    before, others = settled(lambda: drawn_count(page, "timeline:events")), rows.count() - 1
    page.get_by_role("checkbox", name="API calls", checked=True).press("Space")
    page.wait_for_url(re.compile("calls=hidden"))
    expect(calls).to_have_count(0)
    expect(rows).to_have_count(others)
    expect(page.locator(".matches")).to_contain_text("0 matches")  # none could be looked at
    eventually(lambda: 0 < drawn_count(page, "timeline:events") < before)
    again = visit.open(page.url.removeprefix(visit.dashboard.url))
    expect(again.locator(".timeline .row")).to_have_count(others)
    again.get_by_role("checkbox", name="API calls", checked=False).click()
    expect(again.locator(".timeline .row", has_text="API calls")).to_have_count(1)
    again.wait_for_url(lambda url: "calls=" not in url)


def test_a_marked_stretch_says_what_devices_did_and_groups_fold(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/timeline?runs={run_id}&window=0..1000000")
    eventually(lambda: drawn_count(page, "timeline:events") > 10)
    at, end = place(page, 100_000, 1), place(page, 900_000, 1)
    page.keyboard.down("Shift")
    page.mouse.move(**at)
    page.mouse.down()
    page.mouse.move(**end, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    stretch = page.locator(".stretch")
    expect(stretch).to_contain_text("gemm_tile")
    expect(stretch.locator(".tabulator-row", has_text="device 0").first).to_contain_text(re.compile(r"(59|60)\.\d %"))  # 60 of 100 µs
    eventually(lambda: drawn_count(page, "timeline:stretch") == 1)
    eventually(lambda: drawn_count(page, "timeline:gaps") > 5)
    count = page.locator(".timeline .row").count()
    page.locator(".timeline button.row").first.click()
    expect(page.locator(".timeline .row")).not_to_have_count(count)
    page.wait_for_url(re.compile("folded="))


@pytest.mark.slow
def test_on_a_phone_nothing_is_cut_off_and_runs_without_a_trace_say_what_is_missing(visit: Visit, run_id: str) -> None:
    for theme in ("light", "dark"):
        page = visit.open(f"/timeline?runs={run_id}&theme={theme}")
        page.set_viewport_size({"width": 390, "height": 844})
        expect(page.get_by_role("link", name="Timeline")).to_have_attribute("aria-current", "page")
        eventually(lambda shown=page: drawn_count(shown, "timeline:pixels") > 100)  # type: ignore[misc]
        see_that_it_fits(page, 390)
    gone = visit.open("/timeline?runs=imported-never")
    expect(gone.locator(".card .note:visible >> nth=0")).to_contain_text("not there any longer")


@pytest.mark.parametrize("page_name", ["timeline", "live", "kernels", "layers"])
def test_the_beginning_of_a_runs_id_leads_to_the_run(visit: Visit, run_id: str, page_name: str) -> None:
    page = visit.open(f"/{page_name}?runs={run_id[:-2]}")
    page.wait_for_url(re.compile(f"runs={run_id}"))


@pytest.mark.slow
def test_the_run_of_a_prompt_is_in_the_list_and_draws_its_timeline(visit: Visit) -> None:
    """It has configurations as a sweep has them, and yet a trace: the profile that ONNX Runtime wrote."""
    quick = MeasuringOptions(min_duration_ns=10_000_000, max_duration_ns=150_000_000)
    spec = RunSpec(ModelRun("bert-tiny", prompt="The quick brown fox", measuring=quick))
    run = decode(visit.dashboard.stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=encode(spec))).run, Run)
    page = visit.open(f"/timeline?runs={run.run_id}")  # while it is still running: its timeline comes by itself
    eventually(lambda: drawn_count(page, "timeline:events") + drawn_count(page, "timeline:pixels") > 10)
    expect(page.locator(".timeline .row").first).to_be_visible()
    expect(page.locator(".card .note:visible >> nth=0")).to_contain_text(re.compile("All of"))
    listed = visit.open("/timeline")
    expect(listed.locator("select >> nth=0")).to_contain_text("bert-tiny: The quick brown fox")
    live = visit.open(f"/live?runs={run.run_id}")
    live.locator(".stage").get_by_role("link", name="timeline", exact=True).click()
    live.wait_for_url(re.compile(f"/timeline\\?runs={run.run_id}"))


def test_a_run_that_keeps_no_times_says_so_and_is_not_offered(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", title="a sweep without times", seconds=0.1, sizes=(65_536,))
    eventually(lambda: visit.dashboard.run(run.run_id).is_settled)
    page = visit.open(f"/timeline?runs={run.run_id}")
    expect(page.locator(".card .note:visible >> nth=0")).to_contain_text("This run has no trace")
    expect(visit.open("/timeline").locator("select >> nth=0")).not_to_contain_text("a sweep without times")
