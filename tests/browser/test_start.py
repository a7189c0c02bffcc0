"""The page Run / Import: runs that are started from its forms, and traces that are dropped on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psutil
import pytest
from onnx import helper
from playwright.sync_api import Page, expect

from kernalyse.services.core.model import CommandProfile, KernelSweep, ModelRun, Run
from tests.browser.conftest import Visit
from tests.browser.test_live import eventually
from tests.onnx_files import save_model
from tests.unit.analyzer.readers.test_kineto import call, kernel

pytestmark = pytest.mark.browser

SOURCE = """#include "factor.h"
__global__ void scale(const float* a, float* b, float alpha, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) b[i] = FACTOR * alpha * a[i];
}
"""
MEBIBYTE = 2**20


def measured(visit: Visit, page: Page) -> Run:
    """The run that the shown form starts, once it has succeeded."""
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/live\?runs="))
    expect(page.locator(".run-card .state")).to_have_text("succeeded")
    return visit.dashboard.run(page.url.partition("runs=")[2].partition("&")[0])


def started(visit: Visit, page: Page) -> Run:
    """The run that the shown form starts, ended again: what it was told to do is enough."""
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/live\?runs="))
    run_id = page.url.partition("runs=")[2].partition("&")[0]
    visit.dashboard.cancel(run_id)
    eventually(lambda: visit.dashboard.run(run_id).state.is_final)
    return visit.dashboard.run(run_id)


def drop(page: Page, *files: tuple[str, bytes]) -> None:
    """Drops files on the page, as a mouse does."""
    contents = [{"name": name, "bytes": list(content)} for name, content in files]
    transfer = page.evaluate_handle(
        """files => {
          const transfer = new DataTransfer()
          for (const {name, bytes} of files) transfer.items.add(new File([new Uint8Array(bytes)], name, {lastModified: 1}))
          return transfer
        }""",
        contents,
    )
    page.dispatch_event("header", "drop", {"dataTransfer": transfer})


def trace(note: str) -> bytes:
    return json.dumps({"schemaVersion": 1, "note": note, "traceEvents": [call(12, 1), kernel("gemm", 200, 2, 1)]}).encode()


@pytest.mark.slow
def test_a_sweep_is_set_up_checked_and_started(visit: Visit) -> None:
    page = visit.open("/start")
    panel = page.locator(".start-form:visible")
    panel.get_by_label("Kernel", exact=True).select_option("saxpy")
    panel.get_by_label("N", exact=True).fill("2**10..2**12")
    panel.get_by_label("Only where").fill("M > 1")
    expect(panel.locator(".field", has_text="Only where").locator(".hint")).to_contain_text("found M, which kernel saxpy does not have")
    expect(panel.get_by_label("Only where")).to_have_attribute("aria-invalid", "true")
    panel.get_by_label("Only where").fill("")
    panel.get_by_label("Threads per block").fill("128,256")
    panel.get_by_label("Longest sampling, s").fill("0.5")
    expect(panel.locator(".outlook")).to_contain_text("6 configurations on opencl:")
    expect(panel.locator(".outlook")).to_contain_text("at most 3.00 s of sampling (500 ms each)")
    expect(panel.locator(".command-line")).to_have_text("kernalyse bench saxpy -p 'N=2**10..2**12' --block 128,256 --max-time 0.5")
    page.get_by_role("tab", name="Model").click()
    page.get_by_role("tab", name="Model").press("Home")
    expect(page.get_by_role("tab", name="Kernel sweep")).to_be_focused()
    expect(panel.get_by_label("N", exact=True)).to_have_value("2**10..2**12")
    sweep = started(visit, page).spec.work
    assert isinstance(sweep, KernelSweep)
    assert [axis.values for axis in sweep.axes] == [(1024, 2048, 4096)]
    page.go_back()
    expect(page.locator(".start-form:visible").get_by_label("N", exact=True)).to_have_value("2**10..2**12")


@pytest.mark.slow
def test_a_dropped_source_offers_its_kernels(visit: Visit) -> None:
    page = visit.open("/start?form=import")
    drop(page, ("<img src=x onerror=window.pwned=1>.cu", SOURCE.encode()), ("factor.h", b"#define FACTOR 2.0f\n"))
    panel = page.locator(".start-form:visible")
    expect(page.get_by_role("tab", name="Kernel sweep")).to_have_attribute("aria-selected", "true")
    expect(panel.get_by_label("Kernel", exact=True)).to_have_value("scale")
    expect(panel.locator(".outcome")).to_contain_text("alpha: taken to be 1.0")
    panel.get_by_label("N", exact=True).fill("1024")
    panel.get_by_label("Flop of a launch").fill("N")
    panel.get_by_label("Longest sampling, s").fill("0.1")
    expect(panel.locator(".outlook")).to_contain_text("1 configuration on")
    sweep = measured(visit, page).spec.work
    assert isinstance(sweep, KernelSweep)
    assert sweep.kernels[0].source is not None
    assert sweep.kernels[0].source.text == SOURCE
    assert page.evaluate("window.pwned") is None


def test_a_command_runs_with_the_files_that_were_given(visit: Visit) -> None:
    page = visit.open("/start?form=command")
    panel = page.locator(".start-form:visible")
    panel.get_by_label("Command", exact=True).fill("sh job.sh 'two words'")
    drop(page, ("job.sh", b"#!/bin/sh\necho given: $1\n"))
    expect(panel.locator(".chip")).to_contain_text("job.sh")
    panel.get_by_label("Collector").select_option("nsys: kernels, copies, calls, NVTX ranges of any program")
    expect(panel.locator(".command-line")).to_have_text("kernalyse profile --collector nsys -- sh job.sh 'two words'")
    work = measured(visit, page).spec.work
    expect(page.locator(".log")).to_contain_text("given: two words")
    assert isinstance(work, CommandProfile)
    assert work.bundle_digest is not None


@pytest.mark.slow
def test_models_are_started_by_name_and_by_prompt(visit: Visit, tmp_path: Path) -> None:
    page = visit.open("/start?form=model")
    panel = page.locator(".start-form:visible")
    panel.get_by_label("Variant").select_option("both in turns, compared")
    expect(panel.locator(".command-line")).to_contain_text("kernalyse model gpt-nano --variant baseline --variant fused")
    work = started(visit, page).spec.work
    assert isinstance(work, ModelRun)
    assert work.variants == ("baseline", "fused")
    page = visit.open("/start?form=model")
    panel = page.locator(".start-form:visible")
    own = save_model(tmp_path / "own.onnx", helper.make_node("Relu", ["x"], ["y"]), inputs={"x": [1, 4]}, outputs={"y": [1, 4]})
    drop(page, (own.name, own.read_bytes()))
    expect(panel.get_by_label("Model", exact=True)).to_contain_text("own.onnx: your file")
    expect(panel.locator(".command-line")).to_have_text("kernalyse model own.onnx")
    work = started(visit, page).spec.work
    assert isinstance(work, ModelRun)
    assert (work.model_name, bool(work.bundle_digest)) == ("own.onnx", True)
    page = visit.open("/start?form=prompt")
    panel = page.locator(".start-form:visible")
    panel.get_by_label("Text").fill("The quick brown fox")
    expect(panel.locator(".outlook")).to_contain_text("At most 10 s of sampling")
    work = started(visit, page).spec.work
    assert isinstance(work, ModelRun)
    assert work.prompt == "The quick brown fox"


def test_traces_are_dropped_read_and_linked(visit: Visit) -> None:
    page = visit.open("/start")
    drop(page, ("<b>one.json", trace("one")), ("two.json", trace("two")), ("README.md", b"# no trace\n"))
    imports = page.locator(".import")
    expect(imports.locator(".state.succeeded")).to_have_count(2)
    wrong = imports.filter(has_text="README.md")
    expect(wrong.locator(".problem")).to_contain_text("found content that begins with")
    wrong.get_by_role("button", name="Clear README.md").click()
    expect(imports).to_have_count(2)
    one = imports.filter(has_text="<b>one.json")
    one.get_by_role("link", name="Kernels").click()
    expect(page.locator(".listed .tabulator-row")).to_contain_text("gemm")


def test_traces_of_one_job_become_one_run(visit: Visit) -> None:
    page = visit.open("/start?form=import")
    page.get_by_label("traces of one job's processes").check()
    drop(page, ("rank0.json", trace("rank 0")), ("rank1.json", trace("rank 1")))
    job = page.locator(".import").filter(has_text="rank0.json and 1 more")
    expect(job.locator(".state")).to_have_text("done")


@pytest.mark.slow
def test_a_large_upload_takes_no_memory_of_the_server_and_can_be_cancelled(visit: Visit) -> None:
    process = psutil.Process(visit.dashboard.ui.process.pid)
    page = visit.open("/start?form=import")
    before_bytes = process.memory_info().rss
    page.get_by_label("Choose files", exact=True).evaluate(
        """input => {
          const block = new Uint8Array(2 ** 20)
          const transfer = new DataTransfer()
          transfer.items.add(new File(['{"traceEvents": [', ...Array(256).fill(block)], "large.bin", {lastModified: 1}))
          input.files = transfer.files
          input.dispatchEvent(new Event("change", {bubbles: true}))
        }"""
    )
    upload = page.locator(".import").filter(has_text="large.bin")
    bar = upload.get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-valuenow", re.compile(r"[5-9]\d"))
    upload.get_by_role("button", name="Cancel").click()
    expect(upload.locator(".state")).to_have_text("cancelled")
    assert process.memory_info().rss - before_bytes < 64 * MEBIBYTE


def test_a_large_file_of_the_wrong_kind_is_refused_by_its_first_slices(visit: Visit) -> None:
    page = visit.open("/start")
    slices: list[str] = []
    page.on("request", lambda request: slices.append(request.url) if request.method == "PUT" else None)
    page.evaluate(
        """() => {
          const transfer = new DataTransfer()
          transfer.items.add(new File(Array(128).fill(new Uint8Array(2 ** 20)), "disk.img", {lastModified: 1}))
          document.getElementById("main").dispatchEvent(new DragEvent("drop", {bubbles: true, dataTransfer: transfer}))
        }"""
    )
    wrong = page.locator(".import").filter(has_text="disk.img")
    expect(wrong.locator(".problem")).to_contain_text("found content that begins with")
    expect(wrong.locator(".problem")).to_contain_text("Nsight Systems")
    page.wait_for_timeout(500)
    assert len(slices) < 8  # of 17: a refusal that meets a slice on its way has the file begun anew, once or twice


def test_pages_of_others_send_no_files(visit: Visit) -> None:
    page = visit.open("/start")
    url = f"{visit.dashboard.url}/imports"
    body = json.dumps({"files": [{"name": "a", "size": 1, "modified": 1}]})
    assert page.request.post(url, data=body).status == 403  # without the header that other sites cannot set
    header = {"X-Kernalyse-Page": "start"}
    assert page.request.post(url, data=body, headers={**header, "Origin": "http://elsewhere.example"}).status == 403
    assert page.request.post(url, data="[]", headers=header).status == 400
    assert page.request.get(f"{url}/{'0' * 32}").status == 404


def test_forms_fit_the_screen(visit: Visit) -> None:
    page = visit.open("/start?theme=dark")
    for width in (2560, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for tab in page.get_by_role("tab").all():
            tab.click()
            assert page.locator("main").evaluate("main => main.scrollWidth") <= width


def test_a_stopped_sweep_is_continued_and_repeated(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", seconds=30, sizes=tuple(range(1024, 101 * 1024, 1024)))  # not done before its end is heard
    visit.dashboard.cancel(run.run_id)
    eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)
    for button, continues in (("Measure what is left", run.run_id), ("Run again", None)):
        page = visit.open(f"/start?runs={run.run_id}")
        page.get_by_role("button", name=button).click()
        page.wait_for_url(re.compile(r"/live\?runs="))
        again = visit.dashboard.run(page.url.partition("runs=")[2].partition("&")[0])
        visit.dashboard.cancel(again.run_id)
        assert again.run_id != run.run_id
        assert again.spec.continues_run_id == continues


def test_what_failed_is_tried_again_by_a_button_of_its_own(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", sizes=(1024, 2**38))  # no device has room for the second
    eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)
    page = visit.open(f"/start?runs={run.run_id}")
    expect(page.get_by_role("button", name="Try what failed again")).to_be_visible()
    expect(page.get_by_role("button", name="Measure what is left")).to_have_count(0)
    page.get_by_role("button", name="Try what failed again").click()
    page.wait_for_url(re.compile(r"/live\?runs="))
    again = visit.dashboard.run(page.url.partition("runs=")[2].partition("&")[0])
    assert isinstance(again.spec.work, KernelSweep)
    assert (again.spec.work.done_configuration_indexes, again.spec.work.failed_configuration_indexes) == ((0,), ())
    expect(page.get_by_role("link", name=run.run_id)).to_be_visible()  # it says which run it continues
