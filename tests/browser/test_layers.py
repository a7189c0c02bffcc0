"""The Layers page in a real browser: the tree of a trace's layers and its kernels, both ways, and seed 003's charts of whole passes."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import drawn_count, eventually
from tests.unit.analyzer.readers.test_kineto import call, kernel, module, operator
from tests.unit.compat.test_model_dashboards import PROFILE

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def trace_id(visit: Visit, tmp_path: Path) -> str:
    return import_net(visit, tmp_path)


def import_net(visit: Visit, directory: Path) -> str:
    """A trace of a model with an attention, two products inside, and a head of another kernel with a hostile name."""
    shapes = {"Input Dims": [[512, 256], [256, 128]], "Input type": ["c10::Half", "c10::Half"]}
    events = [
        *(module(name, start, length) for name, start, length in (("Net_0", 0, 100), ("Attention_0", 5, 50), ("Head_0", 60, 30))),
        *(operator("aten::mm", start, 10, **shapes) for start in (10, 30)),
        *(call(start, correlation) for start, correlation in ((12, 1), (32, 2), (65, 3))),
        *(
            kernel(name, start, length, at)
            for name, start, length, at in (("gemm_a", 200, 20, 1), ("gemm_a", 230, 40, 2), (HOSTILE, 280, 20, 3))
        ),
    ]
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    return visit.dashboard.import_file(directory / "net.json", {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events})


def click_box(page: Page, place: int) -> None:
    """In the middle of a box of the icicle."""
    page.evaluate("document.querySelector('.layers .chart').scrollIntoView()")
    x, y = page.evaluate(
        """place => {
          const figure = Bokeh.documents[0].get_model_by_name("icicle")
          const view = Bokeh.index.find_one(figure)
          const {left, right, top, bottom} = Bokeh.documents[0].get_model_by_name("icicle:boxes").data
          const box = view.canvas_view.el.getBoundingClientRect()
          const x = view.frame.x_scale.compute((left[place] + right[place]) / 2)
          return [box.x + x, box.y + view.frame.y_scale.compute((top[place] + bottom[place]) / 2)]
        }""",
        place,
    )
    page.mouse.click(x, y)


@pytest.mark.slow
def test_a_layer_is_looked_into_and_left_by_click_key_and_button(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}")
    crumbs = page.locator("#f-crumbs")
    eventually(lambda: drawn_count(page, "icicle:boxes") == 3)
    click_box(page, 1)
    page.wait_for_url(re.compile("layer=.*Attention_0"))
    expect(crumbs.locator("[aria-current]")).to_have_text("Attention_0")
    facts = page.locator("#f-layer_facts")
    for figure in ("60.0 µs", "75.0 %", "67.1 Mflop", "memory"):
        expect(facts).to_contain_text(figure)
    page.keyboard.press("Escape")
    expect(crumbs.locator("[aria-current]")).to_have_text("Net_0")
    page.locator("#f-layer_parts").get_by_role("button", name="Head_0").press("Enter")
    expect(crumbs.locator("[aria-current]")).to_have_text("Head_0")
    page.go_back()
    expect(crumbs.locator("[aria-current]")).to_have_text("Net_0")
    page.go_forward()
    expect(crumbs.locator("[aria-current]")).to_have_text("Head_0")
    crumbs.get_by_role("button", name="All layers").click()
    page.wait_for_url(lambda url: "layer=" not in url)
    page.set_viewport_size({"width": 390, "height": 844})
    eventually(lambda: page.evaluate("document.querySelector('main').scrollWidth") <= 390)
    gone = visit.open(f"/layers?runs={trace_id}&layer=gone")
    expect(gone.locator("#f-crumbs")).to_contain_text("no layer gone")


def test_kernels_lead_to_their_layers_and_layers_to_their_kernels(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}")
    kernels = page.locator("#f-layer_kernels tbody tr")
    expect(kernels).to_have_count(2)
    expect(kernels.nth(1)).to_contain_text(HOSTILE)  # as text
    kernels.first.get_by_role("button", name="its layers").click()
    page.wait_for_url(re.compile("kernel=%22gemm_a%22"))
    expect(page.locator("#f-kernel_layers")).to_contain_text("2 launches in 1 layer,")
    eventually(lambda: min(column(page, "icicle:boxes", "fill_alpha")) < 0.5)  # the head runs none
    page.locator("#f-kernel_layers").get_by_role("button", name="nn.Module: Attention_0").click()
    expect(page.locator("#f-crumbs [aria-current]")).to_have_text("Attention_0")
    expect(kernels).to_have_count(1)
    expect(page.locator("#f-table tbody tr").first).to_contain_text("gemm_a")
    kernels.get_by_role("link", name="roofline").click()
    page.wait_for_url(re.compile(r"/roofline\?.*kernel=%22gemm_a%22"))
    page.wait_for_selector(".shell[data-ready]")
    eventually(lambda: drawn_count(page, "roofline:points") == 1)


def test_the_download_of_a_table_holds_what_the_table_shows(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}&table=layer_kernels")
    rows = page.locator("#f-table tbody tr")
    eventually(lambda: rows.count() > 2)
    page.get_by_label("Part of a layer's name").fill("head")
    expect(rows).to_have_count(1)
    with page.expect_download() as download:
        page.locator("#f-download").get_by_role("link").click()
    (row,) = csv.DictReader(io.StringIO(Path(download.value.path()).read_text()))
    assert (row["layer_path"], row["kernel_name"]) == ("nn.Module: Net_0 / nn.Module: Head_0", HOSTILE)


def test_seed_003_latency_throughput_percentiles_architecture_and_efficiency(visit: Visit, tmp_path: Path) -> None:
    run_id = visit.dashboard.import_file(tmp_path / "profiling_data.json", PROFILE)
    page = visit.open(f"/layers?runs={run_id}")
    for title in ("Latency of a pass", "Throughput", "Percentiles of latency", "Efficiency: throughput for each layer", "Memory"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    eventually(lambda: drawn_count(page, "latency:boxes") == 1)
    assert drawn_count(page, "latency:whiskers") == 3  # a stem and two ends
    assert drawn_count(page, "percentiles:dots") == 5  # from min to max
    for architecture, value in (("layer_count", 3), ("head_count", 3), ("width", 48)):
        assert column(page, f"{architecture}:boxes", "top") == [value]
    assert column(page, "efficiency:dots", "y") == [pytest.approx(256 / 1.28e-3 / 3)]
    assert column(page, "memory:boxes", "top") == [2_000_000]


@pytest.mark.slow
def test_the_page_says_that_the_sum_of_layers_is_not_a_pass(visit: Visit, tmp_path: Path) -> None:
    """The layers of the file take 0.5 ms together, a whole pass 1.28 ms."""
    run_id = visit.dashboard.import_file(tmp_path / "layers_and_pass.json", PROFILE | {"metadata": {"gpu_name": "another"}})
    page = visit.open(f"/layers?runs={run_id}")
    told = (
        "Layers are timed one by one, in passes of their own: 500 µs together, ×0.391 of the 1.28 ms that a complete pass takes without it."
    )
    for note in ("#f-icicle_note", "#f-layers_note"):
        expect(page.locator(note)).to_contain_text(f"{told} Shares are of their sum, not of the pass.")
    facts = page.locator("#f-layer_facts")
    expect(facts).to_contain_text("Share of all layers100 %")
    expect(facts).to_contain_text("Whole pass1.28 ms")
    expect(page.locator("#f-table thead")).to_contain_text("Share of all layers")
    page.locator("#f-row_choice select").select_option("models")
    expect(page.locator("#f-table thead")).to_contain_text("Sum of its layers")
    expect(page.locator("#f-table thead")).to_contain_text("Tokens/s of median")
    see_that_it_fits(page, 390, 1280)


def column(page: Page, source: str, name: str) -> list[Any]:
    values: list[Any] = page.evaluate(
        "([source, name]) => Array.from(Bokeh.documents[0].get_model_by_name(source).data[name])", [source, name]
    )
    return values
