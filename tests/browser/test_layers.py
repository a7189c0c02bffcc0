"""The Layers page in a real browser: the tree of a trace's layers and its kernels, both ways, and seed 003's charts of whole passes."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.charts import SOURCE, column, drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually
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
    page.get_by_role("heading", name="Model tree").scroll_into_view_if_needed()
    x, y = page.evaluate(
        f"""place => {{
          const source = ({SOURCE})("icicle:boxes")
          const isIcicle = ({{model}}) => model.type === "Figure" && model.renderers.some(({{data_source}}) => data_source === source)
          const find = (view) => isIcicle(view) ? view : [...view.children()].map(find).find((found) => found)
          const view = [...Bokeh.index].map(find).find((found) => found)
          const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((name) => source.get_column(name)[place])
          const box = view.el.getBoundingClientRect()
          const x = view.frame.x_scale.compute((left + right) / 2)
          return [box.x + x, box.y + view.frame.y_scale.compute((top + bottom) / 2)]
        }}""",
        place,
    )
    page.mouse.click(x, y)


def card(page: Page, title: str) -> Locator:
    """The card with this heading."""
    return page.locator(".card").filter(has=page.get_by_role("heading", name=title, exact=True))


@pytest.mark.slow
def test_a_layer_is_looked_into_and_left_by_click_key_and_button(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}")
    crumbs = page.get_by_role("navigation", name="Layers around the one shown")
    eventually(lambda: drawn_count(page, "icicle:boxes") == 3)
    click_box(page, 1)
    page.wait_for_url(re.compile("layer=.*Attention_0"))
    expect(crumbs.locator("[aria-current]")).to_have_text("Attention_0")
    facts = page.locator(".card").filter(has_text="Its point under the roofline")
    for figure in ("60.0 µs", "75.0 %", "67.1 Mflop", "memory"):
        expect(facts).to_contain_text(figure)
    page.keyboard.press("Escape")
    expect(crumbs.locator("[aria-current]")).to_have_text("Net_0")
    card(page, "Layers inside").get_by_role("link", name="Head_0").press("Enter")
    expect(crumbs.locator("[aria-current]")).to_have_text("Head_0")
    page.go_back()
    expect(crumbs.locator("[aria-current]")).to_have_text("Net_0")
    page.go_forward()
    expect(crumbs.locator("[aria-current]")).to_have_text("Head_0")
    crumbs.get_by_role("link", name="All layers").click()
    page.wait_for_url(lambda url: "layer=" not in url)
    page.set_viewport_size({"width": 390, "height": 844})
    eventually(lambda: page.evaluate("document.documentElement.scrollWidth") <= 390)
    gone = visit.open(f"/layers?runs={trace_id}&layer=gone")
    expect(gone.locator(".crumbs")).to_contain_text("no layer gone")


def test_kernels_lead_to_their_layers_and_layers_to_their_kernels(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}")
    kernels = card(page, "Its kernels").locator("tbody tr")
    expect(kernels).to_have_count(2)
    expect(kernels.nth(1)).to_contain_text(HOSTILE)  # as text
    kernels.first.get_by_role("link", name="its layers").click()
    page.wait_for_url(re.compile("kernel=%22gemm_a%22"))
    runners = card(page, 'Layers that run "gemm_a"')
    expect(runners).to_contain_text("2 launches in 1 layer,")
    eventually(lambda: min(column(page, "icicle:boxes", "fill_alpha")) < 0.5)  # the head runs none
    runners.get_by_role("link", name="nn.Module: Attention_0").click()
    expect(page.locator(".crumbs [aria-current]")).to_have_text("Attention_0")
    expect(kernels).to_have_count(1)
    expect(page.locator(".listed .tabulator-row").first).to_contain_text("gemm_a")
    kernels.get_by_role("link", name="roofline").click()
    page.wait_for_url(re.compile(r"/roofline\?.*kernel=%22gemm_a%22"))
    eventually(lambda: drawn_count(page, "roofline:points") == 1)


def test_the_download_of_a_table_holds_what_the_table_shows(visit: Visit, trace_id: str) -> None:
    page = visit.open(f"/layers?runs={trace_id}&table=layer_kernels")
    rows = page.locator(".listed .tabulator-row")
    eventually(lambda: rows.count() > 2)
    page.get_by_label("Layer", exact=True).press_sequentially("head")
    expect(rows).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
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
    for title in ("Model tree", "Time by kind of layer"):
        expect(card(page, title)).to_contain_text(f"{told} Shares are of their sum, not of the pass.")
    facts = page.locator(".card").filter(has_text="Its point under the roofline")
    expect(facts).to_contain_text("Share of all layers100 %")
    expect(facts).to_contain_text("Whole pass1.28 ms")
    expect(page.locator(".listed .tabulator-header")).to_contain_text("Share of all layers")
    page.get_by_label("Table", exact=True).select_option("whole passes")
    expect(page.locator(".listed .tabulator-header")).to_contain_text("Sum of its layers")
    expect(page.locator(".listed .tabulator-header")).to_contain_text("Tokens/s of median")
    see_that_it_fits(page, 390, 1280)
